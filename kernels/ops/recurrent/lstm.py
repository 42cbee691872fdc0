"""The LSTM and RNN kernels: a recurrence and its adjoint."""

from __future__ import annotations

from engine.kernels.ops.recurrent import cells as cells_
from engine.kernels.ops.recurrent.recurrence import (
    RELU,
    RELU_SLOPE,
    SIGMOID,
    SIGMOID_SLOPE,
    TANH,
    TANH_SLOPE,
    WALK_WORDS,
    Inline,
    dy_at,
    fill,
    is_first,
    longest,
    padded,
    part,
    product,
    row_at,
    state_at,
    time_at,
    time_before,
    y_at,
)
from engine.kernels.target import Target
from engine.kernels.vocabulary.kernel import ACCUMULATE, Body, Native, inline, kernel, off, pick


@kernel(
    "gates:T* panels:T* lens:i64* h0:T* c0:T* p:T* y:T* h:T* c:T* cells:T* "
    "has_y:i64 has_cells:i64 g:i64[]",
    words={"g": WALK_WORDS},
    f=(SIGMOID,),
    g=(TANH,),
    h=(TANH,),
)
def lstm(target: Target, T: str, f: str, g: str, h: str, peephole: int, couple: int) -> Body:
    """Run all time steps of an LSTM.

    gates: T[rows, 4 H], on entry the products of X, then i, o, f, c, and 0 behind a row's length;
    panels: R^T; h, c: the states, from h0, c0 to the last; y, cells: all h and c, or none.
    Overwrites all but gates.
    """
    run = cells_.lstm(T, f, g, h, peephole, couple)
    times, wide = product(target, T), padded(target, T)
    copy, zero, start = Native("copy", (T,)), Native("zero", (T,)), fill(T)

    @inline
    def plain(a, c, p, h, n):
        o, f, u = off(a, n), off(a, 2 * n), off(a, 3 * n)
        run(a, o, f, u, c, a, o, f, u, c, h, n)

    @inline
    def peeping(a, c, p, h, n):
        o, f, u = off(a, n), off(a, 2 * n), off(a, 3 * n)
        run(a, o, f, u, c, p, off(p, n), off(p, 2 * n), a, o, f, u, c, h, n)

    cell = peeping if peephole else plain

    def body(gates, panels, lens, h0, c0, p, y, h, c, cells, has_y, has_cells, g, tid, nthreads):
        n = g.hidden
        for d in range(g.first, g.last):
            r0, r1 = part(g, d, tid, nthreads)
            start(h, h0, g, d, r0, r1)
            start(c, c0, g, d, r0, r1)
            last, b_at = longest(lens, r0, r1), off(panels, d * wide(4 * n) * n)
            for s in range(g.steps if r0 < r1 else 0):
                t = time_at(g, d, s)
                if t < last:
                    a, to = off(h, state_at(g, d, r0) * n), off(gates, row_at(g, d, t, r0) * 4 * n)
                    ldc = g.row_b * 4 * n
                    times(a, g.state_b * n, b_at, to, ldc, b_at, r1 - r0, 4 * n, n, g, ACCUMULATE)
                for b in range(r0, r1):
                    i, at = row_at(g, d, t, b), state_at(g, d, b) * n
                    gate, into = off(gates, i * 4 * n), off(y, y_at(g, d, t, b) * n)
                    if t < lens[b]:
                        cell(gate, off(c, at), off(p, d * 3 * n), off(h, at), n)
                        if has_y != 0:
                            copy(into, off(h, at), n)
                        if has_cells != 0:
                            copy(off(cells, i * n), off(c, at), n)
                    else:
                        zero(gate, 4 * n)
                        if has_y != 0:
                            zero(into, n)
                        if has_cells != 0:
                            zero(off(cells, i * n), n)

    return body


