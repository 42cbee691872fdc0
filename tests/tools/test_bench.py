"""The benchmark: what it measures, prints, writes and compares; no test asserts a time."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from bench import steps as beside
from engine.errors import EngineError, FileError, InputError
from engine.system import config
from engine.tools import cli
from engine.tools.benchmark import machine, measure, result
from engine.tools.benchmark.result import BenchmarkRow, Peer, Result, compare, read
from engine.tools.benchmark.workloads import WORKLOADS
from tests.support.blocks import make_model
from tests.support.places import ROOT
from tests.support.tied_words import DEEP, TIED

ROW = BenchmarkRow("mlp", 64, 2, 2e-3, 100, 0.05, 1e-3, 400_000_000, 400e9, 100_000_000, 0.5)
HERE = Result({"machine": "Raspberry Pi 5", "governor": "ondemand", "load": "0.1"}, (ROW,))


# --- what a machine is


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_a_raspberry_pi_tells_what_it_is(tmp_path: Path) -> None:
    write(tmp_path, "proc/device-tree/model", "Raspberry Pi 4 Model B Rev 1.4\0")
    write(tmp_path, "proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd08\n")
    write(tmp_path, "proc/meminfo", "MemTotal:        3884360 kB\nMemFree: 1 kB\n")
    for core, now in enumerate((600_000, 1_800_000)):
        folder = f"sys/devices/system/cpu/cpu{core}/cpufreq"
        write(tmp_path, f"{folder}/scaling_governor", "ondemand\n")
        write(tmp_path, f"{folder}/scaling_cur_freq", f"{now}\n")
        write(tmp_path, f"{folder}/cpuinfo_max_freq", "1800000\n")
    write(tmp_path, "sys/class/thermal/thermal_zone0/temp", "48312\n")
    description = machine.describe("shipped aarch64 0123", tmp_path)
    expected = {
        "machine": "Raspberry Pi 4 Model B Rev 1.4", "processor": "implementer 0x41, part 0xd08",
        "memory": "3,793 MiB", "governor": "ondemand", "frequency now": "600 to 1,800 MHz",
        "frequency at most": "1,800 MHz", "temperature": "48 °C", "kernels": "shipped aarch64 0123",
    }  # fmt: skip
    assert {name: description[name] for name in expected} == expected
    assert "throttling" not in description
    assert {"cores", "system", "python", "edgegrad", "numpy", "numba", "onnx", "date"} <= set(
        description
    )


def test_a_system_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    description = machine.describe(root=tmp_path)
    assert not {"machine", "governor", "temperature", "frequency now", "memory"} & set(description)
    assert all(description.values())


@pytest.mark.parametrize(
    ("bits", "said"),
    [
        (0x0, "none since the start"),
        (0x50005, "now: under-voltage, throttled; since the start: under-voltage, throttled"),
        (0x20000, "since the start: frequency capped"),
        (0x8, "now: hot"),
    ],
)
def test_bits_of_throttling(bits: int, said: str) -> None:
    assert machine.explain_throttled(bits) == said


# --- how it measures


class Runner:
    """Takes no time, tells some, and notes what it was asked for."""

    def __init__(self, name: str, seconds: float, asked: list[tuple[str, int]]) -> None:
        self.name, self.seconds, self.asked = name, seconds, asked

    def train(self, steps: int) -> list[float]:
        self.asked.append((self.name, steps))
        return [self.seconds] * steps


def test_runners_take_turns_of_as_many_steps_as_time_allows() -> None:
    asked: list[tuple[str, int]] = []
    fast, slow = Runner("fast", 1e-3, asked), Runner("slow", 10e-3, asked)
    actual_turns = measure.take_turns([fast, slow], 1.2)
    assert [sum(map(len, turns)) for turns in actual_turns] == [1200, 120]
    assert asked[:2] == [("fast", measure.WARM_UP), ("slow", measure.WARM_UP)]
    assert asked[2:] == [("fast", 100), ("slow", 10)] * measure.TURNS


def test_a_slow_machine_takes_a_few_steps_all_the_same() -> None:
    asked: list[tuple[str, int]] = []
    (turns,) = measure.take_turns([Runner("slow", 100.0, asked)], 1.0)
    assert [len(turn) for turn in turns] == [1] * measure.LEAST


@pytest.mark.parametrize(
    ("values", "spread"), [([2.0], 0.0), ([1.0] * 9, 0.0), ([1.0, 2.0, 3.0, 4.0, 5.0], 2 / 3)]
)
def test_the_spread_is_that_of_the_quartiles(values: list[float], spread: float) -> None:
    assert measure.spread(values) == pytest.approx(spread)


def test_a_workload_is_measured_by_a_process_of_its_own() -> None:
    measured = measure.measure(["mlp"], [2], 0.01, batch=4)
    (row,) = measured.rows
    assert row.key == ("mlp", 4, 2)
    assert not row.failed
    assert row.flops == 2 * 4 * (2 * 784 * 500 + 3 * 500 * 10)  # no gradient of the pictures
    assert row.count >= measure.LEAST
    for value in (row.step, row.inference, row.peak, row.memory, row.start, row.ratio, row.gflops):
        assert value > 0
    assert row.spread >= 0
    assert measured.machine["kernels"]


def test_answers_of_a_file_are_measured_beside_onnxruntimes(tmp_path: Path) -> None:
    path = tmp_path / "deep.onnx"
    onnx.save(make_model(DEEP), path)
    measured = measure.measure_answers([str(path)], [2], 0.01, batch=3)
    (row,) = measured.rows
    assert row.key == ("deep", 3, 2)
    assert not row.failed
    assert row.flops == 2 * 3 * (6 * 32 + 2 * 32 * 32 + 32 * 3)
    for value in (row.step, row.peak, row.memory, row.start, row.gflops):
        assert value > 0
    assert row.peers["onnxruntime"].ratio > 0
    assert words(str(measured).splitlines()[-2]) == (
        "model batch threads answer ms ± % GFLOP/s % of peak memory MB start s onnxruntime ms ratio"
    )
    measured.write(tmp_path / "a.json")
    assert read(tmp_path / "a.json").what == "answer"
    with pytest.raises(InputError, match="a has times of answers and b of steps"):
        compare(measured, HERE, ["a", "b"])


def test_answers_of_a_model_that_onnxruntime_refuses_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tied.onnx"
    onnx.save(make_model(TIED), path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('built for another CPU')\n")
    (row,) = measure.measure_answers([str(path)], [1], 0.01).rows
    assert row.key == ("tied", 1, 1)  # whose numbers of words are in range
    assert row.step > 0
    assert row.failed.startswith("onnxruntime: the measured process ended")
    assert "built for another CPU" in row.failed
    assert not row.peers


def test_a_row_that_fails_says_why_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(row: BenchmarkRow, *_: object) -> BenchmarkRow:
        if row.threads == 1:
            raise EngineError("out of memory")
        return replace(row, step=1.0, inference=0.5)

    monkeypatch.setattr(measure, "_measure_row", fail)
    measured = measure.measure(["mlp"], [1, 2])
    assert [row.failed for row in measured.rows] == ["out of memory", ""]
    assert str(measured).endswith("mlp, 1 threads: out of memory\n")


def test_more_threads_than_cores_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "count_cores", lambda: 1)
    rows = measure.measure(["mlp"], [1, 3], 0.05).rows
    assert not any(row.failed for row in rows)
    assert [math.isfinite(row.step) for row in rows] == [True, False]
    assert all(row.predicted > 0 for row in rows)
    head, one, three = str(Result({}, rows)).splitlines()[-3:]
    assert head.split()[-2:] == ["predicted", "ms"]
    assert len(one.split()) > len(three.split()) == 4  # workload, batch, threads and prediction


def test_a_process_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"the measured process ended: .*checkpoint"):
        measure.open_child(tmp_path, 1).__enter__()


def test_an_unknown_workload_is_refused() -> None:
    with pytest.raises(InputError, match="no workload 'mobilnet'; nearest: 'mobilenet'"):
        measure.measure(["mobilnet"])


def test_peers_are_asked_what_they_have(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot run it"):
        beside.find_peers([str(tmp_path / "python")])
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho $WHAT\n")
    python.chmod(0o755)
    with pytest.raises(InputError, match=r"has no onnxruntime\.training nor torch"):
        beside.find_peers([str(python)])


def test_a_peer_takes_turns_and_has_a_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "peer.py"
    script.write_text("import sys\nfor line in sys.stdin:\n    print('done', flush=True)\n")
    monkeypatch.setattr(beside, "SCRIPT", script)
    broken = tmp_path / "broken.py"
    broken.write_text("")
    talking = tmp_path / "talking.py"
    talking.write_text("input()\nprint('OSError: no compiler')\n")
    kinds = [("quick", beside.make_opener(sys.executable, "quick"))]
    (row,) = measure.measure(["mlp"], [1], 0.01, 2, kinds).rows
    assert set(row.peers) == {"quick"}
    assert 0 < row.peers["quick"].ratio < 1
    assert row.peers["quick"].start > 0
    monkeypatch.setattr(beside, "SCRIPT", broken)
    (row,) = measure.measure(["mlp"], [1], 0.01, 2, kinds).rows
    assert row.failed == "quick: the process of quick ended before its steps did"
    assert row.step > 0
    assert not row.peers
    monkeypatch.setattr(beside, "SCRIPT", talking)
    (row,) = measure.measure(["mlp"], [1], 0.01, 2, kinds).rows
    assert row.failed.endswith("ended before its steps did: OSError: no compiler")


# --- files, tables, comparisons


def test_a_result_comes_back_from_its_file(tmp_path: Path) -> None:
    rows = (
        ROW,
        replace(ROW, threads=1, peers={"torch": Peer(4e-3, 2.0)}),
        BenchmarkRow("cnn", 8, 1),
    )
    made = Result(HERE.machine, rows)
    made.write(tmp_path / "a.json")
    actual_content = read(tmp_path / "a.json")
    assert actual_content.machine == made.machine
    # As text: a NaN equals no other, and from Python 3.13 on fields are compared one by one.
    assert repr(actual_content.rows[:2]) == repr(rows[:2])
    assert math.isnan(actual_content.rows[2].step)
    assert actual_content.rows[2].key == ("cnn", 8, 1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        ("[]", "expected a file of `edgegrad bench --json`"),
        ('{"kind": "edgegrad bench", "version": 2}', "version 2; this version of edgegrad reads 1"),
        ('{"kind": "edgegrad bench", "version": 1}', "damaged"),
        ('{"kind": "edgegrad bench", "version": 1, "machine": {}, "rows": [3]}', "damaged"),
        ('{"kind": "edgegrad bench", "version": 1, "machine": {}, "rows": [{"workload": "m", '
         '"batch": 1, "threads": 1, "step": "fast"}]}', "'fast' is not a number"),
    ],
)  # fmt: skip
def test_another_file_is_refused(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(FileError, match=r"a\.json") as told:
        read(path)
    assert said in str(told.value)


def words(line: str) -> str:
    """A line with one space between words."""
    return " ".join(line.split())


def test_the_table_has_a_line_for_each_row() -> None:
    rows = (ROW, replace(ROW, threads=1, peers={"torch": Peer(4e-3, 2.0)}))
    lines = str(Result(HERE.machine, rows)).splitlines()
    assert lines[0] == "machine   Raspberry Pi 5"
    assert words(lines[-3]) == (
        "workload batch threads step ms ± % train/infer GFLOP/s % of peak memory MB start s "
        "torch ms ratio"
    )
    assert words(lines[-2]) == "mlp 64 2 2.00 5 2.00 200.0 50 100 0.50"
    assert words(lines[-1]) == "mlp 64 1 2.00 5 2.00 200.0 50 100 0.50 4.00 2.00"


def test_a_comparison_has_ratios_and_what_else_differs() -> None:
    other = replace(ROW, step=1e-3, memory=50_000_000, start=1.0)
    there = Result(
        {"machine": "Raspberry Pi 4", "governor": "ondemand", "load": "3.0", "numba": "1"},
        (other, replace(ROW, workload="cnn")),
    )
    lines = compare(HERE, there, ["a.json", "b.json"]).splitlines()
    assert lines[:2] == ["A: a.json", "B: b.json"]
    assert words(lines[4]) == "mlp 64 2 2.00 5 1.00 5 0.500 0.50 2.00"
    assert "in B alone: cnn b64 2 threads" in lines
    assert [line.split("  ")[0] for line in lines[-2:]] == ["machine", "numba"]
    assert "governor" not in "\n".join(lines)
    same = compare(HERE, HERE, ["a", "a"])
    assert "1.000" in same
    assert "differ" not in same
    assert "no row is in both" in compare(HERE, Result({}, ()), ["a", "b"])


# --- the command


def test_the_command_writes_what_it_compares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "measure", lambda *_, **__: HERE)
    path = str(tmp_path / "a.json")
    assert cli.main(["bench", "mlp", "--threads", "2", "-o", path]) == 0
    assert capsys.readouterr().out == str(HERE)
    assert cli.main(["bench", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(Path(path).read_text("utf-8"))
    assert cli.main(["bench", "--compare", path, path]) == 0
    assert "mlp" in capsys.readouterr().out
    monkeypatch.setattr(
        measure, "measure", lambda *_, **__: Result({}, (replace(ROW, failed="killed"),))
    )
    assert cli.main(["bench"]) == 1
    assert "killed" in capsys.readouterr().out


def test_the_command_lists_the_workloads(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--list"]) == 0
    assert capsys.readouterr().out.split() == list(WORKLOADS)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["mobilnet"], 1, "no workload 'mobilnet'; nearest: 'mobilenet'"),
        (["mobile.onnx", "--inference"], 1, "no workload or file 'mobile.onnx'"),
        (["mlp", "--shape", "x=2,784"], 2, "--shape needs --inference"),
        (["--inference", "--compare", __file__, __file__], 2, "and no other option"),
        (["--threads", "0"], 2, "expected numbers from 1 to"),
        (["--threads", "1-2-3"], 2, "expected numbers from 1 to"),
        (["--threads", "4-2"], 2, "a range begins with its smaller number"),
        (["--threads", "1-1024"], 2, "has at most 1000 numbers"),
        (["--threads", "1-1025"], 2, "expected numbers from 1 to 1024"),
        (["--time", "0"], 2, "0"),
        (["--compare", "a.json"], 2, "--compare"),
        (["--compare", "a.json", "b.json"], 1, "a.json: no such file"),
        (["mlp", "--compare", __file__, __file__], 2, "takes two files, and no other option"),
        (["--compare", __file__, __file__], 1, "not JSON"),
    ],
)
def test_bad_words_are_told(
    words: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *words]) == status
    assert said in capsys.readouterr().err


def test_the_help_imports_nothing_that_measures() -> None:
    code = (
        "import sys; from engine.tools import cli; cli.main(['bench', '--help']);"
        "sys.exit(bool({'numpy', 'engine.tools.benchmark', 'onnx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True)
    assert done.returncode == 0
    assert result.VERSION == 1
