"""Products of few rows with packed integers, against NumPy, next to the products of many rows."""

from __future__ import annotations

import numpy as np
import pytest

from bench.programs import load
from engine.graphs.ir.graph import Graph, Node
from engine.kernels.loops.quantised import FEW, STEP
from engine.kernels.vector_ir import unpack
from engine.kernels.vocabulary.op import MS, TensorType
from tests.support.packed_integers import pack

COLUMNS = 37


def test_the_lowering_knows_how_many_integers_are_unpacked_at_a_time() -> None:
    assert STEP == unpack.STEP  # which cannot be imported where only plans are made


@pytest.mark.parametrize("zero", ["none", "packed", "float"])
@pytest.mark.parametrize(("block", "blocks"), [(16, 8), (32, 4), (48, 3), (128, 1)])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_few_rows_equal_floats(bits: int, block: int, blocks: int, zero: str) -> None:
    """Blocks of one, several and odd numbers of vectors."""
    rng, depth = np.random.default_rng(0), block * blocks
    q = rng.integers(0, 2**bits, (COLUMNS, blocks, block))
    scales = rng.uniform(0.5, 1.5, (COLUMNS, blocks)).astype(np.float32)
    bias = rng.standard_normal(COLUMNS).astype(np.float32)
    constants = {"q": pack(q, bits), "s": scales.reshape(-1), "b": bias}
    zeros = np.full((COLUMNS, blocks), 2.0 ** (bits - 1))
    if zero == "packed":
        zeros = rng.integers(0, 2**bits, (COLUMNS, blocks))
        constants["z"] = pack(zeros, bits).reshape(-1)
    elif zero == "float":
        zeros = rng.uniform(0, 2**bits, (COLUMNS, blocks)).astype(np.float32)
        constants["z"] = zeros.reshape(-1)
    w = ((q - zeros[..., None]) * scales[..., None]).reshape(COLUMNS, depth)
    attrs = {"K": depth, "N": COLUMNS, "bits": bits, "block_size": block}
    inputs = ("x", "q", "s", "z" if zero != "none" else "", "", "b")
    for rows, threads in ((1, 1), (FEW, 2), (FEW + 1, 1)):
        x = rng.standard_normal((rows, depth)).astype(np.float32)
        node = Node("MatMulNBits", inputs, ("y",), attrs, MS, "y")
        types = {"x": TensorType("f32", x.shape)}
        program = load(
            Graph("g", types, ["y"], constants, [node], {"": 17, MS: 1}), threads, {"x": x}
        )
        (kernel,) = {step.kernel.rsplit("_f32", 1)[0] for step in program.plan.steps}
        assert kernel == ("quantised_dots" if rows <= FEW else "quantised_gemm")
        program.run()
        largest = float(np.abs(x).max() * np.abs(w).max()) * depth
        np.testing.assert_allclose(
            program.outputs["y"], x @ w.T + bias, rtol=0, atol=2e-7 * largest
        )
