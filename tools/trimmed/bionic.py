"""Bionic, Android's C library: what ziglang lacks to compile and link for Android.

A library needs its C library twice: headers to be compiled with, and a file that lists its
functions to be linked with.  `runtime/bionic.h` declares the functions that builds call, and both
are made from it.  The phone has the C library itself: `tests/data/bionic.txt` records on which
processors it has these functions.
"""

from __future__ import annotations

import re
from pathlib import Path

_DECLARATIONS = Path(__file__).parent / "runtime" / "bionic.h"
_HEADERS = (
    "errno.h", "fcntl.h", "pthread.h", "sched.h", "stdio.h", "stdlib.h", "string.h", "unistd.h",
    "sys/auxv.h", "sys/mman.h", "sys/stat.h",
)  # fmt: skip


def write_headers(folder: Path) -> None:
    """Write the declarations to a folder, under the name of each header that has a part of them."""
    text = _DECLARATIONS.read_text("utf-8")
    for name in _HEADERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")


def list_functions(machine: str) -> list[str]:
    """Return the functions that `bionic.h` declares for a processor, as in `Platform.machine`."""
    text = _DECLARATIONS.read_text("utf-8")
    if machine != "arm":
        text = re.sub(r"(?ms)^#ifdef __arm__.*?^#endif", "", text)
    return re.findall(r"(?m)^extern [^(]*?(\w+)\(", text)


def write_stub(machine: str) -> str:
    """Return C whose shared library has these functions, and nothing in them: to link with."""
    return "".join(f"void {name}(void) {{}}\n" for name in list_functions(machine))
