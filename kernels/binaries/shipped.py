"""Shipped kernels: compiled ahead of time for an instruction-set level, one library a level.

Wheels have them in `engine/shipped/`; checkouts and sdists have none until `python -m
engine.tools.dev.ship` makes them.  The folder holds

    manifest.json   version; a digest of what the kernels compute; how many kernels of each kind
                    there are; size and SHA-256 of every file
    kernels.keys    16 bytes a kernel, sorted by kind: 8 of the SHA-256 of its spec, 4 of
                    the CRC-32 of what it takes, and 4 that are 0
    LEVEL.so        (.dylib, .dll) the kernels of the level's kinds (kernels/machine/levels.py), in
                    the order of the keys

A library exports one function, which returns the address of

    struct { int64_t count; int64_t share; void *const *const *tables; }

where kernel n is tables[n / share][n % share].  The keys are the same for all systems, so that
plans can be made for another one.  This file needs the standard library only.

The folder is part of the installed package: a process that can write there can write its modules,
too.  Sizes and digests find accidents.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.base import package
from engine.base.errors import EngineError, FileError, PlanError, join_names
from engine.plan.plan import Kernel, KernelSpec
from engine.system import trust

FOLDER = package.FOLDER / "shipped"
MANIFEST, KEYS = "manifest.json", "kernels.keys"
VERSION = 2  # of the folder
ENTRY = "edgegrad_shipped"
KEY = 16  # bytes
_AGAIN = "install edgegrad again, or make them: python -m engine.tools.dev.ship"


def make_spec_key(spec: KernelSpec) -> bytes:
    """Return the first 8 bytes of a kernel's key."""
    return hashlib.sha256(repr((spec.template, spec.params)).encode()).digest()[:8]


def make_takes_key(takes: tuple[str, ...]) -> bytes:
    """Return the other 8 bytes of a kernel's key, of what every call passes (`Kernel.takes`)."""
    return zlib.crc32(" ".join(takes).encode()).to_bytes(8, "little")


class _Entry(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_int64),
        ("share", ctypes.c_int64),
        ("tables", ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p))),
    ]


@dataclass(frozen=True, eq=False, slots=True)
class Shipment:
    """The shipped kernels of a folder; none of their code is loaded yet.

    digest: equal for folders whose kernels compute the same, whatever system they are for.
    levels: by name of a level, the name, size in bytes and SHA-256 of its library.
    kinds: the number of kernels of each kind.
    kernels: by the first half of its key, the kind of a kernel, its number among kernels of this
        kind, and the other half.
    """

    folder: Path
    digest: str
    levels: dict[str, tuple[str, int, str]]
    kinds: dict[str, int]
    kernels: dict[bytes, tuple[str, int, bytes]]

    def find_kind(self, spec: KernelSpec) -> str:
        """Return the kind of a kernel, "" if there are no keys of it."""
        return self.kernels.get(make_spec_key(spec), ("", -1, b""))[0]

    def find_numbers(self, kernels: Iterable[KernelSpec | Kernel]) -> dict[str, tuple[str, int]]:
        """Return, by symbol, the kinds and numbers of the given kernels that are shipped.

        Raises:
            PlanError: a kernel of a plan, which passes it something else than it takes.
        """
        numbered: dict[str, tuple[str, int]] = {}
        for kernel in kernels:
            spec = kernel.spec if isinstance(kernel, Kernel) else kernel
            kind, number, takes = self.kernels.get(make_spec_key(spec), ("", -1, b""))
            if number < 0:
                continue
            if isinstance(kernel, Kernel) and make_takes_key(kernel.takes) != takes:
                raise PlanError(
                    f"the shipped kernel {spec.symbol} takes something else than what the plan "
                    f"passes, which is {' '.join(kernel.takes)}: the plan is of another version"
                )
            numbered[spec.symbol] = kind, number
        return numbered

    def load(self, level: str, kinds: Sequence[str]) -> dict[str, list[int]]:
        """Load the library of a level into this process; returns the kernels' addresses by kind.

        kinds: those that it has, in their order.

        Raises:
            FileError: it is damaged, or the system cannot load it.
        """
        path = self.folder / self.levels[level][0]
        _read(path, *self.levels[level][1:])
        try:
            code = ctypes.CDLL(str(path))
            entry = getattr(code, ENTRY)
        except (OSError, AttributeError) as error:
            raise FileError(f"shipped kernels {path} cannot be loaded: {error}") from error
        entry.restype, entry.argtypes = ctypes.POINTER(_Entry), ()
        table: Any = entry().contents
        wanted = sum(self.kinds[kind] for kind in kinds)
        if table.count != wanted:
            raise FileError(f"shipped kernels {path}: {table.count}, not {wanted}")
        addresses: list[int] = []
        for k, first in enumerate(range(0, table.count, table.share)):
            addresses += table.tables[k][: min(table.share, table.count - first)]
        rest = iter(addresses)
        return {kind: list(itertools.islice(rest, self.kinds[kind])) for kind in kinds}


