"""Collective steps: ranks that train on parts of a batch do what one process does with all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.api import CheckpointState, Module, Optimizer
from engine.artifacts import SGD, CrossEntropyLoss
from engine.errors import (
    BudgetError,
    EngineError,
    GroupError,
    InputError,
    LabelError,
    NonFiniteError,
    PlanError,
    StateError,
)
from engine.graphs.offline import rank_graphs as ranked
from engine.kernels.binaries.load import get_linker
from engine.kernels.machine.levels import LEVELS
from engine.kernels.machine.target import detect_host
from engine.plan.collective import RANKS, SAMPLES, SHARE, list_collectives
from engine.plan.plan import Plan
from engine.plan.plan_file import Writer, from_bytes, to_bytes
from engine.plan.verify import verify
from engine.proximal import set_anchors
from engine.runtime.arena import allocate
from engine.runtime.program import BoundProgram
from engine.tools.trimmed.kernel_set import find_kernel_set
from engine.tools.trimmed.opset import OpSet
from engine.trainer import nonfinite
from engine.training.membership import Membership
from engine.training.memory import Memory
from engine.training.model import Model
from tests.support.collective import (
    IMAGES,
    MODELS,
    collect_results,
    join_trainer,
    run_ranks,
    run_step,
)
from tests.support.harness import get_gradient
from tests.support.places import GOLDENS
from tests.support.thread_group import ThreadGroup, run
from tests.support.tiny import LABELS, NORMED, PLAIN, X, make_trainer, read_values

CUTS = {"even": (0, 10, 20), "uneven": (0, 3, 11, 17, 20), "empty": (0, 12, 12, 20)}


def bytes_of(trainer: Trainer) -> dict[str, bytes]:
    return {name: trainer.state.regions[name].tobytes() for name in ("param", "state")}


@pytest.mark.parametrize(
    ("model", "cuts", "threads"),
    [("dense", "even", 1), ("dense", "empty", 2), ("cnn", "even", 2), ("cnn", "uneven", 1)],
)
def test_ranks_train_as_one_process(
    model: str, cuts: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses, parameters, running statistics and moments, clipped to a norm, in small buckets."""
    monkeypatch.setattr(ranked, "LEAST", 1 << 7)
    monkeypatch.setattr(ranked, "MOST", 1 << 7)
    text, x = MODELS[model]
    options: dict[str, Any] = {
        "optimizer": SGD(0.05, momentum=0.9, clip_grad=0.5),
        "threads": threads,
    }
    one = make_trainer(text, **options)
    losses = [one.step(x, LABELS) for _ in range(3)]

    def work(group: ThreadGroup, cut: tuple[int, int]) -> Any:
        mine = join_trainer(text, group, **options)
        actual_steps = [run_step(mine, cut, x, LABELS) for _ in range(3)]
        return actual_steps, bytes_of(mine), mine.module.plans()[0], group.calls

    all_ranks = run_ranks(CUTS[cuts], work)
    for actual, content, plan, _ in all_ranks:
        assert actual == pytest.approx(losses, rel=1e-5)
        assert content == all_ranks[0][1]
        for name in content:
            mine, whole = np.frombuffer(content[name], np.float32), one.state.regions[name]
            np.testing.assert_allclose(mine, whole.view(np.float32), rtol=2e-4, atol=2e-5)
        kinds = [each.kind for each in list_collectives(plan)]
        assert kinds.count("start") == kinds.count("wait") > 1
        assert kinds.count("agree") == 1
        norms = text.count("BatchNormalization")
        assert (kinds.count("moments"), kinds.count("sum")) == (norms, norms)
    assert len({tuple(calls) for *_, calls in all_ranks}) == 1


def test_gradients_of_two_calls_are_those_of_the_joined_batch() -> None:
    """Also where accumulation and parts of batches keep them in region grad."""
    one = make_trainer(NORMED, micro_batches=1)
    one.module(X, LABELS)
    grad = one.state.regions["grad"].view(np.float32).copy()

    def work(group: ThreadGroup, cut: tuple[int, int]) -> Any:
        mine = join_trainer(NORMED, group)
        ranks = mine.module.session.training.ranks
        assert ranks is not None
        ranks.share = ranks.samples = (cut[1] - cut[0]) / 20
        loss = mine.module(X[slice(*cut)], LABELS[slice(*cut)])
        return loss, mine.state.regions["grad"].view(np.float32).copy()

    for loss, actual_ranks in run_ranks((0, 5, 20), work):
        assert loss == pytest.approx(one.module(X, LABELS), rel=1e-5)
        np.testing.assert_allclose(actual_ranks, grad, rtol=1e-4, atol=1e-6)


