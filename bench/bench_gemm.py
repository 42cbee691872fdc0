"""Matrix products at sizes of training: GFLOP/s and percent of the FMA peak, on 1 and 2 threads."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import pytest

from engine.graphs.ir.graph import Graph, Node
from engine.graphs.planner.pipeline import make_plan
from engine.kernels.compiler.load import addresses
from engine.kernels.target import host
from engine.kernels.vocabulary.op import TensorType
from engine.runtime.arena import allocate
from engine.runtime.program import Program
from engine.runtime.roofline import measure


class Size(NamedTuple):
    """A product of op(A) [m, k] and op(B) [k, n]; `stored` is "t" for each that is transposed."""

    m: int
    n: int
    k: int
    stored: str = "nn"
    batch: int = 1

    def __str__(self) -> str:
        return f"{self.batch}x{self.m}x{self.n}x{self.k}{self.stored}"


SQUARES = [Size(s, s, s, stored) for s in (128, 256, 512, 1024) for stored in ("nn", "nt", "tn")]
SIZES = (
    *SQUARES,
    # MLP 784-500-10: a layer forward and its gradient, and the small head
    Size(64, 500, 784, "nt"), Size(500, 784, 64, "tn"), Size(64, 10, 500, "nt"),
    # MiniLM: projections and the feed-forward layers, forward, dX and dW
    Size(1024, 384, 384), Size(1024, 384, 384, "nt"), Size(384, 384, 1024, "tn"),
    Size(1024, 1536, 384), Size(1024, 384, 1536), Size(1024, 1536, 384, "nt"),
    Size(1024, 384, 1536, "nt"), Size(384, 1536, 1024, "tn"), Size(1536, 384, 1024, "tn"),
    # heads of attention
    Size(128, 128, 32, "nt", 96), Size(128, 128, 32, "nn", 96), Size(128, 32, 128, "nn", 96),
    Size(128, 32, 128, "tn", 96), Size(32, 128, 128, "tn", 96), Size(128, 32, 128, "nt", 96),
)  # fmt: skip


@pytest.fixture(scope="module")
def peak() -> float:
    return measure(1, addresses).flops / 1e9


@pytest.fixture(scope="module")
def call() -> float:
    """Seconds that a program takes whose only product is tiny."""
    program = _program(Size(1, 1, 1), 1)
    best = float("inf")
    for _ in range(1000):
        start = time.perf_counter()
        program.run()
        best = min(best, time.perf_counter() - start)
    return best


def _program(size: Size, threads: int) -> Program:
    m, n, k, stored, batch = size
    ta, tb = (int(c == "t") for c in stored)
    shapes = {"a": (k, m) if ta else (m, k), "b": (n, k) if tb else (k, n)}
    lead = (batch,) if batch > 1 else ()
    attrs = {"transA": ta, "transB": tb, "alpha": 1.0}
    node = Node("FusedMatMul", ("a", "b"), ("c",), attrs, domain="com.microsoft", name="product")
    inputs = {name: TensorType("f32", lead + s) for name, s in shapes.items()}
    graph = Graph("product", inputs, ["c"], {}, [node], {"": 17, "com.microsoft": 1})
    plan = make_plan(graph, {}, target=host(), threads=threads)
    program = Program(plan, addresses, {"work": allocate(plan.region_bytes("work"))})
    rng = np.random.default_rng(0)
    for name in shapes:
        program.inputs[name][...] = rng.standard_normal(program.inputs[name].shape)
    return program


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", SIZES, ids=str)
def bench_gemm(benchmark: Any, peak: float, call: float, size: Size, threads: int) -> None:
    benchmark(_program(size, threads).run)
    flops = 2 * size.batch * size.m * size.n * size.k
    rate = flops / (benchmark.stats.stats.median - call) / 1e9
    percent = 100 * rate / (threads * peak)
    benchmark.extra_info |= {"gflops": round(rate, 1), "percent_of_peak": round(percent)}
    print(f"\n{size} on {threads}: {rate:.1f} GFLOP/s, {percent:.0f} % of {threads * peak:.1f}")
