"""Timeline: what the work values of an ordered draft take at each call, if chosen calls run again.

A model of the memory of a plan that is quick to ask, for the search for what should run again.  It
knows the larger values, which of them share bytes, and how much of a value a group of calls keeps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from engine.graphs.planner.again import NEVER, Repeat
from engine.graphs.planner.lower import Call, Draft

Profile = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

SMALL = 1 << 13  # values of a smaller part of all bytes are left out


class Unit:
    """Calls that may run again, as a timeline sees them.

    makes: of each value that they make its index, its last use before the gap, and its last use
        behind it; -1 if there is none.
    reads: of each value that they read its index, and the unit that makes it; -1 if there is none.
    pairs: values that are written over values that are read, if these are not read later.
    scratch: bytes that they need while they run.
    seconds: that they take.
    """

    __slots__ = ("early", "late", "limit", "makes", "pairs", "reads", "scratch", "seconds")

    def __init__(self, repeat: Repeat, seconds: float) -> None:
        self.early, self.late, self.limit = repeat.early, repeat.late, repeat.limit
        self.makes: list[tuple[int, int, int]] = []
        self.reads: list[tuple[int, int]] = []
        self.pairs: list[tuple[int, int]] = []
        self.scratch = 0
        self.seconds = seconds


class Timeline:
    """The memory of a draft over its calls.

    units: what may run again, by the places of the last calls.
    """

    def __init__(
        self,
        draft: Draft,
        known: Mapping[int, Repeat],
        nbytes: Mapping[str, int],
        whole: Mapping[str, int],
        seconds: list[float],
    ) -> None:
        """The memory of a draft of which nothing runs again.

        nbytes: what each work value takes, of which a group may keep parts.
        whole: what it takes where calls outside that group read it.
        seconds: of each call.
        """
        self.calls = len(draft.calls)
        users: dict[str, list[int]] = {}
        for n, call in enumerate(draft.calls):
            for _, name in call.args:
                if name in nbytes:
                    users.setdefault(name, []).append(n)
        least = sum(nbytes[name] for name in users) // SMALL
        names = [name for name in users if whole[name] > least]
        index = {name: i for i, name in enumerate(names)}
        self.sizes = np.array([nbytes[name] for name in names], np.float64)
        self.whole = np.array([whole[name] for name in names], np.float64)
        self._first = np.array([users[name][0] for name in names], np.int64)
        self._last = np.array([users[name][-1] for name in names], np.int64)
        pairs = [p for n, call in enumerate(draft.calls) for p in _pairs(n, call, index, nbytes)]
        self._pairs = np.array(pairs, np.int64).reshape(-1, 3).T
        makers = {name: last for last, repeat in known.items() for name in repeat.makes}
        self.units: dict[int, Unit] = {}
        for last, repeat in known.items():
            unit = self.units[last] = Unit(repeat, sum(seconds[n] for n in repeat.calls))
            for name in repeat.makes:
                if name in index:
                    uses = users[name]
                    before = uses[max(bisect_right(uses, repeat.early) - 1, 0)]
                    behind = uses[-1] if uses[-1] > repeat.early else -1
                    unit.makes.append((index[name], before, behind))
            unit.reads = [(index.get(x, -1), makers.get(x, -1)) for x in repeat.reads]
            for n in repeat.calls:
                call = draft.calls[n]
                unit.pairs += [(w, r) for _, w, r in _pairs(n, call, index, nbytes)]
                scratch = sum(nbytes.get(name, 0) for mode, name in call.args if mode == "s")
                unit.scratch = max(unit.scratch, scratch)

    def places(self, chosen: Collection[int]) -> dict[int, int] | None:
        """Before which call each chosen unit runs again; as `again.places`."""
        units = self.units
        need = {n: units[n].late for n in chosen}
        for n in sorted(need, reverse=True):
            place = need[n]
            if place == NEVER:
                continue
            if place > units[n].limit:
                return None
            for _, maker in units[n].reads:
                if maker in need and units[maker].early < place < need[maker]:
                    need[maker] = place
        return need

    def profile(self, chosen: Collection[int]) -> Profile | None:
        """The bytes that live at each call if chosen units run again; None if they cannot.

        The calls that run again are counted; they stand where `places` says, in their order.
        """
        need = self.places(chosen)
        return None if need is None else self.live(need)

    def at(self, need: Mapping[int, int]) -> Places:
        """Where each call is if units run again before these calls."""
        again = [place for place in need.values() if place != NEVER]
        if not again:
            return np.arange(self.calls)
        return np.arange(self.calls) + np.cumsum(np.bincount(again, minlength=self.calls))

    def ends(self, need: Mapping[int, int], at: Places) -> Places:
        """Where each value dies, as far as calls of the draft decide it."""
        end = at[self._last]
        for n, place in need.items():
            if place != NEVER:
                for value, _, behind in self.units[n].makes:
                    end[value] = at[behind] if behind >= 0 else at[place]
        return end

    def live(self, need: Mapping[int, int]) -> Profile:
        """The bytes that live at each call if units run again before these calls."""
        units, sizes = self.units, self.sizes
        copies = sorted((place, n) for n, place in need.items() if place != NEVER)
        total = self.calls + len(copies)
        at = self.at(need)
        begin, end = at[self._first], at[self._last]
        begins: dict[int, int] = {}  # of values that are made again
        ends: dict[int, int] = {}
        for rank, (place, n) in enumerate(copies):
            for value, before, behind in units[n].makes:
                end[value] = at[before]
                begins[value] = place + rank
                ends[value] = at[behind] if behind >= 0 else place + rank
        read_later: set[int] = set()
        late: list[tuple[int, int]] = []  # of calls that run again: bytes of scratch, and where
        for rank, (place, n) in enumerate(copies):
            here = place + rank
            unit = units[n]
            for value, maker in unit.reads:
                if value < 0:
                    continue
                if value in begins and place > units[maker].early:
                    ends[value] = max(ends[value], here)
                elif end[value] < here:
                    end[value] = here
                    read_later.add(value)
            if unit.scratch:
                late.append((unit.scratch, here))
        call, written, read = self._pairs
        again = end.copy()
        for value, here in ends.items():
            again[value] = here
        dies = (end[read] == at[call]) | (again[read] == at[call])
        begin[written[dies]] += 1
        for rank, (place, n) in enumerate(copies):
            here = place + rank
            for w, r in units[n].pairs:
                if w in begins and again[r] == here < ends[w]:
                    begins[w] += 1
        parts = [value for value in read_later if sizes[value] < self.whole[value]]
        if parts:
            sizes = sizes.copy()
            sizes[parts] = self.whole[parts]
        change = np.bincount(begin, sizes, total + 2) - np.bincount(end + 1, sizes, total + 2)
        for value, here in begins.items():
            change[here] += self.whole[value]
            change[ends[value] + 1] -= self.whole[value]
        for nbytes, here in late:
            change[here] += nbytes
            change[here + 1] -= nbytes
        return np.cumsum(change)[:total]


def _pairs(
    n: int, call: Call, index: Mapping[str, int], nbytes: Mapping[str, int]
) -> Iterator[tuple[int, int, int]]:
    """The values that call n may write over values that it reads; each with n, by their indices."""
    for written, read in call.inplace:
        w, r = call.args[written][1], call.args[read][1]
        others = [name for i, (_, name) in enumerate(call.args) if i not in (written, read)]
        if w in index and r in index and nbytes[w] == nbytes[r] and r not in others:
            yield n, index[w], index[r]
