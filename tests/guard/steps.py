"""Plans of one node, and plans with another step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.plan.plan import Plan
from engine.tools.dev.case_graphs import OneNode
from engine.tools.dev.cases.case import Case, f32


def plan_of(op: str, *ins: Any, **attrs: Any) -> Plan:
    return make_plan(OneNode(Case(op, ins, attrs)).graph, {}, target=detect_host(), threads=2)


def with_step(plan: Plan, at: int, **changes: Any) -> Plan:
    """The plan with another step, which nobody has verified."""
    steps = list(plan.steps)
    steps[at] = replace(steps[at], **changes)
    return replace(plan, steps=tuple(steps))


def numbered(plan: Plan, at: int, word: int, value: int) -> Plan:
    consts = list(plan.steps[at].consts)
    consts[word] = value
    return with_step(plan, at, consts=tuple(consts))


def softmax() -> Plan:
    return plan_of("Softmax", f32(6, 10))
