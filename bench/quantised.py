"""Products with weights of 4 and 8 bits beside the same products with float weights.

`forward` is Y = A W^T of a linear layer, `back` is dA = dY W; blocks of 32 have one scale.

`quantised.rows` has MatMulNBits of one row beside onnxruntime's, on one thread: a model of two
layers, there and back.  level: 4 rounds the row to 8 bits, 0 multiplies floats.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from bench.measuring import compare_medians, time_in_turns
from bench.programs import load
from bench.rows import Bench, Cells, Option
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.inference import Session
from engine.kernels.vocabulary.op import MS, TensorType
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


def make_rows(layer: Layer, bits: int, level: int) -> bytes:
    """Return a model of two MatMulNBits, from k columns to n and back."""
    m, n, k = layer
    rng, initializers, nodes = np.random.default_rng(0), dict[str, Any](), list[Node]()
    for i, (rows, columns) in enumerate(((n, k), (k, n))):
        blocks = columns // BLOCK
        packed = rng.integers(0, 256, (rows, blocks, BLOCK * bits // 8), np.uint8)
        scales = rng.uniform(0.001, 0.002, rows * blocks).astype(np.float32)
        initializers |= {f"q{i}": packed, f"s{i}": scales}
        attrs = {"K": columns, "N": rows, "bits": bits, "block_size": BLOCK}
        inputs, name = (("x", "h")[i], f"q{i}", f"s{i}"), ("h", "y")[i]
        nodes.append(
            Node("MatMulNBits", inputs, (name,), {**attrs, "accuracy_level": level}, MS, name)
        )
    kind = TensorType("f32", (m, k))
    graph = Graph("rows", {"x": kind}, ["y"], initializers, nodes, {"": 17, MS: 1}, {"y": kind})
    return onnx_io.to_bytes(graph)


def measure_rows(layer: Layer, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each size of a weight and level, in turns with onnxruntime."""
    import onnxruntime

    x = np.random.default_rng(1).standard_normal((layer.m, layer.k)).astype(np.float32)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    for bits in (4, 8):
        for level in (0, 4):
            model = make_rows(layer, bits, level)
            sessions = {
                "mine": Session(model, threads=1),
                "onnxruntime": onnxruntime.InferenceSession(model, settings),
            }
            calls = {name: partial(made.run, None, {"x": x}) for name, made in sessions.items()}
            timings = time_in_turns(calls, options.turns, warm_up=5)
            took = [1e3 * median(timings[name]) for name in calls]
            yield bits, level, *took, compare_medians(timings["onnxruntime"], timings["mine"])


BENCHES = (
    Bench(
        "quantised.rows",
        "MatMulNBits of one row, in turns with onnxruntime",
        {str(layer): layer for layer in LAYERS if layer.m == 1},
        ("bits", "level", "ms:.3f", "onnxruntime ms:.3f", "onnxruntime / ours:.2f"),
        measure_rows,
        options=(Option("turns", 200, "turns of each"),),
        small="1x896x896 --turns 5",
    ),
    Bench(
        "quantised",
        "products with weights of 4 and 8 bits, in turns with floats",
        {str(layer): layer for layer in LAYERS},
        ("bits", "direction", "ms:.3f", "float ms:.3f", "ratio:.2f"),
        measure,
        small="1x896x896",
    ),
)
