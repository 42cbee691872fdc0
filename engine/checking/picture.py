"""Plans as one HTML page: their arena over time, the values at the peak, and smaller variants."""

from __future__ import annotations

import os
from bisect import insort
from collections.abc import Iterator, Mapping, Sequence

from engine.base import arguments
from engine.checking.report import Check, format_seconds
from engine.drawing import page
from engine.drawing.charts import format_coordinate
from engine.drawing.page import PHASE_COLOURS, escape, make_legend
from engine.plan.collective import list_collectives
from engine.plan.plan import ALIGN, PHASES, Buffer, Plan, PlanStep, format_bytes
from engine.system import files

OWNERS = 25  # rows of the table of the peak; the others are summed
BOXES = 8000  # of a picture; the smallest are left out

_WIDTH, _HEIGHT = 960, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 12, 10, 40
_TICKS = 5


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
        if plan.compute_region_bytes("work"):
            rows.append((f"arena{i}", name, _draw_arena(name, plan) + _describe_plan(plan)))
    if found is not None:
        rows.append(("less", "Smaller variants", _make_suggestions(found)))
    return page.make_page(title, _make_legend(), rows, script="arena.js")


def _make_legend() -> str:
    phases = ((colour, name) for name, colour in PHASE_COLOURS.items())
    return make_legend([*phases, ("again", "computed again")])


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


# --- the arena


def _draw_arena(name: str, plan: Plan) -> str:
    """Return the work buffers as boxes, and the bytes in use as a line."""
    steps, size = len(plan.steps), plan.compute_region_bytes("work") // ALIGN
    makers = _find_makers(plan)
    kept = [(i, b) for i, b in enumerate(plan.buffers) if b.region == "work" and b.nbytes]
    shown = sorted(kept, key=lambda row: -row[1].nbytes)[:BOXES]
    boxes = "".join(_draw_box(b, makers.get(i), size) for i, b in sorted(shown))
    live = _count_live_bytes(plan)
    top = max(range(steps), key=lambda n: live[n])
    line = " ".join(
        f"{n},{size - b // ALIGN} {n + 1},{size - b // ALIGN}" for n, b in enumerate(live)
    )
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    inside = (
        f'<svg x="{_LEFT}" y="{_TOP}" width="{width}" height="{height}" '
        f'viewBox="0 0 {steps} {size}" preserveAspectRatio="none">'
        f'<rect class="ground" width="{steps}" height="{size}"/><g class="boxes">{boxes}</g>'
        f'<polyline class="live" points="{line}"/>'
        f'<line class="peak" x1="{top + 0.5}" x2="{top + 0.5}" y1="0" y2="{size}"/></svg>'
    )
    ticks = "".join(_draw_ticks(steps, size, width, height))
    left = len(kept) - len(shown)
    note = f" The {left} smallest tensors are left out." if left else ""
    return (
        f'<figure class="plan" data-all="{steps} {size}" data-block="{ALIGN}"><figcaption>'
        f"Work memory of {escape(plan.name)}: a box is a tensor, from the step that makes it "
        "to the "
        f"last that uses it, at the bytes where it lies.  The line is what is in use; the peak is "
        f"dashed.{note} "
        '<button data-factor="0.6" hidden>+</button> <button data-factor="1.7" hidden>−</button>'
        f'</figcaption><svg class="arena" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="Arena of {escape(name)}">{ticks}{inside}</svg></figure>'
    )


def _find_makers(plan: Plan) -> dict[int, PlanStep]:
    """Return the step that first writes each buffer."""
    steps: dict[int, PlanStep] = {}
    for step in plan.steps:
        for arg in step.args:
            if arg.mode in ("w", "u", "s"):
                steps.setdefault(arg.buffer, step)
    return steps


def _draw_box(b: Buffer, maker: PlanStep | None, size: int) -> str:
    begin, length = b.offset // ALIGN, max(b.nbytes // ALIGN, 1)
    again = maker is not None and maker.again
    colour = "again" if again else PHASE_COLOURS[PHASES[maker.phase]] if maker is not None else "c0"
    return (
        f'<rect class="{colour}" x="{b.first}" y="{size - begin - length}" '
        f'width="{b.last - b.first + 1}" height="{length}">'
        f"<title>{escape(_describe_buffer(b, maker))}</title></rect>"
    )


def _describe_buffer(b: Buffer, maker: PlanStep | None) -> str:
    shape = ",".join(map(str, b.shape))
    made = "" if maker is None else f"\nmade by {maker.title}"
    return (
        f"{b.name}  {b.dtype}[{shape}]\n{format_bytes(b.nbytes)} at "
        f"{format_bytes(b.offset)}{made}\n"
        f"steps {b.first} to {b.last}"
    )


def _draw_ticks(steps: int, size: int, width: float, height: float) -> Iterator[str]:
    for i in range(_TICKS):
        part = i / (_TICKS - 1)
        at = format_coordinate(_LEFT + part * width), format_coordinate(_TOP + height + 16)
        yield (
            f'<text class="tick x" data-part="{part}" x="{at[0]}" y="{at[1]}">'
            f"{round(part * steps)}</text>"
        )
        up = format_coordinate(_TOP + (1 - part) * height)
        yield (
            f'<text class="tick y" data-part="{part}" x="{_LEFT - 8}" y="{up}">'
            f"{format_bytes(round(part * size) * ALIGN)}</text>"
        )
    yield f'<text class="title" x="{_LEFT + width / 2:g}" y="{_HEIGHT - 4}">step</text>'


def _count_live_bytes(plan: Plan) -> list[int]:
    """Return the bytes of the arena that hold something, for each step; shared ones count once."""
    begins: list[list[tuple[int, int]]] = [[] for _ in plan.steps]
    ends: list[list[tuple[int, int]]] = [[] for _ in plan.steps]
    for b in plan.buffers:
        if b.region == "work" and b.nbytes:
            begins[b.first].append((b.offset, b.offset + b.nbytes))
            ends[b.last].append((b.offset, b.offset + b.nbytes))
    alive: list[tuple[int, int]] = []  # sorted
    totals = []
    for new, old in zip(begins, ends, strict=True):
        for each in new:
            insort(alive, each)
        total = top = 0
        for begin, end in alive:
            total += max(end, top) - max(begin, top)
            top = max(end, top)
        totals.append(total)
        for each in old:
            alive.remove(each)
    return totals


# --- tables


def _make_owner_table(plan: Plan) -> str:
    """Return the table of the values that hold the arena at its peak."""
    live = _count_live_bytes(plan)
    top = max(range(len(live)), key=lambda n: live[n])
    makers = _find_makers(plan)
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
