"""`edgegrad demo`: a digit classifier from nothing to a checked export."""

from __future__ import annotations

from pathlib import Path

import click

from engine.tools.actions import demo
from engine.tools.commands import options


@click.command(epilog=options.list_examples("edgegrad demo", "edgegrad demo --epochs 3 -o digits/"))
@options.take_out("Folder to write to.", default="demo_output")
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    default=10,
    metavar="N",
    help="Passes over the data.  [default: 10]",
)
@options.take_threads("all cores")
def command(out: Path, epochs: int, threads: int | None) -> int:
    """Train, export and check a digit classifier.

    The data are the handwritten digits of scikit-learn.  Exit status: 0 if the exported model
    is as accurate as expected, otherwise 1.
    """
    return demo.run(out, epochs, threads)
