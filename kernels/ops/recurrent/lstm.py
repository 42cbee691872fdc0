"""The LSTM and RNN kernels: a recurrence and its adjoint."""

from __future__ import annotations

from engine.kernels.machine.target import Target
from engine.kernels.ops.recurrent import cells as cells_
from engine.kernels.ops.recurrent.recurrence import (
    LENS,
    RELU,
    RELU_SLOPE,
    SIGMOID,
    SIGMOID_SLOPE,
    TANH,
    TANH_SLOPE,
    WALK,
    WALK_WORDS,
    WalkReach,
    at_direction,
    chooser,
    count_call_scratch,
    count_products,
    dy_at,
    fill,
    is_first,
    longest,
    mover,
    part,
    place,
    product,
    reader,
    row_at,
    scratch,
    state_at,
    state_before,
    time_at,
    time_before,
    write_panels,
    writer,
    y_at,
)
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    Body,
    Inline,
    Intrinsic,
    inline,
    kernel,
    off,
)

# P of an LSTM, which only a kernel with peepholes reads.
PEEPHOLES = "p: T[last, 3, hidden] if peephole and first < last"


def reach_cells(c: KernelCall) -> dict[str, int]:
    """Return the reach of an LSTM into all but scratch memory."""
    w = WalkReach(c)
    return {
        "gates": 4 * w.rows, "h0": w.states, "c0": w.states, "y": w.y if c.has_y else 0,
        "h": w.states, "c": w.states, "cells": w.rows if c.has_cells else 0,
    }  # fmt: skip


def reach_adjoint(c: KernelCall, dh: str, dc: str) -> dict[str, int]:
    """Return the reach of an LSTM's adjoint into all but scratch memory.

    dh, dc: the names of the operands with the gradients of the states that it begins with.
    """
    w, has_peepholes = WalkReach(c), c.flag(5)
    return {
        "gates": 4 * w.rows, "cells": w.rows, "y": w.y, "h0": w.states, "c0": w.states,
        "dy": w.dy, dh: w.states, dc: w.states, "dgates": 4 * w.rows, "past": w.rows,
        "dh": w.states, "dc": w.states, "dp": 3 * w.states if has_peepholes else 0,
    }  # fmt: skip


def _lstm_reach(c: KernelCall) -> Reach:
    return {**reach_cells(c), "work": count_call_scratch(c, "lstm", 6)}


