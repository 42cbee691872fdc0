"""Weights of 4 bits in files: two to a byte, instead of a byte each."""

from __future__ import annotations

import numpy as np

from engine.graphs.io import convert, onnx_io
from engine.graphs.io.messages import NIBBLE
from engine.graphs.ir.graph import Graph
from engine.graphs.passes.infer import infer
from engine.kernels.vocabulary.op import Array

_OPSET, _IR = 21, 10  # the first ones of ONNX that have integers of 4 bits


def store_nibbles(graph: Graph) -> Graph:
    """Return a graph whose quantised weights are stored in 4 bits where all of them fit.

    The graph must have the form in which it is written: passes know no such type.

    Before   opset 17; w, z: i8; d = DequantizeLinear(w, s, z)       values of w from -8 to 7
    After    opset 21; w, z: int4 in the file

    Raises:
        UnsupportedOpError: a node cannot be converted to opset 21.
    """
    if graph.opsets.get("", 1) < _OPSET:
        message = convert.convert_opset(onnx_io.to_proto(graph), graph.name, _OPSET)
        graph = onnx_io.load(message)
        graph.types = infer(graph.copy()).types
    graph.ir_version = max(graph.ir_version, _IR)
    readers, ends = graph.find_consumers(), set(graph.outputs)
    for node in graph.nodes:
        names = [name for name in (*node.inputs[:1], *node.inputs[2:]) if name]
        arrays = [graph.initializers.get(name) for name in names]
        is_alone = all(readers[name] == [node] and name not in ends for name in names)
        if node.op != "DequantizeLinear" or node.domain or not is_alone:
            continue
        if all(a is not None and a.dtype == np.int8 and _fits(a) for a in arrays):
            views = (graph.initializers[name].view(NIBBLE) for name in names)
            graph.initializers.update(zip(names, views, strict=True))
    return graph


def _fits(array: Array) -> bool:
    """Return whether integers are from -8 to 7."""
    return bool(array.min(initial=0) >= -8 and array.max(initial=0) <= 7)
