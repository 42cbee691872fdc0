"""Update kernels: one loop over the parameters of a node, and a formula for each optimizer.

An elementwise optimizer is one formula.  `update_kernel` makes a kernel of it:

    @update_kernel(states=("m",), numbers={"mu": "momentum"})
    def heavy_ball(target: Target, T: str) -> Formula:
        '''m = mu m + g;  p = p - r m'''
        return Formula("m = mu * m + g; p = p - rate * m")

The text has the statements of a row program (`vocabulary/expression.py`).  It reads an element of
the parameter p, of its gradient g, which is clipped already, and of the states; the numbers of the
call; and `rate`, the learning rate times `lr_scale`.  It assigns p and the states.  Once a call
and in double, `Formula.values` computes the values that depend on the step alone.

States do not stay below the least normal number.  A mean that is multiplied by 0.9 a step, of a
parameter whose gradients have ended (a row of an embedding, a dead ReLU), is below it after some
800 steps, and then stays at 5 times the least subnormal number, which 0.9 rounds to itself.  Many
CPUs take a hundred cycles for each vector with such a number, so it is stored as 0.  The
parameter is updated with the number itself.

The loop is the same for all: it skips the update where the signal is false, shares the elements of
all ranges among threads, multiplies gradients by the factor of clipping, and passes over rows.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.base.element_types import ITEMSIZE, NUMPY
from engine.kernels.loops.blocks import Blocks
from engine.kernels.machine.target import Target
from engine.kernels.ops.optimizer.clipping import LINE
from engine.kernels.ops.optimizer.ranges import TABLE, TABLES, part, ranges_reach
from engine.kernels.vocabulary.expression import VALUE
from engine.kernels.vocabulary.kernel import (
    Body,
    Inline,
    Intrinsic,
    Numbers,
    Parameters,
    Template,
    Tile,
    imin,
    inline,
    kernel,
    off,
    share_blocks,
    udiv,
)
from engine.kernels.vocabulary.row_program import Program, loop

# Threads share `total` elements in blocks of `block`.
_COMMON = f"""
    lr: f32[1]   step: i64[{{steps}}]   p: update T[...]   g: T[...]   clip: f64[1] if clips
    signal: b1[1] if signalled   {TABLE}
