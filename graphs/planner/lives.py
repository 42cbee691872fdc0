"""Lives: how long each value of a draft lives, which values share bytes, and the most that live."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.graphs.planner.lower import Call, Draft
from engine.runtime.config import switch
from engine.runtime.plan import align

Lifetimes = dict[str, tuple[int, int]]  # value -> the first and the last call that touch it


def lifetimes(draft: Draft, calls: list[Call]) -> Lifetimes:
    """The first and the last call that touch each value, in the order in which calls name them.

    Values of all regions but "work" live throughout the run, all others throughout each group.
    """
    firsts: dict[str, int] = {}
    lasts: dict[str, int] = {}
    for first, last in spans(calls):
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


def spans(calls: Sequence[Call]) -> Iterator[tuple[int, int]]:
    """The first and the last call of every group; of a call that is in none, itself twice."""
    n = 0
    while n < len(calls):
        cut = calls[n].cut
        count = cut.group if cut else 1
        yield n, n + count - 1
        n += count


def work_bytes(draft: Draft) -> dict[str, int]:
    """The bytes that each work value takes."""
    return {n: align(v.nbytes) for n, v in draft.values.items() if v.region == "work"}


def peak(lives: Lifetimes, sizes: Mapping[str, int]) -> int:
    """The most bytes of work values that live at one call: no placement can need less.

    sizes: as `work_bytes` says.
    """
    change = [0] * (max((last for _, last in lives.values()), default=0) + 2)
    for name, nbytes in sizes.items():
        if name in lives:
            first, last = lives[name]
            change[first] += nbytes
            change[last + 1] -= nbytes
    top = now = 0
    for c in change:
        now += c
        top = max(top, now)
    return top


@dataclass(slots=True, eq=False)
class Block:
    """Bytes to place: those of one value, or of several that have the same bytes one after another.

    names: the values.  first, last: the calls between which it lives, both included.
    """

    names: list[str]
    nbytes: int
    first: int
    last: int
    offset: int = 0


def merge_inplace(draft: Draft, lives: Lifetimes) -> list[Block]:
    """The blocks of the work values.

    Where a call allows it, an output takes over the block of an input: if no later call reads the
    input, the call does not read it a second time, and both have the same size.
    """
    blocks: dict[str, Block] = {}
    for name, (first, last) in lives.items():
        value = draft.values[name]
        if value.region == "work":
            blocks[name] = Block([name], align(value.nbytes), first, last)
    if switch("REUSE") == "0":
        return list(blocks.values())
    for first, last in spans(draft.calls):
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
                if call.cut and not _in_turn(group, n, written, read):
                    continue
                if old.last == last and new.first == first and old.first < first:
                    old.names += new.names
                    old.last = new.last
                    for name in new.names:
                        blocks[name] = old
                    taken |= {w, r}
    return list(dict.fromkeys(blocks.values()))


def _in_turn(group: Sequence[Call], n: int, written: int, read: int) -> bool:
    """Whether a value that call n of a group reads can give its bytes to one that it writes.

    No call after it touches the one, none before it the other, and both are cut alike.
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


def liveness_bound(blocks: list[Block]) -> int:
    """The most bytes that live at one call: no placement needs less."""
    births = [(b.first, b.nbytes) for b in blocks]
    deaths = [(b.last + 1, -b.nbytes) for b in blocks]
    top = alive = 0
    for _, change in sorted(births + deaths):  # at one step, deaths come before births
        alive += change
        top = max(top, alive)
    return top
