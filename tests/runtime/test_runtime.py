"""Threads: the same result whatever the timing, and every way to start and stop a team."""

from __future__ import annotations

import multiprocessing
import threading
from dataclasses import replace

import numpy as np
import pytest

from engine.errors import PlanError
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.planner.planner import make_plan
from engine.kernels.binaries.load import get_addresses
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.op import TensorType
from engine.runtime.arena import allocate
from engine.runtime.program import BoundProgram
from engine.runtime.team import Team


def chain(steps: int) -> Graph:
    """A chain of matrix products: every step needs all of the one before."""
    nodes, name = [], "x"
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((96, 96)) / 10).astype(np.float32)
    for i in range(steps):
        nodes.append(Node("MatMul", (name, "w"), (f"h{i}",), name=f"mm{i}"))
        name = f"h{i}"
    return Graph(
        "chain", {"x": TensorType("f32", (37, 96))}, [name], {"w": w}, nodes,
        {"": 17, "com.microsoft": 1},
    )  # fmt: skip


def program(threads: int, steps: int = 24) -> BoundProgram:
    plan = make_plan(chain(steps), {}, target=detect_host(), threads=threads)
    return BoundProgram(plan, get_addresses, {"work": allocate(plan.compute_region_bytes("work"))})


def result(p: BoundProgram) -> np.ndarray:
    p.inputs["x"][...] = np.random.default_rng(1).standard_normal((37, 96))
    p.run()
    (out,) = p.outputs.values()
    return out.copy()


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 8])
def test_repeated_runs_agree_bit_for_bit(threads: int) -> None:
    p = program(threads)
    first = result(p)
    for _ in range(200):
        np.testing.assert_array_equal(result(p), first)


def test_a_plan_for_other_kernels_is_refused_before_it_runs() -> None:
    """A plan says what its kernels take; the loader asks the templates whether that is still so."""
    (kernel,) = program(1).plan.kernels
    older = replace(kernel, takes=("f64*", *kernel.takes[1:]))
    with pytest.raises(PlanError, match=r"gemm_f32_0_0 takes f32\* .*; the plan passes f64\* "):
        get_addresses([older])


def test_thread_counts_agree() -> None:
    expected = result(program(1))
    for threads in (2, 3, 7):
        np.testing.assert_allclose(result(program(threads)), expected, rtol=1e-4, atol=1e-5)


def test_programs_run_from_several_python_threads() -> None:
    p = [program(2), program(2)]
    expected = result(p[0])
    wrong = []

    def work(mine: BoundProgram) -> None:
        for _ in range(50):
            if not np.array_equal(result(mine), expected):
                wrong.append(1)

    workers = [threading.Thread(target=work, args=(q,)) for q in p]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


def test_a_team_stops() -> None:
    team = Team(3, get_addresses)
    workers = list(team._workers)
    team.stop()
    assert not any(w.is_alive() for w in workers)


def _in_child(queue: multiprocessing.Queue[float], parents: BoundProgram) -> None:
    queue.put(float(result(program(2)).sum()))
    queue.put(float(result(parents).sum()))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_starts_its_own_team() -> None:
    mine = program(2)
    expected = float(result(mine).sum())
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue, mine))
    child.start()
    assert queue.get(timeout=60) == expected
    assert queue.get(timeout=60) == expected
    child.join(timeout=60)
    assert child.exitcode == 0
