"""Artifact sets: files of two of them do not train together, whatever left them in one folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.api import CheckpointState, Module, Optimizer
from engine.artifacts import LossType, OptimType, generate_artifacts
from engine.errors import ModelError
from engine.training import artifact_set
from engine.training.artifact_set import SetId
from tests.support.places import GOLDENS

F32 = np.float32
WIDTH = 300  # of the output; its constant is large enough to go to external data
FILES = ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint")


def forward(scale: float = 1.0, seed: int = 0) -> onnx.ModelProto:
    """y = scale (x wᵀ), where x is f32[n, 4] and w f32[WIDTH, 4]."""
    w = np.random.default_rng(seed).standard_normal((WIDTH, 4)).astype(F32)
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"], transB=1, name="fc"),
        helper.make_node("Mul", ["h", "scale"], ["y"], name="mul"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
        [
            numpy_helper.from_array(w, "w"),
            numpy_helper.from_array(np.full(WIDTH, scale, F32), "scale"),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def make(
    folder: Path,
    scale: float = 1.0,
    seed: int = 0,
    optimizer: OptimType = OptimType.AdamW,
    *,
    external: bool = False,
) -> Path:
    generate_artifacts(
        forward(scale, seed),
        requires_grad=["w"],
        loss=LossType.MSELoss,
        optimizer=optimizer,
        artifact_directory=folder,
        nominal_checkpoint=True,
        external_data=external,
    )
    return folder


def train(folder: Path, checkpoint: str = "checkpoint") -> tuple[CheckpointState, float]:
    """Make a step with what is in a folder; the state and the loss."""
    state = CheckpointState.load_checkpoint(folder / checkpoint)
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx", threads=1)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    loss = float(module(np.ones((2, 4), F32), np.zeros((2, WIDTH), F32)))
    optimizer.step()
    return state, loss


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("other", ["another model", "another optimizer"])
def test_a_file_of_another_set_is_refused(name: str, other: str, tmp_path: Path) -> None:
    mine = make(tmp_path / "mine")
    changes = {"scale": 2.0} if other == "another model" else {"optimizer": OptimType.SGD}
    theirs = make(tmp_path / "theirs", **changes)
    same = (theirs / name).read_bytes() == (mine / name).read_bytes()
    assert same == (other == "another optimizer" and name in FILES[:2])
    shutil.copy(theirs / name, mine / name)
    if same:
        train(mine)
        return
    with pytest.raises(
        ModelError, match=r"belong to different artifact sets .*generate_artif"
    ) as e:
        train(mine)
    assert str(mine / name) in str(e.value)


def test_the_same_inputs_give_the_same_files(tmp_path: Path) -> None:
    """And models do not depend on the values of parameters: their plans are found again."""
    one, two = make(tmp_path / "1"), make(tmp_path / "2")
    assert contents(one) == contents(two)
    other = contents(make(tmp_path / "3", seed=1))
    assert {n for n, data in contents(one).items() if data != other[n]} == {"checkpoint"}


def test_saves_keep_the_id_and_other_names_are_free(tmp_path: Path) -> None:
    """A checkpoint continues with other artifacts of the same model, under a name of its own."""
    mine = make(tmp_path / "mine")
    state, first = train(mine)
    assert not list(state.properties)
    CheckpointState.save_checkpoint(state, mine / "checkpoint", include_optimizer_state=True)
    state, second = train(mine)
    assert second < first
    assert state.artifacts == state.trained_by
    CheckpointState.save_checkpoint(state, mine / "trained")
    make(mine, scale=2.0)
    state, loss = train(mine, "trained")
    assert loss == pytest.approx(4 * train_loss(mine / "trained", tmp_path / "mine2"), rel=1e-5)
    CheckpointState.save_checkpoint(state, mine / "checkpoint")  # it is of the new set now
    train(mine)


def train_loss(checkpoint: Path, folder: Path) -> float:
    """The loss of a checkpoint in a set of scale 1, which is elsewhere."""
    make(folder)
    state = CheckpointState.load_checkpoint(checkpoint)
    module = Module(folder / "training_model.onnx", state, threads=1)
    return float(module(np.ones((2, 4), F32), np.zeros((2, WIDTH), F32)))


def test_a_nominal_checkpoint_is_of_the_set(tmp_path: Path) -> None:
    mine, theirs = make(tmp_path / "mine"), make(tmp_path / "theirs", scale=2.0)
    state = CheckpointState.load_checkpoint(mine / "nominal_checkpoint")
    Module(mine / "training_model.onnx", state, threads=1)
    shutil.copy(theirs / "nominal_checkpoint", mine)
    state = CheckpointState.load_checkpoint(mine / "nominal_checkpoint")
    with pytest.raises(ModelError, match="different artifact sets"):
        Module(mine / "training_model.onnx", state, threads=1)


def test_constants_are_of_the_set_by_their_name(tmp_path: Path) -> None:
    """Models that are left over do not read the constants of others."""
    (one,) = make(tmp_path, external=True).glob("constants.*.data")
    models = contents(tmp_path)
    make(tmp_path, scale=3.0, external=True)
    (two,) = tmp_path.glob("constants.*.data")
    assert one != two
    (tmp_path / "training_model.onnx").write_bytes(models["training_model.onnx"])
    with pytest.raises((ModelError, OSError)):
        train(tmp_path)


def test_foreign_artifacts_have_no_id(tmp_path: Path) -> None:
    for name in FILES:
        shutil.copy(GOLDENS / "mlp" / name, tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(
        tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx", threads=1
    )
    Optimizer(tmp_path / "optimizer_model.onnx", module)
    assert state.trained_by == SetId()
    CheckpointState.save_checkpoint(state, tmp_path / "saved")
    assert artifact_set.PROPERTY.encode() not in (tmp_path / "saved").read_bytes()
