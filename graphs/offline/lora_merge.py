"""Merging of adapters into the weights that they adapt.

    Before   y_base = MatMul(x, Transpose(w)); y = Add(y_base, MatMul(Mul(MatMul(x, ...), s), ...))
    After    y = MatMul(x, Transpose(w + s B A))

The initializer keeps its name and form if the nodes between it and the product only move values,
and nothing else reads it.  Otherwise, for example if a weight is tied to an embedding, the product
reads a new initializer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import InputError
from engine.graphs.io import reference
from engine.graphs.io.note import DOWN, METADATA, UP
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.sites import is_reversible_move
from engine.graphs.offline.linear import LinearLayer, LinearLayers
from engine.graphs.offline.lora import note_of
from engine.graphs.passes.infer import infer
from engine.graphs.passes.simplify import prune
from engine.kernels.vocabulary.op import TensorType
from engine.runtime import mapping

BLOCK = 1 << 22  # bytes of a weight that are merged at once


def merge(graph: Graph, dequantise: bool) -> list[str]:
    """Merge the adapters of a model into its weights, in place.

    dequantise: also merge into quantised weights, which become floats.

    Returns the names of the layers that keep their adapters: layers with quantised weights, and
    layers whose weights onnx's reference cannot compute.

    Raises:
        InputError: the model has no adapters, or they are inputs and have no values.
    """
    note = note_of(graph)
    if note is None:
        raise InputError(f"{graph.name}: the model has no adapters")
    lost = [name for name in note.list_parameters() if name not in graph.initializers]
    if lost:
        raise InputError(
            f"{graph.name}: the adapter's parameter {lost[0]!r} is an input without a value: "
            "merge what Trainer.export writes"
        )
    work = _Merging(graph, infer(graph.copy()).types)
    kept = []
    for name, layer in note.layers.items():
        uses = [work.uses[node] for node in layer.nodes if node in work.uses]
        is_quantised = any(use.packed or "DequantizeLinear" in str(use.weight.way) for use in uses)
        if (is_quantised and not dequantise) or not work.merge_layer(name, uses, note.scale):
            kept.append(name)
    del graph.metadata[METADATA]
    if kept:
        graph.metadata[METADATA] = note.select(kept).write()
    prune(graph)
    used = {node.domain for node in graph.nodes}
    graph.opsets = {d: v for d, v in graph.opsets.items() if d in {"", *used}}
    graph.check()
    return kept


class _Merging:
    """State of one merging; `uses` are the linear layers by the names of their nodes."""

    def __init__(self, graph: Graph, types: dict[str, TensorType]) -> None:
        self.graph, self.types, self.names = graph, types, Names(graph)
        self.layers = LinearLayers(graph, types)
        self.uses = {n.name: use for n, _, use in self.layers if isinstance(use, LinearLayer)}

    def merge_layer(self, name: str, uses: Sequence[LinearLayer], scale: float) -> bool:
        """Merge the adapter of one layer; False if the value of the weight cannot be computed."""
        first = uses[0]
        weight = (
            _unpack(self.graph, first) if first.packed else self.compute_value(first.weight.operand)
        )
        if weight is None:
            return False
        down, up = (self.graph.initializers[name + end] for end in (DOWN, UP))
        kind = down.dtype if first.packed else weight.dtype
        merged = _add_delta(weight, first, down, up, scale, kind)
        for use in uses:
            self.drop(use)
        chains = [self.list_chain(use.weight.operand) for use in uses]
        if not first.packed and self.is_alone(first.weight.root, chains, uses):
            for node in chains[0]:
                merged = self.undo_move(node, merged)
            self.graph.initializers[first.weight.root] = merged
        else:
            title = self.names.take_fresh(f"{name}.weight")
            self.graph.initializers[title] = merged
            for use in uses:
                self.read(use, title)
        return True

    def compute_value(self, name: str) -> Array | None:
        """Return the value of a constant, or None if onnx's reference cannot compute it."""
        if name in self.graph.initializers:
            return self.graph.initializers[name]
        maker = self.layers.makers[name]
        known = [self.compute_value(i) if i else None for i in maker.inputs]
        if any(v is None and i for v, i in zip(known, maker.inputs, strict=True)):
            return None
        done = reference.evaluate(maker, self.graph.opsets, known)
        return np.asarray(done[maker.outputs.index(name)]) if done else None

    def list_chain(self, operand: str) -> list[Node]:
        """Return the nodes from an operand back to its root."""
        nodes, makers = list[Node](), self.layers.makers
        while operand in makers and makers[operand].inputs:
            nodes.append(makers[operand])
            operand = makers[operand].inputs[0]
        return nodes

    def is_alone(
        self, root: str, chains: Sequence[Sequence[Node]], uses: Sequence[LinearLayer]
    ) -> bool:
        """Return whether only these layers read a weight, and the nodes in between only move it."""
        way = {node for chain in chains for node in chain}
        values = {root, *(o for node in way for o in node.outputs)}
        mine = way | {use.node for use in uses}
        readers = self.graph.find_consumers()
        return (
            root in self.graph.initializers
            and all(map(is_reversible_move, way))
            and values.isdisjoint(self.graph.outputs)
            and all(mine.issuperset(readers.get(v, ())) for v in values)
        )

    def undo_move(self, node: Node, value: Array) -> Array:
        """Return the input from which a node that moves values would make this value."""
        shape = self.types[node.inputs[0]].dims
        if node.op != "Transpose":
            return value.reshape(shape)
        perm = node.attrs.get("perm", [*range(len(shape))][::-1])
        moved = value.transpose(np.argsort(perm))
        out = mapping.make_room(moved.shape, moved.dtype)
        out[...] = moved
        return out

    def read(self, use: LinearLayer, weight: str) -> None:
        """Let a node read another weight; a MatMulNBits becomes a MatMul."""
        node = use.node
        if not use.packed:
            node.inputs = tuple(weight if i == use.weight.operand else i for i in node.inputs)
            return
        bias = node.inputs[5] if len(node.inputs) > 5 else ""
        node.op, node.domain, node.attrs, node.inputs = "MatMul", "", {}, (use.x, weight)
        if bias:
            out, product = node.outputs[0], self.names.take_fresh(f"{node.outputs[0]}/product")
            title = self.names.take_fresh(f"{node.name}/bias")
            node.outputs = (product,)
            at = self.graph.nodes.index(node) + 1
            self.graph.nodes.insert(at, Node("Add", (product, bias), (out,), {}, "", title))

    def drop(self, use: LinearLayer) -> None:
        """Remove the sum with the adapter after a node."""
        (total,) = self.graph.find_consumers()[use.node.outputs[0]]
        use.node.outputs = (total.outputs[0],)
        self.graph.nodes.remove(total)


