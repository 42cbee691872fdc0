"""Runs that end in the middle and go on: bit for bit as if they had not ended."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from engine import Trainer
from engine.artifacts import SGD, AdamW
from engine.data import Buckets, Mixup, batches
from engine.errors import (
    CheckpointError,
    CheckpointWarning,
    EngineError,
    FileError,
    NonFiniteError,
    StateError,
)
from engine.trainer import interrupts
from engine.trainer.callbacks import EarlyStopping
from engine.trainer.fit import Callback, Fit
from engine.trainer.history import History
from engine.trainer.loop import Loop
from engine.trainer.runs import RunFolder
from engine.trainer.schedules import Linear
from tests.support.places import ROOT
from tests.support.resumable import Count, train
from tests.support.tiny import BATCH, LABELS, NORMED, PLAIN, X, make_trainer, read_values

DATA = (X, LABELS)
QUIET: dict[str, Any] = {"batch_size": BATCH, "progress": False}


class Outcome(NamedTuple):
    """All that must be the same."""

    rows: list[dict[str, float]]
    stop_reason: str | None
    parameters: dict[str, bytes]
    moments: bytes
    steps: int
    draws: int
    stopping: dict[str, Any]


def outcome(trainer: Trainer, history: History, stopping: EarlyStopping) -> Outcome:
    timeless = [
        {k: v for k, v in row.items() if k not in ("seconds", "samples_per_second", "memory")}
        for row in history.rows
    ]
    return Outcome(
        timeless,
        history.stop_reason,
        read_values(trainer),
        trainer.state.regions["state"].tobytes(),
        trainer.steps,
        trainer.state.draws,
        stopping.state(),
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Return the results of an uninterrupted run."""
    return outcome(*train(tmp_path_factory.mktemp("whole")))


def test_the_run_that_is_resumed_has_it_all(whole: Outcome) -> None:
    """Otherwise the tests below would show less than they say."""
    assert len({row["lr"] for row in whole.rows}) > 1, "the plateau has lowered the rate"
    assert whole.draws == 4 * 5
    assert whole.stopping["waited"] > 0
    assert whole.steps == 4 * 3


KILLED = [
    ("on_batch_end", 1),  # before the first checkpoint
    ("on_batch_end", 8),  # between two steps of the second epoch
    ("on_step_end", 5),
    ("on_evaluate_batch_end", 2),
    ("on_epoch_end", 2),
    ("on_checkpoint", 4),  # while it is being written
    ("on_checkpoint", 1),
    ("on_fit_end", 1),
]


