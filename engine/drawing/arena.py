"""The picture of an arena: where the values of a plan lie in its work memory, step by step."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from engine.drawing.charts import format_coordinate
from engine.drawing.page import PHASE_COLOURS, escape, make_legend
from engine.plan.plan import ALIGN, PHASES, Buffer, Plan, PlanStep, format_bytes

BOXES = 8000  # of a picture; the smallest are left out

_WIDTH, _HEIGHT = 960, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 12, 10, 40
_TICKS = 5


def make_arena_legend() -> str:
    """Return the legend of all pictures of a page: the phases of the steps that make values."""
    phases = ((colour, name) for name, colour in PHASE_COLOURS.items())
    return make_legend([*phases, ("again", "computed again")])


def draw_arena(title: str, plan: Plan) -> str:
    """Return the work buffers of a plan as boxes, and the bytes in use as a line; "" for none."""
    if not plan.compute_region_bytes("work"):
        return ""
    steps, size = len(plan.steps), plan.compute_region_bytes("work") // ALIGN
    makers = find_makers(plan)
    kept = [(i, b) for i, b in enumerate(plan.buffers) if b.region == "work" and b.nbytes]
    shown = sorted(kept, key=lambda row: -row[1].nbytes)[:BOXES]
    boxes = "".join(_draw_box(b, makers.get(i), size) for i, b in sorted(shown))
    live = count_live_bytes(plan)
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
        f"Work memory of {escape(plan.name)}: a box is a tensor, from the step that makes it to "
        "the last that uses it, at the bytes where it lies. The line shows the bytes in use, "
        f"the dashes their peak. Ctrl and the wheel zoom.{note} "
        '<button data-factor="0.6" hidden>+</button> <button data-factor="1.7" hidden>−</button>'
        f'</figcaption><div class="scroll"><svg class="arena" role="img" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" aria-label="Arena of {escape(title)}">{ticks}{inside}'
        "</svg></div></figure>"
    )


def find_makers(plan: Plan) -> dict[int, PlanStep]:
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


def count_live_bytes(plan: Plan) -> list[int]:
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
