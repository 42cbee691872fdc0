"""Ops: say which nodes of a model can be trained, and write the op list of a build."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from engine.errors import FileError
from engine.graphs.io import onnx_io
from engine.graphs.offline import support
from engine.runtime.files import write
from engine.tools import extensions
from engine.tools.trimmed.opset import check, of_graphs, read

_FORWARD, _UNSUPPORTED = 3, 4  # exit status: some nodes have no gradient, or are not supported


def models(paths: Sequence[Path]) -> list[Path]:
    """The ONNX files that paths name: a file itself, and of a folder every model in it.

    Raises:
        FileError: a path does not exist, or there is no model at all.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise FileError(f"{path}: no such file or folder")
        found += sorted(path.rglob("*.onnx")) if path.is_dir() else [path]
    if not found:
        raise FileError(f"no .onnx file in {', '.join(map(str, paths))}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table of the nodes of models, write their op list, or check them against one."""
    parser = argparse.ArgumentParser(
        prog="edgegrad ops",
        description="Print for every node of models whether it can be trained, and why not.",
        epilog=f"exit status: 0 all can be trained, {_FORWARD} some nodes run but have no "
        f"gradient, {_UNSUPPORTED} some are not supported, 1 a file cannot be read",
    )
    parser.add_argument("models", nargs="+", type=Path, help="ONNX files, or folders of them")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="CONFIG",
        help="write the op list of a reduced build instead; - is standard output",
    )
    parser.add_argument(
        "--within", type=Path, metavar="CONFIG", help="check instead that no other op is used"
    )
    extensions.add_option(parser)
    args = parser.parse_args(argv)
    extensions.load(args.imports)
    files = models(args.models)
    if not args.within and not args.out:
        return _print_support(files, args.json)
    graphs = [(path, onnx_io.load(path)) for path in files]
    if args.within:
        allowed = read(args.within)
        for path, graph in graphs:
            check(graph, allowed, str(path))
        return 0
    lines = ["# Generated from models:", *(f"# - {path.name}" for path in files)]
    text = "\n".join(lines) + "\n" + str(of_graphs(graph for _, graph in graphs))
    if str(args.out) == "-":
        print(text, end="")
    else:
        write(os.fspath(args.out), [text.encode()])
    return 0


def _print_support(files: Sequence[Path], as_json: bool) -> int:
    """Print a table for each model; return the exit status."""
    tables = {str(path): support.supported(path) for path in files}
    if as_json:
        rows = {path: [asdict(row) for row in table] for path, table in tables.items()}
        print(json.dumps(rows, indent=1))
        for path, table in tables.items():
            for note in table.notes:
                print(f"{path}: warning: {note}", file=sys.stderr)
    else:
        for path, table in tables.items():
            print(f"{path}\n{table}")
    found = {row.status for table in tables.values() for row in table}
    if support.UNSUPPORTED in found:
        return _UNSUPPORTED
    return _FORWARD if support.FORWARD in found else 0


if __name__ == "__main__":
    raise SystemExit(main())
