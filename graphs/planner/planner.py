"""The planner: runs the passes on a graph, lowers it, orders its calls and places its values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Concatenate, ParamSpec

from engine.base import limits
from engine.base.errors import (
    BudgetError,
    EngineError,
    InternalError,
    ShapeError,
    UnknownValueError,
    UnsupportedOpError,
)
from engine.base.plan_options import DEFAULTS, PlanOptions
from engine.graphs.ir.graph import Graph, count_constant_bytes
from engine.graphs.passes.infer import bind, find_sizes, resize
from engine.graphs.passes.losses import keep_scores
from engine.graphs.passes.pipeline import PassState, run_passes
from engine.graphs.passes.storage import choose_storage
from engine.graphs.planner.assemble import assemble
from engine.graphs.planner.budget import Ladder, Rung, explain_too_little
from engine.graphs.planner.constant_calls import take_once
from engine.graphs.planner.draft import Draft, Place, drop_dead_calls
from engine.graphs.planner.equal_calls import share_equal_calls
from engine.graphs.planner.gradient_rows import make_rows
from engine.graphs.planner.interpret_formulas import interpret_formulas
from engine.graphs.planner.lower import DraftSource
from engine.graphs.planner.order import order
from engine.graphs.planner.single_thread import list_with_alone
from engine.graphs.planner.split import group
from engine.graphs.planner.updates import settle_updates
from engine.kernels.analysis.cost import predict_steps
from engine.kernels.binaries.source import KernelSet
from engine.kernels.machine.target import Target, explain_storage
from engine.kernels.vocabulary.sizes import Noted, Sizes
from engine.plan.plan import LOSS_SCALE, Plan, align
from engine.system.config import switch
from engine.system.garbage import collecting_later

Options = ParamSpec("Options")
# Closed or not, the precision, and the shapes of all inputs.
Shape = tuple[bool, str, tuple[tuple[str, tuple[int, ...]], ...]]

GAIN = 1.1  # predicted seconds in float32 over seconds in 16 bits, from which "auto" takes 16
LADDERS = 2  # that a planner keeps
KEPT = 2  # recipes of a planner: one serves all shapes for which the passes do the same


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
        options: PlanOptions = DEFAULTS,
        answers: bool = False,
    ) -> None:
        """Start with nothing planned.

        places: where graph inputs that live in persistent regions are.
        region_bytes: the sizes of the persistent regions.
        outputs: the names of the outputs to keep, by default the graph's outputs.
        name: the name of the plans, by default the graph's name.
        closed: use only kernels that a library for the ops of the graph has, whatever formulas the
            graph has.
        kernels: the set of kernels that plans are for, whose target is `target`.  Formulas that a
            set which cannot compile has no kernels for are interpreted.  If None, plans are for
            kernels that are compiled for the target.
        without: names in `OPTIONAL` of passes to leave out, to compare with what they make.
        options: may be replaced between plans.
        answers: whether plans answer again and again, so that what follows from constants is made
            once and kept; not with a budget.
        """
        self.graph, self.target, self.threads = graph, target, threads
        self.places, self.region_bytes = dict(places or {}), dict(region_bytes or {})
        self.outputs, self.name, self.kernels = outputs, name or graph.name, kernels
        self.closed, self.without, self.options = closed, frozenset(without), options
        self.answers, self.passed = answers, 0
        self._own: int | None = None  # bytes of the constants of the graph, once known
        # By whether it is closed, its precision, and whether it keeps; used last first.
        self._recipes: dict[tuple[bool, str, bool], list[tuple[Noted, DraftSource]]] = {}
        self._ladders: dict[Shape, Ladder] = {}  # used last last

    @collecting_later()
    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        """Return the plan for these input shapes.

        shapes: the shapes of the inputs with symbolic dimensions, and optionally of others.

        If two inputs give one symbolic dimension different sizes, a plan is made nevertheless as
        long as the nodes fit, because onnxruntime-training accepts such inputs.

        Raises:
            UnsupportedOpError, ShapeError, DTypeError: naming the node.
            BudgetError: no plan keeps to the budget.
            LimitError: of the bytes of constants or of the plan.
        """
        if self.options.precision == "auto":
            plan = self._choose(shapes)
        else:
            plan = self._make(shapes, self.options.precision)
            if self.options.precision != "f32" and plan.count_halves():
                plan = replace(plan, precision=explain_storage(self.target, self.options.precision))
        if switch("DEBUG") in ("1", "2"):
            print(plan.summary(), file=sys.stderr)
        return plan

    def _choose(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        """Return the plan in the precision that is predicted to be the fastest, and why.

        16 bits must be predicted to gain by `GAIN`, as predictions are not exact.
        On a CPU without products of 16 bits, these only take less memory: the plan is in float32 if
        that keeps to the budget.  Gradients of float16 need a scaled loss: float16 is taken for
        graphs that scale it, and for answers.

        Raises:
            BudgetError: no plan in any of them keeps to the budget; it names the least of both.
            LackingKernelError: all need a kernel that they may not use.
        """
        priced, refused = list[tuple[float, str, Plan]](), list[EngineError]()
        may_be_f16 = self.answers or LOSS_SCALE in self.graph.inputs
        halves = [P for P in self.target.products if P != "f16" or may_be_f16]
        for precision in ("f32", *(halves or ("bf16",))):
            if priced and not halves:
                why = "f32, as the CPU has no products of 16 bits"
                if self.target.products:
                    why = "f32, as float16 is taken only where the loss is scaled"
                return replace(priced[0][2], precision=why)
            try:
                plan = self._make(shapes, precision)
            except (BudgetError, LackingKernelError) as error:
                refused.append(error)
            else:
                priced.append((sum(predict_steps(plan)), precision, plan))
        if not priced:
            tight = [error for error in refused if isinstance(error, BudgetError)]
            raise min(tight, key=lambda error: error.least) if tight else refused[0]
        seconds, chosen, plan = min(
            priced, key=lambda row: row[0] * (1 if row[1] == "f32" else GAIN)
        )
        others = [f"{each[0] * 1e3:.3g} ms in {each[1]}" for each in priced if each[2] is not plan]
        told = ", ".join([*others, *(["no other can be planned here"] if refused else [])])
        return replace(plan, precision=f"{chosen}, predicted {seconds * 1e3:.3g} ms; {told}")

    def _make(self, shapes: Mapping[str, Sequence[int]], precision: str) -> Plan:
        """Compute what `plan` returns, in a precision."""
        try:
            return self._plan(shapes, self.closed, precision)
        except LackingKernelError:
            if self.closed:
                raise
            return self._plan(shapes, True, precision)

    def _plan(self, shapes: Mapping[str, Sequence[int]], closed: bool, precision: str) -> Plan:
        """Compute what `_make` returns.

        Raises:
            LackingKernelError: it needs a kernel that it may not use, naming the node.
        """
        try:
            given = find_sizes(self.graph, shapes)
        except ShapeError as conflict:
            try:
                bound = bind(self.graph, shapes, is_loose=True)
                _, recipe = self._run(bound, Sizes({}), closed, precision)
                return self._finish(recipe, closed, shapes)
            except (InternalError, UnknownValueError, LackingKernelError, BudgetError):
                raise
            except EngineError:
                raise conflict from None
        return self._finish(self._get_recipe(given, closed, precision), closed, shapes)

    def _get_recipe(self, given: Mapping[str, int], closed: bool, precision: str) -> DraftSource:
        """Return the recipe for these sizes of symbolic dimensions, a known one or a new one."""
        recipes = self._recipes.setdefault((closed, precision, self._keeps()), [])
        for at, (answers, recipe) in enumerate(recipes):
            if recipe.sizes.take(given) and recipe.sizes.holds(answers):
                recipes.insert(0, recipes.pop(at))
                return recipe
        sizes = Sizes(given)
        answers, recipe = self._run(resize(self.graph, sizes.given), sizes, closed, precision)
        recipes[:] = [(answers, recipe), *recipes[: KEPT - 1]]
        return recipe

    def _keeps(self) -> bool:
        """Return whether plans keep what follows from constants and parameters alone."""
        return self.answers and self.options.budget is None

    def _run(
        self, graph: Graph, sizes: Sizes, closed: bool, precision: str
    ) -> tuple[Noted, DraftSource]:
        """Run all passes on a graph whose dimensions are known; return what they asked of sizes.

        The graph is changed and of no use after.
        """
        self.passed += 1
        frozen = frozenset(n for n, place in self.places.items() if place.region == "frozen")
        work = PassState(graph, closed, frozen=frozen)
        if self.outputs is not None:
            work.graph.outputs = list(self.outputs)
        with sizes.noting() as answers:
            run_passes(work, self.without)
            if precision != "f32":
                keep_scores(work.graph, work.types)
                choose_storage(work.graph, work.types, work.constants, precision)
            recipe = DraftSource(
                work.graph,
                work.types,
                work.constants,
                self.places,
                self.target,
                self.threads,
                sizes,
                precision,
                self._keeps(),
            )
        return answers, recipe

    def _finish(
        self, recipe: DraftSource, closed: bool, shapes: Mapping[str, Sequence[int]]
    ) -> Plan:
        """Return the plan for the sizes of the shapes, which the recipe has taken."""
        draft = recipe.make_draft()
        drop_dead_calls(draft)
        is_tight = self.options.budget is not None
        share_equal_calls(draft, keeps=self._keeps(), is_tight=is_tight)
        self._check_bytes(draft)
        if not closed:
            make_rows(draft, self.target, self.threads)
        if self.kernels is not None:
            _keep_kernels(draft, self.threads, self.kernels, recipe.precision)
            if self.options.precision != "auto":  # one of several plans will be taken
                self.kernels.compile_ahead(call.spec for call in draft.calls)
        elif closed:
            interpret_formulas(draft, self.threads)
        if self.options.budget is None:
            once = take_once(draft) if self._keeps() else []
            settle_updates(draft)
            order(draft)
            group(draft, self.target, self.threads)
            draft.calls = [*once, *draft.calls]
            return self._assemble(draft, once=len(once))
        key = (
            closed,
            recipe.precision,
            tuple(sorted((name, tuple(shape)) for name, shape in shapes.items())),
        )
        return self._plan_within(draft, self.options.budget, key)

    def _check_bytes(self, draft: Draft) -> None:
        """Refuse added constants above the limit, and values that no plan may have, at once.

        Raises:
            LimitError: there are too many bytes of constants, or a value has too many.
        """
        if self._own is None:
            self._own = count_constant_bytes(self.graph)
        kept = sum(v.nbytes for v in draft.values.values() if v.region == "const")
        where = f"plan {self.name}"
        beyond = "beyond the model's own constants it has"
        limits.check("CONSTANT_BYTES", kept - self._own, where, beyond)
        most = limits.limit("PLAN_BYTES")
        for value in draft.values.values():
            if value.nbytes > most:
                what = f"{value.name!r}, {value.type}, takes"
                limits.check("PLAN_BYTES", value.nbytes, where, what)

    def _assemble(self, draft: Draft, searched: tuple[int, int] = (0, 0), once: int = 0) -> Plan:
        """Return the plan of a draft whose calls are in order and in groups."""
        draft.calls = list_with_alone(draft, self.target, self.threads)
        kernel_set = self.target.name if self.kernels is None else self.kernels.name
        return assemble(
            draft, kernel_set, self.threads, self.region_bytes, self.name, searched, once
        )

    def _plan_within(self, draft: Draft, budget: int, key: Shape) -> Plan:
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
            plan = self._assemble(ladder.make_draft(ladder.usual))
            if plan.nbytes <= budget:
                return plan
        for rung in ladder.list_within(budget - fixed):
            searched = ladder.effort.ways, ladder.effort.most
            plan = self._assemble(ladder.make_draft(rung), searched)
            if plan.nbytes <= budget:
                return plan
        raise explain_too_little(*self._find_least(ladder, fixed), budget)

    def _find_least(self, ladder: Ladder, fixed: int) -> tuple[Plan, int]:
        """Return the plan of a ladder with the fewest bytes, and the least budget that takes it.

        fixed: the bytes of all regions but work.
        """

        def plan_rung(rung: Rung) -> tuple[int, Plan]:
            plan = self._assemble(ladder.make_draft(rung))
            return max(plan.nbytes, fixed + rung.peak), plan

        least, plan = plan_rung(ladder.lowest)
        for rung in list(ladder.list_within(least - fixed - 1))[::-1]:
            if fixed + rung.peak < least:
                least, plan = min((least, plan), plan_rung(rung), key=lambda row: row[0])
        return plan, least


def _keep_kernels(draft: Draft, threads: int, kernels: KernelSet, precision: str) -> None:
    """Call only these kernels in a draft of this precision; formulas are interpreted instead.

    Raises:
        LackingKernelError: a call needs another, naming the node.
    """
    advice = "install numba and llvmlite (pip install edgegrad)"
    if precision != "f32":
        advice += f", or leave precision {precision}: kernels for f32 are shipped, and auto takes "
        advice += "them"
    try:
        interpret_formulas(draft, threads, kernels)
    except UnsupportedOpError as error:
        raise LackingKernelError(f"{error}, and nothing can compile one here: {advice}") from error
    for call in draft.calls:
        if call.spec not in kernels:
            raise LackingKernelError(
                f"{call.source}: the kernel {call.spec.symbol} is not shipped, and nothing can "
                f"compile it here: {advice}"
            )


def _make_plan_with(
    kind: Callable[Concatenate[Graph, Options], Planner],
) -> Callable[Concatenate[Graph, Mapping[str, Sequence[int]], Options], Plan]:
    """Return a function that makes a planner of the same options and its plan for these shapes."""

    def make_plan(
        graph: Graph,
        shapes: Mapping[str, Sequence[int]],
        /,
        *args: Options.args,
        **options: Options.kwargs,
    ) -> Plan:
        return kind(graph, *args, **options).plan(shapes)

    return make_plan


make_plan = _make_plan_with(Planner)
