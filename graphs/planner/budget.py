"""Budget: a ladder of plans for one shape, of which the fastest that fits is taken.

A *rung* says which calls run again.  From rung to rung the plan takes longer and needs less memory.
All rungs compute the same numbers to the last bit.  The ladder depends on the graph, the shape, the
target and the threads alone: what it knows of time is a model (kernels/cost.py), and what limits
its work are counts.  So a larger budget never takes a slower plan by that model, nor a smaller one
a plan with a higher peak: both take the first rung that fits.

How far down the ladder goes is decided inside single layers: what one call reads and writes must
live at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from engine.errors import BudgetError
from engine.graphs.planner.again import Repeat, draft_tasks, repeat, repeats
from engine.graphs.planner.lives import lifetimes, liveness_bound, merge_inplace, spans, work_bytes
from engine.graphs.planner.lower import Call, Draft
from engine.graphs.planner.order import order
from engine.graphs.planner.search import Chosen, Search
from engine.graphs.planner.settle import settle
from engine.graphs.planner.split import group
from engine.graphs.planner.tile import tile
from engine.graphs.planner.timeline import Timeline
from engine.graphs.planner.updates import settle_updates, updates_last
from engine.kernels.cost import seconds
from engine.kernels.target import Target
from engine.runtime.plan import Plan, align, in_bytes

FALL = 0.93  # of the bytes of a rung, what the next one is looked for with
RUNGS = 40  # at most
FRESH = 3  # of so many rungs one is also sought from nothing
SHOWN = 5  # values that an error names
TRIES = 4  # how often groups are taken apart for one rung


@dataclass(frozen=True, slots=True)
class Rung:
    """What makes one plan of a ladder of the draft.

    chosen: what runs again, by the place of its last call in the settled draft; None: calls run
        once, in the usual order.
    apart: the calls that are in no group, by their places when what runs again is there.
    peak: the most work bytes that live at one call; no placement needs less.
    seconds: that a step takes, by kernels/cost.py on its nominal machine.
    """

    chosen: Chosen | None
    apart: Chosen
    peak: int
    seconds: float


class Ladder:
    """The rungs of a draft, from the fastest to the one with the lowest peak."""

    def __init__(self, draft: Draft, target: Target, threads: int) -> None:
        """Nothing is looked for yet.

        draft: as it was lowered, in no particular order yet.
        """
        self._target, self._threads = target, threads
        self._usual = _copy(draft)
        settle_updates(self._usual)
        order(self._usual)

    @cached_property
    def _settled(self) -> Draft:
        draft = _copy(self._usual)
        draft.calls = settle(draft.calls, work_bytes(draft))
        return draft

    @cached_property
    def _known(self) -> dict[int, Repeat]:
        return repeats(self._settled)

    @cached_property
    def usual(self) -> Rung:
        """The rung of the plan without a budget."""
        return self._rung(None, 0)

    @cached_property
    def rungs(self) -> tuple[Rung, ...]:
        """All rungs, the usual one first."""
        rungs, search = [self.usual], self._search()
        for chosen, limit in _levels(search, self.usual.peak):
            rungs.append(self._rung(chosen, limit))
        return _front(rungs)

    def draft(self, rung: Rung) -> Draft:
        """The draft of a rung: ordered, with its groups."""
        if rung.chosen is None:
            draft = _copy(self._usual)
            group(draft, self._target, self._threads)
            return draft
        draft = self._again(rung.chosen)
        updates_last(draft)
        tile(draft, self._target, self._threads, rung.apart)
        settle_updates(draft)
        return draft

    def _again(self, chosen: Collection[int]) -> Draft:
        draft = _copy(self._settled)
        repeat(draft, self._known, chosen)
        updates_last(draft)
        return draft

    # --- the search

    def _search(self) -> Search:
        """The search on a timeline of the settled draft: groups keep parts of values, as tiled."""
        tiled = _copy(self._settled)
        times = seconds(draft_tasks(tiled, tiled.calls), self._threads)
        tile(tiled, self._target, self._threads)
        whole = work_bytes(self._settled)
        nbytes = {n: align(tiled.values[n].nbytes) for n in whole}
        return Search(Timeline(self._settled, self._known, nbytes, whole, times))

    def _rung(self, chosen: Chosen | None, limit: float) -> Rung:
        """What a plan takes that runs the chosen again.

        Where more than `limit` bytes live in groups, these are taken apart: what lives at two of
        their calls would else live at all of them.
        """
        apart: frozenset[int] = frozenset()
        best: Rung | None = None
        for _ in range(TRIES if chosen is not None else 1):
            draft = self.draft(Rung(chosen, apart, 0, 0.0))
            blocks = merge_inplace(draft, lifetimes(draft, draft.calls))
            peak = liveness_bound(blocks)
            if best is None or peak < best.peak:
                twice = draft_tasks(draft, draft.calls) * 2
                took = sum(seconds(twice, self._threads)[len(draft.calls) :])
                best = Rung(chosen, apart, peak, took)
            if peak <= limit or chosen is None:
                break
            live = [0] * (len(draft.calls) + 1)
            for block in blocks:
                live[block.first] += block.nbytes
                live[block.last + 1] -= block.nbytes
            high = _grouped_above(draft.calls, live, limit)
            if not high:
                break
            places = {_key(call): n for n, call in enumerate(self._again(chosen).calls)}
            apart |= {places[_key(call)] for call in high}
        assert best is not None
        return best


def _levels(search: Search, top: int) -> list[tuple[Chosen, float]]:
    """What runs again for falling limits, each with its limit, down to what can be reached."""
    found: list[tuple[Chosen, float]] = []
    now: Chosen = frozenset()
    for n in range(RUNGS):
        limit = top * FALL ** (n + 1)
        tries = [search.reach(now, limit)]
        if n % FRESH == 0 or not tries[0][1]:
            tries.append(search.reach((), limit))
        good = [chosen for chosen, suffices in tries if suffices]
        if not good:
            lowest = min((chosen for chosen, _ in tries), key=search.peak)
            if search.peak(lowest) < limit / FALL:
                found.append((search.pruned(lowest, search.peak(lowest)), search.peak(lowest)))
            break
        now = min(good, key=search.seconds)
        found.append((now, limit))
    for n in range(len(found) - 2, -1, -1):  # what suffices below may, with less, be better here
        chosen, limit = found[n]
        other = search.pruned(found[n + 1][0], limit)
        if search.seconds(other) < search.seconds(chosen):
            found[n] = other, limit
    return found


def too_little(plan: Plan, budget: int) -> BudgetError:
    """The error that no plan keeps to a budget: what holds the memory of the smallest plan."""
    live = [0] * (len(plan.steps) + 1)
    work = [b for b in plan.buffers if b.region == "work"]
    for b in work:
        live[b.first] += b.nbytes
        live[b.last + 1] -= b.nbytes
    now = list(accumulate(live))
    place = now.index(max(now))
    makers: dict[int, str] = {}
    for step in plan.steps:
        for arg in step.args:
            if arg.mode in "wu":
                makers.setdefault(arg.buffer, step.source)
    held = [(b.nbytes, n) for n, b in enumerate(plan.buffers) if b in work]
    held = [
        (-size, n) for size, n in held if plan.buffers[n].first <= place <= plan.buffers[n].last
    ]
    told = ", ".join(
        f"{plan.buffers[n].name} {in_bytes(-size)}" + (f" (of {makers[n]})" if n in makers else "")
        for size, n in sorted(held)[:SHOWN]
    )
    regions = ", ".join(f"{name} {in_bytes(size)}" for name, size in plan.regions if size)
    where = f"; most work bytes live at {plan.steps[place].source}: {told}" if told else ""
    return BudgetError(
        f"{plan.name}: a budget of {budget} bytes is too small; the least that is enough is "
        f"{plan.nbytes} bytes: {regions}{where}",
        plan.nbytes,
    )


def _front(rungs: Sequence[Rung]) -> tuple[Rung, ...]:
    """Of rungs the first, and those that are slower than it, but faster than all of lower peak."""
    found = [rungs[0]]
    for rung in sorted(rungs[1:], key=lambda r: (r.seconds, r.peak)):
        if rung.seconds >= rungs[0].seconds and rung.peak < found[-1].peak:
            found.append(rung)
    return tuple(found)


def _grouped_above(calls: Sequence[Call], change: Sequence[int], limit: float) -> list[Call]:
    """The calls of all groups during which more than `limit` bytes live.

    change: of each call the bytes that live more than at the one before.
    """
    found: list[Call] = []
    now, done = 0, 0
    for first, last in spans(calls):
        now += sum(change[done : first + 1])
        done = first + 1
        if last > first and now > limit:
            found += calls[first : last + 1]
    return found


def _key(call: Call) -> tuple[str, tuple[str, ...]]:
    """What tells a call from others, whether it is cut or not."""
    return call.spec.symbol, tuple([name for _, name in call.args])


def _copy(draft: Draft) -> Draft:
    """A draft whose calls and values can be changed without changing this one."""
    return Draft(dict(draft.values), list(draft.calls), draft.inputs, draft.outputs)
