"""Kernels of pooling regions of images into bins, channels-last."""

from __future__ import annotations

from engine.kernels.loops.bad_data import NO_POSITION, report, report_at
from engine.kernels.machine.target import Target
from engine.kernels.ops.index.gather import wrap
from engine.kernels.vocabulary.kernel import (
    Body,
    Intrinsic,
    imax,
    imin,
    inline,
    kernel,
    off,
    share,
    udiv,
)
from engine.kernels.vocabulary.row_program import loop
from engine.plan.context import INDEX, STATUS
from engine.plan.words import Words

ROI_WORDS = Words(
    "roi",
    regions="number of regions",
    rows="rows of bins of a region",
    columns="columns of bins of a region",
    images="images of the batch",
    channels="channels of an image",
    height="rows of an image",
    width="columns of an image",
    ratio="samples along an axis of a bin, 0 for as many as pixels",
    half="whether pixels have their centres at 0.5",
    chunk="channels that a thread takes",
)


_FOUR = "x0[] w0 x1[] w1 x2[] w2 x3[] w3"  # four pixels and their weights


@inline
def _samples(length, bins, ratio):
    """The number of samples along one axis of a bin."""
    if ratio > 0:
        return ratio
    # The ceiling: at least one sample a pixel.
    n = int(length / bins)
    if n < length / bins:
        n += 1
    return n


@inline
def _region(rois, r, scale, g):
    """Return the start of region r, the size of its bins and a bin's samples, along y and x."""
    shift = 0.5 if g.half != 0 else 0.0
    x, y = rois[4 * r] * scale - shift, rois[4 * r + 1] * scale - shift
    w, h = rois[4 * r + 2] * scale - shift - x, rois[4 * r + 3] * scale - shift - y
    # Without half pixels a region is one pixel wide at least, as in the first Mask R-CNN.
    if g.half == 0:
        w, h = max(w, 1.0), max(h, 1.0)
    nh, nw = _samples(h, g.rows, g.ratio), _samples(w, g.columns, g.ratio)
    return y, x, h / g.rows, w / g.columns, nh, nw


@inline
def _between(x, size):
    """The pixels before and after a place, and the weight of the latter."""
    x = max(x, 0.0)
    i = int(x)
    if i >= size - 1:
        return size - 1, size - 1, 0.0
    return i, i + 1, x - i


@inline
def _corners(y, x, g):
    """Pixels around a place and their weights; the flag says whether the image has such a place."""
    if y >= -1.0 and y <= g.height and x >= -1.0 and x <= g.width:
        y0, y1, v = _between(y, g.height)
        x0, x1, u = _between(x, g.width)
        a, b = y0 * g.width, y1 * g.width
        v0, u0 = 1 - v, 1 - u
        return 1, a + x0, a + x1, b + x0, b + x1, v0 * u0, v0 * u, v * u0, v * u
    return 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0


@inline
def _sample(i, row, column, region, g):
    """The four pixels around sample i of a bin, with their weights."""
    top, left, bh, bw, nh, nw = region
    a = udiv(i, nw)
    # Samples lie at the centres of a regular grid in the bin.
    y = top + row * bh + (a + 0.5) * bh / nh
    return _corners(y, left + column * bw + (i - a * nw + 0.5) * bw / nw, g)


@inline
def _place(unit, g):
    """The region, row and column of bin number i."""
    r = udiv(unit, g.rows * g.columns)
    row = udiv(unit - r * g.rows * g.columns, g.columns)
    return r, row, unit - (r * g.rows + row) * g.columns


_X, _Y = "T[images, height, width, channels]", "T[regions, rows, columns, channels]"
_NUMBERS = "g: i64[] where min(height, width) >= 1 or not regions * rows * columns"
_FAULT = "fault: update i64[1 record]"


