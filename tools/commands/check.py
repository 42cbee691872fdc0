"""`edgegrad check`: the memory and time of a training, and the obstacles to it."""

from __future__ import annotations

from pathlib import Path

import click

from engine.base.plan_options import PlanOptions
from engine.tools.commands import options

_CANNOT, _OVER = 3, 4  # exit status


@click.command(
    epilog=options.list_examples(
        "edgegrad check artifacts/ --batch 16",
        "edgegrad check artifacts/ --batch 16 --budget 48MB",
        "edgegrad check forward.onnx --batch 8 --train 'classifier.*'",
    )
)
@click.argument("source", type=options.Existing(), metavar="ARTIFACTS|MODEL")
@click.option(
    "--batch", "batch_size", type=click.IntRange(min=1), metavar="N", help="Samples per step."
)
@options.shape
@options.take_planning
@options.take_threads("as a Module here")
@click.option(
    "--loss", metavar="NAME",
    help="For a forward model: the loss.  [default: cross_entropy for an output of two dimensions, "
    "otherwise mse]",
)  # fmt: skip
@click.option(
    "--optimizer", default="adamw", show_default=True, metavar="NAME",
    help="For a forward model: the optimizer; or none.",
)  # fmt: skip
@click.option(
    "--train", multiple=True, default=("*",), metavar="PATTERN",
    help="For a forward model: parameters to train, such as 'classifier.*'; repeat.  "
    "[default: all]",
)  # fmt: skip
@click.option("--brief", is_flag=True, help="Do not look for variants that take less.")
@options.as_json
@options.imports
def command(
    source: Path,
    batch_size: int | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    planning: PlanOptions,
    threads: int | None,
    loss: str | None,
    optimizer: str,
    train: tuple[str, ...],
    brief: bool,
    as_json: bool,
) -> int:
    """Predict the memory and time of a training, and list the obstacles to it.

    Nothing is trained.  All nodes without a kernel or a gradient are listed at once.  Memory is
    given for the plans, which a budget bounds, and for the whole process; time is estimated from
    the speed of this machine, which is measured.  Variants that take less are planned, too, and
    listed with their figures.

    Exit status: 3 if the model cannot be trained, 4 if it does not fit the budget.
    """
    from engine.tools.actions.checks import CheckRequest, TrainingChoices, check_path
    from engine.tools.trimmed.progress import StagePrinter

    asked = CheckRequest(batch_size, dict(shapes), threads, variants=not brief, planning=planning)
    report = check_path(source, asked, TrainingChoices(loss, optimizer, train), StagePrinter())
    options.print_json(report.as_dict()) if as_json else options.echo(str(report), nl=False)
    return {"cannot train": _CANNOT, "does not fit": _OVER}.get(report.status, 0)
