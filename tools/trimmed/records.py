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

A run of steps that an earlier plan has to the last byte is there once.  In its place are

    u16  head       whose kind of call is `REPEAT`
    u32  from       units from the first step to the run, the lower half first
    u16  steps      of the run, in which no group begins or ends in the middle

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
from engine.runtime.team import LAUNCH, WORKER

KINDS = 12  # bits of a head that hold the kind of a call
REPEAT = (1 << KINDS) - 1
BARRIER, ALONE, TILED, GROUP = (1 << KINDS + i for i in range(4))
MOST = (1 << 16) - 1  # tilings, and steps of a group or of a run that is repeated
REPEAT_BYTES = 8  # of what is in the place of such a run
TRIED = 16  # places of a step that are tried as the start of a run
WORTH = 16  # calls from which on a byte less of a field is worth more than reading it by parts


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
    repeats: how many runs of steps are there once for several plans.
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
            (len(order), REPEAT, "kinds of calls"),
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
        code, starts = _StepText(), []
        numbers, taken = {key: i for i, key in enumerate(order)}, dict.fromkeys(order, 0)
        for plan in plans:
            starts.append(len(code.content) // UNIT)
            units = list[tuple[bytes, int]]()
            left = 0  # steps of the group
            for step, _ in plan:
                key = (step.kernel, len(step.args), len(step.consts))
                head = numbers[key] | BARRIER * step.barrier | ALONE * step.alone
                words = [head | TILED * bool(step.tiles) | GROUP * bool(step.group)]
                words += [tilings[step.tiles << 1 | step.numbered]] if step.tiles else []
                words += [step.group] if step.group else []
                written = struct.pack(f"<{len(words)}H", *words) + columns[key].records[taken[key]]
                taken[key] += 1
                if left:
                    units[-1] = units[-1][0] + written, units[-1][1] + 1
                else:
                    units.append((written, 1))
                left = max(step.group, left) - 1 if step.group or left else 0
            code.append(units)
        self.repeats = code.repeats
        counts = (len(every), len(tilings), len(order), *starts, *tilings)
        sizes = [column.size // UNIT for column in columns.values()]
        self.content = struct.pack(f"<{len(counts)}I{len(sizes)}H", *counts, *sizes) + bytes(
            code.content
        )

    def count_words(self) -> int:
        """Return the words in a model's memory that steps take, which one thread does not need."""
        if self._threads == 1:
            return 0
        words = self._steps * (STEP.size + CALL.size)
        words += self._tilings * (TILES.size + CALL.size * MOVE.size)
        return words + (self._threads * CALL.size if self._tilings else 0)


class _StepText:
    """The steps of all plans as bytes, without what is there already.

    content: the bytes so far.  repeats: how many runs are in the place of others.
    """

    def __init__(self) -> None:
        self.content, self.repeats = bytearray(), 0
        self._units: list[tuple[bytes, int]] = []  # as written; an empty one parts what is not
        self._at: list[int] = []  # where each begins
        self._places: dict[tuple[bytes, int], list[int]] = {}

    def append(self, units: Sequence[tuple[bytes, int]]) -> None:
        """Append a plan: groups and steps outside of them, each with its number of steps."""
        i = 0
        while i < len(units):
            first, count = self._find_run(units, i)
            run = units[i : i + count]
            if sum(len(text) for text, _ in run) > REPEAT_BYTES:
                self._write((b"", 0))
                at = self._at[first] // UNIT
                words = (REPEAT, at & MOST, at >> 16, sum(steps for _, steps in run))
                self.content += struct.pack("<4H", *words)
                self.repeats += 1
                i += count
            else:
                self._write(units[i])
                i += 1
        self._write((b"", 0))

    def _find_run(self, units: Sequence[tuple[bytes, int]], i: int) -> tuple[int, int]:
        """Return where the longest run of units from unit i on is already, and its length."""
        longest = 0, 0
        for first in self._places.get(units[i], ())[:TRIED]:
            count = steps = 0
            while i + count < len(units) and first + count < len(self._units):
                unit = units[i + count]
                steps += unit[1]
                if self._units[first + count] != unit or steps > MOST:
                    break
                count += 1
            longest = max(longest, (first, count), key=lambda pair: pair[1])
        return longest

    def _write(self, unit: tuple[bytes, int]) -> None:
        if unit[1]:
            self._places.setdefault(unit, []).append(len(self._units))
        self._units.append(unit)
        self._at.append(len(self.content))
        self.content += unit[0]


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
        sizes = (0, 1, 2, 3, 4, 8) if len(values) > WORTH else (0, 1, 2, 4, 8)
        size = next(size for size in sizes if most < 1 << 8 * size)
        self._taken.append((RecordField(low, step, size), list(values)))
        return len(self._taken) - 1

    def _place_fields(self) -> int:
        """Place the fields, even sizes first; returns the size of a record.

        Numbers that differ alike from call to call have one place.
        """
        at, known = 0, dict[tuple[int, ...], int]()
        for size in (8, 4, 2, 3, 1):
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
