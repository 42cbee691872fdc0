"""Memory budgets: a ladder of plans for one shape, from which the fastest one that fits is taken.

A *rung* of the ladder lists the calls that are rematerialised (run again in the backward pass) and
the segments (segments.py).  Each rung takes longer and needs less memory than the one before.  All
rungs compute the same numbers, except for sums whose calls run in other tiles.  A ladder depends
only on the graph, the shape, the target and the number of threads, because times come from a cost
model (kernels/analysis/cost.py) and the search is limited by counts, not by time.  So a larger
budget never gets a plan that the model predicts to be slower, and a smaller budget never one with a
higher peak: each takes the first rung that fits.

The search finds *levels*: sets of calls to run again that keep the live bytes below a limit, each
with an estimate of its time.  Most of the work is to turn levels into rungs, with groups, so this
is done only for levels near the budget.  Levels above it cannot fit, and the estimates of levels
far below it are slower.

Single layers limit how far down a ladder goes: everything that one call reads and writes, or one
sample of it per thread, must be live at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush

from engine.base.errors import BudgetError
from engine.graphs.planner.draft import Draft
from engine.graphs.planner.gradient_rows import is_update
from engine.graphs.planner.lifetimes import (
    count_live_bytes,
    count_work_bytes,
    list_spans,
)
from engine.graphs.planner.neighbour_order import settle
from engine.graphs.planner.order import order
from engine.graphs.planner.order_bounds import find_dependencies
from engine.graphs.planner.recompute import Repeat, find_repeats, make_tasks, repeat
from engine.graphs.planner.search import Chosen, Effort, Search
from engine.graphs.planner.segments import list_candidates, make_segments
from engine.graphs.planner.split import group
from engine.graphs.planner.tile import make_tiles
from engine.graphs.planner.timeline import Timeline
from engine.graphs.planner.updates import move_updates_last, settle_updates
from engine.kernels.analysis.cost import get_nominal, predict_seconds
from engine.kernels.machine.target import Target
from engine.plan.plan import Plan, align, format_bytes

# `python -m bench budgets.constants` prints the figures below: the smallest budget, in percent of
# the work memory without one, and the mean predicted increase of a step's time within budgets of 98
# to 11 % of it.
#
# The limit for each rung, as a share of the previous rung's.  With 0.86, the mean of ViT is 13.7 %
# instead of 12.6, and of U-Net 5.9 instead of 4.6; with 0.96, the rungs of ViT end at 23.2 %
# instead of 18.6.
FALL = 0.93
RUNGS = 40  # the largest number; the last ones have 0.93 ** 40 = 5.5 % of the bytes of the first
# One in this number of rungs is also searched for without the choices of the rung before.  Without
# this, the smallest budget of U-Net is 56.5 % instead of 55.0, and the mean of ViT 12.7 % instead
# of 12.6.
FRESH = 3
# The largest number of orders of the calls, besides the usual one.  With one, the smallest budgets
# are 61.7 % for ResNet-18 instead of 49.4, and 59.7 % for U-Net instead of 55.0; ladders take half
# as long.
ORDERS = 4
# Segments compute values of at least 1 / SHARES of the lowest peak, tried in turn.  With 8 alone,
# the mean of MobileNetV2 is 7.7 % instead of 3.9; with 4 alone, its smallest budget is 30.0 %
# instead of 28.8.
SHARES = (4, 8)
# Segments first compute values that take at most this many times as long as moving their bytes.
# Without this, the mean of ResNet-18 is 6.9 % instead of 3.7.
CHEAP = 8
# How often groups are split up for one rung, at most.  With 1, the smallest budget of MobileNetV2
# is 42.7 % instead of 28.8; with 2, it is the same as with 4.
TRIES = 4


@dataclass(frozen=True, slots=True)
class Rung:
    """The choices that determine one plan of a draft's ladder.

    order: the number of the order of the calls among the orders of the ladder; segments are part of
        it.
    chosen: the calls to run again, by the places of their last calls in that order.
    ordered: whether to search for an order again, with the repeated calls.
    apart: the calls that are in no group, by their places among all calls with the repeated ones.
    peak: the peak of live work bytes, which every placement needs; for a level, at least its floor.
    seconds: the estimated time of a step, by kernels/analysis/cost.py on its nominal machine.
    """

    order: int
    chosen: Chosen
    ordered: bool
    apart: Chosen
    peak: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Tiled:
    """Facts about the draft of a rung.

    peak, seconds: as for `Rung`.
    groups: for each group that can be split up, the live bytes during it, and the places of its
        calls.
    """

    peak: int
    seconds: float
    groups: tuple[tuple[int, tuple[int, ...]], ...]


class _Order:
    """A draft in one order of its calls, and the calls that may run again."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self._sought: dict[Chosen, tuple[Draft, list[int]]] = {}

    @cached_property
    def known(self) -> dict[int, Repeat]:
        """The calls that may run again; segments run theirs again already."""
        calls = self.draft.calls
        repeatable = find_repeats(self.draft)
        return {n: r for n, r in repeatable.items() if not any(calls[m].segment for m in r.calls)}

    def repeat_calls(self, chosen: Collection[int]) -> tuple[Draft, list[int]]:
        """Return the draft where the chosen run again, and as `repeat`."""
        draft = self.draft.copy()
        return draft, repeat(draft, self.known, chosen) if chosen else []

    def seek_order(self, chosen: Chosen) -> tuple[Draft, list[int]]:
        """Return the draft of `repeat_calls`, in an order sought for it once; not to be changed."""
        if chosen not in self._sought:
            draft, origins = self.repeat_calls(chosen)
            places = origins or range(len(draft.calls))
            place = {id(call): n for call, n in zip(draft.calls, places, strict=True)}
            order(draft)
            self._sought[chosen] = draft, [place[id(call)] for call in draft.calls]
        return self._sought[chosen]

    def is_moved(self, chosen: Chosen) -> bool:
        """Return whether the order sought where the chosen run again is another than this one."""
        places = self.repeat_calls(chosen)[1] or range(len(self.draft.calls))
        return self.seek_order(chosen)[1] != list(places)

    def settle_layers(self) -> _Order:
        """Return the order for little memory inside layers."""
        draft = self.draft.copy()
        draft.calls = settle(draft.calls, count_work_bytes(draft), self.known.values())
        return _Order(draft)

    def segment(self, chosen: Collection[str]) -> _Order:
        """Return the order in which segments compute the chosen values."""
        draft = self.draft.copy()
        move_updates_last(draft)
        draft = make_segments(draft, chosen)
        settle_updates(draft)
        return _Order(draft)

    def find_better(self, chosen: Chosen) -> _Order | None:
        """Return the order that is sought where the chosen run again; None if no other one."""
        if not chosen:
            return None
        order = [n for n in self.seek_order(chosen)[1] if n >= 0]
        if order == sorted(order):
            return None
        rank = {n: at for at, n in enumerate(order)}
        needs = find_dependencies(self.draft.calls)
        if any(rank[m] > rank[n] for n, need in enumerate(needs) for m in need):
            return None  # what runs again frees calls to change places that are otherwise bound
        other = self.draft.copy()
        other.calls = [self.draft.calls[n] for n in order]
        return _Order(other)


