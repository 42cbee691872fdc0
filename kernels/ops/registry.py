"""The op and kernel tables: every family of `kernels/ops/`, found by its `OPS` and `KERNELS`.

A *family* is a module in `kernels/ops/` or `kernels/loops/` that defines `OPS` (declarations),
`KERNELS` (templates) or both; modules with neither are parts of a family.  There are a hundred, and
a model needs ten, so a family is imported when one of its ops or kernels is needed;
`engine/base/declared_homes.py` says where it is.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import TypeVar

from engine.base.declared_homes import KERNEL_HOMES, OP_HOMES
from engine.kernels.vocabulary.kernel import Template
from engine.kernels.vocabulary.op import Op

ROOMS = ("engine.kernels.ops", "engine.kernels.loops")
K = TypeVar("K")
V = TypeVar("V")


class Declarations(MutableMapping[K, V]):
    """Ops or kernels by key: those that families declare, and those that were added.

    A key imports the module that the index names; one that the index lacks, and a list of all,
    import every family.
    """

    def __init__(
        self, homes: Mapping[K, str], read: Callable[[ModuleType], Iterator[tuple[K, V]]]
    ) -> None:
        self._homes, self._read = homes, read
        self._known: dict[K, V] = {}
        self._is_whole = False
        self._lock = threading.Lock()  # never held while a family is imported

    def __getitem__(self, key: K) -> V:
        if key not in self._known and not self._is_whole:
            home = self._homes.get(key)
            if home is not None:
                self._take(importlib.import_module(home))
            if key not in self._known:
                self._take_all()
        return self._known[key]

    def __setitem__(self, key: K, value: V) -> None:
        with self._lock:
            self._known[key] = value

    def __delitem__(self, key: K) -> None:
        self._take_all()
        del self._known[key]

    def __contains__(self, key: object) -> bool:
        if key not in self._known and key not in self._homes:
            self._take_all()
        return key in self._known or (not self._is_whole and key in self._homes)

    def __iter__(self) -> Iterator[K]:
        self._take_all()
        return iter(self._known)

    def __len__(self) -> int:
        self._take_all()
        return len(self._known)

    def _take(self, family: ModuleType) -> None:
        """Take note of what a family declares; what was added in its place stays."""
        for key, value in self._read(family):
            self._known.setdefault(key, value)

    def _take_all(self) -> None:
        """Take note of what all families declare, in their order, before what was added.

        Another thread sees all of it or none: it would take a key that is missing for unknown.
        """
        if self._is_whole:
            return
        declared: dict[K, V] = {}
        for family in list_families():
            declared.update(self._read(family))
        with self._lock:
            self._known = declared | self._known
            self._is_whole = True


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


def read_ops(family: ModuleType) -> Iterator[tuple[tuple[str, str], Op]]:
    """Yield the ops of a family by (domain, ONNX op type)."""
    return (((op.domain, op.name), op) for op in getattr(family, "OPS", ()))


def read_kernels(family: ModuleType) -> Iterator[tuple[str, Template]]:
    """Yield the kernel templates of a family by name."""
    return ((template.name, template) for template in getattr(family, "KERNELS", ()))


@functools.cache
def list_ops() -> Declarations[tuple[str, str], Op]:
    """Return all op declarations by (domain, ONNX op type); engine.custom adds to them."""
    return Declarations(OP_HOMES, read_ops)


@functools.cache
def list_templates() -> Declarations[str, Template]:
    """Return all kernel templates by name; engine.custom adds to them."""
    return Declarations(KERNEL_HOMES, read_kernels)


def find_home(template: Template) -> str | None:
    """Return the module of this package that declares a kernel template, if one does."""
    home = KERNEL_HOMES.get(template.name)
    families = list_families() if home is None else (importlib.import_module(home),)
    own = (m.__name__ for m in families if any(t is template for _, t in read_kernels(m)))
    return next(own, None)
