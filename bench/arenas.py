"""Arenas: the work memory of plans, stage by stage, beside what no order and no placement can beat.

python -m bench.arenas [WORKLOAD ...] [--threads 1 2] [--goldens FOLDER] [--budgets 70 50 0]

A row is a plan of a workload at its usual batch: of the training model, of a training step that
updates (joined), or of the eval model; with --goldens, of the golden traces in a folder, at batch
8.  With --budgets, also of training steps that update within budgets, which leave so many percent
of the work memory that they take without one; 0 is the least budget that is enough.  All figures
but the last are MB (10^6 bytes) of work values that live at once, where pairs that share bytes
count once:

    least    in any order: the largest minimum cut at a call (graphs/planner/cuts.py); where
             `ordered` equals it, no order is better
    graph    in the order of the graph
    ordered  in the order that was chosen (order.py)
    groups   in groups that run tile by tile (tile.py): the bound that no placement can beat
    arena    the size of region work, once all blocks are placed (place.py)
    over     arena / groups
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from engine.api import CheckpointState
from engine.errors import BudgetError, EngineError
from engine.graphs.planner import pipeline
from engine.graphs.planner.cuts import Cuts
from engine.graphs.planner.lives import Tally, lifetimes, liveness_bound, merge_inplace, work_bytes
from engine.graphs.planner.lower import Draft
from engine.graphs.planner.order import least_peak, order
from engine.kernels.target import host
from engine.runtime.plan import Plan
from engine.tools.workloads import WORKLOADS
from engine.training.memory import Memory
from engine.training.model import Model
from engine.training.planning import Update

CUTS = 400  # calls at which cuts are looked at
KINDS = ("training", "joined", "eval")


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes of work memory of a plan; each as a column of the table."""

    least: int
    graph: int
    ordered: int
    groups: int
    arena: int

    @property
    def over(self) -> float:
        """The arena over what no placement can beat."""
        return self.arena / self.groups if self.groups else 1.0

    def __str__(self) -> str:
        columns = (self.least, self.graph, self.ordered, self.groups, self.arena)
        return " ".join(f"{n / 1e6:10.3f}" for n in columns) + f" {self.over:8.4f}"


def row(make: Callable[[], Plan]) -> Row:
    """The row of the plan that a call makes."""
    with _watched() as seen:
        plan = make()
    return Row(*seen[-1], groups=plan.lower_bound, arena=plan.region_bytes("work"))


@contextmanager
def _watched() -> Iterator[list[tuple[int, int, int]]]:
    """Inside, `least`, `graph` and `ordered` of every draft that is ordered are noted."""
    seen: list[tuple[int, int, int]] = []

    def noted(draft: Draft) -> Any:
        cuts, tally, first = Cuts(draft.calls, work_bytes(draft)), Tally(draft), _bound(draft)
        live = tally.live(range(len(draft.calls)))
        made = order(draft)
        least = least_peak(cuts, range(len(live)), live, CUTS)
        seen.append((least, first, _bound(draft)))
        return made

    with mock.patch.object(pipeline, "order", noted):
        yield seen


def _bound(draft: Draft) -> int:
    """The most bytes that live at one call of a draft as it is."""
    return liveness_bound(merge_inplace(draft, lifetimes(draft, draft.calls)))


def row_of(folder: Path, kind: str, threads: int, shapes: Sequence[tuple[int, ...]] | int) -> Row:
    """The row of a plan of artifacts, for shapes of its inputs, or for a batch size alone.

    kind: one of `KINDS`.
    """
    return row(lambda: _plan(folder, kind, threads, shapes, None))


def _plan(
    folder: Path,
    kind: str,
    threads: int,
    shapes: Sequence[tuple[int, ...]] | int,
    budget: int | None,
) -> Plan:
    """A plan of artifacts as of `row_of`, within a budget of bytes for all regions."""
    state, memory = CheckpointState.load_checkpoint(folder / "checkpoint"), Memory()
    memory.budget = budget

    def opened(name: str) -> Model:
        """One of the models."""
        return Model(folder / f"{name}_model.onnx", state, memory, threads, name, host())

    model, update = opened("eval" if kind == "eval" else "training"), None
    if kind == "joined":
        optimizer = opened("optimizer")
        update = Update(optimizer, optimizer.states())
    if isinstance(shapes, int):
        declared = (model.interface.inputs[name].shape for name in model.inputs)
        shapes = [tuple(d if isinstance(d, int) else shapes for d in s) for s in declared]
    return model.plan(dict(zip(model.inputs, shapes, strict=False)), update=update)


def budget_rows(
    folder: Path, threads: int, shapes: Sequence[tuple[int, ...]] | int, percents: Sequence[int]
) -> Iterator[str]:
    """Lines for training steps within budgets: the columns `groups`, `arena` and `over`.

    percents: of the work memory without a budget, what each budget leaves; 0 is the least one.
    """
    free = _plan(folder, "joined", threads, shapes, None)
    work = free.region_bytes("work")
    try:
        _plan(folder, "joined", threads, shapes, 1)
    except BudgetError as error:
        least = error.least
    for percent in percents:
        budget = free.nbytes - work + work * percent // 100 if percent else least
        if budget < least:
            yield f"  {percent} % is less than the least budget"
            continue
        plan = _plan(folder, "joined", threads, shapes, budget)
        arena, bound = plan.region_bytes("work"), plan.lower_bound
        yield f"{bound / 1e6:43.3f} {arena / 1e6:10.3f} {arena / bound:8.4f}"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--goldens", type=Path)
    parser.add_argument("--budgets", type=int, nargs="+", default=[], metavar="PERCENT")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    columns = ("least", "graph", "ordered", "groups", "arena")
    print(f"{'':34}" + " ".join(f"{name:>10}" for name in columns) + f" {'over':>8}")

    def show(name: str, folder: Path, shapes: Sequence[tuple[int, ...]] | int) -> None:
        """Print the rows of a folder of artifacts."""
        for kind in KINDS:
            for threads in given.threads:
                try:
                    made = str(row_of(folder, kind, threads, shapes))
                except EngineError as error:
                    made = f"  {error}"
                print(f"{name:22} {kind:9} {threads} {made}", flush=True)
        for threads in given.threads if given.budgets else ():
            lines = budget_rows(folder, threads, shapes, given.budgets)
            for percent, line in zip(given.budgets, lines, strict=True):
                title = f"{percent} %" if percent else "least"
                print(f"{name:22} {title:9} {threads} {line}", flush=True)

    for name in given.names or ([] if given.goldens else WORKLOADS):
        with tempfile.TemporaryDirectory() as folder:
            workload = WORKLOADS[name]
            workload.write(Path(folder))
            show(name, Path(folder), [array.shape for array in workload.batch()])
    for folder in sorted(given.goldens.iterdir()) if given.goldens else ():
        if (folder / "training_model.onnx").exists():
            show(folder.name, folder, 8)


if __name__ == "__main__":
    main()