@pytest.mark.parametrize(("hook", "count"), KILLED)
def test_a_killed_run_goes_on_to_the_last_bit(
    hook: str, count: int, whole: Outcome, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "tests.support.resumable", str(tmp_path), hook, str(count)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    counted = Count()
    assert outcome(*train(tmp_path, counted)) == whole
    assert (counted.batches < 4 * 5) == (count > 1 or hook == "on_fit_end")
    assert not list((tmp_path / "checkpoints").glob(".*")), "temporary files are gone"


def test_a_run_that_was_killed_twice(whole: Outcome, tmp_path: Path) -> None:
    for _ in range(2):
        words = [sys.executable, "-m", "tests.support.resumable", str(tmp_path), "on_step_end", "4"]
        subprocess.run(words, cwd=ROOT, capture_output=True)
    assert outcome(*train(tmp_path)) == whole


def test_a_kill_between_a_checkpoint_and_its_name(
    whole: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is there, `last` still names the one before; its step comes a second time."""
    kept = RunFolder._rename

    def rename(folder: RunFolder, stage: Path, step: int) -> Path:
        place = kept(folder, stage, step)
        if step == 4:
            raise KeyboardInterrupt
        return place

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "_rename", rename)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path)
    assert (tmp_path / "last").read_text() == "00000003\n"
    assert outcome(*train(tmp_path)) == whole


# --- signals


class Send(Callback):
    """Sends signals to this process at some batch."""

    def __init__(self, batch: int, *signals: signal.Signals) -> None:
        self.batch, self.signals = batch, signals

    def on_batch_end(self, fit: Fit) -> None:
        if fit.epoch == 1 and fit.batch == self.batch:
            for number in self.signals:
                signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("batch", [2, 3])
def test_the_first_signal_finishes_the_step_and_leaves_a_checkpoint(
    number: signal.Signals, batch: int, whole: Outcome, tmp_path: Path
) -> None:
    before = signal.getsignal(number)
    trainer, history, _ = train(tmp_path, Send(batch, number), checkpoint_every=None)
    assert signal.getsignal(number) is before
    assert history.stop_reason == "interrupted"
    assert len(history) == 1
    assert trainer.steps == 3 + (batch + 1) // 2
    assert (tmp_path / "last").read_text() == f"{trainer.steps:08d}\n"
    assert outcome(*train(tmp_path, checkpoint_every=None)) == whole


def test_the_second_signal_is_a_keyboard_interrupt(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    class Look(Callback):
        def on_fit_end(self, fit: Fit) -> None:
            seen.append(type(fit.error))

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, Send(1, signal.SIGINT, signal.SIGINT), Look())
    assert seen == [KeyboardInterrupt]
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_before_the_first_step_ends_at_once(
    whole: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step compiles, and a user who presses Ctrl-C does not want to wait for that."""

    def interrupt(*_: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it goes on")

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_learn", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path)
    assert outcome(*train(tmp_path)) == whole


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_says_that_the_step_is_finished_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, child = os.openpty()
    with open(parent, "rb", 0) as reader, open(child, "wb", 0) as terminal:
        monkeypatch.setattr(interrupts, "_STDERR", terminal.fileno())
        train(tmp_path, Send(1, signal.SIGINT))
        assert b"stopping after this step; Ctrl-C again stops at once" in reader.read(200)


def test_a_signal_during_the_validation(whole: Outcome, tmp_path: Path) -> None:
    class Interrupt(Callback):
        def on_evaluate_batch_end(self, fit: Fit) -> None:
            if fit.epoch == 1:
                signal.raise_signal(signal.SIGINT)

    _, history, _ = train(tmp_path, Interrupt())
    assert (history.stop_reason, len(history)) == ("interrupted", 1)
    assert outcome(*train(tmp_path)) == whole


def test_other_threads_install_no_handlers() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    class Look(Callback):
        def on_batch_end(self, fit: Fit) -> None:
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=lambda: make_trainer().fit(DATA, callbacks=[Look()], **QUIET))
    thread.start()
    thread.join()
    assert seen == [before] * 3


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        history = make_trainer().fit(DATA, epochs=2, callbacks=[Send(1, signal.SIGINT)], **QUIET)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (history.stop_reason, len(history)) == (None, 2)


# --- other ends


@pytest.mark.parametrize("reason", ["stop", "hours", "error"])
def test_whatever_ends_a_run_in_an_epoch_it_goes_on(
    reason: str, whole: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("engine.trainer.loop.monotonic", lambda: now[0])

    class End(Callback):
        def on_step_end(self, fit: Fit) -> None:
            if (fit.epoch, fit.batch) == (2, 2):
                if reason == "error":
                    raise ZeroDivisionError
                if reason == "stop":
                    fit.stop("enough")
                now[0] = 3601.0

    with contextlib.suppress(ZeroDivisionError):
        train(tmp_path, End(), checkpoint_every=None, hours=1)
    monkeypatch.undo()
    counted = Count()
    assert outcome(*train(tmp_path, counted, checkpoint_every=None)) == whole
    assert counted.batches == 4 * 5 - 2 * 5 - 2


def test_an_error_of_the_data_leaves_a_checkpoint(tmp_path: Path) -> None:
    def source(epoch: int) -> Iterator[Any]:
        for i in range(3):
            if (epoch, i) == (1, 2):
                raise OSError("the card was pulled")
            yield X[:4], LABELS[:4]

    trainer = make_trainer()
    with pytest.raises(OSError, match="the card was pulled"):
        trainer.fit(source, epochs=2, folder=tmp_path, progress=False)
    again = make_trainer()
    again.load(tmp_path / "checkpoints" / "00000005" / "checkpoint")
    assert read_values(again) == read_values(trainer)


@pytest.mark.parametrize("hook", ["on_evaluate_batch_end", "on_evaluate_end", "on_epoch_end"])
def test_an_error_behind_an_epoch_does_not_lose_the_epoch(
    hook: str, whole: Outcome, tmp_path: Path
) -> None:
    def fail(fit: Fit) -> None:
        if fit.epoch == 1:
            raise ZeroDivisionError

    failing, counted = Callback(), Count()
    vars(failing)[hook] = fail
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, failing, checkpoint_every=None)
    assert outcome(*train(tmp_path, counted, checkpoint_every=None)) == whole
    assert counted.batches == 2 * 5


def test_a_finished_run_has_nothing_to_do(whole: Outcome, tmp_path: Path) -> None:
    train(tmp_path)
    counted = Count()
    trainer, history, _ = train(tmp_path, counted)
    assert counted.batches == 0
    assert read_values(trainer) == whole.parameters
    assert len(history) == 4


def test_a_run_that_was_stopped_early_is_over_until_it_gets_more_patience(tmp_path: Path) -> None:
    def run(patience: int) -> tuple[Trainer, History, int]:
        trainer, counted = make_trainer(), Count()
        stopping = EarlyStopping("loss", patience=patience, min_delta=9, restore_best=True)
        options = {**QUIET, "epochs": 9, "resume": True, "folder": tmp_path}
        return trainer, trainer.fit(DATA, callbacks=[stopping, counted], **options), counted.batches

    first, history, _ = run(2)
    second, again, count = run(2)
    assert count == 0
    assert again.rows == history.rows
    assert again.stop_reason == history.stop_reason == "loss has not become better for 2 epochs"
    assert read_values(second) == read_values(first), "the values of the best epoch"
    _, longer, count = run(4)
    assert (len(longer), count) == (5, 2 * 3)


def test_more_epochs_go_on_from_the_last_one(tmp_path: Path) -> None:
    one, other = make_trainer(), make_trainer()
    one.fit(DATA, epochs=2, folder=tmp_path, **QUIET)
    longer = one.fit(DATA, epochs=4, folder=tmp_path, resume=True, **QUIET)
    assert longer["loss"] == other.fit(DATA, epochs=4, **QUIET)["loss"]
    assert read_values(one) == read_values(other)


# --- what must be the same


RUN: dict[str, Any] = {"epochs": 1, "batch_size": BATCH, "progress": False}
OTHERS: list[tuple[Callable[[], Trainer], Any, dict[str, Any], str]] = [
    (lambda: make_trainer(PLAIN.replace("8", "9")), DATA, {}, r"parameter 'body.bias' is "
                                                              r"float32\[9\] h"),
    (lambda: make_trainer(PLAIN.replace("Tanh", "Sigmoid")), DATA, {}, "another model: its "
                                                                       "parameters are"),
    (lambda: make_trainer(PLAIN.replace("body.weight", "body.matrix")), DATA, {}, "and "
                                                                                  "missing "
                                                                                  "in the run"),
    (lambda: make_trainer(train=["head.*"]), DATA, {}, "what is trained of it differ"),
    (lambda: make_trainer(optimizer=SGD(0.05)), DATA, {}, "another optimizer, or other "
                                                          "options of it"),
    (lambda: make_trainer(optimizer=AdamW(0.05, clip_grad=1.0)), DATA, {}, "another optimizer"),
    (lambda: make_trainer(optimizer=AdamW(0.01)), DATA, {}, "the learning rate is 0.0.* and 0.05"),
    (lambda: make_trainer(seed=8), DATA, {}, "the seed of the model's random numbers is 8 "
                                             "here and 7"),
    (lambda: make_trainer(micro_batches=2), DATA, {}, r"own_statistics\] is \[2, False\] "
                                                      r"here and None"),
    (make_trainer, (X[:-1], LABELS[:-1]), {}, "number of samples of an epoch is 19 here and "
                                              "20 in the run"),
    (make_trainer, DATA, {"batch_size": 5}, "number of batches of an epoch is 4 here and 3 "
                                            "in the run"),
    (make_trainer, DATA, {"batch_size": 9}, "batch_size is 9 here and 8 in the run"),
    (make_trainer, DATA, {"shuffle": False}, "shuffle is False here and True in the run"),
    (make_trainer, DATA, {"accumulate": 2}, "accumulate is 2 here and 1 in the run"),
    (make_trainer, DATA, {"seed": 1}, "seed is 1 here and 0 in the run"),
    (make_trainer, DATA, {"unfreeze": {"*": 0}}, r"unfreeze is \{'\*': 0\} here and None in "
                                                 r"the run"),
]  # fmt: skip


def _noise(sample: Any, rng: np.random.Generator) -> Any:
    return sample[0] + rng.standard_normal(sample[0].shape).astype(np.float32), *sample[1:]


def _louder(sample: Any, rng: np.random.Generator, factor: float) -> Any:
    return _noise(sample, rng)[0] * np.float32(factor), *sample[1:]


MIXED = {"augment": Mixup(classes=3)}
SEQUENCES = ([X[0, : n % 5 + 1] for n in range(20)], LABELS)
DATA_OPTIONS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"balanced": True}, "balanced is True here and None in the run"),
    ({"balanced": True}, {}, "balanced is None here and True in the run"),
    ({}, {"augment": _noise}, r"augment is \['<function _noise>'\] here and None in the run"),
    ({"augment": _noise}, {}, "augment is None here and .*_noise"),
    ({"augment": partial(_louder, factor=1.0)}, {"augment": partial(_louder, factor=2.0)},
     r"augment is .*factor=2.0\).* here and .*factor=1.0\)"),
    (MIXED, {"augment": Mixup(classes=3, alpha=0.4)}, "alpha=0.4.* here and .*alpha=0.2"),
    (MIXED, {"augment": [_noise, Mixup(classes=3)]}, "augment is .*_noise"),
    ({"class_weight": [1, 2, 3]}, {"class_weight": [1, 2, 4]}, "the factors of the classes is"),
    ({"metrics": "accuracy", "train_metrics": True}, {"metrics": "f1", "train_metrics": True},
     r"metrics of the training data is \['f1'\] here and \['accuracy'\]"),
]  # fmt: skip


