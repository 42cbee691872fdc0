"""Segments: what runs sample by sample under a budget, what it computes, and what it takes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from engine import Trainer
from engine.api import CheckpointState, Module, Optimizer
from engine.artifacts import AdamW, MSELoss, generate_artifacts
from engine.base.aliases import Array
from engine.base.plan_options import PlanOptions
from engine.errors import BudgetError
from engine.graphs.planner import planner
from engine.graphs.planner.budget import Ladder
from engine.graphs.planner.draft import Draft
from engine.graphs.planner.segments import list_candidates, make_segments
from engine.graphs.planner.tile import make_tiles
from engine.graphs.planner.updates import move_updates_last, settle_updates
from engine.kernels.analysis.cost import predict_steps
from engine.kernels.machine.target import Target
from engine.kernels.ops.registry import list_templates
from engine.plan.plan import CHECK, COUNT, RATE, Plan
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from engine.training import plan_cache
from engine.training.planning import GradientUse
from tests.support.blocks import list_groups, make_model, rename_value
from tests.support.builds import load, needs_cc

LEAST = 1 << 12  # bytes of what segments make here
WHOLE = "without segments"
TRAINED = ("w1", "scale1", "shift1", "w2", "scale2", "shift2", "w3", "w4")

# Each kind of convolution and pool, between functions whose gradients have no jumps.
LAYERS = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,3,40,40] x, float[16,3,3,3] w1, float[16] scale1, float[16] shift1, float[16] mean1,
   float[16] var1, float[32,16,3,3] w2, float[32] scale2, float[32] shift2, float[32] mean2,
   float[32] var2, float[32,1,5,5] w3, float[2,32,3,3] w4) => (float[N,2,10,10] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w1)
    an, ma, va = BatchNormalization<training_mode = 1>(a, scale1, shift1, mean1, var1)
    at = Tanh(an)
    b = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(at)
    c = Conv<pads = [1, 1, 1, 1]>(b, w2)
    cn, mc, vc = BatchNormalization<training_mode = 1>(c, scale2, shift2, mean2, var2)
    ct = Tanh(cn)
    d = Conv<group = 32, pads = [2, 2, 2, 2]>(ct, w3)
    dt = Tanh(d)
    e = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(dt)
    et = Tanh(e)
    y = Conv<pads = [1, 1, 1, 1]>(et, w4)
}"""


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layers")
    generate_artifacts(
        make_model(LAYERS),
        loss=MSELoss(),
        optimizer=AdamW(),
        requires_grad=TRAINED,
        artifact_directory=folder,
    )
    return folder


def by_samples(draft: Draft, target: Target, threads: int) -> None:
    """Make segments of all that can be, in the place of the groups of a plan without a budget."""
    move_updates_last(draft)
    made = make_segments(draft, list_candidates(draft, target, threads, LEAST))
    draft.calls, draft.values = made.calls, made.values
    make_tiles(draft, target, threads)
    settle_updates(draft)


def trained(
    folder: Path, threads: int, batch: int, monkeypatch: pytest.MonkeyPatch, how: str
) -> tuple[Plan, list[Array]]:
    """The plan of a module, and the loss and the gradients of its step on random data, twice."""
    if how != WHOLE:
        monkeypatch.setattr(planner, "group", by_samples)
    monkeypatch.setattr(plan_cache, "digest_sources", lambda: how)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, threads=threads)
    rng = np.random.default_rng(batch)
    shapes = (batch, 3, 40, 40), (batch, 2, 10, 10)
    x, target = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    actual = []
    for _ in range(2):
        module.lazy_reset_grad()
        loss = np.float32(module(x, target))
        actual.append(np.append(state.regions["grad"].view(np.float32), loss))
    (program,) = module.session.memory.programs.values()
    return program.plan, actual


