"""LoRA for chosen linear layers of a forward model: y = W x + scale B (A x).

    Before   y = MatMul(x, w)                                       w: [in, out]
    After    y_base = MatMul(x, w)
             h = Mul(MatMul(x, Transpose(fc.lora_A.weight)), scale)     A: [r, in]
             y = Add(y_base, MatMul(h, Transpose(fc.lora_B.weight)))    B: [out, r]

    Before   y = Conv(x, w) group=g                                 w: [out, in / g, 3, 3]
    After    y_base = Conv(x, w) group=g
             h = Mul(Conv(x, fc.lora_A.weight) group=g, scale)          A: [g r, in / g, 3, 3]
             y = Add(y_base, Conv(h, fc.lora_B.weight) group=g)         B: [out, r, 1, 1]

Layers of integers that get adapters, and those after them, are written with floats before
(`integer_layers.py`), joined attention as a product and the attention (`joined_attention.py`), and
products with activations as both (`fused_layers.py`).  A has the window of the layer, with
its strides, pads and dilations.  The shapes of A and B are peft's; if the weight has batch axes,
both have them too.  Every group of a grouped convolution has an adapter of its own, which can be
merged; peft shares one A among all groups, which cannot.  The weight is read as it is, quantised or
computed by other nodes, and stays a constant.  A is uniform in +-1 / sqrt(n), for sums of n
products, like peft's Kaiming initialisation; B is zero.

Source: Hu et al., "LoRA: low-rank adaptation of large language models", arXiv 2106.09685; the scale
alpha / sqrt(r) is Kalajdzievski's, arXiv 2312.03732.
"""

from __future__ import annotations

import difflib
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.base.errors import InputError, NameNotFoundError, UnsupportedOpError, join_names
from engine.graphs.io.note import DOWN, METADATA, UP, Note, NotedLayer
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.offline.differentiate import find_dependent
from engine.graphs.offline.fused_layers import split_fused
from engine.graphs.offline.integer_layers import write_layers
from engine.graphs.offline.joined_attention import split_attention
from engine.graphs.offline.linear import LinearLayer, LinearLayers, Weight, name_layer
from engine.graphs.offline.normalize import name_nodes, separate_equal
from engine.graphs.offline.scaled_products import join_scales
from engine.graphs.passes.control import unroll
from engine.graphs.passes.infer import infer, note_output_types
from engine.kernels.vocabulary.op import TensorType
from engine.system.paths import SHOWN, Paths


@dataclass(frozen=True, slots=True)
class AdaptedLayer:
    """Layer with a new adapter.

    ops: the kinds of nodes that use it.  inputs, outputs: its sizes.  added: parameters of A and B.
    """

    name: str
    weight: str
    ops: tuple[str, ...]
    inputs: int
    outputs: int
    added: int


@dataclass(frozen=True, slots=True)
class Left:
    """Node that a pattern names but that cannot have an adapter, and the reason."""

    name: str
    weight: str
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class AdapterSummary:
    """Summary of the adaptation.

    values: the number of values in the initializers of the model, without the adapters.
    """

    note: Note
    layers: tuple[AdaptedLayer, ...]
    left: tuple[Left, ...]
    values: int

    @property
    def added(self) -> int:
        """Number of parameters of the adapters."""
        return sum(layer.added for layer in self.layers)

    def __str__(self) -> str:
        names = [row.name for row in self.layers] + [row.name for row in self.left]
        width = max(map(len, names))
        share = 100 * self.added / self.values
        lines = [
            f"{len(self.layers)} layers of rank {self.note.rank}, scale {self.note.scale:g}: "
            f"{self.added:,} parameters, {share:.3g} % of {self.values:,}"
        ]
        for row in self.layers:
            sizes = f"{row.inputs} -> {row.outputs}"
            lines.append(
                f"  {row.name:{width}}  {', '.join(row.ops):12} {sizes:14} {row.added:>9,}"
            )
        lines += [
            f"  {row.name:{width}}  {row.op}, left unchanged: {row.reason}" for row in self.left
        ]
        return "\n".join(lines)


