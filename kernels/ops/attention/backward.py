"""The backward kernel of attention: probabilities again from the log-sum-exp, block by block.

Source    Dao, "FlashAttention-2", arXiv 2307.08691, algorithm 2; dK and dV in parts by thread,
          which are summed in the order of the parts
"""

from __future__ import annotations

from engine.element_types import ITEMSIZE
from engine.kernels.ops.attention.blocks import (
    ATTENTION_WORDS,
    SIZES,
    adjust,
    check_blocks,
    dropped,
    masked,
    matrices_reach,
    product,
    rows_reach,
    scores_reach,
    seen_scores,
    turn,
    visible,
)
from engine.kernels.target import Target
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    Body,
    Native,
    imin,
    inline,
    kernel,
    off,
    pick,
    udiv,
)
from engine.kernels.vocabulary.row_program import loop
from engine.kernels.vocabulary.signature import up
from engine.runtime.context import RANDOM


def backward_work(bq: int, bk: int, width: int, value_width: int, lanes: int) -> int:
    """Return the elements of scratch that a thread needs.

    lanes: elements of a vector.  Rows of Q or dY that are not whole vectors are copied.
    """
    is_ragged = width % lanes or value_width % lanes
    rows = up(width, lanes) + up(value_width, lanes) if is_ragged else 0
    return bq * (2 * width + value_width + 5 * bk + 3 + rows)


def _reach(c: KernelCall) -> Reach:
    check_blocks(c)
    width, columns = c.width, c.value_width
    wants_q, wants_k, wants_v, wants_bias = c.wants
    used = backward_work(c.block_queries, c.block_keys, width, columns, c.lanes)
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


