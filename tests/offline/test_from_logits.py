"""Losses of models that end in probabilities: computed from the scores before them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from onnxruntime import InferenceSession

import engine as eg
from engine.artifacts import generate_artifacts
from engine.base.aliases import Array
from engine.errors import ModelError, ModelWarning
from engine.graphs.io import onnx_io
from engine.graphs.offline.head import find_scores
from engine.trainer.recipe import Recipe

RNG = np.random.default_rng(28)
X = RNG.standard_normal((6, 4)).astype(np.float32)
W = RNG.standard_normal((4, 3)).astype(np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 2])
TARGET = (RNG.random((6, 3)) < 0.5).astype(np.float32)
FUNCTION = {"softmax": "Softmax(h)", "sigmoid": "Sigmoid(h)", "": "Identity(h)"}

# As JAX writes a softmax: the sum of rows or, which is another function, of columns.
SUM = (
    "column = Constant<value = int64[2] {{-1, 1}}>() k = Constant<value = int64[1] {{{}}}>() "
    "m = ReduceMax(h) z = Sub(h, m) e = Exp(z) s = ReduceSum<keepdims = 0>(e, k)"
)

PARTS = (
    "i = Constant<value = int64 {0}>() n = Constant<value = int64[3] {1, 1, 1}>() "
    "q = SplitToSequence<axis = 1>(h, n) a = SequenceAt(q, i) j = Concat<axis = 1>(a, a, a)"
)


def make(end: str) -> onnx.ModelProto:
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    m (float[n,4] x) => (float[n,3] y) {{ h = MatMul(x, w) {end} }}""")
    proto.graph.initializer.append(numpy_helper.from_array(W, "w"))
    return proto


def train(model: onnx.ModelProto, loss: Any, target: Array) -> eg.Trainer:
    trainer = eg.Trainer.from_onnx(model.SerializeToString(), loss, eg.SGD(lr=0.5))
    for _ in range(3):
        trainer.step(X, target)
    return trainer


@pytest.mark.parametrize(
    ("loss", "function", "target"),
    [
        ("cross_entropy", "softmax", LABELS),
        (eg.CrossEntropyLoss(label_smoothing=0.1), "softmax", LABELS),
        (eg.DiceLoss(), "softmax", LABELS),
        (eg.FocalLoss(activation="softmax"), "softmax", LABELS),
        ("bce_with_logits", "sigmoid", TARGET),
        (eg.FocalLoss(), "sigmoid", TARGET),
    ],
)
def test_training_is_the_one_of_scores_and_predictions_are_probabilities(
    loss: Any, function: str, target: Array, tmp_path: Path
) -> None:
    scores = train(make("y = Identity(h)"), loss, target)
    with pytest.warns(ModelWarning, match=f"'y' is probabilities, made by a {function}"):
        trainer = train(make(f"y = {FUNCTION[function]}"), loss, target)
    w = trainer.state.parameters["w"].data
    np.testing.assert_array_equal(w, scores.state.parameters["w"].data)
    h = X @ w
    p = np.exp(h - h.max(1, keepdims=True))
    p = p / p.sum(1, keepdims=True) if function == "softmax" else 1 / (1 + np.exp(-h))
    np.testing.assert_allclose(trainer.predict(X), p, atol=1e-6)
    trainer.export(tmp_path / "trained.onnx")
    session = InferenceSession(tmp_path / "trained.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": X})[0], p, atol=1e-6)
    assert trainer.threshold == (0.5 if function == "sigmoid" else None)
    assert scores.threshold == (0.0 if function == "sigmoid" else None)


def test_each_output_has_its_own() -> None:
    model = make("y = Softmax(h) z = Sigmoid(h)")
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, ["n", 3]))
    with pytest.warns(ModelWarning, match="is probabilities"):
        trainer = eg.Trainer.from_onnx(
            model.SerializeToString(), {"y": "cross_entropy", "z": ("bce_with_logits", 0.5)}
        )
    assert trainer.recipe is not None
    table = Recipe.of_table(json.loads(json.dumps(trainer.recipe.to_table())), "recipe")
    assert isinstance(table.loss, dict)
    assert table.loss["y"][0].from_logits is table.loss["z"][0].from_logits is False


