"""Arguments and inputs of trainings: refused with reasons, or taken in any layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from engine import artifacts
from engine.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from engine.artifacts import CrossEntropyLoss
from engine.errors import (
    DTypeError,
    EngineError,
    InputError,
    LabelError,
    ShapeError,
)
from tests.support.harness import drop_type
from tests.support.mlp import MLP, Training

ARGUMENTS: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda t: CheckpointState.load_checkpoint(drop_type(3)), TypeError, "a path or bytes, got 3"),
    (lambda t: CheckpointState.load_checkpoint("a\0b"), OSError, "a null character"),
    (lambda t: CheckpointState.from_bytes(drop_type("ODTC")), TypeError, "bytes, got 'ODTC'"),
    (lambda t: CheckpointState.from_bytes(memoryview(bytes(9))[::2]), TypeError, "contiguous"),
    (lambda t: CheckpointState.save_checkpoint(drop_type(None), "c"),
     TypeError, "state: expected a Check"),
    (lambda t: CheckpointState.save_checkpoint(t.state, drop_type(3)),
     TypeError, "expected a path, got"),
    (lambda t: t.state.parameters[5], KeyError, "no parameter 5"),
    (lambda t: t.state.parameters[["x"]], KeyError, "no parameter"),
    (lambda t: t.state.properties[None], KeyError, "no property None"),
    (lambda t: t.state.properties.__setitem__(None, 1), TypeError, "property: expected text"),
    (lambda t: t.state.properties.__setitem__("\udcff", 1), ValueError, "written as UTF-8"),
    (lambda t: t.state.properties.__setitem__("p", "\udcff"), ValueError, "'p'.*written as UTF-8"),
    (lambda t: t.state.properties.__setitem__("p", 1e300), ValueError, "too large for float32"),
    (lambda t: Module(MLP / "training_model.onnx", drop_type(None)),
     TypeError, "expected a CheckpointS"),
    (lambda t: Module(drop_type(3), t.state), TypeError, "train_model_uri: expected a path or"),
    (lambda t: Module(b"", t.state), ValueError, "empty; expected an ONNX model"),
    (lambda t: Module(MLP / "checkpoint", t.state), ValueError, "this is a checkpoint"),
    (lambda t: Module(MLP / "training_model.onnx", t.state, threads=drop_type("2")),
     TypeError, "whole num"),
    (lambda t: Module(MLP / "training_model.onnx", t.state, threads=-1), RuntimeError, "1 to 1024"),
    (lambda t: Module(MLP / "training_model.onnx", t.state, threads=2**70), RuntimeError, "1024"),
    (lambda t: Module(MLP / "training_model.onnx", t.state, device=drop_type(np.ones(2))),
     RuntimeError, "c"),
    (lambda t: t.module.train("no"), TypeError, "mode: expected True or False, got 'no'"),
    (lambda t: t.module.plan(4, 4), TypeError, r"shapes: expected a list \(each .*\), got 4"),
    (lambda t: t.module.plan((0, 64), (0,)), ValueError, r"positive numbers, got \[0, 64\]"),
    (lambda t: t.module.plan((2**45, 64), (2**45,)), MemoryError, "training_m.*_MAX_PLAN_B"),
    (lambda t: t.module.copy_buffer_to_parameters(None), ValueError, "3610 elements, the buffer 1"),
    (lambda t: t.module.inference_model_to_bytes([1]), ValueError, "expected a list of names"),
    (lambda t: t.module.inference_model_to_bytes(iter(())), ValueError, "at least one"),
    (lambda t: t.module.inference_model_to_bytes(["outpu"]), KeyError, "nearest: 'output'"),
    (lambda t: t.module.export_model_for_inferencing(3, ["output"]), TypeError, "a path, got 3"),
    (lambda t: Optimizer(MLP / "optimizer_model.onnx", drop_type(None)),
     TypeError, "expected a Module"),
    (lambda t: t.optimizer.set_learning_rate("fast"), TypeError, "expected a number, got 'fast'"),
    (lambda t: t.optimizer.set_learning_rate(10**400), ValueError, "too large"),
    (lambda t: t.optimizer.set_learning_rate(1e300), ValueError, "too large for float32"),
    (lambda t: LinearLRScheduler(drop_type(None), 1, 2, 0.1), TypeError, "expected an Optimizer"),
    (lambda t: LinearLRScheduler(t.optimizer, drop_type(1.5), 2, 0.1),
     TypeError, "warmup_step_count.*whole"),
    (lambda t: LinearLRScheduler(t.optimizer, 1, 2, np.nan), ValueError, "initial_lr nan is not"),
]  # fmt: skip


@pytest.fixture(scope="module")
def shared() -> Training:
    """A training run that errors must leave as it is."""
    return Training()


@pytest.mark.parametrize("case", ARGUMENTS, ids=lambda c: c[2][:24])
def test_arguments(shared: Training, case: tuple[Any, type[Exception], str]) -> None:
    call, builtin, message = case
    before = shared.kept()
    with pytest.raises(EngineError, match=message) as caught:
        call(shared)
    assert isinstance(caught.value, builtin)
    assert shared.kept() == before
    assert shared.state.to_bytes(include_optimizer_state=True)  # and it can be saved


class Odd:
    def numpy(self) -> Any:
        raise OSError("device lost")


X, Y = np.zeros((4, 64), np.float32), np.zeros(4, np.int64)


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        (X.astype(">f4"), Y, DTypeError, "'input': expected float32, got >f4"),
        (X.astype(object), Y, DTypeError, "'input': expected float32, got object"),
        (np.ma.masked_array(X, X == 0), Y, InputError, "'input': a masked array"),
        ([[1.0, 2.0], [3.0]], Y, InputError, "'input': list cannot become an array"),
        (Odd(), Y, InputError, "'input': Odd cannot become an array: device lost"),
        ("abc", Y, DTypeError, "'input': expected values of type float32"),
        ((r for r in X), Y, DTypeError, "'input': expected values of type float32, got object"),
        ([[1e300] * 64] * 4, Y, InputError, "'input': 1e.300 is too large for float32"),
        (X[0, 0], Y, ShapeError, r"'input': expected 2 dimensions .* got shape \[\]"),
        (X, [2**63] * 4, InputError, "'labels': 9223372036854775808 is too large for int64"),
        (X, [1.0] * 4, DTypeError, "'labels': expected values of type int64, got float64"),
        (X, Y.astype(np.int32), DTypeError, "'labels': expected int64, got int32"),
        (X[:0], Y[:0], InputError, "'input' is empty"),
    ],
)
def test_inputs(shared: Training, x: Any, y: Any, error: type[Exception], message: str) -> None:
    before = shared.kept()
    with pytest.raises(error, match=message):
        shared.module(x, y)
    assert shared.kept() == before


def test_arrays_of_any_layout_are_the_same_input(shared: Training) -> None:
    x, y = shared.x, shared.y
    expected = shared.module.eval()(x, y)
    frozen = x.copy()
    frozen.setflags(write=False)
    shifted = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    for same in (
        np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2], frozen, shifted,
        memoryview(drop_type(x.copy())),
        x.tolist(), tuple(map(tuple, x)), np.ma.masked_array(x), x.view(np.matrix),
    ):  # fmt: skip
        assert shared.module(same, np.repeat(y, 3)[::3]) == expected
    shared.module.train()


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("ignored", [None, 255])
def test_labels_of_a_map(tmp_path: Path, threads: int, dtype: Any, ignored: int | None) -> None:
    shape: list[str | int | None] = ["n", 5, 4, 6]
    w = np.ones((1, 5, 1, 1), np.float32)
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])], "map",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, shape)], [onnx.numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    forward = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    loss = CrossEntropyLoss(ignore_index=ignored)
    artifacts.generate_artifacts(forward, ["w"], loss=loss, artifact_directory=tmp_path)
    model = onnx.load(tmp_path / "training_model.onnx")
    labels = next(i for i in model.graph.input if i.name == "labels")
    labels.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(model.SerializeToString(), state, threads=threads)
    x = np.random.default_rng(0).standard_normal((3, 5, 4, 6)).astype(np.float32)
    y = np.random.default_rng(1).integers(0, 5, (3, 4, 6)).astype(dtype)
    module(x, y)
    kept = state.regions["grad"].tobytes()
    for label in (5, -1, int(np.iinfo(dtype).max), int(np.iinfo(dtype).min)):
        bad = y.copy()
        bad[2, 3, 5] = label
        with pytest.raises(LabelError, match=rf"label {label} at position 71 is outside \[0, 5\)"):
            module(x, bad)
        assert state.regions["grad"].tobytes() == kept
    if ignored is not None:
        assert module(x, np.full_like(y, ignored)) == 0
