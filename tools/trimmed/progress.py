"""Progress of a command that takes a while: lines on standard error, each with the time so far and,
once something has been measured, with an estimate of the rest.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

Item = TypeVar("Item")
Part = Literal["planning", "kernels", "linking"]

EVERY = 2.0  # seconds between two lines on the items of one list
# How long a part of a build takes beside others, until one of its kind has been measured.
WEIGHTS: dict[Part, float] = {"planning": 1, "kernels": 5, "linking": 2}


class StagePrinter:
    """Printing of stages, even without a terminal; a silent one prints nothing.

    [  0.6 s] planning the training model, batch 8
    [  3.1 s, about 9 s left] compiling kernels, or reading them from the cache: 21 of 59

    A command that knows its parts announces them (`expect`) and begins each (`begin`).  The rest is
    estimated from the parts that were measured, by their kind.

    is_open: more may follow than is announced, so that nothing can be said about the rest.
    clock: returns seconds.
    """

    def __init__(
        self,
        *,
        silent: bool = False,
        is_open: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.silent, self._is_open, self._clock = silent, is_open, clock
        self._start = clock()
        self._ahead = Counter[Part]()
        self._took: dict[Part, list[float]] = {}
        self._part: tuple[Part, float] | None = None  # the kind of the present part, its start
        self._share = 0.0  # of the present part, that is known to be done

    def say(self, text: str) -> None:
        """Print a line."""
        if self.silent:
            return
        left = self._estimate_rest()
        rest = "" if left is None else f", about {_round_seconds(left)} left"
        print(f"[{self._clock() - self._start:5.1f} s{rest}] {text}", file=sys.stderr, flush=True)

    def expect(self, parts: Counter[Part]) -> None:
        """Announce parts that will begin."""
        if not self.silent:
            self._ahead += parts

    def drop(self, kind: Part) -> None:
        """Take back a part that was announced: it is not needed."""
        self._ahead -= Counter[Part]({kind: 1})

    def begin(self, kind: Part, text: str) -> None:
        """End the part before, and begin one that was announced; prints a line."""
        if self.silent:
            return
        self.end()
        self.drop(kind)
        self._part = kind, self._clock()
        self.say(text)

    def end(self) -> None:
        """End the present part, if there is one."""
        if self._part is not None:
            kind, start = self._part
            self._took.setdefault(kind, []).append(self._clock() - start)
        self._part, self._share = None, 0.0

    def count_each(self, text: str, items: Sequence[Item]) -> Iterator[Item]:
        """Yield the items, as a part of the kind `kernels`; a line before the first, and one every
        EVERY seconds that counts them.
        """
        self.begin("kernels", f"{text}: {len(items)}")
        last = self._clock()
        for k, item in enumerate(items):
            self._share = k / len(items)
            if self._clock() - last >= EVERY:
                self.say(f"{text}: {k} of {len(items)}")
                last = self._clock()
            yield item

    def _estimate_rest(self) -> float | None:
        """Return the seconds of what is to come; None while nothing is known.

        Of a part that has begun, its share or the others of its kind say what is left.
        """
        if self._is_open:
            return None
        rates = [sum(took) / len(took) / WEIGHTS[kind] for kind, took in self._took.items()]
        part, left = self._part, 0.0
        if part is not None:
            kind, passed = part[0], self._clock() - part[1]
            if self._share:
                whole = passed / self._share
                rates.append(whole / WEIGHTS[kind])
                left = whole - passed
            elif rates:
                left = max(0.0, self._estimate_part(kind, rates) - passed)
        if not rates or (part is None and not self._ahead):
            return None
        return left + sum(n * self._estimate_part(k, rates) for k, n in self._ahead.items())

    def _estimate_part(self, kind: Part, rates: Sequence[float]) -> float:
        """Return the seconds of a part: the mean of its kind, or as others let expect."""
        if took := self._took.get(kind):
            return sum(took) / len(took)
        return WEIGHTS[kind] * sum(rates) / len(rates)


def _round_seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


SILENT = StagePrinter(silent=True)
