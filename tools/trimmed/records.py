"""The steps of a build as its code reads them, in place: calls, and a record for each.

    u32  steps      of all plans
    u32  tilings    the ways in which groups run tile by tile: how many there are
    u32  kinds      of calls: how many there are
    u32  start      of each plan: units from the first step to its own
    u32  count      of each tiling: its tiles, times 2, plus 1 if kernels find a tile by its number
    u16  size       of each kind of call: how many units its record takes
    u16  head       of a step: its kind of call, and the bits `BARRIER`, `ALONE`, `TILED`, `GROUP`
    u16  tiling     of a step that is `TILED`: its number
    u16  steps      of a step that is a `GROUP`'s first: how many the group has
         record     of the step: the fields that differ from call to call

Steps follow one another, plan after plan.  A unit is two bytes, `UNIT`, and the runtime and the
code of kernels read everything where the library has it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.base.errors import ModelError
from engine.kernels.compiler.calls import UNIT, Address, Calls, Kind, RecordField
from engine.plan.context import CALL, MOVE, STEP, TILES
from engine.plan.plan import PlanStep
from engine.runtime.program import LAUNCH, WORKER

KINDS = 12  # bits of a head that hold the kind of a call
BARRIER, ALONE, TILED, GROUP = (1 << KINDS + i for i in range(4))
MOST = (1 << 16) - 1  # tilings, and steps of a group


@dataclass(frozen=True, slots=True)
class OperandPlace:
    """The place of an operand: the kind of its address, and bytes from the start of the block."""

    kind: Kind
    offset: int


CalledStep = tuple[PlanStep, Sequence[OperandPlace]]  # a step with the places of its operands


class StepRecords:
    """The steps of the plans of a build, and how their kernels are called.

    calls: the kinds of calls, in the order of the object's table, those that run plans last.
    content: the bytes described above.
    """

    def __init__(self, plans: Sequence[Sequence[CalledStep]], threads: int) -> None:
        """Take the steps of each plan in order, each with the places of its operands.

        Raises:
            ModelError: there are more kernels, tilings or steps in a group than a head can name.
        """
        every = [pair for plan in plans for pair in plan]
        kinds: dict[tuple[str, int, int], list[CalledStep]] = {}
        for step, places in every:
            kinds.setdefault((step.kernel, len(step.args), len(step.consts)), []).append(
                (step, places)
            )
        symbols = [symbol for symbol, _, _ in kinds]
        order = sorted(kinds)
        tilings: dict[int, int] = {}
        for step, _ in every:
            if step.tiles:
                tilings.setdefault(step.tiles << 1 | step.numbered, len(tilings))
        longest = max((step.group for step, _ in every), default=0)
        for count, most, what in (
            (len(order), 1 << KINDS, "kinds of calls"),
            (len(tilings), MOST, "tilings"),
            (longest, MOST, "steps in a group"),
        ):
            if count > most:
                raise ModelError(f"{count} {what}: a build has at most {most}")
        columns = {key: _CallWords(kinds[key], alone=threads == 1) for key in order}
        self.calls = [
            Calls(
                key[0],
                f"{key[0]}.called" + (f".{key[1]}.{key[2]}" if symbols.count(key[0]) > 1 else ""),
                column.words,
                column.size,
                threads == 1 and not any(step.numbered for step, _ in kinds[key]),
            )
            for key, column in columns.items()
        ]
        for spec in (LAUNCH, WORKER) if threads > 1 else ():
            self.calls.append(Calls(spec.symbol, f"{spec.symbol}.called", None, 0, alone=False))
        self.kinds = len(order)
        self._threads, self._steps, self._tilings = threads, len(every), len(tilings)
        code, starts = bytearray(), []
        numbers, taken = {key: i for i, key in enumerate(order)}, dict.fromkeys(order, 0)
        for plan in plans:
            starts.append(len(code) // UNIT)
            for step, _ in plan:
                key = (step.kernel, len(step.args), len(step.consts))
                head = numbers[key] | BARRIER * step.barrier | ALONE * step.alone
                words = [head | TILED * bool(step.tiles) | GROUP * bool(step.group)]
                words += [tilings[step.tiles << 1 | step.numbered]] if step.tiles else []
                words += [step.group] if step.group else []
                code += struct.pack(f"<{len(words)}H", *words) + columns[key].records[taken[key]]
                taken[key] += 1
        counts = (len(every), len(tilings), len(order), *starts, *tilings)
        sizes = [column.size // UNIT for column in columns.values()]
        self.content = struct.pack(f"<{len(counts)}I{len(sizes)}H", *counts, *sizes) + code

    def count_words(self) -> int:
        """Return the words in a model's memory that steps take, which one thread does not need."""
        if self._threads == 1:
            return 0
        words = self._steps * (STEP.size + CALL.size)
        words += self._tilings * (TILES.size + CALL.size * MOVE.size)
        return words + (self._threads * CALL.size if self._tilings else 0)


