"""LSTM and GRU over sequences, forward and backward, with PyTorch beside us.

A row computes Y and, from a gradient of Y, those of X, W, R, B and of the initial states; batch 32,
100 steps, 256 inputs and hidden units.  A row of ours prints GFLOP/s and their percent of what the
multiply-adds of its threads allow; the products alone are counted, `work`: 10.1 GFLOP of the LSTM,
7.5 of the GRU.  PyTorch's rows are of
`EDGEGRAD_BENCH_PEERS`: eager, with and without oneDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from bench.answers import peer
from engine.graphs.ir.graph import Graph
from engine.graphs.planner.pipeline import make_plan
from engine.kernels.compiler.load import addresses
from engine.kernels.target import host
from engine.runtime.arena import allocate
from engine.runtime.config import switch
from engine.runtime.program import Program
from engine.runtime.roofline import measure
from engine.tools.dev.case_graphs import OneNode, backward_of
from engine.tools.dev.cases.recurrent import GATES, case

STEPS, BATCH, WIDTH, HIDDEN = 100, 32, 256, 256
KINDS = ("LSTM", "GRU")
ATTRS: dict[str, dict[str, Any]] = {"LSTM": {}, "GRU": {"linear_before_reset": 1}}  # as PyTorch


def work(kind: str, directions: int = 1) -> float:
    """Floating-point operations of a row: three products with W and three with R a step."""
    return 3 * 2 * STEPS * BATCH * directions * GATES[kind] * HIDDEN * (WIDTH + HIDDEN)


def training(kind: str, **attrs: Any) -> tuple[Graph, dict[str, np.ndarray]]:
    """The graph of all gradients from those of Y, and its inputs."""
    given = "bhc" if kind == "LSTM" else "bh"
    row = case(
        kind,
        STEPS,
        BATCH,
        WIDTH,
        HIDDEN,
        given,
        attrs={**ATTRS[kind], **attrs},
        kept=(0,),
    )
    one = OneNode(row)
    return backward_of(one)[0], one.inputs


def load(kind: str, threads: int, **attrs: Any) -> Program:
    """A bound program with its inputs in place."""
    graph, inputs = training(kind, **attrs)
    plan = make_plan(graph, {}, target=host(), threads=threads)
    program = Program(plan, addresses, {"work": allocate(plan.region_bytes("work"))})
    for name, array in inputs.items():
        np.copyto(program.inputs[name], array)
    return program


@pytest.fixture(scope="module")
def peak() -> float:
    return measure(1, addresses).flops / 1e9


@pytest.fixture
def step(request: pytest.FixtureRequest) -> Iterator[Callable[[], object]]:
    kind, who, threads = request.param
    with ExitStack() as stack:
        if who == "edgegrad":
            yield load(kind, threads).run
        else:
            sizes = (STEPS, BATCH, WIDTH, HIDDEN)
            words = (kind, threads, int(who == "onednn"), *sizes)
            yield stack.enter_context(peer("recurrent_peer.py", *words))


_WHO = ("edgegrad", *(("torch", "onednn") if switch("BENCH_PEERS") else ()))
_ROWS = [(k, w, t) for k in KINDS for t in (1, 2) for w in _WHO]


@pytest.mark.parametrize("step", _ROWS, indirect=True, ids=lambda r: f"{r[0]}-{r[2]}t-{r[1]}")
def bench_recurrent(
    benchmark: Any, step: Callable[[], object], peak: float, request: pytest.FixtureRequest
) -> None:
    kind, who, threads = request.node.callspec.params["step"]
    benchmark.pedantic(step, rounds=20, warmup_rounds=3)
    rate = work(kind) / benchmark.stats.stats.median / 1e9
    share = 100 * rate / (peak * threads)
    benchmark.extra_info |= {"gflops": round(rate, 1), "percent_of_peak": round(share)}
    print(f"\n{kind} {who}: {rate:.1f} GFLOP/s, {share:.0f} % of {threads} x {peak:.1f}")
