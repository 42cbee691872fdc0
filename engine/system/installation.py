"""The installation: versions of packages, and the machine that they run on.

Packages are not imported; their metadata and the system's files are read.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

PACKAGES = ("numpy", "numba", "llvmlite", "onnx")  # that results and times may depend on
COMPILERS = ("numba", "llvmlite")  # that decide the code of kernels
ROOT = Path("/")


@cache
def find_version(package: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    from importlib import metadata  # takes 10 ms, and most processes ask for none

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def describe_versions() -> dict[str, str]:
    """Return the versions of `PACKAGES` by their names, for people."""
    return {name: find_version(name) or "not installed" for name in PACKAGES}


def list_compilers() -> list[str]:
    """Return each of `COMPILERS` with its version, as `numba 0.68.1`."""
    return [f"{name} {find_version(name)}" for name in COMPILERS]


def describe_cores() -> str:
    """Return how many cores this process may use, and how many there are."""
    from engine.system.config import count_cores  # this needs NumPy; versions do not

    return f"{count_cores()} usable of {os.cpu_count() or 'an unknown number'}"


def find_board(root: Path = ROOT) -> str:
    """Return the name of the board or computer, or an empty string.

    root: the root of the file system to read.
    """
    for place in ("proc/device-tree/model", "sys/class/dmi/id/product_name"):
        if name := read_line(root / place):
            return name
    return ""


def find_processor(root: Path = ROOT) -> str:
    """Return the processor's name; for an ARM without one, the numbers that stand for it."""
    rows: dict[str, str] = {}
    for line in read_line(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        rows.setdefault(name.strip(), value.strip())
    for name in ("model name", "Hardware", "uarch"):
        if rows.get(name):
            return rows[name]
    parts = [f"{name[4:]} {rows[name]}" for name in ("CPU implementer", "CPU part") if name in rows]
    return ", ".join(parts) or platform.processor()


def read_line(path: Path) -> str:
    """Return a small file of the system without blanks around it; empty if it cannot be read.

    Device trees end texts by a null byte, which is left out.
    """
    try:
        return path.read_text("utf-8", "replace").replace("\0", " ").strip()
    except OSError:
        return ""
