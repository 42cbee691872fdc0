"""Models that compute something else in training than in evaluation, beside NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
from onnx import parser

from engine import Trainer
from engine.artifacts import SGD, MSELoss

ROWS, WIDTH = 6, 3
RNG = np.random.default_rng(0)
W = RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32)
# Training answers w x + b, evaluation the clipped double of it; they share w and b.
MODEL = """<ir_version: 8, opset_import: ["": 17, "engine": 1]>
net (float[N,3] x) => (float[N,3] y)
<float[3,3] w = {W}, float[3] b = {0.0, 0.0, 0.0}, float two = {2.0}>
{
    h = MatMul(x, w)
    trained = Add(h, b)
    again = MatMul(x, w)
    moved = Add(again, b)
    double = Mul(moved, two)
    evaluated = Relu(double)
    y = engine.ModeChoice(evaluated, trained)
}"""


def test_training_computes_the_one_and_evaluation_the_other(tmp_path: Path) -> None:
    text = MODEL.replace("{W}", "{" + ", ".join(map(str, W.ravel())) + "}")
    trainer = Trainer.from_onnx(parser.parse_model(text), MSELoss(), SGD(lr=0.5), threads=1)
    x = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
    target = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
    loss = trainer.step(x, target)
    off = x.astype(np.float64) @ W - target
    np.testing.assert_allclose(loss, (off**2).mean(), rtol=1e-5)
    w = W - 0.5 * 2 * x.T @ off / off.size
    b = -0.5 * 2 * off.sum(0) / off.size
    parameters = {name: p.data for name, p in trainer.state.parameters}
    np.testing.assert_allclose(parameters["w"], w, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(parameters["b"], b, rtol=1e-4, atol=1e-6)
    expected = np.maximum(2 * (x @ w + b), 0)
    np.testing.assert_allclose(trainer.predict(x), expected, rtol=1e-4, atol=1e-5)
    trainer.export(tmp_path / "inference.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "inference.onnx")
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-5)
    loss = trainer.evaluate((x, target))["loss"]
    np.testing.assert_allclose(loss, ((expected - target) ** 2).mean(), rtol=1e-4)
