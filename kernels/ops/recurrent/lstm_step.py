"""One step of an LSTM, whose threads share the hidden units and not the rows of the batch.

Of few rows a step is the time to read R, and a thread that has no row has nothing to do in `lstm`.
Here each thread makes all gates of its units, for which it reads its rows of R alone: half as much
with two threads.  The next step needs the units of all threads, so every step is a call of its own,
after which they meet; h and c go from call to call.
"""

from __future__ import annotations

from engine.base.element_types import ITEMSIZE
from engine.kernels.machine.target import Target
from engine.kernels.ops.recurrent import cells as cells_
from engine.kernels.ops.recurrent.lstm import PEEPHOLES
from engine.kernels.ops.recurrent.recurrence import (
    LENS,
    SIGMOID,
    TANH,
    WALK,
    WALK_WORDS,
    WalkReach,
    product,
    row_at,
    state_at,
    time_at,
    y_at,
)
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    Body,
    Native,
    imax,
    imin,
    kernel,
    off,
    share,
    udiv,
)

# Of each state, and of what is kept of a step.
_NUMBERS = "(last - first) * batch * hidden"


def _reach(c: KernelCall) -> Reach:
    w = WalkReach(c)
    return {
        "gates": 4 * w.rows, "h0": w.states, "c0": w.states, "y": w.y if c.has_y else 0,
        "h": w.states, "c": w.states, "cells": w.rows if c.has_cells else 0,
    }  # fmt: skip


def _products(c: KernelCall) -> int:
    return 4 * int((c.last - c.first) * c.batch * c.hidden * c.hidden)


@kernel(
    f"""
    gates: update T[...]   panels: T[last, hidden, 4 * hidden] if first < last
    {LENS}   h0, c0: T[...]   {PEEPHOLES}   y, h, c, cells: out T[...]
    has_y, has_cells, step: i64
    {WALK} and step < steps and hidden % tile_columns == 0
    """,
    words={"g": WALK_WORDS},
    reach=_reach,
    multiply_adds=_products,
    touches={"gates": f"4 * {_NUMBERS}", "y": _NUMBERS, "cells": _NUMBERS},
    f=(SIGMOID,),
    g=(TANH,),
    h=(TANH,),
)
def lstm_step(target: Target, T: str, f: str, g: str, h: str, peephole: int, couple: int) -> Body:
    """Run step number `step` of `lstm`: h, c of h0, c0, and its rows of gates, y and cells.

    It has the operands of `lstm`.  Threads share whole panels of units: sums are the same whatever
    their number.
    """
    run, times = cells_.lstm(T, f, g, h, peephole, couple), product(target, T, "")
    copy, zero = Native("copy", (T,)), Native("zero", (T,))
    width = target.nv * target.lanes(ITEMSIZE[T])

    def body(
        gates, panels, lens, h0, c0, p, y, h, c, cells, has_y, has_cells, step, g, tid, nthreads
    ):
        n, batch = g.hidden, g.batch
        each = udiv(n, width)  # panels of one gate
        begin, end = share((g.last - g.first) * each, tid, nthreads)
        for d in range(g.first, g.last):
            before, t = (d - g.first) * each, time_at(g, d, step)
            # The units [u, u + units) of this direction are of this thread.
            u = imin(imax(begin - before, 0), each) * width
            units = imin(imax(end - before, 0), each) * width - u
            longest = 0
            for b in range(batch):
                longest = imax(longest, lens[b])
            if units > 0 and t < longest:
                a, now = off(h0, state_at(g, d, 0) * n), off(gates, row_at(g, d, t, 0) * 4 * n + u)
                for q in range(4):
                    into, part = off(now, q * n), off(panels, (d * 4 * n + q * n + u) * n)
                    lda, ldc = g.state_b * n, g.row_b * 4 * n
                    times(a, lda, part, into, ldc, part, batch, units, n, g, ACCUMULATE, part)
            for b in range(batch if units > 0 else 0):
                at, i = state_at(g, d, b) * n + u, row_at(g, d, t, b)
                x, kept = off(gates, i * 4 * n + u), off(cells, i * n + u)
                into, peep = off(y, y_at(g, d, t, b) * n + u), off(p, d * 3 * n + u)
                new_h, new_c = off(h, at), off(c, at)
                copy(new_c, off(c0, at), units)
                if t < lens[b]:
                    run(
                        i=x, o=off(x, n), f=off(x, 2 * n), c=off(x, 3 * n), s=new_c,
                        pi=peep, po=off(peep, n), pf=off(peep, 2 * n), y=new_h, length=units,
                    )  # fmt: skip
                    if has_y != 0:
                        copy(into, new_h, units)
                    if has_cells != 0:
                        copy(kept, new_c, units)
                else:
                    copy(new_h, off(h0, at), units)
                    for q in range(4):
                        zero(off(x, q * n), units)
                    if has_y != 0:
                        zero(into, units)
                    if has_cells != 0:
                        zero(kept, units)

    return body
