"""Segments: chosen values never exist as a whole; each use computes them again, sample by sample.

If little is kept, most of the memory of a step is the input and output of a single layer of an
image network.  Its samples are independent, except for sums: moments of batch norms and gradients
of weights.  A *segment* is a sequence of calls that run sample by sample, as a group (tile.py), so
a value inside it takes the memory of one sample per thread.  If a sum over all samples separates
two uses of a value, each use has its own segment, which computes the value again.

    Before   c = conv(x, w); m = moments(c); z = map(c, m); d = pool(z)                     # c z
    After    for each of 8 samples: c = conv(x, w); part = moments(c)
             m = join(part)
             for each of 8 samples: c/2 = conv(x, w); z = map(c/2, m); d = pool(z)

*Requires* calls in an executable order, with updates after all others.  *Ensures* that every call
reads the same numbers as before, except for sums over samples, which add up other parts.

Source: chains of layers that are computed for a part of the image at a time, Alwani et al.,
"Fused-layer CNN accelerators", MICRO 2016; here in both directions of a training step, and with
the samples of a batch as the parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.graphs.planner.draft import Draft, DraftCall
from engine.graphs.planner.tile import REACH, find_sample_cuts
from engine.kernels.machine.target import Target


def list_candidates(draft: Draft, target: Target, threads: int, least: int) -> list[str]:
    """Return the values of at least so many bytes that segments can make, by their calls.

    One call writes each of them, and no other value with it.  Nothing that it reads changes after
    it.  All calls that touch it are cut into samples; all threads get about as many of them.
    """
    users: dict[str, list[int]] = {}
    changes: dict[str, int] = {}  # the last call that writes a value
    for n, call in enumerate(draft.calls):
        for mode, name in call.args:
            if name:
                users.setdefault(name, []).append(n)
                if mode != "r" and call.phase != "opt":
                    changes[name] = n
    large = {n for n, v in draft.values.items() if v.region == "work" and v.nbytes >= least}
    cuts = find_sample_cuts(draft, target, threads, large)
    candidate_names = []
    for name in sorted(large & users.keys(), key=lambda name: users[name]):
        first, *others = users[name]
        maker = draft.calls[first]
        is_made = (
            others and maker.list_touched("wu") == {name} and name not in maker.list_touched("ru")
        )
        is_read = all(m == "r" for n in others for m, x in draft.calls[n].args if x == name)
        is_same = all(changes.get(x, -1) < first for x in maker.list_touched("r"))
        if is_made and is_read and is_same and all(name in cuts[n] for n in users[name]):
            candidate_names.append(name)
    return candidate_names


def make_segments(draft: Draft, chosen: Collection[str]) -> Draft:
    """Return the draft in which segments make the chosen values, some of `list_candidates`.

    Calls that touch none of them keep their order.
    """
    return _Segments(draft, chosen).draft


@dataclass(slots=True)
class _Segment:
    """A segment that calls may still join.

    number: from 1 on.
    calls: in their order.
    made: the chosen values that it makes, with the names that they have in it.
    reads, writes: what its calls touch.
    late: calls that must stand after it.
    late_reads, late_writes: what these touch.
    waiting: calls since the last that has joined, in their order, each with whether it is late.
    """

    number: int
    calls: list[DraftCall] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    late: list[DraftCall] = field(default_factory=list)
    late_reads: set[str] = field(default_factory=set)
    late_writes: set[str] = field(default_factory=set)
    waiting: list[tuple[DraftCall, bool]] = field(default_factory=list)

    def wait(self, call: DraftCall) -> None:
        """Note a call that does not join."""
        is_late = _meets(call, self.reads | self.late_reads, self.writes | self.late_writes)
        if is_late:
            self.late_reads |= call.list_touched("ru")
            self.late_writes |= call.list_touched("wus")
        self.waiting.append((call, is_late))

    def can_take(self, calls: Sequence[DraftCall]) -> bool:
        """Return whether calls can join: none must stand after a late one."""
        return len(self.waiting) <= REACH and not any(
            _meets(call, self.late_reads, self.late_writes) for call in calls
        )

    def take(self, calls: Sequence[DraftCall], made: Mapping[str, str]) -> list[DraftCall]:
        """Let calls join that make values of these names; return those that now stand before."""
        before = [call for call, is_late in self.waiting if not is_late]
        self.late += [call for call, is_late in self.waiting if is_late]
        self.waiting = []
        self.made |= made
        for call in calls:
            self.calls.append(call)
            self.reads |= call.list_touched("ru")
            self.writes |= call.list_touched("wus")
        return before

    def list_calls(self) -> list[DraftCall]:
        """Return its calls, and all that stand after them."""
        return [*self.calls, *self.late, *(call for call, _ in self.waiting)]


class _Segments:
    """Makes the segments of a draft."""

    def __init__(self, draft: Draft, chosen: Collection[str]) -> None:
        self.draft = Draft(dict(draft.values), [], draft.inputs, draft.outputs)
        self._chosen = frozenset(chosen)
        self._makers: dict[str, DraftCall] = {}
        self._needs: dict[
            str, list[str]
        ] = {}  # of each value that was met what `_list_needed` returns
        self._made: set[str] = set()  # chosen values that some segment makes
        self._names: dict[tuple[str, int], str] = {}  # of what segments make again
        last = _Segment(0)
        for call in draft.calls:
            written = call.list_touched("w") & self._chosen
            if written:
                name = written.pop()
                self._makers[name], self._needs[name] = call, [*self._list_needed(call), name]
            elif self._chosen.isdisjoint(call.list_touched("r")):
                last.wait(call)
            elif not self._join(last, call):
                self.draft.calls += last.list_calls()
                last = _Segment(last.number + 1)
                self._join(last, call)
        self.draft.calls += last.list_calls()

    def _join(self, segment: _Segment, call: DraftCall) -> bool:
        """Let a call join a segment, with those that make what it reads; return whether it could.

        A segment that has calls is joined only by calls that need some of what it makes.
        """
        needed = self._list_needed(call)
        new = [name for name in needed if name not in segment.made]
        if not segment.number or (segment.calls and len(new) == len(needed)):
            return False
        names = {name: self._name(name, segment) for name in new}
        known = {**segment.made, **names}
        calls = [self._make_call(name, segment, known, call) for name in new]
        calls.append(_rename(call, segment, known))
        if not segment.can_take(calls):
            return False
        for name in new:
            for mode, x in self._makers[name].args:
                if x and mode in "ws":
                    twin = names[x] if mode == "w" else self._name(x, segment, of=name)
                    self.draft.values[twin] = replace(self.draft.values[x], name=twin, root=twin)
        self._made |= names.keys()
        self.draft.calls += segment.take(calls, names)
        return True

    def _list_needed(self, call: DraftCall) -> list[str]:
        """Return the chosen values that must be made for a call, each after its inputs."""
        needed: dict[str, None] = {}
        for mode, name in call.args:
            if mode == "r" and name in self._chosen:
                needed |= dict.fromkeys(self._needs[name])
        return list(needed)

    def _name(self, name: str, segment: _Segment, of: str = "") -> str:
        """Return the name of a value in a segment that makes it, or makes the value `of`."""
        if (of or name) not in self._made:
            return name
        key = name, segment.number
        if key not in self._names:
            self._names[key] = self.draft.name_fresh(f"{name}/{segment.number}")
        return self._names[key]

    def _make_call(
        self, name: str, segment: _Segment, known: Mapping[str, str], root: DraftCall
    ) -> DraftCall:
        """Return the call that makes a chosen value in a segment, for a call that joins it."""
        maker = self._makers[name]
        if name not in self._made:
            return _rename(maker, segment, known)
        scratch = {x: self._name(x, segment, of=name) for mode, x in maker.args if mode == "s"}
        again = replace(maker, phase=root.phase, again=True)
        return _rename(again, segment, {**known, **scratch})


def _rename(call: DraftCall, segment: _Segment, names: Mapping[str, str]) -> DraftCall:
    """Return a call as it is in a segment, in which values have these names."""
    args = tuple([(mode, names.get(name, name)) for mode, name in call.args])
    return replace(call, args=args, segment=segment.number)


def _meets(call: DraftCall, reads: Collection[str], writes: Collection[str]) -> bool:
    """Return whether a call must keep its place beside calls that touch these values."""
    mine = call.list_touched("wus")
    return not (
        mine.isdisjoint(reads)
        and mine.isdisjoint(writes)
        and call.list_touched("ru").isdisjoint(writes)
    )
