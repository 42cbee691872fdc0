"""More threads than cores, and than some steps have parts: the same training, bit for bit again."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from bench.balance import balance
from engine.api import CheckpointState, Module, Optimizer
from engine.models import mobilenets, post_norm, pre_norm, recurrent, resnets
from engine.models import sound as sounds
from engine.profiling.scaling import list_stretches
from engine.profiling.times import StepTime
from engine.tools.benchmark.workload import Workload
from engine.tools.benchmark.workloads import WORKLOADS

STEPS = 2
SIDES = (3, 64, 64)


def small(name: str, x: tuple[int, ...], build: object = None, **changes: object) -> Workload:
    """A workload for inputs of another shape, by its own builder or another one."""
    actual = WORKLOADS[name]
    return replace(actual, x=x, build=build or actual.build, **changes)  # type: ignore[arg-type]  # any field


SMALL = {
    "mlp": small("mlp", (5, 784)),
    "cnn": small("cnn", (3, 1, 28, 28)),
    "mobilenet": small("mobilenet", (2, *SIDES), partial(mobilenets.build_mobilenet_v2, SIDES)),
    "mobilenet_v3": small(
        "mobilenet_v3", (2, *SIDES), partial(mobilenets.build_mobilenet_v3_small, SIDES)
    ),
    "resnet18": small("resnet18", (2, *SIDES), partial(resnets.build_resnet18, SIDES)),
    "vit": small("vit", (2, *SIDES), partial(pre_norm.build_vit_tiny, SIDES, width=36, layers=2)),
    "minilm": small(
        "minilm", (3, 16), partial(post_norm.build_minilm, 16, 100, 2, 48), words=100
    ),
    "gpt2": small(
        "gpt2", (3, 16), partial(pre_norm.build_gpt2, 16, 100, 2, 48),
        words=100, classes=100, labels=16,
    ),
    "wav2vec2": small("wav2vec2", (2, 1, 2000), partial(sounds.build_wav2vec2, 2000, 48)),
    "lstm": small("lstm", (5, 7, 12), partial(recurrent.build_lstm, 7, 12, 20)),
}  # fmt: skip


def trained(folder: Path, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """Losses of some steps, and the parameters after them."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, threads=threads)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(1e-5)
    with np.load(folder / "batch.npz") as batch:
        x, y = batch["x"], batch["y"]
    losses = []
    for _ in range(STEPS):
        losses.append(module(x, y))
        optimizer.step()
        module.lazy_reset_grad()
    return np.array(losses), np.array(module.get_contiguous_parameters())


@pytest.mark.parametrize("name", SMALL)
def test_4_and_8_threads_train_as_one_does(name: str, tmp_path: Path) -> None:
    """AdamW's step is about the learning rate, whatever the gradient: so are its differences."""
    folder = SMALL[name].write(tmp_path)
    losses, parameters = trained(folder, 1)
    assert losses[-1] < losses[0]
    for threads in (4, 8):
        other_losses, other_parameters = trained(folder, threads)
        np.testing.assert_allclose(other_losses, losses, rtol=1e-4)
        # Running variances of few samples differ most: by their rounding over many layers.
        np.testing.assert_allclose(other_parameters, parameters, rtol=1e-3, atol=2 * STEPS * 1e-5)
    again_losses, again_parameters = trained(folder, threads)
    assert np.array_equal(again_losses, other_losses)
    assert np.array_equal(again_parameters, other_parameters)


def test_the_busiest_thread_between_barriers_decides() -> None:
    def step(barrier: bool, busy: tuple[float, ...], plan: str = "train") -> StepTime:
        return StepTime(
            plan=plan, number=0, phase="forward", kernel="k", node="", barrier=barrier, busy=busy,
            wait=0.0, flops=0, nbytes=0, limit=0.0, spans=(),
        )  # fmt: skip

    steps = [
        step(True, (3.0, 1.0)), step(False, (1.0, 3.0)), step(True, (4.0, 0.0)),
        step(False, (1.0, 1.0), "optimizer"),
    ]  # fmt: skip
    assert [len(part) for part in list_stretches(steps)] == [2, 1, 1]
    actual = balance(steps)
    assert (actual.threads, actual.work, actual.busiest, actual.serial) == (2, 14.0, 9.0, 4.0)
    assert actual.ratio == 9 * 2 / 14
    assert actual.losses[0].threads == 2
