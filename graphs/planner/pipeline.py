"""The pipeline: all passes in order, then lowering, order and placement; the result is a plan."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from engine.base import limits
from engine.base.errors import (
    BudgetError,
    EngineError,
    InternalError,
    ShapeError,
    UnknownValueError,
    UnsupportedOpError,
    defects,
)
from engine.graphs.ir.graph import Graph, constant_bytes
from engine.graphs.ir.sites import Answers
from engine.graphs.ir.symbols import Inferred
from engine.graphs.passes import (
    attention,
    batchnorm,
    control,
    foreign,
    fuse,
    half,
    layout,
    movement,
    patterns,
    pools,
    quantised,
)
from engine.graphs.passes.attention import fuse_attention
from engine.graphs.passes.batchnorm import absorb_norms
from engine.graphs.passes.check import Watch
from engine.graphs.passes.control import unroll
from engine.graphs.passes.expand import expand, expand_first
from engine.graphs.passes.foreign import (
    gru_grads_know_inner_products,
    lstm_grads_know_peepholes,
    pool_grads_know_input,
)
from engine.graphs.passes.fuse import fuse_epilogues, fuse_maps
from engine.graphs.passes.half import singles_for_halves
from engine.graphs.passes.infer import Made, bind, infer, sized, sizes_of
from engine.graphs.passes.layout import choose_layouts
from engine.graphs.passes.may_add import Keys, MayAdd, from_first_ops, from_ops, kinds, nothing
from engine.graphs.passes.movement import cancel_movement
from engine.graphs.passes.narrow import MAY_ADD as NARROW_MAY_ADD
from engine.graphs.passes.narrow import join_again, narrow, slice_late
from engine.graphs.passes.patterns import fuse_patterns
from engine.graphs.passes.pools import keep_taps, relu_grads_read_pools
from engine.graphs.passes.quantised import read_quantised
from engine.graphs.passes.recompute import recompute
from engine.graphs.passes.simplify import (
    drop_identities,
    prune,
    relu_grad_reads_output,
    share_equal,
)
from engine.graphs.planner.assemble import assemble
from engine.graphs.planner.budget import Ladder, too_little
from engine.graphs.planner.draft import Draft, Place, drop_dead_calls
from engine.graphs.planner.interpret_formulas import interpret_formulas
from engine.graphs.planner.lower import Recipe
from engine.graphs.planner.order import order
from engine.graphs.planner.rows import make_rows
from engine.graphs.planner.split import group
from engine.graphs.planner.updates import settle_updates
from engine.kernels.binaries.source import KernelSet
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.op import Array, TensorType, op_title
from engine.kernels.vocabulary.sizes import Noted, Sizes
from engine.plan.plan import Plan, align
from engine.system.config import switch

Shape = tuple[bool, tuple[tuple[str, tuple[int, ...]], ...]]  # closed or not; of all inputs

LADDERS = 2  # that a planner keeps
KEPT = 2  # recipes of a planner: one serves all shapes for which the passes do the same


@dataclass(slots=True)
class Work:
    """A graph on its way to a plan, with the types and constants of its values once known.

    closed: as `Planner` says.
    answers: what shape rules have answered about its nodes so far.
    """

    graph: Graph
    closed: bool = False
    types: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    answers: Answers[Made] = field(default_factory=Answers)


def _infer(work: Work) -> None:
    work.types, work.constants, _ = infer(work.graph, settled=True, answers=work.answers)


def _fuse_patterns(work: Work) -> None:
    if fuse_patterns(work.graph, Inferred(work.types, work.constants)):
        _infer(work)


def _read_quantised(work: Work) -> None:
    if read_quantised(work.graph, work.types):
        _infer(work)


def _expand(work: Work) -> None:
    prune(work.graph)
    inferred = Inferred(work.types, work.constants)
    work.types, work.constants, _ = expand(work.graph, inferred, answers=work.answers)


def _fuse_attention(work: Work) -> None:
    if fuse_attention(work.graph, Inferred(work.types, work.constants)):
        _infer(work)


def _fuse_maps(work: Work) -> None:
    """Fuse maps; numbers that sizes decide are operands, so that all shapes share the kernels."""
    written = {n: a for n, a in work.constants.items() if n not in work.graph.sized}
    fuse_maps(work.graph, work.types, written, closed=work.closed)


@dataclass(frozen=True, slots=True)
class Pass:
    """One step of the pipeline.

    name: what it is called in debug output and internal errors.
    run: changes the work.
    may_add: the ops that `run` may add, given those that the graph holds; see passes/may_add.py.
    needed: graphs without it may have what cannot be lowered, or mean something else; others only
        make plans faster or smaller.
    """

    name: str
    run: Callable[[Work], object]
    may_add: MayAdd = nothing
    needed: bool = False


PASSES = (
    Pass("prune", lambda w: prune(w.graph)),
    Pass("control flow", lambda w: unroll(w.graph), control.MAY_ADD, needed=True),
    Pass(
        "pool grads know input",
        lambda w: pool_grads_know_input(w.graph),
        foreign.POOLS_MAY_ADD,
        needed=True,
    ),
    Pass(
        "lstm grads know peepholes",
        lambda w: lstm_grads_know_peepholes(w.graph),
        foreign.LSTMS_MAY_ADD,
        needed=True,
    ),
    Pass(
        "gru grads know inner products",
        lambda w: gru_grads_know_inner_products(w.graph),
        needed=True,
    ),
    Pass("expand first", lambda w: expand_first(w.graph), from_first_ops, needed=True),
    Pass("singles for halves", lambda w: singles_for_halves(w.graph), half.MAY_ADD, needed=True),
    Pass("absorb norms", lambda w: absorb_norms(w.graph), batchnorm.MAY_ADD),
    Pass("infer", _infer, needed=True),
    Pass("fuse patterns", _fuse_patterns, patterns.MAY_ADD),
    Pass("read quantised", _read_quantised, quantised.MAY_ADD),
    Pass("expand", _expand, from_ops, needed=True),
    Pass(
        "cancel movement",
        lambda w: cancel_movement(w.graph, w.types, w.constants),
        movement.MAY_ADD,
    ),
    Pass("drop identities", lambda w: drop_identities(w.graph)),
    Pass("narrow", lambda w: narrow(w.graph, w.types, w.constants), NARROW_MAY_ADD),
    Pass("share equal", lambda w: share_equal(w.graph, w.types)),
    Pass("fuse attention", _fuse_attention, attention.MAY_ADD),
    Pass("relu grad reads output", lambda w: relu_grad_reads_output(w.graph)),
    Pass("relu grads read pools", lambda w: relu_grads_read_pools(w.graph, w.types)),
    Pass("keep taps", lambda w: keep_taps(w.graph, w.types), pools.MAY_ADD),
    Pass("fuse epilogues", lambda w: fuse_epilogues(w.graph), fuse.EPILOGUES_MAY_ADD),
    Pass("fuse maps", _fuse_maps, fuse.maps_may_add, needed=True),
    Pass("join again", lambda w: join_again(w.graph, w.types)),
    Pass("slice late", lambda w: slice_late(w.graph)),
    Pass(
        "choose layouts",
        lambda w: choose_layouts(w.graph, w.types),
        layout.layouts_may_add,
        needed=True,
    ),
    Pass("recompute", lambda w: recompute(w.graph, w.types)),
)
OPTIONAL = frozenset(step.name for step in PASSES if not step.needed)  # a planner can leave out


def reachable(held: Keys) -> Keys:
    """Return the given ops, and all that the passes may make of graphs that hold these."""
    for step in PASSES:
        held |= step.may_add(held)
    return held


@contextmanager
def collecting_later() -> Iterator[None]:
    """Inside, Python does not look for garbage in cycles.

    A planner makes many objects that live on and few cycles; the searches among them took a third
    of the time of planning 10,000 nodes.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def make_plan(
    graph: Graph,
    shapes: Mapping[str, Sequence[int]],
    *,
    target: Target,
    threads: int,
    places: Mapping[str, Place] | None = None,
    region_bytes: Mapping[str, int] | None = None,
    outputs: Sequence[str] | None = None,
    name: str = "",
    closed: bool = False,
    kernels: KernelSet | None = None,
    without: Collection[str] = (),
    budget: int | None = None,
) -> Plan:
    """Return the plan of a graph for concrete input shapes; all as for a `Planner`."""
    planner = Planner(
        graph,
        target=target,
        threads=threads,
        places=places,
        region_bytes=region_bytes,
        outputs=outputs,
        name=name,
        closed=closed,
        kernels=kernels,
        without=without,
        budget=budget,
    )
    return planner.plan(shapes)


