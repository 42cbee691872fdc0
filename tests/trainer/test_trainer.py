"""The trainer: steps, accumulation, evaluation, prediction, and checkpoints to go on from."""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import engine
import engine.trainer
from engine import Trainer
from engine.api import CheckpointState, Module, Optimizer
from engine.artifacts import (
    SGD,
    AdamW,
    CrossEntropyLoss,
    LossType,
    MSELoss,
    OptimType,
    generate_artifacts,
)
from engine.data import Batches, batches
from engine.errors import (
    CheckpointError,
    DTypeError,
    FileError,
    InputError,
    ModelError,
    ModelWarning,
    NameNotFoundError,
    ShapeError,
    StateError,
)
from engine.graphs.io import onnx_io
from engine.graphs.offline.parameters import list_parameters
from engine.trainer.evaluation import EvaluationBatch
from tests.support.harness import copy_parameters, drop_type
from tests.support.tiny import DROPPING, forward
from tests.support.tiny import PLAIN as MODEL

X = np.random.default_rng(0).standard_normal((12, 6)).astype(np.float32)
LABELS = np.arange(12) % 3
NAMES = ["body.weight", "body.bias", "head.weight", "head.bias"]


def made(text: str = MODEL, **options: Any) -> Trainer:
    options = {"optimizer": AdamW(0.05), "threads": 1, **options}
    return Trainer.from_onnx(forward(text), CrossEntropyLoss(), **options)


def test_the_last_layer_fits_the_classes() -> None:
    before = {i.name: numpy_helper.to_array(i) for i in forward().graph.initializer}
    trainer = made(classes=5, seed=3)
    assert trainer.predict_batch(X[:2])["scores"].shape == (2, 5)
    actual_values = copy_parameters(trainer)
    assert {name: v.shape for name, v in actual_values.items() if name.startswith("head")} == {
        "head.weight": (8, 5),
        "head.bias": (5,),
    }
    np.testing.assert_array_equal(actual_values["body.weight"], before["body.weight"])
    np.testing.assert_array_equal(
        copy_parameters(made(classes=5, seed=3))["head.weight"], actual_values["head.weight"]
    )
    assert (
        copy_parameters(made(classes=5, seed=4))["head.weight"] != actual_values["head.weight"]
    ).any()


def test_a_last_layer_that_fits_is_kept() -> None:
    actual_values = copy_parameters(made(classes=3))
    for name, value in copy_parameters(made()).items():
        np.testing.assert_array_equal(actual_values[name], value)


@pytest.mark.parametrize("classes", [0, 1, -2])
def test_a_classifier_has_two_classes_or_more(classes: int) -> None:
    with pytest.raises(InputError, match=f"classes={classes}: expected 2 to"):
        made(classes=classes)


def test_it_steps_as_module_and_optimizer_do(tmp_path: Path) -> None:
    trainer = made(folder=tmp_path)
    assert (trainer.inputs, trainer.features) == (["x", "labels"], ["x"])
    assert trainer.outputs == ["scores"]
    assert trainer.learning_rate == np.float32(0.05)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, threads=1)
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    for _ in range(3):
        module.lazy_reset_grad()
        expected = float(module(X, LABELS))
        optimizer.step()
        assert trainer.step(X, LABELS) == expected
    assert trainer.steps == 3
    for name, p in state.parameters:
        np.testing.assert_array_equal(trainer.state.parameters[name].data, p.data)


def test_losses_and_optimizers_have_names() -> None:
    named = Trainer.from_onnx(forward(), "cross_entropy", "sgd", threads=1)
    given = Trainer.from_onnx(forward(), CrossEntropyLoss(), SGD(), threads=1)
    for _ in range(2):
        assert named.step(X, LABELS) == given.step(X, LABELS)
    assert Trainer.from_onnx(forward(), "CrossEntropyLoss", "Adam-W", threads=1).steps == 0
    with pytest.raises(InputError, match="no loss 'cross_entropi'; nearest: 'cross_entropy'"):
        Trainer.from_onnx(forward(), "cross_entropi")
    with pytest.raises(InputError, match="no optimizer 'sdg'"):
        Trainer.from_onnx(forward(), "mse", "sdg")