def _adjoint(
    T: str, h: str, slope_f: str, slope_g: str, slope_h: str, peephole: int, couple: int
) -> Inline:
    """Inline function: the adjoint of one step of a row."""
    run = cells_.lstm_grad(T, h, slope_f, slope_g, slope_h, peephole, couple)
    add = cells_.add_product(T)

    @inline
    def plain(a, s, old, dy, dh, ds, p, da, dp, n):
        o, f, u = off(a, n), off(a, 2 * n), off(a, 3 * n)
        do, df, du = off(da, n), off(da, 2 * n), off(da, 3 * n)
        run(a, o, f, u, s, old, dy, dh, ds, da, do, df, du, ds, dh, n)

    @inline
    def peeping(a, s, old, dy, dh, ds, p, da, dp, n):
        o, f, u = off(a, n), off(a, 2 * n), off(a, 3 * n)
        do, df, du = off(da, n), off(da, 2 * n), off(da, 3 * n)
        po, pf, dpo, dpf = off(p, n), off(p, 2 * n), off(dp, n), off(dp, 2 * n)
        run(a, o, f, u, s, old, dy, dh, ds, p, po, pf, da, do, df, du, ds, dh, n)
        add(dp, da, old, dp, n)
        add(dpo, do, s, dpo, n)
        add(dpf, df, old, dpf, n)

    return peeping if peephole else plain


@kernel(
    "gates:T* cells:T* y:T* panels:T* lens:i64* h0:T* c0:T* p:T* dy:T* dhn:T* dcn:T* "
    "dgates:T* past:T* dh:T* dc:T* dp:T* g:i64[]",
    words={"g": WALK_WORDS},
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
) -> Body:
    """The adjoint of `lstm`, from dy, dhn and dcn.

    gates, cells, y: as it left them; panels: R; dgates: T[rows, 4 H], may be gates; past:
    T[rows, H], the h before every row; dh, dc: gradients of h0, c0; dp: T[states, 3 H], the
    gradient of p by rows.  Overwrites dgates, past, dh, dc, dp.
    """
    cell = _adjoint(T, h, slope_f, slope_g, slope_h, peephole, couple)
    times, wide = product(target, T), padded(target, T)
    copy, zero, start = Native("copy", (T,)), Native("zero", (T,)), fill(T)

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
        g,
        tid,
        nthreads,
    ):
        n = g.hidden
        for d in range(g.first, g.last):
            r0, r1 = part(g, d, tid, nthreads)
            start(dh, dhn, g, d, r0, r1)
            start(dc, dcn, g, d, r0, r1)
            if peephole:
                for b in range(r0, r1):
                    zero(off(dp, state_at(g, d, b) * 3 * n), 3 * n)
            last, b_at = longest(lens, r0, r1), off(panels, d * wide(n) * 4 * n)
            for s in range(g.steps if r0 < r1 else 0):
                t = time_at(g, d, g.steps - 1 - s)
                for b in range(r0, r1):
                    i, at = row_at(g, d, t, b), state_at(g, d, b) * n
                    if t < lens[b]:
                        e, first = time_before(g, d, t), is_first(g, d, t, lens[b])
                        old = pick(first, off(c0, at), off(cells, row_at(g, d, e, b) * n))
                        copy(
                            off(past, i * n),
                            pick(first, off(h0, at), off(y, y_at(g, d, e, b) * n)),
                            n,
                        )
                        cell(
                            off(gates, i * 4 * n),
                            off(cells, i * n),
                            old,
                            off(dy, dy_at(g, d, t, b) * n),
                            off(dh, at),
                            off(dc, at),
                            off(p, d * 3 * n),
                            off(dgates, i * 4 * n),
                            off(dp, 3 * at),
                            n,
                        )
                    else:
                        zero(off(past, i * n), n)
                        zero(off(dgates, i * 4 * n), 4 * n)
                if t < last:
                    a, lda = off(dgates, row_at(g, d, t, r0) * 4 * n), g.row_b * 4 * n
                    to = off(dh, state_at(g, d, r0) * n)
                    times(a, lda, b_at, to, g.state_b * n, b_at, r1 - r0, n, 4 * n, g, ACCUMULATE)

    return body


