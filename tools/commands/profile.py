"""`edgegrad profile`: where the time of a training step goes, or of inference."""

from __future__ import annotations

from pathlib import Path

import click

from engine.tools.commands import options


@click.command(
    epilog=options.list_examples(
        "edgegrad profile model.onnx",
        "edgegrad profile artifacts/ --batch 8",
        "edgegrad profile artifacts/ --batch 8 --threads 1 --by node",
        "edgegrad profile artifacts/ --batch 8 --trace step.json --html step.html",
        "edgegrad profile model.onnx --inference --batch 1",
    )
)
@click.argument("path", type=options.Existing(), metavar="ARTIFACTS|MODEL")
@click.option("--inference", is_flag=True, help="Profile inference instead of a training step.")
@click.option(
    "--batch", "batch_size", type=options.COUNT, metavar="N",
    help="Samples per step.  [default: the model's fixed size, or 8, or 1 with --inference]",
)  # fmt: skip
@options.shape
@options.take_threads("EDGEGRAD_THREADS, or all cores")
@click.option(
    "--repeats", type=click.IntRange(min=1), default=20, show_default=True, metavar="N",
    help="Number of runs to take medians over.",
)  # fmt: skip
@click.option(
    "--by", "by", type=click.Choice(["phase", "kernel", "node", "step"]), multiple=True,
    help="How to sum the times.  Repeatable.  [default: phase, kernel, node]",
)  # fmt: skip
@click.option(
    "--lines", type=click.IntRange(min=0), default=15, show_default=True, metavar="N",
    help="Lines of a table; 0 for all.",
)  # fmt: skip
@click.option(
    "--trace", type=options.AnyPath(), metavar="FILE",
    help="Also write a trace of the fastest run, for chrome://tracing or ui.perfetto.dev.",
)  # fmt: skip
@click.option(
    "--html", "page", type=options.AnyPath(), metavar="FILE",
    help="Also write a page with tables and pictures.",
)  # fmt: skip
@options.as_json
@options.imports
def command(
    path: Path,
    inference: bool,
    batch_size: int | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    threads: int | None,
    repeats: int,
    by: tuple[str, ...],
    lines: int,
    trace: Path | None,
    page: Path | None,
    as_json: bool,
) -> None:
    """Show where the time of a training step goes: by kernel, by node, by phase.

    The step runs on generated inputs: normal floats, whole numbers that the model accepts, masks
    of ones.  The artifacts are not changed; an ONNX model is made trainable as by `edgegrad check`.
    docs/performance.md explains the columns.

    With --inference, the argument is an ONNX model, and its inference is profiled.
    """
    from engine.tools.actions import profiles
    from engine.tools.trimmed.progress import StagePrinter

    take = profiles.profile_answers if inference else profiles.profile
    measured = take(path, batch_size, dict(shapes), threads, repeats, StagePrinter())
    if trace is not None:
        measured.chrome_trace(trace)
    if page is not None:
        measured.html(page)
    if as_json:
        options.print_json(measured.as_dict())
        return
    options.echo(measured.summary())
    for each in by or ("phase", "kernel", "node"):
        options.echo(measured.table(each, lines))
