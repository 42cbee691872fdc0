"""Runs of plans whose kernel calls see each operand between guard pages.

Steps run one after another on this thread, the shares of all threads of a plan in order, and the
tiles of a group in order.  Every step, or group, runs once for each side, from the same bytes, and
must leave the same bytes.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine.base.element_types import ITEMSIZE
from engine.plan.plan import Plan, PlanStep
from tests.guard.pages import Side, Slot

SIDES: tuple[Side, Side] = ("end", "start")
WORDS = -1  # the operand that a call's words are

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class StrayError(AssertionError):
    """A call wrote where it must not, or its results depend on where its operands lie."""


@dataclass(frozen=True, slots=True)
class NextCall:
    """Next call; operand: the only one beside a guard, None if all are."""

    step: int
    side: Side
    operand: int | None


class Walk:
    """Plan between guard pages.

    regions: the bytes of every region that the plan uses.
    announce: called with every call before it runs, since the process may end in it.
    """

    def __init__(
        self,
        plan: Plan,
        addresses: Mapping[str, int],
        regions: Mapping[str, np.ndarray],
        announce: Callable[[NextCall], None],
    ) -> None:
        self.plan, self.regions, self.announce = plan, regions, announce
        self.addresses = addresses
        self.code = {symbol: _ENTRY(address) for symbol, address in addresses.items()}
        self.slots: list[Slot] = []
        self.words = Slot()
        self.calls = 0
        self.sizes = [ITEMSIZE[b.dtype] * int(np.prod(b.shape, dtype=object)) for b in plan.buffers]

    def run(self) -> None:
        """Run all steps.

        Raises:
            StrayError: a call wrote into slack, or where its operands lie changes its results.
        """
        n = 0
        while n < len(self.plan.steps):
            count = max(self.plan.steps[n].group, 1)
            self.unit(range(n, n + count))
            n += count

    def unit(self, steps: Sequence[int]) -> None:
        """Run a step or a group on both sides."""
        places = {key: size for n in steps for key, size in self.operands(n).items()}
        before = {key: self.at(key, size).copy() for key, size in places.items()}
        left: list[dict[tuple[str, int], np.ndarray]] = []
        for side in SIDES:
            for key, data in before.items():
                self.at(key, data.size)[:] = data
            self.tiles(steps, side)
            left.append({key: self.at(key, size).copy() for key, size in places.items()})
        scratch = self.scratch(steps)
        for key, data in left[0].items():
            if key not in scratch and not np.array_equal(data, left[1][key]):
                raise StrayError(f"step {steps[0]}: the result at {key} depends on where it lies")

    def tiles(self, steps: Sequence[int], side: Side, alone: tuple[int, int] | None = None) -> None:
        """Run a step, or all tiles of a group; alone: a step and its only operand at a guard."""
        tiles = self.plan.steps[steps[0]].tiles
        for tile in range(max(tiles, 1)):
            for n in steps:
                operand = alone[1] if alone is not None and alone[0] == n else None
                mine: Side = "middle" if alone is not None and alone[0] != n else side
                self.call(n, tile, mine, operand)

    def scratch(self, steps: Sequence[int]) -> set[tuple[str, int]]:
        """The places of what only serves as scratch, or belongs to one tile at a time."""
        distinct = set()
        for n in steps:
            for a in self.plan.steps[n].args:
                if a.mode == "s" or a.thread:
                    b = self.plan.buffers[a.buffer]
                    distinct.add((b.region, b.offset))
        return distinct

    def operands(self, n: int) -> dict[tuple[str, int], int]:
        """The places in memory that step n is given, and the bytes of each."""
        actual: dict[tuple[str, int], int] = {}
        for a in self.plan.steps[n].args:
            if a.buffer >= 0:
                b = self.plan.buffers[a.buffer]
                key = (b.region, b.offset)
                actual[key] = max(actual.get(key, 0), self.sizes[a.buffer])
        return actual

    def at(self, key: tuple[str, int], size: int) -> np.ndarray:
        """The bytes of a place."""
        return self.regions[key[0]][key[1] : key[1] + size]

    def call(self, n: int, tile: int, side: Side, operand: int | None) -> None:
        """One call of a kernel, for all threads."""
        step, plan = self.plan.steps[n], self.plan
        places = self.operands(n)
        written = {
            (b.region, b.offset)
            for a in step.args
            if a.mode in "wus"
            for b in (plan.buffers[a.buffer],)
        }
        while len(self.slots) < len(places):
            self.slots.append(Slot())
        used = dict(zip(places, self.slots, strict=False))
        self.announce(NextCall(n, side, operand))
        for t in self.threads(step, tile):
            moved: dict[tuple[str, int], int] = {}
            for i, (key, size) in enumerate(places.items()):
                where: Side = side if operand in (None, i) else "middle"
                moved[key] = used[key].put(self.at(key, size), where, writes=key in written)
            words = b"".join(
                struct.pack("<q", self.pointer(step, i, moved, tile, t))
                for i in range(len(step.args))
            ) + b"".join(
                struct.pack("<d" if isinstance(c, float) else "<q", c) for c in step.consts
            )
            where = "middle" if operand not in (None, WORDS) else "end"
            at = self.words.put(np.frombuffer(words, np.uint8), where, writes=False)
            tid, count = t, plan.threads
            if step.tiles:
                tid, count = (tile, step.tiles) if step.numbered else (0, 1)
            self.code[step.kernel](at, tid, count)
            self.calls += 1
            self.words.take()
            for i, (key, size) in enumerate(places.items()):
                self.at(key, size)[:] = used[key].take()
                stray = used[key].stray()
                if stray is not None:
                    raise StrayError(
                        f"step {n} {step.kernel} ({step.source}): byte {stray} of operand "
                        f"{self.label(step, i)} of {size} bytes was written ({side})"
                    )

    def threads(self, step: PlanStep, tile: int) -> Sequence[int]:
        """The threads that run a step: all of them, or the one that a tile belongs to."""
        if not step.tiles:
            return range(self.plan.threads)
        return [tile * self.plan.threads // step.tiles]

    def pointer(
        self, step: PlanStep, i: int, moved: Mapping[tuple[str, int], int], tile: int, thread: int
    ) -> int:
        """Return the argument i of a call."""
        a = step.args[i]
        if a.buffer < 0:
            return 0
        b = self.plan.buffers[a.buffer]
        base = moved[b.region, b.offset]
        if step.tiles:
            base += thread * a.thread + tile * a.move(step.numbered)
        return base

    def label(self, step: PlanStep, i: int) -> str:
        """The arguments at place i of `operands`, with their buffers' names."""
        if i == WORDS:
            return "words"
        key = list(self.operands(self.plan.steps.index(step)))[i]
        names = [
            f"{at} {b.name}"
            for at, a in enumerate(step.args)
            if a.buffer >= 0
            for b in (self.plan.buffers[a.buffer],)
            if (b.region, b.offset) == key
        ]
        return " = ".join(names)
