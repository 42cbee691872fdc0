"""Loss scale: gradients are those without one, and a dynamic one follows what float16 can hold."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.api import CheckpointState, Module, Optimizer
from engine.errors import EngineError, NonFiniteError
from engine.graphs.io import onnx_io
from engine.graphs.offline.loss_scale import scale_loss
from engine.trainer import Trainer
from engine.trainer.reports.progress import Progress
from engine.training.loss_scale import LEAST, MOST, LossScale
from tests.support.places import GOLDENS

GOLDEN = GOLDENS / "transformer"
TRACE = np.load(GOLDEN / "trace.npz")
X, Y = TRACE["x"], TRACE["y"]


def make(**options: Any) -> Trainer:
    return Trainer(GOLDEN, threads=1, learning_rate=0.01, **options)


def copy(trainer: Trainer) -> dict[str, bytes]:
    """Return all that a step changes: parameters, moments and the count of steps."""
    regions = {n: trainer.state.regions[n].tobytes() for n in ("param", "state")}
    return regions | {"steps": bytes([trainer.steps])}


def test_a_power_of_two_changes_no_bit_of_float32() -> None:
    plain, scaled = make(skip_nonfinite=True), make(loss_scale=1024)
    assert (plain.loss_scale, scaled.loss_scale) == (None, 1024)
    for k in range(3):
        assert plain.step(X[k], Y[k]) == scaled.step(X[k], Y[k])
        assert copy(plain) == copy(scaled)


@pytest.mark.parametrize("is_parted", [True, False])
def test_gradients_of_several_batches_are_sums_without_the_factor(is_parted: bool) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((8, 20), np.float32), rng.integers(0, 3, 8)
    values = []
    for scale in (None, 1024):
        trainer = Trainer.from_model(
            "mlp",
            data=(x, y),
            threads=1,
            seed=0,
            loss_scale=scale,
            micro_batches=2 if is_parted else None,
        )
        for _ in range(3):
            if is_parted:
                trainer.step(x, y)
            else:
                trainer.accumulate(x[:4], y[:4])
                trainer.accumulate(x[4:], y[4:])
                trainer.update()
        values.append(np.concatenate([p.data.ravel() for _, p in trainer.state.parameters]))
    np.testing.assert_allclose(values[1], values[0], rtol=1e-5, atol=1e-6)


def test_a_gradient_is_accumulated_as_soon_as_it_is_divided() -> None:
    """At the end of the graph, all divided gradients would live at once."""
    training = onnx_io.load(str(GOLDEN / "training_model.onnx"))
    takers = [n for n in training.nodes if n.op == "InPlaceAccumulatorV2"]
    scaled = scale_loss(training, training.outputs[0], {n.inputs[0] for n in takers})
    place = {name: i for i, n in enumerate(scaled.nodes) for name in n.outputs}
    for taker in takers:
        made = next(n for n in scaled.nodes if n.outputs == taker.outputs).inputs[1]
        assert place[taker.outputs[0]] == place[made] + 1


def test_the_factor_grows_and_backs_off() -> None:
    """As PyTorch's GradScaler(init_scale=8, growth_interval=2), from 1 to 2^24."""
    scaling, seen = LossScale(8.0, 2), []
    now: tuple[float | None, int] = (None, 0)
    for was_done in (1, 1, 1, 0, 1, 1, 0, 0):
        now = scaling.count(*now, was_done=bool(was_done))
        seen.append(now)
    assert seen == [(8, 1), (16, 0), (16, 1), (8, 0), (8, 1), (16, 0), (8, 0), (4, 0)]
    assert scaling.count(LEAST, 1, was_done=False) == (LEAST, 0)
    assert scaling.count(MOST, 1, was_done=True) == (MOST, 0)