def note_of(graph: Graph) -> Note | None:
    """Return the note of a model on its adapters, or None.

    Raises:
        ModelError: the note is damaged, or a parameter that it names is missing.
    """
    text = graph.metadata.get(METADATA)
    if text is None:
        return None
    return Note.parse(text, graph.name, {*graph.initializers, *graph.inputs})


def keep_note(graph: Graph, source: Graph) -> None:
    """Give a part of a model the note on the adapters that it still has."""
    text = source.metadata.get(METADATA)
    if text is None:
        return
    note = Note.parse(text, source.name, {*source.initializers, *source.inputs})
    left = note.select([name for name in note.layers if name + DOWN in graph.initializers])
    graph.metadata.pop(METADATA, None)
    if left.layers:
        graph.metadata[METADATA] = left.write()


def adapt(
    graph: Graph,
    patterns: Sequence[str],
    *,
    rank: int,
    alpha: float,
    dropout: float = 0.0,
    rank_stabilised: bool = False,
    seed: int = 0,
) -> AdapterSummary:
    """Add adapters to the layers that patterns name, in place.

    patterns: regular expressions; a layer is named by a pattern that occurs anywhere in its name,
    in the name of its weight, or in the name of a node that uses it.  Case matters.  For the other
    arguments see `engine.lora.Lora`.

    Nodes that read one weight in the same way share one adapter, as a layer that is called twice
    does.  Loops and branches become plain nodes, as in training.

    Raises:
        NameNotFoundError: a pattern occurs in no name of a layer; the message lists similar names.
        UnsupportedOpError: none of the named layers can have an adapter, or dropout is requested
            for a model whose opset is too old.
        InputError: a pattern is not a valid regular expression, or the model already has adapters.
    """
    if note_of(graph) is not None:
        raise InputError(f"{graph.name}: the model already has adapters: merge them first")
    if dropout and graph.opsets.get("", 0) < 12:
        raise UnsupportedOpError(
            f"lora: dropout={dropout} in a model of opset {graph.opsets.get('', 0)}; dropout of "
            "adapters is supported from opset 12"
        )
    values = sum(a.size for a in graph.initializers.values())
    name_nodes(unroll(separate_equal(graph)))
    join_scales(graph)
    whole = graph.copy()
    has_integers, has_fused = write_layers(whole), split_fused(whole)
    types = infer(whole.copy()).types
    has_attention = split_attention(whole, types)
    types = infer(whole.copy()).types if has_attention else types
    named = _find(LinearLayers(whole, types), patterns, Paths.of(graph.metadata))
    adapted, left, made = _sort_layers(named, whole)
    if has_integers:
        _write_dependent(graph, whole, adapted)
    chosen = {use.node.name for rows in adapted.values() for use in rows}
    if has_fused:
        split_fused(graph, chosen)
    if has_attention:
        split_attention(graph, infer(graph.copy()).types, chosen)
    if has_integers or has_fused or has_attention:
        types = infer(graph.copy()).types
    adapted = _find_again(graph, types, adapted)
    note = Note(rank, alpha, dropout, rank_stabilised, made)
    work = _AdapterRewriting(graph, types, note, seed)
    for name, uses in adapted.items():
        work.add_layer(name, uses)
    work.finish()
    note_output_types(graph)
    graph.metadata[METADATA] = note.write()
    rows = tuple(
        AdaptedLayer(
            name,
            made[name].weight,
            tuple(dict.fromkeys(use.node.op for use in uses)),
            uses[0].inputs * uses[0].groups,
            uses[0].outputs,
            sum(graph.initializers[name + end].size for end in (DOWN, UP)),
        )
        for name, uses in adapted.items()
    )
    return AdapterSummary(note, rows, tuple(left), values)


NamedLayer = tuple[str, Node, Weight, LinearLayer | str]