CLIPPED = PLAIN.replace('["": 17]', '["": 17, "engine": 1]').replace(
    "r = Tanh(b)",
    """t = Tanh(b)
    k = engine.StopGradient(t)
    d = engine.Cotangent(k)
    l = Constant<value = float {-0.001}>()
    u = Constant<value = float {0.001}>()
    e = Clip(d, l, u)
    r = engine.Redirect(k, d, t, e)""",
)


def test_told_gradients_are_given_those_of_the_joined_batch() -> None:
    """Each rank clips as one process would; gradients that are weighed afterwards are refused."""
    one = make_trainer(CLIPPED, optimizer=SGD(0.05))
    loss = one.step(X, LABELS)

    def work(group: ThreadGroup) -> Any:
        mine = make_trainer(CLIPPED, optimizer=SGD(0.05), group=group)
        assert mine.step(X, LABELS) == pytest.approx(loss, rel=1e-5)
        with pytest.raises(InputError, match="a rank cannot train on its share in parts"):
            make_trainer(CLIPPED, optimizer=SGD(0.05), group=group, micro_batches=3).step(X, LABELS)
        return mine.state.regions["param"].view(np.float32).copy()

    for result in collect_results(run(2, work)):
        whole = one.state.regions["param"].view(np.float32)
        np.testing.assert_allclose(result, whole, rtol=1e-5, atol=1e-7)


def test_statistics_may_stay_local() -> None:
    def work(group: ThreadGroup, cut: tuple[int, int]) -> Any:
        mine = join_trainer(NORMED, group, statistics=False)
        loss = run_step(mine, cut, X, LABELS)
        kinds = [each.kind for each in list_collectives(mine.module.plans()[0])]
        return loss, kinds, mine.state.parameters["norm.mean"].data.copy()

    (a, kinds, mean), (b, _, other) = run_ranks((0, 8, 20), work)
    assert a == b
    assert kinds == ["agree", "start", "wait"]
    assert not np.allclose(mean, other)


def test_moments_are_joined_as_well_as_they_are_made() -> None:
    """Where the mean is 1000 deviations, the variance keeps the digits that x has."""
    far = NORMED.replace("h = MatMul(x, body.weight)", "h = Identity(x)").replace(
        "float[8] body.bias", "float[6] body.bias"
    )
    far = far.replace("float[8] norm", "float[6] norm").replace(
        "float[8,3] head", "float[6,3] head"
    )
    x = X + np.float32(1000)

    def work(group: ThreadGroup, cut: tuple[int, int]) -> Any:
        mine = join_trainer(far, group, optimizer=SGD(0.0))
        run_step(mine, cut, x, LABELS)
        return mine.state.parameters["norm.var"].data.copy()

    start = make_trainer(far).state.parameters
    moved = x.astype(np.float64) + start["body.bias"].data
    expected = 0.9 * start["norm.var"].data + 0.1 * moved.var(0)
    for rank in run_ranks((0, 1, 7, 20), work):
        np.testing.assert_allclose(rank, expected, rtol=1e-4)


@pytest.mark.parametrize("text", [NORMED, PLAIN], ids=["batch norm", "plain"])
def test_a_bad_label_ends_the_step_of_all_ranks(text: str) -> None:
    labels = LABELS.copy()
    labels[17] = 3

    def work(group: ThreadGroup, cut: tuple[int, int]) -> Any:
        mine = join_trainer(text, group)
        run_step(mine, cut, X, LABELS)
        before = (
            mine.state.regions["state"].tobytes(),
            mine.state.parameters["head.bias"].data.copy(),
        )
        with pytest.raises(LabelError, match=r"^rank 1: plan .*: label 3 at position 7 is outside"):
            run_step(mine, cut, X, labels)
        after = mine.state.regions["state"].tobytes(), mine.state.parameters["head.bias"].data
        assert before[0] == after[0]
        assert np.array_equal(before[1], after[1])
        return run_step(mine, cut, X, LABELS), mine.steps

    first, second = run_ranks((0, 10, 20), work)
    assert first == second
    assert first[1] == 2


