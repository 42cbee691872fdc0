"""Sparse updates: gradients are slices of the whole ones, losses the same, exports whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from engine import Trainer, artifacts
from engine.api import CheckpointState, Module
from engine.artifacts import AdamW, CrossEntropyLoss, SparseUpdate
from engine.base.aliases import Array
from engine.errors import InputError, NameNotFoundError, StateError
from tests.support.sparse_net import SHAPES, forward, make_batch

STATISTICS = ("m2", "v2")


def gradients(folder: Path, **choice: Any) -> tuple[float, dict[str, Array]]:
    """The loss and the gradients of the net in float64, with artifacts made of it."""
    artifacts.generate_artifacts(
        forward("double"),
        loss=CrossEntropyLoss(),
        artifact_directory=folder,
        frozen_batch_norm=True,
        **choice,
    )
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx", threads=2)
    loss = module(*make_batch(np.float64))
    arrays = {n: np.array(p.grad) for n, p in state.parameters if p.grad is not None}
    return float(loss), arrays


CHOICES: dict[str, tuple[SparseUpdate, dict[str, tuple[int, ...]]]] = {
    "biases": (SparseUpdate(biases=True), {"b1": (), "t2": (), "b3": (), "b4": ()}),
    "norms": (SparseUpdate(norms=True), {"s2": (), "t2": ()}),
    "layers": (SparseUpdate(layers=["w[13]", "gemm"]), {"w1": (), "w3": (), "w4": (), "b4": ()}),
    "last": (SparseUpdate(last=2), {"w4": (), "b4": (), "w5": ()}),
    "convolutions": (
        SparseUpdate(channels={"w1": 0.3, "w2": 0.25}), {"w1": (1, 1), "w2": (1, 2)}
    ),
    "products": (
        SparseUpdate(channels={"w[345]": 0.5}), {"w3": (0, 5), "w4": (1, 6), "w5": (1, 3)}
    ),
    "all at once": (
        SparseUpdate(biases=True, last=1, channels={"w2": 0.5, "w5": 0.5}),
        {"b1": (), "w2": (1, 4), "t2": (), "b3": (), "b4": (), "w5": ()},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[float, dict[str, Array]]:
    names = [name for name in SHAPES if name not in STATISTICS]
    return gradients(tmp_path_factory.mktemp("whole"), requires_grad=names)


@pytest.mark.parametrize("title", CHOICES)
def test_gradients_are_slices_of_the_whole_ones(
    title: str, whole: tuple[float, dict[str, Array]], tmp_path: Path
) -> None:
    update, expected = CHOICES[title]
    loss, actual = gradients(tmp_path, update=update)
    assert loss == pytest.approx(whole[0], rel=1e-12)
    wanted = {}
    for name, part in expected.items():
        full = whole[1][name]
        if part:
            axis, count = part
            wanted[f"{name}.trained"] = np.split(full, [count], axis)[0]
        else:
            wanted[name] = full
    assert sorted(actual) == sorted(wanted)
    for name, full in wanted.items():
        np.testing.assert_allclose(actual[name], full, rtol=1e-9, atol=1e-12, err_msg=name)


def test_only_the_channels_that_train_are_kept_and_multiplied(tmp_path: Path) -> None:
    trainer = Trainer.from_onnx(
        forward(), "cross_entropy", train=["w2", "w3"], folder=tmp_path, threads=1,
        update=SparseUpdate(channels={"w2": 0.25, "w3": 0.5}),
    )  # fmt: skip
    x, labels = make_batch(np.float32)
    plan = trainer.learner.session.training.plan({"x": x.shape, "labels": labels.shape})
    kept = {plan.buffers[k.buffer].name: plan.buffers[k.buffer].shape for k in plan.kept()}
    assert kept.pop("r1_part") == (5, 2, 6, 6)
    assert kept.pop("p_part") == (5, 3, 3, 5)
    assert not kept.keys() & {"x", "c1", "r1", "c2", "p", "w2", "w3"}
    assert {s.source for s in plan.steps if s.again} == {"w3/join"}


def test_parts_are_not_unfrozen_by_name(tmp_path: Path) -> None:
    trainer = Trainer.from_onnx(forward(), "cross_entropy", update=SparseUpdate(last=1), threads=1)
    with pytest.raises(StateError, match="sparse update"):
        trainer.fit(make_batch(np.float32), unfreeze={"*": 0}, progress=False)


def test_a_sparse_training_learns_and_exports_whole_weights(tmp_path: Path) -> None:
    update = SparseUpdate(biases=True, channels={"w[23]": 0.5})
    trainer = Trainer.from_onnx(
        forward(), "cross_entropy", AdamW(0.02), update=update, folder=tmp_path, threads=1, seed=1
    )
    x, labels = make_batch(np.float32)
    before = {n: numpy_helper.to_array(a) for a in forward().graph.initializer for n in [a.name]}
    losses = [float(trainer.step(x, labels)) for _ in range(20)]
    assert losses[-1] < losses[0] - 0.3
    scores = trainer.predict(x)
    trainer.export(tmp_path / "trained.onnx")
    exported = onnx.load(tmp_path / "trained.onnx")
    after = {a.name: numpy_helper.to_array(a) for a in exported.graph.initializer}
    assert {n: a.shape for n, a in after.items() if n in SHAPES} == SHAPES
    assert not any("." in name for name in after)
    for name, axis, count in (("w2", 1, 4), ("w3", 0, 5)):
        old, new = (np.split(actual[name], [count], axis) for actual in (before, after))
        assert (old[1] == new[1]).all()
        assert (old[0] != new[0]).any()
    assert (after["w1"] == before["w1"]).all()
    again: Any = ReferenceEvaluator(exported).run(None, {"x": x})
    np.testing.assert_allclose(again[0], scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, InputError, "nothing is trained"),
        ({"channels": {"w2": 0}}, InputError, "expected above 0 to 1"),
        ({"channels": {"b1": 0.5}}, InputError, "'b1' is input 2 of Conv 'conv1'"),
        ({"channels": {"nope": 0.5}}, NameNotFoundError, "'nope' matches none of 10"),
        ({"layers": ["w9"]}, NameNotFoundError, "'w9' matches none of 10"),
        ({"last": 9}, NameNotFoundError, "the model has 5 layers"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    options: dict[str, Any], error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        artifacts.generate_artifacts(
            forward(),
            loss=CrossEntropyLoss(),
            artifact_directory=tmp_path,
            update=SparseUpdate(**options),
        )
