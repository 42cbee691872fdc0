"""Accuracy of float models, quantised after training, and trained with roundings (QAT).

Each seed trains a float model, and then goes on in floats, or with roundings, for the same epochs
at the same rate, which falls to 0, so that no gain is one of longer training.  The model that went
on in floats is then quantised without training.  Accuracies are of samples that were held out;
`off` is the mean over seeds less the mean of floats, in percent points.  onnxruntime runs every
model, too: `unlike` is the number of samples of all seeds to which it gives another class.

The sides named `norms` normalise with the statistics of the batch (`Qat(norms="trained")`); the
others have folded normalisations.  `learned`: scales are trained.

`--per-tensor` gives all weights of a layer one scale, which loses more.

`accuracy.resident` moves a float model to mirrored data by SGD at one rate: all layers in floats;
or, after quantisation, the last layer in floats, or the last layers (--last) or all as integers in
place, with weights of 8 or 4 bits.  `before` is the accuracy without it; `residuals`: weights keep
what rounding to 4 bits leaves (graphs/offline/residuals.py).

`accuracy.torchao` trains the same float model with roundings here and by torchao, which a Python of
EDGEGRAD_BENCH_PEERS has.  torchao rounds linear layers alone, and has no moving ranges: activations
have a range for each position.  It is measured as it trains, with
roundings in floats; ours is the exported file.  Steps are timed in turns.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.lessons import Lesson, load_digits, make_sounds, split
from bench.measuring import compare_medians, run_for_output
from bench.processes import SCRIPTS, find_peer_python, time_workers
from bench.rows import Bench, Cells, Option
from engine.artifacts import SGD, AdamW, SparseUpdate
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.offline.parameters import list_parameters
from engine.models.catalog import find_architecture
from engine.quantization import Qat, Quantization, quantize
from engine.trainer.trainer import Trainer
from engine.training.inference import Session

Array = np.ndarray[Any, Any]
CALIBRATED = 256  # samples with which ranges are measured
CLASSES = 10
NOISES = 4  # pictures of each digit that is held out, so that chance moves the accuracy less


@dataclass(frozen=True, slots=True)
class Task:
    """Model and the data that it learns.

    epochs, rate: of the training in floats from random weights.  aware: both for the training after
        it, whose rate falls to 0.  options: of the architecture.
    """

    architecture: str
    lesson: Callable[[], Lesson]
    epochs: int
    rate: float
    aware: tuple[int, float]
    options: Mapping[str, int] = field(default_factory=dict)
    batch: int = 32


def make_noisy_pictures() -> Lesson:
    """Return digits with noise: f32[n, 1, 48, 48]."""
    images, labels = load_digits()
    clean = split(np.kron(images, np.ones((6, 6), np.float32))[:, None], labels, 360)
    rng = np.random.default_rng(3)

    def change(x: Array) -> Array:
        return np.asarray(x + rng.standard_normal(x.shape, np.float32))

    held_x, held_y = (np.repeat(each, NOISES, 0) for each in (clean.held_x, clean.held_y))
    return Lesson(change(clean.x), clean.y, change(held_x), held_y)


def make_noisy_sounds() -> Lesson:
    """Return spectrograms of ten spoken words with noise: f32[n, 1, 32, 50]."""
    lesson = make_sounds(2300, 1000)
    rng = np.random.default_rng(2)

    def change(x: Array) -> Array:
        small = x[:, ::2, ::2].transpose(0, 2, 1)[:, None]
        noise = rng.standard_normal(small.shape) * 1.5 * lesson.x.std()
        return np.ascontiguousarray(small + noise, np.float32)

    return Lesson(change(lesson.x), lesson.y, change(lesson.held_x), lesson.held_y)


def make_sequences() -> Lesson:
    """Return digits as sequences of 64 shades of grey: i64[n, 64]."""
    images, labels = load_digits()
    return split((images * 16).reshape(-1, 64).astype(np.int64), labels, 360)


TASKS = {
    "mobilenet": Task("mobilenet_v2", make_noisy_pictures, 20, 2e-3, (5, 3e-4)),
    "keywords": Task("ds_cnn", make_noisy_sounds, 15, 2e-3, (5, 3e-4)),
    "transformer": Task(
        "text_transformer", make_sequences, 40, 1e-3, (10, 3e-4),
        {"words": 17, "width": 64, "layers": 2},
    ),
}  # fmt: skip
LEARNED: dict[str, Any] = {"ranges": "learned", "weight_ranges": "learned"}
SIDES: dict[str, dict[str, Any]] = {
    "QAT 8": {},
    "QAT 8, norms": {"norms": "trained"},
    "QAT 4": {"weight_bits": 4},
    "QAT 4, norms": {"weight_bits": 4, "norms": "trained"},
    "QAT 4, learned": {"weight_bits": 4, **LEARNED},
}


def build(task: Task, lesson: Lesson, seed: int) -> Graph:
    """Return the model of a task with the weights of a seed."""
    architecture = find_architecture(task.architecture)
    given: dict[str, Any] = dict(task.options)
    return architecture.build(lesson.x.shape[1:], CLASSES, seed=seed, **given)


def measure_accuracy(path: Path, lesson: Lesson) -> tuple[float, int]:
    """Return the percentage of samples that a file gives their class, and the number of those to
    which onnxruntime gives another one.
    """
    import onnxruntime

    session = Session(path, threads=1)
    peer = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (name,) = (each.name for each in session.get_inputs())
    mine, its = (each.run(None, {name: lesson.held_x})[0].argmax(1) for each in (session, peer))
    return 100 * float(np.mean(mine == lesson.held_y[:, 0])), int(np.sum(mine != its))


def train(
    model: Path, task: Task, lesson: Lesson, out: Path, seed: int, aware: Qat | None, options: Any
) -> None:
    """Go on training a model, with roundings if they are given, and export it."""
    epochs, rate = task.aware
    x, y = lesson.x, lesson.y[:, 0]
    given: dict[str, Any] = {} if aware is None else {"qat": aware, "data": x[:CALIBRATED]}
    trainer = Trainer.from_onnx(
        model, "cross_entropy", AdamW(lr=rate), threads=options.threads, seed=seed, **given
    )
    epochs = options.epochs or epochs
    trainer.fit((x, y), epochs=epochs, batch_size=task.batch, schedule="cosine", progress=False)
    trainer.export(out)


def train_floats(task: Task, lesson: Lesson, out: Path, seed: int, options: Namespace) -> None:
    """Train a new model of floats, and write it."""
    trainer = Trainer.from_onnx(
        onnx_io.to_bytes(build(task, lesson, seed)), "cross_entropy", AdamW(lr=task.rate),
        threads=options.threads, seed=seed,
    )  # fmt: skip
    epochs = options.epochs or task.epochs
    trainer.fit((lesson.x, lesson.y[:, 0]), epochs=epochs, batch_size=task.batch, progress=False)
    trainer.export(out)


def make_models(
    task: Task, lesson: Lesson, folder: Path, seed: int, options: Namespace
) -> Iterator[tuple[str, Path]]:
    """Yield each side's model of a seed."""
    begun, floats, out = (folder / f"{name}.onnx" for name in ("begun", "floats", "integers"))
    train_floats(task, lesson, begun, seed, options)
    train(begun, task, lesson, floats, seed, None, options)
    yield "float", floats
    for bits in (8, 4):
        given: dict[str, Any] = {"weight_bits": bits, "per_channel": not options.per_tensor}
        chosen = Quantization(threads=options.threads, **given)
        quantize(floats, lesson.x[:CALIBRATED], chosen).save(out)
        yield f"post-training {bits}", out
    for side, given in SIDES.items():
        aware = Qat(threads=options.threads, per_channel=not options.per_tensor, **given)
        train(begun, task, lesson, out, seed, aware, options)
        yield side, out


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each side of a task."""
    task, accuracies, unlike = TASKS[name], dict[str, list[float]](), dict[str, int]()
    lesson = task.lesson()
    with tempfile.TemporaryDirectory() as made:
        for seed in range(options.seeds):
            for side, path in make_models(task, lesson, Path(made), seed, options):
                accuracy, others = measure_accuracy(path, lesson)
                accuracies.setdefault(side, []).append(accuracy)
                unlike[side] = unlike.get(side, 0) + others
    floats = float(np.mean(accuracies["float"]))
    for side, each in accuracies.items():
        mean = float(np.mean(each))
        off = None if side == "float" else mean - floats
        yield side, " ".join(f"{one:.1f}" for one in each), mean, off, unlike[side]


def mirror(lesson: Lesson) -> Lesson:
    """Return a lesson whose samples run backwards."""
    x, held = (np.ascontiguousarray(each[..., ::-1]) for each in (lesson.x, lesson.held_x))
    return Lesson(x, lesson.y, held, lesson.held_y)


def move_model(
    task: Task, lesson: Lesson, folder: Path, seed: int, options: Namespace
) -> Iterator[tuple[str, Path]]:
    """Yield the model of a seed before and after each way of training it on a mirrored lesson."""
    begun, out = (folder / f"{name}.onnx" for name in ("begun", "moved"))
    train_floats(task, lesson, begun, seed, options)
    sides: dict[str, tuple[Path, dict[str, Any]]] = {"float32, all": (begun, {})}
    kinds = {"int8": Quantization(threads=options.threads)}
    kinds["int4"] = replace(kinds["int8"], weight_bits=4)
    for kind, how in kinds.items():
        integers = folder / f"{kind}.onnx"
        quantize(begun, lesson.x[:CALIBRATED], how).save(integers)
        yield f"{kind}, before", integers
        sparse = SparseUpdate(last=options.last, integers=True)
        sides |= {
            f"{kind}, frozen but the head": (integers, {"train": "head"}),
            f"{kind}, sparse in place": (integers, {"update": sparse}),
            f"{kind}, all in place": (
                integers,
                {"update": SparseUpdate(layers=["*"], integers=True)},
            ),
        }
        if how.weight_bits == 4:
            kept = SparseUpdate(layers=["*"], integers=True, residuals=True)
            sides[f"{kind}, all in place, residuals"] = (integers, {"update": kept})
    moved = mirror(lesson)
    x, y = moved.x[: options.samples], moved.y[: options.samples, 0]
    for side, (model, given) in sides.items():
        trainer = Trainer.from_onnx(
            model,
            "cross_entropy",
            SGD(lr=options.rate),
            threads=options.threads,
            seed=seed,
            **given,
        )
        trainer.fit(
            (x, y), epochs=options.epochs or options.moving, batch_size=task.batch,
            schedule="cosine", progress=False,
        )  # fmt: skip
        trainer.export(out)
        yield side, out


def measure_moves(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each way of moving the model of a task."""
    task, accuracies, unlike = TASKS[name], dict[str, list[float]](), dict[str, int]()
    lesson = task.lesson()
    moved = mirror(lesson)
    with tempfile.TemporaryDirectory() as made:
        for seed in range(options.seeds):
            for side, path in move_model(task, lesson, Path(made), seed, options):
                accuracy, others = measure_accuracy(path, moved)
                accuracies.setdefault(side, []).append(accuracy)
                unlike[side] = unlike.get(side, 0) + others
    for side, each in accuracies.items():
        mean = float(np.mean(each))
        yield side, " ".join(f"{one:.1f}" for one in each), mean, unlike[side]


