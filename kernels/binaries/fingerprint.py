"""Fingerprints of the sources that decide a kernel's code: keys of object caches and libraries.

A kernel's code follows from the compiler, the vector emitters, the vocabulary, the layouts of
words, the element types, the file its template is written in, and all of this package that file
imports, directly or not.  Editing a convolution leaves every compiled GEMM valid.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.base import element_types
from engine.plan import context, words
from engine.system.installation import list_compilers

ROOT = Path(__file__).resolve().parent.parent  # kernels/
PACKAGE = "engine.kernels"
EVERYWHERE = ("compiler", "machine", "vector_ir", "vocabulary")  # rooms under every kernel
# Modules outside this package that are under every kernel.
BEYOND = {m.__name__: Path(m.__file__ or "") for m in (element_types, context, words)}
_IMPORT = re.compile(
    rf"^[ \t]*(?:from ({PACKAGE}[\w.]*) import (\([^)]*\)|[^\n(]*)|import ({PACKAGE}[\w.]*))", re.M
)


@functools.cache
def list_sources() -> dict[str, Path]:
    """Return every module of this package, and the modules of `BEYOND`, by dotted name."""
    paths = dict(BEYOND)
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        paths[".".join([PACKAGE, *(p for p in parts if p != "__init__")])] = path
    return paths


@functools.cache
def list_imports(module: str) -> frozenset[str]:
    """Return the modules of this package that a module imports, anywhere in its text."""
    modules = set()
    for base, names, plain in _IMPORT.findall(list_sources()[module].read_text("utf-8")):
        modules |= {base, plain, *(f"{base}.{name}" for name in re.findall(r"\w+", names))}
    return frozenset(modules & list_sources().keys())


@functools.cache
def list_dependencies(module: str) -> frozenset[str]:
    """Return a module and all that it imports of this package, directly or not."""
    done: set[str] = set()
    queue = [module]
    while queue:
        name = queue.pop()
        if name not in done:
            done.add(name)
            queue += list_imports(name)
    return frozenset(done)


def digest_origin(build: Callable[..., Any]) -> bytes:
    """Digest of all that decides a kernel's code besides its parameters and the target.

    A template from outside this package counts with its own file and all of this package.

    Raises:
        OSError: it was not written in a file.
    """
    path = Path(inspect.unwrap(build).__code__.co_filename)
    inside = {p: m for m, p in list_sources().items()}.get(path.resolve())
    digest = _digest_environment()
    if inside is None:
        return hashlib.sha256(digest + digest_package() + path.read_bytes()).digest()
    return hashlib.sha256(digest + _digest(inside)).digest()


@functools.cache
def _digest(module: str) -> bytes:
    rooms = tuple(f"{PACKAGE}.{room}" for room in EVERYWHERE)
    always = {m for m in list_sources() if m.startswith(rooms)}
    return _of(list_dependencies(module) | always | {*BEYOND})


@functools.cache
def digest_package() -> bytes:
    """Digest of every source."""
    return _of(list_sources())


def _of(modules: Any) -> bytes:
    digest = hashlib.sha256()
    for module in sorted(modules):
        digest.update(list_sources()[module].read_bytes())
    return digest.digest()


@functools.cache
def _digest_environment() -> bytes:
    """Digest of the versions that kernels are compiled with."""
    return hashlib.sha256("\n".join([*list_compilers(), sys.version]).encode()).digest()