def test_a_loss_that_is_not_finite_holds_back_all_updates() -> None:
    x = X.copy()
    x[15, 2] = np.nan

    def work(group: ThreadGroup, cut: tuple[int, int]) -> Any:
        mine = join_trainer(NORMED, group)
        mine.module.check_finite = True
        before = read_values(mine)["head.weight"]
        with pytest.raises(NonFiniteError):
            run_step(mine, cut, x, LABELS)
        assert read_values(mine)["head.weight"] == before
        batch = [x[slice(*cut)], LABELS[slice(*cut)]]
        return mine.steps, str(nonfinite.make_error(mine.training_steps, batch, np.nan, "step 1"))

    (steps, innocent), (others, guilty) = run_ranks((0, 10, 20), work)
    assert (steps, others) == (0, 0)
    assert "it began on another rank" in innocent
    assert "input 'x' has NaN at [5, 2]" in guilty


def test_an_overflow_on_one_rank_lowers_the_loss_scale_of_all() -> None:
    """All ranks skip the step, and continue with the factor of one process."""
    bad = X.copy()
    bad[15, 2] = np.inf
    options: dict[str, Any] = {"precision": "f16", "growth_interval": 2, "threads": 1}

    def follow(trainer: Trainer, cut: tuple[int, int]) -> Any:
        seen = []
        for x in (X, bad, X, X):
            before = bytes_of(trainer)
            if trainer.learner.session.training.ranks is None:
                trainer.step(x, LABELS)
            else:
                run_step(trainer, cut, x, LABELS)
            changed = bytes_of(trainer) != before
            seen.append((trainer.loss_scale, trainer.skipped, trainer.steps, changed))
        return seen, bytes_of(trainer)

    seen, _ = follow(make_trainer(PLAIN, **options), (0, 20))
    assert seen == [
        (65536, 0, 1, True), (32768, 1, 1, False), (32768, 1, 2, True), (65536, 1, 3, True)
    ]  # fmt: skip

    def work(group: ThreadGroup, cut: tuple[int, int]) -> Any:
        return follow(join_trainer(PLAIN, group, **options), cut)

    first, second = run_ranks((0, 10, 20), work)
    assert first == second
    assert first[0] == seen


def test_a_rank_that_ends_leaves_nobody_waiting() -> None:
    def work(group: ThreadGroup, cut: tuple[int, int]) -> Any:
        mine = join_trainer(NORMED, group)
        run_step(mine, cut, X, LABELS)
        if group.rank == 1:
            raise ValueError("gone")
        with pytest.raises(GroupError, match="rank 1 has ended: gone"):
            run_step(mine, cut, X, LABELS)

    with pytest.raises(ValueError, match="gone"):
        run_ranks((0, 10, 20), work)


def test_a_pull_to_anchors_counts_once() -> None:
    """The term of FedProx is not part of the loss, and each rank does not add it again."""
    one = make_trainer(PLAIN, proximal=True)
    set_anchors(one.state, 3.0)
    losses = [one.step(X, LABELS) for _ in range(3)]

    def work(group: ThreadGroup, cut: tuple[int, int]) -> Any:
        mine = join_trainer(PLAIN, group, proximal=True)
        set_anchors(mine.state, 3.0)
        return [run_step(mine, cut, X, LABELS) for _ in range(3)]

    for rank in run_ranks((0, 4, 20), work):
        assert rank == pytest.approx(losses, rel=1e-5)


