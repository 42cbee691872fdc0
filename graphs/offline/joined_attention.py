"""Attention that computes queries, keys and values by one product, which becomes a layer.

    Before   y = com.microsoft::Attention(x, w, b, mask)
    After    t = MatMul(x, w); q, k, v = Split(t)
             y = com.microsoft::MultiHeadAttention(q, k, v, b, mask)

Both compute the same, and onnxruntime runs both.  The product can have adapters.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from engine.graphs.ir.graph import Graph, Names, Node
from engine.kernels.vocabulary.op import MS, TensorType

_SPLIT_INPUT_OPSET = 13  # the first one whose Split reads sizes
_KEPT = ("num_heads", "unidirectional", "scale", "mask_filter_value")


def split_attention(
    graph: Graph, types: Mapping[str, TensorType], chosen: Container[str] | None = None
) -> bool:
    """Part the products of joined attention from it, in place; return whether any was.

    Nodes stay as they are that keep keys of earlier calls, rotate, or have masks of other forms
    than lengths, or a 0 or 1 for each key.  The product has the name of the node.

    types: of all values.
    chosen: the names of nodes; None for all.
    """
    nodes, names = list[Node](), Names(graph)
    for node in graph.nodes:
        is_chosen = chosen is None or node.name in chosen
        sizes = _find_sizes(node, types) if is_chosen else None
        nodes += [node] if sizes is None else _split(graph, names, node, types, sizes)
    is_changed = len(nodes) > len(graph.nodes)
    graph.nodes = nodes
    return is_changed


def _find_sizes(node: Node, types: Mapping[str, TensorType]) -> list[int] | None:
    """Return the columns of queries, keys and values; None for a node that stays as it is."""
    if (node.domain, node.op) != (MS, "Attention"):
        return None
    x, w, _, mask, past, _, count = (*node.inputs, *[""] * 5)[:7]
    is_kept = past or count or any(node.outputs[1:])
    if is_kept or any(node.attrs.get(name) for name in ("do_rotary", "past_present_share_buffer")):
        return None
    if mask:
        t, batch = types[mask], types[x].shape[0]
        if t.dtype != "i32" or (t.rank != 2 and t.shape != (batch,)):
            return None
    columns = types[w].shape[1]
    if not isinstance(columns, int):
        return None
    return [int(n) for n in node.attrs.get("qkv_hidden_sizes", ())] or [columns // 3] * 3


def _split(
    graph: Graph, names: Names, node: Node, types: Mapping[str, TensorType], sizes: list[int]
) -> list[Node]:
    x, w, bias, mask, _, more = (*node.inputs, *[""] * 4)[:6]
    y, title = node.outputs[0], node.name
    joined = names.take_fresh(f"{y}_joined")
    graph.types[joined] = types[x].but((*types[x].shape[:2], sum(sizes)))
    parts = tuple(names.take_fresh(f"{y}_{part}") for part in ("query", "key", "value"))
    inputs, attrs = [joined], dict[str, Any](axis=-1)
    if graph.opsets.get("", 1) >= _SPLIT_INPUT_OPSET:
        name = names.take_fresh(f"{y}_sizes")
        graph.initializers[name] = np.array(sizes, np.int64)
        inputs.append(name)
    else:
        attrs["split"] = sizes
    last = [*parts, bias, mask, more]
    while not last[-1]:
        last.pop()
    kept = {name: node.attrs[name] for name in _KEPT if name in node.attrs}
    split, heads = (names.take_fresh(f"{title}/{op}") for op in ("Split", "MultiHeadAttention"))
    return [
        Node("MatMul", (x, w), (joined,), {}, "", title),
        Node("Split", tuple(inputs), parts, attrs, "", split),
        Node("MultiHeadAttention", tuple(last), (y,), kept, MS, heads),
    ]
