"""Batch normalisation: which nodes train, their training form, and folding.

A trained batch normalisation uses the statistics of the batch and updates its running statistics. A
frozen one uses its running statistics, and can be folded into a convolution before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.base.errors import (
    InputError,
    ModelError,
    ModelWarning,
    NameNotFoundError,
    join_names,
    suggest_nearest,
    warn_user,
)
from engine.graphs.ir.graph import Graph, Names, Node, find_type
from engine.graphs.passes.infer import infer
from engine.graphs.passes.may_add import add_by_table
from engine.kernels.vocabulary.facts import CONV, CONV_TRANSPOSE
from engine.kernels.vocabulary.op import MS, OURS

STATISTICS = {3: "running_mean", 4: "running_var"}  # the inputs that training changes
# The ops that can absorb the batch normalisation after them, and the axis of output channels in
# their weights.
ABSORBING = {product.of: product.output_axis for product in (CONV, CONV_TRANSPOSE)}
FOLDED = (OURS, "FoldedNorm")  # its inputs 1 to 4 are as of BatchNormalization
MAY_ADD = add_by_table(
    {f"BatchNormalization {op}": "Add Div Mul Neg Reshape Sqrt Sub" for op in ABSORBING}
)


def list_batch_norms(graph: Graph) -> list[Node]:
    """Return the batch normalisation nodes."""
    return [n for n in graph.nodes if n.op == "BatchNormalization" and not n.domain]


def list_folded_norms(graph: Graph) -> list[Node]:
    """Return the nodes of batch normalisations that are part of a convolution."""
    return [n for n in graph.nodes if (n.domain, n.op) == FOLDED]


def choose_trained(
    graph: Graph,
    trainable: Sequence[str],
    kept: Sequence[str],
    frozen: bool | Sequence[str] | None,
) -> list[Node]:
    """Return the batch normalisations that use the statistics of the batch in training.

    trainable, kept: names of the trained initializers, and of the parameters that are not trained.
    frozen: the ones that use their running statistics instead.  True: all.  False: none.  A list:
        those named by their node or by one of their parameters.  None: those whose scale and bias
        are both not trained, see `is_plain`.

    If something is trained, a `ModelWarning` names the ones that None has frozen.

    Raises:
        NameNotFoundError: a name is neither a batch normalisation nor a parameter of one.
        InputError: running statistics are listed as trained parameters.
    """
    norms = [*list_batch_norms(graph), *list_folded_norms(graph)]
    own = set(norms)
    plain = {
        name
        for node in graph.nodes
        for k, name in enumerate(node.inputs)
        if node not in own or k not in STATISTICS
    }
    moved = {n.inputs[k] for n in norms for k in STATISTICS}
    wrong = [name for name in trainable if name in moved and name not in plain]
    if wrong:
        raise InputError(
            f"requires_grad: {', '.join(map(repr, wrong))}: running statistics of batch "
            f"normalisation move by themselves in training; give them as frozen_params"
        )
    if frozen is None:
        chosen, known = set(trainable), set(kept)
        rest = [n for n in norms if chosen.isdisjoint(n.inputs[1:3])]
        constants = _find_constants(graph, rest)
        still = {n for n in rest if not is_plain(n, constants, known)}
        if trainable and still:
            _warn_of_default([n for n in rest if n in still])
        return [n for n in norms if n not in still]
    if isinstance(frozen, bool):
        return [] if frozen else norms
    named = {name for n in norms for name in (n.name, *n.inputs[1:])}
    lost = [name for name in frozen if name not in named]
    if lost:
        raise NameNotFoundError(
            "frozen_batch_norm: the model has no batch normalisation, nor a parameter of one, "
            + ", ".join(f"{n!r}{suggest_nearest(n, named)}" for n in lost)
        )
    off = set(frozen)
    return [n for n in norms if off.isdisjoint((n.name, *n.inputs[1:]))]


def is_plain(node: Node, constants: Mapping[str, Array], kept: Collection[str]) -> bool:
    """Return whether a batch normalisation has no scale and bias of its own to freeze.

    Exporters then write ones and zeros.  A layer that was never trained has the same values, but
    its names differ: the parameters of a layer share a prefix, as in `bn.weight`,
    `bn.running_mean`.

    constants: the known values of scales and biases.
    kept: names of the parameters that the caller keeps but does not train.
    """
    scale, shift, mean = node.inputs[1:4]
    if any(name in kept or name not in constants for name in (scale, shift)):
        return False
    if _cut_folder(mean) in (_cut_folder(scale), _cut_folder(shift)):
        return False
    return bool(np.all(constants[scale] == 1) and np.all(constants[shift] == 0))


def _cut_folder(name: str) -> str:
    """Return the part of a name before its last dot or slash."""
    return name[: max(name.rfind("."), name.rfind("/")) + 1]


def _find_constants(graph: Graph, norms: Sequence[Node]) -> Mapping[str, Array]:
    """Return the scales and biases of these nodes that do not depend on inputs."""
    names = {i for n in norms for i in n.inputs[1:3]}
    if names <= graph.initializers.keys():
        return graph.initializers
    return infer(graph.copy()).constants


def _warn_of_default(norms: Sequence[Node]) -> None:
    names = join_names((n.name or n.outputs[0] for n in norms), 3)
    one = len(norms) == 1
    warn_user(
        f"batch {'normalisation' if one else 'normalisations'} {names} "
        f"{'uses and keeps its' if one else 'use and keep their'} running statistics in training, "
        "because neither scale nor bias is trained; set frozen_batch_norm=True to keep "
        "this, or False to use the statistics of the batch in all of them",
        ModelWarning,
    )


def give_own_statistics(graph: Graph, trained: Sequence[Node]) -> list[str]:
    """Give each trained layer running statistics of its own, and return their names.

    Exporters store equal tensors once, so several layers may share one initializer that must differ
    after training.  Such an initializer is copied.  A layer that the model uses twice, with the
    same parameters, keeps one pair of statistics.

    Before   a = BatchNormalization(x, ones, zeros, zeros, ones)
    After    a = BatchNormalization(x, ones, zeros, a.running_mean, a.running_var)
    """
    names = Names(graph)
    uses = Counter(i for n in graph.nodes for i in n.list_reads())
    layers = Counter(tuple(n.inputs[1:]) for n in trained)
    made: dict[tuple[str, ...], str] = {}
    for node in trained:
        layer = tuple(node.inputs[1:])
        inputs = list(node.inputs)
        for k, title in STATISTICS.items():
            name = inputs[k]
            is_one_layer = len(set(layer)) == len(layer)
            if name not in graph.initializers or (is_one_layer and uses[name] == layers[layer]):
                continue
            key = (*layer, title) if is_one_layer else (node.outputs[0], title)
            if key not in made:
                made[key] = names.take_fresh(f"{node.name}.{title}")
                graph.initializers[made[key]] = graph.initializers[name]
            inputs[k] = made[key]
        node.inputs = tuple(inputs)
    statistics = dict.fromkeys(n.inputs[k] for n in trained for k in STATISTICS)
    return [name for name in statistics if name in graph.initializers]


def set_training_form(graph: Graph, trained: Sequence[Node]) -> Graph:
    """Give batch normalisations the form that they have in training.

    The nodes `trained` become BatchNormInternal, which uses the statistics of the batch and also
    returns the new running statistics, and the mean and inverse deviation for the backward pass.
    The others use their running statistics.

    Before   y = BatchNormalization(x, s, b, m, v);                       z likewise
    After    y, m', v', mean, inv = com.microsoft::BatchNormInternal(x, s, b, m, v);
             z = BatchNormalization(y, ...)             # z was not in `trained`

    A convolution that includes its normalisation keeps the weights of that form, which are rounded.

    Before   w', b' = FoldedNorm(w, s, b, m, v); t = PeakScale(w');
             y = Conv(x, RoundWeights(w', t), RoundBias(b', t, ...))
    After    w', b', f = FoldedNorm(w, StopGradient(s), b, m, v);
             a = Div(Conv(x, RoundWeights(w', t)), f);
             y, m', v', mean, inv = com.microsoft::BatchNormInternal(a, s, b, m, v)

    Raises:
        ModelError: something reads an output that the new form does not compute.
    """
    chosen = {*trained, *_unfold_norms(graph, trained)}
    names, read = Names(graph), read_values(graph)
    for node in list_batch_norms(graph):
        y, *rest = node.outputs
        if node not in chosen:
            drop_statistics(node, read)
            continue
        if len(rest) > 2:
            refuse_readers(node, rest[2:], read)
        fresh = [
            names.take_fresh(f"{y}_{end}") for end in (*STATISTICS.values(), "mean", "inv_std")
        ]
        given = [o for o in rest[:2] if o]
        node.outputs = (y, *given, *fresh[len(given) :])
        node.op, node.domain = "BatchNormInternal", MS
        node.attrs = {**node.attrs, "training_mode": 1}
        graph.opsets.setdefault(MS, 1)
    return graph


def _unfold_norms(graph: Graph, trained: Sequence[Node]) -> list[Node]:
    """Normalise after the convolutions that include a norm to train; return the nodes for that."""
    names, readers, made = Names(graph), graph.find_consumers(), list[Node]()
    for node in trained:
        if (node.domain, node.op) != FOLDED:
            continue
        (rounding,) = (n for n in readers[node.outputs[0]] if n.op == "RoundWeights")
        (conv,) = readers[rounding.outputs[0]]
        y = conv.outputs[0]
        divisor, flat, a, real, shape = (
            names.take_fresh(f"{y}_{end}")
            for end in ("divisor", "divisors", "scaled", "unscaled", "channels")
        )
        # The factor cancels except for roundings, through which gradients pass straight: without
        # this stop, the scale would get what is left of two large sums that should be equal.
        scale, still = node.inputs[1], names.take_fresh(f"{node.inputs[1]}_still")
        graph.nodes.insert(0, Node("StopGradient", (scale,), (still,), {}, OURS, still))
        inputs, node.inputs = node.inputs, (node.inputs[0], still, *node.inputs[2:])
        node.outputs = (*node.outputs[:2], divisor)
        conv.inputs, conv.outputs = conv.inputs[:2], (a,)
        rank = _find_rank(graph, node.inputs[0])
        assert rank is not None, "the weights of a folded norm are a parameter or a constant"
        graph.initializers[shape] = np.array([-1, *[1] * (rank - 2)], np.int64)
        graph.nodes += [
            Node("Reshape", (divisor, shape), (flat,), {}, "", flat),
            Node("Div", (a, flat), (real,), {}, "", real),
        ]
        if len(inputs) > 5 and inputs[5]:
            moved, along = names.take_fresh(f"{y}_moved"), names.take_fresh(f"{y}_bias")
            graph.nodes += [
                Node("Reshape", (inputs[5], shape), (along,), {}, "", along),
                Node("Add", (real, along), (moved,), {}, "", moved),
            ]
            real = moved
        made.append(
            Node("BatchNormalization", (real, *inputs[1:5]), (y,), dict(node.attrs), "",
                 node.name)
        )  # fmt: skip
        node.name = names.take_fresh(f"{node.name}/FoldedNorm")
    graph.nodes += made
    if made:
        graph.sort()
    return made


def drop_statistics(node: Node, read: Set[str]) -> None:
    """Let a batch normalisation use its running statistics, in place.

    read: the result of `read_values` for its graph.

    Before   y, m, v = BatchNormalization(x, s, b, m0, v0) training_mode=1
    After    y       = BatchNormalization(x, s, b, m0, v0) training_mode=0

    Raises:
        ModelError: something reads m or v.
    """
    refuse_readers(node, node.outputs[1:], read)
    if "training_mode" in node.attrs:
        node.attrs["training_mode"] = 0
    node.outputs = node.outputs[:1]


def read_values(graph: Graph) -> set[str]:
    """Return the values that nodes of a graph read or that are its outputs."""
    return {i for n in graph.nodes for i in n.list_reads()} | set(graph.outputs)


def refuse_readers(node: Node, names: Sequence[str], read: Set[str]) -> None:
    """Refuse a graph that reads one of these outputs of a batch normalisation.

    read: the result of `read_values` for the graph.

    Raises:
        ModelError: one of the outputs is read.
    """
    used = [o for o in names if o in read]
    if used:
        raise ModelError(
            f"BatchNormalization {node.name!r}: {used} are read, but the node computes "
            "them only in training mode"
        )


def absorb_norms(graph: Graph, trained: Collection[str] = ()) -> Graph:
    """Join each frozen batch normalisation with the convolution before it.

    The convolution gets weights and a bias that include the scale and the shift.

    trained: names of convolutions whose normalisation stays one op, FoldedNorm, which training can
        take apart again.

    Before   a = Conv(x, w, c); y = BatchNormalization(a, s, b, m, v)       nothing else reads a
    After    f = s / sqrt(v + epsilon); y = Conv(x, w f, (c - m) f + b)

    A transposed convolution is joined in the same way unless it has groups, because the output axis
    of its weights then counts the channels of a single group.  A norm whose vectors have another
    element type than the weights stays.
    """
    norms = {n for n in graph.nodes if n.op == "BatchNormalization" and not n.domain}
    if not norms:
        return graph
    makers, readers, names = graph.find_producers(), graph.find_consumers(), Names(graph)
    ends = set(graph.outputs)
    nodes: list[Node] = []
    gone: set[Node] = set()
    for node in graph.nodes:
        nodes.append(node)
        if node not in norms or _is_training(graph, node):
            continue
        a = node.inputs[0]
        conv = makers.get(a)
        if conv is None or not _absorbs(conv) or a in ends:
            continue
        rank = _find_rank(graph, conv.inputs[1])
        if rank is not None and len(readers[a]) == 1 and _is_of_one_type(graph, conv, node):
            gone |= {conv, node}
            if conv.name in trained:
                nodes += _fold(names, conv, node)
            else:
                nodes += _absorb(graph, names, conv, node, rank)
    if trained:
        graph.opsets.setdefault(OURS, 1)
    graph.nodes = [n for n in nodes if n not in gone]
    return graph


def _absorbs(node: Node) -> bool:
    """Return whether a node can absorb a batch normalisation of its output."""
    if node.domain or node.op not in ABSORBING:
        return False
    return ABSORBING[node.op] == 0 or node.attrs.get("group", 1) == 1


def _is_training(graph: Graph, node: Node) -> bool:
    """Return whether a node uses the statistics of the batch; before opset 14 its outputs say
    so.
    """
    if graph.opsets.get("", 1) >= 14:
        return bool(node.attrs.get("training_mode"))
    return len(node.outputs) > 1


def _find_rank(graph: Graph, name: str) -> int | None:
    """Return the rank of a graph input or initializer; None for other values."""
    if name in graph.initializers:
        return graph.initializers[name].ndim
    return graph.inputs[name].rank if name in graph.inputs else None


def _is_of_one_type(graph: Graph, conv: Node, norm: Node) -> bool:
    """Return whether the inputs of a norm whose types are known have the weights' type."""
    kind = _find_dtype(graph, conv.inputs[1])
    for name in norm.inputs:
        told = graph.inputs.get(name) or graph.types.get(name)
        dtype = find_type(graph.initializers[name]) if name in graph.initializers else told
        if dtype is not None and NUMPY[dtype.dtype] != kind:
            return False
    return True


def _absorb(graph: Graph, names: Names, conv: Node, norm: Node, rank: int) -> list[Node]:
    """Return the nodes that replace a convolution and the batch normalisation after it."""
    nodes: list[Node] = []
    _, scale, shift, mean, var = norm.inputs

    def name_op(name: str, *inputs: str) -> str:
        title = names.take_fresh(f"{norm.name or norm.outputs[0]}/{name}")
        nodes.append(Node(name, inputs, (f"{title}_output",), {}, "", title))
        return f"{title}_output"

    def add_constant(title: str, value: Array) -> str:
        name = names.take_fresh(f"{norm.name or norm.outputs[0]}/{title}")
        graph.initializers[name] = value
        return name

    kind = _find_dtype(graph, conv.inputs[1])
    epsilon = add_constant("epsilon", np.array(norm.attrs.get("epsilon", 1e-5), kind))
    along = [-1 if axis == ABSORBING[conv.op] else 1 for axis in range(rank)]
    channels = add_constant("channels", np.array(along, np.int64))
    factor = name_op("Div", scale, name_op("Sqrt", name_op("Add", var, epsilon)))
    weights = name_op("Mul", conv.inputs[1], name_op("Reshape", factor, channels))
    has_bias = len(conv.inputs) > 2 and conv.inputs[2]
    centre = name_op("Sub", conv.inputs[2], mean) if has_bias else name_op("Neg", mean)
    bias = name_op("Add", name_op("Mul", centre, factor), shift)
    inputs = (conv.inputs[0], weights, bias)
    nodes.append(Node(conv.op, inputs, norm.outputs[:1], dict(conv.attrs), "", conv.name))
    return nodes


def _fold(names: Names, conv: Node, norm: Node) -> list[Node]:
    """Return a convolution with weights and a bias of one op, and this op."""
    x, weight, *bias = conv.inputs
    made = tuple(names.take_fresh(f"{weight}_{end}") for end in ("folded", "shift"))
    inputs = (weight, *norm.inputs[1:], *bias)
    attrs = {k: v for k, v in norm.attrs.items() if k in ("epsilon", "momentum")}
    return [
        Node(FOLDED[1], inputs, made, attrs, FOLDED[0], norm.name),
        Node(conv.op, (x, *made), norm.outputs[:1], dict(conv.attrs), "", conv.name),
    ]


def _find_dtype(graph: Graph, name: str) -> np.dtype[Any]:
    """Return the numpy type of the elements of a graph input or initializer."""
    array = graph.initializers.get(name)
    return np.dtype(NUMPY[graph.inputs[name].dtype]) if array is None else array.dtype
