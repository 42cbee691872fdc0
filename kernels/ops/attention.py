"""Attention and rotary position embedding, as the products and softmax they are short for.

Forward   Y = softmax(softcap(scale Q K^T) + bias) V per head; bias is -inf where the mask is false,
          the key lies behind the query's frontier (causal) or outside the window; a query without
          any key gets zeros
          RotaryEmbedding: (x1, x2) -> (x1 cos - x2 sin, x1 sin + x2 cos) per position
Backward  through the expansion; it keeps Q, K, V and the probabilities
Source    Vaswani et al. 2017; Ainslie et al. 2023 (grouped queries); Su et al. 2021 (rotary);
          ONNX Attention-23, -24, -25, RotaryEmbedding-23
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.element_types import ONNX_CODE
from engine.kernels.vocabulary.op import MS, Dim, Nodes, Op, Site, TensorType

_SINGLE, _DOUBLE = ONNX_CODE["f32"], ONNX_CODE["f64"]


# --- shapes


def _heads(s: Site, i: int, count: str) -> tuple[Dim, Dim, Dim, Dim]:
    """[batch, heads, length, width] of Q, K or V, which may come as [batch, length, hidden]."""
    t = s.real(i)
    if t.rank == 4:
        return t.shape  # type: ignore[return-value]  # four, as just seen
    heads = int(s.attrs.get(count, 0))
    if t.rank != 3 or heads < 1:
        s.wrong(f"input {i} is {t}; expected 4 dimensions, or 3 and {count}")
    hidden = t.shape[2]
    if isinstance(hidden, int) and hidden % heads:
        s.wrong(f"input {i} is {t}: {hidden} is no multiple of {count} = {heads}")
    width: Dim = hidden // heads if isinstance(hidden, int) else f"{hidden}/{heads}"
    return (t.shape[0], heads, t.shape[1], width)


def _plus(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return b if a == 0 else f"{a}+{b}"


def _attention_infer(s: Site) -> tuple[TensorType, ...]:
    batch, heads, rows, width = _heads(s, 0, "q_num_heads")
    _, kv_heads, new, key_width = _heads(s, 1, "kv_num_heads")
    _, _, _, value_width = _heads(s, 2, "kv_num_heads")
    if isinstance(heads, int) and isinstance(kv_heads, int) and (not kv_heads or heads % kv_heads):
        s.wrong(f"{heads} query heads are no multiple of {kv_heads} key heads")
    if isinstance(width, int) and isinstance(key_width, int) and width != key_width:
        s.wrong(f"heads of Q are {width} wide, those of K {key_width}")
    if s.has(3) and s.type(3).dtype != "b1" and s.real(3).dtype != s.type(0).dtype:
        s.fail(f"a mask of {s.type(3).dtype} beside {s.type(0)}", "b1, or the type of Q")
    if s.has(4) != s.has(5):
        s.wrong("past_key and past_value must come together")
    if s.has(4) and s.has(6):
        s.wrong("nonpad_kv_seqlen cannot be combined with past_key")
    if not 0 <= s.attrs["qk_matmul_output_mode"] <= 3:
        s.fail(f"qk_matmul_output_mode {s.attrs['qk_matmul_output_mode']}", "0 to 3")
    if any(s.attrs[w] < -1 for w in _WINDOWS):
        s.wrong("a window size must be -1 or not negative")
    past: Dim = s.type(4).shape[2] if s.has(4) else 0
    keys = _plus(past, new)
    t = s.type(0)
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


def _split(g: Nodes, x: str, heads: int) -> str:
    """[batch, length, heads * width] -> [batch, heads, length, width]."""
    parts = g.op("Reshape", x, g.const([0, 0, heads, -1], "i64"))
    return str(g.op("Transpose", parts, perm=[0, 2, 1, 3]))


def _join(g: Nodes, x: str) -> str:
    """[batch, heads, length, width] -> [batch, length, heads * width]."""
    rows = g.op("Transpose", x, perm=[0, 2, 1, 3])
    return str(g.op("Reshape", rows, g.const([0, 0, -1], "i64")))


def _dim(g: Nodes, x: str, axis: int) -> str:
    """One dimension of a value, as a scalar tensor."""
    return str(g.op("Gather", g.op("Shape", x), g.const(axis, "i64")))


def _positions(g: Nodes, q: str, k: str, offset: str) -> tuple[str, str]:
    """The positions of queries, [..., length, 1], and of keys, [1, length]."""
    zero, one = g.const(0, "i64"), g.const(1, "i64")
    rows = g.op("Unsqueeze", g.op("Range", zero, _dim(g, q, 2), one), g.const([1], "i64"))
    cols = g.op("Unsqueeze", g.op("Range", zero, _dim(g, k, 2), one), g.const([0], "i64"))
    return g.op("Add", rows, offset) if offset else rows, cols


def _allowed(g: Nodes, q: str, k: str, offset: str, valid: str) -> list[str]:
    """The keys that each query may see, by the causal frontier, the window and the valid length."""
    attrs = g.site.attrs
    left, right = attrs["left_window_size"], attrs["right_window_size"]
    found = []
    rows, cols = _positions(g, q, k, offset)
    if attrs["is_causal"]:
        found.append(g.op("LessOrEqual", cols, rows))
    if left >= 0:
        found.append(g.op("LessOrEqual", g.op("Sub", rows, cols), g.const(left, "i64")))
    if right >= 0:
        found.append(g.op("LessOrEqual", g.op("Sub", cols, rows), g.const(right, "i64")))
    if valid:
        found.append(g.op("Less", cols, valid))
    return found


def scores_to_output(
    g: Nodes, scores: str, v: str, masks: list[str], bias: str, dtype: str, *, is_open: bool
) -> tuple[str, str, str]:
    """(softmax(scores + bias where all masks hold) v, the biased scores, the probabilities).

    is_open: whether every query sees a key for certain.
    """
    if bias:
        scores = g.op("Add", scores, bias)
    biased = scores
    if masks:
        mask = masks[0]
        for other in masks[1:]:
            mask = g.op("And", mask, other)
        biased = g.op("Where", mask, scores, g.const(-np.inf, dtype))
    if is_open:
        p = _softmax(g, biased)
        return g.op("MatMul", p, v), biased, p
    # a row of nothing but -inf: softmax over zeros instead, and no probability
    zero = g.const(0.0, dtype)
    top = g.op("ReduceMax", biased, g.const([-1], "i64")) if g.site.opset >= 18 else g.op(
        "ReduceMax", biased, axes=[-1]
    )  # fmt: skip
    empty = g.op("Equal", top, g.const(-np.inf, dtype))
    p = _softmax(g, g.op("Where", empty, zero, biased))
    p = g.op("Where", empty, zero, p)
    return g.op("MatMul", p, v), biased, p


def _softmax(g: Nodes, x: str) -> str:
    """Over the last axis, in f64 where softmax_precision wants more than the inputs have."""
    if g.site.attrs.get("softmax_precision") != _DOUBLE or g.site.type(0).dtype == "f64":
        return str(g.op("Softmax", x, axis=-1))
    wide = g.op("Softmax", g.op("Cast", x, to=_DOUBLE), axis=-1)
    return str(g.op("Cast", wide, to=_SINGLE))


def _scores(g: Nodes, q: str, k: str, scale: float) -> str:
    return str(g.op("FusedMatMul", q, k, domain=MS, transB=1, alpha=scale))


def _cached(g: Nodes, past: int, new: str) -> str:
    """The cached keys (or values) followed by the new ones."""
    return str(g.op("Concat", g.x(past), new, axis=2)) if g.site.has(past) else new


def _group(g: Nodes, q: str, k: str, v: str, ratio: int) -> tuple[str, str, str]:
    """Grouped queries: heads as [kv heads, ratio], and K and V broadcast over the group."""
    shape = g.const([0, -1, ratio, *_tail(g, 0)], "i64")
    one = g.const([2], "i64")
    return g.op("Reshape", q, shape), g.op("Unsqueeze", k, one), g.op("Unsqueeze", v, one)


def _tail(g: Nodes, i: int) -> list[int]:
    """Length and width of Q; grouped queries can be reshaped only when both are known."""
    _, _, rows, width = _heads(g.site, i, "q_num_heads")
    if isinstance(rows, str) or isinstance(width, str):
        g.site.fail(f"grouped queries of length {rows!r}", "lengths known when differentiating")
    return [rows, width]


def _attention_expand(g: Nodes) -> tuple[str, ...]:
    s, attrs = g.site, g.site.attrs
    dtype, is_flat = s.type(0).dtype, s.type(0).rank == 3
    heads, kv_heads = (_heads(s, i, n)[1] for i, n in ((0, "q_num_heads"), (1, "kv_num_heads")))
    q, k, v = g.x(0), g.x(1), g.x(2)
    if is_flat:
        q, k, v = (_split(g, x, int(n)) for x, n in ((q, heads), (k, kv_heads), (v, kv_heads)))
    k, v = _cached(g, 4, k), _cached(g, 5, v)
    present = (k, v)
    width = _heads(s, 0, "q_num_heads")[3]
    if "scale" not in attrs and isinstance(width, str):
        s.fail(f"heads of unknown width {width!r}", "a known width, or the attribute scale")
    scale = float(attrs["scale"]) if "scale" in attrs else int(width) ** -0.5
    offset = _dim(g, g.x(4), 2) if s.has(4) else ""
    valid = ""
    if s.has(6):
        valid = g.op("Unsqueeze", g.x(6), g.const([1, 2, 3], "i64"))
        offset = g.op("Sub", valid, _dim(g, q, 2))
    masks = _allowed(g, q, k, offset, valid)
    bias = ""
    if s.has(3):
        masks, bias = _mask(g, k, masks)
    is_open = not s.has(3) and not s.has(6) and max(attrs[w] for w in _WINDOWS) < 0
    raw = _scores(g, q, k, scale) if heads == kv_heads else ""
    if not raw:
        ratio = int(heads) // int(kv_heads)
        grouped, gk, gv = _group(g, q, k, v, ratio)
        raw = _ungroup(g, _scores(g, grouped, gk, scale), heads)
        v = _repeat(g, gv, ratio, heads)
    cap = float(attrs["softcap"])
    capped = raw
    if cap > 0:
        limit = g.const(cap, dtype)
        capped = g.op("Mul", g.op("Tanh", g.op("Div", raw, limit)), limit)
    y, biased, p = scores_to_output(g, capped, v, masks, bias, dtype, is_open=is_open)
    seen = (raw, capped, biased, p)[attrs["qk_matmul_output_mode"]]
    return (_join(g, y) if is_flat else y, *present, seen)


def _ungroup(g: Nodes, scores: str, heads: Dim) -> str:
    """[batch, kv heads, ratio, rows, keys] -> [batch, heads, rows, keys]."""
    shape = g.op("Shape", scores)
    lead = g.op("Slice", shape, g.const([0], "i64"), g.const([1], "i64"))
    tail = g.op("Slice", shape, g.const([3], "i64"), g.const([5], "i64"))
    want = g.op("Concat", lead, g.const([int(heads)], "i64"), tail, axis=0)
    return str(g.op("Reshape", scores, want))


def _repeat(g: Nodes, v: str, ratio: int, heads: Dim) -> str:
    """[batch, kv heads, 1, keys, width] -> [batch, heads, keys, width]."""
    return _ungroup(g, g.op("Expand", v, g.const([1, 1, ratio, 1, 1], "i64")), heads)


def _mask(g: Nodes, k: str, masks: list[str]) -> tuple[list[str], str]:
    """The masks with input 3, or the bias that it is; keys it does not reach are not allowed."""
    s, t = g.site, g.site.type(3)
    mask, keys = g.x(3), _attention_infer(s)[1].shape[2]
    missing = keys - t.shape[-1] if isinstance(keys, int) and isinstance(t.shape[-1], int) else 0
    if missing > 0:
        pads = g.const([0] * t.rank + [0] * (t.rank - 1) + [missing], "i64")
        fill = g.const(False, "b1") if t.dtype == "b1" else g.const(-np.inf, t.dtype)
        mask = g.op("Pad", mask, pads, fill)
    return ([mask, *masks], "") if t.dtype == "b1" else (masks, mask)


# --- rotary embedding


def _rotary_infer(s: Site) -> tuple[TensorType, ...]:
    t = s.real(0)
    if t.rank not in (3, 4) or (t.rank == 3 and int(s.attrs["num_heads"]) < 1):
        s.wrong(f"input 0 is {t}; expected 4 dimensions, or 3 and num_heads")
    return (t.but(),)


def _rotary(g: Nodes, cos: str, sin: str, position: str) -> tuple[str, ...]:
    """Rotate input 0 by tables [positions, half], or [batch, length, half] without positions."""
    s, attrs = g.site, g.site.attrs
    t, is_flat = s.type(0), s.type(0).rank == 3
    heads = int(attrs["num_heads"])
    if is_flat:
        hidden = t.shape[2]
        if isinstance(hidden, str) or hidden % heads:
            s.wrong(f"{hidden} is no multiple of num_heads = {heads}")
    x = _split(g, g.x(0), heads) if is_flat else g.x(0)
    width = int(t.shape[2]) // heads if is_flat else t.shape[3]
    if isinstance(width, str):
        s.fail(f"heads of unknown width {width!r}", "a number")
    rotated = int(attrs["rotary_embedding_dim"]) or width
    if rotated % 2 or rotated > width:
        s.wrong(f"rotary_embedding_dim {rotated} of heads of width {width}")
    rest = ""
    if rotated < width:
        sizes = g.const([rotated, width - rotated], "i64")
        x, rest = g.op("Split", x, sizes, outputs=2, axis=3)
    if position:
        cos, sin = (g.op("Gather", c, position, axis=0) for c in (cos, sin))
    # tables [batch, length, half] over the heads: [batch, 1, length, half]
    cos, sin = (g.op("Unsqueeze", c, g.const([1], "i64")) for c in (cos, sin))
    half = rotated // 2
    if attrs["interleaved"]:
        pairs = g.op("Reshape", x, g.const([0, 0, 0, half, 2], "i64"))
        x1, x2 = (g.op("Gather", pairs, g.const(i, "i64"), axis=4) for i in (0, 1))
    else:
        x1, x2 = g.op("Split", x, g.const([half, half], "i64"), outputs=2, axis=3)
    real = g.op("Sub", g.op("Mul", x1, cos), g.op("Mul", x2, sin))
    imag = g.op("Add", g.op("Mul", x1, sin), g.op("Mul", x2, cos))
    if attrs["interleaved"]:
        last = g.const([4], "i64")
        both = [g.op("Unsqueeze", p, last) for p in (real, imag)]
        y = g.op("Reshape", g.op("Concat", *both, axis=4), g.const([0, 0, 0, rotated], "i64"))
    else:
        y = g.op("Concat", real, imag, axis=3)
    if rest:
        y = g.op("Concat", y, rest, axis=3)
    return (_join(g, y) if is_flat else y,)


def _rotary_expand(g: Nodes) -> tuple[str, ...]:
    return _rotary(g, g.x(1), g.x(2), g.x(3) if g.site.has(3) else "")


def _ms_rotary_expand(g: Nodes) -> tuple[str, ...]:
    """onnxruntime's: positions come second, [1] (a start) or [batch, length]."""
    s = g.site
    if s.attrs["scale"] != 1 or s.attrs["is_packed_batching"]:
        s.fail("scale or is_packed_batching is set", "scale 1, no packed batching")
    position = g.x(1)
    if s.type(1).rank == 1:
        length = _dim(g, g.x(0), 1 if s.type(0).rank == 3 else 2)
        line = g.op("Range", g.const(0, "i64"), length, g.const(1, "i64"))
        position = g.op("Unsqueeze", g.op("Add", line, position), g.const([0], "i64"))
    return _rotary(g, g.x(2), g.x(3), position)


