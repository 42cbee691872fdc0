"""Trainings in 16 bits beside float32 and PyTorch, from the same weights on the same data.

Every side trains each seed's weights on each seed's order of the batches, by AdamW.  A seed flips
signs of a workload's weights, which gives other weights of the same distribution.  A row has the
mean loss of the last `TAIL` steps and the accuracy on samples that were held out, for each seed;
`off` is the largest distance, over the seeds, of the loss from float32's, by the distance that
float32's seeds have from one another: below 1 a precision changes less than a seed does.  With
EDGEGRAD_BENCH_PEERS PyTorch trains the first seed in float32 and under autocast.  `--plot` draws
the losses of the first seed.  With `--keep` a command that was ended goes on where it was.

MobileNetV2 and ViT-Tiny train on pictures of 96x96, not 224x224, with 32 samples a batch: so 300
steps see a sample six times instead of twice, and learn.  Their rates rise over the first 30 steps
and fall to 0 by the last one, so that the last batches decide less about the end of a training run.
`TASKS` says so once for every precision and for PyTorch.
"""

from __future__ import annotations

import json
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.lessons import (
    SIDE,
    Lesson,
    draw_batches,
    make_digits,
    make_pictures,
    make_sounds,
    make_text,
    take_batch,
)
from bench.measuring import ROOT, run_for_output
from bench.rows import Bench, Cells, Option
from bench.same import list_torch_weights
from engine import artifacts
from engine.api import CheckpointState, Module, Optimizer
from engine.base.plan_options import PRECISIONS, Precision
from engine.drawing.charts import Line, draw_lines
from engine.drawing.plot import Plot
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.offline.parameters import list_parameters
from engine.models.pre_norm import PATCH
from engine.system.config import switch
from engine.tools.benchmark.workload import Workload
from engine.tools.benchmark.workloads import WORKLOADS

TAIL = 20  # steps at the end whose mean loss counts
SMOOTH = 10  # steps whose mean is a point of the picture
TWINS = ("torch", "torch-bf16")
Run = tuple[list[float], float]  # the losses of the steps, and the accuracy


@dataclass(frozen=True, slots=True)
class Task:
    """Workload and what it learns from.

    make_lesson: makes the samples.
    rate: of learning.  warmup: steps in which it rises to that, to fall to 0 evenly by the last
        step; 0: it stays.
    twin: sizes of the workload's twin, where these are not the usual ones.
    """

    work: Workload
    make_lesson: Callable[[], Lesson]
    rate: float = 5e-4
    warmup: int = 0
    twin: Mapping[str, int] = field(default_factory=dict)

    def list_rates(self, steps: int) -> list[float]:
        """Return the learning rate of every step."""
        if not self.warmup:
            return [self.rate] * steps
        fall = max(steps + 1 - self.warmup, 1)
        return [
            self.rate * min(k / self.warmup, (steps + 1 - k) / fall) for k in range(1, steps + 1)
        ]


def resize(name: str, size: int) -> Workload:
    """Return a workload of pictures with batches of the pictures that it learns from."""
    work, sample = WORKLOADS[name], (3, SIDE, SIDE)
    build: Callable[..., Graph] = work.build  # of pictures, which takes the shape of a sample
    return replace(work, x=(size, *sample), build=partial(build, sample))


