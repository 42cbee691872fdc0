"""Groups of samples: wide layers of a forward pass run sample by sample.

For a whole batch, a value in an image network is often larger than the caches, so each layer reads
it from memory again.  One sample of it is smaller.  So the calls of the forward pass between two
narrow values run sample by sample, as a group (tile.py), and the wide values between them stay in a
cache.  This is done in inference and evaluation, and in the layers of a training step before the
first trained one.  Values that the backward pass reads must be whole, so they end a group.

    Before   expand(x, a); for each of 28 tiles: depthwise(a, b); project(b, c)     # x a c whole
    After    for each of 8 samples: expand(x, a); depthwise(a, b); project(b, c)    # x c whole

Calls whose weights are larger than what they read and write of a sample are left out, because their
weights would come from memory for each sample.

*Requires* calls in the order in which they will run.  *Ensures* the same order.

Source: chains of layers that are computed for a part of the image at a time, Alwani et al.,
"Fused-layer CNN accelerators", MICRO 2016, with the samples of a batch as the parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.graphs.planner.constant_calls import list_same
from engine.graphs.planner.draft import Draft
from engine.graphs.planner.tile import REACH, UNEVEN, find_sample_cuts
from engine.kernels.machine.target import Target

# Times `Target.tile_bytes`, of the largest value that only a group touches: less stays in the cache
# as it is.
LARGE = 2
# Times `Target.tile_bytes`: what a group touches of a sample from which its values are as far away
# as values of a whole batch.  If all layers of MobileNetV2 are one group, answers take
# 7 % longer (`python -m bench answers mobilenet --batch 8`).
FAR = 16


class SampleRuns:
    """The calls of a draft that can run sample by sample, from which segments are made."""

    def __init__(self, draft: Draft, target: Target, threads: int) -> None:
        self._draft = draft
        self._far = FAR * target.tile_bytes
        self._large = {
            name
            for name, value in draft.values.items()
            if value.region == "work" and value.nbytes >= LARGE * target.tile_bytes
        }
        self._users = Counter(name for call in draft.calls for name in call.list_touched("rwus"))
        self._cuts = find_sample_cuts(draft, target, threads, draft.values) if self._large else []
        self._runs = list[_Run]()
        for places in _list_runs(draft, self._cuts) if self._large else ():
            count = min(
                draft.values[name].nbytes // size
                for n in places
                for name, size in self._cuts[n].items()
            )
            rounds = -(-count // threads)
            # One round has all samples at once: no value takes less memory, and more live together.
            is_worth = rounds > 1 and rounds * threads <= UNEVEN * count
            if is_worth and any(not self._large.isdisjoint(self._cuts[n]) for n in places):
                self._runs.append(_Run(count, places, self._list_traffic(places)))

    def take(self, draft: Draft, reach: int = 1) -> float:
        """Make segments of the calls that are to run sample by sample, in place.

        draft: the draft, or a copy of it.
        reach: as many times larger is what a segment may touch, so that there are fewer of them,
            with fewer whole values between them.

        Returns the price of these segments: how many bytes their calls move.  Bytes that are in a
        cache count less.
        """
        number, price = 0, 0.0
        for run in self._runs:
            far = run.count * self._far
            for begin, end in run.list_groups(reach * far):
                price += run.find_price(begin, end, far)
                group = run.places[begin:end]
                touched = Counter(name for n in group for name in self._cuts[n])
                if any(self._is_inside(n, touched[n]) for n in self._large & touched.keys()):
                    number += 1
                    for n in group:
                        draft.calls[n] = replace(draft.calls[n], segment=number)
        return price

    def _list_traffic(self, places: Sequence[int]) -> list[list[_Traffic]]:
        """Return what groups of a run touch: for each end, those that begin one call earlier each
        time.
        """
        values = self._draft.values
        of_ends = list[list[_Traffic]]()
        for end in range(len(places)):
            of_end = list[_Traffic]()
            touched = Counter[str]()
            moved = inside = size = 0
            for begin in range(end, max(end + 1 - REACH, 0) - 1, -1):
                for name in self._cuts[places[begin]]:
                    nbytes = values[name].nbytes
                    size += 0 if touched[name] else nbytes
                    moved += nbytes
                    touched[name] += 1
                    if self._is_inside(name, touched[name]):
                        inside += self._users[name] * nbytes
                of_end.append(_Traffic(moved, inside, size))
            of_ends.append(of_end)
        return of_ends

    def _is_inside(self, name: str, touching: int) -> bool:
        """Return whether no other calls touch a value than so many."""
        return touching == self._users[name] and self._draft.values[name].region == "work"


class _Traffic(NamedTuple):
    """Bytes of a group: what it moves, the values inside it, and all that it touches."""

    moved: int
    inside: int
    size: int


@dataclass(frozen=True, slots=True)
class _Run:
    """Calls that follow each other, from which groups are made.

    count: the number of samples.  places: of the calls.
    traffic: of the groups that end with each call, and begin with it, with the one before, ...
    """

    count: int
    places: list[int]
    traffic: list[list[_Traffic]]

    def find_price(self, begin: int, end: int, far: int) -> float:
        """Return the bytes that a group moves.

        Values inside it count the less, the less the group touches: in full from `far` bytes of
        all samples on.
        """
        moved, inside, size = self.traffic[end - 1][end - 1 - begin]
        return moved - inside * max(0.0, 1 - size / far)

    def list_groups(self, far: int) -> list[tuple[int, int]]:
        """Return the begins and ends of the groups with the lowest price, the last group first."""
        best = [(0.0, 0)]  # of the calls before each: the price, and where their last group begins
        for end in range(1, len(self.places) + 1):
            begins = range(end - 1, end - 1 - len(self.traffic[end - 1]), -1)
            best.append(min((best[at][0] + self.find_price(at, end, far), at) for at in begins))
        groups = list[tuple[int, int]]()
        end = len(self.places)
        while end:
            begin = best[end][1]
            groups.append((begin, end))
            end = begin
        return groups


def _list_runs(draft: Draft, cuts: Sequence[Mapping[str, int]]) -> Iterator[list[int]]:
    """Yield the places of forward calls that can run sample by sample at no loss.

    They are neighbours, except for calls that fold and pack weights, which can stand before them.

    cuts: of each call the values that are cut, and the bytes of a sample, or of an element if the
        call is elementwise.
    """
    run: list[int] = []
    is_same = list_same(draft)
    for n, call in enumerate(draft.calls):
        if is_same[n] and call.phase == "fwd":
            continue
        shared = [
            name
            for name in call.list_touched("r") - cuts[n].keys()
            if draft.values[name].type.size > 1  # a scalar is in a register
        ]
        if (
            call.phase == "fwd"
            and cuts[n]
            and sum(draft.values[name].nbytes for name in shared) <= sum(cuts[n].values())
        ):
            run.append(n)
        elif run:
            yield run
            run = []
    if run:
        yield run
