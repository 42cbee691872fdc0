"""Kernels of sampling images at points: taps along each axis, and sums over their products.

Along one axis a coordinate t in [-1, 1] is the place x = (t + 1) scale + low of an image.  Its taps
are the one, two or four pixels around x.  Where a tap lies outside, the padding tells which pixel
it reads, or -1 for 0.
"""

from __future__ import annotations

from engine.kernels.machine.target import Target
from engine.kernels.ops.sampling.resample import lines_sum
from engine.kernels.vocabulary.kernel import Body, Intrinsic, imin, inline, kernel, off, share, udiv
from engine.kernels.vocabulary.row_program import loop
from engine.plan.words import AXES, Field, Words

ZEROS, BORDER, REFLECTION = range(3)
CUBIC = -0.75  # Keys' parameter
FAR = 1e9  # where coordinates end: they are used as integers

SAMPLE_WORDS = Words(
    "sample",
    images="images of the batch",
    points="points of an image",
    channels="channels of an image",
    rank="spatial axes, 2 or 3",
    size=Field("pixels along an axis", names=AXES),
    taps="taps along an axis: 1, 2 or 4",
    padding="ZEROS, BORDER or REFLECTION",
    align="whether -1 and 1 are the centres of the outermost pixels, not their edges",
    chunk="channels that a thread takes",
)
# Parts of the scratch of a thread: for each axis 4 weights and 4 slopes, then 64 products.
PRODUCTS, SCRATCH = 24, 96


# --- one axis


@inline
def _floor(x):
    i = int(x)
    if i > x:
        i -= 1
    return i


@inline
def _reflect(x, low, high):
    """x mirrored at low and high until it is between them, and its slope."""
    # Mirrored `turns` times; each turn changes the side from which the rest is counted, and the
    # sign of the slope.
    span, slope = high - low, 1.0
    if x < low or x > high:
        if span <= 0:
            x, slope = low, 0.0
        else:
            below = x < low
            away = low - x if below else x - high
            turns = int(away / span)
            rest = away - turns * span
            slope = 1.0 if turns & 1 != 0 else -1.0
            x = low + rest if below == (turns & 1 == 0) else high - rest
    return x, slope


@inline
def _tap(i, size, low, high, padding):
    """The pixel that tap i reads; -1 for none."""
    if i < 0 or i >= size:
        if padding == ZEROS:
            i = -1
        elif padding == BORDER:
            i = 0 if i < 0 else size - 1
        else:
            x, _ = _reflect(float(i), low, high)
            i = int(x)
    return i


@inline
def _near(t):
    """Keys' kernel at distance t <= 1, and its derivative."""
    return (
        ((CUBIC + 2) * t - (CUBIC + 3)) * t * t + 1,
        (3 * (CUBIC + 2) * t - 2 * (CUBIC + 3)) * t,
    )


@inline
def _far(t):
    """Keys' kernel at a distance 1 <= t <= 2, and its derivative."""
    return (
        ((CUBIC * t - 5 * CUBIC) * t + 8 * CUBIC) * t - 4 * CUBIC,
        (3 * CUBIC * t - 10 * CUBIC) * t + 8 * CUBIC,
    )


@inline
def _axis(at, size, g, index, weight):
    """Taps of coordinate `at`: index[k], weight[k], and d weight[k] / d at in weight[4 + k]."""
    low, high, scale = -0.5, size - 0.5, 0.5 * size
    if g.align != 0:
        low, high, scale = 0.0, size - 1.0, 0.5 * (size - 1)
    x = (at + 1.0) * scale + low
    if not x > -FAR:  # also NaN
        x = -FAR
    if x > FAR:
        x = FAR
    # The nearest pixel, halves to the even one, as numpy and torch round.
    if g.taps == 1:
        i = _floor(x)
        rest = x - i
        if rest > 0.5 or (rest == 0.5 and i & 1 != 0):
            i += 1
        x = float(i)
    # Padding moves the coordinate before its taps are taken; a coordinate that is clipped no longer
    # depends on `at`, so its slope is 0.
    if x < low or x > high:
        if g.padding == BORDER:
            x = 0.0 if x < low else size - 1.0
            scale = 0.0
        elif g.padding == REFLECTION:
            x, slope = _reflect(x, low, high)
            scale = scale * slope
    i = _floor(x)
    r = x - i
    if g.taps == 1:
        weight[0], weight[4] = 1.0, 0.0
    elif g.taps == 2:
        weight[0], weight[1], weight[4], weight[5] = 1 - r, r, -scale, scale
    else:
        i -= 1
        v, d = _far(r + 1)
        weight[0], weight[4] = v, d * scale
        v, d = _near(r)
        weight[1], weight[5] = v, d * scale
        v, d = _near(1 - r)
        weight[2], weight[6] = v, -d * scale
        v, d = _far(2 - r)
        weight[3], weight[7] = v, -d * scale
    for k in range(g.taps):
        index[k] = _tap(i + k, size, low, high, g.padding)


@inline
def _taps(point, g, index, weight):
    """Taps of depth, height and width, from the last of `point` to the first; taps of depth."""
    for a in range(3):
        if a == 0 and g.rank == 2:
            index[0], weight[0], weight[4] = 0, 1.0, 0.0
        else:
            _axis(point[2 - a], g.size[a], g, off(index, 4 * a), off(weight, 8 * a))
    return g.taps if g.rank == 3 else 1


