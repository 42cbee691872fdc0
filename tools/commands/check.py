"""`edgegrad check`: the memory and time of a training run, and the obstacles to it."""

from __future__ import annotations

from pathlib import Path

import click

from engine.base.plan_options import PlanOptions
from engine.tools.commands import options

_CANNOT, _OVER = 3, 4  # exit status


@click.command(
    epilog=options.list_examples(
        "edgegrad check model.onnx",
        "edgegrad check artifacts/ --batch 16",
        "edgegrad check artifacts/ --batch 16 --budget 48MB",
        "edgegrad check forward.onnx --batch 8 --train 'classifier.*'",
        "edgegrad check artifacts/ --batch 8 --target cortex-m7 --ram 256KB --flash 1MB",
    )
)
@click.argument("source", type=options.Existing(), metavar="ARTIFACTS|MODEL")
@click.option(
    "--batch", "batch_size", type=options.COUNT, metavar="N",
    help="Samples per step.  [default: the model's fixed size, or 8]",
)  # fmt: skip
@options.shape
@options.take_planning
@options.take_threads("EDGEGRAD_THREADS, or all cores")
@click.option(
    "--loss", metavar="NAME",
    help="For a forward model: the loss; with several outputs, the sum over them.  [default: "
    "cross_entropy for an output of two dimensions, otherwise mse]",
)  # fmt: skip
@click.option(
    "--optimizer", default="adamw", show_default=True, metavar="NAME",
    help="For a forward model: the optimizer; or none.",
)  # fmt: skip
@click.option(
    "--train", multiple=True, default=("*",), metavar="PATTERN",
    help="For a forward model: parameters to train, such as 'classifier.*'.  Repeatable.  "
    "[default: all]",
)  # fmt: skip
@options.take_target
@click.option(
    "--ram",
    type=options.parse_bytes,
    metavar="BYTES",
    help="RAM of the --target device; the command then makes its library and measures it.",
)
@click.option(
    "--flash",
    type=options.parse_bytes,
    metavar="BYTES",
    help="Flash of the --target device, for code, tables and the initial checkpoint.",
)
@click.option("--brief", is_flag=True, help="Do not look for variants that need less.")
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
    target: str,
    triple: str,
    cpu: str,
    features: str | None,
    ram: int | None,
    flash: int | None,
    brief: bool,
    as_json: bool,
) -> int:
    """Predict the memory and time of a training run, and list the obstacles to it.

    Nothing is trained.  All nodes without a kernel or a gradient are listed at once.  The report
    has the memory of the plans, to which a budget applies, and of the whole process; the time is
    estimated from the measured speed of this machine.  Variants that need less are planned, too,
    and listed with their figures.

    With --ram or --flash, the library for --target is made, and the bytes of its code and of a
    model's memory are compared with these limits.  If they do not fit, the command tries changes
    until one does: --size, --joined, single samples, a budget, fewer layers, and frozen layers
    of int8.

    Exit status: 3 if the model cannot be trained, 4 if it does not fit the budget or the
    device.
    """
    from engine.tools.actions.checks import CheckRequest, TrainingChoices, check_path
    from engine.tools.trimmed.progress import StagePrinter

    choices = TrainingChoices(loss, optimizer, train)
    if ram is not None or flash is not None:
        from engine.tools.actions.device_checks import Room, check_device
        from engine.tools.trimmed.options import Options, PlanRequest
        from engine.tools.trimmed.targets import resolve

        platform = resolve(target, triple=triple, cpu=cpu, features=features)
        batches = [] if batch_size is None else [batch_size]
        wanted = Options(
            "model",
            platform,
            PlanRequest(batches, threads or 1, shapes=dict(shapes), planning=planning),
        )
        progress = StagePrinter(is_open=True)  # whether more libraries follow, this one decides
        device = check_device(source, choices, wanted, Room(ram, flash), progress)
        if as_json:
            options.print_json(device.as_dict())
        else:
            options.echo("\n".join(device.write_lines()))
        return 0 if device.fits else _OVER
    if (target, triple, cpu, features) != ("native", "", "", None):
        raise click.UsageError("--target is for --ram and --flash: give only one of them")
    asked = CheckRequest(batch_size, dict(shapes), threads, variants=not brief, planning=planning)
    report = check_path(source, asked, choices, StagePrinter())
    options.print_json(report.as_dict()) if as_json else options.echo(str(report), nl=False)
    return {"cannot train": _CANNOT, "does not fit": _OVER}.get(report.status, 0)
