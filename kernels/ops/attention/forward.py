"""The forward kernel of attention: softmax over blocks of keys, the rest of the scores never there.

Source    Dao, "FlashAttention-2", arXiv 2307.08691, algorithm 1, on blocks that lie transposed
"""

from __future__ import annotations

from typing import NamedTuple

from engine.base.element_types import ITEMSIZE
from engine.kernels.machine.target import Target
from engine.kernels.ops.attention.blocks import (
    ATTENTION_WORDS,
    NAN_IS_EMPTY,
    SCALED,
    SIZES,
    adjust,
    check_blocks,
    count_padded,
    make_dropout,
    matrices_reach,
    pairs_of,
    product,
    rows_as,
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
    udiv,
)
from engine.kernels.vocabulary.row_program import loop
from engine.plan.context import RANDOM

SETTLED = "m[] -> y[] = where(m == const('-inf'), 0, m)"  # the usable maximum
VECTORS = 4  # rows of running numbers, one a query


def forward_work(
    bq: int, bk: int, width: int, value_width: int, lanes: int, S: str = "", P: str = ""
) -> int:
    """Return the elements of scratch that a thread needs.

    lanes: elements of a vector.  S: how matrices are stored, P: how factors are; a block of one
    matrix is converted at a time.
    """
    spare = count_padded(max(bq, bk), max(width, value_width), lanes) if S or P else 0
    return bq * (width + value_width + 2 * bk + VECTORS) + bq * bk + spare


def _reach(c: KernelCall) -> Reach:
    check_blocks(c)
    used = forward_work(
        c.block_queries, c.block_keys, c.width, c.value_width, c.lanes, c.S, c.type_of("P")
    )
    return {
        "q": matrices_reach(c, "q", c.heads, c.queries, c.width),
        "k": matrices_reach(c, "k", c.groups, c.keys, c.width),
        "v": matrices_reach(c, "v", c.groups, c.keys, c.value_width),
        "bias": scores_reach(c, "bias") if c.is_biased else 0,
        "mask": scores_reach(c, "mask") if c.is_masked else 0,
        "y": matrices_reach(c, "y", c.heads, c.queries, c.value_width),
        "work": c.scratch(c.per_thread, used),
    }


class _Products(NamedTuple):
    """Inline functions around the products of a block.

    turn_queries(qt, qh, scale, g, nq, n, spare): Q^T, scaled unless scores are.
    scale_scores(s, scale, g, nk, n): a block of scores, scaled unless Q^T is.
    add_values(vh, k0, s, x, ot, g, nq, nk, spare): Y^T += V^T P^T of a block of keys; x: scratch of
        the block's size.
    """

    turn_queries: Inline
    scale_scores: Inline
    add_values: Inline


def _make_products(target: Target, T: str, S: str) -> _Products:
    """Return the functions for factors as they are stored."""
    fetch, flip, values = rows_as(target, T, S, ""), turn(target, T), product(target, T, 1, "")
    copy_scaled = loop(T, SCALED)

    @inline
    def turn_queries(qt, qh, scale, g, nq, n, spare):
        bq, width = g.block_queries, g.width
        rows_q, ldq, _ = fetch(qh, g.q_row, width, nq, spare)
        flip(qt, bq, rows_q, ldq, nq, width)
        for r in range(width):
            copy_scaled(off(qt, r * bq), scale, off(qt, r * bq), n)

    @inline
    def scale_scores(s, scale, g, nk, n):
        """Do nothing: Q^T is scaled."""

    @inline
    def add_values(vh, k0, s, x, ot, g, nq, nk, spare):
        bq, columns = g.block_queries, g.value_width
        rows_v, ldv, _ = fetch(off(vh, k0 * g.v_row), g.v_row, columns, nk, spare)
        values(rows_v, ldv, s, bq, ot, bq, nk, columns, nq, ACCUMULATE)

    return _Products(turn_queries, scale_scores, add_values)


