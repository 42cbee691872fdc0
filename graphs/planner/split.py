"""Splitting groups: groups that raise the peak of memory are split where this costs little.

All values that a group touches are live as long as the whole group.  A group at the peak is split
in two if this lowers the peak by far more bytes than it adds to the traffic between calls and
memory.

    Before   for each of 112 tiles: depthwise(x, a); map(a, b); conv(b, c); conv(c, y)    # x a c y
    After    for each of 112 tiles: depthwise(x, a); map(a, b); conv(b, c)                # x a c
             for each of 77 tiles: conv(c, y)                                             # c y
"""

from __future__ import annotations

from functools import cached_property

from engine.graphs.planner.draft import Draft
from engine.graphs.planner.gradient_rows import is_update
from engine.graphs.planner.lifetimes import count_live_bytes, list_spans
from engine.graphs.planner.sample_groups import SampleRuns
from engine.graphs.planner.tile import make_tiles
from engine.graphs.planner.updates import move_updates_last, settle_updates
from engine.kernels.machine.target import Target

# `python -m bench budgets.constants` prints the figures below, for an eval plan of MobileNetV2.
#
# The largest number of splits in a draft.  Without any, the peak is 28 % higher; with one, 27 %.
SPLITS = 8
# A split must lower the peak by at least this many times the share by which it adds memory traffic.
# With 25, the peak is 27 % higher; with 1, it is 5.6 % lower, for nearly as many percent more
# traffic.
WORTH = 5
# How many times as much as usual a segment of samples may touch, tried in this order.  Steps that
# train the last layer of MobileNetV2, batch 64, then take 19, 8 and 7 MB in integers and 93, 77 and
# 40 MB in floats.  Of the same steps with each of them, those in integers take equally long; those
# in floats take 3 % less with 4, and 2 % longer with 16, where the price is 42 % higher.
REACHES = (1, 4, 16)


def group(draft: Draft, target: Target, threads: int) -> None:
    """Make groups of the calls of a draft, in place, of samples or as `tile` does; split some.

    Calls that update parameters are in none, and stand where they belong before and after.
    """
    limit = max(count_live_bytes(draft), default=0)  # without groups
    move_updates_last(draft)
    best = lower = _take_samples(draft, target, threads)
    for _ in range(SPLITS):
        if lower.peak <= limit or not lower.at_peak:
            break
        breaks = [lower.breaks | {place} for place in lower.at_peak[1:]]
        others = [_Groups(lower.whole, target, threads, each) for each in breaks]
        lowest = min(others, key=lambda other: (other.peak, other.moved))
        if lowest.peak >= lower.peak:
            break
        lower = lowest
        if lower.is_worth_more(best):
            best = lower
    draft.calls, draft.values = best.draft.calls, best.draft.values


def _take_samples(draft: Draft, target: Target, threads: int) -> _Groups:
    """Return the groups of a draft in which wide layers run sample by sample.

    Larger segments leave fewer whole values between them, but their values are farther away.  They
    are taken if they lower the peak by a larger share than they raise the price of `SampleRuns`.
    """
    runs = SampleRuns(draft, target, threads)
    best: _Groups | None = None
    least = 0.0
    for reach in REACHES:
        copy = draft.copy()
        price = runs.take(copy, reach)
        if best is not None and copy.calls == best.whole.calls:
            continue
        other = _Groups(copy, target, threads, frozenset())
        if best is None or other.peak * least < (2 * least - price) * best.peak:
            best, least = other, price
    assert best is not None, "there is a reach"
    return best


class _Groups:
    """A draft with groups.

    whole: the draft without groups of tiles, but with segments.
    breaks: as `tile` takes them.
    peak: the most bytes of work values that live at one call.
    at_peak: the places, without groups, of the calls of the group at the peak; none if the call
        there is in none.
    """

    def __init__(self, draft: Draft, target: Target, threads: int, breaks: frozenset[int]) -> None:
        self.whole, self.draft, self.breaks = draft, draft.copy(), breaks
        groups = iter(make_tiles(self.draft, target, threads, breaks=breaks))
        settle_updates(self.draft)
        live = count_live_bytes(self.draft)
        self.peak = max(live, default=0)
        self.at_peak: tuple[int, ...] = ()
        for first, _ in list_spans(self.draft.calls):
            is_own = self.draft.calls[first].cut and not is_update(self.draft.calls[first])
            places = next(groups) if is_own else ()
            if live[first] == self.peak:
                self.at_peak = places
                break

    @cached_property
    def moved(self) -> int:
        """The bytes that all calls move through memory."""
        return _count_moved(self.draft)

    def is_worth_more(self, other: _Groups) -> bool:
        """Return whether its lower peak is worth the bytes it moves more than the other."""
        fall, rise = 1 - self.peak / other.peak, self.moved / other.moved - 1
        return fall >= WORTH * rise


def _count_moved(draft: Draft) -> int:
    """Return the bytes that calls read and write, except for what is in the cache.

    That is what one before it in the group has touched, and what each thread has for itself.
    """
    total = 0
    for first, last in list_spans(draft.calls):
        known: set[str] = set()
        stored: set[str] = set()
        for call in draft.calls[first : last + 1]:
            cuts = call.cut.args if call.cut else [(0, 0)] * len(call.args)
            for (mode, name), (_, thread) in zip(call.args, cuts, strict=True):
                if not name or mode == "s" or thread:
                    continue
                nbytes = draft.values[name].nbytes
                total += nbytes * (mode in "ru" and name not in known)
                total += nbytes * (mode in "wu" and name not in stored)
                known.add(name)
                if mode in "wu":
                    stored.add(name)
    return total
