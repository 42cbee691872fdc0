"""The workloads of the benchmarks and their twins in PyTorch are one model: bench/same.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.processes import peer
from bench.same import compare
from engine.tools.benchmark.workloads import WORKLOADS

QUICK = {"mlp", "cnn", "mobilenet_v3", "mobilenet_v3_head", "transformer", "gpt2", "lstm"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.whole) for name in WORKLOADS],
)
def test_a_twin_does_the_same(name: str) -> None:
    *_, difference = compare(WORKLOADS[name], sys.executable)
    assert not difference


def test_a_twin_takes_steps_beside_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As benches start it: by another Python, which finds the twins from where its program lies."""
    monkeypatch.setenv("EDGEGRAD_BENCH_PEERS", sys.executable)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    folder = WORKLOADS["mlp"].write(tmp_path, 2)
    with peer("peer", "torch", "mlp", folder, 1) as twin:
        twin.run(2)
