"""Models that share the parameters of another, such as a decoder with caches of the trained one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.base.errors import DTypeError, InputError, ShapeError
from engine.graphs.ir.graph import Graph, find_type
from engine.kernels.vocabulary.op import TensorType


def share_parameters(
    graph: Graph, parameters: Mapping[str, TensorType], trained: Sequence[str], what: str
) -> Graph:
    """Let a model read the parameters of another instead of its initializers of the same names.

    Before   initializers w, table;          y = MatMul(x, w)
    After    inputs w; initializers table;   y = MatMul(x, w)

    graph: is changed.  parameters: of the other model.  trained: the names of those that must be
        among the initializers.  what: the model, in messages.

    Raises:
        InputError: a trained parameter is missing.
        ShapeError, DTypeError: one has another shape or type; the message names it.
    """
    missing = [name for name in trained if name not in graph.initializers]
    if missing:
        raise InputError(
            f"{what} lacks the trained parameters {missing[:3]} ({len(missing)} of {len(trained)}) "
            f"among its initializers {sorted(graph.initializers)[:3]}, ...; expected the same names"
        )
    for name in [name for name in graph.initializers if name in parameters]:
        mine, other = find_type(graph.initializers.pop(name)), parameters[name]
        if mine.shape != other.shape:
            raise ShapeError(
                f"{what}: {name!r} is {mine}, but the parameter of this name is {other}"
            )
        if mine.dtype != other.dtype:
            raise DTypeError(
                f"{what}: {name!r} is {mine}, but the parameter of this name is {other}"
            )
        graph.inputs[name] = other
    graph.external = ()
    return graph
