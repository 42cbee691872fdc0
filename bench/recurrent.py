"""LSTM and GRU over sequences, forward and backward, with PyTorch beside us.

A row computes Y and, from a gradient of Y, the gradients of X, W, R, B and of the initial states;
batch 32, or 1, whose hidden units threads share; 100 steps, 256 inputs and hidden units.  A row of
ours prints GFLOP/s and their percentage of the peak of its threads; only the products are counted,
`count_work`: 10.1 GFLOP of the LSTM at batch 32, 7.5 of the GRU.  PyTorch of
`EDGEGRAD_BENCH_PEERS` takes turns with it: eager, without oneDNN and with it.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy as np

from bench.measuring import compare_medians, measure_limits, time_in_turns
from bench.processes import peer
from bench.programs import load
from bench.rows import THREADS, Bench, Cells
from engine.graphs.ir.graph import Graph
from engine.system.config import switch
from engine.tools.dev.case_graphs import OneNode, backward_of
from engine.tools.dev.cases.recurrent import GATES, case

STEPS, WIDTH, HIDDEN = 100, 256, 256
# The operator and the samples of a batch.
SUBJECTS = {"LSTM": ("LSTM", 32), "GRU": ("GRU", 32), "LSTM-1": ("LSTM", 1)}
PEERS = ("torch", "onednn")
ATTRS: dict[str, dict[str, Any]] = {"LSTM": {}, "GRU": {"linear_before_reset": 1}}  # as PyTorch


def count_work(kind: str, batch: int) -> float:
    """Return the operations of a row: three products with W and three with R a step."""
    return 3 * 2 * STEPS * batch * GATES[kind] * HIDDEN * (WIDTH + HIDDEN)


def make_training_graph(kind: str, batch: int) -> tuple[Graph, dict[str, np.ndarray]]:
    """Return the graph of all gradients from the gradient of Y, and its inputs."""
    given = "bhc" if kind == "LSTM" else "bh"
    row = case(
        kind,
        STEPS,
        batch,
        WIDTH,
        HIDDEN,
        given,
        attrs=ATTRS[kind],
        kept=(0,),
    )
    one = OneNode(row)
    return backward_of(one)[0], one.inputs


def measure(subject: tuple[str, int], options: Namespace) -> Iterator[Cells]:
    """Yield a row for each number of threads."""
    kind, batch = subject
    graph, inputs = make_training_graph(kind, batch)
    for threads in options.threads:
        calls: dict[str, Any] = {"ours": load(graph, threads, inputs).run}
        with ExitStack() as stack:
            rests = {}
            for who in PEERS if switch("BENCH_PEERS") else ():
                words = (kind, threads, int(who == "onednn"), STEPS, batch, WIDTH, HIDDEN)
                made = stack.enter_context(peer("recurrent", *words))
                calls[who], rests[who] = made.run, made.await_rest
            timings = time_in_turns(calls, 20, warm_up=3, rests=rests)
        rate = count_work(kind, batch) / median(timings["ours"])
        share = 100 * rate / measure_limits().flops / threads
        ratios = (
            compare_medians(timings[who], timings["ours"]) if who in timings else None
            for who in PEERS
        )
        yield threads, 1e3 * median(timings["ours"]), rate / 1e9, share, *ratios


BENCHES = (
    Bench(
        "recurrent",
        "LSTM and GRU over sequences, forward and backward, beside PyTorch",
        SUBJECTS,
        ("threads", "ms:.1f", "GFLOP/s:.1f", "% of peak:.0f", "x torch:.2f", "x oneDNN:.2f"),
        measure,
        options=(THREADS,),
    ),
)
