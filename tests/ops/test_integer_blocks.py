"""MatMulNBits with accuracy_level 4: its definition in NumPy, and onnxruntime's own results."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from bench.programs import load
from engine.base.aliases import Array
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.kernels.loops.block_integers import BITS, BLOCKS
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.op import MS, TensorType
from engine.tools.trimmed.targets import resolve
from tests.support.harness import run
from tests.support.packed_integers import pack

# On this CPU, and on those without its instructions.
TARGETS = ("native", "x86-64-v3", *(pytest.param(t, marks=pytest.mark.whole) for t in
           ("x86-64-v4", "x86-64-v2")))  # fmt: skip


def round_rows(x: Array, block: int) -> tuple[Array, Array]:
    """Return rows rounded to 8 bits [rows, blocks, block], and the scales of their blocks."""
    blocks = -(-x.shape[1] // block)
    cut = np.zeros((len(x), blocks * block), np.float32)
    cut[:, : x.shape[1]] = x
    cut = cut.reshape(len(x), blocks, block)
    largest = np.abs(cut).max(-1)
    factor = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    return np.rint(cut * factor[..., None]).astype(np.int64), largest / np.float32(127)


def build(
    sizes: tuple[int, int, int],
    bits: int,
    block: int,
    *,
    zeros: bool,
    level: int = 4,
    seed: int = 0,
) -> tuple[Graph, Array, Array]:
    """Return a product of these rows, columns and depth, rows x, and what they make."""
    rng, (m, n, k) = np.random.default_rng(seed), sizes
    blocks = -(-k // block)
    q = rng.integers(0, 2**bits, (n, blocks, block))
    scales = rng.uniform(0.5, 1.5, (n, blocks)).astype(np.float32)
    bias = rng.standard_normal(n).astype(np.float32)
    points = rng.integers(0, 2**bits, (n, blocks)) if zeros else np.full((n, blocks), 2**bits // 2)
    constants = {"q": pack(q, bits), "s": scales.reshape(-1), "b": bias}
    if zeros:
        constants["z"] = pack(points, bits).reshape(-1)
    attrs = {"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": level}
    inputs = ("x", "q", "s", "z" if zeros else "", "", "b")
    node = Node("MatMulNBits", inputs, ("y",), attrs, MS, "y")
    x = rng.standard_normal((m, k)).astype(np.float32)
    types = {"x": TensorType("f32", x.shape)}
    graph = Graph("g", types, ["y"], constants, [node], {"": 17, MS: 1}, ir_version=10)
    graph.types = {"y": TensorType("f32", (m, n))}
    levels, own = round_rows(x, block)
    sums = np.einsum("mbk,nbk->mnb", levels, q - points[..., None])
    return graph, x, (sums * own[:, None].astype(np.float64) * scales).sum(-1) + bias


def compare(actual: Array, wanted: Array) -> None:
    """Compare up to a few roundings of float32."""
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("bits", BITS)
def test_sums_are_those_of_onnxruntime(bits: int, block: int, zeros: bool) -> None:
    """Whole chunks and less than one; one row and several; all of four columns and not."""
    for sizes, threads in (((1, 37, 896), 2), ((6, 8, 300), 1)):
        graph, x, wanted = build(sizes, bits, block, zeros=zeros)
        program = load(graph, threads, {"x": x})
        kernels = [step.kernel for step in program.plan.steps]
        assert [name.split("_blocks")[0] for name in kernels] == ["round", "integer"]
        program.run()
        compare(program.outputs["y"], wanted)
        session = onnxruntime.InferenceSession(
            onnx_io.to_bytes(graph), providers=["CPUExecutionProvider"]
        )
        if detect_host().arch == "x86_64":  # elsewhere it may round in another way
            compare(session.run(None, {"x": x})[0], program.outputs["y"])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("bits", BITS)
def test_other_instructions_make_the_same_sums(bits: int, target: str) -> None:
    if target != "native" and detect_host().arch != "x86_64":
        pytest.skip("an x86 target")
    for block, zeros, seed in ((16, True, 31), (32, False, 0), (256, True, 1)):
        graph, x, wanted = build((5, 9, 896), bits, block, zeros=zeros, seed=seed)
        made = run(graph, {"x": x}, threads=2, target=resolve(target).target)["y"]
        compare(made, wanted)


def test_only_level_4_rounds_its_rows() -> None:
    graph, x, wanted = build((1, 9, 128), 4, 32, zeros=True, level=0)
    made = run(graph, {"x": x})["y"]
    assert 1e-3 < np.abs(made - wanted).max() / np.abs(wanted).max() < 1e-1


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(special: float) -> None:
    """In its row alone; a row of zeros, and one of the smallest numbers, give the bias."""
    graph, x, wanted = build((4, 5, 160), 4, 32, zeros=False)
    x[0, 77], x[1], x[2] = special, 0, 1e-42
    made = run(graph, {"x": x})["y"]
    assert not np.isfinite(made[0]).any()
    compare(made[3], wanted[3])
    bias = graph.initializers["b"]
    np.testing.assert_allclose(made[1:3], [bias, bias], rtol=0, atol=1e-30)


def test_rows_have_the_bits_of_one_alone() -> None:
    """With any other rows, and on any number of threads."""
    graph, x, _ = build((7, 11, 300), 4, 32, zeros=True)
    every = [run(graph, {"x": x}, threads=threads)["y"] for threads in (1, 2)]
    np.testing.assert_array_equal(every[0], every[1])
    graph.inputs["x"] = TensorType("f32", (1, 300))
    for i, row in enumerate(x):
        np.testing.assert_array_equal(run(graph, {"x": row[None]})["y"][0], every[0][i])
