"""Blocks of scores: what the forward and the backward kernel of attention share.

A block lies transposed, a row a key and a column a query: s[key * g.block_queries + query].  So the
queries are the vector direction.  Maxima and sums over keys need no sums across a vector, K and V
are read where they are, as the factors that register tiles broadcast, and the block of
probabilities is the right operand of a product as it lies.
"""

from __future__ import annotations

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.contract import line, strip
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.call import KernelCall
from engine.kernels.vocabulary.kernel import (
    Inline,
    Intrinsic,
    imax,
    imin,
    inline,
    off,
    outline,
    udiv,
)
from engine.kernels.vocabulary.row_program import loop
from engine.kernels.vocabulary.signature import round_to_unit
from engine.plan.words import Field, Words

ROWS = ("batch", "head", "row")  # what a matrix of each head is strided by
SCORES = ("batch", "head", "query", "key")
NAN_IS_EMPTY = 2  # of `guard`: a query whose scores hold NaN counts as one without keys
UNKNOWN = 1 << 40  # beyond all positions: a band without this border


ATTENTION_WORDS = Words(
    "attention",
    batch="matrices of a head",
    heads="heads of Q",
    groups="heads of K and V, each for as many heads of Q that follow each other",
    queries="rows of Q",
    keys="rows of K and V",
    width="columns of Q and K",
    value_width="columns of V",
    q=Field("strides of Q, in elements", names=ROWS),
    k=Field("strides of K", names=ROWS),
    v=Field("strides of V", names=ROWS),
    y=Field("strides of Y", names=ROWS),
    dy=Field("strides of dY", names=ROWS),
    dq=Field("strides of dQ", names=ROWS),
    dk=Field("strides of dK, or of its parts", names=ROWS),
    dv=Field("strides of dV, or of its parts", names=ROWS),
    bias=Field("strides of the bias, 0 where it is broadcast", names=SCORES),
    mask=Field("strides of the mask, 0 where it is broadcast", names=SCORES),
    dbias=Field("strides of the bias's gradient", names=SCORES),
    low=Field(
        "the first key that query 0 sees; each further query sees from one further on",
        range="signed",
    ),
    high=Field("the last key that query 0 sees, counted so too", range="signed"),
    keep=Field("the value of the mask where a key is seen", range="any"),
    is_biased="whether there is a bias",
    is_masked="whether there is a mask",
    is_filled="whether a masked score may have a probability, or NaN",
    is_capped="whether scores are capped",
    drops="whether probabilities are dropped",
    guard="what gives zeros: 0 nothing, 1 queries without keys, 2 those whose scores hold NaN too",
    node=Field("the node's own number, from which the dropout mask is drawn", range="any"),
    fixed="whether `seed` is the seed of the dropout mask",
    seed=Field("the seed", range="any"),
    wants=Field("which gradients are wanted", names=("q", "k", "v", "bias")),
    block_queries="columns of a block",
    block_keys="rows of a block",
    parts="how many threads share the queries of a head, each with its own part of dK and dV",
    part_k="elements from part to part of dK",
    part_v="elements from part to part of dV",
    together=Field(
        "whether one thread sums over these, since they share a bias", names=("batch", "head")
    ),
    per_thread="elements of `work` that a thread has",
)

# Sizes that both directions divide by.
SIZES = "min(heads, groups, block_queries, block_keys) >= 1 and groups <= heads"
SCALED = "x[] c -> y[] = x * c"  # a row loop


def check_blocks(c: KernelCall) -> None:
    """Refuse blocks whose rows are not whole vectors."""
    if round_to_unit(min(c.block_queries, c.queries), c.lanes) > c.block_queries:
        c.refuse(f"blocks of {c.block_queries} queries; a vector has {c.lanes}")


def matrices_reach(c: KernelCall, name: str, heads: int, rows: int, columns: int) -> int:
    """Return the reach into the matrices of all heads."""
    by_batch, by_head, by_row = c.numbers[name]
    return c.span(0, (c.batch, by_batch), (heads, by_head), (rows, by_row), (columns, 1))


def scores_reach(c: KernelCall, name: str) -> int:
    """Return the reach into a bias or a mask, which is read a row at a time if its keys adjoin."""
    steps = c.numbers[name]
    reach = c.span(0, *zip((c.batch, c.heads, c.queries, c.keys), steps, strict=True))
    return max(reach, rows_reach(c, name)) if steps[3] == 1 else reach


