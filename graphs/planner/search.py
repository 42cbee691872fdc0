"""Search: which calls should run again, so that no more bytes live than are given, in little time.

Where more bytes live than are given there is an *excess*.  Calls are chosen one after another, each
time those whose running again takes away most excess for each second that they take; together with
them what they read, where that is gone by then.  When nothing more helps, something that was chosen
may stand in the way and is given up.  At the end, what has become needless is given up, too.

Source: choosing by excess over cost is the greedy rule for covering (Chvatal, "A greedy heuristic
for the set-covering problem", 1979); choosing where most bytes live is that of Kirisame et al.,
"Dynamic tensor rematerialization", arXiv 2006.09616, here with the whole schedule in view.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from engine.graphs.planner.again import NEVER
from engine.graphs.planner.timeline import Profile, Timeline

TRIED = (12, 48, 192)  # of the choices that look best, how many are looked at until one helps
FEW = 6  # of what looks best once something else is given up
MUCH = 2  # times the excess: what giving up may leave for others to take away
STEPS = 600  # choices at most

Chosen = frozenset[int]


class Search:
    """Looks for what should run again, on one timeline."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline, self.units = timeline, timeline.units
        calls = timeline.calls
        self._can = [
            (n, unit)
            for n, unit in self.units.items()
            if unit.makes and unit.late != NEVER and unit.late <= unit.limit and unit.late < calls
        ]

    def seconds(self, chosen: Collection[int]) -> float:
        """How long all take that runs again."""
        need = self.timeline.places(chosen) or {}
        return sum(self.units[n].seconds for n, place in need.items() if place != NEVER)

    def peak(self, chosen: Collection[int]) -> float:
        """The most bytes that live at a call."""
        profile = self.timeline.profile(chosen)
        assert profile is not None
        return float(profile.max(initial=0))

    def reach(self, chosen: Iterable[int], limit: float) -> tuple[Chosen, bool]:
        """What should run again so that no more than `limit` bytes live, and whether it suffices.

        chosen: what to begin with.
        """
        now = frozenset(chosen)
        profile = self.timeline.profile(now)
        assert profile is not None
        excess = _excess(profile, limit)
        for _ in range(STEPS):
            if excess <= 0:
                return self.pruned(now, limit), True
            found = self._better(now, profile, excess, limit)
            if found is None:
                return now, False
            now, profile, excess = found
        return now, False

    def _better(
        self, now: Chosen, profile: Profile, excess: float, limit: float
    ) -> tuple[Chosen, Profile, float] | None:
        """The next choice: of least cost for the excess it takes away; None if nothing helps."""
        spent = self.seconds(now)
        moves = self._moves(now, profile, limit)
        begin = 0
        for count in TRIED:
            found = None
            for added in moves[begin:count]:
                chosen = now | added
                after = self.timeline.profile(chosen)
                left = excess if after is None else _excess(after, limit)
                if after is None or left >= excess:
                    continue
                worth = (excess - left) / max(self.seconds(chosen) - spent, 1e-9)
                if found is None or worth > found[0]:
                    found = worth, chosen, after, left
            if found is not None:
                return found[1:]
            begin = count
        return self._fewer(now, excess, limit) or self._other(now, excess, limit)

    def _fewer(
        self, now: Chosen, excess: float, limit: float
    ) -> tuple[Chosen, Profile, float] | None:
        """What is left when that is given up which stands in the way most; None if nothing does."""
        best = None
        for n in sorted(now):
            after = self.timeline.profile(now - {n})
            if after is not None:
                left = _excess(after, limit)
                if left < (excess if best is None else best[2]):
                    best = now - {n}, after, left
        return best

    def _other(
        self, now: Chosen, excess: float, limit: float
    ) -> tuple[Chosen, Profile, float] | None:
        """What is left when one is given up for others, which only then help; None if none do."""
        best = None
        for n in sorted(now):
            fewer = now - {n}
            profile = self.timeline.profile(fewer)
            if profile is None or _excess(profile, limit) > MUCH * excess:
                continue
            for added in self._moves(fewer, profile, limit)[:FEW]:
                chosen = fewer | added
                after = self.timeline.profile(chosen)
                left = excess if after is None else _excess(after, limit)
                if after is not None and left < (excess if best is None else best[2]):
                    best = chosen, after, left
        return best

    def _moves(self, now: Chosen, profile: Profile, limit: float) -> list[Chosen]:
        """What might be chosen next, what looks best first.

        It is reckoned with where the excess is now; extended lives count as far as they are long.
        """
        timeline, units = self.timeline, self.units
        need = timeline.places(now) or {}
        made = {n for n, place in need.items() if place != NEVER}
        at = timeline.at(need)
        over: list[int] = [0, *np.cumsum(profile > limit).tolist()]
        ends: list[int] = timeline.ends(need, at).tolist()
        where: list[int] = at.tolist()
        sizes: list[float] = timeline.sizes.tolist()
        whole: list[float] = timeline.whole.tolist()

        def length(first: int, last: int) -> int:
            """The calls with an excess from one to another, both included."""
            return over[last + 1] - over[first] if last >= first else 0

        def freed(n: int) -> float:
            """Bytes times calls with an excess that a call frees by running again."""
            unit, until = units[n], where[units[n].late] - 1
            return sum(
                [
                    sizes[v] * length(where[before] + 1, until)
                    for v, before, behind in unit.makes
                    if behind >= 0
                ]
            )

        found: list[tuple[float, list[int]]] = []
        for n, unit in self._can:
            if n in made:
                continue
            gain = freed(n)
            if gain <= 0:
                continue
            until = where[unit.late] - 1
            gone = [
                (v, maker)
                for v, maker in unit.reads
                if v >= 0 and ends[v] < until and maker not in made
            ]
            cost = sum(whole[v] * length(ends[v] + 1, until) for v, _ in gone)
            if gain > cost:
                found.append(((gain - cost) / unit.seconds, [n]))
            if gone:
                together, lost = self._with_makers(n, made, ends, until)
                kept = sum(whole[v] * length(ends[v] + 1, until) for v in lost)
                gain += sum(freed(m) for m in together if m != n and units[m].late < timeline.calls)
                spent = sum(units[m].seconds for m in together)
                if gain > kept:
                    found.append(((gain - kept) / spent, sorted(together)))
        found.sort(key=lambda row: (-row[0], row[1]))
        return list(dict.fromkeys(frozenset(row[1]) for row in found))

    def _with_makers(
        self, n: int, made: Collection[int], ends: list[int], until: int
    ) -> tuple[set[int], list[int]]:
        """A call with those that make what it reads and what is gone by then, and theirs.

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

    def pruned(self, chosen: Chosen, limit: float) -> Chosen:
        """What of the chosen is needed, given up what takes longest first."""
        need = self.timeline.places(chosen) or {}
        now = frozenset(n for n, place in need.items() if place != NEVER)
        spent = self.seconds(now)
        for n in sorted(now, key=lambda n: (-self.units[n].seconds, n)):
            if n not in now:
                continue
            fewer = now - {n}
            after = self.timeline.profile(fewer)
            if after is not None and after.max(initial=0) <= limit:
                left = self.seconds(fewer)
                if left <= spent:
                    now, spent = fewer, left
        return now


def _excess(profile: Profile, limit: float) -> float:
    """Bytes above a limit, summed over all calls."""
    return float(np.maximum(profile - limit, 0).sum())
