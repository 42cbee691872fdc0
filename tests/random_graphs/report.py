"""Results of comparisons: what was done, refused or different."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


class DifferentError(AssertionError):
    """Two ways of computing a model do not agree.

    way: which one is not as the plain plan, in a few words.
    """

    def __init__(self, way: str, text: str) -> None:
        super().__init__(f"{way}: {text}")
        self.way = way


@dataclass
class Report:
    """Results of the comparisons of a model.

    done: how often each was made.  refused: the reasons of refusals, by comparison.
    changed: the passes that changed a graph.  unstable: outputs that were left out.
    """

    done: Counter[str] = field(default_factory=Counter)
    refused: list[tuple[str, str]] = field(default_factory=list)
    changed: Counter[str] = field(default_factory=Counter)
    unstable: int = 0
