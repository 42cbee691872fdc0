"""Each parameter counts the steps that have updated it, which corrections of its moments need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.artifacts import AdamW, Group
from engine.checkpoint import storage
from engine.checkpoint.storage import Checkpoint, OptimizerGroup
from engine.errors import CheckpointError
from engine.graphs.offline.optim_types import OPTIMIZERS
from engine.trainer.batch_trainer import BatchTrainer
from tests.support.checkpoints import simplify
from tests.support.tiny import BATCH, LABELS, NAMES, X, forward, make_trainer, read_values

DATA = (X, LABELS)
BODY = ["body.bias", "body.weight"]
QUIET: dict[str, Any] = {"batch_size": BATCH, "progress": False}
STILL = [Group(["head.*"], lr_scale=0.0)]  # so that only the body moves
METHODS: dict[str, Any] = {kind.name: method for kind, method in OPTIMIZERS.items()}


def still(name: str) -> Trainer:
    """A trainer with an optimizer of this name that leaves the head as it is."""
    options: dict[str, Any] = {"momentum": 0.9, "dampening": 0.5} if name == "SGD" else {}
    if name == "Adagrad":
        options = {"lr_decay": 0.3}
    trainer = make_trainer(optimizer=METHODS[name](groups=STILL, **options))
    trainer.learning_rate = 0.05
    return trainer


def late(name: str) -> Trainer:
    """The same after an epoch of three steps in which the body was frozen."""
    trainer = still(name)
    trainer.fit(DATA, unfreeze={"head.*": 0, "*": 9}, **QUIET)
    assert trainer.steps == 3
    return trainer


def accumulate(trainer: BatchTrainer) -> None:
    trainer.accumulate(X[:BATCH], LABELS[:BATCH])
    trainer.update()


def body(trainer: BatchTrainer) -> list[bytes]:
    """The values of the body and all that the optimizer keeps of it."""
    (group,) = trainer.state.groups
    kept = [array.tobytes() for name in BODY for array in group.states[name].values()]
    return [read_values(trainer)[name] for name in BODY] + kept


def own_steps(trainer: BatchTrainer) -> dict[str, int]:
    (group,) = trainer.state.groups
    return {name: group.step - group.steps_before.get(name, 0) for name in group.states}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("step", [lambda t: t.step(X[:BATCH], LABELS[:BATCH]), accumulate])
def test_what_is_unfrozen_late_learns_as_from_the_start(name: str, step: Any) -> None:
    """Bit for bit: nothing else moves, so its gradients do not depend on the epochs before."""
    fresh, after = still(name), late(name)
    for _ in range(3):
        step(fresh)
        step(after)
        assert body(after) == body(fresh)
    assert own_steps(after) == {n: 3 if n in BODY else 6 for n in NAMES}


def test_checkpoints_have_the_counts_of_all(tmp_path: Path) -> None:
    fresh, after, again, other = still("AdamW"), late("AdamW"), still("AdamW"), late("AdamW")
    accumulate(after)
    after.save(tmp_path / "late")
    again.load(tmp_path / "late")
    other.load(tmp_path / "late")  # that has counted others until now
    assert own_steps(again) == own_steps(other) == {n: 1 if n in BODY else 4 for n in NAMES}
    accumulate(fresh)
    for _ in range(2):
        for each in (fresh, after, again, other):
            each.step(X[:BATCH], LABELS[:BATCH])
        assert body(after) == body(again) == body(other) == body(fresh)
    still("AdamW").save(tmp_path / "first")
    after.load(tmp_path / "first")  # back to equal counts
    again = still("AdamW")
    for each in (after, again):
        each.step(X[:BATCH], LABELS[:BATCH])
    assert read_values(after) == read_values(again)


def test_equal_counts_are_written_as_onnxruntime_training_writes_them(tmp_path: Path) -> None:
    """An entry of its own has only a parameter that began later."""
    states = {"a": {"momentum0": np.ones(2, np.float32)}}
    equal = Checkpoint(optimizer_groups=[OptimizerGroup("group0", 5, 0.1, states)])
    zero = Checkpoint(optimizer_groups=[OptimizerGroup("group0", 5, 0.1, states, {"a": 0})])
    own = Checkpoint(optimizer_groups=[OptimizerGroup("group0", 5, 0.1, states, {"a": 3})])
    assert storage.encode(zero) == storage.encode(equal)
    assert simplify(storage.decode(storage.encode(own)[0])) == simplify(own)
    assert len(storage.encode(own)[0]) > len(storage.encode(equal)[0])
    wrong = Checkpoint(optimizer_groups=[OptimizerGroup("group0", 2, 0.1, states, {"a": 3})])
    with pytest.raises(CheckpointError, match="steps_before 3; expected 0 to the 2 steps"):
        storage.decode(storage.encode(wrong)[0])


def reference(epochs: int, from_epoch: int, options: dict[str, Any]) -> dict[str, Any]:
    """Train the tiny model in NumPy and float64 with AdamW, the body from some epoch on."""
    p = {i.name: np.frombuffer(i.raw_data, np.float32) for i in forward().graph.initializer}
    p = {n: v.reshape(6, 8) if n == "body.weight" else v for n, v in p.items()}
    p = {n: v.reshape(8, 3) if n == "head.weight" else v for n, v in p.items()}
    p = {n: v.astype(np.float64) for n, v in p.items()}
    m, v, t = ({n: np.zeros_like(x) for n, x in p.items()} for _ in range(3))
    (a, b), eps, decay, rate = (options[k] for k in ("betas", "eps", "weight_decay", "rate"))
    for epoch in range(epochs):
        for at in range(0, len(X), BATCH):
            x, labels = X[at : at + BATCH].astype(np.float64), LABELS[at : at + BATCH]
            h = np.tanh(x @ p["body.weight"] + p["body.bias"])
            y = np.exp(h @ p["head.weight"] + p["head.bias"])
            dy = (y / y.sum(1, keepdims=True) - np.eye(3)[labels]) / len(x)
            dh = dy @ p["head.weight"].T * (1 - h * h)
            g = {"body.weight": x.T @ dh, "body.bias": dh.sum(0)} if epoch >= from_epoch else {}
            for n, d in {**g, "head.weight": h.T @ dy, "head.bias": dy.sum(0)}.items():
                t[n] = t[n] + 1
                m[n] = a * m[n] + (1 - a) * d
                v[n] = b * v[n] + (1 - b) * d * d
                step = m[n] / (1 - a ** t[n]) / (np.sqrt(v[n] / (1 - b ** t[n])) + eps)
                p[n] = p[n] * (1 - rate * decay) - rate * step
    return p


def test_a_staged_training_is_that_of_numpy() -> None:
    options: dict[str, Any] = {"betas": (0.9, 0.99), "eps": 1e-3, "weight_decay": 0.1}
    trainer = make_trainer(optimizer=AdamW(adam_mode=0, **options))
    trainer.learning_rate = 0.02
    plan = {"head.*": 0, "*": 2}
    trainer.fit(DATA, epochs=4, unfreeze=plan, shuffle=False, **QUIET)
    expected = reference(4, 2, {**options, "rate": 0.02})
    for name, parameter in trainer.state.parameters:
        np.testing.assert_allclose(parameter.data, expected[name], rtol=2e-5, atol=2e-6)
