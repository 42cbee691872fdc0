"""Sparse updates: training chosen parameters, and parts of weights.

If only the first input channels of a weight are trained, the weight becomes two parameters that the
graph joins:

    Before   initializer w f32[64,32,3,3];    y = Conv(x, w)
    After    parameters w.trained f32[64,8,3,3], w.frozen f32[64,24,3,3];
             w = Concat(w.trained, w.frozen) axis=1;    y = Conv(x, w)

Its gradient follows from ONNX's rules: a slice of the gradient of w, which the planner computes
from a slice of x (graphs/passes/narrow.py).  Three other forms were weighed.

* One parameter w whose gradient is a slice.  Names stay, but the optimizer models of
  onnxruntime-training take parameters and gradients of one shape, so they could not run it, and
  moments would be whole or have a shape of their own in checkpoints.
* The whole w frozen, and its first channels a second time as a parameter that is written over it.
  The name w stays, with an old value: two truths in a checkpoint, and more memory by the share.
* Two convolutions, of the first channels and of the others.  No join of weights, but the output is
  written twice and sums are in another order, so exported models would differ from the trained
  ones.

With two parameters nothing is special: moments and gradients have the shape of the trained part,
onnxruntime-training and trimmed builds need no changes, and a checkpoint holds each number once.
The price is a join: each step copies such a weight twice, once in the forward pass and, if dX needs
it, once in the backward pass, so that no joined weight is kept in between.  This reads and writes 4
bytes for each weight, less than 1 % of a step of MobileNetV2.  Exported models have w again, whole
and under its name (`joined`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from engine.base.errors import (
    EngineError,
    InputError,
    InternalError,
    NameNotFoundError,
    suggest_nearest,
)
from engine.base.sparse_update import SparseUpdate
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.sites import find_product, is_dequantiser
from engine.graphs.offline.integer_training import list_resident, list_units
from engine.graphs.offline.normalize import name_nodes, turn_into_inputs
from engine.graphs.offline.parameters import list_parameters
from engine.graphs.offline.residuals import keep_residuals
from engine.graphs.passes.batchnorm import list_batch_norms, list_folded_norms
from engine.graphs.passes.infer import infer
from engine.graphs.passes.patterns import fuse_patterns
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import Factors, Role
from engine.kernels.vocabulary.op import read_op_keys
from engine.system.paths import Paths

TRAINED, FROZEN = ".trained", ".frozen"  # ends of the names of the parts of a weight

_ELEMENTWISE = read_op_keys("Add Sub Mul Div Where Concat Sum Pow")


@dataclass(frozen=True, slots=True)
class ChosenParameters:
    """Parameters of a model that a sparse update trains.

    trained: names of initializers.
    parts: for each partly trained initializer, the axis of the input channels and the number of
        trained ones.
    frozen_norms: names of batch normalisations whose scale is not trained.
    """

    trained: tuple[str, ...]
    parts: Mapping[str, tuple[int, int]]
    frozen_norms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _ParameterUse:
    """Node that takes a parameter, and how it takes it.

    place: the position of the node in the graph.  at: the index of the input.
    axes: for each axis of the input the axis of the parameter, if only transposes lie between them.
    """

    node: Node
    place: int
    at: int
    axes: tuple[int, ...] | None


def choose(
    graph: Graph, update: SparseUpdate, candidates: Sequence[str] | None = None
) -> ChosenParameters:
    """Choose the parameters that an update trains in a forward model with unique names of nodes.

    candidates: the initializers that it may choose; None for all parameters of the model.

    Raises:
        NameNotFoundError: a pattern matches no candidate, or there is no such layer.
        InputError: `channels` names a weight that cannot be partly trained, or nothing is chosen.
    """
    known = list_parameters(graph) if candidates is None else list(candidates)
    uses, paths = _list_uses(graph, set(known)), Paths.of(graph.metadata)
    names: set[str] = set()
    for pattern in update.layers:
        names |= _match(pattern, known, uses, paths)
    if update.biases:
        names |= {name for name in known if _is_bias(graph, name, uses[name])}
    if update.norms:
        names |= {name for name in known if any(_is_of_norm(use) for use in uses[name])}
    if update.last:
        names |= _find_last_layers(graph, uses, update.last)
    parts = {}
    for pattern, share in update.channels.items():
        for name, axis in _find_splittable(pattern, known, uses, paths):
            channels = graph.initializers[name].shape[axis]
            count = math.ceil(share * channels)
            if count < channels and name not in names:
                parts[name] = (axis, count)
            else:
                names.add(name)
    parts = {name: part for name, part in parts.items() if name not in names}
    trained = tuple(n for n in graph.initializers if n in names or n in parts)
    if not trained:
        raise InputError(f"{update}: it chooses none of {len(known)} parameters of the model")
    norms = [*list_batch_norms(graph), *list_folded_norms(graph)]
    still = tuple(n.name for n in norms if n.inputs[1] not in names)
    return ChosenParameters(trained, parts, still)


def choose_and_split(
    graph: Graph, update: SparseUpdate, candidates: Sequence[str], frozen: Sequence[str]
) -> tuple[list[str], list[str], list[str]]:
    """Give a forward graph the parameters that an update trains, in place.

    candidates: the initializers that the update may choose; empty means all parameters.
    frozen: the parameters that are frozen anyway.

    Returns the trained parameters, the frozen ones, and the frozen batch normalisations.

    Raises:
        EngineError: see `choose` and `split`.
    """
    candidates = Paths.of(graph.metadata).resolve(candidates, graph.initializers)
    known = candidates or [n for n in list_parameters(graph) if n not in {*frozen}]
    if update.integers and not candidates:
        integers = {*list_resident(graph)}.difference(frozen)
        chosen_from = integers.union(known) - list_units(graph, integers)
        known = [n for n in graph.initializers if n in chosen_from]
    lost = [name for name in known if name not in graph.initializers]
    if lost:
        raise NameNotFoundError(
            "requires_grad: the model has no initializer "
            + ", ".join(f"{n!r}{suggest_nearest(n, graph.initializers)}" for n in lost)
        )
    chosen = choose(name_nodes(graph), update, known)
    split(graph, chosen.parts)
    # Integers that are not trained stay constants, with which their layers compute in integers.
    rest = [n for n in known if n not in chosen.trained and graph.initializers[n].dtype.kind == "f"]
    trained = [name + TRAINED if name in chosen.parts else name for name in chosen.trained]
    if update.residuals:
        keep_residuals(graph, trained)
        name_nodes(graph)
    still = [name + FROZEN for name in chosen.parts]
    return trained, [*frozen, *rest, *still], list(chosen.frozen_norms)


def split(graph: Graph, parts: Mapping[str, tuple[int, int]]) -> Graph:
    """Split each partly trained weight into two initializers, and join them in the graph.

    parts: see `Chosen` and the docstring of this file.

    Raises:
        InputError: the model has a value with the name of a part.
    """
    taken, names = set(graph.list_values()), Names(graph)
    joins = []
    for name, (axis, count) in parts.items():
        pair = (name + TRAINED, name + FROZEN)
        if not taken.isdisjoint(pair):
            raise InputError(f"channels: the model has a value {pair[0]!r} or {pair[1]!r} already")
        pieces = np.split(graph.initializers.pop(name), [count], axis)
        pieces = [np.ascontiguousarray(piece) for piece in pieces]
        graph.initializers.update(zip(pair, pieces, strict=True))
        title = names.take_fresh(f"{name}/join")
        joins.append(Node("Concat", pair, (name,), {"axis": axis}, "", title))
    graph.nodes[:0] = joins
    return graph


def join_parts(graph: Graph) -> Graph:
    """Join the parts of each weight that `split` has split into one initializer again.

    Before   initializers w.trained, w.frozen; w = Concat(w.trained, w.frozen); y = Conv(x, w)
    After    initializer w; y = Conv(x, w)
    """
    for name, node in find_joins(graph).items():
        if graph.initializers.keys() >= {*node.inputs}:
            pieces = [graph.initializers.pop(part) for part in node.inputs]
            graph.initializers[name] = np.concatenate(pieces, node.attrs["axis"])
            graph.nodes.remove(node)
    return graph


def find_joins(graph: Graph) -> dict[str, Node]:
    """Return the nodes that join the parts of split weights, by the weight's name."""
    concats = (n for n in graph.nodes if n.op == "Concat" and not n.domain)
    return {
        node.outputs[0]: node
        for node in concats
        if node.inputs == (node.outputs[0] + TRAINED, node.outputs[0] + FROZEN)
    }


