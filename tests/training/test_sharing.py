"""Sessions of other models with the parameters of a trainer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

import engine
from engine import Trainer
from engine.errors import DTypeError, InputError, ShapeError
from tests.support.blocks import make_model

TRAINED = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,4] x, float[4,300] w, float[300,3] u) => (float[N,3] y) {
    h = MatMul(x, w)
    y = MatMul(h, u)
}"""
# The same, with a constant of its own that is as large as those which are kept once.
OTHER = TRAINED.replace("float[300,3] u)", "float[300,3] u, float[300] own)").replace(
    "y = MatMul(h, u)", "s = Add(h, own)\n y = MatMul(s, u)"
)
X = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer.from_onnx(
        make_model(TRAINED), "cross_entropy", engine.SGD(lr=0.5), folder=tmp_path / "art", threads=1
    )


def test_another_model_follows_the_parameters(trainer: Trainer, tmp_path: Path) -> None:
    model = make_model(OTHER)
    own = {each.name: each for each in model.graph.initializer}["own"]
    shift = np.frombuffer(own.raw_data, np.float32)
    path = tmp_path / "other.onnx"
    path.write_bytes(model.SerializeToString())
    session, usual = trainer.session(path), trainer.session()
    for _ in range(3):
        w, u = (trainer.state.parameters[name].data for name in "wu")
        (y,) = session.run(None, {"x": X})
        np.testing.assert_allclose(y, (X @ w + shift) @ u, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(usual.run(None, {"x": X})[0], X @ w @ u, rtol=1e-4, atol=1e-4)
        trainer.step(X, np.array([0, 1, 2, 0, 1]))
    again = trainer.session(path.read_bytes())
    np.testing.assert_array_equal(again.run(None, {"x": X})[0], session.run(None, {"x": X})[0])


@pytest.mark.parametrize(
    ("change", "kind", "error", "text"),
    [
        (("u)", "v)"), "f4", InputError, r"lacks the trained parameters .'u'. \(1 of 2\)"),
        (("[300,3]", "[300,2]"), "f4", ShapeError, r"'u' is f32.300,2., but the parameter"),
        (("", ""), "f8", DTypeError, r"'w' is f64.4,300., but the parameter"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(
    trainer: Trainer, change: tuple[str, str], kind: str, error: type[Exception], text: str
) -> None:
    other = make_model(TRAINED.replace(*change))
    for each in other.graph.initializer:
        values = numpy_helper.to_array(each).astype(kind)
        each.CopyFrom(numpy_helper.from_array(values, each.name))
    with pytest.raises(error, match=text):
        trainer.session(other.SerializeToString())
