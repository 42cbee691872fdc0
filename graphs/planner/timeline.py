"""Timeline: a model of the work memory over the calls of a draft, for sets of calls to run again.

It is quick to evaluate, for the search for such a set.  It knows the larger values, which of them
share bytes, and how much of a value a group of calls keeps.

The search evaluates many sets that differ little.  So a `Profile` holds the live bytes at each call
for one set, and evaluates a change only from the values that the change touches: their live ranges
change, and the profile differs only there.

Time is measured in *keys*, integers in the order in which calls run.  Each call of the draft has a
key, and so has each repeated call, which comes before the call that needs it first; no key depends
on the other repeated calls.  Keys are even, and a key plus one is the time just after its call.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from engine.graphs.planner.draft import Draft, DraftCall
from engine.graphs.planner.recompute import NEVER, Repeat

Bytes = npt.NDArray[np.int64]
Span = tuple[int, int, int]  # the keys between which bytes live, both included, and their number

# Values with less than 1 / SMALL of all bytes are left out.  With all of them, the ladder of
# ResNet-18 takes 1.5 times as long and is as good, and the smallest budget of U-Net is 56.4 %
# instead of 55.0 (`python -m bench budgets.constants`).
SMALL = 1 << 13


class Unit:
    """Calls that may run again, as a timeline sees them.

    makes: for each value that they make, its index, its last use before the gap, and its last use
        after it; -1 if there is none.
    reads: for each value that they read, its index and the unit that makes it, or -1.
    makers: the units that make what they read.
    readers: the units that read what they make.
    pairs: values that are written over values that are read, if these are not read later.
    touched: the values that may live otherwise if they run again, or at another time.
    scratch: bytes that they need while they run.
    seconds: that they take.
    """

    __slots__ = (
        "early", "late", "limit", "makers", "makes", "pairs", "readers", "reads", "scratch",
        "seconds", "touched",
    )  # fmt: skip

    def __init__(self, repeat: Repeat, seconds: float) -> None:
        self.early, self.late, self.limit = repeat.early, repeat.late, repeat.limit
        self.makes: list[tuple[int, int, int]] = []
        self.reads: list[tuple[int, int]] = []
        self.makers: list[int] = []
        self.readers: list[int] = []
        self.pairs: list[tuple[int, int]] = []
        self.touched: list[int] = []
        self.scratch = 0
        self.seconds = seconds


class Timeline:
    """The calls of a draft, the values that they touch, and what may run again.

    units: what may run again, by the places of the last calls.
    calls: how many there are.
    keys: the keys of the calls.
    sizes, whole: the bytes of each value, and those where calls outside its group read it.
    first, last: the first and the last call that touch it.
    maker: the unit that makes it; -1 if there is none.
    """

    def __init__(
        self,
        draft: Draft,
        known: Mapping[int, Repeat],
        nbytes: Mapping[str, int],
        whole: Mapping[str, int],
        seconds: list[float],
    ) -> None:
        """Start with no call that runs again.

        nbytes: what each work value takes; a group may keep only a part of it.
        whole: what it takes where calls outside that group read it.
        seconds: the seconds of each call.
        """
        self.calls = len(draft.calls)
        self._row = 2 * (self.calls + 1)  # keys of all units before a call, and its own key
        self.keys = [(n + 1) * self._row - 2 for n in range(self.calls)]
        users: dict[str, list[int]] = {}
        for n, call in enumerate(draft.calls):
            for _, name in call.args:
                if name in nbytes:
                    users.setdefault(name, []).append(n)
        least = sum(nbytes[name] for name in users) // SMALL
        names = [name for name in users if whole[name] > least]
        index = {name: i for i, name in enumerate(names)}
        self.sizes = [nbytes[name] for name in names]
        self.whole = [whole[name] for name in names]
        self.first = [users[name][0] for name in names]
        self.last = [users[name][-1] for name in names]
        self.units: dict[int, Unit] = {}
        self.maker = [-1] * len(names)
        self._readers: list[list[int]] = [[] for _ in names]  # the units that read it
        self._begins_at = [self.keys[n] for n in self.first]
        self._ends_at = [self.keys[n] for n in self.last]
        # Of what a unit makes, the keys of the last use before the gap and after it, or -1.
        self._uses = [(-1, -1)] * len(names)
        # Of each value that a call may write over another: their keys and the others; the units.
        self._over: list[list[tuple[int, int]]] = [[] for _ in names]
        self._over_again: list[list[tuple[int, int]]] = [[] for _ in names]
        self._under: list[list[int]] = [[] for _ in names]  # what may be written over each value
        for n, call in enumerate(draft.calls):
            for w, r in _list_pairs(call, index, nbytes):
                self._over[w].append((self.keys[n], r))
                self._under[r].append(w)
        makers = {name: last for last, repeat in known.items() for name in repeat.makes}
        for last, repeat in known.items():
            unit = self.units[last] = Unit(repeat, sum(seconds[n] for n in repeat.calls))
            for name in repeat.makes:
                if name in index:
                    uses = users[name]
                    before = uses[max(bisect_right(uses, repeat.early) - 1, 0)]
                    behind = uses[-1] if uses[-1] > repeat.early else -1
                    unit.makes.append((index[name], before, behind))
                    self.maker[index[name]] = last
                    self._uses[index[name]] = (
                        self.keys[before],
                        self.keys[behind] if behind >= 0 else -1,
                    )
            unit.reads = [(index.get(x, -1), makers.get(x, -1)) for x in repeat.reads]
            unit.makers = sorted({maker for _, maker in unit.reads if maker >= 0})
            for n in repeat.calls:
                call = draft.calls[n]
                unit.pairs += _list_pairs(call, index, nbytes)
                scratch = sum(
                    nbytes.get(name, 0)
                    for mode, name in call.args
                    if mode == "s" or (mode == "w" and name not in repeat.makes)
                )
                unit.scratch = max(unit.scratch, scratch)
            if any(maker > last for maker in unit.makers):
                unit.limit = -1  # it reads parts of what later calls complete: it stays where it is
        for n, unit in self.units.items():
            for maker in unit.makers:
                self.units[maker].readers.append(n)
            for value, _ in unit.reads:
                if value >= 0:
                    self._readers[value].append(n)
            for w, r in unit.pairs:
                self._over_again[w].append((n, r))
                self._under[r].append(w)
        for unit in self.units.values():
            own = [v for v, _, _ in unit.makes] + [v for v, _ in unit.reads if v >= 0]
            others = [w for v in own for w in self._under[v]]
            unit.touched = list(dict.fromkeys([*own, *others]))

    def find_key_again(self, n: int, place: int) -> int:
        """Return the key of a unit that runs again before the call at a place."""
        return place * self._row + 2 * n

    def profile(self, chosen: Collection[int]) -> MemoryProfile | None:
        """Return the profile where chosen units run again; None if they cannot."""
        result = MemoryProfile(self)
        change = result.change(sorted(chosen))
        if change is None:
            return None
        result.take(change)
        return result

    def _find_ends(self, value: int, needs: Mapping[int, int]) -> tuple[int, bool, int]:
        """Return the keys of the last calls that touch a value, and what is made again of it.

        needs: before which calls units run again.

        Returns the key for the value itself, and whether that is a call that runs again; and the
        key for what is made again, -1 if nothing is.
        """
        row, maker = self._row, self.maker[value]
        place = needs.get(maker, NEVER)
        is_late, again, early = False, -1, NEVER
        if place == NEVER:
            end = self._ends_at[value]
        else:
            early = self.units[maker].early
            end, again = self._uses[value]
            if again < 0:
                again = place * row + 2 * maker
        for n in self._readers[value]:
            if n in needs:
                place = needs[n]
                if place != NEVER:
                    here = place * row + 2 * n
                    if place > early:
                        if here > again:
                            again = here
                    elif here > end:
                        end, is_late = here, True
        return end, is_late, again

    def list_spans(self, value: int, needs: Mapping[int, int]) -> tuple[Span, ...]:
        """Return when a value lives: one span, and another one where it is made again."""
        end, is_late, again = self._find_ends(value, needs)
        begin = self._begins_at[value]
        for here, over in self._over[value]:
            other, _, other_again = self._find_ends(over, needs)
            if here in (other, other_again):
                begin += 1
                break
        whole = self.whole[value]
        span = begin, end, whole if is_late else self.sizes[value]
        if again < 0:
            return (span,)
        maker = self.maker[value]
        made = self.find_key_again(maker, needs[maker])
        for n, over in self._over_again[value]:
            if n == maker and made < again:
                other, _, other_again = self._find_ends(over, needs)
                if made == (other_again if other_again >= 0 else other):
                    return span, (made + 1, again, whole)
        return span, (made, again, whole)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of what runs again.

    needs: before which calls units run again with it.
    spans: the lifetimes of the values whose lifetimes differ.
    came, went: the keys of the calls that run again then, and of those that no longer do.
    events: bytes that begin or cease to live, as spans; of those that cease the number is negative.
    seconds: by which the step takes longer.
    """

    needs: dict[int, int]
    spans: dict[int, tuple[Span, ...]]
    came: list[int]
    went: list[int]
    events: list[Span]
    seconds: float


