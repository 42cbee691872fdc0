"""Lists the largest files and functions, for judgement; there is no cap.  Run by `make lint`."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("engine", "graphs", "kernels", "tools", "bench", "tests")
SHOWN = 10


def files() -> Iterator[Path]:
    """The Python files of the repository, each once."""
    for top in FOLDERS:  # os.walk does not enter symlinks, which rglob does
        for folder, _, names in os.walk(ROOT / top):
            yield from (Path(folder, name) for name in names if name.endswith(".py"))


def functions(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of every function of a file, and where it stands."""
    where = path.relative_to(ROOT).as_posix()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            yield node.end_lineno - node.lineno + 1, f"{where}:{node.lineno} {node.name}"


def show(title: str, rows: Iterable[tuple[int, str]]) -> None:
    print(f"\nlargest {title}, in lines")
    for lines, name in sorted(rows, reverse=True)[:SHOWN]:
        print(f"{lines:5}  {name}")


def main() -> None:
    every = [*files()]
    lengths = ((len(p.read_text("utf-8").splitlines()), str(p.relative_to(ROOT))) for p in every)
    show("files", lengths)
    show("functions", (row for path in every for row in functions(path)))


if __name__ == "__main__":
    main()
