"""Collective steps: those at which the ranks of a group add what each of them has.

A step of a plan whose kernel is `REDUCE`, `MOMENTS` or `AGREE` ends a stage of the run.  The
native program runs the stages, and between them the runtime sums the bytes that such a step names
over all ranks.  The kernels themselves copy or weigh what is to be summed, mostly where it lies.  A
plan without these steps is one stage.

    sum      the kernel copies x to y; then y is summed
    start    the same, but the sum is only begun; y belongs to the group until it is awaited
    wait     x has been begun; before the kernel copies it to y, the sum is awaited
    moments  the kernel makes y of the moments of this rank's part; then y is summed
    agree    the kernel writes this rank's part of the loss; then it is summed, and all ranks
             learn whether one of them has met bad data

All ranks must come to the same collective steps in the same order, although their shapes, and so
their plans, may differ.  Each such step therefore has a number, its ordinal, which the model alone
decides, and all of them update `RANKS`, so that no order of the steps of a plan changes theirs.

A rank that meets bad data computes no further, but takes part in all sums that follow, with zeros,
until all agree.  Then all ranks raise the same error, which names the rank, and nothing is left
that somebody waits for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import GroupError
from engine.distributed.group import PendingSum, RankGroup
from engine.plan.context import STATUS
from engine.plan.plan import Buffer, Plan
from engine.plan.words import Words

# Ports of a plan with collective steps: the words ORDINAL; what the loss of this rank's batch
# counts in the joined batch's loss; this rank's part of the samples of the joined batch, in
# double; and the same in the type of the loss.
RANKS, SHARE, SAMPLES, PART = "#ranks", "#share", "#samples", "#part"

ORDINAL = Words("ranks", ordinal="the number of the last collective step that has run")

Kind = Literal["sum", "start", "wait", "moments", "agree", ""]
# Templates of kernels; the second parameter of the first is its kind, one of REDUCTIONS.  All write
# what is summed as argument 1, and have the ordinal as their last number.
REDUCE, MOMENTS, AGREE = "all_reduce", "reduce_moments", "agree"
KINDS = get_args(Kind)[:-1]
REDUCTIONS = KINDS[:3]


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective step.

    step: its number in the plan.  ordinal: its number among the collective steps of the model.
    buffer: the number of the buffer that is summed: what the step writes, or what is awaited.
    """

    step: int
    kind: Kind
    buffer: int
    ordinal: int


def list_collectives(plan: Plan) -> tuple[Collective, ...]:
    """Return the collective steps of a plan, in order; stripped plan files have none.

    Of a plan that breaks a rule, those that are malformed are of kind "" and buffer -1.
    """
    kinds: dict[str, Any] = {}
    for kernel in plan.kernels:
        params = kernel.spec.params
        if kernel.spec.template in (AGREE, MOMENTS):
            kinds[kernel.symbol] = "agree" if kernel.spec.template == AGREE else "moments"
        elif kernel.spec.template == REDUCE:
            is_known = len(params) > 1 and params[1] in REDUCTIONS
            kinds[kernel.symbol] = params[1] if is_known else ""
    steps = []
    for n, step in enumerate(plan.steps):
        if step.kernel in kinds:
            kind, args = kinds[step.kernel], step.args
            at = 0 if kind == "wait" else 1
            known = kind and len(args) > at and args[at].buffer >= 0 and step.consts
            ordinal = step.consts[-1] if known else 0
            buffer = args[at].buffer if known else -1
            steps.append(Collective(n, kind if known else "", buffer, int(ordinal)))
    return tuple(steps)


def find_in_place(plan: Plan) -> frozenset[int]:
    """Return the collective steps that find what they are to copy where it is to be; they copy
    nothing.

    Their number of elements, which is the first of their numbers, is then 0 for the kernel.
    """
    steps = set()
    for each in list_collectives(plan):
        x, y = (plan.buffers[arg.buffer] for arg in plan.steps[each.step].args[:2])
        if each.kind in REDUCTIONS and (x.region, x.offset) == (y.region, y.offset):
            steps.add(each.step)
    return frozenset(steps)


