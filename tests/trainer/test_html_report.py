"""report.html of trainings of every kind, however they end and go on."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.artifacts import BCEWithLogitsLoss
from engine.data import Arrays, batches
from engine.errors import FileError, InputError
from engine.reports import HtmlReport, JsonLog, Section
from engine.system import files
from engine.trainer.fit import Callback, Fit
from engine.trainer.history import History
from engine.trainer.reports.findings import MAX_PAIRS
from engine.trainer.reports.record import Record
from engine.trainer.reports.sections import SECTIONS
from engine.trainer.reports.trace import MAX_POINTS
from tests.support import tiny
from tests.support.report_runs import BATCHES, NAMES, Run, fit

# --- trainings of every kind


def test_many_classes_have_a_drawing_or_tables(tmp_path: Path) -> None:
    for count in (60, 300):
        run = Run(HtmlReport(tmp_path / f"{count}.html"))
        scores = np.eye(count, dtype=np.float32)
        labels = (np.arange(count) + (np.arange(count) < 5)) % count
        run.epoch([1.0], [({"x": np.zeros((count, 3)), "labels": labels}, {"y": scores})])
        text = run.end()
        assert ('<svg class="matrix"' in text) == (count == 60)
        assert f"{count - 5} of {count} right" in text
        assert "Most frequent confusions" in text
        assert "Most wrong" in text


def test_a_regression_has_pairs_and_errors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((900, 20)).astype(np.float32)
    t = x[:, :1] * 3
    batches = [
        ({"x": a, "labels": b}, {"y": b + 0.1})
        for a, b in zip(np.split(x, 9), np.split(t, 9), strict=True)
    ]
    run = Run(HtmlReport(tmp_path / "report.html"))
    run.epoch([1.0, 0.5], batches, val_mse=0.01)
    text = run.end()
    actual_last = run.report._last
    assert actual_last is not None
    assert MAX_PAIRS / 2 <= len(actual_last.pairs.rows) <= MAX_PAIRS
    residuals = text.split('id="residuals"')[1].split("</section>")[0]
    assert "Predicted over expected values" in residuals
    assert "Residuals over predicted values" in residuals
    assert "Of every 4th of 900 values the mean residual is 0.1000" in residuals
    assert "Largest errors" in text
    assert "… 12 more" in text
    assert 'id="confusion"' not in text


KINDS: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "no names": ({"a": np.zeros((2, 3))}, {"b": np.zeros((2, 3))}),
    "texts": (
        {"x": np.array(["a sentence", "b"], object), "labels": np.array([0, 1])},
        {"y": np.eye(2, dtype=np.float32)},
    ),
    "scalars": ({"x": np.zeros(()), "labels": np.array(1.0)}, {"y": np.array(2.0)}),
    "no samples": (
        {"x": np.zeros((0, 3)), "labels": np.zeros(0, np.int64)},
        {"y": np.zeros((0, 4), np.float32)},
    ),
    "no values": ({"x": np.zeros((2, 0)), "labels": np.zeros((2, 0))}, {"y": np.zeros((2, 0))}),
    "other shapes": (
        {"x": np.zeros((2, 3)), "labels": np.zeros((2, 5))},
        {"y": np.zeros((2, 4), np.float32)},
    ),
    "NaN": (
        {"x": np.full((2, 3, 8, 8), np.nan), "labels": np.array([0, 1])},
        {"y": np.full((2, 2), np.nan, np.float32)},
    ),
    "booleans": (
        {"x": np.zeros((2, 3), bool), "labels": np.array([True, False])},
        {"y": np.zeros((2, 2), np.float32)},
    ),
    "features of another batch": (
        {"x": np.zeros((5, 3)), "labels": np.array([0, 1])},
        {"y": np.eye(2, dtype=np.float32)},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_validation_of_any_kind_is_no_error(kind: str, tmp_path: Path) -> None:
    run = Run(HtmlReport(tmp_path / "report.html"))
    run.epoch([1.0], [KINDS[kind]])
    text = run.end()
    assert "This section failed" not in text
    assert 'id="summary"' in text
    assert kind != "texts" or "<td>a sentence</td>" in text


@pytest.mark.parametrize("losses", [[1.0], [math.nan], [1.0, math.inf, 2.0], [0.0], [1e30, 1e-30]])
def test_losses_of_any_kind_are_drawn_or_left_out(losses: list[float], tmp_path: Path) -> None:
    run = Run(HtmlReport(tmp_path / "report.html"))
    run.report._window.seconds = 0.0
    run.epoch(losses)
    text = run.end()
    assert "This section failed" not in text
    assert not re.search(r'(?:d|[xy][12]?|width|height)="[^"]*(?:nan|inf)', text)


def test_a_training_without_validation_has_the_rest(tmp_path: Path) -> None:
    run = Run(HtmlReport(tmp_path / "report.html"), monitor="loss")
    run.epoch([2.0, 1.0])
    text = run.end()
    assert 'id="curves"' in text
    assert 'id="confusion"' not in text
    assert 'href="#confusion"' not in text


# --- how it ends, and goes on


@pytest.mark.parametrize(
    ("error", "reason", "status", "said"),
    [
        (None, None, "finished", ""),
        (None, "val_loss has not become better", "stopped", "val_loss has not become better"),
        (KeyboardInterrupt(), None, "stopped", "interrupted"),
        (ValueError("a <b>"), None, "failed", "ValueError: a &lt;b&gt;"),
    ],
)
def test_the_page_says_how_the_training_ended(
    error: BaseException | None, reason: str | None, status: str, said: str, tmp_path: Path
) -> None:
    run = Run(HtmlReport(tmp_path / "report.html"))
    run.epoch([1.0])
    assert '<b class="running">running</b>' in (tmp_path / "report.html").read_text("utf-8")
    run.fit.stop_reason = reason
    text = run.end(error)
    assert f'<b class="{status}">{status}</b>' in text
    assert said in text


def test_an_error_in_the_first_batch_is_reported(tmp_path: Path) -> None:
    text = Run(HtmlReport(tmp_path / "report.html")).end(ValueError("broken"))
    assert "ValueError: broken" in text
    assert "0 of 6" in text


def test_a_training_that_is_resumed_goes_on_with_its_report(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    run = Run(HtmlReport(path), classes=["cat", "dog"])
    run.report._trace.seconds = run.report._window.seconds = 0.0
    labels, scores = np.array([0, 1]), np.eye(2, dtype=np.float32)
    batch = ({"x": np.zeros((2, 3)), "labels": labels}, {"y": scores})
    run.epoch([3.0, 2.0], [batch])
    run.end()
    state = json.loads(json.dumps(run.report.state()))
    report = HtmlReport(path)
    report.restore(state)
    history = History(run.fit.history.rows)
    again = Run(report, resumed_from=tmp_path, history=history, step=2, epoch=1)
    again.epoch([1.0, 0.5])
    text = again.end()
    assert [p.step for p in report._trace.points][:2] == [1, 2]
    assert [p.loss for p in report._trace.points][:2] == [3.0, 2.0]
    assert "2 of 6" in text
    assert "cat" in text.split('id="confusion"')[1], "no validation since: the earlier one stays"
    new = HtmlReport(path)
    assert "cat" not in Run(new).end(), "a new training run has nothing of an earlier one"
    assert not new._trace.points


def test_a_page_is_written_in_one_step_and_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs of microseconds must not have a page each; the last page has all of them."""
    written = []
    write = files.write

    def counted(path: str, pieces: Iterable[bytes | memoryview]) -> None:
        written.append(path)
        write(path, pieces)

    monkeypatch.setattr(files, "write", counted)
    run = Run(HtmlReport(tmp_path / "report.html"), epochs=200)
    for _ in range(200):
        run.epoch([1.0])
    assert 1 <= len(written) < 50
    assert "200 of 200" in run.end()
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_the_size_of_a_page_is_bounded(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    run = Run(HtmlReport(tmp_path / "report.html"), epochs=300)
    run.report._trace.seconds = run.report._window.seconds = 0.0
    batches = []
    for _ in range(3):
        images = rng.standard_normal((30, 3, 300, 400)).astype(np.float32)
        scores = rng.standard_normal((30, 200)).astype(np.float32)
        batches.append(({"x": images, "labels": rng.integers(0, 200, 30)}, {"y": scores}))
    run.epoch([1.0] * 5000, batches)
    assert len(run.report._trace.points) < MAX_POINTS
    assert len(json.dumps(run.report.state())) < 100_000
    assert len(run.end()) < 1_500_000


def test_a_full_disk_ends_nothing_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "edgegrad")
    path = tmp_path / "report.html"
    run = Run(HtmlReport(path))
    run.epoch([1.0])
    before = path.read_text("utf-8")

    def full(_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for _ in range(3):
            run.report._cost = 0.0
            run.epoch([1.0])
    assert path.read_text("utf-8") == before, "the page is the last one that could be written"
    (record,) = caplog.records
    assert record.getMessage() == (
        f"cannot write {os.fspath(path)!r}: No space left on device; the training goes on, and "
        "what is missing is written as soon as it can be"
    )
    assert "4 of 6" in run.end()
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_folder_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    report = HtmlReport(tmp_path / "file" / "report.html")
    with pytest.raises(FileError, match=r"cannot write the report .*give a folder"):
        Run(report)
    (tmp_path / "report.html").mkdir()
    with pytest.raises(FileError, match="Is a directory"):
        Run(HtmlReport(tmp_path / "report.html"))


def test_a_negative_number_of_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="samples=-1: expected 0 or more"):
        HtmlReport(tmp_path / "report.html", samples=-1)


