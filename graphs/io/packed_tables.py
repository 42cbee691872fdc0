"""Tables with 4 bits per element that nodes look rows up in: bytes of two in graphs.

onnxruntime takes bytes where blocks lie along the rows.  Other tables have 4-bit types in files.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import DTypeError
from engine.graphs.io.messages import UNSIGNED_NIBBLE, join_nibbles
from engine.graphs.io.protos import TensorProto
from engine.graphs.ir.graph import Graph, Names, Node
from engine.kernels.vocabulary.op import MS

_IR = 10  # the first one of ONNX that has integers of 4 bits
_MIDDLE = 8  # the zero point of unsigned integers where none is given


def pack_tables(graph: Graph, kinds: Mapping[str, int]) -> None:
    """Pack tables with 4 bits per element, which are bytes after reading, two to a byte, in place.

    kinds: the element types of constants of 4 bits, by their names.

    Before   q, z: int4[n, k]; y = com.microsoft::GatherBlockQuantized(q, i, s, z)
    After    q, z: u8[n, k / 2], each integer 8 larger; y = ... bits=4

    Raises:
        DTypeError: a row of a table does not fill whole bytes.
    """
    if not kinds:
        return
    names, replaced = Names(graph), set[str]()
    for node in graph.nodes:
        q, index, scales, zeros = (*node.inputs, *[""] * 4)[:4]
        is_table = (node.domain, node.op) == (MS, "GatherBlockQuantized")
        # Zero points of another type are left, and refused like other readers of 4 bits.
        if not is_table or q not in kinds or (zeros and kinds.get(zeros) != kinds[q]):
            continue
        shift = _MIDDLE if kinds[q] == TensorProto.INT4 else 0
        made = [names.take_fresh(f"{q}_bytes"), index, scales]
        graph.initializers[made[0]] = _pack(node, q, graph.initializers[q], shift)
        points = graph.initializers.get(zeros)
        if points is None and not shift and scales in graph.initializers:
            # Without zero points integers of 4 bits are not shifted, but bytes are.
            points = np.zeros(graph.initializers[scales].shape, np.uint8)
        if points is not None:
            made.append(names.take_fresh(f"{q}_zeros"))
            graph.initializers[made[3]] = join_nibbles(_raise(points, shift))
        node.inputs, node.attrs["bits"] = tuple(made), 4
        replaced |= {q, zeros}
    readers = graph.find_consumers() if replaced else {}
    for name in replaced:
        if not readers.get(name) and name not in graph.outputs:
            graph.initializers.pop(name, None)


def unpack_tables(graph: Graph) -> Graph:
    """Return a graph whose tables have the types that onnxruntime takes; itself if all have.

    Before   q, z: u8[n, k / 2]; y = com.microsoft::GatherBlockQuantized(q, i, s, z) bits=4
             quantize_axis=0
    After    q, z: uint4[n, k];  y = com.microsoft::GatherBlockQuantized(q, i, s, z) quantize_axis=0
    """
    known, out = graph.initializers, graph
    for at, node in enumerate(graph.nodes):
        q, index, scales, zeros = (*node.inputs, *[""] * 4)[:4]
        is_packed = (node.domain, node.op) == (MS, "GatherBlockQuantized") and q in known
        if not is_packed or node.attrs.get("bits", 4) != 4 or known[q].dtype != np.uint8:
            continue
        if int(node.attrs.get("quantize_axis", 1)) % known[q].ndim == known[q].ndim - 1:
            continue
        if out is graph:
            out = graph.copy()
        table = _split(known[q])
        points = known.get(zeros)
        if points is None and scales in known:
            points = np.full(known[scales].shape, _MIDDLE, np.uint8)
            zeros = Names(out).take_fresh(f"{q}_zeros")
        elif points is not None:
            points = _split(points)
        out.initializers[q] = table.view(UNSIGNED_NIBBLE)
        inputs = [q, index, scales]
        if points is not None:
            out.initializers[zeros] = points.view(UNSIGNED_NIBBLE)
            inputs.append(zeros)
        changed = out.nodes[at]
        changed.inputs = tuple(inputs)
        changed.attrs = {k: v for k, v in node.attrs.items() if k != "bits"}
    if out is not graph:
        out.ir_version = max(out.ir_version, _IR)
    return out


def _split(table: Array) -> Array:
    """Return integers of 4 bits, two of each byte, as bytes: the reverse of `join_nibbles`."""
    halves = np.stack([table & 15, table >> 4], -1)
    return np.ascontiguousarray(halves.reshape(*table.shape[:-1], -1))


def _pack(node: Node, name: str, table: Array, shift: int) -> Array:
    """Return the bytes of a table that a node reads."""
    if table.ndim == 0 or table.shape[-1] % 2:
        raise DTypeError(
            f"{node.op} {node.name!r} reads {name!r} with 4 bits per element and the shape "
            f"{list(table.shape)}; supported: rows of an even number of elements"
        )
    return join_nibbles(_raise(table, shift))


def _raise(integers: Array, shift: int) -> Array:
    """Return integers of 4 bits as unsigned ones, larger by a number."""
    return (integers.astype(np.int16) + shift).astype(np.uint8)
