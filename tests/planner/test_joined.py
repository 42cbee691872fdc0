"""Training steps as one plan: bit for bit what Module and Optimizer do, faults before updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from engine import Trainer
from engine.artifacts import (
    LAMB,
    SGD,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Group,
    Lion,
    RMSprop,
)
from engine.data import batches
from engine.errors import BudgetError, InputError, LabelError, NonFiniteError, StateError
from engine.graphs.offline.optim_types import Method
from engine.plan.plan import DONE, Plan
from engine.runtime.program import BoundProgram
from tests.support.tied_words import DEEP, IDS, TIED, WORDS, read_content
from tests.support.tiny import BATCH, DROPPING, LABELS, NORMED, PLAIN, X, make_trainer

OPTIMIZERS: dict[str, Method] = {
    "adamw": AdamW(0.05, weight_decay=0.1),
    "adamw by groups": AdamW(0.05, groups=[Group(["table"], lr_scale=0.5)]),
    "lazy adamw, clipped": AdamW(0.05, lazy=True, clip_grad=0.1),
    "sgd": SGD(0.1),
    "sgd by groups, clipped": SGD(0.1, groups=[Group(["mix"], 2.0)], clip_grad=0.05),
    "momentum": SGD(0.1, momentum=0.9, nesterov=True),
    "adam": Adam(0.05, weight_decay=0.1),
    "lion": Lion(0.01),
    "lamb, clipped": LAMB(0.05, clip_grad=0.1),
    "adafactor": Adafactor(0.05),
    "adafactor with momentum, clipped": Adafactor(0.05, beta1=0.9, clip_grad=0.1),
    "adagrad": Adagrad(0.05),
    "rmsprop": RMSprop(0.05, centered=True, momentum=0.9),
}
MODELS: dict[str, tuple[str, Any, Any]] = {
    "tied words with dropout": (TIED, IDS, WORDS),
    "batch norm": (NORMED, X[:BATCH], LABELS[:BATCH]),
}


def step_plan(trainer: Trainer) -> Plan:
    """The plan of the last step."""
    return trainer.module.plans()[0]


@pytest.mark.parametrize(
    ("model", "optimizer"),
    # Groups name parameters of the first model.
    [(m, o) for m in MODELS for o in OPTIMIZERS if m != "batch norm" or not OPTIMIZERS[o].groups],
)
def test_a_step_is_bit_for_bit_what_two_calls_do(model: str, optimizer: str) -> None:
    text, x, labels = MODELS[model]
    one, two = (make_trainer(text, optimizer=OPTIMIZERS[optimizer], threads=2) for _ in range(2))
    for _ in range(3):
        loss = one.step(x, labels)
        assert loss == two.accumulate(x, labels)
        two.update()
    assert read_content(one) == read_content(two)
    assert "grad" not in one.state.regions
    assert one.obstacle == ""


def test_every_parameter_is_updated_when_its_gradient_is_complete() -> None:
    trainer = make_trainer(PLAIN)
    trainer.step(X, LABELS)
    plan = step_plan(trainer)
    assert plan.compute_region_bytes("grad") == 0
    updates = [n for n, step in enumerate(plan.steps) if step.phase == "opt"]
    backward = [n for n, step in enumerate(plan.steps) if step.phase == "bwd"]
    assert len(updates) == 4
    assert updates[0] < backward[-1]  # of the last layer, before the gradients of the first one
    signal = next(n for n, step in enumerate(plan.steps) if step.kernel.startswith("update_sig"))
    assert signal < updates[0]
    assert signal < backward[-1]


def test_clipping_keeps_gradients_until_their_norm_is_known() -> None:
    trainer = make_trainer(PLAIN, optimizer=AdamW(0.05, clip_grad=0.1))
    trainer.step(X, LABELS)
    plan = step_plan(trainer)
    kinds = [step.kernel.split("_f32")[0] for step in plan.steps if step.phase == "opt"]
    assert kinds == ["square_sums"] * 4 + ["clip_factor"] + ["adam"] * 4


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor with momentum, clipped"])
@pytest.mark.parametrize("bad", ["label", "index"])
def test_bad_data_change_nothing(optimizer: str, bad: str) -> None:
    trainer = make_trainer(TIED, optimizer=OPTIMIZERS[optimizer], threads=2)
    trainer.step(IDS, WORDS)
    before = read_content(trainer)
    ids, words = IDS.copy(), WORDS.copy()
    (ids if bad == "index" else words)[2] = 9
    with pytest.raises(LabelError, match=f"{bad} 9 at position"):
        trainer.step(ids, words)
    assert read_content(trainer) == before
    trainer.step(IDS, WORDS)
    assert trainer.steps == 2


def test_the_signal_waits_for_faults_that_only_the_backward_pass_sees() -> None:
    """The indices of the gradient differ from the forward pass's."""
    from engine.graphs.planner.draft import Draft, DraftCall, Value
    from engine.graphs.planner.updates import settle_updates
    from engine.kernels.vocabulary.op import TensorType
    from engine.plan.plan import FAULT, KernelSpec

    def order(index: str) -> list[str]:
        draft = Draft()
        for name in ("i", "j"):
            draft.values[name] = Value(name, TensorType("i64", (4,)), name, "io")
        for name in ("w", "y", "dy", "dw", "db", "go", FAULT):
            kind = "i64" if name == FAULT else "f32"
            draft.values[name] = Value(name, TensorType(kind, (4,)), name)

        def call(template: str, phase: Any, *args: tuple[Any, str]) -> DraftCall:
            return DraftCall(KernelSpec(template, ()), args, (), template, phase, ())

        draft.calls = [
            call("gather", "fwd", ("r", "w"), ("r", "i"), ("w", "y"), ("u", FAULT)),
            call("bias_grad", "bwd", ("r", "y"), ("w", "db"), ("w", "dy")),
            call("gather_grad", "bwd", ("r", index), ("r", "dy"), ("w", "dw"), ("u", FAULT)),
            call("update_signal", "fwd", ("r", "y"), ("w", "go"), ("u", FAULT)),
            call("adam_w", "opt", ("u", "w"), ("r", "dw"), ("r", "go")),
            call("adam_b", "opt", ("u", "b"), ("r", "db"), ("r", "go")),
        ]
        draft.values["b"] = Value("b", TensorType("f32", (4,)), "b", "param")
        settle_updates(draft)
        return [c.source for c in draft.calls]

    behind = ["gather", "update_signal", "bias_grad", "adam_b", "gather_grad", "adam_w"]
    assert order("i") == behind
    late = ["gather", "bias_grad", "gather_grad", "update_signal", "adam_w", "adam_b"]
    assert order("j") == late


