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
from engine.drawing.axes import AxisScale, Kind, make_axis
from engine.drawing.page import escape, make_legend

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
    x_title: the title of the axis across.  label: a description of the chart.
    """

    title: str
    legend: Sequence[tuple[str, str]]
    inside: str
    x_title: str
    label: str


def draw_line_chart(title: str, x_title: str, lines: Sequence[Line], **options: Any) -> str:
    """Return a line chart as HTML; empty if there is no finite value.

    options: the options of `draw_lines`.
    """
    chart = draw_lines(title, x_title, lines, **options)
    return "" if chart is None else wrap_chart(chart)


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
    y = make_axis(
        (v for line in lines for v in line.y), HEIGHT - BOTTOM, TOP,
        kind=kind, may_be_log=may_be_log, from_zero=from_zero,
    )  # fmt: skip
    x = _make_x_axis([v for line in lines for v in line.x], x_kind, y, x_may_be_log)
    note = ", logarithmic" if y.is_log else ""
    drawn = "".join(_draw_line(line, x, y) for line in lines)
    legend = [(f"c{line.colour}", line.label) for line in lines] if len(lines) > 1 else []
    if best is not None and x.low <= best <= x.high:
        at, told = format_coordinate(x.place(best)), f"best {x_title} {best:g}"
        legend.append(("mark", told))
        drawn = (
            f'<line class="best" x1="{at}" x2="{at}" y1="{TOP}" y2="{y.begin}">'
            f"<title>{escape(told)}</title></line>{drawn}"
        )
    label = f"{title} over {x_title}{note}"
    return Chart(title + note, legend, draw_frame(x, y, x_title) + drawn, x_title, label)


def _make_x_axis(
    values: Sequence[float], kind: Kind, up: AxisScale, may_be_log: bool = False
) -> AxisScale:
    """Return the horizontal axis: right of the other axis's labels, with room for its own."""
    left = max(LEFT, 10 + LETTER * _measure_labels(up))
    for count in (6, 4, 3, 2):
        scale = make_axis(
            values, left, WIDTH - RIGHT,
            kind=kind, count=count, is_tight=True, from_zero=kind == "seconds",
            may_be_log=may_be_log,
        )  # fmt: skip
        places = [scale.place(tick) for tick in scale.ticks]
        gaps = [b - a for a, b in itertools.pairwise(places)]
        if min(gaps, default=WIDTH) >= LETTER * (_measure_labels(scale) + 1):
            break
    return scale


def _measure_labels(found: AxisScale) -> int:
    """Return the number of letters of the longest label at an axis."""
    return max((len(found.label_tick(tick)) for tick in found.ticks), default=0)


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

    kind: the kind of numbers on both axes; for shares, axes from 0 to 1 and a line through the
        points.
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
    y = make_axis(up, HEIGHT - BOTTOM, TOP, kind=kind, from_zero=reference == "zero")
    x = _make_x_axis(across, kind, y)
    low, high = (x.low, x.high) if reference == "equal" else (0.0, 0.0)
    line = (
        f'x1="{format_coordinate(x.begin)}" y1="{format_coordinate(y.place(low))}" '
        f'x2="{format_coordinate(x.end)}" y2="{format_coordinate(y.place(high))}"'
    )
    dots = "".join(
        f'<circle cx="{format_coordinate(x.place(a))}" cy="{format_coordinate(y.place(b))}" r="3">'
        f"<title>{escape(x_title)} {_format_value(a, kind)}, {escape(y_title)} "
        f"{_format_value(b, kind)}{escape(note)}"
        "</title></circle>"
        for a, b, note in known
    )
    inside = f'{draw_frame(x, y, x_title)}<line class="equal" {line}/><g class="dots c0">{dots}</g>'
    if kind == "share":
        inside += _draw_line(Line(y_title, [k[0] for k in known], [k[1] for k in known]), x, y)
    return wrap_chart(Chart(title, (), inside, x_title, f"{y_title} over {x_title}"))


