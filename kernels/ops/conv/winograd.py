"""Winograd's convolution: 3x3 windows of stride 1 with a fraction of the multiplications.

A tile is `out` x `out` outputs y, of a window d of inputs; winograd_tiles.py has its transforms:

    y = A' ((G g G') * (B' d B)) A        * multiplies by elements

Summed over channels, the products by elements are matrix products [tiles, Ci] [Ci, Co], 36 of them
for a tile of 4x4 outputs, for which windows take 144 multiplications.  A block of tiles is
transformed into cache, multiplied, and transformed back from there, so nothing but the filters,
transformed once before, goes to memory in between.

Error     max |y^ - y| <= (8 + sqrt(Ci)) u max |window of x|_2 max |filter|_2, u = 2**-24.  For
          weights of both signs 5 u is measured, 2 to 8 times the error of the direct kernel; for
          values all positive, where both grow with sqrt(Ci), 1 to 3 times (ops/test_winograd.py)
Halves    images may be stored in 16 bits.  Factors of 16 bits are of small tiles, whose transforms
          are computed in float32 and rounded once: rms |y^ - y| <= 2 times the error of direct
          products of images and weights that are rounded (ops/test_winograd.py)
Source    winograd_tiles.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.contract import count_in_row, depth_of, panels_reach, same, strip
from engine.kernels.machine.target import Target
from engine.kernels.ops.conv.winograd_tiles import LARGE, TAPS, TileForm, get_tiles
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    BIAS,
    RELU,
    Body,
    Inline,
    Intrinsic,
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

APART = 16  # elements between the matrices of a block, so that they do not share cache sets
INFINITY = float("inf")

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
    kc="channels of a block, an even number of factors of 16 bits",
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


def find_factors(c: KernelCall) -> str:
    """Return the type of the factors of a call, if they have 16 bits: the fourth parameter."""
    return str(c.params[3]) if len(c.params) > 3 else ""


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


def lines(T: str, program: str, count: int, X: str = "", Y: str = "") -> Intrinsic:
    """Return the intrinsic of a program whose first `count` inputs lie equal steps apart.

    X, Y: how these inputs and the outputs are stored; T if empty.
    """
    made = Program.of(program, T)
    ins = [replace(i, dtype=X or T) if k < count else i for k, i in enumerate(made.ins)]
    outs = tuple(Y or T for _ in made.outs)
    return Intrinsic("lines", (replace(made, ins=tuple(ins), outs=outs), count))


def reader(
    form: TileForm, T: str, program: str, X: str = "", P: str = "", pairs: int = 0
) -> Inline:
    """Return an inline function: into[p][t] = both transforms of tile first + t, for t < count.

    reader(x, into, line, g, image, first, count, n, row, step)

    The program is of windows or of outputs: a tile reads as many pixels along each axis, of them n
    channels from x on; pixels outside the image are 0.
    row, step: elements from tile to tile and from product to product of `into`.  line: as many
    lines of out span + 2 pixels as a tile has inputs, and another one.
    X: how x is stored; T if empty.  P: what results are rounded to; T if empty.  With `pairs` they
    are words of two tiles each, whose place is t // 2, and after the lines there is room for the
    products of a tile.
    """
    size, out, products = form.size, form.out, form.products
    reads = len(Program.of(program, T).ins)
    # Only the first transform reads x, and widens it; between the two, lines are in float32.
    along_height, along_width = lines(T, program, reads, X), lines(T, program, reads, "", P)
    zero, as_factors = Intrinsic("zero", (T,)), Intrinsic("halves", (P,)) if pairs else same
    both, single = (Intrinsic("pair", (P, P, flag)) if pairs else same for flag in (1, 0))

    @inline
    def put(src, wide, n, into, t, count, row, step, outside):
        for r in range(size):
            of, to = off(src, r * wide), off(into, size * r * step + t * row)
            along_width(of, n, 0, reads, to, step, size, outside, n)

    @inline
    def put_pair(src, wide, n, into, t, count, row, step, outside):
        # Sums are over tiles, so a word has factors of two of them: it is made when both are there.
        first = as_factors(off(outside, wide))
        mine = off(first, (t & 1) * products * n)
        for r in range(size):
            of, to = off(src, r * wide), off(mine, size * r * n)
            along_width(of, n, 0, reads, to, n, size, outside, n)
        for p in range(products):
            word = off(into, p * step + (t >> 1) * row)
            if t & 1 != 0:
                both(word, off(first, p * n), off(mine, p * n), n)
            elif t + 1 == count:
                single(word, off(first, p * n), off(first, p * n), n)

    place_tile = put_pair if pairs else put

    @outline
    def run(x, into, line, g, image, first, count, n, row, step):
        wide, height, width, ld = (out * g.span + 2) * n, image.height, image.width, image.ld
        # Rows outside the image are read from a line of zeros, so the transform has no branch.
        outside = off(line, size * wide)
        zero(outside, wide)
        t = 0
        while t < count:
            image_of, ty, tx = place(first + t, g)
            # Neighbouring tiles of a row are transformed together along the height: their windows
            # overlap by two pixels, which are then transformed once.
            many = imin(imin(g.across - tx, count - t), g.span)
            top, left = out * ty - image.pad_h, out * tx - image.pad_w
            begin, end = imax(-top, 0), height - top
            pixels = out * many + reads - out
            # Pixels [lo, hi) of these windows are inside the image.
            lo = imin(imax(-left, 0), pixels)
            hi = imax(imin(width - left, pixels), lo)
            for r in range(size):
                zero(off(line, r * wide), lo * n)
                zero(off(line, r * wide + hi * n), (pixels - hi) * n)
            # Pixels that touch in memory are one run.
            run_of = hi - lo if n == ld else 1
            while lo < hi:
                src = off(x, ((image_of * height + top) * width + left + lo) * ld)
                to = off(line, lo * n)
                along_height(src, width * ld, begin, end, to, wide, size, outside, run_of * n)
                lo += run_of
            for i in range(many):
                src = off(line, out * i * n)
                place_tile(src, wide, n, into, t + i, count, row, step, outside)
            t += many

    return run


def writer(form: TileForm, T: str, Y: str = "") -> Inline:
    """Return an inline function: the outputs of tiles first + t from their products m[p][t].

    writer(m, y, bias, low, line, g, image, first, count, n, step)

    t < count; y = max(low[0], A' m A + bias), n channels of each pixel from y on, if the image has
    it.  step: elements from product to product.  line: as many lines of out span pixels as a tile
    has inputs, and a pixel.  Y: how y is stored; T if empty.
    """
    size, out = form.size, form.out
    # y = A' m A, along the width first: its results lie as tiles of a row, which the second
    # transform reads pixel by pixel.  It alone writes y, and rounds each result once.
    across, down = lines(T, form.output, size), lines(T, form.output_above, size, "", Y)

    @outline
    def run(m, y, bias, low, line, g, image, first, count, n, step):
        part, height, width, ld = g.span * n, image.height, image.width, image.ld
        wide = out * part
        outside = off(line, size * wide)
        t = 0
        while t < count:
            image_of, ty, tx = place(first + t, g)
            many = imin(imin(g.across - tx, count - t), g.span)
            for r in range(size):
                of, to = off(m, size * r * step + t * n), off(line, r * wide)
                across(of, step, 0, size, to, part, out, outside, many * n)
            # Tiles at the edge have rows and columns beyond the image, which are not written.
            below = height - out * ty
            for i in range(imin(out * many, width - out * tx)):
                tile = udiv(i, out)
                of = off(line, (i - out * tile) * part + tile * n)
                to = off(y, ((image_of * height + out * ty) * width + out * tx + i) * ld)
                down(of, wide, 0, size, to, width * ld, below, outside, bias, low, n)
            t += many

    return run


# Elements of work that a thread transforms filters in, for each column of a panel; of small tiles
# they take fewer.
HALF_WORK = LARGE.size * TAPS
FILTERS_WORK = f"{TAPS * TAPS} * lanes + {HALF_WORK}"


def _filters_reach(c: KernelCall) -> Reach:
    P = str(c.params[1]) if len(c.params) > 1 else ""
    each = _count_in_word(c, P)
    panels = panels_reach(c, c.columns, c.channels // each, c.panel, unit=1)
    return {"u": panels + (get_tiles(P).products - 1) * c.plane if panels else 0}


def _count_in_word(c: KernelCall, P: str) -> int:
    """Return the channels whose factors are a word, after refusing one without another."""
    if P and c.channels % 2:
        c.refuse(f"words of two of {c.channels} channels; expected an even number")
    return count_in_row(P)


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
def winograd_filters(target: Target, T: str, P: str = "") -> Body:
    """u[p][panel][c][j] = (G w[first + j, c] G')[p], in panels as the register tile reads them.

    w: T[Co, Ci, 3, 3]; filters may be taken along either dimension.  P: bf16, of words of factors
    of two channels.
    """
    lanes, form = target.lanes(ITEMSIZE[T]), get_tiles(P)
    width, taps, size, products = target.nv * lanes, TAPS * TAPS, form.size, form.products
    transform, transpose = lines(T, form.filter, TAPS), Intrinsic("transpose", (T,))
    last = lines(T, form.filter, TAPS, "", P)
    as_factors, both = (
        (Intrinsic("halves", (P,)), Intrinsic("pair", (P, P, 1))) if P else (same, same)
    )

    @inline
    def put(half, row, turn, rows, into, i, g, n):
        for r in range(size):
            at = off(half, (r * TAPS + 2 * turn) * width)
            to = off(into, i * g.panel + size * r * g.plane)
            last(at, (1 - 2 * turn) * width, 0, TAPS, to, g.plane, size, at, n)

    @inline
    def put_pair(half, row, turn, rows, into, i, g, n):
        # The taps of this channel have been read: its products take their place until the next
        # channel's are there.
        mine, before = as_factors(rows), as_factors(off(rows, -row * TAPS))
        for r in range(size):
            at = off(half, (r * TAPS + 2 * turn) * width)
            last(
                at, (1 - 2 * turn) * width, 0, TAPS, off(mine, size * r * width), width, size, at, n
            )
        if i & 1 != 0:
            for p in range(products):
                to = off(into, (i >> 1) * g.panel + p * g.plane)
                both(to, off(before, p * width), off(mine, p * width), n)

    place_filter, each = put_pair if P else put, count_in_row(P)

    def body(w, u, work, g, tid, nthreads):
        # Forward: Y = conv(X, W); so dX = conv(dY, W) with the filters turned by half a turn and
        # the channels exchanged: `turned`, and the two steps exchanged.
        c_step, j_step, turn = g.c_step, g.j_step, g.turned
        source = off(w, g.first * j_step)
        blocks = udiv(g.channels + lanes - 1, lanes)
        rows = off(work, tid * (taps * lanes + HALF_WORK) * width)
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
            into = off(u, panel * width * udiv(g.channels, each) + udiv(c, each) * g.panel)
            # A turned filter is read from its last tap back.
            step, row = (1 - 2 * turn) * width, TAPS * width
            for i in range(high):
                mine = off(rows, i * taps * width)
                at = off(mine, 2 * TAPS * turn * width)
                transform(at, TAPS * step, 0, TAPS, half, row, size, at, row)
                place_filter(half, row, turn, mine, into, i, g, n)

    return body


def _reach(c: KernelCall) -> Reach:
    tiles, n, P = read_tiles(c), c.columns, find_factors(c)
    form, each = get_tiles(P), _count_in_word(c, P)
    if c.kc % each:
        c.refuse(f"words of two factors in blocks of {c.kc} channels; expected an even number")
    count = tiles["images"] * tiles["down"] * tiles["across"]
    x = image_reach(c, "x", tiles["images"], c.channels)
    y = image_reach(c, "y", tiles["images"], c.first + n)
    if not count * n:
        return {}
    block, span, own = tiles["block"], tiles["span"], columns_of(c)
    depth, products = c.channels // each, form.products
    most = min(round_to_unit(block, c.tile_rows), count)
    v_step, m_step = block * depth + APART, block * own + APART
    reading = (form.size + 1) * (form.out * span + 2) * c.channels
    writing = form.size * form.out * span * own + own
    used = max(
        (products - 1) * v_step + most * depth,
        products * v_step + (products - 1) * m_step + most * own,
        c.line + APART + own + max(reading, writing),
    )
    panels = panels_reach(c, n, depth, c.panel)
    return {
        "x": x,
        "u": (products - 1) * c.plane + panels if c.channels else 0,
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
def winograd(target: Target, T: str, X: str = "", Y: str = "", P: str = "") -> Body:
    """Channels of y = act(conv(x, w) (+ bias)), of filters u of `winograd_filters`.

    x, y: channels-last.  X, Y: how they are stored.  P: bf16, to which transformed windows and
    filters are rounded, or T if empty.
    """
    form, each, depth = get_tiles(P), count_in_row(P), depth_of(P)
    read, write = reader(form, T, form.window, X, P), writer(form, T, Y)
    rows, products = strip(target, T, 0, P), form.products
    as_factors = Intrinsic("halves", (P,)) if P else same
    mr, width = target.mr, target.nv * target.lanes(ITEMSIZE[T])
    zero = Intrinsic("zero", (T,))

    def body(x, u, y, bias, work, g, tid, nthreads):
        tiles, channels, nt = g.tiles, g.channels, g.nt
        tm, tn = udiv(tid, nt), tid - udiv(tid, nt) * nt
        first, last = share_blocks(tiles.images * tiles.down * tiles.across, mr, tm, g.mt)
        n0, n1 = share_blocks(g.columns, width, tn, nt)
        if tm >= g.mt:  # a thread beyond the grid
            last = first
        n = n1 - n0
        if n > 0 and first < last:
            v = off(work, tid * g.room)
            v_step, m_step = tiles.block * depth(channels) + APART, tiles.block * n + APART
            m, line = off(v, products * v_step), off(v, g.line)
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
            v, v_step = as_factors(v), each * v_step
            while first < last:
                count = imin(block, last - first)
                read(x, v, line, tiles, g.x, first, count, channels, channels, v_step)
                # Products [tiles, Ci] [Ci, Co], in blocks of K, whose matrices stay in the cache.
                # The filters of a product are read from memory once for all tiles of the block.
                for p in range(products):
                    k0 = 0
                    while k0 < channels:
                        kb = imin(g.kc, channels - k0)
                        left, b = off(v, p * v_step + k0), off(u, p * g.plane + depth(k0) * g.panel)
                        j, step = n0, ACCUMULATE if k0 > 0 else 0
                        while j < n1:
                            c, w = off(m, p * m_step + j - n0), imin(width, n1 - j)
                            d, ldb = off(b, j * depth(channels)), g.panel
                            rows(left, channels, d, ldb, c, n, add, kb, count, w, step)
                            j += width
                        k0 += kb
                write(m, out, add, low, line, tiles, g.y, first, count, n, m_step)
                first += count

    return body


KERNELS = (winograd_filters, winograd)
