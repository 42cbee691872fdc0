"""Products with weights of 4 and 8 bits beside the same products with float weights.

`forward` is Y = A W^T of a linear layer, `back` is dA = dY W; blocks of 32 have one scale.
"""

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

BLOCK, TURNS = 32, 30


class Layer(NamedTuple):
    """A linear layer of n outputs and k inputs on m rows."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


# The layers of Qwen2.5-0.5B: queries, the feed-forward layers; while it trains, and of one token.
LAYERS = [Layer(m, n, k) for m in (256, 1) for n, k in ((896, 896), (4864, 896), (896, 4864))]


def program(layer: Layer, bits: int, back: bool) -> Program:
    """One product; bits: of a weight, 32 for floats."""
    m, n, k = layer
    inputs = {"a": TensorType("f32", (m, n if back else k))}
    attrs: dict[str, Any]
    if bits == 32:
        inputs["w"] = TensorType("f32", (n, k))
        node = Node("Gemm", ("a", "w"), ("y",), {"transB": int(not back)}, "", "product")
    else:
        inputs["q"] = TensorType("u8", (n, k // BLOCK, BLOCK * bits // 8))
        inputs["s"] = TensorType("f32", (n, k // BLOCK))
        attrs = {"rows": n, "columns": k, "bits": bits, "block_rows": 1, "block_columns": BLOCK}
        attrs |= {"trans": int(not back), "zero": 1 << bits - 1}
        node = Node("QuantizedMatMul", ("a", "q", "s"), ("y",), attrs, "engine", "product")
    graph = Graph("product", inputs, ["y"], {}, [node], {"": 17, "engine": 1})
    plan = make_plan(graph, {}, target=host(), threads=1)
    made = Program(plan, addresses, {"work": allocate(plan.region_bytes("work"))})
    rng = np.random.default_rng(0)
    for name, t in inputs.items():
        values = rng.integers(0, 256, t.dims) if t.dtype == "u8" else rng.standard_normal(t.dims)
        made.inputs[name][...] = values
    return made


def seconds(made: Program) -> float:
    start = time.perf_counter()
    made.run()
    return time.perf_counter() - start


@pytest.mark.parametrize("direction", ["forward", "back"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def bench_quantised(benchmark: Any, layer: Layer, bits: int, direction: str) -> None:
    """In turns with the floats, so that both run in the same conditions."""
    back = direction == "back"
    floats, mine = program(layer, 32, back), program(layer, bits, back)
    ratios = [seconds(mine) / seconds(floats) for _ in range(TURNS)]
    benchmark(mine.run)
    ratio = float(np.median(ratios))
    benchmark.extra_info["times_float"] = round(ratio, 2)
    print(f"\n{layer} {bits} bits {direction}: {ratio:.2f} x the time of floats")
