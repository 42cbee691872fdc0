"""Parameters that are trained from some epoch on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.artifacts import SGD, AdamW, Group
from engine.errors import DTypeError, EngineError, InputError, NameNotFoundError, StateError
from engine.trainer.batch_trainer import BatchTrainer
from engine.trainer.callbacks import EarlyStopping
from engine.trainer.fit import Callback, Fit
from tests.support.tiny import BATCH, DROPPING, LABELS, NAMES, NORMED, X, make_trainer, read_values

DATA = (X, LABELS)
QUIET: dict[str, Any] = {"batch_size": BATCH, "progress": False}
PLAN = {"head.*": 0, "*": 2}


class Look(Callback):
    """Keeps what is trained and all values, at the beginning and the end of every epoch."""

    def __init__(self) -> None:
        self.trained: list[list[str]] = []
        self.before: list[dict[str, bytes]] = []
        self.after: list[dict[str, bytes]] = []
        self.moments: list[dict[str, bytes]] = []
        self.steps: list[int] = []

    def on_epoch_begin(self, fit: Fit) -> None:
        state = fit.trainer.state
        self.trained.append(state.trainable_names())
        self.before.append(read_values(fit.trainer))
        self.moments.append(moments(fit.trainer))
        self.steps.append(fit.trainer.steps)

    def on_epoch_end(self, fit: Fit) -> None:
        self.after.append(read_values(fit.trainer))
        self.moments.append(moments(fit.trainer))


def moments(trainer: BatchTrainer) -> dict[str, bytes]:
    """The bytes of the first moment of every parameter that is trained."""
    (group,) = trainer.state.groups
    return {name: kept["momentum0"].tobytes() for name, kept in group.states.items()}


def test_what_is_frozen_stays_and_what_is_kept_goes_on() -> None:
    trainer, look = make_trainer(DROPPING), Look()
    trainer.fit(DATA, epochs=4, unfreeze=PLAN, callbacks=[look], **QUIET)
    head = ["head.bias", "head.weight"]
    assert look.trained == [head, head, NAMES, NAMES]
    for epoch in range(4):
        changed = [n for n in NAMES if look.before[epoch][n] != look.after[epoch][n]]
        assert changed == (head if epoch < 2 else NAMES)
    assert look.before[2] == look.after[1]
    first, second = look.moments[3], look.moments[4]  # at the end of epoch 1, the start of epoch 2
    assert {n: second[n] for n in head} == first
    assert any(np.frombuffer(first["head.weight"], np.float32))
    assert not any(np.frombuffer(second["body.weight"], np.float32))
    assert look.steps == [0, 3, 6, 9]
    assert trainer.steps == 12
    assert trainer.state.draws == 12
    assert trainer.learning_rate == np.float32(0.05)
    assert trainer.outputs == ["scores"]


def test_frozen_epochs_are_those_of_a_trainer_of_the_head() -> None:
    """Bit for bit: the models of the first epochs are those that train the head alone."""
    staged, head = make_trainer(), make_trainer(train=["head.*"])
    staged.fit(DATA, epochs=2, unfreeze={"head.*": 0, "*": 9}, **QUIET)
    head.fit(DATA, epochs=2, **QUIET)
    assert read_values(staged) == read_values(head)


def test_without_momentum_unfreezing_at_once_changes_nothing() -> None:
    one, other = make_trainer(optimizer=SGD(0.1)), make_trainer(optimizer=SGD(0.1))
    one.fit(DATA, epochs=2, unfreeze={"*": 0}, **QUIET)
    other.fit(DATA, epochs=2, **QUIET)
    assert read_values(one) == read_values(other)


def test_the_first_pattern_counts_and_the_rest_is_not_trained() -> None:
    trainer, look = make_trainer(), Look()
    trainer.fit(
        DATA, epochs=3, unfreeze={"head.bias": 1, "head.*": 0, "body.w*": 2}, callbacks=[look],
        **QUIET,
    )  # fmt: skip
    assert look.trained == [
        ["head.weight"], ["head.bias", "head.weight"], ["body.weight", "head.bias", "head.weight"]
    ]  # fmt: skip


def test_the_best_values_of_an_earlier_stage_are_all_brought_back() -> None:
    """Statistics among them, which were constants then and have been trained since."""
    trainer, seen = make_trainer(NORMED), []

    class Spoil(Callback):
        def on_epoch_begin(self, fit: Fit) -> None:
            if fit.epoch == 1:
                seen.append(fit.trainer.predict(X, batch_size=BATCH))
                fit.trainer.state.parameters["head.bias"].data[...] = [99, -99, 0]

    stopping = EarlyStopping("val_loss", patience=2, restore_best=True)
    trainer.fit(
        DATA, validation=DATA, epochs=9, unfreeze={"head.*": 0, "*": 1},
        callbacks=[Spoil(), stopping], **QUIET,
    )  # fmt: skip
    assert stopping.best_epoch == 0
    np.testing.assert_array_equal(trainer.predict(X, batch_size=BATCH), seen[0])


def test_checkpoints_of_every_stage_are_those_of_the_trainer_as_it_was_made(
    tmp_path: Path,
) -> None:
    trainer, scores = make_trainer(NORMED), []

    class Scores(Callback):
        def on_epoch_end(self, fit: Fit) -> None:
            scores.append(fit.trainer.predict(X, batch_size=BATCH))

    plan = {"head.*": 0, "norm.*": 1, "*": 9}
    trainer.fit(
        DATA, epochs=2, unfreeze=plan, callbacks=[Scores()], folder=tmp_path, keep=None, **QUIET
    )
    places = sorted((tmp_path / "checkpoints").iterdir())
    for each in (make_trainer(NORMED), trainer):
        for place, expected in zip(places, scores, strict=True):
            each.load(place / "checkpoint")
            np.testing.assert_array_equal(each.predict(X, batch_size=BATCH), expected)
    assert len(trainer.state.trainable_names()) == 6, "all that it was made to train"


@pytest.mark.parametrize("end", [1, 4, 7])
def test_a_run_is_resumed_in_any_stage(end: int, tmp_path: Path) -> None:
    class End(Callback):
        def on_step_end(self, fit: Fit) -> None:
            if fit.step == end:
                raise KeyboardInterrupt

    options: dict[str, Any] = {"epochs": 3, "unfreeze": {"head.*": 0, "*": 1}, **QUIET}
    whole, cut = make_trainer(DROPPING), make_trainer(DROPPING)
    expected = whole.fit(DATA, **options)
    with pytest.raises(KeyboardInterrupt):
        cut.fit(DATA, folder=tmp_path, checkpoint_every=1, callbacks=[End()], **options)
    again = make_trainer(DROPPING)
    history = again.fit(DATA, folder=tmp_path, checkpoint_every=1, resume=True, **options)
    assert history["loss"] == expected["loss"]
    assert read_values(again) == read_values(whole)
    assert moments(again) == moments(whole)
    assert again.steps == whole.steps
    assert again.state.draws == whole.state.draws


def test_the_same_trainer_resumes_its_own_run(tmp_path: Path) -> None:
    options: dict[str, Any] = {"unfreeze": {"head.*": 0, "*": 1}, "folder": tmp_path, **QUIET}
    trainer, whole = make_trainer(), make_trainer()
    trainer.fit(DATA, epochs=2, **options)
    trainer.fit(DATA, epochs=3, resume=True, **options)
    whole.fit(DATA, epochs=3, unfreeze=options["unfreeze"], **QUIET)
    assert read_values(trainer) == read_values(whole)


def test_statistics_of_frozen_normalisations_are_not_lost() -> None:
    """They are constants while scale and bias are frozen, and otherwise parameters."""
    trainer, plain = make_trainer(NORMED), make_trainer(NORMED)
    for each in (trainer, plain):
        each.fit(DATA, **QUIET)  # statistics that differ from the file's
    statistics: list[Any] = []

    class Look(Callback):
        def on_epoch_begin(self, fit: Fit) -> None:
            table = dict(fit.trainer.state.parameters)
            statistics.append(table["norm.mean"].data.copy() if "norm.mean" in table else None)
            if fit.epoch == 0:
                scores.append(fit.trainer.predict(X, batch_size=BATCH))

    scores: list[Any] = []
    trainer.fit(DATA, epochs=2, unfreeze={"head.bias": 0, "*": 1}, callbacks=[Look()], **QUIET)
    assert statistics[0] is None
    expected = plain.state.parameters["norm.mean"].data
    np.testing.assert_array_equal(statistics[1], expected)
    np.testing.assert_array_equal(scores[0], plain.predict(X, batch_size=BATCH))
    assert not np.array_equal(trainer.state.parameters["norm.mean"].data, expected)


def test_groups_of_an_optimizer_hold_in_every_stage() -> None:
    groups = [Group(["body.*"], lr_scale=0.0)]
    trainer = make_trainer(optimizer=AdamW(0.05, groups=groups))
    before = read_values(trainer)
    trainer.fit(DATA, epochs=2, unfreeze={"head.*": 0, "*": 1}, **QUIET)
    assert [n for n in NAMES if read_values(trainer)[n] != before[n]] == [
        "head.bias",
        "head.weight",
    ]


def test_a_trained_trainer_can_be_unfrozen_anew() -> None:
    """Moments of what is frozen are dropped; values stay."""
    trainer = make_trainer()
    trainer.fit(DATA, **QUIET)
    before = read_values(trainer)
    look = Look()
    trainer.fit(DATA, unfreeze={"head.*": 0, "*": 5}, callbacks=[look], **QUIET)
    assert look.before[0] == before
    assert look.steps == [3]
    assert read_values(trainer)["body.weight"] == before["body.weight"]


def test_the_trainer_is_whole_after_it(tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.fit(DATA, epochs=2, unfreeze={"head.*": 0, "*": 1}, **QUIET)
    scores = trainer.predict(X, batch_size=BATCH)
    trainer.save(tmp_path / "checkpoint")
    again = make_trainer()
    again.load(tmp_path / "checkpoint")
    np.testing.assert_array_equal(again.predict(X, batch_size=BATCH), scores)
    trainer.export(tmp_path / "inference.onnx")
    assert trainer.step(X[:8], LABELS[:8]) == again.step(X[:8], LABELS[:8])


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (
            {"heat.*": 0},
            NameNotFoundError,
            r"'heat\.\*' matches none of the .* parameters that are trained",
        ),
        ({"head.*": 1}, InputError, "nothing is trained in epoch 0"),
        ({}, InputError, "nothing is trained in epoch 0"),
        ({"*": -1}, InputError, "from epoch -1; expected 0 or more"),
        ({"*": "soon"}, DTypeError, "expected a whole number"),
        (["head.*"], DTypeError, "unfreeze: expected a mapping"),
    ],
)
def test_plans_that_mean_nothing(given: Any, error: type[EngineError], text: str) -> None:
    with pytest.raises(error, match=text):
        make_trainer().fit(DATA, unfreeze=given, **QUIET)


def test_artifacts_alone_cannot_be_unfrozen(tmp_path: Path) -> None:
    make_trainer(folder=tmp_path)
    with pytest.raises(StateError, match=r"this trainer has no forward model.* make it by Trainer"):
        Trainer(tmp_path, threads=1).fit(DATA, unfreeze=PLAN, **QUIET)
