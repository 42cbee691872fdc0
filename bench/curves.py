"""Trainings in 16 bits beside float32 and PyTorch, from the same weights on the same data.

Every side trains each seed's weights on each seed's order of the batches, by AdamW.  A seed flips
signs of a workload's weights, which gives other weights of the same distribution.  A row has the
mean loss of the last `TAIL` steps and the accuracy on samples that were held out, for each seed;
`off` is the largest distance, over the seeds, of the loss from float32's, by the distance that
float32's seeds have from one another: below 1 a precision changes less than a seed does.  With
EDGEGRAD_BENCH_PEERS PyTorch trains the first seed in float32 and under autocast.  `--plot` draws
the losses of the first seed.
"""

from __future__ import annotations

import json
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bench.lessons import LESSONS, Lesson, draw_batches, take_batch
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
from engine.system.config import switch
from engine.tools.benchmark.workload import Workload, list_parameters
from engine.tools.benchmark.workloads import WORKLOADS

TAIL = 20  # steps at the end whose mean loss counts
RATE = 5e-4  # of learning
SMOOTH = 10  # steps whose mean is a point of the picture
Run = tuple[list[float], float]  # the losses of the steps, and the accuracy


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
    folder: Path, work: Workload, lesson: Lesson, options: Namespace, seed: int, side: Precision
) -> Run:
    """Train artifacts in a precision, and ask the samples that were held out."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    models = folder / "training_model.onnx", state, folder / "eval_model.onnx"
    module = Module(*models, threads=options.threads, precision=side)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(RATE)
    losses, size = [], work.x[0]
    for chosen in islice(draw_batches(len(lesson.x), size, seed), options.steps):
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
    python: str, graph: Graph, work: Workload, folder: Path, options: Namespace, side: str
) -> Run:
    """Train the twin of a workload by PyTorch, from the weights of a graph."""
    weights: dict[str, Any] = dict(list_torch_weights(graph))
    np.savez(folder / "weights.npz", **weights)
    words = (work.name, folder, options.steps, work.x[0], RATE, options.threads, side)
    answer = json.loads(run_for_output([python, "-m", "bench.twins.curves", *words], ROOT))
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


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each side of a subject."""
    work, lesson = WORKLOADS[name], LESSONS[name]()
    runs: dict[str, list[Run]] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        lesson.save(folder / "lesson.npz")
        for seed in range(options.seeds):
            graph = draw_weights(work, seed)
            write_artifacts(graph, folder)
            for side in PRECISIONS:
                run = train(folder, work, lesson, options, seed, side)
                runs.setdefault(side, []).append(run)
        if python := switch("BENCH_PEERS"):
            graph = draw_weights(work, 0)
            for twin in ("torch", "torch-bf16"):
                runs[twin] = [train_twin(python, graph, work, folder, options, twin)]
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
        {name: name for name in LESSONS},
        ("side", "loss of each seed", "accuracy %", "off:.2f"),
        measure,
        options=(
            Option("steps", 300, "steps of a training"),
            Option("seeds", 3, "seeds of weights and of the order of batches"),
            Option("threads", 1, "threads of a training"),
            Option("plot", "", "an SVG file for the losses of the last subject"),
        ),
        small="cnn --steps 2 --seeds 1",
    ),
)
