"""Start-up: a whole process, from `python` to the end of its first step and the optimizer's.

A row is a model and what the process finds:

    cold     nothing: plans are made, and every kernel is compiled for this CPU
    warm     kernels that an earlier process has compiled; plans are made
    shipped  the kernels of a wheel; plans are made, as on the first run ever
    kept     the kernels of a wheel, and plans that an earlier process has kept
    torch    PyTorch, whose import is part of the time; with EDGEGRAD_BENCH_PEERS

The package is installed from a wheel, bytecode included.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench import installed
from engine.kernels.levels import levels, machine
from engine.runtime.config import switch
from engine.tools.dev import zoo
from engine.tools.workloads import WORKLOADS

HERE = Path(__file__).parent
MODELS = ("mlp", "mobilenet", "minilm")
THREADS = 2


@dataclass(frozen=True)
class Found:
    """What a process finds of earlier ones, and where its kernels are from (EDGEGRAD_KERNELS)."""

    kernels: str
    has_kernels: bool = True
    has_plans: bool = False

    def prepare(self, cache: Path) -> None:
        """Remove from the cache folder what a process shall not find."""
        if not self.has_kernels:
            shutil.rmtree(cache, ignore_errors=True)
        elif not self.has_plans:
            shutil.rmtree(cache / "plans", ignore_errors=True)


ROWS = {
    "cold": Found("native", has_kernels=False),
    "warm": Found("native"),
    "shipped": Found("shipped"),
    "kept": Found("shipped", has_plans=True),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By name of a model, the folder of its artifacts, with a batch."""
    return {name: WORKLOADS[name].write(tmp_path_factory.mktemp(name)) for name in MODELS}


@pytest.fixture(scope="module")
def site(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installed wheel that ships the kernels of the models, for the level of this CPU."""
    plans = (p for n in MODELS for p in zoo.of_folder(folders[n], WORKLOADS[n].x[0]))
    made = tmp_path_factory.mktemp("wheel")
    wheel = installed.make(plans, f"linux-{machine()}", made, levels()[:1])
    return installed.install(wheel, made / "site")


def start(site: Path, folder: Path, kernels: str, cache: Path) -> None:
    """Run a process to the end of its first step."""
    env = {
        **os.environ, "PYTHONPATH": str(site), "EDGEGRAD_CACHE_DIR": str(cache),
        "EDGEGRAD_KERNELS": kernels, "EDGEGRAD_THREADS": str(THREADS),
    }  # fmt: skip
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, str(HERE / "first_step.py"), str(folder)]
    subprocess.run(command, check=True, env=env, cwd=folder)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("model", MODELS)
def bench_start(
    benchmark: Any, model: str, row: str, folders: dict[str, Path], site: Path, tmp_path: Path
) -> None:
    found = ROWS[row]

    def setup() -> None:
        found.prepare(tmp_path)

    rounds, warm_up = (1, 0) if row == "cold" else (7, 1)
    words = (site, folders[model], found.kernels, tmp_path)
    benchmark.pedantic(start, words, setup=setup, rounds=rounds, warmup_rounds=warm_up)


@pytest.mark.parametrize("model", MODELS if switch("BENCH_PEERS") else ())
def bench_start_of_torch(benchmark: Any, model: str, folders: dict[str, Path]) -> None:
    peer = [switch("BENCH_PEERS"), str(HERE / "peer.py"), "torch", model, str(folders[model])]

    def first_step() -> None:
        command = [*peer, str(THREADS)]
        subprocess.run(command, input="1\n", text=True, check=True, stdout=subprocess.DEVNULL)

    benchmark.pedantic(first_step, rounds=5, warmup_rounds=1)
