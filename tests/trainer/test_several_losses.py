"""Losses of several outputs, each with its own loss and weight."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from engine import Trainer, artifacts
from engine.artifacts import SGD, CrossEntropyLoss, HuberLoss, L1Loss, LossType
from engine.data import Mixup
from engine.errors import (
    DTypeError,
    InputError,
    ModelWarning,
    NameNotFoundError,
    NoInfluenceError,
)
from engine.tools import cli
from engine.trainer.fit import Callback, Fit
from engine.trainer.metrics import MAE, Accuracy, Metric
from tests.support.harness import copy_parameters
from tests.support.tiny import LABELS, X, read_values

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,6] x) => (float[N,3] scores, float[N,2] box) {
    h = MatMul(x, body)
    r = Tanh(h)
    scores = MatMul(r, head)
    box = MatMul(r, side)
}"""
BOXES = np.tanh(X[:, :2])
DATA = (X, LABELS, BOXES)
LOSS: dict[str, Any] = {"scores": CrossEntropyLoss(), "box": (L1Loss(), 0.5)}


def model() -> bytes:
    proto, rng = parser.parse_model(TEXT), np.random.default_rng(0)
    for name, shape in (("body", (6, 8)), ("head", (8, 3)), ("side", (8, 2))):
        value = (rng.standard_normal(shape) / 2).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    data: bytes = proto.SerializeToString()
    return data


def made(loss: Any = LOSS, **options: Any) -> Trainer:
    return Trainer.from_onnx(model(), loss, SGD(0.1), threads=1, seed=0, **options)


def parts(trainer: Trainer) -> tuple[float, float]:
    """Return both losses, computed by NumPy."""
    scores, box = trainer.predict(X)
    shifted = scores - scores.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return float(-logs[np.arange(20), LABELS].mean()), float(np.abs(box - BOXES).mean())


def test_the_weighted_sum_is_trained() -> None:
    trainer = made()
    assert trainer.inputs == ["x", "scores_labels", "box_target"]
    first, second = parts(trainer)
    assert trainer.step(*DATA) == pytest.approx(first + 0.5 * second, rel=1e-5)
    weights = copy_parameters(trainer)
    for output, target, own in (("scores", LABELS, "head"), ("box", BOXES, "side")):
        alone = made({output: LOSS[output]}, train=["body", own])
        before = copy_parameters(alone)
        alone.step(X, target)
        for name, p in alone.state.parameters:
            weights[name] -= p.data - before[name]
    start = {name: p.data for name, p in made().state.parameters}
    for name, value in weights.items():  # the updates of the parts make the whole update
        np.testing.assert_allclose(value, start[name], atol=1e-6)


