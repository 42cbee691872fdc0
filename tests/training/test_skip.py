"""Updates whose gradients are not finite: skipped, counted and reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.api import CheckpointState, Module, Optimizer
from engine.artifacts import LAMB, SGD, AdamW, Group
from engine.data import batches
from engine.errors import GroupError, InputError, NonFiniteError
from engine.graphs.offline.optim_types import Method
from tests.support.thread_group import run
from tests.support.tied_words import IDS, TIED, WORDS, read_content
from tests.support.tiny import BAD, LABELS, NORMED, PLAIN, X, forward, make_trainer, read_values

# The square root of 0 is finite, and its gradient is not: the loss does not tell.
ROOTS = PLAIN.replace(
    "r = Tanh(b)",
    "zero = Constant<value = float {0.0}>()\n    p = Mul(b, zero)\n    r = Sqrt(p)",
)
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"kind": AdamW, "lr": 0.05, "weight_decay": 0.1},
    "clipped": {"kind": SGD, "lr": 0.1, "momentum": 0.9, "clip_grad": 0.05},
    "groups": {"kind": LAMB, "lr": 0.05, "groups": [Group(["body.*"], 0.5)]},
}


def optimizer(name: str, **more: Any) -> Method:
    options = {**OPTIMIZERS[name], **more}
    kind = options.pop("kind")
    actual_kind: Method = kind(**options)
    return actual_kind


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_step_leaves_no_trace(name: str, threads: int) -> None:
    """Of one plan and of two: as if the batch had not been there, to the last bit."""
    plain = make_trainer(optimizer=optimizer(name), threads=threads)
    one, two = (
        make_trainer(optimizer=optimizer(name, skip_nonfinite=True), threads=threads)
        for _ in range(2)
    )
    for batch in (X, BAD, BAD, X, BAD, X):
        one.step(batch, LABELS)
        two.accumulate(batch, LABELS)
        two.update()
        if batch is X:
            plain.step(batch, LABELS)
    assert read_content(one) == read_content(two) == read_content(plain)
    assert one.skipped == two.skipped == 3
    assert one.steps == 3
    assert one.obstacle == ""


def test_the_loss_may_be_finite() -> None:
    trainer = make_trainer(ROOTS, optimizer=AdamW(0.05), skip_nonfinite=True)
    before = read_values(trainer)
    assert np.isfinite(trainer.step(X, LABELS))
    assert (trainer.skipped, trainer.steps, read_values(trainer)) == (1, 0, before)
    free = make_trainer(ROOTS, optimizer=AdamW(0.05, clip_grad=1.0))
    free.step(X, LABELS)
    assert all(np.isnan(free.state.parameters[n].data).all() for n in ("head.bias", "body.bias"))


def test_running_statistics_of_one_plan_stay() -> None:
    trainer = make_trainer(NORMED, optimizer=AdamW(0.05, skip_nonfinite=True))
    trainer.step(X, LABELS)
    before = read_content(trainer)
    trainer.step(BAD, LABELS)
    assert read_content(trainer) == before


def test_the_gradient_of_a_table_is_looked_at_in_blocks() -> None:
    plain, trainer = make_trainer(TIED), make_trainer(TIED, skip_nonfinite=True)
    for each in (plain, trainer):
        each.step(IDS, WORDS)
    assert read_content(plain) == read_content(trainer)
    trainer.state.parameters["mix"].data[0, 0] = np.nan
    before = read_content(trainer)
    trainer.step(IDS, WORDS)
    assert read_content(trainer)[:2] == before[:2]


def test_parts_of_a_batch_are_one_update() -> None:
    trainer = make_trainer(optimizer=AdamW(0.05), micro_batches=2, skip_nonfinite=True)
    before = read_values(trainer)
    trainer.step(BAD, LABELS)
    trainer.accumulate(X, LABELS)
    trainer.accumulate(BAD, LABELS)
    trainer.update()
    assert (trainer.skipped, trainer.steps, read_values(trainer)) == (2, 0, before)


def test_artifacts_without_the_option_by_module_and_optimizer(tmp_path: Path) -> None:
    Trainer.from_onnx(forward(), "cross_entropy", AdamW(0.05), folder=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, threads=1)
    taken = Optimizer(tmp_path / "optimizer_model.onnx", module, skip_nonfinite=True, skip_limit=1)
    assert taken.skips_nonfinite
    before = state.regions["param"].tobytes()
    module(BAD, LABELS)
    taken.step()
    assert (taken.skipped, taken.skipped_in_a_row, taken.steps) == (1, 1, 0)
    with pytest.raises(NonFiniteError, match=r"2 updates in a row .* \(skip_limit=1\).*clip_grad"):
        taken.step()
    assert state.regions["param"].tobytes() == before
    module.lazy_reset_grad()
    module(X, LABELS)
    taken.step()
    assert (taken.skipped, taken.skipped_in_a_row, taken.steps) == (2, 0, 1)
    again = CheckpointState.from_bytes(state.to_bytes(include_optimizer_state=True))
    assert again.skipped == 2
    assert "edgegrad.skipped" not in again.properties
    with pytest.raises(InputError, match="skip_limit=-1: expected 0 or more"):
        Optimizer(tmp_path / "optimizer_model.onnx", module, skip_limit=-1)


def test_fit_goes_on_counts_and_tells(tmp_path: Path) -> None:
    def some(*which: Any) -> Any:
        return batches(lambda: iter([(x, LABELS) for x in which]), allow_nan=True)

    plain, trainer = make_trainer(), make_trainer(skip_nonfinite=True)
    expected = plain.fit(some(X, X), epochs=2, progress=False)
    history = trainer.fit(some(X, BAD, X), epochs=2, folder=tmp_path, progress=False)
    assert trainer.steps == 4
    assert read_values(trainer) == read_values(plain)
    assert history["loss"] == expected["loss"]
    assert history["skipped"] == [1, 1]
    assert np.isfinite(history["loss"]).all()
    assert "skipped" not in expected.columns
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(row["epoch"], row["step"]) for row in lines if row["kind"] == "skip"] == [
        (0, 1),
        (1, 3),
    ]
    assert "skipped updates" in (tmp_path / "report.html").read_text()


def test_too_many_in_a_row_end_a_fit_with_the_node(tmp_path: Path) -> None:
    trainer = make_trainer(ROOTS, skip_nonfinite=True, skip_limit=2)
    text = r"3 updates in a row were skipped: .*'Sqrt_\d+_Grad/.* of the backward pass of 'Sqrt_0'"
    with pytest.raises(NonFiniteError, match=text):
        trainer.fit((X, LABELS), batch_size=4, shuffle=False, progress=False)
    assert trainer.steps == 0


@pytest.mark.parametrize("accumulate", [1, 2])
def test_all_ranks_skip_alike(accumulate: int) -> None:
    def train(group: Any) -> tuple[int, int, dict[str, bytes]]:
        trainer = make_trainer(group=group, skip_nonfinite=True)
        x = X.copy()
        x[1, 2] = np.nan  # of rank 0 alone
        for batch in (X, x, X):
            for _ in range(accumulate):
                trainer.accumulate(batch, LABELS) if accumulate > 1 else trainer.step(batch, LABELS)
            if accumulate > 1:
                trainer.update()
        return trainer.steps, trainer.skipped, read_values(trainer)

    first, second = run(2, train)
    assert first == second
    assert isinstance(first, tuple)
    assert first[:2] == (2, 1)


def test_ranks_must_agree_on_it() -> None:
    def begin(group: Any) -> str:
        with pytest.raises(GroupError, match="skip_nonfinite"):
            make_trainer(group=group, skip_nonfinite=group.rank == 0)
        return "refused"

    assert run(2, begin) == ["refused"] * 2