def rows_reach(c: KernelCall, name: str) -> int:
    """Return the reach into rows of scores whose keys adjoin."""
    by_batch, by_head, by_query, _ = c.numbers[name]
    walks = (c.batch, by_batch), (c.heads, by_head), (c.queries, by_query), (c.keys, 1)
    return c.span(0, *walks)


def seen_scores(c: KernelCall) -> int:
    """Return the number of scores that the band leaves."""
    seen = 0
    for query in range(c.queries):
        first, last = max(query + c.low, 0), min(query + c.high + 1, c.keys)
        seen += max(last - first, 0)
    return int(c.batch * c.heads * seen)


def turn(target: Target, T: str, S: str = "", P: str = "") -> Inline:
    """Return an inline function turn(into, ldi, x, ldx, rows, cols): into = x transposed.

    P: of factors in pairs, as `line` makes them; into has a row for two columns of x.  S: how x
    is stored then.
    """
    lanes = target.lanes(ITEMSIZE[T])
    if P:
        return _turn_pairs(lanes, Intrinsic("turn", (P, S or T)), line(target, T, S, P))
    transpose = Intrinsic("transpose", (T,))

    @outline
    def run(into, ldi, x, ldx, rows, cols):
        i = 0
        while i + lanes <= rows:
            j = 0
            while j + lanes <= cols:
                transpose(off(into, j * ldi + i), ldi, off(x, i * ldx + j), ldx)
                j += lanes
            for jj in range(j, cols):
                for ii in range(i, i + lanes):
                    into[jj * ldi + ii] = x[ii * ldx + jj]
            i += lanes
        for ii in range(i, rows):
            for jj in range(cols):
                into[jj * ldi + ii] = x[ii * ldx + jj]

    return run


def _turn_pairs(lanes: int, transpose: Intrinsic, pair: Inline) -> Inline:
    """Return `turn` for factors in pairs."""

    @outline
    def run(into, ldi, x, ldx, rows, cols):
        words = (cols + 1) >> 1
        i = 0
        while i + lanes <= rows:
            j = 0
            while 2 * (j + lanes) <= cols:
                transpose(off(into, j * ldi + i), ldi, off(x, i * ldx + 2 * j), ldx)
                j += lanes
            for jj in range(j, words):
                for ii in range(i, i + lanes):
                    pair(off(into, jj * ldi + ii), off(x, ii * ldx), 1, jj, 0, cols, 1)
            i += lanes
        for ii in range(i, rows):
            for jj in range(words):
                pair(off(into, jj * ldi + ii), off(x, ii * ldx), 1, jj, 0, cols, 1)

    return run


def turn_as(target: Target, T: str, S: str) -> Inline:
    """Return an inline function: as `turn`, but it writes rows of S, or of T where S is empty.

    turn_as(into, ldi, x, ldx, rows, cols, spare).  spare: scratch of as many elements as are
    written.
    """
    flip = turn(target, T)
    narrow = loop(T, "x[] -> y:S[] = x", S)

    @inline
    def same(into, ldi, x, ldx, rows, cols, spare):
        flip(into, ldi, x, ldx, rows, cols)

    @inline
    def narrowed(into, ldi, x, ldx, rows, cols, spare):
        flip(spare, rows, x, ldx, rows, cols)
        for i in range(cols):
            narrow(off(spare, i * rows), off(into, i * ldi), rows)

    return narrowed if S else same


def rows_as(target: Target, T: str, S: str, P: str = "") -> Inline:
    """Return an inline function: rows of T, or of P, of rows that are stored as S, or T if empty.

    rows_as(x, row, n, rows, spare): the rows, their stride, and how many elements of each may be
    read.  spare: scratch of `count_padded` elements, for rows of another type.
    """
    lanes = target.lanes(ITEMSIZE[T])
    widen = Intrinsic("convert", (P, S or T)) if P else loop(T, "x:S[] -> y[] = x", S)
    as_factors = Intrinsic("halves", (P,))

    @inline
    def same(x, row, n, rows, spare):
        return x, row, n

    @inline
    def widened(x, row, n, rows, spare):
        step = udiv(n + lanes - 1, lanes) * lanes
        for i in range(rows):
            widen(off(x, i * row), off(spare, i * step), n)
        return spare, step, step

    @inline
    def narrowed(x, row, n, rows, spare):
        step = udiv(n + lanes - 1, lanes) * lanes
        factors = as_factors(spare)
        for i in range(rows):
            widen(off(factors, i * step), off(x, i * row), n)
        return factors, step, step

    if P:
        return same if S == P else narrowed
    return widened if S else same


