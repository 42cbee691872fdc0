"""The table of all kinds of input that are mutated."""

from __future__ import annotations

from tests.fuzz import artifacts, calls, graphs, readers
from tests.fuzz.kind import Kind

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        graphs.Nodes(), graphs.Structures(), graphs.Bytes(), artifacts.Training(),
        artifacts.Eval(), artifacts.Updates(), artifacts.Checkpoints(),
        *(make() for make in readers.READERS), calls.Calls(),
    )
}  # fmt: skip
