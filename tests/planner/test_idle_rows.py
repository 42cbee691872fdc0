"""Rows without a gradient, as of an embedding table: what optimizers leave as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engine import artifacts
from engine.api import CheckpointState, Module, Optimizer
from engine.artifacts import SGD, AdamW, Group, LossType, generate_artifacts
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.kernels.ops.optimizer.sgd import BLOCK
from engine.kernels.vocabulary.op import TensorType
from tests.support.harness import copy_parameters, get_gradient

WORDS, WIDTH, CLASSES = 300, 24, 5
RATE = 0.125
BATCHES = [[[3, 7, 299], [3, 0, 3]], [[100, 7, 8], [5, 5, 5]], [[3, 3, 3], [298, 1, 2]]]
DECAY = 0.25


def model() -> onnx.ModelProto:
    """The classes of the mean of three words: a table that a batch uses few rows of."""
    rng = np.random.default_rng(0)
    held: dict[str, Any] = {
        "table": rng.standard_normal((WORDS, WIDTH)).astype(np.float32),
        "head": rng.standard_normal((WIDTH, CLASSES)).astype(np.float32),
        "bias": rng.standard_normal(CLASSES).astype(np.float32),
    }
    nodes = [
        Node("Gather", ("table", "words"), ("rows",), {}, "", "rows"),
        Node("ReduceMean", ("rows",), ("mean",), {"axes": [1], "keepdims": 0}, "", "mean"),
        Node("Gemm", ("mean", "head", "bias"), ("y",), {}, "", "head"),
    ]
    types = {"words": TensorType("i64", ("batch", 3))}
    graph = Graph("bag", types, ["y"], held, nodes, {"": 17})
    graph.types["y"] = TensorType("f32", ("batch", CLASSES))
    return onnx_io.to_proto(graph)


class Training:
    """A training run of the model with an optimizer."""

    def __init__(self, folder: Path, method: Any, threads: int = 1, point: bytes | None = None):
        if not (folder / "checkpoint").exists():
            generate_artifacts(
                model(), ["table", "head", "bias"], loss=LossType.CrossEntropyLoss,
                optimizer=method, artifact_directory=folder,
            )  # fmt: skip
        self.state = CheckpointState.load_checkpoint(point or folder / "checkpoint")
        self.module = Module(folder / "training_model.onnx", self.state, threads=threads)
        self.optimizer = Optimizer(folder / "optimizer_model.onnx", self.module)
        self.optimizer.set_learning_rate(RATE)

    def backward(self, t: int) -> None:
        self.module(np.array(BATCHES[t]), np.array([1, 4]))

    def step(self, t: int) -> None:
        self.backward(t)
        self.optimizer.step()
        self.module.lazy_reset_grad()

    def values(self) -> dict[str, np.ndarray]:
        return copy_parameters(self)

    def gradients(self) -> dict[str, np.ndarray]:
        return {n: get_gradient(self.state, n).copy() for n, _ in self.state.parameters}


def adamw(t: int, p: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
    """torch's rule in float64."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    p = p * (1 - RATE * DECAY)
    return p - RATE / (1 - 0.9**t) * m / (np.sqrt(v / (1 - 0.999**t)) + 1e-6), m, v


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("grouped", [False, True])
def test_lazy_adamw_moves_only_rows_that_have_a_gradient(
    tmp_path: Path, threads: int, clip: float | None, grouped: bool
) -> None:
    groups = [Group(["head"], lr_scale=1.0)] if grouped else []
    method = AdamW(weight_decay=DECAY, adam_mode=0, clip_grad=clip, lazy=True, groups=groups)
    training = Training(tmp_path, method, threads)
    values = {n: p.astype(np.float64) for n, p in training.values().items()}
    moments = {n: [np.zeros_like(p), np.zeros_like(p)] for n, p in values.items()}
    for t in range(len(BATCHES)):
        training.step(t)
        actual_gradients = training.gradients()
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in actual_gradients.values()))
        for n, p in values.items():
            g = actual_gradients[n].astype(np.float64)
            if clip is not None:
                g *= min(clip / (norm + 1e-6), 1)
            after = adamw(t + 1, p, g, *moments[n])
            moved = np.ones(p.shape, bool)
            if p.ndim > 1:
                moved &= (g != 0).any(1)[:, None]
            values[n], *moments[n] = (
                np.where(moved, new, old) for new, old in zip(after, (p, *moments[n]), strict=True)
            )
    for n, p in training.values().items():
        np.testing.assert_allclose(p, values[n], rtol=1e-5, atol=1e-6, err_msg=n)


