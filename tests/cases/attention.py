"""Attention in all its forms, and rotary position embedding."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cases.case import Case, f32

Q, K, V = (2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 7)
TABLE = (f32(9, 3), f32(9, 3))
POSITIONS = np.array([[0, 2, 4, 8], [1, 1, 3, 5]])


def _case(*ins: Any, grad: tuple[int, ...] = (0, 1, 2), opset: int = 23, outs: Any = 1,
          **attrs: Any) -> Case:  # fmt: skip
    return Case("Attention", ins, attrs, grad=grad, opset=opset, outs=outs, tol=1e-5)


def _mask(*shape: int) -> np.ndarray:
    mask = np.random.default_rng(3).random(shape) < 0.7
    mask[..., 0, :] = False  # a query that sees nothing
    return mask


def _ms_rotary(x: Any, positions: Any, cos: Any, sin: Any, **attrs: Any) -> Any:
    """com.microsoft RotaryEmbedding of [batch, heads, length, width], not interleaved."""
    length = x.shape[2]
    at = positions if positions.ndim == 2 else positions + np.arange(length)[None]
    c, s = cos[at][:, None], sin[at][:, None]
    x1, x2 = np.split(x, 2, axis=3)
    return np.concatenate([x1 * c - x2 * s, x1 * s + x2 * c], axis=3)


def _ms_rotary_rows(x: Any, *more: Any, num_heads: int) -> Any:
    """The same of [batch, length, heads * width]."""
    heads = x.reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2)
    return _ms_rotary(heads, *more).swapaxes(1, 2).reshape(x.shape)


CASES = [
    _case(f32(*Q), f32(*K), f32(*V)),
    _case(f32(2, 4, 18), f32(2, 5, 18), f32(2, 5, 21), q_num_heads=3, kv_num_heads=3, scale=0.3),
    _case(f32(2, 4, 24), f32(2, 5, 12), f32(2, 5, 14), q_num_heads=4, kv_num_heads=2, softcap=1.5),
    _case(f32(2, 4, 5, 6), f32(2, 1, 5, 6), f32(2, 1, 5, 6), is_causal=1),
    _case(f32(*Q), f32(*K), f32(*V), _mask(4, 5)),
    _case(f32(*Q), f32(*K), f32(*V), f32(2, 1, 4, 5), grad=(0, 1, 2, 3), is_causal=1),
    _case(f32(*Q), f32(*K), f32(*V), _mask(4, 5), f32(2, 3, 2, 6), f32(2, 3, 2, 7),
          grad=(0, 1, 2, 4, 5), is_causal=1, outs=4, qk_matmul_output_mode=3),
    _case(f32(*Q), f32(*K), f32(*V), None, None, None, np.array([3, 5]), opset=24, is_causal=1),
    _case(f32(*Q), f32(*K), f32(*V), left_window_size=2, right_window_size=1, opset=25),
    _case(f32(*Q), f32(*K), f32(*V), softmax_precision=11),
    Case("RotaryEmbedding", (f32(2, 3, 4, 6), *TABLE, POSITIONS), grad=(0, 1, 2), opset=23),
    Case("RotaryEmbedding", (f32(2, 4, 24), f32(9, 2), f32(9, 2), POSITIONS), opset=23,
         attrs={"num_heads": 3, "interleaved": 1, "rotary_embedding_dim": 4}, grad=(0,)),
    Case("RotaryEmbedding", (f32(2, 3, 4, 6), f32(2, 4, 3), f32(2, 4, 3)), grad=(0,), opset=23),
    Case("RotaryEmbedding", (f32(2, 3, 4, 6), np.array([2]), *TABLE), domain="com.microsoft",
         grad=(0, 2, 3), reference=_ms_rotary),
    Case("RotaryEmbedding", (f32(2, 3, 4, 6), POSITIONS, *TABLE), domain="com.microsoft",
         grad=(0,), reference=_ms_rotary),
    Case("RotaryEmbedding", (f32(2, 4, 18), POSITIONS, *TABLE), {"num_heads": 3}, grad=(0,),
         domain="com.microsoft", reference=_ms_rotary_rows),
]  # fmt: skip
