"""The GRU kernels: a recurrence and its adjoint, the reset gate applied before or after R_n."""

from __future__ import annotations

from engine.kernels.machine.target import Target
from engine.kernels.ops.recurrent import cells
from engine.kernels.ops.recurrent.recurrence import (
    LENS,
    SIGMOID,
    SIGMOID_SLOPE,
    TANH,
    TANH_SLOPE,
    WALK,
    WALK_WORDS,
    WalkReach,
    count_products,
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
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    BIAS,
    Body,
    Inline,
    Native,
    inline,
    kernel,
    off,
    pick,
)


def _after(target: Target, T: str, f: str, g: str) -> tuple[Inline, Inline]:
    """Return inline functions: what comes between the two products, and the rest of a step."""
    times, whole = product(target, T), cells.gru(T, f, g)

    @inline
    def middle(gates, h, inner, work, d, t, r0, r1, lens, b_at, ldc, bias, mode, keeps, g):
        n = g.hidden
        at = state_at(g, d, r0) * n
        ld = g.state_b * n
        # R_n h + b of the step: where the backward pass will read it, or in scratch.
        q = pick(keeps, off(inner, row_at(g, d, t, r0) * n), off(work, at))
        ldq = g.row_b * n if keeps != 0 else ld
        times(off(h, at), ld, b_at, q, ldq, bias, r1 - r0, n, n, g, mode)

    @inline
    def end(a, q, h, n):
        whole(z=a, r=off(a, n), n=off(a, 2 * n), q=q, h=h, length=n)

    return middle, end


def _before(target: Target, T: str, f: str, g: str) -> tuple[Inline, Inline]:
    """Return the same functions for a state that is reset first."""
    times, zero = product(target, T), Native("zero", (T,))
    reset, state = cells.gru_reset(T, f), cells.gru_state(T, g)

    @inline
    def middle(gates, h, inner, work, d, t, r0, r1, lens, b_at, ldc, bias, mode, keeps, g):
        n = g.hidden
        # r h of every row first: R_n is multiplied with all rows at once, 0 for rows that have
        # ended.
        for b in range(r0, r1):
            at = state_at(g, d, b) * n
            if t < lens[b]:
                a = off(gates, row_at(g, d, t, b) * 3 * n)
                reset(z=a, r=off(a, n), h=off(h, at), q=off(work, at), length=n)
            else:
                zero(off(work, at), n)
        at, to = state_at(g, d, r0) * n, off(gates, row_at(g, d, t, r0) * 3 * n + 2 * n)
        # n's gate += R_n (r h): the state was reset before the product.
        times(off(work, at), g.state_b * n, b_at, to, ldc, b_at, r1 - r0, n, n, g, ACCUMULATE)

    @inline
    def end(a, q, h, n):
        state(off(a, 2 * n), a, h, off(a, 2 * n), h, n)

    return middle, end


def _gru_reach(c: KernelCall) -> Reach:
    w, keeps = WalkReach(c), c.keeps and c.flag(3)
    return {
        "gates": 3 * w.rows, "h0": w.states, "y": w.y if c.has_y else 0, "h": w.states,
        "inner": w.rows if keeps else 0, "work": 0 if keeps else w.states,
    }  # fmt: skip