def rows_of_block(target: Target, T: str, P: str) -> Inline:
    """Return an inline function: rows of a block of scores as factors, with their stride.

    rows_of_block(x, row, n, rows, spare): spare: scratch of half the block's size.
    """
    narrow, as_factors = Intrinsic("convert", (P, T)), Intrinsic("halves", (P,))

    @inline
    def run(x, row, n, rows, spare):
        factors = as_factors(spare)
        for r in range(rows):
            narrow(off(factors, r * row), off(x, r * row), n)
        return factors, row

    return run


def pairs_of(target: Target, T: str, S: str, P: str) -> Inline:
    """Return an inline function: rows of a block as factors in pairs, two rows in one of words.

    pairs_of(x, row, n, rows, into, step): into, step: the words and their stride, which it returns.
    S: how the block is stored.
    """
    pair = line(target, T, S, P)

    @inline
    def run(x, row, n, rows, into, step):
        for r in range((rows + 1) >> 1):
            pair(off(into, r * step), x, row, r, 0, rows, n)
        return into, step

    return run


def count_padded(rows: int, columns: int, lanes: int) -> int:
    """Return how many elements rows have that are filled up to whole vectors."""
    return rows * round_to_unit(columns, lanes)


def product(target: Target, T: str, a_cols: int, P: str = "") -> Inline:
    """Return an inline function: product(a, lda, b, ldb, c, ldc, k, m, n, mode): C = A B (+ C).

    A is stored as `tile` says; rows of B and of C follow each other after ldb and ldc elements.
    P: as of `tile`.
    """
    rows = strip(target, T, a_cols, P)
    width = target.nv * target.lanes(ITEMSIZE[T])

    @outline
    def run(a, lda, b, ldb, c, ldc, k, m, n, mode):
        j = 0
        while j < n:
            rows(a, lda, off(b, j), ldb, off(c, j), ldc, b, k, m, imin(width, n - j), mode)
            j += width

    return run


@inline
def visible(g, q0, nq):
    """The keys [begin, end) that some of the queries [q0, q0 + nq) sees by the band."""
    begin = imin(imax(q0 + g.low, 0), g.keys)
    return begin, imax(imin(q0 + nq + g.high, g.keys), begin)


def adjust(target: Target, T: str) -> Inline:
    """Return an inline function: cap, bias, mask and band of a block of scores, in place.

    adjust(s, capped, x, z, bias, mask, g, cap, fill, q0, nq, k0, nk).  bias, mask: of the
    head; `capped` receives the capped scores, if they are; x: a block, z: one with a row a query,
    both scratch.
    """
    lanes = target.lanes(ITEMSIZE[T])
    cap_row = loop(T, "x[] cap inverse -> y = tanh(x * inverse) * cap; y[]; c[] = y")
    shift = loop(T, "x[] c -> y[] = x + c")
    add = loop(T, "x[] c[] -> y[] = x + c")
    band = loop(T, "q:i32.. x[] a:i32 b:i32 fill -> y[] = where((q >= a) & (q <= b), x, fill)")
    reciprocal = loop(T, "x -> 1 / x")
    flip = turn(target, T)
    blank = masked(target, T)

    @inline
    def biased(s, x, bias, g, q0, nq, k0, nk):
        bq = g.block_queries
        n = udiv(nq + lanes - 1, lanes) * lanes
        # A bias without rows of queries adds one number to the row of a key.
        if g.bias_query == 0:
            for r in range(nk):
                row = off(s, r * bq)
                shift(row, bias[(k0 + r) * g.bias_key], row, n)
        else:
            if g.bias_key == 1:
                flip(x, bq, off(bias, q0 * g.bias_query + k0), g.bias_query, nq, nk)
            else:
                for r in range(nk):
                    for i in range(nq):
                        x[r * bq + i] = bias[(q0 + i) * g.bias_query + (k0 + r) * g.bias_key]
            add(s, x, s, nk * bq)

    @inline
    def banded(s, g, fill, q0, nq, k0, nk):
        bq = g.block_queries
        n = udiv(nq + lanes - 1, lanes) * lanes
        # Blocks inside the band need no test of their positions.
        if k0 < q0 + nq - 1 + g.low or k0 + nk - 1 > q0 + g.high:
            for r in range(nk):
                row = off(s, r * bq)
                at = k0 + r - q0  # of queries counted from q0: those from at - high to at - low
                first, last = imax(at - g.high, -1), imin(imax(at - g.low, -1), nq)
                band(0, row, first, last, fill, row, n)

    @outline
    def run(s, capped, x, z, bias, mask, g, cap, fill, q0, nq, k0, nk):
        # In the order of the forward formula: cap, bias, mask, band.
        if g.is_capped != 0:
            cap_row(s, cap, reciprocal(cap, 1), s, capped, nk * g.block_queries)
        if g.is_biased != 0:
            biased(s, x, bias, g, q0, nq, k0, nk)
        if g.is_masked != 0:
            blank(s, x, z, mask, g, fill, q0, nq, k0, nk)
        banded(s, g, fill, q0, nq, k0, nk)

    return run


