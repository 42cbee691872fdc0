"""`edgegrad predict`: the predictions of a trained model for files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from engine.tools.actions import prediction, runs
from engine.tools.commands import options
from engine.trainer.trainer import Trainer


@click.command(
    epilog=options.list_examples(
        "edgegrad predict run photo.jpg",
        "edgegrad predict run photos/ -o predictions.csv",
        "edgegrad predict run photos/ --json",
    )
)
@click.argument("run", type=options.Existing(), metavar="RUN")
@click.argument("files", nargs=-1, required=True, type=options.Existing(), metavar="FILE|FOLDER...")
@options.batch_size
@options.checkpoint
@options.take_threads("all cores")
@options.take_out(
    "Write a table, *.csv or *.json, instead of lines; or masks of pictures, into a folder."
)
@options.as_json
@options.imports
def command(
    run: Path,
    files: tuple[Path, ...],
    batch_size: int | None,
    checkpoint: Literal["best", "last"],
    threads: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Predict classes with their probabilities, or values, or masks, for files.

    All files in a folder and its sub-folders are read.
    """
    config = runs.read_config(run)  # says what is wrong with it before anything is loaded
    is_table = out is not None and out.suffix in prediction.FORMATS
    if out is not None and not is_table and config.data.kind != "masks":
        raise click.UsageError(f"--out {out}: expected a name that ends with .csv or .json")
    trainer = Trainer.from_run(run, checkpoint, threads=threads)
    rows = prediction.predict(run, trainer, files, batch_size)
    if out is not None and is_table:
        prediction.write(rows, out)
    elif out is not None:
        prediction.write_masks(rows, out, files, config)
    if as_json:
        options.print_json(prediction.drop_masks(rows))
    elif out is not None:
        options.echo(f"{out}: {len(rows):,} predictions")
    else:
        for row in rows:
            options.echo(prediction.format_row(row))