@kernel(
    f"""
    gates: update T[...]   panels: T[last, hidden, up(2 * hidden, tile_columns)] if first < last
    panels_n: T[last, hidden, up(hidden, tile_columns)] if first < last
    bias: T[last, 6, hidden] if has_bias and after and first < last   {LENS}   h0: T[...]
    y, h, inner: out T[...]   work: scratch T[...]   has_bias, has_y, has_gates, keeps: i64   {WALK}
    """,
    words={"g": WALK_WORDS},
    reach=_gru_reach,
    multiply_adds=count_products("gates"),
    f=(SIGMOID,),
    g=(TANH,),
)
def gru(target: Target, T: str, f: str, g: str, after: int) -> Body:
    """All steps of a GRU; `after`: the reset gate scales R_n h + b, otherwise h.

    gates: by rows, on entry the products of X, then z, r, n, and 0 after a row's length; panels,
    panels_n: R_z and R_r, R_n, transposed; h: the state, from h0 to the last; y: all h, or none;
    inner: by rows, R_n h + b before all steps, if it `keeps` them; work: as the states.
    """
    times, wide = product(target, T), padded(target, T)
    copy, zero, start = Native("copy", (T,)), Native("zero", (T,)), fill(T)
    middle, end = _after(target, T, f, g) if after else _before(target, T, f, g)

    def body(
        gates,
        panels,
        panels_n,
        bias,
        lens,
        h0,
        y,
        h,
        inner,
        work,
        has_bias,
        has_y,
        has_gates,
        keeps,
        g,
        tid,
        nthreads,
    ):
        n = g.hidden
        ldc, mode = g.row_b * 3 * n, BIAS if has_bias != 0 else 0
        for d in range(g.first, g.last):
            r0, r1 = part(g, d, tid, nthreads)
            start(h, h0, g, d, r0, r1)
            last = longest(lens, r0, r1)
            b_zr, b_n = off(panels, d * wide(2 * n) * n), off(panels_n, d * wide(n) * n)
            rbn = pick(has_bias, off(bias, (6 * d + 5) * n), b_n)
            for s in range(g.steps if r0 < r1 else 0):
                t = time_at(g, d, s)
                if t < last:
                    a, to = off(h, state_at(g, d, r0) * n), off(gates, row_at(g, d, t, r0) * 3 * n)
                    times(a, g.state_b * n, b_zr, to, ldc, b_zr, r1 - r0, 2 * n, n, g, ACCUMULATE)
                    middle(gates, h, inner, work, d, t, r0, r1, lens, b_n, ldc, rbn, mode, keeps, g)
                for b in range(r0, r1):
                    at, into = state_at(g, d, b) * n, off(y, y_at(g, d, t, b) * n)
                    i = row_at(g, d, t, b) * n
                    gate = off(gates, 3 * i)
                    if t < lens[b]:
                        end(gate, pick(keeps, off(inner, i), off(work, at)), off(h, at), n)
                        if has_y != 0:
                            copy(into, off(h, at), n)
                    else:
                        if has_gates != 0:
                            zero(gate, 3 * n)
                        if has_y != 0:
                            zero(into, n)

    return body


def _gru_grad_after_reach(c: KernelCall) -> Reach:
    w = WalkReach(c)
    return {
        "gates": 3 * w.rows, "y": w.y, "inner": w.rows if c.kept else 0, "h0": w.states,
        "dy": w.dy, "dhn": w.states, "dgates": 3 * w.rows, "dinner": 3 * w.rows, "past": w.rows,
        "dh": w.states, "work": 0 if c.kept else w.states,
    }  # fmt: skip


