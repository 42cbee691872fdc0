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
    at_direction,
    count_call_scratch,
    count_products,
    dy_at,
    fill,
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
    write_panels,
    writer,
    y_at,
)
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    BIAS,
    Body,
    Inline,
    Intrinsic,
    inline,
    kernel,
    off,
    pick,
)


def _after(target: Target, T: str, f: str, g: str, Q: str, P: str) -> tuple[Inline, Inline, Inline]:
    """Return inline functions: what comes between the two products, the rest of a step, and what
    keeps the inner products, which are stored as Q.  P: as of `product`.
    """
    times, whole, narrow = product(target, T, P), cells.gru(T, f, g), mover(Q, T)

    @inline
    def in_place(inner, work, d, t, b, keeps, g):
        """R_n h + b of a row: where the backward pass will read it, or in scratch."""
        n = g.hidden
        return pick(keeps, off(inner, row_at(g, d, t, b) * n), off(work, state_at(g, d, b) * n))

    @inline
    def in_scratch(inner, work, d, t, b, keeps, g):
        return off(work, state_at(g, d, b) * g.hidden)

    @inline
    def nothing(inner, work, d, t, b, keeps, g):
        """Do nothing: the products are where they are kept."""

    @inline
    def converted(inner, work, d, t, b, keeps, g):
        n = g.hidden
        if keeps != 0:
            narrow(off(inner, row_at(g, d, t, b) * n), off(work, state_at(g, d, b) * n), n)

    of, keep = (in_place, nothing) if Q == T else (in_scratch, converted)
    is_kept = int(Q == T)

    @inline
    def middle(now, ldc, h, inner, work, d, t, r0, r1, lens, b_at, bias, mode, keeps, g, left):
        n, ld = g.hidden, g.state_b * g.hidden
        ldq = g.row_b * n if keeps * is_kept != 0 else ld
        q = of(inner, work, d, t, r0, keeps, g)
        a = off(h, state_at(g, d, r0) * n)
        times(a, ld, b_at, q, ldq, bias, r1 - r0, n, n, g, mode, left, t)

    @inline
    def end(a, h, inner, work, d, t, b, keeps, g):
        n = g.hidden
        q = of(inner, work, d, t, b, keeps, g)
        whole(z=a, r=off(a, n), n=off(a, 2 * n), q=q, h=h, length=n)

    return middle, end, keep


def _before(target: Target, T: str, f: str, g: str, P: str) -> tuple[Inline, Inline, Inline]:
    """Return the same functions for a state that is reset first."""
    times, zero = product(target, T, P), Intrinsic("zero", (T,))
    reset, state = cells.gru_reset(T, f), cells.gru_state(T, g)

    @inline
    def middle(now, ldc, h, inner, work, d, t, r0, r1, lens, b_at, bias, mode, keeps, g, left):
        n = g.hidden
        # r h of every row first: R_n is multiplied with all rows at once, 0 for rows that have
        # ended.
        for b in range(r0, r1):
            at = state_at(g, d, b) * n
            if t < lens[b]:
                a = off(now, (b - r0) * ldc)
                reset(z=a, r=off(a, n), h=off(h, at), q=off(work, at), length=n)
            else:
                zero(off(work, at), n)
        at = state_at(g, d, r0) * n
        # n's gate += R_n (r h): the state was reset before the product.
        a, ld = off(work, at), g.state_b * n
        times(a, ld, b_at, off(now, 2 * n), ldc, b_at, r1 - r0, n, n, g, ACCUMULATE, left, t)

    @inline
    def end(a, h, inner, work, d, t, b, keeps, g):
        n = g.hidden
        state(off(a, 2 * n), a, h, off(a, 2 * n), h, n)

    @inline
    def nothing(inner, work, d, t, b, keeps, g):
        """Do nothing: there are no inner products to keep."""

    return middle, end, nothing


