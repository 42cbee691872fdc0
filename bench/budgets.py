"""Cost of budgets: work memory and time of training steps as budgets shrink.

Of `list_budgets` a row is a budget of a workload: the bytes of region work that the budget leaves,
in percent of what the plan without one takes; the work bytes of the plan that was taken; by how
much the cost model says that a step, update included, is longer than without a budget, and by how
much it was: the medians of turns in which all plans run one after another.  The last row is the
smallest budget that is enough.

Of `budgets.planning` nothing runs: a row has the seconds of processor time, on one core, in which a
plan within 70 % or 50 % is made where only the plan without a budget is known, or the error that
names the smallest budget; these seconds for each 1,000 steps; and the plan's work bytes and
predicted time.

Of `budgets.growth` a row is a network of a family whose members differ in depth: its steps, the
seconds of the smallest budget, the ways that the search looked at, and the powers of the steps with
which the two have grown from the member before it.

Of `budgets.constants` a row is a value of a constant of the planner or of a pass and a network: its
work memory and predicted time without a budget, and with the least one, beside those with the value
that the constant has; by how much steps are longer within 29 budgets of 98 to 11 % of the work
memory, on average of those that are enough; the largest arena of three plans over what lives in it;
and the seconds of processor time of all this.
"""

from __future__ import annotations

import importlib
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from types import ModuleType
from unittest import mock

import numpy as np

from bench.arenas import plan_of
from bench.deep import MODELS
from bench.growth import find_exponent
from bench.measuring import MB, compare_medians, time_in_turns, time_process
from bench.rows import Bench, Cells, Option
from engine.api import CheckpointState, Module, Optimizer
from engine.base.plan_options import PlanOptions
from engine.errors import BudgetError
from engine.graphs.planner import planner
from engine.graphs.planner.budget import Ladder
from engine.graphs.planner.draft import Draft
from engine.graphs.planner.lifetimes import compute_liveness_bound, find_lifetimes, merge_inplace
from engine.graphs.planner.place import place
from engine.kernels.analysis.cost import predict_steps
from engine.kernels.machine.target import Target
from engine.plan.plan import CHECK, COUNT, RATE, Plan
from engine.runtime.program import BoundProgram
from engine.training.planning import GradientUse

THREADS = 2
NAMES = ("mobilenet", "resnet18", "minilm", "vit")
DEEP = ("convnext", "encoder24", "resnet101", "efficientnet", "unet", "bilstm")
FAMILIES = {
    "transformers": ("minilm", "encoder12", "encoder24"),
    "resnets": ("resnet18", "resnet50", "resnet101"),
    "plain": ("mlp", "cnn"),
}
PLENTY = 1 << 50  # bytes: what no plan needs
PERCENT = (100, 70, 50, 35, 30)


