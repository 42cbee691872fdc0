"""Judgements of answers, beside what C says to the same calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tests.bindings.walks.c import is_of_c
from tests.bindings.walks.methods import Row

MOST_GROWN = 8  # MiB in the second half of the rounds, as collectors are in no hurry
OWN = re.compile(
    r".*(expected|this model has|takes \[|there is none at that index|there is no |is not a path|"
    r"closed|disposed|destroyed)"
)


def check(
    rows: Sequence[Row], printed: str, expected: Mapping[str, str], *, races: bool = False
) -> list[str]:
    """Return what a language did wrong.

    rows: of the language.  expected: what C said, by the text of the row.
    races: whether threads have also called a model that another one closed.
    """
    lines = printed.splitlines()
    facts = dict(line.split() for line in lines[len(rows) :])
    wrong = []
    for row, line in zip(rows, lines[: len(rows)], strict=True):
        said = line.partition(" ")[2]
        word, _, rest = said.partition(" ")
        by_c = expected.get(str(row))
        if why := _judge(row, word, rest, by_c):
            wrong.append(f"{row}: {said}: {why}, C: {by_c}")
    if int(facts["grown"]) > MOST_GROWN:
        wrong.append(f"grown {facts['grown']} MiB")
    if races and facts.get("raced") != "200":
        wrong.append("two threads have not raced for a model a hundred times")
    return wrong


def _is_beyond(row: Row) -> bool:
    """Return whether a value cannot be passed to C as the caller means it."""
    pairs = zip(row.method.kinds, row.words, strict=True)
    return any(
        (kind == "text" and word != "null" and not is_of_c(kind, word))
        or (kind in ("int", "phase") and word != "null" and not is_of_c(kind, word))
        for kind, word in pairs
    )


def _accepts(word: str, rest: str) -> bool:
    """Return whether an answer is other than that there is nothing."""
    return word == "ok" and rest not in ("none", "0", "-1")


def _judge(row: Row, word: str, rest: str, by_c: str | None) -> str:
    """Return what is wrong with an answer; empty if nothing is."""
    if rest.endswith(" changed"):
        return "changed the model"
    if word != "ok" and not (word.isdigit() and word != "0" and rest):
        return "has no code and message"
    is_own = word in ("1", "5") and OWN.match(rest)
    if row.state == "ended" and word == "5":
        return ""
    if is_own:
        return ""
    if by_c is None:
        return "accepts what C cannot have" if _is_beyond(row) and _accepts(word, rest) else ""
    return "" if by_c == " ".join([word, *[rest] * bool(rest)]) else "differs"