def _gru_reach(c: KernelCall) -> Reach:
    w, keeps = WalkReach(c), c.keeps and c.flag(3)
    in_place = keeps and not c.type_of("Q")
    return {
        "gates": 3 * w.rows, "h0": w.states, "y": w.y if c.has_y else 0, "h": w.states,
        "inner": w.rows if keeps else 0, "work": 0 if in_place else w.states,
        "rows": count_call_scratch(c, "gru", 4),
    }  # fmt: skip


@kernel(
    f"""
    gates: update G[...]   panels: {write_panels("hidden", "2 * hidden")}
    panels_n: {write_panels("hidden", "hidden")}
    bias: T[last, 6, hidden] if has_bias and after and first < last   {LENS}   h0: T[...]
    y: out Y[...]   h: out T[...]   inner: out Q[...]   work, rows: scratch T[...]
    has_bias, has_y, has_gates, keeps: i64   {WALK}
    """,
    words={"g": WALK_WORDS},
    reach=_gru_reach,
    multiply_adds=count_products("gates"),
    f=(SIGMOID,),
    g=(TANH,),
)
def gru(
    target: Target,
    T: str,
    f: str,
    g: str,
    after: int,
    G: str = "",
    Y: str = "",
    Q: str = "",
    P: str = "",
) -> Body:
    """All steps of a GRU; `after`: the reset gate scales R_n h + b, otherwise h.

    gates: by rows, on entry the products of X, then z, r, n, and 0 after a row's length; panels,
    panels_n: R_z and R_r, R_n, transposed; h: the state, from h0 to the last; y: all h, or none;
    inner: by rows, R_n h + b before all steps, if it `keeps` them; work: as the states.  G, Y, Q:
    how gates, y and inner are stored, T if empty.  P: as of `product`.
    """
    G, Y, Q = G or T, Y or T, Q or T
    times, panels_at, room = product(target, T, P), at_direction(target, T, P), scratch("gru", P)
    step, widen, write = place(T, G), reader(T, G), writer(T, G)
    keep_y, start = mover(Y, T), fill(T)
    zero, zero_y = Intrinsic("zero", (G,)), Intrinsic("zero", (Y,))
    middle, end, keep = _after(target, T, f, g, Q, P) if after else _before(target, T, f, g, P)

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
        rows,
        has_bias,
        has_y,
        has_gates,
        keeps,
        g,
        tid,
        nthreads,
    ):
        n = g.hidden
        mine, left = room(rows, g, tid)
        mode = BIAS if has_bias != 0 else 0
        for d in range(g.first, g.last):
            r0, r1 = part(g, d, tid, nthreads)
            start(h, h0, g, d, r0, r1)
            last = longest(lens, r0, r1)
            b_zr, b_n = panels_at(panels, d, n, 2 * n), panels_at(panels_n, d, n, n)
            rbn = pick(has_bias, off(bias, (6 * d + 5) * n), b_n)
            for s in range(g.steps if r0 < r1 else 0):
                t = time_at(g, d, s)
                now, ldc = step(gates, g, d, t, r0, 3 * n, mine)
                if t < last:
                    for b in range(r0, r1):
                        widen(gates, row_at(g, d, t, b) * 3 * n, off(now, (b - r0) * ldc), 3 * n)
                    a, lda, count = off(h, state_at(g, d, r0) * n), g.state_b * n, r1 - r0
                    times(a, lda, b_zr, now, ldc, b_zr, count, 2 * n, n, g, ACCUMULATE, left, t)
                    middle(
                        now, ldc, h, inner, work, d, t, r0, r1, lens, b_n, rbn, mode, keeps, g, left
                    )
                for b in range(r0, r1):
                    at, into = state_at(g, d, b) * n, off(y, y_at(g, d, t, b) * n)
                    i, gate = row_at(g, d, t, b) * 3 * n, off(now, (b - r0) * ldc)
                    if t < lens[b]:
                        end(gate, off(h, at), inner, work, d, t, b, keeps, g)
                        write(gates, i, gate, 3 * n)
                        keep(inner, work, d, t, b, keeps, g)
                        if has_y != 0:
                            keep_y(into, off(h, at), n)
                    else:
                        if has_gates != 0:
                            zero(off(gates, i), 3 * n)
                        if has_y != 0:
                            zero_y(into, n)

    return body