class LackingKernelError(UnsupportedOpError):
    """A plan needs a kernel that is not among those it may use."""


class Planner:
    """Plans one graph, which must not change, for any shapes of its inputs.

    Work that does not depend on shapes is done once.  The passes and the lowering of each node run
    on sizes that note all questions asked of them (kernels/vocabulary/sizes.py).  Where another
    shape gives the same answers, what they made is taken again, with the numbers of this shape; so
    every plan is the one that would be made if it were the first.  For each shape only the calls
    are ordered and the values placed.

    passed: how often the passes were run.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        target: Target,
        threads: int,
        places: Mapping[str, Place] | None = None,
        region_bytes: Mapping[str, int] | None = None,
        outputs: Sequence[str] | None = None,
        name: str = "",
        closed: bool = False,
        kernels: KernelSet | None = None,
        without: Collection[str] = (),
        budget: int | None = None,
    ) -> None:
        """Nothing is planned yet.

        places: where graph inputs that live in persistent regions are.
        region_bytes: the sizes of the persistent regions.
        outputs: the names of the outputs to keep, by default the graph's outputs.
        name: of the plans, by default the graph's name.
        closed: use only kernels that a library for the ops of the graph has, whatever formulas the
            graph has.
        kernels: the set of kernels that plans are for, whose target is `target`.  Formulas that a
            set which cannot compile has no kernels for are interpreted.  If None, plans are for
            kernels that are compiled for the target.
        without: names in `OPTIONAL` of passes to leave out, to compare with what they make.
        budget: the bytes that all regions of a plan may have; None for the fastest plans.
        """
        self.graph, self.target, self.threads = graph, target, threads
        self.places, self.region_bytes = dict(places or {}), dict(region_bytes or {})
        self.outputs, self.name, self.kernels = outputs, name or graph.name, kernels
        self.closed, self.without, self.budget = closed, frozenset(without), budget
        self.passed = 0
        self._own: int | None = None  # bytes of the constants of the graph, once known
        self._recipes: list[tuple[bool, Noted, Recipe]] = []  # closed or not; used last first
        self._ladders: dict[Shape, Ladder] = {}  # used last last

    @collecting_later()
    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        """Return the plan for these input shapes.

        shapes: of the graph inputs that have symbolic dimensions, and of others as you like.

        If two inputs give one symbolic dimension different sizes, a plan is made nevertheless as
        long as the nodes fit, because onnxruntime-training accepts such inputs.

        Raises:
            UnsupportedOpError, ShapeError, DTypeError: naming the node.
            BudgetError: no plan keeps to the budget.
            LimitError: of the bytes of constants or of the plan.
        """
        try:
            return self._plan(shapes, self.closed)
        except LackingKernelError:
            if self.closed:
                raise
            return self._plan(shapes, True)

    def _plan(self, shapes: Mapping[str, Sequence[int]], closed: bool) -> Plan:
        """Compute what `plan` returns.

        Raises:
            LackingKernelError: it needs a kernel that it may not use, naming the node.
        """
        try:
            given = sizes_of(self.graph, shapes)
        except ShapeError as conflict:
            try:
                _, recipe = self._run(bind(self.graph, shapes, is_loose=True), Sizes({}), closed)
                return self._finished(recipe, closed, shapes)
            except (InternalError, UnknownValueError, LackingKernelError, BudgetError):
                raise
            except EngineError:
                raise conflict from None
        return self._finished(self._recipe(given, closed), closed, shapes)

    def _recipe(self, given: Mapping[str, int], closed: bool) -> Recipe:
        """Return the recipe for these sizes of symbolic dimensions, a known one or a new one."""
        for at, (is_closed, answers, recipe) in enumerate(self._recipes):
            if is_closed == closed and recipe.sizes.take(given) and recipe.sizes.holds(answers):
                self._recipes.insert(0, self._recipes.pop(at))
                return recipe
        sizes = Sizes(given)
        answers, recipe = self._run(sized(self.graph, sizes.given), sizes, closed)
        self._recipes = [(closed, answers, recipe), *self._recipes[: KEPT - 1]]
        return recipe

    def _run(self, graph: Graph, sizes: Sizes, closed: bool) -> tuple[Noted, Recipe]:
        """Run all passes on a graph whose dimensions are known; return what they asked of sizes.

        The graph is changed and of no use after.
        """
        self.passed += 1
        work = Work(graph, closed)
        if self.outputs is not None:
            work.graph.outputs = list(self.outputs)
        held, watch = kinds(graph), Watch(work.answers)
        with sizes.noting() as answers:
            for step in PASSES:
                if step.name in self.without:
                    continue
                with defects(f"the pass {step.name!r}", graph.name):
                    step.run(work)
                    held = _checked(step, held, kinds(work.graph))
                    watch.check(work.graph, work.types, work.constants)
                if switch("DEBUG") == "2":
                    print(f"--- after {step.name}\n{work.graph}", file=sys.stderr)
            recipe = Recipe(
                work.graph,
                work.types,
                work.constants,
                self.places,
                self.target,
                self.threads,
                sizes,
            )
        return answers, recipe

    def _finished(self, recipe: Recipe, closed: bool, shapes: Mapping[str, Sequence[int]]) -> Plan:
        """Return the plan for the sizes of the shapes, which the recipe has taken."""
        draft = recipe.draft()
        drop_dead_calls(draft)
        self._check_bytes(draft)
        if not closed:
            make_rows(draft, self.target, self.threads)
        if closed or self.kernels is not None:
            interpret_formulas(draft, self.threads, () if self.kernels is None else self.kernels)
        if self.kernels is not None:
            _check_kernels(draft, self.kernels)
        if self.budget is None:
            settle_updates(draft)
            order(draft)
            group(draft, self.target, self.threads)
            plan = self._assembled(draft)
        else:
            key = closed, tuple(sorted((name, tuple(shape)) for name, shape in shapes.items()))
            plan = self._within(draft, self.budget, key)
        if switch("DEBUG") in ("1", "2"):
            print(plan.summary(), file=sys.stderr)
        return plan

    def _check_bytes(self, draft: Draft) -> None:
        """Refuse added constants above the limit, and values that no plan may have, at once.

        Raises:
            LimitError: there are too many bytes of constants, or a value has too many.
        """
        if self._own is None:
            self._own = constant_bytes(self.graph)
        kept = sum(v.nbytes for v in draft.values.values() if v.region == "const")
        where = f"plan {self.name}"
        beyond = "beyond the model's own constants it has"
        limits.check("CONSTANT_BYTES", kept - self._own, where, beyond)
        most = limits.limit("PLAN_BYTES")
        for value in draft.values.values():
            if value.nbytes > most:
                what = f"{value.name!r}, {value.type}, takes"
                limits.check("PLAN_BYTES", value.nbytes, where, what)

    def _assembled(self, draft: Draft, searched: tuple[int, int] = (0, 0)) -> Plan:
        """Return the plan of a draft whose calls are in order and in groups."""
        kernel_set = self.target.name if self.kernels is None else self.kernels.name
        return assemble(draft, kernel_set, self.threads, self.region_bytes, self.name, searched)

    def _within(self, draft: Draft, budget: int, key: Shape) -> Plan:
        """Return the plan of the first rung that keeps to the budget.

        key: what the ladder is known by.

        Raises:
            BudgetError: none does.
        """
        ladder = self._ladders.pop(key, None) or Ladder(draft, self.target, self.threads)
        self._ladders[key] = ladder
        while len(self._ladders) > LADDERS:
            del self._ladders[next(iter(self._ladders))]
        fixed = sum(self.region_bytes.values()) + sum(
            align(v.nbytes)
            for v in draft.values.values()
            if v.region in ("io", "const") and v.root == v.name
        )
        if fixed + ladder.usual.peak <= budget:
            plan = self._assembled(ladder.draft(ladder.usual))
            if plan.nbytes <= budget:
                return plan
        rungs, searched = ladder.rungs, (ladder.effort.ways, ladder.effort.most)
        for rung in rungs[1:]:
            if fixed + rung.peak <= budget:
                plan = self._assembled(ladder.draft(rung), searched)
                if plan.nbytes <= budget:
                    return plan
        least = self._assembled(ladder.draft(rungs[-1]))
        for rung in rungs[-2::-1]:
            if fixed + rung.peak < least.nbytes:
                least = min(least, self._assembled(ladder.draft(rung)), key=lambda p: p.nbytes)
        raise too_little(least, budget)


def _check_kernels(draft: Draft, kernels: KernelSet) -> None:
    """Check that the calls of a draft are of these kernels.

    Raises:
        LackingKernelError: one is of another, naming the node.
    """
    for call in draft.calls:
        if call.spec not in kernels:
            raise LackingKernelError(
                f"{call.source}: the kernel {call.spec.symbol} is not shipped, and nothing can "
                "compile it here: install numba and llvmlite (pip install edgegrad)"
            )


def _checked(step: Pass, before: Keys, after: Keys) -> Keys:
    """Check that a pass has added no ops but those it declares; return the ops after it.

    before, after: the ops that the graph held before and holds after the pass.

    Raises:
        LookupError: it has added others, which is a defect of the pass.
    """
    if after <= before:
        return after
    undeclared = after - before - step.may_add(before)
    if undeclared:
        names = ", ".join(sorted(op_title(*key) for key in undeclared))
        raise LookupError(f"it adds {names}, which its declaration `may_add` leaves out")
    return after