@pytest.mark.parametrize(("kept", "other", "text"), DATA_OPTIONS)
def test_options_of_the_data_and_the_loss_belong_to_a_run(
    kept: dict[str, Any], other: dict[str, Any], text: str, tmp_path: Path
) -> None:
    make_trainer().fit(DATA, folder=tmp_path, **RUN, **kept)
    longer = {**RUN, "epochs": 2, "folder": tmp_path, "resume": True}
    with pytest.raises(StateError, match=f"resume: .*{text}"):
        make_trainer().fit(DATA, **longer, **other)
    make_trainer().fit(DATA, **longer, **kept)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"seed": 1}, "seed is 1 here and 0"),
        ({"shuffle": True}, "shuffle is True here and False"),
        ({"balanced": True}, "balanced is True here and None"),
        ({"augment": _noise}, "augment is .*_noise"),
    ],
)
def test_batches_of_the_callers_own_bring_their_options(
    option: dict[str, Any], text: str, tmp_path: Path
) -> None:
    make_trainer().fit(batches(DATA, batch_size=BATCH), folder=tmp_path, progress=False)
    with pytest.raises(StateError, match=f"resume: .*{text}"):
        make_trainer().fit(
            batches(DATA, batch_size=BATCH, **option), folder=tmp_path, resume=True, progress=False
        )


