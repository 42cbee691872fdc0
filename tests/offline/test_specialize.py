"""Specialisation: models for known values and shapes of their inputs, which then train."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from onnxruntime import InferenceSession

import engine as eg
from engine.artifacts import Specialized, specialize
from engine.base.aliases import Array
from engine.errors import DTypeError, InputError, NameNotFoundError, ShapeError
from engine.tools import cli

RNG = np.random.default_rng(28)

# Two layers for two rates, as in detectors of voices, and one for the rank of a tensor.
MODEL = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
m (float[batch, width] x, int64 rate, bool plain) => (float[batch, n] y, float[batch] s) {
    known = Constant <value = int64 {16000}> ()
    is_fast = Equal(rate, known)
    h = If (is_fast) <
        then_branch = fast () => (float[b, n] o)
            <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> { o = MatMul(x, w) },
        else_branch = slow () => (float[b, n] o)
            <float[2, 3] w = {1, 0, 2, 0, 3, 0}> { o = MatMul(x, w) }
    >
    sizes = Shape(x)
    axis = Constant <value = int64 {1}> ()
    width = Gather(sizes, axis)
    four = Constant <value = int64 {4}> ()
    is_wide = Equal(width, four)
    y = If (is_wide) <
        then_branch = a () => (float[b, n] o) { o = Relu(h) },
        else_branch = c () => (float[b, n] o) { o = Neg(h) }
    >
    s = If (plain) <
        then_branch = d () => (float[b] o)
            <int64[1] at = {1}> { o = ReduceSum <keepdims = 0> (y, at) },
        else_branch = e () => (float[b] o) { o = ReduceMax <axes = [1], keepdims = 0> (y) }
    >
}""")


def answer(model: bytes, **feed: object) -> list[Array]:
    session = InferenceSession(model, providers=["CPUExecutionProvider"])
    return list(session.run(None, {name: np.asarray(value) for name, value in feed.items()}))


@pytest.mark.parametrize(("rate", "width"), [(16000, 4), (8000, 2)])
def test_a_case_computes_what_the_model_does(rate: int, width: int) -> None:
    case = specialize(MODEL, {"rate": rate}, {"x": ("batch", width)})
    assert case.taken == ("h", "y")
    assert case.left == ("s",)
    assert list(case.graph.inputs) == ["x", "plain"]
    x = RNG.standard_normal((5, width)).astype("f4")
    for plain in (True, False):
        expected = answer(MODEL.SerializeToString(), x=x, rate=rate, plain=plain)
        for got, want in zip(answer(case.to_bytes(), x=x, plain=plain), expected, strict=True):
            np.testing.assert_array_equal(got, want)


def test_the_weights_of_a_branch_are_trained() -> None:
    case = specialize(MODEL, {"rate": 8000, "plain": True}, {"x": ("batch", 2)})
    trainer = eg.Trainer.from_onnx(case.to_bytes(), {"s": "mse"}, eg.SGD(lr=1.0))
    x = RNG.standard_normal((3, 2)).astype("f4")
    trainer.step(x, np.zeros(3, "f4"))
    w = np.array([[1, 0, 2], [0, 3, 0]], "f4")
    s = -(x @ w).sum(1)
    gradient = -2 / 3 * (x.T @ s)[:, None].repeat(3, 1)
    ((_, parameter),) = trainer.state.parameters
    np.testing.assert_allclose(parameter.data, w - gradient, rtol=1e-5, atol=1e-5)


def test_a_model_whose_weights_are_in_branches_says_how_it_trains() -> None:
    with pytest.raises(NameNotFoundError, match=r"`edgegrad specialize`"):
        eg.Trainer.from_onnx(MODEL.SerializeToString(), {"s": "mse"})


def test_symbols_have_their_size_in_all_inputs_and_outputs() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    m (float[batch, 4] x, float[batch, time] z) => (float[batch, time] y) {
        k = Constant <value = int64[1] {1}> ()
        t = ReduceSum(x, k)
        y = Mul(t, z)
    }""")
    case = specialize(model, shapes={"x": (7, 4)})
    assert case.graph.inputs["z"].shape == (7, "time")
    assert case.graph.types["y"].shape == (7, "time")
    assert str(case) == (
        "inputs: x f32[7,4], z f32[7,time]\nconditions that are known now: 0"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "shapes", "error", "message"),
    [
        ({"rates": 1}, None, NameNotFoundError, r"no input 'rates'; nearest: 'rate'"),
        ({"rate": 0.5}, None, DTypeError, r"input 'rate': expected values of type int64"),
        ({"rate": [1, 2]}, None, ShapeError, r"input 'rate' is i64\[\]; got 1 sizes"),
        ({"rate": 1 << 70}, None, DTypeError, r"input 'rate': expected values of type int64"),
        (None, {"x": (3,)}, ShapeError, r"input 'x' is f32\[batch,width\]; got 1 sizes"),
        (None, {"x": (3, 0)}, ShapeError, r"input 'x': expected a shape of positive numbers"),
        ({"x": np.zeros((2, 4), "f4")}, {"x": (3, 4)}, ShapeError, r"axis 0 .*size 3, .* is 2"),
        ({"x": np.zeros((2, 4)), "rate": 1, "plain": True}, None, InputError, r"all inputs"),
        (None, None, InputError, r"give values or shapes"),
    ],
)
def test_what_does_not_fit(
    values: object, shapes: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        specialize(MODEL, values, shapes)  # type: ignore[arg-type]  # wrong on purpose


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "case.onnx"
    onnx.save(MODEL, path)
    words = ["specialize", str(path), "--value", "rate=16000", "--shape", "x=batch,4"]
    assert cli.main([*words, "--value", "plain=true", "-o", str(out)]) == 0
    assert "conditions that are known now: 3" in capsys.readouterr().out
    x = RNG.standard_normal((2, 4)).astype("f4")
    expected = answer(MODEL.SerializeToString(), x=x, rate=16000, plain=True)
    np.testing.assert_array_equal(answer(out.read_bytes(), x=x)[1], expected[1])
    for bad, status in ((["--value", "rate=fast"], 2), (["--shape", "x"], 2), ([], 2),
                        (["--value", "rat=1"], 1)):  # fmt: skip
        assert cli.main(["specialize", str(path), *bad, "-o", str(out)]) == status
        assert capsys.readouterr().err
    assert isinstance(specialize(MODEL, {"rate": 1}), Specialized)
