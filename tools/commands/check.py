"""`edgegrad check`: what a training will take, and whether there can be one."""

from __future__ import annotations

from pathlib import Path

import click

from engine.tools.commands import options

_CANNOT, _OVER = 3, 4  # exit status


@click.command(
    epilog=options.examples(
        "edgegrad check artifacts/ --batch 16",
        "edgegrad check artifacts/ --batch 16 --budget 48MB",
        "edgegrad check forward.onnx --batch 8 --train 'classifier.*'",
    )
)
@click.argument("source", type=options.Existing(), metavar="ARTIFACTS|MODEL")
@click.option(
    "--batch", "batch_size", type=click.IntRange(min=1), metavar="N", help="Samples of a step."
)
@options.shape
@options.budget
@options.threads("what a Module takes here")
@click.option(
    "--loss", metavar="NAME",
    help="Of a forward model: what to minimise.  [default: cross_entropy for an output of two "
    "dimensions, else mse]",
)  # fmt: skip
@click.option(
    "--optimizer", default="adamw", show_default=True, metavar="NAME",
    help="Of a forward model: what updates the parameters; or none.",
)  # fmt: skip
@click.option(
    "--train", multiple=True, default=("*",), metavar="PATTERN",
    help="Of a forward model: parameters to train, as 'classifier.*'; repeat.  [default: all]",
)  # fmt: skip
@click.option("--brief", is_flag=True, help="Do not look for what would take less.")
@options.as_json
@options.imports
def command(
    source: Path,
    batch_size: int | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    budget: int | None,
    threads: int | None,
    loss: str | None,
    optimizer: str,
    train: tuple[str, ...],
    brief: bool,
    as_json: bool,
) -> int:
    """Tell what a training will take of memory and time, and what keeps a model from one.

    Nothing is trained.  All nodes without a kernel or a gradient are told at once.  The memory is
    that of the plans, which a budget bounds, and that of the whole process; the time is reckoned
    from the speed of this machine, which is measured.  What would take less has figures of plans
    of its own.

    Exit status: 3 if the model cannot be trained, 4 if it does not fit the budget.
    """
    from engine.tools.checks import Asked, Made, check_path
    from engine.tools.trimmed.progress import Progress

    asked = Asked(batch_size, dict(shapes), threads, budget, variants=not brief)
    found = check_path(source, asked, Made(loss, optimizer, train), Progress())
    options.print_json(found.as_dict()) if as_json else options.echo(str(found), nl=False)
    return {"cannot train": _CANNOT, "does not fit": _OVER}.get(found.status, 0)
