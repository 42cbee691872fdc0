"""Operators and their compiler; `registry.py` finds the families of `ops/`."""

from __future__ import annotations

if __name__ != "engine.kernels":
    raise ImportError(
        f"import engine.kernels, not {__name__}: two copies would mean two registries"
    )
