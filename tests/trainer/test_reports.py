"""Progress and logs: what people and programs see of a training run, whatever the disk does."""

from __future__ import annotations

import builtins
import csv
import errno
import io
import itertools
import json
import logging
import math
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.drawing import amounts
from engine.errors import FileError
from engine.reports import CsvLog, JsonLog, Progress, TensorBoard, default
from engine.trainer.fit import Callback
from engine.trainer.history import History
from engine.trainer.metrics.named import is_share
from engine.trainer.reports import progress as progress_module
from tests.support.fits import SAMPLES, make_fit, resume_fit, tell, train, train_epoch
from tests.support.places import ROOT


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


# --- amounts


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.42131, "0.4213"), (12345.6, "12,346"), (1.23456e-5, "1.235e-05"), (0.0, "0"), (2.0, "2"),
        (-0.5, "-0.5000"), (math.nan, "NaN"), (-math.inf, "-inf"), (4e12, "4.000e+12"),
        (100.0, "100"), (2000000.0, "2,000,000"), (np.float32(1.5), "1.500"),
    ],
)  # fmt: skip
def test_numbers_have_four_digits(value: float, text: str) -> None:
    assert amounts.format_number(value) == text


def test_amounts_have_units() -> None:
    assert [amounts.format_size(n) for n in (0, 999, 1500, 118.2e6, 1.25e9, 999.9e6)] == [
        "0 B", "999 B", "1.5 kB", "118 MB", "1.2 GB", "1.0 GB",
    ]  # fmt: skip
    assert [amounts.format_duration(s) for s in (0.04, 4.2, 59.99, 192, 3599.9, 7500)] == [
        "0.0 s", "4.2 s", "1 min 00 s", "3 min 12 s", "1 h 00 min", "2 h 05 min",
    ]  # fmt: skip
    assert [amounts.format_rate(r) for r in (1240.4, 31.25, 0.314)] == [
        "1,240 samples/s", "31.2 samples/s", "0.31 samples/s",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["accuracy", "val_accuracy", "top5", "val_f1", "f1_macro", "val_auroc", "recall_cat"]
)
def test_shares_are_percentages(name: str) -> None:
    assert amounts.measure(0.8812, is_share(name)) == "88.1 %"


def test_other_metrics_are_numbers() -> None:
    assert amounts.measure(0.8812, is_share("val_mse")) == "0.8812"
    assert amounts.measure(0.8812, is_share("distance")) == "0.8812"
    assert amounts.measure(math.nan, is_share("accuracy")) == "NaN"


# --- progress


def test_where_nobody_watches_an_epoch_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    train(make_fit(), [Progress()], 2)
    out, err = capsys.readouterr()
    assert out == ""
    rest = "val_loss 0.4000  val_accuracy 88.1 %  1,240 samples/s  118 MB  4.2 s"
    assert err == f"epoch 1/3  loss 2.500  {rest}\nepoch 2/3  loss 2.500  {rest}\n"


def test_the_reason_of_a_stop_and_of_a_beginning_in_the_middle_are_told() -> None:
    out = io.StringIO()
    fit = make_fit(epoch=1, step=1234, resumed_from=Path("checkpoint"), stop_reason="enough")
    progress = Progress(out)
    for hook in ("on_fit_begin", "on_stop", "on_fit_end"):
        tell([progress], hook, fit)
    assert out.getvalue() == "resumed at step 1,234, epoch 2/3\nstopped: enough\n"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_bar_moves_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "PATIENCE", 0.0)
    out = Terminal()
    train(make_fit(), [Progress(out)], 1)
    states = [s.strip() for s in out.getvalue().split("\r")]
    bars = [s for s in states if s.startswith("epoch 1/3 ") and "|" in s]
    assert any("25% |" in s and "1/4" in s for s in bars), "it begins with the first batch"
    assert any("100% |" in s and "4/4" in s and "loss 2.5" in s for s in bars)
    # of the process that runs the tests, which may have had more than a gigabyte
    assert any("samples/s" in s and (" MB" in s or " GB" in s) for s in bars)
    assert any(s.startswith("validation") for s in states)
    assert states[-1].startswith("epoch 1/3  loss 2.500"), "the line of the epoch stays"


def test_no_bar_before_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    progress = Progress(out)
    fit = make_fit()
    tell([progress], "on_fit_begin", fit)
    tell([progress], "on_epoch_begin", fit)
    assert out.getvalue() == ""


