"""Tiling: calls that work on the same rows run tile by tile, one after another on each tile.

The tile that a call writes is still in the cache when the next call reads it, so a chain of
convolution, statistics, normalisation and activation passes over memory once instead of four times.
The kernels do not change: each declares how its calls can be divided into tiles (`Tiling`), and the
executor calls them once per tile, with other pointers (`Step.group`).

    Before   map(rows=25088)(c, mean, scale, y); conv_pack()(w, b); conv(rows=25088)(y, b, d);
             channel_moments_cols(rows=25088)(part, d); channel_moments_join(parts=55)(part, mean)
    After    conv_pack()(w, b);
             for each of 56 tiles: map(rows=448)(c, mean, scale, y); conv(rows=448)(y, b, d);
                                   channel_moments_cols(rows=448)(part, d)
             channel_moments_join(parts=56)(part, mean)

*Requires* calls in the order in which they will run.  *Ensures* that two calls keep their order if
one of them writes a value that the other one reads or writes.  Small calls between the calls of a
group move before it, or after it if they need its results.

Source: tiles across loops, as in `compute_at` of Halide and TVM, here across whole kernels.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from engine.base.element_types import ITEMSIZE
from engine.graphs.planner.draft import Draft, DraftCall, TileCut
from engine.graphs.planner.gradient_rows import makes_rows, pair_calls
from engine.kernels.loops.blocks import Blocks
from engine.kernels.machine.target import Target
from engine.kernels.ops.registry import list_templates
from engine.kernels.vocabulary.call import KernelCall
from engine.kernels.vocabulary.op import TensorType
from engine.kernels.vocabulary.tiling import Tiling
from engine.plan.plan import KernelSpec

# `python -m bench budgets.constants` prints the figures below: peaks of work memory, and seconds
# predicted by the cost model.
#
# The number of calls after the first call of a group that may join it.  With 24, plans of
# MobileNetV2 are the same; it bounds the time if many small calls follow.
REACH = 48
# The most bytes that a call may touch to be moved out of a group; one call that moves after the
# group may touch more.  With 1 << 18, steps of MobileNetV2 are 0.3 % longer; with 1 << 24, the peak
# of ResNet-18 is 2.4 % higher.
SMALL = 1 << 21
# The largest time of the tiles, relative to an even division among the threads.  With 1.0, steps of
# MobileNetV2 are 0.04 % longer; with 1.5, one of three threads might stay idle.
UNEVEN = 1.15
# The fewest rows of a tile; for fewer, the edges of a matrix product cost too much.  With 1, steps
# of MiniLM and ConvNeXt are 0.2 % longer; with 64, steps of ConvNeXt are 0.2 % shorter, and of
# MiniLM the same.
LEAST = 32
# Like UNEVEN, for groups of segments, whose purpose is to save memory: four samples on three
# threads.  With 1.15 and 2.0, the ladders of ResNet-18 and U-Net, whose batches are even, are the
# same.
IDLE = 1.5


def make_tiles(
    draft: Draft,
    target: Target,
    threads: int,
    apart: Collection[int] = frozenset(),
    breaks: Collection[int] = frozenset(),
) -> list[tuple[int, ...]]:
    """Make groups of the calls of a draft, in place.

    A tile takes at most `target.tile_bytes` of what its group touches, unless rows are too few.

    apart: the places of calls that are to be in no group.
    breaks: the places of calls that are to be in no group with one before them.

    Calls that make rows of a gradient are always in a group with their readers, directly after
    them (`rows.pair_calls`).

    Returns of each other group the places that its calls had.
    """
    job = _Tiles(draft, target.tile_bytes, threads, breaks)
    queue = deque(map(job.make_member, range(len(draft.calls)), draft.calls))
    for n in apart:
        queue[n].tiling = None
    calls: list[DraftCall] = []
    groups: list[tuple[int, ...]] = []
    while queue:
        if makes_rows(queue[0].call):
            calls += pair_calls(draft, queue.popleft().call, queue.popleft().call)
            continue
        group = job.group(queue)
        if group is None:
            calls.append(queue.popleft().call)
            continue
        taken = {id(m) for m in (*group.early, *group.members)}
        calls += [m.call for m in group.early]
        calls += job.cut(group)
        groups.append(tuple([m.place for m in group.members]))
        reach = [queue.popleft() for _ in range(group.reach)]
        queue.extendleft(m for m in reversed(reach) if id(m) not in taken)
    draft.calls = [job.join_partials(call) for call in calls]
    return groups


def find_sample_cuts(
    draft: Draft, target: Target, threads: int, names: Collection[str]
) -> list[Mapping[str, int]]:
    """Return of each call which of some values a segment cuts with it, with the bytes of a sample.

    Of a call that no segment can have there are none.
    """
    calls = [replace(call, segment=1) for call in draft.calls]
    draft = Draft(draft.values, calls, draft.inputs, draft.outputs)
    job = _Tiles(draft, target.tile_bytes, threads, frozenset())
    cuts_of_calls: list[Mapping[str, int]] = []
    for place, call in enumerate(calls):
        cuts = dict[str, int]()
        if any(name in names for _, name in call.args):
            m = job.make_member(place, call)
            if m.tiling and job.count([m]):
                cuts = {n: size // m.tiling.rows for n, size in m.cuts.items() if n in names}
        cuts_of_calls.append(cuts)
    return cuts_of_calls


@dataclass(slots=True, eq=False)
class _Member:
    """A call, and what is known of it.

    place: that it has in the draft.
    reads, writes: the values that it touches.
    cuts: the bytes of the values that are cut with its rows.
    nbytes: the bytes of all values that it touches.
    """

    place: int
    call: DraftCall
    tiling: Tiling | None
    reads: set[str]
    writes: set[str]
    cuts: dict[str, int]
    nbytes: int

    def meets(self, reads: set[str], writes: set[str]) -> bool:
        """Return whether it must keep its place beside calls that touch these values."""
        mine = self.writes
        return not (
            mine.isdisjoint(reads) and mine.isdisjoint(writes) and self.reads.isdisjoint(writes)
        )


@dataclass(frozen=True, slots=True)
class _TileGroup:
    """Calls that run tile by tile.

    early: calls from between them, which go before the group.
    reach: how many calls of the queue were looked at.
    """

    members: list[_Member]
    early: list[_Member]
    reach: int
    tiles: int


def _is_early(m: _Member, first: _Member) -> bool:
    """Return whether a call would make in the forward pass what the backward pass is to.

    A segment says itself what it makes.
    """
    return (
        not m.call.segment and m.call.again and (m.call.phase, first.call.phase) == ("bwd", "fwd")
    )


class _Tiles:
    """Finds and cuts the groups of one draft.

    parts: the number of parts of values that have one per tile or thread, after tiles were made.
    """

    def __init__(
        self, draft: Draft, tile_bytes: int, threads: int, breaks: Collection[int]
    ) -> None:
        self.draft, self.tile_bytes, self.threads = draft, tile_bytes, threads
        self.breaks = breaks
        self.parts: dict[str, int] = {}
        self.known: dict[tuple[KernelSpec, tuple[int | float, ...]], Tiling | None] = {}
        self.users: dict[str, list[DraftCall]] = {}
        self.nbytes = {name: value.nbytes for name, value in draft.values.items()}
        for call in draft.calls:
            for _, name in call.args:
                self.users.setdefault(name, []).append(call)

    # --- calls

    def make_member(self, place: int, call: DraftCall) -> _Member:
        """Return the member for a call at a place."""
        nbytes = sum([self.nbytes[name] for _, name in call.args if name])
        is_large = nbytes > self.tile_bytes // 2 or call.segment
        tiling = self._find_tiling(call) if is_large else None
        if isinstance(tiling, Blocks):
            tiling = None  # only with what makes rows for it
        cuts: dict[str, int] = {}
        if tiling is not None and not self._is_cut(call, tiling):
            tiling = None
        if tiling is not None:
            for (_, name), step in zip(call.args, tiling.steps, strict=True):
                if name and step:
                    cuts[name] = step * tiling.rows
        return _Member(
            place, call, tiling, call.list_touched("ru"), call.list_touched("wus"), cuts, nbytes
        )

    def _find_tiling(self, call: DraftCall) -> Tiling | None:
        """Return how a call is cut, as its kernel says it."""
        template = list_templates()[call.spec.template]
        if call.segment:
            names = template.operand_names(len(call.args))
            types = {
                operand: self.draft.values[name].type
                for operand, (_, name) in zip(names, call.args, strict=True)
                if name
            }
            elements = {name: types[name].size if name in types else 0 for name in names}
            items = {name: ITEMSIZE[t.dtype] for name, t in types.items()}
            return KernelCall(
                template, call.spec.params, call.consts, elements=elements, itemsizes=items
            ).samples()
        rule = template.tiling
        if rule is None:
            return None
        key = call.spec, call.consts
        if key not in self.known:
            self.known[key] = rule(call.spec.params, call.consts)
        return self.known[key]

    def _is_cut(self, call: DraftCall, tiling: Tiling) -> bool:
        """Return whether each value that a call writes is cut with its rows, or one thread's."""
        large = 0
        for at, ((mode, name), step) in enumerate(zip(call.args, tiling.steps, strict=True)):
            if not name:
                continue
            nbytes = self.nbytes[name]
            large += nbytes if step else 0
            if step and step * tiling.rows != nbytes:
                return False
            if at in [made[0] for made in (tiling.parts, tiling.sums) if made]:
                if mode != "w" or not self._is_joined(call, name):
                    return False
            elif mode == "s":
                if nbytes % self.threads or tiling.numbered:
                    return False
            elif mode != "r" and not step:
                return False
        return large > self.tile_bytes // 2 or call.segment > 0

    def _is_joined(self, call: DraftCall, part: str) -> bool:
        """Return whether partial results are only read by kernels that know their number."""
        others = [other for other in self.users[part] if other is not call]
        return self.draft.values[part].region == "work" and all(
            list_templates()[other.spec.template].joins is not None and other.args[0][1] == part
            for other in others
        )

    def _count_bytes(self, names: Iterable[str]) -> int:
        return sum([self.nbytes[name] for name in names if name])

    # --- groups

    def group(self, queue: Sequence[_Member]) -> _TileGroup | None:
        """Return the group that begins with the queue's first call; None if that runs alone.

        One of a segment has the calls of the segment, and no others.
        """
        barred: set[int] = set()
        if queue[0].tiling is None:
            return None
        while True:
            scanned = self._scan(queue, barred)
            alone = _list_unconnected(scanned.members)
            if scanned.members[0] in alone or len(scanned.members) < 2:
                return None
            if not alone:
                tiles = self.count(scanned.members)
                return replace(scanned, tiles=tiles) if tiles else None
            barred |= {id(m) for m in alone}

    def _scan(self, queue: Sequence[_Member], barred: set[int]) -> _TileGroup:
        """Return the calls that can run with the first one, if those that are barred cannot."""
        segment = queue[0].call.segment
        members, early, late = [queue[0]], list[_Member](), list[_Member]()
        reads, writes = set(queue[0].reads), set(queue[0].writes)  # of members and late calls
        behind_r, behind_w = set[str](), set[str]()  # of late calls
        reach = count = 1
        for m in islice(queue, 1, REACH):
            if makes_rows(m.call):
                break
            count += 1
            is_free = m.place not in self.breaks and id(m) not in barred
            is_free = is_free and m.call.segment == segment
            can = m.tiling is not None and is_free and not _is_early(m, members[0])
            if can and _fits(m, members) and not m.meets(behind_r, behind_w):
                members.append(m)
                reach = count
            elif m.meets(reads, writes):
                if m.nbytes > SMALL and any(o.nbytes > SMALL for o in late) and not segment:
                    break
                late.append(m)
                behind_r |= m.reads
                behind_w |= m.writes
            elif m.nbytes <= SMALL or segment:
                early.append(m)
                continue
            else:
                break
            reads |= m.reads
            writes |= m.writes
        before = {id(m) for m in islice(queue, reach)}
        return _TileGroup(members, [m for m in early if id(m) in before], reach, 0)

    def count(self, members: Sequence[_Member]) -> int:
        """Return into how many tiles a group is cut; 0 if it is not worth it.

        Each thread gets about as many.  Values that a segment cannot cut as small are cut as often
        as they can be, into samples at least.
        """
        least = -(-self._count_bytes({name for m in members for name in m.cuts}) // self.tile_bytes)
        rows = [m.tiling.rows for m in members if m.tiling]
        common = math.gcd(*rows)
        is_segment = members[0].call.segment > 0
        for count in range(max(least, 2), min(common, 4 * least + 1) + 1):
            most = -(-count // self.threads)  # that one thread gets
            if common % count == 0 and most * self.threads <= UNEVEN * count:
                return count if is_segment or max(rows) // count >= LEAST else 0
        if not is_segment:
            return 0
        for count in range(common, 1, -1):
            if common % count == 0 and -(-count // self.threads) * self.threads <= IDLE * count:
                return count
        return 0

    # --- cutting

    def cut(self, group: _TileGroup) -> list[DraftCall]:
        """Return the calls of a group, each as it is for a tile."""
        before, calls = list[DraftCall](), list[DraftCall]()
        windows = self._find_windows(group)
        for n, m in enumerate(group.members):
            tiling, call = m.tiling, m.call
            assert tiling is not None
            consts, args = list(call.consts), list(call.args)
            for at in tiling.counts:
                consts[at] //= group.tiles
            for at, value in tiling.fixed.items():
                consts[at] = value
            cuts = [
                (step * tiling.rows // group.tiles, 0)
                if step or mode != "s" or not name
                else (0, self._count_bytes([name]) // self.threads)
                for (mode, name), step in zip(args, tiling.steps, strict=True)
            ]
            for at, (_, name) in enumerate(args):
                if name in windows:
                    cuts[at] = (0, windows[name])
            if tiling.parts is not None:
                at, nbytes = tiling.parts
                cuts[at] = (nbytes, 0)
                self._resize(args[at][1], group.tiles, nbytes)
            if tiling.sums is not None:
                at, nbytes = tiling.sums
                cuts[at] = (0, nbytes)
                self._resize(args[at][1], self.threads, nbytes)
                before.append(self._make_clearing(call, tiling, at))
                args[at] = ("u", args[at][1])
            first = len(group.members) if n == 0 else 0
            cut = TileCut(first, group.tiles, tiling.numbered, tuple(cuts))
            calls.append(replace(call, args=tuple(args), consts=tuple(consts), cut=cut))
        for name, nbytes in windows.items():
            self._resize(name, self.threads, nbytes)
        return before + calls

    def _find_windows(self, group: _TileGroup) -> dict[str, int]:
        """Return the values that keep only one tile per thread, and the bytes of a tile.

        They are made and used up inside the group, by kernels that are given the rows of a tile
        alone.
        """
        windows: dict[str, int] = {}
        inside = {id(m.call) for m in group.members}
        for m in group.members:
            for name in m.writes & m.cuts.keys():
                users = [o for o in group.members if name in o.reads or name in o.writes]
                is_plain = all(o.tiling and not o.tiling.numbered for o in users)
                is_first = m is users[0] and name not in m.reads
                is_inside = all(id(call) in inside for call in self.users[name])
                if is_plain and is_first and is_inside and self._is_free(name):
                    windows[name] = m.cuts[name] // group.tiles
        return windows

    def _is_free(self, name: str) -> bool:
        """Return whether a value has bytes that only calls of the draft see."""
        return self.draft.values[name].region == "work"

    def _make_clearing(self, call: DraftCall, tiling: Tiling, sums: int) -> DraftCall:
        """Return the call that sets the sums of all threads to 0; its pointer is the sums."""
        consts = list(call.consts)
        for at, value in tiling.clears.items():
            consts[at] = consts[at] * self.threads if value is None else value
        args = [(mode, name if at == sums else "") for at, (mode, name) in enumerate(call.args)]
        return replace(call, args=tuple(args), consts=tuple(consts))

    def _resize(self, name: str, parts: int, nbytes: int) -> None:
        """Make room for so many parts of a value, one a tile or a thread, of so many bytes each."""
        value = self.draft.values[name]
        size = value.nbytes // value.type.size
        shape = TensorType(value.type.dtype, (parts, nbytes // size))
        self.draft.values[name] = replace(value, type=shape)
        self.parts[name] = parts

    def join_partials(self, call: DraftCall) -> DraftCall:
        """Return a call that joins as many partial results as there now are; others unchanged."""
        at = list_templates()[call.spec.template].joins
        parts = None if at is None else self.parts.get(call.args[0][1])
        if at is None or parts is None:
            return call
        return replace(call, consts=(*call.consts[:at], parts, *call.consts[at + 1 :]))


def _fits(m: _Member, members: Sequence[_Member]) -> bool:
    """Return whether a call that is cut can run in a group with others.

    Its rows are a multiple of the rows of the others, or the other way round, and all cut alike
    what one of them writes.
    """
    assert m.tiling is not None
    rows = m.tiling.rows
    for other in members:
        assert other.tiling is not None
        if rows % other.tiling.rows and other.tiling.rows % rows:
            return False
        if m.meets(other.reads, other.writes):
            both = (m.writes & (other.reads | other.writes)) | (m.reads & other.writes)
            if not (both <= m.cuts.keys() and both <= other.cuts.keys()):
                return False
    return True


def _list_unconnected(members: Sequence[_Member]) -> list[_Member]:
    """Return the calls of a group that share no cut values with the first one.

    Directly, or by others.
    """
    names, rest = set(members[0].cuts), list(members[1:])
    while True:
        near = [m for m in rest if names & m.cuts.keys()]
        if not near:
            return rest if len(rest) < len(members) - 1 else list(members)
        names |= {name for m in near for name in m.cuts}
        rest = [m for m in rest if m not in near]
