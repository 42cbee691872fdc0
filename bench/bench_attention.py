"""Attention, forward and backward, with PyTorch's flash kernel beside us.

A row runs softmax(Q K^T / sqrt(width)) V and its three gradients, decomposed as exporters write it;
planning makes one op a direction of it.  It prints GFLOP/s of the six products that the operation
has, and their percent of the FMA peak.  With PyTorch of `EDGEGRAD_BENCH_PEERS` the two take turns,
and the ratio of the medians is printed.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from bench.answers import peer
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.passes.infer import infer
from engine.graphs.planner.pipeline import make_plan
from engine.kernels.compiler.load import addresses
from engine.kernels.target import host
from engine.kernels.vocabulary.op import TensorType
from engine.kernels.work import work
from engine.runtime.arena import allocate
from engine.runtime.config import switch
from engine.runtime.program import Program
from engine.runtime.roofline import measure

TURNS = 7
# batch, heads, rows, width, causal: long contexts, and the heads of MiniLM and of ViT
SHAPES = {
    "long": (1, 12, 2048, 64, 0),
    "long-causal": (1, 12, 2048, 64, 1),
    "minilm": (8, 12, 128, 32, 0),
    "vit": (8, 3, 197, 64, 0),
}


def training(batch: int, heads: int, rows: int, width: int, causal: int) -> Graph:
    """The graph of Y and of the gradients of sum(Y dY) by Q, K and V."""
    shape = (batch, heads, rows, width)
    inputs = {name: TensorType("f32", shape) for name in ("q", "k", "v", "dy")}
    hidden = np.array(-np.inf, np.float32)
    known: dict[str, Any] = {"root": np.array(width**-0.5, np.float32), "hidden": hidden}
    nodes = [
        Node("Transpose", ("k",), ("kt",), {"perm": [0, 1, 3, 2]}, name="transpose"),
        Node("Mul", ("q", "root"), ("scaled",), name="scale"),
        Node("MatMul", ("scaled", "kt"), ("raw",), name="scores"),
        Node("Softmax", ("masked" if causal else "raw",), ("p",), {"axis": -1}, name="softmax"),
        Node("MatMul", ("p", "v"), ("y",), name="values"),
        Node("Mul", ("y", "dy"), ("product",), name="product"),
        Node("ReduceSum", ("product",), ("loss",), {"keepdims": 0}, name="loss"),
    ]
    if causal:
        known["seen"] = np.tril(np.ones((rows, rows), bool))
        nodes.insert(3, Node("Where", ("seen", "raw", "hidden"), ("masked",), name="mask"))
    graph = Graph("attention", inputs, [], known, nodes, {"": 17, "com.microsoft": 1})
    grads = differentiate(graph, "loss", ["q", "k", "v"], infer(graph.copy()).types)
    graph.outputs = ["y", *grads.values()]
    return graph


def load(shape: tuple[int, int, int, int, int], threads: int) -> tuple[Program, int]:
    """A bound program with its inputs in place, and the operations of a run."""
    plan = make_plan(training(*shape), {}, target=host(), threads=threads)
    program = Program(plan, addresses, {"work": allocate(plan.region_bytes("work"))})
    rng = np.random.default_rng(0)
    for array in program.inputs.values():
        array[...] = rng.standard_normal(array.shape)
    return program, sum(step.flops for step in work(plan))


@pytest.fixture(scope="module")
def peak() -> float:
    return measure(1, addresses).flops / 1e9


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", SHAPES)
def bench_attention(benchmark: Any, name: str, threads: int, peak: float) -> None:
    shape = SHAPES[name]
    program, count = load(shape, threads)
    others: list[float] = []
    with ExitStack() as stack:
        other = (
            stack.enter_context(peer("attention_peer.py", threads, *shape))
            if switch("BENCH_PEERS")
            else None
        )

        def turn() -> None:
            """The other's turn, before each of ours."""
            if other is not None:
                begin = time.perf_counter()
                other()
                others.append(time.perf_counter() - begin)

        benchmark.pedantic(program.run, setup=turn, rounds=TURNS, warmup_rounds=1)
    median = benchmark.stats.stats.median
    rate = count / median / 1e9
    share = 100 * rate / (peak * threads)
    text = f"{1e3 * median:.1f} ms, {rate:.1f} GFLOP/s, {share:.0f} % of {threads} x {peak:.1f}"
    if others:
        ratio = statistics.median(others[1:]) / median
        benchmark.extra_info["times_pytorch"] = round(ratio, 2)
        text += f", {ratio:.2f} times as fast as PyTorch"
    print(f"\n{name} {threads}t: {text}")
