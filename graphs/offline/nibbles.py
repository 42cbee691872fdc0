"""Weights of 4 bits in files: two to a byte, instead of a byte each."""

from __future__ import annotations

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import UnsupportedOpError
from engine.graphs.io import convert, onnx_io
from engine.graphs.io.messages import NIBBLE, UNSIGNED_NIBBLE
from engine.graphs.ir.graph import Graph
from engine.graphs.ir.sites import is_dequantiser
from engine.graphs.passes.infer import infer

# The type of the bytes that become integers of 4 bits, and their range.
_KINDS = {NIBBLE: (np.int8, -8, 7), UNSIGNED_NIBBLE: (np.uint8, 0, 15)}
NIBBLE_OPSET, _IR = 21, 10  # the first ones of ONNX that have integers of 4 bits


def store_nibbles(graph: Graph) -> Graph:
    """Return a graph whose quantised weights are stored in 4 bits where all of them fit.

    The graph must have the form in which it is written: passes know no such type.

    Before   opset 17; w, z: i8; d = DequantizeLinear(w, s, z)       values from -8 to 7
    After    opset 21; w, z: int4 in the file; uint4 where they are u8, from 0 to 15

    Raises:
        UnsupportedOpError: a node cannot be converted to opset 21.
    """
    if graph.opsets.get("", 1) < NIBBLE_OPSET:
        try:
            message = convert.convert_opset(onnx_io.to_proto(graph), graph.name, NIBBLE_OPSET)
        except UnsupportedOpError as error:
            raise UnsupportedOpError(
                f"weights of 4 bits are stored in opset {NIBBLE_OPSET}, weights of 8 bits in any "
                f"other: {error}"
            ) from error
        graph = onnx_io.load(message)
        graph.types = infer(graph.copy()).types
    graph.ir_version = max(graph.ir_version, _IR)
    readers, ends = graph.find_consumers(), set(graph.outputs)
    for node in graph.nodes:
        names = [name for name in (*node.inputs[:1], *node.inputs[2:]) if name]
        arrays = [graph.initializers.get(name) for name in names]
        is_alone = all(readers[name] == [node] and name not in ends for name in names)
        if not is_dequantiser(node) or node.domain or not is_alone:
            continue
        for kind, (wide, low, high) in _KINDS.items():
            if all(a is not None and a.dtype == wide and _fits(a, low, high) for a in arrays):
                views = (graph.initializers[name].view(kind) for name in names)
                graph.initializers.update(zip(names, views, strict=True))
    return graph


def _fits(array: Array, low: int, high: int) -> bool:
    """Return whether integers are from `low` to `high`."""
    return bool(array.min(initial=0) >= low and array.max(initial=0) <= high)
