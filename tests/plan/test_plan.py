"""The plan's own rules: `verify` catches every kind of broken plan; text and symbols are stable."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest

from engine.errors import PlanError
from engine.graphs.planner.planner import make_plan
from engine.kernels.binaries.load import get_addresses
from engine.kernels.machine.target import detect_host
from engine.plan.form import PlanForm
from engine.plan.plan import Arg, KernelSpec, Plan, Port
from engine.plan.verify import verify
from engine.runtime.arena import allocate
from engine.runtime.program import BoundProgram
from engine.tools.dev.case_graphs import OneNode, list_cases
from tests.support.plans import RELU, chain


def with_buffer(index: int, **changes: object) -> Plan:
    plan = chain()
    buffers = list(plan.buffers)
    buffers[index] = replace(buffers[index], **changes)  # type: ignore[arg-type]  # any field
    return replace(plan, buffers=tuple(buffers))


def with_step(index: int, **changes: object) -> Plan:
    plan = chain()
    steps = list(plan.steps)
    steps[index] = replace(steps[index], **changes)  # type: ignore[arg-type]  # any field
    return replace(plan, steps=tuple(steps))


def test_a_good_plan_passes_and_is_returned() -> None:
    plan = chain()
    assert verify(plan) is plan


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (with_buffer(1, offset=4), "alignment"),
        (with_buffer(1, offset=128), "of 128 bytes"),
        (with_buffer(1, nbytes=60), "60 bytes for a tensor of 64"),
        (with_buffer(1, region="heap"), "unknown region"),
        (with_buffer(1, last=0), "lives 0..0"),
        (with_buffer(2, offset=0, first=0), "share bytes of work"),
        (with_step(0, kernel="nothing"), "unknown kernel"),
        (with_step(0, args=(Arg(2, "r"), Arg(1, "w"))), "lives 1..2"),
        (with_step(0, args=(Arg(3, "r"), Arg(1, "w"))), "which nothing wrote"),
        (with_step(2, args=(Arg(2, "r"), Arg(1, "w"))), "lives 0..1"),
        (with_step(2, args=(Arg(3, "r"), Arg(3, "w")), inplace=()), "which nothing wrote|no pair"),
        (replace(chain(), steps=chain().steps[:2]), "output y is never written"),
        (with_step(0, args=(Arg(9, "r"), Arg(1, "w"))), "no buffer %9"),
        (with_step(0, args=(Arg(-2, "r"), Arg(1, "w"))), "no buffer %-2"),
        (with_step(0, args=(Arg(-1, "r"), Arg(1, "w"))), "%-1 of mode 'r'"),
        (with_step(0, args=(Arg(0, "r"),)), "1 pointers; it takes 2"),
        (with_step(0, consts=(1, "16", 1)), "number 1 is '16'; expected i64"),
        (with_step(0, consts=(1, 1 << 63, 1)), "more than 64 bits"),
        (with_step(0, inplace=((1, 2),)), "in-place positions 1 and 2"),
        (with_buffer(1, dtype="i32"), "%1 a is i32; argument 1 takes f32"),
        (with_buffer(1, dtype="f31"), "unknown element type"),
        (with_buffer(1, shape=(-4,)), r"shape \[-4\]"),
        (with_buffer(0, last=1), "from the first step to the last"),
        (replace(chain(), inputs=(Port("x", 4, (16,)),)), "input x: no buffer %4"),
        (replace(chain(), inputs=(Port("x", 1, (16,)),)), "lies in region work"),
        (replace(chain(), inputs=(Port("x", 0, (4, 4)),)), r"input x of \[4, 4\]"),
        (replace(chain(), outputs=(Port("y", 3, (15,)),)), "output y of shape"),
        (replace(chain(), outputs=(Port("y", 0, (16,)),)), "two ports share a buffer"),
        (replace(chain(), outputs=chain().outputs * 2), "two outputs 'y'"),
        (replace(chain(), inputs=()), "belongs to no port"),
        (replace(chain(), constants=((-1, b""),)), "constant: no buffer %-1"),
        (replace(chain(), threads=0), "0 threads"),
        (replace(chain(), regions=(*chain().regions, ("io", 128))), "a region twice"),
        (replace(chain(), kernels=(replace(RELU, takes=("f32",)),)), "not a signature"),
        (replace(chain(), kernels=(RELU, RELU)), "share a symbol"),
        (replace(chain(), constants=((1, b"1234"),)), "constant %1"),
    ],
)
def test_verify_refuses(plan: Plan, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        verify(plan)


def test_inplace_needs_a_declaration_at_the_step_where_both_live() -> None:
    plan = with_buffer(2, offset=0)  # b over a: they meet at step 1, which declares the pair
    verify(plan)
    steps = tuple(replace(s, inplace=()) for s in plan.steps)
    with pytest.raises(PlanError, match="share bytes"):
        verify(replace(plan, steps=steps))


def test_a_pair_declared_by_one_step_excuses_no_overlap_at_another() -> None:
    plan = with_buffer(2, offset=0)
    steps = [replace(s, inplace=()) if n == 1 else s for n, s in enumerate(plan.steps)]
    steps[0] = replace(steps[0], args=(Arg(0, "r"), Arg(1, "w")), inplace=((1, 0),))
    with pytest.raises(PlanError, match="share bytes"):
        verify(replace(plan, steps=tuple(steps)))


def test_a_pair_in_place_starts_at_the_same_byte() -> None:
    """b would begin in the middle of a: a kernel reads elements that it has overwritten."""
    plan = chain()
    a, b = (replace(plan.buffers[i], shape=(32,), nbytes=128) for i in (1, 2))
    buffers = (plan.buffers[0], a, replace(b, offset=64), plan.buffers[3])
    with pytest.raises(PlanError, match="share bytes"):
        verify(replace(plan, buffers=buffers, regions=(("io", 128), ("work", 192))))


def test_threads_need_a_barrier_where_bytes_are_handed_on() -> None:
    plan = replace(chain(), threads=2)
    verify(plan)
    for n in (1, 2):
        steps = [replace(s, barrier=s.barrier and i != n) for i, s in enumerate(plan.steps)]
        with pytest.raises(PlanError, match="since the last barrier"):
            verify(replace(plan, steps=tuple(steps)))


def test_lifetimes_are_inclusive() -> None:
    """Two buffers whose lives only touch at one step do overlap."""
    plan = with_buffer(2, offset=0)
    steps = list(plan.steps)
    steps[1] = replace(steps[1], inplace=())
    with pytest.raises(PlanError, match="share bytes"):
        verify(replace(plan, steps=tuple(steps)))


def test_text_names_every_step_source() -> None:
    text = str(chain())
    assert all(f"# n{i}" in text for i in range(3))
    assert "arena/bound 1.000" in text


def test_symbols_are_readable_when_short_and_distinct_when_long() -> None:
    assert KernelSpec("gemm", ("f32", 0, 1)).symbol == "gemm_f32_0_1"
    specs = [KernelSpec("map", (f"a:f32[] -> y:f32[] = add(a,{k}.0)", 0)) for k in range(50)]
    assert len({s.symbol for s in specs}) == 50


def checks(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that are checked from now on."""
    actual: list[Plan] = []
    check = PlanForm.check

    def counted(form: PlanForm) -> None:
        actual.append(form.plan)
        check(form)

    monkeypatch.setattr(PlanForm, "check", counted)
    return actual