@pytest.mark.parametrize(("threads", "batch"), [(1, 8), (2, 6), (3, 5)])
def test_segments_compute_what_steps_do(
    artifacts: Path, threads: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (expected, _) = trained(artifacts, threads, batch, monkeypatch, WHOLE)
    plan, (actual, again) = trained(artifacts, threads, batch, monkeypatch, "with segments")
    assert np.array_equal(actual, again)
    assert np.linalg.norm(actual - expected) < 2e-5 * np.linalg.norm(expected)
    template = {k.symbol: k.spec.template for k in plan.kernels}
    cut = {template[s.kernel] for _, steps in list_groups(plan) for s in steps if not s.numbered}
    declared = {name for name, kernel in list_templates().items() if kernel.samples}
    assert declared & set(template.values()) <= cut
    assert len(declared & cut) >= 9


def test_values_may_have_the_names_of_what_segments_make(
    artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, expected = trained(artifacts, 2, 6, monkeypatch, "with segments")
    added = {b.name for b in plan.buffers if re.search(r"^[a-z]+/\d$", b.name)}
    assert added
    for name in added:
        generate_artifacts(
            rename_value(make_model(LAYERS), "et", name),
            loss=MSELoss(),
            optimizer=AdamW(),
            requires_grad=TRAINED,
            artifact_directory=tmp_path / name,
        )
        _, actual = trained(tmp_path / name, 2, 6, monkeypatch, f"with {name}")
        assert np.array_equal(actual, expected)


def test_what_segments_make_takes_a_sample_a_thread(
    artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result of the depthwise convolution is made for dy, for its sums, and for its use."""
    plan, _ = trained(artifacts, 2, 8, monkeypatch, "with segments")
    made = [b for b in plan.buffers if b.name.split("/")[0] == "d"]
    assert len(made) == 2
    for b in made:
        assert b.nbytes == 2 * 4 * 32 * 20 * 20
        (group,) = [steps for n, steps in list_groups(plan) if n == b.first]
        assert b.last == b.first + len(group) - 1


class Joined:
    """A training step that updates, planned within budgets."""

    def __init__(self, folder: Path, batch: int) -> None:
        self.state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(folder / "training_model.onnx", self.state, threads=2)
        optimizer = Optimizer(folder / "optimizer_model.onnx", module)
        self.model = module.session.training
        self.update = GradientUse(optimizer.model, optimizer.layout())
        rng = np.random.default_rng(batch)
        shapes = (batch, 3, 40, 40), (batch, 2, 10, 10)
        values = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
        self.batch = dict(zip(self.model.inputs, values, strict=True))

    def plan(self, budget: int) -> Plan:
        self.model.memory.planning = PlanOptions(budget=budget)
        shapes = {name: value.shape for name, value in self.batch.items()}
        return self.model.plan(shapes, update=self.update)

    def run(self, plan: Plan) -> Array:
        """Return the parameters and optimizer states after a step."""
        program = self.model.load(plan)
        program._memory["work"].view(np.uint8)[...] = 0xFF  # NaN: what is read unwritten shows
        kept = {name: np.array(r) for name, r in self.state.regions.items()}
        given = {**self.batch, RATE: 1e-3, COUNT: 1, CHECK: False}
        for name, value in program.inputs.items():
            value[...] = given[name]
        program.run(0, 7)
        joined = np.concatenate(
            [self.state.regions[n].view(np.float32) for n in ("param", "state")]
        )
        for name, region in self.state.regions.items():
            region[...] = kept[name]
        return joined


def test_budgets_below_what_single_layers_touch(
    artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More is never slower, less has never a higher peak, and all compute the same."""
    one = Joined(artifacts, 32)
    free = one.plan(1 << 40)
    expected = one.run(free)
    with pytest.raises(BudgetError) as refused:
        one.plan(1)
    before, ran = (float("inf"), 0), set[tuple[float, int]]()
    for budget in np.linspace(refused.value.least, free.nbytes, 20).astype(int).tolist():
        plan = one.plan(budget)
        assert plan.nbytes <= budget
        now = sum(predict_steps(plan)), plan.compute_region_bytes("work")
        assert now[0] <= before[0]
        assert now[1] >= before[1]
        if now not in ran:
            assert np.linalg.norm(one.run(plan) - expected) < 2e-5 * np.linalg.norm(expected)
        ran.add(now)
        before = now
    assert len(ran) > 3
    monkeypatch.setattr(Ladder, "_list_sample_orders", lambda *_: iter(()))
    monkeypatch.setattr(plan_cache, "digest_sources", lambda: WHOLE)
    with pytest.raises(BudgetError) as whole:
        Joined(artifacts, 32).plan(1)
    work = [
        e.value.least - free.nbytes + free.compute_region_bytes("work") for e in (refused, whole)
    ]
    assert work[0] < 0.9 * work[1]


@needs_cc
def test_a_trimmed_build_runs_segments(artifacts: Path, tmp_path: Path) -> None:
    one = Joined(artifacts, 16)
    with pytest.raises(BudgetError) as refused:
        one.plan(1)
    budget = refused.value.least + 1
    trainer = Trainer(artifacts, threads=2, memory_budget=budget)
    planning = PlanOptions(budget=budget)
    options = Options(
        "mnist", resolve("native"), PlanRequest((16,), 2, joined=True, planning=planning)
    )
    build(artifacts, tmp_path, options)
    built = load(tmp_path).Trainer()
    for _ in range(2):
        assert float(built.step(*one.batch.values())) == float(trainer.step(*one.batch.values()))
    assert any(steps[0].tiles == 16 for _, steps in list_groups(one.plan(budget)))
