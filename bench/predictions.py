"""Predictions of dry runs for memory and time, next to the training's.

A row is a workload: the most bytes of a process that trains it, predicted and measured, and the
time of a step, predicted and measured; each with the ratio of the two.  The process is a fresh one
that finds kernels and plans in the cache, on 2 threads.  Of `predictions.cold` it finds neither, so
that it plans, and processes of its own compile.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from bench.measuring import MIB, run_for_output
from bench.processes import SCRIPTS
from bench.rows import Bench, Cells
from engine.checking import Check, Subject, check
from engine.kernels.binaries.source import choose_current
from engine.models.mobilenets import build_mobilenet_v3_small
from engine.models.pre_norm import build_gpt2
from engine.runtime.roofline import Roofline
from engine.runtime.roofline import measure as measure_roofline
from engine.tools.benchmark.workload import Workload
from engine.tools.benchmark.workloads import WORKLOADS
from engine.training.state import CheckpointState

THREADS = 2
STEPS = 12

# Of every kind of model a small one, for tests.
SMALL = {
    "mlp": WORKLOADS["mlp"],
    "cnn": replace(WORKLOADS["cnn"], x=(8, 1, 28, 28)),
    "mobilenet_v3": replace(
        WORKLOADS["mobilenet_v3"],
        x=(2, 3, 64, 64),
        build=partial(build_mobilenet_v3_small, (3, 64, 64)),
    ),
    "transformer": replace(WORKLOADS["transformer"], x=(2, 128, 256)),
    "gpt2": replace(
        WORKLOADS["gpt2"], x=(2, 32), build=partial(build_gpt2, 32, 1000, 2, 64), words=1000,
        classes=1000, labels=32,
    ),
    "lstm": replace(WORKLOADS["lstm"], x=(4, 100, 64)),
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """Peak bytes of a process that trained, and the median seconds of its steps."""

    peak: int
    seconds: float


def predict_workload(folder: Path, machine: Roofline | None = None) -> Check:
    """Return the dry run of a workload that was written to a folder.

    machine: as `check` takes it.
    """
    slots = CheckpointState.load_checkpoint(folder / "checkpoint").slots
    train, update, evaluation = (
        folder / f"{name}_model.onnx" for name in ("training", "optimizer", "eval")
    )
    subject = Subject.of(train, update, slots, THREADS, evaluation)
    with np.load(folder / "batch.npz") as batch:
        shapes = {"x": batch["x"].shape, "labels": batch["y"].shape}
    return check(subject, shapes, source=folder.name, machine=machine, variants=False)


def measure_workload(folder: Path, steps: int, kept: Path | None = None) -> Measured:
    """Train a workload that was written to a folder, in a process of its own.

    kept: the cache folder, by default the usual one, which a first process fills.
    """
    words = [sys.executable, SCRIPTS / "peak.py", folder, THREADS]
    env = {} if kept is None else {"EDGEGRAD_CACHE_DIR": str(kept)}
    if kept is None:
        run_for_output([*words, 1])
    return Measured(*json.loads(run_for_output([*words, steps], None, **env))[:2])


@cache
def measure_machine() -> Roofline:
    """Return what this machine can do at most, by the kernels that are used here."""
    return measure_roofline(THREADS, choose_current().resolve)


def measure(work: Workload, _: Namespace) -> Iterator[Cells]:
    """Yield the row of a workload."""
    with tempfile.TemporaryDirectory() as made:
        folder = work.write(Path(made))
        trained = measure_workload(folder, STEPS)
        told = predict_workload(folder, measure_machine()).figures
    assert told is not None
    assert told.process is not None, "this system does not tell the memory of a process"
    pair = 1e3 * told.seconds, 1e3 * trained.seconds
    yield *_compare_memory(told.process, trained), *pair, pair[0] / pair[1]


def measure_cold(work: Workload, _: Namespace) -> Iterator[Cells]:
    """Yield the row of a workload in a process that finds nothing kept."""
    with tempfile.TemporaryDirectory() as made, tempfile.TemporaryDirectory() as empty:
        folder = work.write(Path(made))
        trained = measure_workload(folder, 1, Path(empty))
        told = predict_workload(folder).cold
    assert told is not None, "this system does not tell the memory of a process"
    yield _compare_memory(told, trained)


def _compare_memory(told: int, found: Measured) -> Cells:
    return told / MIB, found.peak / MIB, told / found.peak


MEMORY = ("process MiB, predicted:.0f", "measured:.0f", "ratio:.2f")
BENCHES = (
    Bench(
        "predictions",
        "predictions of dry runs for memory and time, next to the training's",
        WORKLOADS,
        (*MEMORY, "step ms, predicted:.3g", "measured:.3g", "ratio:.2f"),
        measure,
        small="mlp",
    ),
    Bench(
        "predictions.cold",
        "predictions of dry runs for the memory of a first process, next to its memory",
        WORKLOADS,
        MEMORY,
        measure_cold,
    ),
)