def _find(layers: LinearLayers, patterns: Sequence[str], paths: Paths) -> list[NamedLayer]:
    """Return the nodes that patterns name, each with its layer's name, its weight and its use."""
    rows = [(name_layer(node, w.root, paths), node, w, use) for node, w, use in layers]
    names = {
        row[1]: (
            row[0],
            *paths.list_names(row[2].root),
            row[1].name,
            paths.find_module(row[1].name),
        )
        for row in rows
    }
    chosen: set[Node] = set()
    for pattern in patterns:
        try:
            search = re.compile(pattern).search
        except re.error as error:
            raise InputError(
                f"lora: {pattern!r} is not a valid regular expression: {error}; expected "
                "one that occurs in names of layers, such as 'attn.*(q|v)'"
            ) from None
        hits = {node for _, node, *_ in rows if any(map(search, names[node]))}
        if not hits:
            raise NameNotFoundError(
                f"lora: {pattern!r} matches none of the {len(rows)} layers with weights: "
                f"{_list_near(pattern, [name for name, *_ in rows])}"
            )
        chosen |= hits
    return [row for row in rows if row[1] in chosen]


def _list_near(pattern: str, names: Sequence[str]) -> str:
    """Return names of layers, the nearest to a pattern first."""
    plain = re.sub(r"[\\^$.*+?{}()\[\]|]+", ".", pattern)
    near = list(dict.fromkeys(names))
    near.sort(key=lambda name: -difflib.SequenceMatcher(None, plain, name).ratio())
    return join_names(near, SHOWN) or "the model has no such layer"


def _sort_layers(
    found: Sequence[NamedLayer], graph: Graph
) -> tuple[dict[str, list[LinearLayer]], list[Left], dict[str, NotedLayer]]:
    """Return the layers to adapt by name, the nodes left unchanged, and the note on the layers.

    Different layers get different names.

    Raises:
        UnsupportedOpError: no layer can be adapted.
    """
    names, uses = dict[tuple[str, ...], str](), dict[str, list[LinearLayer]]()
    left, taken = (
        list[Left](),
        {n.removesuffix(DOWN) for n in graph.list_values() if n.endswith(DOWN)},
    )
    for name, node, weight, use in found:
        if isinstance(use, str):
            left.append(Left(name, weight.root, node.op, use))
            continue
        key = (weight.root, *weight.way, use.side, str(use.flips_weight))
        if key not in names:
            tried, count = name, 1
            while tried in taken:
                tried, count = f"{name}_{count}", count + 1
            names[key] = tried
            taken.add(tried)
        uses.setdefault(names[key], []).append(use)
    if not uses:
        reasons = "".join(f"\n  {row.op} {row.name!r}: {row.reason}" for row in left)
        raise UnsupportedOpError(f"lora: none of the named layers can have an adapter:{reasons}")
    made = {
        name: NotedLayer(rows[0].weight.root, tuple(use.node.name for use in rows))
        for name, rows in uses.items()
    }
    return uses, left, made


def _write_dependent(
    graph: Graph, whole: Graph, adapted: Mapping[str, Sequence[LinearLayer]]
) -> None:
    """Write the layers of integers that get adapters, or depend on them, with floats, in place.

    Layers in front of the adapters stay as they are: they have no gradient, and run in integers.

    whole: the graph after all of its layers were written so, in which `adapted` was chosen.
    """
    uses = [use.node for rows in adapted.values() for use in rows]
    write_layers(graph, find_dependent(whole, [o for node in uses for o in node.outputs]))


def _find_again(
    graph: Graph, types: Mapping[str, TensorType], adapted: Mapping[str, Sequence[LinearLayer]]
) -> dict[str, list[LinearLayer]]:
    """Return layers by name, with their nodes in another copy of the graph."""
    uses = {n.name: use for n, _, use in LinearLayers(graph, types) if isinstance(use, LinearLayer)}
    return {name: [uses[row.node.name] for row in rows] for name, rows in adapted.items()}


