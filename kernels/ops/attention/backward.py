"""The backward kernel of attention: probabilities again from the log-sum-exp, block by block.

Source    Dao, "FlashAttention-2", arXiv 2307.08691, algorithm 2; dK and dV in parts by thread,
          which are summed in the order of the parts
"""

from __future__ import annotations

from typing import NamedTuple

from engine.base.element_types import ITEMSIZE
from engine.kernels.machine.target import Target
from engine.kernels.ops.attention.blocks import (
    ATTENTION_WORDS,
    SCALED,
    SIZES,
    adjust,
    check_blocks,
    count_padded,
    make_dropout,
    masked,
    matrices_reach,
    pairs_of,
    product,
    rows_as,
    rows_of_block,
    rows_reach,
    scores_reach,
    seen_scores,
    turn,
    turn_as,
    visible,
)
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    Body,
    Inline,
    Intrinsic,
    imin,
    inline,
    kernel,
    off,
    pick,
    udiv,
)
from engine.kernels.vocabulary.row_program import loop
from engine.plan.context import RANDOM


def backward_work(
    blocks: tuple[int, int], keys: int, widths: tuple[int, int], lanes: int, S: str, D: str, P: str
) -> int:
    """Return the elements of scratch that a thread needs.

    blocks: columns and rows of a block.  keys, widths: of K and V.  lanes: elements of a vector.
    Rows of Q or dY that are not whole vectors are copied.  S: how matrices are stored; a block of
    Q, dY, K and V each is widened.  D: how dK and dV are stored, whose sums are scratch then.
    P: how factors are; blocks of the four are converted.
    """
    (bq, bk), (width, value_width) = blocks, widths
    is_copied = S or P or width % lanes or value_width % lanes
    rows = (bq if is_copied else 0) + (bk if S or P else 0)
    spare = count_padded(rows, width, lanes) + count_padded(rows, value_width, lanes)
    sums = keys * (width + value_width) if D else 0
    return bq * (2 * width + value_width + 5 * bk + 3) + spare + sums


def _reach(c: KernelCall) -> Reach:
    check_blocks(c)
    width, columns = c.width, c.value_width
    wants_q, wants_k, wants_v, wants_bias = c.wants
    D = c.type_of("D")
    if D and c.parts > 1:
        c.refuse(f"{c.parts} parts of dK and dV, which are rounded")
    blocks = c.block_queries, c.block_keys
    used = backward_work(blocks, c.keys, (width, columns), c.lanes, c.S, D, c.type_of("P"))
    return {
        "q": matrices_reach(c, "q", c.heads, c.queries, width),
        "k": matrices_reach(c, "k", c.groups, c.keys, width),
        "v": matrices_reach(c, "v", c.groups, c.keys, columns),
        "bias": scores_reach(c, "bias") if c.is_biased else 0,
        "mask": scores_reach(c, "mask") if c.is_masked or c.is_filled else 0,
        "y": matrices_reach(c, "y", c.heads, c.queries, columns),
        "dy": matrices_reach(c, "dy", c.heads, c.queries, columns),
        "dq": matrices_reach(c, "dq", c.heads, c.queries, width) if wants_q else 0,
        "dk": _parts_reach(c, "dk", c.part_k, width) if wants_k else 0,
        "dv": _parts_reach(c, "dv", c.part_v, columns) if wants_v else 0,
        "dbias": rows_reach(c, "dbias") if wants_bias else 0,
        "work": c.scratch(c.per_thread, used),
    }


def _parts_reach(c: KernelCall, name: str, part: int, width: int) -> int:
    """Return the reach into the gradient of K or V, which has parts that lie `part` apart."""
    by_batch, by_head, by_row = c.numbers[name]
    walks = (c.batch, by_batch), (c.groups, by_head), (c.keys, by_row), (width, 1)
    return c.span(0, (c.parts, part), *walks)


