"""Profiles as one HTML page: times, distance from the roofline, and a timeline of threads."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.base import arguments
from engine.drawing import amounts, page
from engine.drawing.axes import make_axis
from engine.drawing.charts import HEIGHT, LEFT, RIGHT, TOP, WIDTH, draw_frame, format_coordinate
from engine.drawing.page import PHASE_COLOURS, escape, make_legend
from engine.system import files

if TYPE_CHECKING:
    from engine.profiling.times import StepTime, Times, Total

_BARS, _BAR = 12, 22  # bars of a picture, and the height of one with its gap
_NAME, _VALUE = 230, 130  # room for the names at the left of bars and the values at their right
_BOTTOM = 46
_LINES = 60  # of a table; the JSON file has the rest
_BOXES = 4000  # steps of a timeline; shorter ones than a pixel are left out anyway


def write(profile: Times, path: str | os.PathLike[str]) -> None:
    """Write the page as a file.

    Raises:
        FileError: it cannot be written.
    """
    files.write(arguments.check_path("page", path), [render(profile).encode()])


def render(profile: Times) -> str:
    """Return the page."""
    rows = (
        ("summary", "Summary", _make_summary(profile)),
        (
            "kernels",
            "By kernel",
            _draw_bars("by kernel", profile.by_kernel) + _make_table(profile, "kernel"),
        ),
        ("nodes", "By node", _draw_bars("by node", profile.by_node) + _make_table(profile, "node")),
        ("roofline", "Roofline", _draw_roofline(profile)),
        ("threads", "Threads", _draw_timeline(profile)),
    )
    legend = make_legend((colour, name) for name, colour in PHASE_COLOURS.items())
    return page.make_page(f"Profile of {profile.title}", legend, rows)


def _make_summary(profile: Times) -> str:
    total, top = profile.total, profile.roofline
    runs = profile.runs
    lost = total.wait / total.seconds if total.seconds else 0.0
    tiles = {
        "time": _format_milliseconds(profile.seconds),
        "threads": str(profile.threads),
        "GFLOP/s": amounts.format_number(total.gflops),
        "GB/s": amounts.format_number(total.gigabytes),
        "of the roofline": f"{100 * total.roofline:.0f} %",
        "lost at barriers": f"{100 * lost:.1f} %",
        "barriers": str(total.barriers),
        "busiest thread over mean": f"{total.imbalance:.3f}",
    }
    shown = "".join(
        f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in tiles.items()
    )
    streams = ", ".join(
        f"{speed / 1e9:.0f} GB/s within {amounts.format_size(size)}" for size, speed in top.streams
    )
    about = page.make_values(
        {
            "runs": f"{len(runs)}, {_format_milliseconds(min(runs))} to "
            f"{_format_milliseconds(max(runs))}",
            "steps": total.steps,
            "multiply-adds of this machine": f"{top.flops / 1e9:.1f} GFLOP/s",
            "its memory": streams,
        }
    )
    phases = page.make_table(_HEAD, map(_make_cells, profile.by_phase))
    return f'<dl class="tiles">{shown}</dl>{phases}{about}'


_HEAD = ("", "phase", "steps", "ms", "%", "GFLOP/s", "GB/s", "% of roofline", "imbalance",
         "waiting, ms")  # fmt: skip


def _make_cells(total: Total) -> list[str]:
    return [
        escape(total.name), escape(total.phase), str(total.steps), f"{1e3 * total.seconds:.3f}",
        f"{100 * total.share:.1f}", f"{total.gflops:.1f}" if total.flops else "",
        f"{total.gigabytes:.1f}", f"{100 * total.roofline:.0f}", f"{total.imbalance:.2f}",
        f"{1e3 * total.wait:.3f}",
    ]  # fmt: skip


def _make_table(profile: Times, by: str) -> str:
    totals = profile.by(by)
    more = f"<small>{len(totals) - _LINES} more</small>" if len(totals) > _LINES else ""
    table = page.make_table(_HEAD, map(_make_cells, totals[:_LINES]))
    return f"<details><summary>All, as a table</summary>{table}{more}</details>"


def _format_milliseconds(seconds: float) -> str:
    return f"{amounts.format_number(1e3 * seconds)} ms"


def _draw_bars(label: str, totals: Sequence[Total]) -> str:
    """Return a bar for each of the first totals; its dark part is the least time for the work."""
    shown = totals[:_BARS]
    width, longest = 2 * WIDTH, max((t.seconds for t in shown), default=0.0) or 1.0
    scale = (width - _NAME - _VALUE) / longest
    parts = []
    for i, total in enumerate(shown):
        y, middle = i * _BAR, i * _BAR + _BAR / 2 - 2
        colour = PHASE_COLOURS.get(total.phase, "c0")
        named = f"{total.name}, {total.phase}" if total.phase else total.name
        long, least = scale * total.seconds, scale * min(total.limit, total.seconds)
        value = f"{_format_milliseconds(total.seconds)}, {100 * total.share:.1f} %"
        told = f"{named}: {value}; {100 * total.roofline:.0f} % of the roofline"
        name = total.name if len(total.name) <= 34 else f"{total.name[:16]}…{total.name[-17:]}"
        parts.append(
            f'<g class="boxes {colour}"><title>{escape(told)}</title>'
            f'<text class="tick y" x="{_NAME - 8}" '
            f'y="{format_coordinate(middle)}">{escape(name)}</text>'
            f'<rect x="{_NAME}" y="{y}" width="{format_coordinate(long)}" height="{_BAR - 5}"/>'
            f'<rect x="{_NAME}" y="{y}" width="{format_coordinate(least)}" height="{_BAR - 5}"/>'
            f'<text x="{format_coordinate(_NAME + long + 6)}" y="{format_coordinate(middle + 4)}">'
            f"{escape(value)}</text></g>"
        )
    box = f'viewBox="0 0 {width} {len(shown) * _BAR}" role="img" aria-label="Time {escape(label)}"'
    note = "<small>The darker part is what the roofline of this machine allows.</small>"
    return f'<div class="scroll"><svg class="arena" {box}>{"".join(parts)}</svg></div>{note}'


def _draw_roofline(profile: Times) -> str:
    """Draw operations a second over operations a byte, a point per kernel, and the limits."""
    totals = [t for t in profile.by_kernel if t.flops and t.nbytes and t.seconds]
    if not totals:
        return "<p>No step multiplies matrices.</p>"
    top = profile.roofline
    points = [(t.flops / t.nbytes, t.gflops) for t in totals]
    ridge = top.flops / top.memory
    xs = [*(x for x, _ in points), ridge / 8, ridge * 8]
    low, high = min(xs), max(xs)
    roof = [(x, min(top.flops, x * top.memory) / 1e9) for x in (low, ridge, high)]
    y = make_axis([*(v for _, v in points), *(v for _, v in roof)], HEIGHT - _BOTTOM, TOP,
             may_be_log=True)  # fmt: skip
    x = make_axis(xs, LEFT, WIDTH - RIGHT, may_be_log=True)
    path = " ".join(
        f"{format_coordinate(x.place(max(a, x.low)))},{format_coordinate(y.place(max(b, y.low)))}"
        for a, b in roof
    )
    dots = "".join(
        f'<g class="dots {PHASE_COLOURS[t.phase]}"><circle cx="{format_coordinate(x.place(a))}" '
        f'cy="{format_coordinate(y.place(b))}" r="{format_coordinate(3 + 9 * math.sqrt(t.share))}">'
        f"<title>{escape(f'{t.name}, {t.phase}: {b:.1f} GFLOP/s at {a:.1f} operations a byte')}"
        "</title></circle></g>"
        for t, (a, b) in zip(totals, points, strict=True)
    )
    inside = (
        f"{draw_frame(x, y, 'operations a byte')}"
        f'<polyline class="equal" fill="none" points="{path}"/>{dots}'
    )
    return (
        '<div class="charts"><figure class="chart">'
        "<figcaption>GFLOP/s of kernels that multiply; memory is the slope</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Roofline">{inside}</svg>'
        "</figure></div>"
    )


def _draw_timeline(profile: Times) -> str:
    """Return the fastest run: a row a thread, a box a step; what is empty is waiting."""
    long = max((end for s in profile.steps for _, end in s.spans), default=0.0) or 1.0
    width, row = 2 * WIDTH, 34
    scale = (width - LEFT - RIGHT) / long
    shown = sorted(profile.steps, key=_measure_length, reverse=True)[:_BOXES]
    boxes = []
    for step in shown:
        told = escape(f"{step.kernel}  {step.shown}  {_format_milliseconds(_measure_length(step))}")
        for thread, (begin, end) in enumerate(step.spans):
            boxes.append(
                f'<rect class="{PHASE_COLOURS[step.phase]}" x="{LEFT + scale * begin:.2f}" '
                f'y="{thread * row}" width="{scale * (end - begin):.2f}" height="{row - 8}">'
                f"<title>{told}</title></rect>"
            )
    height = profile.threads * row
    names = "".join(
        f'<text class="tick y" x="{LEFT - 8}" y="{t * row + (row - 8) / 2:g}">thread {t}</text>'
        for t in range(profile.threads)
    )
    across = make_axis(
        [0.0, long], LEFT, width - RIGHT, kind="seconds", is_tight=True, from_zero=True
    )
    ticks = "".join(
        f'<text class="tick x" x="{format_coordinate(across.place(t))}" y="{height + 14}">'
        f"{escape(across.label_tick(t))}</text>"
        for t in across.ticks
    )
    box = f'viewBox="0 0 {width} {height + 24}" role="img" aria-label="Steps of each thread"'
    inside = f'{names}<g class="boxes">{"".join(boxes)}</g>{ticks}'
    return f'<div class="scroll"><svg class="arena" {box}>{inside}</svg></div>'


def _measure_length(step: StepTime) -> float:
    return max((end - begin for begin, end in step.spans), default=0.0)