def test_the_identity_of_buckets_says_how_sequences_are_padded() -> None:
    kept, other = (
        batches(SEQUENCES, bucket_by=Buckets(lengths=[5], pad={0: value})).identity
        for value in (0, 1)
    )
    assert kept != other


@pytest.mark.parametrize(("make", "data", "options", "text"), OTHERS)
def test_a_run_of_something_else_is_not_gone_on_with(
    make: Callable[[], Trainer], data: Any, options: dict[str, Any], text: str, tmp_path: Path
) -> None:
    make_trainer().fit(DATA, folder=tmp_path, **RUN)
    trainer = make()
    before = read_values(trainer)
    with pytest.raises(
        StateError, match=f"resume: .*({text}).*the values of the run '.*', or another"
    ):
        trainer.fit(data, folder=tmp_path, resume=True, **{**RUN, "epochs": 2, **options})
    assert read_values(trainer) == before
    make_trainer().fit(
        DATA, folder=tmp_path, resume=True, **{**RUN, "epochs": 2}
    )  # nothing is lost


def test_a_trainer_goes_on_with_its_own_run_at_the_default_rate(tmp_path: Path) -> None:
    """It is 0.001 until the first step makes it a float32."""
    trainer = make_trainer(optimizer=AdamW())
    assert trainer.learning_rate == 0.001
    trainer.fit(DATA, folder=tmp_path, **RUN)
    history = trainer.fit(DATA, folder=tmp_path, resume=True, **{**RUN, "epochs": 2})
    assert trainer.learning_rate != 0.001
    assert len(history.rows) == 2


