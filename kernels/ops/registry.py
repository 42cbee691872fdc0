"""The op and kernel tables: every family of `kernels/ops/`, found by its `OPS` and `KERNELS`.

A *family* is a module that ends in an explicit `OPS` (declarations), `KERNELS` (templates) or both.
Modules under `kernels/ops/` and `kernels/loops/` are looked at; those with neither are parts of a
family.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from engine.kernels.vocabulary.kernel import Template
from engine.kernels.vocabulary.op import Op

ROOMS = ("engine.kernels.ops", "engine.kernels.loops")


def import_modules(*rooms: str) -> Iterator[ModuleType]:
    """Yield every module of these packages and of the packages in them, in order of their names."""
    for room in rooms:
        package = importlib.import_module(room)
        for name in sorted(m.name for m in pkgutil.walk_packages(package.__path__, f"{room}.")):
            yield importlib.import_module(name)


@functools.cache
def list_families() -> tuple[ModuleType, ...]:
    """Return the modules that declare ops or kernels."""
    return tuple(m for m in import_modules(*ROOMS) if hasattr(m, "OPS") or hasattr(m, "KERNELS"))


@functools.cache
def list_ops() -> dict[tuple[str, str], Op]:
    """Return all op declarations by (domain, ONNX op type); engine.custom adds to them."""
    return {(op.domain, op.name): op for m in list_families() for op in getattr(m, "OPS", ())}


@functools.cache
def list_templates() -> dict[str, Template]:
    """Return all kernel templates by name; engine.custom adds to them."""
    return {t.name: t for m in list_families() for t in getattr(m, "KERNELS", ())}


@functools.cache
def find_homes() -> dict[str, tuple[str, Template]]:
    """Return the kernel templates of this package by name, with the modules that declare them."""
    return {t.name: (m.__name__, t) for m in list_families() for t in getattr(m, "KERNELS", ())}
