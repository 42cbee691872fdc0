"""The Python face of builds: what it refuses, what it never destroys, on which Pythons it runs."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.api import CheckpointState, Module
from engine.checkpoint import storage
from engine.checkpoint.storage import Checkpoint, NominalTensor
from engine.errors import StateError
from engine.tools.trimmed.generate import RUNTIME
from tests.support.builds import load, make_build, needs_cc
from tests.support.newer_python import NewerThan39
from tests.support.places import GOLDENS
from tests.support.shown import shows

pytestmark = needs_cc
X, LABELS = np.zeros((4, 64), np.float32), np.arange(4)
FACE = ("device.py", "library.py")


@pytest.fixture
def face() -> Any:
    return load(make_build("mlp"))


@pytest.fixture
def trainer(face: Any) -> Any:
    return face.Trainer(GOLDENS / "mlp/checkpoint")


def nominal() -> bytes:
    """The golden's checkpoint without values."""
    full = storage.read(GOLDENS / "mlp/checkpoint")
    parts = [
        {n: NominalTensor(a.dtype) for n, a in p.items()} for p in (full.trainable, full.frozen)
    ]
    trainable, frozen = parts
    return storage.encode(Checkpoint(trainable, frozen, nominal=True), artifact=True)[0]


# name: the call, given the trainer and the module; the error; what its message says
REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "no inputs": (lambda t, f: t.step(), "InputError", "got 0 inputs"),
    "one input": (lambda t, f: t.step(X), "InputError", "takes .* got 1 inputs"),
    "shape": (lambda t, f: t.step(X[:, 1:], LABELS), "InputError", r"float32\[4, 63\]"),
    "type": (lambda t, f: t.step(X.astype("f8"), LABELS), "InputError", "float64"),
    "text": (lambda t, f: t.step("x", LABELS), "InputError", "input 'x'|input"),
    "label 1.5": (lambda t, f: t.step(X, [1.5, 1, 2, 3]), "InputError", "int64 can hold, got f"),
    "label text": (lambda t, f: t.step(X, ["1", 1, 2, 3]), "InputError", "int64 can hold, got <U"),
    "label huge": (lambda t, f: t.step(X, [2**64, 1, 2, 3]), "InputError", "can hold, got object"),
    "sample None": (lambda t, f: t.step([[None]] * 4, LABELS), "InputError", "float32 can hold"),
    "ragged": (lambda t, f: t.step([[1], [1, 2]], LABELS), "InputError", "input"),
    "label": (lambda t, f: t.step(X, LABELS - 1), "LabelError", "label -1 at position 0"),
    "early": (lambda t, f: t.optimizer.step(), "StateError", "no gradients yet"),
    "rate -1": (lambda t, f: t.optimizer.set_learning_rate(-1), "InputError", "is negative"),
    "rate nan": (lambda t, f: t.optimizer.set_learning_rate(np.nan), "InputError", "got nan"),
    "rate inf": (lambda t, f: t.optimizer.set_learning_rate(np.inf), "InputError", "got inf"),
    "rate huge": (lambda t, f: t.optimizer.set_learning_rate(1e300), "InputError", r"1e\+300"),
    "rate text": (lambda t, f: t.optimizer.set_learning_rate("a"), "InputError", "got 'a'"),
    "rate None": (lambda t, f: t.optimizer.set_learning_rate(None), "InputError", "got None"),
    "seed": (lambda t, f: t.module.set_seed(0.5), "InputError", "got 0.5"),
    "seed huge": (lambda t, f: t.module.set_seed(2**63), "InputError", "64 bits"),
    "parameter": (lambda t, f: t.state.parameters["?"], "KeyError", r"no parameter '\?'; there"),
    "property": (lambda t, f: t.state.properties["?"], "KeyError", r"no property '\?'"),
    "property name": (lambda t, f: set_property(t, 5, 1), "InputError", "expected text"),
    "property null": (lambda t, f: set_property(t, "a\0b", 1), "InputError", "null"),
    "property text": (lambda t, f: set_property(t, "a", "\ud800"), "InputError", "UTF-8"),
    "property list": (lambda t, f: set_property(t, "a", []), "InputError", r"got \[\]"),
    "property huge": (lambda t, f: set_property(t, "a", 2**63), "InputError", "64 bits"),
    "property own": (lambda t, f: set_property(t, "edgegrad.learning_rate", 1.0), "InputError",
                     "cannot be named"),
    "values shape": (lambda t, f: set_data(t, X), "InputError", "this build has"),
    "values text": (lambda t, f: set_data(t, "x"), "InputError", "parameter"),
    "buffer": (lambda t, f: t.module.copy_buffer_to_parameters(X), "InputError", "the buffer 256"),
    "buffer type": (lambda t, f: t.module.copy_buffer_to_parameters([1.0]), "InputError",
                    "float64"),
    "buffer None": (lambda t, f: t.module.copy_buffer_to_parameters(None), "InputError", "object"),
    "save None": (lambda t, f: t.save(None), "InputError", "expected a path, got None"),
    "save empty": (lambda t, f: t.save(""), "InputError", "is not a path"),
    "save null": (lambda t, f: t.save("a\0b"), "InputError", "is not a path"),
    "save nowhere": (lambda t, f: t.save("/nowhere/at/all"), "FileError", "/nowhere/at/all"),
    "save folder": (lambda t, f: t.save("/"), "FileError", "not a regular file"),
    "save state": (lambda t, f: f.CheckpointState.save_checkpoint(t, "x"), "InputError",
                   "expected a CheckpointState"),
    "export": (lambda t, f: t.module.export_model_for_inferencing("/", ["output"]), "FileError",
               "cannot write '/'"),
    "export output": (lambda t, f: t.module.inference_model_to_bytes(["?"]), "StateError",
                      "this build exports"),
    "load None": (lambda t, f: f.Trainer(None), "InputError", "expected a path, got None"),
    "load nowhere": (lambda t, f: f.Trainer("/nowhere"), "FileError", "cannot read"),
    "load bytes": (lambda t, f: f.Trainer(b"x"), "CheckpointError", "not a checkpoint"),
    "module": (lambda t, f: f.Module(None, None), "InputError", "expected a CheckpointState"),
    "optimizer": (lambda t, f: f.Optimizer(None, None), "InputError", "expected a Module"),
    "schedule": (lambda t, f: f.LinearLRScheduler(t.optimizer, 5, 2, 0.1), "InputError",
                 "a warm-up of 5 steps of 2"),
    "schedule half": (lambda t, f: f.LinearLRScheduler(t.optimizer, 0.5, 2, 0.1), "InputError",
                      "got 0.5"),
    "schedule long": (lambda t, f: f.LinearLRScheduler(t.optimizer, 0, 2**31, 0.1), "InputError",
                      "a warm-up of 0 steps of 2147483648: .* total < 2.31"),
    "schedule sinks": (lambda t, f: f.LinearLRScheduler(t.optimizer, 1, 2, -0.1), "InputError",
                       "is negative"),
    "schedule nan": (lambda t, f: f.LinearLRScheduler(t.optimizer, 0, 2, np.nan), "InputError",
                     "got nan"),
    "schedule whom": (lambda t, f: f.LinearLRScheduler(t, 0, 2, 0.1), "InputError",
                      "expected an Optimizer"),
}  # fmt: skip


