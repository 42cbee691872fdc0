"""Plan: the steps of a training step, and where its values lie in memory and time."""

from __future__ import annotations

from engine.drawing import amounts
from engine.drawing.arena import draw_arena, make_arena_legend
from engine.drawing.page import escape, make_table
from engine.plan.plan import Plan
from engine.trainer.reports.record import Record
from engine.trainer.reports.section import Section
from engine.trainer.step_plan import list_batch_ports

MAX_PLANS = 8  # in the table


def render(record: Record) -> str:
    """Return a row per plan, and the arena of the largest plan of a training step."""
    if not record.plans:
        return ""
    head = ("plan", "inputs", "kernel calls", "arena", "bound", "arena / bound", "threads")
    rows = [
        (
            escape(plan.name), escape(_list_inputs(plan)), f"{len(plan.steps):,}",
            amounts.format_size(plan.compute_region_bytes("work")),
            amounts.format_size(plan.lower_bound),
            f"{plan.ratio:.3f}", str(plan.threads),
        )
        for plan in record.plans[:MAX_PLANS]
    ]  # fmt: skip
    left = len(record.plans) - MAX_PLANS
    more = f"<p>And {left} more for other shapes.</p>" if left > 0 else ""
    intro = (
        "<p>The arena holds the values of a step that nobody else keeps. The bound is the most "
        "that live at one time: no placement needs less. Where two boxes of the picture overlap, "
        "one value is written over another that it is made of.</p>"
    )
    trained = [p for p in record.plans if any(s.phase == "bwd" for s in p.steps)]
    largest = max(trained or record.plans, key=lambda p: p.compute_region_bytes("work"))
    picture = draw_arena(largest.name, largest)
    legend = make_arena_legend() if picture else ""
    return intro + make_table(head, rows) + more + legend + picture


def _list_inputs(plan: Plan) -> str:
    """Return the names and shapes of the inputs that callers pass."""
    return ", ".join(f"{p.name} {'×'.join(map(str, p.shape))}" for p in list_batch_ports(plan))


SECTION = Section("plan", "Plan", render)