_WINDOWS = ("left_window_size", "right_window_size")
_ATTENTION: dict[str, Any] = {
    "is_causal": 0, "softcap": 0.0, "qk_matmul_output_mode": 0, **dict.fromkeys(_WINDOWS, -1),
}  # fmt: skip
_ROTATED = "Add Concat Gather Mul Reshape Split Sub Transpose Unsqueeze"  # of both domains
_ROTARY = {"interleaved": 0, "num_heads": 0, "rotary_embedding_dim": 0}

OPS = (
    Op(
        name="Attention", attrs=_ATTENTION, infer=_attention_infer, expand=_attention_expand,
        becomes="Add And Cast Concat Div Equal Expand Gather Less LessOrEqual MatMul Mul Pad Range "
        "ReduceMax Reshape Shape Slice Softmax Sub Tanh Transpose Unsqueeze Where "
        f"{MS}::FusedMatMul",
        stop=frozenset((6,)),
    ),
    Op(
        name="RotaryEmbedding", attrs=_ROTARY, infer=_rotary_infer, expand=_rotary_expand,
        becomes=_ROTATED, stop=frozenset((3,)),
    ),
    Op(
        name="RotaryEmbedding", domain=MS, attrs=_ROTARY | {"scale": 1.0, "is_packed_batching": 0},
        infer=_rotary_infer, expand=_ms_rotary_expand, becomes=f"{_ROTATED} Range Shape",
        stop=frozenset((1,)),
    ),
)  # fmt: skip
