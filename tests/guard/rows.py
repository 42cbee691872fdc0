"""Programs between guard pages: the case rows, as plans of several kinds.

A row is planned for float32 and float64, forward and backward, one thread and two, with kernels for
its formulas and with the interpreter.  If sizes of a row may differ, it is also run with each of
them one larger, so that there are tails of other lengths.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.errors import EngineError
from engine.graphs.planner.planner import make_plan
from engine.kernels.analysis.bounds import check
from engine.kernels.machine.levels import LEVELS
from engine.kernels.machine.target import Target, detect_host
from engine.kernels.vocabulary.call import Machine
from engine.plan.plan import Plan
from engine.tools.dev.case_graphs import OneNode, backward_of, list_cases
from engine.tools.dev.cases.case import Case, Given, Tensor


@functools.cache
def cases() -> list[Case]:
    """Return all rows, each followed by its variants of other sizes."""
    return [made for case in list_cases() for made in (case, *larger(case))]


def larger(case: Case) -> Iterator[Case]:
    """The row with one size of its fed tensors one larger, for each of the first three sizes."""
    fed = [t for t in case.ins if isinstance(t, Tensor) and not isinstance(t, Given)]
    sizes = dict.fromkeys(d for t in fed for d in t.shape if d > 1)
    for size in list(sizes)[:3]:
        yield replace(
            case,
            ins=tuple(_grown(t, size) for t in case.ins),
            name=f"{case.id}+{size}",
        )


def _grown(given: Any, size: int) -> Any:
    if not isinstance(given, Tensor) or isinstance(given, Given):
        return given
    return replace(given, shape=tuple(d + (d == size) for d in given.shape))


@dataclass(frozen=True, slots=True)
class Kind:
    """Way in which a row is planned."""

    threads: int = 1
    double: bool = False
    back: bool = False
    closed: bool = False


KINDS = tuple(
    Kind(threads, double, back, closed)
    for closed in (False, True)
    for double in (False, True)
    for back in (False, True)
    for threads in (1, 2)
    if not (closed and double)
)


def target_of(level: str) -> Target:
    """The target of a level of kernels/machine/levels.py; "host": this very CPU."""
    return (
        detect_host()
        if level == "host"
        else next(x for x in LEVELS if x.name == level).make_target()
    )


def planned(case: Case, kind: Kind, target: Target) -> tuple[Plan, dict[str, np.ndarray]] | None:
    """The plan of a row and its inputs; None where the row has no such kind, or no such sizes."""
    if kind.back and not case.grad:
        return None
    try:
        one = OneNode(case, double=kind.double)
        graph = backward_of(one)[0] if kind.back else one.graph
        shapes = {n: a.shape for n, a in one.inputs.items()}
        plan = make_plan(graph, shapes, target=target, threads=kind.threads, closed=kind.closed)
    except EngineError:
        if "+" in case.name or kind.closed or kind.double:
            return None
        raise
    check(plan, Machine.of(target))  # what is made here is never refused
    return plan, one.inputs
