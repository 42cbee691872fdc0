"""Order and placement of real models: near what no other could beat (`python -m bench arenas`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.arenas import KINDS, Row, make_plan_row
from engine.graphs.planner import split
from engine.tools.benchmark.workloads import WORKLOADS
from tests.support.places import GOLDENS

CASES = sorted(path.parent.name for path in GOLDENS.glob("*/training_model.onnx"))


def check(row: Row) -> None:
    """Check that a row is as it must be, and that the placement is near the best."""
    assert 0 < row.least <= row.ordered <= row.graph
    assert 1 <= row.over <= 1.01


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_arenas_of_goldens(case: str, kind: str) -> None:
    for threads in (1, 2):
        check(make_plan_row(GOLDENS / case, kind, threads, 8))


@pytest.mark.parametrize("name", ["cnn", "mobilenet_v3", "transformer", "lstm"])
def test_arenas_of_workloads(name: str, tmp_path: Path) -> None:
    """A small batch of one model of each family; no order is better by more than 7 %."""
    workload = WORKLOADS[name]
    workload.write(tmp_path, 2)
    for threads in (1, 2):
        row = make_plan_row(tmp_path, "joined", threads, [a.shape for a in workload.batch(2)])
        check(row)
        assert row.ordered <= 1.07 * row.least


def test_groups_are_split_where_they_make_the_peak_higher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All values of a group live together: an expansion did beside what its group began with."""
    workload = WORKLOADS["mobilenet_v3"]
    workload.write(tmp_path, 2)
    shapes = [array.shape for array in workload.batch(2)]
    made = make_plan_row(tmp_path, "eval", 2, shapes)
    assert made.groups <= 1.02 * made.ordered
    monkeypatch.setattr(split, "SPLITS", 0)
    assert make_plan_row(tmp_path, "eval", 2, shapes).groups > 1.05 * made.ordered
