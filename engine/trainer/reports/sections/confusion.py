"""Confusion matrix: which classes the validation took for which."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.base.aliases import Array
from engine.drawing.page import escape, make_table
from engine.trainer.reports.record import Record, describe_origin
from engine.trainer.reports.section import Section
from engine.trainer.reports.sections.classes import name_classes

MAX_NUMBERS = 24  # classes of a matrix whose cells show their numbers
MAX_CELLS = 120  # classes of a matrix that is drawn
MAX_ROWS = 10  # of the table of confusions
SHADES = 9


def render(record: Record) -> str:
    """Return the matrix, and the most frequent confusions."""
    findings = record.findings
    if findings is None or findings.counts is None or not findings.total:
        return ""
    counts = findings.counts
    names = name_classes(findings.classes, len(counts))
    right = int(np.trace(counts))
    intro = f"{right:,} of {findings.total:,} right ({_share(right, findings.total)})."
    if len(counts) <= MAX_CELLS:
        intro += (
            " Rows are what is expected, columns what was predicted; a cell is shaded by its share "
            "of the row."
        )
        draw = _make_table if len(counts) <= MAX_NUMBERS else _draw_matrix
        matrix = draw(counts, names)
    else:
        intro, matrix = f"{intro} {len(counts)} classes are too many for a matrix.", ""
    return (
        f'{describe_origin(record)}<p>{intro}</p><div class="beside"><div>{matrix}</div>'
        f"<div>{_list_pairs(counts, names)}</div></div>"
    )


def _choose_shade(i: int, j: int, share: float) -> str:
    """Return the CSS class of a cell: its kind, and a shade from 0 to `SHADES`."""
    kind = "right" if i == j else "wrong"
    return f"{kind} q{0 if share == 0 else max(1, round(share * SHADES))}"


def _make_table(counts: Array, names: Sequence[str]) -> str:
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    kind = " upright" if max(map(len, names)) > 4 and len(names) > 5 else ""
    head = "".join(f'<th scope="col"><span>{escape(n)}</span></th>' for n in names)
    rows = "".join(
        f'<tr><th scope="row">{escape(names[i])}</th>'
        + "".join(
            f'<td class="{_choose_shade(i, j, shares[i, j])}" '
            f'title="{escape(names[i])} as {escape(names[j])}: {n}">{n if n else ""}</td>'
            for j, n in enumerate(row)
        )
        + "</tr>"
        for i, row in enumerate(counts.tolist())
    )
    return (
        f'<div class="scroll"><table class="matrix{kind}"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _draw_matrix(counts: Array, names: Sequence[str]) -> str:
    """Draw the matrix, with a square for every cell that is not 0."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    n = len(names)
    cells = "".join(
        f'<rect x="{j}" y="{i}" width="1" height="1" class="{_choose_shade(i, j, shares[i, j])}">'
        f"<title>{escape(names[i])} as {escape(names[j])}: {counts[i, j]}</title></rect>"
        for i, j in zip(*(a.tolist() for a in np.nonzero(counts)), strict=True)
    )
    return (
        f'<svg class="matrix" viewBox="0 0 {n} {n}" role="img" '
        f'aria-label="confusion matrix of {n} classes">'
        f'<rect class="ground" width="{n}" height="{n}"/>{cells}</svg>'
    )


def _list_pairs(counts: Array, names: Sequence[str]) -> str:
    """List the most frequent confusions."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_ROWS]
    places = [divmod(int(k), len(names)) for k in order]
    rows = [
        (
            escape(names[i]),
            escape(names[j]),
            f"{wrong[i, j]:,}",
            _share(wrong[i, j], counts[i].sum()),
        )
        for i, j in places
        if wrong[i, j]
    ]
    if not rows:
        return ""
    head = ("expected", "predicted", "times", "of the class")
    return f"<h3>Most frequent confusions</h3>{make_table(head, rows)}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


SECTION = Section("confusion", "Confusion matrix", render)
