"""`edgegrad compare`: runs side by side."""

from __future__ import annotations

from pathlib import Path

import click

from engine.tools.commands import options
from engine.trainer.reports.comparison import compare


@click.command(
    epilog=options.list_examples(
        "edgegrad compare runs/first runs/second",
        "edgegrad compare runs/* -o comparison.html",
    )
)
@click.argument("runs", type=options.Existing(), nargs=-1, required=True, metavar="RUN...")
@options.take_out("A page of HTML to write, with the curves of all runs.")
@options.as_json
def command(runs: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Compare runs: best values, time, memory, sizes and the settings that differ.

    The page also draws the curves of all runs together.
    """
    comparison = compare(*runs)
    if out is not None:
        comparison.write(out)
    if as_json:
        options.print_json(comparison.to_dict())
    else:
        options.echo(str(comparison))