@kernel(
    f"""
    q, k, v, bias: T[...]   mask: b1[...]   noise: i64[1 record] if drops
    y: T[...]   lse: T[2, batch, heads, queries]   dy: T[...]
    dq, dk, dv, dbias: out T[...]   work: scratch T[...]
    scale, cap, fill, ratio: f64   g: i64[] where {SIZES} and min(parts, batch) >= 1
    """,
    words={"noise": RANDOM, "g": ATTENTION_WORDS},
    reach=_reach,
    multiply_adds=lambda c: seen_scores(c) * int(2 * c.width + 2 * c.value_width),
)
def attention_grad(target: Target, T: str) -> Body:
    """dQ, dK, dV and the bias's gradient of `attention` from dY, Y and lse, as `g.wants` says.

    Matrices strided as `g` says, columns next to each other; dk, dv: one such for each of
    `g.parts`.
    """
    lanes = target.lanes(ITEMSIZE[T])
    copy_scaled = loop(T, "x[] c -> y[] = x * c")
    dot = loop(T, "x[] y[] -> sum(x * y)")
    exps = loop(
        T, "s[] top[] log_l[] -> p[] = where(log_l == const('inf'), 0, exp(s - top - log_l))"
    )
    slope = loop(T, "p[] u[] delta[] c -> s[] = p * (u - delta) * c")
    uncap = loop(T, "s[] capped[] inverse -> t = capped * inverse; s[] = s * (1 - t * t)")
    add = loop(T, "x[] y[] -> y[] = x + y")
    drop = dropped(T, "x[] = where(seen, p * kept, 0); u[] = where(seen, u * kept, 0)")
    mix = loop("u32", "low high key -> philox0(low, high, key)")
    reciprocal = loop(T, "x -> 1 / x")
    zero, copy = Native("zero", (T,)), Native("copy", (T,))
    number, single = Native("cast", (T, "f64")), Native("cast", ("f32", "f64"))
    flip = turn(target, T)
    right, left = product(target, T, 0), product(target, T, 1)
    change, blank = adjust(target, T), masked(target, T)

    @inline
    def drop_block(s, x, u, g, noise, ratio, b, h, q0, nq, k0, nk):
        seed = g.seed
        if g.fixed == 0:
            seed = noise.seed
        key = mix(seed, seed >> 32, g.node, 1)
        keys, bq = g.keys, g.block_queries
        count = g.batch * g.heads * g.queries * keys
        half = count - (count >> 1)
        kept = number(1.0 / (1.0 - ratio))
        first = ((b * g.heads + h) * g.queries + q0) * keys + k0
        for r in range(nk):
            p, w, d = off(s, r * bq), off(x, r * bq), off(u, r * bq)
            drop(0, first + r, keys, half, noise.step, key, single(ratio), kept, p, d, w, d, nq)

    @inline
    def by_vectors(x, row, n, rows, wanted, spare):
        """Rows of n elements as a right factor, which a product reads by whole vectors, and their
        stride: x itself, or a copy, since the last row of x may end where its memory does."""
        step = udiv(n + lanes - 1, lanes) * lanes
        if step != n and wanted != 0:
            for i in range(rows):
                copy(off(spare, i * step), off(x, i * row), n)
        return pick(step - n, spare, x), step if step != n else row

    @inline
    def whole(
        q, k, v, bias, mask, noise, y, lse, dy, dq, dk, dv, dbias, mine,
        scale, cap, fill, ratio, g, b, h, q0, nq,
    ):  # fmt: skip
        bq, bk, width, columns = g.block_queries, g.block_keys, g.width, g.value_width
        n = udiv(nq + lanes - 1, lanes) * lanes
        qt = mine
        dqt = off(qt, bq * width)
        dyt = off(dqt, bq * width)
        s = off(dyt, bq * columns)
        u = off(s, bq * bk)
        x = off(u, bq * bk)
        z = off(x, bq * bk)
        capped = off(z, bq * bk)
        delta = off(capped, bq * bk)
        top, log_l = off(delta, bq), off(delta, 2 * bq)
        spare = off(delta, 3 * bq)
        qh = off(q, b * g.q_batch + h * g.q_head + q0 * g.q_row)
        yh = off(y, b * g.y_batch + h * g.y_head + q0 * g.y_row)
        dyh = off(dy, b * g.dy_batch + h * g.dy_head + q0 * g.dy_row)
        group = udiv(h * g.groups, g.heads)
        kh = off(k, b * g.k_batch + group * g.k_head)
        vh = off(v, b * g.v_batch + group * g.v_head)
        dkh = off(dk, b * g.dk_batch + group * g.dk_head)
        dvh = off(dv, b * g.dv_batch + group * g.dv_head)
        bias_h = off(bias, b * g.bias_batch + h * g.bias_head)
        mask_h = off(mask, b * g.mask_batch + h * g.mask_head)
        dbias_h = off(dbias, b * g.dbias_batch + h * g.dbias_head)
        inner = g.wants_q + g.wants_k + g.wants_bias
        rows_q, ldq = by_vectors(qh, g.q_row, width, nq, g.wants_k, spare)
        spare_dy = off(spare, bq * udiv(width + lanes - 1, lanes) * lanes)
        rows_dy, ldy = by_vectors(dyh, g.dy_row, columns, nq, g.wants_v, spare_dy)
        flip(qt, bq, qh, g.q_row, nq, width)
        for r in range(width):
            copy_scaled(off(qt, r * bq), scale, off(qt, r * bq), n)
        flip(dyt, bq, dyh, g.dy_row, nq, columns)
        at = (b * g.heads + h) * g.queries + q0
        copy(top, off(lse, at), nq)
        copy(log_l, off(lse, at + g.batch * g.heads * g.queries), nq)
        for i in range(nq):
            delta[i] = dot(off(dyh, i * g.dy_row), off(yh, i * g.y_row), columns)
        zero(dqt, width * bq)
        k0, end = visible(g, q0, nq)
        while k0 < end:
            nk = imin(bk, end - k0)
            right(off(kh, k0 * g.k_row), g.k_row, qt, bq, s, bq, width, nk, nq, 0)
            change(s, capped, x, z, bias_h, mask_h, g, cap, fill, q0, nq, k0, nk)
            for r in range(nk):
                exps(off(s, r * bq), top, log_l, off(s, r * bq), n)
            p = s
            right(off(vh, k0 * g.v_row), g.v_row, dyt, bq, u, bq, columns, nk, nq, 0)
            if g.drops != 0:
                drop_block(s, x, u, g, noise, ratio, b, h, q0, nq, k0, nk)
                p = x
            if g.wants_v != 0:
                right(
                    p, bq, rows_dy, ldy, off(dvh, k0 * g.dv_row), g.dv_row, nq, nk, columns,
                    ACCUMULATE,
                )  # fmt: skip
            if inner != 0:
                factor = scale
                if g.wants_bias + g.is_capped != 0:
                    factor = number(1.0)
                for r in range(nk):
                    row = off(s, r * bq)
                    slope(row, off(u, r * bq), delta, factor, row, n)
                if g.is_filled != 0:
                    blank(s, x, z, mask_h, g, number(0.0), q0, nq, k0, nk)
                if g.wants_bias != 0:
                    flip(z, bk, s, bq, nk, nq)
                    for i in range(nq):
                        row = off(dbias_h, (q0 + i) * g.dbias_query + k0)
                        add(off(z, i * bk), row, row, nk)
                if g.is_capped != 0:
                    uncap(s, capped, reciprocal(cap, 1), s, nk * bq)
                if g.wants_bias + g.is_capped != 0:
                    copy_scaled(s, scale, s, nk * bq)
                if g.wants_k != 0:
                    right(
                        s, bq, rows_q, ldq, off(dkh, k0 * g.dk_row), g.dk_row, nq, nk, width,
                        ACCUMULATE,
                    )  # fmt: skip
                if g.wants_q != 0:
                    left(off(kh, k0 * g.k_row), g.k_row, s, bq, dqt, bq, nk, width, nq, ACCUMULATE)
            k0 += bk
        if g.wants_q != 0:
            dqh = off(dq, b * g.dq_batch + h * g.dq_head + q0 * g.dq_row)
            flip(dqh, g.dq_row, dqt, bq, width, nq)

    @inline
    def clear(x, row, n, rows):
        for r in range(rows):
            zero(off(x, r * row), n)

    @inline
    def prepare(dk, dv, dbias, g, b, group, part):
        """Zeros where this part of a group adds up; its rows of the bias's gradient if first."""
        if g.wants_k != 0:
            clear(off(dk, b * g.dk_batch + group * g.dk_head), g.dk_row, g.width, g.keys)
        if g.wants_v != 0:
            clear(off(dv, b * g.dv_batch + group * g.dv_head), g.dv_row, g.value_width, g.keys)
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

    def body(
        q, k, v, bias, mask, noise, y, lse, dy, dq, dk, dv, dbias, work,
        scale, cap, fill, ratio, g, tid, nthreads,
    ):  # fmt: skip
        bq, parts = g.block_queries, g.parts
        blocks = udiv(g.queries + bq - 1, bq)
        each = udiv(g.heads, g.groups)
        mine = off(work, tid * g.per_thread)
        c, limit, hidden = number(scale), number(cap), number(fill)
        b_apart, g_apart = g.batch, g.groups  # what different threads may have
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
            mine_k, mine_v = off(dk, part * g.part_k), off(dv, part * g.part_v)
            for b in range(b_outer * b_inside, (b_outer + 1) * b_inside):
                for group in range(g_outer * g_inside, (g_outer + 1) * g_inside):
                    prepare(mine_k, mine_v, dbias, g, b, group, part)
                    for h in range(group * each, (group + 1) * each):
                        at = part
                        if h & 1 == 1 and g.wants_bias == 0:  # else a part keeps its rows of it
                            at = parts - 1 - part
                        while at < blocks:
                            q0 = at * bq
                            nq = imin(bq, g.queries - q0)
                            whole(
                                q, k, v, bias, mask, noise, y, lse, dy, dq, mine_k, mine_v, dbias,
                                mine, c, limit, hidden, ratio, g, b, h, q0, nq,
                            )  # fmt: skip
                            at += parts
            i += nthreads

    return body


KERNELS = (attention_grad,)