def test_a_section_is_added_by_a_list(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(record: Record) -> str:
        raise ZeroDivisionError("a <defect>")

    mine = Section("profile", "Profile", lambda record: f"<p>step {record.step}</p>")
    sections = [*SECTIONS, mine, Section("broken", "Broken", broken)]
    run = Run(HtmlReport(tmp_path / "report.html", title="a < b", sections=sections))
    run.epoch([1.0, 1.0])
    text = run.end()
    assert '<section id="profile">\n<h2>Profile</h2>\n<p>step 2</p>\n</section>' in text
    assert "This section failed: ZeroDivisionError(&#x27;a &lt;defect&gt;&#x27;)" in text
    assert "section 'broken' of the report failed" in caplog.text
    assert "<title>Training of a &lt; b</title>" in text


def test_an_epoch_begins_with_no_point_of_one_step(tmp_path: Path) -> None:
    run = Run(HtmlReport(tmp_path / "report.html"))
    run.report._trace.seconds = run.report._window.seconds = 3600.0
    for _ in range(3):
        run.epoch([4.0, 1.0, 1.0])
    points = run.report._trace.points
    assert [(p.step, p.loss) for p in points] == [(1, 4.0), (3, 1.0), (6, 2.0), (9, 2.0)]


# --- the epoch that is shown


def labelled(labels: list[int], scores: list[int]) -> Any:
    """A batch of two classes whose predictions are `scores`."""
    eye = np.eye(2, dtype=np.float32)
    return {"x": np.zeros((len(labels), 3)), "labels": np.array(labels)}, {"y": eye[scores]}


RIGHT, WRONG = labelled([0, 1, 1], [0, 1, 1]), labelled([0, 1, 1], [1, 0, 0])


def test_findings_are_of_the_parameters_that_are_kept(tmp_path: Path) -> None:
    """The last epoch is all wrong; the best one, whose checkpoint is exported, all right."""
    for name, keeps in (("kept", True), ("last", False)):
        run = Run(HtmlReport(tmp_path / f"{name}.html"), keeps_best=keeps, best_epoch=0)
        run.epoch([1.0], [RIGHT], val_loss=0.1)
        run.epoch([1.0], [WRONG], val_loss=0.9)
        text = run.end()
        assert ("3 of 3 right (100.0 %)" in text) == keeps
        assert ("0 of 3 right (0.0 %)" in text) != keeps
        assert ("Most wrong" in text) != keeps
        assert f'<p class="origin" data-epoch="{1 - keeps}">' in text
        assert ("Of epoch 1 (step 1), the best by val_loss" in text) == keeps
        assert text.count("<title>best epoch 1</title>") == 1, "a line in the chart of the loss"


def test_a_resumed_report_keeps_the_findings_of_the_best_epoch_alone(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    run = Run(HtmlReport(path), keeps_best=True, best_epoch=0)
    run.epoch([1.0], [RIGHT], val_loss=0.1)
    run.end()
    for shown, is_there in ((0, True), (3, False)):
        report = HtmlReport(path)
        report.restore({**run.report.state(), "shown": shown})
        more = {"keeps_best": True, "best_epoch": shown, "resumed_from": tmp_path, "epoch": 4}
        again = Run(report, **more)
        again.epoch([1.0], [WRONG], val_loss=0.9)
        text = again.end()
        assert ("3 of 3 right" in text) == is_there, "or the page is of an older validation"
        assert "0 of 3 right" not in text


def test_columns_of_many_classes_are_folded(tmp_path: Path) -> None:
    run = Run(HtmlReport(tmp_path / "report.html"))
    run.epoch([1.0], (), **{f"val_recall_{i}": 0.5 for i in range(30)})
    curves = run.end().split('id="curves"')[1].split("</section>")[0]
    shown, folded = curves.split("<details>")
    assert folded.startswith("<summary>22 more columns</summary>")
    assert folded.count('data-label="val_recall_') == 22
    assert shown.count('data-label="val_recall_') == 8


def test_mistakes_have_the_names_of_their_files(tmp_path: Path) -> None:
    class Files(Arrays):
        def sample_name(self, index: int) -> str:
            return f"<cat>/{index}.png"

    data = Files((np.zeros((6, 3), np.float32), np.zeros(6, np.int64)))
    source = batches(data.subset([5, 4, 3, 2, 1, 0]), batch_size=3)
    run = Run(HtmlReport(tmp_path / "report.html"), validation=source)
    run.epoch([1.0], [RIGHT, WRONG])
    shown = run.end().split('id="predictions"')[1].split("</section>")[0]
    wrong, right = shown.split("<h3>Right</h3>")
    assert [n for n in range(6) if f"<td>&lt;cat&gt;/{n}.png</td>" in wrong] == [0, 1, 2]
    assert [n for n in range(6) if f"<td>&lt;cat&gt;/{n}.png</td>" in right] == [3, 4, 5]


# --- with the real loop


def test_the_report_of_a_run_is_of_its_best_checkpoint(tmp_path: Path) -> None:
    """A rate that is far too large from the second epoch on makes the first one the best."""
    history = fit(
        tmp_path, 3, progress=False, schedule=lambda step, *_: 3e-3 if step < BATCHES else 30.0
    )
    assert int(history.best("val_loss")["epoch"]) == 0
    assert history["val_accuracy"][-1] != history["val_accuracy"][0]
    text = (tmp_path / "report.html").read_text("utf-8")
    share = f"{100 * history['val_accuracy'][0]:.1f} %"
    assert f"of 64 right ({share})" in text
    fit(tmp_path, 4, progress=False, resume=True, schedule=lambda *_: 30.0)
    text = (tmp_path / "report.html").read_text("utf-8")
    assert f"of 64 right ({share})" in text
    assert "4 of 4" in text


def test_fit_leaves_reports_and_a_resumed_one_goes_on_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = fit(tmp_path, 2)
    line = (
        r"epoch \d/2  loss \S+  val_loss \S+  val_accuracy \S+ %  \S+ samples/s  \S+ [MG]B  \S+ s"
    )
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(line, first)
    assert re.fullmatch(line, second)
    assert History.read(tmp_path / "history.csv").rows == history.rows
    history = fit(tmp_path, 4, resume=True, progress=False)
    assert capsys.readouterr() == ("", "")
    assert History.read(tmp_path / "history.csv")["epoch"] == [0, 1, 2, 3]
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    kinds = [row["kind"] for row in log if row["kind"] != "step"]
    assert kinds == [
        "fit", "epoch", "checkpoint", "epoch", "checkpoint", "end",
        "fit", "epoch", "checkpoint", "epoch", "checkpoint", "end",
    ]  # fmt: skip
    text = (tmp_path / "report.html").read_text("utf-8")
    there = [name for name in NAMES if name != "residuals"]
    assert [text.count(f'<section id="{name}">') for name in there] == [1] * len(there)
    assert "4 of 4" in text
    assert "north &amp; south" in text, (
        "classes of the training data name the classes of the validation"
    )
    points = re.search(r'data-label="val_accuracy" data-x="([\d ]+)"', text)
    assert points is not None
    assert points[1] == "1 2 3 4"
    best = int(history.best("val_loss")["epoch"])
    share = f"{100 * history['val_accuracy'][best]:.1f} %"
    assert f"of 64 right ({share})" in text
    assert "running" not in text.split("</style>")[1]


def test_fit_that_fails_leaves_a_report_that_says_so(tmp_path: Path) -> None:
    class Broken(Callback):
        def on_epoch_end(self, fit: Fit) -> None:
            raise ZeroDivisionError("a defect of the user's")

    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, 3, callbacks=[Broken()], progress=False)
    text = (tmp_path / "report.html").read_text("utf-8")
    assert '<b class="failed">failed</b><span>ZeroDivisionError: a defect of the user' in text
    last = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()][-2:]
    assert [row["kind"] for row in last] == ["error", "end"]


