"""Text in models: constants that are cast to numbers; anything else is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, parser

from engine import backend
from engine.api import CheckpointState, Module
from engine.artifacts import LossType, generate_artifacts
from engine.errors import DTypeError, InputError, ModelError
from tests.support.harness import drop_type

X = np.ones(2, np.float32)


def model(nodes: str, *texts: str, kind: str = "float") -> ModelProto:
    """x and y of two elements, and the constant t of texts."""
    head = f'<ir_version: 8, opset_import: ["": 17]> g ({kind}[2] x) => ({kind}[2] y)'
    proto = parser.parse_model(f"{head} {{{nodes}}}")
    data = [text.encode() for text in texts]
    proto.graph.initializer.append(
        helper.make_tensor("t", TensorProto.STRING, [len(data)], drop_type(data))
    )
    return proto


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("1.5", "-2e-3"), [2.5, 0.998]),
        (("inf", "+INF"), [np.inf] * 2),
        (("NaN", "7"), [np.nan, 8]),
    ],
)
def test_texts_are_cast(texts: tuple[str, ...], expected: list[float]) -> None:
    (y,) = backend.prepare(model("c = Cast<to=1>(t) y = Add(x, c)", *texts)).run([X])
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_texts_are_cast_to_integers() -> None:
    proto = model("c = Cast<to=7>(t) y = Add(x, c)", "12", "-3", kind="int64")
    (y,) = backend.prepare(proto).run([np.zeros(2, np.int64)])
    assert y.tolist() == [12, -3]


@pytest.mark.parametrize(
    "constant", ['value_string="2"', 'value_strings=["2"]', 'value=string[1] {"2"}']
)
def test_constant_nodes_of_text(constant: str) -> None:
    nodes = f"k = Constant<{constant}>() c = Cast<to=1>(k) y = Add(x, c)"
    (y,) = backend.prepare(model(nodes, "unused")).run([X])
    assert y.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("nodes", "text", "error", "message"),
    [
        (
            "c = Cast<to=1>(t) y = Add(x, c)",
            "two",
            ModelError,
            "constant 't': expected texts of float32: could not",
        ),
        (
            "c = Cast<to=3>(t) y = Add(x, x)",
            "300",
            ModelError,
            "'t': expected texts of int8",
        ),
        (
            "e = Equal(t, t) y = Add(x, x)",
            "a",
            DTypeError,
            "Equal '' reads 't' of element type str",
        ),
        ("c = Cast<to=9>(t) y = Add(x, x)", "1", DTypeError, "supported: Cast to numbers"),
    ],
)
def test_what_is_refused(nodes: str, text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        backend.prepare(model(nodes, text))


def test_inputs_of_text_are_read_as_the_numbers_they_are_cast_to(tmp_path: Path) -> None:
    """In artifacts, too, which stay models of text."""
    text = '<ir_version: 8, opset_import: ["": 17]> g (string[n, 2] t) => (float[n, 2] y)'
    nodes = "c = Cast<to=1>(t) d = Cast<to=1>(t) e = Mul(c, d) y = MatMul(e, w)"
    proto = parser.parse_model(f"{text} <float[2, 2] w = {{1, 2, 3, 4}}> {{{nodes}}}")
    generate_artifacts(proto, ["w"], loss=LossType.MSELoss, artifact_directory=tmp_path)
    for name in ("training_model", "eval_model"):
        written = onnx.load(tmp_path / f"{name}.onnx")
        onnx.checker.check_model(written)
        assert written.graph.input[0].type.tensor_type.elem_type == TensorProto.STRING
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    models = (tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    module = Module(*models, threads=1)
    texts, target = np.array([["1.5", "-1e0"]]), np.array([[0, 0]], np.float32)
    y = np.array([[1.5**2, 1]]) @ [[1, 2], [3, 4]]
    for given in (texts, texts.astype(object), texts.astype("S"), texts.tolist()):
        assert module(given, target) == pytest.approx(float(np.mean(y**2)))
        assert module.eval()(given, target) == pytest.approx(float(np.mean(y**2)))
        module.train()
    (outcome,) = backend.prepare(module.inference_model_to_bytes(["y"])).run([texts])
    np.testing.assert_allclose(outcome, y)
    with pytest.raises(InputError, match="'t': expected texts of float32: could not convert"):
        module(np.array([["1.5", "two"]]), target)
    with pytest.raises(DTypeError, match="input 't': expected texts, got float32 array"):
        module(target, target)


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ("y = Neg(x)", "nothing"),
        ("s = Size(t) f = Cast<to=1>(s) y = Add(x, f)", "Size ''"),
        ("c = Cast<to=1>(t) i = Cast<to=7>(t) j = Cast<to=1>(i) y = Add(c, j)", "Cast '', Cast ''"),
    ],
)
def test_other_inputs_of_text_are_refused(nodes: str, found: str) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x, string[2] t) => (float[2] y)'
    with pytest.raises(DTypeError, match=f"input 't': element type string, read by {found}; suppo"):
        backend.prepare(parser.parse_model(f"{text} {{{nodes}}}"))
