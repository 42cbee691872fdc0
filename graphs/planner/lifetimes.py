"""Liveness: the live ranges of values, the values that share bytes, and the peak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from engine.graphs.planner.draft import Draft, DraftCall
from engine.plan.plan import align
from engine.system.config import switch

Lifetimes = dict[str, tuple[int, int]]  # value -> the first and the last call that touch it


def find_lifetimes(draft: Draft, calls: list[DraftCall]) -> Lifetimes:
    """Return the first and the last call that touch each value, in the order of first calls.

    Values outside of the region "work" are live throughout the run, all others throughout each
    group.
    """
    firsts: dict[str, int] = {}
    lasts: dict[str, int] = {}
    for first, last in list_spans(calls):
        for call in calls[first : last + 1]:
            for _, name in call.args:
                if name not in firsts:
                    firsts[name] = first
                lasts[name] = last
    lives = {name: (first, lasts[name]) for name, first in firsts.items() if name}
    end = max(len(calls) - 1, 0)
    for name, value in draft.values.items():
        if value.root == name and value.region != "work":
            lives[name] = (0, end)
    return lives


def list_spans(calls: Sequence[DraftCall]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last call of every group; of other calls, itself twice."""
    n = 0
    while n < len(calls):
        cut = calls[n].cut
        count = cut.group if cut else 1
        yield n, n + count - 1
        n += count


def count_work_bytes(draft: Draft) -> dict[str, int]:
    """Return the bytes that each work value takes."""
    return {n: align(v.nbytes) for n, v in draft.values.items() if v.region == "work"}


@dataclass(slots=True, eq=False)
class MemoryBlock:
    """Bytes to place, of one value or of several that use the same bytes one after another.

    names: the values.  first, last: the calls between which it is live, both included.
    """

    names: list[str]
    nbytes: int
    first: int
    last: int
    offset: int = 0


def merge_inplace(draft: Draft, lives: Lifetimes) -> list[MemoryBlock]:
    """Return the blocks of the work values.

    Where a call allows it, an output takes over the block of an input: if no later call reads the
    input, the call does not read it a second time, and both have the same size.
    """
    blocks: dict[str, MemoryBlock] = {}
    for name, (first, last) in lives.items():
        value = draft.values[name]
        if value.region == "work":
            blocks[name] = MemoryBlock([name], align(value.nbytes), first, last)
    if switch("REUSE") == "0":
        return list(blocks.values())
    for first, last in list_spans(draft.calls):
        group = draft.calls[first : last + 1]
        taken: set[str] = set()
        for n, call in enumerate(group):
            for written, read in call.inplace:
                w, r = call.args[written][1], call.args[read][1]
                if w not in blocks or r not in blocks or w in taken or r in taken:
                    continue
                old, new = blocks[r], blocks[w]
                others = [x for i, (_, x) in enumerate(call.args) if i not in (written, read)]
                if old is new or old.nbytes != new.nbytes or r in others:
                    continue
                if call.cut and not _is_in_turn(group, n, written, read):
                    continue
                if old.last == last and new.first == first and old.first < first:
                    old.names += new.names
                    old.last = new.last
                    for name in new.names:
                        blocks[name] = old
                    taken |= {w, r}
    return list(dict.fromkeys(blocks.values()))


def _is_in_turn(group: Sequence[DraftCall], n: int, written: int, read: int) -> bool:
    """Return whether the input of call n of a group can give its bytes to the output.

    No later call touches the input, no earlier call touches the output, and both have the same
    tiles.
    """
    call, cut = group[n], group[n].cut
    assert cut is not None
    w, r = call.args[written][1], call.args[read][1]
    late = {name for other in group[n + 1 :] for _, name in other.args}
    early = {name for other in group[:n] for _, name in other.args}
    is_alone = r not in late and w not in early
    tiles = {
        other.cut.args[i]
        for other in group[: n + 1]
        if other.cut
        for i, (_, name) in enumerate(other.args)
        if name in (w, r)
    }
    return is_alone and tiles == {cut.args[written]} and cut.args[written][0] > 0


def count_live_bytes(draft: Draft) -> list[int]:
    """Return the live bytes of work values at each call."""
    change = [0] * (len(draft.calls) + 1)
    for block in merge_inplace(draft, find_lifetimes(draft, draft.calls)):
        change[block.first] += block.nbytes
        change[block.last + 1] -= block.nbytes
    return list(accumulate(change))[:-1]


def compute_liveness_bound(blocks: Sequence[MemoryBlock]) -> int:
    """Return the peak of live bytes, a lower bound for every placement."""
    births = [(b.first, b.nbytes) for b in blocks]
    deaths = [(b.last + 1, -b.nbytes) for b in blocks]
    top = alive = 0
    for _, change in sorted(births + deaths):  # at one step, deaths come before births
        alive += change
        top = max(top, alive)
    return top


class Tally:
    """Counts the live bytes of work values at each call, for any order of the calls of a draft.

    It counts as `merge_inplace` merges, for calls that are in no group.
    """

    def __init__(self, draft: Draft) -> None:
        sizes = count_work_bytes(draft)
        numbers = {name: n for n, name in enumerate(sizes)}
        self.sizes = list(sizes.values())
        self.touched: list[list[int]] = []  # of each call the numbers of its values
        self.pairs: list[list[tuple[int, int]]] = []  # of each call, what it may write into what
        for call in draft.calls:
            names = [name for _, name in call.args]
            self.touched.append([numbers[x] for x in dict.fromkeys(names) if x in numbers])
            self.pairs.append(
                [
                    (numbers[w], numbers[r])
                    for w, r in ((names[written], names[read]) for written, read in call.inplace)
                    if w in numbers and r in numbers and w != r and sizes[w] == sizes[r]
                    if names.count(r) == 1
                ]
            )

    def count_live(self, order: Sequence[int]) -> list[int]:
        """Return the live bytes at each call of an order, given by positions of all calls."""
        first, last = [-1] * len(self.sizes), [-1] * len(self.sizes)
        for place, n in enumerate(order):
            for value in self.touched[n]:
                if first[value] < 0:
                    first[value] = place
                last[value] = place
        change = [0] * (len(order) + 1)
        for value, nbytes in enumerate(self.sizes):
            if first[value] >= 0:
                change[first[value]] += nbytes
                change[last[value] + 1] -= nbytes
        shared = [0] * len(order)
        for place, n in enumerate(order):
            taken: set[int] = set()
            for w, r in self.pairs[n]:
                if first[w] == place == last[r] and first[r] < place and taken.isdisjoint((w, r)):
                    shared[place] += self.sizes[w]
                    taken |= {w, r}
        now = 0
        living = []
        for place in range(len(order)):
            now += change[place]
            living.append(now - shared[place])
        return living
