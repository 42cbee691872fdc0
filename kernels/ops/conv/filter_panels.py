"""Panels of filters: the weights of a convolution as its matrix product reads them.

A filter has one weight for each tap and channel.  A panel holds some filters side by side, a row
for each tap and channel, so that a register tile reads whole vectors of it.
"""

from __future__ import annotations

import math

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.contract import count_in_row, panels_reach, view_panel
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    Body,
    Intrinsic,
    imin,
    inline,
    kernel,
    off,
    share,
    share_blocks,
    udiv,
)
from engine.plan.words import AXES, OPEN, Field, Words

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


def measure_panels(c: KernelCall, P: str, n: int, depth: int, panel: int, unit: int = 0) -> int:
    """Return the reach into panels of factors P, as `panels_reach`: in words if P is not empty."""
    reach = panels_reach(c, n, -(-depth // count_in_row(P)), panel, unit)
    return -(-reach // 2) if P and count_in_row(P) == 1 else reach


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
        panels = measure_panels(c, factors, n, depth, c.panel, unit=1)
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
    copy, transpose = Intrinsic("copy", (T,)), Intrinsic("transpose", (T,))

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
    each, panel_at, turn = count_in_row(P), view_panel(P), Intrinsic("turn", (P, T))
    pair, convert = Intrinsic("pair", (P, T, 1)), Intrinsic("convert", (P, T))
    transpose = Intrinsic("transpose", (T,))

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


KERNELS = (conv_pack,)
