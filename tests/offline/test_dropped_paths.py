"""Masks of dropped paths: draws in training, expectations in evaluation and exports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from engine import Trainer, backend
from engine.artifacts import SGD, MSELoss
from engine.graphs.io import onnx_io
from engine.graphs.offline.dropped_paths import expect_masks

RANDOM = {"RandomUniform", "RandomUniformLike", "Bernoulli", "RandomNormalLike"}
# A mask m of shape [n, 1] for x of shape [n, 3].
MASKS = {
    "Bernoulli": "chances = Expand (p, shape) m = Bernoulli (chances)",
    "Less": "r = RandomUniformLike (v) b = Less (r, p) m = Cast <to = 1> (b)",
    "GreaterOrEqual": "r = RandomUniformLike (v) b = GreaterOrEqual (p, r) m = CastLike (b, x)",
    "Greater": "r = RandomUniformLike (v) b = Greater (r, q) m = Cast <to = 1> (b)",
    "Floor": "r = RandomUniformLike (v) a = Add (p, r) c = Cast <to = 1> (a) m = Floor (c)",
}
USES = {
    "scaled": "s = Div (m, p) h = Mul (x, s)",
    "divided": "s = Div (x, p) h = Mul (m, s)",
    "copied": "k = Identity (m) s = Div (k, p) h = Mul (s, x)",
}


def model(mask: str, use: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[n, 3] x) => (float[n, 2] y)
        <float[3, 2] w = {{0.1, 0.2, -0.3, 0.4, 0.5, -0.6}}, float p = {{0.8}}, float q = {{0.2}},
         int64[1] zero = {{0}}, int64[1] one = {{1}}, float unit = {{0.0}}>
        {{
            of = Shape (x)
            n = Gather (of, zero)
            shape = Concat <axis = 0> (n, one)
            v = Expand (unit, shape)
            {mask}
            {use}
            y = MatMul (h, w)
        }}""")


def lines(text: str) -> str:
    """Put each assignment onto a line of its own, as ONNX's text form wants them."""
    words = text.split()
    starts = [i for i, word in enumerate(words[1:]) if word == "=" and words[i] != "<to"]
    ends = [*starts[1:], len(words)]
    return "\n".join(" ".join(words[a:b]) for a, b in zip(starts, ends, strict=True))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("use", USES)
def test_a_mask_draws_in_training_alone(mask: str, use: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(model(lines(MASKS[mask]), lines(USES[use])), path)
    trainer = Trainer.from_onnx(path, MSELoss(), SGD(0.0), threads=1)
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    w = np.array([[0.1, 0.2], [-0.3, 0.4], [0.5, -0.6]], np.float32)
    np.testing.assert_allclose(trainer.predict(x), x @ w, rtol=1e-5, atol=1e-6)
    losses = {trainer.step(x, x @ w) for _ in range(8)}
    assert len(losses) > 1, "training draws a mask in each step"
    trainer.export(tmp_path / "inference.onnx")
    ops = {node.op_type for node in onnx.load(tmp_path / "inference.onnx").graph.node}
    assert ops <= {"MatMul", "Identity", "Mul", "Div"}


def test_a_mask_that_enlarges_its_factor_is_filled_with_its_chance() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[1] x, float[n] v) => (float[n] y, float[n] m) <float p = {0.25}>
        {
            r = RandomUniformLike (v)
            b = Less (r, p)
            m = Cast <to = 1> (b)
            y = Mul (x, m)
        }""")
    graph = expect_masks(onnx_io.load(proto))
    y, m = backend.prepare(onnx_io.to_proto(graph)).run(
        [np.full(1, 2, np.float32), np.zeros(3, np.float32)]
    )
    np.testing.assert_array_equal(m, np.full(3, 0.25, np.float32))
    np.testing.assert_array_equal(y, np.full(3, 0.5, np.float32))


@pytest.mark.parametrize(
    "nodes",
    [
        "m = RandomNormalLike (x)",
        "m = RandomUniformLike (x)",
        "r = RandomUniformLike <low = -1.0> (x)\nb = Less (r, p)\nm = Cast <to = 1> (b)",
        "r = RandomUniformLike (x)\nb = Less (r, x)\nm = Cast <to = 1> (b)",
        "r = RandomUniformLike (x)\na = Add (r, big)\nm = Floor (a)",
        "m = Bernoulli (x)",
    ],
)
def test_other_draws_stay(nodes: str) -> None:
    proto = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[n] x) => (float[n] y) <float p = {{0.25}}, float big = {{1.5}}>
        {{
            {nodes}
            y = Mul (x, m)
        }}""")
    before = [node.op for node in onnx_io.load(proto).nodes]
    assert [node.op for node in expect_masks(onnx_io.load(proto)).nodes] == before
    assert not RANDOM.isdisjoint(before)
