"""Charts as SVG: lines over a number, points of two numbers, and bars of counts.

A chart works without the script of the page: its axes have numbers, its lines a legend, the points
of short lines a title that browsers show.  The script reads the values at the mouse from `data-x`
and `data-y`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.drawing import amounts
from engine.drawing.axes import Axis, Kind, axis
from engine.drawing.page import text

WIDTH, HEIGHT = 440, 240  # of a chart, in its own units: it is scaled to its place in the page
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 10, 46
LETTER = 8.5  # largest width of a letter of a tick in units, in narrow windows
MAX_MARKS = 40  # points of a line that are marked one by one
COLOURS = 8  # of lines, in page.css


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart; NaN and infinities leave a gap.

    colour: 0 to `COLOURS` - 1, of page.css.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart in a box of `WIDTH` by `HEIGHT`.

    legend: the class and the label of each entry.
    inside: the SVG of all but the title and the legend.
    x_title: of the axis across. label: what the chart shows, in words.
    """

    title: str
    legend: Sequence[tuple[str, str]]
    inside: str
    x_title: str
    label: str


def line_chart(title: str, x_title: str, lines: Sequence[Line], **options: Any) -> str:
    """Return a line chart as HTML; empty if there is no finite value.

    options: of `draw_lines`.
    """
    chart = draw_lines(title, x_title, lines, **options)
    return "" if chart is None else figure(chart)


def draw_lines(
    title: str,
    x_title: str,
    lines: Sequence[Line],
    *,
    kind: Kind = "number",
    x_kind: Kind = "count",
    may_be_log: bool = False,
    from_zero: bool = False,
    best: float | None = None,
    x_may_be_log: bool = False,
) -> Chart | None:
    """Draw a line chart; None if there is no finite value.

    best: the place across that a line marks as the best.
    """
    lines = [line for line in lines if any(map(math.isfinite, line.y))]
    if not lines:
        return None
    y = axis(
        (v for line in lines for v in line.y), HEIGHT - BOTTOM, TOP,
        kind=kind, may_be_log=may_be_log, from_zero=from_zero,
    )  # fmt: skip
    x = _across([v for line in lines for v in line.x], x_kind, y, x_may_be_log)
    note = ", logarithmic" if y.is_log else ""
    drawn = "".join(_line(line, x, y) for line in lines)
    legend = [(f"c{line.colour}", line.label) for line in lines] if len(lines) > 1 else []
    if best is not None and x.low <= best <= x.high:
        at, told = coordinate(x.place(best)), f"best {x_title} {best:g}"
        legend.append(("mark", told))
        drawn = (
            f'<line class="best" x1="{at}" x2="{at}" y1="{TOP}" y2="{y.begin}">'
            f"<title>{text(told)}</title></line>{drawn}"
        )
    label = f"{title} over {x_title}{note}"
    return Chart(title + note, legend, frame(x, y, x_title) + drawn, x_title, label)


def _across(values: Sequence[float], kind: Kind, up: Axis, may_be_log: bool = False) -> Axis:
    """Return the horizontal axis: right of the other axis's labels, with room for its own."""
    left = max(LEFT, 10 + LETTER * _longest(up))
    for count in (6, 4, 3, 2):
        scale = axis(
            values, left, WIDTH - RIGHT,
            kind=kind, count=count, is_tight=True, from_zero=kind == "seconds",
            may_be_log=may_be_log,
        )  # fmt: skip
        places = [scale.place(tick) for tick in scale.ticks]
        gaps = [b - a for a, b in itertools.pairwise(places)]
        if min(gaps, default=WIDTH) >= LETTER * (_longest(scale) + 1):
            break
    return scale


def _longest(found: Axis) -> int:
    """Return the number of letters of the longest label at an axis."""
    return max((len(found.name(tick)) for tick in found.ticks), default=0)


def scatter(
    title: str,
    x_title: str,
    y_title: str,
    pairs: Sequence[tuple[float, float]],
    *,
    kind: Kind = "number",
    reference: Literal["equal", "zero"] = "equal",
    notes: Sequence[str] = (),
) -> str:
    """Return a chart of points as HTML, with a line to compare them with.

    kind: of the numbers on both axes; shares have axes from 0 to 1, and a line through the points.
    reference: the line on which both numbers are equal, or on which the second one is 0.
    notes: more about each point, which browsers show.
    """
    told = [*notes, *[""] * (len(pairs) - len(notes))]
    known = [
        (a, b, note)
        for (a, b), note in zip(pairs, told, strict=True)
        if math.isfinite(a) and math.isfinite(b)
    ]
    if not known:
        return ""
    across, up = [a for a, _, _ in known], [b for _, b, _ in known]
    ends = [0.0, 1.0] if kind == "share" else []
    if reference == "equal":
        across = up = [*across, *up, *ends]
    y = axis(up, HEIGHT - BOTTOM, TOP, kind=kind, from_zero=reference == "zero")
    x = _across(across, kind, y)
    low, high = (x.low, x.high) if reference == "equal" else (0.0, 0.0)
    line = (
        f'x1="{coordinate(x.begin)}" y1="{coordinate(y.place(low))}" '
        f'x2="{coordinate(x.end)}" y2="{coordinate(y.place(high))}"'
    )
    dots = "".join(
        f'<circle cx="{coordinate(x.place(a))}" cy="{coordinate(y.place(b))}" r="3">'
        f"<title>{text(x_title)} {_value(a, kind)}, {text(y_title)} {_value(b, kind)}{text(note)}"
        "</title></circle>"
        for a, b, note in known
    )
    inside = f'{frame(x, y, x_title)}<line class="equal" {line}/><g class="dots c0">{dots}</g>'
    if kind == "share":
        inside += _line(Line(y_title, [k[0] for k in known], [k[1] for k in known]), x, y)
    return figure(Chart(title, (), inside, x_title, f"{y_title} over {x_title}"))


