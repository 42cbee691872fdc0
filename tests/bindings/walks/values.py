"""Values that nobody should pass, as words."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.bindings.walks.methods import Method, Row

STATES = ("live", "bare", "ended")  # trained; without values; closed, in C NULL
WIDE = (0, 1, -1, 2**31 - 1, -(2**31), 2**31, 2**32, 2**63 - 1, -(2**63), 2**63)
LARGE = 99999  # elements of a buffer that is too long
MOST = 1000  # mixed calls of a method; one of many values could have millions
FLOATS = (0.5, float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 1e30, 1e-45)
CLAIMS = [f"claim:{x % 2**64}" for x in (2**31, 2**32, 2**63, -1)]
TEXTS = ("", ".", "note", "a\0b", "x" * 5000, "missing/x", "e\u0301\U0001f600")


def encode(text: str) -> str:
    return "x" + text.encode().hex()


def encode_float(value: float) -> str:
    return str(struct.unpack("<I", struct.pack("<f", value))[0])


@dataclass(frozen=True)
class Values:
    """Words for the values of each kind: the first is one that nothing is wrong with.

    samples, labels: elements of the first and the last input of a training step.
    count: elements of all parameters.
    files: names in the folder of a walk: a checkpoint of this model, then broken and other ones.
    real: the letter of the first input's numbers: "f" or "d", of 32 or 64 bits, or "l" of tokens.
    between: the inputs between the first and the last, as they should be.
    classes: the number of labels that there are, and of tokens.
    """

    samples: int
    labels: int
    count: int
    files: Sequence[str]
    real: str = "f"
    between: tuple[str, ...] = ()
    classes: int = 10

    @property
    def odd(self) -> str:
        """A number that is not one, or a token that there is not."""
        return str(self.classes) if self.real == "l" else "nan"

    def list_words(self, method: Method, place: int) -> Sequence[str]:
        """Return the words for an argument of a method."""
        kind = method.kinds[place]
        whole = [str(x) for x in WIDE]
        if kind == "text":
            texts = [encode(text) for text in TEXTS]
            paths = [encode(name) for name in self.files]
            return [encode("note"), "null", *texts, *paths * method.makes]
        if kind == "bytes":
            return [*self.files, "null"]
        lists: Mapping[str, Sequence[str]] = {
            "flag": ("1", "0"),
            "phase": ("0", "1", "2", "99", "-1", "null", str(2**32)),
            "int": whole,
            "long": (str(self.labels), *whole),
            "size": whole,
            "float": [encode_float(x) for x in FLOATS],
            "inputs": self._list_inputs(),
            "numbers": self._list_numbers(),
            "ints": self._list_tokens(),
        }
        sizes = [str(x) for x in (self.count, 0, 1, self.count - 1, self.count + 1, LARGE)]
        return lists.get(kind, [*sizes, "null", *CLAIMS])

    def _list_numbers(self) -> Sequence[str]:
        """Return arrays for an input or a parameter."""
        x = f"{self.real}*{self.samples}"
        fitting = (f"{x}=0", f"{x}={self.odd}", f"l*{self.labels}=0")
        return (*fitting, "null", "f*0=0", "f*1=0", f"f*{LARGE}=0", f"l*{self.samples}=0")

    def _list_inputs(self) -> Sequence[str]:
        """Return the inputs of a training step."""
        x, y = f"{self.real}*{self.samples}", f"l*{self.labels}"
        whole = [
            (f"{x}=1", f"{y}=1"), (f"{x}=1", f"{y}={self.classes}"), (f"{x}=1", f"{y}=-1"),
            (f"{x}={self.odd}", f"{y}=0"), (f"{self.real}*{self.samples - 1}=1", f"{y}=1"),
            (f"{x}=1", f"l*{LARGE}=1"), (f"l*{self.samples}=1", f"{self.real}*{self.labels}=1"),
            ("f*0=1", "l*0=1"), (f"{x}=1", f"{y}=1,{y}=1"),
        ]  # fmt: skip
        first, *rest = (",".join((one, *self.between, last)) for one, last in whole)
        nulls = ",".join(["null"] * (2 + len(self.between)))
        return (first, "null", "none", nulls, f"{x}=1", *rest)

    def _list_tokens(self) -> Sequence[str]:
        """Return tokens to append: so many zeros, or so many of another number."""
        others = (1, -1, self.classes - 1, self.classes, 2**31 - 1, -(2**31))
        values = [f"2={x}" for x in others]
        return ["1", "0", "3", *values, str(LARGE), "null", *CLAIMS]

    def list_rows(self, methods: Sequence[Method], *, at_length: bool) -> list[Row]:
        """Return the calls: each value with the others as they should be, then all mixed.

        at_length: mixed in all ways, and as many on models without values and closed ones.
        """
        rows = []
        for method in methods:
            lists = [self.list_words(method, place) for place in range(len(method.kinds))]
            first = tuple(words[0] for words in lists)
            varied = [first]
            for place, words in enumerate(lists):
                varied += [(*first[:place], word, *first[place + 1 :]) for word in words[1:]]
            longest = max(map(len, lists), default=0)
            turns = [
                tuple(w[(turn + (turn + 2) * i) % len(w)] for i, w in enumerate(lists))
                for turn in range(longest)
            ]
            mixed = _mix(lists) if at_length else turns
            every = list(dict.fromkeys([*varied, *mixed] if len(lists) > 1 else varied))
            fewer = every if at_length else every[:: max(1, len(every) // 4)]
            for state in STATES if method.acts else STATES[:1]:
                chosen = every if state == "live" else fewer
                rows += [Row(state, method, words) for words in chosen]
        return rows


def _mix(lists: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return words of lists, mixed in all ways; in drawn ones where these are too many."""
    every = 1
    for words in lists:
        every *= len(words)
    if every <= MOST:
        return list(itertools.product(*lists))
    draw = random.Random(28)
    return [tuple(map(draw.choice, lists)) for _ in range(MOST)]