@kernel(
    f"""
    x: {_X}   rois: T[regions, 4]   batch: i64[regions]   y: out {_Y}
    {_FAULT}   scale: f64   {_NUMBERS}
    """,
    words={"g": ROI_WORDS, "fault": STATUS},
)
def roi_align(target: Target, T: str, largest: int) -> Body:
    """y[r, bin, c] = mean over the samples of a bin of x between its pixels; or, if `largest`, the
    largest product of a pixel of a sample and its weight.

    x, y: channels-last; rois: x1, y1, x2, y2; batch: images.
    """
    products = "max(max(x0 * w0, x1 * w1), max(x2 * w2, x3 * w3))"
    total = "y + (x0 * w0 + x1 * w1) + (x2 * w2 + x3 * w3)"
    more = loop(T, f"{_FOUR} y[] -> y[] = {f'max(y, {products})' if largest else total}")
    first = loop(T, f"{_FOUR} -> y[] = {products}")
    zero, cast = Intrinsic("zero", (T,)), Intrinsic("cast", (T, "f64"))

    def body(x, rois, batch, y, fault, scale, g, tid, nthreads):
        c, bad = g.channels, NO_POSITION
        begin, end = share(g.regions * g.rows * g.columns, tid, nthreads)
        for unit in range(begin, end):
            r, row, column = _place(unit, g)
            n = wrap(batch, r, g.images)
            bad = imin(bad, r) if n < 0 else bad
            to = off(y, unit * c)
            region = _region(rois, r, scale, g)
            count = region[4] * region[5] if n >= 0 else 0
            src, part = off(x, n * g.height * g.width * c), 1.0
            # The mean's division is in the weights: each sample adds its share.
            if largest == 0 and count > 1:
                part = 1.0 / count
            zero(to, c)
            for i in range(count):
                is_in, p0, p1, p2, p3, w0, w1, w2, w3 = _sample(i, row, column, region, g)
                w0, w1, w2, w3 = cast(w0 * part), cast(w1 * part), cast(w2 * part), cast(w3 * part)
                x0, x1, x2, x3 = (
                    off(src, p0 * c),
                    off(src, p1 * c),
                    off(src, p2 * c),
                    off(src, p3 * c),
                )
                # The first sample starts the maximum: zeros would hide negative products.
                if largest != 0 and i == 0:
                    first(x0, w0, x1, w1, x2, w2, x3, w3, to, c)
                elif largest != 0 or is_in != 0:
                    more(x0, w0, x1, w1, x2, w2, x3, w3, to, to, c)
        report_at(fault, INDEX, batch, bad, g.images)

    return body


@kernel(
    f"""
    dy: {_Y}   x: {_X} if largest   rois: T[regions, 4]   batch: i64[regions]   dx: out {_X}
    {_FAULT}   scale: f64   {_NUMBERS}
    """,
    words={"g": ROI_WORDS, "fault": STATUS},
)
def roi_align_grad(target: Target, T: str, largest: int) -> Body:
    """dx[n, pixel, c] = sum over the samples that see it of weight dy[r, bin, c] / samples; or, if
    `largest`, of weight dy where their product is the first largest of its bin.

    As for `roi_align`; each thread owns channels and adds in the order of the regions.
    """
    run = loop(T, "dy[] weight dx[] -> dx[] = dx + dy * weight")
    zero, cast = Intrinsic("zero", (T,)), Intrinsic("cast", (T, "f64"))

    def body(dy, x, rois, batch, dx, fault, scale, g, tid, nthreads):
        c, volume, bad = g.channels, g.height * g.width, NO_POSITION
        c0 = imin(tid * g.chunk, c)
        nc = imin(g.chunk, c - c0)
        # Regions overlap, so a thread owns channels, not regions: no two threads add to a pixel,
        # and sums are in the order of the regions.
        for i in range(g.images * volume):
            zero(off(dx, i * c + c0), nc)
        for unit in range(g.regions * g.rows * g.columns):
            r, row, column = _place(unit, g)
            n = wrap(batch, r, g.images)
            bad = imin(bad, r) if n < 0 else bad
            top = off(dy, unit * c + c0)
            region = _region(rois, r, scale, g)
            count = region[4] * region[5] if n >= 0 else 0
            src, into = off(x, n * volume * c + c0), off(dx, n * volume * c + c0)
            if largest == 0:
                # Forward: y = mean of (w0 x0 + w1 x1 + w2 x2 + w3 x3); so dx_k += w_k dy / count.
                for i in range(count):
                    is_in, p0, p1, p2, p3, w0, w1, w2, w3 = _sample(i, row, column, region, g)
                    if is_in != 0:
                        run(top, cast(w0 / count), off(into, p0 * c), off(into, p0 * c), nc)
                        run(top, cast(w1 / count), off(into, p1 * c), off(into, p1 * c), nc)
                        run(top, cast(w2 / count), off(into, p2 * c), off(into, p2 * c), nc)
                        run(top, cast(w3 / count), off(into, p3 * c), off(into, p3 * c), nc)
            else:
                # Forward: y = the largest w x; so dx at that pixel += w dy.  The pixel is
                # searched again: an index for each bin and channel would cost more memory than the
                # search takes time.
                for j in range(nc if count > 0 else 0):
                    best, at, weight = -1.0, -1, 0.0
                    for i in range(count):
                        _, p0, p1, p2, p3, w0, w1, w2, w3 = _sample(i, row, column, region, g)
                        for k in range(4):
                            p = (p0 if k == 0 else p1) if k < 2 else (p2 if k == 2 else p3)
                            w = (w0 if k == 0 else w1) if k < 2 else (w2 if k == 2 else w3)
                            value = w * src[p * c + j]
                            if at < 0 or value > best:
                                best, at, weight = value, p, w
                    into[at * c + j] += weight * top[j]
        report_at(fault, INDEX, batch, bad, g.images)

    return body