class _AdapterRewriting:
    """Addition of the nodes of adapters; `types` are the types of all values before."""

    def __init__(self, graph: Graph, types: dict[str, TensorType], note: Note, seed: int) -> None:
        self.graph, self.types, self.note, self.seed = graph, types, note, seed
        self.names = Names(graph)
        self.behind: dict[Node, list[Node]] = {}  # the nodes to insert after each adapted one
        self.constants: dict[tuple[str, str], str] = {}

    def add_layer(self, name: str, uses: Sequence[LinearLayer]) -> None:
        """Add the parameters of one layer, and the nodes for all its uses."""
        first, rank = uses[0], self.note.rank
        kind = NUMPY[first.dtype]
        down = (*first.lead, rank, first.inputs)
        up = (*first.lead, first.outputs, rank)
        if first.side == "conv":
            down = (first.groups * rank, first.inputs, *first.kernel)
            up = (first.outputs, rank, *[1] * len(first.kernel))
        rng = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        bound = (first.inputs * math.prod(first.kernel)) ** -0.5
        self.graph.initializers[name + DOWN] = rng.uniform(-bound, bound, down).astype(kind)
        self.graph.initializers[name + UP] = np.zeros(up, kind)
        for use in uses:
            self.add_adapter(use, name)

    def add_adapter(self, use: LinearLayer, name: str) -> None:
        """Add the result of the layer's adapter to the result of one node."""
        node, made = use.node, list[Node]()

        def add_op(kind: str, part: str, *inputs: str, output: str = "", **attrs: object) -> str:
            title = self.names.take_fresh(f"{node.name}/{part}")
            out = output or self.names.take_fresh(f"{name}/{part}")
            made.append(Node(kind, inputs, (out,), dict(attrs), "", title))
            return out

        x, a, b = use.x, name + DOWN, name + UP
        if use.flips_x:
            x = add_op("Transpose", "lora_x", x, perm=_swap_last(self.types[x].rank))
        if self.note.dropout:
            ratio = self.share_constant("lora_dropout", np.array(self.note.dropout, np.float32))
            is_on = self.share_constant("lora_on", np.array(True))
            x = add_op("Dropout", "lora_dropout", x, ratio, is_on)
        scale = self.share_constant("lora_scale", np.array(self.note.scale, NUMPY[use.dtype]))
        if use.side == "conv":
            h = add_op("Conv", "lora_A", x, a, **node.attrs)
            h = add_op("Mul", "lora_scaled", h, scale)
            ones = [1] * len(use.kernel)
            delta = add_op("Conv", "lora_B", h, b, group=use.groups, kernel_shape=ones)
        elif use.side == "left":
            h = add_op("Mul", "lora_scaled", add_op("MatMul", "lora_A", a, x), scale)
            delta = add_op("MatMul", "lora_B", b, h)
        else:
            perm = _swap_last(len(use.lead) + 2)
            h = add_op("MatMul", "lora_A", x, add_op("Transpose", "lora_A_T", a, perm=perm))
            h = add_op("Mul", "lora_scaled", h, scale)
            delta = add_op("MatMul", "lora_B", h, add_op("Transpose", "lora_B_T", b, perm=perm))
        y = node.outputs[0]
        base = self.names.take_fresh(f"{y}/base")
        node.outputs = (base, *node.outputs[1:])
        add_op("Add", "lora", base, delta, output=y)
        self.graph.types[base] = self.types[y]
        self.behind[node] = made

    def share_constant(self, name: str, value: Array) -> str:
        """Return the initializer of a constant, which all layers share."""
        key = (name, value.dtype.name)
        if key not in self.constants:
            self.constants[key] = self.names.take_fresh(name)
            self.graph.initializers[self.constants[key]] = value
        return self.constants[key]

    def finish(self) -> None:
        """Insert the new nodes at their places."""
        self.graph.nodes = [
            n for node in self.graph.nodes for n in (node, *self.behind.get(node, ()))
        ]
        self.graph.check()


def _swap_last(rank: int) -> list[int]:
    """Return the permutation that swaps the last two of `rank` axes."""
    return [*range(rank - 2), rank - 1, rank - 2]
