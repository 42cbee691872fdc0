"""The steps of a plan that run once, and again where parameters that they read have changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass

from engine.plan.plan import Plan
from engine.runtime.arena import allocate
from engine.runtime.change_clock import ChangeClock, Span, have_overlap, merge_spans


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps that read what others of them make, so that all run again if one does.

    steps: their numbers, in order.
    reads: the bytes of region param that they read.
    """

    steps: tuple[int, ...]
    reads: tuple[Span, ...]


def list_chains(plan: Plan) -> list[Chain]:
    """Return the chains of the steps of a plan that run once."""
    chain_of = list(range(plan.once))

    def find(n: int) -> int:
        while chain_of[n] != n:
            n = chain_of[n]
        return n

    makers: dict[int, int] = {}  # of buffers
    for n, step in enumerate(plan.steps[: plan.once]):
        for arg in step.args:
            if arg.buffer in makers:
                chain_of[find(n)] = find(makers[arg.buffer])
        makers |= {arg.buffer: n for arg in step.args if arg.buffer >= 0 and arg.mode in "wu"}
    members: dict[int, list[int]] = {}
    for n in range(plan.once):
        members.setdefault(find(n), []).append(n)
    return [Chain(tuple(steps), _list_reads(plan, steps)) for steps in members.values()]


def _list_reads(plan: Plan, steps: Iterable[int]) -> tuple[Span, ...]:
    """Return the bytes of region param that some steps touch."""
    buffers = [plan.buffers[a.buffer] for n in steps for a in plan.steps[n].args if a.buffer >= 0]
    return merge_spans((b.offset, b.offset + b.nbytes) for b in buffers if b.region == "param")


def share_made(
    plan: Plan, changes: ChangeClock | None, known: MutableMapping[bytes, MadeValues]
) -> MadeValues:
    """Return the values that a plan makes once, which it shares with plans that make the same.

    So plans for several shapes have one copy of the weights.

    known: the values of plans that have the same regions param and frozen, by `digest_once`.
    """
    key = digest_once(plan)
    made = known.get(key)
    if made is None:
        made = known[key] = MadeValues(plan, changes)
    return made


def digest_once(plan: Plan) -> bytes:
    """Return the digest of all that decides region made: the steps that run once, and its size.

    Buffers in regions that outlive a run are where they are, constants are what they hold, and work
    memory is only told apart.
    """
    contents, numbers = dict(plan.constants), dict[int, int]()

    def describe(index: int) -> object:
        if index < 0:
            return None
        b = plan.buffers[index]
        kind = b.region, b.dtype, b.shape
        if b.region == "const":
            return *kind, hashlib.sha256(contents[index]).digest()
        if b.region == "work":
            return *kind, numbers.setdefault(index, len(numbers))
        return *kind, b.offset

    parts: list[object] = [plan.target, plan.threads, plan.compute_region_bytes("made")]
    for step in plan.steps[: plan.once]:
        args = [(a.mode, describe(a.buffer)) for a in step.args]
        parts.append((step.kernel, step.consts, args))
    return hashlib.sha256(repr(parts).encode()).digest()


class MadeValues:
    """Values in region made, and which steps have to run before they are valid.

    Programs whose plans make the same share them, and so the numbers of these steps.

    memory: the region.
    changes: the changes of region param; None if nobody notes them, as if all may have changed.
    """

    def __init__(self, plan: Plan, changes: ChangeClock | None) -> None:
        nbytes = plan.compute_region_bytes("made")
        self.memory = allocate(nbytes, zero=False, what=f"plan {plan.name}: region made")
        self._chains, self._changes, self._once = list_chains(plan), changes, plan.once
        self._follows = any(chain.reads for chain in self._chains)
        self._made: int | None = None  # the reading of the clock when all were valid

    def forget(self) -> None:
        """Let all values be made again, as their memory is another."""
        self._made = None

    def renew(self, run: Callable[[int, int], None]) -> None:
        """Make the values valid.

        run: runs some steps, given the first one and their number.
        """
        made, changes = self._made, self._changes
        if made is not None and not self._follows:
            return
        if changes is None:
            clock, steps = 0, range(self._once) if made is None else self._list_steps(None)
        elif made is None:
            clock, steps = changes.clock, range(self._once)
        elif changes.is_same_since(made):
            return
        else:
            spans = changes.list_since(made)
            clock, steps = changes.clock, self._list_steps(spans)
        self._made = None  # a run that is interrupted leaves nothing valid
        for first, count in _list_runs(steps):
            run(first, count)
        self._made = clock

    def _list_steps(self, changed: list[Span] | None) -> list[int]:
        """Return the steps that read changed bytes, with their chains; None: any may be changed."""
        return sorted(
            n
            for chain in self._chains
            if chain.reads and (changed is None or have_overlap(chain.reads, changed))
            for n in chain.steps
        )


def _list_runs(steps: Iterable[int]) -> list[tuple[int, int]]:
    """Return runs of steps in order: the first step of each and their number."""
    return [(first, end - first) for first, end in merge_spans((n, n + 1) for n in steps)]
