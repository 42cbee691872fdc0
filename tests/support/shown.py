"""Marks of tests that show that a language works on a platform, for the table of
docs/everywhere.md.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args

from tests.support.places import ROOT

How = Literal["run", "emulated", "linked", "made"]  # the strongest first
F = TypeVar("F")


def shows(language: str, platform: str, how: How, by: str = "") -> Callable[[F], F]:
    """Mark a test that shows that a language works on a platform; it stays as it is.

    language, platform: a column and a row of the table.
    by: the program that ran it, where the table shall name it.
    """
    return lambda test: test


@dataclass(frozen=True)
class Shown:
    """A mark of a test."""

    language: str
    platform: str
    how: str
    by: str = ""

    @property
    def strength(self) -> int:
        """The place in the order of `How`."""
        return get_args(How).index(self.how)

    def __str__(self) -> str:
        return f"{self.how}: {self.by}" if self.by else self.how


def list_shown() -> Iterator[Shown]:
    """Yield the marks of all tests, read from their sources."""
    for path in sorted(Path(ROOT, "tests").rglob("test_*.py")):
        text = path.read_text("utf-8")
        if "shows(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "shows":
                        yield Shown(*(ast.literal_eval(word) for word in mark.args))
