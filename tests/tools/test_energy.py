"""Energy of a step: counters of RAPL, in a folder that the test makes."""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from bench import steps
from engine.tools.benchmark import measure
from engine.tools.benchmark.energy import EnergyCounter, Meter, find_counters
from engine.tools.benchmark.result import BenchmarkRow, Peer, Result, read

PERIOD = 1000


def write_zone(root: Path, name: str, microjoules: int) -> Path:
    zone = root / name
    zone.mkdir(parents=True)
    (zone / "max_energy_range_uj").write_text(f"{PERIOD}\n")
    (zone / "energy_uj").write_text(f"{microjoules}\n")
    return zone / "energy_uj"


def spend(paths: dict[Path, int]) -> None:
    """Let counters of a short period count so many microjoules more."""
    for path, more in paths.items():
        path.write_text(f"{(int(path.read_text()) + more) % PERIOD}\n")


def test_packages_are_counted_and_not_the_zones_inside_them(tmp_path: Path) -> None:
    first = write_zone(tmp_path, "intel-rapl:0", 5)
    second = write_zone(tmp_path, "intel-rapl:1", 7)
    write_zone(tmp_path, "intel-rapl:0:0", 1)
    write_zone(tmp_path, "intel-rapl-mmio:0", 1)
    (tmp_path / "intel-rapl").mkdir()
    assert find_counters(tmp_path) == (EnergyCounter(first, PERIOD), EnergyCounter(second, PERIOD))


def test_a_machine_that_does_not_tell_has_no_counters(tmp_path: Path) -> None:
    assert find_counters(tmp_path / "missing") == ()
    write_zone(tmp_path, "intel-rapl:0", 5)
    (tmp_path / "intel-rapl:1").mkdir()  # one that nobody may read: the sum would lack it
    assert find_counters(tmp_path) == ()


def test_a_meter_counts_the_energy_of_steps_over_the_end_of_a_period(tmp_path: Path) -> None:
    paths = [write_zone(tmp_path, f"intel-rapl:{i}", value) for i, value in enumerate((10, 990))]

    def run(count: int) -> list[float]:
        spend({paths[0]: 40 * count, paths[1]: 60 * count})
        return [0.1] * count

    meter = Meter(run, find_counters(tmp_path))
    assert math.isnan(meter.joules)
    assert meter.train(2) == [0.1, 0.1]
    spend(dict.fromkeys(paths, 100))  # while another takes its turn
    meter.train(3)
    assert meter.joules == pytest.approx(100e-6)


def test_without_counters_a_step_has_no_energy() -> None:
    meter = Meter(lambda count: [0.1] * count, ())
    meter.train(2)
    assert math.isnan(meter.joules)


def test_a_benchmark_has_the_energy_of_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_zone(tmp_path, "intel-rapl:0", 0)
    counters = find_counters(tmp_path)
    monkeypatch.setattr(measure, "find_counters", lambda: counters)
    take_steps = measure.Child.train

    def spend_and_train(child: measure.Child, count: int) -> list[float]:
        spend({path: 2 * count})
        return take_steps(child, count)

    monkeypatch.setattr(measure.Child, "train", spend_and_train)
    (row,) = measure.measure(["mlp"], [1], 0.01, batch=4).rows
    assert row.joules == pytest.approx(2e-6)


ROW = BenchmarkRow("mlp", 64, 2, 2e-3, joules=0.25, peers={"torch": Peer(3e-3, 1.5, 2.0, 0.5)})


def test_tables_have_a_column_of_energy_where_it_is_known(tmp_path: Path) -> None:
    result = Result({}, (ROW,))
    head, line = str(result).strip().splitlines()[-2:]
    assert head.split()[-7:] == ["J", "a", "step", "torch", "ms", "ratio", "J"]
    assert line.split()[-4:] == ["0.2500", "3.00", "1.50", "0.5000"]
    result.write(tmp_path / "result.json")
    assert read(tmp_path / "result.json").rows[0] == replace(ROW)
    unknown = replace(ROW, joules=math.nan, peers={})
    assert "J a step" not in str(Result({}, (unknown,)))


@pytest.mark.parametrize("is_metered", [False, True])
def test_the_bench_of_steps_has_as_many_cells_as_columns(
    is_metered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = (EnergyCounter(Path("energy_uj"), PERIOD),) if is_metered else ()
    monkeypatch.setattr(steps, "find_counters", lambda: counters)
    kinds = ("torch", "ort")
    titles = [title.partition(":")[0] for title in steps.list_titles(Namespace(kinds=kinds))]
    cells = dict(zip(titles, steps.make_cells(ROW, kinds, is_metered), strict=True))
    assert cells["torch ms"] == pytest.approx(3.0)
    assert cells["ort ms"] is None
    energy = {name: cells[name] for name in titles if name.endswith(("J", "J a step"))}
    assert energy == ({"J a step": 0.25, "torch J": 0.5, "ort J": None} if is_metered else {})
