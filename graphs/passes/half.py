"""Half floats: a graph that computes with f16 is made to compute with f32 instead."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from engine.element_types import ONNX_CODE
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.passes.makes import where
from engine.kernels.registry import ops
from engine.kernels.vocabulary.op import Array, TensorType

_HALF, _SINGLE = ONNX_CODE["f16"], ONNX_CODE["f32"]
# Ops that take half floats themselves, since they only move or convert them.
_MOVES = {
    "Cast", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat",
    "Split", "Slice", "Gather", "GatherElements", "GatherND", "Expand", "Tile", "Shape", "Size",
    "Constant", "Pad", "BitCast", "CastLike",
}  # fmt: skip
MAKES = where({"": "Cast"})  # whatever ops the graph holds
_TYPES = ("to", "dtype", "output_dtype")  # attributes that name an element type


def singles_for_halves(graph: Graph) -> Graph:
    """Let a graph compute with f32 where it computes with f16.

    Its inputs and outputs stay f16.  Values between nodes are no longer rounded to half precision.
    A graph stays as it is if all its nodes only move half floats or have formulas, whose kernels
    take f16.

    Before   x: f16; y = Exp(x); output y: f16
    After    x: f16; x' = Cast(x) f32; y' = Exp(x'); y = Cast(y') f16
    """
    if not has_halves(graph) or all(map(_takes_halves, graph.nodes)):
        return graph
    names = Names(graph)
    before: list[Node] = []
    inner: dict[str, str] = {}
    for name, t in graph.inputs.items():
        if t.dtype == "f16":
            inner[name] = names.fresh(f"{name}/single")
            title = names.fresh(f"{name}/Cast")
            before.append(Node("Cast", (name,), (inner[name],), {"to": _SINGLE}, "", title))
    after: list[Node] = []
    makers = graph.producers()
    for name in graph.outputs:
        if name in makers and name in graph.types and graph.types[name].dtype == "f16":
            inner[name] = names.fresh(f"{name}/single")
            title = names.fresh(f"{name}/Cast")
            after.append(Node("Cast", (inner[name],), (name,), {"to": _HALF}, "", title))
    for node in graph.nodes:
        node.inputs = tuple(inner.get(i, i) for i in node.inputs)
        node.outputs = tuple(inner.get(o, o) for o in node.outputs)
    singles(graph, {o for n in after for o in n.outputs})
    graph.nodes = [*before, *graph.nodes, *after]
    return graph


def singles(graph: Graph, without: Collection[str] = ()) -> Graph:
    """Let the constants, attributes and known types of a graph be f32 where they are f16, in place.

    without: the names of values that stay f16.
    """
    for node in graph.nodes:
        node.attrs = {name: _attribute(name, value) for name, value in node.attrs.items()}
    graph.initializers = {n: _single(a) for n, a in graph.initializers.items()}
    graph.types = {
        n: t.but(dtype="f32") if t.dtype == "f16" and n not in without else t
        for n, t in graph.types.items()
    }
    return graph


def _takes_halves(node: Node) -> bool:
    """Whether a node takes f16: it only moves values, or has a formula (its kernel rounds)."""
    op = ops().get((node.domain, node.op))
    return (not node.domain and node.op in _MOVES) or (op is not None and op.expr is not None)


def has_halves(graph: Graph) -> bool:
    """Whether a value, constant or attribute of a graph is f16."""

    def is_half(types: Mapping[str, TensorType]) -> bool:
        return any(t.dtype == "f16" for t in types.values())

    return (
        is_half(graph.inputs)
        or is_half(graph.types)
        or any(a.dtype == np.float16 for a in graph.initializers.values())
        or any(_attribute(k, v) is not v for n in graph.nodes for k, v in n.attrs.items())
    )


def _attribute(name: str, value: Any) -> Any:
    """An attribute with f32 in the place of f16."""
    if isinstance(value, np.ndarray):
        return _single(value)
    return _SINGLE if name in _TYPES and value == _HALF else value


def _single(array: Array) -> Array:
    """An array with f32 elements if its elements are f16."""
    return array.astype(np.float32) if array.dtype == np.float16 else array
