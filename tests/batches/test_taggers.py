"""Sequence models exported from PyTorch: three steps against its losses and first gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.api import CheckpointState, Module, Optimizer
from engine.artifacts import LossType, OptimType, generate_artifacts
from engine.graphs.io import onnx_io
from tests.support.harness import get_gradient
from tests.support.places import DATA

TAGGERS = DATA / "taggers"
# Model -> weights that go by their names in PyTorch; `lstm_folded` holds others, made of those.
SHARED = {"lstm_lengths": 11, "gru_stacked": 10, "rnn_relu": 6, "lstm_folded": 2}


@pytest.mark.parametrize("name", SHARED)
def test_steps_of_a_tagger(name: str, tmp_path: Path) -> None:
    model, trace = TAGGERS / f"{name}.onnx", np.load(TAGGERS / f"{name}.npz")
    weights = onnx_io.load(model).initializers
    generate_artifacts(
        str(model),
        requires_grad=[n for n, a in weights.items() if a.dtype.kind == "f" and a.size > 1],
        loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD, artifact_directory=tmp_path,
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, threads=2)
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.5)
    inputs = [trace[k] for k in trace if k.startswith("in/")]
    shared = [n for n in weights if f"grad/{n}" in trace]
    assert len(shared) == SHARED[name]
    losses = []
    for k in range(3):
        losses.append(float(module(*[x[k] for x in inputs], trace["labels"][k])))
        for parameter in shared if k == 0 else ():
            gradient, expected = get_gradient(state, parameter), trace[f"grad/{parameter}"]
            np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-6, err_msg=parameter)
        optimizer.step()
        module.lazy_reset_grad()
    np.testing.assert_allclose(losses, trace["losses"], rtol=1e-5)