@kernel(
    f"""
    gates, y, inner: T[...]
    panels: T[last, 3 * hidden, up(hidden, tile_columns)] if first < last
    panels_n: T[last, hidden, up(hidden, tile_columns)] if not kept and first < last
    bias: T[last, 6, hidden] if not kept and has_bias and first < last   {LENS}
    h0, dy, dhn: T[...]   dgates, dinner, past, dh: out T[...]   work: scratch T[...]
    kept, has_bias: i64   {WALK}
    """,
    words={"g": WALK_WORDS},
    reach=_gru_grad_after_reach,
    multiply_adds=count_products("dgates"),
    slope_f=(SIGMOID_SLOPE,),
    slope_g=(TANH_SLOPE,),
)
def gru_grad_after(target: Target, T: str, slope_f: str, slope_g: str) -> Body:
    """The adjoint of `gru` with `after`, from dy and dhn.

    gates, y: as it left them, and inner if it is `kept`; otherwise it is computed again, from
    panels_n: R_n^T; panels: R; dgates, dinner: the gradients of the products of X and of h; past:
    the h before every row; dh: gradient of h0; work: as the states.
    """
    times, wide = product(target, T), padded(target, T)
    copy, zero, start = Native("copy", (T,)), Native("zero", (T,)), fill(T)
    run = cells.gru_grad(T, slope_f, slope_g)

    @inline
    def cell(a, q, old, dy, dh, da, di, n):
        run(
            z=a, r=off(a, n), n=off(a, 2 * n), q=q, h=old, dy=dy, dh=dh,
            dz=da, dr=off(da, n), dn=off(da, 2 * n), iz=di, ir=off(di, n), iq=off(di, 2 * n),
            length=n,
        )  # fmt: skip

    def body(
        gates,
        y,
        inner,
        panels,
        panels_n,
        bias,
        lens,
        h0,
        dy,
        dhn,
        dgates,
        dinner,
        past,
        dh,
        work,
        kept,
        has_bias,
        g,
        tid,
        nthreads,
    ):
        # q's bias is n's part of the second half of B; the other parts were added beforehand.
        n, mode = g.hidden, BIAS if has_bias != 0 else 0
        for d in range(g.first, g.last):
            r0, r1 = part(g, d, tid, nthreads)
            start(dh, dhn, g, d, r0, r1)
            last = longest(lens, r0, r1)
            b_at, b_n = off(panels, d * wide(n) * 3 * n), off(panels_n, d * wide(n) * n)
            # Without a bias any pointer will do: the mode leaves it unread.
            rbn, ld = pick(has_bias, off(bias, (6 * d + 5) * n), b_n), g.state_b * n
            for s in range(g.steps if r0 < r1 else 0):
                t = time_at(g, d, g.steps - 1 - s)
                for b in range(r0, r1):
                    i = row_at(g, d, t, b) * n
                    if t < lens[b]:
                        first, e = is_first(g, d, t, lens[b]), time_before(g, d, t)
                        old = off(h0, state_at(g, d, b) * n)
                        # past: the h that R was multiplied with, from which dR is made for all
                        # steps at once.
                        copy(off(past, i), pick(first, old, off(y, y_at(g, d, e, b) * n)), n)
                    else:
                        zero(off(past, i), n)
                # q = R_n h' + b was not kept: computed again, for all rows of the step.
                if t < last and kept == 0:
                    old, q = off(past, row_at(g, d, t, r0) * n), off(work, state_at(g, d, r0) * n)
                    times(old, g.row_b * n, b_n, q, ld, rbn, r1 - r0, n, n, g, mode)
                for b in range(r0, r1):
                    i, at = row_at(g, d, t, b) * n, state_at(g, d, b) * n
                    da, di = off(dgates, 3 * i), off(dinner, 3 * i)
                    if t < lens[b]:
                        add = off(dy, dy_at(g, d, t, b) * n)
                        old, q = off(past, i), pick(kept, off(inner, i), off(work, at))
                        cell(off(gates, 3 * i), q, old, add, off(dh, at), da, di, n)
                    else:
                        zero(da, 3 * n)
                        zero(di, 3 * n)
                if t < last:
                    # Forward: the products with h' are R_z h', R_r h' and q; so dh' += R^T of their
                    # gradients.
                    a, lda = off(dinner, row_at(g, d, t, r0) * 3 * n), g.row_b * 3 * n
                    to = off(dh, state_at(g, d, r0) * n)
                    times(a, lda, b_at, to, ld, b_at, r1 - r0, n, 3 * n, g, ACCUMULATE)

    return body


def _gru_grad_before_reach(c: KernelCall) -> Reach:
    w = WalkReach(c)
    return {
        "gates": 3 * w.rows, "y": w.y, "h0": w.states, "dy": w.dy, "dhn": w.states,
        "dgates": 3 * w.rows, "past": 3 * w.rows, "dh": w.states, "work": w.states,
    }  # fmt: skip


