"""Declarations of ops: they call and become exactly what they declare.

Planning refuses undeclared calls, so the case rows, the goldens and the optimizers show that
nothing is missing.  Recording them here shows that nothing is superfluous.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from engine.base.element_types import FLOATS, ITEMSIZE
from engine.base.plan_options import PlanOptions
from engine.errors import EngineError
from engine.graphs.ir.graph import Graph
from engine.graphs.offline.optim_types import SGD
from engine.graphs.passes import storage
from engine.graphs.passes.expand import expand
from engine.graphs.passes.infer import infer
from engine.graphs.planner.draft import Place
from engine.graphs.planner.planner import make_plan
from engine.kernels.loops.gemm import gemm_mixed
from engine.kernels.machine.levels import LEVELS
from engine.kernels.machine.target import detect_host
from engine.kernels.ops.registry import list_ops, list_templates
from engine.kernels.vocabulary.op import OURS, Op, read_op_keys
from engine.plan.collective import ORDINAL
from engine.plan.plan import align
from engine.tools.dev import optimizer_plans
from engine.tools.dev.case_graphs import OneNode, backward_of, list_cases, wrap
from engine.tools.dev.cases.case import Case, Tensor, f32
from engine.tools.trimmed.options import PlanRequest
from engine.tools.trimmed.plans import list_artifacts, make_plans
from tests.support import collective
from tests.support.halves import may_be_halves
from tests.support.places import GOLDENS
from tests.support.thread_group import ThreadGroup
from tests.support.tiny import LABELS

Key = tuple[str, str]


# With factors of 16 bits products are another kernel.
PRODUCTS = {op.name for op in list_ops().values() if op.calls and gemm_mixed in op.calls}
HALF = PlanOptions(precision="bf16")
WITH_BF16 = replace(LEVELS[0].make_target("linux"), features="+avx512bf16")
MOVING = Case("MoveStatistic", (f32(3), f32(3), np.array([True])), domain=OURS)
JOINT = [
    Case(
        op,
        (f32(2, 3, 4, 4), *[Tensor((3,), dtype)] * 4, np.ones(1), np.zeros(ORDINAL.size, np.int64)),
        {"training_mode": 1, "ordinal": 1},
        outs=outs,
        domain=OURS,
    )
    for op, outs in (
        ("JointBatchNormalization", 3), ("JointBatchNormInternal", 5), ("JointBatchNormHeld", 5)
    )
    for dtype in ("float32", "float64")
]  # fmt: skip


def a_step(model: str, group: ThreadGroup, cut: tuple[int, int]) -> None:
    """A step of a rank on its part of a batch, as one plan, and its gradients as another."""
    text, x = collective.MODELS[model]
    trainer = collective.join_trainer(text, group)
    collective.run_step(trainer, cut, x, LABELS)
    trainer.accumulate(x[slice(*cut)], LABELS[slice(*cut)])


@dataclass
class Record:
    """By op, what it called and became."""

    calls: dict[Key, set[str]] = field(default_factory=dict)
    becomes: dict[Key, set[Key]] = field(default_factory=dict)

    def of(self, op: Op) -> Op:
        """The same op, whose lowering and expansion are recorded."""
        key = op.domain, op.name
        called, made = self.calls.setdefault(key, set()), self.becomes.setdefault(key, set())

        def lower(s: Any) -> None:
            assert op.lower is not None
            op.lower(Watched(s, call=lambda kernel, *_, **__: called.add(kernel[0])))

        def expanded(g: Any) -> tuple[str, ...] | None:
            def emit(name: str, *_: str, domain: str = "", **__: Any) -> None:
                made.add((domain, name))

            assert op.expand is not None
            return op.expand(Watched(g, op=emit))

        return replace(op, lower=op.lower and lower, expand=op.expand and expanded)


class Watched:
    """`Lowering` or `Nodes` that reports the calls of some of its methods."""

    def __init__(self, inner: Any, **told: Callable[..., None]) -> None:
        self._inner, self._told = inner, told

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name not in self._told:
            return value

        def method(*args: Any, **more: Any) -> Any:
            self._told[name](*args, **more)
            return value(*args, **more)

        return method


@contextmanager
def recording() -> Iterator[Record]:
    """All ops of the registry are recorded inside."""
    record, before = Record(), dict(list_ops())
    list_ops().update({key: record.of(op) for key, op in before.items()})
    try:
        yield record
    finally:
        list_ops().update(before)


def symbolic(graph: Graph) -> Graph:
    """The graph with inputs of unknown shapes, as it is differentiated."""
    actual = graph.copy()
    for name, t in actual.inputs.items():
        actual.inputs[name] = t.but([f"{name}_{axis}" for axis in range(t.rank)])
    return actual


@functools.cache
def recorded() -> Record:
    """Return the calls and results of the rows, the goldens and the optimizers."""
    with recording() as record:
        for case in list_cases():
            one = OneNode(case)
            for graph in [one.graph, *([backward_of(one)[0]] if case.grad else [])]:
                make_plan(graph.copy(), {}, target=detect_host(), threads=2)
                if case.op in PRODUCTS:
                    make_plan(graph.copy(), {}, target=WITH_BF16, threads=2, options=HALF)
                    plan_answers(graph.copy())
            op = list_ops().get((case.domain, case.op))
            if may_be_halves(case):
                with mock.patch.object(storage, "SMALL", 0):
                    make_plan(wrap(one.graph), {}, target=WITH_BF16, threads=2, options=HALF)
            if op is not None and op.expand and not op.grad:
                expand_symbolic(one.graph)
        for folder in sorted(p.parent for p in GOLDENS.glob("*/training_model.onnx")):
            make_plans(list_artifacts(folder), detect_host(), PlanRequest([4], 2))
        make_plan(
            OneNode(MOVING).graph, {}, target=detect_host(), threads=1
        )  # it changes its input
        for case in JOINT:
            expand_symbolic(OneNode(case).graph)  # a plan of ranks has inputs of certain names
        for model in collective.MODELS:
            collective.run_ranks((0, 10, 20), functools.partial(a_step, model))
        optimizer_plans.plan_of(SGD(weight_decay=0.01))
        optimizer_plans.plan_of(SGD(clip_grad=1.0, skip_nonfinite=True))
        list(optimizer_plans.make_plans())
    return record


def plan_answers(graph: Graph) -> None:
    """Plan answers of a graph all of whose floats are parameters, which are packed once."""
    places, end = dict[str, Place](), 0
    for name, t in graph.inputs.items():
        if t.dtype in FLOATS:
            places[name], end = Place("param", end), end + align(t.size * ITEMSIZE[t.dtype])
    make_plan(
        graph, {}, target=detect_host(), threads=2, places=places, region_bytes={"param": end},
        answers=True,
    )  # fmt: skip


def expand_symbolic(graph: Graph) -> None:
    """Expand the nodes of a graph whose shapes are not known, as far as they can be."""
    try:
        unknown = symbolic(graph)
        expand(unknown, infer(unknown))
    except EngineError:
        pass  # what needs a shape says so


@pytest.mark.parametrize("op", list_ops().values(), ids=lambda o: o.title)
def test_no_op_is_silent(op: Op) -> None:
    assert (op.expand is None) == (op.becomes is None)
    assert op.lower is None or op.calls is not None
    assert read_op_keys(op.becomes or "") <= list_ops().keys()


def assert_same(op: Op, declared: Collection[Any], met: Collection[Any]) -> None:
    left, missing = sorted(set(declared) - set(met)), sorted(set(met) - set(declared))
    assert not missing, f"{op.title} does not declare {missing}"
    assert not left, f"{op.title} declares {left}, which no case row shows: add one"


def test_every_kernel_says_how_far_it_reaches() -> None:
    assert not [t.name for t in list_templates().values() if not t.is_bounded and not t.is_internal]


def test_what_is_called_is_declared_and_what_is_declared_is_called() -> None:
    for key, called in recorded().calls.items():
        op = list_ops()[key]
        assert_same(op, {t.name for t in op.calls or ()} if op.lower else set(), called)


def test_what_is_made_is_declared_and_what_is_declared_is_made() -> None:
    for key, made in recorded().becomes.items():
        op = list_ops()[key]
        assert_same(op, read_op_keys(op.becomes or ""), made)


def test_an_op_that_stands_for_others_has_a_shape_rule() -> None:
    """Passes replace it before they infer shapes; checks of a graph infer it as it is."""
    rows = [case for case in list_cases() if list_ops()[case.domain, case.op].expand]
    assert len(rows) > 400
    for case in rows:
        infer(OneNode(case).graph.copy())
