"""Queries of a model.  They have onnxruntime-training's names, for blocks that import them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.base.errors import NameNotFoundError, suggest_nearest
from engine.onnxblock import model_accessor

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

_count = 0


def generate_graph_name(token: str) -> str:
    """Return a name for a value or node of the open model: `onnx::<token>::<number>`."""
    global _count
    accessor = model_accessor._GLOBAL_ACCESSOR
    taken = set() if accessor is None else set(list_names(accessor.model))
    while True:
        _count += 1
        name = f"onnx::{token}::{_count}"
        if name not in taken:
            return name


def list_names(model: ModelProto) -> list[str]:
    """Return the names of all values and nodes."""
    graph = model.graph
    named = [v.name for v in (*graph.input, *graph.initializer, *graph.node)]
    return named + [o for n in graph.node for o in n.output]


def has_node_arg(model: ModelProto, node_arg_name: str) -> bool:
    """Return whether a node of the model reads or makes a value of that name."""
    return any(node_arg_name in (*n.input, *n.output) for n in model.graph.node)


def get_output_from_output_name(onnx_model: ModelProto, output_name: str) -> ValueInfoProto:
    """Return the output of that name.

    Raises:
        NameNotFoundError: there is none.
    """
    return _find(onnx_model.graph.output, output_name, "output")


def get_input_from_input_name(onnx_model: ModelProto, input_name: str) -> ValueInfoProto:
    """Return the input of that name.

    Raises:
        NameNotFoundError: there is none.
    """
    return _find(onnx_model.graph.input, input_name, "input")


def _find(values: Sequence[ValueInfoProto], name: str, what: str) -> ValueInfoProto:
    for value in values:
        if value.name == name:
            return value
    known = [v.name for v in values]
    raise NameNotFoundError(f"{name!r} is not a graph {what}{suggest_nearest(name, known)}")


def register_graph_outputs(model: ModelProto, output_names: list[str] | str) -> None:
    """Make values the outputs of the model; they replace its own.

    Raises:
        NameNotFoundError: there is no such value, or its type is not known.
    """
    from engine.graphs.offline import compose

    compose.set_outputs(model, [output_names] if isinstance(output_names, str) else output_names)
