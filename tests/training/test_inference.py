"""Sessions: answers by name, into given arrays, from the parameters as they are."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import engine
from engine import Trainer
from engine.base.plan_options import PlanOptions
from engine.errors import DTypeError, InputError, ShapeError
from engine.training.model import Model

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((4, 2)).astype(np.float32)


def forward() -> onnx.ModelProto:
    """Make h = x w, y = Relu(h)."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "m",
        [helper.make_tensor_value_info("x", 1, ["n", 4])],
        [helper.make_tensor_value_info(name, 1, ["n", 2]) for name in ("y", "h")],
        [numpy_helper.from_array(W, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_outputs_by_name_and_into_given_arrays() -> None:
    session = engine.Session(forward(), threads=1)
    expected = X @ W
    y, h = session.run(None, {"x": X})
    np.testing.assert_allclose(h, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(y, np.maximum(h, 0))
    (only,) = session.run(["h"], {"x": X.tolist()})
    np.testing.assert_array_equal(only, h)
    taken = np.zeros((2, 3), np.float32).T  # of any strides
    outcome = session.run(["h", "y"], {"x": np.asfortranarray(X)}, out={"h": taken})
    assert outcome[0] is taken
    np.testing.assert_array_equal(taken, h)
    np.testing.assert_array_equal(outcome[1], y)
    before = y.copy()
    session.run(None, {"x": X + 1})
    np.testing.assert_array_equal(y, before)  # an answer stays as it is


def test_inputs_and_outputs_are_described() -> None:
    session = engine.Session(forward(), threads=1)
    assert session.get_inputs() == [("x", "tensor(float)", ["n", 4])]
    assert session.get_outputs() == [
        ("y", "tensor(float)", ["n", 2]),
        ("h", "tensor(float)", ["n", 2]),
    ]


def test_a_signature_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    session = engine.Session(forward(), threads=1)
    checked: list[tuple[int, ...]] = []
    inner = Model.make_array

    def watch(model: Model, name: str, value: Any) -> Any:
        checked.append(np.shape(value))
        return inner(model, name, value)

    monkeypatch.setattr(Model, "make_array", watch)
    for rows in (1, 3, 1, 3, 1):
        session.run(None, {"x": X[:rows]})
    session.run(None, {"x": X})
    assert checked == [(1, 4), (3, 4)]
    with pytest.raises(DTypeError, match="expected float32, got float64"):
        session.run(None, {"x": X.astype(np.float64)})
    with pytest.raises(DTypeError, match="expected float32, got >f4"):
        session.run(None, {"x": X.astype(">f4")})


def test_a_dropped_plan_is_made_anew() -> None:
    session = engine.Session(forward(), threads=1)
    expected = session.run(None, {"x": X})
    programs = session._calls.model.memory.programs
    programs.clear()
    for actual, one in zip(session.run(None, {"x": X}), expected, strict=True):
        np.testing.assert_array_equal(actual, one)
    assert len(programs) == 1


def test_another_precision_or_budget_is_another_plan() -> None:
    session = engine.Session(forward(), threads=1)
    memory = session._calls.model.memory
    for count in (1, 2, 3):
        for _ in range(2):
            session.run(None, {"x": X})
        assert len(memory.programs) == count
        if count == 1:
            memory.planning = PlanOptions(precision="bf16")
        else:
            memory.planning = PlanOptions(budget=1 << 30, precision="bf16")


READ_ONLY = np.zeros((3, 2), np.float32)
READ_ONLY.setflags(write=False)


@pytest.mark.parametrize(
    ("names", "feed", "out", "error", "text"),
    [
        (None, [X], None, DTypeError, "inputs are a list; expected a dict"),
        (None, {}, None, InputError, "also takes the inputs .'x'"),
        (None, {"x": X, "z": X}, None, InputError, "no input 'z'"),
        (None, {1: X}, None, DTypeError, "named by int"),
        (None, {"x": X[0]}, None, ShapeError, "expected 2 dimensions"),
        ("y", {"x": X}, None, DTypeError, "expected a list of names"),
        (["yy"], {"x": X}, None, InputError, "no output 'yy'"),
        ([1], {"x": X}, None, DTypeError, "named by int"),
        (None, {"x": X}, X, DTypeError, "out is a ndarray"),
        (None, {"x": X}, {"z": X}, InputError, "no output 'z'"),
        (None, {"x": X}, {"y": X}, ShapeError, r"expected shape \[3, 2\], got \[3, 4\]"),
        (None, {"x": X}, {"y": [0]}, DTypeError, "array of float32, got list"),
        (None, {"x": X}, {"y": READ_ONLY}, InputError, "read-only"),
    ],
)
def test_the_errors_name_what_is_wrong(
    names: Any, feed: Any, out: Any, error: type[Exception], text: str
) -> None:
    session = engine.Session(forward(), threads=1)
    for _ in range(2):
        with pytest.raises(error, match=text):
            session.run(names, feed, out=out)
        session.run(None, {"x": X})


def test_threads_of_python_may_share_a_session() -> None:
    session = engine.Session(forward(), threads=2)
    inputs = [np.random.default_rng(n).standard_normal((n + 1, 4)).astype("f4") for n in range(4)]
    expected = [session.run(None, {"x": x}) for x in inputs]
    wrong: list[int] = []

    def ask(n: int) -> None:
        for _ in range(50):
            outcome = session.run(None, {"x": inputs[n]})
            if not all(np.array_equal(a, b) for a, b in zip(outcome, expected[n], strict=True)):
                wrong.append(n)

    askers = [threading.Thread(target=ask, args=(n,)) for n in range(len(inputs))]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert not wrong


def test_a_session_of_a_trainer_follows_its_parameters(tmp_path: Path) -> None:
    proto = forward()
    del proto.graph.output[1]
    trainer = Trainer.from_onnx(proto, "mse", engine.SGD(lr=0.1), folder=tmp_path, threads=1)
    session = trainer.session()
    target = np.ones((3, 2), np.float32)
    first = session.run(None, {"x": X})[0]
    memory, param = trainer.learner.session.memory, trainer.state.regions["param"]
    for _ in range(2):
        trainer.step(X, target)
        (y,) = session.run(None, {"x": X})
        np.testing.assert_array_equal(y, trainer.predict_batch(X)["y"])
    assert not np.array_equal(y, first)
    assert session._calls.model.memory is memory
    assert trainer.state.regions["param"] is param
