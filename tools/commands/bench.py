"""`edgegrad bench`: how fast this machine trains known models."""

from __future__ import annotations

from pathlib import Path

import click

from engine.tools.commands import options


@click.command(
    epilog=options.list_examples(
        "edgegrad bench",
        "edgegrad bench mlp mobilenet --threads 1,4 --json > here.json",
        "edgegrad bench --compare here.json there.json",
    )
)
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD...]")
@click.option(
    "--threads", "threads", type=options.parse_counts, multiple=True,
    callback=options.require_unique, metavar="N,...",
    help="Threads per step, repeated or separated by commas.  [default: 1 and all cores]",
)  # fmt: skip
@click.option(
    "--batch", "batch_size", type=click.IntRange(min=1), metavar="N",
    help="Samples per step.  [default: the workload's]",
)  # fmt: skip
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
    threads: tuple[int, ...],
    batch_size: int | None,
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

    Exit status: 1 if a workload could not run; the others are printed.
    """
    if compare:
        if workloads or threads or batch_size or listed or out or as_json:
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

    counts = threads or tuple(dict.fromkeys((1, config.choose_threads())))
    names = workloads or USUAL
    measured = measure.measure(names, counts, seconds, batch_size or 0, progress=StagePrinter())
    if out is not None:
        measured.write(out)
    if as_json:
        options.print_json(measured.as_dict())
    else:
        options.echo(str(measured), nl=False)
    return int(any(row.failed for row in measured.rows))
