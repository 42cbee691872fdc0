"""Start-up: whole processes, from `python` to the end of a first step, or to a first answer.

A row is a model, and has the median seconds of a process by what it finds:

    empty cache   nothing: plans are made, and every kernel is compiled for this CPU
    kernels kept  kernels that an earlier process has compiled; plans are made
    wheel         the kernels of a wheel; plans are made, as on the first run ever
    plans kept    the kernels of a wheel, and plans that an earlier process has kept

PyTorch, with EDGEGRAD_BENCH_PEERS, and onnxruntime are imported within their times.  The package is
installed from a wheel, bytecode included.  A step includes the optimizer's; answers are of one
sample.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np

from bench import installed
from bench.measuring import time_call, time_rounds
from bench.processes import SCRIPTS
from bench.programs import written
from bench.rows import Bench, Cells
from engine.inference import Session
from engine.kernels.machine.levels import list_levels, name_machine
from engine.plan.plan import Plan
from engine.runtime.program import BoundProgram
from engine.system.config import switch
from engine.tools.benchmark.workloads import WORKLOADS
from engine.tools.dev import zoo

MODELS = ("mlp", "cnn", "mobilenet", "mobilenet_v3", "minilm", "gpt2")
THREADS, TURNS = 2, 7


@dataclass(frozen=True)
class CacheState:
    """State that a process finds, and the source of its kernels (EDGEGRAD_KERNELS)."""

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
    "empty cache": CacheState("native", has_kernels=False),
    "kernels kept": CacheState("native"),
    "wheel": CacheState("shipped"),
    "plans kept": CacheState("shipped", has_plans=True),
}


def make_site(plans: Iterable[Plan], made: Path) -> Path:
    """Install a wheel that ships the kernels of plans, for the level of this CPU."""
    wheel = installed.make(plans, f"linux-{name_machine()}", made, list_levels()[:1])
    return installed.install(wheel, made / "site")


def plan_answer(folder: Path) -> list[Plan]:
    """Return the plans with which a session answers the batch of a folder."""
    made, bind = list[Plan](), BoundProgram.__init__

    def note(program: BoundProgram, plan: Plan, *rest: Any, **words: Any) -> None:
        made.append(plan)
        bind(program, plan, *rest, **words)

    session = Session(folder / "forward.onnx", threads=THREADS)
    with mock.patch.object(BoundProgram, "__init__", note), np.load(folder / "batch.npz") as batch:
        session.run(None, {session.get_inputs()[0].name: batch["x"]})
    return made


def start(command: Sequence[str], site: Path, folder: Path, kernels: str, cache: Path) -> None:
    """Run a program of scripts/ to its end, with an installation."""
    env = {
        **os.environ, "PYTHONPATH": str(site), "EDGEGRAD_CACHE_DIR": str(cache),
        "EDGEGRAD_KERNELS": kernels, "EDGEGRAD_THREADS": str(THREADS),
    }  # fmt: skip
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, *command], check=True, env=env, cwd=folder)


def start_torch(name: str, folder: Path) -> None:
    """Run a process of PyTorch to the end of its first step."""
    command = [switch("BENCH_PEERS"), str(SCRIPTS / "peer.py"), "torch", name, str(folder)]
    command.append(str(THREADS))
    subprocess.run(command, input="1\n", text=True, check=True, stdout=subprocess.DEVNULL)


def measure(name: str, _: Namespace) -> Iterator[Cells]:
    """Yield the row of a model that trains."""
    with written(name) as folder:
        plans = zoo.of_folder(folder, WORKLOADS[name].x[0])
        ours = measure_states(plans, [str(SCRIPTS / "first_step.py"), str(folder)], folder)
        has_peers = bool(switch("BENCH_PEERS"))
        theirs = time_rounds(lambda: start_torch(name, folder), TURNS) if has_peers else None
        yield *ours, theirs and median(theirs)


def measure_answers(name: str, _: Namespace) -> Iterator[Cells]:
    """Yield the row of a model that answers."""
    with written(name, 1) as folder:
        script, rest = str(SCRIPTS / "first_answer.py"), [str(folder), str(THREADS)]
        ours = measure_states(plan_answer(folder), [script, "edgegrad", *rest], folder)
        command = [sys.executable, script, "onnxruntime", *rest]
        yield *ours, median(time_rounds(lambda: subprocess.run(command, check=True), TURNS))


def measure_states(plans: Iterable[Plan], command: Sequence[str], folder: Path) -> list[float]:
    """Return the median seconds for each of `ROWS`, of a program with the kernels of plans."""
    with tempfile.TemporaryDirectory() as place:
        made, cache = Path(place, "wheel"), Path(place, "cache")
        made.mkdir()
        site, out = make_site(plans, made), list[float]()
        for title, state in ROWS.items():
            times = []
            for _turn in range(1 if title == "empty cache" else TURNS + 1):
                state.prepare(cache)
                run = partial(start, command, site, folder, state.kernels, cache)
                times.append(time_call(run))
            out.append(median(times[1:] or times))
    return out


COLUMNS = tuple(f"{title} s:.2f" for title in ROWS)
BENCHES = (
    Bench(
        "start",
        "whole processes, from `python` to the end of a first step",
        {name: name for name in MODELS},
        (*COLUMNS, "PyTorch s:.2f"),
        measure,
    ),
    Bench(
        "start.answers",
        "whole processes, from `python` to a first answer, beside onnxruntime's",
        {name: name for name in MODELS},
        (*COLUMNS, "onnxruntime s:.2f"),
        measure_answers,
    ),
)