def draw_histogram(title: str, x_title: str, values: Sequence[float], bins: int = 20) -> str:
    """Return a chart of how many values lie where, as HTML; empty if none is finite."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return ""
    low, high = min(known), max(known)
    width = (high - low) / bins or max(abs(low), 1.0) / bins
    counts = [0] * bins
    for v in known:
        counts[min(int((v - low) / width), bins - 1)] += 1
    y = make_axis(counts, HEIGHT - BOTTOM, TOP, kind="count", from_zero=True)
    x = _make_x_axis([low, low + bins * width], "number", y)
    bars = "".join(
        f'<rect x="{format_coordinate(x.place(low + i * width))}" '
        f'y="{format_coordinate(y.place(count))}" '
        f'width="{format_coordinate(x.place(low + width) - x.place(low))}" '
        f'height="{format_coordinate(y.place(0) - y.place(count))}">'
        f"<title>{count:,} from {amounts.format_number(low + i * width)} to "
        f"{amounts.format_number(low + (i + 1) * width)}</title></rect>"
        for i, count in enumerate(counts)
        if count
    )
    inside = f'{draw_frame(x, y, x_title)}<g class="boxes c0">{bars}</g>'
    return wrap_chart(Chart(title, (), inside, x_title, f"how many {x_title} lie where"))


def wrap_chart(chart: Chart) -> str:
    """Return a chart as HTML."""
    return (
        f'<figure class="chart" data-x="{escape(chart.x_title)}" data-span="{TOP} '
        f'{HEIGHT - BOTTOM}">'
        f"<figcaption>{escape(chart.title)}{make_legend(chart.legend)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.label)}">'
        f"{chart.inside}</svg></figure>"
    )


def draw_frame(x: AxisScale, y: AxisScale, x_title: str) -> str:
    """Draw the lines of the grid, their labels, and the title of the axis below them."""
    left, right, bottom = x.begin, x.end, y.begin
    parts = []
    for tick in y.ticks:
        at = format_coordinate(y.place(tick))
        parts.append(f'<line class="grid" x1="{left:g}" x2="{right:g}" y1="{at}" y2="{at}"/>')
        name = escape(y.label_tick(tick))
        parts.append(f'<text class="tick y" x="{left - 8:g}" y="{at}">{name}</text>')
    for tick in x.ticks:
        at = format_coordinate(x.place(tick))
        name = escape(x.label_tick(tick))
        parts.append(
            f'<line class="axis" x1="{at}" x2="{at}" y1="{bottom:g}" y2="{bottom + 4:g}"/>'
        )
        parts.append(f'<text class="tick x" x="{at}" y="{bottom + 20:g}">{name}</text>')
    parts.append(
        f'<line class="axis" x1="{left:g}" x2="{right:g}" y1="{bottom:g}" y2="{bottom:g}"/>'
    )
    middle = (left + right) / 2
    parts.append(f'<text class="title" x="{middle:g}" y="{bottom + 38:g}">{escape(x_title)}</text>')
    return "".join(parts)


def _draw_line(line: Line, x: AxisScale, y: AxisScale) -> str:
    """Draw a line with the values along it, and marks at its points if they are few."""
    path, xs, ys, marks, is_open = [], [], [], [], False
    for a, b in zip(line.x, line.y, strict=True):
        if not math.isfinite(b) or (y.is_log and b <= 0):
            is_open = False
            continue
        at = f"{format_coordinate(x.place(a))},{format_coordinate(y.place(b))}"
        path.append(f"{'L' if is_open else 'M'}{at}")
        xs.append(f"{a:.6g}")
        value = amounts.format_size(b) if y.kind == "bytes" else _format_value(b, y.kind)
        ys.append(value.replace(" ", "\u00a0"))  # spaces part the values
        if len(line.x) <= MAX_MARKS:
            cx, cy = at.split(",")
            marks.append(
                f'<circle cx="{cx}" cy="{cy}" r="2.5"><title>{escape(line.label)} {escape(value)}'
                f"</title></circle>"
            )
        is_open = True
    return (
        f'<g class="c{line.colour}"><path class="line" d="{"".join(path)}" '
        f'data-label="{escape(line.label)}" data-x="{" ".join(xs)}" data-y="{" ".join(ys)}"/>'
        f"{''.join(marks)}</g>"
    )


def _format_value(value: float, kind: Kind) -> str:
    return f"{100 * value:.1f} %" if kind == "share" else amounts.format_number(value)


def format_coordinate(value: float) -> str:
    """Format a coordinate with a tenth of a unit, which is less than a pixel."""
    return f"{value:.1f}".removesuffix(".0")
