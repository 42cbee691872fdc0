"""Matrix products at sizes of training: one thread, GFLOP/s and percent of the FMA peak."""

from __future__ import annotations

from typing import Any

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

# m, n, k, transA, transB: the square; a layer forward and its two gradients; a small head
SIZES = (
    (512, 512, 512, 0, 0),
    (128, 500, 784, 0, 1),
    (128, 784, 500, 0, 0),
    (500, 784, 128, 1, 0),
    (64, 10, 500, 0, 1),
)


@pytest.fixture(scope="module")
def peak() -> float:
    return measure(1, addresses).flops / 1e9


@pytest.mark.parametrize("size", SIZES, ids=lambda s: "x".join(map(str, s[:3])) + "nt"[s[4]])
def bench_gemm(benchmark: Any, peak: float, size: tuple[int, int, int, int, int]) -> None:
    m, n, k, ta, tb = size
    shapes = {"a": (k, m) if ta else (m, k), "b": (n, k) if tb else (k, n)}
    node = Node("Gemm", ("a", "b"), ("c",), {"transA": ta, "transB": tb}, name="gemm")
    inputs = {name: TensorType("f32", s) for name, s in shapes.items()}
    graph = Graph("gemm", inputs, ["c"], {}, [node], {"": 17})
    plan = make_plan(graph, {}, target=host(), threads=1)
    program = Program(plan, addresses, {"work": allocate(plan.region_bytes("work"))})
    rng = np.random.default_rng(0)
    for name, s in shapes.items():
        program.inputs[name][...] = rng.standard_normal(s)
    benchmark(program.run)
    rate = 2 * m * n * k / benchmark.stats.stats.median / 1e9
    benchmark.extra_info |= {"gflops": round(rate, 1), "percent_of_peak": round(100 * rate / peak)}
    print(f"\n{m}x{n}x{k}: {rate:.1f} GFLOP/s, {100 * rate / peak:.0f} % of {peak:.1f}")