@inline
def _span(begin, size, bins, i, limit):
    """The pixels [low, high) of bin i of a region of `size` pixels that begins at `begin`."""
    low = begin + udiv(i * size, bins)
    high = begin + udiv((i + 1) * size + bins - 1, bins)
    return imin(imax(low, 0), limit), imin(imax(high, 0), limit)


@inline
def _rounded(x):
    """The nearest integer, halves away from 0."""
    return int(x + 0.5) if x >= 0 else -int(0.5 - x)


@kernel(
    f"""
    x: {_X}   rois: T[regions, 5]   y: out {_Y}   index: out i64[regions, rows, columns, channels]
    {_FAULT}   scale: f64   {_NUMBERS}
    """,
    words={"g": ROI_WORDS, "fault": STATUS},
)
def roi_max(target: Target, T: str) -> Body:
    """y[r, bin, c] = the largest x[n, pixel, c] of the bin, 0 if it has no pixel; index: the first
    such element of x, or -1.

    x, y, index: channels-last; rois: n, x1, y1, x2, y2.
    """

    def body(x, rois, y, index, fault, scale, g, tid, nthreads):
        c = g.channels
        begin, end = share(g.regions * g.rows * g.columns, tid, nthreads)
        for unit in range(begin, end):
            r, row, column = _place(unit, g)
            roi = off(rois, 5 * r)
            n = int(roi[0])
            left, top = _rounded(roi[1] * scale), _rounded(roi[2] * scale)
            w, h = _rounded(roi[3] * scale) - left + 1, _rounded(roi[4] * scale) - top + 1
            y0, y1 = _span(top, imax(h, 1), g.rows, row, g.height)
            x0, x1 = _span(left, imax(w, 1), g.columns, column, g.width)
            if n < 0 or n >= g.images:
                report(fault, INDEX, r, n, g.images)
                y1 = y0
            to, at = off(y, unit * c), off(index, unit * c)
            for j in range(c):
                # -1 until a pixel has been seen, so that negative maxima count.
                to[j], at[j] = 0, -1
            for i in range(y0, y1):
                for k in range(x0, x1):
                    pixel = ((n * g.height + i) * g.width + k) * c
                    for j in range(c):
                        if at[j] < 0 or x[pixel + j] > to[j]:
                            to[j], at[j] = x[pixel + j], pixel + j

    return body


@kernel(
    f"dy: {_Y}  index: i64[regions, rows, columns, channels]  dx: out {_X}  {_NUMBERS}",
    words={"g": ROI_WORDS},
)
def roi_max_grad(target: Target, T: str) -> Body:
    """dx[i] = sum of dy where index is i.  As for `roi_max`; each thread owns channels.

    A bin without a pixel has an index outside of dx.
    """
    zero = Intrinsic("zero", (T,))

    def body(dy, index, dx, g, tid, nthreads):
        c = g.channels
        c0 = imin(tid * g.chunk, c)
        nc = imin(g.chunk, c - c0)
        pixels = g.images * g.height * g.width
        for i in range(pixels):
            zero(off(dx, i * c + c0), nc)
        for unit in range(g.regions * g.rows * g.columns):
            for j in range(unit * c + c0, unit * c + c0 + nc):
                # Forward: y = x[index]; so dx[index] += dy.
                if index[j] >= 0 and index[j] < pixels * c:
                    dx[index[j]] += dy[j]

    return body


KERNELS = (roi_align, roi_align_grad, roi_max, roi_max_grad)