@dataclass(frozen=True, slots=True)
class _Level:
    """A rung whose plan has not been made yet.

    order, chosen: as for `Rung`.
    limit: the limit of live bytes for which it was found.
    seconds: the time of a step that the search expects.
    """

    order: int
    chosen: Chosen
    limit: int
    seconds: float

    @property
    def floor(self) -> int:
        """The least peak that its rung counts for; measured are 0.92 of the limit and more."""
        return int(self.limit * FALL**2)


class Ladder:
    """The rungs of a draft, from the fastest to the one with the lowest peak.

    effort: the limit of the search for them, and how much of it was used.
    """

    def __init__(self, draft: Draft, target: Target, threads: int) -> None:
        """Start without a search.

        draft: as it was lowered, in no particular order yet.
        """
        self._target, self._threads = target, threads
        usual = draft.copy()
        settle_updates(usual)
        order(usual)
        self._orders = [_Order(usual)]
        self._tiled: dict[Rung, _Tiled] = {}  # of rungs without peak and seconds
        self.effort = Effort(len(usual.calls))

    @cached_property
    def usual(self) -> Rung:
        """The rung of the plan without a budget."""
        return self._make_rung(0, frozenset(), 0)

    def list_within(self, limit: int) -> Iterator[Rung]:
        """Yield the rungs whose peak is at most `limit`, the usual one excepted.

        The fastest is first; each needs less memory than those before it.  The rung of a level is
        made where no rung is known that is faster than the estimate of the level.
        """
        rungs, levels = self._sought
        waiting: list[tuple[float, int, int, Rung | _Level]] = [
            *((r.seconds, r.peak, n, r) for n, r in enumerate(rungs)),
            *((level.seconds, level.limit, -n, level) for n, level in enumerate(levels, 1)),
        ]
        heapify(waiting)
        most = min(limit, self.usual.peak - 1)
        while waiting:
            _, _, n, first = heappop(waiting)
            if isinstance(first, Rung):
                if first.seconds >= self.usual.seconds and first.peak <= most:
                    yield first
                    most = first.peak - 1
            elif first.floor <= most:
                rung = self._make_rung(first.order, first.chosen, first.limit)
                rung = replace(rung, peak=max(rung.peak, first.floor))
                heappush(waiting, (rung.seconds, rung.peak, n, rung))

    @cached_property
    def lowest(self) -> Rung:
        """The rung of the lowest peak."""
        slower = [rung for rung in self._sought[0] if rung.seconds >= self.usual.seconds]
        known = min(slower, key=lambda rung: rung.peak)
        return [known, *self.list_within(known.peak)][-1]

    @cached_property
    def _sought(self) -> tuple[list[Rung], list[_Level]]:
        """The rungs that are made for any budget, the usual one first; and all levels."""
        rungs, falls = [self.usual], 1
        levels = list[_Level]()
        following: _Order | None = self._orders[0].settle_layers()
        while following is not None and len(self._orders) <= ORDERS and not self.effort.is_spent:
            self._orders.append(following)
            search = self._search(following)
            sought, lowest, falls = _list_levels(search, self.usual.peak, falls)
            number = len(self._orders) - 1
            plain = self._make_rung(number, frozenset(), search.find_peak(frozenset()))
            rungs += (plain, self._make_rung(number, lowest, search.find_peak(lowest), True))
            levels += (
                _Level(number, c, limit, plain.seconds + search.count_seconds(c))
                for c, limit in sought
            )
            following = following.find_better(lowest)
        low = min(rungs, key=lambda rung: rung.peak)
        least = math.inf  # the lowest peak with segments
        for base in dict.fromkeys((low.order, len(self._orders) - 1)):
            for following in self._list_sample_orders(base, low.peak):
                made = self._list_segment_rungs(following, rungs)
                rungs += made
                peak = min(rung.peak for rung in made)
                if peak >= least and base != low.order:
                    break  # what is left of an order that is no better would take long to look for
                least = min(least, peak)
        return rungs, levels

    def _list_segment_rungs(self, following: _Order, known: Sequence[Rung]) -> list[Rung]:
        """Return rungs of an order with segments that may be better than the known ones.

        They end when only windows of groups are left, which the search takes for small.
        """
        self._orders.append(following)
        number, search = len(self._orders) - 1, self._search(following)
        plain = self._make_rung(number, frozenset(), search.find_peak(frozenset()))
        rungs = [plain]
        for chosen, limit in _list_levels(search, plain.peak, 1)[0]:
            spent = plain.seconds + search.count_seconds(chosen)
            if any(r.peak <= limit and r.seconds <= spent for r in (*known, *rungs)):
                continue
            rungs.append(self._make_rung(number, chosen, limit))
            if min(rung.peak for rung in rungs[-2:]) > limit / FALL:
                break
        return rungs

    def _list_sample_orders(self, base: int, lowest: int) -> Iterator[_Order]:
        """Yield orders in which segments compute large values of the order of that number.

        First values that take about as long to compute as to move, then all; first the largest,
        then more.

        lowest: the bytes of the lowest peak without segments.
        """
        ordered = self._orders[base]
        draft = ordered.draft.copy()
        move_updates_last(draft)
        times = predict_seconds(make_tasks(draft, draft.calls), self._threads)
        took = {
            name: t for c, t in zip(draft.calls, times, strict=True) for name in c.list_touched("w")
        }
        speed = get_nominal(self._threads).memory / CHEAP  # bytes a second
        tried = {frozenset[str]()}
        for share in SHARES:
            least = max(lowest // share, self._target.tile_bytes)
            every = list_candidates(draft, self._target, self._threads, least)
            cheap = [name for name in every if took[name] * speed <= draft.values[name].nbytes]
            for chosen in map(frozenset, (cheap, every)):
                if chosen not in tried:
                    tried.add(chosen)
                    yield ordered.segment(chosen)

    def make_draft(self, rung: Rung) -> Draft:
        """Return the draft of a rung: ordered, with its groups."""
        draft = self._make_untiled(rung)
        self._tile_draft(draft, rung)
        return draft

    def _make_untiled(self, rung: Rung) -> Draft:
        """Return the draft of a rung without groups, and with updates after all other calls."""
        ordered = self._orders[rung.order]
        find = ordered.seek_order if rung.ordered else ordered.repeat_calls
        draft = find(rung.chosen)[0].copy()
        if rung.order:
            move_updates_last(draft)
        return draft

    def _tile_draft(self, draft: Draft, rung: Rung) -> list[tuple[int, ...]]:
        """Make the groups of a rung; return of each the places that its calls had."""
        if not rung.order:
            group(draft, self._target, self._threads)
            return []
        groups = make_tiles(draft, self._target, self._threads, rung.apart)
        settle_updates(draft)
        return groups

    # --- the search

    def _search(self, ordered: _Order) -> Search:
        """Return the search on a timeline of an order: groups keep parts of values, as tiled."""
        tiled = ordered.draft.copy()
        times = predict_seconds(make_tasks(tiled, tiled.calls), self._threads)
        move_updates_last(tiled)
        make_tiles(tiled, self._target, self._threads)
        whole = count_work_bytes(ordered.draft)
        nbytes = {n: align(tiled.values[n].nbytes) for n in whole}
        return Search(Timeline(ordered.draft, ordered.known, nbytes, whole, times), self.effort)

    def _make_rung(self, number: int, chosen: Chosen, limit: int, ordered: bool = False) -> Rung:
        """Return the rung of a plan that runs the chosen calls again, in the order of that number.

        Groups with more than `limit` live bytes are split up, because values of any two of their
        calls are live at the same time.
        """
        ordered = ordered and self._orders[number].is_moved(chosen)
        rung = Rung(number, chosen, ordered, frozenset(), 0, 0.0)
        rungs: list[Rung] = []
        for _ in range(TRIES):
            tiled = self._tiled.get(rung) or self._tiled.setdefault(rung, self._measure_tiled(rung))
            rungs.append(replace(rung, peak=tiled.peak, seconds=tiled.seconds))
            high = rung.apart.union(*(places for live, places in tiled.groups if live > limit))
            if tiled.peak <= limit or high == rung.apart:
                break
            rung = replace(rung, apart=high)
        return min(rungs, key=lambda rung: rung.peak)

    def _measure_tiled(self, rung: Rung) -> _Tiled:
        """Make the draft of a rung, and return the facts about it that matter."""
        draft = self._make_untiled(rung)
        groups = self._tile_draft(draft, rung)
        live = count_live_bytes(draft)
        times = predict_seconds(make_tasks(draft, draft.calls), self._threads, again=True)
        return _Tiled(max(live, default=0), sum(times), tuple(_list_lives(draft, groups, live)))


def _list_levels(
    search: Search, top: int, falls: int
) -> tuple[list[tuple[Chosen, int]], Chosen, int]:
    """Return the calls to run again for falling limits, down to the lowest limit that can be met.

    top: the bytes of the highest rung.  falls: how many steps the first limit is below it.

    Returns the calls to run again, each with its limit; the last attempt; and the number of steps.
    """
    levels: list[tuple[Chosen, int]] = []
    now: Chosen = frozenset()
    lowest = now
    while falls <= RUNGS:
        limit = int(top * FALL**falls)
        tries = [search.reach(now, limit)]
        if falls % FRESH == 1 or not tries[0][1]:
            tries.append(search.reach(frozenset(), limit))
        good = [chosen for chosen, suffices in tries if suffices]
        lowest = min((chosen for chosen, _ in tries), key=search.find_peak)
        if not good:
            levels = _find_ends(search, levels, search.prune(lowest, search.find_peak(lowest)))
            break
        now = min(good, key=search.count_seconds)
        levels.append((now, limit))
        falls += 1
    for n in range(len(levels) - 2, -1, -1):  # what suffices below may, with less, be better here
        chosen, limit = levels[n]
        other = search.prune(levels[n + 1][0], limit)
        if search.count_seconds(other) < search.count_seconds(chosen):
            levels[n] = other, limit
    return levels, lowest, falls


def _find_ends(
    search: Search, above: Sequence[tuple[Chosen, int]], lowest: Chosen
) -> list[tuple[Chosen, int]]:
    """Return the levels, the lowest, and one between them."""
    least = search.find_peak(lowest)
    if not above:
        return [(lowest, least)]
    last = above[-1][1]
    between = [limit for limit in (math.isqrt(least * last), least) if limit < last]
    return [*above, *((lowest, limit) for limit in between)]


def explain_too_little(plan: Plan, least: int, budget: int) -> BudgetError:
    """Return the error that no plan fits in a budget, with the values that take the memory."""
    regions = ", ".join(f"{name} {format_bytes(size)}" for name, size in plan.regions if size)
    return BudgetError(
        f"{plan.name}: a budget of {budget} bytes is too small; the smallest possible budget is "
        f"{least} bytes: {regions}{plan.describe_fullest()}",
        least,
    )


def _list_lives(
    draft: Draft, groups: Sequence[tuple[int, ...]], live: Sequence[int]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the groups of a draft that can be split up, each after its live bytes."""
    following = iter(groups)
    for first, last in list_spans(draft.calls):
        if last > first and not is_update(draft.calls[first]):
            places = next(following, ())
            if not draft.calls[first].segment:
                yield live[first], places