class MemoryProfile:
    """The bytes that live at each call where some units run again.

    needs: before which call each chosen unit runs again; `NEVER` for those that nobody needs.
    keys: the keys of all calls that run, in order.
    live: the bytes that live at each of them.
    seconds: that all take that run again.
    """

    __slots__ = (
        "_above",
        "_gaps",
        "_limit",
        "_spans",
        "keys",
        "live",
        "needs",
        "seconds",
        "timeline",
    )

    def __init__(self, timeline: Timeline) -> None:
        """Start with no call that runs again."""
        self.timeline = timeline
        self.needs: dict[int, int] = {}
        self.seconds = 0.0
        calls = timeline.calls
        self.keys = timeline.keys[:]
        self._spans = [timeline.list_spans(value, {}) for value in range(len(timeline.sizes))]
        change, between = np.zeros(calls + 1, np.int64), np.zeros(calls + 2, np.int64)
        for spans in self._spans:
            for first, last, nbytes in spans:
                begin, end = bisect_left(self.keys, first), bisect_right(self.keys, last)
                change[begin] += nbytes
                change[end] -= nbytes
                between[bisect_right(self.keys, first)] += nbytes
                between[end] -= nbytes
        self.live: Bytes = np.cumsum(change)[:-1]
        self._gaps: Bytes = np.cumsum(between)[:-1]  # that live before each call, and after all
        self._limit, self._above = -1, np.zeros(0, np.int64)

    def copy(self) -> MemoryProfile:
        """Return another profile, equal to this one."""
        other = object.__new__(MemoryProfile)
        other.timeline, other.seconds = self.timeline, self.seconds
        other.needs, other.keys, other._spans = dict(self.needs), self.keys[:], self._spans[:]
        other.live, other._gaps = self.live.copy(), self._gaps.copy()
        other._limit, other._above = self._limit, self._above
        return other

    @property
    def chosen(self) -> frozenset[int]:
        """The units that were chosen."""
        return frozenset(self.needs)

    @property
    def peak(self) -> int:
        """The most bytes that live at a call."""
        return int(self.live.max(initial=0))

    def compute_excess(self, limit: int) -> int:
        """Return the bytes above a limit, summed over all calls."""
        return int(self._sum_excess(limit)[-1])

    def _sum_excess(self, limit: int) -> Bytes:
        """Return the bytes above a limit at all calls before each."""
        if limit != self._limit:
            self._above = np.zeros(len(self.live) + 1, np.int64)
            np.cumsum(np.maximum(self.live - limit, 0), out=self._above[1:])
            self._limit = limit
        return self._above

    def list_holding(self, limit: int) -> list[int]:
        """Return the units that run again and by that hold bytes where more than a limit live.

        There they run, or what they make waits for its readers, or what they read waits for them;
        or so it is with units that run before the same call because these read what they make.
        To give up any other unit leaves no less above the limit.
        """
        keys, over, timeline, needs = self.keys, [0], self.timeline, self.needs
        over += np.cumsum(self.live > limit).tolist()
        is_holding: dict[int, bool] = {}
        for n in sorted(needs):  # makers before readers
            place, unit = needs[n], timeline.units[n]
            if place == NEVER:
                continue
            here = timeline.find_key_again(n, place)
            held = [(here, here, unit.scratch)]
            held += [self._spans[value][-1] for value, _, _ in unit.makes]
            for value, _ in unit.reads:
                if value >= 0:
                    held += [span for span in self._spans[value] if span[1] == here]
            is_holding[n] = any(
                over[bisect_right(keys, last)] > over[bisect_left(keys, first)]
                for first, last, _ in held
            ) or any(is_holding.get(m, False) and needs[m] == place for m in unit.makers)
        return [n for n, holds in is_holding.items() if holds]

    def change(self, added: Iterable[int] = (), removed: Iterable[int] = ()) -> Change | None:
        """Return the change where units are chosen, or given up; None if one would run too late."""
        moved = self._find_moved(added, removed)
        if moved is None:
            return None
        needs, units = moved
        timeline, old = self.timeline, self.needs
        came, went, events = list[int](), list[int](), list[Span]()
        touched: dict[int, None] = {}
        seconds = 0.0
        for n in units:
            unit, before, place = timeline.units[n], old.get(n, NEVER), needs.get(n, NEVER)
            if before == place:
                continue
            touched.update(dict.fromkeys(unit.touched))
            for at, keys, sign in ((before, went, -1), (place, came, 1)):
                if at != NEVER:
                    key = timeline.find_key_again(n, at)
                    keys.append(key)
                    seconds += sign * unit.seconds
                    if unit.scratch:
                        events.append((key, key, sign * unit.scratch))
        spans: dict[int, tuple[Span, ...]] = {}
        for value in touched:
            now = timeline.list_spans(value, needs)
            if now != self._spans[value]:
                spans[value] = now
                events += [(first, last, -size) for first, last, size in self._spans[value]]
                events += now
        return Change(needs, spans, came, went, events, seconds)

    def _find_moved(
        self, added: Iterable[int], removed: Iterable[int]
    ) -> tuple[dict[int, int], list[int]] | None:
        """Return when units run again after a change, and those for which that may differ."""
        units, needs = self.timeline.units, dict(self.needs)
        waiting: list[int] = []  # a heap of negative numbers: readers before what they read
        for n in removed:
            needs.pop(n, None)
            waiting.append(-n)
        for n in added:
            if n not in needs:
                needs[n] = NEVER
                waiting.append(-n)
        heapq.heapify(waiting)
        seen: dict[int, None] = {}
        while waiting:
            n = -heapq.heappop(waiting)
            if n in seen:
                continue
            seen[n] = None
            unit = units[n]
            if n in needs:
                place = unit.late
                for reader in unit.readers:
                    other = needs.get(reader, NEVER)
                    if unit.early < other < place:
                        place = other
                if place != NEVER and place > unit.limit:
                    return None
                if place == self.needs.get(n, -1):
                    continue
                needs[n] = place
            for maker in unit.makers:
                if maker in needs and maker not in seen:
                    heapq.heappush(waiting, -maker)
        return needs, list(seen)

    def compute_excess_after(self, change: Change, limit: int) -> int:
        """Return what `compute_excess` is after a change."""
        keys, sums, live = self.keys, self._sum_excess(limit), self.live
        steps: dict[int, int] = {}
        for first, last, nbytes in change.events:
            steps[first] = steps.get(first, 0) + nbytes
            steps[last + 1] = steps.get(last + 1, 0) - nbytes
        bounds = sorted([key for key, nbytes in steps.items() if nbytes])
        levels = list(accumulate([steps[key] for key in bounds]))  # from each of these keys on
        total = int(sums[-1])
        if bounds:
            places = np.array([bisect_left(keys, key) for key in bounds])
            begin, end = places[0], places[-1]
            now = np.repeat(np.array(levels[:-1]), places[1:] - places[:-1]) - limit
            now += live[begin:end]
            total += int(np.maximum(now, 0, out=now).sum()) - int(sums[end] - sums[begin])
        levels.append(0)  # before the first of them
        for key in change.went:
            more = levels[bisect_right(bounds, key) - 1]
            total -= max(int(live[bisect_left(keys, key)]) + more - limit, 0)
        for key in change.came:
            more = levels[bisect_right(bounds, key) - 1]
            total += max(int(self._gaps[bisect_left(keys, key)]) + more - limit, 0)
        return total

    def take(self, change: Change) -> None:
        """Let a change, which is one of this profile, come true."""
        came = sorted(change.came)
        if came:
            at = [bisect_left(self.keys, key) for key in came]
            self.live = np.insert(self.live, at, self._gaps[at])
            self._gaps = np.insert(self._gaps, at, self._gaps[at])
            for n, (place, key) in enumerate(zip(at, came, strict=True)):
                self.keys.insert(place + n, key)
        keys = self.keys
        for first, last, nbytes in change.events:
            begin, end = bisect_left(keys, first), bisect_right(keys, last)
            self.live[begin:end] += nbytes
            self._gaps[bisect_right(keys, first) : end] += nbytes
        if change.went:
            at = [bisect_left(keys, key) for key in sorted(change.went)]
            self.live = np.delete(self.live, at)
            self._gaps = np.delete(self._gaps, at)
            for place in reversed(at):
                del keys[place]
        for value, spans in change.spans.items():
            self._spans[value] = spans
        self.needs = dict(change.needs)
        self.seconds += change.seconds
        self._limit = -1


def _list_pairs(
    call: DraftCall, index: Mapping[str, int], nbytes: Mapping[str, int]
) -> Iterator[tuple[int, int]]:
    """Yield the values that a call may write over values that it reads, by their indices."""
    for written, read in call.inplace:
        w, r = call.args[written][1], call.args[read][1]
        others = [name for i, (_, name) in enumerate(call.args) if i not in (written, read)]
        if w in index and r in index and nbytes[w] == nbytes[r] and r not in others:
            yield index[w], index[r]
