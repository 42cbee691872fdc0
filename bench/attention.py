"""Attention, forward and backward, with PyTorch's flash kernel beside us.

A row runs softmax(Q K^T / sqrt(width)) V and its three gradients, decomposed as exporters write it;
planning makes one op a direction of it.  GFLOP/s count the six products of the operation, and %
refers to the FMA peak.  With PyTorch of `EDGEGRAD_BENCH_PEERS` the two take turns.
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
from bench.programs import count_operations, load
from bench.rows import THREADS, Bench, Cells
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.passes.infer import infer
from engine.kernels.vocabulary.op import TensorType
from engine.system.config import switch

TURNS = 7
# batch, heads, rows, width, causal: long contexts, and the heads of MiniLM and of ViT
SHAPES = {
    "long": (1, 12, 2048, 64, 0),
    "long-causal": (1, 12, 2048, 64, 1),
    "minilm": (8, 12, 128, 32, 0),
    "vit": (8, 3, 197, 64, 0),
    "small": (1, 2, 64, 16, 0),
}


def make_training_graph(batch: int, heads: int, rows: int, width: int, causal: int) -> Graph:
    """Return the graph of Y and of the gradients of sum(Y dY) by Q, K and V."""
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


def measure(shape: tuple[int, int, int, int, int], options: Namespace) -> Iterator[Cells]:
    """Yield a row for each number of threads."""
    for threads in options.threads:
        program = load(make_training_graph(*shape), threads)
        with ExitStack() as stack:
            calls: dict[str, Any] = {"ours": program.run}
            rests = {}
            if switch("BENCH_PEERS"):
                made = stack.enter_context(peer("attention", threads, *shape))
                calls["torch"], rests["torch"] = made.run, made.await_rest
            times_by_name = time_in_turns(calls, TURNS, rests=rests)
        took = median(times_by_name["ours"])
        rate = count_operations(program) / took
        times = (
            compare_medians(times_by_name["torch"], times_by_name["ours"])
            if "torch" in times_by_name
            else None
        )
        yield threads, 1e3 * took, rate / 1e9, 100 * rate / measure_limits().flops / threads, times


BENCHES = (
    Bench(
        "attention",
        "attention forward and backward, beside PyTorch's flash kernel",
        SHAPES,
        ("threads", "ms:.2f", "GFLOP/s:.1f", "% of peak:.0f", "x PyTorch:.2f"),
        measure,
        usual=tuple(name for name in SHAPES if name != "small"),
        options=(THREADS,),
        small="small --threads 1",
    ),
)
