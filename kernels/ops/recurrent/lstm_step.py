"""One step of an LSTM, whose threads share the hidden units and not the rows of the batch.

Of few rows a step is the time to read R, and a thread that has no row has nothing to do in `lstm`.
Here each thread makes all gates of its units, for which it reads its rows of R alone: half as much
with two threads.  The next step needs the units of all threads, so every step is a call of its own,
after which they meet; h and c go from call to call.

Backward the sum over all gates comes first, and then the cells: so of what other threads have made
a thread reads the gradients of the gates alone.
"""

from __future__ import annotations

from engine.base.element_types import ITEMSIZE
from engine.kernels.machine.target import Target
from engine.kernels.ops.recurrent import cells as cells_
from engine.kernels.ops.recurrent.lstm import PEEPHOLES, adjoint, reach_adjoint, reach_cells
from engine.kernels.ops.recurrent.recurrence import (
    LENS,
    SIGMOID,
    SIGMOID_SLOPE,
    TANH,
    TANH_SLOPE,
    WALK,
    WALK_WORDS,
    dy_at,
    is_first,
    longest,
    product,
    row_at,
    state_at,
    time_at,
    time_before,
    y_at,
)
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    Body,
    Inline,
    Intrinsic,
    imax,
    imin,
    inline,
    kernel,
    off,
    pick,
    share,
    udiv,
)

# Of each state, and of what is kept of a step.
_NUMBERS = "(last - first) * batch * hidden"


def _products(c: KernelCall) -> int:
    return 4 * int((c.last - c.first) * c.batch * c.hidden * c.hidden)


def share_units(target: Target, T: str) -> Inline:
    """Return an inline function: units(g, d, tid, nthreads), this thread's first unit of direction
    d and the number of its units; it has whole panels.
    """
    width = target.nv * target.lanes(ITEMSIZE[T])

    @inline
    def run(g, d, tid, nthreads):
        each = udiv(g.hidden, width)
        begin, end = share((g.last - g.first) * each, tid, nthreads)
        before = (d - g.first) * each
        first = imin(imax(begin - before, 0), each) * width
        return first, imin(imax(end - before, 0), each) * width - first

    return run


