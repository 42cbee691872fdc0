"""Steps in half floats: close to float32's, repeatable, resumable; artifacts stay float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engine.api import CheckpointState, Module
from engine.base.plan_options import PRECISIONS, PlanOptions
from engine.errors import EngineError
from engine.graphs.io import onnx_io
from engine.kernels.vocabulary.op import TensorType
from engine.models.layers import Layers
from engine.runtime.program import BoundProgram
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from engine.trainer import Trainer
from tests.support.build_twins import Both
from tests.support.builds import needs_cc
from tests.support.places import GOLDENS

STEPS = 20
GOLDEN = GOLDENS / "transformer"
halves = pytest.mark.parametrize("precision", ["bf16", "f16"])


def batches() -> tuple[np.ndarray, np.ndarray]:
    """Return batches of 64 samples whose class is the sign of a sum."""
    x = np.random.default_rng(0).standard_normal((STEPS, 64, 64)).astype(np.float32)
    return x, (x[:, :, :8].sum(2) > 0).astype(np.int64)


def make(precision: Any, **options: Any) -> Trainer:
    x, y = batches()
    return Trainer.from_model(
        "mlp", data=(x[0], y[0]), seed=1, precision=precision, threads=2, **options
    )


def train(trainer: Trainer, first: int = 0, last: int = STEPS) -> list[float]:
    x, y = batches()
    return [float(trainer.step(x[k], y[k])) for k in range(first, last)]


def stored(trainer: Trainer) -> set[str]:
    """Return the types in which the plan of a step keeps values."""
    x, y = batches()
    return {b.dtype for b in trainer.plan_of(x[0], y[0]).plan.buffers}


@halves
def test_a_training_follows_the_one_in_float32(precision: str) -> None:
    single, half = make("f32"), make(precision)
    assert stored(half) - stored(single) == {precision}
    ours, theirs = train(half), train(single)
    assert ours != theirs
    np.testing.assert_allclose(ours, theirs, rtol=0.02)
    assert train(make(precision)) == ours, "the same bits in each run"


@halves
def test_gradients_are_those_of_float32_but_for_their_rounding(precision: Any) -> None:
    trace = np.load(GOLDEN / "trace.npz")
    every = {}
    for name in ("f32", precision):
        state = CheckpointState.load_checkpoint(GOLDEN / "checkpoint")
        module = Module(GOLDEN / "training_model.onnx", state, threads=1, precision=name)
        module(trace["x"][0], trace["y"][0])
        made = [p.grad for _, p in state.parameters if p.requires_grad]
        every[name] = np.concatenate([g.ravel() for g in made if g is not None])
    apart = np.linalg.norm(every[precision] - every["f32"]) / np.linalg.norm(every["f32"])
    assert 0 < apart < 0.02, apart


@halves
def test_checkpoints_and_exports_are_float32(tmp_path: Path, precision: str) -> None:
    trainer = make(precision)
    train(trainer, 0, 5)
    trainer.save(tmp_path / "kept")
    expected = train(trainer, 5, 8)
    for other in PRECISIONS:  # a training run may change its precision
        resumed = make(other)
        resumed.load(tmp_path / "kept")
        losses = train(resumed, 5, 8)
        assert (losses == expected) == (other == precision)
        np.testing.assert_allclose(losses, expected, rtol=0.02)
    trainer.export(tmp_path / "model.onnx")
    kinds = {t.data_type for t in onnx.load(tmp_path / "model.onnx").graph.initializer}
    assert kinds.isdisjoint({onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16})
    assert onnx.TensorProto.FLOAT in kinds


def test_a_budget_keeps_halves() -> None:
    trace = np.load(GOLDEN / "trace.npz")
    x, y = trace["x"][0], trace["y"][0]
    free = Trainer(GOLDEN, precision="bf16", threads=1)
    plan = free.plan_of(x, y).plan
    budget = plan.nbytes - plan.compute_region_bytes("work") // 20
    tight = Trainer(GOLDEN, precision="bf16", threads=1, memory_budget=budget)
    assert tight.plan_of(x, y).nbytes <= budget
    assert [tight.step(x, y) for _ in range(3)] == [free.step(x, y) for _ in range(3)]


def test_a_change_of_what_plans_are_made_for_makes_a_new_plan() -> None:
    trace = np.load(GOLDEN / "trace.npz")
    x, y = trace["x"][0], trace["y"][0]
    state = CheckpointState.load_checkpoint(GOLDEN / "checkpoint")
    module = Module(GOLDEN / "training_model.onnx", state, threads=1)
    memory, shapes = module.session.memory, [x.shape, y.shape]

    def use() -> BoundProgram:
        return module.session.training.get_program(shapes)

    single = use()
    memory.planning = PlanOptions(precision="bf16")
    half = use().plan
    assert {b.dtype for b in half.buffers} - {b.dtype for b in single.plan.buffers} == {"bf16"}
    budget = half.nbytes - half.compute_region_bytes("work") // 20
    memory.planning = PlanOptions(budget=budget, precision="bf16")
    assert use().plan.nbytes <= budget
    memory.planning = PlanOptions()
    assert use() is single, "programs are kept"


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrences_keep_16_bits(kind: str, gates: int) -> None:
    """A step's work memory: what walks keep for the backward pass, and what they make of it."""
    to, n = Layers(), 64
    to.shapes |= {"w": (1, gates * n, 32), "r": (1, gates * n, n), "b": (1, 2 * gates * n)}
    y = to.add_op("Transpose", to.add_op("Tanh", "x"), perm=[1, 0, 2])
    y = to.add_op(kind, y, "w", "r", "b", hidden_size=n)
    to.classify(to.add_op("ReduceMean", y, axes=[0, 1], keepdims=0), n)
    model = onnx_io.to_bytes(to.make_graph(kind, TensorType("f32", ("batch", 40, 32))))
    work = {}
    for precision in PRECISIONS[:3]:
        trainer = Trainer.from_onnx(model, "cross_entropy", threads=1, precision=precision)
        plan = trainer.plan_of(np.zeros((16, 40, 32), np.float32), np.zeros(16, np.int64))
        work[precision] = plan.compute_region_bytes("work")
    assert work["bf16"] <= 0.6 * work["f32"]
    assert work["f16"] <= 0.6 * work["f32"]


