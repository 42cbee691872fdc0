"""The loop of `Trainer.fit`: what it computes, in which order it calls, and how it ends."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.artifacts import SGD, CrossEntropyLoss
from engine.data import batches
from engine.errors import DTypeError, EngineError, InputError, NameNotFoundError, StateError
from engine.trainer.callbacks import EarlyStopping
from engine.trainer.fit import HOOKS, Callback, Fit
from engine.trainer.schedules import Linear, Plateau
from tests.support.tiny import BATCH, LABELS, X, make_trainer, read_values

DATA = (X, LABELS)
QUIET: dict[str, Any] = {"batch_size": BATCH, "progress": False}


class Recorder(Callback):
    """Writes down which hooks are called, and where the run is then."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.losses: list[float] = []

    def on_batch_end(self, fit: Fit) -> None:
        self.losses.append(fit.logs["loss"])


for _name in HOOKS:  # every hook is written down

    def _hook(self: Recorder, fit: Fit, *more: Any, name: str = _name) -> None:
        self.calls.append(name.removeprefix("on_"))
        if name == "on_batch_end":
            self.losses.append(fit.logs["loss"])

    setattr(Recorder, _name, _hook)


def test_it_does_what_a_loop_of_steps_does() -> None:
    fitted, looped = make_trainer(), make_trainer()
    history = fitted.fit(DATA, epochs=2, seed=3, **QUIET)
    source, losses = batches(DATA, batch_size=BATCH, shuffle=True, seed=3), []
    for epoch in range(2):
        total = 0.0
        for batch in source.epoch(epoch):
            assert isinstance(batch, tuple)
            total += looped.step(*batch) * len(batch[0])
        losses.append(total / len(X))
    assert history["loss"] == losses
    assert read_values(fitted) == read_values(looped)
    assert history["epoch"] == [0, 1]
    assert history.stop_reason is None
    assert losses[1] < losses[0]


def test_the_history_has_validation_rates_times_and_memory() -> None:
    trainer = make_trainer()
    history = trainer.fit(
        DATA, validation=DATA, metrics=["accuracy", "top2"], epochs=2, schedule=Linear(), **QUIET
    )
    assert history.columns == [
        "epoch", "loss", "val_loss", "val_accuracy", "val_top2", "lr", "seconds",
        "samples_per_second", "memory",
    ]  # fmt: skip
    actual_scores = trainer.evaluate(DATA, metrics=["accuracy"], batch_size=BATCH)
    last = history.rows[-1]
    assert (last["val_loss"], last["val_accuracy"]) == (
        actual_scores["loss"],
        actual_scores["accuracy"],
    )
    assert history["lr"] == [np.float32(0.05 * 4 / 6), np.float32(0.05 * 1 / 6)]
    assert trainer.learning_rate == np.float32(0.05)  # as before
    assert min(history["seconds"]) > 0
    assert min(history["memory"]) > 1 << 20


def test_a_validation_changes_nothing() -> None:
    plain, validated = make_trainer(), make_trainer()
    plain.fit(DATA, epochs=2, **QUIET)
    validated.fit(DATA, validation=DATA, metrics="accuracy", epochs=2, **QUIET)
    assert read_values(plain) == read_values(validated)
    assert validated.module.training


def test_a_share_for_the_validation_is_not_trained_on() -> None:
    class Seen(Callback):
        def __init__(self) -> None:
            self.rows: list[bytes] = []

        def on_evaluate_batch_end(self, fit: Fit) -> None:
            assert fit.evaluation is not None
            assert list(fit.evaluation.inputs) == ["x", "labels"]
            assert list(fit.evaluation.outputs) == ["scores"]
            assert (fit.evaluation.index, fit.evaluation.batches) == (0, 1)
            self.rows += [row.tobytes() for row in fit.evaluation.inputs["x"]]

    seen, recorder = Seen(), Recorder()
    make_trainer().fit(DATA, validation=0.2, callbacks=[seen, recorder], seed=1, **QUIET)
    assert len(seen.rows) == 4
    assert recorder.calls.count("batch_end") == 2  # of 16 samples
    again = Seen()
    make_trainer().fit(DATA, validation=0.2, callbacks=[again], seed=1, **QUIET)
    assert again.rows == seen.rows


