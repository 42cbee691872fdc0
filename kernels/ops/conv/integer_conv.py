"""Convolution of 8-bit integers: patches as rows of an integer product, and depthwise windows.

A job is one of `patches.py`.  Outside of the image a window sees the zero point, so that padding
adds nothing to a sum.
"""

from __future__ import annotations

import math
from dataclasses import replace

from engine.kernels.loops.gemm import split_threads
from engine.kernels.loops.integer_gemm import (
    BLOCK,
    OPERANDS,
    RESULT,
    SHIFT,
    STARTS,
    TURNS,
    X_TYPES,
    Y_TYPES,
    Weights,
    lower_integer_gemm,
    make_turned,
    prepare_start,
    shift_starts,
    turned_rectangle,
)
from engine.kernels.loops.window import Axes
from engine.kernels.machine.target import Target
from engine.kernels.ops.conv import patches as P
from engine.kernels.ops.conv.patches import following, pixel
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.integers import (
    GROUP,
    PANEL,
    SQUARE,
    count_turned,
    find_shape,
    takes_squares,
)
from engine.kernels.vocabulary.kernel import (
    Body,
    Inline,
    Intrinsic,
    imax,
    imin,
    inline,
    kernel,
    off,
    udiv,
)
from engine.kernels.vocabulary.op import Lowering, Operand
from engine.kernels.vocabulary.row_program import loop
from engine.kernels.vocabulary.signature import round_to_unit
from engine.kernels.vocabulary.tiling import Tiling
from engine.plan.words import Field, Words

INTEGER_CONV_WORDS = Words(
    "integer_conv",
    n="channels of Y",
    starts=STARTS,
    turns=TURNS,
    **RESULT,
    job=Field("the window", of=P.JOB),
)
INTEGER_DEPTHWISE_WORDS = Words(
    "integer_depthwise",
    n="channels of Y",
    starts="1",
    repeats="how often a window sees each of its taps, with other weights",
    room="bytes of what a thread turns",
    **RESULT,
    job=Field("the window", of=P.JOB),
)


def _gather(T: str) -> Inline:
    """Return an inline function: rows [i0, i0 + mb) of P, the zero point outside of the image.

    gather(x, into, lda, q, i0, mb, zero)
    """
    copy, fill = Intrinsic("copy_bytes", (T,)), loop(T, "z* -> y[] = z")

    @inline
    def gather_edge(x, dst, q, n, iz, ih, left, zero):
        c, unit = q.channels, q.unit
        for kd in range(q.taps_d):
            for kh in range(q.taps_h):
                z, h = iz + kd * q.dilation_d, ih + kh * q.dilation_h
                row = ((n * q.size_d + z) * q.size_h + h) * q.size_w
                kw = 0
                while kw < q.taps_w:
                    iw = left + kw * q.dilation_w
                    # Taps [lo, hi) of the run are inside; where none is, lo == hi.
                    lo = imin(imax(-iw, 0), unit)
                    hi = imax(imin(q.size_w - iw, unit), lo)
                    if z < 0 or z >= q.size_d or h < 0 or h >= q.size_h:
                        lo = hi = unit
                    if lo > 0:
                        fill(zero, dst, lo * c)
                    if hi > lo:
                        copy(off(dst, lo * c), off(x, (row + iw + lo) * q.ldx), (hi - lo) * c)
                    if hi < unit:
                        fill(zero, off(dst, hi * c), (unit - hi) * c)
                    dst = off(dst, unit * c)
                    kw += unit

    @inline
    def run(x, into, lda, q, i0, mb, zero):
        wide, per = q.unit * q.channels, udiv(q.taps_w, q.unit)
        n, od, oh, ow = pixel(i0, q)
        i = 0
        while i < mb:
            dst = off(into, i * lda)
            iz, ih = od * q.stride_d - q.pad_d, oh * q.stride_h - q.pad_h
            left = ow * q.stride_w - q.pad_w
            # How far the window is inside the image on each side; negative where it looks into
            # padding.
            right = q.size_w - 1 - left - (q.taps_w - 1) * q.dilation_w
            below = q.size_h - 1 - ih - (q.taps_h - 1) * q.dilation_h
            deep = q.size_d - 1 - iz - (q.taps_d - 1) * q.dilation_d
            inside = imin(imin(imin(left, right), imin(ih, below)), imin(iz, deep))
            many = 1
            if inside >= 0:
                # The next pixels of the line see no padding either, until a window reaches its end.
                many = imin(imin(udiv(right, q.stride_w) + 1, q.out_w - ow), mb - i)
                first = off(x, (((n * q.size_d + iz) * q.size_h + ih) * q.size_w + left) * q.ldx)
                for line in range(q.taps_d * q.taps_h):
                    kd = udiv(line, q.taps_h)
                    down = (line - kd * q.taps_h) * q.dilation_h + kd * q.dilation_d * q.size_h
                    for kw in range(per):
                        src = off(first, (down * q.size_w + kw * q.dilation_w) * q.ldx)
                        at = off(dst, (line * per + kw) * wide)
                        for t in range(many):
                            copy(off(at, t * lda), off(src, t * q.stride_w * q.ldx), wide)
            else:
                gather_edge(x, dst, q, n, iz, ih, left, zero)
            n, od, oh, ow = following(n, od, oh, ow + many - 1, q)
            i += many

    return run


