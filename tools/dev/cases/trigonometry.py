"""Circular and hyperbolic functions on their domains, kept away from poles."""

from __future__ import annotations

from engine.tools.dev.cases.case import Case, f32

INSIDE = {"low": -0.9, "high": 0.9}
RANGES: dict[str, dict[str, float]] = {
    "Sin": {"low": -9, "high": 9}, "Cos": {"low": -9, "high": 9}, "Tan": {"low": -1.3, "high": 1.3},
    "Asin": INSIDE, "Acos": INSIDE, "Atan": {}, "Sinh": {}, "Cosh": {}, "Asinh": {},
    "Acosh": {"low": 1.2, "high": 4}, "Atanh": INSIDE,
}  # fmt: skip

CASES = tuple(Case(op, (f32(5, 9, **kind),), grad=(0,)) for op, kind in RANGES.items())
