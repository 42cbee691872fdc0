"""Attention in all its forms, and rotary position embedding."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.tools.dev.cases.case import Case, f32, fed

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


def attend(q: Any, k: Any, v: Any, bias: Any = None, mask: Any = None, dy: Any = None, *,
           scale: float, low: int | None = None, high: int | None = None, cap: float = 0,
           fill: float = -np.inf, keep: int = 1, guard: int = 0, together: str = "",
           kept: Any = None) -> dict[str, np.ndarray]:  # fmt: skip
    """All results of the engine's Attention and AttentionGrad of [batch, heads, rows, columns].

    "|y|": of the products that have P or dS as a factor, the sums of magnitudes.
    kept: Y as AttentionGrad is given it, if it is not exact.
    """
    each = q.shape[1] // k.shape[1]
    keys, values = np.repeat(k, each, 1), np.repeat(v, each, 1)
    raw = scale * q @ keys.swapaxes(2, 3)
    s = cap * np.tanh(raw / cap) if cap else raw
    s = s if bias is None else s + bias
    seen = np.True_ if mask is None else mask == bool(keep)
    s = np.where(seen, s, fill)
    apart = np.arange(s.shape[3])[None] - np.arange(s.shape[2])[:, None]
    inside = (low is None or apart >= low) & (high is None or apart <= high)
    s = np.where(inside, s, -np.inf)
    top = s.max(3, keepdims=True)
    top = np.where(np.isinf(top), 0, top)
    e = np.exp(s - top)
    total = e.sum(3, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where((total == 0) & bool(guard), 0, e / total)
        logs = np.where((total == 0) & bool(guard), np.inf, np.log(total))
    y = p @ values
    results = {"y": y, "lse": np.stack([top[..., 0], logs[..., 0]]), "|y|": p @ abs(values)}
    if dy is None:
        return results
    delta = (dy * (y if kept is None else kept)).sum(3, keepdims=True)
    ds = p * (dy @ values.swapaxes(2, 3) - delta)
    ds = np.where(seen, ds, 0)
    summed = tuple(i for i, name in enumerate(("batch", "head")) if name in together)
    results["dbias"] = ds.sum(summed, keepdims=True)
    ds = ds * (1 - np.tanh(raw / cap) ** 2) if cap else ds

    def joined(x: np.ndarray) -> Any:
        return x.reshape(k.shape[0], k.shape[1], each, *x.shape[2:]).sum(2)

    results["dq"] = scale * ds @ keys
    results["dk"] = joined(scale * ds.swapaxes(2, 3) @ q)
    results["dv"] = joined(p.swapaxes(2, 3) @ dy)
    results["|dq|"] = abs(scale * ds) @ abs(keys)
    results["|dk|"] = joined(abs(scale * ds).swapaxes(2, 3) @ abs(q))
    results["|dv|"] = joined(p.swapaxes(2, 3) @ abs(dy))
    return results


def _fused(q: Any, k: Any, v: Any, bias: Any = None, mask: Any = None, **attrs: Any) -> list[Any]:
    results = attend(q, k, v, bias, mask, **attrs)
    return [results["y"], results["lse"]]


def _fused_grad(q: Any, k: Any, v: Any, bias: Any, mask: Any, y: Any, lse: Any, dy: Any,
                **attrs: Any) -> list[Any]:  # fmt: skip
    results = attend(q, k, v, bias, mask, dy, **attrs)
    return [
        results[name] for name in ("dq", "dk", "dv", "dbias") if name != "dbias" or bias is not None
    ]


def _grad_ins(q: tuple[int, ...], k: tuple[int, ...], bias: Any = None) -> tuple[Any, ...]:
    """Inputs of AttentionGrad with Y and lse as they are of these Q, K, V."""
    rng = np.random.default_rng(5)
    q_, k_, v_, dy = (rng.standard_normal(s).astype(np.float32) for s in (q, k, k, q))
    b = None if bias is None else rng.standard_normal(bias).astype(np.float32)
    results = attend(q_, k_, v_, b, scale=0.4)
    y, lse = (results[n].astype(np.float32) for n in ("y", "lse"))
    return tuple(None if a is None else fed(a) for a in (q_, k_, v_, b, None, y, lse, dy))


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
    Case("Attention", (f32(2, 4, 70, 20), f32(2, 2, 150, 20), f32(2, 2, 150, 36)), {"scale": 0.3},
         domain="engine", outs=2, tol=1e-5, reference=_fused, bench=True),
    Case("Attention", (f32(1, 2, 70, 16), f32(1, 2, 90, 16), f32(1, 2, 90, 16)), domain="engine",
         attrs={"scale": 0.5, "low": -30, "high": 3, "cap": 1.5}, tol=1e-5, outs=2,
         reference=_fused),
    Case("Attention", (f32(2, 2, 9, 8), f32(2, 2, 11, 8), f32(2, 2, 11, 8), f32(1, 2, 1, 11),
         _mask(2, 1, 9, 11)), {"scale": 0.5, "guard": 1}, domain="engine", tol=1e-5, outs=2,
         reference=_fused),
    Case("AttentionGrad", _grad_ins((1, 1, 150, 32), (1, 1, 200, 32)), {"scale": 0.4}, outs=3,
         domain="engine", tol=1e-5, reference=_fused_grad, bench=True),
    Case("AttentionGrad", _grad_ins((2, 4, 70, 16), (2, 2, 90, 16), (1, 4, 70, 90)), outs=4,
         attrs={"scale": 0.4, "together": "batch"}, domain="engine", tol=1e-5,
         reference=_fused_grad),
    Case("AttentionGrad", _grad_ins((1, 2, 9, 6), (1, 2, 11, 6)), {"scale": 0.4}, outs=3,
         domain="engine", tol=1e-5, reference=_fused_grad),
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
