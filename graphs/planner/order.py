"""Order: the sequence in which the calls of a draft run, changed where most bytes live.

A graph lists its nodes as it was built: forward, then backward from the end.  What one call writes
the next ones read, which is good for caches.  That order is kept, unless the peak of another one is
lower by more than a little.  The other one differs at the peaks: there the calls that must have run
are told from those that need not, by a minimum cut, and change places.

    Before   a = conv(x);  b = conv(x);  c = sum(a);  d = sum(b);  e = add(c, d)   # peak: x, a, b
    After    a = conv(x);  c = sum(a);  b = conv(x);  d = sum(b);  e = add(c, d)

*Requires* calls in an order in which they can run.  *Ensures* that calls keep their order wherever
one touches what another writes, and that never more bytes live at once than before.  To find the
best order is NP-hard; but where a cut is as large as the peak, no order is better.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence

from engine.graphs.planner import stretch
from engine.graphs.planner.cuts import Cuts
from engine.graphs.planner.draft import Draft
from engine.graphs.planner.lifetimes import Lifetimes, Tally, lifetimes, work_bytes

REACH = (4, 16, 64, 256)  # calls before and behind a peak that may change places, in turns
EXACT = (8, 16)  # calls before and behind a peak whose best order is sought, in turns
LEVELS = (0.99, 0.96, 0.92)
WORK = 30_000  # calls in all orders that are tried from one start
NEAR = 1.01  # of a peak that no order can beat, or that was found: what the graph's order may have


def order(draft: Draft) -> Lifetimes:
    """Put the calls in an order in which few bytes live at once.

    Returns the lifetimes of the values in the order that the calls then have.
    """
    tally, cuts = Tally(draft), Cuts(draft.calls, work_bytes(draft))
    graph = _Search(tally, cuts, range(len(draft.calls)))
    if graph.is_near():
        return lifetimes(draft, draft.calls)
    found = graph.copy()
    found.lower(REACH)
    if not found.is_near():
        other = graph.copy()
        other.lower(REACH[::-1])
        found = min(found, other, key=lambda search: search.peak)
    if not found.is_near():
        other = _Search(tally, cuts, _greedy(cuts))
        if other.peak < found.peak:
            found = other
            found.lower(REACH)
    if found.peak * NEAR > graph.peak:
        return lifetimes(draft, draft.calls)
    draft.calls = [draft.calls[n] for n in found.order]
    return lifetimes(draft, draft.calls)


def least_peak(cuts: Cuts, order: Sequence[int], live: Sequence[int], limit: int) -> int:
    """Bytes that live at once in every order: the largest cut at a call.

    order: of the calls; live: the bytes that live at each of them.  Only cuts at `limit` calls are
    looked at, those where most live.
    """
    found = 0
    places = sorted(range(len(order)), key=lambda place: -live[place])
    for place in places[:limit]:
        if live[place] <= found:
            break
        found = max(found, cuts.least(order[place]).nbytes)
    return found


class _Search:
    """Lowers the peak of an order.

    order: positions of calls in the draft.
    live: of each call of the order, the bytes that live.
    is_best: whether no order has a lower peak.
    """

    def __init__(self, tally: Tally, cuts: Cuts, order: Sequence[int]) -> None:
        self.tally, self.cuts = tally, cuts
        self.order, self.live = order, tally.live(order)
        self.is_best = not any(self.live)

    def copy(self) -> _Search:
        """Another search, from the same order."""
        return _Search(self.tally, self.cuts, self.order)

    @property
    def peak(self) -> int:
        """The most bytes that live at a call."""
        return max(self.live, default=0)

    def is_near(self) -> bool:
        """Whether no order has a peak that is worth looking for."""
        return self.is_best or self.peak <= NEAR * least_peak(self.cuts, self.order, self.live, 8)

    def lower(self, reach: Sequence[int]) -> None:
        """Put orders in the place of this one that have lower peaks, or the peak at fewer calls.

        It ends when none of those that are tried has, or after `WORK`.

        reach: as `REACH`; beside these, all calls may change places.
        """
        work = 0
        while not self.is_best:
            known = (self.peak, self.live.count(self.peak))
            for order in self._others(reach):
                work += len(order)
                live = self.tally.live(order)
                most = max(live)
                if (most, live.count(most)) < known:
                    self.order, self.live = order, live
                    break
            else:
                break
            if work > WORK:
                break

    def _others(self, reach: Sequence[int]) -> Iterator[list[int]]:
        """Orders with fewer bytes at the first call of the peak than now; none if no order has."""
        top = self.peak
        place = self.live.index(top)
        order, at = self.order, self.order[place]
        whole = self.cuts.least(at)
        self.is_best = whole.nbytes >= top
        if self.is_best:
            return
        now = frozenset(order[:place])
        seen = {now}
        for near in (*reach, len(order)) if reach[0] < reach[-1] else (len(order), *reach):
            first, last = max(place - near, 0), place + near
            for begin, end in ((place, last), (first, place + 1), (first, last)):
                cut = self.cuts.least(at, order[:begin], order[end:])
                if cut.nbytes >= top:
                    continue
                for run in sorted((cut.fewest, cut.most), key=lambda run: len(run ^ now)):
                    if run not in seen:
                        seen.add(run)
                        yield _moved(order, place, run)
        for near in (*REACH, len(order)):
            last = min(place + near, len(order))
            for level in LEVELS:
                yield self._delayed(place, last, level * top)
        for near in EXACT:
            first, last = max(place - near, 0), min(place + near, len(order))
            found = stretch.lower(self.tally, self.cuts.before, order, first, last)
            if found is not None:
                yield found

    def _delayed(self, first: int, last: int, level: float) -> list[int]:
        """The order in which calls between two places run last there if more bytes live than that.

        So do those that need them.
        """
        order = self.order
        late = {
            n
            for n, live in zip(order[first:last], self.live[first:last], strict=True)
            if live >= level
        }
        behind: list[int] = []
        front: list[int] = []
        for n in order[first:last]:
            if n in late or not late.isdisjoint(self.cuts.before[n]):
                late.add(n)
                behind.append(n)
            else:
                front.append(n)
        return [*order[:first], *front, *behind, *order[last:]]


def _moved(order: Sequence[int], place: int, run: Collection[int]) -> list[int]:
    """The order in which just these calls have run before the one at a place.

    All others keep their order.
    """
    before = [n for n in order[:place] if n in run]
    behind = [n for n in order[:place] if n not in run]
    hoisted = [n for n in order[place + 1 :] if n in run]
    rest = [n for n in order[place + 1 :] if n not in run]
    return [*before, *hoisted, order[place], *behind, *rest]


def _greedy(cuts: Cuts) -> list[int]:
    """An order in which each next call is the one after which the fewest bytes live.

    Of equal ones the first is taken.  The time goes with the number of values that calls touch,
    times its logarithm: the growth of a call that is ready changes only when a value it touches
    becomes alive, or has one use left.
    """
    missing = [len(need) for need in cuts.before]
    uses = {name: len(found) for name, found in cuts.users.items()}
    touched: list[list[str]] = [[] for _ in missing]
    for name, users in cuts.users.items():
        for n in users:
            touched[n].append(name)
    alive: set[str] = set()
    ready: dict[int, int] = {}  # call -> by how many bytes the live memory grows with it
    waiting: list[tuple[int, int]] = []  # heap of growths and calls, some of them outdated
    order: list[int] = []

    def offer(n: int) -> None:
        """Make call n ready, or put its growth right."""
        born = sum(cuts.sizes[x] for x in touched[n] if x not in alive)
        dead = sum(cuts.sizes[x] for x in touched[n] if uses[x] == 1)
        if ready.get(n) != born - dead:
            ready[n] = born - dead
            heapq.heappush(waiting, (born - dead, n))

    for n, count in enumerate(missing):
        if count == 0:
            offer(n)
    while waiting:
        growth, n = heapq.heappop(waiting)
        if ready.get(n) != growth:
            continue
        del ready[n]
        order.append(n)
        changed: set[int] = set()
        for name in touched[n]:
            uses[name] -= 1
            if name not in alive or uses[name] == 1:
                changed.update(cuts.users[name])
            alive.add(name)
        for m in changed & ready.keys():
            offer(m)
        for m in cuts.after[n]:
            missing[m] -= 1
            if missing[m] == 0:
                offer(m)
    return order
