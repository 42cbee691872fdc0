"""Start-up: a whole process, from `python` to the end of its first step and the optimizer's.

`start.answers` goes to the first answer of a session instead, and has a row of onnxruntime's.
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

MODELS = ("mlp", "mobilenet", "minilm")
THREADS, ROUNDS = 2, 7


@dataclass(frozen=True)
class Found:
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
    "cold": Found("native", has_kernels=False),
    "warm": Found("native"),
    "shipped": Found("shipped"),
    "kept": Found("shipped", has_plans=True),
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
    """Yield a row for each thing that a process of a model may find."""
    with written(name) as folder:
        plans = zoo.of_folder(folder, WORKLOADS[name].x[0])
        command = [str(SCRIPTS / "first_step.py"), str(folder)]
        yield from _measure_states(plans, command, folder)
        if switch("BENCH_PEERS"):
            times = time_rounds(lambda: start_torch(name, folder), 5)
            yield "torch", median(times), min(times)


def measure_answers(name: str, _: Namespace) -> Iterator[Cells]:
    """Yield a row for each thing that a process of a model may find, of a single sample."""
    with written(name, 1) as folder:
        script, rest = str(SCRIPTS / "first_answer.py"), [str(folder), str(THREADS)]
        yield from _measure_states(plan_answer(folder), [script, "edgegrad", *rest], folder)
        theirs = [sys.executable, script, "onnxruntime", *rest]
        times = time_rounds(lambda: subprocess.run(theirs, check=True), ROUNDS)
        yield "onnxruntime", median(times), min(times)


def _measure_states(plans: Iterable[Plan], command: Sequence[str], folder: Path) -> Iterator[Cells]:
    """Yield a row for each of `ROWS`, of a program whose kernels are those of plans."""
    with tempfile.TemporaryDirectory() as place:
        made, cache = Path(place, "wheel"), Path(place, "cache")
        made.mkdir()
        site = make_site(plans, made)
        for title, state in ROWS.items():
            times = []
            for _turn in range(1 if title == "cold" else ROUNDS + 1):
                state.prepare(cache)
                run = partial(start, command, site, folder, state.kernels, cache)
                times.append(time_call(run))
            times = times[1:] or times
            yield title, median(times), min(times)


BENCHES = (
    Bench(
        "start",
        "whole processes, from `python` to the end of a first step",
        {name: name for name in MODELS},
        ("finds", "s:.2f", "least s:.2f"),
        measure,
    ),
    Bench(
        "start.answers",
        "whole processes, from `python` to a first answer, beside onnxruntime's",
        {name: name for name in MODELS},
        ("finds", "s:.3f", "least s:.3f"),
        measure_answers,
    ),
)