def _make_converted_products(target: Target, T: str, S: str, P: str) -> _Products:
    """Return the functions for factors that are converted to P."""
    flip_pairs, pairs_v = turn(target, T, S, P), pairs_of(target, T, S, P)
    pairs_p, values = pairs_of(target, T, T, P), product(target, T, 1, P)
    copy_scaled = loop(T, SCALED)

    @inline
    def turn_queries(qt, qh, scale, g, nq, n, spare):
        """Q^T as factors; with its scale it would be rounded twice."""
        flip_pairs(qt, g.block_queries, qh, g.q_row, nq, g.width)

    @inline
    def add_values(vh, k0, s, x, ot, g, nq, nk, spare):
        bq, columns = g.block_queries, g.value_width
        left, ldv = pairs_v(off(vh, k0 * g.v_row), g.v_row, columns, nk, spare, columns)
        right, ldp = pairs_p(s, bq, nq, nk, x, bq)
        values(left, ldv, right, ldp, ot, bq, nk, columns, nq, ACCUMULATE)

    @inline
    def scale_scores(s, scale, g, nk, n):
        """Scale a block of scores."""
        for r in range(nk):
            row = off(s, r * g.block_queries)
            copy_scaled(row, scale, row, n)

    return _Products(turn_queries, scale_scores, add_values)


def _make_softmax(T: str) -> Inline:
    """Return an inline function: exponentials of a block of scores, and the running numbers."""
    raise_top = loop(T, "x[] m[] -> m[] = max(m, x)")
    settle_top = loop(T, SETTLED)
    rescale = loop(T, "old[] top[] l[] -> a = exp(old - top); a[]; l[] = l * a")
    exps = loop(T, "s[] top[] l[] -> e = exp(s - top); p[] = e; l[] = l + e")
    multiply, copy = loop(T, "x[] a[] -> y[] = x * a"), Intrinsic("copy", (T,))

    @inline
    def take_scores(s, ot, m, top, total, a, g, nk, n):
        """S of a block to P, of the maximum so far; the sum and Y^T so far to this maximum."""
        bq, columns = g.block_queries, g.value_width
        copy(a, m, n)
        for r in range(nk):
            raise_top(off(s, r * bq), m, m, n)
        # A query that has seen no key yet has m = -inf; exp(s - m) would be NaN, so it subtracts 0.
        settle_top(m, top, n)
        # The maximum has risen from a to m: sum and Y^T so far were made of exp(s - a), so both
        # are multiplied by exp(a - m).
        rescale(a, top, total, a, total, n)
        for r in range(nk):
            exps(off(s, r * bq), top, total, off(s, r * bq), total, n)
        for r in range(columns):
            multiply(off(ot, r * bq), a, off(ot, r * bq), n)

    return take_scores


def _make_finish(target: Target, T: str, S: str) -> Inline:
    """Return an inline function: Y and lse of a block of queries that has seen all of its keys."""
    settle_top = loop(T, SETTLED)
    invert = loop(T, "l[] -> y[] = 1 / l")
    invert_seen = loop(T, "l[] -> y[] = where(l == 0, 0, 1 / l)")
    invert_real = loop(T, "l[] -> y[] = where((l == 0) | (l != l), 0, 1 / l)")
    divide = loop(T, "x[] inverse[] -> y[] = where(inverse == 0, 0, x * inverse)")
    logs = loop(T, "l[] a[] -> y[] = where(a == 0, const('inf'), log(l))")
    copy, store = Intrinsic("copy", (T,)), turn_as(target, T, S)

    @inline
    def finish(y, lse, ot, m, top, total, a, x, spare, g, b, h, q0, nq, n):
        bq, columns = g.block_queries, g.value_width
        settle_top(m, top, n)
        # A query without keys has the sum 0: NaN by its definition, or zeros where `guard` asks.
        if g.guard == 0:
            invert(total, a, n)
        else:
            if g.guard == NAN_IS_EMPTY:
                invert_real(total, a, n)
            else:
                invert_seen(total, a, n)
        for r in range(columns):
            divide(off(ot, r * bq), a, off(ot, r * bq), n)
        yh = off(y, b * g.y_batch + h * g.y_head + q0 * g.y_row)
        store(yh, g.y_row, ot, bq, columns, nq, spare)
        # m and log sum apart, for backward: P = exp(s - m - log sum).  Their sum would round away
        # the log where |m| is large.
        logs(total, a, x, n)
        at = (b * g.heads + h) * g.queries + q0
        copy(off(lse, at), top, nq)
        copy(off(lse, at + g.batch * g.heads * g.queries), x, nq)

    return finish