def set_property(trainer: Any, name: Any, value: Any) -> None:
    trainer.state.properties[name] = value


def set_data(trainer: Any, value: Any) -> None:
    _, parameter = next(iter(trainer.state.parameters))
    parameter.data = value


@pytest.mark.parametrize("row", sorted(REFUSED))
def test_what_the_face_refuses_says_what_was_found(row: str, face: Any, trainer: Any) -> None:
    call, error, said = REFUSED[row]
    before = trainer.state.to_bytes(True)
    kind = KeyError if error == "KeyError" else getattr(face, error)
    with pytest.raises(kind, match=said):
        call(trainer, face)
    assert trainer.state.to_bytes(True) == before
    assert np.isfinite(trainer.step(X, LABELS))


@shows("Python", "Linux, x86-64", "run")
def test_a_trainer_goes_on_with_another_checkpoint(face: Any, trainer: Any) -> None:
    """Names, rates and counts equal `engine.Trainer`'s."""
    engines = Trainer(GOLDENS / "mlp")
    assert trainer.inputs == engines.inputs
    assert trainer.outputs == engines.outputs
    assert trainer.batches == [4]
    first, losses = trainer.state.to_bytes(True), []
    for _ in range(2):
        trainer.load(first)
        trainer.learning_rate = 0.25
        losses.append([float(trainer.step(X, LABELS)) for _ in range(2)])
        assert (trainer.steps, trainer.learning_rate) == (2, 0.25)
    assert losses[0] == losses[1]
    (scores,) = trainer.predict_batch(X).values()
    np.testing.assert_array_equal(scores, trainer.predict(X))