def _add_delta(
    weight: Array, use: LinearLayer, down: Array, up: Array, scale: float, kind: np.dtype[Any]
) -> Array:
    """W + scale B A in the form of the operand that a layer reads, computed in float64.

    For a matrix it is computed by blocks of rows.
    """
    out = mapping.make_room(weight.shape, kind)
    is_matrix = use.side != "conv" and down.ndim == up.ndim == weight.ndim == 2
    step = max(1, BLOCK * len(weight) // max(weight.nbytes, 1)) if is_matrix else len(weight)
    is_swapped = (use.side == "right") != use.flips_weight
    for i in range(0, len(weight), max(step, 1)):
        rows = slice(i, i + step)
        a, b = down, up
        if is_matrix and is_swapped:
            a = down[:, rows]
        elif is_matrix:
            b = up[rows]
        delta = _compute_delta(use, a, b)
        out[rows] = weight[rows].astype(np.float64) + scale * delta / use.factor
    return out


def _compute_delta(use: LinearLayer, down: Array, up: Array) -> Array:
    """Return B A in the form of the operand that a layer reads."""
    a, b = down.astype(np.float64), up.astype(np.float64)
    if use.side == "conv":
        rank = b.shape[1]
        parts = b.reshape(use.groups, -1, rank) @ a.reshape(use.groups, rank, -1)
        return np.asarray(parts.reshape(use.outputs, use.inputs, *use.kernel))
    product = b @ a  # [..., out, in]
    is_swapped = (use.side == "right") != use.flips_weight
    return np.asarray(np.swapaxes(product, -1, -2) if is_swapped else product)


def _unpack(graph: Graph, use: LinearLayer) -> Array | None:
    """Return the weight [in, out] of a MatMulNBits; None if its parts are not initializers."""
    node = use.node
    parts = [graph.initializers.get(i) if i else None for i in (*node.inputs[1:5], "", "")[:3]]
    packed, scales, zeros = parts
    zero_name = node.inputs[3] if len(node.inputs) > 3 else ""
    if packed is None or scales is None or (zero_name and zeros is None):
        return None
    bits, block = int(node.attrs.get("bits", 4)), int(node.attrs.get("block_size", 32))
    blocks = -(-use.inputs // block)
    whole = _unpack_numbers(packed.reshape(use.outputs, -1), bits).reshape(
        use.outputs, blocks, block
    )
    zero: Array = np.array(2.0 ** (bits - 1))
    if zeros is not None:
        if zeros.dtype == np.uint8:
            zeros = _unpack_numbers(zeros.reshape(use.outputs, -1), bits)[:, :blocks]
        zero = zeros.reshape(use.outputs, blocks, 1)
    real = (whole - zero) * scales.reshape(use.outputs, blocks, 1).astype(np.float64)
    return np.ascontiguousarray(real.reshape(use.outputs, -1)[:, : use.inputs].T)


def _unpack_numbers(packed: Array, bits: int) -> Array:
    """Return bytes [rows, n] as integers of `bits` bits, the lowest first: [rows, 8 n / bits]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return np.asarray(parts.reshape(packed.shape[0], -1), np.float64)
