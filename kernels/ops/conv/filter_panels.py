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
    Inline,
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
        # It reads all taps of a filter, and vectors up to the end of the weights.
        taps = min(c.c_step, c.j_step)
        whole = c.span(0, *walks, (q["channels"], c.c_step), (taps, 1))
        w = max(w, whole, c.groups * c.group)
        factors = str(c.params[1]) if len(c.params) > 1 else ""
        panels = measure_panels(c, factors, n, depth, c.panel, unit=1)
        b = max(b, q["b_at"] + (c.groups - 1) * q["b_group"] + panels)
    return {"w": w, "b": b}


def _write_row(T: str, P: str) -> Inline:
    """Return an inline function: a row of a panel, of n filters.

    write(dst, x, y, n)

    x, y: the weights of two channels; y is read for pairs alone.
    """
    if count_in_row(P) == 2:
        return Intrinsic("pair", (P, T, 1))
    move = Intrinsic("convert", (P, T)) if P else Intrinsic("copy", (T,))

    @inline
    def write_one(dst, x, y, n):
        move(dst, x, n)

    return write_one


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
    lanes = target.lanes(ITEMSIZE[T])
    width = target.nv * lanes
    each, panel_at, transpose = count_in_row(P), view_panel(P), Intrinsic("transpose", (T,))
    turn = Intrinsic("turn", (P, T)) if P else transpose
    write = _write_row(T, P)

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

    @inline
    def turn_filters(into, square, w, q, stored, js, columns, tid, nthreads):
        taps = q.taps_d * q.taps_h * q.taps_w
        begin, end = share_blocks(q.channels * taps, lanes, tid, nthreads)
        for j in range(0, columns, lanes):
            for k in range(begin, end, lanes):
                rows = imin(lanes, end - k)
                if taps == 1 and rows == lanes:
                    turn(off(into, k * stored + j), stored, off(w, j * js + k), js)
                    continue
                collect(square, w, j * js + k, js, rows, lanes, rows)
                c = udiv(k, taps)
                tap = k - c * taps
                for r in range(rows):
                    at = off(square, r * lanes)
                    write(off(into, (tap * q.channels + c) * stored + j), at, at, lanes)
                    tap += 1
                    if tap == taps:
                        c, tap = c + 1, 0

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
            done = 0
            # Where a filter of w has its channels and taps in the order of b, up to their exchange,
            # a few filters at a time are read from end to end, which hardware prefetches.
            if each == 1 and js == whole and q.first == 0 and q.step_w == 1:
                done = udiv(columns, lanes) * lanes
                turn_filters(into, first, off(w, filters), q, stored, js, done, tid, nthreads)
                if done == columns:
                    end = begin
            # In the order of w: all channels of a few filters, or for dX all filters of a channel.
            step = lanes if cs < js else 1
            c = begin
            while c < end:
                last, j = imin(c + step, end), done
                # A row of b is of one tap and of a channel or two: neighbours in w only where a
                # filter has a single tap.
                if each == 2 and cs == 1 and c + lanes <= end:
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
                                            dst = off(into, to * stored + j)
                                            x, y = off(first, row), off(second, row)
                                            if many == lanes:  # a vector, and no loop
                                                write(dst, x, y, lanes)
                                            else:
                                                write(dst, x, y, many)
                    j += lanes
                c += step

    return body


KERNELS = (conv_pack,)