@kernel(
    f"""
    gates, y: T[...]   panels: T[last, 2 * hidden, up(hidden, tile_columns)] if first < last
    panels_n: T[last, hidden, up(hidden, tile_columns)] if first < last   {LENS}
    h0, dy, dhn: T[...]   dgates, past, dh: out T[...]   work: scratch T[...]   {WALK}
    """,
    words={"g": WALK_WORDS},
    reach=_gru_grad_before_reach,
    multiply_adds=count_products("dgates"),
    slope_f=(SIGMOID_SLOPE,),
    slope_g=(TANH_SLOPE,),
)
def gru_grad_before(target: Target, T: str, slope_f: str, slope_g: str) -> Body:
    """The adjoint of `gru` without `after`, from dy and dhn.

    gates, y: as it left them; panels, panels_n: R_z and R_r, R_n; past: by rows, what each gate's R
    was multiplied with: h, h, r h; dh: gradient of h0; work: as the states.
    """
    times, wide = product(target, T), padded(target, T)
    copy, zero, start = Native("copy", (T,)), Native("zero", (T,)), fill(T)
    state, reset = cells.gru_state_grad(T, slope_f, slope_g), cells.gru_reset_grad(T, slope_f)

    def body(
        gates, y, panels, panels_n, lens, h0, dy, dhn, dgates, past, dh, work, g, tid, nthreads
    ):
        n, ld, lda = g.hidden, g.state_b * g.hidden, g.row_b * 3 * g.hidden
        for d in range(g.first, g.last):
            r0, r1 = part(g, d, tid, nthreads)
            start(dh, dhn, g, d, r0, r1)
            last = longest(lens, r0, r1)
            b_zr, b_n = off(panels, d * wide(n) * 2 * n), off(panels_n, d * wide(n) * n)
            for s in range(g.steps if r0 < r1 else 0):
                t = time_at(g, d, g.steps - 1 - s)
                for b in range(r0, r1):
                    i, at = row_at(g, d, t, b) * 3 * n, state_at(g, d, b) * n
                    if t < lens[b]:
                        first, e = is_first(g, d, t, lens[b]), time_before(g, d, t)
                        old = pick(first, off(h0, at), off(y, y_at(g, d, e, b) * n))
                        copy(off(past, i), old, n)
                        # One past for each gate, as n's gate was multiplied with r h and not with
                        # h.
                        copy(off(past, i + n), old, n)
                        add, da, to = off(dy, dy_at(g, d, t, b) * n), off(dgates, i), off(dh, at)
                        z, u = off(gates, i), off(gates, i + 2 * n)
                        dn = off(da, 2 * n)
                        state(z=z, n=u, h=old, dy=add, dh=to, dz=da, dn=dn, length=n)
                    else:
                        zero(off(past, i), 3 * n)
                        zero(off(dgates, i), 3 * n)
                if t < last:
                    a, at = off(dgates, row_at(g, d, t, r0) * 3 * n), state_at(g, d, r0) * n
                    into = off(work, at)
                    # Forward: n's gate = a_n + R_n (r h'); so d(r h') = R_n^T dn, which the cells
                    # then divide between r and h'.
                    times(off(a, 2 * n), lda, b_n, into, ld, b_n, r1 - r0, n, n, g, 0)
                    for b in range(r0, r1):
                        i, at = row_at(g, d, t, b) * 3 * n, state_at(g, d, b) * n
                        if t < lens[b]:
                            old, r, dq = off(past, i), off(gates, i + n), off(work, at)
                            dr, to = off(dgates, i + n), off(dh, at)
                            rh = off(past, i + 2 * n)
                            reset(r=r, h=old, dq=dq, dh=to, dr=dr, q=rh, length=n)
                    to = off(dh, state_at(g, d, r0) * n)
                    # Forward: a_z and a_r = ... + R h'; so dh' += R_z^T dz + R_r^T dr.
                    times(a, lda, b_zr, to, ld, b_zr, r1 - r0, n, 2 * n, g, ACCUMULATE)

    return body
