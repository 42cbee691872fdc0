"""`edgegrad bench`: how fast this machine trains known models, or answers by any model."""

from __future__ import annotations

from pathlib import Path

import click

from engine.tools.commands import options


@click.command(
    epilog=options.list_examples(
        "edgegrad bench",
        "edgegrad bench mlp mobilenet --threads 1,4 --json > here.json",
        "edgegrad bench mobilenet --threads 1-16",
        "edgegrad bench --compare here.json there.json",
        "edgegrad bench --inference model.onnx --batch 1",
    )
)
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD|MODEL...]")
@click.option(
    "--inference", is_flag=True,
    help="Measure inference instead of training, of ONNX files or workloads.",
)  # fmt: skip
@click.option(
    "--threads", "threads", type=options.parse_thread_counts, multiple=True,
    callback=options.require_unique, metavar="N,...",
    help="Threads per step: numbers and ranges such as 1-16.  [default: 1 and all cores]",
)  # fmt: skip
@click.option(
    "--batch", "batch_size", type=options.COUNT, metavar="N",
    help="Samples per step or inference.  [default: the workload's, or 1 with --inference]",
)  # fmt: skip
@options.shape
@click.option(
    "--time", "seconds", type=click.FloatRange(min=0, min_open=True), default=6.0,
    show_default=True, metavar="S", help="Approximate seconds per row; at least three steps.",
)  # fmt: skip
@click.option(
    "--compare", type=options.Existing(), nargs=2, metavar="A B",
    help="Compare two files written with --json, without measuring.",
)  # fmt: skip
@click.option("--list", "listed", is_flag=True, help="Print the names of the workloads.")
@options.take_out("Also write the result as a JSON file.")
@options.as_json
def command(
    workloads: tuple[str, ...],
    inference: bool,
    threads: tuple[int, ...],
    batch_size: int | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    seconds: float,
    compare: tuple[Path, Path] | None,
    listed: bool,
    out: Path | None,
    as_json: bool,
) -> int:
    """Measure how fast this machine trains known models.

    Each row has the time of a training step (forward, backward, AdamW), its ratio to a forward
    pass, operations per second and their share of the peak, the memory of the process, and the
    time from the start of a process to its first finished step.  See docs/performance.md.

    If --threads asks for more threads than this machine has cores, a column shows the predicted
    time of a step, in every row.  The prediction adds up the processor time of the busiest thread
    between barriers, or the time of the memory if that is longer.

    With --inference, each row has the inference time of an ONNX model on generated inputs and, if
    onnxruntime is installed, its time too.

    Exit status: 1 if a workload could not run; the others are printed.
    """
    if compare:
        if workloads or inference or threads or batch_size or shapes or listed or out or as_json:
            raise click.UsageError("--compare takes two files, and no other option")
        from engine.tools.benchmark import result

        first, second = map(result.read, compare)
        options.echo(result.compare(first, second, list(map(str, compare))), nl=False)
        return 0
    from engine.tools.benchmark.workloads import USUAL, WORKLOADS

    if listed:
        options.echo("\n".join(WORKLOADS))
        return 0
    from engine.system import config
    from engine.tools.benchmark import measure
    from engine.tools.trimmed.progress import StagePrinter

    if shapes and not inference:
        raise click.UsageError("--shape needs --inference: workloads have their shapes")
    counts = threads or tuple(dict.fromkeys((1, config.choose_threads())))
    names, progress = workloads or USUAL, StagePrinter()
    if inference:
        measured = measure.measure_answers(
            names, counts, seconds, batch_size, dict(shapes), progress
        )
    else:
        measured = measure.measure(names, counts, seconds, batch_size or 0, progress=progress)
    if out is not None:
        measured.write(out)
    if as_json:
        options.print_json(measured.as_dict())
    else:
        options.echo(str(measured), nl=False)
    return int(any(row.failed for row in measured.rows))