class Logs(Callback):
    """Keeps the logs of the batches."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_batch_end(self, fit: Fit) -> None:
        self.rows.append(dict(fit.logs))


@pytest.mark.parametrize("options", [{}, {"micro_batches": 2}], ids=str)
def test_the_history_has_each_part(options: dict[str, Any]) -> None:
    trainer, logs = made(**options), Logs()
    history = trainer.fit(
        DATA, validation=DATA, epochs=2, batch_size=20, shuffle=False, callbacks=[logs],
        metrics=[], progress=False, monitor="val_loss_box",
    )  # fmt: skip
    assert history.best("val_loss_box")["epoch"] == 1
    first = made()
    scores, box = parts(first)
    assert logs.rows[0]["loss_scores"] == pytest.approx(scores, rel=1e-5)
    assert logs.rows[0]["loss_box"] == pytest.approx(box, rel=1e-5)
    scores, box = parts(trainer)
    last = history.rows[-1]
    assert last["val_loss_scores"] == pytest.approx(scores, rel=1e-5)
    assert last["val_loss_box"] == pytest.approx(box, rel=1e-5)
    assert last["val_loss"] == pytest.approx(scores + 0.5 * box, rel=1e-5)
    assert last["loss"] == pytest.approx(last["loss_scores"] + 0.5 * last["loss_box"], rel=1e-5)


def test_a_resumed_run_has_the_same_parts(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_step_end(self, fit: Fit) -> None:
            if fit.step == 3:
                fit.stop("for the test")

    options: dict[str, Any] = {"epochs": 2, "batch_size": 8, "progress": False}
    whole, first, second = made(), made(), made()
    told = whole.fit(DATA, **options)
    first.fit(DATA, folder=tmp_path, callbacks=[Stop()], **options)
    rest = second.fit(DATA, folder=tmp_path, resume=True, **options)
    assert rest["loss_box"] == told["loss_box"]
    assert read_values(second) == read_values(whole)


def test_parts_may_be_named_and_have_the_types_of_artifacts(tmp_path: Path) -> None:
    named = made({"scores": "cross_entropy", "box": ("l1", 0.5)})
    assert named.step(*DATA) == made().step(*DATA)
    artifacts.generate_artifacts(
        model(), requires_grad=["head", "side"], frozen_params=["body"], optimizer=SGD(0.1),
        loss={"scores": LossType.CrossEntropyLoss, "box": L1Loss()}, artifact_directory=tmp_path,
    )  # fmt: skip
    assert Trainer(tmp_path).evaluate(DATA).keys() == {"loss", "loss_scores", "loss_box"}


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        ({}, InputError, "expected names of outputs, each with its loss"),
        ({"scroes": L1Loss()}, NameNotFoundError, "no output 'scroes'.*nearest: 'scores'"),
        ({"box": 3}, DTypeError, r"loss\['box'\]=3: expected a loss of one output"),
        ({"box": L1Loss("none")}, DTypeError, "expected a loss of one output"),
        ({"box": (L1Loss(), 0)}, InputError, "weight=0: expected above 0"),
        ({"box": "l3"}, InputError, "no loss 'l3'"),
    ],
)
def test_losses_that_are_refused(loss: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        made(loss)


def both() -> list[Metric]:
    return [
        Accuracy(output="scores", target="scores_labels"),
        MAE(output="box", target="box_target"),
    ]


@pytest.mark.parametrize("options", [{}, {"micro_batches": 2}], ids=str)
def test_metrics_of_the_training_data_are_of_the_outputs_that_they_name(
    options: dict[str, Any],
) -> None:
    trainer = Trainer.from_onnx(model(), LOSS, SGD(0.0), threads=1, seed=0, **options)
    row = trainer.fit(
        DATA, metrics=both(), train_metrics=True, batch_size=8, progress=False
    ).rows[-1]  # fmt: skip
    scores, box = trainer.predict(X)
    assert row["accuracy"] == pytest.approx((scores.argmax(1) == LABELS).mean())
    assert row["mae"] == pytest.approx(np.abs(box - BOXES).mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("accuracy", "'accuracy': the outputs .'scores', 'box'.* output= and target= of Accuracy"),
        (MAE(target="box_target"), "'mae': .* by output= of MAE"),
        (lambda output, target: 0.0, "'function': .* by output= and target= of Function"),
        ("perplexity", "by target= of Perplexity"),
    ],
)
def test_metrics_that_do_not_name_what_they_compare(metric: Any, message: str) -> None:
    for train in (False, True):
        with pytest.raises(InputError, match=message):
            made().fit(
                DATA, validation=DATA, metrics=metric, train_metrics=train, progress=False
            )  # fmt: skip
    with pytest.raises(InputError, match=message):
        made().evaluate(DATA, metrics=metric)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weight": "balanced"}, r"class_weight= is for a single loss; .*'scores', 'box'"),
        ({"class_weight": [1, 2, 3]}, r"loss=\{'scores': CrossEntropyLoss\(weight=...\)\}"),
        ({"augment": Mixup(classes=3)}, "augment='Mixup' mixes the features and the last target"),
    ],
)
def test_options_for_a_single_loss_are_refused(options: dict[str, Any], message: str) -> None:
    trainer = made()
    again = Trainer(trainer.folder, threads=1)
    for each in (trainer, again):
        with pytest.raises(InputError, match=message):
            each.fit((X, BOXES, LABELS), progress=False, **options)


def test_a_report_compares_the_first_output_with_its_own_target(tmp_path: Path) -> None:
    made().fit(DATA, validation=DATA, folder=tmp_path / "scores", progress=False)
    page = (tmp_path / "scores" / "report.html").read_text("utf-8")
    assert 'id="classes"' in page
    swapped = made({"box": L1Loss(), "scores": CrossEntropyLoss()})
    assert swapped.learner.compared == ("box", "box_target")


TOML = """
[model]
path = "two.onnx"
loss = {scores = "cross_entropy", box = [{name = "huber", delta = 2}, 0.5]}

[data]
path = "data.npz"
options = {arrays = ["x", "scores_labels", "box_target"]}
shuffle = false
batch_size = 8
validation = 0

[optimizer]
name = "sgd"
lr = 0.1

