"""Arithmetic that a CPU has no instructions for, in an object of a freestanding archive.

Compilers call functions for it, such as `__aeabi_dadd` for a sum of float64 on a Cortex-M4F.
ziglang has them all in source.  An archive gets those that its objects call, so that it needs no
library of a compiler.  They are weak, so that a program's own functions may replace them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from engine.tools.trimmed.binary import list_symbols
from engine.tools.trimmed.targets import Platform

NAME, _ALL = "arithmetic.o", "compiler_rt.o"


def find_source() -> Path | None:
    """Return ziglang's source of these functions; None if ziglang is not installed."""
    spec = importlib.util.find_spec("ziglang")
    return Path(spec.origin).parent / "lib/compiler_rt.zig" if spec and spec.origin else None


def make_arithmetic(
    objects: Iterable[Path],
    platform: Platform,
    folder: Path,
    run: Callable[[Sequence[str], Path], None],
) -> list[str]:
    """Compile the functions that ELF objects call and do not have.

    Returns the name of the object made in the folder, in a list, which is empty if all is there.
    Without ziglang it is empty, too: the library of the user's own compiler has them.

    run: runs a command in a folder.
    """
    needed, defined = set[str](), set[str]()
    for path in objects:
        own, others = list_symbols(path.read_bytes())
        defined |= own
        needed |= others
    source = find_source()
    if not needed - defined or source is None:
        return []
    zig = [sys.executable, "-m", "ziglang"]
    # -mabi is of its C compiler alone; the ABI follows from the CPU.
    target = [word for word in platform.zig.split() if not word.startswith("-mabi")]
    words = ["-OReleaseSmall", "-ffunction-sections", "-fno-unwind-tables", "-fstrip"]
    words += [] if platform.is_bare else ["-fPIC"]
    words += ["-target", *target, f"-femit-bin={_ALL}"]
    run([*zig, "build-obj", str(source), *words], folder)
    there, _ = list_symbols((folder / _ALL).read_bytes())
    called = sorted((needed - defined) & there)
    if not called:
        return []
    roots = [word for name in called for word in ("-u", name)]
    run([*zig, "ld.lld", "-r", "--gc-sections", *roots, _ALL, "-o", NAME], folder)
    return [NAME]
