"""Ten training steps of onnxruntime-training 1.19.2, from its artifacts and from ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import artifacts
from engine.api import CheckpointState, Module, Optimizer

GOLDENS = Path(__file__).parent / "data" / "goldens"
CASES = ("mlp", "mlp_accumulate", "regression_sgd", "bce", "l1", "cnn")
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
    np.testing.assert_array_equal(module.get_contiguous_parameters(), trace["parameters_before"])
    micro = spec["micro_batches_per_step"]
    module.eval()
    loss = module(trace["x"][micro - 1], trace["y"][micro - 1])
    assert loss == pytest.approx(trace["eval_loss_before"], rel=1e-4)
    losses = []
    for step in range(spec["steps"]):
        module.train()
        for k in range(step * micro, (step + 1) * micro):
            losses.append(float(module(trace["x"][k], trace["y"][k])))
        optimizer.set_learning_rate(trace["learning_rates"][step])
        optimizer.step()
        module.lazy_reset_grad()
    for name in spec["requires_grad"]:  # of the last step: the trace was taken through a view
        expected = trace[f"grad/{name}"]
        np.testing.assert_allclose(
            state.parameters[name].grad, expected, rtol=0, atol=1e-4 * np.abs(expected).max(),
            err_msg=name,
        )  # fmt: skip
    np.testing.assert_allclose(losses, trace["losses"], rtol=1e-4)
    after = trace["parameters_after"]
    np.testing.assert_allclose(
        module.get_contiguous_parameters(), after, rtol=0, atol=1e-3 * np.abs(after).max()
    )
    module.eval()
    loss = module(trace["x"][-1], trace["y"][-1])
    assert loss == pytest.approx(trace["eval_loss_after"], rel=1e-3)