@pytest.mark.parametrize("accumulate", [2, 5])
def test_accumulated_batches_are_one_large_batch(accumulate: int) -> None:
    """Of mean losses, without batch normalisation: the mean of gradients of equal batches."""
    small, large = (make_trainer(optimizer=SGD(0.5)) for _ in range(2))
    one = small.fit(DATA, epochs=3, batch_size=2, accumulate=accumulate, progress=False)
    other = large.fit(DATA, epochs=3, batch_size=2 * accumulate, progress=False)
    assert small.steps == large.steps == 3 * (10 // accumulate)
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    for name, parameter in small.state.parameters:
        np.testing.assert_allclose(parameter.data, large.state.parameters[name].data, atol=1e-6)


def test_the_last_batches_of_an_epoch_are_a_step_of_their_own() -> None:
    trainer, recorder = make_trainer(), Recorder()
    trainer.fit(DATA, epochs=2, accumulate=2, callbacks=[recorder], **QUIET)
    assert trainer.steps == 4
    inner = [c for c in recorder.calls if c in ("batch_end", "step_end")]
    assert inner[:5] == ["batch_end", "batch_end", "step_end", "batch_end", "step_end"]


def test_the_order_of_hooks(tmp_path: Path) -> None:
    recorder = Recorder()
    make_trainer().fit(DATA, validation=DATA, folder=tmp_path, callbacks=[recorder], **QUIET)
    step = ["batch_end", "step_end"]
    evaluation = ["evaluate_begin", *["evaluate_batch_end"] * 3, "evaluate_end"]
    assert recorder.calls == [
        "fit_begin", "epoch_begin", *step, *step, *step, *evaluation, "epoch_end", "checkpoint",
        "fit_end",
    ]  # fmt: skip
    assert recorder.losses == sorted(recorder.losses, reverse=True) or len(recorder.losses) == 3


def test_hooks_that_nobody_overrides_are_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HOOKS:
        monkeypatch.setattr(Callback, name, lambda *given: pytest.fail("called"))

    class Own(Callback):
        count = 0

        def on_step_end(self, fit: Fit) -> None:
            self.count += 1

    own, assigned, steps = Own(), Callback(), []
    vars(assigned)["on_step_end"] = lambda fit: steps.append(fit.step)
    make_trainer().fit(DATA, callbacks=[own, assigned], **QUIET)
    assert own.count == 3
    assert steps == [1, 2, 3]


def test_what_a_callback_sees() -> None:
    seen = []

    class Look(Callback):
        def on_batch_end(self, fit: Fit) -> None:
            seen.append((fit.epoch, fit.batch, fit.batches, fit.samples, fit.samples_total))
            assert fit.seconds > 0

        def on_epoch_end(self, fit: Fit) -> None:
            assert fit.history.rows[-1]["epoch"] == fit.epoch
            assert (fit.batch, fit.samples) == (3, 20)

    make_trainer().fit(DATA, epochs=2, callbacks=[Look()], **QUIET)
    assert seen == [
        (0, 1, 3, 8, 8), (0, 2, 3, 16, 16), (0, 3, 3, 20, 20),
        (1, 1, 3, 8, 28), (1, 2, 3, 16, 36), (1, 3, 3, 20, 40),
    ]  # fmt: skip


def test_a_schedule_sets_the_rate_before_each_step() -> None:
    trainer, rates = make_trainer(), []
    learn = trainer.training_steps.learn

    def watched(*batch: Any, **options: Any) -> float:
        rates.append(trainer.learning_rate)
        return learn(*batch, **options)

    vars(trainer.training_steps)["learn"] = watched
    trainer.fit(DATA, epochs=2, schedule=Linear(warmup=2), **QUIET)
    base = 0.05
    expected = [base / 2, base, base, base * 3 / 4, base * 2 / 4, base / 4]
    assert rates == [np.float32(rate) for rate in expected]


def test_a_plateau_observes_the_monitored_column() -> None:
    trainer = make_trainer()
    history = trainer.fit(
        DATA, epochs=4, schedule=Plateau(factor=0.5, patience=1, min_delta=99), **QUIET
    )
    assert history["lr"] == pytest.approx([0.05, 0.05, 0.025, 0.0125])
    assert trainer.learning_rate == np.float32(0.05)


def test_early_stopping_waits_and_brings_back_the_best_values() -> None:
    trainer, kept = make_trainer(optimizer=SGD(0.1)), []

    class Spoil(Callback):
        """Epoch 2 is the best; from then on the model gets worse."""

        def on_epoch_begin(self, fit: Fit) -> None:
            if fit.epoch >= 3:
                kept.append(read_values(fit.trainer))
                fit.trainer.state.parameters["head.weight"].data[...] = 9

    stopping = EarlyStopping("val_loss", patience=2, restore_best=True)
    calls = Recorder()
    history = trainer.fit(
        DATA, validation=DATA, epochs=9, callbacks=[Spoil(), stopping, calls], **QUIET
    )
    assert len(history) == 5
    assert history.stop_reason == "val_loss has not become better for 2 epochs"
    assert (stopping.best_epoch, stopping.best) == (2, history["val_loss"][2])
    assert read_values(trainer) == kept[0]
    assert calls.calls[-2:] == ["stop", "fit_end"]


def test_early_stopping_of_a_column_that_is_not_there() -> None:
    with pytest.raises(NameNotFoundError, match=r"no column 'val_acuracy'.*'val_accuracy'"):
        make_trainer().fit(
            DATA, validation=DATA, metrics="accuracy",
            callbacks=[EarlyStopping("val_acuracy", mode="max")], **QUIET,
        )  # fmt: skip


def test_stop_ends_behind_the_batch(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_batch_end(self, fit: Fit) -> None:
            if (fit.epoch, fit.batch) == (1, 2):
                fit.stop("enough")
                fit.stop("too late")

    recorder = Recorder()
    history = make_trainer().fit(
        DATA, validation=DATA, epochs=5, callbacks=[Stop(), recorder], folder=tmp_path, **QUIET
    )
    assert history.stop_reason == "enough"
    assert recorder.calls.count("batch_end") == 5
    assert [row["epoch"] for row in history.rows] == [0, 1]
    assert "val_loss" in history.rows[1]
    assert recorder.calls[-3:] == ["checkpoint", "stop", "fit_end"]


def test_a_stop_finishes_the_accumulated_step() -> None:
    class Stop(Callback):
        def on_batch_end(self, fit: Fit) -> None:
            fit.stop("at once")

    trainer = make_trainer()
    trainer.fit(DATA, accumulate=3, epochs=5, batch_size=4, callbacks=[Stop()], progress=False)
    assert trainer.steps == 1


def test_a_time_limit_ends_the_run_behind_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("engine.trainer.loop.monotonic", lambda: now[0])

    class Hour(Callback):
        def on_batch_end(self, fit: Fit) -> None:
            now[0] += 3600

    history = make_trainer().fit(
        DATA, validation=DATA, epochs=9, hours=3.5, callbacks=[Hour()], **QUIET
    )
    assert history.stop_reason == "the time limit is reached"
    assert [row["epoch"] for row in history.rows] == [0, 1]
    assert history["seconds"] == [3 * 3600, 3600]
    assert "val_loss" in history.rows[1]


def test_iterables_without_a_length() -> None:
    def source() -> Any:
        yield X[:8], LABELS[:8]
        yield X[8:16], LABELS[8:16]

    lengths = []

    class Look(Callback):
        def on_epoch_begin(self, fit: Fit) -> None:
            lengths.append(fit.batches)

    trainer = make_trainer()
    trainer.fit(source, epochs=2, callbacks=[Look()], progress=False)
    assert lengths == [None, 2]
    assert trainer.steps == 4
    with pytest.raises(InputError, match=r"Linear must know .* give Linear\(steps=\.\.\.\)"):
        trainer.fit(source, schedule=Linear(), progress=False)
    trainer.fit(source, schedule=Linear(steps=2), progress=False)
    assert trainer.steps == 6


def test_batches_by_name() -> None:
    one, other = make_trainer(), make_trainer()
    first = one.fit({"labels": LABELS, "x": X}, epochs=2, **QUIET)
    second = other.fit(DATA, epochs=2, **QUIET)
    assert first["loss"] == second["loss"]
    named = [{"x": X[:8], "labels": LABELS[:8]}]
    assert (
        make_trainer().fit(named, progress=False)["loss"]
        == make_trainer().fit([(X[:8], LABELS[:8])], progress=False)["loss"]
    )


def test_an_exception_reaches_the_caller_and_the_callbacks() -> None:
    class Fail(Callback):
        error: BaseException | None = None

        def on_step_end(self, fit: Fit) -> None:
            raise ZeroDivisionError("of mine")

        def on_fit_end(self, fit: Fit) -> None:
            self.error = fit.error

    fail, trainer = Fail(), make_trainer()
    with pytest.raises(ZeroDivisionError, match="of mine"):
        trainer.fit(DATA, schedule=Linear(), callbacks=[fail], **QUIET)
    assert isinstance(fail.error, ZeroDivisionError)
    assert trainer.learning_rate == np.float32(0.05)


def test_callbacks_are_told_of_the_end_of_a_run_that_is_well() -> None:
    seen: list[Any] = []

    class Look(Callback):
        def on_fit_end(self, fit: Fit) -> None:
            seen.append((fit.error, fit.stop_reason, len(fit.history)))

    make_trainer().fit(DATA, callbacks=[Look()], **QUIET)
    assert seen == [(None, None, 1)]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"epochs": 0}, InputError, "epochs=0: expected 1 or more"),
        ({"epochs": 1.5}, DTypeError, "epochs: expected a whole number"),
        ({"accumulate": 0}, InputError, "accumulate=0"),
        ({"keep": 0}, InputError, "keep=0"),
        ({"checkpoint_every": 0}, InputError, "checkpoint_every=0"),
        ({"hours": 0}, InputError, "hours=0: expected above 0"),
        ({"hours": math.nan}, InputError, "hours nan is not finite"),
        ({"resume": True}, InputError, "resume=True needs the folder of the run"),
        ({"callbacks": [Recorder]}, DTypeError, "expected a Callback, got type"),
        ({"callbacks": [print]}, DTypeError, "expected a Callback, got builtin"),
        ({"schedule": 3}, DTypeError, "schedule: expected a Schedule"),
        ({"metrics": "accuracy"}, InputError, "metrics are measured on validation data"),
        ({"metrics": ["acuracy"]}, InputError, "no metric 'acuracy'"),
        ({"monitor": "val_loss"}, NameNotFoundError, r"no such column; it will have \['loss'\]"),
        ({"mode": "least"}, InputError, "mode='least'"),
        ({"validation": 1.5}, InputError, r"validation=1\.5: expected data, or a share"),
        ({"batch_size": 0}, InputError, "batch_size=0"),
        ({"seed": "a"}, DTypeError, "seed: expected a whole number"),
        ({"unfreeze": "head.*"}, DTypeError, "unfreeze: expected a mapping"),
    ],
)  # fmt: skip
def test_options_that_mean_nothing(
    options: dict[str, Any], error: type[EngineError], text: str
) -> None:
    trainer = make_trainer()
    before = read_values(trainer)
    with pytest.raises(error, match=text):
        trainer.fit(DATA, **{**QUIET, **options})
    assert read_values(trainer) == before