@kernel(
    f"""
    gates: update G[...]   panels: {write_panels("hidden", "4 * hidden")}
    {LENS}   h0, c0: T[...]   {PEEPHOLES}
    y: out Y[...]   h, c: out T[...]   cells: out C[...]   work: scratch T[...]
    has_y, has_cells: i64   {WALK}
    """,
    words={"g": WALK_WORDS},
    reach=_lstm_reach,
    multiply_adds=count_products("gates"),
    f=(SIGMOID,),
    g=(TANH,),
    h=(TANH,),
)
def lstm(
    target: Target,
    T: str,
    f: str,
    g: str,
    h: str,
    peephole: int,
    couple: int,
    G: str = "",
    C: str = "",
    Y: str = "",
    P: str = "",
) -> Body:
    """Run all time steps of an LSTM.

    gates: by rows, on entry the products of X, then i, o, f, c, and 0 after a row's length; panels:
    R^T; h, c: the states, from h0, c0 to the last; y, cells: all h and c, or none.  G, C, Y: how
    gates, cells and y are stored, T if empty; the states that steps pass on are of T.  P: as of
    `product`.
    """
    G, C, Y = G or T, C or T, Y or T
    run = cells_.lstm(T, f, g, h, peephole, couple)
    times, panels_at, room = product(target, T, P), at_direction(target, T, P), scratch("lstm", P)
    step, widen, write = place(T, G), reader(T, G), writer(T, G)
    keep_y, keep_cells, start = mover(Y, T), mover(C, T), fill(T)
    zero, zero_y, zero_cells = (Intrinsic("zero", (kind,)) for kind in (G, Y, C))

    @inline
    def cell(a, c, p, h, n):
        """One step of a row: gates a and cell state c in place, h the new state."""
        o, f, u = off(a, n), off(a, 2 * n), off(a, 3 * n)
        po, pf = off(p, n), off(p, 2 * n)  # ignored where there are no peepholes
        run(i=a, o=o, f=f, c=u, s=c, pi=p, po=po, pf=pf, y=h, length=n)

    def body(
        gates, panels, lens, h0, c0, p, y, h, c, cells, work, has_y, has_cells, g, tid, nthreads
    ):
        n = g.hidden
        mine, left = room(work, g, tid)
        for d in range(g.first, g.last):
            r0, r1 = part(g, d, tid, nthreads)
            # h and c are walked in place: after the last step they are the outputs.
            start(h, h0, g, d, r0, r1)
            start(c, c0, g, d, r0, r1)
            last, b_at = longest(lens, r0, r1), panels_at(panels, d, n, 4 * n)
            for s in range(g.steps if r0 < r1 else 0):
                t = time_at(g, d, s)
                now, ldc = step(gates, g, d, t, r0, 4 * n, mine)
                # Beyond the longest row of this thread the product would be of padding.
                if t < last:
                    for b in range(r0, r1):
                        widen(gates, row_at(g, d, t, b) * 4 * n, off(now, (b - r0) * ldc), 4 * n)
                    a = off(h, state_at(g, d, r0) * n)
                    lda, rows = g.state_b * n, r1 - r0
                    times(a, lda, b_at, now, ldc, b_at, rows, 4 * n, n, g, ACCUMULATE, left, t)
                # The products of all rows at once above; the cells row by row.
                for b in range(r0, r1):
                    i, at = row_at(g, d, t, b), state_at(g, d, b) * n
                    gate, into = off(now, (b - r0) * ldc), off(y, y_at(g, d, t, b) * n)
                    if t < lens[b]:
                        cell(gate, off(c, at), off(p, d * 3 * n), off(h, at), n)
                        write(gates, i * 4 * n, gate, 4 * n)
                        if has_y != 0:
                            keep_y(into, off(h, at), n)
                        if has_cells != 0:
                            keep_cells(off(cells, i * n), off(c, at), n)
                    else:
                        zero(off(gates, i * 4 * n), 4 * n)
                        if has_y != 0:
                            zero_y(into, n)
                        if has_cells != 0:
                            zero_cells(off(cells, i * n), n)

    return body


def adjoint(
    T: str, h: str, slope_f: str, slope_g: str, slope_h: str, peephole: int, couple: int
) -> Inline:
    """Return an inline function: the adjoint of one step of a row, peepholes included.

    n: the hidden units.  length: those that it is computed for, from where the operands begin.
    """
    run = cells_.lstm_grad(T, h, slope_f, slope_g, slope_h, peephole, couple)
    add = cells_.add_product(T)

    @inline
    def plain(a, s, old, dy, dh, ds, p, da, dp, n, length):
        o, f, u = off(a, n), off(a, 2 * n), off(a, 3 * n)
        do, df, du = off(da, n), off(da, 2 * n), off(da, 3 * n)
        po, pf = off(p, n), off(p, 2 * n)  # ignored where there are no peepholes
        # dh is 0 afterwards: the product of the gates' gradients with R^T adds to it, for the
        # step before.  That step's dc is what is left in ds.
        run(
            i=a, o=o, f=f, c=u, s=s, b=old, dy=dy, dh=dh, ds=ds, pi=p, po=po, pf=pf,
            di=da, do=do, df=df, dc=du, zero=dh, length=length,
        )  # fmt: skip

    @inline
    def peeping(a, s, old, dy, dh, ds, p, da, dp, n, length):
        plain(a, s, old, dy, dh, ds, p, da, dp, n, length)
        # Forward: i and f saw P_i c' and P_f c' of the state before the step, o saw P_o c of the
        # new one; so dP_i = di c', dP_f = df c', dP_o = do c.
        dpo, dpf = off(dp, n), off(dp, 2 * n)
        add(x=dp, a=da, b=old, length=length)
        add(x=dpo, a=off(da, n), b=s, length=length)
        add(x=dpf, a=off(da, 2 * n), b=old, length=length)

    return peeping if peephole else plain