TASKS = {
    "cnn": Task(WORKLOADS["cnn"], make_digits),
    "mobilenet": Task(resize("mobilenet", 32), make_pictures, 1e-3, 30),
    "gpt2": Task(WORKLOADS["gpt2"], make_text),
    "lstm": Task(WORKLOADS["lstm"], make_sounds),
    "vit": Task(resize("vit", 32), make_pictures, 5e-4, 30, {"patches": (SIDE // PATCH) ** 2}),
}


def draw_weights(work: Workload, seed: int) -> Graph:
    """Return the graph of a workload with the weights of a seed."""
    graph = work.build()
    rng = np.random.default_rng(seed)
    for name in list_parameters(graph):
        value = graph.initializers[name]
        if value.ndim > 1:
            signs = rng.choice(np.array([-1, 1], np.float32), value.shape)
            graph.initializers[name] = (value * signs).astype(value.dtype)
    return graph


def write_artifacts(graph: Graph, folder: Path) -> None:
    """Write the artifacts of a forward graph, whose scores are an output after the loss."""
    onnx_io.save(graph, folder / "forward.onnx")
    artifacts.generate_artifacts(
        str(folder / "forward.onnx"),
        requires_grad=list_parameters(graph),
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        additional_output_names=graph.outputs,
        artifact_directory=folder,
    )


def train(
    folder: Path, task: Task, lesson: Lesson, options: Namespace, seed: int, side: Precision
) -> Run:
    """Train artifacts in a precision, and ask the samples that were held out."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    models = folder / "training_model.onnx", state, folder / "eval_model.onnx"
    module = Module(*models, threads=options.threads, precision=side)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    losses, size = [], task.work.x[0]
    batches = draw_batches(len(lesson.x), size, seed)
    for rate, chosen in zip(task.list_rates(options.steps), batches, strict=False):
        optimizer.set_learning_rate(rate)
        loss, _ = module(*take_batch(lesson.x, lesson.y, chosen))
        optimizer.step()
        module.lazy_reset_grad()
        losses.append(float(np.reshape(loss, ())))
    module.eval()
    hits = []
    for start in range(0, len(lesson.held_x) - size + 1, size):
        chosen = np.arange(start, start + size)
        x, y = take_batch(lesson.held_x, lesson.held_y, chosen)
        _, scores = module(x, y)
        hits.append(np.mean(scores.reshape(len(y), -1).argmax(1) == y))
    return losses, float(np.mean(hits))


def train_twin(
    python: str, folder: Path, task: Task, lesson: Lesson, options: Namespace, side: str
) -> Run:
    """Train the twin of a workload by PyTorch, from the weights of the first seed."""
    weights: dict[str, Any] = dict(list_torch_weights(draw_weights(task.work, 0)))
    np.savez(folder / "weights.npz", **weights)
    lesson.save(folder / "lesson.npz")
    arguments = {
        "workload": task.work.name, "sizes": task.twin, "size": task.work.x[0],
        "rates": task.list_rates(options.steps), "threads": options.threads,
    }  # fmt: skip
    (folder / "twin.json").write_text(json.dumps(arguments), "utf-8")
    answer = json.loads(run_for_output([python, "-m", "bench.twins.curves", folder, side], ROOT))
    return answer["losses"], answer["accuracy"]


def draw(runs: dict[str, list[Run]], title: str, path: str) -> None:
    """Draw the losses of the first seed of every side."""
    lines = []
    for colour, (side, each) in enumerate(runs.items()):
        losses = np.asarray(each[0][0])
        count = len(losses) // SMOOTH
        means = losses[: count * SMOOTH].reshape(count, SMOOTH).mean(1)
        steps = SMOOTH * (1 + np.arange(count))
        lines.append(Line(side, steps.tolist(), means.tolist(), colour))
    chart = draw_lines(title, "step", lines)
    assert chart is not None
    Plot([chart], 1).save(path)


def compute_tail(run: Run) -> float:
    """Return the mean loss of the last steps."""
    return float(np.mean(run[0][-TAIL:]))


def compute_distance(runs: Sequence[Run], others: Sequence[Run]) -> float:
    """Return the largest distance of a seed's final loss from the other side's, by the range of
    the other side's.
    """
    tails, wanted = [compute_tail(r) for r in runs], [compute_tail(r) for r in others]
    off = max(abs(a - b) for a, b in zip(tails, wanted, strict=False))
    return off / spread if (spread := max(wanted) - min(wanted)) else float("nan")


def keep(make: Callable[[], Run], place: Path | None) -> Run:
    """Return a run from its file, which is written if it is missing; None: from no file."""
    if place is not None and place.exists():
        losses, accuracy = json.loads(place.read_text("utf-8"))
        return losses, accuracy
    run = make()
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(run), "utf-8")
    return run


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each side of a subject."""
    task, runs = TASKS[name], dict[str, list[Run]]()
    lesson = task.make_lesson()

    def place(side: str, seed: int) -> Path | None:
        kept = options.keep and Path(options.keep)
        return kept / f"{name}-{side}-{seed}-of-{options.steps}-steps.json" if kept else None

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for seed in range(options.seeds):
            write_artifacts(draw_weights(task.work, seed), folder)
            for side in PRECISIONS:
                make = partial(train, folder, task, lesson, options, seed, side)
                runs.setdefault(side, []).append(keep(make, place(side, seed)))
        if python := switch("BENCH_PEERS"):
            for twin in TWINS:
                make = partial(train_twin, python, folder, task, lesson, options, twin)
                runs[twin] = [keep(make, place(twin, 0))]
    for trained, each in runs.items():
        losses = " ".join(f"{compute_tail(run):.4f}" for run in each)
        accuracies = " ".join(f"{100 * run[1]:.1f}" for run in each)
        is_known = trained != "f32" and options.seeds > 1
        off = compute_distance(each, runs["f32"]) if is_known else None
        yield trained, losses, accuracies, off
    if options.plot:
        draw(runs, f"{name}, mean loss of {SMOOTH} steps", options.plot)


BENCHES = (
    Bench(
        "curves",
        "trainings in 16 bits beside float32 and PyTorch, on data that can be learnt",
        {name: name for name in TASKS},
        ("side", "loss of each seed", "accuracy %", "off:.2f"),
        measure,
        options=(
            Option("steps", 300, "steps of a training run"),
            Option("seeds", 3, "seeds of weights and of the order of batches"),
            Option("threads", 1, "threads of a training run"),
            Option("plot", "", "an SVG file for the losses of the last subject"),
            Option("keep", "", "a folder for the losses of runs, which are taken from there"),
        ),
        small="cnn --steps 2 --seeds 1",
    ),
)