@halves
def test_the_origin_of_a_nan_is_followed_through_halves(precision: str) -> None:
    x, y = batches()
    trainer = make(precision)
    train(trainer, 0, 1)
    x[1][3, 3] = np.nan
    trainer.step(x[1], y[1])  # leaves NaN in parameters, too
    assert str(trainer.module.find_nonfinite(x[1], y[1])).startswith("input 'x' has NaN at [3, 3]")


def test_auto_trains_as_the_precision_that_it_chooses() -> None:
    x, y = batches()
    chosen = make("auto")
    plan = chosen.plan_of(x[0], y[0]).plan
    same = make("bf16" if "bf16" in {b.dtype for b in plan.buffers} else "f32")
    assert train(chosen) == train(same)
    np.testing.assert_array_equal(chosen.predict(x[0]), same.predict(x[0]))
    assert chosen.state.to_bytes() == same.state.to_bytes()
    checked = chosen.check({"x": x[0].shape, "labels": y[0].shape}, variants=False)
    assert checked.halves is not None
    assert checked.halves.values == plan.count_halves()
    assert "precision auto" in str(checked)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(EngineError, match=r"precision.*'fp8'.*'f32'.*'bf16'.*'f16'"):
        make("fp8")
    state: Any = CheckpointState.load_checkpoint(GOLDEN / "checkpoint")
    unknown: Any = "fp8"
    with pytest.raises(EngineError, match=r"precision.*'fp8'.*'f32'.*'bf16'.*'f16'"):
        Module(GOLDEN / "training_model.onnx", state, precision=unknown)


@needs_cc
@halves
def test_a_build_equals_the_engine(tmp_path: Path, precision: Any) -> None:
    native = resolve("native")
    planning = PlanOptions(precision=precision)
    build(
        GOLDEN, tmp_path, Options("mnist", native, PlanRequest([4], joined=True, planning=planning))
    )
    both = Both("transformer", made=tmp_path)
    whole = Trainer(GOLDEN, precision=precision, threads=1)
    for k in range(3):
        whole.learning_rate = both.trainer.learning_rate = float(both.trace["learning_rates"][k])
        assert both.trainer.step(*both.batch(k)) == whole.step(*both.batch(k))
    assert both.trainer.state.to_bytes(True) == whole.state.to_bytes(True)
