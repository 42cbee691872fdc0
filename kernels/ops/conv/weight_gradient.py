"""Gradients of convolution weights: a matrix product whose long side, the pixels, is summed over.

    dW[co, k] = sum_m dY[m, co] P[m, k]        dB[co] = sum_m dY[m, co]

dY is read as it is stored, columns of P are gathered into cache (`patches.py`).  Factors of 16 bits
are both copied into cache, where a word of 32 bits holds two of them.  Threads share the columns
when there are enough; otherwise each sums a part of the pixels, and the parts are added in order,
so the result depends on the number of threads but never on their timing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.contract import (
    count_in_row,
    depth_of,
    line,
    strip,
    view_panel,
    words_of,
)
from engine.kernels.loops.window import Axes, Axis, count_parts, round_up
from engine.kernels.machine.target import Target
from engine.kernels.ops.conv import depthwise as D
from engine.kernels.ops.conv import patches
from engine.kernels.ops.conv.convolution import choose_factors, is_depthwise
from engine.kernels.ops.conv.few_channels import FEW_WEIGHTS_KERNELS, is_few, lower_few_weights
from engine.kernels.ops.conv.patches import Job
from engine.kernels.ops.conv.winograd_calls import (
    WINOGRAD_WEIGHTS_KERNELS,
    choose_tiles,
    lower_winograd_weights,
)
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    Body,
    Inline,
    Intrinsic,
    Numbers,
    Parameters,
    drop_same,
    imin,
    inline,
    kernel,
    off,
    share,
    udiv,
)
from engine.kernels.vocabulary.op import Lowering, Operand, find_each_stored, find_stored
from engine.kernels.vocabulary.row_program import loop
from engine.kernels.vocabulary.signature import round_to_unit
from engine.kernels.vocabulary.tiling import Tiling
from engine.plan.words import Field, Words


def _row_sums(T: str, S: str) -> Inline:
    """Return an inline function: into[c] += sum over i of y[i co + c], in blocks of mc rows.

    row_sums(y, into, work, begin, end, co, mc); S: how y is stored.
    """
    add, add_row = loop(T, "x[] y[] -> x[] = x + y"), loop(T, "x[] y:S[] -> x[] = x + y", S)
    zero = Intrinsic("zero", (T,))

    @inline
    def run(y, into, work, begin, end, co, mc):
        # A block's sum is closed before it meets the total, so that the error grows with the rows
        # of a block and the number of blocks, not with all pixels.
        while begin < end:
            zero(work, co)
            for i in range(begin, imin(begin + mc, end)):
                add_row(work, off(y, i * co), work, co)
            add(into, work, into, co)
            begin += mc

    return run


def _take(T: str, S: str) -> Any:
    """Return an inline function: a block of mb rows of dy that are stored as S, co apart, as T.

    take(dy, co, into, mb, n) returns (pointer, elements from row to row).
    """
    copy = Intrinsic("convert", (T, S)) if S else None

    @inline
    def in_place(dy, co, into, mb, n):
        return dy, co

    @inline
    def converted(dy, co, into, mb, n):
        # Rows that touch in memory, as all do without groups, are one run.
        runs, length = (mb, n) if n < co else (1, mb * n)
        for i in range(runs):
            copy(off(into, i * n), off(dy, i * co), length)
        return into, n

    return converted if S else in_place


def _round_rows(target: Target, T: str, S: str, P: str) -> Inline:
    """Return `take` for factors P of rows that are stored as S."""
    row, depth, panel = line(target, T, S, P), depth_of(P), view_panel(P)

    @inline
    def rounded(dy, co, into, mb, n):
        rows = panel(into)
        for r in range(depth(mb)):
            row(off(rows, r * n), dy, co, r, 0, mb, n)
        return rows, n

    return rounded


def _take_columns(target: Target, T: str, S: str) -> Inline:
    """Return an inline function: nb columns of mb rows of P, of x stored as S, T if empty.

    take(x, into, q, m0, mb, j0, nb, g) returns (pointer, elements from row to row); g: the words of
    `conv_dw`.
    """
    fill, lanes = patches.gather(T, S), target.lanes(ITEMSIZE[T])

    @inline
    def gather(x, into, q, m0, mb, j0, nb, g):
        ldb = udiv(nb + lanes - 1, lanes) * lanes
        fill(x, into, ldb, q, m0, mb, j0, nb)
        return into, ldb

    @inline
    def gather_or_point(x, into, q, m0, mb, j0, nb, g):
        right, ldb = off(x, m0 * q.ldx + j0), q.ldx
        if q.direct == 0:
            right, ldb = gather(x, into, q, m0, mb, j0, nb, g)
        return right, ldb

    return gather if S else gather_or_point


def _round_columns(target: Target, T: str, S: str, P: str) -> Inline:
    """Return `take` of `_take_columns` for factors P.

    Patches of pairs are gathered as P first, after the words of dy.
    """
    fill, lanes = patches.gather(P, drop_same(S, P)), target.lanes(ITEMSIZE[T])
    of_x, of_patches = line(target, T, S, P), line(target, T, P, P)
    depth, words, halves = depth_of(P), words_of(P), Intrinsic("halves", (P,))

    @inline
    def one_by_one(x, into, q, m0, mb, j0, nb, g):
        rows, ldb = halves(into), udiv(nb + lanes - 1, lanes) * lanes
        if q.direct != 0:
            at = off(x, m0 * q.ldx + j0)
            for r in range(mb):
                of_x(off(rows, r * ldb), at, q.ldx, r, 0, mb, nb)
        else:
            fill(x, rows, ldb, q, m0, mb, j0, nb)
        return rows, ldb

    @inline
    def paired(x, into, q, m0, mb, j0, nb, g):
        ldb = udiv(nb + lanes - 1, lanes) * lanes
        if q.direct != 0:
            at = off(x, m0 * q.ldx + j0)
            for r in range(depth(mb)):
                of_x(off(into, r * ldb), at, q.ldx, r, 0, mb, nb)
        else:
            # Rows of pixels become words only when both are there, so they are gathered elsewhere.
            rows = halves(off(into, words(q.mc) * (g.block + g.per_group)))
            fill(x, rows, ldb, q, m0, mb, j0, nb)
            for r in range(depth(mb)):
                of_patches(off(into, r * ldb), rows, ldb, r, 0, mb, nb)
        return into, ldb

    return paired if count_in_row(P) == 2 else one_by_one


_FLAGS: dict[str, str | Field] = {
    "has_w": "whether there is dw",
    "has_b": "whether there is db",
    "adds_w": "whether dw is added to, unless its flag is set; 2: always",
    "adds_b": "whether db is added to, unless its flag is set",
}
DW_WORDS = Words(
    "conv_dw",
    groups="groups of channels",
    co="channels of dY",
    per_group="channels of dY of a group",
    room="elements of work of a thread",
    block="columns of a block",
    **_FLAGS,
    crossed="whether dw is [part][group][k][co of a group]",
    job=Field("the convolution", of=patches.JOB),
)
FOLD_WORDS = Words(
    "conv_fold",
    parts="number of parts",
    co="channels of dY",
    channels="channels of X of a group",
    taps="taps of a window",
    **_FLAGS,
    per_group="channels of dY of a group where part is [p][group][tap, c][co], otherwise 0",
)


ALWAYS = 2  # of adds_w and adds_b: whatever the flag says


def _tiling(params: Parameters, numbers: Numbers) -> Tiling | None:
    """Pixels, where P is X itself; each thread has its own sums of dw."""
    job, stored = DW_WORDS.place("job"), len(params) > 1
    at = {name: DW_WORDS.place(name) for name in ("co", "has_b", "adds_w")}
    co, has_b, adds_w = (int(numbers[place]) for place in at.values())
    q = patches.JOB.unpack([int(n) for n in numbers[job : job + patches.JOB.size]])
    if not (patches.is_plain(q) if stored else q["direct"]) or has_b or adds_w:
        return None
    one, rows = patches.run_alone(job), job + patches.JOB.place("rows")
    x, dy = (ITEMSIZE[str(kind)] for kind in params[1:3] or 2 * params)
    return Tiling(
        q["rows"],
        (x * q["ldx"], dy * co, 0, 0, 0, 0, 0),
        counts=(rows,),
        fixed={**one, at["adds_w"]: ALWAYS},
        sums=(2, ITEMSIZE[str(params[0])] * co * q["columns"]),
        clears={**one, rows: 0, at["co"]: None},
    )


def _samples(c: KernelCall) -> Tiling | None:
    """Images; each thread has its own sums of dw."""
    if not c.has_w or c.has_b or c.adds_w:
        return None
    q, at = patches.JOB.unpack(c.job), DW_WORDS.place("job")
    rows, one = at + patches.JOB.place("rows"), patches.run_alone(at)
    return c.cut(
        patches.count_whole_images(q),
        {"x": patches.find_image_step(q), "dy": math.prod(q["out"]) * c.co},
        counts=(rows,),
        fixed={**one, DW_WORDS.place("adds_w"): ALWAYS},
        sums=(2, c.itemsizes["dw"] * c.co * q["columns"]),
        clears={**one, rows: 0, DW_WORDS.place("co"): None},
    )


def _reach(c: KernelCall) -> Reach:
    (q,) = c.records("job", patches.JOB, 1)
    patches.check_job(c, q)
    rows, n, mt, per = q["rows"], q["columns"], q["mt"], c.per_group
    x = dy = dw = work = 0
    if c.has_w and n * per * c.groups:
        if c.block < 1 or c.block % c.lanes:
            c.refuse(f"blocks of {c.block} columns; expected a multiple of {c.lanes}")
        has_words = len(c.params) > 3
        if q["direct"]:
            x = c.span(0, (rows, q["ldx"]), (c.groups, q["channels"]), (n, 1))
            x += round_to_unit(n, c.lanes) - n if x and not c.crossed and not has_words else 0
        else:
            x = patches.images_reach(c, q, c.groups)
            work = min(q["mc"], rows) * round_to_unit(min(c.block, n), c.lanes)
        if has_words:
            work = _count_words(q["mc"]) * (2 * c.block + per)
        elif len(c.params) > 1:
            work = q["mc"] * c.block + min(q["mc"], rows) * per
        dy = c.span(
            0, (rows, c.co), (c.groups, per), (round_to_unit(per, c.lanes) if c.crossed else per, 1)
        )
        dw = mt * c.groups * per * n
        if not rows:
            dw = max(dw, c.co * n)
    if c.has_b:
        dy, work = max(dy, rows * c.co), max(work, c.co if rows else 0)
    db = mt * c.co if c.has_b else 0
    return {"x": x, "dy": dy, "dw": dw, "db": db, "work": c.scratch(c.room, work)}


def _count_words(pixels: int) -> int:
    """Return the words of two factors of so many pixels, of one column."""
    return -(-pixels // 2)


def _products(c: KernelCall) -> int:
    (q,) = patches.list_jobs(c.job)
    return int(c.has_w * c.co * q["rows"] * q["columns"])


@kernel(
    f"""
    x: X[...]   dy: Y[...]   dw: out T[...] updates if adds_w   db: out T[...] updates if adds_b
    keep_w: b1[1] if adds_w not in (0, {ALWAYS})   keep_b: b1[1] if has_b and adds_b
    work: scratch T[...]   g: i64[] where max(has_w, has_b) <= 1
    """,
    words={"g": DW_WORDS},
    reach=_reach,
    multiply_adds=_products,
    tiling=_tiling,
    samples=_samples,
)
def conv_dw(target: Target, T: str, X: str = "", Y: str = "", P: str = "") -> Body:
    """dw[part][co][k] = sum_m dy[m, co] P[m, k];  db[part][co] = sum_m dy[m, co].

    x, dy: channels-last; m over the pixels of one of MT parts; dw or db may be null.  Adds to dw
    when `adds_w` and not keep_w[0], or when `adds_w` is ALWAYS; to db when `adds_b` and not
    keep_b[0].  X, Y: how x and dy are stored; if x is not as T, the job is of `gather_job` unless
    there is P, one of `Target.products` to which factors are rounded.
    Error: of rounding x and dy to their types and to P; sums as of `tile`.
    """
    of_x, of_dy = drop_same(X, T), drop_same(Y, T)
    lanes = target.lanes(ITEMSIZE[T])
    width, sums, zero = target.nv * lanes, _row_sums(T, of_dy), Intrinsic("zero", (T,))
    if P:
        take_x, take_dy = _round_columns(target, T, X or T, P), _round_rows(target, T, Y or T, P)
    else:
        take_x, take_dy = _take_columns(target, T, of_x), _take(T, of_dy)
    rows, first_dy = strip(target, T, 1, P), words_of(P)

    def body(x, dy, dw, db, keep_w, keep_b, work, g, tid, nthreads):
        groups, co, cog, crossed, q = g.groups, g.co, g.per_group, g.crossed, g.job
        mine = off(work, tid * g.room)
        m, n, c, mt, nt, mc = q.rows, q.columns, q.channels, q.mt, q.nt, q.mc
        tm, tn = udiv(tid, nt), tid - udiv(tid, nt) * nt
        # Forward: Y[m, co] = sum_k P[m, k] W[co, k]; so dW[co, k] = sum over the pixels m of dY[m,
        # co] P[m, k].  Thread (tm, tn) sums part tm of the pixels for columns [n0, n1) of P.
        begin, end = udiv(m * tm, mt), udiv(m * (tm + 1), mt)
        nstep = udiv(udiv(n + lanes - 1, lanes) + nt - 1, nt) * lanes
        n0 = imin(tn * nstep, n)
        n1 = imin(n0 + nstep, n)
        if tm >= mt:
            end = begin
        start = 0
        if g.adds_w == ALWAYS or (g.adds_w != 0 and keep_w[0] == 0):
            start = ACCUMULATE
        if m == 0 and start == 0 and tid == 0:  # no images: a sum of nothing
            zero(dw, co * n * g.has_w)
        for group in range(groups * g.has_w):
            j0 = n0
            while j0 < n1:
                nb = imin(g.block, n1 - j0)
                at = (tm * groups + group) * cog * n + (j0 * cog if crossed != 0 else j0)
                # The first block of pixels overwrites, unless dw is added to; later ones add.
                m0, mode = begin, start
                while m0 < end:
                    mb = imin(mc, end - m0)
                    right, ldb = take_x(off(x, group * c), mine, q, m0, mb, j0, nb, g)
                    # dW = dY^T P, or crossed dW^T = P^T dY: the tile broadcasts the left factor and
                    # reads vectors of the right one, whose rows should be whole vectors.
                    stored, into = off(dy, m0 * co + group * cog), off(dw, at)
                    left, ldl = take_dy(stored, co, off(mine, first_dy(mc) * g.block), mb, cog)
                    a, lda, b, step, ldc, high, wide = left, ldl, right, ldb, n, cog, nb
                    if crossed != 0:
                        a, lda, b, step, ldc, high, wide = right, ldb, left, ldl, cog, nb, cog
                    j = 0
                    while j < wide:
                        w = imin(width, wide - j)
                        rows(a, lda, off(b, j), step, off(into, j), ldc, dw, mb, high, w, mode)
                        j += width
                    mode = ACCUMULATE
                    m0 += mb
                j0 += nb
        # Forward: B is added to every pixel; so dB is the sum of dY over the pixels.
        if g.has_b != 0 and tn == 0 and tm < mt:
            into = off(db, tm * co)
            if g.adds_b == 0 or keep_b[0] != 0:
                zero(into, co)
            sums(dy, into, mine, begin, end, co, mc)

    return body


@kernel(
    """
    part: update T[max(parts, 1), co, channels, taps] if has_w   dbs: T[max(parts, 1), co] if has_b
    dw: out T[co, channels, taps] if has_w updates if adds_w
    db: out T[co] if has_b updates if adds_b
    keep_w: b1[1] if adds_w   keep_b: b1[1] if has_b and adds_b
    g: i64[] where max(has_w, has_b) <= 1 and co % max(per_group, 1) == 0
    """,
    words={"g": FOLD_WORDS},
    joins=FOLD_WORDS.place("parts"),
)
def conv_fold(target: Target, T: str) -> Body:
    """dw[co, c, tap] = sum_p part[p][co][tap, c];  db[co] = sum_p dbs[p][co], parts in order.

    Uses up part.  dw or db may be null.  Adds to dw when `adds_w` and not keep_w[0], to db alike.
    """
    add = loop(T, "x[] y[] -> x[] = x + y")

    def body(part, dbs, dw, db, keep_w, keep_b, g, tid, nthreads):
        count, co, c, taps, per = g.parts, g.co, g.channels, g.taps, g.per_group
        keep = 0
        if g.adds_w != 0 and keep_w[0] == 0:
            keep = 1
        begin, end = share(co * g.has_w, tid, nthreads)
        for i in range(begin, end):
            # part is [co][tap, c], or crossed [group][tap, c][co of the group]; ONNX wants
            # [co][c][tap].
            n, step, into = c * taps, 1, off(dw, i * c * taps)
            first = off(part, i * n)
            if per > 0:
                group, step = udiv(i, per), per
                first = off(part, group * per * n + i - group * per)
            for p in range(1, count):
                more = off(first, p * co * n)
                if step == 1:
                    add(first, more, first, n)
                else:
                    for k in range(n):
                        first[k * step] += more[k * step]
            for j in range(c):
                for t in range(taps):
                    value = first[(t * c + j) * step]
                    if keep != 0:
                        value += into[j * taps + t]
                    into[j * taps + t] = value
        begin, end = share(co * g.has_b, tid, nthreads)
        for i in range(begin, end):
            value = dbs[i]
            for p in range(1, count):
                value += dbs[p * co + i]
            if g.adds_b != 0 and keep_b[0] == 0:
                value += db[i]
            db[i] = value

    return body


def lower_weights(
    lowering: Lowering,
    operands: tuple[Operand, Operand, Operand],
    axes: Axes,
    groups: int,
    dw: int | None,
    db: int | None,
) -> None:
    """Append the calls for the wanted ones of dW and dB of the node; operands are x, dy, w."""
    x, dy, w = operands
    images, ci = x.type.dims[:2]
    volume, co = math.prod(a.taps for a in axes), w.type.dims[0]
    weights, bias = _Sum.of(lowering, dw), _Sum.of(lowering, db)
    # Each of these takes dW alone; dB is left to the kernel that only reads dY.
    if weights.out and is_depthwise(w, groups):
        D.lower_depthwise_weights(lowering, (x, dy), axes, weights.out, weights.reset)
        weights = _Sum()
    if weights.out and volume > 1 and is_few(ci, co, groups):
        lower_few_weights(lowering, (x, dy), axes, weights.out, weights.reset)
        weights = _Sum()
    T, P = find_stored(x)[0], choose_factors(lowering, x)
    form = choose_tiles(lowering.target, T, images, axes, ci, co, groups, P)
    if weights.out and form:
        lower_winograd_weights(lowering, (x, dy, weights.out), axes, weights.reset, form)
        weights = _Sum()
    if weights.have:
        j = patches.make_job(axes, images, ci // groups, ci, volume * (ci // groups))
        _weights(lowering, x, dy, j, groups, weights, bias)
    elif bias.have and db is not None:
        lower_bias(lowering, dy, db)  # which reads no x, so that it need not be kept


def lower_bias(lowering: Lowering, dy: Operand, db: int) -> None:
    """Append the calls for dB of the node, if it is wanted: the sum of dY over the pixels."""
    bias = _Sum.of(lowering, db)
    if bias.have:
        d, h, w = [Axis()] * (5 - dy.type.rank) + [Axis(n, n) for n in dy.type.dims[2:]]
        images, co = dy.type.dims[:2]
        _weights(lowering, dy, dy, patches.make_job((d, h, w), images, co, co, co), 1, _Sum(), bias)


def _estimate_cost(rows: int, columns: int, lanes: int) -> float:
    """Return the cost of a product, in vectors; a single left-over vector costs one and a half."""
    vectors = count_parts(columns, lanes)
    return rows * (vectors + 0.5 * (vectors % 2))


def _weights(
    lowering: Lowering, x: Operand, dy: Operand, j: Job, groups: int, dw: _Sum, db: _Sum
) -> None:
    """Append the calls for partial sums over parts of the pixels and their sum in ONNX's order.

    Weights of one tap that one thread sums are in ONNX's order as they come.
    """
    (T, kinds), co = find_each_stored(x, dy), dy.type.dims[1]
    P = choose_factors(lowering, x) if dw.have else ""
    if P:
        kinds = x.type.dtype, dy.type.dtype, P
    lanes, per = lowering.target.lanes(ITEMSIZE[T]), co // groups
    # Crossed where that leaves fewer cut vectors, by a fifth at least: the fold then strides.
    whole = dw.have and per % lanes == 0
    crossed = whole and _estimate_cost(j.columns, per, lanes) < 0.8 * _estimate_cost(
        per, j.columns, lanes
    )
    n, taps = j.columns if dw.have else 0, math.prod(j.taps)

    # A thread's multiplications, 8 columns' worth of gathering, and the fold of mt parts.
    def busiest(nt: int) -> int:
        mt = lowering.threads // nt
        return count_parts(j.rows, mt) * (
            count_parts(count_parts(n, lanes), nt) * lanes + 8
        ) + 2 * n * (mt - 1)

    nt = min(range(1, lowering.threads + 1), key=busiest)
    mt = max(1, min(lowering.threads // nt, j.rows))
    columns = max(count_parts(count_parts(n, lanes), nt), 1) * lanes
    # Blocks of equal size: a short last one would gather for little work.
    block = round_up(count_parts(columns, count_parts(columns, 512)), lowering.target.nv * lanes)
    # No row of the factor that is read by vectors may end inside one.
    is_plain = j.direct and (crossed or x.type.dims[1] % lanes == 0)
    # Words of two pixels are copies anyway, made of x as it is stored.
    is_direct = j.direct if P else int(is_plain and x.type.dtype == T)
    j = replace(j, mt=mt, nt=nt, mc=128, direct=is_direct)
    room = j.mc * (block + (per if kinds else 0))
    if P:
        # Words of patches and of dy, and as much again for patches that are not words yet.
        room = _count_words(j.mc) * (2 * block + per)
    stride = round_up(max(room, co), 16)
    work = lowering.temp(T, (stride * lowering.threads,))
    outs: dict[str, Any] = {"dw": dw.out, "db": db.out, "keep_w": dw.reset, "keep_b": db.reset}
    have = {"has_w": dw.have, "has_b": db.have}
    adds = {"adds_w": dw.keep, "adds_b": db.keep}
    head = {"groups": groups, "co": co, "per_group": per, "room": stride, "block": block, **have}
    # In tiles (graphs/planner/tile.py) every thread has sums of its own, to be added in the end.
    in_tiles = is_plain and not db.have and j.rows > max(n, co)
    if mt == taps == 1 and not crossed and not in_tiles:
        words = DW_WORDS.pack(**head, **adds, crossed=0, job=j.words())
        lowering.call(conv_dw(T, *kinds), x=x, dy=dy, **outs, work=work, g=words)
        return
    part = lowering.temp(T, (mt * co * n,)) if dw.have else None
    dbs = lowering.temp(T, (mt * co,)) if db.have else None
    words = DW_WORDS.pack(**head, adds_w=0, adds_b=0, crossed=int(crossed), job=j.words())
    lowering.call(conv_dw(T, *kinds), x=x, dy=dy, dw=part, db=dbs, work=work, g=words)
    words = FOLD_WORDS.pack(
        parts=mt,
        co=co,
        channels=j.channels,
        taps=taps,
        **have,
        **adds,
        per_group=per if crossed else 0,
    )
    lowering.call(conv_fold(T), part=part, dbs=dbs, **outs, g=words)


@dataclass(frozen=True, slots=True)
class _Sum:
    """A gradient output as kernels take it: its operand and its flag to overwrite."""

    out: Operand | None = None
    reset: Operand | None = None

    @classmethod
    def of(cls, lowering: Lowering, i: int | None) -> _Sum:
        """Return output i of the node; without an operand when nobody reads it."""
        if i is None or not lowering.wants(i):
            return cls()
        return cls(lowering.y(i), lowering.reset(i))

    @property
    def have(self) -> int:
        return int(self.out is not None)

    @property
    def keep(self) -> int:
        return int(self.reset is not None)


# The kernels that `lower_weights` and `lower_bias` call.
WEIGHTS_KERNELS = (
    conv_dw,
    conv_fold,
    *D.WEIGHTS_KERNELS,
    *FEW_WEIGHTS_KERNELS,
    *WINOGRAD_WEIGHTS_KERNELS,
)
KERNELS = (conv_dw, conv_fold)
