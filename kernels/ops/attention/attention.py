"""Attention and rotary position embedding, as the products and softmax they are short for.

Forward   Y = softmax(softcap(scale Q K^T) + bias) V per head; bias is -inf where the mask is false,
          the key lies beyond the query's frontier (causal) or outside the window; a query without
          any key gets zeros
          RotaryEmbedding: (x1, x2) -> (x1 cos - x2 sin, x1 sin + x2 cos) per position
Backward  through the expansion; it keeps Q, K, V and the probabilities
Source    Vaswani et al. 2017; Ainslie et al. 2023 (grouped queries); Su et al. 2021 (rotary);
          ONNX Attention-23, -24, -25, RotaryEmbedding-23
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.base.element_types import ONNX_CODE
from engine.kernels.vocabulary.facts import ATTENTION
from engine.kernels.vocabulary.op import MS, Dim, Nodes, Op, Site, TensorType

_SINGLE, _DOUBLE = ONNX_CODE["f32"], ONNX_CODE["f64"]


# --- shapes


def _split_heads(site: Site, i: int, count: str) -> tuple[Dim, Dim, Dim, Dim]:
    """[batch, heads, length, width] of Q, K or V, which may come as [batch, length, hidden]."""
    t = site.real(i)
    # Heads are apart already, or lie side by side in the last axis.
    if t.rank == 4:
        return t.shape  # type: ignore[return-value]  # four, as just seen
    heads = int(site.attrs.get(count, 0))
    if t.rank != 3 or heads < 1:
        site.wrong(f"input {i} is {t}; expected 4 dimensions, or 3 and {count}")
    hidden = t.shape[2]
    if isinstance(hidden, int) and hidden % heads:
        site.wrong(f"input {i} is {t}: {hidden} columns are not divisible by {count}={heads}")
    width: Dim = hidden // heads if isinstance(hidden, int) else f"{hidden}/{heads}"
    return (t.shape[0], heads, t.shape[1], width)


def add_dims(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return b if a == 0 else f"{a}+{b}"


def _attention_infer(site: Site) -> tuple[TensorType, ...]:
    batch, heads, rows, width = _split_heads(site, 0, "q_num_heads")
    _, kv_heads, new, key_width = _split_heads(site, 1, "kv_num_heads")
    _, _, _, value_width = _split_heads(site, 2, "kv_num_heads")
    if isinstance(heads, int) and isinstance(kv_heads, int) and (not kv_heads or heads % kv_heads):
        site.wrong(f"{heads} query heads are not divisible by {kv_heads} key heads")
    if isinstance(width, int) and isinstance(key_width, int) and width != key_width:
        site.wrong(f"the heads of Q have {width} columns, but the heads of K have {key_width}")
    if site.has(3) and site.type(3).dtype != "b1" and site.real(3).dtype != site.type(0).dtype:
        site.fail(
            f"the mask is {site.type(3)} and Q is {site.type(0)}", "a mask of b1 or of Q's type"
        )
    if site.has(4) != site.has(5):
        site.wrong("past_key and past_value must come together")
    if site.has(4) and site.has(6):
        site.wrong("nonpad_kv_seqlen cannot be combined with past_key")
    if not 0 <= site.attrs["qk_matmul_output_mode"] <= 3:
        site.fail(f"qk_matmul_output_mode is {site.attrs['qk_matmul_output_mode']}", "0 to 3")
    if any(site.attrs[w] < -1 for w in _WINDOWS):
        site.wrong(
            f"{' and '.join(_WINDOWS)} are {[site.attrs[w] for w in _WINDOWS]}; expected "
            "-1, 0 or more"
        )
    past: Dim = site.type(4).shape[2] if site.has(4) else 0
    # New keys follow the cached ones, and all of them are an output: the next call's cache.
    keys = add_dims(past, new)
    t = site.type(0)
    shape: tuple[Dim, ...] = (batch, heads, rows, value_width)
    if t.rank == 3:
        whole = isinstance(value_width, int) and isinstance(heads, int)
        hidden: Dim = int(heads) * int(value_width) if whole else f"{heads}*{value_width}"
        shape = (batch, rows, hidden)
    return (
        t.but(shape),
        t.but((batch, kv_heads, keys, key_width)),
        t.but((batch, kv_heads, keys, value_width)),
        t.but((batch, heads, rows, keys)),
    )


# --- the core


def split_heads(nodes: Nodes, x: str, heads: int) -> str:
    """[batch, length, heads * width] -> [batch, heads, length, width]."""
    # 0 keeps a dimension, so batch and length may be symbolic.
    parts = nodes.op("Reshape", x, nodes.const([0, 0, heads, -1], "i64"))
    return str(nodes.op("Transpose", parts, perm=[0, 2, 1, 3]))


def join_heads(nodes: Nodes, x: str) -> str:
    """[batch, heads, length, width] -> [batch, length, heads * width]."""
    rows = nodes.op("Transpose", x, perm=[0, 2, 1, 3])
    return str(nodes.op("Reshape", rows, nodes.const([0, 0, -1], "i64")))


def size_of(nodes: Nodes, x: str, axis: int) -> str:
    """Return one dimension of a value, as a scalar tensor."""
    return str(nodes.op("Gather", nodes.op("Shape", x), nodes.const(axis, "i64")))


def positions(nodes: Nodes, q: str, k: str, offset: str) -> tuple[str, str]:
    """Return the positions of queries, [..., length, 1], and of keys, [1, length]."""
    zero, one = nodes.const(0, "i64"), nodes.const(1, "i64")
    rows = nodes.op(
        "Unsqueeze", nodes.op("Range", zero, size_of(nodes, q, 2), one), nodes.const([1], "i64")
    )
    cols = nodes.op(
        "Unsqueeze", nodes.op("Range", zero, size_of(nodes, k, 2), one), nodes.const([0], "i64")
    )
    return nodes.op("Add", rows, offset) if offset else rows, cols


def _allowed(nodes: Nodes, q: str, k: str, offset: str, valid: str) -> list[str]:
    """Return masks of the keys that queries may see: by frontier, window and valid length."""
    attrs = nodes.site.attrs
    left, right = attrs["left_window_size"], attrs["right_window_size"]
    masks = []
    rows, cols = positions(nodes, q, k, offset)
    if attrs["is_causal"]:
        masks.append(nodes.op("LessOrEqual", cols, rows))
    if left >= 0:
        masks.append(nodes.op("LessOrEqual", nodes.op("Sub", rows, cols), nodes.const(left, "i64")))
    if right >= 0:
        masks.append(
            nodes.op("LessOrEqual", nodes.op("Sub", cols, rows), nodes.const(right, "i64"))
        )
    if valid:
        masks.append(nodes.op("Less", cols, valid))
    return masks


def scores_to_output(
    nodes: Nodes, scores: str, v: str, masks: list[str], bias: str, dtype: str, *, is_open: bool
) -> tuple[str, str, str]:
    """(softmax(scores + bias where all masks hold) v, the biased scores, the probabilities).

    is_open: whether every query sees a key for certain.
    """
    if bias:
        scores = nodes.op("Add", scores, bias)
    biased = scores
    if masks:
        # All masks as one condition: one Where over the scores, not one for each.
        mask = masks[0]
        for other in masks[1:]:
            mask = nodes.op("And", mask, other)
        biased = nodes.op("Where", mask, scores, nodes.const(-np.inf, dtype))
    if is_open:
        p = _softmax(nodes, biased)
        return nodes.op("MatMul", p, v), biased, p
    # A row of nothing but -inf has no softmax: exp(-inf - -inf) is NaN.  Its softmax is over zeros
    # instead, and its probabilities are set to 0.
    zero = nodes.const(0.0, dtype)
    top = (
        nodes.op("ReduceMax", biased, nodes.const([-1], "i64"))
        if nodes.site.opset >= 18
        else nodes.op("ReduceMax", biased, axes=[-1])
    )
    empty = nodes.op("Equal", top, nodes.const(-np.inf, dtype))
    p = _softmax(nodes, nodes.op("Where", empty, zero, biased))
    p = nodes.op("Where", empty, zero, p)
    return nodes.op("MatMul", p, v), biased, p


def _softmax(nodes: Nodes, x: str) -> str:
    """Normalise over the last axis, in f64 if softmax_precision wants more than the inputs have."""
    if nodes.site.attrs.get("softmax_precision") != _DOUBLE or nodes.site.type(0).dtype == "f64":
        return str(nodes.op("Softmax", x, axis=-1))
    # The node asks for a softmax in double; its input and output stay as they are.
    wide = nodes.op("Softmax", nodes.op("Cast", x, to=_DOUBLE), axis=-1)
    return str(nodes.op("Cast", wide, to=_SINGLE))


def scaled_scores(nodes: Nodes, q: str, k: str, scale: float) -> str:
    return str(nodes.op("FusedMatMul", q, k, domain=MS, transB=1, alpha=scale))


def _cached(nodes: Nodes, past: int, new: str) -> str:
    """Return the cached keys (or values) followed by the new ones."""
    return str(nodes.op("Concat", nodes.x(past), new, axis=2)) if nodes.site.has(past) else new


def _group(nodes: Nodes, q: str, k: str, v: str, ratio: int) -> tuple[str, str, str]:
    """Group the queries: heads as [kv heads, ratio], and K and V broadcast over the group."""
    # Q as [batch, kv heads, ratio, rows, width]: K and V broadcast over `ratio`.
    shape = nodes.const([0, -1, ratio, *_read_tail(nodes, 0)], "i64")
    one = nodes.const([2], "i64")
    return (
        nodes.op("Reshape", q, shape),
        nodes.op("Unsqueeze", k, one),
        nodes.op("Unsqueeze", v, one),
    )


def _read_tail(nodes: Nodes, i: int) -> list[int]:
    """Return length and width of Q; grouped queries can be reshaped only if both are known."""
    _, _, rows, width = _split_heads(nodes.site, i, "q_num_heads")
    if isinstance(rows, str) or isinstance(width, str):
        nodes.site.fail(
            f"the length of the grouped queries is {rows!r} and the width of a head {width!r}",
            "a gradient of fixed sizes",
        )
    return [rows, width]


def _attention_expand(nodes: Nodes) -> tuple[str, ...]:
    site, attrs = nodes.site, nodes.site.attrs
    dtype, is_flat = site.type(0).dtype, site.type(0).rank == 3
    heads, kv_heads = (
        _split_heads(site, i, n)[1] for i, n in ((0, "q_num_heads"), (1, "kv_num_heads"))
    )
    q, k, v = nodes.x(0), nodes.x(1), nodes.x(2)
    if is_flat:
        q, k, v = (
            split_heads(nodes, x, int(n)) for x, n in ((q, heads), (k, kv_heads), (v, kv_heads))
        )
    k, v = _cached(nodes, 4, k), _cached(nodes, 5, v)
    present = (k, v)
    width = _split_heads(site, 0, "q_num_heads")[3]
    if width == 0:
        site.wrong("the heads have width 0; expected 1 or more")
    if "scale" not in attrs and isinstance(width, str):
        site.fail(
            f"the width of the heads, {width!r}, is not known",
            "a fixed width, or the attribute scale",
        )
    scale = float(attrs["scale"]) if "scale" in attrs else int(width) ** -0.5
    offset = size_of(nodes, nodes.x(4), 2) if site.has(4) else ""
    valid = ""
    if site.has(6):
        valid = nodes.op("Unsqueeze", nodes.x(6), nodes.const([1, 2, 3], "i64"))
        # nonpad_kv_seqlen counts the keys that are there: queries are the last of them.
        offset = nodes.op("Sub", valid, size_of(nodes, q, 2))
    masks = _allowed(nodes, q, k, offset, valid)
    bias = ""
    if site.has(3):
        masks, bias = _mask(nodes, k, masks)
    # Without masks of the model's own and without windows every query sees a key: itself.
    is_open = not site.has(3) and not site.has(6) and max(attrs[w] for w in _WINDOWS) < 0
    # With grouped queries K and V are broadcast over the queries of a group, not repeated.
    raw = scaled_scores(nodes, q, k, scale) if heads == kv_heads else ""
    if not raw:
        ratio = int(heads) // int(kv_heads)
        grouped, gk, gv = _group(nodes, q, k, v, ratio)
        raw = _ungroup(nodes, scaled_scores(nodes, grouped, gk, scale), heads)
        v = _repeat(nodes, gv, ratio, heads)
    cap = float(attrs["softcap"])
    capped = raw
    if cap > 0:
        limit = nodes.const(cap, dtype)
        capped = nodes.op("Mul", nodes.op("Tanh", nodes.op("Div", raw, limit)), limit)
    y, biased, p = scores_to_output(nodes, capped, v, masks, bias, dtype, is_open=is_open)
    seen = (raw, capped, biased, p)[attrs["qk_matmul_output_mode"]]
    return (join_heads(nodes, y) if is_flat else y, *present, seen)


def _ungroup(nodes: Nodes, scores: str, heads: Dim) -> str:
    """[batch, kv heads, ratio, rows, keys] -> [batch, heads, rows, keys]."""
    shape = nodes.op("Shape", scores)
    lead = nodes.op("Slice", shape, nodes.const([0], "i64"), nodes.const([1], "i64"))
    tail = nodes.op("Slice", shape, nodes.const([3], "i64"), nodes.const([5], "i64"))
    want = nodes.op("Concat", lead, nodes.const([int(heads)], "i64"), tail, axis=0)
    return str(nodes.op("Reshape", scores, want))


def _repeat(nodes: Nodes, v: str, ratio: int, heads: Dim) -> str:
    """[batch, kv heads, 1, keys, width] -> [batch, heads, keys, width]."""
    return _ungroup(nodes, nodes.op("Expand", v, nodes.const([1, 1, ratio, 1, 1], "i64")), heads)


def _mask(nodes: Nodes, k: str, masks: list[str]) -> tuple[list[str], str]:
    """Return the masks with input 3, or input 3 as a bias; keys beyond it are hidden."""
    site, t = nodes.site, nodes.site.type(3)
    mask, keys = nodes.x(3), _attention_infer(site)[1].shape[2]
    missing = keys - t.shape[-1] if isinstance(keys, int) and isinstance(t.shape[-1], int) else 0
    if missing > 0:
        pads = nodes.const([0] * t.rank + [0] * (t.rank - 1) + [missing], "i64")
        fill = nodes.const(False, "b1") if t.dtype == "b1" else nodes.const(-np.inf, t.dtype)
        mask = nodes.op("Pad", mask, pads, fill)
    return ([mask, *masks], "") if t.dtype == "b1" else (masks, mask)


# --- rotary embedding


def _rotary_infer(site: Site) -> tuple[TensorType, ...]:
    t = site.real(0)
    if t.rank not in (3, 4) or (t.rank == 3 and int(site.attrs["num_heads"]) < 1):
        site.wrong(f"input 0 is {t}; expected 4 dimensions, or 3 and num_heads")
    return (t.but(),)


def _rotary(nodes: Nodes, cos: str, sin: str, position: str) -> tuple[str, ...]:
    """Rotate input 0 by tables [positions, half], or [batch, length, half] without positions."""
    site, attrs = nodes.site, nodes.site.attrs
    t, is_flat = site.type(0), site.type(0).rank == 3
    heads = int(attrs["num_heads"])
    if is_flat:
        hidden = t.shape[2]
        if isinstance(hidden, str) or hidden % heads:
            site.wrong(f"{hidden} columns are not divisible by num_heads={heads}")
    x = split_heads(nodes, nodes.x(0), heads) if is_flat else nodes.x(0)
    width = int(t.shape[2]) // heads if is_flat else t.shape[3]
    if isinstance(width, str):
        site.fail(f"the width of the heads, {width!r}, is not known", "a fixed width")
    rotated = int(attrs["rotary_embedding_dim"]) or width
    if rotated % 2 or not 0 < rotated <= width:
        site.wrong(f"rotary_embedding_dim is {rotated}, but heads have {width} columns")
    rest = ""
    if rotated < width:
        # Only the first columns of a head are rotated; the rest passes through.
        sizes = nodes.const([rotated, width - rotated], "i64")
        x, rest = nodes.op("Split", x, sizes, outputs=2, axis=3)
    if position:
        cos, sin = (nodes.op("Gather", c, position, axis=0) for c in (cos, sin))
    # tables [batch, length, half] over the heads: [batch, 1, length, half]
    cos, sin = (nodes.op("Unsqueeze", c, nodes.const([1], "i64")) for c in (cos, sin))
    half = rotated // 2
    if attrs["interleaved"]:
        pairs = nodes.op("Reshape", x, nodes.const([0, 0, 0, half, 2], "i64"))
        x1, x2 = (nodes.op("Gather", pairs, nodes.const(i, "i64"), axis=4) for i in (0, 1))
    else:
        x1, x2 = nodes.op("Split", x, nodes.const([half, half], "i64"), outputs=2, axis=3)
    real = nodes.op("Sub", nodes.op("Mul", x1, cos), nodes.op("Mul", x2, sin))
    imag = nodes.op("Add", nodes.op("Mul", x1, sin), nodes.op("Mul", x2, cos))
    if attrs["interleaved"]:
        last = nodes.const([4], "i64")
        both = [nodes.op("Unsqueeze", p, last) for p in (real, imag)]
        y = nodes.op(
            "Reshape", nodes.op("Concat", *both, axis=4), nodes.const([0, 0, 0, rotated], "i64")
        )
    else:
        y = nodes.op("Concat", real, imag, axis=3)
    if rest:
        y = nodes.op("Concat", y, rest, axis=3)
    return (join_heads(nodes, y) if is_flat else y,)


def _rotary_expand(nodes: Nodes) -> tuple[str, ...]:
    return _rotary(nodes, nodes.x(1), nodes.x(2), nodes.x(3) if nodes.site.has(3) else "")


def _ms_rotary_expand(nodes: Nodes) -> tuple[str, ...]:
    """onnxruntime's: positions come second, [1] (a start) or [batch, length]."""
    site = nodes.site
    if site.attrs["scale"] != 1 or site.attrs["is_packed_batching"]:
        site.fail(
            f"scale is {site.attrs['scale']} and is_packed_batching "
            f"{site.attrs['is_packed_batching']}",
            "1 and 0",
        )
    position = nodes.x(1)
    if site.type(1).rank == 1:
        length = size_of(nodes, nodes.x(0), 1 if site.type(0).rank == 3 else 2)
        line = nodes.op("Range", nodes.const(0, "i64"), length, nodes.const(1, "i64"))
        position = nodes.op("Unsqueeze", nodes.op("Add", line, position), nodes.const([0], "i64"))
    return _rotary(nodes, nodes.x(2), nodes.x(3), position)


