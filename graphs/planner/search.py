"""Search: the calls to run again so that the live bytes stay below a limit, at the lowest cost.

The bytes above the limit are the *excess*.  Calls are chosen one after another: each time, the one
that removes the most excess per second of its run time, together with the calls that compute its
inputs if these are dead by then.  If no call helps any more, an earlier choice may be in the way
and is undone.  At the end, choices that are no longer needed are undone, too.

Source: choosing by excess over cost is the greedy rule for covering (Chvatal, "A greedy heuristic
for the set-covering problem", 1979); choosing where most bytes are live is from Kirisame et al.,
"Dynamic tensor rematerialization", arXiv 2006.09616, here with the whole schedule known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from engine.graphs.planner.recompute import NEVER
from engine.graphs.planner.timeline import Change, MemoryProfile, Timeline

# `python -m bench budgets.constants` prints the figures below.
#
# The numbers of most promising choices to evaluate, in stages, until one helps; also how many
# earlier choices are tried for removal.  With (12, 192, 192), the ladders of ViT and ResNet-18 are
# the same.
TRIED = (12, 48, 192)
# The number of most promising choices to evaluate after an earlier one was undone.  With 1, the
# smallest budget of U-Net is 56.6 % of its work memory instead of 55.0.
FEW = 6
# The excess that undoing a choice may leave, as a multiple of the current excess.  Without this
# limit, the smallest budget of ResNet-18 is 51.0 % of its work memory instead of 49.4; with 1, it
# is 51.6 %.
MUCH = 2
LEAST = 1e-9  # seconds: the smallest cost of a choice, to avoid dividing by 0
# The largest number of sets that all searches of a ladder evaluate, per call of the draft, to bound
# the time.  The 24-layer transformer needs 16, and no network of `python -m bench budgets.growth`
# needs more.
WAYS = 40

Chosen = frozenset[int]


class Effort:
    """Limit of the work of all searches of a ladder, as a count: the same on every machine.

    ways: sets of what runs again that were evaluated.  most: as many there may be.
    """

    def __init__(self, calls: int) -> None:
        """Start with nothing searched.

        calls: the calls of the draft.
        """
        self.ways, self.most = 0, WAYS * calls

    @property
    def is_spent(self) -> bool:
        """True once the best result so far must be taken."""
        return self.ways >= self.most


class Search:
    """Looks for what should run again, on one timeline."""

    def __init__(self, timeline: Timeline, effort: Effort) -> None:
        self.effort = effort
        self.timeline, self.units = timeline, timeline.units
        self._empty = MemoryProfile(timeline)
        self._reached: dict[tuple[Chosen, int], tuple[Chosen, bool]] = {}
        self._measured: dict[Chosen, tuple[float, int]] = {}  # seconds and peak
        calls = timeline.calls
        self._can = [
            (n, unit)
            for n, unit in self.units.items()
            if unit.makes and unit.late != NEVER and unit.late <= unit.limit and unit.late < calls
        ]
        self._index = {n: i for i, (n, _) in enumerate(self._can)}
        self._whole = np.array(timeline.whole, np.int64)
        self._sizes = np.array(timeline.sizes, np.int64)
        self._keys = np.array(timeline.keys, np.int64)
        self._last = np.array(timeline.last, np.int64)
        self._late = np.array([unit.late for _, unit in self._can], np.int64)
        makes = [
            (at, value, before)
            for at, (_, unit) in enumerate(self._can)
            for value, before, behind in unit.makes
            if behind >= 0
        ]
        reads = [
            (at, value, maker)
            for at, (_, unit) in enumerate(self._can)
            for value, maker in unit.reads
            if value >= 0
        ]
        self._makes = np.array(makes, np.int64).reshape(-1, 3).T
        self._reads = np.array(reads, np.int64).reshape(-1, 3).T

    def profile(self, chosen: Collection[int]) -> MemoryProfile:
        """Return the profile where the chosen run again, which must be able to."""
        result = self._empty.copy()
        if chosen:
            change = result.change(sorted(chosen))
            assert change is not None
            result.take(change)
        return result

    def count_seconds(self, chosen: Chosen) -> float:
        """Return how long all take that run again."""
        return self._measure(chosen)[0]

    def find_peak(self, chosen: Chosen) -> int:
        """Return the most bytes that live at a call."""
        return self._measure(chosen)[1]

    def _measure(self, chosen: Chosen) -> tuple[float, int]:
        """Return what `count_seconds` and `find_peak` do; each set is measured once."""
        if chosen not in self._measured:
            profile = self.profile(chosen)
            self._measured[chosen] = profile.seconds, profile.peak
        return self._measured[chosen]

    def reach(self, chosen: Chosen, limit: int) -> tuple[Chosen, bool]:
        """Return what should run again so that no more than `limit` bytes live, and if it suffices.

        The same question is looked into once.

        chosen: what to begin with.  Once the effort is spent, it is what was reached by then.
        """
        key = chosen, limit
        if key not in self._reached:
            self._reached[key] = self._reach(self.profile(chosen), limit)
        return self._reached[key]

    def _reach(self, profile: MemoryProfile, limit: int) -> tuple[Chosen, bool]:
        """Compute what `reach` returns; the profile may be changed."""
        while profile.compute_excess(limit):
            better = self._find_better(profile, limit)
            if better is None:
                return profile.chosen, False
            profile = better
        return self._prune(profile, limit), True

    def _find_better(self, now: MemoryProfile, limit: int) -> MemoryProfile | None:
        """Take the choice that removes the most excess per second; return None if nothing helps.

        The profile may be changed.
        """
        excess, begin = now.compute_excess(limit), 0
        moves = self._list_moves(now, limit)
        for count in TRIED:
            best: tuple[float, Change] | None = None
            for most, added in moves[begin:count]:
                if best is not None and best[0] >= most:
                    break  # neither this one nor any after it is better
                if self.effort.is_spent:
                    return None
                change, left = self._try_change(now, limit, added=added)
                if change is None or left >= excess:
                    continue
                worth = (excess - left) / max(change.seconds, LEAST)
                if best is None or worth > best[0]:
                    best = worth, change
            if best is not None:
                now.take(best[1])
                return now
            begin = count
        return self._give_up_most(now, excess, limit) or self._swap_one(now, excess, limit)

    def _try_change(
        self, now: MemoryProfile, limit: int, added: Iterable[int] = (), removed: Iterable[int] = ()
    ) -> tuple[Change | None, int]:
        """Return a change and the excess after it; None if impossible.  It counts as one way."""
        self.effort.ways += 1
        change = now.change(added, removed)
        return change, 0 if change is None else now.compute_excess_after(change, limit)

    def _give_up_most(self, now: MemoryProfile, excess: int, limit: int) -> MemoryProfile | None:
        """Undo the choice whose removal lowers the excess most; return None if none does."""
        best = None
        for n in self._list_holding(now, limit)[: TRIED[2]]:
            if self.effort.is_spent:
                return None
            change, left = self._try_change(now, limit, removed=[n])
            if change is not None and left < (excess if best is None else best[0]):
                best = left, change
        if best is None:
            return None
        now.take(best[1])
        return now

    def _swap_one(self, now: MemoryProfile, excess: int, limit: int) -> MemoryProfile | None:
        """Undo one choice for others that help only then; return None if none do."""
        best: tuple[int, MemoryProfile, Change] | None = None
        for n in self._list_holding(now, limit)[: TRIED[1]]:
            if self.effort.is_spent:
                return None
            change, left = self._try_change(now, limit, removed=[n])
            if change is None or left > MUCH * excess:
                continue
            fewer = now.copy()
            fewer.take(change)
            for _, added in self._list_moves(fewer, limit)[:FEW]:
                if self.effort.is_spent:
                    return None
                other, left = self._try_change(fewer, limit, added=added)
                if other is not None and left < (excess if best is None else best[0]):
                    best = left, fewer, other
        if best is None:
            return None
        best[1].take(best[2])
        return best[1]

    def _list_holding(self, now: MemoryProfile, limit: int) -> list[int]:
        """Return what may be given up to save memory: first what holds bytes at the very peak."""
        first = now.list_holding(now.peak - 1)
        return list(dict.fromkeys([*first, *now.list_holding(limit)]))

    def _list_moves(self, now: MemoryProfile, limit: int) -> list[tuple[float, Chosen]]:
        """Return what might be chosen next, the most promising first.

        Estimates use the excess as it is now; extended lives count as far as they are long.
        """
        units, sizes, whole, at_of = self.units, self._sizes, self._whole, self._index
        at = np.searchsorted(now.keys, self._keys)
        over = np.zeros(len(now.keys) + 1, np.int64)
        np.cumsum(now.live > limit, out=over[1:])
        ends = at[self._last]
        made = set[int]()
        for n, place in now.needs.items():
            if place != NEVER:
                made.add(n)
                for value, _, behind in units[n].makes:
                    ends[value] = at[behind if behind >= 0 else place]
        beyond = over[at[self._late]]  # calls with an excess before those that need each unit
        row, values, before = self._makes
        calls = np.maximum(beyond[row] - over[at[before] + 1], 0)
        gains = np.bincount(row, sizes[values] * calls, len(self._can))
        row, values, makers = self._reads
        is_gone = (ends[values] < at[self._late][row] - 1) & ~np.isin(makers, list(made))
        calls = np.maximum(beyond[row] - over[np.minimum(ends[values] + 1, len(over) - 1)], 0)
        costs = np.bincount(row, whole[values] * calls * is_gone, len(self._can))
        gone = np.bincount(row, is_gone, len(self._can)) > 0
        place_of, end_of = at.tolist(), ends.tolist()
        gain_of, over_of, whole_of = gains.tolist(), over.tolist(), self.timeline.whole
        ways: list[tuple[float, list[int]]] = []
        for i in np.nonzero(gains > 0)[0].tolist():
            n, one = self._can[i]
            if n in made:
                continue
            gain = gain_of[i]
            if gain > costs[i]:
                ways.append(((gain - costs[i]) / one.seconds, [n]))
            if gone[i]:
                until = place_of[one.late] - 1
                together, lost = self._with_makers(n, made, end_of, until)
                kept = sum(
                    whole_of[v] * max(over_of[until + 1] - over_of[end_of[v] + 1], 0) for v in lost
                )
                gain += sum(gain_of[at_of[m]] for m in together if m != n and m in at_of)
                spent = sum(units[m].seconds for m in together)
                if gain > kept:
                    ways.append(((gain - kept) / spent, sorted(together)))
        ways.sort(key=lambda row: (-row[0], row[1]))
        best: dict[Chosen, float] = {}
        for worth, added in ways:
            best.setdefault(frozenset(added), worth)
        return [(worth, chosen) for chosen, worth in best.items()]

    def _with_makers(
        self, n: int, made: Collection[int], ends: list[int], until: int
    ) -> tuple[set[int], list[int]]:
        """Return a call with the makers of what it reads and is gone by then, and theirs.

        Returns them, and the values that nothing can make again.
        """
        together, waiting, kept = {n}, [n], list[int]()
        late = self.units[n].late
        while waiting:
            for v, maker in self.units[waiting.pop()].reads:
                if maker in together or maker in made or (v >= 0 and ends[v] >= until):
                    continue
                if maker < 0 or late > self.units[maker].limit:
                    if v >= 0:
                        kept.append(v)
                elif v >= 0:
                    together.add(maker)
                    waiting.append(maker)
        return together, kept

    def prune(self, chosen: Chosen, limit: int) -> Chosen:
        """Return what of the chosen is needed, given up what takes longest first."""
        return self._prune(self.profile(chosen), limit)

    def _prune(self, now: MemoryProfile, limit: int) -> Chosen:
        """Compute what `prune` returns; the profile may be changed."""
        idle = [n for n, place in now.needs.items() if place == NEVER]
        if idle:
            change = now.change(removed=idle)
            assert change is not None
            now.take(change)
        for n in sorted(now.needs, key=lambda n: (-self.units[n].seconds, n)):
            if n in now.needs and not self.effort.is_spent:
                change, left = self._try_change(now, limit, removed=[n])
                if change is not None and left <= 0 and change.seconds <= 0:
                    now.take(change)
        return now.chosen