def test_a_share_of_an_iterable_cannot_be_set_apart() -> None:
    with pytest.raises(InputError, match=r"validation=0\.2: a share can be set apart from arrays"):
        make_trainer().fit(iter([DATA]), validation=0.2, progress=False)


def test_a_trainer_without_an_optimizer() -> None:
    trainer = make_trainer()
    trainer.learner.optimizer = None
    with pytest.raises(StateError, match="no optimizer_model"):
        trainer.fit(DATA, **QUIET)


def test_a_metric_decides_by_its_own_mode(tmp_path: Path) -> None:
    def distance(scores: Any, labels: Any) -> float:
        return 1.0

    with pytest.raises(
        InputError, match="'val_distance' does not say whether less or more is better"
    ):
        make_trainer().fit(DATA, validation=DATA, metrics=distance, monitor="val_distance", **QUIET)


def test_gradients_from_before_are_dropped_and_none_are_left() -> None:
    class Fail(Callback):
        def on_batch_end(self, fit: Fit) -> None:
            raise ZeroDivisionError

    one, other = make_trainer(), make_trainer()
    one.accumulate(X[8:16], LABELS[8:16])
    one.fit(DATA, **QUIET)
    other.fit(DATA, **QUIET)
    assert read_values(one) == read_values(other)
    with pytest.raises(ZeroDivisionError):
        one.fit(DATA, accumulate=3, callbacks=[Fail()], **QUIET)
    one.step(X[:8], LABELS[:8])
    other.step(X[:8], LABELS[:8])
    assert read_values(one) == read_values(other)


