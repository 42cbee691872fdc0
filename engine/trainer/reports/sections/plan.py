"""Plan: the steps of a training step, and where its values lie in memory and time."""

from __future__ import annotations

from engine.drawing import amounts
from engine.drawing.axes import make_axis
from engine.drawing.charts import draw_frame, format_coordinate
from engine.drawing.page import escape, make_legend, make_table
from engine.plan.plan import Buffer, Plan
from engine.trainer.reports.record import Record
from engine.trainer.reports.section import Section
from engine.trainer.step_plan import list_batch_ports

MAX_PLANS = 8  # in the table
MAX_BUFFERS = 800  # in the picture
WIDTH, HEIGHT = 900, 340  # of the picture, in units of its own
LEFT, RIGHT, TOP, BOTTOM = 70, 24, 10, 46
_KINDS = {
    "kept": "made forward, needed backward",
    "forward": "forward only",
    "backward": "backward only",
}


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
        "that live at one time: no placement needs less. In the picture a box is a value, as wide "
        "as the kernel calls that it lives through and as high as its bytes; where two boxes "
        "overlap, one value is written over another that it is made of.</p>"
    )
    trained = [p for p in record.plans if any(s.phase == "bwd" for s in p.steps)]
    largest = max(trained or record.plans, key=lambda p: p.compute_region_bytes("work"))
    return intro + make_table(head, rows) + more + draw_arena(largest)


def _list_inputs(plan: Plan) -> str:
    """Return the names and shapes of the inputs that callers pass."""
    return ", ".join(f"{p.name} {'×'.join(map(str, p.shape))}" for p in list_batch_ports(plan))


def draw_arena(plan: Plan) -> str:
    """Draw the arena: kernel calls from left to right, bytes upwards, one box per value."""
    total = plan.compute_region_bytes("work")
    if not total:
        return ""
    turn = next((n for n, s in enumerate(plan.steps) if s.phase == "bwd"), len(plan.steps))
    known = [b for b in plan.buffers if b.region == "work" and b.nbytes]
    shown = sorted(known, key=lambda b: b.nbytes * (b.last - b.first + 1), reverse=True)
    x = make_axis((0, len(plan.steps)), LEFT, WIDTH - RIGHT, kind="count", count=10, is_tight=True)
    y = make_axis((0, total), HEIGHT - BOTTOM, TOP, kind="bytes", from_zero=True)
    boxes: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for b in shown[:MAX_BUFFERS]:
        left, right = x.place(b.first), x.place(b.last + 1)
        top, bottom = y.place(b.offset + b.nbytes), y.place(b.offset)
        boxes[_choose_kind(b, turn)].append(
            f'<rect x="{format_coordinate(left)}" y="{format_coordinate(top)}" '
            f'width="{format_coordinate(max(right - left, 0.3))}" '
            f'height="{format_coordinate(max(bottom - top, 0.3))}"><title>'
            f"{escape(_tell(b))}</title></rect>"
        )
    groups = "".join(
        f'<g class="boxes c{i}">{"".join(shapes)}</g>' for i, shapes in enumerate(boxes.values())
    )
    many = len(known) > MAX_BUFFERS
    note = f" (the {MAX_BUFFERS} largest of {len(known):,} values)" if many else ""
    legend = make_legend((f"c{i}", _KINDS[k]) for i, k in enumerate(boxes) if boxes[k])
    bar = ""
    if 0 < turn < len(plan.steps):
        at = format_coordinate(x.place(turn))
        bar = f'<line class="turn" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
    return (
        f'<figure class="chart wide"><figcaption>Arena of {escape(plan.name)} over its kernel calls'
        f'{note}{legend}</figcaption><div class="scroll">'
        f'<svg class="arena" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="bytes of the arena that are in use, by kernel call">'
        f"{draw_frame(x, y, 'kernel call')}{groups}{bar}"
        f"</svg></div></figure>"
    )


def _choose_kind(buffer: Buffer, turn: int) -> str:
    if buffer.first >= turn:
        return "backward"
    return "kept" if buffer.last >= turn else "forward"


def _tell(buffer: Buffer) -> str:
    shape = "×".join(map(str, buffer.shape))
    size = amounts.format_size(buffer.nbytes)
    return f"{buffer.name} {buffer.dtype} {shape}, {size}, calls {buffer.first} to {buffer.last}"


SECTION = Section("plan", "Plan", render)