@inline
def scratch(mine, g):
    """The parts of a thread's scratch, as `backward_work` counts them."""
    bq, block = g.block_queries, g.block_queries * g.block_keys
    qt = mine  # Q^T scaled, dQ^T and dY^T: columns are queries, as in the blocks of scores
    dqt = off(qt, bq * g.width)
    dyt = off(dqt, bq * g.width)
    s = off(dyt, bq * g.value_width)  # blocks: S, then P, then dS;
    u = off(s, block)  # dP;
    x = off(u, block)  # the dropped P, and scratch of bias and mask;
    z = off(x, block)  # scratch with a row a query;
    capped = off(z, block)  # the capped scores
    delta = off(capped, block)  # rows of a number a query: D, m and log l
    return qt, dqt, dyt, s, u, x, z, capped, delta, off(delta, bq), off(delta, 2 * bq)


class _Factors(NamedTuple):
    """Inline functions that make factors of products of what is stored.

    open_rows(x, row, n, rows, wanted, spare): rows of Q or dY as they are read, and as right
        factors if that is wanted; each with a stride.
    as_left(x, row, n, rows, spare), as_right(x, row, n, rows, into): rows of a block of scores as a
        left factor, and as a right one, with their stride.
    as_columns(read, step, x, row, n, rows, into): rows of K as a left factor in columns; read and
        step: as they are in rows.
    """

    open_rows: Inline
    as_left: Inline
    as_right: Inline
    as_columns: Inline


def _make_factors(target: Target, T: str, S: str, P: str) -> _Factors:
    """Return the functions for factors as they are stored, or of type P."""
    lanes = target.lanes(ITEMSIZE[T])
    return _convert_factors(target, T, S, P, lanes) if P else _read_factors(target, T, S, lanes)


def _read_factors(target: Target, T: str, S: str, lanes: int) -> _Factors:
    fetch, copy = rows_as(target, T, S, ""), Intrinsic("copy", (T,))

    @inline
    def by_vectors(x, row, n, rows, wanted, spare):
        """Rows as a right factor of a product, and their stride; n: elements that may be read.

        A product reads whole vectors: x itself, or a copy where rows are not whole vectors, since
        the last row of x may end where its memory does.
        """
        step = udiv(n + lanes - 1, lanes) * lanes
        if step != n and wanted != 0:
            for i in range(rows):
                copy(off(spare, i * step), off(x, i * row), n)
        return pick(step - n, spare, x), step if step != n else row

    @inline
    def open_rows(x, row, n, rows, wanted, spare):
        read, step, some = fetch(x, row, n, rows, spare)
        factors, ld = by_vectors(read, step, some, rows, wanted, spare)
        return read, step, factors, ld

    @inline
    def as_left(x, row, n, rows, spare):
        return x, row

    @inline
    def as_columns(read, step, x, row, n, rows, into):
        return read, step

    return _Factors(open_rows, as_left, as_left, as_columns)


def _convert_factors(target: Target, T: str, S: str, P: str, lanes: int) -> _Factors:
    pairs, pairs_of_scores = pairs_of(target, T, S, P), pairs_of(target, T, T, P)

    @inline
    def open_rows(x, row, n, rows, wanted, spare):
        factors, ld = pairs(x, row, n, rows, spare, udiv(n + lanes - 1, lanes) * lanes)
        return x, row, factors, ld

    @inline
    def as_right(x, row, n, rows, into):
        return pairs_of_scores(x, row, n, rows, into, row)

    @inline
    def as_columns(read, step, x, row, n, rows, into):
        return pairs(x, row, n, rows, into, n)

    return _Factors(open_rows, rows_of_block(target, T, P), as_right, as_columns)


def _make_turning(target: Target, T: str, S: str, P: str) -> Inline:
    """Return an inline function: a block of Q and dY with queries as columns, and D."""
    copy_scaled = loop(T, SCALED)
    dot = loop(T, "x:S[] y:S[] -> sum(x * y)", S)
    flip_factor = turn(target, T, S, P) if P else turn(target, T)
    scales_late = int(bool(P))

    @inline
    def turned(qt, dyt, delta, by_q, by_dy, yh, dyh, scale, g, nq, n):
        """Q^T, scaled unless scores are, dY^T, and D = rows of sum(dY * Y) of a block of queries.

        by_q, by_dy: rows of Q and dY, and their stride.
        """
        bq = g.block_queries
        qf, ldq = by_q
        dyf, lddy = by_dy
        flip_factor(qt, bq, qf, ldq, nq, g.width)
        if not scales_late:
            for r in range(g.width):
                copy_scaled(off(qt, r * bq), scale, off(qt, r * bq), n)
        flip_factor(dyt, bq, dyf, lddy, nq, g.value_width)
        # Forward: P = softmax(S), so dS = P (dP - sum over keys of P dP).  As dP = dY V^T and Y = P
        # V, this sum is the row's sum of dY Y: a number a query, known before the first block of
        # keys.
        for i in range(nq):
            delta[i] = dot(off(dyh, i * g.dy_row), off(yh, i * g.y_row), g.value_width)

    return turned


