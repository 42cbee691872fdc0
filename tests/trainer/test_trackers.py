"""Trackers: W&B and MLflow by their real packages, offline; TensorBoard's files by its own.

Aim, 230 MB with what it needs, has a test of its own: `make test-aim`.
"""

from __future__ import annotations

import logging
import math
import struct
import sys
import tomllib
import zlib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from engine.errors import InputError, MissingPackageError, StateError
from engine.reports import AimLog, MlflowLog, TensorBoard, WandbLog
from engine.tools.actions.run_config import make_config, to_toml
from engine.trainer.reports import event_file
from tests.support.fits import make_fit, train
from tests.support.programs import COLUMNS, run_code


class Sink:
    """A run of another package, by what a tracker calls of it."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.is_open = True

    def log(self, values: Mapping[str, Any]) -> None:
        self.rows.append(dict(values))

    def track(self, value: float, *, name: str, step: int, epoch: int) -> None:
        self.rows.append({name: value, "trainer/step": step, "epoch": epoch})

    def finish(self, **_: Any) -> None:
        self.is_open = False

    close = finish


@pytest.mark.parametrize("kind", [WandbLog, AimLog])
def test_any_object_with_their_methods_will_do(kind: Any) -> None:
    sink = Sink()
    train(make_fit(), [kind(sink, seconds=0)])
    assert {name for row in sink.rows for name in row} >= COLUMNS
    assert [r["step/loss"] for r in sink.rows if "step/loss" in r][:4] == [4.0, 3.0, 2.0, 1.0]
    assert sink.rows[-1]["trainer/step"] == 12
    assert sink.is_open, "a run that is given stays open"


@pytest.mark.parametrize(
    ("kind", "name"), [(WandbLog, "wandb"), (MlflowLog, "mlflow"), (AimLog, "aim")]
)
def test_without_the_package_the_error_names_the_extra(
    kind: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match=rf"pip install 'edgegrad\[{name}\]'"):
        kind()


def test_a_service_that_fails_ends_no_training(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Sink):
        def log(self, values: Mapping[str, Any]) -> None:
            raise ConnectionError("no route to the host")

    fit = make_fit()
    with caplog.at_level(logging.WARNING, logger="edgegrad"):
        train(fit, [WandbLog(Broken(), seconds=0)])
    (record,) = caplog.records
    assert "WandbLog: ConnectionError: no route to the host; the training goes on" in record.message
    assert len(fit.history) == 3


def test_a_service_that_cannot_start_is_told_before_the_training() -> None:
    class Closed(Sink):
        def define_metric(self, *_: Any, **__: Any) -> None:
            raise ValueError("the run is finished")

    with pytest.raises(StateError, match="WandbLog cannot start: ValueError: the run is finished"):
        WandbLog(Closed()).on_fit_begin(make_fit())


def test_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs wandb")
    code = f"""
from pathlib import Path
from engine.reports import WandbLog
from tests.support.fits import make_fit, resume_fit, train
options = dict(project="tests", mode="offline", dir={str(tmp_path)!r})
fit, log = make_fit(), WandbLog(seconds=0, **options)
train(fit, [log])
again = WandbLog(seconds=0, **options)
again.restore(log.state())
train(resume_fit(fit, 2), [again], 1)
assert again.state() == log.state()
print(log.state()["run"])
"""
    name = run_code(code, tmp_path)
    folders = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert len(folders) == 2
    assert all(f"-{name}" in folder.name for folder in folders)  # "-1" ends a second of one time
    assert read_wandb(folders[0])[-1]["epoch/val_accuracy"] == "0.881"


def read_wandb(folder: Path) -> list[dict[str, str]]:
    """Return the rows of an offline run, as its own package reads them."""
    messages: Any = import_module("wandb.proto.wandb_internal_pb2")
    (path,) = folder.glob("*.wandb")
    data, at, content, rows = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):  # records of LevelDB's log, in blocks of 32 KiB
        _, size, kind = struct.unpack_from("<IHB", data, at)
        content += data[at + 7 : at + 7 + size]
        at += 7 + size
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        if kind in (2, 3):  # the first of several parts, one between them
            continue
        record, content = messages.Record.FromString(content), b""
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({"/".join(i.nested_key) or i.key: i.value_json for i in items})
    return rows


def test_mlflow_in_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs mlflow")
    code = f"""