def write_peer_files(task: Task, lesson: Lesson, begun: Path, folder: Path, seed: int) -> None:
    """Write what `scripts/aware.py` reads."""
    lesson.save(folder / "lesson.npz")
    np.savez(folder / "batch.npz", x=lesson.x[: task.batch], y=lesson.y[: task.batch, 0])
    graph, values = build(task, lesson, seed), onnx_io.load(begun).initializers
    trained = set(list_parameters(graph))
    # In the order in which the model uses them.
    names = dict.fromkeys(n for node in graph.nodes for n in node.inputs if n in trained)
    weights: dict[str, Any] = {name: values[name] for name in names}
    np.savez(folder / "weights.npz", **weights)
    sizes = {**task.options, "positions": lesson.x.shape[1]}
    (folder / "sizes.json").write_text(json.dumps(sizes))


def write_steps(begun: Path, lesson: Lesson, folder: Path, aware: Qat | None) -> None:
    """Write artifacts whose steps `scripts/steps.py` takes."""
    given: dict[str, Any] = {"qat": aware, "data": lesson.x[:CALIBRATED]} if aware else {}
    Trainer.from_onnx(begun, "cross_entropy", AdamW(lr=3e-4), folder=folder, **given)


def measure_torchao(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for floats and for each number of bits."""
    task, python = TASKS[name], find_peer_python()
    lesson, (epochs, rate) = task.lesson(), task.aware
    epochs = options.epochs or epochs
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        begun = [folder / f"begun-{seed}.onnx" for seed in range(options.seeds)]
        for seed, path in enumerate(begun):
            train_floats(task, lesson, path, seed, options)
        for bits in (0, 8, 4):
            given: dict[str, Any] = {"weight_bits": bits}
            aware = Qat(threads=options.threads, **given) if bits else None
            peer = [python, SCRIPTS / "aware.py", folder, bits, options.threads]
            mine, its = list[float](), list[float]()
            for seed, path in enumerate(begun):
                write_peer_files(task, lesson, path, folder, seed)
                train(path, task, lesson, folder / "aware.onnx", seed, aware, options)
                mine.append(measure_accuracy(folder / "aware.onnx", lesson)[0])
                its.append(json.loads(run_for_output([*peer, epochs, rate, seed]))[1])
            artifacts = folder / f"steps-{bits}"
            write_steps(begun[0], lesson, artifacts, aware)
            shutil.copy(folder / "batch.npz", artifacts)
            steps = [sys.executable, SCRIPTS / "steps.py", artifacts, options.threads]
            times = time_workers({"mine": steps, "torchao": peer}, options.turns)
            took = [1e3 * median(each) for each in times.values()]
            ratio = compare_medians(times["torchao"], times["mine"])
            yield bits or "float", np.mean(mine), np.mean(its), *took, ratio


SEEDS = Option("seeds", 3, "seeds of weights and of the order of batches")
ONE_THREAD = Option("threads", 1, "threads of a training run")
EPOCHS = Option("epochs", 0, "epochs of each training run; 0: the task decides")
BENCHES = (
    Bench(
        "accuracy",
        "accuracy of float models, quantised after training, and trained with roundings",
        {name: name for name in TASKS},
        ("side", "accuracy of each seed %", "mean:.2f", "off:+.2f", "unlike"),
        measure,
        options=(
            SEEDS,
            ONE_THREAD,
            Option("per-tensor", False, "give all weights of a layer one scale"),
            EPOCHS,
        ),
        small="keywords --seeds 1 --epochs 1",
    ),
    Bench(
        "accuracy.resident",
        "accuracy of models moved to other data: in floats, frozen integers, integers in place",
        {name: name for name in TASKS},
        ("trained", "accuracy of each seed %", "mean:.2f", "unlike"),
        measure_moves,
        options=(
            replace(SEEDS, default=2),
            ONE_THREAD,
            Option("rate", 0.02, "learning rate of SGD, which falls to 0"),
            Option("moving", 10, "epochs on the other data"),
            Option("samples", 1024, "of the other data"),
            Option("last", 4, "layers of a sparse update"),
            EPOCHS,
        ),
        small="keywords --seeds 1 --epochs 1",
    ),
    Bench(
        "accuracy.torchao",
        "accuracy and time of a step of training with roundings, beside torchao",
        {"transformer": "transformer"},
        (
            "bits",
            "edgegrad %:.2f",
            "torchao %:.2f",
            "edgegrad ms:.2f",
            "torchao ms:.2f",
            "torchao / edgegrad:.2f",
        ),
        measure_torchao,
        options=(
            SEEDS,
            ONE_THREAD,
            EPOCHS,
            Option("turns", 9, "turns of the steps of each"),
        ),
        small="transformer --seeds 1 --epochs 1 --turns 1",
    ),
)