def _lstm_grad_reach(c: KernelCall) -> Reach:
    work = count_call_scratch(c, "lstm_grad", 7)
    return {**reach_adjoint(c, "dhn", "dcn"), "work": work}


@kernel(
    f"""
    gates: G[...]   cells: C[...]   y: Y[...]
    panels: {write_panels("4 * hidden", "hidden")}
    {LENS}   h0, c0: T[...]   {PEEPHOLES}   dy: D[...]   dhn, dcn: T[...]
    dgates: out G[...] may alias gates   past: out G[...]   dh, dc, dp: out T[...]
    work: scratch T[...]   {WALK}
    """,
    words={"g": WALK_WORDS},
    reach=_lstm_grad_reach,
    multiply_adds=count_products("dgates"),
    h=(TANH,),
    slope_f=(SIGMOID_SLOPE,),
    slope_g=(TANH_SLOPE,),
    slope_h=(TANH_SLOPE,),
)
def lstm_grad(
    target: Target,
    T: str,
    h: str,
    slope_f: str,
    slope_g: str,
    slope_h: str,
    peephole: int,
    couple: int,
    G: str = "",
    C: str = "",
    Y: str = "",
    D: str = "",
    P: str = "",
) -> Body:
    """The adjoint of `lstm`, from dy, dhn and dcn.

    gates, cells, y: as it left them; panels: R; past: the h before every row; dh, dc: gradients of
    h0, c0; dp: the gradient of p for each state.  G, C, Y, D: how gates, dgates and past, cells, y
    and dy are stored, T if empty; gradients that steps pass on are of T.  P: as of `product`.
    """
    G, C, Y, D = G or T, C or T, Y or T, D or T
    cell = adjoint(T, h, slope_f, slope_g, slope_h, peephole, couple)
    times, panels_at = product(target, T, P), at_direction(target, T, P)
    step, write, start = place(T, G), writer(T, G), fill(T)
    room = scratch("lstm_grad", P)
    gates_of, cells_of, dy_of, before = reader(T, G), reader(T, C), reader(T, D), chooser(T, C)
    h_before = state_before(G, T, Y)
    zero, zero_kept = Intrinsic("zero", (T,)), Intrinsic("zero", (G,))

    def body(
        gates,
        cells,
        y,
        panels,
        lens,
        h0,
        c0,
        p,
        dy,
        dhn,
        dcn,
        dgates,
        past,
        dh,
        dc,
        dp,
        work,
        g,
        tid,
        nthreads,
    ):
        n = g.hidden
        # Scratch of what is not stored as T: the gates' gradients of all rows of a step; of a row
        # its gates, its cell state, the one before, and dy.
        mine, left = room(work, g, tid)
        gate_row = off(mine, 4 * g.batch * n)
        cell_row = off(gate_row, 4 * n)
        old_row = off(cell_row, n)
        dy_row = off(old_row, n)
        for d in range(g.first, g.last):
            r0, r1 = part(g, d, tid, nthreads)
            # Forward walked from the first step to the last; so backward starts with the gradients
            # of the last states and walks back.
            start(dh, dhn, g, d, r0, r1)
            start(dc, dcn, g, d, r0, r1)
            if peephole:
                for b in range(r0, r1):
                    zero(off(dp, state_at(g, d, b) * 3 * n), 3 * n)
            last, b_at = longest(lens, r0, r1), panels_at(panels, d, 4 * n, n)
            for s in range(g.steps if r0 < r1 else 0):
                t = time_at(g, d, g.steps - 1 - s)
                now, lda = step(dgates, g, d, t, r0, 4 * n, mine)
                for b in range(r0, r1):
                    i, at = row_at(g, d, t, b), state_at(g, d, b) * n
                    da = off(now, (b - r0) * lda)
                    if t < lens[b]:
                        # The states before the step: of the step before, or the given ones at a
                        # row's first step.
                        e, first = time_before(g, d, t), is_first(g, d, t, lens[b])
                        h_before(off(past, i * n), y, h0, lens[b], g, d, t, b)
                        cell(
                            gates_of(gates, i * 4 * n, gate_row, 4 * n),
                            cells_of(cells, i * n, cell_row, n),
                            before(first, c0, at, cells, row_at(g, d, e, b) * n, old_row, n),
                            dy_of(dy, dy_at(g, d, t, b) * n, dy_row, n),
                            off(dh, at),
                            off(dc, at),
                            off(p, d * 3 * n),
                            da,
                            off(dp, 3 * at),
                            n,
                            n,
                        )
                        write(dgates, i * 4 * n, da, 4 * n)
                    else:
                        zero_kept(off(past, i * n), n)
                        zero(da, 4 * n)
                        write(dgates, i * 4 * n, da, 4 * n)
                # Forward: a_t = W x_t + R h_(t-1) + b; so dh_(t-1) += R^T da_t, all gates in one
                # product.  dW, dR and db are products over all steps, made afterwards from dgates
                # and past.
                if t < last:
                    to = off(dh, state_at(g, d, r0) * n)
                    ldc, rows = g.state_b * n, r1 - r0
                    times(now, lda, b_at, to, ldc, b_at, rows, n, 4 * n, g, ACCUMULATE, left, t)

    return body


