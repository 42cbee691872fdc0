"""Arenas: the work memory of plans, stage by stage, next to the bound for all orders and
placements.

A row is a plan of a workload at its usual batch: of the training model, of a training step that
updates (joined), or of the eval model; golden traces, whose names begin with `golden/`, have batch
8.  With --budgets, also of training steps that update within budgets, which leave so many percent
of the work memory that they take without one; 0 is the least budget that is enough.  All figures
but the last are MB (10^6 bytes) of work values that live at once, where pairs that share bytes
count once:

    least    in any order: the largest minimum cut at a call (graphs/planner/order_bounds.py); where
             `ordered` equals it, no order is better
    graph    in the order of the graph
    ordered  in the order that was chosen (order.py)
    groups   in groups that run tile by tile (tile.py): the bound that no placement can beat
    arena    the size of region work, once all blocks are placed (place.py)
    over     arena / groups
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from bench.programs import written
from bench.rows import THREADS, WRONG, Bench, Cells, Option
from engine.api import CheckpointState
from engine.base.plan_options import PlanOptions
from engine.errors import BudgetError, EngineError
from engine.graphs.planner import planner
from engine.graphs.planner.draft import Draft
from engine.graphs.planner.lifetimes import (
    Tally,
    compute_liveness_bound,
    count_work_bytes,
    find_lifetimes,
    merge_inplace,
)
from engine.graphs.planner.order import find_least_peak, order
from engine.graphs.planner.order_bounds import Cuts
from engine.kernels.machine.target import detect_host
from engine.plan.plan import Plan
from engine.tools.benchmark.workloads import WORKLOADS
from engine.tools.dev import zoo
from engine.training.memory import Memory
from engine.training.model import Model
from engine.training.planning import GradientUse

CUTS = 400  # calls at which cuts are looked at
KINDS = ("training", "joined", "eval")


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes of work memory of a plan, each as a column of the table."""

    least: int
    graph: int
    ordered: int
    groups: int
    arena: int

    @property
    def over(self) -> float:
        """The arena over what no placement can beat."""
        return self.arena / self.groups if self.groups else 1.0

    @property
    def cells(self) -> Cells:
        """The cells of the row, in MB."""
        sizes = (self.least, self.graph, self.ordered, self.groups, self.arena)
        return [*(n / 1e6 for n in sizes), self.over]


def make_row(make: Callable[[], Plan]) -> Row:
    """Return the row of the plan that a call makes."""
    with _watched() as seen:
        plan = make()
    return Row(*seen[-1], groups=plan.lower_bound, arena=plan.compute_region_bytes("work"))


@contextmanager
def _watched() -> Iterator[list[tuple[int, int, int]]]:
    """Yield a list that receives `least`, `graph` and `ordered` of every draft that is ordered."""
    seen: list[tuple[int, int, int]] = []

    def note_draft(draft: Draft) -> Any:
        cuts, tally, first = (
            Cuts(draft.calls, count_work_bytes(draft)),
            Tally(draft),
            _find_bound(draft),
        )
        live = tally.count_live(range(len(draft.calls)))
        made = order(draft)
        least = find_least_peak(cuts, range(len(live)), live, CUTS)
        seen.append((least, first, _find_bound(draft)))
        return made

    with mock.patch.object(planner, "order", note_draft):
        yield seen


def _find_bound(draft: Draft) -> int:
    """Return the most bytes that live at one call of a draft as it is."""
    return compute_liveness_bound(merge_inplace(draft, find_lifetimes(draft, draft.calls)))


def make_plan_row(
    folder: Path, kind: str, threads: int, shapes: Sequence[tuple[int, ...]] | int
) -> Row:
    """Return the row of a plan of artifacts, for shapes of its inputs, or for a batch size alone.

    kind: one of `KINDS`.
    """
    return make_row(lambda: plan_of(folder, kind, threads, shapes, None))


def plan_of(
    folder: Path,
    kind: str,
    threads: int,
    shapes: Sequence[tuple[int, ...]] | int,
    budget: int | None,
) -> Plan:
    """Return a plan of artifacts as for `make_plan_row`, within a budget of bytes for all."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    memory = Memory(planning=PlanOptions(budget=budget))

    def open_model(name: str) -> Model:
        """Return one of the models."""
        return Model(folder / f"{name}_model.onnx", state, memory, threads, name, detect_host())

    model, update = open_model("eval" if kind == "eval" else "training"), None
    if kind == "joined":
        optimizer = open_model("optimizer")
        update = GradientUse(optimizer, optimizer.lay_out_states())
    if isinstance(shapes, int):
        declared = (model.interface.inputs[name].shape for name in model.inputs)
        shapes = [tuple(d if isinstance(d, int) else shapes for d in s) for s in declared]
    return model.plan(dict(zip(model.inputs, shapes, strict=False)), update=update)


def list_budget_rows(
    folder: Path, threads: int, shapes: Sequence[tuple[int, ...]] | int, percents: Sequence[int]
) -> Iterator[Cells]:
    """Yield rows of training steps within budgets: the columns `groups`, `arena` and `over`.

    percents: the budgets, in percent of the work memory without one; 0 is the smallest possible.
    """
    free = plan_of(folder, "joined", threads, shapes, None)
    work = free.compute_region_bytes("work")
    try:
        plan_of(folder, "joined", threads, shapes, 1)
    except BudgetError as error:
        least = error.least
    for percent in percents:
        budget = free.nbytes - work + work * percent // 100 if percent else least
        title = f"within {percent} %" if percent else "least"
        if budget < least:
            yield title, threads, *[None] * 6, "less than the least budget"
            continue
        plan = plan_of(folder, "joined", threads, shapes, budget)
        arena, bound = plan.compute_region_bytes("work"), plan.lower_bound
        yield title, threads, *[None] * 3, bound / 1e6, arena / 1e6, arena / bound, None


def list_subjects() -> Mapping[str, Path | str]:
    """Return the workloads, and the folders of golden traces."""
    return {name: name for name in WORKLOADS} | {f"golden/{f.name}": f for f in zoo.list_goldens()}


def measure(subject: Path | str, options: Namespace) -> Iterator[Cells]:
    """Yield the rows of a workload at its usual batch, or of a golden trace."""
    if isinstance(subject, Path):
        yield from list_rows(subject, 8, options)
        return
    shapes = [array.shape for array in WORKLOADS[subject].batch()]
    with written(subject) as folder:
        yield from list_rows(folder, shapes, options)


def list_rows(
    folder: Path, shapes: Sequence[tuple[int, ...]] | int, options: Namespace
) -> Iterator[Cells]:
    """Yield the rows of a folder of artifacts."""
    for kind in KINDS:
        for threads in options.threads:
            try:
                yield kind, threads, *make_plan_row(folder, kind, threads, shapes).cells, None
            except EngineError as error:
                yield kind, threads, *[None] * 6, f"{WRONG}: {error}"
    for threads in options.threads if options.budgets else ():
        yield from list_budget_rows(folder, threads, shapes, options.budgets)


BENCHES = (
    Bench(
        "arenas",
        "the work memory of plans beside what no order and no placement can beat, in MB",
        list_subjects,
        ("plan", "threads", "least:.3f", "graph:.3f", "ordered:.3f", "groups:.3f", "arena:.3f",
         "over:.4f", "remark"),
        measure,
        usual=tuple(WORKLOADS),
        options=(THREADS, Option("budgets", (), "percents of work memory; 0: the least", int)),
        small="mlp --threads 1",
    ),
)  # fmt: skip