def test_bad_labels_do_not_move_running_statistics() -> None:
    trainer = make_trainer(NORMED, threads=2)
    trainer.step(X, LABELS)
    before = read_content(trainer)
    with pytest.raises(LabelError, match="label 9 at position"):
        trainer.step(X, np.where(np.arange(len(LABELS)) == 2, 9, LABELS))
    assert read_content(trainer) == before


@pytest.mark.parametrize("model", [DROPPING, NORMED], ids=["dropout", "batch norm"])
def test_a_loss_that_is_not_finite_changes_nothing_where_it_is_looked_at(model: str) -> None:
    trainer = make_trainer(model)
    trainer.step(X, LABELS)
    regions, steps, draws = read_content(trainer)
    trainer.module.check_finite = True
    bad = np.where(np.arange(6) == 2, np.nan, X).astype(np.float32)
    with pytest.raises(NonFiniteError, match="'loss' is nan; no parameter has changed"):
        trainer.step(bad, LABELS)
    assert read_content(trainer) == (regions, steps, draws + (model == DROPPING))
    with pytest.raises(NonFiniteError, match="input 'x' has NaN at"):
        trainer.fit(batches((bad, LABELS), batch_size=20, allow_nan=True), progress=False)
    assert read_content(trainer)[:2] == (regions, steps)
    trainer.module.check_finite = False
    assert np.isnan(trainer.step(bad, LABELS))  # nobody looks: as two calls would
    assert trainer.steps == steps + 1