@kernel(
    f"""
    q, k, v: S[...]   bias: T[...]   mask: b1[...]   noise: i64[1 record] if drops
    y: out S[...]   lse: out T[2, batch, heads, queries]   work: scratch T[...]
    scale, cap, fill, ratio: f64   g: i64[] where {SIZES}
    """,
    words={"noise": RANDOM, "g": ATTENTION_WORDS},
    reach=_reach,
    multiply_adds=lambda c: seen_scores(c) * int(c.width + c.value_width),
)
def attention(target: Target, T: str, S: str = "", P: str = "") -> Body:
    """Y = softmax(scale Q K^T, adjusted) V for each head; lse = log sum exp of the scores.

    q, k, v, y: matrices strided as `g` says, columns next to each other; bias, mask: strided; lse:
    the maximum m and log sum exp(S - m), which is +inf for a query that `g.guard` makes zeros.
    The parameter S: how q, k, v and y are stored; P: as of `tile`.
    """
    lanes = target.lanes(ITEMSIZE[T])
    fill_row, zero = loop(T, "c -> y[] = c"), Intrinsic("zero", (T,))
    number = Intrinsic("cast", (T, "f64"))
    fetch, change = rows_as(target, T, S, P), adjust(target, T)
    scores = product(target, T, 0, P)
    products = _make_converted_products(target, T, S, P) if P else _make_products(target, T, S)
    turn_queries, scale_scores, add_values = products
    take_scores, drop_block = _make_softmax(T), make_dropout(T, is_backward=False)
    finish = _make_finish(target, T, S)

    @inline
    def whole(q, k, v, bias, mask, noise, y, lse, mine, scale, cap, fill, ratio, g, b, h, q0, nq):
        bq, bk, width, columns = g.block_queries, g.block_keys, g.width, g.value_width
        n = udiv(nq + lanes - 1, lanes) * lanes
        # A thread's scratch: Q^T and Y^T (columns are queries, as in the blocks), three blocks of
        # scores, rows of a number a query: m, the usable m, the sum of exponentials, a factor; and
        # rows of Q, K, V or Y that are stored as S.
        qt = mine
        ot = off(qt, bq * width)
        s = off(ot, bq * columns)
        x = off(s, bq * bk)
        z = off(x, bq * bk)
        m = off(z, bq * bk)
        top, total, a, spare = off(m, bq), off(m, 2 * bq), off(m, 3 * bq), off(m, 4 * bq)
        group = udiv(h * g.groups, g.heads)
        kh = off(k, b * g.k_batch + group * g.k_head)
        vh = off(v, b * g.v_batch + group * g.v_head)
        bias_h = off(bias, b * g.bias_batch + h * g.bias_head)
        mask_h = off(mask, b * g.mask_batch + h * g.mask_head)
        qh = off(q, b * g.q_batch + h * g.q_head + q0 * g.q_row)
        turn_queries(qt, qh, scale, g, nq, n, spare)
        fill_row(number(-1e400), m, n)
        zero(total, n)
        zero(ot, columns * bq)
        k0, end = visible(g, q0, nq)
        while k0 < end:
            nk = imin(bk, end - k0)
            rows_k, ldk, _ = fetch(off(kh, k0 * g.k_row), g.k_row, width, nk, spare)
            scores(rows_k, ldk, qt, bq, s, bq, width, nk, nq, 0)
            scale_scores(s, scale, g, nk, n)
            change(s, s, x, z, bias_h, mask_h, g, cap, fill, q0, nq, k0, nk)
            take_scores(s, ot, m, top, total, a, g, nk, n)
            if g.drops != 0:
                drop_block(s, s, s, g, noise, ratio, b, h, q0, nq, k0, nk)
            # Y^T += V^T P^T for these keys; the division by the sum waits for all of them.
            add_values(vh, k0, s, x, ot, g, nq, nk, spare)
            k0 += bk
        finish(y, lse, ot, m, top, total, a, x, spare, g, b, h, q0, nq, n)

    def body(q, k, v, bias, mask, noise, y, lse, work, scale, cap, fill, ratio, g, tid, nthreads):
        bq = g.block_queries
        blocks = udiv(g.queries + bq - 1, bq)
        mine = off(work, tid * g.per_thread)
        c, limit, hidden = number(scale), number(cap), number(fill)
        i = tid
        while i < g.batch * g.heads * blocks:
            head = udiv(i, blocks)
            at = i - head * blocks
            if head & 1 == 1:  # from the end: later blocks see more keys, if earlier keys alone
                at = blocks - 1 - at
            b = udiv(head, g.heads)
            h = head - b * g.heads
            q0 = at * bq
            nq = imin(bq, g.queries - q0)
            whole(
                q, k, v, bias, mask, noise, y, lse, mine, c, limit, hidden, ratio, g, b, h, q0, nq
            )
            i += nthreads

    return body


KERNELS = (attention,)
