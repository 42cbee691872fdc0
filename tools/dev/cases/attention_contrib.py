"""Attention as onnxruntime's optimisers write it; test_onnxruntime_rows.py runs it there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from engine.kernels.vocabulary.op import MS
from engine.tools.dev.cases.attention import attend
from engine.tools.dev.cases.case import Case, Tensor, f32

BATCH, LENGTH, KEYS, SIZE, HEADS, WIDTH = 2, 5, 7, 8, 2, 4
LENGTHS = np.array([3, 5], np.int32)
ENDS_STARTS = np.array([3, 5, 1, 2], np.int32)
KEPT = (BATCH, HEADS, 3, WIDTH)  # keys and values from before


def _mask(*shape: int) -> Any:
    return (np.random.default_rng(3).random(shape) < 0.7).astype(np.int32)


def _split(x: np.ndarray, heads: int) -> Any:
    """[batch, length, hidden] -> [batch, heads, length, width]."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _seen(mask: Any, keys: int, batch: int) -> Any:
    """The mask as booleans that broadcast to [batch, heads, queries, keys]."""
    if mask.ndim > 1:
        rows = mask > 0
        return rows[:, None] if mask.ndim == 3 else rows[:, None, None]
    at = np.arange(keys)
    seen = at < mask[:batch, None]
    if len(mask) > batch:
        seen &= at >= mask[batch:, None]
    return seen[:, None, None]


def _attend(q: Any, k: Any, v: Any, mask: Any, bias: Any, kept: int, *, scale: float = 0.0,
            mask_filter_value: float = -10000.0, unidirectional: int = 0) -> Any:  # fmt: skip
    """Y of Q, K and V of [batch, heads, length, width], as [batch, length, hidden]."""
    total = np.zeros(()) if bias is None else bias
    if mask is not None:
        seen = _seen(mask, k.shape[2], len(q))
        total = total + np.where(seen, 0, mask_filter_value)
    y = attend(q, k, v, total, scale=scale or q.shape[-1] ** -0.5,
               high=kept if unidirectional else None)["y"]  # fmt: skip
    return y.swapaxes(1, 2).reshape(*y.swapaxes(1, 2).shape[:2], -1)


def attend_joined(product: Any, mask: Any = None, past: Any = None, bias: Any = None, *,
                  num_heads: int, qkv_hidden_sizes: Any = None,
                  **attrs: Any) -> list[Any]:  # fmt: skip
    """Attention with Q, K and V as columns of one value, and the keys and values that it keeps."""
    sizes = qkv_hidden_sizes or [product.shape[2] // 3] * 3
    parts = np.split(product, np.cumsum(sizes)[:2], axis=2)
    q, k, v = (_split(part, num_heads) for part in parts)
    if past is not None:
        k, v = np.concatenate([past[0], k], 2), np.concatenate([past[1], v], 2)
    y = _attend(q, k, v, mask, bias, k.shape[2] - q.shape[2], **attrs)
    return [y, np.stack([k, v])] if past is not None else [y]


def _attention(x: Any, w: Any, b: Any = None, mask: Any = None, past: Any = None,
               bias: Any = None, **attrs: Any) -> list[Any]:  # fmt: skip
    return attend_joined(x @ w + (0 if b is None else b), mask, past, bias, **attrs)


def _heads(q: Any, k: Any = None, v: Any = None, b: Any = None, mask: Any = None,
           bias: Any = None, past_k: Any = None, past_v: Any = None, *, num_heads: int,
           **attrs: Any) -> list[Any]:  # fmt: skip
    if k is None:
        q, k, v = q.transpose(3, 0, 2, 1, 4)
    elif k.ndim == 5:
        q, (k, v) = _split(q, num_heads), k.transpose(3, 0, 2, 1, 4)
    else:
        q = _split(q, num_heads)
        k, v = (x if x.ndim == 4 else _split(x, num_heads) for x in (k, v))
    if b is not None:
        wide = num_heads * q.shape[-1]
        q, k, v = (
            x + part.reshape(num_heads, 1, -1)
            for x, part in zip((q, k, v), np.split(b, [wide, 2 * wide]), strict=True)
        )
    if past_k is not None:
        k, v = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
    y = _attend(q, k, v, mask, bias, k.shape[2] - q.shape[2], **attrs)
    return [y, k, v] if past_k is not None else [y]


def _rotated(x: Any, positions: Any, cos: Any, sin: Any, interleaved: int) -> Any:
    """Rotate the first columns of the heads of [batch, heads, length, width]."""
    half = cos.shape[1]
    c, s = cos[positions][:, None], sin[positions][:, None]
    x, rest = x[..., : 2 * half], x[..., 2 * half :]
    x1, x2 = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    pairs = (x1 * c - x2 * s, x1 * s + x2 * c)
    made = np.stack(pairs, -1).reshape(x.shape) if interleaved else np.concatenate(pairs, -1)
    return np.concatenate([made, rest], -1)


def _grouped(q: Any, k: Any, v: Any, past_k: Any, past_v: Any, lengths: Any, total: Any,
             cos: Any = None, sin: Any = None, positions: Any = None, bias: Any = None, *,
             num_heads: int, kv_num_heads: int, do_rotary: int = 0, rotary_interleaved: int = 0,
             scale: float = 0.0, softcap: float = 0.0, local_window_size: int = -1,
             ) -> list[Any]:  # fmt: skip
    if k is None:
        width = q.shape[2] // (num_heads + 2 * kv_num_heads)
        q, k, v = np.split(q, np.cumsum([num_heads * width, kv_num_heads * width]), 2)
    q, k, v = (_split(x, n) for x, n in ((q, num_heads), (k, kv_num_heads), (v, kv_num_heads)))
    if do_rotary:
        at = np.arange(q.shape[2])[None] if positions is None else positions
        q, k = (_rotated(x, at, cos, sin, rotary_interleaved) for x in (q, k))
    low = None if local_window_size < 0 else 1 - local_window_size
    y = attend(q, k, v, bias, scale=scale or q.shape[-1] ** -0.5, low=low, high=0,
               cap=softcap)["y"]  # fmt: skip
    return [y.swapaxes(1, 2).reshape(*y.swapaxes(1, 2).shape[:2], -1), k, v]


def _grouped_rows() -> Iterator[Case]:
    q, k, v = f32(2, 5, 32), f32(2, 5, 16), f32(2, 5, 16)
    ends, total = np.array([4, 4], np.int32), np.array(5, np.int32)
    wide, key, value = f32(2, 3, 64), f32(2, 3, 32), f32(2, 3, 32)  # it rotates 16 columns at once
    table, part = (f32(9, 8), f32(9, 8)), (f32(9, 4), f32(9, 4))
    at = np.array([[0, 1, 2], [0, 1, 2]])
    none = (None, None, ends, total)
    short = (None, None, np.array([2, 2], np.int32), np.array(3, np.int32))
    rows: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
        ((q, k, v, *none), {}),
        ((q, k, v, *none), {"scale": 0.3, "softcap": 0.5}),
        ((wide, key, value, *short, *table), {"do_rotary": 1}),
        ((wide, key, value, *short, *table, at), {"do_rotary": 1, "rotary_interleaved": 1}),
        ((wide, key, value, *short, *part), {"do_rotary": 1}),
        ((f32(2, 3, 128), None, None, *short, *table), {"do_rotary": 1}),
        ((q, k, v, *none), {"local_window_size": 2}),
        ((q, k, v, *none, None, None, None, f32(2, 4, 5, 5)), {}),
    )
    for ins, attrs in rows:
        floats = tuple(i for i, t in enumerate(ins) if isinstance(t, Tensor))
        yield Case("GroupQueryAttention", ins, {"num_heads": 4, "kv_num_heads": 2, **attrs},
                   floats, MS, tol=1e-5, outs=3, reference=_grouped)  # fmt: skip