def _rnn_reach(c: KernelCall) -> Reach:
    w = WalkReach(c)
    work = count_call_scratch(c, "rnn", 2)
    y = w.y if c.has_y else 0
    return {"gates": w.rows, "h0": w.states, "y": y, "h": w.states, "work": work}


@kernel(
    f"""
    gates: update T[...]   panels: {write_panels("hidden", "hidden")}
    {LENS}   h0: T[...]   y: out Y[...]   h: out T[...]   work: scratch T[...]
    has_y: i64   {WALK}
    """,
    words={"g": WALK_WORDS},
    reach=_rnn_reach,
    multiply_adds=count_products("gates"),
    f=(TANH, RELU),
)
def rnn(target: Target, T: str, f: str, Y: str = "", P: str = "") -> Body:
    """Run all time steps of an RNN.

    gates: by rows, on entry the products of X, and used up; panels: R^T; h: the state, from h0 to
    the last; y: all h, or none, 0 after a row's length.  Y: how y is stored, T if empty.  P: as of
    `product`.
    """
    Y = Y or T
    cell, times, panels_at = cells_.rnn(T, f), product(target, T, P), at_direction(target, T, P)
    keep_y, zero_y, start = mover(Y, T), Intrinsic("zero", (Y,)), fill(T)
    room = scratch("rnn", P)

    def body(gates, panels, lens, h0, y, h, work, has_y, g, tid, nthreads):
        n = g.hidden
        _, left = room(work, g, tid)
        for d in range(g.first, g.last):
            r0, r1 = part(g, d, tid, nthreads)
            start(h, h0, g, d, r0, r1)
            last, b_at = longest(lens, r0, r1), panels_at(panels, d, n, n)
            for s in range(g.steps if r0 < r1 else 0):
                t = time_at(g, d, s)
                if t < last:
                    a, to = off(h, state_at(g, d, r0) * n), off(gates, row_at(g, d, t, r0) * n)
                    lda, ldc, rows = g.state_b * n, g.row_b * n, r1 - r0
                    times(a, lda, b_at, to, ldc, b_at, rows, n, n, g, ACCUMULATE, left, t)
                for b in range(r0, r1):
                    at, into = off(h, state_at(g, d, b) * n), off(y, y_at(g, d, t, b) * n)
                    # Forward: h = f(a); in place, as a is not needed again: backward reads y alone.
                    if t < lens[b]:
                        cell(off(gates, row_at(g, d, t, b) * n), at, n)
                        if has_y != 0:
                            keep_y(into, at, n)
                    elif has_y != 0:
                        zero_y(into, n)

    return body