def _gru_grad_after_reach(c: KernelCall) -> Reach:
    w = WalkReach(c)
    return {
        "gates": 3 * w.rows, "y": w.y, "inner": w.rows if c.kept else 0, "h0": w.states,
        "dy": w.dy, "dhn": w.states, "dgates": 3 * w.rows, "dinner": 3 * w.rows, "past": w.rows,
        "dh": w.states, "work": 0 if c.kept else w.states,
        "rows": count_call_scratch(c, "gru_grad_after", 3),
    }  # fmt: skip


@kernel(
    f"""
    gates: G[...]   y: Y[...]   inner: Q[...]
    panels: {write_panels("3 * hidden", "hidden")}
    panels_n: {write_panels("hidden", "hidden", "not kept and first < last")}
    bias: T[last, 6, hidden] if not kept and has_bias and first < last   {LENS}
    h0: T[...]   dy: D[...]   dhn: T[...]   dgates, dinner, past: out G[...]   dh: out T[...]
    work, rows: scratch T[...]   kept, has_bias: i64   {WALK}
    """,
    words={"g": WALK_WORDS},
    reach=_gru_grad_after_reach,
    multiply_adds=count_products("dgates"),
    slope_f=(SIGMOID_SLOPE,),
    slope_g=(TANH_SLOPE,),
)
def gru_grad_after(
    target: Target,
    T: str,
    slope_f: str,
    slope_g: str,
    G: str = "",
    Y: str = "",
    D: str = "",
    Q: str = "",
    P: str = "",
) -> Body:
    """The adjoint of `gru` with `after`, from dy and dhn.

    gates, y: as it left them, and inner if it is `kept`; otherwise it is computed again, from
    panels_n: R_n^T; panels: R; dgates, dinner: the gradients of the products of X and of h; past:
    the h before every row; dh: gradient of h0; work: as the states.  G, Y, D, Q: how gates and
    dgates, dinner, past, y, dy and inner are stored, T if empty.  P: as of `product`.
    """
    G, Y, D, Q = G or T, Y or T, D or T, Q or T
    times, panels_at = product(target, T, P), at_direction(target, T, P)
    step, write, start = place(T, G), writer(T, G), fill(T)
    room = scratch("gru_grad_after", P)
    gates_of, dy_of, inner_of = reader(T, G), reader(T, D), reader(T, Q)
    h_before, zero = state_before(T, T, Y), Intrinsic("zero", (T,))
    run = cells.gru_grad(T, slope_f, slope_g)

    @inline
    def cell(a, q, old, dy, dh, da, di, n):
        run(
            z=a, r=off(a, n), n=off(a, 2 * n), q=q, h=old, dy=dy, dh=dh,
            dz=da, dr=off(da, n), dn=off(da, 2 * n), iz=di, ir=off(di, n), iq=off(di, 2 * n),
            length=n,
        )  # fmt: skip

    @inline
    def chosen(kept, inner, i, work, at, row, n):
        return pick(kept, off(inner, i), off(work, at))

    @inline
    def converted(kept, inner, i, work, at, row, n):
        return inner_of(inner, i, row, n)  # products that are stored in 16 bits are kept

    q_of = chosen if Q == T else converted

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
        rows,
        kept,
        has_bias,
        g,
        tid,
        nthreads,
    ):
        # q's bias is n's part of the second half of B; the other parts were added beforehand.
        n, mode = g.hidden, BIAS if has_bias != 0 else 0
        # Scratch of what is not stored as T: the gradients of all rows of a step, and the h before;
        # of a row its gates, its inner product and dy.
        mine, left = room(rows, g, tid)
        inner_rows = off(mine, 3 * g.batch * n)
        old_rows = off(inner_rows, 3 * g.batch * n)
        gate_row = off(old_rows, g.batch * n)
        q_row = off(gate_row, 3 * n)
        dy_row = off(q_row, n)
        for d in range(g.first, g.last):
            r0, r1 = part(g, d, tid, nthreads)
            start(dh, dhn, g, d, r0, r1)
            last = longest(lens, r0, r1)
            b_at, b_n = panels_at(panels, d, 3 * n, n), panels_at(panels_n, d, n, n)
            # Without a bias any pointer will do: the mode leaves it unread.
            rbn, ld = pick(has_bias, off(bias, (6 * d + 5) * n), b_n), g.state_b * n
            for s in range(g.steps if r0 < r1 else 0):
                t = time_at(g, d, g.steps - 1 - s)
                now, lda = step(dgates, g, d, t, r0, 3 * n, mine)
                within, ldi = step(dinner, g, d, t, r0, 3 * n, inner_rows)
                before, ldo = step(past, g, d, t, r0, n, old_rows)
                for b in range(r0, r1):
                    old = off(before, (b - r0) * ldo)
                    if t < lens[b]:
                        # past: the h that R was multiplied with, from which dR is made for all
                        # steps at once.
                        h_before(old, y, h0, lens[b], g, d, t, b)
                    else:
                        zero(old, n)
                    write(past, row_at(g, d, t, b) * n, old, n)
                # q = R_n h' + b was not kept: computed again, for all rows of the step.
                if t < last and kept == 0:
                    q = off(work, state_at(g, d, r0) * n)
                    times(before, ldo, b_n, q, ld, rbn, r1 - r0, n, n, g, mode, left, t)
                for b in range(r0, r1):
                    i, at = row_at(g, d, t, b) * n, state_at(g, d, b) * n
                    da, di = off(now, (b - r0) * lda), off(within, (b - r0) * ldi)
                    if t < lens[b]:
                        cell(
                            gates_of(gates, 3 * i, gate_row, 3 * n),
                            q_of(kept, inner, i, work, at, q_row, n),
                            off(before, (b - r0) * ldo),
                            dy_of(dy, dy_at(g, d, t, b) * n, dy_row, n),
                            off(dh, at),
                            da,
                            di,
                            n,
                        )
                    else:
                        zero(da, 3 * n)
                        zero(di, 3 * n)
                    write(dgates, 3 * i, da, 3 * n)
                    write(dinner, 3 * i, di, 3 * n)
                if t < last:
                    # Forward: the products with h' are R_z h', R_r h' and q; so dh' += R^T of their
                    # gradients.
                    to = off(dh, state_at(g, d, r0) * n)
                    times(
                        within, ldi, b_at, to, ld, b_at, r1 - r0, n, 3 * n, g, ACCUMULATE, left, t
                    )

    return body


