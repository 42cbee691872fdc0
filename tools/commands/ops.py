"""`edgegrad ops`: which nodes of models can be trained, and the op list of a build."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from engine.base.errors import FileError
from engine.graphs.io import onnx_io
from engine.graphs.offline import support, untrained
from engine.system.files import write
from engine.tools.commands import options
from engine.tools.trimmed.opset import check, of_graphs, read

_FORWARD, _UNSUPPORTED = 3, 4  # exit status: some nodes have no gradient, or are not supported


@click.command(
    epilog=options.list_examples(
        "edgegrad ops",
        "edgegrad ops model.onnx",
        "edgegrad ops artifacts/ -o required_operators.config",
    )
)
@click.argument("models", nargs=-1, type=options.Existing(), metavar="[MODEL|FOLDER]...")
@options.as_json
@options.take_out("Write the op list of a reduced build instead; - is standard output.")
@click.option(
    "--within",
    type=options.Existing(),
    metavar="CONFIG",
    help="Check instead that only ops of a config are used.",
)
@options.imports
def command(models: tuple[Path, ...], as_json: bool, out: Path | None, within: Path | None) -> int:
    """List which nodes of models can be trained, and why others cannot.

    Advice for the others follows the list.  For a folder, all its models are read.
    Without a model, list the operators through which no gradient flows, with reasons and advice.

    Exit status: 0 if all nodes can be trained, 3 if some run but have no gradient, 4 if some are
    not supported.
    """
    if sum(map(bool, (as_json, out, within))) > 1:
        raise click.UsageError("--json, --out and --within: give only one of them")
    if not models:
        if out or within:
            raise click.UsageError("--out and --within read models: name one or more")
        _print_operators(as_json)
        return 0
    paths = _list_models(models)
    if not within and not out:
        return _print_support(paths, as_json)
    graphs = [(path, onnx_io.load(path)) for path in paths]
    if within:
        allowed = read(within)
        for path, graph in graphs:
            check(graph, allowed, str(path))
        return 0
    lines = ["# Generated from models:", *(f"# - {path.name}" for path in paths)]
    text = "\n".join(lines) + "\n" + str(of_graphs(graph for _, graph in graphs))
    if str(out) == "-":
        options.echo(text, nl=False)
    else:
        write(os.fspath(str(out)), [text.encode()])
    return 0


def _list_models(paths: Sequence[Path]) -> list[Path]:
    """Return the ONNX files that paths name: a file itself, or every model in a folder.

    Raises:
        FileError: there is no model at all.
    """
    models: list[Path] = []
    for path in paths:
        models += sorted(path.rglob("*.onnx")) if path.is_dir() else [path]
    if not models:
        raise FileError(f"no .onnx file in {', '.join(map(str, paths))}")
    return models


def _print_operators(as_json: bool) -> None:
    """Print the operators through which no gradient flows."""
    rows = [
        {"why": reason, "operators": names.split(), "do": what}
        for reason, names, what in untrained.list_rows()
    ]
    if as_json:
        options.print_json(rows)
        return
    for row in rows:
        options.echo(f"{row['why']}:\n  {' '.join(row['operators'])}\n  what to do: {row['do']}\n")


def _print_support(files: Sequence[Path], as_json: bool) -> int:
    """Print a table for each model; return the exit status."""
    tables = {str(path): support.check_support(path) for path in files}
    if as_json:
        options.print_json({p: [asdict(row) for row in table] for p, table in tables.items()})
        for path, table in tables.items():
            for note in table.notes:
                options.echo(f"{path}: warning: {note}", err=True)
    else:
        for path, table in tables.items():
            options.echo(f"{path}\n{table}")
    statuses = {row.status for table in tables.values() for row in table}
    if support.UNSUPPORTED in statuses:
        return _UNSUPPORTED
    return _FORWARD if support.FORWARD in statuses else 0
