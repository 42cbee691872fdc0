"""Winograd's convolution: 3x3 windows of stride 1 with a quarter of the multiplications.

A tile is 4x4 outputs y, of a window d of 6x6 inputs.  Along one axis, by the Toom-Cook algorithm
with the points 0, +-2/3, +-3/2 and infinity:

    y = A' ((G g) * (B' d))        B' is 6x6, G is 6x3, A' is 4x6;  * multiplies by elements

and along both axes the same from either side.  Summed over channels, the products by elements are
36 matrix products [tiles, Ci] [Ci, Co], which take 36 multiplications where 16 windows take 144.
A block of tiles is transformed into cache, multiplied, and transformed back from there, so nothing
but the filters, transformed once before, goes to memory in between.

Error     max |y^ - y| <= (8 + sqrt(Ci)) u max |window of x|_2 max |filter|_2, u = 2**-24.  For
          weights of both signs 5 u is measured, 2 to 8 times the error of the direct kernel; for
          values all positive, where both grow with sqrt(Ci), 1 to 3 times (ops/test_winograd.py)
Halves    images may be stored in 16 bits; products are of float32: rounding transformed windows and
          filters has 4 to 5 times the error of rounding images and weights for direct products, in
          bf16 1 % of |y| instead of a quarter of one (ops/test_winograd.py)
Source    Lavin, Gray, "Fast algorithms for convolutional neural networks", arXiv 1509.09308; points
          with small errors: Barabasz et al., "Error analysis and improving the accuracy of Winograd
          convolution", arXiv 1803.10986.  The usual 0, +-1, +-2 have twice the error of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.contract import panels_reach, strip
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    BIAS,
    RELU,
    Body,
    Inline,
    Native,
    imax,
    imin,
    inline,
    kernel,
    off,
    outline,
    pick,
    share,
    share_blocks,
    udiv,
)
from engine.kernels.vocabulary.row_program import Program
from engine.kernels.vocabulary.signature import round_to_unit
from engine.kernels.vocabulary.tiling import Tiling
from engine.plan.words import Field, Words

OUT, TAPS, IN = 4, 3, 6  # a tile along an axis: its outputs, the filter, its inputs
PRODUCTS = IN * IN
APART = 16  # elements between the matrices of a block, so that they do not share cache sets
INFINITY = float("inf")

# The points are 0, +-P, +-Q and infinity; P Q = 1 saves multiplications.
P, Q = 2 / 3, 3 / 2
P2, Q2 = P * P, Q * Q
SUM = P2 + Q2
AT_P, AT_Q = 1 / (2 * P2 * (P2 - Q2)), 1 / (2 * Q2 * (Q2 - P2))

# B' d, of a window
WINDOW = f"""d0[] d1[] d2[] d3[] d4[] d5[] ->
    a = d4 - {Q2} * d2; b = {P} * (d3 - {Q2} * d1);
    c = d4 - {P2} * d2; d = {Q} * (d3 - {P2} * d1);
    t0[] = d0 + d4 - {SUM} * d2; t1[] = a + b; t2[] = a - b; t3[] = c + d; t4[] = c - d;
    t5[] = d1 + d5 - {SUM} * d3"""
# G g, of a filter
FILTER = f"""g0[] g1[] g2[] ->
    a = {AT_P} * g0 + {AT_P * P2} * g2; b = {AT_P * P} * g1;
    c = {AT_Q} * g0 + {AT_Q * Q2} * g2; d = {AT_Q * Q} * g1;
    t0[] = g0; t1[] = a + b; t2[] = a - b; t3[] = c + d; t4[] = c - d; t5[] = g2"""
# A' m, of products
_OUTPUT = f"""m0[] m1[] m2[] m3[] m4[] m5[]{{operands}} ->
    a = m1 + m2; b = m1 - m2; c = m3 + m4; d = m3 - m4;
    v0 = m0 + a + c{{add}}; v1 = {P} * b + {Q} * d{{add}};
    v2 = {P2} * a + {Q2} * c{{add}}; v3 = {P**3} * b + {Q**3} * d + m5{{add}};
    {{outputs}}"""
OUTPUT = _OUTPUT.format(
    operands="", add="", outputs="; ".join(f"y{i}[] = v{i}" for i in range(OUT))
)
OUTPUT_ABOVE = _OUTPUT.format(
    operands=" bias[] low*",
    add=" + bias",
    outputs="; ".join(f"y{i}[] = where(v{i} < low, low, v{i})" for i in range(OUT)),
)

IMAGE = Words(
    "image",
    height="pixels of an image from row to row",
    width="pixels of a row",
    pad_h=Field("padding above the first row, negative where windows start inside", range="signed"),
    pad_w=Field("padding before the first pixel of a row, likewise", range="signed"),
    ld="elements from pixel to pixel",
)
TILES = Words(
    "tiles",
    images="number of images",
    down="tiles of an image from top to bottom",
    across="tiles of an image from left to right",
    span="tiles of a row that are transformed at once",
    block="tiles of a block",
)
WINOGRAD_WORDS = Words(
    "winograd",
    tiles=Field("the tiles", of=TILES),
    x=Field("the images that are read", of=IMAGE),
    y=Field("the images that are written, without padding", of=IMAGE),
    channels="channels that are read",
    first="the first channel of a pixel that is written",
    columns="channels that are written",
    mode="bits: BIAS, RELU",
    panel="columns of a panel of the filters as it is stored",
    plane="elements of the filters from product to product",
    kc="channels of a block",
    mt="threads along tiles",
    nt="threads along columns",
    room="elements of work of a thread",
    line="of these, after the matrices, where lines of a transform begin",
)
FILTERS_WORDS = Words(
    "winograd_filters",
    channels="channels that one filter reads",
    first="the first filter",
    columns="number of filters",
    c_step="step of w from channel to channel",
    j_step="step of w from filter to filter",
    turned="whether filters are turned by half a turn",
    panel="columns of a panel as it is stored",
    plane="elements from product to product",
)


def image_reach(c: KernelCall, name: str, count: int, channels: int) -> int:
    """Return the reach into the first channels of so many images."""
    (g,) = c.records(name, IMAGE, 1)
    if channels > g["ld"]:
        c.refuse(f"{channels} channels of pixels {g['ld']} apart")
    pixels = count * g["height"] * g["width"]
    return (pixels - 1) * g["ld"] + channels if pixels else 0


def read_tiles(c: KernelCall) -> Mapping[str, Any]:
    """Return the words of the tiles of a call after refusing divisors that are 0."""
    (g,) = c.records("tiles", TILES, 1)
    if min(g["down"], g["across"], g["span"], g["block"]) < 1:
        c.refuse(f"tiles of {dict(g)}")
    return g


def columns_of(c: KernelCall) -> int:
    """Return the most columns that one of the threads along them has."""
    panels = -(-c.columns // c.tile_columns)
    return int(min(c.columns, -(-panels // c.nt) * c.tile_columns))


@inline
def place(i, g):
    """Image, row and column of tile i."""
    row = udiv(i, g.across)
    n = udiv(row, g.down)
    return n, row - n * g.down, i - row * g.across


def lines(T: str, program: str, count: int, X: str = "", Y: str = "") -> Native:
    """Return the native of a program whose first `count` inputs lie equal steps apart.

    X, Y: how these inputs and the outputs are stored; T if empty.
    """
    made = Program.of(program, T)
    ins = [replace(i, dtype=X or T) if k < count else i for k, i in enumerate(made.ins)]
    outs = tuple(Y or T for _ in made.outs)
    return Native("lines", (replace(made, ins=tuple(ins), outs=outs), count))


def reader(T: str, program: str, size: int, X: str = "") -> Inline:
    """Return an inline function: into[p][t] = both transforms of tile first + t, for t < count.

    reader(x, into, line, g, image, first, count, n, row, step)

    A tile reads size x size pixels, of them n channels from x on; pixels outside the image are 0.
    row, step: elements from tile to tile and from product to product of `into`.  line: 7 lines of
    4 span + 2 pixels.  X: how x is stored; T if empty.
    """
    # Only the first transform reads x, and widens it; between the two, lines are in float32.
    along_height, along_width = lines(T, program, size, X), lines(T, program, size)
    zero = Native("zero", (T,))

    @outline
    def run(x, into, line, g, image, first, count, n, row, step):
        wide, height, width, ld = (OUT * g.span + 2) * n, image.height, image.width, image.ld
        # Rows outside the image are read from a line of zeros, so the transform has no branch.
        outside = off(line, IN * wide)
        zero(outside, wide)
        t = 0
        while t < count:
            image_of, ty, tx = place(first + t, g)
            # Neighbouring tiles of a row are transformed together along the height: their windows
            # overlap by two pixels, which are then transformed once.
            many = imin(imin(g.across - tx, count - t), g.span)
            top, left = OUT * ty - image.pad_h, OUT * tx - image.pad_w
            begin, end = imax(-top, 0), height - top
            pixels = OUT * many + size - OUT
            # Pixels [lo, hi) of these windows are inside the image.
            lo = imin(imax(-left, 0), pixels)
            hi = imax(imin(width - left, pixels), lo)
            for r in range(IN):
                zero(off(line, r * wide), lo * n)
                zero(off(line, r * wide + hi * n), (pixels - hi) * n)
            # Pixels that touch in memory are one run.
            run_of = hi - lo if n == ld else 1
            while lo < hi:
                src = off(x, ((image_of * height + top) * width + left + lo) * ld)
                to = off(line, lo * n)
                along_height(src, width * ld, begin, end, to, wide, IN, outside, run_of * n)
                lo += run_of
            for i in range(many):
                for r in range(IN):
                    src = off(line, r * wide + OUT * i * n)
                    to = off(into, IN * r * step + (t + i) * row)
                    along_width(src, n, 0, size, to, step, IN, outside, n)
            t += many

    return run


def writer(T: str, Y: str = "") -> Inline:
    """Return an inline function: the outputs of tiles first + t from their products m[p][t].

    writer(m, y, bias, low, line, g, image, first, count, n, step)

    t < count; y = max(low[0], A' m A + bias), n channels of each pixel from y on, if the image has
    it.  step: elements from product to product.  line: 6 lines of 4 span pixels, and a pixel.
    Y: how y is stored; T if empty.
    """
    # y = A' m A, along the width first: its results lie as tiles of a row, which the second
    # transform reads pixel by pixel.  It alone writes y, and rounds each result once.
    across, down = lines(T, OUTPUT, IN), lines(T, OUTPUT_ABOVE, IN, "", Y)

    @outline
    def run(m, y, bias, low, line, g, image, first, count, n, step):
        part, height, width, ld = g.span * n, image.height, image.width, image.ld
        wide = OUT * part
        outside = off(line, IN * wide)
        t = 0
        while t < count:
            image_of, ty, tx = place(first + t, g)
            many = imin(imin(g.across - tx, count - t), g.span)
            for r in range(IN):
                of, to = off(m, IN * r * step + t * n), off(line, r * wide)
                across(of, step, 0, IN, to, part, OUT, outside, many * n)
            # Tiles at the edge have rows and columns beyond the image, which are not written.
            below = height - OUT * ty
            for i in range(imin(OUT * many, width - OUT * tx)):
                tile = udiv(i, OUT)
                of = off(line, (i - OUT * tile) * part + tile * n)
                to = off(y, ((image_of * height + OUT * ty) * width + OUT * tx + i) * ld)
                down(of, wide, 0, IN, to, width * ld, below, outside, bias, low, n)
            t += many

    return run


# Elements of work that a thread transforms filters in, for each column of a panel.
FILTERS_WORK = f"{TAPS * TAPS} * lanes + {IN * TAPS}"


def _filters_reach(c: KernelCall) -> Reach:
    panels = panels_reach(c, c.columns, c.channels, c.panel, unit=1)
    return {"u": panels + (PRODUCTS - 1) * c.plane if panels else 0}


@kernel(
    f"""
    w: T[(first + columns - 1) * j_step + (channels - 1) * c_step + {TAPS * TAPS}]
        if columns * channels
    u: out T[...]   work: scratch T[threads, {FILTERS_WORK}, tile_columns]
    g: i64[] where turned <= 1
    """,
    words={"g": FILTERS_WORDS},
    reach=_filters_reach,
)
def winograd_filters(target: Target, T: str) -> Body:
    """u[p][panel][c][j] = (G w[first + j, c] G')[p], in panels as the register tile reads them.

    w: T[Co, Ci, 3, 3]; filters may be taken along either dimension.
    """
    lanes = target.lanes(ITEMSIZE[T])
    width, taps = target.nv * lanes, TAPS * TAPS
    transform, transpose = lines(T, FILTER, TAPS), Native("transpose", (T,))

    def body(w, u, work, g, tid, nthreads):
        # Forward: Y = conv(X, W); so dX = conv(dY, W) with the filters turned by half a turn and
        # the channels exchanged: `turned`, and the two steps exchanged.
        c_step, j_step, turn = g.c_step, g.j_step, g.turned
        source = off(w, g.first * j_step)
        blocks = udiv(g.channels + lanes - 1, lanes)
        rows = off(work, tid * (taps * lanes + IN * TAPS) * width)
        half = off(rows, taps * lanes * width)
        begin, end = share(blocks * udiv(g.columns + width - 1, width), tid, nthreads)
        for unit in range(begin, end):
            panel = udiv(unit, blocks)
            c = (unit - panel * blocks) * lanes
            high, n = imin(lanes, g.channels - c), imin(width, g.columns - panel * width)
            src = off(source, c * c_step + panel * width * j_step)
            # rows[c, tap][j]; where a row of w holds the (c, tap) of one j, by squares of it.
            whole, wide = 0, 0
            if c_step == taps:
                whole, wide = udiv(high * taps, lanes) * lanes, udiv(n, lanes) * lanes
            for q in range(0, whole, lanes):
                for j in range(0, wide, lanes):
                    transpose(off(rows, q * width + j), width, off(src, j * j_step + q), j_step)
            for q in range(high * taps):
                at = udiv(q, taps) * (c_step - taps) + q
                for j in range(wide if q < whole else 0, n):
                    rows[q * width + j] = src[at + j * j_step]
            into = off(u, panel * width * g.channels + c * g.panel)
            # A turned filter is read from its last tap back.
            step, row = (1 - 2 * turn) * width, TAPS * width
            for i in range(high):
                at = off(rows, (i * taps + 2 * TAPS * turn) * width)
                transform(at, TAPS * step, 0, TAPS, half, row, IN, at, row)
                for r in range(IN):
                    at = off(half, (r * TAPS + 2 * turn) * width)
                    to = off(into, i * g.panel + IN * r * g.plane)
                    transform(at, step, 0, TAPS, to, g.plane, IN, at, n)

    return body


def _reach(c: KernelCall) -> Reach:
    tiles, n, channels = read_tiles(c), c.columns, c.channels
    count = tiles["images"] * tiles["down"] * tiles["across"]
    x = image_reach(c, "x", tiles["images"], channels)
    y = image_reach(c, "y", tiles["images"], c.first + n)
    if not count * n:
        return {}
    block, span, own = tiles["block"], tiles["span"], columns_of(c)
    most = min(round_to_unit(block, c.tile_rows), count)
    v_step, m_step = block * channels + APART, block * own + APART
    reading = (IN + 1) * (OUT * span + 2) * channels
    writing = IN * OUT * span * own + own
    used = max(
        (PRODUCTS - 1) * v_step + most * channels,
        PRODUCTS * v_step + (PRODUCTS - 1) * m_step + most * own,
        c.line + APART + own + max(reading, writing),
    )
    panels = panels_reach(c, n, channels, c.panel)
    return {
        "x": x,
        "u": (PRODUCTS - 1) * c.plane + panels if channels else 0,
        "y": y,
        "work": c.scratch(c.room, used, c.mt * c.nt),
    }


def direct_products(c: KernelCall) -> int:
    """Return the multiply-adds of the direct convolution: `TAPS` by `TAPS` for each pixel."""
    images, y = TILES.unpack(c.tiles)["images"], IMAGE.unpack(c.numbers["y"])
    return int(images * y["height"] * y["width"] * c.channels * c.columns * TAPS * TAPS)


def _samples(c: KernelCall) -> Tiling | None:
    if c.nt > 1:  # scratch memory has room for the columns of a thread alone
        return None
    steps = {}
    for name in ("x", "y"):
        image = IMAGE.unpack(c.numbers[name])
        steps[name] = image["height"] * image["width"] * image["ld"]
    return c.cut(
        TILES.unpack(c.tiles)["images"],
        steps,
        counts=(WINOGRAD_WORDS.place("tiles") + TILES.place("images"),),
        fixed={WINOGRAD_WORDS.place("mt"): 1},
    )


@kernel(
    """
    x: X[...]   u: T[...]   y: out Y[...]   bias: T[first + columns] if mode & BIAS
    work: scratch T[...]
    g: i64[] where mode <= BIAS | RELU and min(mt, nt, kc) >= 1
    """,
    words={"g": WINOGRAD_WORDS},
    reach=_reach,
    multiply_adds=direct_products,
    samples=_samples,
)
def winograd(target: Target, T: str, X: str = "", Y: str = "") -> Body:
    """Channels of y = act(conv(x, w) (+ bias)), of filters u of `winograd_filters`.

    x, y: channels-last.  X, Y: how they are stored.
    """
    read, write, rows = reader(T, WINDOW, IN, X), writer(T, Y), strip(target, T, 0)
    mr, width = target.mr, target.nv * target.lanes(ITEMSIZE[T])
    zero = Native("zero", (T,))

    def body(x, u, y, bias, work, g, tid, nthreads):
        tiles, channels, nt = g.tiles, g.channels, g.nt
        tm, tn = udiv(tid, nt), tid - udiv(tid, nt) * nt
        first, last = share_blocks(tiles.images * tiles.down * tiles.across, mr, tm, g.mt)
        n0, n1 = share_blocks(g.columns, width, tn, nt)
        if tm >= g.mt:
            last = first
        n = n1 - n0
        if n > 0 and first < last:
            v = off(work, tid * g.room)
            v_step, m_step = tiles.block * channels + APART, tiles.block * n + APART
            m, line = off(v, PRODUCTS * v_step), off(v, g.line)
            low, nothing = line, off(line, APART)
            # max(low, v) is ReLU for low = 0 and nothing for -inf: one program for both.
            low[0] = -INFINITY
            if g.mode & RELU != 0:
                low[0] = 0.0
            zero(nothing, n)
            line = off(nothing, n)
            out, add = off(y, g.first + n0), pick(g.mode & BIAS, off(bias, g.first + n0), nothing)
            # Blocks of equal size, of whole register tiles.
            blocks = udiv(last - first + tiles.block - 1, tiles.block)
            block = udiv(udiv(last - first + blocks - 1, blocks) + mr - 1, mr) * mr
            while first < last:
                count = imin(block, last - first)
                read(x, v, line, tiles, g.x, first, count, channels, channels, v_step)
                # 36 products [tiles, Ci] [Ci, Co], in blocks of K, whose matrices stay in the
                # cache.
                for p in range(PRODUCTS):
                    k0 = 0
                    while k0 < channels:
                        kb = imin(g.kc, channels - k0)
                        left, b = off(v, p * v_step + k0), off(u, p * g.plane + k0 * g.panel)
                        j, step = n0, ACCUMULATE if k0 > 0 else 0
                        while j < n1:
                            c, w = off(m, p * m_step + j - n0), imin(width, n1 - j)
                            d, ldb = off(b, j * channels), g.panel
                            rows(left, channels, d, ldb, c, n, add, kb, count, w, step)
                            j += width
                        k0 += kb
                write(m, out, add, low, line, tiles, g.y, first, count, n, m_step)
                first += count

    return body


KERNELS = (winograd_filters, winograd)