def open_shipment() -> Shipment | None:
    """Return the kernels that this installation ships, None if none.  Raises as `read`."""
    return read(FOLDER)


@functools.cache
def read(folder: Path) -> Shipment | None:
    """Return the kernels of a folder; None if it has no manifest.

    Raises:
        FileError: the folder is damaged or of another version, or, in a checkout, it is of other
            sources of kernels than those that are there.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        with trust.open_file(os.fspath(path)) as file:
            data = json.loads(file.read())
        version, sources, digest = data["version"], data["sources"], str(data["digest"])
        if version != VERSION:
            raise FileError(
                f"shipped kernels: {path} has version {version}, not {VERSION}; {_AGAIN}"
            )
        kinds = {str(kind): int(count) for kind, count in data["kinds"].items()}
        files = {
            n: (str(f["file"]), int(f["bytes"]), str(f["sha256"])) for n, f in data["files"].items()
        }
        place = files.pop(KEYS)
        if any(name != os.path.basename(name) for name, _, _ in files.values()):
            raise ValueError("a library that is elsewhere")
        if place[1] != KEY * sum(kinds.values()):
            raise ValueError("keys of other kernels than it counts")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise FileError(f"shipped kernels: {path} is damaged ({reason}); {_AGAIN}") from error
    if (package.FOLDER.parent / "pyproject.toml").exists():
        from engine.kernels.binaries.fingerprint import digest_package

        if digest_package().hex() != sources:
            raise FileError(
                f"the shipped kernels in {folder} are of other sources than this checkout's; make "
                "them again (python -m engine.tools.dev.ship) or remove the folder"
            )
    keys = _read(folder / KEYS, *place[1:])
    numbers = ((kind, number) for kind, count in kinds.items() for number in range(count))
    kernels = {
        keys[at : at + 8]: (*own, keys[at + 8 : at + KEY])
        for at, own in zip(range(0, len(keys), KEY), numbers, strict=True)
    }
    return Shipment(folder, digest, files, kinds, kernels)


def _read(path: Path, size: int, digest: str) -> bytes:
    """Return the content of a file of the folder.

    Raises:
        FileError: it cannot be read, or is not what the manifest says.
    """
    try:
        with trust.open_file(os.fspath(path)) as file:
            content = file.read(size + 1)
    except OSError as error:
        why = error.strerror or error
        raise FileError(f"shipped kernels {path} cannot be read: {why}") from error
    if len(content) != size or hashlib.sha256(content).hexdigest() != digest:
        raise FileError(f"shipped kernels {path} are damaged: not what the manifest says; {_AGAIN}")
    return content


def describe_missing(specs: Iterable[KernelSpec], what: str) -> EngineError:
    """Return the error for kernels that are neither shipped nor can be compiled."""
    names = join_names(sorted(spec.symbol for spec in specs), 3, quoted=False)
    return EngineError(
        f"{what} lack {names}, and nothing can compile here: install numba "
        "and llvmlite (pip install edgegrad), or plan for these kernels (edgegrad prepare)"
    )
