"""Comparisons of runs, in Python and by the command."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import CheckpointError, FileError, InputError
from engine.reports import compare
from engine.tools.cli import main
from tests.support.report_runs import fit


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one model that differ in their epochs and rates."""
    folder = tmp_path_factory.mktemp("runs")
    fit(folder / "first", 2, progress=False)
    fit(folder / "<b>second", 3, progress=False, schedule=lambda *_: 0.1)
    return folder


@pytest.fixture
def pair(runs: Path) -> tuple[Path, Path]:
    return runs / "first", runs / "<b>second"


def test_values_are_those_of_the_histories(pair: tuple[Path, Path]) -> None:
    made = compare(*pair)
    assert list(made.runs) == ["first", "<b>second"]
    assert made.columns == ["loss", "val_loss", "val_accuracy"]
    told = json.loads(json.dumps(made.to_dict()))
    for name, folder in zip(made.runs, pair, strict=True):
        history = made.runs[name].history
        best = history.best("val_accuracy")
        assert told["runs"][name]["best"]["val_accuracy"] == {
            "value": best["val_accuracy"], "epoch": best["epoch"],
        }  # fmt: skip
        checkpoint = folder / "checkpoints" / (folder / "best").read_text().strip() / "checkpoint"
        assert told["runs"][name]["sizes"] == {"checkpoint": checkpoint.stat().st_size}
        assert told["runs"][name]["epochs"] == len(history)
        assert told["runs"][name]["steps"] == 10 * len(history)
        assert told["runs"][name]["seconds"] > 0
        assert told["runs"][name]["memory"] == max(history["memory"])
    assert told["differing"]["epochs"] == ["2", "3"]
    assert told["differing"]["schedule"] == ["Constant", "Function"]
    assert "seed" not in told["differing"]
    assert "started" not in told["differing"], "is not a setting"


def test_a_table_marks_the_best(pair: tuple[Path, Path]) -> None:
    made = compare(*pair)
    head, *rows = str(made).splitlines()
    assert re.split(r"  +", head) == [
        *("run", "best loss", "best val_loss", "best val_accuracy", "epochs", "steps", "time"),
        *("memory", "checkpoint", "model"),
    ]
    losses = [run.best("val_loss").value for run in made.runs.values()]  # type: ignore[union-attr]  # both have it
    cells = [re.split(r"  +", row)[2] for row in rows[:2]]
    assert [cell.startswith("* ") for cell in cells] == [x == min(losses) for x in losses]
    assert re.search(r"^settings that differ +first +<b>second$", str(made), re.MULTILINE)
    assert re.search(r"^epochs +2 +3$", str(made), re.MULTILINE)


def test_the_page_has_curves_over_each_other_and_is_escaped(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    made = compare(*pair)
    made.write(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "<b>second" not in page
    assert page.count('data-label="&lt;b&gt;second"') == len(made.columns)
    assert page.count('data-label="first"') == len(made.columns)
    assert "default-src 'none'" in page
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert "<h3>Settings that differ</h3>" in made._repr_html_()


def test_more_runs_than_colours_and_one_name_twice(runs: Path, tmp_path: Path) -> None:
    folders = [tmp_path / f"{i}/first" for i in range(9)]
    for folder in folders:
        shutil.copytree(runs / "first", folder)
    made = compare(*folders)
    assert list(made.runs) == list(map(str, folders))
    assert not made.differing
    assert "No setting differs." in made._repr_html_()


def test_settings_of_a_configuration_count(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for name, rate in (("a", 0.1), ("b", 0.2)):
        shutil.copytree(pair[0], tmp_path / name)
        (tmp_path / name / "run.toml").write_text(f"[optimizer]\nlr = {rate}\nname = 'adamw'\n")
        (tmp_path / name / "inference.onnx").write_bytes(b"x" * 1000)
    made = compare(tmp_path / "a", tmp_path / "b")
    assert made.differing == {"optimizer.lr": ["0.1", "0.2"]}
    assert made.runs["a"].sizes["model"] == 1000


def test_digests_are_shown_by_their_first_digits(pair: tuple[Path, Path], tmp_path: Path) -> None:
    digests = {"a": "0123456789ab" + "c" * 52, "b": "0" * 64}
    for name, digest in digests.items():
        shutil.copytree(pair[0], tmp_path / name)
        path = tmp_path / name / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "model": digest}))
    made = compare(tmp_path / "a", tmp_path / "b")
    assert made.differing == {"model": list(digests.values())}
    assert re.search(r"^model +0123456789ab +000000000000$", str(made), re.MULTILINE)
    assert "<td>0123456789ab</td>" in made._repr_html_()
    assert digests["a"] not in made._repr_html_()


def empty(folder: Path) -> None:
    (folder / "run.json").unlink()


def unfinished(folder: Path) -> None:
    for name in ("last", "best", "history.csv"):
        (folder / name).unlink()


def damaged(folder: Path) -> None:
    (folder / "run.json").write_text("[1")


def a_list(folder: Path) -> None:
    (folder / "run.json").write_text("[1]")


def no_toml(folder: Path) -> None:
    (folder / "run.toml").write_text("= 1")


def lost(folder: Path) -> None:
    (folder / "last").write_text("00000099\n")


@pytest.mark.parametrize(
    ("spoil", "kind", "said"),
    [
        (empty, FileError, "/mine' is not a run: it has no run.json"),
        (unfinished, FileError, "/mine': the run has no epoch yet"),
        (damaged, FileError, "run.json' is not the description of a run"),
        (a_list, FileError, "run.json' is not the description of a run"),
        (no_toml, FileError, "run.toml' is not a configuration"),
        (lost, CheckpointError, "last' names no checkpoint"),
    ],
)
def test_what_is_not_a_run_is_refused_by_name(
    spoil: Callable[[Path], Any], kind: type[Exception], said: str,
    pair: tuple[Path, Path], tmp_path: Path,
) -> None:  # fmt: skip
    shutil.copytree(pair[0], tmp_path / "mine")
    spoil(tmp_path / "mine")
    with pytest.raises(kind, match=re.escape(said)):
        compare(pair[1], tmp_path / "mine")


def test_one_run_is_not_compared(pair: tuple[Path, Path]) -> None:
    with pytest.raises(InputError, match="compare: 1 runs; expected two or more"):
        compare(pair[0])
    with pytest.raises(InputError, match="first' is given twice"):
        compare(pair[0], pair[1], pair[0] / ".." / "first")


def test_the_command(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = list(map(str, pair))
    assert main(["compare", *words, "-o", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"{compare(*pair)}\n"
    assert (tmp_path / "page.html").is_file()
    assert main(["compare", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == compare(*pair).to_dict()
    assert main(["compare", words[0], str(tmp_path)]) == 1
    assert "is not a run: it has no run.json" in capsys.readouterr().err
    assert main(["compare", words[0], str(tmp_path / "nothing")]) == 1
    assert "no such file or folder" in capsys.readouterr().err