def test_a_temporary_folder_goes_with_its_trainer_or_with_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    trainer = made()
    assert [str(path) for path in tmp_path.iterdir()] == [trainer.folder]
    del trainer
    gc.collect()
    with pytest.raises(InputError, match="no optimizer 'sdg'"):
        made(optimizer="sdg")
    assert not list(tmp_path.iterdir())


def test_accumulated_batches_are_one_large_batch() -> None:
    whole, parts = made(optimizer=SGD(0.5)), made(optimizer=SGD(0.5))
    for _ in range(3):
        loss = whole.step(X, LABELS)
        losses = [parts.accumulate(X[k : k + 4], LABELS[k : k + 4]) for k in (0, 4, 8)]
        parts.update()
        assert np.mean(losses) == pytest.approx(loss, rel=1e-6)
    for name, array in copy_parameters(whole).items():
        np.testing.assert_allclose(copy_parameters(parts)[name], array, rtol=1e-5, atol=1e-6)


def test_gradients_that_wait_are_not_mixed_with_a_step() -> None:
    trainer = made()
    with pytest.raises(StateError, match="no batch has been accumulated"):
        trainer.update()
    trainer.accumulate(X, LABELS)
    with pytest.raises(StateError, match="1 accumulated batches wait for update"):
        trainer.step(X, LABELS)
    trainer.drop_gradients()
    other = made()
    assert trainer.step(X, LABELS) == other.step(X, LABELS)
    np.testing.assert_array_equal(
        copy_parameters(trainer)["body.bias"], copy_parameters(other)["body.bias"]
    )


def test_evaluation_and_prediction_change_nothing() -> None:
    trainer = made(DROPPING)
    trainer.step(X, LABELS)
    before = copy_parameters(trainer)
    loss, outputs = trainer.evaluate_batch(X, LABELS)
    body = np.tanh(X @ before["body.weight"] + before["body.bias"])
    scores = body @ before["head.weight"] + before["head.bias"]
    np.testing.assert_allclose(outputs["scores"], scores, rtol=1e-5, atol=1e-6)
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert loss == pytest.approx(-np.log(p[np.arange(12), LABELS]).mean(), rel=1e-5)
    for batch in ((X,), (X, LABELS), ({"x": X},), ({"x": X, "labels": LABELS, "more": 1},)):
        np.testing.assert_array_equal(trainer.predict_batch(*batch)["scores"], outputs["scores"])
    np.testing.assert_array_equal(trainer.predict_batch(X[:5])["scores"][:2], outputs["scores"][:2])
    for name, array in copy_parameters(trainer).items():
        np.testing.assert_array_equal(array, before[name])
    assert trainer.state.draws == 1


