"""Checks: the numbers of the plain plan of a graph, and how far others may be from them.

The reference is the *plain* plan: no pass that may be left out, no groups, formulas interpreted,
one thread.  How far rounding may go is measured for each value: everything that is fed and every
result of a node that rounds is moved by a few units in the last place, and the plain plan shows
what that does to each output.  An output that moves by much, as where it turns an `argmax`,
measures nothing and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.graphs.ir.graph import Graph
from engine.graphs.passes.pipeline import OPTIONAL
from engine.graphs.planner import planner
from engine.graphs.planner.draft import Draft
from engine.graphs.planner.planner import make_plan
from engine.graphs.planner.updates import settle_updates
from engine.kernels.machine.target import Target, detect_host
from engine.plan.plan import Plan
from tests.random_graphs.derived import rounded
from tests.random_graphs.report import DifferentError, Report
from tests.support import harness

MOVES = 3  # times that inputs are moved to see what rounding does
ULPS = 4.0  # by so many units in the last place
ROUNDING = 50.0  # times what that does to an output: what a way may differ
UNSTABLE = {
    "f64": 1e-5,
    "f32": 1e-3,
}  # of the largest element: outputs that move by more say nothing


@contextmanager
def replaced(*others: tuple[Any, str, Any]) -> Iterator[None]:
    """Inside, names of modules mean something else: (module, name, value)."""
    before = [(module, name, getattr(module, name)) for module, name, _ in others]
    try:
        for module, name, value in others:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def plain_plan(graph: Graph) -> Plan:
    """The plan with nothing fused, joined or grouped, whose formulas are interpreted."""

    def alone(draft: Draft, target: Target, threads: int) -> None:
        settle_updates(draft)

    with replaced((planner, "group", alone)):
        return make_plan(
            graph.copy(), {}, target=detect_host(), threads=1, closed=True, without=OPTIONAL
        )


def runner(plan: Plan) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Return a function that runs a plan: its outputs, and the inputs that it changes."""
    run = harness.make_runner(plan)

    def quiet(fed: Mapping[str, Array]) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            return run(fed, True)

    return quiet


def numbers(plan: Plan, fed: Mapping[str, Array]) -> dict[str, Array]:
    """Return the results of a plan for its inputs."""
    return runner(plan)(fed)


class Check:
    """One graph, the numbers of its plain plan, and how far others may be from them.

    Raises:
        EngineError: the graph is refused.
    """

    def __init__(self, graph: Graph, fed: Mapping[str, Array], report: Report) -> None:
        self.graph, self.fed, self.report = graph, dict(fed), report
        self.plain = runner(plain_plan(graph))
        self.wanted = self.plain(fed)
        self.bounds = self._bounds()

    def _bounds(self) -> dict[str, float | None]:
        """For each value how far others may be from it; None where nothing can be said."""
        rng = np.random.default_rng(7)
        moved: dict[str, float] = dict.fromkeys(self.wanted, 0.0)
        graph, noise = rounded(self.graph)
        run = runner(plain_plan(graph)) if noise else self.plain
        for _ in range(MOVES):
            fed = {n: _moved(a, rng) for n, a in self.fed.items()}
            fed |= {n: _moved(np.ones(t.dims, NUMPY[t.dtype]), rng) for n, t in noise.items()}
            outcome = run(fed)
            for name, want in self.wanted.items():
                moved[name] = max(moved[name], distance(outcome[name], want))
        bounds: dict[str, float | None] = {}
        arrays = [a for a in (*self.fed.values(), *self.wanted.values()) if a.dtype.kind == "f"]
        # A value of 0 may be a sum of these.
        largest = max((find_scale(a) for a in arrays), default=0.0)
        for name, want in self.wanted.items():
            if want.dtype.kind != "f":
                bounds[name] = 0.0 if moved[name] == 0 else None
                continue
            own = float(np.finfo(want.dtype).eps) * find_scale(want)
            bound = ROUNDING * (moved[name] + own) + float(np.finfo(want.dtype).tiny)
            kind = "f64" if want.dtype == np.float64 else "f32"
            bounds[name] = bound if bound <= UNSTABLE[kind] * largest else None
            if not np.isfinite(want).all():
                bounds[name] = None
        self.report.unstable += sum(b is None for b in bounds.values())
        return bounds

    def agrees(self, way: str, found: Mapping[str, Array]) -> None:
        """Compare what another way has made.

        Raises:
            DifferentError: it differs by more than rounding.
        """
        self.report.done[way] += 1
        for name, want in self.wanted.items():
            bound, got = self.bounds[name], found[name]
            if (got.shape, got.dtype) != (want.shape, want.dtype):
                raise DifferentError(way, f"{name} is {got.dtype}{got.shape}, plain {want.dtype}"
                                          f"{want.shape}")  # fmt: skip
            if bound is None:
                continue
            far = distance(got, want)
            if not far <= bound:
                scale = float(np.max(np.abs(want), initial=0))
                raise DifferentError(
                    way, f"{name} is {far:.3g} off, of {scale:.3g}; rounding: {bound:.2g}"
                )

    def equals(self, way: str, found: Mapping[str, Array], other: Mapping[str, Array]) -> None:
        """Compare two ways that promise the same bits.

        Raises:
            DifferentError: a bit differs.
        """
        self.report.done[way] += 1
        for name, want in other.items():
            if found[name].tobytes() != want.tobytes():
                far = distance(found[name], want)
                raise DifferentError(way, f"{name} is not the same to the last bit: {far:.3g} off")


def distance(a: Array, b: Array) -> float:
    """The largest difference; NaN where one alone is NaN."""
    if a.shape != b.shape:
        return float("inf")
    if a.dtype.kind != "f":
        return float(np.count_nonzero(a != b))
    with np.errstate(all="ignore"):
        far = np.abs(a.astype(np.float64) - b.astype(np.float64))
    far = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, far)
    return float(np.max(far, initial=0.0))


def find_scale(array: Array) -> float:
    """The magnitude of the largest finite element."""
    return float(np.max(np.abs(array[np.isfinite(array)]), initial=0.0))


def _moved(array: Array, rng: np.random.Generator) -> Array:
    """Numbers some units in the last place beside the given ones; whole numbers as they are."""
    if array.dtype.kind != "f":
        return array
    noise = rng.uniform(-ULPS, ULPS, array.shape) * np.finfo(array.dtype).eps
    moved: Array = (array * (1 + noise)).astype(array.dtype)
    return moved