def test_a_plan_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another plan that is made of it is another plan, and so is one out of a pickle."""
    actual_checks, plan = checks(monkeypatch), chain()
    assert verify(verify(plan)) is plan
    assert len(actual_checks) == 1
    for other in (replace(plan), copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        assert other == plan
        verify(verify(other))
    assert len(actual_checks) == 4


def test_a_plan_that_is_refused_has_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    actual_checks, plan = checks(monkeypatch), with_buffer(1, offset=4)
    for _ in range(2):
        with pytest.raises(PlanError, match="alignment"):
            verify(plan)
    assert len(actual_checks) == 2


def test_a_plan_that_is_made_and_bound_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    actual_checks = checks(monkeypatch)
    graph = OneNode(next(c for c in list_cases() if c.op == "Relu")).graph
    plan = make_plan(graph, {}, target=detect_host(), threads=1)
    program = BoundProgram(
        plan, get_addresses, {"work": allocate(plan.compute_region_bytes("work"))}
    )
    assert actual_checks == [plan]
    assert program.plan == plan  # read again, so it is checked again
    assert len(actual_checks) == 2


@pytest.mark.parametrize(
    ("plan", "kind"),
    [
        (replace(chain(), buffers=list(chain().buffers)), "list"),  # type: ignore[arg-type]  # wrong
        (with_step(0, args=[*chain().steps[0].args]), "list"),
        (with_step(0, consts=[1, 16, 1]), "list"),
        (with_buffer(1, shape=[16]), "list"),
        (replace(chain(), constants=((1, bytearray(64)),)), "bytearray"),  # type: ignore[arg-type]  # wrong
        (with_step(0, args=(SimpleNamespace(buffer=0, mode="r"), Arg(1, "w"))), "SimpleNamespace"),
    ],
)
def test_what_can_change_later_is_refused(plan: Plan, kind: str) -> None:
    with pytest.raises(PlanError, match=f"it holds {kind}"):
        verify(plan)
