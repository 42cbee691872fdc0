"""Convolution kernels and the calls that convolve: forward, and back to the images.

A convolution reads images x with weights w[Co, Ci/groups, taps...] into y; `convolve_back` makes of
dy the dx, which is what a transposed convolution computes forward.

dX by phases: input pixel i = r (mod s) sees only the taps with k d = r + p (mod s), so for each of
the s residues r it is a convolution of dY, stride 1, with these taps reversed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from engine.base import limits
from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.contract import count_in_row, panels_reach, view_panel
from engine.kernels.loops.window import Axes, Axis, count_parts, round_up
from engine.kernels.machine.target import Target
from engine.kernels.ops.conv import patches
from engine.kernels.ops.conv.depthwise import (
    WINDOW_KERNELS,
    channels_repeat,
    channels_sum,
    lower_depthwise,
)
from engine.kernels.ops.conv.few_channels import FEW_KERNELS, is_few, lower_few
from engine.kernels.ops.conv.patches import Job, sweep
from engine.kernels.ops.conv.winograd_calls import (
    WINOGRAD_KERNELS,
    backward,
    choose_tiles,
    lower_winograd,
    may_fit,
)
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    BIAS,
    Body,
    Native,
    Numbers,
    Parameters,
    imin,
    inline,
    kernel,
    off,
    share,
    share_blocks,
    udiv,
)
from engine.kernels.vocabulary.op import (
    Dim,
    Lowering,
    Operand,
    find_each_stored,
    find_stored,
    get_factors,
)
from engine.kernels.vocabulary.tiling import Tiling
from engine.plan.words import AXES, OPEN, Field, Words

# --- kernels


CONV_WORDS = Words(
    "conv",
    count="number of jobs",
    groups="groups of channels",
    mode="bits: BIAS, RELU, SIX, HARD_SWISH",
    room="elements of work of a thread",
    jobs=Field("the jobs", count=OPEN, of=patches.JOB),
)
PANEL = Words(
    "panel",
    b_at="where the panels of this job begin in B",
    b_group="elements from the panels of one group to the next group's",
    channels="channels that one group reads",
    taps=Field("taps along an axis", names=AXES),
    first=Field("offset of the first tap in a filter plane", range="signed"),
    step=Field("steps from tap to tap along an axis", names=AXES, range="signed"),
)
PACK_WORDS = Words(
    "pack",
    count="number of jobs",
    groups="groups of channels",
    columns="filters of a group",
    panel="columns of a panel as it is stored",
    group="weights of a group",
    c_step="step of w from channel to channel",
    j_step="step of w from filter to filter",
    panels=Field("the panels of each job", count=OPEN, of=PANEL),
)


def _tiling(params: Parameters, numbers: Numbers) -> Tiling | None:
    """Return the rows of P, where they are rows of X and Y as they lie in memory."""
    at = CONV_WORDS.place("jobs")
    if numbers[CONV_WORDS.place("count")] != 1:
        return None
    q = patches.JOB.unpack([int(n) for n in numbers[at : at + patches.JOB.size]])
    if not patches.is_plain(q) or (q["scatter"] and not patches.is_spread_in_order(q)):
        return None
    x, y = (ITEMSIZE[str(kind)] for kind in params[1:3] or 2 * params)
    steps = (x * q["ldx"], 0, y * q["ldy"], 0, 0)
    return Tiling(q["rows"], steps, (at + patches.JOB.place("rows"),), patches.run_alone(at))


def _panels_reach(c: KernelCall, P: str, n: int, depth: int, panel: int, unit: int = 0) -> int:
    """Return the reach into panels of factors P, as `panels_reach`: in words if P is not empty."""
    reach = panels_reach(c, n, -(-depth // count_in_row(P)), panel, unit)
    return -(-reach // 2) if P and count_in_row(P) == 1 else reach


def _reach(c: KernelCall) -> Reach:
    T, X, _, factors = map(str, (*c.params, *("",) * 4)[:4])
    takes_x = (X or T) == (factors or T)  # as it is stored
    each = 2 if factors else 1
    x = b = y = work = bias = 0
    for q in c.records("jobs", patches.JOB, c.count):
        patches.check_job(c, q)
        rows, n, depth, mc = q["rows"], q["columns"], q["depth"], q["mc"]
        if not rows * n * c.groups:
            continue
        if q["kc"] % each:
            c.refuse(f"words of two factors, {q['kc']} at a time; expected an even number")
        last = c.groups * n
        if depth:
            panels = _panels_reach(c, factors, n, depth, q["panel"])
            b = max(b, q["b_at"] + (c.groups - 1) * q["b_group"] + panels)
        if depth and q["direct"] and takes_x:
            x = max(x, c.span(0, (rows, q["ldx"]), (c.groups, q["channels"]), (depth, 1)))
        elif depth:
            x = max(x, patches.images_reach(c, q, c.groups))
            work = max(work, -(-min(mc, rows) * min(q["kc"], depth) // each))
        if q["scatter"]:
            walks = zip((patches.count_images(q), *q["out"]), q["y_step"], strict=True)
            y = max(y, c.span(q["y_at"], *walks) + last - 1)
            work = max(work, mc * q["kc"] // each + min(mc, rows) * n)
        elif depth:
            y = max(y, (rows - 1) * q["ldy"] + last)
        if c.mode & BIAS:
            bias = max(bias, last)
    return {"x": x, "b": b, "y": y, "bias": bias, "work": c.scratch(c.room, work)}


def _samples(c: KernelCall) -> Tiling | None:
    first = CONV_WORDS.place("jobs")
    places = [first + n * patches.JOB.size for n in range(c.count)]
    layouts = set()
    for q in patches.list_jobs(c.jobs):
        y = q["y_step"][0] if q["scatter"] else math.prod(q["out"]) * q["ldy"]
        layouts.add((patches.count_whole_images(q), patches.find_image_step(q), int(y)))
    if len(layouts) != 1:  # some residue has no pixels
        return None
    ((images, x, y),) = layouts
    fixed = {place: one for at in places for place, one in patches.run_alone(at).items()}
    rows = tuple([at + patches.JOB.place("rows") for at in places])
    return c.cut(images, {"x": x, "y": y}, counts=rows, fixed=fixed)


def _products(c: KernelCall) -> int:
    jobs = patches.list_jobs(c.jobs)
    return sum(int(c.groups * q["rows"] * q["columns"] * q["depth"]) for q in jobs)


@kernel(
    """
    x: X[...]   b: T[...]   y: out Y[...]   bias: T[...]   work: scratch T[...]
    g: i64[] where mode <= BIAS | CURVES
    """,
    words={"g": CONV_WORDS},
    reach=_reach,
    multiply_adds=_products,
    tiling=_tiling,
    samples=_samples,
)
def conv(target: Target, T: str, X: str = "", Y: str = "", P: str = "") -> Body:
    """Y = act(P B (+ bias)) for every job and group of channels.

    x, y: channels-last; b: panels of `conv_pack`.  X, Y: how x and y are stored.  P: one of
    `Target.products` to which factors are rounded; the depth of every block is even then.
    Error: of rounding x, w and y to their types; sums as of `tile`.
    """
    run = sweep(target, T, X or T, Y or T, P)
    mr, width = target.mr, target.nv * target.lanes(ITEMSIZE[T])

    def body(x, b, y, bias, work, g, tid, nthreads):
        mine = off(work, tid * g.room)
        for i in range(g.count * g.groups):
            group = i - udiv(i, g.groups) * g.groups
            q = off(g.jobs, udiv(i, g.groups))
            m, n, mt, nt = q.rows, q.columns, q.mt, q.nt
            tm, tn = udiv(tid, nt), tid - udiv(tid, nt) * nt
            # Threads get whole register tiles of rows and whole panels of columns: no tile is cut.
            mstep = udiv(udiv(m + mr - 1, mr) + mt - 1, mt) * mr
            nstep = udiv(udiv(n + width - 1, width) + nt - 1, nt) * width
            m0, n0 = imin(tm * mstep, m), imin(tn * nstep, n)
            m1, n1 = imin(m0 + mstep, m), imin(n0 + nstep, n)
            if m0 < m1 and n0 < n1:
                left, right = off(x, group * q.channels), off(b, q.b_at + group * q.b_group)
                into, add = off(y, group * n), off(bias, group * n)
                run(left, right, into, add, mine, q, m0, m1, n0, n1, g.mode)

    return body


def _pack_reach(c: KernelCall) -> Reach:
    n = c.columns
    w = b = 0
    for q in c.records("panels", PANEL, c.count):
        depth = math.prod(q["taps"]) * q["channels"]
        if not depth * n * c.groups:
            continue
        walks = ((c.groups, c.group), (n, c.j_step))
        steps = zip(q["taps"], q["step"], strict=True)
        w = max(w, c.span(q["first"], *walks, (q["channels"], c.c_step), *steps))
        if c.j_step == depth and q["first"] == 0 and q["step"][2] == 1:
            w = max(w, c.span(0, *walks, (depth, 1)))
        factors = str(c.params[1]) if len(c.params) > 1 else ""
        if factors:  # reads all taps of a filter, and vectors up to the end of the weights
            taps = min(c.c_step, c.j_step)
            whole = c.span(0, *walks, (q["channels"], c.c_step), (taps, 1))
            w = max(w, whole, c.groups * c.group)
        panels = _panels_reach(c, factors, n, depth, c.panel, unit=1)
        b = max(b, q["b_at"] + (c.groups - 1) * q["b_group"] + panels)
    return {"w": w, "b": b}


@kernel(
    "w: T[...]   b: out T[...]   work: scratch T[threads, 2, lanes, lanes]   g: i64[]",
    words={"g": PACK_WORDS},
    reach=_pack_reach,
)
def conv_pack(target: Target, T: str, P: str = "") -> Body:
    """b[panel][tap, c][j] = w[...], the panels of every job and group.

    w: T[Co, Ci/groups, taps...].  P: of the factors; a word of b holds two, of two channels if they
    are pairs, otherwise of two filters.  Of an odd number of channels, pairs are of neighbours in
    the sum: of the last channel of a tap and the first one of the next.
    """
    if P:
        return _pack_factors(target, T, P)
    lanes = target.lanes(ITEMSIZE[T])
    width = target.nv * lanes
    copy, transpose = Native("copy", (T,)), Native("transpose", (T,))

    def body(w, b, work, g, tid, nthreads):
        n, stored, cs, js = g.columns, g.panel, g.c_step, g.j_step
        square = off(work, tid * lanes * lanes)
        panels = udiv(n + width - 1, width)
        # Panels may be fewer than threads, so threads share the rows of every panel.
        for unit in range(g.count * g.groups * panels):
            panel = unit - udiv(unit, panels) * panels
            group = udiv(unit, panels) - udiv(unit, panels * g.groups) * g.groups
            q = off(g.panels, udiv(unit, panels * g.groups))
            channels, kd, kh, kw = q.channels, q.taps_d, q.taps_h, q.taps_w
            taps = kd * kh * kw
            into = off(b, q.b_at + group * q.b_group + panel * width * taps * channels)
            columns = imin(width, n - panel * width)
            # For dX filters are read with other steps: channels and filters exchange, taps run
            # back.
            src = off(w, group * g.group + panel * width * js + q.first)
            j0 = 0
            # Where a row of w holds just the (c, tap) of one j, in order: transpose squares of it.
            if js == channels * taps and q.first == 0 and q.step_w == 1:
                j0 = udiv(columns, lanes) * lanes
                begin, end = share_blocks(channels * taps, lanes, tid, nthreads)
                while begin < end:
                    rows = imin(lanes, end - begin)
                    for j in range(0, j0, lanes):
                        at = off(src, j * js + begin)
                        if rows == lanes:
                            transpose(square, lanes, at, js)
                        else:
                            for i in range(lanes):
                                for r in range(rows):
                                    square[r * lanes + i] = at[i * js + r]
                        for r in range(rows):
                            c = udiv(begin + r, taps)
                            row = (begin + r - c * taps) * channels + c
                            copy(off(into, row * stored + j), off(square, r * lanes), lanes)
                    begin += lanes
            begin, end = share(channels, tid, nthreads)
            if j0 == columns:
                end = begin
            for c in range(begin, end):
                for d in range(kd):
                    for h in range(kh):
                        for v in range(kw):
                            dst = off(into, (((d * kh + h) * kw + v) * channels + c) * stored)
                            at = off(src, c * cs + d * q.step_d + h * q.step_h + v * q.step_w)
                            for j in range(j0, columns):
                                dst[j] = at[j * js]

    return body


def _pack_factors(target: Target, T: str, P: str) -> Body:
    """Return the body of `conv_pack` for factors of 16 bits."""
    lanes = target.lanes(ITEMSIZE[T])
    width = target.nv * lanes
    each, panel_at, turn = count_in_row(P), view_panel(P), Native("turn", (P, T))
    pair, convert = Native("pair", (P, T, 1)), Native("convert", (P, T))
    transpose = Native("transpose", (T,))

    @inline
    def both(dst, x, y, n):
        pair(dst, x, y, n)

    @inline
    def first_alone(dst, x, y, n):
        convert(dst, x, n)

    write = both if each == 2 else first_alone

    @inline
    def collect(square, w, at, js, taps, filters, left):
        # square[t][i] = tap t of filter i.  Squares of registers read whole vectors: a tap alone
        # does not pay for that, and after the last filters of w there is nothing to read.
        if taps > 1 and filters == lanes and left >= lanes:
            transpose(square, lanes, off(w, at), js)
        else:
            for i in range(filters):
                for t in range(taps):
                    square[t * lanes + i] = w[at + i * js + t]

    def body(w, b, work, g, tid, nthreads):
        n, stored, cs, js = g.columns, g.panel, g.c_step, g.j_step
        # Taps of a filter for one channel lie side by side; one of the steps passes all of them.
        volume, size = imin(cs, js), g.groups * g.group
        first = off(work, 2 * tid * lanes * lanes)
        second = off(first, lanes * lanes)
        panels = udiv(n + width - 1, width)
        for unit in range(g.count * g.groups * panels):
            panel = unit - udiv(unit, panels) * panels
            group = udiv(unit, panels) - udiv(unit, panels * g.groups) * g.groups
            q = off(g.panels, udiv(unit, panels * g.groups))
            kd, kh, kw, depth = q.taps_d, q.taps_h, q.taps_w, udiv(q.channels, each)
            whole = kd * kh * kw * q.channels
            words = udiv(whole + each - 1, each)
            into = off(panel_at(off(b, q.b_at + group * q.b_group)), panel * width * words)
            columns = imin(width, n - panel * width)
            filters = group * g.group + panel * width * js
            begin, end = share_blocks(depth, lanes, tid, nthreads)
            if kd * kh * kw == 0:  # a residue of dX that no tap reaches
                end = begin
            if each * depth != q.channels:
                # Few channels, as of pictures: the words are few, and made one by one.
                first_word, last_word = share(words, tid, nthreads)
                for r in range(first_word, last_word):
                    for j in range(0, columns, lanes):
                        many = imin(lanes, columns - j)
                        for half in range(2):
                            k = 2 * r + half
                            tap = udiv(k, q.channels)
                            line = udiv(tap, kw)
                            d = udiv(line, kh)
                            row = d * q.step_d + (line - d * kh) * q.step_h
                            row += (tap - line * kw) * q.step_w + q.first
                            at = filters + j * js + (k - tap * q.channels) * cs + row
                            for i in range(many):
                                value = w[at + i * js] if k < whole else 0.0
                                first[half * lanes * lanes + i] = value
                        write(off(into, r * stored + j), first, second, many)
                end = begin
            c = begin
            while c < end:
                last, j = imin(c + lanes, end), 0
                # A row of b is of one tap and of a channel or two: neighbours in w only where a
                # filter has a single tap.
                if cs == 1 and c + lanes <= end:
                    while j + lanes <= columns:
                        at = off(w, filters + j * js + each * c)
                        turn(off(into, c * stored + j), stored, at, js)
                        j += lanes
                if js == 1:
                    for r in range(c, last):
                        at = off(w, filters + each * r * cs)
                        write(off(into, r * stored), at, off(at, cs), columns)
                    j = columns
                # Filters apart in w: their taps are turned into vectors of filters.
                while j < columns:
                    many = imin(lanes, columns - j)
                    for r in range(c, last):
                        for t in range(0, volume, lanes):
                            at, taps = filters + j * js + each * r * cs + t, imin(lanes, volume - t)
                            # Elements from the last filter's taps to the end of w.
                            left = size - at - (many - 1) * js
                            collect(first, w, at, js, taps, many, left)
                            if each == 2:
                                collect(second, w, at + cs, js, taps, many, left - cs)
                            for d in range(kd):
                                for h in range(kh):
                                    for v in range(kw):
                                        # For dX some taps are left out, and taps run back.
                                        row = d * q.step_d + h * q.step_h + v * q.step_w
                                        row = (row + q.first - t) * lanes
                                        if row >= 0 and row < taps * lanes:
                                            to = ((d * kh + h) * kw + v) * depth + r
                                            write(
                                                off(into, to * stored + j),
                                                off(first, row),
                                                off(second, row),
                                                many,
                                            )
                    j += lanes
                c += lanes

    return body


# --- jobs


def _split(m: int, n: int, mr: int, width: int, threads: int) -> tuple[int, int]:
    """Return the threads along rows and columns that leave the busiest thread the least to do.

    Gathering a block of P costs a thread as much as some 8 columns of the product.
    """

    def busiest(nt: int) -> int:
        # The time of a thread: the product of its rows and columns, and the gathering of its rows.
        rows = count_parts(count_parts(m, mr), threads // nt) * mr
        return rows * (min(count_parts(count_parts(n, width), nt) * width, n) + 8)

    nt = min(range(1, threads + 1), key=busiest)
    return threads // nt, nt


def choose_factors(lowering: Lowering, x: Operand, channels: int = 0) -> str:
    """Return the type that factors are rounded to, as P of `conv` and `conv_dw`.

    channels: of a group, where a word holds factors of two of them; an odd one would have no other.
    """
    # The factors of a word lie side by side in a pixel, so images are read as they are stored.
    return "" if channels % 2 else get_factors(lowering, find_stored(x)[0])


def get_pairs(lowering: Lowering, x: Operand) -> str:
    """Return the type that factors are rounded to, if words have two of them."""
    P = get_factors(lowering, find_stored(x)[0])
    return P if count_in_row(P) == 2 else ""


def _choose_blocks(lowering: Lowering, j: Job, T: str, P: str) -> Job:
    """Choose threads and cache blocks of a job."""
    each = 2 if P else 1  # factors of a word
    width = lowering.target.nv * lowering.target.lanes(ITEMSIZE[T])
    mt, nt = _split(j.rows, j.columns, lowering.target.mr, width, lowering.threads)
    # Blocks of K of equal length: a short last block would reload Y for little work.  Up to 1.5
    # times the target's length, so that a K just beyond it is not cut.
    kc = count_parts(j.depth, max(1, count_parts(j.depth, each * lowering.target.kc * 3 // 2)))
    run = j.unit * j.channels
    # Whole runs of taps: a run is gathered by one copy.
    kc = round_up(kc, math.lcm(run, each) if 0 < run <= kc else each)
    rows = count_parts(count_parts(j.rows, lowering.target.mr), mt) * lowering.target.mr
    return replace(j, mt=mt, nt=nt, kc=kc, mc=min(lowering.target.mc, rows))


def _lay_panels(
    lowering: Lowering, jobs: Sequence[Job], groups: int, T: str, P: str
) -> tuple[list[Job], int]:
    """Lay out the panels of B of all jobs; returns the jobs and the number of elements."""
    lanes = lowering.target.lanes(ITEMSIZE[T])
    width = lowering.target.nv * lanes
    out, at = [], 0
    for j in jobs:
        # Jobs of fewer columns than a panel has store narrower panels, of whole vectors.
        stored = min(round_up(j.columns, lanes), width)
        size = count_parts(j.columns, width) * stored * (count_parts(j.depth, 2) if P else j.depth)
        placed = _choose_blocks(lowering, j, T, P)
        out.append(replace(placed, panel=stored, b_at=at, b_group=size))
        at += size * groups
    return out, at


def _pack(
    lowering: Lowering,
    w: Operand,
    jobs: Sequence[tuple[Job, list[int]]],
    groups: int,
    steps: tuple[int, int],
    P: str,
) -> tuple[list[Job], Operand]:
    """Pack weights; beside each job its first tap and its steps from tap to tap."""
    T = w.type.dtype
    placed, size = _lay_panels(lowering, [j for j, _ in jobs], groups, T, P)
    b = lowering.temp(T, (max(size, 1),))
    panels = [
        PANEL.pack(
            b_at=j.b_at,
            b_group=j.b_group,
            channels=j.channels,
            taps=j.taps,
            first=first,
            step=step,
        )
        for j, (_, (first, *step)) in zip(placed, jobs, strict=True)
    ]
    words = PACK_WORDS.pack(
        count=len(jobs),
        groups=groups,
        columns=placed[0].columns,
        panel=placed[0].panel,
        group=w.type.size // groups,
        c_step=steps[0],
        j_step=steps[1],
        panels=panels,
    )
    work = lowering.temp(T, (2 * lowering.threads * lowering.target.lanes(ITEMSIZE[T]) ** 2,))
    lowering.call(conv_pack(T, P) if P else conv_pack(T), w=w, b=b, work=work, g=words)
    return placed, b


def _run(
    lowering: Lowering,
    operands: tuple[Operand, Operand, Operand, Operand | None],
    jobs: Sequence[Job],
    groups: int,
    P: str,
    mode: int = 0,
) -> None:
    """Convolve x with the panels b into y; operands are x, b, y and bias."""
    x, b, y, bias = operands
    T, kinds = find_each_stored(x, y)
    if P:
        kinds = x.type.dtype, y.type.dtype, P
    # A register tile reads factors and writes float32: what is stored otherwise is converted on its
    # way through the cache, by the copies that gather patches and spread rows anyway.
    if x.type.dtype != (P or T):
        jobs = [patches.gather_job(j) for j in jobs]
    if y.type.dtype != T:
        jobs = [patches.scatter_job(j) for j in jobs]
    each = 2 if P else 1
    room = round_up(max(j.mc * (j.kc // each + j.scatter * j.columns) for j in jobs), 16)
    words = CONV_WORDS.pack(
        count=len(jobs), groups=groups, mode=mode, room=room, jobs=[j.words() for j in jobs]
    )
    work = lowering.temp(T, (room * lowering.threads,))
    lowering.call(conv(T, *kinds), x=x, b=b, y=y, bias=bias, work=work, g=words)


def _split_phases(a: Axis) -> Iterator[tuple[int, Axis, int, int]]:
    """Yield the convolutions of dY that make dX along one axis.

    Yields the residue r of its pixels, its window, its first tap and the step between taps.
    """
    # Forward: output o reads input i = o stride - pad + k dilation.  So dx[i] sums dy[o] w[k] over
    # the k for which i + pad - k dilation is a multiple of the stride: these taps depend on the
    # residue of i alone.  Each residue is a convolution of stride 1 with every step-th tap.
    common = math.gcd(a.dilation, a.stride)
    step, dilation = a.stride // common, a.dilation // common
    for r in range(min(a.stride, a.size)):
        first = next(
            (k for k in range(min(step, a.taps)) if (k * a.dilation - r - a.pad) % a.stride == 0),
            a.taps,
        )
        taps = len(range(first, a.taps, step))
        shift = (r + a.pad - first * a.dilation) // a.stride
        pad = (taps - 1) * dilation - shift
        window = Axis(a.out, count_parts(a.size - r, a.stride), taps, 1, dilation, pad)
        yield r, window, first + (taps - 1) * step, -step


def _list_input_jobs(
    axes: Axes, images: int, ci: int, co: int, groups: int
) -> list[tuple[Job, list[int]]]:
    """Return the jobs that make dX, with their taps."""
    _, h, w = axes
    row, plane = w.size * ci, h.size * w.size * ci
    pixel = (plane, row, ci)
    strided = any(a.stride > 1 for a in axes)
    y_step = (axes[0].size * plane, *(a.stride * p for a, p in zip(axes, pixel, strict=True)))
    tap = _find_tap_steps(axes)
    out = []
    # One job for each residue along each axis; their outputs interleave in dX.
    for residues in itertools.product(*(_split_phases(a) for a in axes)):
        at = sum(r * p for (r, *_), p in zip(residues, pixel, strict=True))
        first = sum(f[2] * t for f, t in zip(residues, tap, strict=True))
        steps = [f[3] * t for f, t in zip(residues, tap, strict=True)]
        d, h, w = (f[1] for f in residues)
        j = patches.make_job(
            (d, h, w),
            images,
            co // groups,
            co,
            ci // groups,
            scatter=int(strided),
            ldy=ci,
            y_at=at,
            y_step=y_step,
        )
        out.append((j, [first, *steps]))
    return out


def _find_tap_steps(axes: Axes) -> list[int]:
    """Return the steps between neighbouring taps of a filter along depth, height and width."""
    return [axes[1].taps * axes[2].taps, axes[2].taps, 1]


# --- calls


def is_depthwise(w: Operand, groups: int) -> bool:
    """Return whether each filter reads one channel of several."""
    return w.type.dims[1] == 1 and groups > 1


def takes_curves(dims: Sequence[Dim], strides: Sequence[int], groups: int) -> bool:
    """Return whether `convolve` applies curves other than ReLU.

    dims: of the weights.  The kernels of few filters do not, nor does Winograd's algorithm.
    """
    co, ci, *taps = dims
    # `convolve` will choose, but the target and the images are not known yet: a convolution that
    # another kernel may compute keeps its map.
    if ci == 1 and groups > 1:
        return True
    if not isinstance(co, int) or not isinstance(ci, int) or is_few(ci, co, groups):
        return False
    return not may_fit(taps, strides, groups)


def convolve(
    lowering: Lowering,
    operands: tuple[Operand, Operand, Operand, Operand | None],
    axes: Axes,
    groups: int,
    curve: int = 0,
) -> None:
    """Append the calls for y = conv(x, w) + bias; curve: bits of what is applied to it."""
    x, w, y, bias = operands
    co, ci = w.type.dims[:2]
    volume, taps = math.prod(a.taps for a in axes), [0, *_find_tap_steps(axes)]
    mode = (BIAS if bias else 0) | curve
    images = x.type.dims[0]
    # The special cases first; a matrix product does everything, but not as fast.
    if is_depthwise(w, groups):
        lower_depthwise(lowering, operands, axes, curve=curve)
        return
    if is_few(ci, co, groups):
        lower_few(lowering, operands, axes, relu=bool(curve))
        return
    P = choose_factors(lowering, x, ci)
    # Between taps of all channels, words may have factors of two taps.
    own = P if P or groups > 1 or volume == 1 else get_pairs(lowering, x)
    form = choose_tiles(lowering.target, find_stored(x)[0], images, axes, ci, co, groups, P)
    if form:
        lower_winograd(lowering, operands, axes, mode, form)
        return
    j = patches.make_job(axes, images, ci, x.type.dims[1], co // groups, ldy=co)
    jobs, b = _pack(lowering, w, [(j, taps)], groups, (volume, ci * volume), own)
    _run(lowering, (x, b, y, bias), jobs, groups, own, mode)


def convolve_back(
    lowering: Lowering,
    operands: tuple[Operand, Operand, Operand, Operand | None],
    axes: Axes,
    groups: int,
) -> None:
    """Add calls for dx = the transpose of conv(., w) applied to dy, plus a bias."""
    dy, w, dx, bias = operands
    images, ci = dx.type.dims[:2]
    co, volume = w.type.dims[0], math.prod(a.taps for a in axes)
    mode = BIAS if bias else 0
    if is_depthwise(w, groups) and (bias is None or co == groups):
        lower_depthwise(lowering, operands, axes, back=True)
        return
    if is_few(co, ci, groups):
        lower_few(lowering, operands, axes, back=True)
        return
    # With a stride dX is several convolutions, of other windows.
    whole = all(a.stride == 1 for a in axes)
    P = choose_factors(lowering, dy, co // groups)
    T, turned = find_stored(dy)[0], backward(axes)
    form = choose_tiles(lowering.target, T, images, turned, co, ci, groups, P) if whole else None
    if form:
        lower_winograd(lowering, operands, turned, mode, form, back=True)
        return
    # A stride asks for as many convolutions as it has residues, so a large one is refused.
    phases = math.prod(min(a.stride, a.size) for a in axes)
    limits.check("NODES", phases, lowering.site.where, "as convolutions of stride 1 it is")
    unpacked = _list_input_jobs(axes, images, ci, co, groups)
    jobs, b = _pack(lowering, w, unpacked, groups, (ci // groups * volume, volume), P)
    _run(lowering, (dy, b, dx, bias), jobs, groups, P, mode)


CONVOLVE_KERNELS = (
    conv,
    conv_pack,
    *WINDOW_KERNELS,
    *FEW_KERNELS,
    channels_repeat,
    *WINOGRAD_KERNELS,
)  # what `convolve` calls
CONVOLVE_BACK_KERNELS = (
    conv,
    conv_pack,
    *WINDOW_KERNELS,
    *FEW_KERNELS,
    channels_sum,
    *WINOGRAD_KERNELS,
)  # what `convolve_back` calls
KERNELS = (conv, conv_pack)
