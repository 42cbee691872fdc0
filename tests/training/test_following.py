"""Sessions of trainers: weights are folded and packed once, and again where they have changed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import engine
from engine import Trainer
from engine.inference import Session
from engine.runtime.change_clock import ChangeClock
from engine.runtime.program import BoundProgram
from engine.tools import cli
from engine.training.model import Model
from tests.support.blocks import make_model

# Two convolutions with batch norms, whose running statistics training moves, and a layer.
MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,16,9,9] x, float[32,16,1,1] wa, float[32] a_scale, float[32] a_shift, float[32] a_mean,
   float[32] a_var, float[32,32,3,3] wb, float[32] b_scale, float[32] b_shift, float[32] b_mean,
   float[32] b_var, float[32,3] wc) => (float[N,3] y) {
    a = Conv(x, wa)
    n = BatchNormalization(a, a_scale, a_shift, a_mean, a_var)
    r = Relu(n)
    b = Conv<pads = [1, 1, 1, 1]>(r, wb)
    m = BatchNormalization(b, b_scale, b_shift, b_mean, b_var)
    p = GlobalAveragePool(m)
    f = Flatten(p)
    y = MatMul(f, wc)
}"""
RNG = np.random.default_rng(0)
X, LABELS = RNG.standard_normal((4, 16, 9, 9), np.float32), np.array([0, 1, 2, 0])

Array = npt.NDArray[np.float32]
Runs = list[tuple[int, int]]


@pytest.fixture(params=[1, 2])
def trainer(request: pytest.FixtureRequest, tmp_path: Path) -> Trainer:
    return Trainer.from_onnx(
        make_model(MODEL),
        "cross_entropy",
        engine.SGD(lr=0.1),
        folder=tmp_path / "art",
        threads=request.param,
    )


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Runs of steps that run once, as they happen."""
    known: Runs = []
    inner = BoundProgram._run_once

    def watch(program: BoundProgram, first: int, count: int) -> None:
        known.append((first, count))
        inner(program, first, count)

    monkeypatch.setattr(BoundProgram, "_run_once", watch)
    return known


def ask(session: Session) -> Array:
    (y,) = session.run(None, {"x": X})
    return np.asarray(y)


def find_program(session: Session) -> BoundProgram:
    programs = session._calls.model.memory.programs
    return next(p for p in programs.values() if p.plan.once)


def test_answers_after_updates_are_those_of_a_fresh_session(
    trainer: Trainer, tmp_path: Path
) -> None:
    """To the last bit of a fresh trainer's; of an exported model NumPy folds small constants."""
    session, threads = trainer.session(), trainer.module.threads
    answers = list[Array]()
    for _ in range(3):
        answers.append(ask(session))
        np.testing.assert_array_equal(answers[-1], trainer.predict_batch(X)["y"])
        trainer.save(tmp_path / "kept")
        other = Trainer(tmp_path / "art", threads=threads)
        other.load(tmp_path / "kept")
        np.testing.assert_array_equal(answers[-1], ask(other.session()))
        trainer.export(tmp_path / "now.onnx")
        exported = ask(Session(tmp_path / "now.onnx", threads=threads))
        np.testing.assert_allclose(answers[-1], exported, rtol=1e-5, atol=1e-5)
        trainer.step(X, LABELS)
    assert not np.array_equal(answers[0], answers[1])
    assert find_program(session).plan.compute_region_bytes("made") > 0


def test_nothing_is_made_twice_between_changes(trainer: Trainer, runs: Runs) -> None:
    session = trainer.session()
    ask(session)
    once = find_program(session).plan.once
    assert runs == [(0, once)]
    ask(session)
    trainer.predict_batch(X)
    trainer.evaluate_batch(X, LABELS)
    assert runs == [(0, once)]
    trainer.step(X, LABELS)
    ask(session)
    ask(session)
    assert sum(count for _, count in runs) == 2 * once


def test_saving_and_exporting_changes_nothing(trainer: Trainer, runs: Runs, tmp_path: Path) -> None:
    session = trainer.session()
    ask(session)
    runs.clear()
    trainer.save(tmp_path / "kept")
    trainer.export(tmp_path / "now.onnx")
    ask(session)
    assert runs == []