def _conv_reach(c: KernelCall) -> Reach:
    (job,) = c.records("job", P.JOB, 1)
    q = P.check_job(c, job)
    # Rows of P are gathered by taps and channels, whatever the job says of its depth.
    if q["depth"] != math.prod(q["taps"]) * q["channels"] or q["columns"] != c.n:
        c.refuse(f"sums of {q['depth']} for {q['columns']} of {c.n} channels")
    if q["ldx"] != q["channels"]:
        c.refuse(f"{q['channels']} channels of pixels {q['ldx']} apart")
    if c.starts not in (1, 1 + q["mc"]):
        c.refuse(f"{c.starts} rows to start from for blocks of {q['mc']}")
    depth = round_to_unit(q["depth"], GROUP)
    size = q["mc"] * depth
    panel = round_to_unit(depth, SQUARE) * PANEL if c.turns else 0
    return {
        "x": P.images_reach(c, q, 1),
        "w": round_to_unit(c.n, PANEL) * depth,
        "y": q["rows"] * c.n,
        "patches": c.scratch(size, size),
        "turned": c.scratch(panel, panel),
    }


def _samples(c: KernelCall) -> Tiling | None:
    q, at = P.JOB.unpack(c.job), INTEGER_CONV_WORDS.place("job")
    steps = {"x": P.find_image_step(q), "y": math.prod(q["out"]) * c.n}
    rows = (at + P.JOB.place("rows"),)
    return c.cut(P.count_whole_images(q), steps, counts=rows, fixed=P.run_alone(at))


@kernel(
    f"""
    x: T[...]   y: out Y[...]   patches: scratch T[...]   {OPERANDS} {SHIFT}
    turned: scratch i8[...]
    g: i64[] where mode <= BIAS
    """,
    words={"g": INTEGER_CONV_WORDS},
    reach=_conv_reach,
    multiply_adds=lambda c: int(
        P.list_jobs(c.job)[0]["rows"] * c.n * P.list_jobs(c.job)[0]["depth"]
    ),
    samples=_samples,
    T=X_TYPES,
    Y=Y_TYPES,
)
def integer_conv(target: Target, T: str, Y: str) -> Body:
    """Y = out(bias + (P - zero) (W - shift)), as `integer_gemm`; x, y: channels-last."""
    run, prepare, gather = turned_rectangle(target, T, Y), prepare_start(target, T), _gather(T)
    lower, (high, _) = shift_starts(T), find_shape(target)

    def body(x, y, patches, w, sums, zero, bias, factor, work, shift, turned, g, tid, nthreads):
        q = g.job
        mt, nt = q.mt, q.nt
        if tid < mt * nt:
            tm = udiv(tid, nt)
            tn = tid - tm * nt
            # Threads get whole register tiles of rows and whole panels of columns.
            rows = udiv(udiv(q.rows + high - 1, high) + mt - 1, mt) * high
            columns = udiv(udiv(g.n + PANEL - 1, PANEL) + nt - 1, nt) * PANEL
            m0, n0 = imin(tm * rows, q.rows), imin(tn * columns, g.n)
            m1, n1 = imin(m0 + rows, q.rows), imin(n0 + columns, g.n)
            start = off(work, tid * g.starts * udiv(g.n + PANEL - 1, PANEL) * PANEL)
            size = udiv(n1 - n0 + PANEL - 1, PANEL) * PANEL
            prepare(start, off(bias, n0), off(sums, n0), zero, size, g.mode)
            # Rows of P end in whole groups.  Panels hold 0 for the steps after the last, so any
            # bytes will do there, and no tile of dot products has a rest.
            depth = udiv(q.depth + GROUP - 1, GROUP) * GROUP
            b, mine = off(w, n0 * depth), off(patches, tid * q.mc * depth)
            panel = off(turned, tid * udiv(depth + SQUARE - 1, SQUARE) * SQUARE * PANEL)
            first, lds = start, 0  # all rows start alike
            if g.starts > 1:
                first, lds = off(start, size), size
            i = m0
            while i < m1 and n0 < n1:
                mb = imin(q.mc, m1 - i)
                gather(x, mine, depth, q, i, mb, zero)
                if g.starts > 1:
                    lower(start, mine, depth, zero, off(shift, n0), q.depth, mb, size)
                run(
                    mine, depth, b, off(y, i * g.n + n0), g.n, first, lds, off(factor, n0),
                    depth, mb, n1 - n0, g.low, g.high, g.offset, panel, g.turns,
                )  # fmt: skip
                i += mb

    return body


