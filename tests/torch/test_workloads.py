"""The workloads of the benchmarks and their twins in PyTorch are one model: bench/same.py."""

from __future__ import annotations

import sys

import pytest

from bench.same import compare
from engine.tools.workloads import WORKLOADS

QUICK = {"mlp", "cnn", "mobilenet_v3", "mobilenet_v3_head", "transformer", "gpt2", "lstm"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.whole) for name in WORKLOADS],
)
def test_a_twin_does_the_same(name: str) -> None:
    *_, difference = compare(WORKLOADS[name], sys.executable)
    assert not difference