def test_metrics_ignore_what_the_loss_ignores() -> None:
    labels = LABELS.copy()
    labels[:10] = 1
    trainer = make_trainer(loss=CrossEntropyLoss(ignore_index=1))
    history = trainer.fit(
        (X, labels), validation=(X, labels), metrics=["accuracy"], epochs=1, **QUIET
    )
    counted = labels != 1
    scores = trainer.predict(X, batch_size=BATCH)
    assert isinstance(scores, np.ndarray)
    expected = float((scores.argmax(1) == labels)[counted].mean())
    assert history["val_accuracy"] == [expected]
    actual_scores = trainer.evaluate((X, labels), metrics="accuracy", batch_size=BATCH)
    assert actual_scores["accuracy"] == expected


def test_run_json_tells_what_was_asked_for(tmp_path: Path) -> None:
    options: dict[str, Any] = {"folder": tmp_path, "schedule": Linear(), **QUIET}
    make_trainer().fit(DATA, epochs=2, **options)
    first = json.loads((tmp_path / "run.json").read_text())
    assert (first["epochs"], first["schedule"], first["batch_size"]) == (2, "Linear", BATCH)
    assert first["parameters"]["head.bias"] == ["float32", 3]
    assert "resumed" not in first
    make_trainer().fit(DATA, epochs=3, resume=True, **options)
    second = json.loads((tmp_path / "run.json").read_text())
    assert (second["epochs"], second["resumed"]) == (3, "00000006")


def test_a_model_that_cannot_be_evaluated_is_told_of_before_the_training(tmp_path: Path) -> None:
    make_trainer(folder=tmp_path)
    (tmp_path / "eval_model.onnx").unlink()
    trainer = Trainer(tmp_path, threads=1)
    with pytest.raises(StateError, match="no eval model"):
        trainer.fit(DATA, validation=DATA, **QUIET)
    assert trainer.steps == 0
    trainer.fit(DATA, **QUIET)
    assert trainer.steps == 3
