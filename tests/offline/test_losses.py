"""Losses against PyTorch: values and gradients of artifacts with them.

tests/support/make_losses.py writes the results of PyTorch to tests/data/torch_losses.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine.onnxblock as onnxblock
from engine import artifacts
from engine.api import CheckpointState, Module
from engine.errors import InputError, ShapeError
from tests.support.harness import get_gradient, make_identity
from tests.support.places import DATA

CASES = json.loads((DATA / "losses.json").read_text())["cases"]
ROWS = json.loads((DATA / "torch_losses.json").read_text())["cases"]


def name_of(case: dict[str, Any]) -> str:
    options = case["options"].items()
    return f"{case['loss']}-" + ",".join(f"{k}={v}" for k, v in options if k != "weight")


def test_every_loss_has_rows() -> None:
    """The two that onnxruntime-training had, too, are in tests/data/goldens and tools/dev/cases."""
    older = {"MSELoss", "BCEWithLogitsLoss", "L1Loss"}
    assert {case["loss"] for case in (*CASES, *ROWS)} | older == set(artifacts.LossType.__members__)


@pytest.mark.parametrize("case", [*CASES, *ROWS], ids=name_of)
@pytest.mark.parametrize("where", [artifacts, onnxblock.loss], ids=["artifacts", "onnxblock"])
def test_values_and_gradients_are_torch_s(case: dict[str, Any], where: Any, tmp_path: Path) -> None:
    options = dict(case["options"])
    for name, value in options.items():
        options[name] = np.array(value) if isinstance(value, list) else value
    targets = [np.array(t) for t in case.get("targets", [case.get("target")])]
    inputs = {f"{i}": np.array(x) for i, x in enumerate(case["inputs"])}
    artifacts.generate_artifacts(
        make_identity(inputs), [f"w{n}" for n in inputs],
        loss=getattr(where, case["loss"])(**options),
        artifact_directory=tmp_path,
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, threads=1)
    assert module.output_names() == ["loss"]
    actual_module = module(*inputs.values(), *targets)
    assert actual_module.shape == ()
    assert actual_module == pytest.approx(case["value"], rel=1e-12)
    for n, expected in zip(inputs, case["gradients"], strict=True):
        grad = state.parameters[f"w{n}"].grad
        assert grad is not None
        np.testing.assert_allclose(grad, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["HuberLoss", "KLDivLoss", "NLLLoss", "CosineEmbeddingLoss"])
def test_types_and_enums(name: str, tmp_path: Path) -> None:
    """An enum stands for the class with its default options."""
    inputs = {str(i): np.ones((2, 3)) for i in range(2 if name.startswith("Cosine") else 1)}
    kinds = (artifacts.LossType[name], getattr(artifacts, name)())
    for folder, loss in zip("ab", kinds, strict=True):
        artifacts.generate_artifacts(
            make_identity(inputs), ["w0"], loss=loss, artifact_directory=tmp_path / folder
        )
    a, b = ((tmp_path / f / "training_model.onnx").read_bytes() for f in "ab")
    assert a == b


def test_smoothing_by_newer_opsets(tmp_path: Path) -> None:
    """ReduceMean takes its axes as an input from opset 18 on."""
    case = next(c for c in CASES if c["options"] == {"reduction": "mean", "label_smoothing": 0.1})
    x = {"0": np.array(case["inputs"][0])}
    model = make_identity(x)
    model.opset_import[0].version = 18
    loss = artifacts.CrossEntropyLoss(label_smoothing=0.1)
    artifacts.generate_artifacts(model, ["w0"], loss=loss, artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, threads=1)
    assert module(x["0"], np.array(case["target"])) == pytest.approx(case["value"], rel=1e-12)


def test_smoothing_without_a_label_that_counts_is_zero(tmp_path: Path) -> None:
    x = {"0": np.ones((2, 3))}
    loss = artifacts.CrossEntropyLoss(np.ones(3), ignore_index=1, label_smoothing=0.5)
    artifacts.generate_artifacts(make_identity(x), ["w0"], loss=loss, artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, threads=1)
    assert module(x["0"], np.array([1, 1])) == 0
    assert not get_gradient(state, "w0").any()


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (lambda: artifacts.HuberLoss(delta=0), InputError, "delta=0: expected above 0"),
        (lambda: artifacts.SmoothL1Loss(beta=-1), InputError, "beta=-1: expected 0 or more"),
        (lambda: artifacts.CrossEntropyLoss(label_smoothing=1.5), InputError, "from 0 to 1"),
        (lambda: artifacts.CosineEmbeddingLoss(margin=2), InputError, "from -1 to 1"),
        (artifacts.CosineEmbeddingLoss, InputError, "takes two model outputs, optionally"),
        (lambda: artifacts.MSELoss("batchmean"), InputError, "expected one of mean, sum, none"),
    ],
)
def test_what_errors_say(loss: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        artifacts.generate_artifacts(
            make_identity({"0": np.ones((2, 3))}), ["w0"], loss=loss(), artifact_directory=tmp_path
        )


def test_cosine_needs_two_of_one_shape(tmp_path: Path) -> None:
    model = make_identity({"0": np.ones((2, 3)), "1": np.ones((2, 3, 1))})
    with pytest.raises(ShapeError, match=r"expected two of \[batch, features\]"):
        artifacts.generate_artifacts(
            model, ["w0"], loss=artifacts.LossType.CosineEmbeddingLoss, artifact_directory=tmp_path
        )
    with pytest.raises(InputError, match=r"margin=2\.0: expected from -1 to 1"):
        artifacts.generate_artifacts(
            model, ["w0"], loss=artifacts.CosineEmbeddingLoss(2.0), loss_input_names=["y0", "y0"],
            artifact_directory=tmp_path,
        )  # fmt: skip
