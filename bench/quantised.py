"""Products with weights of 4 and 8 bits beside the same products with float weights.

`forward` is Y = A W^T of a linear layer, `back` is dA = dY W; blocks of 32 have one scale.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

from bench.measuring import compare_medians, time_in_turns
from bench.programs import load
from bench.rows import Bench, Cells
from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import TensorType
from engine.runtime.program import BoundProgram

BLOCK, TURNS = 32, 30


class Layer(NamedTuple):
    """Linear layer of n outputs and k inputs on m rows."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


# The layers of Qwen2.5-0.5B: queries, the feed-forward layers; while it trains, and of one token.
LAYERS = [Layer(m, n, k) for m in (256, 1) for n, k in ((896, 896), (4864, 896), (896, 4864))]


def make_program(layer: Layer, bits: int, back: bool) -> BoundProgram:
    """Return one product; bits: of a weight, 32 for floats."""
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
    return load(graph)


def measure(layer: Layer, _: Namespace) -> Iterator[Cells]:
    """Yield a row for each size of a weight and direction, in turns with floats."""
    for bits in (4, 8):
        for back in (False, True):
            calls = {
                "mine": make_program(layer, bits, back).run,
                "float": make_program(layer, 32, back).run,
            }
            timings = time_in_turns(calls, TURNS)
            took = [1e3 * median(timings[name]) for name in calls]
            yield (
                bits,
                "back" if back else "forward",
                *took,
                compare_medians(timings["mine"], timings["float"]),
            )


BENCHES = (
    Bench(
        "quantised",
        "products with weights of 4 and 8 bits, in turns with floats",
        {str(layer): layer for layer in LAYERS},
        ("bits", "direction", "ms:.3f", "float ms:.3f", "ratio:.2f"),
        measure,
        small="1x896x896",
    ),
)
