"""Refused steps change nothing: parameters, states, gradients and running statistics stay.

A step is refused for a label out of range, or on request for a loss that is not finite; an update
is skipped for gradients that are not finite.  For each way to train the whole state is compared
with the state before, to the last bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.api import CheckpointState, Module, Optimizer
from engine.artifacts import AdamW, CrossEntropyLoss, generate_artifacts
from engine.data import batches
from engine.errors import EngineError, LabelError, NonFiniteError
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from tests.support.builds import load, needs_cc
from tests.support.thread_group import run
from tests.support.tiny import BAD, DROPPING, LABELS, NORMED, X, forward, make_trainer

WRONG = np.where(np.arange(20) == 19, 3, LABELS)  # the last label is not a class
STATISTICS = ("norm.mean", "norm.var")


def kept(state: CheckpointState) -> dict[str, bytes]:
    """All that a state keeps, gradients included."""
    state.settle()
    regions = {name: content.tobytes() for name, content in state.regions.items()}
    return {**regions, "steps": repr([g.step for g in state.groups]).encode()}


def opened(folder: Path, **options: Any) -> tuple[CheckpointState, Module, Optimizer]:
    """A module and its optimizer over the artifacts of a folder."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, threads=2, **options)
    return state, module, Optimizer(folder / "optimizer_model.onnx", module, skip_nonfinite=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts of a model with a batch norm that trains."""
    made = tmp_path_factory.mktemp("normed")
    Trainer.from_onnx(forward(NORMED), "cross_entropy", AdamW(0.05), folder=made)
    return made


def test_statistics_move_in_steps_that_count(folder: Path) -> None:
    state, module, optimizer = opened(folder)
    before = {name: state.parameters[name].data.copy() for name in STATISTICS}
    module(X, LABELS)
    optimizer.step()
    assert all((state.parameters[name].data != before[name]).any() for name in STATISTICS)


@pytest.mark.parametrize("waiting", [0, 1, 2])
def test_a_bad_label_in_two_calls(folder: Path, waiting: int) -> None:
    """The result does not depend on waiting gradients of other batches."""
    state, module, optimizer = opened(folder)
    module(X, LABELS)
    optimizer.step()
    module.lazy_reset_grad()
    for _ in range(waiting):
        module(X, LABELS)
    before = kept(state)
    with pytest.raises(LabelError):
        module(X, WRONG)
    assert kept(state) == before


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_loss_that_is_not_finite_in_two_calls(folder: Path, waiting: int) -> None:
    state, module, _ = opened(folder, check_finite=True)
    for _ in range(waiting):
        module(X, LABELS)
    before = [state.parameters[name].data.tobytes() for name in STATISTICS]
    with pytest.raises(NonFiniteError):
        module(BAD, LABELS)
    assert [state.parameters[name].data.tobytes() for name in STATISTICS] == before


def test_a_skipped_update_takes_back_the_steps_that_it_is_of(folder: Path) -> None:
    """Of several batches, too; those that an earlier update has taken stay."""
    state, module, optimizer = opened(folder)
    module(X, LABELS)
    optimizer.step()
    before = {**kept(state), "grad": b""}
    for several in ([BAD], [X, BAD], [BAD, X, X]):
        module.lazy_reset_grad()
        for batch in several:
            module(batch, LABELS)
        optimizer.step()
        assert {**kept(state), "grad": b""} == before
    assert (optimizer.skipped, optimizer.steps) == (3, 1)
    optimizer.step()  # of the same gradients again
    assert {**kept(state), "grad": b""} == before


def refused(trainer: Trainer, act: Callable[[], object]) -> None:
    """Do something that is refused or skipped; nothing but gradients has changed."""
    before = {**kept(trainer.state), "grad": b""}
    with contextlib.suppress(EngineError):
        act()
    assert {**kept(trainer.state), "grad": b""} == before


KINDS: dict[str, dict[str, Any]] = {
    "whole": {},
    "parts": {"micro_batches": 3, "own_statistics": True},
    "threads": {"threads": 2},
}


@pytest.mark.parametrize("skip", [False, True], ids=["ends", "skips"])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_a_trainer(kind: str, skip: bool) -> None:
    """By one plan, by parts, and by batches that wait for an update."""
    trainer = make_trainer(NORMED, **KINDS[kind], skip_nonfinite=skip)
    trainer.module.check_finite = not skip
    trainer.step(X, LABELS)
    refused(trainer, lambda: trainer.step(X, WRONG))
    refused(trainer, lambda: trainer.step(BAD, LABELS))
    refused(trainer, lambda: trainer.accumulate(X, WRONG))
    data = batches((BAD, LABELS), batch_size=20, allow_nan=True)
    refused(trainer, lambda: trainer.fit(data, progress=False))
    assert trainer.skipped == 2 * skip


def test_a_fit_of_accumulated_batches_that_ends() -> None:
    trainer = make_trainer(NORMED)
    both = np.concatenate([X, BAD]), np.concatenate([LABELS, LABELS])
    data = batches(both, batch_size=20, shuffle=False, allow_nan=True)
    refused(trainer, lambda: trainer.fit(data, accumulate=2, progress=False))


@pytest.mark.parametrize("parts", [{}, KINDS["parts"]], ids=["whole", "parts"])
def test_ranks_refuse_alike(parts: dict[str, Any]) -> None:
    """An error on one rank makes all refuse; statistics of both ranks stay."""

    def train(group: Any) -> str:
        trainer = make_trainer(NORMED, group=group, skip_nonfinite=True, **parts)
        trainer.step(X, LABELS)
        refused(trainer, lambda: trainer.step(X, WRONG))
        refused(trainer, lambda: trainer.step(BAD, LABELS))
        return "same"

    assert run(2, train) == ["same"] * 2


@needs_cc
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("joined", [False, True], ids=["apart", "joined"])
def test_builds(joined: bool, skip: bool, tmp_path: Path) -> None:
    proto = forward(NORMED)
    names = [t.name for t in proto.graph.initializer if t.name not in STATISTICS]
    generate_artifacts(
        proto, names, loss=CrossEntropyLoss(), optimizer=AdamW(0.05, skip_nonfinite=skip),
        artifact_directory=tmp_path / "artifacts",
    )  # fmt: skip
    options = Options("mnist", resolve("native"), PlanRequest([20], joined=joined))
    build(tmp_path / "artifacts", tmp_path / "out", options)
    errors = load(tmp_path / "out")
    trainer = errors.Trainer(tmp_path / "artifacts" / "checkpoint")
    trainer.step(X, LABELS)

    def content() -> bytes:
        return bytes(trainer.state.to_bytes(True))

    before = content()
    with pytest.raises(errors.LabelError):
        trainer.step(X, WRONG)
    assert content() == before
    if skip:
        trainer.step(BAD, LABELS)
        assert trainer.optimizer.get_skipped() == 1
        after = CheckpointState.from_bytes(content())
        assert after.skipped == 1
        after.skipped = 0
        assert after.to_bytes(True) == before
    trainer.step(X, LABELS)
    assert content() != before


@needs_cc
@pytest.mark.parametrize("joined", [False, True], ids=["apart", "joined"])
def test_builds_that_draw(joined: bool, tmp_path: Path) -> None:
    """A refused step draws nothing; checkpoints count the draws as the engine's do."""
    artifacts = tmp_path / "artifacts"
    engine = make_trainer(DROPPING, folder=artifacts, seed=0)
    start = (artifacts / "checkpoint").read_bytes()
    build(
        artifacts,
        tmp_path / "out",
        Options("mnist", resolve("native"), PlanRequest([20], joined=joined)),
    )
    face = load(tmp_path / "out")
    trainer = face.Trainer(start)
    trainer.learning_rate = engine.learning_rate
    for _ in range(2):
        assert trainer.step(X, LABELS) == engine.step(X, LABELS)
        for each, error in ((trainer, face.LabelError), (engine, LabelError)):
            with pytest.raises(error):
                each.step(X, WRONG)
    assert engine.state.draws == 2
    content = trainer.state.to_bytes(True)
    kept = CheckpointState.from_bytes(content)
    assert (kept.draws, dict(kept.properties)) == (2, {})
    resumed = face.Trainer(engine.state.to_bytes(True))
    assert dict(resumed.state.properties).keys() <= {"edgegrad.set"}
    expected = engine.step(X, LABELS)
    assert resumed.step(X, LABELS) == trainer.step(X, LABELS) == expected