class _CallWords:
    """The words of all calls of a kind: where each is, and the record of each call."""

    def __init__(self, calls: Sequence[CalledStep], *, alone: bool) -> None:
        self._taken: list[tuple[RecordField, list[int]]] = []
        steps = [step for step, _ in calls]
        drafts: list[_AddressDraft | int] = []
        for i in range(len(steps[0].args)):
            places = [each[i] for _, each in calls]
            moves = [step.args[i].move(step.numbered) for step in steps]
            threads = [0 if alone or not s.tiles else s.args[i].thread for s in steps]
            present = [p.offset for p in places if p.kind != "none"] or [0]
            kinds = tuple(dict.fromkeys(p.kind for p in places))
            drafts.append(
                _AddressDraft(
                    kinds,
                    self._fit([kinds.index(p.kind) for p in places]),
                    self._fit([present[0] if p.kind == "none" else p.offset for p in places]),
                    self._fit([m if s.tiles else 0 for s, m in zip(steps, moves, strict=True)]),
                    self._fit(threads),
                )
            )
        for i in range(len(steps[0].consts)):
            drafts.append(self._fit([encode_word(step.consts[i]) for step in steps]))
        self.size = self._place_fields()
        fields = [field for field, _ in self._taken]
        self.words = [
            fields[draft]
            if isinstance(draft, int)
            else Address(draft.kinds, *(fields[f] for f in draft.list_fields()))
            for draft in drafts
        ]
        self.records = [self._write(i) for i in range(len(calls))]

    def _fit(self, values: Sequence[int]) -> int:
        """Take the values of a number in all calls; returns the number of its field."""
        low = min(values)
        step = math.gcd(*(value - low for value in values))
        most = (max(values) - low) // step if step else 0
        size = next(size for size in (0, 1, 2, 4, 8) if most < 1 << 8 * size)
        self._taken.append((RecordField(low, step, size), list(values)))
        return len(self._taken) - 1

    def _place_fields(self) -> int:
        """Place the fields, large ones first; returns the size of a record.

        Numbers that differ alike from call to call have one place.
        """
        at, known = 0, dict[tuple[int, ...], int]()
        for size in (8, 4, 2, 1):
            for i, (field, values) in enumerate(self._taken):
                if field.size == size:
                    place = known.setdefault(field.count(values), at)
                    self._taken[i] = replace(field, at=place), values
                    at += size if place == at else 0
        return -(-at // UNIT) * UNIT

    def _write(self, call: int) -> bytes:
        """Return the record of a call."""
        record = bytearray(self.size)
        for field, values in self._taken:
            if field.size:
                (n,) = field.count(values[call : call + 1])
                record[field.at : field.at + field.size] = n.to_bytes(field.size, "little")
        return bytes(record)


@dataclass(frozen=True, slots=True)
class _AddressDraft:
    """An `Address` with the numbers of its fields."""

    kinds: tuple[Kind, ...]
    kind: int
    offset: int
    tile: int
    thread: int

    def list_fields(self) -> tuple[int, int, int, int]:
        return self.kind, self.offset, self.tile, self.thread


def encode_word(word: int | float) -> int:
    """Return a number as kernels get it, as 64 bits."""
    form = "<d" if isinstance(word, float) else "<q"
    return int(struct.unpack("<q", struct.pack(form, word))[0])
