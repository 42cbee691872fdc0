"""Metrics: the table of all metrics in docs/metrics.md, made of their declarations."""

from __future__ import annotations

import inspect

from engine.tools.dev.made_parts import make_again
from engine.trainer.metrics.named import METRICS, get_declaration


def make_table() -> str:
    """Return the table as Markdown, then what each metric is."""
    rows = ["| name | variants | better | output | targets | where it is undefined |"]
    rows.append("|---|---|---|---|---|---|")
    meanings = []
    for kind in METRICS:
        declared = get_declaration(kind)
        cells = [
            f"`{declared.name}`", " ".join(f"`{end}`" for end in declared.variants),
            {"min": "lower", "max": "higher"}[declared.mode], declared.output, declared.targets,
            declared.empty,
        ]  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
        first = (inspect.getdoc(kind) or "").split("\n\n")[0]
        meanings.append(f"- `{kind.__name__}`: {' '.join(first.split())}")
    return "\n".join([*rows, "", *meanings]) + "\n"


def make_page(text: str) -> str:
    """Return the page with its table made again."""
    return make_again(text, {"metrics": make_table})