def test_ranks_keep_to_a_budget() -> None:
    """Each rank keeps to a plan of its own: collective steps do not run again."""
    text, options = MODELS["cnn"][0], dict[str, Any](optimizer=SGD(0.05))
    one = make_trainer(text, **options)
    losses = [one.step(IMAGES, LABELS) for _ in range(2)]

    def work(group: ThreadGroup, cut: tuple[int, int]) -> Any:
        with pytest.raises(BudgetError) as error:
            run_step(join_trainer(text, group, memory_budget=1000, **options), cut, IMAGES, LABELS)
        mine = join_trainer(text, group, memory_budget=error.value.least, **options)
        return [run_step(mine, cut, IMAGES, LABELS) for _ in range(2)], mine.module.plans()[0]

    for actual_ranks, plan in run_ranks((0, 6, 20), work):
        assert actual_ranks == pytest.approx(losses, rel=1e-5)
        assert any(step.again for step in plan.steps)


# --- buckets and plans


def test_buckets_are_few_and_large() -> None:
    small, large, n = 100_000, 14_000_000, 4
    assert ranked.choose_bucket_bytes(small, n) == small
    assert ranked.choose_bucket_bytes(large, 1) == large
    assert ranked.LEAST <= ranked.choose_bucket_bytes(large, n) <= ranked.MOST
    assert ranked.choose_bucket_bytes(10**12, n) == ranked.MOST


def plan_of_rank() -> Plan:
    """The plan of a step of one of two ranks."""
    results = collect_results(run(2, _planned))[0]
    assert isinstance(results, Plan)
    return results


def _planned(group: ThreadGroup) -> Plan:
    trainer = join_trainer(NORMED, group)
    run_step(trainer, (0, 10), X, LABELS)
    return trainer.module.plans()[0]


def test_the_plan_shows_its_collective_steps_and_where_they_come_from() -> None:
    plan = plan_of_rank()
    assert {RANKS, SHARE, SAMPLES} <= {port.name for port in plan.inputs}
    text = str(plan)
    for line in (
        "reduce_moments_f32",
        "all_reduce_f32_sum",
        "agree_f32",
        "all_reduce_f32_start",
        "all_reduce_f32_wait",
    ):
        assert line in text
    assert "# BatchNormalization_0/JoinMoments" in text
    (again,) = from_bytes(to_bytes([plan], plan.target), plan.target)
    assert list_collectives(again) == list_collectives(plan)


def test_plans_that_break_the_rules_of_sums_are_refused() -> None:
    plan = plan_of_rank()
    start, wait = (
        next(each for each in list_collectives(plan) if each.kind == kind)
        for kind in ("start", "wait")
    )

    def refused(steps: Sequence[Any], why: str) -> None:
        with pytest.raises(PlanError, match=why):
            verify(replace(plan, steps=tuple(steps)))

    steps = list(plan.steps)
    late = replace(steps[wait.step], consts=(steps[wait.step].consts[0], 1))
    refused([*steps[: wait.step], late, *steps[wait.step + 1 :]], "number 1 after")
    copied = next(s for s in steps if s.kernel.startswith("strided_copy"))
    args = (replace(copied.args[0], buffer=start.buffer), *copied.args[1:])
    early = replace(copied, args=args, barrier=True)
    refused([*steps[: wait.step], early, *steps[wait.step :]], "whose sum is under way|lives")


def test_kernels_of_wheels_are_enough() -> None:
    """A closed plan of a rank uses kernels that a library of all ops has."""
    trainer = make_trainer(NORMED, proximal=True)
    model = trainer.learner.session.training
    closed = Model(
        model.source, trainer.state, Memory(), 1, model.what, LEVELS[0].make_target("linux"), True
    )
    closed.ranks = Membership(4)
    plan = closed.plan({"x": (8, 6), "labels": (8,)})
    assert len(list_collectives(plan)) > 4
    assert {*plan.specs} <= find_kernel_set(OpSet(all_if_none=True)).keys()


def test_who_trains_alone_refuses_them() -> None:
    plan = plan_of_rank()
    with pytest.raises(StateError, match="sums over the ranks of a group; expected a group"):
        BoundProgram(
            plan,
            get_linker(detect_host()).get_addresses,
            {"work": allocate(plan.compute_region_bytes("work"))},
        )
    with pytest.raises(PlanError, match="a library trains alone"):
        Writer(plan.target, plan.target, plan.threads, stripped=True).plan(plan)