def _rows() -> Iterator[Case]:
    x, w, b = f32(BATCH, LENGTH, SIZE), f32(SIZE, 3 * SIZE, low=-0.7, high=0.7), f32(3 * SIZE)
    past = f32(2, *KEPT)
    whole: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
        ((x, w, b), {}),
        ((x, w), {"unidirectional": 1}),
        ((x, w, b, LENGTHS), {}),
        ((x, w, b, ENDS_STARTS), {"mask_filter_value": -20.0}),
        ((x, w, b, _mask(BATCH, LENGTH)), {"unidirectional": 1}),
        ((x, w, b, _mask(BATCH, LENGTH, LENGTH)), {"scale": 0.3}),
        ((x, w, b, None, None, f32(1, HEADS, LENGTH, LENGTH)), {}),
        ((x, f32(SIZE, 20, low=-0.7, high=0.7), f32(20)), {"qkv_hidden_sizes": [8, 8, 4]}),
        ((x, w, b, _mask(BATCH, LENGTH + 3), past), {"unidirectional": 1}),
    )
    for ins, attrs in whole:
        floats = tuple(i for i, t in enumerate(ins) if isinstance(t, Tensor))
        yield Case("Attention", ins, {"num_heads": HEADS, **attrs}, floats, MS, tol=1e-5,
                   outs=1 + any(t is past for t in ins), reference=_attention)  # fmt: skip
    yield Case("JoinedAttention", (f32(BATCH, LENGTH, 3 * SIZE), ENDS_STARTS, past),
               {"num_heads": HEADS}, domain="engine", tol=1e-5, outs=2,
               reference=attend_joined)  # fmt: skip
    q, k, v = f32(BATCH, LENGTH, SIZE), f32(BATCH, KEYS, SIZE), f32(BATCH, KEYS, SIZE)
    bias, kept = f32(3 * SIZE), f32(*KEPT)
    heads: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
        ((q, k, v), {}),
        ((q, k, v, bias, LENGTHS), {"scale": 0.3}),
        ((q, k, f32(BATCH, KEYS, 4), f32(20)), {}),
        ((q, k, v, None, _mask(BATCH, LENGTH, KEYS)), {}),
        ((q, k, v, bias, _mask(BATCH, KEYS), f32(BATCH, 1, LENGTH, KEYS)), {}),
        ((q, q, q, bias, None, None, kept, kept), {"unidirectional": 1}),
        ((q, f32(BATCH, HEADS, KEYS, WIDTH), f32(BATCH, HEADS, KEYS, WIDTH)), {}),
        ((q, f32(BATCH, KEYS, HEADS, 2, WIDTH)), {}),
        ((f32(BATCH, KEYS, HEADS, 3, WIDTH), None, None, bias), {"unidirectional": 1}),
    )
    for ins, attrs in heads:
        floats = tuple(i for i, t in enumerate(ins) if isinstance(t, Tensor))
        yield Case("MultiHeadAttention", ins, {"num_heads": HEADS, **attrs}, floats, MS, tol=1e-5,
                   outs=3 if any(t is kept for t in ins) else 1, reference=_heads)  # fmt: skip


CASES = (*_rows(), *_grouped_rows())
