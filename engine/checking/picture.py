"""Plans as one HTML page: their arena over time, the values at the peak, and smaller variants."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from engine.base import arguments
from engine.checking.report import Check, format_seconds
from engine.drawing import page
from engine.drawing.arena import count_live_bytes, draw_arena, find_makers, make_arena_legend
from engine.drawing.page import escape
from engine.plan.collective import list_collectives
from engine.plan.plan import Plan, format_bytes
from engine.system import files

OWNERS = 25  # rows of the table of the peak; the others are summed


def write(
    path: str | os.PathLike[str], title: str, plans: Mapping[str, Plan], found: Check | None
) -> None:
    """Write the page as a file.

    Raises:
        FileError: it cannot be written.
    """
    files.write(arguments.check_path("picture", path), [render(title, plans, found).encode()])


def render(title: str, plans: Mapping[str, Plan], found: Check | None) -> str:
    """Return the page.

    plans: by titles, the most important one first.
    found: a dry run of the same models, if any; its suggestions are shown.
    """
    first = next(iter(plans.values()))
    rows = [("summary", "Summary", _make_summary(found, first))]
    for i, (name, plan) in enumerate(plans.items()):
        arena = draw_arena(name, plan)
        if arena:
            rows.append((f"arena{i}", name, arena + _describe_plan(plan)))
    if found is not None:
        rows.append(("less", "Smaller variants", _make_suggestions(found)))
    return page.make_page(title, make_arena_legend(), rows)


def _make_summary(found: Check | None, plan: Plan) -> str:
    tiles = {"steps": str(len(plan.steps)), "arena over its bound": f"{plan.ratio:.3f}"}
    regions = dict(plan.regions)
    if found is not None and found.figures is not None:
        regions = dict(found.figures.regions)
        tiles = {
            "planned": format_bytes(found.figures.nbytes),
            **({} if found.budget is None else {"budget": format_bytes(found.budget)}),
            **(
                {}
                if found.figures.process is None
                else {"process": format_bytes(found.figures.process)}
            ),
            "time of a step": format_seconds(found.figures.seconds),
            **tiles,
        }
    shown = "".join(
        f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in tiles.items()
    )
    total = sum(regions.values()) or 1
    rows = (
        [escape(name), format_bytes(size), f"{100 * size / total:.1f} %"]
        for name, size in sorted(regions.items(), key=lambda row: -row[1])
        if size
    )
    return f'<dl class="tiles">{shown}</dl>{page.make_table(("region", "bytes", ""), rows)}'


# --- tables


def _make_owner_table(plan: Plan) -> str:
    """Return the table of the values that hold the arena at its peak."""
    live = count_live_bytes(plan)
    top = max(range(len(live)), key=lambda n: live[n])
    makers = find_makers(plan)
    alive = [
        (i, b)
        for i, b in enumerate(plan.buffers)
        if b.region == "work" and b.nbytes and b.first <= top <= b.last
    ]
    alive.sort(key=lambda row: (-row[1].nbytes, row[0]))
    rows = []
    for i, b in alive[:OWNERS]:
        maker = makers.get(i)
        shape = f"{b.dtype}[{','.join(map(str, b.shape))}]"
        made = "" if maker is None else maker.title
        rows.append([b.name, shape, format_bytes(b.nbytes), made, f"{b.first} to {b.last}"])
    rest = alive[OWNERS:]
    if rest:
        total = sum(b.nbytes for _, b in rest)
        rows.append([f"{len(rest)} more", "", format_bytes(total), "", ""])
    step = plan.steps[top]
    head = ("tensor", "type", "bytes", "made by", "steps")
    return (
        f"<h3>At the peak: {format_bytes(live[top])} at step {top}, {escape(step.title)}"
        f"</h3>{page.make_table(head, ([escape(cell) for cell in row] for row in rows))}"
    )


def _make_again_table(plan: Plan) -> str:
    """Return the table of values that are computed a second time, with the cost."""
    from engine.kernels.analysis.cost import predict_steps

    seconds = predict_steps(plan)
    total = sum(seconds) or 1.0
    mine = [(s, t) for s, t in zip(plan.steps, seconds, strict=True) if s.again]
    if not mine:
        return "<h3>Computed again</h3><p>Nothing.</p>"
    rows = (
        [escape(step.source), escape(step.kernel), f"{100 * t / total:.2f} %"]
        for step, t in sorted(mine, key=lambda row: -row[1])
    )
    share = 100 * sum(t for _, t in mine) / total
    table = page.make_table(("node", "kernel", "of the step's time"), rows)
    return (
        f"<details><summary>Computed again: {len(mine)} steps, {share:.1f} % of the estimated "
        f"time of a step</summary>{table}</details>"
    )


def _describe_plan(plan: Plan) -> str:
    """Return the text below the arena of a plan."""
    return _make_owner_table(plan) + _make_again_table(plan) + _make_sum_table(plan)


def _make_sum_table(plan: Plan) -> str:
    """Return the table of steps that sum over ranks; empty for a plan of one process."""
    steps = list_collectives(plan)
    if not steps:
        return ""
    rows = (
        [
            str(each.step),
            each.kind,
            format_bytes(plan.buffers[each.buffer].nbytes),
            escape(plan.steps[each.step].source),
        ]
        for each in steps
    )
    total = sum(plan.buffers[each.buffer].nbytes for each in steps if each.kind != "wait")
    table = page.make_table(("step", "what", "bytes", "node"), rows)
    return (
        f"<details><summary>Collective steps: {len(steps)}, sums of {format_bytes(total)} over all "
        f"ranks</summary>{table}</details>"
    )


def _make_suggestions(found: Check) -> str:
    rows: Sequence[Sequence[str]] = [
        [
            escape(each.change),
            format_bytes(each.figures.nbytes),
            "" if each.figures.process is None else format_bytes(each.figures.process),
            format_seconds(each.figures.seconds),
        ]
        for each in found.suggestions
    ]
    if not rows:
        return "<p>Nothing was found that would.</p>"
    return page.make_table(("change", "planned", "process", "step"), rows)
