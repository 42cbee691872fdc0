"""Gradients of tables that never exist whole: made in blocks of rows, together with the update."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.artifacts import (
    LAMB,
    SGD,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    CrossEntropyLoss,
    Lion,
    RMSprop,
)
from engine.errors import LabelError
from engine.graphs.offline.optim_types import Method
from engine.plan.plan import Plan
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from tests.support.blocks import rename_value
from tests.support.builds import load, needs_cc
from tests.support.tiny import forward, make_trainer

WORDS, WIDTH, BATCH = 4603, 56, 12  # 1.03 MB in rows of no whole vectors, in no even blocks
BAG = f"""<ir_version: 8, opset_import: ["": 17]>
g (int64[N,5] ids, float[{WORDS},{WIDTH}] table, float[{WIDTH},4] head) => (float[N,4] scores) {{
    words = Gather(table, ids)
    bag = ReduceMean<axes = [1], keepdims = 0>(words)
    t = Tanh(bag)
    scores = MatMul(t, head)
}}"""
TWICE = BAG.replace(
    "bag = Red", "other = Gather(table, ids)\n    both = Mul(words, other)\n    bag = Red"
)
TWICE = TWICE.replace("(words)", "(both)")
RNG = np.random.default_rng(5)
# Few rows many times, the first and the last one, all with negative indices among them.
IDS = RNG.choice([0, 1, -1, 7, 2300, WORDS - 1, -WORDS], (BATCH, 5))
LABELS = RNG.integers(0, 4, BATCH)

OPTIMIZERS: dict[str, Method] = {
    "adamw": AdamW(0.05, weight_decay=0.1),
    "adamw, clipped": AdamW(0.05, clip_grad=0.01),
    "lazy adamw, clipped": AdamW(0.05, lazy=True, clip_grad=0.01),
    "sgd": SGD(0.1),
    "sgd, clipped": SGD(0.1, weight_decay=0.01, clip_grad=0.01),
    "momentum": SGD(0.1, momentum=0.9, nesterov=True),
    "adam": Adam(0.05, weight_decay=0.1),
    "lion": Lion(0.01),
    "lamb, clipped": LAMB(0.05, clip_grad=0.01),
    "adafactor": Adafactor(0.05),
    "adafactor with momentum, clipped": Adafactor(0.05, beta1=0.9, clip_grad=0.01),
    "adagrad": Adagrad(0.05),
    "rmsprop": RMSprop(0.05, centered=True, momentum=0.9),
}


def regions(trainer: Trainer) -> dict[str, bytes]:
    """The bytes of all parameters and states."""
    return {name: trainer.state.regions[name].tobytes() for name in ("param", "state")}


def step_plan(trainer: Trainer) -> Plan:
    """The plan of the last step."""
    return trainer.module.plans()[0]


def makers(plan: Plan) -> int:
    """Return how many steps make rows of a gradient."""
    return sum(step.kernel.startswith("gather_grad_rows") for step in plan.steps)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_bit_for_bit_what_two_calls_do(name: str, threads: int) -> None:
    one, two = (make_trainer(BAG, optimizer=OPTIMIZERS[name], threads=threads) for _ in range(2))
    for _ in range(3):
        assert one.step(IDS, LABELS) == two.accumulate(IDS, LABELS)
        two.update()
    assert regions(one) == regions(two)
    plan = step_plan(one)
    assert makers(plan) == 1 + 2 * name.startswith("adafactor") + ("clipped" in name)
    blocks = 1 if name.startswith("adafactor") else 2  # that all threads have, of the whole
    assert plan.compute_region_bytes("work") < 4 * WORDS * WIDTH / blocks + 8 * WORDS
    assert not any(np.prod(b.shape) >= WORDS * WIDTH for b in plan.buffers if b.region == "work")


def test_rows_are_made_of_gradients_of_16_bits() -> None:
    one, two = (make_trainer(BAG, threads=2, precision="bf16") for _ in range(2))
    for _ in range(2):
        assert one.step(IDS, LABELS) == two.accumulate(IDS, LABELS)
        two.update()
    assert regions(one) == regions(two)
    assert [
        k.spec.params for k in step_plan(one).kernels if k.spec.template == "gather_grad_rows"
    ] == [("f32", "bf16")]


def test_values_may_have_the_names_of_what_makes_rows() -> None:
    plain = make_trainer(BAG, threads=2)
    loss = plain.step(IDS, LABELS)
    added = {b.name for b in step_plan(plain).buffers if re.search("/(first|next|rows0)$", b.name)}
    assert len(added) == 3
    for name in added:
        model = rename_value(forward(BAG), "t", name)
        named = Trainer.from_onnx(
            model, CrossEntropyLoss(), optimizer=AdamW(0.05), threads=2, seed=7
        )
        assert named.step(IDS, LABELS) == loss
        assert regions(named) == regions(plain)


def test_bad_indices_change_nothing() -> None:
    trainer = make_trainer(BAG, threads=2)
    trainer.step(IDS, LABELS)
    before, ids = regions(trainer), IDS.copy()
    ids[3, 2] = -WORDS - 1
    with pytest.raises(LabelError, match=f"index {-WORDS - 1} at position 17"):
        trainer.step(ids, LABELS)
    assert regions(trainer) == before


def test_what_others_read_stays_whole() -> None:
    twice = make_trainer(TWICE, threads=2)
    reference = make_trainer(TWICE, threads=2)
    assert twice.step(IDS, LABELS) == reference.accumulate(IDS, LABELS)
    reference.update()
    assert regions(twice) == regions(reference)
    assert makers(step_plan(twice)) == 0


def test_two_calls_keep_the_gradient() -> None:
    trainer = make_trainer(BAG)
    trainer.accumulate(IDS, LABELS)
    gradient: Any = trainer.state.parameters["table"].grad
    used = np.unique(IDS % WORDS)
    assert gradient[used].any(axis=1).all()
    assert not np.delete(gradient, used, axis=0).any()


@needs_cc
def test_a_trimmed_build_trains_alike(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    trainer = make_trainer(BAG, folder=folder, threads=2)
    build(
        folder,
        tmp_path / "built",
        Options("mnist", resolve("native"), PlanRequest([BATCH], 2, joined=True)),
    )
    face = load(tmp_path / "built")
    own = face.Trainer(folder / "checkpoint")
    own.optimizer.set_learning_rate(0.05)
    for _ in range(2):
        assert own.step(IDS, LABELS) == trainer.step(IDS, LABELS)
    assert own.state.to_bytes(True) == trainer.state.to_bytes(True)
