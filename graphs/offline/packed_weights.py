"""Integers of 4 bits that are trained where they lie, two to a byte.

Graphs have the 4-bit integers of a file as bytes.  Those that are trained become parameters of half
the size, which the optimizer changes in place (kernels/ops/optimizer/integer_sgd.py), and products
read them as they are.  A parameter has the bytes of the file, so a device can write them there.  It
is a matrix where its rows, along the first axis, have whole bytes, and a vector otherwise; int4
becomes i8, uint4 u8.

    Before   q: i8[n, k, ...] of 4 bits; d = DequantizeLinear(q, s, z)
    After    q: i8[n, k ... / 2]; d = engine::DequantizePacked(q, s, z) shape=[n, k, ...]
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.graphs.io.messages import join_nibbles
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.sites import make_site
from engine.graphs.passes.infer import infer
from engine.graphs.passes.quantised import PACKED_WEIGHTS
from engine.kernels.ops.quantised_weights import is_in_order, read_nbits
from engine.kernels.vocabulary.op import MS, OURS

NBITS = MS, "MatMulNBits"
TRAINED_BITS = (4, 8)  # of the weights of a MatMulNBits


def pack_weights(graph: Graph, names: Collection[str]) -> None:
    """Pack the initializers of 4 bits among some, in place.

    Weights stay a byte each if something else than DequantizeLinear reads them, or if a scale is
    for a part of an axis other than the first two.
    """
    readers = graph.find_consumers()
    for name in names:
        if name not in graph.nibbles or graph.initializers[name].ndim < 2:
            continue
        array = graph.initializers[name]
        blocks = [_find_block(graph, node, name) for node in readers.get(name, ())]
        if not blocks or any(block is None for block in blocks) or not array.size:
            continue
        rows, columns = array.shape[0], math.prod(array.shape[1:])
        packed = join_nibbles(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        packed = packed if columns % 2 else packed.reshape(rows, -1)
        graph.initializers[name] = packed.view(array.dtype)
        for node, block in zip(readers[name], blocks, strict=True):
            assert block is not None
            attrs = dict(rows=rows, columns=columns, bits=4)
            attrs |= dict(block_rows=block[0], block_columns=block[1])
            node.attrs = {**node.attrs, **attrs, "shape": list(array.shape)}
            node.domain, node.op = PACKED_WEIGHTS
    if any((node.domain, node.op) == PACKED_WEIGHTS for node in graph.nodes):
        graph.opsets[OURS] = 1


def unpack_weights(graph: Graph) -> None:
    """Give constants of packed integers a byte each, and let DequantizeLinear read them, in place:
    the reverse of `pack_weights`.
    """
    for node in graph.nodes:
        packed = graph.initializers.get(node.inputs[0]) if node.inputs else None
        if (node.domain, node.op) != PACKED_WEIGHTS or packed is None:
            continue
        shape = [int(d) for d in node.attrs["shape"]]
        if packed.size < math.prod(shape):  # it is not shared with a node before
            graph.initializers[node.inputs[0]] = split_nibbles(packed, shape)
        node.domain, node.op = "", "DequantizeLinear"
        node.attrs = {k: v for k, v in node.attrs.items() if k in ("axis", "block_size")}


def split_nibbles(packed: Array, shape: Sequence[int]) -> Array:
    """Return the integers of packed weights of some shape, a byte each, of the same type."""
    halves = split_bytes(packed.view(np.uint8).reshape(1, -1), 4)[0, : math.prod(shape)]
    if packed.dtype == np.int8:
        halves = (halves ^ 8) - np.uint8(8)
    return np.ascontiguousarray(halves).view(packed.dtype).reshape(shape)


def read_packed_products(graph: Graph, names: Collection[str]) -> bool:
    """Let products with trained weights of a few bits read them as floats, in place, so that these
    have a gradient; return whether there are any.

    Activations are not rounded in training, whatever `accuracy_level` says.

    Before   y = MatMulNBits(a, B, s, z)
    After    d = engine::DequantizePacked(B, s, z) shape=[N, K]; y = MatMul(a, Transpose(d))
    """
    chosen = [
        n for n in graph.nodes
        if (n.domain, n.op) == NBITS
        and n.inputs[1] in names
        and n.attrs.get("bits", 4) in TRAINED_BITS
    ]  # fmt: skip
    if not chosen:
        return False
    made, fresh, types = list[Node](), Names(graph), infer(graph).types
    for node in graph.nodes:
        if node not in chosen:
            made.append(node)
            continue
        a, weights, scale, zero, _, bias = (*node.inputs, *[""] * 6)[:6]
        attrs = read_nbits(make_site(graph, node, types, graph.initializers))
        attrs["shape"] = [attrs["rows"], attrs["columns"]]
        ins = (weights, scale, zero) if zero else (weights, scale)
        steps: list[tuple[str, str, tuple[str, ...], dict[str, Any]]] = [
            (*PACKED_WEIGHTS, ins, attrs), ("", "Transpose", ("",), {"perm": [1, 0]}),
            ("", "MatMul", (a, ""), {}),
        ]  # fmt: skip
        steps += [("", "Add", ("", bias), {})] if bias else []
        last = ""
        for k, (domain, op, inputs, own) in enumerate(steps):
            is_last = k == len(steps) - 1
            out = node.outputs[0] if is_last else fresh.take_fresh(f"{node.outputs[0]}_{op}")
            read = tuple(name or last for name in inputs)
            title = fresh.take_fresh(f"{node.name or node.op}/{op}")
            made.append(Node(op, read, (out,), own, domain, title))
            last = out
    graph.nodes = made
    graph.opsets[OURS] = 1
    return True


def write_product_in_floats(graph: Graph, node: Node) -> bool:
    """Write a MatMulNBits with constant weights as a product with floats, in place; return whether
    it is one.

    Before   y = MatMulNBits(a, B, s, z, "", bias)
    After    y = Add(MatMul(a, W), bias)
    """
    a, weights, scale, zero, order, bias = (*node.inputs, *[""] * 6)[:6]
    known = graph.initializers
    constants = [known.get(name) for name in (weights, scale, zero) if name]
    if (node.domain, node.op) != NBITS or any(c is None for c in constants):
        return False
    rows, k, bits = (int(node.attrs.get(name, 4)) for name in ("N", "K", "bits"))
    block = int(node.attrs["block_size"])
    if order and not is_in_order(known.get(order), k, block):
        return False
    blocks = -(-k // block)
    levels = split_bytes(known[weights].reshape(rows, -1), bits).astype(np.float64)
    points: Array = np.full((rows, blocks), 1 << bits - 1)
    if zero:
        points = known[zero].reshape(rows, -1)
        is_packed = points.dtype == np.uint8
        points = split_bytes(points, bits)[:, :blocks] if is_packed else points
    units = known[scale].reshape(rows, blocks)
    levels = (levels.reshape(rows, blocks, block) - points[..., None]) * units[..., None]
    whole = levels.reshape(rows, -1)[:, :k].T.astype(units.dtype)
    names = Names(graph)
    made = graph.add_constant(weights.removesuffix("_quantized"), whole, names)
    node.domain, node.op, node.attrs, node.inputs = "", "MatMul", {}, (a, made)
    if bias:
        last, title = node.outputs[0], names.take_fresh(f"{node.name or node.op}/Add")
        node.outputs = (names.take_fresh(f"{last}_product"),)
        at = graph.nodes.index(node) + 1
        graph.nodes.insert(at, Node("Add", (node.outputs[0], bias), (last,), {}, "", title))
    return True


def split_bytes(packed: Array, bits: int) -> Array:
    """Return the integers in the bytes of rows, the first of a byte in its lowest bits.

    packed: u8[rows, bytes].
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(packed[..., None] >> shifts & (1 << bits) - 1).reshape(len(packed), -1)


def _find_block(graph: Graph, node: Node, name: str) -> tuple[int, int] | None:
    """Return the rows and columns of a matrix of weights that share a scale, 0 for all; None if a
    node does not dequantise them, or with other blocks.
    """
    is_reader = (node.domain, node.op) == ("", "DequantizeLinear") and node.inputs[0] == name
    scale = graph.initializers.get(node.inputs[1]) if is_reader else None
    if scale is None or name in node.inputs[1:]:
        return None
    shape = graph.initializers[name].shape
    if scale.size == 1:
        return 0, 0
    axis, size = int(node.attrs.get("axis", 1)) % len(shape), int(node.attrs.get("block_size", 0))
    rest = math.prod(shape[2:])
    if axis == 0:
        return (size, 1) if size else (1, 0)
    if axis > 1 or (size and rest > 1):
        return None
    return (1, size) if size else (0, rest)
