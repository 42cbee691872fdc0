"""Texts of others where people look at them: spreadsheets, terminals, histories."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.base import foreign_text
from engine.errors import FileError, InputError
from engine.federated.output import Output
from engine.tools import cli
from engine.tools.actions import prediction
from engine.trainer.fit import Callback
from engine.trainer.history import RESERVED, History
from engine.trainer.runs import HISTORY
from tests.support import tiny

FORMULAS = [
    "=1+1",
    "+cmd",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "\uff1d1",
    "'=1",
    "-",
    "''+x",
]
PLAIN = ["cat", "", "a=b", "-1", "+2.5", "-1e-3", "'", "'cat", "1,2", 'a "quoted" one']


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_get_an_apostrophe(text: str) -> None:
    written = foreign_text.format_csv([{"class": text, "p": -0.5}], ["class", "p"])
    _, cells = csv.reader(io.StringIO(written, newline=""))
    assert cells == ["'" + text, "-0.5"]
    assert foreign_text.read_table(written) == [{"class": text, "p": "-0.5"}]


@pytest.mark.parametrize("text", PLAIN)
def test_other_texts_stay(text: str) -> None:
    written = foreign_text.format_csv([{"class": text, "p": 1}], ["class", "p"])
    assert next(csv.DictReader(written.splitlines(keepends=True)))["class"] == text
    assert foreign_text.read_table(written)[0]["class"] == text


@given(st.lists(st.text(max_size=6), min_size=1, unique=True), st.data())
def test_tables_are_read_as_they_were_written(columns: list[str], data: Any) -> None:
    columns = ["first", *(c for c in columns if c != "first")]
    row = st.fixed_dictionaries({c: st.text("='-+@,\"\t 1a", min_size=1) for c in columns})
    rows = data.draw(st.lists(row, max_size=3))
    assert foreign_text.read_table(foreign_text.format_csv(rows, columns)) == rows


@pytest.mark.parametrize("text", ["a,b\n1\n", "a,b\n1,2,3\n", "a,a\n1,2\n", 'a,b\n1,"2\n'])
def test_what_is_no_table(text: str) -> None:
    with pytest.raises((ValueError, csv.Error)):
        foreign_text.read_table(text)


def test_nothing_steers_the_terminal() -> None:
    text = "\x1b[2J\x07\x9b0m\r\b\u202ecat\ttoo\n"
    assert foreign_text.escape(text) == "\\x1b[2J\\x07\\x9b0m\\r\\x08\\u202ecat\ttoo\n"
    assert foreign_text.escape("Grüße, 猫 🐈\u200d⬛") == "Grüße, 猫 🐈\u200d⬛"


def test_names_of_files_and_classes_in_predictions(tmp_path: Path) -> None:
    rows = [{"file": "=x.png", "class": "@a", "probability": 0.5, "probabilities": {"@a": 0.5}}]
    prediction.write(rows, tmp_path / "found.csv")
    names, cells = csv.reader((tmp_path / "found.csv").read_text().splitlines())
    assert names == ["file", "class", "probability", "p(@a)"]
    assert cells == ["'=x.png", "'@a", "0.5", "0.5"]


def test_commands_show_names_that_steer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", str(tmp_path / "a\x1b[2Jb.onnx")]) == 1
    assert cli.main(["ops", str(tmp_path / "a\x1b[2Jb.onnx")]) == 1
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert "x1b[2Jb.onnx" in shown.err


def test_columns_of_a_history_that_are_formulas(tmp_path: Path) -> None:
    history = History([{"epoch": 0, "=loss": -1.5, "round": 3.0}])
    history.write_csv(tmp_path / "h.csv")
    assert (tmp_path / "h.csv").read_text() == "epoch,'=loss,round\n0,-1.5,3.0\n"
    assert History.read(tmp_path / "h.csv").rows == history.rows


@pytest.mark.parametrize("name", RESERVED)
def test_a_log_with_the_name_of_a_column_is_refused(tmp_path: Path, name: str) -> None:
    class Writes(Callback):
        def on_epoch_begin(self, fit: Any) -> None:
            fit.logs[name] = 7.0

    with pytest.raises(InputError, match=f"fit.logs\\['{name}'\\]: the history has a column"):
        tiny.make_trainer().fit(
            (tiny.X, tiny.LABELS), epochs=1, callbacks=[Writes()], folder=tmp_path
        )


@pytest.mark.parametrize("name", ["fit", "self", "=formula", "round", "val_loss2"])
def test_any_other_log_is_a_column(tmp_path: Path, name: str) -> None:
    class Writes(Callback):
        def on_epoch_begin(self, fit: Any) -> None:
            fit.logs[name] = 7.0

    history = tiny.make_trainer().fit(
        (tiny.X, tiny.LABELS), epochs=1, callbacks=[Writes()], folder=tmp_path
    )
    assert history[name] == [7.0]
    assert History.read(tmp_path / "history.csv")[name] == [7.0]
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert any(json.loads(line).get(name) == 7.0 for line in lines)


def test_numbers_of_devices_that_are_called_as_columns_of_the_server(tmp_path: Path) -> None:
    """A device tells a number called `round`; the table of the rounds is what it was without it."""
    pytest.importorskip("flwr")
    from engine.federated.flower.rounds import Round
    from engine.federated.flower.server import Federation

    made = object.__new__(Federation)
    made._rows, made.output = [], Output(tmp_path)
    told = {"round": 77.0, "seconds": -1.0, "server_loss": 9.0, "=eval": 1.0, "eval_loss": 0.5}
    for number in (1, 2):
        done = Round(number, results=3, metrics=dict(told))
        made._note(done, {})
        made._note(done, {"loss": 0.25})
    rows = made.output.read_history(2)
    assert [row["round"] for row in rows] == ["1", "2"]
    assert float(rows[1]["seconds"]) >= 0
    assert rows[1]["server_loss"] == "0.25"
    assert rows[1] | {
        "devices_round": "77.0", "devices_seconds": "-1.0", "devices_server_loss": "9.0",
        "=eval": "1.0", "eval_loss": "0.5",
    } == rows[1]  # fmt: skip
    assert [row["round"] for row in made.output.read_history(1)] == ["1"]
    (made.output.path / HISTORY).write_text("round,loss\n1,2,3\n")
    with pytest.raises(FileError, match=r"history.csv' is not a history of rounds"):
        made.output.read_history(2)
