"""Models by name: the table of docs/models.md."""

from __future__ import annotations

from engine.models.catalog import ARCHITECTURES, Architecture
from engine.models.layers import CLASSES
from engine.models.named_model import make
from engine.tools.dev.made_parts import make_again

_HEAD = """\
| name | input | values to learn | file | for | learns from |
|---|---|---|---|---|---|
"""
_ROW = 20  # features of a row


def make_table() -> str:
    """Return the table as Markdown: sizes are for 10 classes, rows for 20 features."""
    return _HEAD + "".join(map(_make_row, ARCHITECTURES.values()))


def _make_row(kind: Architecture) -> str:
    made = make(
        kind,
        classes=None if kind.answers == "input" else CLASSES,
        input_shape=(_ROW,) if kind.needs_shape else None,
    )
    shape = " x ".join(map(str, kind.shape))
    name = f"`{kind.name}`"
    if kind.paper:
        name = f"[{name}](https://arxiv.org/abs/{kind.paper})"
    size = len(made.content)
    nbytes = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} KB"
    cells = (name, shape, f"{made.parameters:,}", nbytes, kind.purpose, kind.data)
    return f"| {' | '.join(cells)} |\n"


def make_page(text: str) -> str:
    """Return the page with its table made again."""
    return make_again(text, {"models": make_table})
