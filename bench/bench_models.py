"""Training steps (forward, backward, AdamW) of whole models, with the peers beside us.

Every round is `STEPS` steps, so that asking a peer's process costs it nothing; divide by `STEPS`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.api import CheckpointState, Module, Optimizer
from engine.runtime.config import switch
from engine.tools.workloads import WORKLOADS
from engine.tools.workloads.workload import Workload

STEPS = 10


def ours(folder: Path, workload: Workload, threads: int) -> Callable[[], Any]:
    """A training step of this engine."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, threads=threads)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    x, y = workload.batch()

    def steps() -> None:
        for _ in range(STEPS):
            module(x, y)
            optimizer.step()
            module.lazy_reset_grad()

    return steps


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: work.write(tmp_path_factory.mktemp(name)) for name, work in WORKLOADS.items()}


@pytest.fixture
def runner(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Iterator[Callable[[], Any]]:
    name, who, threads = request.param
    if who == "edgegrad":
        yield ours(folders[name], WORKLOADS[name], threads)
        return
    command = [switch("BENCH_PEERS"), str(Path(__file__).parent / "peer.py"), who, name,
               str(folders[name]), str(threads)]  # fmt: skip
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
_ROWS = [(n, w, t) for n in WORKLOADS for t in (1, 2) for w in _WHO]


@pytest.mark.parametrize("runner", _ROWS, indirect=True, ids=lambda r: f"{r[0]}-{r[2]}t-{r[1]}")
def bench_ten_steps(benchmark: Any, runner: Callable[[], Any]) -> None:
    benchmark.pedantic(runner, rounds=15, warmup_rounds=3)
