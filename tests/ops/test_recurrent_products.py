"""Products of R with states and with gradients of gates, of factors of 16 bits, against float64.

The portable variants of the register tile run, as at the smallest level, which takes LLVM least.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest

from engine.base.plan_options import PlanOptions
from engine.graphs.passes import storage
from engine.graphs.planner.planner import make_plan
from engine.kernels.analysis.cost import predict_steps
from engine.kernels.analysis.flops import find_factors
from engine.kernels.binaries.load import get_object
from engine.kernels.machine.levels import list_levels
from engine.kernels.machine.target import Target
from engine.kernels.vector_ir.tile import RUN
from engine.plan.plan import KernelSpec
from engine.tools.dev.case_graphs import OneNode, backward_of
from engine.tools.dev.cases.recurrent import GATES, case
from tests.support.halves import EPSILON, round_to_half
from tests.support.harness import run
from tests.support.pairs import (
    PAIRED,
    count_dots,
    count_half_multiply_adds,
    count_squares,
    with_factors,
)

Half = Literal["bf16", "f16"]
UNIT = 2.0**-24  # rounding unit of float32
TINY = 2.0**-25  # half of the least f16
AFTER = {"linear_before_reset": 1}
KINDS: list[tuple[str, dict[str, Any]]] = [("RNN", {}), ("LSTM", {}), ("GRU", {}), ("GRU", AFTER)]
HALVED = Target("aarch64-unknown-linux-gnu", "cortex-a76", "+fullfp16", 16, 8, 2, masks=False,
                by_lane=True)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One step of all rows, with X that is the products of W, and factors that halves can hold."""

    kind: str
    attrs: dict[str, Any]
    half: Half
    hidden: int

    def make(self, *, double: bool) -> OneNode:
        """Return the node; double: with the same numbers in float64."""
        width = GATES[self.kind] * self.hidden
        given = "bhc" if self.kind == "LSTM" else "bh"
        one = OneNode(case(self.kind, 1, 7, width, self.hidden, given, attrs=self.attrs))
        one.inputs = {n: round_to_half(a, self.half) for n, a in one.inputs.items()}
        one.inputs["x1"] = np.eye(width, dtype=np.float32)[None]
        if double:
            wide = OneNode(one.case, double=True)
            wide.inputs = {n: a.astype(np.float64) for n, a in one.inputs.items()}
            return wide
        return one

    def bound_sum(self, size: np.ndarray, count: int) -> np.ndarray:
        """Return the bound of a sum of so many products; size: of their absolute values."""
        bound = (count + 3) * UNIT * size
        if self.half == "f16":
            bound = bound + min(RUN // 2 + 4, count + 1) * EPSILON["f16"] * size + count * TINY
        return np.asarray(bound)


# Products of f16 take LLVM longest: one cell stands for all.
STEPS = [
    *((kind, attrs, "bf16") for kind, attrs in KINDS),
    pytest.param("RNN", {}, "f16", marks=pytest.mark.whole),
]


@pytest.mark.parametrize("hidden", [37, 150])
@pytest.mark.parametrize(("kind", "attrs", "half"), STEPS)
def test_a_step_of_exact_factors(
    kind: str, attrs: dict[str, Any], half: Half, hidden: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only sums differ from float64, the gradients of gates and, of a GRU that resets first, r h,
    which are rounded to factors.
    """
    monkeypatch.setattr(storage, "SMALL", 1 << 40)  # nothing is stored in 16 bits
    step = Step(kind, attrs, half, hidden)
    one, wide = step.make(double=False), step.make(double=True)
    graph, exact = backward_of(one)[0], backward_of(wide)[0]
    graph.outputs.append("y0")
    exact.outputs.append("y0")
    names = backward_of(one)[1]
    target = with_factors(list_levels()[-1].make_target())
    made = run(graph, one.inputs, threads=2, precision=half, target=target)
    want = run(exact, wide.inputs)
    r, h = np.abs(wide.inputs["x2"][0]), np.abs(wide.inputs["x5"][0])
    size = h @ r.T
    off = step.bound_sum(size + np.abs(wide.inputs["x0"][0]) + 1, hidden).max()
    if kind == "GRU" and not attrs:  # r h: rounded, and its r was computed
        off += (EPSILON[half] + off / 4) * size.max()
    # The slopes of activations are at most 1, and states and inner products are factors of gates.
    grown = 2 + max(np.abs(wide.inputs.get("x6", h)).max(), h.max()) + size.max()
    assert np.abs(made["y0"] - want["y0"]).max() <= grown * off + 8 * UNIT

    d_gates = np.abs(want[names["x0"]][0])
    size = d_gates @ r
    back = EPSILON[half] * size + step.bound_sum(size, len(r)) + 4 * grown * off * size.max()
    if kind == "GRU" and not attrs:  # dr has been made of the first product
        back = back + (back.max() * h.max() / 4) * r.sum(0)
    error = np.abs(made[names["x5"]][0] - want[names["x5"]][0])
    assert np.all(error <= back), (error / back).max()
    single = run(graph, one.inputs, threads=2)[names["x5"]]
    assert np.any(made[names["x5"]] != single)  # by factors of 16 bits


ROWS = {
    f"{kind}-{way}-{layout}{'-after' if attrs else ''}": (kind, way, layout, attrs)
    for kind, attrs in KINDS
    for way, layout in (("bidirectional", 0), ("reverse", 1))
}


@pytest.mark.parametrize("row", ROWS)
def test_steps_in_all_orders(row: str) -> None:
    """Lengths, directions and layouts, on one thread and on three: close to float32."""
    kind, way, layout, attrs = ROWS[row]
    given = "blhcp" if kind == "LSTM" else "blh"
    attrs = {"direction": way, "layout": layout, **attrs}
    one = OneNode(case(kind, 5, 5, 3, 21, given, attrs=attrs))
    graph, _ = backward_of(one)
    graph.outputs += one.outputs
    single = run(graph, one.inputs)
    target = with_factors(list_levels()[-1].make_target())
    first = run(graph, one.inputs, precision="bf16", target=target)
    again = run(graph, one.inputs, threads=3, precision="bf16", target=target)
    for name, want in single.items():
        np.testing.assert_array_equal(first[name], again[name], err_msg=name)
        near = 16 * EPSILON["bf16"] * np.abs(want).max(initial=1)
        np.testing.assert_allclose(first[name], want, rtol=0, atol=near, err_msg=name)


def list_walks(
    target: Target, precision: Half, kind: str = "LSTM", attrs: dict[str, Any] | None = None
) -> list[KernelSpec]:
    """Return the walks of a step of a recurrence on a target, forward and backward."""
    graph, _ = backward_of(OneNode(case(kind, 4, 32, 16, 64, "bh", attrs=attrs or {})))
    options = PlanOptions(precision=precision)
    plan = make_plan(graph, {}, target=target, threads=1, options=options)
    name = kind.lower()
    return [spec for spec in plan.specs if spec.template.startswith(name)]


# Kinds share the products, but each template asks for them itself.
INSTRUCTED = [
    *((PAIRED[0], "bf16", kind, attrs) for kind, attrs in KINDS),
    *((PAIRED[1], "bf16", kind, {}) for kind in ("LSTM", "GRU")),
    *((HALVED, "f16", kind, {}) for kind in ("LSTM", "GRU")),
]


@pytest.mark.parametrize(
    ("target", "half", "kind", "attrs"),
    INSTRUCTED,
    ids=[f"{t.cpu}-{kind}{'-after' * bool(attrs)}" for t, _, kind, attrs in INSTRUCTED],
)
def test_walks_multiply_by_the_instructions_of_a_target(
    target: Target, half: Half, kind: str, attrs: dict[str, Any]
) -> None:
    specs = list_walks(target, half, kind, attrs)
    assert [find_factors(spec) for spec in specs] == [half] * 2
    for spec in specs:
        code = get_object(spec, target)
        made = count_half_multiply_adds(code)
        assert (made if half == "f16" else count_dots(code, target.arch)) >= target.mr
        if target is PAIRED[1]:  # squares of rows and columns, and pairs for what is left over
            assert count_squares(code) >= target.mr


def test_factors_of_16_bits_are_predicted_to_pay() -> None:
    """`auto` compares such predictions: products of R count as products of matrices do."""
    graph, _ = backward_of(OneNode(case("LSTM", 100, 32, 64, 256, "bh")))
    seconds = [
        sum(predict_steps(make_plan(graph, {}, target=PAIRED[0], threads=1,
                                    options=PlanOptions(precision=half))))
        for half in ("f32", "bf16")
    ]  # fmt: skip
    assert seconds[0] > 1.5 * seconds[1]


def test_walks_without_such_products_are_those_of_float32() -> None:
    plain = replace(PAIRED[0], features="")
    assert {find_factors(spec) for spec in list_walks(plain, "bf16")} == {""}
