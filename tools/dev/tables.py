"""Tables that follow from declarations: pages and files of code, all written by one command.

    python -m engine.tools.dev.tables

Run it after a change of an op, an optimizer, a loss, a metric, an architecture, an option or a
command.  It prints the names of the files that it has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from engine.base.package import FOLDER
from engine.tools.commands import page
from engine.tools.dev import (
    homes,
    keywords,
    loss_table,
    metric_table,
    models,
    operators,
    public_names,
)
from engine.tools.dev.made_parts import make_again

ROOT = FOLDER.parent
# For each file the function that makes its text again.
WRITERS: dict[str, Callable[[str], str]] = {
    "docs/commands.md": lambda text: make_again(text, page.PARTS),
    "docs/losses.md": loss_table.make_page,
    "docs/metrics.md": metric_table.make_page,
    "docs/models.md": models.make_page,
    "docs/operators.md": lambda _: operators.make_table(),
    "engine/base/public_names.py": lambda _: public_names.write_source(),
    "engine/base/declared_homes.py": lambda _: homes.write_source(),
    "engine/training/keywords.py": lambda _: keywords.write_source(),
}


def find_stale() -> Iterator[tuple[Path, str]]:
    """Yield the files that are out of date, each with its new text."""
    for name, make in WRITERS.items():
        path = ROOT / name
        before = path.read_text("utf-8")
        if (after := make(before)) != before:
            yield path, after


def main() -> None:
    """Write the files that are out of date."""
    for path, text in find_stale():
        path.write_text(text, "utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
