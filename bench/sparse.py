"""Sparse updates: memory and time of a training step that trains a part of a model.

A row is a choice of what is trained: parameters that train, bytes kept for the backward pass,
bytes of the arena and of all regions, the optimizer's states among them, and the predicted time of
forward and backward passes (kernels/analysis/cost.py, the nominal machine).  With --measure, the
median of that many rounds of steps with the optimizer, taken by turns.
"""

from __future__ import annotations

import tempfile
import warnings
from argparse import Namespace
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from bench.measuring import MIB, time_in_turns
from bench.rows import Bench, Cells, Option
from engine import Trainer
from engine.artifacts import AdamW, CrossEntropyLoss, SparseUpdate
from engine.errors import ModelWarning
from engine.graphs.io import onnx_io
from engine.kernels.analysis.cost import predict_steps
from engine.tools.benchmark.workloads import WORKLOADS

THREADS = 2
STEPS = 3  # of a round
# Of each model the names of its last two blocks and head, of six layers a quarter of whose input
# channels is trained, and of the head.
CHOICES: Mapping[str, tuple[list[str], str, list[str]]] = {
    "mobilenet": (
        ["features.1[678].*", "classifier.*"], "features.1[2-7].conv.0.0.weight", ["classifier.*"]
    ),
    "mobilenet_v3": (
        ["features.1[012].*", "classifier.*"],
        "features.[6-9].block.0.0.weight features.1[01].block.0.0.weight",
        ["classifier.3.*"],
    ),
    "minilm": (["l[45].*", "fc.*"], "l[345].up.weight l[345].q.weight", ["fc.*"]),
}  # fmt: skip


def list_updates(name: str) -> dict[str, SparseUpdate | None]:
    """Return the sparse updates of a workload, by the title of the row."""
    blocks, channels, head = CHOICES[name]
    return {
        "full": None,
        "biases": SparseUpdate(biases=True),
        "norms": SparseUpdate(norms=True),
        "last two blocks": SparseUpdate(layers=blocks),
        "1/4 of channels of 6 layers": SparseUpdate(channels=dict.fromkeys(channels.split(), 0.25)),
        "head": SparseUpdate(layers=head),
    }


def make_trainer(name: str, update: SparseUpdate | None, folder: Path) -> Trainer:
    """Return a trainer of a workload with a sparse update."""
    folder.mkdir()
    onnx_io.save(WORKLOADS[name].build(), folder / "forward.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)
        return Trainer.from_onnx(
            str(folder / "forward.onnx"), CrossEntropyLoss(), AdamW(), update=update,
            folder=folder, threads=THREADS,
        )  # fmt: skip


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each choice of a workload."""
    x, labels = WORKLOADS[name].batch(options.batch)
    with tempfile.TemporaryDirectory() as folder:
        made = {
            title: make_trainer(name, update, Path(folder) / str(k))
            for k, (title, update) in enumerate(list_updates(name).items())
        }
        times: dict[str, list[float]] = {}
        if options.measure:
            steps = {title: partial(train, each, x, labels) for title, each in made.items()}
            times = time_in_turns(steps, options.measure)
        for title, each in made.items():
            model, state = each.module.session.training, each.state
            plan = model.make_plan(dict(zip(model.inputs, (x.shape, labels.shape), strict=True)))
            trained = sum(s.size for s in state.slots.values() if s.trainable)
            total = sum(size for _, size in plan.regions) + state.region_bytes("state")
            sizes = (plan.kept_bytes / MIB, plan.compute_region_bytes("work") / MIB, total / MIB)
            told = 1e3 * sum(predict_steps(plan))
            took = 1e3 * median(times[title]) / STEPS if times else None
            yield title, trained, *sizes, told, took


def train(of: Trainer, x: np.ndarray, labels: np.ndarray) -> None:
    """Take the steps of a turn."""
    for _ in range(STEPS):
        of.step(x, labels)


BENCHES = (
    Bench(
        "sparse",
        "what a training step keeps and takes when a part of a model is trained",
        {name: name for name in CHOICES},
        ("trained part", "trained:,", "kept MiB:.1f", "arena MiB:.1f", "all MiB:.1f",
         "predicted ms:.1f", "measured ms:.1f"),
        measure,
        options=(
            Option("batch", 8, "samples of a step"),
            Option("measure", 0, "turns of steps that are measured"),
        ),
    ),
)  # fmt: skip