def _gru_grad_before_reach(c: KernelCall) -> Reach:
    w = WalkReach(c)
    return {
        "gates": 3 * w.rows, "y": w.y, "h0": w.states, "dy": w.dy, "dhn": w.states,
        "dgates": 3 * w.rows, "past": 3 * w.rows, "dh": w.states, "work": w.states,
        "rows": count_call_scratch(c, "gru_grad_before", 3),
    }  # fmt: skip


@kernel(
    f"""
    gates: G[...]   y: Y[...]
    panels: {write_panels("2 * hidden", "hidden")}
    panels_n: {write_panels("hidden", "hidden")}   {LENS}
    h0: T[...]   dy: D[...]   dhn: T[...]   dgates, past: out G[...]   dh: out T[...]
    work, rows: scratch T[...]   {WALK}
    """,
    words={"g": WALK_WORDS},
    reach=_gru_grad_before_reach,
    multiply_adds=count_products("dgates"),
    slope_f=(SIGMOID_SLOPE,),
    slope_g=(TANH_SLOPE,),
)
def gru_grad_before(
    target: Target,
    T: str,
    slope_f: str,
    slope_g: str,
    G: str = "",
    Y: str = "",
    D: str = "",
    P: str = "",
) -> Body:
    """The adjoint of `gru` without `after`, from dy and dhn.

    gates, y: as it left them; panels, panels_n: R_z and R_r, R_n; past: by rows, what each gate's R
    was multiplied with: h, h, r h; dh: gradient of h0; work: as the states.  G, Y, D: how gates and
    dgates, past, y and dy are stored, T if empty.  P: as of `product`.
    """
    G, Y, D = G or T, Y or T, D or T
    times, panels_at = product(target, T, P), at_direction(target, T, P)
    step, write, start = place(T, G), writer(T, G), fill(T)
    room = scratch("gru_grad_before", P)
    gates_of, dy_of = reader(T, G), reader(T, D)
    copy, h_before, zero = mover(T, T), state_before(T, T, Y), Intrinsic("zero", (T,))
    state, reset = cells.gru_state_grad(T, slope_f, slope_g), cells.gru_reset_grad(T, slope_f)

    def body(
        gates,
        y,
        panels,
        panels_n,
        lens,
        h0,
        dy,
        dhn,
        dgates,
        past,
        dh,
        work,
        rows,
        g,
        tid,
        nthreads,
    ):
        n, ld = g.hidden, g.state_b * g.hidden
        # Scratch of what is not stored as T: the gates' gradients of all rows of a step, and what R
        # was multiplied with; of a row its gates and dy.
        mine, left = room(rows, g, tid)
        old_rows = off(mine, 3 * g.batch * n)
        gate_row = off(old_rows, 3 * g.batch * n)
        dy_row = off(gate_row, 3 * n)
        for d in range(g.first, g.last):
            r0, r1 = part(g, d, tid, nthreads)
            start(dh, dhn, g, d, r0, r1)
            last = longest(lens, r0, r1)
            b_zr, b_n = panels_at(panels, d, 2 * n, n), panels_at(panels_n, d, n, n)
            for s in range(g.steps if r0 < r1 else 0):
                t = time_at(g, d, g.steps - 1 - s)
                now, lda = step(dgates, g, d, t, r0, 3 * n, mine)
                before, ldo = step(past, g, d, t, r0, 3 * n, old_rows)
                for b in range(r0, r1):
                    i, at = row_at(g, d, t, b) * 3 * n, state_at(g, d, b) * n
                    da, old = off(now, (b - r0) * lda), off(before, (b - r0) * ldo)
                    if t < lens[b]:
                        h_before(old, y, h0, lens[b], g, d, t, b)
                        # One past for each gate, as n's gate was multiplied with r h and not with
                        # h.
                        copy(off(old, n), old, n)
                        z = gates_of(gates, i, gate_row, 3 * n)
                        add, u = dy_of(dy, dy_at(g, d, t, b) * n, dy_row, n), off(z, 2 * n)
                        to, dn = off(dh, at), off(da, 2 * n)
                        state(z=z, n=u, h=old, dy=add, dh=to, dz=da, dn=dn, length=n)
                    else:
                        zero(old, 3 * n)
                        zero(da, 3 * n)
                if t < last:
                    into = off(work, state_at(g, d, r0) * n)
                    # Forward: n's gate = a_n + R_n (r h'); so d(r h') = R_n^T dn, which the cells
                    # then divide between r and h'.
                    times(off(now, 2 * n), lda, b_n, into, ld, b_n, r1 - r0, n, n, g, 0, left, t)
                    for b in range(r0, r1):
                        i, at = row_at(g, d, t, b) * 3 * n, state_at(g, d, b) * n
                        if t < lens[b]:
                            da, old = off(now, (b - r0) * lda), off(before, (b - r0) * ldo)
                            r = gates_of(gates, i + n, gate_row, n)
                            dq, to, rh = off(work, at), off(dh, at), off(old, 2 * n)
                            reset(r=r, h=old, dq=dq, dh=to, dr=off(da, n), q=rh, length=n)
                    to = off(dh, state_at(g, d, r0) * n)
                    # Forward: a_z and a_r = ... + R h'; so dh' += R_z^T dz + R_r^T dr.
                    times(now, lda, b_zr, to, ld, b_zr, r1 - r0, n, 2 * n, g, ACCUMULATE, left, t)
                for b in range(r0, r1):
                    i = row_at(g, d, t, b) * 3 * n
                    write(dgates, i, off(now, (b - r0) * lda), 3 * n)
                    write(past, i, off(before, (b - r0) * ldo), 3 * n)

    return body
