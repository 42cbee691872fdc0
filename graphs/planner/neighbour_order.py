"""Local reordering: calls move past a few neighbours to places where fewer bytes are live.

The order of a graph is good if everything is kept, because results are used at once.  If little is
kept, the peak is inside the backward pass of a single layer, and the order of a few calls decides.

    Before   dx = conv(dy, w); dw = conv_dw(dy, z)     dy, z and dx are live together
    After    dw = conv_dw(dy, z); dx = conv(dy, w)     z is dead when dx is written

*Requires* calls in an executable order.  *Ensures* that two calls keep their order if one of them
writes a value that the other one reads or writes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from engine.graphs.planner.draft import DraftCall
from engine.graphs.planner.recompute import Repeat

# By `python -m bench budgets.constants`: without it steps of ResNet-18 within budgets are 3.9 %
# longer on average instead of 3.7; the least budget leaves GPT-2 74.6 % of its work memory instead
# of 78.0.
REACH = 24  # calls over which one may move


def settle(
    calls: Sequence[DraftCall], nbytes: Mapping[str, int], known: Collection[Repeat] = ()
) -> list[DraftCall]:
    """Return an order of the calls with fewer live bytes, if the given calls may run again.

    Each call in turn moves up to the place where the sum of the live bytes at the calls that it
    passes falls most, without raising their maximum.

    nbytes: the bytes of each work value.
    known: the calls that may run again.
    """
    early = {name: repeat.early for repeat in known for name in repeat.makes}
    job = _Settling(calls, nbytes, early)
    for place in range(len(calls)):
        job.lift(place)
    return [calls[n] for n in job.order]


class _Settling:
    """Calls that change places.

    order: their numbers.  live: the live bytes at each place.
    touched: the values that each call touches, each with whether it is the repeated one.
    """

    def __init__(
        self, calls: Sequence[DraftCall], nbytes: Mapping[str, int], early: Mapping[str, int]
    ) -> None:
        """Start with the calls in their order.

        early: for recomputed values, the last call before the gap; after it, it is another value.
        """
        self.order = list(range(len(calls)))
        self.nbytes = nbytes
        self.touched = [
            frozenset((x, place > early.get(x, place)) for _, x in call.args if x in nbytes)
            for place, call in enumerate(calls)
        ]
        self.all = [frozenset(n for _, n in c.args if n) for c in calls]
        self.writes = [frozenset(c.list_touched("wus")) for c in calls]
        self.first: dict[tuple[str, bool], int] = {}
        self.last: dict[tuple[str, bool], int] = {}
        for n, values in enumerate(self.touched):
            for value in values:
                self.first.setdefault(value, n)
                self.last[value] = n
        self.live: list[int] = []
        now = 0
        for n in self.order:
            now += self._count_born(n)
            self.live.append(now)
            now -= self._count_dead(n)

    def _count_born(self, place: int) -> int:
        values = self.touched[self.order[place]]
        return sum([self.nbytes[x[0]] for x in values if self.first[x] == place])

    def _count_dead(self, place: int) -> int:
        values = self.touched[self.order[place]]
        return sum([self.nbytes[x[0]] for x in values if self.last[x] == place])

    def lift(self, place: int) -> None:
        """Move the call at a place up, if that is better."""
        here = place
        before_sum = after_sum = 0  # of the bytes at the calls that were passed, and at those now
        before_top = after_top = 0
        best, gain = place, 0
        before_sum = before_top = self.live[place]
        while here > max(0, place - REACH) and self._can_pass(here):
            before_sum += self.live[here - 1]
            before_top = max(before_top, self.live[here - 1])
            self._swap(here)
            after_sum += self.live[here]
            after_top = max(after_top, self.live[here])
            here -= 1
            top = max(after_top, self.live[here])
            if top <= before_top and before_sum - after_sum - self.live[here] > gain:
                best, gain = here, before_sum - after_sum - self.live[here]
        while here < best:
            self._swap(here + 1)
            here += 1

    def _can_pass(self, place: int) -> bool:
        """Return whether the call at a place may run before the one above it."""
        a, b = self.order[place - 1], self.order[place]
        return self.writes[a].isdisjoint(self.all[b]) and self.writes[b].isdisjoint(self.all[a])

    def _swap(self, place: int) -> None:
        """Let the call at a place and the one above it change places."""
        a, b = self.order[place - 1], self.order[place]
        start = self.live[place - 1] - self._count_born(place - 1)
        shared = self.touched[a] & self.touched[b]
        for times in (self.first, self.last):
            for value in self.touched[a] - shared:
                if times[value] == place - 1:
                    times[value] = place
            for value in self.touched[b] - shared:
                if times[value] == place:
                    times[value] = place - 1
        self.order[place - 1], self.order[place] = b, a
        self.live[place - 1] = start + self._count_born(place - 1)
        self.live[place] = (
            self.live[place - 1] - self._count_dead(place - 1) + self._count_born(place)
        )
