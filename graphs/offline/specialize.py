"""Specialisation: a model for known values and shapes of its inputs, with less control flow.

Partial evaluation (Jones, Gomard and Sestoft, 1993) of the conditions of If alone: other nodes
that become constant stay, and planning folds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.base.errors import InputError, NameNotFoundError, ShapeError, suggest_nearest
from engine.graphs.ir.graph import Graph
from engine.graphs.ir.symbols import rename
from engine.graphs.passes.control import has_control_flow, take_known_branches
from engine.graphs.passes.infer import infer
from engine.graphs.passes.simplify import drop_identities, prune
from engine.kernels.vocabulary.op import Dim


def specialize(
    graph: Graph, values: Mapping[str, Any], shapes: Mapping[str, Sequence[Dim]]
) -> list[str]:
    """Make inputs constant and symbolic dimensions numbers, in place; take the branches of If
    that follow.  Return the names of the If nodes that are gone.

    values: by the names of inputs, which the graph then no longer has.
    shapes: by the names of inputs; a text leaves a dimension as it is.

    Before   x: f32[batch,time], rate: i64[]; c = Equal(rate, 16000); y = If(c) {A(x)} {B(x)}
    After    x: f32[batch,512]; y = A(x)                 for rate=16000, x=[batch, 512]

    Raises:
        NameNotFoundError: the graph has no such input.
        DTypeError, InputError: a value has another type than its input, or is too large.
        ShapeError: a shape does not fit its input, or two sizes of one symbol are different.
    """
    for name in (*values, *shapes):
        if name not in graph.inputs:
            raise NameNotFoundError(
                f"{graph.name}: no input {name!r}{suggest_nearest(name, graph.inputs)}"
            )
    constants = {name: _make_constant(graph, name, value) for name, value in values.items()}
    sizes: dict[str, Dim] = {}
    for name, shape in (*((n, a.shape) for n, a in constants.items()), *shapes.items()):
        _bind(graph, name, shape, sizes)
    rename(graph, sizes)
    if not graph.inputs.keys() - constants.keys():
        raise InputError(f"{graph.name}: values for all inputs; leave at least one to be given")
    for name, array in constants.items():
        del graph.inputs[name]
        graph.initializers[name] = array
    before = list_conditions(graph)
    prune(drop_identities(take_known_branches(graph)))
    if not has_control_flow(graph):  # otherwise outputs keep the types of the file
        known = infer(graph.copy()).types
        graph.types.update((name, known[name]) for name in graph.outputs if name in known)
    left = list_conditions(graph)
    return [name for name in before if name not in left]


def list_conditions(graph: Graph) -> list[str]:
    """Return the names of the If nodes of a graph, apart from those in bodies."""
    return [n.name or n.outputs[0] for n in graph.nodes if n.op == "If" and not n.domain]


def _make_constant(graph: Graph, name: str, value: Any) -> Array:
    """Return the value of an input as an array of its type."""
    kind = graph.inputs[name].dtype
    if kind not in NUMPY:
        raise InputError(f"input {name!r} is {kind}; values are given to inputs of numbers")
    return arguments.cast(f"the value of input {name!r}", value, np.dtype(NUMPY[kind]))


def _bind(graph: Graph, name: str, shape: Sequence[Dim], sizes: dict[str, Dim]) -> None:
    """Add the sizes that a shape of an input gives to its symbolic dimensions."""
    declared = graph.inputs[name].shape
    given = [
        d if isinstance(d, str) else arguments.check_shape(f"input {name!r}", (d,))[0]
        for d in shape
    ]
    if len(given) != len(declared):
        raise ShapeError(
            f"input {name!r} is {graph.inputs[name]}; got {len(given)} sizes, {list(given)}"
        )
    for axis, (d, size) in enumerate(zip(declared, given, strict=True)):
        if isinstance(size, str):
            continue
        if sizes.setdefault(d, size) != size if isinstance(d, str) else d != size:
            known = sizes[d] if isinstance(d, str) else d
            raise ShapeError(f"input {name!r}, axis {axis} ({d}): size {size}, but it is {known}")