def test_rows_that_lazy_adamw_leaves_keep_their_bits_and_resume(tmp_path: Path) -> None:
    method = AdamW(weight_decay=DECAY, lazy=True)
    one, three = (Training(tmp_path, method, threads) for threads in (1, 3))
    start = one.values()["table"]
    for t in (0, 1):
        one.step(t)
        three.step(t)
    used = np.zeros(WORDS, bool)
    used[np.unique(BATCHES[:2])] = True
    table = one.values()["table"]
    assert table[~used].tobytes() == start[~used].tobytes()
    assert (table[used] != start[used]).all()
    saved = one.state.to_bytes(include_optimizer_state=True)
    assert saved == three.state.to_bytes(include_optimizer_state=True)
    again = Training(tmp_path, method, 3, saved)
    one.step(2)
    again.step(2)
    assert one.state.to_bytes(True) == again.state.to_bytes(True)


def test_lazy_is_an_operator_of_ours_and_the_default_is_onnxruntimes(tmp_path: Path) -> None:
    kinds = []
    for lazy in (False, True):
        generate_artifacts(model(), ["table"], optimizer=AdamW(lazy=lazy),
                           loss=LossType.CrossEntropyLoss,
                           artifact_directory=tmp_path)  # fmt: skip
        (node,) = onnx.load(tmp_path / "optimizer_model.onnx").graph.node
        kinds.append((node.domain, "lazy" in {a.name for a in node.attribute}))
    assert kinds == [("com.microsoft", False), ("engine", True)]
    assert artifacts.AdamW().lazy is False


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_sgd_is_exact_whatever_it_passes_over(
    tmp_path: Path, threads: int, clip: float | None
) -> None:
    training = Training(tmp_path, SGD(clip_grad=clip), threads)
    assert WORDS * WIDTH > 3 * BLOCK
    for t in range(len(BATCHES)):
        before = training.values()
        training.step(t)
        actual_gradients = training.gradients()
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in actual_gradients.values()))
        k = np.float32(1 if clip is None else min(clip / (norm + 1e-6), 1))
        for n, p in training.values().items():
            # The norm is summed in another order; where both sides nearly cancel, that is seen.
            np.testing.assert_allclose(
                p, before[n] - RATE * (actual_gradients[n] * k), rtol=2e-7, atol=4e-9
            )
            still = actual_gradients[n] == 0
            assert p[still].tobytes() == before[n][still].tobytes()


def test_sgd_passes_over_nothing_that_is_not_a_number(tmp_path: Path) -> None:
    training = Training(tmp_path, SGD())
    training.backward(0)
    for g in training.gradients():
        get_gradient(training.state, g)[...] = 0
    get_gradient(training.state, "table")[200, 3] = np.nan
    training.optimizer.step()
    expected = np.zeros((WORDS, WIDTH), bool)
    expected[200, 3] = True
    np.testing.assert_array_equal(np.isnan(training.values()["table"]), expected)


def test_a_norm_that_is_not_a_number_reaches_every_parameter(tmp_path: Path) -> None:
    training = Training(tmp_path, SGD(clip_grad=1.0))
    training.backward(0)
    get_gradient(training.state, "bias")[0] = np.nan
    training.optimizer.step()
    assert all(np.isnan(p).all() for p in training.values().values())


@pytest.mark.parametrize(
    "method", [SGD(clip_grad=0.01), AdamW(clip_grad=0.01)], ids=["sgd", "adamw"]
)
def test_clipping_leaves_the_gradients_as_they_are(tmp_path: Path, method: Any) -> None:
    training = Training(tmp_path, method)
    training.backward(0)
    before = training.gradients()
    training.optimizer.step()
    for n, g in training.gradients().items():
        assert g.tobytes() == before[n].tobytes()


def test_batches_accumulate_in_rows(tmp_path: Path) -> None:
    training = Training(tmp_path, SGD())
    parts = []
    for t in (0, 1):
        training.module.lazy_reset_grad()
        training.backward(t)
        parts.append(training.gradients())
    training.module.lazy_reset_grad()
    training.backward(0)
    training.backward(1)
    for n, g in training.gradients().items():
        np.testing.assert_allclose(g, parts[0][n] + parts[1][n], rtol=1e-6, atol=1e-8)