def test_a_folder_with_a_run_is_not_trained_over(tmp_path: Path) -> None:
    make_trainer().fit(DATA, folder=tmp_path, **RUN)
    kept = (tmp_path / "last").read_text()
    with pytest.raises(StateError, match="has a run already: resume=True continues it; or give"):
        make_trainer().fit(DATA, folder=tmp_path, **RUN)
    assert (tmp_path / "last").read_text() == kept


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("last", b"00000099\n", "last' names no checkpoint"),
        ("last", b"../..\n", "names no checkpoint"),
        ("position.json", b"{", "position.json' is damaged"),
        ("position.json", b"[]", "is not a position of a run in format 1"),
        ("position.json", b'{"format": 2}', "is not a position of a run in format 1"),
        ("position.json", b'{"format": 1}', "does not say what its run is tied to"),
        ("checkpoint", b"ODTC", "checkpoint"),
    ],
)
def test_damaged_files_are_told_of(name: str, content: bytes, text: str, tmp_path: Path) -> None:
    make_trainer().fit(DATA, folder=tmp_path, **RUN)
    path = tmp_path / name
    if name != "last":
        path = tmp_path / "checkpoints" / "00000003" / name
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=text):
        make_trainer().fit(DATA, folder=tmp_path, resume=True, **RUN)


def test_a_position_that_lacks_something(tmp_path: Path) -> None:
    make_trainer().fit(DATA, folder=tmp_path, **RUN)
    path = tmp_path / "checkpoints" / "00000003" / "position.json"
    content = json.loads(path.read_text())
    del content["loss_sum"]
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"position of the run is damaged: .*loss_sum"):
        make_trainer().fit(DATA, folder=tmp_path, resume=True, **RUN)


# --- folders


def test_the_last_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    class Spoil(Callback):
        def on_epoch_begin(self, fit: Fit) -> None:
            if fit.epoch >= 2:
                fit.trainer.state.parameters["head.weight"].data[...] = 9

    trainer = make_trainer()
    history = trainer.fit(
        DATA, validation=DATA, epochs=6, callbacks=[Spoil()], folder=tmp_path, **QUIET
    )
    assert history.best("val_loss")["epoch"] == 1
    ordered = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert ordered == ["00000006", "00000015", "00000018"]
    run = RunFolder(tmp_path)
    assert run.best is not None
    assert run.last is not None
    assert (run.best.name, run.last.name) == ("00000006", "00000018")
    best = make_trainer()
    best.load(run.best / "checkpoint")
    assert best.evaluate(DATA, batch_size=BATCH)["loss"] == history["val_loss"][1]
    assert json.loads((tmp_path / "run.json").read_text())["epochs"] == 6


def test_all_checkpoints_are_kept_if_asked_for(tmp_path: Path) -> None:
    make_trainer().fit(DATA, epochs=4, folder=tmp_path, keep=None, checkpoint_every=2, **QUIET)
    ordered = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    steps = {2, 4, 6, 8, 10, 12}
    assert {f"{step:08d}" for step in steps} <= set(ordered)


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    refused = []

    class Second(Callback):
        def on_batch_end(self, fit: Fit) -> None:
            with pytest.raises(StateError, match="another run is training in") as caught:
                make_trainer().fit(DATA, folder=tmp_path, resume=True, **QUIET)
            refused.append(str(caught.value))
            fit.stop("seen")

    make_trainer().fit(DATA, folder=tmp_path, callbacks=[Second()], **QUIET)
    assert f"(process {os.getpid()})" in refused[0]


def test_two_processes_in_one_folder(tmp_path: Path) -> None:
    code = """if True:
        import os, sys
        from engine.trainer.runs import RunFolder
        with RunFolder(sys.argv[1]).locked():
            if not os.fork():  # as the worker of a loader, which may outlive a run that is killed
                print("locked", flush=True)
            sys.stdin.read()
            os._exit(0)
    """
    words = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(
        words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(StateError, match=rf"another run is training in .*process {other.pid}"):
            make_trainer().fit(DATA, folder=tmp_path, **QUIET)
        other.kill()
        while other.poll() is None:
            pass
        make_trainer().fit(DATA, folder=tmp_path, **QUIET)


def test_looking_at_a_folder_makes_nothing(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "runs" / "none")
    assert (run.best, run.last) == (None, None)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"cannot make the folder .*file/run"):
        make_trainer().fit(DATA, folder=tmp_path / "file" / "run", **QUIET)


# --- a full disk


