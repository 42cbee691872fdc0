"""Matrix products at sizes of training: GFLOP/s and percent of the FMA peak, on 1 and 2 threads.

With --precision bf16 float32 operands are rounded as they are packed.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator
from functools import cache
from statistics import median
from typing import NamedTuple

from bench.measuring import measure_limits, repeat, time_rounds
from bench.programs import load
from bench.rows import THREADS, Bench, Cells, Option
from engine.base.plan_options import Precision
from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import TensorType
from engine.runtime.program import BoundProgram


class Size(NamedTuple):
    """Product of op(A) [m, k] and op(B) [k, n]; `stored` is "t" for each transposed operand."""

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


@cache
def call_seconds() -> float:
    """Return the seconds that a program takes whose only product is tiny."""
    return min(time_rounds(_make_program(Size(1, 1, 1), 1).run, 1000))


def _make_program(size: Size, threads: int, precision: Precision = "f32") -> BoundProgram:
    m, n, k, stored, batch = size
    ta, tb = (int(c == "t") for c in stored)
    shapes = {"a": (k, m) if ta else (m, k), "b": (n, k) if tb else (k, n)}
    lead = (batch,) if batch > 1 else ()
    attrs = {"transA": ta, "transB": tb, "alpha": 1.0}
    node = Node("FusedMatMul", ("a", "b"), ("c",), attrs, domain="com.microsoft", name="product")
    inputs = {name: TensorType("f32", lead + s) for name, s in shapes.items()}
    graph = Graph("product", inputs, ["c"], {}, [node], {"": 17, "com.microsoft": 1})
    return load(graph, threads, precision=precision)


def measure(size: Size, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each number of threads."""
    for threads in options.threads:
        program = _make_program(size, threads, options.precision)
        took = median(repeat(program.run)) - call_seconds()
        rate = 2 * math.prod(size[:3]) * size.batch / took
        yield threads, 1e3 * took, rate / 1e9, 100 * rate / measure_limits().flops / threads


BENCHES = (
    Bench(
        "gemm",
        "matrix products at sizes of training",
        {str(size): size for size in SIZES},
        ("threads", "ms:.3f", "GFLOP/s:.1f", "% of peak:.0f"),
        measure,
        options=(THREADS, Option("precision", "f32", "of the factors, or bf16")),
        small="1x64x10x500nt --threads 1",
    ),
)