def masked(target: Target, T: str) -> Inline:
    """Return an inline function: a value where the mask of the head hides a key, in place.

    masked(s, x, z, mask, g, value, q0, nq, k0, nk); x: a block, z: one with a row a query, both
    scratch.
    """
    lanes = target.lanes(ITEMSIZE[T])
    number = loop(T, "mask:b1[] -> y[] = cast(T, mask)")
    choose = loop(T, "x[] seen[] keep value -> y[] = where(seen == keep, x, value)")
    fill_row = loop(T, "value -> y[] = value")
    flip = turn(target, T)
    real = Intrinsic("cast", (T, "i64"))

    @outline
    def run(s, x, z, mask, g, value, q0, nq, k0, nk):
        bq, bk = g.block_queries, g.block_keys
        n = udiv(nq + lanes - 1, lanes) * lanes
        # One value for all queries of a key: whole rows are filled, or left as they are.
        if g.mask_query == 0:
            for r in range(nk):
                if mask[(k0 + r) * g.mask_key] != g.keep:
                    fill_row(value, off(s, r * bq), n)
        else:
            if g.mask_key == 1:
                for i in range(nq):
                    number(off(mask, (q0 + i) * g.mask_query + k0), off(z, i * bk), nk)
                flip(x, bq, z, bk, nq, nk)
            else:
                for r in range(nk):
                    for i in range(nq):
                        x[r * bq + i] = mask[(q0 + i) * g.mask_query + (k0 + r) * g.mask_key]
            choose(s, x, real(g.keep), value, s, nk * bq)

    return run


def make_dropout(T: str, *, is_backward: bool) -> Inline:
    """Return an inline function: x = P of a block, as the mask of the dropout leaves it.

    drop(s, x, u, g, noise, ratio, b, h, q0, nq, k0, nk)

    s: P.  x: may be s.  u: dP, which is dropped in place if is_backward, and otherwise not used.
    """
    outputs, names = "x[] = where(seen, p * kept, 0)", "p[]"
    if is_backward:
        outputs, names = f"{outputs}; u[] = where(seen, u * kept, 0)", "p[] u[]"
    drop = loop(
        T,
        f"""column:u32.. first:u32 n:u32 half:u32 step:u32 key:u32 ratio:f32 kept {names} ->
        i = first + column * n; back = i >= half; at = where(back, i - half, i);
        w = where(back, philox1(at, step, key), philox0(at, step, key));
        seen = cast(f32, w >> 8) * 5.9604644775390625e-08 >= ratio; {outputs}""",
    )
    mix = loop("u32", "low high key -> philox0(low, high, key)")
    number, single = Intrinsic("cast", (T, "f64")), Intrinsic("cast", ("f32", "f64"))

    if is_backward:

        @inline
        def drop_row(first, n, half, step, key, ratio, kept, p, x, u, count):
            drop(0, first, n, half, step, key, ratio, kept, p, u, x, u, count)

    else:

        @inline
        def drop_row(first, n, half, step, key, ratio, kept, p, x, u, count):
            drop(0, first, n, half, step, key, ratio, kept, p, x, count)

    @inline
    def run(s, x, u, g, noise, ratio, b, h, q0, nq, k0, nk):
        seed = g.seed
        if g.fixed == 0:
            seed = noise.seed
        key = mix(seed, seed >> 32, g.node, 1)
        keys, bq = g.keys, g.block_queries
        # Element i of the whole matrix of probabilities has draw i of `noise.draw`, so the mask
        # depends on neither blocks nor threads, and backward draws the one of forward.  Philox
        # gives two words a counter: the second half of the elements takes the second word.
        count = g.batch * g.heads * g.queries * keys
        half = count - (count >> 1)
        # The probabilities that stay grow, so that the mean of a sum over keys does not change.
        kept = number(1.0 / (1.0 - ratio))
        first = ((b * g.heads + h) * g.queries + q0) * keys + k0
        for r in range(nk):
            p, w, d = off(s, r * bq), off(x, r * bq), off(u, r * bq)
            drop_row(first + r, keys, half, noise.step, key, single(ratio), kept, p, w, d, nq)

    return run
