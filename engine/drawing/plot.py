"""Plots: charts side by side as one SVG picture, for notebooks and files.

The picture has its own style and needs no page.  Its rules apply inside it alone, since notebooks
put pictures of several cells into one document.  Colours are written out, because few programs
other than browsers know variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import cache

from engine.base import arguments
from engine.drawing.charts import COLOURS, HEIGHT, LEFT, WIDTH, Chart
from engine.drawing.page import escape, read_part
from engine.system import files

HEADER = 40  # above a chart, for its title and its legend
GAP = 24  # between charts, and around them
SCOPE = "edgegrad-plot"
_LETTER = 6.8  # mean width of a letter of a legend
_VARIABLE = re.compile(r"var\(--([\w-]+)\)")


class Plot:
    """Charts, which notebooks show and `save` writes.

    titles: the titles of the charts.
    svg: the picture as text.
    """

    def __init__(self, charts: Sequence[Chart], columns: int = 2) -> None:
        self.titles = [chart.title for chart in charts]
        self.svg = _draw(charts, columns)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture as an SVG file, in one step.

        Raises:
            FileError: it cannot be written; what was there is unchanged.
        """
        files.write(arguments.check_path("picture", path), [self.svg.encode()])

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Plot({', '.join(self.titles)}): notebooks show it, save('plot.svg') writes it"


def _draw(charts: Sequence[Chart], columns: int) -> str:
    columns = max(min(columns, len(charts)), 1)
    rows = -(-len(charts) // columns)
    across, down = WIDTH + GAP, HEIGHT + HEADER + GAP
    width, height = GAP + columns * across, GAP + rows * down
    parts = [
        f'<g transform="translate({GAP + i % columns * across} {GAP + i // columns * down})">'
        f"{_draw_panel(chart)}</g>"
        for i, chart in enumerate(charts)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{SCOPE}" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" style="max-width: 100%; height: auto" role="img" '
        f'aria-label="{escape("; ".join(chart.label for chart in charts))}">'
        f'<style>{_make_style()}</style><rect class="ground" width="{width}" '
        f'height="{height}" rx="6"/>'
        f"{''.join(parts)}</svg>"
    )


def _draw_panel(chart: Chart) -> str:
    """Draw a chart below its title and legend."""
    x, legend = float(LEFT), []
    for kind, label in chart.legend:
        legend.append(
            f'<g class="{kind}"><line class="line" x1="{x:g}" x2="{x + 14:g}" y1="28" y2="28"/>'
            f'<text x="{x + 19:g}" y="32">{escape(label)}</text></g>'
        )
        x += 19 + _LETTER * len(label) + 16
    return (
        f'<text class="head" x="{LEFT}" y="12">{escape(chart.title)}</text>{"".join(legend)}'
        f'<g transform="translate(0 {HEADER})">{chart.inside}</g>'
    )


@cache
def _make_style() -> str:
    """Return the rules of chart.css with written-out colours, in light and dark."""
    light, dark = _read_palettes()
    own = (
        "text { font-family: system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', "
        "sans-serif; }\n.head { fill: var(--ink); font-size: 13px; font-weight: 600; }\n"
        ".ground { fill: var(--card); stroke: var(--line); }\n"
        ".mark .line { stroke: var(--ink); stroke-dasharray: 3 4; }\n"
    )
    rules = list(_read_rules(read_part("chart.css") + own))
    both = [
        "".join(_color_rule(selector, body, p) for selector, body in rules) for p in (light, dark)
    ]
    return f"{both[0]}@media (prefers-color-scheme: dark) {{{both[1]}}}"


def _read_palettes() -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables of page.css, in light and in dark."""
    blocks = re.findall(r":root \{(.*?)\}", read_part("page.css"), re.DOTALL)
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w+);", block)) for block in blocks)
    return light, {**light, **dark}


def _read_rules(source: str) -> Iterator[tuple[list[str], str]]:
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]+)\}", source):
        yield [each.strip() for each in selectors.split(",")], body.strip()


def _color_rule(selectors: Sequence[str], body: str, palette: dict[str, str]) -> str:
    """Return a rule inside the scope; one for each colour if it has the colour of its group."""
    if "var(--colour)" in body:
        return "".join(
            _color_rule(
                [f".c{i} {each}" for each in selectors],
                body.replace("--colour", f"--c{i}"),
                palette,
            )
            for i in range(COLOURS)
        )
    scoped = ", ".join(f".{SCOPE} {each}" for each in selectors)
    return f"{scoped} {{ {_VARIABLE.sub(lambda match: palette[match[1]], body)} }}"
