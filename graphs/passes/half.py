"""Half precision: a graph that computes with f16 is rewritten to compute with f32."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import NUMPY, ONNX_CODE, round_to_bfloats
from engine.graphs.ir.graph import TYPE_ATTRIBUTES, Graph, Names, Node
from engine.graphs.passes.infer import infer
from engine.graphs.passes.may_add import add_by_table
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import Movement
from engine.kernels.vocabulary.op import TensorType

MAY_ADD = add_by_table({"": "Cast"})  # for any ops in the graph


def replace_halves(graph: Graph) -> Graph:
    """Let a graph compute with f32 where it computes with f16.

    Its inputs and outputs stay f16.  Values between nodes are no longer rounded to half precision.
    A graph stays as it is if all its nodes only move half floats or have formulas, whose kernels
    take f16.

    Before   x: f16; y = Exp(x); output y: f16
    After    x: f16; x' = Cast(x) f32; y' = Exp(x'); y = Cast(y') f16
    """
    if not has_halves(graph) or all(map(_takes_halves, graph.nodes)):
        return graph
    makers = graph.find_producers()
    inputs = [name for name, t in graph.inputs.items() if t.dtype == "f16"]
    outputs = [name for name in _list_half_outputs(graph) if name in makers]
    return cast_ends(widen_halves(graph, outputs), "f16", inputs, outputs)


def cast_ends(graph: Graph, half: str, inputs: Collection[str], outputs: Collection[str]) -> Graph:
    """Let nodes read and make float32 where inputs and outputs are 16-bit floats, in place.

    Before   y = Exp(x)
    After    x' = Cast(x) f32; y' = Exp(x'); y = Cast(y') f16
    """
    names = Names(graph)
    inner = {name: names.take_fresh(f"{name}/single") for name in (*inputs, *outputs)}

    def cast(source: str, made: str, title: str, to: str) -> Node:
        fresh = names.take_fresh(f"{title}/Cast")
        return Node("Cast", (source,), (made,), {"to": ONNX_CODE[to]}, "", fresh)

    before = [cast(name, inner[name], name, "f32") for name in inputs]
    after = [cast(inner[name], name, name, half) for name in outputs]
    for node in graph.nodes:
        node.inputs = tuple(inner.get(i, i) for i in node.inputs)
        node.outputs = tuple(inner.get(o, o) for o in node.outputs)
    graph.nodes = [*before, *graph.nodes, *after]
    return graph


def _list_half_outputs(graph: Graph) -> list[str]:
    """Return the outputs that are f16: declared so, or made so by the nodes.

    Shape rules do not take f16.  An output without a declared type is f16 if its type follows the
    type that replaces f16.
    """
    unknown = [name for name in graph.outputs if name not in graph.types | graph.inputs]
    halves = {name for name, t in graph.types.items() if t.dtype == "f16"}
    if unknown:
        single = infer(copy_in_type(graph, "f16", "f32")).types
        double = infer(copy_in_type(graph, "f16", "f64")).types
        halves.update(name for name in unknown if single[name].dtype != double[name].dtype)
    return [name for name in graph.outputs if name in halves]


def copy_in_type(graph: Graph, source: str, to: str) -> Graph:
    """Return a copy of a graph that computes in another element type, inputs included."""
    made = graph.copy()
    made.inputs = {n: t.but(dtype=to) if t.dtype == source else t for n, t in made.inputs.items()}
    return _replace_type(made, source, to)


def widen_halves(graph: Graph, without: Collection[str] = ()) -> Graph:
    """Let the constants, attributes and known types of a graph be f32 where they are f16, in place.

    without: the names of values that stay f16.
    """
    return _replace_type(graph, "f16", "f32", without)


def _replace_type(graph: Graph, source: str, to: str, without: Collection[str] = ()) -> Graph:
    """Let constants, attributes and known types be `to` where they are `source`, in place."""
    for node in graph.nodes:
        node.attrs = {k: convert_attribute(k, v, source, to) for k, v in node.attrs.items()}
    graph.initializers = {n: convert_array(a, source, to) for n, a in graph.initializers.items()}
    graph.types = {
        n: t.but(dtype=to) if t.dtype == source and n not in without else t
        for n, t in graph.types.items()
    }
    return graph


def _takes_halves(node: Node) -> bool:
    """Return whether a node takes f16: it moves values, has a formula, or has no kernel."""
    op = list_ops().get((node.domain, node.op))
    return op is not None and (
        op.movement is not Movement.COMPUTED
        or op.expr is not None
        or op.title == "BitCast"
        or not (op.lower or op.expand)  # a constant, or the shape of a value
    )


def has_halves(graph: Graph) -> bool:
    """Return whether a value, constant or attribute of a graph is f16."""

    def is_half(types: Mapping[str, TensorType]) -> bool:
        return any(t.dtype == "f16" for t in types.values())

    return (
        is_half(graph.inputs)
        or is_half(graph.types)
        or any(a.dtype == np.float16 for a in graph.initializers.values())
        or any(
            convert_attribute(k, v, "f16", "f32") is not v
            for n in graph.nodes
            for k, v in n.attrs.items()
        )
    )


def convert_attribute(name: str, value: Any, source: str, to: str) -> Any:
    """Return an attribute with another element type instead of this one."""
    if isinstance(value, np.ndarray):
        return convert_array(value, source, to)
    return ONNX_CODE[to] if name in TYPE_ATTRIBUTES and value == ONNX_CODE[source] else value


def convert_array(array: Array, source: str, to: str) -> Array:
    """Return an array with elements of another type if they are of this one."""
    if array.dtype != NUMPY[source]:
        return array
    return round_to_bfloats(array) if to == "bf16" else array.astype(NUMPY[to])
