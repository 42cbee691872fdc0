"""Weights of classes and mixed labels in `fit`, `run.toml` and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.artifacts import CrossEntropyLoss, FocalLoss, MSELoss, NLLLoss
from engine.data import Arrays, Mixup, batches
from engine.data.labels import class_weights
from engine.errors import EngineError, InputError, LabelError, StateError
from engine.tools import cli
from engine.tools.actions import runs
from engine.trainer.callbacks import Callback
from engine.trainer.class_losses import adapt
from engine.trainer.fit import Fit
from tests.support import page_setup
from tests.support.commands import report
from tests.support.harness import copy_parameters
from tests.support.run_models import write_classifier, write_pictures

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 4)).astype(np.float32)
Y = np.array([0] * 18 + [1] * 8 + [2] * 4)


@pytest.fixture(autouse=True)
def forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page_setup.forward(features=4)


def trainer(loss: Any = "cross_entropy") -> Trainer:
    return Trainer.from_onnx("forward.onnx", loss, "adamw", threads=1, seed=1)


def values(made: Trainer) -> dict[str, Any]:
    return copy_parameters(made)


def alike(one: Trainer, other: Trainer) -> bool:
    mine, its = values(one), values(other)
    return all(np.array_equal(mine[name], its[name]) for name in its)


# --- the weights


def test_balanced_weights_are_scikit_learns() -> None:
    sklearn = pytest.importorskip("sklearn.utils.class_weight", reason="needs scikit-learn")
    expected = sklearn.compute_class_weight("balanced", classes=np.arange(3), y=Y)
    np.testing.assert_allclose(class_weights("balanced", Y, 3), expected, rtol=1e-6)
    by_hand = [float(np.float32(30 / (3 * n))) for n in (18, 8, 4)]
    assert class_weights("balanced", Y, 3).tolist() == by_hand


def test_weights_by_list_and_by_class() -> None:
    names = ["cat", "dog", "3"]
    several: list[Any] = [[1, 2, 0.5], {"dog": 2, 2: 0.5}, {1: 2, "2": 0.5}, np.array([1, 2, 0.5])]
    for given in several:
        assert class_weights(given, None, 3, names).tolist() == [1, 2, 0.5]


@pytest.mark.parametrize(
    ("given", "labels", "message"),
    [
        ("balance", Y, "class_weight='balance'; expected 'balanced'"),
        ("balanced", None, "class_weight='balanced' counts labels"),
        ("balanced", Y % 2, "no training sample has the class 'c'"),
        ("balanced", Y + 1, "labels from 1 to 3; the model has 3 classes"),
        ("balanced", X, "labels of type float32"),
        ([1, 2], Y, r"shape \[2\]; expected 3 factors"),
        ([1, 2, -1], Y, "expected finite factors of at least 0"),
        ([1, 2, np.inf], Y, "expected finite factors"),
        ([1, 2, 1e300], Y, "expected finite factors"),
        ([1e-300, 0, 0], Y, "at least 0 in float32, some above 0"),
        ([0, 0, 0], Y, "some above 0"),
        ("balanced", [0, 5], "labels from 0 to 5; the model has 3 classes"),
        ("balanced", ["a"], "labels"),
        ({"d": 2}, Y, "no class 'd'; there are 'a', 'b', 'c'"),
        ({3: 2}, Y, "no class 3"),
        ({"a": "x"}, Y, "class_weight"),
    ],
)
def test_weights_that_are_refused(given: Any, labels: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        class_weights(given, labels, 3, ["a", "b", "c"])


# --- fit


def test_a_fit_with_weights_is_a_fit_of_the_weighted_loss() -> None:
    weight = class_weights("balanced", Y, 3)
    plain, weighted, given = trainer(), trainer(CrossEntropyLoss(weight=weight)), trainer()
    options: dict[str, Any] = {"epochs": 2, "progress": False}
    before = plain.evaluate((X, Y))["loss"]
    history = plain.fit((X, Y), class_weight="balanced", **options)
    expected = weighted.fit((X, Y), **options)
    assert [row["loss"] for row in history.rows] == [row["loss"] for row in expected.rows]
    assert alike(plain, weighted)
    given.fit((X, Y), class_weight=weight.tolist(), **options)
    assert alike(plain, given)
    other = trainer()
    other.fit((X, Y), **options)
    assert not alike(plain, other)
    assert trainer().evaluate((X, Y))["loss"] == before


def test_the_loss_of_the_trainer_stays() -> None:
    made = trainer()
    made.fit((X, Y), class_weight="balanced", progress=False)
    plain = trainer()
    plain.fit((X, Y), progress=False)
    assert made.recipe is not None
    assert made.recipe.loss == "cross_entropy"
    scores = made.predict(X)
    assert isinstance(scores, np.ndarray)
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    np.testing.assert_allclose(
        made.evaluate((X, Y))["loss"], -logs[np.arange(30), Y].mean(), rtol=1e-5
    )
    made.fit((X, Y), class_weight="balanced", progress=False)  # a second time, as well


class Stop(Callback):
    def on_batch_end(self, fit: Fit) -> None:
        if (fit.epoch, fit.batch) == (1, 2):
            fit.stop("the test")


@pytest.mark.parametrize("options", [{"class_weight": "balanced"}, {"augment": "mixup"}])
def test_a_run_resumes_to_the_last_bit(options: Any) -> None:
    data = Arrays((X, Y), classes=["a", "b", "c"])
    more: dict[str, Any] = {"epochs": 3, "progress": False, "batch_size": 8, "seed": 3, **options}
    whole, stopped, resumed = trainer(), trainer(), trainer()
    whole.fit(data, folder="whole", **more)
    stopped.fit(data, folder="parts", callbacks=[Stop()], **more)
    resumed.fit(data, folder="parts", resume=True, **more)
    assert alike(whole, resumed)
    with pytest.raises(StateError, match=r"the factors of the classes|augment is None here and"):
        trainer().fit(data, folder="parts", resume=True, **{**more, **dict.fromkeys(options)})


def test_mixup_is_the_weighted_sum_of_two_losses() -> None:
    made = trainer(CrossEntropyLoss(probabilities=True))
    mixed, shares = Mixup(alpha=1.0, classes=3)((X, Y), np.random.default_rng(5))
    loss = made.evaluate((mixed, shares))["loss"]
    order = np.random.default_rng(5).permutation(30)
    share = np.random.default_rng(5)
    share.permutation(30)
    part = float(share.beta(1.0, 1.0))
    sum_of_two = part * made.evaluate((mixed, Y))["loss"]
    sum_of_two += (1 - part) * made.evaluate((mixed, Y[order]))["loss"]
    np.testing.assert_allclose(loss, sum_of_two, rtol=1e-5)


def test_numbers_of_classes_are_shares_where_the_loss_takes_shares() -> None:
    made, plain = trainer(CrossEntropyLoss(probabilities=True)), trainer()
    metrics = ["accuracy", "f1"]
    mine, its = made.evaluate((X, Y), metrics=metrics), plain.evaluate((X, Y), metrics=metrics)
    np.testing.assert_allclose(list(mine.values()), list(its.values()), rtol=1e-6)
    assert made.evaluate((X, np.eye(3, dtype=np.float32)[Y]), metrics=metrics) == mine
    with pytest.raises(LabelError, match="labels from 1 to 3; the model has 3 classes"):
        made.step(X, Y + 1)


def test_a_fit_with_mixup_validates_with_plain_labels() -> None:
    data = Arrays((X, Y), classes=["a", "b", "c"])
    made = trainer()
    history = made.fit(data, validation=0.3, augment=["mixup"], metrics="accuracy", epochs=2,
                       progress=False)  # fmt: skip
    assert 0 <= history.rows[-1]["val_accuracy"] <= 1
    assert "labels [" in str(made.plan), "the plan is of labels, not of shares of classes"
    assert made.step(X, Y) > 0, "the trainer has its own loss again"


@pytest.mark.parametrize(
    ("loss", "options", "error", "message"),
    [
        (MSELoss(), {"class_weight": [1, 1, 1]}, InputError, "over classes: MSELoss is none"),
        (MSELoss(), {"augment": Mixup(classes=3)}, InputError, "MSELoss does not take shares"),
        (CrossEntropyLoss(weight=np.array([1, 1, 2.0])), {"class_weight": "balanced"}, InputError,
         "CrossEntropyLoss has its own weight="),
        ("cross_entropy", {"class_weight": "balanced", "unfreeze": {"fc2*": 0}}, None, ""),
    ],
)  # fmt: skip
def test_losses_that_do_not_fit(loss: Any, options: Any, error: Any, message: str) -> None:
    made = trainer(loss)
    if error is None:
        made.fit((X, Y), progress=False, **options)
        return
    with pytest.raises(error, match=message):
        made.fit((X, Y), progress=False, **options)


def test_a_trainer_of_artifacts_is_refused() -> None:
    made = trainer()
    again = Trainer(made.folder, threads=1)
    with pytest.raises(StateError, match="class_weight= makes artifacts again, and this trainer"):
        again.fit((X, Y), class_weight="balanced", progress=False)
    with pytest.raises(StateError, match="a change that mixes labels makes artifacts again"):
        again.fit(batches((X, Y), augment=Mixup(classes=3)), progress=False)


def test_losses_that_are_adapted() -> None:
    weight = np.array([1, 2, 3], np.float32)
    assert adapt(NLLLoss(), weight, []).weight is weight
    assert adapt(FocalLoss(activation="softmax"), weight, []).alpha is weight
    both = adapt("cross_entropy", weight, ["mixup"])
    assert both.weight is weight
    assert both.probabilities
    for loss in (FocalLoss(), None):
        with pytest.raises(InputError, match="class_weight="):
            adapt(loss, weight, [])
    with pytest.raises(InputError, match="does not take shares of classes"):
        adapt(NLLLoss(), None, ["cutmix"])


# --- the command line


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("PIL", reason="needs Pillow")
    data, model = write_pictures(tmp_path / "photos"), write_classifier(tmp_path / "m.onnx", 3)
    words = ("train", "--model", model, "--data", data, "--batch", 8, "--threads", 1)
    more = ("--augment", "mixup", "--augment", "flip", "--balanced", "--class-weight")
    first = report(capsys, *words, *more, "balanced", "-o", "a", "--epochs", 2)
    assert first["best"]["val_accuracy"] >= 0
    config = runs.read_config(tmp_path / "a")
    assert (config.fit.class_weight, config.data.balanced) == ("balanced", True)
    report(capsys, "train", "--config", "a/run.toml", "--set", "output.folder=b",
           "--set", "fit.class_weight={red = 2.0}")  # fmt: skip
    assert runs.read_config(tmp_path / "b").fit.class_weight == {"red": 2.0}
    assert report(capsys, "eval", "a", "--data", data)["accuracy"] >= 0
    assert cli.main(list(map(str, (*words, "-o", "c", "--class-weight", "{pink=2}")))) == 1
    assert "class_weight: no class 'pink'; there are" in capsys.readouterr().err