[fit]
epochs = 2
threads = 1
"""


def test_run_toml_has_losses_by_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two.onnx").write_bytes(model())
    Path("run.toml").write_text(TOML)
    np.savez("data.npz", x=X, scores_labels=LABELS, box_target=BOXES)
    assert cli.main(["train", "--config", "run.toml", "-o", "run"]) == 0, capsys.readouterr().err
    trainer = made({"scores": CrossEntropyLoss(), "box": (HuberLoss(delta=2.0), 0.5)})
    told = trainer.fit(DATA, batch_size=8, shuffle=False, epochs=2, progress=False)
    rows = list(csv.DictReader(Path("run/history.csv").read_text().splitlines()))
    for name in ("loss", "loss_scores", "loss_box"):
        assert [float(row[name]) for row in rows] == pytest.approx(told[name], rel=1e-6)
    assert (
        cli.main(["train", "--config", "run/run.toml", "-o", "run", "--resume", "--epochs", "3"])
        == 0
    )
    again = Trainer.from_run("run", threads=1)
    assert isinstance(again.recipe and again.recipe.loss, dict)
    assert again.learner.part_names == ["loss_scores", "loss_box"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--class-weight", "balanced"), "class_weight= is for a single loss"),
        (("--set", "data.augment=mixup"), "'mixup' mixes the features and the last target alone"),
        (("--set", "model.loss_options.delta=2"), "loss_options: the losses of several outputs"),
        (("--loss", '{scores = "cross"}'), "loss.scores: no loss 'cross'"),
        (("--loss", "{scores = 3}"), "loss.scores: name: expected text"),
        (("--loss", '{scores = ["mse", "a"]}'), "loss.scores: weight"),
        (("--loss", '{scores = ["mse", -1]}'), "weight=-1.0: expected above 0"),
        (("--loss", '{score = "mse"}'), "'score'"),
        (("--loss", "{}"), "expected names of outputs"),
    ],
)
def test_losses_of_run_toml_that_do_not_fit(
    words: tuple[str, ...],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two.onnx").write_bytes(model())
    Path("run.toml").write_text(TOML)
    np.savez("data.npz", x=X, scores_labels=LABELS, box_target=BOXES)
    assert cli.main(["train", "--config", "run.toml", *words]) == 1
    told = capsys.readouterr().err
    assert text in told
    assert "Traceback" not in told


@pytest.mark.parametrize("train", ["*", ["body", "head", "side"]])
def test_what_the_loss_does_not_read_stays_as_it_is(train: Any, tmp_path: Path) -> None:
    """A file with outputs for several tasks trains for one of them, as a PyTorch module does."""
    with pytest.warns(ModelWarning, match="the loss does not depend on 'side', so they stay"):
        trainer = made("mse", loss_inputs=["scores"], train=train)
    assert list(trainer.state.trainable_names()) == ["body", "head"]
    target = np.zeros((20, 3), np.float32)
    assert trainer.step(X, target) > trainer.step(X, target)
    trainer.export(tmp_path / "trained.onnx")
    protos = onnx.load_model_from_string(model()), onnx.load(tmp_path / "trained.onnx")
    before, after = (
        {i.name: numpy_helper.to_array(i) for i in proto.graph.initializer} for proto in protos
    )
    assert {name for name in before if np.array_equal(before[name], after[name])} == {"side"}


def test_a_loss_that_reads_nothing_trained_is_refused() -> None:
    with pytest.raises(NoInfluenceError, match="with respect to 'side'") as caught:
        made("mse", loss_inputs=["scores"], train=["side"])
    assert caught.value.names == ("side",)


def test_artifacts_of_names_refuse_what_the_loss_does_not_read(tmp_path: Path) -> None:
    with pytest.raises(NoInfluenceError, match="with respect to 'side'"):
        artifacts.generate_artifacts(
            model(), requires_grad=["body", "side"], loss=LossType.MSELoss,
            loss_input_names=["scores"], artifact_directory=str(tmp_path),
        )  # fmt: skip


def test_the_command_trains_for_one_output(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(model())
    np.savez(tmp_path / "data.npz", x=X, y=np.zeros((20, 3), np.float32))
    with pytest.warns(ModelWarning, match="does not depend on 'side'"):
        cli.main([
            "train", "--model", str(tmp_path / "model.onnx"), "--data", str(tmp_path / "data.npz"),
            "--loss", "mse", "--loss-input", "scores", "--epochs", "1", "--out",
            str(tmp_path / "run"),
        ])  # fmt: skip
    assert (tmp_path / "run" / "inference.onnx").exists()
