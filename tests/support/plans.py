"""A small plan, written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.plan.plan import Arg, Buffer, Kernel, KernelSpec, Plan, PlanStep, Port

RELU = Kernel(KernelSpec("map", ("a:f32[] -> y:f32[] = max(a,0)", 0)), ("f32*", "f32*", "i64[]"))


def make_buffer(name: str, offset: int, first: int, last: int, region: str = "work") -> Buffer:
    return Buffer(name, "f32", (16,), region, offset, 64, first, last)


def chain() -> Plan:
    """x -> a -> b -> y; a and y share bytes, one after the other."""
    return Plan(
        name="chain",
        target="any",
        threads=1,
        regions=(("io", 128), ("work", 128)),
        buffers=(
            make_buffer("x", 0, 0, 2, "io"),
            make_buffer("a", 0, 0, 1),
            make_buffer("b", 64, 1, 2),
            make_buffer("y", 64, 0, 2, "io"),
        ),
        steps=tuple(
            PlanStep(
                RELU.symbol, (Arg(i, "r"), Arg(i + 1, "w")), (1, 16, 1), f"n{i}", "fwd", ((1, 0),)
            )
            for i in range(3)
        ),
        kernels=(RELU,),
        inputs=(Port("x", 0, (16,)),),
        outputs=(Port("y", 3, (16,)),),
        constants=(),
        lower_bound=128,
    )


def with_step(plan: Plan, n: int, **changes: Any) -> Plan:
    """Return the plan with other fields of step n."""
    steps = list(plan.steps)
    steps[n] = replace(steps[n], **changes)
    return replace(plan, steps=tuple(steps))
