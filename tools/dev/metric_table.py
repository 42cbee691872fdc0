"""Metrics: the table of all metrics in docs/metrics.md, made of their declarations."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from engine.trainer.metrics.named import METRICS, get_declaration

_BEGIN = "<!-- metrics: made by `python -m engine.tools.dev.metric_table docs/metrics.md` -->\n"
_END = "<!-- end of metrics -->\n"


def make_table() -> str:
    """Return the table as Markdown, then what each metric is."""
    rows = ["| name | variants | better | takes | targets | where it is not defined |"]
    rows.append("|---|---|---|---|---|---|")
    meanings = []
    for kind in METRICS:
        declared = get_declaration(kind)
        cells = [
            f"`{declared.name}`", " ".join(f"`{end}`" for end in declared.variants),
            {"min": "less", "max": "more"}[declared.mode], declared.output, declared.targets,
            declared.empty,
        ]  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
        first = (inspect.getdoc(kind) or "").split("\n\n")[0]
        meanings.append(f"- `{kind.__name__}`: {' '.join(first.split())}")
    return "\n".join([*rows, "", *meanings]) + "\n"


def with_table(page: str) -> str:
    """Return a page with the table between its marks."""
    head, _, rest = page.partition(_BEGIN)
    return f"{head}{_BEGIN}{make_table()}{_END}{rest.partition(_END)[2]}"


def main(argv: list[str]) -> None:
    """Write the table into the named page, or print it if none is named."""
    if argv:
        page = Path(argv[0])
        page.write_text(with_table(page.read_text("utf-8")), "utf-8")
    else:
        sys.stdout.write(make_table())


if __name__ == "__main__":
    main(sys.argv[1:])
