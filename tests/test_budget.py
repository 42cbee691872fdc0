"""Plans under a budget: what runs again, what it takes, and that no number changes by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.api import CheckpointState, Module
from engine.errors import BudgetError
from engine.kernels.cost import step_seconds
from engine.runtime.plan import Plan

GOLDENS = Path(__file__).parent / "data" / "goldens"
BUDGETS = 20


class Trained:
    """The training model of a golden, planned within budgets."""

    def __init__(self, name: str) -> None:
        self.state = CheckpointState.load_checkpoint(GOLDENS / name / "checkpoint")
        module = Module(GOLDENS / name / "training_model.onnx", self.state, threads=2)
        self.model = module._train
        trace = np.load(GOLDENS / name / "trace.npz")
        values = (trace["x"][0], trace["y"][0])
        self.batch = dict(zip(self.model.inputs, values, strict=True))
        self.free = self.plan(None)

    def plan(self, budget: int | None) -> Plan:
        for planner in self.model._planners.values():
            planner.budget = budget
        return self.model.plan({name: value.shape for name, value in self.batch.items()})

    def run(self, plan: Plan) -> bytes:
        """All that a step leaves behind: outputs, gradients, statistics."""
        program = self.model.load(plan)
        kept = {name: np.array(r) for name, r in self.state.regions.items()}
        for name, value in self.batch.items():
            program.inputs[name][...] = value
        for name, value in program.inputs.items():
            if name not in self.batch:
                value[...] = 1  # the flag that gradients begin anew
        program.run(0, 7)
        found = [np.array(v).tobytes() for v in program.outputs.values()]
        for name, region in self.state.regions.items():
            found.append(region.tobytes())
            region[...] = kept[name]
        return b"".join(found)


@pytest.mark.parametrize("name", ["mobilenet", "transformer"])
def test_more_budget_is_never_slower_and_less_never_higher(name: str) -> None:
    """Over budgets from the least to what needs none; results are equal to the last bit."""
    one = Trained(name)
    with pytest.raises(BudgetError, match="the least that is enough") as refused:
        one.plan(1)
    least, most = refused.value.least, one.free.nbytes
    assert least < most
    expected = one.run(one.free)
    before, ran = None, set()
    for budget in np.linspace(least, most, BUDGETS).astype(int).tolist():
        plan = one.plan(budget)
        assert plan.nbytes <= budget
        took = sum(step_seconds(plan))
        if before is not None:
            assert took <= before[0]
            assert plan.region_bytes("work") >= before[1]
        before = took, plan.region_bytes("work")
        if before not in ran:
            assert one.run(plan) == expected
        ran.add(before)
    assert str(plan) == str(one.free)
    assert len(ran) > 3
    with pytest.raises(BudgetError):
        one.plan(least - 1)


def test_plans_within_a_budget_are_the_same_every_time() -> None:
    one, other = Trained("mobilenet"), Trained("mobilenet")
    with pytest.raises(BudgetError) as refused:
        one.plan(1)
    budget = (one.free.nbytes + refused.value.least) // 2
    assert str(one.plan(budget)) == str(other.plan(budget))
    assert str(one.plan(budget)) == str(other.plan(budget))  # by a ladder that is known