class Killed(BaseException):
    """Ends a training as abruptly as an exception can: no checkpoint is written."""


class Kill(Callback):
    def on_step_end(self, fit: Fit) -> None:
        if fit.step == 2 * BATCHES - 1:
            raise Killed


def test_a_training_that_is_killed_and_resumed_repeats_no_row(tmp_path: Path) -> None:
    """The last checkpoint is some steps older than the logs."""
    run, log = tmp_path / "run", tmp_path / "steps.jsonl"
    more = {"checkpoint_every": 4, "progress": False}
    with pytest.raises(Killed):
        fit(run, 3, callbacks=[JsonLog(log, seconds=0), Kill()], **more)
    fit(run, 3, callbacks=[JsonLog(log, seconds=0)], resume=True, **more)
    rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    (resumed,) = (row["step"] for row in rows if row["kind"] == "fit" and row["resumed"])
    assert BATCHES < resumed < 2 * BATCHES - 1
    steps = [row["step"] for row in rows if row["kind"] == "step"]
    assert steps == list(range(1, 3 * BATCHES + 1))
    assert [row["epoch"] for row in rows if row["kind"] == "epoch"] == [0, 1, 2]
    assert History.read(run / "history.csv")["epoch"] == [0, 1, 2]
    text = (run / "report.html").read_text("utf-8")
    assert "3 of 3" in text
    points = re.search(r'data-label="samples a second" data-x="([\d ]+)"', text)
    assert points is not None
    seen = list(map(int, points[1].split()))
    assert seen == sorted(set(seen)), "no step of the curves is drawn twice"


@pytest.mark.parametrize("loss", ["bce_with_logits", BCEWithLogitsLoss()], ids=["name", "object"])
def test_several_labels_have_a_table_as_the_loss_declares(loss: Any, tmp_path: Path) -> None:
    targets = (tiny.X[:, :3] > 0).astype(np.float32)
    data = Arrays((tiny.X, targets))
    tiny.make_trainer(loss=loss).fit(data, validation=data, folder=tmp_path, progress=False)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert 'id="classes"' in page
    assert "mean of the labels" in page
    assert 'id="residuals"' not in page
    (tmp_path / "values").mkdir()
    tiny.make_trainer(loss="mse").fit(
        data, validation=data, folder=tmp_path / "values", progress=False
    )
    page = (tmp_path / "values" / "report.html").read_text("utf-8")
    assert 'id="residuals"' in page
    assert "mean of the labels" not in page