@pytest.mark.parametrize("when", ["before", "behind"])
def test_an_interrupt_leaves_a_whole_step_or_none(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, trainer = make_trainer(DROPPING), make_trainer(DROPPING)
    for each in (whole, trainer):
        each.step(X, LABELS)
    run = BoundProgram.run

    def interrupted(self: BoundProgram, *args: Any) -> None:
        if when == "behind":
            run(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(BoundProgram, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trainer.step(X, LABELS)
    if when == "behind":
        whole.step(X, LABELS)
    trainer.predict(X)  # it shares the bytes of what tells whether the step was done
    assert read_content(trainer) == read_content(whole)
    assert trainer.step(X, LABELS) == whole.step(X, LABELS)


def test_gradients_are_there_for_those_who_ask_for_them() -> None:
    trainer, reference = make_trainer(PLAIN), make_trainer(PLAIN)
    trainer.step(X, LABELS)
    with pytest.raises(StateError, match=r"the gradient of 'body.bias' was not kept: .*accumulate"):
        trainer.state.parameters["body.bias"].grad  # noqa: B018  # it raises
    with pytest.raises(StateError, match="kept no gradients"):
        trainer.optimizer.step()  # type: ignore[union-attr]  # there is one
    reference.accumulate(X, LABELS)
    reference.update()
    for each in (trainer, reference):
        each.accumulate(X[:8], LABELS[:8])
        each.accumulate(X[8:], LABELS[8:])
    grad, wanted = (t.state.parameters["body.bias"].grad for t in (trainer, reference))
    assert grad is not None
    np.testing.assert_array_equal(grad, wanted)
    for each in (trainer, reference):
        each.update()
    assert read_content(trainer)[:2] == read_content(reference)[:2]


def test_an_optimizer_that_cannot_be_joined_runs_as_a_plan_of_its_own(tmp_path: Path) -> None:
    trainer = make_trainer(PLAIN, folder=tmp_path)
    path = tmp_path / "optimizer_model.onnx"
    model = onnx.load(path)
    signal = numpy_helper.from_array(np.array([True]), "always")
    model.graph.initializer.append(signal)
    model.graph.node[0].input.append("always")
    onnx.save(model, path)
    other = Trainer(tmp_path, threads=1, seed=7)
    assert other.step(X, LABELS) == trainer.step(X, LABELS)
    assert other.obstacle.endswith("of the optimizer model has a signal of its own")
    assert DONE not in [port.name for port in step_plan(other).outputs]
    assert read_content(other) == read_content(trainer)


# --- budgets


def test_a_budget_bounds_a_step_and_a_summary_says_what_it_cost() -> None:
    x, labels = np.tile(X, (100, 1)), np.tile(LABELS, 100)
    free = make_trainer(DEEP)
    with pytest.raises(StateError, match="there was no step yet"):
        free.plan  # noqa: B018  # it raises
    most = free.plan_of(x, labels)
    assert "second time" not in most.summary()
    budget = int(0.85 * most.nbytes)
    tight = make_trainer(DEEP, memory_budget=budget)
    assert tight.step(x, labels) == free.step(x, labels)
    assert tight.plan.nbytes <= budget
    assert tight.plan.micro_batches == 1
    assert read_content(tight) == read_content(free)
    text = tight.plan.summary()
    assert "computed a second time: " in text
    assert "% of the predicted time" in text
    assert 0 < tight.plan.recomputed_share < 0.5
    np.testing.assert_array_equal(tight.predict(x[:20]), free.predict(x[:20]))


def test_a_budget_that_is_too_small_changes_nothing() -> None:
    trainer = make_trainer(PLAIN, memory_budget="2 kB")
    before = read_content(trainer)
    with pytest.raises(BudgetError, match="budget of 2000 bytes is too small"):
        trainer.step(X, LABELS)
    assert read_content(trainer) == before
    fixed = PLAIN.replace("float[N,6]", "float[20,6]").replace("float[N,3]", "float[20,3]")
    with pytest.raises(BudgetError):
        make_trainer(fixed, memory_budget="2 kB")
    with pytest.raises(InputError, match="memory_budget='much'"):
        make_trainer(PLAIN, memory_budget="much")


def test_a_summary_says_why_gradients_are_kept() -> None:
    clipped = make_trainer(PLAIN, optimizer=AdamW(0.05, clip_grad=1.0))
    assert "kept in region work until the norm" in clipped.plan_of(X, LABELS).summary()
    assert "gradients" not in make_trainer(PLAIN).plan_of(X, LABELS).summary()
