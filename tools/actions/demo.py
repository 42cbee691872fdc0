"""Demo: train a digit classifier from a forward ONNX model, export it, check the export.

Data are the 1,797 handwritten 8x8 digits of scikit-learn (UCI ML repository, Alpaydin and Kaynak,
"Optical Recognition of Handwritten Digits", 1998); a fifth of them is held out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from engine import artifacts
from engine.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from engine.base.aliases import Floats
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import TensorType
from engine.trainer.runs import INFERENCE
from engine.training.artifact_set import CHECKPOINT, EVALUATION, FORWARD, OPTIMIZER, TRAINING

Labels = npt.NDArray[np.int64]

BATCH, CHANNELS, HIDDEN = 32, 64, 128
GOAL = 0.97


def make_classifier(rng: np.random.Generator) -> Graph:
    """Return a forward-only CNN: conv 3x3, relu, maxpool 2x2, flatten, two linear layers (He
    2015).
    """

    def draw_weight(*shape: int) -> Floats:
        fan_in = int(np.prod(shape[1:]))
        values: Floats = (rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)
        return values

    def make_zeros(n: int) -> Floats:
        return np.zeros(n, np.float32)

    flat = CHANNELS * 4 * 4
    return Graph(
        "digits",
        {"image": TensorType("f32", ("batch", 1, 8, 8))},
        ["scores"],
        {
            "conv.weight": draw_weight(CHANNELS, 1, 3, 3),
            "conv.bias": make_zeros(CHANNELS),
            "hidden.weight": draw_weight(HIDDEN, flat),
            "hidden.bias": make_zeros(HIDDEN),
            "out.weight": draw_weight(10, HIDDEN),
            "out.bias": make_zeros(10),
        },
        [
            Node(
                "Conv",
                ("image", "conv.weight", "conv.bias"),
                ("c",),
                {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
                name="conv",
            ),
            Node("Relu", ("c",), ("r",), name="relu"),
            Node(
                "MaxPool", ("r",), ("p",), {"kernel_shape": [2, 2], "strides": [2, 2]}, name="pool"
            ),
            Node("Flatten", ("p",), ("f",), name="flatten"),
            Node(
                "Gemm", ("f", "hidden.weight", "hidden.bias"), ("h",), {"transB": 1}, name="hidden"
            ),
            Node("Relu", ("h",), ("hr",), name="hidden_relu"),
            Node("Gemm", ("hr", "out.weight", "out.bias"), ("scores",), {"transB": 1}, name="out"),
        ],
        {"": 17},
        {"scores": TensorType("f32", ("batch", 10))},
    )


def read_digits(rng: np.random.Generator) -> tuple[Floats, Labels, Floats, Labels]:
    """Return training images and labels, then held-out ones (20 %); pixels in [0, 1]."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = rng.permutation(len(data.target))
    images = (data.images[order] / 16).astype(np.float32)[:, None]
    labels = data.target[order].astype(np.int64)
    held_out = len(labels) // 5
    return images[held_out:], labels[held_out:], images[:held_out], labels[:held_out]


def shuffle_batches(count: int, rng: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
    """Yield shuffled indices in batches; the last one may be smaller."""
    order = rng.permutation(count)
    for start in range(0, count, BATCH):
        yield order[start : start + BATCH]


def train(module: Module, optimizer: Optimizer, x: Floats, y: Labels, epochs: int) -> list[float]:
    """Train with a progress bar an epoch; returns the seconds of every step.

    A bar starts after the first step.  That plans and compiles in the first epoch, and tells so
    itself; an estimate that counts it would be wrong.
    """
    rng = np.random.default_rng(1)
    steps = epochs * -(-len(x) // BATCH)
    schedule = LinearLRScheduler(optimizer, steps // 10, steps, 4e-3)
    seconds = []
    for epoch in range(1, epochs + 1):
        losses, hits, seen = 0.0, 0, 0
        bar = None
        for chosen in shuffle_batches(len(x), rng):
            start = time.perf_counter()
            loss, scores = module(x[chosen], y[chosen])
            optimizer.step()
            module.lazy_reset_grad()
            schedule.step()
            seconds.append(time.perf_counter() - start)
            seen += len(chosen)
            losses += float(loss) * len(chosen)
            hits += int(np.sum(scores.argmax(1) == y[chosen]))
            if bar is None:
                bar = tqdm(total=len(x), desc=f"epoch {epoch:2d}/{epochs}", unit=" samples")
            bar.set_postfix_str(
                f"loss {losses / seen:.4f}, accuracy {hits / seen:.1%}", refresh=False
            )
            bar.update(len(chosen))
        if bar is not None:
            bar.close()
    return seconds


def measure_accuracy(model: Path, x: Floats, y: Labels) -> float:
    """Share of images that stock onnxruntime classifies right with the exported model."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    (scores,) = session.run(["scores"], {"image": x})
    return float(np.mean(scores.argmax(1) == y))


def run(out: Path, epochs: int, threads: int | None = None) -> int:
    """Run the demo in a folder; returns 0 when the exported model reaches the goal."""
    rng = np.random.default_rng(0)
    x, y, x_test, y_test = read_digits(rng)
    out.mkdir(parents=True, exist_ok=True)
    graph = make_classifier(rng)
    onnx_io.save(graph, out / FORWARD)
    artifacts.generate_artifacts(
        str(out / FORWARD),
        requires_grad=list(graph.initializers),
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=out,
        additional_output_names=["scores"],
    )
    state = CheckpointState.load_checkpoint(out / CHECKPOINT)
    module = Module(out / TRAINING, state, out / EVALUATION, threads=threads)
    optimizer = Optimizer(out / OPTIMIZER, module)
    seconds = train(module, optimizer, x, y, epochs)
    CheckpointState.save_checkpoint(state, out / CHECKPOINT, include_optimizer_state=True)
    plan = module.plan((BATCH, 1, 8, 8), (BATCH,))
    module.eval()
    module.export_model_for_inferencing(out / INFERENCE, ["scores"])
    score = measure_accuracy(out / INFERENCE, x_test, y_test)
    print(f"\nwrote to {out}/:")
    for path in sorted(out.iterdir()):
        print(f"  {path.name:24s}{path.stat().st_size:>10,} bytes")
    print(plan.summary())
    print(f"time per step of {BATCH}: median {1e3 * float(np.median(seconds)):.3f} ms")
    print(f"held-out accuracy of {INFERENCE} in onnxruntime: {score:.2%} (goal {GOAL:.0%})")
    return 0 if score >= GOAL else 1