def _rnn_grad_reach(c: KernelCall) -> Reach:
    w = WalkReach(c)
    return {
        "y": w.y, "h0": w.states, "dy": w.dy, "dhn": w.states, "dgates": w.rows, "past": w.rows,
        "dh": w.states, "rows": count_call_scratch(c, "rnn_grad", 2),
    }  # fmt: skip


@kernel(
    f"""
    y: Y[...]   panels: {write_panels("hidden", "hidden")}
    {LENS}   h0: T[...]   dy: D[...]   dhn: T[...]   dgates, past: out Y[...]   dh: out T[...]
    rows: scratch T[...]   {WALK}
    """,
    words={"g": WALK_WORDS},
    reach=_rnn_grad_reach,
    multiply_adds=count_products("dgates"),
    slope_f=(TANH_SLOPE, RELU_SLOPE),
)
def rnn_grad(target: Target, T: str, slope_f: str, Y: str = "", D: str = "", P: str = "") -> Body:
    """The adjoint of `rnn`, from dy and dhn.

    y: as it left it; panels: R; past: the h before every row; dh: gradient of h0.  Y, D: how y,
    dgates and past, and dy are stored, T if empty.  P: as of `product`.
    """
    Y, D = Y or T, D or T
    cell, room = cells_.rnn_grad(T, slope_f), scratch("rnn_grad", P)
    times, panels_at = product(target, T, P), at_direction(target, T, P)
    step, write, start = place(T, Y), writer(T, Y), fill(T)
    y_of, dy_of, h_before = reader(T, Y), reader(T, D), state_before(Y, T, Y)
    zero, zero_kept = Intrinsic("zero", (T,)), Intrinsic("zero", (Y,))

    def body(y, panels, lens, h0, dy, dhn, dgates, past, dh, rows, g, tid, nthreads):
        n = g.hidden
        # Scratch of what is not stored as T: the gates' gradients of all rows of a step; of a row
        # its y and dy.
        mine, left = room(rows, g, tid)
        y_row = off(mine, g.batch * n)
        dy_row = off(y_row, n)
        for d in range(g.first, g.last):
            r0, r1 = part(g, d, tid, nthreads)
            start(dh, dhn, g, d, r0, r1)
            last, b_at = longest(lens, r0, r1), panels_at(panels, d, n, n)
            for s in range(g.steps if r0 < r1 else 0):
                t = time_at(g, d, g.steps - 1 - s)
                now, lda = step(dgates, g, d, t, r0, n, mine)
                for b in range(r0, r1):
                    i, at = row_at(g, d, t, b) * n, state_at(g, d, b) * n
                    da = off(now, (b - r0) * lda)
                    if t < lens[b]:
                        h_before(off(past, i), y, h0, lens[b], g, d, t, b)
                        own = y_of(y, y_at(g, d, t, b) * n, y_row, n)
                        add = dy_of(dy, dy_at(g, d, t, b) * n, dy_row, n)
                        cell(own, add, off(dh, at), da, off(dh, at), n)
                    else:
                        zero_kept(off(past, i), n)
                        zero(da, n)
                    write(dgates, i, da, n)
                # Forward: a_t = W x_t + R h_(t-1) + b; so dh_(t-1) += R^T da_t.
                if t < last:
                    to = off(dh, state_at(g, d, r0) * n)
                    ldc, count = g.state_b * n, r1 - r0
                    times(now, lda, b_at, to, ldc, b_at, count, n, n, g, ACCUMULATE, left, t)

    return body
