"""Metrics of training data, on the outputs of the steps, however a batch is divided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.artifacts import SGD
from engine.data import Mixup, batches
from engine.errors import InputError
from engine.trainer.fit import Callback, Fit
from engine.trainer.metrics import Metric
from tests.support.thread_group import ThreadGroup, run
from tests.support.tiny import BATCH, DROPPING, LABELS, NORMED, PLAIN, X, make_trainer, read_values

DATA = (X, LABELS)
NAMES = ["accuracy", "auroc", "f1", "perplexity"]
QUIET: dict[str, Any] = {"batch_size": BATCH, "progress": False}


@pytest.mark.parametrize(("accumulate", "parts"), [(1, 1), (2, 1), (1, 2)])
def test_they_are_of_the_outputs_before_each_update(accumulate: int, parts: int) -> None:
    """With a rate of 0 no update changes anything, so that an evaluation gives the same."""
    trainer = make_trainer(optimizer=SGD(0.0), micro_batches=parts)
    history = trainer.fit(
        DATA, metrics=NAMES, train_metrics=True, epochs=2, accumulate=accumulate, **QUIET
    )
    expected = trainer.evaluate(DATA, metrics=NAMES, batch_size=BATCH)
    for name in NAMES:
        assert history[name] == pytest.approx([expected[name]] * 2, rel=1e-5)
    assert history.columns[1 : 2 + len(NAMES)] == ["loss", *NAMES]


@pytest.mark.parametrize("text", [PLAIN, DROPPING, NORMED])
def test_they_change_nothing_that_is_trained(text: str) -> None:
    plain, measured = make_trainer(text), make_trainer(text)
    options: dict[str, Any] = {"epochs": 2, "validation": DATA, "metrics": "accuracy", **QUIET}
    without = plain.fit(DATA, **options)
    history = measured.fit(DATA, train_metrics=True, **options)
    assert read_values(plain) == read_values(measured)
    assert history["loss"] == without["loss"]
    assert history["val_accuracy"] == without["val_accuracy"]
    assert "accuracy" not in without
    assert measured.learner.session.watch is None
    assert measured.step(*DATA) == plain.step(*DATA)
    assert read_values(plain) == read_values(measured)


def test_a_column_of_the_training_data_can_be_monitored() -> None:
    trainer = make_trainer()
    history = trainer.fit(DATA, metrics=["recall_per_class"], train_metrics=True, epochs=2, **QUIET)
    assert history.columns[2:5] == ["recall_0", "recall_1", "recall_2"]
    history = trainer.fit(DATA, metrics="accuracy", train_metrics=True, monitor="accuracy", **QUIET)
    assert history.best("accuracy")["accuracy"] > 0.5


def test_a_run_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "metrics": NAMES, "train_metrics": True, "epochs": 2, "checkpoint_every": 1, **QUIET
    }  # fmt: skip
    whole = make_trainer().fit(DATA, folder=tmp_path / "whole", **options)

    class Stop(Callback):
        def on_batch_end(self, fit: Fit) -> None:
            if (fit.epoch, fit.batch) == (1, 2):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_trainer().fit(DATA, folder=tmp_path / "parts", callbacks=[Stop()], **options)
    again = make_trainer().fit(DATA, folder=tmp_path / "parts", resume=True, **options)
    for name in ("loss", *NAMES):
        assert again[name] == whole[name]


@pytest.mark.parametrize("parts", [1, 2])
def test_ranks_count_together(parts: int) -> None:
    """The last batch of a run of 17 samples has one, so that a rank has none of it."""
    data, asked = (X[:17], LABELS[:17]), {"metrics": NAMES, "train_metrics": True, **QUIET}
    alone = make_trainer(optimizer=SGD(0.1)).fit(data, epochs=2, **asked)

    def rank(group: ThreadGroup) -> list[list[float]]:
        trainer = make_trainer(optimizer=SGD(0.1), group=group, micro_batches=parts)
        history = trainer.fit(data, epochs=2, **asked)
        return [history[name] for name in NAMES]

    for told in run(2, rank):
        assert not isinstance(told, BaseException), told
        for name, column in zip(NAMES, told, strict=True):
            assert column == pytest.approx(alone[name], rel=1e-4)


def test_steps_that_are_skipped_do_not_count() -> None:
    x = X.copy()
    x[3] = np.nan
    trainer = make_trainer(optimizer=SGD(0.0), skip_nonfinite=True)
    source = batches((x, LABELS), batch_size=BATCH, allow_nan=True)
    history = trainer.fit(source, metrics="accuracy", train_metrics=True, progress=False)
    scores = trainer.predict(X)
    assert isinstance(scores, np.ndarray)
    counted = (scores.argmax(1) == LABELS)[BATCH:]
    assert history["accuracy"] == [pytest.approx(counted.mean())]


def test_what_cannot_be_measured() -> None:
    class Mine(Metric):
        def reset(self) -> None:
            pass

        def update(self, *_: Any) -> None:
            pass

        def result(self) -> float:
            return 0.0

    for metrics, text in (
        ([Mine("mine")], r"metric 'mine' cannot be counted in parts: Mine has no partial\(\)"),
        ([], "train_metrics=True without metrics"),
    ):
        with pytest.raises(InputError, match=text):
            make_trainer().fit(DATA, metrics=metrics, train_metrics=True, **QUIET)
    with pytest.raises(InputError, match="give validation=, or train_metrics=True"):
        make_trainer().fit(DATA, metrics="accuracy", **QUIET)


def test_mixed_labels_count_as_the_class_with_the_larger_share() -> None:
    options: dict[str, Any] = {"augment": Mixup(classes=3), "shuffle": False, **QUIET}
    trainer = make_trainer(optimizer=SGD(0.0))
    history = trainer.fit(DATA, metrics=["accuracy", "f1"], train_metrics=True, **options)
    expected = []
    for batch in batches(DATA, batch_size=BATCH, augment=Mixup(classes=3)).epoch():
        x, shares = batch
        scores = trainer.predict(x)
        assert isinstance(scores, np.ndarray)
        assert isinstance(shares, np.ndarray)
        expected.extend(scores.argmax(1) == shares.argmax(1))
    assert history["accuracy"] == [pytest.approx(np.mean(expected))]
