"""`edgegrad prepare`: plans beside artifacts."""

from __future__ import annotations

import itertools
from pathlib import Path

import click

from engine.base.aliases import Shapes
from engine.base.plan_options import PlanOptions
from engine.kernels.binaries import source
from engine.system import config
from engine.tools.actions import prepare
from engine.tools.commands import options
from engine.tools.trimmed.progress import StagePrinter


@click.command(
    epilog=options.list_examples(
        "edgegrad prepare artifacts/ --batch 8,32                    # for this machine",
        "edgegrad prepare artifacts/ --batch 8 --threads 4 --target raspberrypi4",
    )
)
@click.argument("artifacts", type=options.Existing(), metavar="ARTIFACTS")
@options.batch
@options.shape
@click.option(
    "--threads",
    type=options.parse_thread_counts,
    multiple=True,
    callback=options.require_unique,
    metavar="N,...",
    help="Threads per step; for several, separate them by commas or repeat the option.  "
    "[default: EDGEGRAD_THREADS, or all cores]",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="TARGET",
    help="A device that uses only the kernels of its wheel: a level, such as x86-64-v3, or a name "
    "from `edgegrad targets`.  Repeatable.  [default: this machine]",
)
@options.take_planning
@options.as_json
@options.imports
def command(
    artifacts: Path,
    batches: tuple[int, ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    threads: tuple[int, ...],
    targets: tuple[str, ...],
    planning: PlanOptions,
    as_json: bool,
) -> None:
    """Write plans next to artifacts, so that training starts at once.

    Repeat --shape for several inputs or several plans.  Without --batch, the batch size is the
    first dimension of the shapes.
    """
    if not batches and not shapes:
        raise click.UsageError("give the samples of a step, such as --batch 8, or --shape")
    kernels = [prepare.make_kernel_set(name) for name in targets] or [source.choose_current()]
    numbers = [config.choose_threads(n) for n in threads] or [config.choose_threads()]
    settings = list(itertools.product(kernels, numbers))
    asked = _list_shapes(shapes, batches)
    path, size = prepare.prepare(artifacts, settings, asked, StagePrinter(), planning)
    if as_json:
        made = [{"kernel_set": k.name, "threads": n} for k, n in settings]
        options.print_json({"file": path, "bytes": size, "settings": made})
    else:
        options.echo(f"{path}: {size:,} bytes")


def _list_shapes(
    shapes: tuple[tuple[str, tuple[int, ...]], ...], batches: tuple[int, ...]
) -> list[tuple[int, Shapes]]:
    """Return the shapes to plan for: every batch size with every shape given for an input."""
    named: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name, shape in shapes:
        named.setdefault(name, []).append((name, shape))
    given = [dict(row) for row in itertools.product(*named.values())]
    if batches:
        return list(itertools.product(batches, given))
    first = [next((shape[0] for shape in row.values() if shape), 1) for row in given]
    return list(zip(first, given, strict=True))