def test_an_overflow_is_skipped_counted_and_halves_the_factor() -> None:
    trainer = make(precision="f16", growth_interval=3)
    assert trainer.loss_scale == 65536
    for k in range(3):
        assert trainer.loss_scale == 65536
        trainer.step(X[k], Y[k])
    assert trainer.loss_scale == 2 * 65536
    trainer.state.loss_scale = MOST
    before, skipped = copy(trainer), 0
    while True:
        factor = trainer.loss_scale
        assert np.isfinite(trainer.step(X[3], Y[3]))
        if trainer.skipped == skipped:
            break
        skipped += 1
        assert copy(trainer) == before
        assert factor is not None
        assert trainer.loss_scale == factor / 2
    assert skipped > 0, "nothing overflowed"
    assert copy(trainer) != before
    assert trainer.state.good_steps == 1


def test_a_module_scales_and_its_optimizer_skips() -> None:
    made = []
    for precision in ("f32", "f16"):
        state = CheckpointState.load_checkpoint(GOLDEN / "checkpoint")
        module = Module(GOLDEN / "training_model.onnx", state, threads=1, precision=precision)
        optimizer = Optimizer(GOLDEN / "optimizer_model.onnx", module)
        module(X[0], Y[0])
        grads = [p.grad for _, p in state.parameters if p.requires_grad]
        made.append(np.concatenate([g.ravel() for g in grads if g is not None]))
    assert 0 < np.linalg.norm(made[1] - made[0]) < 0.005 * np.linalg.norm(made[0])
    assert optimizer.skips_nonfinite
    state.loss_scale = MOST
    module.lazy_reset_grad()
    module(X[0], Y[0])
    before = state.regions["param"].tobytes()
    optimizer.step()
    assert (optimizer.skipped, optimizer.loss_scale, optimizer.steps) == (1, MOST / 2, 0)
    assert state.regions["param"].tobytes() == before


def test_a_module_takes_a_factor_and_an_interval() -> None:
    """A power of two changes no bit; a dynamic factor doubles after so many updates."""
    made = []
    for options in ({}, {"loss_scale": 1024}, {"loss_scale": "dynamic", "growth_interval": 2}):
        state = CheckpointState.load_checkpoint(GOLDEN / "checkpoint")
        module = Module(GOLDEN / "training_model.onnx", state, threads=1, **options)
        optimizer = Optimizer(GOLDEN / "optimizer_model.onnx", module)
        factors = []
        for k in range(3):
            module(X[k], Y[k])
            optimizer.step()
            module.lazy_reset_grad()
            factors.append(optimizer.loss_scale)
        made.append((state.regions["param"].tobytes(), factors))
    assert made[0][0] == made[1][0] == made[2][0]
    assert [factors for _, factors in made] == [[None] * 3, [1024] * 3, [65536, 131072, 131072]]
    with pytest.raises(EngineError, match=r"loss_scale=0: expected 'dynamic', or a number from 1"):
        Module(GOLDEN / "training_model.onnx", state, loss_scale=0)


def test_it_is_in_checkpoints(tmp_path: Path) -> None:
    trainer = make(precision="f16", growth_interval=4)
    for k in range(6):
        trainer.step(X[k], Y[k])
    trainer.save(tmp_path / "kept")
    resumed = make(precision="f16", growth_interval=4)
    resumed.load(tmp_path / "kept")
    for each in (trainer, resumed):
        assert (each.loss_scale, each.state.good_steps) == (2 * 65536, 2)
    ours, theirs = ([t.step(X[k], Y[k]) for k in (6, 7)] for t in (trainer, resumed))
    assert ours == theirs
    assert trainer.loss_scale == resumed.loss_scale == 4 * 65536
    single = make()
    single.load(tmp_path / "kept")  # which float32 has no use for
    assert single.loss_scale is None
    single.save(tmp_path / "single")
    resumed.load(tmp_path / "single")
    assert resumed.loss_scale == 2 * 65536


