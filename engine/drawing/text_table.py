"""Tables as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def align_cells(rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return lines of cells: the first `left` columns on the left, the others on the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
    return "\n".join(lines) + "\n"
