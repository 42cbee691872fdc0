"""The functions of Android's C library that libraries of builds may need, on each processor.

    python -m tests.support.make_bionic libc.map.txt

reads libc/libc.map.txt of Android's repository platform/bionic, the file that its C library and the
stubs of the NDK are linked by, and writes tests/data/bionic.txt: of each function that
tools/trimmed/runtime/bionic.h declares, its name and the processors whose library has had it since
Android 5.0.  A function that came later, or that applications may not call, gets no line.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from engine.tools.trimmed import bionic
from tests.support.places import DATA

TABLE = DATA / "bionic.txt"
OLDEST = 21  # of Android 5.0, the first version with processors of 64 bits
MACHINES = {"arm": "arm", "arm64": "aarch64", "x86_64": "x86_64"}  # Android's names, and ours
SECTION = re.compile(r"^(LIBC\w*) \{(?: *#([^\n]*))?\n(.*?)^\}", re.MULTILINE | re.DOTALL)
INTERNAL = ("LIBC_PRIVATE", "LIBC_PLATFORM", "LIBC_DEPRECATED")  # not for applications
NOT_CODE = {"var", "future", "llndk", "systemapi", "apex"}


def read_map(text: str, names: set[str]) -> dict[str, set[str]]:
    """Return the processors that have each function."""
    machines: dict[str, set[str]] = {name: set() for name in names}
    for section, marks, body in SECTION.findall(text):
        for name, own in re.findall(r"(?m)^ +(\w+);(?: *#(.*))?$", body):
            if name in names and section not in INTERNAL:
                machines[name] |= find_machines(marks.split(), own.split())
    return machines


def find_machines(section: list[str], own: list[str]) -> set[str]:
    """Return the processors that have a function with these marks, in a section with those."""
    if NOT_CODE & {*own}:
        return set()
    named = set(MACHINES) & {*own} or set(MACHINES)
    since = dict.fromkeys(named, 1)
    for mark in (*section, *own):  # a function's own mark is stronger
        if match := re.fullmatch(r"introduced(?:-(\w+))?=(\d+)", mark):
            since |= {name: int(match[2]) for name in named if match[1] in ("", None, name)}
    return {MACHINES[name] for name, level in since.items() if level <= OLDEST}


def read_table() -> dict[str, set[str]]:
    """Return the table: the processors of each function."""
    rows = (line.split() for line in TABLE.read_text("utf-8").splitlines() if line[0] != "#")
    return {name: set(machines) for name, *machines in rows}


if __name__ == "__main__":
    declared = {name for machine in MACHINES.values() for name in bionic.list_functions(machine)}
    made = read_map(Path(sys.argv[1]).read_text("utf-8"), declared)
    lines = [" ".join([name, *sorted(made[name])]) for name in sorted(declared) if made[name]]
    about = "# Written by tests/support/make_bionic.py from bionic's libc/libc.map.txt."
    TABLE.write_text("\n".join([about, *lines]) + "\n", "utf-8")