"""
_COUNTS = "count, total: i64   block: i64 where block >= 1   clips, signalled: i64   scale: f64"


# --- for bodies of all optimizers


@inline
def power(x, n):
    """Return x^n for n >= 0, by repeated squaring."""
    out = 1.0
    while n > 0:
        if n & 1:
            out *= x
        x *= x
        n >>= 1
    return out


@inline
def is_due(call):
    """Return whether parameters may change: there is no signal, or it is true."""
    return call.signalled == 0 or call.signal[0] != 0


@inline
def factor_of(call):
    """Return the factor of the gradients."""
    return call.clip[0] if call.clips != 0 else 1.0


# --- formulas


@inline
def rate_alone(call, rate):
    """Return the values of a text without a head."""
    return (rate,)


@inline
def everything(found, g, k, i, end):
    """Return the result of `stretch` for kernels that pass over nothing."""
    return end, True


def stretch(T: str, *, keeps_nan: bool = False) -> Inline:
    """Return an inline function stretch(found, g, k, i, end) of elements of a range, i < end.

    It returns where the row of element i ends, `end` at most, and whether the row is updated: it
    has a gradient that is not 0, or, with `keeps_nan`, the factor k is NaN.  A range without rows
    is one row that is updated.
    """
    count = loop(T, "g[] -> sum(where(g == 0.0, 0.0, 1.0))")

    @inline
    def run(found, g, k, i, end):
        row = found.row
        if row == 0:
            return end, True
        begin = found.begin + udiv(i - found.begin, row) * row
        stop = imin(begin + row, found.begin + found.size)
        # The first element decides for most rows; only a row that begins with 0 is read.
        moves = g[begin] != 0
        if not moves:
            moves = count(off(g, begin), stop - begin) != 0
        # True for NaN alone, as k is never negative: then every row becomes NaN, so that it shows.
        if keeps_nan and not k >= 0.0:
            moves = True
        return imin(stop, end), moves

    return run


@dataclass(frozen=True, slots=True)
class Formula:
    """The step of an optimizer.

    text: the statements of one element, after `names ->`, the names of `values`; "rate ->" is left
        out.
    values: an inline function values(call, rate) that returns the values of these names, a tuple.
    row_of: `stretch(T)`, if rows without a gradient stay as they are.
    """

    text: str
    values: Inline = rate_alone
    row_of: Inline = everything

    def rows(self, T: str, states: Sequence[str], numbers: Sequence[str]) -> Intrinsic:
        """Return the intrinsic run(call, k, values, i, n) that updates elements i..i + n.

        Raises:
            ValueError: the text breaks the grammar, or leaves p or a state as it is.
        """
        head, arrow, text = self.text.partition("->")
        if not arrow:
            head, text = "rate", self.text
        vectors = ("p", "g", *states)
        assigned = {m[1] for s in text.split(";") if (m := VALUE.fullmatch(" ".join(s.split())))}
        written = (*states, "p")
        if missing := [name for name in written if name not in assigned]:
            raise ValueError(f"{' '.join(text.split())!r} does not assign {', '.join(missing)}")
        ins = [*(f"{name}[]" for name in vectors), "k", head, *numbers]
        least = float(np.finfo(NUMPY[T]).smallest_normal)
        kept = [f"{name} = where(abs({name}) < {least}, 0.0, {name})" for name in states]
        statements = ["g = g * k", text, *kept, *(f"{name}[]" for name in written)]
        program = Program.of(f"{' '.join(ins)} -> {'; '.join(statements)}", T)
        places = tuple(map(vectors.index, written))
        return Intrinsic("update_rows", (program, vectors, places, tuple(numbers)))


# --- kernels


@dataclass(frozen=True, slots=True)
class UpdateKernel:
    """The kernel of a formula, and where the lowering of a node finds its arguments.

    states: its states, in the optimizer's order; "u if centered" is there if the compile-time
        parameter `centered` is not 0.
    numbers: the attributes of the node that its numbers are, by number.
    """

    template: Template
    states: tuple[str, ...]
    numbers: Mapping[str, str]

    @property
    def flags(self) -> tuple[str, ...]:
        """The compile-time parameters after the element type."""
        return tuple(inspect.signature(self.template.build).parameters)[2:]

    def list_present(self, params: Parameters) -> list[str]:
        """Return the states of the kernel with these parameters, the element type first."""
        conditions = (state.partition(" if ") for state in self.states)
        on = dict(zip(self.flags, params[1:], strict=True))
        return [name for name, _, condition in conditions if not condition or on[condition]]


def update_kernel(
    *,
    states: Sequence[str] = (),
    numbers: Mapping[str, str],
    integers: str = "",
    has_step: bool = True,
    unit: int = LINE,
    **ranges: Any,
) -> Callable[[Callable[..., Formula]], UpdateKernel]:
    """Declare the update kernel of a formula, a function of the target and of parameters.

    states, numbers: as in `UpdateKernel`.  Numbers are f64.
    integers: numbers of the call that its lowering gives, i64.
    has_step: whether the kernel reads the count of steps.
    unit: the elements that it looks at together, at least.
    ranges: what parameters may be, see `Template`; each is 0 or 1 if nothing is said.
    """
    operands = "   ".join(
        f"{name}: update T[...]{f' if {condition}' if condition else ''}"
        for name, _, condition in (state.partition(" if ") for state in states)
    )
    signature = f"""
    {_COMMON.format(steps=int(has_step))}   {operands}   {_COUNTS}   {", ".join(numbers)}: f64
    {f"{integers}: i64" if integers else ""}
    """

    def declare(formula: Callable[..., Formula]) -> UpdateKernel:
        @functools.wraps(formula)
        def build(target: Target, T: str, *params: int) -> Body:
            step = formula(target, T, *params)
            run = step.rows(T, made.list_present((T, *params)), [*numbers])
            values, row_of = step.values, step.row_of

            def body(call, tid, nthreads):
                if is_due(call):
                    k = factor_of(call)
                    # Once a call and in double: in float, 1 - beta^t of small t loses digits.
                    own = values(call, call.lr[0] * call.scale)
                    first, last = share_blocks(call.total, call.block, tid, nthreads)
                    at = 0
                    for r in range(call.count):
                        span = off(call.ranges.ranges, r)
                        i, n = part(call.ranges, r, at, first, last)
                        at += span.size
                        end = i + n
                        while i < end:
                            stop, moves = row_of(span, call.g, k, i, end)
                            if moves:
                                run(call, k, own, i, stop - i)
                            i = stop

            return body

        declared = kernel(
            signature,
            words=TABLES,
            reach=ranges_reach,
            tiling=_cut_blocks(lambda params: made.list_present(params), states, unit),
            **ranges,
        )
        made = UpdateKernel(declared(build), tuple(states), dict(numbers))
        return made

    return declare


def _cut_blocks(
    present: Callable[[Parameters], list[str]], states: Sequence[str], unit: int
) -> Tile:
    """Return how a kernel of the common signature is cut: where it has one range.

    present: the states that a call has, of all `states`.
    """

    def tiling(params: Parameters, numbers: Numbers) -> Blocks | None:
        count, total = map(int, numbers[:2])
        step = unit * ITEMSIZE[str(params[0])]
        there = present(params)
        moves = [step * (state.partition(" if ")[0] in there) for state in states]
        if count != 1:
            return None
        steps = (0, 0, step, step, 0, 0, 0, *moves)
        return Blocks(-(-total // unit), steps, numbered=True, unit=unit, at=2, per=unit)

    return tiling