def _depthwise_reach(c: KernelCall) -> Reach:
    (job,) = c.records("job", P.JOB, 1)
    q, lines, taps = P.check_window(c, job)
    if q["ldx"] != c.n:
        c.refuse(f"{c.n} channels of pixels {q['ldx']} apart")
    groups = round_to_unit(c.repeats * taps, GROUP)
    return {
        "x": P.images_reach(c, q, 1, by_lines=True),
        "w": round_to_unit(c.n, PANEL) * groups,
        "y": lines * q["out"][2] * c.n,
        "at": c.scratch(groups, groups),
        "turned": c.scratch(c.room, count_turned(groups // GROUP, c.n)),
    }


@inline
def see(table, q, n, od, oh, ow, channels):
    """Write where the taps of a window begin in the images; -1 for those outside."""
    t = 0
    for kd in range(q.taps_d):
        iz = od * q.stride_d - q.pad_d + kd * q.dilation_d
        for kh in range(q.taps_h):
            ih = oh * q.stride_h - q.pad_h + kh * q.dilation_h
            row = ((n * q.size_d + iz) * q.size_h + ih) * q.size_w
            is_out = iz < 0 or iz >= q.size_d or ih < 0 or ih >= q.size_h
            for kw in range(q.taps_w):
                iw = ow * q.stride_w - q.pad_w + kw * q.dilation_w
                place = (row + iw) * channels
                if is_out or iw < 0 or iw >= q.size_w:
                    place = -1
                table[t] = place
                t += 1


@kernel(
    f"""
    x: T[...]   y: out Y[...]   edge: scratch T[threads, n]   at: scratch i64[...]
    turned: scratch i8[...]   {OPERANDS}
    g: i64[] where mode <= BIAS and starts == 1 and repeats >= 1
    """,
    words={"g": INTEGER_DEPTHWISE_WORDS},
    reach=_depthwise_reach,
    multiply_adds=lambda c: P.count_window_products(P.list_jobs(c.job)[0]),
    samples=P.cut_window(INTEGER_DEPTHWISE_WORDS),
    T=X_TYPES,
    Y=Y_TYPES,
)
def integer_depthwise(target: Target, T: str, Y: str) -> Body:
    """Y[c] = out(bias[c] + sum over taps of (X[c] - zero) W[c]); x, y: channels-last.

    Weights that need 9 bits come as two of 8 bits, for a tap that is seen twice.
    """
    prepare, fill = prepare_start(target, T), loop(T, "z* -> y[] = z")
    turn, windows = (Intrinsic(name, (T, Y)) for name in ("turn_windows", "integer_windows"))

    def body(x, y, edge, at, turned, w, sums, zero, bias, factor, work, g, tid, nthreads):
        q = g.job
        taps = q.taps_d * q.taps_h * q.taps_w
        seen = g.repeats * taps
        groups = udiv(seen + GROUP - 1, GROUP)
        size = udiv(g.n + PANEL - 1, PANEL) * PANEL
        start, table, outside = (
            off(work, tid * size),
            off(at, tid * groups * GROUP),
            off(edge, tid * g.n),
        )
        prepare(start, bias, sums, zero, size, g.mode)
        mine = off(turned, tid * g.room)
        turn(w, start, factor, mine, groups, g.n)
        # A tap outside of the image reads a pixel of zero points, so that windows have no tests.
        fill(zero, outside, g.n)
        # Columns of windows from the first to the one before the last see no column outside.
        first = udiv(imax(q.pad_w, 0) + q.stride_w - 1, q.stride_w)
        room = q.size_w + q.pad_w - 1 - (q.taps_w - 1) * q.dilation_w
        last = imin(udiv(room, q.stride_w) + 1, q.out_w) if room >= 0 else 0
        lines = udiv(q.rows, q.out_w)
        for line in range(udiv(lines * tid, nthreads), udiv(lines * (tid + 1), nthreads)):
            n, od, oh, _ = pixel(line * q.out_w, q)
            ow = 0
            while ow < q.out_w:
                # Windows that see no column outside differ from the first of them by a shift.
                many = last - ow if first <= ow and ow < last else 1
                see(table, q, n, od, oh, ow, g.n)
                for t in range(taps, seen):
                    table[t] = table[t - taps]
                # Steps after the last tap have weights of 0, whatever they see.
                for t in range(seen, groups * GROUP):
                    table[t] = table[0]
                windows(
                    x, outside, table, mine, off(y, (line * q.out_w + ow) * g.n), groups, g.n,
                    g.low, g.high, g.offset, many, q.stride_w * g.n,
                )  # fmt: skip
                ow += many

    return body


def lower_integer_conv(
    lowering: Lowering, x: Operand, weights: Weights, y: Operand, axes: Axes, *, depthwise: int
) -> None:
    """Call the kernel for a window: a product if it is one pixel, otherwise of patches.

    depthwise: how often a window sees each tap of the channel of its number; 0: it sees all.
    """
    images, channels = x.type.dims[:2]
    n = y.type.dims[1]
    j = P.make_job(axes, images, channels, channels, n, ldy=n)
    # Rows of P are rows of X as they lie in memory: nothing is gathered.
    if j.direct and not depthwise:
        lower_integer_gemm(lowering, x, weights, y, (j.rows, n, channels))
        return
    threads, T, Y = lowering.threads, x.type.dtype, y.type.dtype
    columns = round_to_unit(n, PANEL)
    if depthwise:
        seen = round_to_unit(depthwise * math.prod(j.taps), GROUP)
        room = count_turned(seen // GROUP, n)
        words = INTEGER_DEPTHWISE_WORDS.pack(
            n=n, starts=1, repeats=depthwise, room=room, **weights.words(), job=j.words()
        )
        operands = {k: v for k, v in weights.operands.items() if k != "shift"}
        lowering.call(
            integer_depthwise(T, Y), x=x, y=y, edge=lowering.temp(T, (threads * n,)),
            at=lowering.temp("i64", (threads * seen,)),
            turned=lowering.temp("i8", (threads * room,)), **operands,
            work=lowering.temp("i32", (threads * columns,)), g=words,
        )  # fmt: skip
        return
    high, _ = find_shape(lowering.target)
    depth = round_to_unit(j.depth, GROUP)
    _, mt, nt = split_threads(j.rows, n, 1, threads, PANEL)
    # A block of P is written once and read once for every few panels: it stays near the core.
    mc = max(min(BLOCK // 4 // depth, -(-j.rows // mt)) // high * high, high)
    j = replace(j, mt=mt, nt=nt, mc=mc)
    starts = weights.count_starts(mc)
    turns = takes_squares(lowering.target, j.rows, depth)
    words = INTEGER_CONV_WORDS.pack(
        n=n, starts=starts, turns=int(turns), **weights.words(), job=j.words()
    )
    lowering.call(
        integer_conv(T, Y), x=x, y=y, patches=lowering.temp(T, (threads * mc * depth,)),
        **weights.operands, work=lowering.temp("i32", (threads * starts * columns,)),
        turned=make_turned(lowering, depth) if turns else None, g=words,
    )  # fmt: skip


INTEGER_CONV_KERNELS = (integer_conv, integer_depthwise)
KERNELS = INTEGER_CONV_KERNELS
