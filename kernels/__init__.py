"""The ops: one file per family, each ending in explicit `OPS` and `KERNELS` tuples."""

from __future__ import annotations

if __name__ != "engine.kernels":
    raise ImportError(
        f"import engine.kernels, not {__name__}: two copies would mean two registries"
    )

import functools
import importlib
import pkgutil
from types import ModuleType

from engine.kernels._kernel import Template
from engine.kernels._op import Op


@functools.cache
def families() -> tuple[ModuleType, ...]:
    """The op family modules: every file of this folder whose name has no leading underscore."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    return tuple(importlib.import_module(f"{__name__}.{name}") for name in names)


@functools.cache
def ops() -> dict[tuple[str, str], Op]:
    """All op declarations by (domain, ONNX op type); engine.custom adds to them."""
    return {(op.domain, op.name): op for family in families() for op in family.OPS}


@functools.cache
def templates() -> dict[str, Template]:
    """All kernel templates by name; engine.custom adds to them."""
    return {t.name: t for family in families() for t in family.KERNELS}