import os
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
from mlflow import MlflowClient
from engine.reports import MlflowLog
from tests.support.fits import make_fit, resume_fit, train
uri = {(tmp_path / "mlruns").as_uri()!r}
fit, log = make_fit(), MlflowLog(name="first", uri=uri, seconds=0)
train(fit, [log])
client = MlflowClient(uri)
run = client.get_run(log.state()["run"])
assert run.info.status == "FINISHED"
assert run.data.params["epochs"] == "3", run.data.params
assert {COLUMNS!r} <= set(run.data.metrics)
losses = client.get_metric_history(run.info.run_id, "step/loss")
assert [each.value for each in losses][:4] == [4.0, 3.0, 2.0, 1.0]
again = MlflowLog(uri=uri, seconds=0)
again.restore(log.state())
train(resume_fit(fit, 2), [again], 1)
assert again.state() == log.state()
assert client.get_run(run.info.run_id).info.status == "FINISHED"
"""
    run_code(code, tmp_path)


def test_tensorboard_accumulates_the_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    fit = make_fit()
    train(fit, [TensorBoard(tmp_path, seconds=0)])
    code = f"""
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator({str(tmp_path)!r}).Reload()
print({{tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}})
"""
    read = eval(run_code(code, tmp_path))
    assert set(read) >= COLUMNS
    assert [value for _, value in read["step/loss"]][:4] == [4.0, 3.0, 2.0, 1.0]
    assert [value for _, value in read["epoch/loss"]] == pytest.approx(fit.history["loss"])


def test_event_files_need_no_package(tmp_path: Path) -> None:
    code = f"""
import sys
from engine.reports import TensorBoard
from tests.support.fits import make_fit, train
from tests.support.programs import COLUMNS, run_code
train(make_fit(), [TensorBoard({str(tmp_path)!r}, seconds=0)])
print(sorted({{"torch", "tensorboard", "tensorboardX", "google.protobuf"}} & set(sys.modules)))
"""
    assert run_code(code, tmp_path) == "[]"
    assert len(list(tmp_path.glob("*tfevents*"))) == 1


def test_checksums_and_numbers_of_event_files() -> None:
    assert event_file.compute_crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert event_file.compute_crc32c(b"") == 0
    assert event_file.compute_crc32c(b"123456789") != zlib.crc32(b"123456789")
    for value in (1e300, -1e300, math.nan, math.inf):
        assert event_file.make_scalars(0.0, 1 << 40, {"a": value})


def test_configurations_name_logs(tmp_path: Path) -> None:
    table = {"folder": str(tmp_path), "log": ["tensorboard", "wandb"], "tensorboard": True}
    options = {"wandb": {"project": "flowers", "mode": "offline"}}
    config = make_config({"output": {**table, "log_options": options}}, "run.toml")
    assert make_config(tomllib.loads(to_toml(config)), "run.toml").output == config.output
    made = config.make_trackers()
    assert [type(each) for each in made] == [TensorBoard, WandbLog]
    train(make_fit(), made[:1])
    assert list((tmp_path / "tensorboard").glob("*tfevents*"))
    for wrong, text in (
        ({"log": ["wandbb"]}, r"\[output\] log: no log 'wandbb'; nearest: 'wandb'"),
        ({"log": [], "log_options": options}, r"log_options: 'wandb' is not in log"),
        ({"log": ["aim"], "log_options": {"aim": {"repos": "x"}}}, r"unknown key 'repos'"),
    ):
        with pytest.raises(InputError, match=text):
            make_config({"output": wrong}, "run.toml").make_trackers()