def test_an_epoch_of_unknown_length_has_a_count() -> None:
    out = Terminal()
    train(make_fit(batches=None), [Progress(out)], 1)
    assert "epoch 1/3 1 batches" in out.getvalue()


def test_a_bar_moves_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.count()  # at the clock, a millisecond from one to the next
    clock = SimpleNamespace(perf_counter=lambda: next(looks) / 1000)
    monkeypatch.setattr(progress_module, "time", clock)
    out = Terminal()
    progress, fit = Progress(out), make_fit(batches=1000)
    tell([progress], "on_fit_begin", fit)
    train_epoch(fit, [progress], [1.0] * 1000)
    assert out.getvalue().count("\r") < 25


def test_a_failed_training_leaves_no_bar() -> None:
    out = Terminal()
    progress, fit = Progress(out), make_fit()
    tell([progress], "on_fit_begin", fit)
    tell([progress], "on_epoch_begin", fit)
    fit.batch, fit.samples, fit.logs = 1, SAMPLES, {"loss": 1.0}
    tell([progress], "on_batch_end", fit)
    fit.error = RuntimeError("broken")
    tell([progress], "on_fit_end", fit)
    assert out.getvalue().split("\r")[-1].strip() == ""


@pytest.mark.parametrize("what", ["closed", "gone", "none"])
def test_a_stream_that_breaks_ends_nothing(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    if what == "none":
        monkeypatch.setattr(sys, "stderr", None)
        train(make_fit(), [Progress()])
        return
    out = Gone() if what == "gone" else io.StringIO()
    if what == "closed":
        out.close()
    train(make_fit(), [Progress(out)])


def test_without_tqdm_a_terminal_gets_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    out = Terminal()
    train(make_fit(), [Progress(out)], 1)
    assert out.getvalue().startswith("epoch 1/3  loss 2.5")
    assert "\r" not in out.getvalue()


def test_a_notebook_gets_bars_and_lines_on_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    train(make_fit(), [Progress()], 1)
    out, err = capsys.readouterr()
    assert "25% |" in out
    assert out.split("\r")[-1].strip().startswith("epoch 1/3  loss 2.500")
    assert err == ""


# --- CSV and JSON lines


def test_the_history_is_kept_as_csv(tmp_path: Path) -> None:
    fit, path = make_fit(), tmp_path / "made" / "history.csv"
    log = CsvLog(path)
    tell([log], "on_fit_begin", fit)
    assert path.read_text() == ""
    train_epoch(fit, [log])
    assert len(path.read_text().splitlines()) == 2, "each epoch is there when it is over"
    fit.history.rows.append({"epoch": 1, "loss": 1.0, "val_new": 2.0})
    tell([log], "on_epoch_end", fit)
    assert History.read(path).rows == fit.history.rows
    with path.open() as file:
        assert next(csv.reader(file))[-1] == "val_new"


def test_a_history_that_is_resumed_repeats_no_row(tmp_path: Path) -> None:
    fit, path = make_fit(), tmp_path / "history.csv"
    train(fit, [CsvLog(path)])
    again = resume_fit(fit, 2)
    train(again, [CsvLog(path)], 1)
    assert History.read(path)["epoch"] == [0, 1, 2]
    train(make_fit(), [CsvLog(path)], 1)
    assert History.read(path)["epoch"] == [0], "a new training run starts the file again"


def test_every_event_is_a_json_object_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    fit, log = make_fit(), JsonLog(path, seconds=0)
    tell([log], "on_fit_begin", fit)
    train_epoch(fit, [log])
    tell([log], "on_checkpoint", fit, tmp_path / "checkpoint")
    fit.stop("enough")
    tell([log], "on_stop", fit)
    fit.error = ValueError("broken")
    tell([log], "on_fit_end", fit)
    rows = lines(path)
    assert [row["kind"] for row in rows] == [
        "fit", *["step"] * 4, "epoch", "checkpoint", "stop", "error", "end",
    ]  # fmt: skip
    assert [row["loss"] for row in rows if row["kind"] == "step"] == [4.0, 3.0, 2.0, 1.0]
    assert rows[5]["val_accuracy"] == 0.881
    assert rows[7]["reason"] == "enough"
    assert rows[8]["error"] == "ValueError: broken"
    assert all(row["time"].endswith("Z") and "step" in row for row in rows)


def test_lines_of_steps_are_a_sample(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    fit, log = make_fit(batches=100), JsonLog(path, seconds=3600)
    tell([log], "on_fit_begin", fit)
    train_epoch(fit, [log], [1.0] * 100)
    assert [row["kind"] for row in lines(path)] == ["fit", "step", "epoch"]


def test_a_follower_sees_a_line_at_once_and_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    fit, log = make_fit(), JsonLog(path, seconds=0)
    tell([log], "on_fit_begin", fit)
    with path.open() as follower:
        assert json.loads(follower.readline())["kind"] == "fit"
        train_epoch(fit, [log], [math.inf])
        assert json.loads(follower.readline())["loss"] is None


def test_a_log_that_is_resumed_repeats_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    fit = make_fit()
    train(fit, [JsonLog(path, seconds=0)])
    with path.open("a") as file:
        file.write('{"kind": "step", "st')  # the process was killed here
    again = resume_fit(fit, 2)
    train(again, [JsonLog(path, seconds=0)], 1)
    rows = lines(path)
    assert [row["step"] for row in rows if row["kind"] == "step"] == list(range(1, 13))
    assert [row["epoch"] for row in rows if row["kind"] == "epoch"] == [0, 1, 2]
    assert [row["resumed"] for row in rows if row["kind"] == "fit"] == [False, True]


def test_a_window_that_begins_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    fit, log = make_fit(resumed_from=Path("checkpoint")), JsonLog(tmp_path / "log", seconds=0)
    fit.batch, fit.samples, fit.logs = 2, 2 * SAMPLES, {"loss": 4.0}
    tell([log], "on_fit_begin", fit)
    tell([log], "on_epoch_begin", fit)
    fit.batch, fit.samples, fit.logs = 3, 3 * SAMPLES, {"loss": 3.0}
    tell([log], "on_step_end", fit)
    assert lines(tmp_path / "log")[-1]["loss"] == pytest.approx(1.0)


# --- TensorBoard


def checksum(data: bytes) -> int:
    """The masked CRC-32C of a TFRecord, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def events(folder: Path) -> Iterator[Any]:
    """The events of all files of a folder, whose checksums are right."""
    from tensorboard.compat.proto import event_pb2

    for path in sorted(folder.glob("*tfevents*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (size, crc) = struct.unpack_from("<QI", data, at)
            assert crc == checksum(data[at : at + 8])
            content = data[at + 12 : at + 12 + size]
            assert struct.unpack_from("<I", data, at + 12 + size) == (checksum(content),)
            yield event_pb2.Event.FromString(content)
            at += 16 + size


def test_tensorboard_reads_the_events(tmp_path: Path) -> None:
    fit = make_fit()
    train(fit, [TensorBoard(tmp_path, seconds=0)])
    first, *rest = events(tmp_path)
    assert first.file_version == "brain.Event:2"
    simple_values = {(e.step, v.tag): v.simple_value for e in rest for v in e.summary.value}
    assert [simple_values[step, "step/loss"] for step in (1, 2, 3, 4)] == [4.0, 3.0, 2.0, 1.0]
    assert simple_values[12, "epoch/val_accuracy"] == pytest.approx(0.881)
    assert simple_values[8, "step/lr"] == pytest.approx(1e-3)
    train(resume_fit(fit, 2), [TensorBoard(tmp_path)], 1)
    (start,) = (e for e in events(tmp_path) if e.WhichOneof("what") == "session_log")
    assert (start.step, start.session_log.status) == (9, 1), "what follows replaces steps from 9 on"


# --- disks

FILES: dict[str, Callable[[Path], Callback]] = {
    "csv": lambda folder: CsvLog(folder / "history.csv"),
    "json": lambda folder: JsonLog(folder / "log.jsonl", seconds=0),
    "tensorboard": lambda folder: TensorBoard(folder, seconds=0),
}


class FullDisk:
    """Writes of regular files fail half-way while `full` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.full = False
        self._folder = os.fspath(folder)
        self._open = builtins.open
        monkeypatch.setattr(builtins, "open", self.open)

    def open(self, file: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
        actual = self._open(file, mode, *args, **more)
        if not self.full or mode[0] == "r" or not str(file).startswith(self._folder):
            return actual
        return _Full(actual)


class _Full:
    """A file that takes ten bytes."""

    def __init__(self, file: Any) -> None:
        self._file, self._room = file, 10

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Full:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: Any) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken, self._room = min(self._room, len(data)), max(0, self._room - len(data))
        self._file.write(data[:taken])
        return taken


@pytest.mark.parametrize("kind", FILES)
def test_a_full_disk_is_told_once_and_nothing_is_lost(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "edgegrad")
    disk = FullDisk(monkeypatch, tmp_path)
    fit, callback = make_fit(), FILES[kind](tmp_path)
    tell([callback], "on_fit_begin", fit)
    train_epoch(fit, [callback])
    disk.full = True
    train_epoch(fit, [callback])
    (path,) = tmp_path.iterdir()
    assert path.read_bytes().endswith(b"\n") or kind == "tensorboard", "no half of a line"
    disk.full = False
    tell([callback], "on_fit_end", fit)
    (record,) = caplog.records
    assert "No space left on device; the training goes on" in record.getMessage()
    assert os.fspath(path) in record.getMessage()
    if kind == "csv":
        assert History.read(path).rows == fit.history.rows
    elif kind == "json":
        steps = [row["step"] for row in lines(path) if row["kind"] == "step"]
        assert steps == list(range(1, 9))
    else:
        assert {e.step for e in events(tmp_path)} == set(range(9))


def test_a_column_that_is_new_after_a_full_disk_repeats_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, fit, log = FullDisk(monkeypatch, tmp_path), make_fit(), CsvLog(tmp_path / "history.csv")
    tell([log], "on_fit_begin", fit)
    train_epoch(fit, [log])
    disk.full = True
    train_epoch(fit, [log])
    disk.full = False
    fit.history.rows.append({"epoch": 2, "loss": 1.0, "val_new": 2.0})
    tell([log], "on_epoch_end", fit)
    tell([log], "on_fit_end", fit)
    assert History.read(tmp_path / "history.csv").rows == fit.history.rows


@pytest.mark.parametrize("kind", FILES)
def test_a_folder_that_cannot_be_written_is_refused_at_the_start(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    callback = FILES[kind](tmp_path / "file" / "run")
    with pytest.raises(FileError, match=r"cannot write the .*give a folder that can be written to"):
        tell([callback], "on_fit_begin", make_fit())
    fit = make_fit(error=FileError("as above"))
    tell([callback], "on_fit_end", fit)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="users and rights of POSIX")
@pytest.mark.parametrize("kind", FILES)
def test_a_read_only_folder_is_refused_at_the_start(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o500)
    if os.geteuid() == 0:  # whom no right keeps out
        import tempfile

        def refused(*_: Any, **__: Any) -> str:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr(tempfile, "mkdtemp", refused)
    with pytest.raises(FileError, match=r"Permission denied; give a folder"):
        tell([FILES[kind](folder)], "on_fit_begin", make_fit())


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "history.csv").mkdir()
    with pytest.raises(FileError, match="Is a directory"):
        tell([CsvLog(tmp_path / "history.csv")], "on_fit_begin", make_fit())


# --- what `fit` adds


def test_the_default_reports(tmp_path: Path) -> None:
    assert default(False, None) == []
    assert [type(c) for c in default(True, None)] == [Progress]
    kinds = {type(c) for c in default(False, tmp_path)}
    assert {CsvLog, JsonLog} <= kinds
    assert Progress not in kinds


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_no_error_of_the_system_ends_a_training(tmp_path: Path) -> None:
    """A process whose files cannot grow beyond a size trains to its end, and says why, once."""
    code = """
import resource, sys
from pathlib import Path
from engine.reports import CsvLog, HtmlReport, JsonLog
from tests.support.fits import make_fit, train_epoch, tell
from types import SimpleNamespace
place = Path(sys.argv[1])
calls = [CsvLog(place / "h.csv"), JsonLog(place / "l.jsonl", 0), HtmlReport(place / "r.html")]
model = SimpleNamespace(plans=list)
fit = make_fit(epochs=30)
fit.trainer = SimpleNamespace(module=model, features=[], outputs=[], inputs=[])
tell(calls, "on_fit_begin", fit)
limit = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
for _ in range(30):
    train_epoch(fit, calls)
sizes = [path.stat().st_size for path in sorted(place.iterdir())]
assert len(sizes) == 2 and max(sizes) <= 1000, sizes
assert (place / "l.jsonl").read_bytes().endswith(b"}\\n")
resource.setrlimit(resource.RLIMIT_FSIZE, limit)
tell(calls, "on_fit_end", fit)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told = done.stderr.splitlines()
    assert len(told) == 3
    assert all("File too large; the training goes on" in line for line in told)
    assert len(History.read(tmp_path / "h.csv")) == 30
    steps = [row["step"] for row in lines(tmp_path / "l.jsonl") if row["kind"] == "step"]
    assert steps == list(range(1, 121))
    assert "30 of 30" in (tmp_path / "r.html").read_text("utf-8")