class Sums:
    """The sums at the collective steps of a program.

    stages: for every run of steps between them, the first step and the number of steps.
    """

    def __init__(self, plan: Plan, found: tuple[Collective, ...], group: RankGroup) -> None:
        """Start with no sums.

        found: the collective steps of the plan, at least one.
        """
        self._group = group
        self._before = {each.step: each for each in found if each.kind == "wait"}
        self._after = {each.step: each for each in found if each.kind != "wait"}
        self._buffers = {each.step: plan.buffers[each.buffer] for each in found}
        ends = {0, len(plan.steps), *self._before, *(step + 1 for step in self._after)}
        places = sorted(ends)
        self.stages = [(a, b - a) for a, b in pairwise(places)]
        self._pending: dict[tuple[str, int], PendingSum] = {}

    def run(
        self,
        units: Iterable[tuple[int, int]],
        native: Callable[[int, int], None],
        memory: Callable[[Buffer], Array],
        status: Array,
    ) -> Iterator[int]:
        """Run the steps of a plan; yields before each unit the number of steps that are done.

        units: runs of steps, which do not continue past the end of a stage.
        native: runs some steps of the program, given the first one and how many.
        memory: the bytes of a buffer as an array.
        status: the status words of the program.

        Raises:
            RankError: a rank has met bad data before all agreed.
            GroupError: a rank has ended, or does not answer.
        """
        try:
            for first, count in units:
                yield first
                awaited = self._before.get(first)
                if awaited is not None:
                    self._pending.pop(self._place(awaited)).wait()
                if not status["kind"][0]:
                    native(first, count)
                each = self._after.get(first + count - 1)
                if each is not None:
                    self._sum(each, memory(self._buffers[each.step]), status)
        finally:
            self._settle()

    def _place(self, each: Collective) -> tuple[str, int]:
        """Return the bytes that a sum is of."""
        buffer = self._buffers[each.step]
        return buffer.region, buffer.offset

    def _sum(self, each: Collective, array: Array, status: Array) -> None:
        """Do the work that follows a collective step."""
        flat = array.reshape(-1)
        if status["kind"][0]:
            flat[...] = 0
        if each.kind == "start":
            self._pending[self._place(each)] = self._group.start_sum(flat)
        elif each.kind == "agree":
            self._agree(flat, status)
        else:
            self._group.sum(flat)

    def _agree(self, loss: Array, status: Array) -> None:
        """Sum the loss, and find out whether a rank has met bad data.

        Raises:
            RankError: one has; its `words` come from the status of the first such rank.
        """
        told = np.zeros(loss.size + 1, np.float64)
        told[:-1], told[-1] = loss, bool(status["kind"][0])
        self._group.sum(told)
        loss[...] = told[:-1]
        if told[-1]:
            words = np.zeros((self._group.size, STATUS.size), np.int64)
            words[self._group.rank] = status.view(np.int64)
            flat = words.reshape(-1)
            self._group.sum(flat)
            rank = int(np.flatnonzero(words[:, 0])[0])
            raise RankError(rank, tuple(map(int, words[rank])))

    def _settle(self) -> None:
        """Wait for all sums that are still under way: their bytes belong to the group till then."""
        pending, self._pending = list(self._pending.values()), {}
        for each in pending:
            with contextlib.suppress(GroupError):  # the error that ends the run says so already
                each.wait()


class RankError(Exception):
    """A rank has met bad data; `Program` makes the error that users see of it.

    rank: the first one that has.  words: its status, in the order of STATUS of context.py.
    """

    def __init__(self, rank: int, words: tuple[int, ...]) -> None:
        super().__init__(rank, words)
        self.rank, self.words = rank, words
