"""Ten training steps of onnxruntime-training 1.19.2, from its artifacts and from ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import artifacts
from engine.api import CheckpointState, Module, Optimizer
from tests.support.harness import get_gradient
from tests.support.places import GOLDENS

CASES = (
    "mlp", "mlp_accumulate", "regression_sgd", "bce", "l1", "cnn", "mobilenet", "transformer",
    "lstm",
)  # fmt: skip
FILES = {"mlp_accumulate": "mlp"}


def _ours(case: str, spec: dict[str, Any], folder: Path) -> Path:
    artifacts.generate_artifacts(
        str(GOLDENS / FILES.get(case, case) / "forward.onnx"),
        requires_grad=spec["requires_grad"],
        frozen_params=spec["frozen"],
        loss=artifacts.LossType[spec["loss"]],
        optimizer=artifacts.OptimType[spec["optimizer"]],
        artifact_directory=folder,
    )
    return folder


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("origin", ["theirs", "ours"])
@pytest.mark.parametrize("case", CASES)
def test_training_trace(case: str, origin: str, threads: int, tmp_path: Path) -> None:
    spec = json.loads((GOLDENS / case / "case.json").read_text())
    trace = np.load(GOLDENS / case / "trace.npz")
    folder = GOLDENS / FILES.get(case, case)
    if origin == "ours":
        folder = _ours(case, spec, tmp_path)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(
        folder / "training_model.onnx", state, folder / "eval_model.onnx", threads=threads
    )
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)

    def trained() -> np.ndarray:
        return np.asarray(module.get_contiguous_parameters(trainable_only=True))

    np.testing.assert_array_equal(trained(), trace["parameters_before"])
    micro = spec["micro_batches_per_step"]
    module.eval()
    loss = module(trace["x"][micro - 1], trace["y"][micro - 1])
    if "eval_loss_before" in trace:  # its own eval model of mobilenet onnxruntime refuses
        assert loss == pytest.approx(trace["eval_loss_before"], rel=1e-4)
    losses = []
    for step in range(spec["steps"]):
        module.train()
        for k in range(step * micro, (step + 1) * micro):
            losses.append(float(module(trace["x"][k], trace["y"][k])))
        optimizer.set_learning_rate(trace["learning_rates"][step])
        optimizer.step()
        module.lazy_reset_grad()
    expected = {n: trace[f"grad/{n}"] for n in spec["requires_grad"]}
    noise = 1e-6 * max(np.abs(g).max() for g in expected.values())  # of gradients that are 0
    for name, dx in expected.items():  # of the last step: the trace was taken through a view
        np.testing.assert_allclose(
            get_gradient(state, name), dx, rtol=0, atol=1e-4 * np.abs(dx).max() + noise,
            err_msg=name,
        )  # fmt: skip
    np.testing.assert_allclose(losses, trace["losses"], rtol=1e-4)
    after = trace["parameters_after"]
    np.testing.assert_allclose(trained(), after, rtol=0, atol=1e-3 * np.abs(after).max())
    module.eval()
    loss = module(trace["x"][-1], trace["y"][-1])
    if "eval_loss_after" in trace:
        assert loss == pytest.approx(trace["eval_loss_after"], rel=1e-3)


@pytest.mark.parametrize("threads", [1, 2])
def test_trace_of_pytorch(threads: int, tmp_path: Path) -> None:
    """Ten steps of a model that onnxruntime-training cannot train: Conv1d and group norm."""
    folder = GOLDENS / "wave_conv1d"
    spec = json.loads((folder / "case.json").read_text())
    trace = np.load(folder / "trace.npz")
    names = spec["requires_grad"]
    artifacts.generate_artifacts(
        folder / "forward.onnx", requires_grad=names, loss=artifacts.LossType[spec["loss"]],
        optimizer=artifacts.AdamW(adam_mode=0), artifact_directory=tmp_path,
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, threads=threads)
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(spec["initial_learning_rate"])
    for step in range(spec["steps"]):
        loss = float(module(trace["x"][step], trace["y"][step]))
        assert loss == pytest.approx(trace["losses"][step], rel=1e-4)
        for name in names if step == 0 else ():
            expected = trace[f"grad/{name}"]
            np.testing.assert_allclose(
                get_gradient(state, name), expected, rtol=0, atol=1e-4 * np.abs(expected).max()
            )
        optimizer.step()
        module.lazy_reset_grad()
    for name in names:
        expected = trace[f"after/{name}"]
        np.testing.assert_allclose(
            state.parameters[name].data, expected, rtol=0, atol=1e-3 * np.abs(expected).max()
        )
