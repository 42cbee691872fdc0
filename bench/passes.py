"""Passes over memory: the bytes that the steps of a training plan read and write, without running.

Two plans are compared: one whose steps all run whole, and one with groups that run tile by tile.
Bytes that a step of a group finds in the cache, because an earlier one has touched the same tile,
are not counted; nor is scratch memory, or values that a group makes and consumes.  This models
caches that keep a tile, but not a tensor: for models with small tensors it overestimates.

A row is a layer: all nodes whose names begin alike, which in the models of `tools/workloads` is a
convolution or product with its normalisation and activation, forward and backward.  `passes` are
its bytes, divided by the bytes of the largest tensor that it makes.
"""

from __future__ import annotations

import re
import tempfile
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.measuring import MB
from bench.rows import Bench, Cells
from engine.api import CheckpointState
from engine.kernels.machine.target import detect_host
from engine.plan.plan import Plan, PlanStep
from engine.tools.benchmark.workloads import WORKLOADS
from engine.training.memory import Memory
from engine.training.model import Model

WHOLE = 1 << 60  # bytes of a tile that no tensor has
LEAST = 1 << 20  # bytes of the largest tensor of a layer that is printed


@dataclass(slots=True)
class Traffic:
    """Bytes that are read and written, and the bytes of the largest written tensor."""

    read: int = 0
    written: int = 0
    largest: int = 0

    @property
    def passes(self) -> float:
        """Number of times that as many bytes would move the largest tensor."""
        return (self.read + self.written) / max(self.largest, 1)


def count_traffic(plan: Plan) -> dict[str, Traffic]:
    """Return the memory traffic of each layer of a plan."""
    layers: dict[str, Traffic] = defaultdict(Traffic)
    for steps in _list_units(plan):
        known: set[int] = set()  # what is in the cache
        stored: set[int] = set()
        for step in steps:
            layer = layers[_name_layer(step)]
            for arg in step.args:
                if arg.buffer < 0 or arg.mode == "s" or arg.thread:
                    continue
                nbytes = plan.buffers[arg.buffer].nbytes
                if arg.mode in "ru" and arg.buffer not in known:
                    layer.read += nbytes
                if arg.mode in "wu":
                    layer.written += nbytes * (arg.buffer not in stored)
                    layer.largest = max(layer.largest, nbytes)
                    stored.add(arg.buffer)
                known.add(arg.buffer)
    return dict(layers)


def _list_units(plan: Plan) -> Iterator[Sequence[PlanStep]]:
    """Yield the steps of every group, and every step that is in none."""
    n = 0
    while n < len(plan.steps):
        count = max(plan.steps[n].group, 1)
        yield plan.steps[n : n + count]
        n += count


def _name_layer(step: PlanStep) -> str:
    """Return the prefix of the name of a step's node that the nodes of a layer share."""
    prefix = re.match(r"[A-Za-z]*\d*", step.source)
    return (prefix and prefix[0]) or step.source


def make_plans(name: str, folder: Path, threads: int = 1) -> tuple[Plan, Plan]:
    """Return the training plan of a workload without groups, and with them."""
    workload = WORKLOADS[name]
    workload.write(folder)
    images, labels = workload.batch()
    made = []
    for tile_bytes in (WHOLE, detect_host().tile_bytes):
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        target = replace(detect_host(), tile_bytes=tile_bytes)
        training = folder / "training_model.onnx"
        model = Model(training, state, Memory(), threads, "training model", target)
        inputs = [i for i in model.inputs if i not in state.parameters]
        shapes = dict(zip(inputs, (images.shape, labels.shape), strict=False))
        made.append(model.plan(shapes))
    return made[0], made[1]


def measure(name: str, _: Namespace) -> Iterator[Cells]:
    """Yield a row for each large layer, and one for all."""
    with tempfile.TemporaryDirectory() as folder:
        whole, tiled = map(count_traffic, make_plans(name, Path(folder)))
    for layer, moved in whole.items():
        if moved.largest >= LEAST:
            yield layer, *_make_cells(moved, replace(tiled[layer], largest=moved.largest))
    largest = max(t.largest for t in whole.values())
    yield "all", *_make_cells(_sum(whole, largest), _sum(tiled, largest))


def _sum(layers: dict[str, Traffic], largest: int) -> Traffic:
    """Return the traffic of all layers."""
    return Traffic(
        sum(t.read for t in layers.values()), sum(t.written for t in layers.values()), largest
    )


def _make_cells(whole: Traffic, tiled: Traffic) -> Cells:
    moved = [(t.read + t.written) / MB for t in (whole, tiled)]
    return whole.largest / MB, whole.passes, tiled.passes, *moved


BENCHES = (
    Bench(
        "passes",
        "the bytes that each layer of a plan moves, with and without groups; nothing runs",
        {name: name for name in WORKLOADS},
        ("layer", "largest MB:.1f", "passes:.1f", "tiled passes:.1f", "MB:.0f", "tiled MB:.0f"),
        measure,
        usual=("mobilenet",),
        small="mlp",
    ),
)
