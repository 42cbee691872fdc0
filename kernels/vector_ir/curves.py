"""Vector IR of the curves that convolutions apply to their sums; NaN comes through all of them."""

from __future__ import annotations

from typing import Any

from llvmlite import ir


def _fill(kind: Any, value: float) -> Any:
    """Return a constant of a type, which is a vector or a number."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def at_least(b: Any, v: Any, low: Any) -> Any:
    """max(v, low)."""
    return b.select(b.fcmp_ordered("<", v, low), low, v)


def at_most(b: Any, v: Any, high: Any) -> Any:
    """min(v, high)."""
    return b.select(b.fcmp_ordered(">", v, high), high, v)


def at_most_six(b: Any, v: Any) -> Any:
    """min(v, 6)."""
    return at_most(b, v, _fill(v.type, 6.0))


def hard_swish(b: Any, v: Any) -> Any:
    """v min(1, max(0, v / 6 + 1/2))."""
    part = b.fadd(b.fmul(v, _fill(v.type, 1 / 6)), _fill(v.type, 0.5))
    part = at_most(b, at_least(b, part, _fill(v.type, 0.0)), _fill(v.type, 1.0))
    return b.fmul(v, part)
