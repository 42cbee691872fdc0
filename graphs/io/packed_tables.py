"""Tables of 4 bits an element that nodes look rows up in."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from engine.base.errors import DTypeError
from engine.graphs.io.messages import join_nibbles
from engine.graphs.io.protos import TensorProto
from engine.graphs.ir.graph import Graph, Names, Node
from engine.kernels.vocabulary.op import MS, Array

_MIDDLE = 8  # the zero point of unsigned integers where none is given


def pack_tables(graph: Graph, kinds: Mapping[str, int]) -> None:
    """Pack tables of 4 bits an element, which are bytes after reading, two to a byte, in place.

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


def _pack(node: Node, name: str, table: Array, shift: int) -> Array:
    """Return the bytes of a table that a node reads."""
    if table.ndim == 0 or table.shape[-1] % 2:
        raise DTypeError(
            f"{node.op} {node.name!r} reads {name!r} of 4 bits an element and the shape "
            f"{list(table.shape)}; supported: rows of an even number of elements"
        )
    return join_nibbles(_raise(table, shift))


def _raise(integers: Array, shift: int) -> Array:
    """Return integers of 4 bits as unsigned ones, larger by a number."""
    return (integers.astype(np.int16) + shift).astype(np.uint8)
