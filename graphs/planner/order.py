"""Scheduling: the order in which the calls of a draft run, changed to lower the peak of live bytes.

A graph lists its nodes as it was built: forward, then backward from the end.  This is good for
caches, because the next calls read what a call has written.  So this order is kept, unless another
one lowers the peak by more than a little.  Finding the order with the smallest peak is NP-hard (a
linear ordering of a graph).  This is a local search, which moves calls near the peak:

1. A minimum cut separates the calls that must have run at the peak from the ones that need not
   have; these two sets change places (order_bounds.py, which also proves where no order is better).
2. The best order of a few calls is found by enumerating the sets of calls that can have run
   (window_order.py).

    Before   a = conv(x);  b = conv(x);  c = sum(a);  d = sum(b);  e = add(c, d)   # peak: x, a, b
    After    a = conv(x);  c = sum(a);  b = conv(x);  d = sum(b);  e = add(c, d)

*Requires* calls in an executable order.  *Ensures* that two calls keep their order if one of them
writes a value that the other one reads or writes, and that the peak is never higher than before.

For plans within budgets, `settle` (neighbour_order.py) first moves single calls past their
neighbours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from engine.graphs.planner import window_order
from engine.graphs.planner.draft import Draft
from engine.graphs.planner.lifetimes import Lifetimes, Tally, count_work_bytes, find_lifetimes
from engine.graphs.planner.order_bounds import Cuts

# Measured on 109 drafts of all workloads, 62 of them could be better than the graph's order.
# Trying near calls first gives the lower peak for 14 of these, by up to 3 %, and far calls first
# for 8, by up to 8 % (a step of ResNet-18).  With REACH = (4, 64), one peak is 8 % higher.  The
# second move lowers a peak by up to 2.5 % (U-Net within a budget).  Two other moves lowered none of
# these, and only one of 8,087 case rows: starting with a greedy order, and delaying calls at which
# many bytes are live.
REACH = (4, 16, 64, 256)  # calls before and after a peak that may change places, tried in turn
# `python -m bench budgets.constants` prints the figures below, and the peak with (4, 64).
#
# The number of calls before and after a peak whose best order is found exactly, tried in turn.
# Without this, the peaks of GPT-2 are 3.4 % higher, and of ResNet-18 0.3 %.
EXACT = (8, 16)
# The largest number of calls in all orders tried from one start.  With 10,000, the peak of
# ResNet-18 is 1.8 % higher; with 100,000, it is 1.8 % lower, and its smallest budget 50.0 % instead
# of 49.4.
WORK = 30_000
# The graph's order is kept if its peak is at most this multiple of a lower bound, or of the best
# peak.  With 1.0, the peaks of MobileNetV2 are 0.2 % lower, and of ConvNeXt 0.9 %, but ConvNeXt's
# smallest budget is 32.6 % instead of 25.3.
NEAR = 1.01


def order(draft: Draft) -> Lifetimes:
    """Put the calls of a draft in an order with few live bytes.

    Returns the live ranges of the values in the new order.
    """
    tally, cuts = Tally(draft), Cuts(draft.calls, count_work_bytes(draft))
    graph = _Search(tally, cuts, range(len(draft.calls)))
    if graph.is_near():
        return find_lifetimes(draft, draft.calls)
    best = graph.copy()
    best.lower(REACH)
    if not best.is_near():
        other = graph.copy()
        other.lower(REACH[::-1])
        best = min(best, other, key=lambda search: search.peak)
    if best.peak * NEAR > graph.peak:
        return find_lifetimes(draft, draft.calls)
    draft.calls = [draft.calls[n] for n in best.order]
    return find_lifetimes(draft, draft.calls)


def find_least_peak(cuts: Cuts, order: Sequence[int], live: Sequence[int], limit: int) -> int:
    """Return a lower bound of the peak in every order: the largest minimum cut at a call.

    order: the order of the calls; live: the live bytes at each of them.  Only the `limit` calls
        with the most live bytes are tried.
    """
    least = 0
    places = sorted(range(len(order)), key=lambda place: -live[place])
    for place in places[:limit]:
        if live[place] <= least:
            break
        least = max(least, cuts.find_least(order[place]).nbytes)
    return least


class _Search:
    """Lowers the peak of an order.

    order: positions of calls in the draft.
    live: the live bytes at each call of the order.
    is_best: whether no order has a lower peak.
    """

    def __init__(self, tally: Tally, cuts: Cuts, order: Sequence[int]) -> None:
        self.tally, self.cuts = tally, cuts
        self.order, self.live = order, tally.count_live(order)
        self.is_best = not any(self.live)

    def copy(self) -> _Search:
        """Return another search from the same order."""
        return _Search(self.tally, self.cuts, self.order)

    @property
    def peak(self) -> int:
        """The most bytes that live at a call."""
        return max(self.live, default=0)

    def is_near(self) -> bool:
        """Return whether no order has a peak that is worth looking for."""
        return self.is_best or self.peak <= NEAR * find_least_peak(
            self.cuts, self.order, self.live, 8
        )

    def lower(self, reach: Sequence[int]) -> None:
        """Put orders in the place of this one that have lower peaks, or the peak at fewer calls.

        It ends when none of those that are tried has, or after `WORK`.

        reach: as `REACH`; beside these, all calls may change places.
        """
        work = 0
        while not self.is_best:
            known = (self.peak, self.live.count(self.peak))
            for order in self._list_others(reach):
                work += len(order)
                live = self.tally.count_live(order)
                most = max(live)
                if (most, live.count(most)) < known:
                    self.order, self.live = order, live
                    break
            else:
                break
            if work > WORK:
                break

    def _list_others(self, reach: Sequence[int]) -> Iterator[list[int]]:
        """Yield orders with fewer bytes at the first call of the peak; none if no order has."""
        top = self.peak
        place = self.live.index(top)
        order, at = self.order, self.order[place]
        whole = self.cuts.find_least(at)
        self.is_best = whole.nbytes >= top
        if self.is_best:
            return
        now = frozenset(order[:place])
        seen = {now}
        for near in (*reach, len(order)) if reach[0] < reach[-1] else (len(order), *reach):
            first, last = max(place - near, 0), place + near
            for begin, end in ((place, last), (first, place + 1), (first, last)):
                cut = self.cuts.find_least(at, order[:begin], order[end:])
                if cut.nbytes >= top:
                    continue
                for run in sorted((cut.fewest, cut.most), key=lambda run: len(run ^ now)):
                    if run not in seen:
                        seen.add(run)
                        yield _move_run(order, place, run)
        for near in EXACT:
            first, last = max(place - near, 0), min(place + near, len(order))
            other = window_order.lower(self.tally, self.cuts.before, order, first, last)
            if other is not None:
                yield other


def _move_run(order: Sequence[int], place: int, run: Collection[int]) -> list[int]:
    """Return the order in which just these calls have run before the one at a place.

    All others keep their order.
    """
    before = [n for n in order[:place] if n in run]
    behind = [n for n in order[:place] if n not in run]
    hoisted = [n for n in order[place + 1 :] if n in run]
    rest = [n for n in order[place + 1 :] if n not in run]
    return [*before, *hoisted, order[place], *behind, *rest]