def _make_slopes(target: Target, T: str) -> Inline:
    """Return an inline function: P and dP of a block become dS, back to Q K^T."""
    lanes = target.lanes(ITEMSIZE[T])
    copy_scaled = loop(T, SCALED)
    slope = loop(T, "p[] u[] delta[] c -> s[] = p * (u - delta) * c")
    uncap = loop(T, "s[] capped[] inverse -> t = capped * inverse; s[] = s * (1 - t * t)")
    add = loop(T, "x[] y[] -> y[] = x + y")
    reciprocal = loop(T, "x -> 1 / x")
    number, flip, blank = Intrinsic("cast", (T, "f64")), turn(target, T), masked(target, T)

    @inline
    def through_scores(s, u, x, z, capped, delta, mask_h, dbias_h, scale, cap, g, q0, nq, k0, nk):
        """Turn P of a block into dS, add dbias, and go back through mask and cap to Q K^T."""
        bq, bk = g.block_queries, g.block_keys
        n = udiv(nq + lanes - 1, lanes) * lanes
        # Forward: Y = P V and P = softmax(S); so dS = P (dP - D).  With neither bias nor cap
        # between S and Q K^T the scale of Q K^T is taken along, which saves a pass over the block.
        factor = scale
        if g.wants_bias + g.is_capped != 0:
            factor = number(1.0)
        for r in range(nk):
            row = off(s, r * bq)
            slope(row, off(u, r * bq), delta, factor, row, n)
        # Forward: a masked score is `fill`, whatever it was; so its gradient ends here.  Where
        # `fill` is -inf its P, and so its dS, is 0 already.
        if g.is_filled != 0:
            blank(s, x, z, mask_h, g, number(0.0), q0, nq, k0, nk)
        # Forward: S = capped + bias; so dbias += dS, by rows of queries as the bias lies.
        if g.wants_bias != 0:
            flip(z, bk, s, bq, nk, nq)
            for i in range(nq):
                row = off(dbias_h, (q0 + i) * g.dbias_query + k0)
                add(off(z, i * bk), row, row, nk)
        # Forward: capped = cap tanh(S / cap); so dS = dcapped (1 - (capped / cap)^2).
        if g.is_capped != 0:
            uncap(s, capped, reciprocal(cap, 1), s, nk * bq)
        if g.wants_bias + g.is_capped != 0:
            copy_scaled(s, scale, s, nk * bq)

    return through_scores