def test_one_parameter_costs_the_steps_that_read_it(trainer: Trainer, runs: Runs) -> None:
    session = trainer.session()
    before = ask(session)
    steps = find_program(session).plan.steps
    runs.clear()
    trainer.state.parameters["wa"] = trainer.state.parameters["wa"].data * 2
    gc.collect()
    after = ask(session)
    ran = {steps[n].source for first, count in runs for n in range(first, first + count)}
    assert ran
    assert not any("b_" in source or source.startswith("b") for source in ran)
    np.testing.assert_array_equal(after, trainer.predict_batch(X)["y"])
    assert not np.array_equal(before, after)


def write_through_a_view(trainer: Trainer, folder: Path) -> Iterator[None]:
    view = trainer.state.parameters["wb"].data[1:]
    for factor in (2, 3):
        view *= factor
        yield
    view *= 4
    del view
    yield


def put_statistics_back(trainer: Trainer, folder: Path) -> Iterator[None]:
    trainer.accumulate(X, LABELS)
    yield
    trainer.learner.refuse_gradients()
    yield


def load(trainer: Trainer, folder: Path) -> Iterator[None]:
    trainer.save(folder / "kept")
    trainer.step(X, LABELS)
    yield
    trainer.load(folder / "kept")
    yield


def copy_a_buffer(trainer: Trainer, folder: Path) -> Iterator[None]:
    values = trainer.module.get_contiguous_parameters(trainable_only=True)
    trainer.module.copy_buffer_to_parameters(np.asarray(values) * 1.5)
    yield


def profile(trainer: Trainer, folder: Path) -> Iterator[None]:
    """A profile trains, and puts back what it has changed."""
    trainer.module.train()
    trainer.module.profile(X, LABELS, optimizer=trainer.optimizer, repeats=1)
    yield


def accumulate_and_update(trainer: Trainer, folder: Path) -> Iterator[None]:
    for _ in range(2):
        trainer.accumulate(X, LABELS)
        yield
    trainer.update()
    yield


@pytest.mark.parametrize(
    "change",
    [
        write_through_a_view,
        put_statistics_back,
        load,
        copy_a_buffer,
        profile,
        accumulate_and_update,
    ],
)
def test_every_way_of_changing_parameters_is_followed(
    trainer: Trainer, tmp_path: Path, change: Callable[[Trainer, Path], Iterator[None]]
) -> None:
    session = trainer.session()
    ask(session)
    for _ in change(trainer, tmp_path):
        np.testing.assert_array_equal(ask(session), trainer.predict_batch(X)["y"])


def test_moved_memory_keeps_answers(trainer: Trainer) -> None:
    """A larger batch moves the memory that all plans share."""
    session = trainer.session()
    first = ask(session)
    large = np.concatenate([X] * 20)
    (many,) = session.run(None, {"x": large})
    np.testing.assert_array_equal(ask(session), first)
    np.testing.assert_array_equal(many, trainer.predict_batch(large)["y"])


def test_prepared_plans_answer_where_nothing_can_plan(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, threads = ask(trainer.session()), trainer.module.threads
    command = ["prepare", str(tmp_path / "art"), "--batch", str(len(X)), "--threads", str(threads)]
    assert cli.main(command) == 0
    monkeypatch.setenv("EDGEGRAD_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setattr(Model, "plan", None)
    other = Trainer(tmp_path / "art", threads=threads)
    np.testing.assert_array_equal(ask(other.session()), expected)


def test_changes_are_listed_since_a_reading() -> None:
    changes = ChangeClock()
    changes.note([(0, 64)])
    first = changes.clock
    assert changes.is_same_since(first)
    assert changes.list_since(first) == []
    changes.note([(64, 128), (0, 64)])
    assert sorted(changes.list_since(first)) == [(0, 64), (64, 128)]
    array = np.zeros(4, np.float32)
    changes.note_loan((128, 144), array)
    for _ in range(2):
        assert changes.list_since(changes.clock) == [(128, 144)]
        assert not changes.is_same_since(changes.clock)
    now = changes.clock
    del array
    assert changes.list_since(now) == [(128, 144)]
    assert changes.is_same_since(changes.clock)
