"""Changes by exporters are reported, and only if there are any.

tests/support/make_exports.py has made the models of tests/data/exports, and says what each form is.
"""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import engine
import engine.onnxblock as onnxblock
from engine.api import CheckpointState, Module
from engine.artifacts import LossType, generate_artifacts
from engine.errors import ModelWarning, NameNotFoundError
from engine.graphs.io import onnx_io
from engine.tools import cli
from tests.support.harness import get_gradient
from tests.support.places import EXPORTS

FOLDED = {
    "convolution-new_folded": r"Conv '.*' took over batch normalisation; .*optimize=False",
    "convolution-old_folded": r"the weights of Conv '/conv/Conv' were computed.*TRAINING",
    "plain-new_folded": r"Gemm '.*', Gemm '.*' took over batch normalisation",
    "weight_norm-new_folded": r"parameters were folded.*: parametrizations\.weight\.original0, ",
    "weight_norm-old_folded": r"the weights of Gemm '/Gemm' were computed",
    "adapted-new_folded": r"were folded into other weights: a, b, base\.weight;",
    "scaled-new_folded": r"parameters were folded into other weights: scale;",
    "norms-new_folded": r"equal are stored as one: second\.weight, second\.bias;",
}
PATHS = sorted(EXPORTS.glob("*.onnx"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_what_was_folded_is_told(path: Path) -> None:
    """Also without a word about a tied embedding, an unused parameter and numbers of the code."""
    notes = onnx_io.load(path).notes
    expected = FOLDED.get(path.stem)
    if expected is None:
        assert notes == ()
    else:
        assert len(notes) == 1
        assert re.search(expected, notes[0])


def test_every_folded_form_is_there() -> None:
    assert FOLDED.keys() <= {path.stem for path in PATHS}


def floats(path: Path) -> list[str]:
    """The names of the weights of a model, those that only Identity nodes name included."""
    proto = onnx.load(path)
    weights = [i.name for i in proto.graph.initializer if i.data_type == onnx.TensorProto.FLOAT]
    equal = [n.output[0] for n in proto.graph.node if n.op_type == "Identity"]
    return [n for n in (*weights, *equal) if n.endswith((".weight", ".bias"))]


def test_artifacts_of_a_folded_model_warn(tmp_path: Path) -> None:
    path = EXPORTS / "convolution-new_folded.onnx"
    with pytest.warns(ModelWarning, match="took over batch normalisation") as caught:
        generate_artifacts(
            path, ["conv.weight"], loss=LossType.MSELoss, artifact_directory=tmp_path
        )
    assert caught[0].filename == __file__
    message = r"'norm\.weight'.*the module had norm\.weight, which the exporter has folded"
    with pytest.raises(NameNotFoundError, match=message), pytest.warns(ModelWarning):
        generate_artifacts(path.read_bytes(), ["norm.weight"], artifact_directory=tmp_path)


class Squares(onnxblock.TrainingBlock):
    """The mean square of an output."""

    def build(self, output: str) -> Any:
        return onnxblock.blocks.ReduceMean(keepdims=False)(onnxblock.blocks.Pow(2.0)(output))


def test_blocks_warn_as_artifacts_do() -> None:
    folded = onnx.load(EXPORTS / "adapted-new_folded.onnx")
    block = Squares()
    block.requires_grad("base.bias")
    with onnxblock.base(folded), pytest.warns(ModelWarning, match="were folded") as caught:
        block(folded.graph.output[0].name)
    assert [w.filename for w in caught] == [__file__]
    norms = onnx.load(EXPORTS / "plain-new.onnx")
    block = Squares()
    block.requires_grad("first.weight")
    with onnxblock.base(norms), pytest.warns(ModelWarning, match="uses and keeps") as caught:
        block(norms.graph.output[0].name)
    assert [w.filename for w in caught] == [__file__]


@pytest.mark.parametrize("form", ["new", "old", "old_folded"])
@pytest.mark.parametrize("model", ["plain", "norms", "tied"])
def test_artifacts_of_other_models_do_not(model: str, form: str, tmp_path: Path) -> None:
    path = EXPORTS / f"{model}-{form}.onnx"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        generate_artifacts(path, floats(path), loss=LossType.MSELoss, artifact_directory=tmp_path)
    copied = (model, form) == ("tied", "old_folded")  # tests/offline/test_ties.py has more
    assert ["trained separately" in str(w.message) for w in caught] == [True] * copied


def test_the_table_of_ops_tells_too(capsys: pytest.CaptureFixture[str]) -> None:
    path = EXPORTS / "adapted-new_folded.onnx"
    assert str(engine.supported(path)).splitlines()[-1].startswith("warning: the exporter has")
    assert "warning" not in str(engine.supported(EXPORTS / "adapted-new.onnx"))
    assert cli.main(["ops", str(path), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out).keys() == {str(path)}
    assert "warning: the exporter has changed" in printed.err


def test_equal_parameters_that_were_stored_once_train_apart(tmp_path: Path) -> None:
    """The older exporter stores them once in evaluation mode; Identity nodes keep their names."""
    path = EXPORTS / "norms-old_folded.onnx"
    assert "second.weight" not in {i.name for i in onnx.load(path).graph.initializer}
    generate_artifacts(path, floats(path), loss=LossType.MSELoss, artifact_directory=tmp_path)
    other = EXPORTS / "norms-old.onnx"
    generate_artifacts(
        other, floats(other), loss=LossType.MSELoss, artifact_directory=tmp_path, prefix="apart_"
    )
    x, target = np.random.default_rng(0).standard_normal((2, 5, 4)).astype(np.float32)
    actual = []
    for prefix in ("", "apart_"):
        state = CheckpointState.load_checkpoint(tmp_path / f"{prefix}checkpoint")
        for name, values in WEIGHTS.items():
            state.parameters[name].data = values
        Module(tmp_path / f"{prefix}training_model.onnx", state, threads=1)(x, target)
        actual.append({name: np.array(p.grad) for name, p in state.parameters})
    assert actual[0].keys() == actual[1].keys() == WEIGHTS.keys()
    for name, values in actual[0].items():
        np.testing.assert_allclose(values, actual[1][name], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "copy"),
    [
        ("node_clone", "clone"),
        ("/Identity", "/Identity_output_0"),
        ("Identity_4", "7"),
        ("Identity_5", "onnx::Add_9"),
    ],
)
def test_a_copy_that_the_module_makes_is_no_parameter(name: str, copy: str, tmp_path: Path) -> None:
    """`w.clone()` as three exporters write it: y = x w + copy of w, whose gradient flows to w."""
    weight = np.array([[2.0, 3.0]], np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Identity", ["w"], [copy], name=name),
            helper.make_node("Mul", ["x", "w"], ["xw"], name="product"),
            helper.make_node("Add", ["xw", copy], ["y"], name="sum"),
        ],
        "main_graph",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, producer_name="pytorch", ir_version=8)
    generate_artifacts(model, ["w"], loss=LossType.MSELoss, artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, threads=1)
    x, target = np.array([[1.0, -4.0]], np.float32), np.zeros((1, 2), np.float32)
    module(x, target)
    expected = (x * weight + weight) * (x + 1)  # 2 / 2 elements
    np.testing.assert_allclose(get_gradient(state, "w"), expected, rtol=1e-6)


WEIGHTS = {
    i.name: numpy_helper.to_array(i)
    for i in onnx.load(EXPORTS / "norms-new.onnx").graph.initializer
}


@pytest.mark.parametrize("form", ["new", "old", "old_folded"])
def test_a_norm_without_scale_and_bias_has_nothing_to_freeze(form: str, tmp_path: Path) -> None:
    """It trains; the one that has them and was never trained is frozen, with a warning."""
    path = EXPORTS / f"plain-{form}.onnx"
    with pytest.warns(ModelWarning, match=r"batch normalisation '[^']*' uses and keeps") as caught:
        generate_artifacts(
            path, ["first.weight", "last.weight"], loss=LossType.MSELoss,
            artifact_directory=tmp_path,
        )  # fmt: skip
    assert [w.filename for w in caught] == [__file__]
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert {"plain.running_mean", "plain.running_var"} <= {n for n, _ in state.parameters}
    assert "fresh.running_mean" not in state.parameters
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    Module(tmp_path / "training_model.onnx", state, threads=1)(x, x[:, :2])
    assert np.any(state.parameters["plain.running_mean"].data)
