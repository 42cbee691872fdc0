"""Steps of builds as constant data: every word can be computed from a step's record again."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence

from engine.kernels.compiler.calls import Address, Calls, RecordField
from engine.plan.plan import Arg, PlanStep
from engine.tools.trimmed.records import (
    BARRIER,
    GROUP,
    KINDS,
    REPEAT,
    TILED,
    CalledStep,
    OperandPlace,
    StepRecords,
    encode_word,
)

PLACES = (OperandPlace("none", 0), OperandPlace("constants", 64))


def draw_steps(seed: int, count: int) -> list[CalledStep]:
    """Steps of three kernels, some in groups; `b` is called with two or three operands."""
    drawn, steps = random.Random(seed), list[CalledStep]()
    while len(steps) < count:
        group = drawn.choice((0, 0, 2))
        for first in range(max(group, 1)):
            kernel = drawn.choice("abc")
            places = [
                drawn.choice((*PLACES, OperandPlace("memory", 64 * drawn.randrange(1 << 20))))
                for _ in range(2 + (kernel == "b" and drawn.random() < 0.5))
            ]
            args = tuple(Arg(0, "r", 256 * drawn.randrange(3) * bool(group)) for _ in places)
            consts = (drawn.choice((-3, 0, 1 << 40)), drawn.choice((0.5, -1e300)), 7)
            numbered = bool(group) and drawn.random() < 0.5
            step = PlanStep(
                kernel, args, consts, "node", "fwd", barrier=drawn.random() < 0.5,
                group=0 if first else group, tiles=5 if group else 0, numbered=numbered,
            )  # fmt: skip
            steps.append((step, places))
    return steps


def read_field(field: RecordField, record: bytes) -> int:
    """The number of a field, modulo 2^64 as in kernels."""
    n = int.from_bytes(record[field.at : field.at + field.size], "little")
    return (field.low + field.step * n) % (1 << 64)


def read_words(calls: Calls, record: bytes) -> Iterator[tuple[object, ...]]:
    """The words of a call: a place and how it moves with its tile, or a number."""
    for word in calls.words or ():
        if isinstance(word, Address):
            kind = word.kinds[read_field(word.kind, record)]
            offset = 0 if kind == "none" else read_field(word.offset, record)
            yield kind, offset, read_field(word.tile, record), read_field(word.thread, record)
        else:
            yield (read_field(word, record),)


def list_words(step: PlanStep, places: Sequence[OperandPlace]) -> list[tuple[object, ...]]:
    moves = [arg.move(step.numbered) % (1 << 64) for arg in step.args]
    given = zip(places, moves, strict=True)
    rows: list[tuple[object, ...]] = [(p.kind, p.offset, move, 0) for p, move in given]
    return [*rows, *((encode_word(c) % (1 << 64),) for c in step.consts)]


def test_the_words_of_every_step_are_in_its_record() -> None:
    for seed in range(5):
        long, other = draw_steps(seed, 40), draw_steps(seed + 50, 4)
        again = [*other, *long[-30:], *other, *long[:-1]]
        plans = [long, [], draw_steps(seed + 100, 3), again]
        made = StepRecords(plans, 1)
        content = made.content
        steps, tilings, kinds, *starts = struct.unpack_from("<7I", content)
        assert (steps, kinds) == (sum(map(len, plans)), made.kinds)
        assert made.repeats > 1
        at = 28 + 4 * tilings
        sizes = struct.unpack_from(f"<{kinds}H", content, at)
        first = at + 2 * kinds
        for plan, start in zip(plans, starts, strict=True):
            at, after, left = first + 2 * start, 0, 0  # left: steps of a run that repeats
            for step, places in plan:
                (head,) = struct.unpack_from("<H", content, at)
                if head == REPEAT:
                    low, high, left = struct.unpack_from("<3H", content, at + 2)
                    at, after = first + 2 * (low | high << 16), at + 8
                    (head,) = struct.unpack_from("<H", content, at)
                at += 2
                assert bool(head & BARRIER) == step.barrier
                assert bool(head & TILED) == bool(step.tiles)
                if step.tiles:
                    (tiling,) = struct.unpack_from("<H", content, at)
                    (count,) = struct.unpack_from("<I", content, 28 + 4 * tiling)
                    assert count == step.tiles << 1 | step.numbered
                    at += 2
                assert bool(head & GROUP) == bool(step.group)
                at += 2 * bool(step.group)
                calls = made.calls[head & ((1 << KINDS) - 1)]
                assert calls.symbol == step.kernel
                size = 2 * sizes[head & ((1 << KINDS) - 1)]
                assert size == calls.size
                assert [*read_words(calls, content[at : at + size])] == list_words(step, places)
                at += size
                left -= left > 0
                if after and not left:
                    at, after = after, 0
        assert len({calls.name for calls in made.calls}) == kinds


def test_plans_that_are_alike_take_few_bytes() -> None:
    plan = draw_steps(0, 200)
    once = len(StepRecords([plan], 1).content)
    twice = len(StepRecords([plan, plan], 1).content)
    assert once < twice < 1.1 * once


def test_one_thread_takes_no_memory_for_steps() -> None:
    plans = [draw_steps(0, 10)]
    assert StepRecords(plans, 1).count_words() == 0
    assert StepRecords(plans, 2).count_words() > 0
