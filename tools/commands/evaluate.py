"""`edgegrad eval`: measures a trained model on other data."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from engine.tools.actions import runs
from engine.tools.commands import options
from engine.trainer.trainer import Trainer


@click.command(
    epilog=options.list_examples(
        "edgegrad eval run --data test/",
        "edgegrad eval run --data test/ --metric accuracy --metric f1 --json",
    )
)
@click.argument("run", type=options.Existing(), metavar="RUN")
@click.option("--data", metavar="PATH", required=True, help="A folder or a file of data.")
@options.batch_size
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="A metric to measure.  Repeatable."
)
@options.checkpoint
@options.take_threads("all cores")
@options.as_json
@options.imports
def command(
    run: Path,
    data: str,
    batch_size: int | None,
    metrics: tuple[str, ...],
    checkpoint: Literal["best", "last"],
    threads: int | None,
    as_json: bool,
) -> None:
    """Measure the loss and metrics of a trained model on other data.

    The data are prepared in the same way as the training data.
    """
    config = runs.read_config(run)
    dataset = runs.open_data(config, run, Path(data))
    trainer = Trainer.from_run(run, checkpoint, threads=threads)
    values = trainer.evaluate(
        dataset,
        batch_size=batch_size or config.data.batch_size,
        metrics=metrics or runs.choose_metrics(config),
    )
    if as_json:
        options.print_json({"samples": len(dataset), "checkpoint": checkpoint, **values})
        return
    options.echo(f"{len(dataset):,} samples of {data}")
    for name, value in values.items():
        options.echo(f"{name:12s} {value:.6g}")
