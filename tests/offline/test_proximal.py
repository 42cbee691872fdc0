"""FedProx: gradients with a pull to anchors, in the engine, in trimmed builds, and its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.api import CheckpointState, Module
from engine.artifacts import SGD, AdamW, CrossEntropyLoss, SparseUpdate, generate_artifacts
from engine.errors import DTypeError, InputError, ModelError, StateError
from engine.proximal import ANCHOR, MU, set_anchors
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from tests.support.build_twins import Both
from tests.support.builds import needs_cc
from tests.support.harness import copy_parameters
from tests.support.places import GOLDENS
from tests.support.sparse_net import forward, make_batch

TRAINED = ["w1", "b1", "w2", "s2", "w3", "w4", "w5"]
KINDS = {"float": np.float32, "double": np.float64}


def made(folder: Path, kind: str = "float", **options: Any) -> CheckpointState:
    """Write artifacts of the net of tests/offline/test_sparse.py; returns their checkpoint."""
    options = {"requires_grad": TRAINED, "loss": CrossEntropyLoss(), "proximal": True, **options}
    generate_artifacts(forward(kind), artifact_directory=folder, frozen_batch_norm=True, **options)
    return CheckpointState.load_checkpoint(folder / "checkpoint")


def step(folder: Path, state: CheckpointState, kind: str) -> tuple[float, dict[str, Any]]:
    """The loss of a step and the gradients."""
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx", threads=2)
    module.lazy_reset_grad()
    loss = float(module(*make_batch(KINDS[kind])))
    return loss, {n: np.array(p.grad) for n, p in state.parameters if p.requires_grad}


def moved(state: CheckpointState, seed: int = 0) -> None:
    """Move every trained parameter away from its anchor."""
    rng = np.random.default_rng(seed)
    for _, parameter in state.parameters:
        if parameter.requires_grad:
            parameter.data[...] += 0.1 * rng.standard_normal(parameter.data.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_loss_and_mu_times_the_distance(
    kind: str, tmp_path: Path
) -> None:
    plain, held = made(tmp_path / "plain", kind, proximal=False), made(tmp_path / "held", kind)
    names = {name for name, p in held.parameters if not p.requires_grad}
    assert names >= {MU, *(name + ANCHOR for name in TRAINED)}
    for state in (plain, held):
        moved(state)
    expected, before = step(tmp_path / "plain", plain, kind)
    for mu, exact in ((0.0, True), (0.25, False)):
        held.parameters[MU].data[...] = mu
        loss, actual = step(tmp_path / "held", held, kind)
        assert loss == expected  # it is the data's
        for name, gradient in actual.items():
            far = held.parameters[name].data - held.parameters[name + ANCHOR].data
            want = before[name] + held.parameters[name].data.dtype.type(mu) * far
            error = np.abs(gradient - want).max()
            assert error <= (0 if exact else 2e-7) * np.abs(want).max(), name


def test_the_gradient_is_that_of_the_objective(tmp_path: Path) -> None:
    """In float64, along a random direction, by central differences of loss + mu/2 |w - w0|^2."""
    state, mu = made(tmp_path, "double"), 0.7
    set_anchors(state, mu)
    moved(state)
    weights = {n: p.data.copy() for n, p in state.parameters if p.requires_grad}
    rng = np.random.default_rng(2)
    ways = {name: rng.standard_normal(w.shape) for name, w in weights.items()}
    _, actual = step(tmp_path, state, "double")
    slope = sum(float((actual[name] * way).sum()) for name, way in ways.items())

    def objective(length: float) -> float:
        total = 0.0
        for name, way in ways.items():
            state.parameters[name].data[...] = weights[name] + length * way
            far = state.parameters[name].data - state.parameters[name + ANCHOR].data
            total += mu / 2 * float((far**2).sum())
        return total + step(tmp_path, state, "double")[0]

    assert (objective(1e-5) - objective(-1e-5)) / 2e-5 == pytest.approx(slope, rel=1e-7)


def test_a_round_begins_with_anchors_where_the_parameters_are(tmp_path: Path) -> None:
    state = made(tmp_path)
    moved(state)
    set_anchors(state, 0.5)
    assert state.parameters[MU].data == np.float32(0.5)
    for name in TRAINED:
        anchor = state.parameters[name + ANCHOR].data
        np.testing.assert_array_equal(anchor, state.parameters[name].data)
    _, first = step(tmp_path, state, "float")
    set_anchors(state, 0)
    _, plain = step(tmp_path, state, "float")
    for name, gradient in first.items():
        np.testing.assert_array_equal(gradient, plain[name])


def test_a_trainer_holds_on_and_exports_the_model_alone(tmp_path: Path) -> None:
    """One plan for the step, with a clipped norm, and a checkpoint that goes on."""
    far = {}
    for mu in (0.0, 50.0):
        made(tmp_path, optimizer=SGD(0.02))
        trainer = Trainer(tmp_path, threads=2)
        before = {name: trainer.state.parameters[name].data.copy() for name in TRAINED}
        set_anchors(trainer.state, mu)
        for _ in range(20):
            trainer.step(*make_batch(np.float32))
        assert not trainer.obstacle
        far[mu] = sum(
            float(((trainer.state.parameters[name].data - before[name]) ** 2).sum())
            for name in TRAINED
        )
    assert far[50.0] < 0.1 * far[0.0]
    trainer.save(tmp_path / "saved")
    other = Trainer(tmp_path, threads=2)
    other.load(tmp_path / "saved")
    assert trainer.step(*make_batch(np.float32)) == other.step(*make_batch(np.float32))
    trainer.export(tmp_path / "inference.onnx")
    import onnx

    names = {t.name for t in onnx.load(tmp_path / "inference.onnx").graph.initializer}
    assert not any(name == MU or name.endswith(ANCHOR) for name in names)
    assert names >= set(TRAINED) - {"s2"}


def test_the_pull_is_one_kernel_for_each_parameter(tmp_path: Path) -> None:
    """At most one, as some join an existing map; and the anchors are the only new memory."""
    actual = {}
    for held in (False, True):
        made(tmp_path, optimizer=AdamW(), proximal=held)
        trainer = Trainer(tmp_path, threads=1)
        actual[held] = trainer.plan_of(*make_batch(np.float32)).plan
    plain, with_pull = actual[False], actual[True]
    pulls = [step for step in with_pull.steps if "Proximal" in step.source]
    assert len(pulls) == len(TRAINED)
    assert all(step.kernel.startswith("map") for step in pulls)
    assert len(with_pull.steps) <= len(plain.steps) + len(pulls)
    assert with_pull.compute_region_bytes("work") == plain.compute_region_bytes("work")


def test_parts_of_weights_have_anchors_of_their_own(tmp_path: Path) -> None:
    update = SparseUpdate(channels={"w2": 0.5})
    state = made(tmp_path, requires_grad=None, update=update)
    anchors = [name for name, _ in state.parameters if name.endswith(ANCHOR)]
    assert anchors == ["w2.trained" + ANCHOR]
    assert state.parameters[anchors[0]].data.shape == (10, 4, 3, 3)


@needs_cc
def test_a_trimmed_build_holds_on_as_the_engine_does(tmp_path: Path) -> None:
    generate_artifacts(
        GOLDENS / "mlp/forward.onnx", ["0.weight", "2.weight"], loss=CrossEntropyLoss(),
        optimizer=AdamW(), artifact_directory=tmp_path / "artifacts", proximal=True,
    )  # fmt: skip
    build(
        tmp_path / "artifacts",
        tmp_path / "out",
        Options("mnist", resolve("native"), PlanRequest([4])),
    )
    both = Both("mlp", folder=tmp_path / "artifacts", made=tmp_path / "out")
    for number, mu in enumerate((0.3, 0.3, 0.05)):
        if number != 1:
            for state in (both.state, both.trainer.state):
                set_anchors(state, mu)
        actual, expected = both.step(number)
        assert actual == expected
        both.assert_equal()
    assert both.trainer.state.to_bytes(True) == both.state.to_bytes(True)
    data = both.module.inference_model_to_bytes(["output"])
    assert both.trainer.module.inference_model_to_bytes(["output"]) == data


def test_parts_of_a_batch_have_one_term(tmp_path: Path) -> None:
    actual = []
    for count in (None, 3):
        trainer = Trainer.from_onnx(
            forward(), "cross_entropy", SGD(0.1), proximal=True, frozen_batch_norm=True,
            train=TRAINED, threads=1, micro_batches=count,
        )  # fmt: skip
        set_anchors(trainer.state, 0.8)
        moved(trainer.state)
        trainer.step(*make_batch(np.float32))
        actual.append(copy_parameters(trainer))
    for name in TRAINED:
        np.testing.assert_allclose(actual[0][name], actual[1][name], rtol=1e-5, atol=1e-6)


def test_what_cannot_be_held_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing is trained"):
        made(tmp_path, requires_grad=None, frozen_params=["w1"])
    with pytest.raises(DTypeError, match="proximal: expected True or False"):
        made(tmp_path, proximal="mu")
    with pytest.raises(ModelError, match="proximal_mu"):
        generate_artifacts(
            forward(), TRAINED, loss=CrossEntropyLoss(), artifact_directory=tmp_path,
            loss_input_names=["scores", MU], proximal=True,
        )  # fmt: skip
    state = made(tmp_path)
    for wrong, error in ((-1, InputError), (float("nan"), InputError), ("1", DTypeError)):
        with pytest.raises(error, match="mu"):
            set_anchors(state, wrong)  # type: ignore[arg-type]  # the text is refused
    with pytest.raises(InputError, match="too large"):
        set_anchors(state, 1e300)
    with pytest.raises(InputError, match="the loss is a sum"):
        Trainer.from_onnx(
            forward(), CrossEntropyLoss(reduction="sum"), proximal=True, micro_batches=2,
            frozen_batch_norm=True,
        ).step(*make_batch(np.float32))  # fmt: skip
    with pytest.raises(StateError, match="no parameter 'proximal_mu'"):
        set_anchors(made(tmp_path, proximal=False), 0.1)