@pytest.mark.parametrize("loss", [eg.CrossEntropyLoss(), {"y": eg.CrossEntropyLoss()}])
def test_artifacts_are_as_onnxruntime_makes_them_and_say_so(loss: Any, tmp_path: Path) -> None:
    with pytest.warns(ModelWarning, match="applies another one, as onnxruntime's does"):
        generate_artifacts(
            make("y = Softmax(h)"),
            ["w"],
            loss=loss,
            optimizer=eg.SGD(),
            artifact_directory=tmp_path,
        )
    loss_node = next(
        n for n in onnx.load(tmp_path / "eval_model.onnx").graph.node if "Loss" in n.op_type
    )
    assert loss_node.input[0] == "y"


CONSTANTS: dict[str, Array] = {
    "half": np.full((1, 3), 0.5, np.float32),
    "last": np.array([2], np.int64),
}


def make_with_constants(end: str) -> onnx.ModelProto:
    model = make(end)
    for name, value in CONSTANTS.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


@pytest.mark.parametrize(
    "end",
    [
        "p = Sigmoid(h) u = Unsqueeze(p, last) y = ReduceMean<axes=[2], keepdims=0>(u)",
        "p = Sigmoid(h) q = Sigmoid(p) c = Greater(p, half) y = Where(c, p, q)",
    ],
    ids=["mean of a speech detector", "of one of two steps"],
)
def test_a_loss_of_values_made_of_probabilities_warns(end: str) -> None:
    model = make_with_constants(end)
    with pytest.warns(ModelWarning, match="'y' is made of probabilities of a sigmoid"):
        train(model, "bce_with_logits", TARGET)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, eg.BCEWithLogitsLoss(from_logits=True), TARGET)


@pytest.mark.parametrize(
    "end",
    [
        "p = Sigmoid(h) c = Greater(p, half) y = Where(c, p, h)",
        "p = Sigmoid(h) y = Log(p)",
        "p = Sigmoid(h) y = Sub(p, half)",
    ],
)
def test_other_values_are_not_taken_for_probabilities(end: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(make_with_constants(end), "bce_with_logits", TARGET)


@pytest.mark.parametrize("asked", [True, False])
def test_who_says_which_is_not_warned(asked: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(make("y = Softmax(h)"), eg.CrossEntropyLoss(from_logits=asked), LABELS)


def test_probabilities_that_nothing_known_makes_are_refused() -> None:
    with pytest.raises(ModelError, match=r"'y' is made by Exp .*; supported: Softmax along axis 1"):
        train(make("y = Exp(h)"), eg.CrossEntropyLoss(from_logits=False), LABELS)


@pytest.mark.parametrize(
    ("end", "activation", "scores"),
    [
        ("y = Softmax<axis = 1>(h)", "softmax", "h"),
        ("y = Softmax<axis = 0>(h)", "softmax", None),
        ("y = Softmax(h)", "sigmoid", None),
        ("p = Softmax(h) y = Identity(p)", "softmax", "h"),
        ("p = Sigmoid(h) s = Shape(h) y = Reshape(p, s)", "sigmoid", "h"),
        ("p = Softmax(h) y = Log(p)", "softmax", None),
        (f"{SUM.format(1)} u = Reshape(s, column) y = Div(e, u)", "softmax", "z"),
        (
            f"{SUM.format(1)} a = Shape(e) u = Reshape(s, column) v = Expand(u, a) y = Div(e, v)",
            "softmax",
            "z",
        ),
        (f"{SUM.format(0)} y = Div(e, s)", "softmax", None),
        (f"{PARTS} p = Softmax(j) s = Shape(j) y = Reshape(p, s)", "softmax", "j"),
        ("e = Exp(h) s = ReduceSum<keepdims = 1>(e) y = Div(e, s)", "softmax", None),
        ("p = Softmax(h) y = Transpose(p)", "softmax", None),
    ],
)
def test_where_scores_are(end: str, activation: str, scores: str | None) -> None:
    assert find_scores(onnx_io.load(make(end)), "y", activation) == scores