def histogram(title: str, x_title: str, values: Sequence[float], bins: int = 20) -> str:
    """Return a chart of how many values lie where, as HTML; empty if none is finite."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return ""
    low, high = min(known), max(known)
    width = (high - low) / bins or max(abs(low), 1.0) / bins
    counts = [0] * bins
    for v in known:
        counts[min(int((v - low) / width), bins - 1)] += 1
    y = axis(counts, HEIGHT - BOTTOM, TOP, kind="count", from_zero=True)
    x = _across([low, low + bins * width], "number", y)
    bars = "".join(
        f'<rect x="{coordinate(x.place(low + i * width))}" y="{coordinate(y.place(count))}" '
        f'width="{coordinate(x.place(low + width) - x.place(low))}" '
        f'height="{coordinate(y.place(0) - y.place(count))}">'
        f"<title>{count:,} from {amounts.number(low + i * width)} to "
        f"{amounts.number(low + (i + 1) * width)}</title></rect>"
        for i, count in enumerate(counts)
        if count
    )
    inside = f'{frame(x, y, x_title)}<g class="boxes c0">{bars}</g>'
    return figure(Chart(title, (), inside, x_title, f"how many {x_title} lie where"))


def figure(chart: Chart) -> str:
    """Return a chart as HTML."""
    items = "".join(f'<li class="{kind}">{text(label)}</li>' for kind, label in chart.legend)
    legend = f'<ul class="legend">{items}</ul>' if items else ""
    return (
        f'<figure class="chart" data-x="{text(chart.x_title)}" data-span="{TOP} {HEIGHT - BOTTOM}">'
        f"<figcaption>{text(chart.title)}{legend}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(chart.label)}">'
        f"{chart.inside}</svg></figure>"
    )


def frame(x: Axis, y: Axis, x_title: str) -> str:
    """Draw the lines of the grid, their labels, and the title of the axis below them."""
    left, right, bottom = x.begin, x.end, y.begin
    parts = []
    for tick in y.ticks:
        at = coordinate(y.place(tick))
        parts.append(f'<line class="grid" x1="{left:g}" x2="{right:g}" y1="{at}" y2="{at}"/>')
        name = text(y.name(tick))
        parts.append(f'<text class="tick y" x="{left - 8:g}" y="{at}">{name}</text>')
    for tick in x.ticks:
        at = coordinate(x.place(tick))
        name = text(x.name(tick))
        parts.append(
            f'<line class="axis" x1="{at}" x2="{at}" y1="{bottom:g}" y2="{bottom + 4:g}"/>'
        )
        parts.append(f'<text class="tick x" x="{at}" y="{bottom + 20:g}">{name}</text>')
    parts.append(
        f'<line class="axis" x1="{left:g}" x2="{right:g}" y1="{bottom:g}" y2="{bottom:g}"/>'
    )
    middle = (left + right) / 2
    parts.append(f'<text class="title" x="{middle:g}" y="{bottom + 38:g}">{text(x_title)}</text>')
    return "".join(parts)


def _line(line: Line, x: Axis, y: Axis) -> str:
    """Draw a line with the values along it, and marks at its points if they are few."""
    path, xs, ys, marks, is_open = [], [], [], [], False
    for a, b in zip(line.x, line.y, strict=True):
        if not math.isfinite(b) or (y.is_log and b <= 0):
            is_open = False
            continue
        at = f"{coordinate(x.place(a))},{coordinate(y.place(b))}"
        path.append(f"{'L' if is_open else 'M'}{at}")
        xs.append(f"{a:.6g}")
        value = amounts.size(b) if y.kind == "bytes" else _value(b, y.kind)
        ys.append(value.replace(" ", "\u00a0"))  # spaces part the values
        if len(line.x) <= MAX_MARKS:
            cx, cy = at.split(",")
            marks.append(
                f'<circle cx="{cx}" cy="{cy}" r="2.5"><title>{text(line.label)} {text(value)}'
                f"</title></circle>"
            )
        is_open = True
    return (
        f'<g class="c{line.colour}"><path class="line" d="{"".join(path)}" '
        f'data-label="{text(line.label)}" data-x="{" ".join(xs)}" data-y="{" ".join(ys)}"/>'
        f"{''.join(marks)}</g>"
    )


def _value(value: float, kind: Kind) -> str:
    return f"{100 * value:.1f} %" if kind == "share" else amounts.number(value)


def coordinate(value: float) -> str:
    """Format a coordinate with a tenth of a unit, which is less than a pixel."""
    return f"{value:.1f}".removesuffix(".0")
