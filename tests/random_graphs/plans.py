"""Comparisons of the plans of one graph: by all passes, by two threads, in less memory, again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from engine.base.plan_options import PlanOptions
from engine.errors import BudgetError, EngineError, InternalError
from engine.graphs.passes import pipeline
from engine.graphs.passes.pipeline import PASSES, Pass, PassState
from engine.graphs.planner.planner import Planner, make_plan
from engine.kernels.machine.target import detect_host
from engine.plan.plan import Plan
from tests.random_graphs.check import Check, numbers, replaced, runner
from tests.random_graphs.report import DifferentError


def compare_plans(check: Check, what: str, rng: random.Random, open_too: bool) -> None:
    """All passes, by one thread and two, with formulas interpreted and compiled, in less memory."""

    def plan(name: str, **options: Any) -> Plan:
        with _naming(f"{what}, {name}"):
            options = {"threads": 1, "closed": True} | options
            return make_plan(check.graph.copy(), {}, target=detect_host(), **options)

    with counting(check.report.changed):
        usual = plan("all passes")
    actual_numbers = numbers(usual, check.fed)
    try:
        check.agrees(f"{what}, all passes", actual_numbers)
    except DifferentError as error:
        raise DifferentError(error.way, f"{error}; {_first_pass(check)}") from error
    two = runner(plan("two threads", threads=2))
    actual_numbers = two(check.fed)
    check.agrees(f"{what}, two threads", actual_numbers)
    check.equals(f"{what}, two threads again", two(check.fed), actual_numbers)
    if open_too:
        threads = rng.choice((1, 2))
        made = plan("compiled", closed=False, threads=threads)
        check.agrees(f"{what}, compiled", numbers(made, check.fed))
    if rng.random() < 0.25:
        least = _least_plan(check, usual)
        if least is not None:
            check.agrees(f"{what}, least memory", numbers(least, check.fed))


def _first_pass(check: Check) -> str:
    """A sentence on the first of the passes, added one by one, with which numbers differ."""
    left = [step.name for step in PASSES if not step.needed]
    options: dict[str, Any] = {"target": detect_host(), "threads": 1, "closed": True}
    for added_last in ["", *left]:
        if added_last:
            left.remove(added_last)
        plan = make_plan(check.graph.copy(), {}, without=tuple(left), **options)
        try:
            check.agrees("bisection", numbers(plan, check.fed))
        except DifferentError:
            return (
                f"first with the pass {added_last!r}" if added_last else "with no pass but groups"
            )
    return "with no pass alone"


def _least_plan(check: Check, usual: Plan) -> Plan | None:
    """The plan of the least budget; None where the usual one has it already."""

    def plan(budget: int) -> Plan:
        return make_plan(
            check.graph.copy(),
            {},
            target=detect_host(),
            threads=1,
            closed=True,
            options=PlanOptions(budget=budget),
        )

    try:
        plan(0)
    except BudgetError as error:
        return plan(error.least) if error.least < usual.nbytes else None
    return None


@contextmanager
def _naming(way: str) -> Iterator[None]:
    """A refusal inside is a defect: the plain plan was not refused."""
    try:
        yield
    except InternalError:
        raise
    except EngineError as error:
        raise DifferentError(way, f"refused, the plain plan is not: {error}") from error


def counting(counts: Counter[str]) -> AbstractContextManager[None]:
    """Inside, the passes are counted that change a graph."""

    state: list[object] = [None]

    def counted(step: Pass) -> Pass:
        def run(work: PassState) -> None:
            step.run(work)
            last = [n for n, t in work.types.items() if t.last]
            before, state[:] = state[0], [(str(work.graph), last)]
            counts[step.name] += before is not None and before != state[0]

        return replace(step, run=run)

    return replaced((pipeline, "PASSES", tuple(map(counted, PASSES))))


def compare_shapes(check: Check, rng: random.Random) -> None:
    """Plan for another size of a dimension first: the next plan must equal a new planner's."""
    sizes = sorted({d for t in check.graph.inputs.values() for d in t.dims})
    if not sizes:
        return
    size = rng.choice(sizes)
    graph = check.graph.copy()
    graph.types = {
        o: t.but([f"{o}_{k}" for k in range(t.rank)])
        for o, t in graph.types.items()
        if o in graph.outputs
    }
    for name, t in graph.inputs.items():
        graph.inputs[name] = t.but(["n" if d == size else d for d in t.shape])
    shapes = {n: a.shape for n, a in check.fed.items()}
    other = rng.choice([d for d in (0, 1, 2, 3, 5, 7, 16, size + 1) if d != size])
    others = {n: [other if d == size else d for d in shape] for n, shape in shapes.items()}
    options: dict[str, Any] = {"target": detect_host(), "threads": 1, "closed": True}
    both, fresh = Planner(graph.copy(), **options), Planner(graph.copy(), **options)
    try:
        first = both.plan(others)
    except InternalError:
        raise
    except EngineError as error:
        check.report.refused.append(("another size", str(error)))
        first = None
    with _naming("shapes, symbolic"):
        again, plan = both.plan(shapes), fresh.plan(shapes)
    if str(again) != str(plan):
        raise DifferentError(
            "shapes, replanned", f"another plan after one for n={other}, not {size}"
        )
    check.agrees("shapes, symbolic", numbers(plan, check.fed))
    if first is not None:
        check.report.done["shapes, replanned"] += 1
        if str(fresh.plan(others)) != str(first):
            raise DifferentError("shapes, back", f"another plan for n={other} after one for {size}")