def test_a_resumed_run_says_once_where_its_loss_scale_is_another(tmp_path: Path) -> None:
    """In another precision, or with a fixed factor; the checkpoint's factor waits for its use."""

    def resume(epochs: int, **options: Any) -> str:
        out = io.StringIO()
        trainer = make(**options)
        trainer.fit(
            (X[0], Y[0]), epochs=epochs, batch_size=len(X[0]), seed=0, folder=tmp_path,
            resume=epochs > 1, callbacks=[Progress(out)],
        )  # fmt: skip
        return out.getvalue().split("\n")[0]

    resume(1, precision="f32")
    begins = "; the checkpoint has no loss scale: it starts at 65,536"
    assert resume(2, precision="f16") == f"resumed at step 1, epoch 2/2{begins}"
    assert resume(3, precision="f16") == "resumed at step 2, epoch 3/3"
    waits = "65,536, is kept, not used"
    for epochs in (4, 5):
        said = f"resumed at step {epochs - 1}, epoch {epochs}/{epochs}"
        assert resume(epochs, precision="bf16") == f"{said}; the checkpoint's loss scale, {waits}"
    fixed = f"; the loss scale is 1,024; the checkpoint's, {waits}"
    assert resume(6, precision="f16", loss_scale=1024) == f"resumed at step 5, epoch 6/6{fixed}"
    assert resume(7, precision="f16") == "resumed at step 6, epoch 7/7"


def test_the_history_has_it() -> None:
    trainer = Trainer(GOLDEN, threads=1, precision="f16", growth_interval=2)
    history = trainer.fit((X[0], Y[0]), epochs=4, batch_size=len(X[0]), seed=0)
    assert history["loss_scale"] == [65536, 131072, 131072, 262144]
    assert history["skipped"] == [0, 0, 0, 0]


def test_an_error_ends_what_no_factor_helps() -> None:
    x, y = np.zeros((8, 20), np.float32), np.arange(8) % 3
    trainer = Trainer.from_model("mlp", data=(x, y), precision="f16", skip_limit=2)
    x[0, 0] = np.nan
    for _ in range(18):  # 16 of them lower the factor to 1
        trainer.step(x, y)
    with pytest.raises(NonFiniteError, match=r"19 updates in a row .* loss scale of 1, because"):
        trainer.step(x, y)
    assert trainer.steps == 0
    assert trainer.skipped == 19


@pytest.mark.parametrize("is_forward", [True, False])
def test_where_float16_ends_is_told_with_the_factor(is_forward: bool) -> None:
    """A factor helps in the backward pass; in the forward one only another precision does."""
    trainer = make(precision="f16", skip_limit=0)
    if is_forward:
        trainer.state.parameters["blocks.0.f1.weight"].data[...] *= 1e7
    else:
        trainer.state.loss_scale = MOST
    origin = trainer.module.find_nonfinite(X[0], Y[0])
    assert origin is not None
    assert origin.kind == ("forward" if is_forward else "backward")
    assert origin.dtype == "f16"
    scale = trainer.loss_scale
    ends = "float16 ends at 65504, bfloat16 and float32 do not"
    assert str(origin).endswith(f"; {ends}; loss scale {scale:,g}, updates skipped so far 0")
    while trainer.loss_scale != LEAST and trainer.steps == 0:
        trainer.step(X[0], Y[0])
    assert trainer.steps == (not is_forward)
    if is_forward:
        with pytest.raises(NonFiniteError, match=f"by the node.*{ends}; loss scale 1, updates"):
            trainer.fit((X[0], Y[0]), epochs=1, batch_size=len(X[0]), progress=False)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.5, r"loss_scale=0\.5: expected 'dynamic', or a number from 1 to 16,777,216"),
        (2.0**25, r"loss_scale=.*: expected 'dynamic', or a number from 1 to 16,777,216"),
        ("auto", r"loss_scale='auto': expected 'dynamic', or a number from 1 to 16,777,216"),
        (float("nan"), "loss_scale"),
        (True, "loss_scale"),
    ],
)
def test_what_is_no_loss_scale_is_refused(value: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        make(loss_scale=value)
