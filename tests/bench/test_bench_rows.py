"""The runner of benches: what can be named, what is printed, and the least that each measures."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import bench.__main__ as command
from bench import measuring, processes, rows, running, tables
from bench.budgets import CONSTANTS, find_constant
from bench.rows import Bench, Cells, Option
from engine.errors import EngineError, InputError
from tests.support.places import ROOT

BENCHES = rows.find_benches()
# Of these the smallest form takes a fraction of a second, once other tests have made its kernels.
QUICK = ("arenas", "budgets.constants", "growth", "kept", "passes", "planning", "scaling.boards")
# A worker whose thread spins for 0.2 s after its work.
SPINS = """
import sys, threading, time

def spin():
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        pass

for line in sys.stdin:
    threading.Thread(target=spin).start()
    print("done", flush=True)
"""


@pytest.mark.parametrize("each", BENCHES.values(), ids=lambda each: each.name)
def test_a_bench_can_be_named_and_has_what_it_measures(each: Bench) -> None:
    module = each.name.partition(".")[0]
    assert module in rows.list_modules()
    assert rows.find(each.name) is each
    assert not each.what.endswith(".")
    subjects = each.list_subjects() if each.name != "cases" else {"any": None}
    assert (each.subjects is None) == (not subjects)
    assert set(each.usual) <= set(subjects) or each.subjects is None
    assert not {name.partition(".")[0] for name in subjects} & set(rows.list_modules())
    options = running.make_parser([each]).parse_args([each.name])
    titles = each.list_titles(options)
    assert titles
    assert len(set(titles)) == len(titles) or each.name.startswith("predictions")
    assert (each.page is None) == (not each.document)


@pytest.mark.parametrize("name", [n for n, each in BENCHES.items() if each.small is not None])
def test_the_smallest_form_names_a_subject(name: str) -> None:
    words = (BENCHES[name].small or "").split()
    options = running.make_parser([BENCHES[name]]).parse_args([name, *words])
    ((each, subjects),) = running.choose_benches(options.words)
    assert each is BENCHES[name]
    assert len(subjects) == 1


@pytest.mark.parametrize("name", QUICK)
def test_what_is_quick_measures(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = (BENCHES[name].small or "").split()
    assert command.main([name, *words, "--format", "json"]) == 0
    (actual_value,) = json.loads(capsys.readouterr().out)["benches"].values()
    assert actual_value
    assert actual_value[0]["subject"] == words[0]


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_of_the_planner_names_the_command_that_measures_it(name: str) -> None:
    module, constant = find_constant(name)
    values, networks = CONSTANTS[name]
    assert getattr(module, constant) not in values
    assert networks
    source = " ".join(inspect.getsource(module).replace("\n#", " ").split())
    assert "python -m bench budgets.constants" in source


def test_benches_alone_have_a_command() -> None:
    """One command for all: no file reads the command line but the runner and what it starts."""
    folder = Path(rows.__file__).parent
    started = {"scripts", "twins"}
    others = {folder / "families" / "peer.py", folder / "families" / "train.py"}
    wrong = [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if path.relative_to(folder).parts[0] not in started
        and path not in {folder / "__main__.py", folder / "running.py", *others}
        and {"argv", "ArgumentParser"} & {
            node.attr for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Attribute)
        }
    ]  # fmt: skip
    assert not wrong


# --- the command


def measure(subject: int, options: Namespace) -> Iterator[Cells]:
    """Yield a row whose second cell is wrong where the subject is negative."""
    yield subject / options.by, f"{rows.WRONG}: negative" if subject < 0 else None


def write(found: object, path: Path) -> None:
    path.write_text(str(found))


HALVES = Bench(
    "halves", "numbers by 2", {"one": 1, "three": 3, "minus": -2}, ("half:.2f", "verdict"), measure,
    usual=("one", "three"), options=(Option("by", 2, "the divisor"),), page=write,
    document="unused",
)  # fmt: skip


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (command, running):
        monkeypatch.setattr(module, "list_modules", lambda: ["halves"])
        monkeypatch.setattr(module, "find", lambda name: HALVES)


@pytest.mark.usefixtures("halves")
def test_rows_are_printed_as_text_and_markdown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["halves"]) == 0
    *_, head, first, second, _ = capsys.readouterr().out.split("\n")[:-1]
    assert head.split() == ["half", "verdict"]
    assert (first.split(), second.split()) == (["one", "0.50"], ["three", "1.50"])
    assert command.main(["halves", "t*", "--by", "4", "--format", "markdown"]) == 0
    assert "|  | half | verdict |\n|---|---|---|\n| three | 0.75 |  |" in capsys.readouterr().out
    assert command.main(["halves", "one", "--document", str(tmp_path / "page")]) == 0
    assert (tmp_path / "page").read_text() == "{'one': [(0.5, None)]}"


@pytest.mark.usefixtures("halves")
def test_json_has_the_machine_and_numbers_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["halves", "three", "--by", "7", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["machine"]["python"]
    assert data["benches"] == {"halves": [{"subject": "three", "half": 3 / 7, "verdict": None}]}


@pytest.mark.usefixtures("halves")
def test_what_is_wrong_makes_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["halves", "minus"]) == 1
    assert "WRONG: negative" in capsys.readouterr().out
    assert command.main(["halves", "tree"]) == 1
    told = "python -m bench: bench halves has no subject 'tree'; nearest: 'three'\n"
    assert capsys.readouterr().err == told


def test_what_there_is_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(BENCHES)
    assert command.main(["compare", "--list"]) == 0
    assert "    --other" in capsys.readouterr().out
    with pytest.raises(InputError, match="no bench 'gem'; nearest: 'gemm'"):
        rows.find("gem")


@pytest.mark.parametrize(
    ("default", "words", "value"),
    [
        (False, ["--x"], True),
        (3, ["--x", "4"], 4),
        ((1, 2), ["--x", "4", "5"], [4, 5]),
        ((), ["--x", "a"], ["a"]),
        (None, [], None),
        (Path("a"), ["--x", "b"], Path("b")),
    ],
)
def test_the_default_of_an_option_decides_its_type(
    default: object, words: list[str], value: object
) -> None:
    option, parser = Option("x", default, "what it is"), argparse.ArgumentParser()
    parser.add_argument("--x", **option.words)
    assert parser.parse_args(words).x == value


# --- measuring


def test_calls_take_turns_and_change_their_order() -> None:
    said: list[str] = []
    calls = {"a": lambda: said.append("a"), "b": lambda: said.append("b")}
    in_turns = measuring.time_in_turns(calls, 3, warm_up=1)
    assert "".join(said) == "abbaabba"
    assert [len(times) for times in in_turns.values()] == [3, 3]
    assert measuring.compare_medians([2.0, 6.0, 9.0], [1.0, 2.0, 3.0]) == 3


def test_a_call_rests_before_the_next_one_begins() -> None:
    said: list[str] = []
    calls = {name: partial(said.append, name) for name in "ab"}
    measuring.time_in_turns(calls, 1, warm_up=1, rests={"a": lambda: said.append("-")})
    assert "".join(said) == "a-bba-"


def test_a_worker_rests_once_its_threads_have_stopped_spinning(tmp_path: Path) -> None:
    script = tmp_path / "spins.py"
    script.write_text(SPINS)
    with processes.worker([sys.executable, script], "spins") as worker:
        for _ in range(2):
            worker.run()
            begin = time.perf_counter()
            worker.await_rest()
            assert time.perf_counter() - begin > 0.1


def test_memory_of_processes_is_told() -> None:
    with measuring.anonymous_growth() as grown:
        held = bytearray(64 << 20)
        held[:: 1 << 10] = b"x" * len(held[:: 1 << 10])
    assert grown[0] > 60 << 20
    assert 0 < measuring.read_memory("RssAnon") <= measuring.read_memory("VmHWM")


def test_a_worker_that_ends_is_told(tmp_path: Path) -> None:
    script = tmp_path / "none.py"
    script.write_text("")
    with (
        pytest.raises(EngineError, match="the process of a ended before"),
        processes.worker([sys.executable, script], "a") as worker,
    ):
        worker.run()


def test_cells_that_are_unknown_are_empty() -> None:
    assert [tables.format_cell(v, ".1f") for v in (None, float("nan"), 2.0, "a")] == [
        "",
        "",
        "2.0",
        "a",
    ]


def test_the_rows_run_under_pytest_benchmark() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "bench/bench_cases.py", "--benchmark-disable"]
    done = subprocess.run(
        [*words, "-p", "no:xdist", "-k", "batchnorm-train"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
