"""Buffers that a model changes in training, and their gradients, beside NumPy in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from engine import Trainer
from engine.api import CheckpointState, Module
from engine.artifacts import SGD, MSELoss, generate_artifacts
from tests.support.harness import get_gradient

ROWS, WIDTH = 6, 3
RNG = np.random.default_rng(0)
# A centre that follows the means of batches.  READ is the new one, or the one before.
MODEL = """<ir_version: 8, opset_import: ["": 17, "engine": 1]>
net (float[N,3] x) => (float[N,3] y)
<float[3,3] w = {W}, float[3] centre = {0.5, -0.5, 0.0}, float keep = {0.75}, float add = {0.25}>
{
    h = MatMul(x, w)
    mean = ReduceMean<axes = [0], keepdims = 0>(h)
    old = Mul(centre, keep)
    part = Mul(mean, add)
    new = Add(old, part)
    moved = engine.MovedBuffer(centre, new)
    y = Sub(h, READ)
}"""


def _make(folder: Path, read: str) -> tuple[CheckpointState, np.ndarray]:
    """Write artifacts of a model that reads the centre as `read`; return their state, and w."""
    w = RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32)
    text = MODEL.replace("READ", read).replace("{W}", "{" + ", ".join(map(str, w.ravel())) + "}")
    generate_artifacts(
        parser.parse_model(text),
        requires_grad=["w"],
        loss=MSELoss(),
        optimizer=SGD(lr=0.5),
        artifact_directory=folder,
    )
    return CheckpointState.load_checkpoint(folder / "checkpoint"), w


def _compute(
    w: np.ndarray, centre: np.ndarray, x: np.ndarray, target: np.ndarray, read: str
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the loss in training, the gradient of w and the new centre, in float64."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    h = x @ w
    new = 0.75 * centre + 0.25 * h.mean(0)
    far = h - (new if read == "moved" else centre) - target
    slope = 2 * far / far.size
    if read == "moved":  # the model stops no gradient: the mean moves with w
        slope = slope - 0.25 * slope.sum(0) / ROWS
    return float((far**2).mean()), x.T @ slope, new


@pytest.mark.parametrize("read", ["moved", "centre"])
def test_a_buffer_moves_after_the_backward_pass(read: str, tmp_path: Path) -> None:
    state, w = _make(tmp_path, read)
    centre = np.array(state.parameters["centre"].data, np.float64)
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    for _ in range(3):
        x, target = RNG.standard_normal((2, ROWS, WIDTH)).astype(np.float32)
        loss, gradient, centre = _compute(w, centre, x, target, read)
        module.lazy_reset_grad()
        assert float(module.train()(x, target)) == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(get_gradient(state, "w"), gradient, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(state.parameters["centre"].data, centre, rtol=1e-5, atol=1e-6)
        still = ((x @ w - centre - target) ** 2).mean()
        assert float(module.eval()(x, target)) == pytest.approx(float(still), rel=1e-5)
        np.testing.assert_allclose(state.parameters["centre"].data, centre, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("read", ["moved", "centre"])
def test_a_joined_step_moves_it_too(read: str, tmp_path: Path) -> None:
    state, w = _make(tmp_path, read)
    centre = np.array(state.parameters["centre"].data, np.float64)
    trainer = Trainer(tmp_path, threads=2)
    for _ in range(3):
        x, target = RNG.standard_normal((2, ROWS, WIDTH)).astype(np.float32)
        loss, gradient, centre = _compute(w, centre, x, target, read)
        assert float(trainer.step(x, target)) == pytest.approx(loss, rel=1e-4)
        w = (w - 0.5 * gradient).astype(np.float32)
        actual = trainer.state.parameters
        np.testing.assert_allclose(actual["centre"].data, centre, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(actual["w"].data, w, rtol=1e-4, atol=1e-5)
