"""The op and kernel tables: unique names, complete declarations, a case row for every op."""

from __future__ import annotations

import functools
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest

from engine.graphs.passes.pipeline import PASSES, PassState
from engine.kernels.ops import collective
from engine.kernels.ops.norm import joint
from engine.kernels.ops.registry import Declarations, list_families, list_ops, list_templates
from engine.kernels.vocabulary.op import OURS, Op
from engine.tools.dev import optimizer_plans
from engine.tools.dev.case_graphs import OneNode, backward_of, find_largest_rows, list_cases

# Ops that training graphs hold around the tensors; test_goldens.py and test_api.py run them.
IN_PLACE = {"InplaceClipGradNorm", "InPlaceAccumulatorV2", "Map", "MoveStatistic"}
# Families of collective steps, which only a group of ranks can run; test_collective.py does.
OF_RANKS = (collective, joint)


def test_names_are_unique() -> None:
    declared = Counter(
        (op.domain, op.name) for m in list_families() for op in getattr(m, "OPS", ())
    )
    assert not [name for name, count in declared.items() if count > 1]
    kernels = Counter(t.name for m in list_families() for t in getattr(m, "KERNELS", ()))
    assert not [name for name, count in kernels.items() if count > 1]


def test_a_thread_finds_what_another_is_still_listing() -> None:
    """Of a key that the index lacks: a family is read slowly, and two threads ask."""
    started = threading.Event()

    def read(family: ModuleType) -> Iterator[tuple[str, str]]:
        started.set()
        time.sleep(1e-3)
        yield family.__name__, family.__name__

    names = [family.__name__ for family in list_families()]
    known = Declarations({}, read)
    with ThreadPoolExecutor(1) as other:
        listed = other.submit(list, known)
        assert started.wait(60)
        assert known[names[-1]] == names[-1]
        assert names[0] in known
        assert listed.result(60) == names


def test_template_names_are_their_functions() -> None:
    for name, template in list_templates().items():
        assert template.build.__name__ == name


@pytest.mark.parametrize("op", list_ops().values(), ids=lambda o: f"{o.domain}:{o.name}")
def test_every_op_can_be_computed(op: Op) -> None:
    assert op.lower or op.is_view or op.expr or op.fold or op.expand


@pytest.mark.parametrize("op", list_ops().values(), ids=lambda o: f"{o.domain}:{o.name}")
def test_gradients_tell_whose_they_are(op: Op) -> None:
    assert bool(op.gradient_of) == bool(re.search(r"(?<!Zero|Stop)Grad(_13|_dX)?$", op.name))
    assert op.gradient_of in {"", *(o.title for o in list_ops().values())}


@functools.cache
def met() -> frozenset[tuple[str, str]]:
    """Ops that the case rows meet: as given, in the backward graph, and after all passes."""
    distinct = set()
    for case in list_cases():
        one = OneNode(case, double=bool(case.grad))
        graph = one.graph.copy()
        distinct |= {(n.domain, n.op) for n in graph.nodes}
        if case.grad:
            graph, _ = backward_of(one)
            distinct |= {(n.domain, n.op) for n in graph.nodes}
        work = PassState(graph)
        for step in PASSES:
            step.run(work)
        distinct |= {(n.domain, n.op) for n in work.graph.nodes}
    return frozenset(distinct)


def test_every_op_is_met_by_a_case() -> None:
    others = {key: op for key, op in list_ops().items() if key not in met() and not op.optimizer}
    of_ranks = {op.name for m in OF_RANKS for op in m.OPS}
    missing = [f"{d}:{name}" for d, name in others if name not in IN_PLACE | of_ranks]
    assert not missing


def test_every_differentiable_op_has_a_gradient_case() -> None:
    """ModeChoice has none: its gradient is the one of training, and a case computes evaluation.

    tests/offline/test_modes.py compares it.
    """
    covered = {(c.domain, c.op) for c in list_cases() if c.grad} | {(OURS, "ModeChoice")}
    missing = [
        f"{domain}:{name}"
        for (domain, name), op in list_ops().items()
        if op.differentiable and (domain, name) not in covered
    ]
    assert not missing


def test_every_kernel_has_a_bench_row() -> None:
    """Optimizers, which change their inputs, have rows of their own.

    The executor needs none, nor do the kernels that measure or exchange; closed plans have
    `formula` instead of `map`.  `python -m bench gemm --precision bf16` measures `gemm_mixed`,
    `python -m bench cases --precision bf16` other kernels of 16 bits alone, and `python -m bench
    recurrent LSTM-1` the kernels of threads that share hidden units, which one thread does not.
    """
    updates = {spec.template for plan in optimizer_plans.make_plans() for spec in plan.specs}
    others = {
        "launch",
        "worker",
        "formula",
        "peak",
        "stream",
        "timed",
        "gemm_mixed",
        "pool_grad_sums",
        "lstm_step",
        "lstm_grad_step",
    }
    others |= {template.name for template in collective.KERNELS}
    assert set(list_templates()) - set(find_largest_rows()) - updates == others
