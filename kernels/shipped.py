"""Shipped kernels: compiled ahead of time for an instruction-set level, one library a level.

Wheels have them in `engine/shipped/`, with a manifest; checkouts and sdists have none until
`python -m engine.tools.ship` makes them.  A library exports one function, whose result says where
its kernels are and what they are:

    struct { int64_t count; void *const *kernels; const unsigned char *keys; }

A key has 16 bytes: 8 of the SHA-256 of the kernel's spec, 4 of the CRC-32 of what the kernel takes,
and 4 that are 0.  This file needs the standard library only.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import engine
from engine.errors import EngineError, FileError, PlanError
from engine.kernels.levels import Level
from engine.runtime.plan import Kernel, KernelSpec

FOLDER = Path(engine.__file__).parent / "shipped"
MANIFEST = "manifest.json"
VERSION = 1  # of the manifest and of what a library exports
ENTRY = "edgegrad_shipped"
KEY = 16  # bytes


def spec_key(spec: KernelSpec) -> bytes:
    """The first 8 bytes of a kernel's key."""
    return hashlib.sha256(repr((spec.template, spec.params)).encode()).digest()[:8]


def takes_key(takes: tuple[str, ...]) -> bytes:
    """The other 8 bytes of a kernel's key, of what every call passes (`Kernel.takes`)."""
    return zlib.crc32(" ".join(takes).encode()).to_bytes(8, "little")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a folder of shipped kernels holds.

    folder: where it is.
    kernels: a digest that two folders share if their kernels compute the same, whatever the system.
    files: by name of a level, the name of its library, its size in bytes and its SHA-256.
    """

    folder: Path
    kernels: str
    files: dict[str, tuple[str, int, str]]


class _Entry(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_int64),
        ("kernels", ctypes.POINTER(ctypes.c_void_p)),
        ("keys", ctypes.c_void_p),
    ]


class Library:
    """The kernels of one level, loaded into this process."""

    def __init__(self, path: Path, level: Level) -> None:
        """Load a library, whose contents are verified.

        Raises:
            FileError: the system cannot load it, or it is no library of kernels.
        """
        self.level = level
        try:
            self._code = ctypes.CDLL(str(path))
            entry = getattr(self._code, ENTRY)
        except (OSError, AttributeError) as error:
            raise FileError(f"shipped kernels {path} cannot be loaded: {error}") from error
        entry.restype, entry.argtypes = ctypes.POINTER(_Entry), ()
        found: Any = entry().contents
        count = int(found.count)
        keys = ctypes.string_at(found.keys, KEY * count)
        addresses = found.kernels[:count]
        self._kernels: dict[bytes, tuple[bytes, int]] = {
            keys[at : at + 8]: (keys[at + 8 : at + KEY], address or 0)
            for at, address in zip(range(0, KEY * count, KEY), addresses, strict=True)
        }

    def __contains__(self, spec: object) -> bool:
        return isinstance(spec, KernelSpec) and spec_key(spec) in self._kernels

    def __len__(self) -> int:
        return len(self._kernels)

    def addresses(self, kernels: Iterable[KernelSpec | Kernel]) -> dict[str, int]:
        """The addresses, by symbol, of those of the kernels that this library has.

        Raises:
            PlanError: a kernel of a plan, which passes it something else than it takes.
        """
        found: dict[str, int] = {}
        for kernel in kernels:
            spec = kernel.spec if isinstance(kernel, Kernel) else kernel
            takes, address = self._kernels.get(spec_key(spec), (b"", 0))
            if not address:
                continue
            if isinstance(kernel, Kernel) and takes_key(kernel.takes) != takes:
                raise PlanError(
                    f"the shipped kernel {spec.symbol} takes something else than what the plan "
                    f"passes, which is {' '.join(kernel.takes)}: the plan is of another version"
                )
            found[spec.symbol] = address
        return found


def manifest(folder: Path = FOLDER) -> Manifest | None:
    """What this installation ships; None if that is nothing.

    Raises:
        FileError: the manifest is damaged or of another version, or, in a checkout, it is of other
            sources of kernels than those that are there.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    again = "install edgegrad anew, or make them: python -m engine.tools.ship"
    try:
        data = json.loads(path.read_text("utf-8"))
        version, sources = data["version"], data["sources"]
        files = {
            n: (str(f["file"]), int(f["bytes"]), str(f["sha256"]))
            for n, f in data["levels"].items()
        }
        found = Manifest(folder, str(data["kernels"]), files)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise FileError(f"shipped kernels: {path} is damaged ({reason}); {again}") from error
    if version != VERSION:
        raise FileError(f"shipped kernels: {path} has version {version}, not {VERSION}; {again}")
    if (folder.parent.parent / "pyproject.toml").exists():
        from engine.kernels.compiler.fingerprint import package_digest

        if package_digest().hex() != sources:
            raise FileError(
                f"the shipped kernels in {folder} are of other sources than this checkout's; make "
                "them anew (python -m engine.tools.ship) or remove the folder"
            )
    return found


@functools.cache
def load(level: Level, folder: Path = FOLDER) -> Library | None:
    """The library of a level that this CPU can run; None if it is not shipped.

    Raises:
        FileError: the manifest or the library is damaged, or the system cannot load it.
    """
    known = manifest(folder)
    if known is None or level.name not in known.files:
        return None
    name, size, digest = known.files[level.name]
    path = folder / name
    try:
        content = path.read_bytes() if path.parent == folder else b""
    except OSError as error:
        raise FileError(f"shipped kernels {path} cannot be read: {error.strerror}") from error
    if len(content) != size or hashlib.sha256(content).hexdigest() != digest:
        raise FileError(
            f"shipped kernels {path} are damaged: their digest is not the manifest's; install "
            "edgegrad anew"
        )
    return Library(path, level)


def missing(specs: Iterable[KernelSpec], what: str) -> EngineError:
    """The error for kernels that are neither shipped nor can be compiled."""
    names = sorted(spec.symbol for spec in specs)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return EngineError(
        f"{what} lack {', '.join(names[:3])}{more}, and nothing can compile here: install numba "
        "and llvmlite (pip install edgegrad), or plan for these kernels (edgegrad prepare)"
    )
