"""`edgegrad plan`: reads, compares, checks and writes the plans of a model."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from engine.base.plan_options import PlanOptions
from engine.checking.picture import write as write_picture
from engine.checking.subject import Opened
from engine.kernels.analysis.bounds import check
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.call import Machine
from engine.plan.plan import Plan
from engine.plan.verify import verify
from engine.system import config
from engine.tools.actions import checks, plan_text
from engine.tools.actions.plans import (
    add_titles,
    check_file,
    find_paths,
    is_plan_file,
    open_models,
    plan_models,
)
from engine.tools.commands import options
from engine.tools.trimmed import opset
from engine.tools.trimmed.options import PlanRequest
from engine.tools.trimmed.plan_file import write_plans
from engine.tools.trimmed.plans import list_artifacts
from engine.tools.trimmed.progress import SILENT, StagePrinter
from engine.tools.trimmed.targets import resolve

_DIFFERENT = 3  # exit status of --diff


@click.command(
    epilog=options.list_examples(
        "edgegrad plan model.onnx --batch 8 --arena",
        "edgegrad plan artifacts/ --batch 8 --budget 48MB --picture plan.html",
        "edgegrad plan artifacts/ --batch 8 --diff other/",
        "edgegrad plan artifacts/ --batch 8 --ranks 4",
        "edgegrad plan artifacts/ --batch 8,5 --ops required_operators.config -o mnist.plan",
        "edgegrad plan mnist.plan --verify",
    )
)
@click.argument("source", type=options.Existing(), metavar="MODEL|ARTIFACTS|FILE")
@options.batch
@options.shape
@options.take_planning
@click.option(
    "--ranks",
    type=click.IntRange(2),
    metavar="N",
    help="Plan the training step of one of N ranks, which gets --batch samples of each batch.",
)
@options.take_threads("EDGEGRAD_THREADS, or all cores; with -o 1")
@options.take_target
@options.take_output_names
@click.option("--arena", is_flag=True, help="Also draw the work arena over time.")
@click.option(
    "--kept",
    is_flag=True,
    help="Print the values kept for the backward pass, instead of the steps.",
)
@click.option("--words", is_flag=True, help="Also name the numbers of each step.")
@click.option(
    "--picture",
    type=options.AnyPath(),
    metavar="FILE",
    help="Write a page with the arenas over time, the tensors at the peak, and smaller variants.",
)
@click.option("--verify", "only_verify", is_flag=True, help="Only check the plans.")
@click.option(
    "--diff",
    "other",
    type=options.Existing(),
    metavar="OTHER",
    help="Compare with the plans of another model or folder of artifacts.",
)
@options.take_out("Write the plans as a file for a library of `edgegrad build --ops`.")
@click.option(
    "--ops",
    type=options.Existing(),
    metavar="CONFIG",
    help="With -o: refuse ops that a library of this config lacks.",
)
@click.option(
    "--joined",
    is_flag=True,
    help="With -o: the training step updates each parameter as soon as its gradient is complete.",
)
@options.as_json
@options.imports
def command(
    source: Path,
    batches: tuple[int, ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    planning: PlanOptions,
    ranks: int | None,
    threads: int | None,
    target: str,
    triple: str,
    cpu: str,
    features: str | None,
    outputs: tuple[str, ...],
    arena: bool,
    kept: bool,
    words: bool,
    picture: Path | None,
    only_verify: bool,
    other: Path | None,
    out: Path | None,
    ops: Path | None,
    joined: bool,
    as_json: bool,
) -> int:
    """Print, draw, compare, check or write the plans of a model.

    For artifacts, these are the plan of a whole training step, and the plans of training,
    evaluation, inference and the optimizer as separate calls, for every batch size; with --budget
    only the plan of the step.  A file of plans is checked and summarised.  Without --batch, a step
    has as many samples as the model or a --shape fixes, or 8.

    Exit status: 3 if plans differ, with --diff.
    """
    if out is not None and (arena or kept or words or picture or only_verify or other):
        raise click.UsageError("-o writes plans and prints none: leave out the options that print")
    if planning.budget is not None and (out or other):
        raise click.UsageError("--budget is for plans that are printed, drawn or verified")
    if planning.precision != "f32" and out is not None:
        raise click.UsageError("-o writes plans for a library of ops, which computes in f32")
    if ranks is not None and out:
        raise click.UsageError(
            "a library trains without other ranks: --ranks cannot be used with -o"
        )
    for name, is_given in (("--ops", ops is not None), ("--joined", joined)):
        if is_given and out is None:
            raise click.UsageError(f"{name} is for plans that -o writes")
    chip = resolve(target, triple=triple, cpu=cpu, features=features).target
    if is_plan_file(source):
        lines = check_file(source)
        options.print_json({"file": source, "holds": lines}) if as_json else options.echo(
            "\n".join(lines)
        )
        return 0
    number = config.choose_threads(threads) if out is None else threads or 1
    asked = PlanRequest(
        batches, number, shapes=dict(shapes), outputs=outputs, joined=joined, planning=planning
    )
    if out is not None:
        return _write(source, out, chip, asked, ops, as_json)
    progress, models = SILENT, None
    if source.is_dir():
        progress = StagePrinter()
        models = open_models(list_artifacts(source), chip, asked, ranks)
    machine, made = Machine.of(chip), plan_models(source, chip, asked, progress, models, ranks)
    paths = find_paths(source)
    verified = {
        title: add_titles(check(verify(plan), machine), paths) for title, plan in made.items()
    }
    if picture is not None:
        here = target == "native" and not triple and not cpu and features is None
        alone = models if ranks is None else None  # the figures are for one process
        _draw(picture, source, verified, asked, here, progress, alone)
        return 0
    if other is not None:
        others = find_paths(other)
        rest = plan_models(other, chip, asked, progress, ranks=ranks)
        theirs = {title: add_titles(plan, others) for title, plan in rest.items()}
        return _compare(verified, theirs, source, other, as_json)
    if as_json:
        table = plan_text.make_table
        options.print_json(
            {t: {"summary": p.summary()} if only_verify else table(p) for t, p in verified.items()}
        )
        return 0
    for plan in verified.values():
        options.echo(f"{plan.summary()}\n" if only_verify or kept else str(plan), nl=False)
        if kept:
            options.echo(plan_text.format_kept(plan), nl=False)
        if words:
            options.echo(plan_text.format_words(plan), nl=False)
        if arena:
            options.echo(plan_text.draw_arena(plan), nl=False)
    return 0


def _draw(
    picture: Path,
    source: Path,
    found: dict[str, Plan],
    asked: PlanRequest,
    here: bool,
    progress: StagePrinter,
    models: Opened | None,
) -> None:
    """Write the page of plans.

    here: whether they are for this machine, whose figures the page has.
    models: those that the plans of steps are of; the page has them from the same ladder.
    """
    told = None
    if here and source.is_dir():
        batch = next(iter(asked.batches), None)
        of = checks.CheckRequest(batch, asked.shapes, asked.threads, planning=asked.planning)
        told = checks.check_path(source, of, checks.TrainingChoices(), progress, models)
    write_picture(picture, f"Plans of {source}", found, told)
    options.echo(f"{picture}: {picture.stat().st_size:,} bytes")


def _write(
    source: Path, out: Path, chip: Target, asked: PlanRequest, ops: Path | None, as_json: bool
) -> int:
    """Write the plans of artifacts for a library, and say how many bytes they are."""
    if not source.is_dir():
        raise click.UsageError("-o writes the plans of a folder of artifacts")
    config = None if ops is None else opset.read(ops)
    size = write_plans(source, out, chip, asked, config, StagePrinter())
    if as_json:
        options.print_json({"file": out, "bytes": size})
    else:
        options.echo(f"{out}: {size:,} bytes")
    return 0


def _compare(
    mine: dict[str, Plan], theirs: dict[str, Plan], source: Path, other: Path, as_json: bool
) -> int:
    """Print how plans differ, as a unified diff of their texts; return the exit status.

    A model has one plan per batch size, so plans of two models are compared in order.
    """
    if not source.is_dir() and not other.is_dir():
        theirs = dict(zip(mine, theirs.values(), strict=True))
    differences: dict[str, list[str]] = {}
    for title in dict.fromkeys((*mine, *theirs)):
        before, after = (
            str(plans[title]).splitlines() if title in plans else [] for plans in (mine, theirs)
        )
        names = (f"{source}: {title}", f"{other}: {title}")
        lines = list(difflib.unified_diff(before, after, *names, lineterm=""))
        if lines:
            differences[title] = lines
    if as_json:
        options.print_json({"equal": not differences, "differences": differences})
    else:
        for lines in differences.values():
            options.echo("\n".join(lines))
    return _DIFFERENT if differences else 0