@inline
def _products(point, g, index, weight):
    """Put pixels and their weights into the scratch from `PRODUCTS` on; return their number."""
    # Up to 4 x 4 x 4 taps: the products of the weights of the axes, without taps that read 0.
    first, n = _taps(point, g, index, weight), 0
    for a in range(first):
        for b in range(g.taps):
            for c in range(g.taps):
                if index[a] >= 0 and index[4 + b] >= 0 and index[8 + c] >= 0:
                    pixel = (index[a] * g.size_h + index[4 + b]) * g.size_w + index[8 + c]
                    index[PRODUCTS + n] = pixel
                    weight[PRODUCTS + n] = weight[a] * weight[8 + b] * weight[16 + c]
                    n += 1
    return n


# --- kernels


_X = "T[images, prod(size), channels]"
_POINTS, _GRID = "T[images, points, channels]", "T[images, points, rank]"
_SCRATCH = f"work: scratch T[threads, {SCRATCH}]   places: scratch i64[threads, {SCRATCH}]"
_NUMBERS = "g: i64[] where min(chunk, *size) >= 1 and rank in (2, 3) and taps in (1, 2, 4)"


@kernel(
    f"x: {_X}  grid: {_GRID}  y: out {_POINTS}  {_SCRATCH}  {_NUMBERS}", words={"g": SAMPLE_WORDS}
)
def sample(target: Target, T: str) -> Body:
    """y[n, p, c] = sum over the taps of point grid[n, p] of weight x[n, tap, c].

    x, y: channels-last.
    """
    lines, zero = lines_sum(target, T), Intrinsic("zero", (T,))

    def body(x, grid, y, work, places, g, tid, nthreads):
        weight, index = off(work, tid * SCRATCH), off(places, tid * SCRATCH)
        volume = g.size_d * g.size_h * g.size_w
        begin, end = share(g.images * g.points, tid, nthreads)
        for p in range(begin, end):
            count = _products(off(grid, p * g.rank), g, index, weight)
            src, to = off(x, udiv(p, g.points) * volume * g.channels), off(y, p * g.channels)
            if count == 0:
                zero(to, g.channels)
            else:
                at = off(index, PRODUCTS)
                lines(to, src, at, off(weight, PRODUCTS), 0, count, g.channels, g.channels)

    return body


@kernel(
    f"dy: {_POINTS}  grid: {_GRID}  dx: out {_X}  {_SCRATCH}  {_NUMBERS}",
    words={"g": SAMPLE_WORDS},
)
def sample_dx(target: Target, T: str) -> Body:
    """dx[n, tap, c] = sum over the points and their taps of weight dy[n, p, c], as for `sample`.

    Each thread owns channels of images and adds in the order of the points.
    """
    run, zero = loop(T, "dy[] weight dx[] -> dx[] = dx + dy * weight"), Intrinsic("zero", (T,))

    def body(dy, grid, dx, work, places, g, tid, nthreads):
        weight, index = off(work, tid * SCRATCH), off(places, tid * SCRATCH)
        c, volume = g.channels, g.size_d * g.size_h * g.size_w
        chunks = udiv(c + g.chunk - 1, g.chunk)
        begin, end = share(g.images * chunks, tid, nthreads)
        for unit in range(begin, end):
            n = udiv(unit, chunks)
            c0 = (unit - n * chunks) * g.chunk
            nc = imin(g.chunk, c - c0)
            into = off(dx, n * volume * c + c0)
            # Points may share pixels, so a thread owns channels of an image: sums are in the order
            # of the points, without atomics.
            for i in range(volume):
                zero(off(into, i * c), nc)
            for p in range(n * g.points, (n + 1) * g.points):
                count = _products(off(grid, p * g.rank), g, index, weight)
                for k in range(PRODUCTS, PRODUCTS + count):
                    # Forward: y[p] = sum over taps of weight x[tap]; so dx[tap] += weight dy[p].
                    to = off(into, index[k] * c)
                    run(off(dy, p * c + c0), weight[k], to, to, nc)

    return body


@kernel(
    f"dy: {_POINTS}  x: {_X}  grid: {_GRID}  dgrid: out {_GRID}  {_SCRATCH}  {_NUMBERS}",
    words={"g": SAMPLE_WORDS},
)
def sample_dgrid(target: Target, T: str) -> Body:
    """dgrid[n, p, a] = sum over taps of d weight / d grid[n, p, a] (dy[n, p] . x[n, tap]).

    As for `sample`.
    """
    dot = loop(T, "dy[] x[] -> sum(dy * x)")

    def body(dy, x, grid, dgrid, work, places, g, tid, nthreads):
        weight, index = off(work, tid * SCRATCH), off(places, tid * SCRATCH)
        c, volume = g.channels, g.size_d * g.size_h * g.size_w
        begin, end = share(g.images * g.points, tid, nthreads)
        for p in range(begin, end):
            first = _taps(off(grid, p * g.rank), g, index, weight)
            src = off(x, udiv(p, g.points) * volume * c)
            dw, dh, dd = 0.0, 0.0, 0.0
            for a in range(first):
                for b in range(g.taps):
                    for e in range(g.taps):
                        if index[a] >= 0 and index[4 + b] >= 0 and index[8 + e] >= 0:
                            pixel = (index[a] * g.size_h + index[4 + b]) * g.size_w + index[8 + e]
                            # Forward: y[p] = sum weight_d weight_h weight_w x[tap]; so the gradient
                            # of a coordinate has its own axis's slope instead of the weight.
                            value = dot(off(dy, p * c), off(src, pixel * c), c)
                            dw += value * weight[a] * weight[8 + b] * weight[20 + e]
                            dh += value * weight[a] * weight[12 + b] * weight[16 + e]
                            dd += value * weight[4 + a] * weight[8 + b] * weight[16 + e]
            to = off(dgrid, p * g.rank)
            to[0], to[1] = dw, dh
            if g.rank == 3:
                to[2] = dd

    return body


KERNELS = (sample, sample_dx, sample_dgrid)