_WINDOWS = ("left_window_size", "right_window_size")
_ATTENTION: dict[str, Any] = {
    "is_causal": 0, "softcap": 0.0, "qk_matmul_output_mode": 0, **dict.fromkeys(_WINDOWS, -1),
}  # fmt: skip
_ROTATED = "Add Concat Gather Mul Reshape Split Sub Transpose Unsqueeze"  # of both domains
_ROTARY = {"interleaved": 0, "num_heads": 0, "rotary_embedding_dim": 0}

OPS = (
    Op(
        name="Attention",
        product=ATTENTION,
        attrs=_ATTENTION,
        infer=_attention_infer,
        expand=_attention_expand,
        becomes="Add And Cast Concat Div Equal Expand Gather Less LessOrEqual MatMul Mul Pad Range "
        "ReduceMax Reshape Shape Slice Softmax Sub Tanh Transpose Unsqueeze Where "
        f"{MS}::FusedMatMul",
        no_gradient=frozenset((6,)),
    ),
    Op(
        name="RotaryEmbedding",
        attrs=_ROTARY,
        infer=_rotary_infer,
        expand=_rotary_expand,
        becomes=_ROTATED,
        no_gradient=frozenset((3,)),
    ),
    Op(
        name="RotaryEmbedding",
        domain=MS,
        inputs=(4, 4),
        outputs=1,
        attrs=_ROTARY | {"scale": 1.0, "is_packed_batching": 0},
        infer=_rotary_infer,
        expand=_ms_rotary_expand,
        becomes=f"{_ROTATED} Range Shape",
        no_gradient=frozenset((1,)),
    ),
)
