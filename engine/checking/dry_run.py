"""The dry run: plans of a training step and of what would take less, without a step being run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from engine.base.errors import BudgetError, EngineError, InternalError
from engine.checking import process
from engine.checking.report import (
    NO_GRADIENT,
    NO_KERNEL,
    Check,
    Fault,
    Figures,
    Input,
    Suggestion,
    by_bytes,
)
from engine.checking.subject import (
    Opened,
    Shapes,
    Source,
    Subject,
    layers,
    training_only,
    with_optimizer,
)
from engine.plan.plan import Plan, in_bytes
from engine.runtime.roofline import Roofline

SHOWN = 4  # suggestions of an error
VARIANTS = 6  # of a training that are planned, at most, beside those of budgets
SHARES = (0.75, 0.5)  # of its work memory: what a step may have by the budgets that are suggested


def check(
    subject: Subject,
    shapes: Shapes,
    *,
    source: str,
    budget: int | None = None,
    machine: Roofline | None = None,
    variants: bool = True,
    opened: Opened | None = None,
    say: Callable[[str], object] = str,
) -> Check:
    """Find out what a training takes.  No step is run, and nothing but the cache is written.

    subject: the models.  shapes: of the inputs of a step.
    source: what the report calls it.
    budget: bytes that all regions may have; None for any.
    machine: for which the time is told; None measures this one, which takes two seconds.
    variants: whether to plan what would take less as well, too.
    opened: the models of the subject, where they are open; their plans are not made again.
    say: is told what is done now.

    Raises:
        EngineError: a model cannot be read, does not fit the others, or the shapes do not fit it.
    """
    opened = opened or subject.open()
    kernels = opened.train.memory.kernels
    found = Check(
        source=source,
        threads=subject.threads,
        kernels=kernels.name,
        inputs=tuple(_inputs(opened, shapes)),
        trained=subject.values(trained=True),
        frozen=subject.values(trained=False),
        budget=budget,
    )
    try:
        plans = opened.plans(shapes)
    except InternalError:
        raise
    except EngineError as error:
        faults = tuple(faults_of(subject.training))
        if not faults:
            raise
        return replace(found, faults=faults, why=str(error))
    if machine is None:
        from engine.runtime.roofline import measure

        machine = measure(subject.threads, kernels.resolve)
    read = sum(map(_size, (subject.training, subject.evaluation, subject.optimizer)))
    told = _Teller(machine, _files(subject, opened), read)
    kept = _within(opened, shapes, budget, plans) if budget is not None else _Kept(plans)
    figures = told.figures(opened, shapes, kept.plans)
    made = told.parts(opened, shapes, kept.plans, planning=True)
    suggestions: list[Suggestion] = []
    if variants:
        say("planning within less memory")
        suggestions += _budgets(opened, shapes, told, plans)
        suggestions += _suggestions(subject, opened, shapes, told, say)
    return replace(
        found,
        why=kept.why,
        figures=figures,
        first=None if made is None else sum(made.values()),
        least=kept.least,
        suggestions=by_bytes(s for s in suggestions if s.figures.nbytes < figures.nbytes),
        machine=(machine.flops, machine.memory),
        unsure=machine.unsure,
    )


@dataclass(frozen=True)
class _Kept:
    """Plans that keep to a budget, or the smallest there are, and then why, and their bytes."""

    plans: Sequence[Plan]
    why: str = ""
    least: int | None = None


def _within(opened: Opened, shapes: Shapes, budget: int, plans: Sequence[Plan]) -> _Kept:
    """The plans within a budget; the smallest ones where none are.

    plans: those without a budget.
    """
    if sum(process.regions(plans, opened.train.memory.mapped).values()) <= budget:
        return _Kept(plans)
    try:
        return _Kept(opened.plans(shapes, budget))
    except BudgetError as error:
        return _Kept(opened.plans(shapes, error.least), str(error), error.least)


def advice(subject: Subject, shapes: Shapes, budget: int) -> str:
    """What would help where no plan keeps to a budget, each with its bytes; empty if nothing would.

    What keeps to the budget comes first; what does not is told only where nothing else is.
    """
    from engine.kernels.analysis.cost import nominal

    opened = subject.open()
    told = _Teller(nominal(subject.threads), 0, 0, whole=False)
    found = by_bytes(_suggestions(subject, opened, shapes, told))
    fits = [s for s in found if s.figures.nbytes <= budget]
    shown = [f"{s.change} ({in_bytes(s.figures.nbytes)})" for s in fits[::-1] or found[:SHOWN]]
    if not shown:
        return ""
    return f"{'what would fit' if fits else 'what takes less'}: {', '.join(shown[:SHOWN])}"


def faults_of(model: Source) -> Iterator[Fault]:
    """All nodes of a model that cannot be run, or through which no gradient flows.

    Nodes of which nothing is known because of these are left out.
    """
    from engine.graphs.offline import support

    lacks = {support.FORWARD: NO_GRADIENT, support.UNSUPPORTED: NO_KERNEL}
    for row in support.supported(
        bytes(model) if isinstance(model, bytearray | memoryview) else model
    ):
        if row.status in lacks and not row.follows:
            op = f"{row.domain}::{row.op}" if row.domain else row.op
            yield Fault(row.node, op, lacks[row.status], row.reason, row.module)


def _inputs(opened: Opened, shapes: Shapes) -> Iterator[Input]:
    for name in opened.train.inputs:
        declared = opened.train.interface.inputs[name]
        yield Input(name, declared.dtype, declared.shape, shapes.get(name))


def _files(subject: Subject, opened: Opened) -> int:
    """The bytes that a process holds of the files of models; large constants are in a region."""
    constants = opened.train.interface.large
    large = sum(each.nbytes for each in constants if each.at is not None and not each.file)
    return _size(subject.training) + _size(subject.optimizer) - large


def _size(source: Source | None) -> int:
    """The bytes of a model's file."""
    if source is None:
        return 0
    return os.path.getsize(source) if isinstance(source, str | os.PathLike) else len(source)


