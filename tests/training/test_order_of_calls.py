"""Calls in an unusual order: values that come later, a second optimizer, losses without a value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.api import CheckpointState, Module, Optimizer
from engine.artifacts import AdamW
from engine.errors import (
    DTypeError,
    ModelError,
    NonFiniteError,
    StateError,
)
from tests.support.mlp import Training
from tests.support.mlp_files import FILES, make_artifact
from tests.support.places import GOLDENS


def test_a_nominal_state_waits_for_values(tmp_path: Path) -> None:
    make_artifact(artifact_directory=tmp_path, optimizer=AdamW(), nominal_checkpoint=True)
    state = CheckpointState.load_checkpoint(tmp_path / "nominal_checkpoint")
    bias = np.zeros(48, np.float32)
    with pytest.raises(ModelError, match=r"'6\.weight'"):  # a failure must not fix any shape
        Module(GOLDENS / "cnn" / "training_model.onnx", state)
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    other = Training()
    x, y = other.x, other.y
    assert "0.bias" in state.parameters
    with pytest.raises(StateError, match=r"Please load the parameter states first$"):
        state.parameters["0.bias"]
    for _, parameter in state.parameters:
        with pytest.raises(StateError, match=r"Please load the parameter states first$"):
            parameter.data.any()
    with pytest.raises(StateError, match=r"Please load all the parameter states first$"):
        state.parameters["0.bias"] = bias
    for call in (
        lambda: module.train()(x, y), lambda: module.eval()(x, y), optimizer.step,
        module.get_contiguous_parameters, lambda: module.inference_model_to_bytes(["output"]),
        lambda: module.export_model_for_inferencing(tmp_path / "m.onnx", ["output"]),
    ):  # fmt: skip
        with pytest.raises(StateError, match=r"Please load the model parameters first\.$"):
            call()
    with pytest.raises(StateError, match="trainable_only=False"):
        module.copy_buffer_to_parameters(np.zeros(3610, np.float32))
    with pytest.raises(DTypeError):
        module.copy_buffer_to_parameters(np.zeros(3610), trainable_only=False)
    assert module.get_parameters_size() == 3610
    assert not state.loaded
    assert not CheckpointState.from_bytes(state.to_bytes(True)).loaded  # saving is possible
    values = other.module.get_contiguous_parameters()
    module.copy_buffer_to_parameters(values, trainable_only=False)
    assert module.train()(x, y) == other.module(x, y)
    optimizer.step()


def test_a_second_optimizer_takes_over() -> None:
    training = Training()
    training.module(training.x, training.y)
    training.optimizer.step()
    second = Optimizer(FILES["optimizer"], training.module)
    before = training.kept()
    with pytest.raises(StateError, match="another Optimizer was made for this state"):
        training.optimizer.step()
    assert training.kept() == before
    second.step()
    assert second._group.step == 2


@pytest.mark.parametrize("reset", [True, False])
def test_a_loss_that_is_not_finite_spoils_no_later_step(reset: bool) -> None:
    training = Training()
    module = training.module
    module.check_finite = True
    module(training.x, training.y)
    once = training.kept()
    if reset:
        module.lazy_reset_grad()
    with pytest.raises(NonFiniteError, match="is .*nan" + ("]$" if reset else ".*lazy_reset_grad")):
        module(training.x * np.float32(np.nan), training.y)
    if not reset:
        module.lazy_reset_grad()
    module(training.x, training.y)
    assert training.kept() == once
