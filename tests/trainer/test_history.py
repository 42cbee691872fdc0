"""History: rows, columns, files and which value is the better one."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from engine.errors import FileError, InputError, MissingPackageError, NameNotFoundError
from engine.trainer.history import History, direction, is_better

ROWS = [
    {"epoch": 0, "loss": 0.1 + 0.2, "lr": 1e-3},
    {"epoch": 1, "loss": 0.25, "lr": 1e-3, "val_loss": 1 / 3},
    {"epoch": 2, "loss": 0.125, "lr": 5e-324, "val_loss": math.nan},
    {"epoch": 3, "loss": math.inf, "lr": 1e-3, "val_loss": 1 / 3},
]


def equal(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def test_columns_are_those_of_all_rows() -> None:
    history = History(ROWS)
    assert len(history) == 4
    assert history.columns == ["epoch", "loss", "lr", "val_loss"]
    assert "val_loss" in history
    assert "accuracy" not in history
    assert history["loss"] == [0.1 + 0.2, 0.25, 0.125, math.inf]
    assert [math.isnan(v) for v in history["val_loss"]] == [True, False, True, False]
    with pytest.raises(NameNotFoundError, match=r"no column 'val_los'.*nearest: 'val_loss'"):
        history["val_los"]


def test_a_history_does_not_share_rows_with_its_maker() -> None:
    rows = [{"loss": 1.0}]
    history = History(rows)
    rows[0]["loss"] = 2.0
    assert history["loss"] == [1.0]


def test_the_best_row_is_the_first_of_equal_ones() -> None:
    history = History(ROWS)
    assert history.best("val_loss")["epoch"] == 1
    assert history.best("loss")["epoch"] == 2
    assert history.best("loss", "max")["epoch"] == 3
    with pytest.raises(InputError, match="'val_loss' has no value that is a number"):
        History([{"val_loss": math.nan}]).best("val_loss")


def test_csv_keeps_every_bit(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    History(ROWS).write_csv(path)
    rows = History.read(path).rows
    assert [list(row) for row in rows] == [list(row) for row in ROWS]
    for row, expected in zip(rows, ROWS, strict=True):
        assert all(equal(row[k], expected[k]) for k in expected)
    assert isinstance(rows[0]["epoch"], int)


def test_json_lines_are_json_for_any_reader(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    History(ROWS).write_jsonl(path)

    def refuse(word: str) -> float:
        raise AssertionError(word)

    rows = [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
    assert rows[2]["val_loss"] is None
    assert rows[0] == ROWS[0]
    assert History.read(path).rows[1] == ROWS[1]
    assert math.isnan(History.read(path)["val_loss"][2])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("history.csv", b"epoch,loss\n0,high\n"),
        ("history.csv", b'epoch,loss\n0,"1\n'),
        ("history.csv", b"epoch\n0,1\n"),
        ("history.csv", b"\xff\xfe"),
        ("history.jsonl", b'{"epoch": 0'),
        ("history.jsonl", b"[1, 2]\n"),
        ("history.jsonl", b'{"loss": "low"}\n'),
    ],
)
def test_what_is_no_history_is_refused(name: str, text: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text)
    with pytest.raises(FileError, match=r"history\.(csv|jsonl)' is not a history"):
        History.read(tmp_path / name)


def test_a_history_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot read history"):
        History.read(tmp_path / "history.csv")


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("loss", "min"), ("val_loss", "min"), ("val_mse", "min"), ("mae", "min"),
        ("val_perplexity", "min"), ("accuracy", "max"), ("val_top5", "max"), ("val_f1", "max"),
    ],
)  # fmt: skip
def test_names_say_what_is_better(column: str, expected: str) -> None:
    assert direction(column) == expected


def test_a_name_that_says_nothing_needs_a_mode() -> None:
    assert direction("val_distance", "min") == "min"
    for column in ("val_distance", "lossy", "closs"):
        with pytest.raises(InputError, match="give mode='min' or 'max'"):
            direction(column)
    with pytest.raises(InputError, match="mode='least'"):
        direction("loss", "least")  # type: ignore[arg-type]  # what is refused


def test_better_by_more_than_a_delta() -> None:
    assert is_better(1.0, None, "min")
    assert is_better(0.5, 1.0, "min")
    assert not is_better(1.0, 1.0, "min")
    assert not is_better(0.9, 1.0, "min", 0.1)
    assert is_better(1.2, 1.0, "max", 0.1)
    assert not is_better(math.nan, None, "min")
    assert is_better(5.0, math.nan, "min")


# --- seen


def trained(epochs: int = 12) -> History:
    return History(
        [
            {
                "epoch": i, "loss": 1 / (i + 1), "val_loss": 0.3 + abs(i - 7) / 10,
                "val_accuracy": 1 - 0.5 / (i + 1), "lr": 1e-3, "seconds": 4.2, "memory": 118e6,
            }
            for i in range(epochs)
        ]
    )  # fmt: skip


def test_a_history_is_a_table() -> None:
    history = trained(2)
    history.rows[1]["val_f1<b>"] = 0.5
    history.stop_reason = "a <reason>"
    assert repr(history).splitlines() == [
        "epoch    loss  val_loss  val_accuracy        lr  seconds  memory  val_f1<b>",
        "1           1         1        50.0 %  0.001000    4.2 s  118 MB",
        "2      0.5000    0.9000        75.0 %  0.001000    4.2 s  118 MB     0.5000",
        "stopped: a <reason>",
    ]
    shown = history._repr_html_()
    assert "val_f1&lt;b&gt;" in shown
    assert "stopped: a &lt;reason&gt;" in shown
    assert shown.count("<tr>") == 3
    assert repr(History()) == "History(no epochs)"
    long = repr(trained(300)).splitlines()
    assert len(long) == 1 + 24 + 1
    assert [line.split()[0] for line in (long[1], long[6], long[7], long[8], long[-1])] == [
        "1", "6", "...", "283", "300",
    ]  # fmt: skip


def test_a_history_is_drawn(tmp_path: Path) -> None:
    plot = trained().plot(best="val_loss")
    assert plot.titles == ["Loss", "val_accuracy"]
    assert plot._repr_html_() == plot._repr_svg_() == plot.svg
    assert "save('plot.svg')" in repr(plot)
    plot.save(tmp_path / "plot.svg")
    root = ElementTree.parse(tmp_path / "plot.svg").getroot()
    name = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{name}svg"
    lines = [e.get("data-label") for e in root.iter(f"{name}path")]
    assert lines == ["loss", "val_loss", "val_accuracy"]
    marks = [
        e.findtext(f"{name}title") for e in root.iter(f"{name}line") if e.get("class") == "best"
    ]
    assert marks == ["best epoch 8"] * 2
    (style,) = (e.text or "" for e in root.iter(f"{name}style"))
    assert "var(" not in style, "few programs know variables"
    rules = re.findall(
        r"([^{}]+)\{[^{}]*\}", style.replace("@media (prefers-color-scheme: dark) {", "")
    )
    assert len(rules) > 40
    assert all(r.startswith(".edgegrad-plot ") for rule in rules for r in rule.split(", "))
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|url\(|@import", plot.svg)
    assert trained().plot("memory", "val_loss").titles == ["memory", "Loss"]
    assert trained().plot("val_accuracy").titles == ["val_accuracy"]
    hostile = History([{"epoch": 0, "</style><script>x": 1.0}]).plot()
    assert "<script>" not in hostile.svg


def test_columns_of_many_classes_are_drawn_when_asked_for() -> None:
    names = [f"val_recall_{i}" for i in range(30)]
    history = History([{"epoch": 0, "loss": 1.0} | dict.fromkeys(names, 0.5)])
    assert len(history.plot().titles) == 8
    assert history.plot().titles[0] == "Loss"
    assert history.plot(*names).titles == names


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(NameNotFoundError, match=r"no column 'val_los'.*nearest: 'val_loss'"):
        trained().plot("val_los")
    with pytest.raises(NameNotFoundError, match="no column 'f1'"):
        trained().plot(best="f1")
    with pytest.raises(InputError, match="the history has no epochs to draw"):
        History().plot()


def test_a_history_is_a_data_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match="pip install pandas"):
        trained().to_pandas()
    monkeypatch.delitem(sys.modules, "pandas")
    pytest.importorskip("pandas", reason="needs pandas")
    frame = trained(3).to_pandas()
    assert frame.index.name == "epoch"
    assert frame["val_accuracy"].tolist() == trained(3)["val_accuracy"]
    assert len(History().to_pandas()) == 0