def _list_uses(graph: Graph, known: set[str]) -> dict[str, list[_ParameterUse]]:
    """Return the nodes that take each of these initializers, through nodes that only move them.

    Decomposed ops are recognised as the original ops if the model can be inferred.
    """
    source: dict[str, tuple[str, tuple[int, ...] | None]] = {
        n: (n, tuple(range(graph.initializers[n].ndim))) for n in known
    }
    uses: dict[str, list[_ParameterUse]] = {name: [] for name in known}
    for place, node in enumerate(_fuse(graph, known).nodes):
        for at, name in enumerate(node.inputs):
            if name not in source:
                continue
            owner, axes = source[name]
            if not _maps_elements(node):
                uses[owner].append(_ParameterUse(node, place, at, axes))
            elif at == 0:
                source[node.outputs[0]] = (owner, _move_axes(node, axes))
    return uses


def _fuse(graph: Graph, known: set[str]) -> Graph:
    """Return a copy of the graph with decomposed ops fused; if it cannot be inferred, the graph.

    known: the initializers that are not constants.
    """
    copy = graph.copy()
    turn_into_inputs(copy, known)
    try:
        fuse_patterns(copy, infer(copy))
    except InternalError:
        raise
    except EngineError:
        return graph  # faults of the model are reported when its artifacts are made
    return copy