def _make_block_gradient(target: Target, T: str, S: str, P: str) -> Inline:
    """Return an inline function: the gradients of a block of queries."""
    lanes = target.lanes(ITEMSIZE[T])
    copy_scaled = loop(T, SCALED)
    exps = loop(
        T, "s[] top[] log_l[] -> p[] = where(log_l == const('inf'), 0, exp(s - top - log_l))"
    )
    zero, copy = Intrinsic("zero", (T,)), Intrinsic("copy", (T,))
    store, fetch = turn_as(target, T, S), rows_as(target, T, S, P)
    right, left = product(target, T, 0, P), product(target, T, 1, P)
    change, scales_late = adjust(target, T), int(bool(P))
    open_rows, as_left, as_right, as_columns = _make_factors(target, T, S, P)
    drop_block, through_scores = make_dropout(T, is_backward=True), _make_slopes(target, T)
    turned = _make_turning(target, T, S, P)

    @inline
    def whole(inputs, outs, noise, mine, numbers, g, place):
        """The gradients of a block of queries: dQ of it, its part of dK and dV, its rows of dbias.

        inputs, outs: of the kernel, with `sums_of` in the place of dK and dV; numbers: scale, cap,
        fill, ratio; place: the batch, the head, the first query and the number of queries.
        """
        q, k, v, bias, mask, y, lse, dy = inputs
        dq, (dkh, dk_row, dvh, dv_row), dbias = outs
        scale, cap, fill, ratio = numbers
        b, h, q0, nq = place
        bq, bk, width, columns = g.block_queries, g.block_keys, g.width, g.value_width
        n = udiv(nq + lanes - 1, lanes) * lanes  # whole vectors: blocks have room for them
        qt, dqt, dyt, s, u, x, z, capped, delta, top, log_l = scratch(mine, g)
        spare = off(delta, 3 * bq)
        # Where this head lies in each operand; several heads of Q share one of K and V.
        qh = off(q, b * g.q_batch + h * g.q_head + q0 * g.q_row)
        yh = off(y, b * g.y_batch + h * g.y_head + q0 * g.y_row)
        dyh = off(dy, b * g.dy_batch + h * g.dy_head + q0 * g.dy_row)
        group = udiv(h * g.groups, g.heads)
        kh = off(k, b * g.k_batch + group * g.k_head)
        vh = off(v, b * g.v_batch + group * g.v_head)
        bias_h = off(bias, b * g.bias_batch + h * g.bias_head)
        mask_h = off(mask, b * g.mask_batch + h * g.mask_head)
        dbias_h = off(dbias, b * g.dbias_batch + h * g.dbias_head)
        # Rows of each as `fetch` and `open_rows` make them.
        step_k = udiv(width + lanes - 1, lanes) * lanes
        step_v = udiv(columns + lanes - 1, lanes) * lanes
        spare_dy = off(spare, bq * step_k)
        spare_k = off(spare_dy, bq * step_v)
        spare_v = off(spare_k, bk * step_k)
        read_q, row_q, rows_q, ldq = open_rows(qh, g.q_row, width, nq, g.wants_k, spare)
        read_dy, row_dy, rows_dy, ldy = open_rows(dyh, g.dy_row, columns, nq, g.wants_v, spare_dy)
        by_q, by_dy = (read_q, row_q), (read_dy, row_dy)
        turned(qt, dyt, delta, by_q, by_dy, yh, dyh, scale, g, nq, n)
        at = (b * g.heads + h) * g.queries + q0
        copy(top, off(lse, at), nq)
        copy(log_l, off(lse, at + g.batch * g.heads * g.queries), nq)
        zero(dqt, width * bq)
        k0, end = visible(g, q0, nq)
        while k0 < end:
            nk = imin(bk, end - k0)
            # Forward again: S = scale Q K^T, adjusted; P = exp(S - m - log l).  The row sums are
            # known, so P comes at once, without the running maximum of the forward kernel.
            # Blocks are transposed, a row for each key: the numbers of a query (D, m, log l) are
            # then vectors, which all rows read alike.
            rows_k, ldk, _ = fetch(off(kh, k0 * g.k_row), g.k_row, width, nk, spare_k)
            right(rows_k, ldk, qt, bq, s, bq, width, nk, nq, 0)
            if scales_late:
                for r in range(nk):
                    copy_scaled(off(s, r * bq), scale, off(s, r * bq), n)
            change(s, capped, x, z, bias_h, mask_h, g, cap, fill, q0, nq, k0, nk)
            for r in range(nk):
                exps(off(s, r * bq), top, log_l, off(s, r * bq), n)
            p = s
            # Forward: Y = P V; so dP = dY V^T.
            rows_v, ldv, _ = fetch(off(vh, k0 * g.v_row), g.v_row, columns, nk, spare_v)
            right(rows_v, ldv, dyt, bq, u, bq, columns, nk, nq, 0)
            # Forward: Y = drop(P) V; so dV needs drop(P), in x, and dP is dropped as P was.
            if g.drops != 0:
                drop_block(s, x, u, g, noise, ratio, b, h, q0, nq, k0, nk)
                p = x
            # Forward: Y = P V; so dV += P^T dY.  Blocks lie transposed: P^T is what p holds.
            if g.wants_v != 0:
                rows_p, ldp = as_left(p, bq, nq, nk, z)
                right(
                    rows_p, ldp, rows_dy, ldy, off(dvh, k0 * dv_row), dv_row, nq, nk, columns,
                    ACCUMULATE,
                )  # fmt: skip
            if g.wants_q + g.wants_k + g.wants_bias != 0:
                through_scores(
                    s, u, x, z, capped, delta, mask_h, dbias_h, scale, cap, g, q0, nq, k0, nk
                )
                # Forward: S = scale Q K^T; so dK += scale dS^T Q and dQ += scale dS K, the scale
                # being in dS by now.
                if g.wants_k != 0:
                    rows_s, lds = as_left(s, bq, nq, nk, z)
                    right(
                        rows_s, lds, rows_q, ldq, off(dkh, k0 * dk_row), dk_row, nq, nk, width,
                        ACCUMULATE,
                    )  # fmt: skip
                if g.wants_q != 0:
                    # Rows of K may fill the first half of their scratch, pairs fill the second.
                    kt, ldt = as_columns(
                        rows_k, ldk, off(kh, k0 * g.k_row), g.k_row, width, nk,
                        off(spare_k, (bk >> 1) * step_k),
                    )  # fmt: skip
                    ds, ldds = as_right(s, bq, nq, nk, x)
                    left(kt, ldt, ds, ldds, dqt, bq, nk, width, nq, ACCUMULATE)
            k0 += bk
        # All keys are done: no other thread adds to these rows of dQ.
        if g.wants_q != 0:
            dqh = off(dq, b * g.dq_batch + h * g.dq_head + q0 * g.dq_row)
            store(dqh, g.dq_row, dqt, bq, width, nq, spare)

    return whole


