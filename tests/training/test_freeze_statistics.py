"""Running statistics and ranges that stay as they are from some epoch on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import Qat, Trainer
from engine.artifacts import AdamW
from engine.errors import EngineError, InputError, StateError
from engine.trainer.fit import Callback, Fit
from tests.support.tiny import BATCH, LABELS, NORMED, X, make_trainer, read_values

DATA = (X, LABELS)
QUIET: dict[str, Any] = {"batch_size": BATCH, "progress": False}
STATISTICS = ("norm.mean", "norm.var")


class Look(Callback):
    """Keeps the values of all parameters, and those that artifacts hold as constants, by epoch."""

    def __init__(self) -> None:
        self.values: list[dict[str, bytes]] = []

    def on_epoch_end(self, fit: Fit) -> None:
        constants = {name: value.tobytes() for name, value in fit.constants.items()}
        self.values.append({**constants, **read_values(fit.trainer)})


def test_statistics_stay_from_their_epoch_on_and_weights_go_on() -> None:
    trainer, look = make_trainer(NORMED), Look()
    trainer.fit(DATA, epochs=3, freeze_statistics=1, callbacks=[look], **QUIET)
    first, second, third = look.values
    fresh = read_values(make_trainer(NORMED))
    for name in STATISTICS:
        assert fresh[name] != first[name] == second[name] == third[name]
    assert first["head.weight"] != second["head.weight"] != third["head.weight"]
    assert read_values(trainer) == third, "afterwards they are parameters again"


def test_frozen_epochs_use_the_running_statistics() -> None:
    """Bit for bit as a trainer that is made with frozen normalisations."""
    staged, frozen = make_trainer(NORMED), make_trainer(NORMED, frozen_batch_norm=True)
    staged.fit(DATA, epochs=2, freeze_statistics=0, **QUIET)
    frozen.fit(DATA, epochs=2, **QUIET)
    expected = read_values(frozen)
    assert {name: read_values(staged)[name] for name in expected} == expected


@pytest.mark.parametrize("end", [2, 4])
def test_a_run_is_resumed_in_either_stage(end: int, tmp_path: Path) -> None:
    class End(Callback):
        def on_step_end(self, fit: Fit) -> None:
            if fit.step == end:
                raise KeyboardInterrupt

    options: dict[str, Any] = {"epochs": 2, "freeze_statistics": 1, **QUIET}
    whole, cut, again = (make_trainer(NORMED) for _ in range(3))
    expected = whole.fit(DATA, **options)
    with pytest.raises(KeyboardInterrupt):
        cut.fit(DATA, folder=tmp_path, checkpoint_every=1, callbacks=[End()], **options)
    history = again.fit(DATA, folder=tmp_path, checkpoint_every=1, resume=True, **options)
    assert history["loss"] == expected["loss"]
    assert read_values(again) == read_values(whole)


def test_another_epoch_does_not_resume(tmp_path: Path) -> None:
    trainer = make_trainer(NORMED)
    trainer.fit(DATA, freeze_statistics=1, folder=tmp_path, **QUIET)
    with pytest.raises(StateError, match="freeze_statistics is 2 here and 1 in"):
        trainer.fit(DATA, epochs=2, freeze_statistics=2, folder=tmp_path, resume=True, **QUIET)


def test_ranges_of_rounded_values_stay_too(tmp_path: Path) -> None:
    start = make_trainer()
    start.export(tmp_path / "float.onnx")
    trainer, look = (
        Trainer.from_onnx(
            tmp_path / "float.onnx", "cross_entropy", AdamW(0.05), qat=Qat(), data=X, threads=1
        ),
        Look(),
    )
    trainer.fit(DATA, epochs=3, freeze_statistics=1, callbacks=[look], **QUIET)
    first, second, third = look.values
    ranges = [name for name in first if name.endswith("_range")]
    assert ranges
    assert all(first[name] == second[name] == third[name] for name in ranges)
    assert second["head.weight"] != third["head.weight"]
    trainer.export(tmp_path / "int8.onnx")


@pytest.mark.parametrize(
    ("make", "given", "error", "text"),
    [
        (make_trainer, 1, InputError, "moves no running statistics and no ranges"),
        (lambda: make_trainer(NORMED), -1, InputError, "freeze_statistics"),
        (
            lambda: make_trainer(
                NORMED.replace("norm.bias, norm.mean, norm.var)", "norm.bias, norm.bias, norm.var)")
            ),
            1,
            StateError,
            "export it with one for each",
        ),
    ],
    ids=["no norms", "negative", "shared"],
)
def test_epochs_that_mean_nothing(
    make: Any, given: int, error: type[EngineError], text: str
) -> None:
    with pytest.raises(error, match=text):
        make().fit(DATA, freeze_statistics=given, **QUIET)


def test_artifacts_alone_cannot_be_changed(tmp_path: Path) -> None:
    make_trainer(NORMED, folder=tmp_path)
    with pytest.raises(StateError, match=r"freeze_statistics= makes artifacts again"):
        Trainer(tmp_path, threads=1).fit(DATA, freeze_statistics=1, **QUIET)
