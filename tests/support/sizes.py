"""Lists the largest files and functions, for judgement; there is no cap.  Run by `make lint`."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.places import ROOT

C_SUFFIXES = {".c", ".cpp", ".h"}
FOLDERS = ("engine", "graphs", "kernels", "tools", "bench", "tests")
SHOWN = 10
# A function of C begins and ends at the left margin, and so does its opening brace.
C_FUNCTION = re.compile(
    r"^[A-Za-z][^\n(]*?(?P<name>@?\w+)\([^;{}]*\)\n(?:#endif\n)?\{\n.*?^\}\n",
    re.MULTILINE | re.DOTALL,
)


def list_files() -> Iterator[Path]:
    """The Python and C files of the repository, each once."""
    for top in FOLDERS:  # os.walk does not enter symlinks, which rglob does
        for folder, _, names in os.walk(ROOT / top):
            paths = (Path(folder, name) for name in names)
            yield from (path for path in paths if path.suffix in {".py", *C_SUFFIXES})


def list_functions(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of every function of a file, and where it stands."""
    where = path.relative_to(ROOT).as_posix()
    text = path.read_text("utf-8")
    if path.suffix in C_SUFFIXES:
        for match in C_FUNCTION.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield match[0].count("\n"), f"{where}:{line} {match['name']}"
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            yield node.end_lineno - node.lineno + 1, f"{where}:{node.lineno} {node.name}"


def show(title: str, rows: Iterable[tuple[int, str]]) -> None:
    print(f"\nlargest {title}, in lines")
    for lines, name in sorted(rows, reverse=True)[:SHOWN]:
        print(f"{lines:5}  {name}")


def main() -> None:
    every = [*list_files()]
    lengths = ((len(p.read_text("utf-8").splitlines()), str(p.relative_to(ROOT))) for p in every)
    show("files", lengths)
    show("functions", (row for path in every for row in list_functions(path)))


if __name__ == "__main__":
    main()