@inline
def outputs_of(dk, dv, g, b, group):
    """The dK and dV of a group: where each begins, and its stride."""
    dkh = off(dk, b * g.dk_batch + group * g.dk_head)
    return dkh, g.dk_row, off(dv, b * g.dv_batch + group * g.dv_head), g.dv_row


@inline
def outputs_as_sums(dk, dv, mine, g, b, group):
    """Where dK and dV of a group are summed: in the outputs."""
    return outputs_of(dk, dv, g, b, group)


@inline
def sums_in_scratch(dk, dv, mine, g, b, group):
    """As `outputs_as_sums`, in the last part of a thread's scratch."""
    sums = off(mine, g.per_thread - g.keys * (g.width + g.value_width))
    return sums, g.width, off(sums, g.keys * g.width), g.value_width


@inline
def keep_sums(sums, dk, dv, g, b, group):
    """Do nothing: the sums are outputs."""


def _make_rounding(T: str, D: str) -> Inline:
    """Return an inline function: dK and dV of a group from their sums, stored as D."""
    narrow = Intrinsic("convert", (D, T))

    @inline
    def round_sums(sums, dk, dv, g, b, group):
        """Write dK and dV of a group from their sums, each rounded once."""
        from_k, ldk, from_v, ldv = sums
        dkh, row_k, dvh, row_v = outputs_of(dk, dv, g, b, group)
        for r in range(g.keys):
            if g.wants_k != 0:
                narrow(off(dkh, r * row_k), off(from_k, r * ldk), g.width)
            if g.wants_v != 0:
                narrow(off(dvh, r * row_v), off(from_v, r * ldv), g.value_width)

    return round_sums


def _make_preparing(T: str) -> Inline:
    """Return an inline function: what is added to begins at zero."""
    zero = Intrinsic("zero", (T,))

    @inline
    def clear(x, row, n, rows):
        for r in range(rows):
            zero(off(x, r * row), n)

    @inline
    def prepare(sums, dbias, g, b, group, part):
        """Zero the sums of dK and dV of a group, and its rows of dbias if the group is the first.

        The first of those that add to the same rows: later ones add to what is there.
        """
        dkh, dk_row, dvh, dv_row = sums
        if g.wants_k != 0:
            clear(dkh, dk_row, g.width, g.keys)
        if g.wants_v != 0:
            clear(dvh, dv_row, g.value_width, g.keys)
        is_first = (g.together_batch == 0 or b == 0) and (g.together_head == 0 or group == 0)
        if g.wants_bias != 0 and is_first:
            each = udiv(g.heads, g.groups)
            heads = 1 if g.together_head != 0 else each
            for h in range(heads):
                at = off(dbias, b * g.dbias_batch + (group * each + h) * g.dbias_head)
                q0 = part * g.block_queries
                while q0 < g.queries:
                    nq = imin(g.block_queries, g.queries - q0)
                    clear(off(at, q0 * g.dbias_query), g.dbias_query, g.keys, nq)
                    q0 += g.parts * g.block_queries

    return prepare