@pytest.mark.parametrize("size", [12, 5, 1])
def test_data_are_evaluated_and_predicted_in_batches_of_any_size(size: int) -> None:
    trainer = made()
    trainer.step(X, LABELS)
    loss, outputs = trainer.evaluate_batch(X, LABELS)
    seen: list[EvaluationBatch] = []
    actual_scores = trainer.evaluate(
        (X, LABELS), batch_size=size, metrics="accuracy", each=seen.append
    )
    assert actual_scores["loss"] == pytest.approx(loss, rel=1e-6)
    assert actual_scores["accuracy"] == np.mean(outputs["scores"].argmax(1) == LABELS)
    assert [b.index for b in seen] == [*range(-(-12 // size))]
    assert {b.batches for b in seen} == {-(-12 // size)}
    np.testing.assert_array_equal(np.concatenate([b.inputs["x"] for b in seen]), X)
    for data in (X, {"x": X}, (X, LABELS), [{"x": X[:7], "labels": LABELS[:7]}, {"x": X[7:]}]):
        predicted = trainer.predict(data, batch_size=size)
        assert isinstance(predicted, np.ndarray)
        np.testing.assert_allclose(predicted, outputs["scores"], rtol=1e-6, atol=1e-6)


def test_a_model_may_fix_its_number_of_samples(tmp_path: Path) -> None:
    fixed, free = made(MODEL.replace("[N,", "[5,")), made()
    assert np.shape(fixed.predict(X)) == (12, 3)
    np.testing.assert_allclose(fixed.predict(X), free.predict(X), rtol=1e-6, atol=1e-6)
    with pytest.warns(
        ModelWarning, match="12 samples are not a whole number of batches of 5.*2 samp"
    ):
        actual_scores = fixed.evaluate((X, LABELS), metrics="accuracy")
    assert actual_scores == pytest.approx(free.evaluate((X[:10], LABELS[:10]), metrics="accuracy"))
    with pytest.raises(InputError, match=r"batches of 4 samples, .* at 5: give batch_size=5, or"):
        fixed.fit((X, LABELS), batch_size=4, progress=False)
    with pytest.warns(ModelWarning, match="training data: 12 samples"):
        history = fixed.fit((X, LABELS), epochs=2, progress=False)
    assert (len(history.rows), fixed.steps) == (2, 4)
    with pytest.raises(InputError, match="make them with drop_last=True"):
        fixed.evaluate(batches((X, LABELS), batch_size=5))
    whole = batches((X, LABELS), batch_size=5, drop_last=True)
    assert fixed.evaluate(whole)["loss"] == pytest.approx(free_loss(fixed), rel=1e-6)


def free_loss(trainer: Trainer) -> float:
    """The mean loss of the first ten samples, five at a time."""
    parts = [trainer.evaluate_batch(X[k : k + 5], LABELS[k : k + 5])[0] for k in (0, 5)]
    return float(np.mean(parts))


def test_several_outputs_are_predicted_as_a_tuple(tmp_path: Path) -> None:
    trainer = Trainer(made(folder=tmp_path).folder, outputs=["scores", "h"], threads=1)
    scores, h = trainer.predict(X, batch_size=5)
    assert (scores.shape, h.shape) == ((12, 3), (12, 8))
    nothing = drop_type(
        type("Nothing", (Batches,), {"__len__": lambda self: 0, "epoch": lambda self: iter(())})
    )()
    for act in (trainer.predict, trainer.evaluate):
        with pytest.raises(InputError, match="have no batches"):
            act(nothing)


def test_a_checkpoint_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Moments, the number of steps, the learning rate and dropout's masks are all in it."""
    trainer = made(DROPPING, folder=tmp_path, seed=3)
    for _ in range(2):
        trainer.step(X, LABELS)
    trainer.learning_rate = 0.02
    trainer.save(tmp_path / "saved")
    expected = [trainer.step(X, LABELS) for _ in range(3)]
    fresh = Trainer(tmp_path, threads=1, seed=3)
    fresh.step(X, LABELS)
    fresh.accumulate(X, LABELS)
    for other in (trainer, fresh):
        other.load(tmp_path / "saved")
        assert (other.steps, other.learning_rate) == (2, float(np.float32(0.02)))
        assert [other.step(X, LABELS) for _ in range(3)] == expected
    state = CheckpointState.load_checkpoint(tmp_path / "saved")
    assert list(state.properties) == []
    module = Module(tmp_path / "training_model.onnx", state, threads=1, seed=3)
    assert float(module(X, LABELS)) == expected[0]


def test_a_checkpoint_without_moments_starts_the_optimizer_anew(tmp_path: Path) -> None:
    trainer = made(folder=tmp_path)
    expected = [trainer.step(X, LABELS) for _ in range(3)]
    trainer.load(tmp_path / "checkpoint")
    assert trainer.steps == 0
    assert [trainer.step(X, LABELS) for _ in range(3)] == expected


def test_another_model_s_checkpoint_changes_nothing(tmp_path: Path) -> None:
    trainer = made(folder=tmp_path / "a")
    made(folder=tmp_path / "sgd", optimizer=SGD(0.1, momentum=0.5)).save(tmp_path / "few moments")
    other = made(folder=tmp_path / "b", optimizer=SGD(0.1, momentum=0.5))
    other.step(X, LABELS)
    other.save(tmp_path / "other optimizer")
    made(folder=tmp_path / "c", train="head.*").save(tmp_path / "frozen")
    wide = forward(MODEL.replace("8,3", "8,4").replace("float[3]", "float[4]"))
    Trainer.from_onnx(wide, CrossEntropyLoss(), threads=1).save(tmp_path / "wide")
    short = forward(MODEL.replace("Tanh(b)", "Tanh(h)"))
    Trainer.from_onnx(short, CrossEntropyLoss(), threads=1).save(tmp_path / "short")
    trainer.step(X, LABELS)
    before = copy_parameters(trainer)
    for name, error, text in (
        ("other optimizer", CheckpointError, "this optimizer keeps"),
        ("frozen", CheckpointError, "'body.bias' is frozen there"),
        ("wide", ShapeError, "'head.bias' is float32[4], expected float32[3]"),
        ("short", CheckpointError, "parameter 'body.bias' is missing in it"),
        ("missing", FileError, "missing"),
    ):
        with pytest.raises(error) as caught:
            trainer.load(tmp_path / name)
        assert text in str(caught.value)
        for parameter, array in copy_parameters(trainer).items():
            np.testing.assert_array_equal(array, before[parameter])
        assert trainer.steps == 1


@pytest.mark.parametrize(
    ("patterns", "trained"),
    [
        ("*", NAMES),
        ("head.*", NAMES[2:]),
        (["head.*", "body.bias"], NAMES[1:]),
        (["*", "!*.weight"], ["body.bias", "head.bias"]),
    ],
)
def test_patterns_choose_what_is_trained(patterns: Any, trained: list[str]) -> None:
    trainer = made(train=patterns)
    before = copy_parameters(trainer)
    trainer.step(X, LABELS)
    changed = [n for n in NAMES if (copy_parameters(trainer)[n] != before[n]).any()]
    assert changed == trained
    assert {n for n, _ in trainer.state.parameters} == set(NAMES)


def test_statistics_bounds_and_scalars_are_no_parameters() -> None:
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[N,4,5,5] x) => (float[N,4,5,5] y) {
            c = Conv(x, w)
            n = BatchNormalization(c, scale, bias, mean, var)
            m = Mul(n, one)
            p = PRelu(m, slope)
            r = Reshape(p, sizes)
            y = Clip(r, zero, one)
        }"""
    )
    rng = np.random.default_rng(0)
    four = {name: rng.random(4) + 0.5 for name in ("scale", "bias", "mean", "var", "unused")}
    arrays = {"w": rng.random((4, 4, 1, 1)), "one": 1.0, "zero": 0.0, "slope": [0.25], **four}
    for name, array in arrays.items():
        value = numpy_helper.from_array(np.array(array, np.float32), name)
        proto.graph.initializer.append(value)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0, 4, 5, 5]), "sizes"))
    parameters = list_parameters(onnx_io.load(proto))
    assert sorted(parameters) == ["bias", "scale", "slope", "w"]


@pytest.mark.parametrize("outputs", [None, ["scores"], ["h", "scores"]])
def test_foreign_artifacts_tell_their_outputs(tmp_path: Path, outputs: list[str] | None) -> None:
    """Without our metadata: what the loss is computed of, unless the caller says it."""
    generate_artifacts(
        forward(), NAMES, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW,
        artifact_directory=tmp_path,
    )  # fmt: skip
    bare = onnx.load(tmp_path / "eval_model.onnx")
    assert [p.key for p in bare.metadata_props] == ["edgegrad.outputs", "edgegrad.set"]
    del bare.metadata_props[:]
    onnx.save(bare, tmp_path / "eval_model.onnx")
    trainer = Trainer(tmp_path, outputs=outputs, threads=1)
    assert trainer.outputs == (outputs or ["scores"])
    actual_predicted = trainer.predict_batch(X)
    known = copy_parameters(trainer)
    for name in actual_predicted:
        body = X @ known["body.weight"]
        scores = np.tanh(body + known["body.bias"]) @ known["head.weight"] + known["head.bias"]
        expected = body if name == "h" else scores
        np.testing.assert_allclose(actual_predicted[name], expected, rtol=1e-5, atol=1e-6)


def test_batches_are_cast_where_no_kind_is_lost() -> None:
    trainer, same = made(), made()
    loss = trainer.step(X.astype(np.float64), LABELS.astype(np.int32))
    assert loss == same.step({"labels": LABELS.tolist(), "x": X.tolist()})
    for batch, error, text in (
        ((X, LABELS.astype(np.float32)), DTypeError, "input 'labels': expected values of type int"),
        ((X,), InputError, "takes 2 inputs, ['x', 'labels'], but the batch has 1"),
        (({"x": X, "label": LABELS},), InputError, "lacks the input 'labels'"),
        (({"x": X}, LABELS), InputError, "or one mapping with all of them, labels included"),
        (({"x": {"x": X}, "labels": LABELS},), InputError, "got a mapping with 'x'; a mapping is"),
        ((X[0], LABELS), ShapeError, "input 'x': expected 2 dimensions"),
        ((X, LABELS + 1), IndexError, "label 3 at position 2"),
    ):
        with pytest.raises(error) as caught:
            trainer.step(*drop_type(batch))
        assert text in str(caught.value)
    assert trainer.steps == 1
    assert trainer.step(X, LABELS) == same.step(X, LABELS)


def test_a_model_that_ends_in_its_loss(tmp_path: Path) -> None:
    proto = forward(MODEL.replace("=> (float[N,3] scores)", "=> (float loss, float[N,3] scores)"))
    text = "float[N,6] x"
    assert text in MODEL
    proto.graph.node.append(helper.make_node("ReduceMean", ["scores"], ["loss"], keepdims=0))
    trainer = Trainer.from_onnx(proto, None, SGD(0.1), folder=tmp_path, threads=1)
    assert (trainer.inputs, trainer.outputs) == (["x"], ["scores"])
    first = trainer.step(X)
    assert trainer.step(X) < first
    assert trainer.predict_batch(X)["scores"].mean() == pytest.approx(
        trainer.evaluate_batch(X)[0], rel=1e-5
    )


def test_the_export_predicts_the_same(tmp_path: Path) -> None:
    import onnxruntime

    trainer = made()
    trainer.step(X, LABELS)
    trainer.export(tmp_path / "inference.onnx")
    assert not onnx.load(tmp_path / "inference.onnx").metadata_props
    session = onnxruntime.InferenceSession(str(tmp_path / "inference.onnx"))
    (scores,) = session.run(["scores"], {"x": X})
    np.testing.assert_allclose(trainer.predict_batch(X)["scores"], scores, rtol=1e-5, atol=1e-6)


def test_large_constants_are_kept_once_for_all_views(tmp_path: Path) -> None:
    """A frozen table that stays a constant lies in region frozen, whichever outputs are asked."""
    table = np.random.default_rng(2).standard_normal((6, 400)).astype(np.float32)
    proto = forward(
        MODEL.replace("MatMul(x, body.weight)", "Identity(mixed)").replace(
            "h = ", "wide = MatMul(x, table)\n    mixed = MatMul(wide, narrow)\n    h = "
        )
    )
    narrow = np.random.default_rng(3).standard_normal((400, 8)).astype(np.float32) / 40
    proto.graph.initializer.append(numpy_helper.from_array(table, "table"))
    proto.graph.initializer.append(numpy_helper.from_array(narrow, "narrow"))
    generate_artifacts(
        proto, ["head.weight"], loss=MSELoss(), optimizer=SGD(), artifact_directory=tmp_path
    )
    for _ in range(2):  # the second time from what is kept, if anything is
        trainer = Trainer(tmp_path, threads=1)
        assert trainer.learner.prediction.frozen == trainer.learner.session.require_eval().frozen
        actual_scores = trainer.predict_batch(X)["scores"]
        known = {**copy_parameters(trainer), "table": table, "narrow": narrow}
        biases = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
        body = np.tanh(X @ table @ narrow + biases["body.bias"])
        expected = body @ known["head.weight"] + biases["head.bias"]
        np.testing.assert_allclose(actual_scores, expected, rtol=1e-4, atol=1e-5)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such folder; generate_artifacts and"):
        Trainer(tmp_path / "nothing")
    with pytest.raises(NameNotFoundError, match=r"'haed\.\*' matches none of 4 parameters"):
        made(train="haed.*")
    with pytest.raises(InputError, match="expected a list of names"):
        made(train=drop_type(3))
    with pytest.raises(InputError, match="lr=-1: expected 0 or more"):
        made(optimizer=AdamW(-1))
    with pytest.raises(DTypeError, match="lr: expected a number or None, got True"):
        made(optimizer=AdamW(drop_type(True)))
    generate_artifacts(forward(), NAMES, loss=MSELoss(), artifact_directory=tmp_path)
    trainer = Trainer(tmp_path, threads=1)
    trainer.accumulate(X, np.zeros((12, 3), np.float32))
    for act in (trainer.update, lambda: trainer.steps, lambda: trainer.learning_rate):
        with pytest.raises(StateError, match="have no optimizer_model"):
            act()
    (tmp_path / "eval_model.onnx").rename(tmp_path / "elsewhere.onnx")
    trainer = Trainer(tmp_path, threads=1)
    trainer.accumulate(X, np.zeros((12, 3), np.float32))
    with pytest.raises(StateError, match="no eval model"):
        trainer.predict_batch(X)
    (tmp_path / "elsewhere.onnx").rename(tmp_path / "eval_model.onnx")
    with pytest.raises(NameNotFoundError, match="'skores' could not be found"):
        Trainer(tmp_path, outputs=["skores"])


def test_the_file_of_a_model_may_not_change_between_two_looks(tmp_path: Path) -> None:
    trainer = made(folder=tmp_path)
    bare = onnx.load(tmp_path / "eval_model.onnx")
    bare.doc_string = "changed"
    onnx.save(bare, tmp_path / "eval_model.onnx")
    with pytest.raises(ModelError, match="has been changed since it was opened"):
        trainer.predict_batch(X)


def test_a_learning_rate_of_the_artifacts_is_in_their_checkpoint(tmp_path: Path) -> None:
    for rate in (None, 0.25):
        generate_artifacts(
            forward(), NAMES, loss=MSELoss(), optimizer=SGD(rate), artifact_directory=tmp_path
        )
        assert Trainer(tmp_path, threads=1).learning_rate == np.float32(rate or 0.001)
        state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
        assert (list(state.properties), state.learning_rate) == ([], rate)
    assert Trainer(tmp_path, learning_rate=0.5, threads=1).learning_rate == 0.5


def test_the_engine_has_the_trainer_as_an_attribute() -> None:
    assert engine.Trainer is Trainer
    with pytest.raises(AttributeError, match="no attribute 'Trainers'"):
        drop_type(engine).Trainers  # noqa: B018  # the access is the test


def test_a_step_imports_no_more_than_a_module_does(tmp_path: Path) -> None:
    """Data, metrics, losses and optimizers are imported by what needs them."""
    made(folder=tmp_path)
    code = f"""
import sys
import numpy as np
from engine import Trainer
rooms = ("engine.profiling", "difflib", "shutil", "tempfile")
print([room for room in rooms if room in sys.modules])
import engine.api
trainer = Trainer({str(tmp_path)!r}, threads=1)
rooms = ("engine.data", "engine.artifacts", "engine.onnxblock",
         "engine.graphs.offline.optim_types", "engine.loss_types", "numba")
print([room for room in rooms if room in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"


def test_the_room_offers_its_names_and_imports_them_late() -> None:
    code = """
import sys
import engine.trainer as room
print([name for name in sys.modules if name.startswith("engine.trainer.")])
for name in room.__all__:
    assert getattr(room, name).__module__.startswith("engine.trainer."), name
    assert name in dir(room), name
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
    with pytest.raises(AttributeError, match="has no attribute 'EarlyStoping'"):
        drop_type(engine.trainer).EarlyStoping  # noqa: B018  # the access is the test