@dataclass(frozen=True)
class _Teller:
    """Tells what plans take.

    machine: that runs them.
    files: bytes of the models that a process holds.  read: those that it reads before that.
    whole: whether the memory of the process is told, too.
    """

    machine: Roofline
    files: int
    read: int
    whole: bool = True

    def figures(self, opened: Opened, shapes: Shapes, plans: Sequence[Plan]) -> Figures:
        from engine.kernels.analysis.cost import step_seconds

        seconds = sum(sum(step_seconds(plan, self.machine)) for plan in plans)
        held = process.regions(plans, opened.train.memory.mapped)
        return Figures(held, self.parts(opened, shapes, plans), seconds)

    def parts(
        self, opened: Opened, shapes: Shapes, plans: Sequence[Plan], *, planning: bool = False
    ) -> Mapping[str, int] | None:
        if not self.whole:
            return None
        dtypes = {name: t.dtype for name, t in opened.train.interface.inputs.items()}
        batch = process.batch_bytes(dtypes, shapes)
        mapped = opened.train.memory.mapped
        return process.parts(plans, batch, self.files, self.read, planning=planning, mapped=mapped)


# --- what would take less


def _budgets(
    opened: Opened, shapes: Shapes, told: _Teller, plans: Sequence[Plan]
) -> Iterator[Suggestion]:
    """The same step within shares of its memory, and within the least that is enough.

    plans: those without a budget.
    """
    work = max(plan.region_bytes("work") for plan in plans)
    total = sum(process.regions(plans, opened.train.memory.mapped).values())
    budgets = [int(total - (1 - share) * work) for share in SHARES]
    try:
        opened.plans(shapes, 1)
    except BudgetError as error:
        budgets = [*(b for b in budgets if b > error.least), error.least]
    for budget in budgets:
        mine = opened.plans(shapes, budget)
        yield Suggestion(f"a budget of {in_bytes(budget)}", told.figures(opened, shapes, mine))


def _suggestions(
    subject: Subject,
    opened: Opened,
    shapes: Shapes,
    told: _Teller,
    say: Callable[[str], object] = str,
) -> Iterator[Suggestion]:
    """Variants of a training, at most `VARIANTS`, each with the figures of its own plans.

    A variant that cannot be planned is none.
    """
    for change, make in islice(_variants(subject, opened, shapes), VARIANTS):
        say(f"planning {change}")
        try:
            other, other_shapes = make()
            mine = opened if other is subject else other.open()
            plans = mine.plans(other_shapes)
        except InternalError:
            raise
        except EngineError:
            continue
        yield Suggestion(change, told.figures(mine, other_shapes, plans))


Variant = tuple[str, Callable[[], tuple[Subject, Shapes]]]


def _variants(subject: Subject, opened: Opened, shapes: Shapes) -> Iterator[Variant]:
    batch = opened.batch_of(shapes)
    for smaller in dict.fromkeys((batch // 2, 1)) if batch is not None else ():
        if 1 <= smaller < (batch or 0):
            new = opened.shapes_of(shapes, smaller)
            yield f"a batch of {smaller} in place of {batch}", partial(_same, subject, new)
    found = layers(subject)
    if len(found) > 1:
        rest = found[len(found) // 2 :]
        if len(rest) > 1:
            half = [name for layer in rest for name in layer]
            title = f"train the last {len(rest)} of {len(found)} layers"
            yield title, partial(_trained, subject, half, shapes)
        yield "train the last layer alone", partial(_trained, subject, found[-1], shapes)
    small = [name for name in subject.trained if len(subject.parameters[name][1]) < 2]
    if small and len(small) < len(subject.trained):
        yield "train biases and norms alone", partial(_trained, subject, small, shapes)
    if opened.update is not None and opened.update.states().nbytes:
        yield "SGD as the optimizer", partial(_plain, subject, shapes)


def _same(subject: Subject, shapes: Shapes) -> tuple[Subject, Shapes]:
    return subject, shapes


def _trained(subject: Subject, names: Sequence[str], shapes: Shapes) -> tuple[Subject, Shapes]:
    return training_only(subject, names), shapes


def _plain(subject: Subject, shapes: Shapes) -> tuple[Subject, Shapes]:
    from engine.graphs.offline.optim_types import SGD

    return with_optimizer(subject, SGD().build), shapes
