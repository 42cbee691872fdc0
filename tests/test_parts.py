"""Batches that are trained on in parts: as if whole, or refused by the node that mixes samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.artifacts import SGD, AdamW, CrossEntropyLoss, MSELoss
from engine.errors import BudgetError, InputError, LabelError
from tests.test_joined import DEEP, IDS, TIED, WORDS, content
from tests.tiny import DROPPING, LABELS, NORMED, PLAIN, X, made, values

IGNORING = np.where(np.arange(20) % 3 == 0, -100, LABELS)
WEIGHTS = np.array([0.5, 1.0, 3.0], np.float32)
TARGETS = np.random.default_rng(5).standard_normal((20, 3)).astype(np.float32)


def close(one: Trainer, two: Trainer) -> None:
    """Parameters and moments are equal within the rounding of another order of sums."""
    for name in ("param", "state"):
        a, b = (t.state.regions[name].view(np.float32) for t in (one, two))
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (CrossEntropyLoss(), LABELS),
        (CrossEntropyLoss(reduction="sum"), LABELS),
        (CrossEntropyLoss(ignore_index=-100), IGNORING),
        (CrossEntropyLoss(ignore_index=-100, weight=WEIGHTS), IGNORING),
        (MSELoss(), TARGETS),
    ],
    ids=["mean", "sum", "ignored labels", "class weights", "squares"],
)
@pytest.mark.parametrize("parts", [3, 20])
def test_parts_are_the_whole_batch(loss: Any, target: Any, parts: int) -> None:
    """20 samples in parts of 7, 7 and 6, or one by one."""
    optimizer = SGD(0.05, momentum=0.9)
    whole = made(PLAIN, loss=loss, optimizer=optimizer)
    parted = made(PLAIN, loss=loss, optimizer=optimizer, micro_batches=parts)
    for _ in range(3):
        assert parted.step(X, target) == pytest.approx(whole.step(X, target), rel=1e-5)
    close(parted, whole)
    assert parted.steps == 3
    assert f"in {parts} parts" in parted.plan.summary()


def test_samples_of_words_and_of_several_rows_are_kept_apart() -> None:
    text = TIED.replace("float {0.25}", "float {0.0}")
    whole, parted = made(text), made(text, micro_batches=4)
    assert parted.step(IDS, WORDS) == pytest.approx(whole.step(IDS, WORDS), rel=1e-5)
    close(parted, whole)


def test_what_mixes_samples_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"in parts: node .*BatchNorm.* statistics over all samp"):
        made(NORMED, micro_batches=2).step(X, LABELS)
    chosen = made(NORMED, micro_batches=2, own_statistics=True)
    assert np.isfinite(chosen.step(X, LABELS))
    turned = PLAIN.replace("r = Tanh(b)", "m = ReduceMean<axes = [0]>(b)\n    r = Sub(b, m)")
    with pytest.raises(InputError, match=r"in parts: node 'Sub_\d+' \(Sub\) joins values that"):
        made(turned, micro_batches=2).step(X, LABELS)
    fixed = PLAIN.replace("float[N,6]", "float[20,6]").replace("float[N,3]", "float[20,3]")
    with pytest.raises(InputError, match="the model fixes how many samples it has"):
        made(fixed, micro_batches=2).step(X, LABELS)
    with pytest.raises(InputError, match="micro_batches=0"):
        made(PLAIN, micro_batches=0)


def test_a_fault_in_a_later_part_changes_nothing() -> None:
    trainer = made(DROPPING, micro_batches=4)
    trainer.step(X, LABELS)
    before = content(trainer)
    labels = LABELS.copy()
    labels[17] = 3
    with pytest.raises(LabelError):
        trainer.step(X, labels)
    assert content(trainer) == before
    trainer.step(X, LABELS)


def test_a_batch_that_does_not_fit_is_parted_or_refused_with_the_reason() -> None:
    x, labels = np.tile(X, (100, 1)), np.tile(LABELS, 100)
    with pytest.raises(BudgetError) as refused:
        made(DEEP.replace("u = Tanh(t)", "m = ReduceMean<axes = [0]>(t)\n    u = Sub(t, m)"),
             memory_budget=1000).step(x, labels)  # fmt: skip
    assert "cannot be trained on in parts: node 'Sub" in str(refused.value)
    whole, parted = made(DEEP), made(DEEP, memory_budget="200 kB")
    for _ in range(2):
        assert parted.step(x, labels) == pytest.approx(whole.step(x, labels), rel=1e-5)
    close(parted, whole)
    assert parted.plan.micro_batches > 1
    assert parted.plan.nbytes <= 200_000 < whole.plan.nbytes


@pytest.mark.parametrize("options", [{}, {"memory_budget": "1 MB"}, {"micro_batches": 3}], ids=str)
def test_a_checkpoint_goes_on_to_the_last_bit(options: dict[str, Any], tmp_path: Path) -> None:
    """Parameters, moments, the rate, the step and what dropout draws."""
    optimizer = AdamW(0.05, weight_decay=0.1)
    one, two = (made(DROPPING, optimizer=optimizer, **options) for _ in range(2))
    for _ in range(2):
        one.step(X, LABELS)
    one.learning_rate = 0.01
    one.save(tmp_path / "checkpoint")
    two.load(tmp_path / "checkpoint")
    for _ in range(2):
        assert one.step(X, LABELS) == two.step(X, LABELS)
    assert content(one) == content(two)
    assert values(one) == values(two)