@kernel(
    f"""
    gates: update T[...]   panels: T[last, hidden, 4 * hidden] if first < last
    {LENS}   h0, c0: T[...]   {PEEPHOLES}   y, h, c, cells: out T[...]
    has_y, has_cells, step: i64
    {WALK} and step < steps and hidden % tile_columns == 0
    """,
    words={"g": WALK_WORDS},
    reach=reach_cells,
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
    copy, zero = Intrinsic("copy", (T,)), Intrinsic("zero", (T,))
    units_of = share_units(target, T)

    def body(
        gates, panels, lens, h0, c0, p, y, h, c, cells, has_y, has_cells, step, g, tid, nthreads
    ):
        n, batch = g.hidden, g.batch
        for d in range(g.first, g.last):
            t = time_at(g, d, step)
            u, units = units_of(g, d, tid, nthreads)
            # Forward: a += R h', a product for each gate: its rows of R are apart from the others'.
            # h' is read from h0, which nobody writes at this step, whatever threads are ahead.
            if units > 0 and t < longest(lens, 0, batch):
                a, now = off(h0, state_at(g, d, 0) * n), off(gates, row_at(g, d, t, 0) * 4 * n + u)
                for i in range(4):
                    q = 3 - i if t & 1 != 0 else i  # to and fro, as the panels of each gate
                    into, part = off(now, q * n), off(panels, (d * 4 * n + q * n + u) * n)
                    lda, ldc = g.state_b * n, g.row_b * 4 * n
                    times(a, lda, part, into, ldc, part, batch, units, n, g, ACCUMULATE, part, t)
            for b in range(batch if units > 0 else 0):
                at, i = state_at(g, d, b) * n + u, row_at(g, d, t, b)
                x, kept = off(gates, i * 4 * n + u), off(cells, i * n + u)
                into, peep = off(y, y_at(g, d, t, b) * n + u), off(p, d * 3 * n + u)
                new_h, new_c = off(h, at), off(c, at)
                # The cell updates c in place; c0 stays, as rows that wait read it again.
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


def _grad_reach(c: KernelCall) -> Reach:
    return reach_adjoint(c, "dh0", "dc0")


@kernel(
    f"""
    gates, cells, y: T[...]   panels: T[last, 4 * hidden, hidden] if first < last
    {LENS}   h0, c0: T[...]   {PEEPHOLES}   dy, dh0, dc0: T[...]
    dgates: out T[...] updates if step   past, dh, dc: out T[...]   dp: update T[...]   step: i64
    {WALK} and step <= steps and hidden % tile_columns == 0
    """,
    words={"g": WALK_WORDS},
    reach=_grad_reach,
    multiply_adds=lambda c: _products(c) if c.step else 0,
    touches={
        "gates": f"4 * {_NUMBERS}",
        "dgates": f"8 * {_NUMBERS}",
        **dict.fromkeys(("cells", "y", "dy", "past"), _NUMBERS),
    },
    h=(TANH,),
    slope_f=(SIGMOID_SLOPE,),
    slope_g=(TANH_SLOPE,),
    slope_h=(TANH_SLOPE,),
)
def lstm_grad_step(
    target: Target,
    T: str,
    h: str,
    slope_f: str,
    slope_g: str,
    slope_h: str,
    peephole: int,
    couple: int,
) -> Body:
    """Run step number `step` of `lstm_grad`: dh, dc of dh0, dc0, and its rows of dgates and past.

    Step number `steps` only adds to dh what the gates of the last one have left.  It has the
    operands of `lstm_grad`, but dp must be 0 before step 0.
    """
    cell = adjoint(T, h, slope_f, slope_g, slope_h, peephole, couple)
    times, copy, zero = product(target, T, ""), Intrinsic("copy", (T,)), Intrinsic("zero", (T,))
    units_of = share_units(target, T)

    def body(
        gates, cells, y, panels, lens, h0, c0, p, dy, dh0, dc0, dgates, past, dh, dc, dp, step, g,
        tid, nthreads,
    ):  # fmt: skip
        n, batch = g.hidden, g.batch
        for d in range(g.first, g.last):
            u, units = units_of(g, d, tid, nthreads)
            for b in range(batch if units > 0 else 0):
                at = state_at(g, d, b) * n + u
                copy(off(dh, at), off(dh0, at), units)
                copy(off(dc, at), off(dc0, at), units)
            # Forward: a_t = W x_t + R h_(t-1) + b, so dh_(t-1) += R^T da_t.  Steps run back: the
            # one before this was at a later time, and its da is there as all threads have met.
            later = time_at(g, d, g.steps - step)
            if units > 0 and step > 0 and later < longest(lens, 0, batch):
                a, into = off(dgates, row_at(g, d, later, 0) * 4 * n), state_at(g, d, 0) * n + u
                part, lda = off(panels, (d * n + u) * 4 * n), g.row_b * 4 * n
                ldc, to = g.state_b * n, off(dh, into)
                times(a, lda, part, to, ldc, part, batch, units, 4 * n, g, ACCUMULATE, part, later)
            t = time_at(g, d, g.steps - 1 - step)
            # From here on a thread reads of its own units alone: the cells are elementwise.
            for b in range(batch if units > 0 and step < g.steps else 0):
                i, at = row_at(g, d, t, b), state_at(g, d, b) * n + u
                da, kept = off(dgates, i * 4 * n + u), off(past, i * n + u)
                if t < lens[b]:
                    e, first = time_before(g, d, t), is_first(g, d, t, lens[b])
                    h_at, c_at = y_at(g, d, e, b) * n + u, row_at(g, d, e, b) * n + u
                    copy(kept, pick(first, off(h0, at), off(y, h_at)), units)
                    cell(
                        off(gates, i * 4 * n + u),
                        off(cells, i * n + u),
                        pick(first, off(c0, at), off(cells, c_at)),
                        off(dy, dy_at(g, d, t, b) * n + u),
                        off(dh, at),
                        off(dc, at),
                        off(p, d * 3 * n + u),
                        da,
                        off(dp, state_at(g, d, b) * 3 * n + u),
                        n,
                        units,
                    )
                else:
                    zero(kept, units)
                    for q in range(4):
                        zero(off(da, q * n), units)

    return body
