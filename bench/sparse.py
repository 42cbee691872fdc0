"""Sparse updates: what a training step keeps and takes when a part of a model is trained.

python -m bench.sparse [WORKLOAD ...] [--batch N] [--measure ROUNDS]

A row is a choice of what is trained: parameters that train, bytes kept for the backward pass,
bytes of the arena and of all regions, the optimizer's states among them, and the predicted time of
forward and backward passes (kernels/cost.py, the nominal machine).  With --measure, the median of
so many rounds of steps with the optimizer, taken by turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

from engine import Trainer
from engine.artifacts import AdamW, CrossEntropyLoss, SparseUpdate
from engine.errors import ModelWarning
from engine.graphs.io import onnx_io
from engine.kernels.cost import step_seconds
from engine.tools.workloads import WORKLOADS

THREADS = 2
STEPS = 3  # of a round
# Of each model the names of its last two blocks and head, of six layers a quarter of whose input
# channels is trained, and of the head.
CHOICES: Mapping[str, tuple[list[str], str, list[str]]] = {
    "mobilenet": (["c4[5-9].*", "c5[01].*", "fc.*"], "c3[369].w c4[258].w", ["fc.*"]),
    "mobilenet_v3": (
        ["c5[5-9].*", "c6[0-9].*", "fc*"], "c27.w c34.w c41.w c48.w c55.w c62.w", ["fc2.*"]
    ),
    "minilm": (["l[45].*", "fc.*"], "l[345].up.w l[345].q.w", ["fc.*"]),
}  # fmt: skip


def updates(name: str) -> dict[str, SparseUpdate | None]:
    """What is trained of a workload, by the title of the row."""
    blocks, channels, head = CHOICES[name]
    return {
        "full": None,
        "biases": SparseUpdate(biases=True),
        "norms": SparseUpdate(norms=True),
        "last two blocks": SparseUpdate(layers=blocks),
        "1/4 of channels of 6 layers": SparseUpdate(channels=dict.fromkeys(channels.split(), 0.25)),
        "head": SparseUpdate(layers=head),
    }


def trainer(name: str, update: SparseUpdate | None, folder: Path) -> Trainer:
    """A trainer of a workload of which a part is trained."""
    folder.mkdir()
    onnx_io.save(WORKLOADS[name].build(), folder / "forward.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)
        return Trainer.from_onnx(
            str(folder / "forward.onnx"), CrossEntropyLoss(), AdamW(), update=update,
            folder=folder, threads=THREADS,
        )  # fmt: skip


def rounds(trainers: Mapping[str, Trainer], name: str, batch: int, count: int) -> dict[str, float]:
    """The median seconds of a step of each trainer, which take turns."""
    x, labels = WORKLOADS[name].batch(batch)
    for each in trainers.values():
        each.step(x, labels)
    times: dict[str, list[float]] = {title: [] for title in trainers}
    for _ in range(count):
        for title, each in trainers.items():
            begin = time.perf_counter()
            for _ in range(STEPS):
                each.step(x, labels)
            times[title].append((time.perf_counter() - begin) / STEPS)
    return {title: statistics.median(found) for title, found in times.items()}


def main() -> None:
    """Print the rows of each workload."""
    parser = argparse.ArgumentParser(prog="python -m bench.sparse")
    parser.add_argument("workload", nargs="*", default=list(CHOICES))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--measure", type=int, default=0, metavar="ROUNDS")
    given = parser.parse_args()
    for name in given.workload:
        with tempfile.TemporaryDirectory() as folder:
            made = {
                title: trainer(name, update, Path(folder) / str(k))
                for k, (title, update) in enumerate(updates(name).items())
            }
            x, labels = WORKLOADS[name].batch(given.batch)
            measured = rounds(made, name, given.batch, given.measure) if given.measure else {}
            print(
                f"{name}, batch {given.batch}\n{'':28s}{'trained':>12s}{'kept MiB':>10s}"
                f"{'arena MiB':>11s}{'all MiB':>9s}{'predicted ms':>14s}{'measured ms':>13s}"
            )
            for title, each in made.items():
                model, state = each.module._train, each.state
                shapes = dict(zip(model.inputs, (x.shape, labels.shape), strict=True))
                plan = model.planned(shapes)
                trained = sum(s.size for s in state.slots.values() if s.trainable)
                total = sum(size for _, size in plan.regions) + state.region_bytes("state")
                found = f"{measured[title] * 1e3:13.1f}" if measured else ""
                print(
                    f"  {title:26s}{trained:12,d}{plan.kept_bytes / 2**20:10.1f}"
                    f"{plan.region_bytes('work') / 2**20:11.1f}{total / 2**20:9.1f}"
                    f"{sum(step_seconds(plan)) * 1e3:14.1f}{found}"
                )


if __name__ == "__main__":
    main()