@kernel(
    f"""
    q, k, v: S[...]   bias: T[...]   mask: b1[...]   noise: i64[1 record] if drops
    y: S[...]   lse: T[2, batch, heads, queries]   dy: S[...]
    dq: out S[...]   dk, dv: out D[...]   dbias: out T[...]   work: scratch T[...]
    scale, cap, fill, ratio: f64   g: i64[] where {SIZES} and min(parts, batch) >= 1
    """,
    words={"noise": RANDOM, "g": ATTENTION_WORDS},
    reach=_reach,
    multiply_adds=lambda c: seen_scores(c) * int(2 * c.width + 2 * c.value_width),
)
def attention_grad(target: Target, T: str, S: str = "", D: str = "", P: str = "") -> Body:
    """dQ, dK, dV and the bias's gradient of `attention` from dY, Y and lse, as `g.wants` says.

    Matrices strided as `g` says, columns next to each other; dk, dv: one such for each of
    `g.parts`.  The parameter S: how q, k, v, y, dy and dq are stored; D: how dk and dv are; P: as
    of `tile`.
    """
    number = Intrinsic("cast", (T, "f64"))
    whole, prepare = _make_block_gradient(target, T, S, P), _make_preparing(T)
    sums_of, finish_sums = outputs_as_sums, keep_sums
    if D:
        sums_of, finish_sums = sums_in_scratch, _make_rounding(T, D)

    def body(
        q, k, v, bias, mask, noise, y, lse, dy, dq, dk, dv, dbias, work,
        scale, cap, fill, ratio, g, tid, nthreads,
    ):  # fmt: skip
        bq, parts = g.block_queries, g.parts
        blocks = udiv(g.queries + bq - 1, bq)
        each = udiv(g.heads, g.groups)
        mine = off(work, tid * g.per_thread)
        inputs = q, k, v, bias, mask, y, lse, dy
        numbers = number(scale), number(cap), number(fill), ratio
        # Different threads may have different batches and groups of heads.  Batches and heads that
        # share a bias add to the same gradient: one thread has all of them, so that they are added
        # in one order.
        b_apart, g_apart = g.batch, g.groups
        if g.together_batch != 0:
            b_apart = 1
        if g.together_head != 0:
            g_apart = 1
        b_inside, g_inside = udiv(g.batch, b_apart), udiv(g.groups, g_apart)
        i = tid
        while i < b_apart * g_apart * parts:
            outer = udiv(i, parts)
            part = i - outer * parts
            b_outer = udiv(outer, g_apart)
            g_outer = outer - b_outer * g_apart
            # Threads that share the queries of a head add to parts of dK and dV of their own,
            # which another kernel sums in the order of the parts.
            mine_k, mine_v = off(dk, part * g.part_k), off(dv, part * g.part_v)
            for b in range(b_outer * b_inside, (b_outer + 1) * b_inside):
                for group in range(g_outer * g_inside, (g_outer + 1) * g_inside):
                    sums = sums_of(mine_k, mine_v, mine, g, b, group)
                    outs = dq, sums, dbias
                    prepare(sums, dbias, g, b, group, part)
                    for h in range(group * each, (group + 1) * each):
                        # Under a causal band later blocks see more keys, so parts take them in
                        # turns from either end.  With a bias a part keeps its rows: others would
                        # add to them at the same time.
                        at = part
                        if h & 1 == 1 and g.wants_bias == 0:
                            at = parts - 1 - part
                        while at < blocks:
                            q0 = at * bq
                            nq = imin(bq, g.queries - q0)
                            place = b, h, q0, nq
                            whole(inputs, outs, noise, mine, numbers, g, place)
                            at += parts
                    finish_sums(sums, mine_k, mine_v, g, b, group)
            i += nthreads

    return body


KERNELS = (attention_grad,)