# Of every constant of graphs/planner, and of graphs/passes, that was chosen by what plans take:
# values beside its own, and networks that show most of what these change.
CONSTANTS: Mapping[str, tuple[tuple[object, ...], tuple[str, ...]]] = {
    "budget.FALL": ((0.8649, 0.9644), ("vit", "mobilenet", "unet")),
    "budget.FRESH": ((41,), ("vit", "unet")),
    "budget.ORDERS": ((1,), ("resnet18", "unet")),
    "budget.SHARES": (((4,), (8,)), ("mobilenet", "unet")),
    "budget.CHEAP": ((10**9,), ("resnet18", "unet")),
    "budget.TRIES": ((1, 2), ("mobilenet",)),
    "search.TRIED": (((12, 192, 192),), ("vit", "resnet18")),
    "search.FEW": ((1,), ("vit", "unet")),
    "search.MUCH": ((1, 10**9), ("resnet18", "unet")),
    "neighbour_order.REACH": ((0,), ("resnet18", "gpt2", "minilm")),
    "timeline.SMALL": ((1 << 40,), ("unet", "resnet18")),
    "order.REACH": (((4, 64),), ("resnet18", "gpt2")),
    "order.EXACT": (((),), ("gpt2", "resnet18")),
    "order.WORK": ((10_000, 100_000), ("resnet18",)),
    "order.NEAR": ((1.0,), ("mobilenet", "convnext")),
    "window_order.STATES": ((10, 2000), ("resnet18", "gpt2")),
    "place.SHARE": ((250, 2000), ("resnet18",)),
    "place.ROUNDS": ((10, 100), ("resnet18", "unet")),
    "place.WORK": ((100_000,), ("resnet18", "vit")),
    "place.MANY": ((0,), ("resnet18", "vit")),
    "gradient_rows.TURNS": ((1, 64), ("minilm",)),
    "gradient_rows.WORTH": ((1, 1000), ("minilm",)),
    "tile.REACH": ((24,), ("mobilenet",)),
    "tile.SMALL": ((1 << 18, 1 << 24), ("mobilenet", "resnet18")),
    "tile.UNEVEN": ((1.0,), ("mobilenet",)),
    "tile.LEAST": ((1, 64), ("minilm", "convnext")),
    "tile.IDLE": ((1.15, 2.0), ("resnet18", "unet")),
    "split.SPLITS": ((0, 1), ("mobilenet eval",)),
    "split.WORTH": ((1, 25), ("mobilenet eval",)),
    "graphs.passes.recompute.LARGE": ((1 << 12, 1 << 20), ("mobilenet", "minilm")),
    "graphs.passes.recompute.MUCH": ((1, 4), ("mobilenet", "minilm")),
    "graphs.passes.recompute.DEAR": ((20, 10**9), ("mobilenet", "minilm")),
    "graphs.passes.recompute.NEAR": ((0, 32), ("mobilenet", "minilm")),
    "graphs.passes.recompute.CHAIN": ((1, 9), ("mobilenet", "minilm")),
    "graphs.passes.recompute.FEW": ((0,), ("mobilenet", "unet")),
    "graphs.passes.fuse.MAX_OPERANDS": ((4, 16), ("lstm", "vit")),
    "graphs.passes.fuse.MAX_COST": ((75, 10**9), ("gpt2", "lstm")),
    "graphs.passes.fuse.MAX_AGAIN": ((0, 10**9), ("mobilenet_v3", "gpt2")),
    "graphs.passes.simplify.SMALL": ((0, 1 << 20), ("minilm",)),
}
LIMITS = [0.98 * 0.93**n for n in range(29)]  # of the work memory without a budget