def test_a_model_without_values_destroys_no_checkpoint(face: Any, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    shutil.copy(GOLDENS / "mlp/checkpoint", path)
    good = path.read_bytes()
    mine = face.Trainer(nominal())
    calls: list[Callable[[], Any]] = [
        lambda: mine.save(path),
        lambda: face.CheckpointState.save_checkpoint(mine.state, path),
        lambda: mine.state.to_bytes(),
        lambda: mine.module.export_model_for_inferencing(path),
    ]
    for call in calls:
        with pytest.raises(face.StateError, match="no values"):
            call()
    assert path.read_bytes() == good
    assert list(tmp_path.iterdir()) == [path]


def test_the_engine_saves_no_nominal_state_over_values(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    shutil.copy(GOLDENS / "mlp/checkpoint", path)
    state = CheckpointState.from_bytes(nominal())
    with pytest.raises(StateError, match="checkpoint with values, and this state has none"):
        CheckpointState.save_checkpoint(state, path)
    assert path.read_bytes() == (GOLDENS / "mlp/checkpoint").read_bytes()
    CheckpointState.save_checkpoint(state, tmp_path / "new")
    CheckpointState.save_checkpoint(state, tmp_path / "new")  # over one without values
    assert storage.read(tmp_path / "new").nominal
    module = Module(GOLDENS / "mlp/training_model.onnx", state)
    size = module.get_parameters_size(trainable_only=False)
    module.copy_buffer_to_parameters(np.zeros(size, np.float32), trainable_only=False)
    CheckpointState.save_checkpoint(state, path)
    assert not storage.read(path).nominal


def test_a_full_disk_leaves_the_old_model(
    face: Any, trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "model.onnx", tmp_path / "link.onnx"
    path.write_bytes(b"old")
    link.symlink_to(path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(face.FileError, match="No space left"):
            trainer.module.export_model_for_inferencing(link)
    assert path.read_bytes() == b"old"
    trainer.module.export_model_for_inferencing(link)
    assert link.is_symlink()
    assert path.read_bytes() == trainer.module.inference_model_to_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.onnx", "model.onnx"]


def test_a_signal_handler_cannot_step_within_a_step(face: Any, trainer: Any) -> None:
    """A handler runs between two lines of Python, so every line of a call gets its turn here."""
    said = list[str]()

    def handler(*_: object) -> None:
        try:
            trainer.step(X, LABELS)
        except face.StateError as error:
            said.append(str(error))

    def trace(frame: Any, event: str, _: object) -> Any:
        if event == "line" and frame.f_code.co_name in ("call", "turn", "check", "content"):
            sys.settrace(None)
            signal.raise_signal(signal.SIGUSR1)
            sys.settrace(trace)
        return trace

    trainer.step(X, LABELS)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        sys.settrace(trace)
        try:
            trainer.evaluate(X, LABELS)
            trainer.state.to_bytes()
        finally:
            sys.settrace(None)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "train_step: called inside another call, as by a signal handler" in said
    assert np.isfinite(trainer.step(X, LABELS))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_is_told_to_load_its_own_model(tmp_path: Path) -> None:
    code = f"""if True:
        import os, sys
        sys.path.insert(0, {str(make_build("mlp", 2))!r})
        import mnist, numpy as np
        x, y = np.zeros((4, 64), np.float32), np.arange(4)
        t = mnist.Trainer()
        t.step(x, y)
        child = os.fork()
        if not child:
            try:
                t.step(x, y)
            except mnist.StateError as error:
                assert "before a fork" in str(error)
                mnist.Trainer().step(x, y)
                del t
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        t.step(x, y)
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- Python 3.9, which Raspberry Pi OS 11 has


@pytest.mark.parametrize("file", FACE)
def test_the_face_is_python_3_9(file: str) -> None:
    tree = ast.parse((RUNTIME / file).read_text("utf-8"), feature_version=(3, 9))
    checker = NewerThan39()
    checker.visit(tree)
    assert not checker.found
    assert any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in tree.body), (
        "annotations are text"
    )


def test_what_3_9_cannot_run_is_found() -> None:
    bad = "File = str | None\nfor a, b in zip(x, y, strict=True): isinstance(a, str | float)\n"
    checker = NewerThan39()
    checker.visit(ast.parse(bad))
    assert len(checker.found) == 3