class FullDisk:
    """Writing fails with ENOSPC while `is_full`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        fsync = os.fsync

        def full(descriptor: int) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", full)


class Fill(Callback):
    """The disk is full during some epochs."""

    def __init__(self, disk: FullDisk, *epochs: int) -> None:
        self.disk, self.epochs = disk, epochs

    def on_epoch_begin(self, fit: Fit) -> None:
        self.disk.is_full = fit.epoch in self.epochs


def test_a_full_disk_in_the_middle_is_told_of_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, plain = FullDisk(monkeypatch), make_trainer()
    trainer = make_trainer()
    text = "checkpoint of step 6 could not be written: .*No space left.*whole, and the training"
    with pytest.warns(CheckpointWarning, match=text):
        trainer.fit(DATA, epochs=3, folder=tmp_path, callbacks=[Fill(disk, 1)], **QUIET)
    plain.fit(DATA, epochs=3, **QUIET)
    assert read_values(trainer) == read_values(plain)
    ordered = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert ordered == ["00000003", "00000009"]


def test_a_full_disk_at_the_end_is_an_error_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, trainer, plain = FullDisk(monkeypatch), make_trainer(), make_trainer()
    with pytest.raises(FileError, match=r"checkpoint of step 6 could not be written: .*No space"):
        trainer.fit(DATA, epochs=2, folder=tmp_path, callbacks=[Fill(disk, 1)], **QUIET)
    plain.fit(DATA, epochs=2, **QUIET)
    assert read_values(trainer) == read_values(plain)  # the trainer still has them
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["00000003"]
    disk.is_full = False
    again = make_trainer()
    again.fit(DATA, epochs=2, folder=tmp_path, resume=True, **QUIET)
    assert read_values(again) == read_values(plain)


def test_no_checkpoint_holds_parameters_that_are_not_finite(tmp_path: Path) -> None:
    class Spoil(Callback):
        def on_step_end(self, fit: Fit) -> None:
            if fit.epoch == 1 and fit.batch == 3:
                fit.trainer.state.parameters["body.bias"].data[2] = np.nan

    with pytest.raises(NonFiniteError, match=r"parameter 'body.bias' has NaN at \[2\]: the update"):
        make_trainer().fit(DATA, epochs=3, folder=tmp_path, callbacks=[Spoil()], **QUIET)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["00000003"]


# --- state of callbacks and schedules


def test_a_callbacks_state_must_be_json(tmp_path: Path) -> None:
    class Odd(Callback):
        def state(self) -> dict[str, Any]:
            return {"array": np.zeros(2)}

    with pytest.raises(EngineError, match=r"Odd\.state\(\) .* JSON"):
        make_trainer().fit(DATA, folder=tmp_path, callbacks=[Odd()], **QUIET)


def test_callbacks_that_come_and_go(tmp_path: Path) -> None:
    class Counting(Callback):
        def __init__(self) -> None:
            self.count = 0

        def on_step_end(self, fit: Fit) -> None:
            self.count += 1

        def state(self) -> dict[str, Any]:
            return {"count": self.count}

        def restore(self, state: Any) -> None:
            self.count = state["count"]

    first, second = Counting(), Counting()
    make_trainer().fit(DATA, folder=tmp_path, callbacks=[first, Count()], **QUIET)
    stopping = EarlyStopping("loss", patience=9)
    make_trainer().fit(
        DATA, epochs=2, folder=tmp_path, resume=True, callbacks=[stopping, second], **QUIET
    )
    assert (first.count, second.count) == (3, 6)


def test_running_statistics_go_on(tmp_path: Path) -> None:
    class End(Callback):
        def on_step_end(self, fit: Fit) -> None:
            if fit.step == 4:
                raise KeyboardInterrupt

    options: dict[str, Any] = {"epochs": 2, "validation": DATA, **QUIET}
    whole, cut, again = (make_trainer(NORMED) for _ in range(3))
    expected = whole.fit(DATA, **options)
    with pytest.raises(KeyboardInterrupt):
        cut.fit(DATA, folder=tmp_path, checkpoint_every=2, callbacks=[End()], **options)
    history = again.fit(DATA, folder=tmp_path, checkpoint_every=2, resume=True, **options)
    assert (history["loss"], history["val_loss"]) == (expected["loss"], expected["val_loss"])
    assert read_values(again) == read_values(whole)
    assert len(read_values(whole)) == 8


def test_a_schedule_goes_on_at_its_step(tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.fit(DATA, **QUIET)  # steps that a later run does not count
    rates = trainer.fit(DATA, epochs=2, schedule=Linear(), folder=tmp_path, **QUIET)["lr"]
    assert rates == [np.float32(0.05 * 4 / 6), np.float32(0.05 / 6)]
    longer = trainer.fit(DATA, epochs=4, schedule=Linear(), folder=tmp_path, resume=True, **QUIET)[
        "lr"
    ]
    assert longer[2:] == [np.float32(0.05 * 4 / 12), np.float32(0.05 / 12)]
