"""Training steps (forward, backward, AdamW) of whole models, with the peers beside us.

Every round is `STEPS` steps, so that asking a peer's process costs it nothing; divide by `STEPS`.
Rows of other workloads than `USUAL` run only where -k names these, as `-k "resnet18 and 2t"`; ids
with b16 are of batches of 16.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.api import CheckpointState, Module, Optimizer
from engine.runtime.config import switch
from engine.tools.workloads import USUAL, WORKLOADS

STEPS, ROUNDS = 10, 15


@dataclass(frozen=True)
class Row:
    """A workload, its batch size, who runs it and on how many threads."""

    workload: str
    batch: int
    threads: int
    who: str

    def __str__(self) -> str:
        batch = "" if self.batch == WORKLOADS[self.workload].x[0] else f"-b{self.batch}"
        return f"{self.workload}{batch}-{self.threads}t-{self.who}"


def ours(folder: Path, threads: int) -> Callable[[], Any]:
    """`STEPS` training steps of this engine."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, threads=threads)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    with np.load(folder / "batch.npz") as batch:
        x, y = batch["x"], batch["y"]

    def steps() -> None:
        for _ in range(STEPS):
            module(x, y)
            optimizer.step()
            module.lazy_reset_grad()

    return steps


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Row], Path]:
    """What makes the artifacts of a row, once for all rows of its workload and batch size."""

    @cache
    def make(workload: str, batch: int) -> Path:
        return WORKLOADS[workload].write(tmp_path_factory.mktemp(workload), batch)

    return lambda row: make(row.workload, row.batch)


@pytest.fixture
def runner(
    request: pytest.FixtureRequest, folders: Callable[[Row], Path]
) -> Iterator[Callable[[], Any]]:
    row: Row = request.param
    folder = folders(row)
    if row.who == "edgegrad":
        yield ours(folder, row.threads)
        return
    command = [switch("BENCH_PEERS"), str(Path(__file__).parent / "peer.py"), row.who,
               row.workload, str(folder), str(row.threads)]  # fmt: skip
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ask, answers = process.stdin, process.stdout

        def steps() -> None:
            print(STEPS, file=ask, flush=True)
            assert answers.readline() == "done\n"

        yield steps
        ask.close()


_WHO = ("edgegrad", *(("ort", "torch") if switch("BENCH_PEERS") else ()))
_ROWS = [
    pytest.param(
        row := Row(name, batch, threads, who),
        marks=() if name in USUAL else pytest.mark.whole,
        id=str(row),
    )
    for name, work in WORKLOADS.items()
    for batch in (work.x[0], *([16] if name.startswith("resnet") else []))
    for threads in (1, 2)
    for who in _WHO
]


@pytest.mark.parametrize("runner", _ROWS, indirect=True)
def bench_ten_steps(benchmark: Any, runner: Callable[[], Any]) -> None:
    benchmark.pedantic(runner, rounds=ROUNDS, warmup_rounds=2)