def test_a_module_takes_its_ranks() -> None:
    trainer = make_trainer(PLAIN, loss=CrossEntropyLoss())
    (result,) = collect_results(run(1, lambda group: _alone(trainer, group)))
    assert result == pytest.approx(float(trainer.module(X, LABELS)), rel=1e-6)


def _alone(trainer: Trainer, group: ThreadGroup) -> float:
    module = Module(
        trainer.learner.session.training.source, trainer.state, threads=1, ranks=Membership(group)
    )
    return float(module(X, LABELS))


# --- traces of onnxruntime-training


@pytest.mark.parametrize(
    ("case", "size"),
    [
        ("mobilenet", 2),
        ("cnn", 3),
        *(
            pytest.param(case, size, marks=pytest.mark.whole)
            for case in ("mlp", "cnn", "mobilenet")
            for size in (2, 3, 4)
            if (case, size) not in (("mobilenet", 2), ("cnn", 3))
        ),
    ],
)
def test_ranks_follow_the_trace_of_one_process(case: str, size: int) -> None:
    """Ten steps of onnxruntime-training on whole batches: losses, gradients, parameters."""
    folder = GOLDENS / case
    spec = json.loads((folder / "case.json").read_text())
    trace = dict(np.load(folder / "trace.npz"))
    cuts = np.linspace(0, trace["x"].shape[1], size + 1).astype(int)

    def work(group: ThreadGroup, cut: tuple[int, int]) -> Any:
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        ranks = Membership(group)
        module = Module(folder / "training_model.onnx", state, threads=1, ranks=ranks)
        optimizer = Optimizer(folder / "optimizer_model.onnx", module)
        ranks.share = ranks.samples = (cut[1] - cut[0]) / cuts[-1]
        losses = []
        for k in range(spec["steps"]):
            losses.append(float(module(trace["x"][k, slice(*cut)], trace["y"][k, slice(*cut)])))
            optimizer.set_learning_rate(trace["learning_rates"][k])
            optimizer.step()
            module.lazy_reset_grad()
        gradients = {name: get_gradient(state, name).copy() for name in spec["requires_grad"]}
        return losses, gradients, module.get_contiguous_parameters(trainable_only=True)

    expected = {n: trace[f"grad/{n}"] for n in spec["requires_grad"]}
    noise = 1e-6 * max(np.abs(g).max() for g in expected.values())  # of gradients that are 0
    after = trace["parameters_after"]
    for losses, gradients, parameters in run_ranks(cuts.tolist(), work):
        np.testing.assert_allclose(losses, trace["losses"], rtol=1e-4)
        for name, dx in expected.items():
            atol = 1e-4 * np.abs(dx).max() + noise
            np.testing.assert_allclose(gradients[name], dx, rtol=0, atol=atol, err_msg=name)
        np.testing.assert_allclose(parameters, after, rtol=0, atol=1e-3 * np.abs(after).max())


@pytest.mark.parametrize("guilty", [0, 1])
@pytest.mark.parametrize("earlier", [0, 1, 2])
@pytest.mark.parametrize("text", [NORMED, PLAIN], ids=["batch norm", "plain"])
def test_a_refused_batch_leaves_the_gradients_of_all_ranks(
    text: str, earlier: int, guilty: int
) -> None:
    """Those of the batches before it, to the last bit, whichever rank has met the bad label."""
    labels = LABELS.copy()
    labels[1 if guilty == 0 else 18] = 3

    def train(group: ThreadGroup, *, meets: bool) -> tuple[bytes, dict[str, bytes], int]:
        mine = make_trainer(text, group=group)
        for rows in (9, 1)[:earlier]:  # shares of other weights; with one row a rank has none
            mine.accumulate(X[:rows], LABELS[:rows])
        before = mine.state.regions["param"].tobytes()
        if meets:
            with pytest.raises(EngineError, match="label 3 at position"):
                mine.accumulate(X, labels)
        after = mine.state.regions["param"].tobytes()
        assert before == after
        mine.accumulate(X, LABELS)
        mine.update()
        grad = mine.state.regions["grad"].tobytes()
        return grad, read_values(mine), mine.state.draws

    for refused, other in zip(
        run(2, lambda group: train(group, meets=True)),
        run(2, lambda group: train(group, meets=False)),
        strict=True,
    ):
        assert refused == other