class Trained:
    """Training step of a workload as one plan, planned within budgets."""

    def __init__(self, name: str, folder: Path) -> None:
        MODELS[name].write(folder)
        self.folder = folder
        self.begin()
        self.least, self.seconds = time_process(self._find_least)

    def begin(self) -> None:
        """Open the files, and plan without a budget; nothing else is known of other plans."""
        self.state = CheckpointState.load_checkpoint(self.folder / "checkpoint")
        self.module = Module(self.folder / "training_model.onnx", self.state, threads=THREADS)
        self.model = self.module.session.training
        optimizer = Optimizer(self.folder / "optimizer_model.onnx", self.module)
        self.update = GradientUse(optimizer.model, optimizer.layout())
        batch = np.load(self.folder / "batch.npz")
        self.batch = dict(zip(self.model.inputs, (batch["x"], batch["y"]), strict=True))
        self.free = self.plan(PLENTY)

    def _find_least(self) -> int:
        """Return the bytes of the smallest plan."""
        try:
            self.plan(1)
        except BudgetError as error:
            return error.least
        raise AssertionError("a plan within a byte")

    def plan(self, budget: int) -> Plan:
        """Return the plan within a budget of bytes for all regions."""
        self.model.memory.planning = PlanOptions(budget=budget)
        shapes = {name: value.shape for name, value in self.batch.items()}
        return self.model.plan(shapes, update=self.update)

    def list_budgets(self) -> dict[str, int]:
        """Return the budgets that are enough, by the work bytes that they leave."""
        work = self.free.compute_region_bytes("work")
        others = self.free.nbytes - work
        budgets = {f"{percent} %": others + work * percent // 100 for percent in PERCENT}
        enough = {title: nbytes for title, nbytes in budgets.items() if nbytes >= self.least}
        return enough | {"smallest": self.least}

    def make_program(self, plan: Plan) -> BoundProgram:
        """Return a plan ready to run on the batch."""
        program = self.model.load(plan)
        given = {**self.batch, RATE: 1e-4, COUNT: 1, CHECK: False}
        for name, value in program.inputs.items():
            value[...] = given.get(name, 0)
        return program


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each budget of a workload."""
    with tempfile.TemporaryDirectory() as folder:
        one = Trained(name, Path(folder))
        plans = {title: one.plan(budget) for title, budget in one.list_budgets().items()}
        programs = {str(plan.regions): one.make_program(plan) for plan in plans.values()}
        runs = {key: partial(program.run, 0, 0) for key, program in programs.items()}
        took = time_in_turns(runs, options.turns)
        base = took[str(one.free.regions)]
        for title, plan in plans.items():
            times = took[str(plan.regions)]
            longer = 100 * (compare_medians(times, base) - 1)
            yield title, *_list_amounts(one, plan), longer, 1e3 * median(times)


def measure_planning(name: str, _: Namespace) -> Iterator[Cells]:
    """Yield a row for each of three budgets of a workload."""
    with tempfile.TemporaryDirectory() as folder:
        one = Trained(name, Path(folder))
        for title, budget in one.list_budgets().items():
            if title in ("70 %", "50 %"):
                one.begin()
                plan, seconds = time_process(partial(one.plan, budget))
            elif title == "smallest":
                plan, seconds = one.plan(budget), one.seconds
            else:
                continue
            steps = len(one.free.steps)
            yield steps, title, seconds, 1000 * seconds / steps, *_list_amounts(one, plan)


def measure_growth(names: Sequence[str], _: Namespace) -> Iterator[Cells]:
    """Yield a row for each member of a family."""
    rows = list[tuple[int, float, int]]()
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            one = Trained(name, Path(folder))
            rows.append((len(one.free.steps), one.seconds, one.plan(one.least).searched[0]))
        steps, seconds, ways = zip(*rows[-2:], strict=True)
        is_first = len(rows) == 1
        powers = [None if is_first else find_exponent(steps, values) for values in (seconds, ways)]
        yield name, *rows[-1], *powers


@dataclass(frozen=True, slots=True)
class Figures:
    """Amounts that a network takes with some value of a constant.

    peak, seconds: without a budget.  least: the lowest peak.
    longer: percent by which steps within budgets are longer, on average.
    over: the largest arena, over what lives in it.
    spent: seconds of processor time.
    """

    peak: int
    seconds: float
    least: int
    longer: float | None
    over: float
    spent: float


def measure_draft(draft: Draft, target: Target, threads: int) -> Figures:
    """Return the figures of a draft that is not in order yet."""
    begin = time.process_time()
    ladder = Ladder(draft, target, threads)
    usual, lowest = ladder.usual, ladder.lowest
    limits = [int(part * usual.peak) for part in LIMITS]
    within = [next(ladder.list_within(limit)) for limit in limits if limit >= lowest.peak]
    longer = [100 * (rung.seconds / usual.seconds - 1) for rung in within]
    placed = {usual, lowest, *within[len(within) // 2 :][:1]}
    over = max(_measure_excess(ladder.make_draft(rung)) for rung in placed)
    mean = sum(longer) / len(longer) if longer else None
    spent = time.process_time() - begin
    return Figures(usual.peak, usual.seconds, lowest.peak, mean, over, spent)


def _measure_excess(draft: Draft) -> float:
    """Return the arena of an ordered draft, over the most bytes that live at once."""
    blocks = merge_inplace(draft, find_lifetimes(draft, draft.calls))
    return place(blocks) / compute_liveness_bound(blocks)


def make_usual_draft(network: str) -> tuple[Draft, Target, int]:
    """Return the arguments of the ladder of a network; "eval" after its name: of its eval model."""
    given = list[tuple[Draft, Target, int]]()

    class Noted(Ladder):
        """A ladder whose arguments are noted."""

        def __init__(self, draft: Draft, target: Target, threads: int) -> None:
            given.append((draft, target, threads))
            super().__init__(draft, target, threads)

    name, _, kind = network.partition(" ")
    with mock.patch.object(planner, "Ladder", Noted), tempfile.TemporaryDirectory() as folder:
        MODELS[name].write(Path(folder))
        shapes = [array.shape for array in MODELS[name].batch()]
        plan_of(Path(folder), kind or "joined", THREADS, shapes, PLENTY)
    return given[-1]


@cache
def measure_usual_draft(network: str) -> Figures:
    """Return the figures of the draft of a network."""
    return measure_draft(*make_usual_draft(network))


def find_constant(name: str) -> tuple[ModuleType, str]:
    """Return the module of a constant and its name there; of graphs/planner names are shorter."""
    file, _, constant = name.rpartition(".")
    room = "engine" if "." in file else "engine.graphs.planner"
    return importlib.import_module(f"{room}.{file}"), constant


def measure_constant(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield the rows of a constant, of each network first the one with the value that it has."""
    module, constant = find_constant(name)
    values, networks = CONSTANTS[name]
    own = getattr(module, constant)
    for network in options.networks or networks:
        usual = measure_usual_draft(network)
        yield network, str(own), *_compare_figures(usual, usual)
        for value in values:
            with mock.patch.object(module, constant, value):
                figures = measure_draft(*make_usual_draft(network))
                yield network, str(value), *_compare_figures(figures, usual)


def _compare_figures(now: Figures, usual: Figures) -> Cells:
    """Return the cells of figures, in percent of the usual ones."""
    amounts = now.peak / usual.peak, now.seconds / usual.seconds, now.least / usual.peak
    return *(100 * each for each in amounts), now.longer, now.over, now.spent


def _list_amounts(one: Trained, plan: Plan) -> Cells:
    """Return work bytes in MB and in percent, and by how much the predicted time is longer."""
    work, told = one.free.compute_region_bytes("work"), sum(predict_steps(one.free))
    mine = plan.compute_region_bytes("work")
    return mine / MB, 100 * mine / work, 100 * (sum(predict_steps(plan)) / told - 1)


AMOUNTS = ("work MB:.1f", "%:.1f", "predicted %:+.1f")
BENCHES = (
    Bench(
        "budgets",
        "what budgets cost: work memory and time of training steps as budgets shrink",
        {name: name for name in MODELS},
        ("budget", *AMOUNTS, "measured %:+.1f", "ms:.1f"),
        measure,
        usual=NAMES,
        options=(Option("turns", 9, "steps of each plan"),),
        small="mlp --turns 1",
    ),
    Bench(
        "budgets.planning",
        "the time of planning within budgets, and what the plans take; nothing runs",
        {name: name for name in MODELS},
        ("steps", "budget", "s of CPU:.1f", "a 1,000 steps:.1f", *AMOUNTS),
        measure_planning,
        usual=DEEP,
        small="mlp",
    ),
    Bench(
        "budgets.growth",
        "how planning within budgets grows with the depth of networks; nothing runs",
        FAMILIES,
        ("network", "steps", "s of CPU:.1f", "ways:,", "power of s:.2f", "of ways:.2f"),
        measure_growth,
        usual=("transformers", "resnets"),
        small="plain",
    ),
    Bench(
        "budgets.constants",
        "what plans take with other values of the planner's constants; nothing runs",
        {name: name for name in CONSTANTS},
        (
            "network",
            "value",
            "work %:.1f",
            "seconds %:.2f",
            "least %:.1f",
            "mean +%:.2f",
            "arena / live:.3f",
            "s of CPU:.1f",
        ),
        measure_constant,
        options=(Option("networks", (), "names of networks to plan"),),
        small="budget.TRIES --networks mlp",
    ),
)