def _maps_elements(node: Node) -> bool:
    """Return whether a node makes a value for each element of its first input alone, wherever it
    puts it; see `_move_axes`.
    """
    op = list_ops().get((node.domain, node.op))
    if op is None:
        return False
    return op.keeps_elements or op.movement.is_reversible or is_dequantiser(node)


def _move_axes(node: Node, axes: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return the axes of a parameter after a node that moves it, or None if they are unknown."""
    if axes is None or node.op in ("Identity", "Cast") or is_dequantiser(node):
        return axes
    if node.op != "Transpose":
        return None
    return tuple(axes[p] for p in node.attrs.get("perm") or reversed(range(len(axes))))


def _is_bias(graph: Graph, name: str, uses: Sequence[_ParameterUse]) -> bool:
    """Return whether a parameter is only added to something."""
    thin = max(graph.initializers[name].shape, default=1) == graph.initializers[name].size
    return bool(uses) and all(_adds(use, thin) for use in uses)


def _adds(use: _ParameterUse, thin: bool) -> bool:
    """Return whether a node adds its input to something; thin: it has at most one axis longer than
    1.
    """
    is_added = _find_role(use) in (Role.BIAS, Role.SHIFT)
    return is_added or (thin and (use.node.domain, use.node.op) == ("", "Add"))


def _find_role(use: _ParameterUse) -> Role | None:
    """Return what a node takes its input for, as its op declares it."""
    op = list_ops().get((use.node.domain, use.node.op))
    return op.roles.get(use.at) if op is not None else None


def _is_of_norm(use: _ParameterUse) -> bool:
    """Return whether a node takes its input as the scale or shift of a normalisation."""
    return _find_role(use) in (Role.SCALE, Role.SHIFT)


def _match(
    pattern: str, known: Sequence[str], uses: Mapping[str, Sequence[_ParameterUse]], paths: Paths
) -> set[str]:
    """Return the parameters that match a pattern by name or path, or whose nodes match it."""
    names = {
        name
        for name in known
        if paths.matches(name, pattern)
        or any(
            fnmatchcase(title, pattern)
            for use in uses[name] for title in (use.node.name, paths.find_module(use.node.name))
        )
    }  # fmt: skip
    if not names:
        raise NameNotFoundError(
            f"layers: {pattern!r} matches none of {len(known)} parameters, and no node of one"
            f"{paths.suggest_nearest(pattern, known)}"
        )
    return names


def _find_last_layers(
    graph: Graph, uses: Mapping[str, Sequence[_ParameterUse]], count: int
) -> set[str]:
    """Return the parameters of the last layers, see `SparseUpdate.last`.

    Raises:
        NameNotFoundError: there are fewer layers.
    """
    layers: list[tuple[int, set[str]]] = []  # place of the node, parameters
    every = ((use.place, use.at, name, use) for name, takers in uses.items() for use in takers)
    for place, _, name, use in sorted(every, key=lambda row: row[:2]):
        is_weight = graph.initializers[name].ndim > 1 and not _adds(use, thin=True)
        is_weight &= (use.node.domain, use.node.op) not in _ELEMENTWISE
        if is_weight and (not layers or layers[-1][0] != place):
            layers.append((place, set()))
        if layers:
            layers[-1][1].add(name)
    if count > len(layers):
        raise NameNotFoundError(f"last={count}: the model has {len(layers)} layers with weights")
    return {name for _, layer in layers[-count:] for name in layer}


def _find_splittable(
    pattern: str, known: Sequence[str], uses: Mapping[str, Sequence[_ParameterUse]], paths: Paths
) -> list[tuple[str, int]]:
    """Return the weights that a pattern of `channels` names, each with the axis of its input
    channels.

    Other parameters that the pattern matches, such as biases, are left out.

    Raises:
        NameNotFoundError: it matches no parameter.
        InputError: no match is such a weight; the message says why.
    """
    matched = [name for name in known if paths.matches(name, pattern)]
    if not matched:
        raise NameNotFoundError(
            f"channels: {pattern!r} matches none of {len(known)} parameters"
            f"{paths.suggest_nearest(pattern, known)}"
        )
    axes = {name: _find_input_axis(uses[name]) for name in matched}
    weights = [(name, axis) for name, axis in axes.items() if isinstance(axis, int)]
    if not weights:
        reasons = ", ".join(f"{paths.title_value(n)} {why}" for n, why in list(axes.items())[:3])
        raise InputError(
            f"channels: {pattern!r} matches no weight of a convolution without groups, MatMul or "
            f"Gemm: {reasons}"
        )
    return weights


def _find_input_axis(uses: Sequence[_ParameterUse]) -> int | str:
    """Return the axis of the input channels of a weight, or the reason why it has none."""
    if len(uses) != 1:
        return f"is read by {len(uses)} nodes"
    (use,) = uses
    node, product = use.node, find_product(use.node)
    if product is None or product.factors is not Factors.FLOATS or use.at != 1:
        return f"is input {use.at} of {node.op} {node.name!r}"
    if product.is_convolution:
        if node.attrs.get("group", 1) != 1:
            return f"is of {node.name!r}, which has groups"
        axis = 1
    elif product.is_of_matrices:
        axis = 1 - product.find_output_axis(node.attrs)
    else:
        return f"is input {use.at} of {node.op} {node.name!r}"
    if use.axes is None or len(use.axes) < 2:
        return f"is reshaped before {node.op} {node.name!r}"
    if len(use.axes) > 2 and not product.is_convolution:
        return f"is a batch of matrices of {node.op} {node.name!r}"
    return use.axes[axis]