@kernel(
    "gates:T* panels:T* lens:i64* h0:T* y:T* h:T* has_y:i64 g:i64[]",
    words={"g": WALK_WORDS},
    f=(TANH, RELU),
)
def rnn(target: Target, T: str, f: str) -> Body:
    """Run all time steps of an RNN.

    gates: T[rows, H], on entry the products of X; panels: R^T; h: the state, from h0 to the last;
    y: all h, or none, 0 behind a row's length.  Overwrites all but gates, which is used up.
    """
    cell, times, wide = cells_.rnn(T, f), product(target, T), padded(target, T)
    copy, zero, start = Native("copy", (T,)), Native("zero", (T,)), fill(T)

    def body(gates, panels, lens, h0, y, h, has_y, g, tid, nthreads):
        n = g.hidden
        for d in range(g.first, g.last):
            r0, r1 = part(g, d, tid, nthreads)
            start(h, h0, g, d, r0, r1)
            last, b_at = longest(lens, r0, r1), off(panels, d * wide(n) * n)
            for s in range(g.steps if r0 < r1 else 0):
                t = time_at(g, d, s)
                if t < last:
                    a, to = off(h, state_at(g, d, r0) * n), off(gates, row_at(g, d, t, r0) * n)
                    ldc = g.row_b * n
                    times(a, g.state_b * n, b_at, to, ldc, b_at, r1 - r0, n, n, g, ACCUMULATE)
                for b in range(r0, r1):
                    at, into = off(h, state_at(g, d, b) * n), off(y, y_at(g, d, t, b) * n)
                    if t < lens[b]:
                        cell(off(gates, row_at(g, d, t, b) * n), at, n)
                        if has_y != 0:
                            copy(into, at, n)
                    elif has_y != 0:
                        zero(into, n)

    return body


@kernel(
    "y:T* panels:T* lens:i64* h0:T* dy:T* dhn:T* dgates:T* past:T* dh:T* g:i64[]",
    words={"g": WALK_WORDS},
    slope_f=(TANH_SLOPE, RELU_SLOPE),
)
def rnn_grad(target: Target, T: str, slope_f: str) -> Body:
    """The adjoint of `rnn`, from dy and dhn.

    y: as it left it; panels: R; dgates, past: T[rows, H], the h before every row; dh: gradient of
    h0.  Overwrites dgates, past, dh.
    """
    cell, times, wide = cells_.rnn_grad(T, slope_f), product(target, T), padded(target, T)
    copy, zero, start = Native("copy", (T,)), Native("zero", (T,)), fill(T)

    def body(y, panels, lens, h0, dy, dhn, dgates, past, dh, g, tid, nthreads):
        n = g.hidden
        for d in range(g.first, g.last):
            r0, r1 = part(g, d, tid, nthreads)
            start(dh, dhn, g, d, r0, r1)
            last, b_at = longest(lens, r0, r1), off(panels, d * wide(n) * n)
            for s in range(g.steps if r0 < r1 else 0):
                t = time_at(g, d, g.steps - 1 - s)
                for b in range(r0, r1):
                    i, at = row_at(g, d, t, b) * n, state_at(g, d, b) * n
                    if t < lens[b]:
                        first, e = is_first(g, d, t, lens[b]), time_before(g, d, t)
                        old = pick(first, off(h0, at), off(y, y_at(g, d, e, b) * n))
                        copy(off(past, i), old, n)
                        now, add = off(y, y_at(g, d, t, b) * n), off(dy, dy_at(g, d, t, b) * n)
                        cell(now, add, off(dh, at), off(dgates, i), off(dh, at), n)
                    else:
                        zero(off(past, i), n)
                        zero(off(dgates, i), n)
                if t < last:
                    a, to = off(dgates, row_at(g, d, t, r0) * n), off(dh, state_at(g, d, r0) * n)
                    lda = g.row_b * n
                    times(a, lda, b_at, to, g.state_b * n, b_at, r1 - r0, n, n, g, ACCUMULATE)

    return body
