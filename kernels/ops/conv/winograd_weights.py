"""Gradients of the weights of 3x3 convolutions by Winograd's algorithm.

It is the transpose of winograd.py in the filters, with the same matrices:

    dg = G' ( sum over tiles (A dy A') * (B' d B) ) G

where products [Ci, tiles] [tiles, Co] sum over the tiles, block by block, into matrices that
stay transformed until the end.  Threads share tiles and filters; the sums over their tiles are
added in order, so the result depends on the number of threads but never on their timing.

Error     max |dw^ - dw| <= 12 u max_c |x_c|_2 max_j |dy_j|_2, u = 2**-24, |.|_2 over all pixels
          of a channel; 7 u is measured (tests/ops/test_winograd.py)
Halves    as in winograd.py: factors of 16 bits are of small tiles
Source    winograd.py
"""

from __future__ import annotations

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.contract import count_in_row, depth_of, strip
from engine.kernels.machine.target import Target
from engine.kernels.ops.conv.winograd import (
    APART,
    FILTERS_WORK,
    HALF_WORK,
    IMAGE,
    TILES,
    columns_of,
    direct_products,
    find_factors,
    image_reach,
    lines,
    read_tiles,
    reader,
)
from engine.kernels.ops.conv.winograd_tiles import LARGE, SMALL, TAPS, TileForm, get_tiles
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    Body,
    Intrinsic,
    imin,
    kernel,
    off,
    share,
    share_blocks,
    udiv,
)
from engine.kernels.vocabulary.row_program import loop
from engine.kernels.vocabulary.signature import round_to_unit
from engine.plan.words import Field, Words

WINOGRAD_DW_WORDS = Words(
    "winograd_dw",
    tiles=Field("the tiles", of=TILES),
    x=Field("the images that were read", of=IMAGE),
    y=Field("the images of dY, without padding", of=IMAGE),
    channels="channels of x",
    first="the first channel of dY that is read",
    columns="channels of dY that are read",
    mt="threads along tiles",
    nt="threads along columns",
    room="elements of work of a thread",
    line="of these, after the matrices, where lines of a transform begin",
)
WINOGRAD_FOLD_WORDS = Words(
    "winograd_fold",
    parts="number of parts",
    channels="channels of x",
    first="the first filter that is written",
    columns="filters that are written",
    adds="whether dw is added to, unless its flag is set",
)


def _reach(c: KernelCall) -> Reach:
    tiles, n, P = read_tiles(c), c.columns, find_factors(c)
    form, each = get_tiles(P), count_in_row(P)
    x = image_reach(c, "x", tiles["images"], c.channels)
    dy = image_reach(c, "y", tiles["images"], c.first + n)
    part = c.mt * form.products * c.channels * n
    if not n:
        return {}
    own, wide = columns_of(c), form.out * tiles["span"] + 2
    block, ld = -(-tiles["block"] // each), round_to_unit(own, c.lanes)
    v_step, s_step = block * c.channels + APART, block * ld + APART
    # Words of two tiles are made of the products of both, which lie after the lines.
    pixels = (form.size + 1) * wide + (form.products if P else 0)
    used = max(
        form.products * v_step + (form.products - 1) * s_step + block * ld,
        c.line + pixels * max(c.channels, own),
    )
    return {"x": x, "dy": dy, "part": part, "work": c.scratch(c.room, used, c.mt * c.nt)}


@kernel(
    """
    x: X[...]   dy: Y[...]   part: out T[...]   work: scratch T[...]
    g: i64[] where min(mt, nt) >= 1
    """,
    words={"g": WINOGRAD_DW_WORDS},
    reach=_reach,
    multiply_adds=direct_products,
)
def winograd_dw(target: Target, T: str, X: str = "", Y: str = "", P: str = "") -> Body:
    """part[i][p][c][j] = the sum of the products p of x's channel c and dY's channel first + j.

    part: T[mt, products, channels, columns].  Part i sums over its share of the tiles.  x, dy:
    channels-last.  X, Y: how they are stored.  P: bf16, to which what is transformed is rounded, or
    T if empty.
    """
    lanes, form, depth = target.lanes(ITEMSIZE[T]), get_tiles(P), depth_of(P)
    width, rows, products = target.nv * lanes, strip(target, T, 1, P), form.products
    pairs = int(bool(P))
    read = reader(form, T, form.window, X, P, pairs)
    spread = reader(form, T, form.spread, Y, P, pairs)
    zero = Intrinsic("zero", (T,))

    def body(x, dy, part, work, g, tid, nthreads):
        tiles, channels, nt = g.tiles, g.channels, g.nt
        tm, tn = udiv(tid, nt), tid - udiv(tid, nt) * nt
        first, last = share(tiles.images * tiles.down * tiles.across, tm, g.mt)
        n0, n1 = share_blocks(g.columns, width, tn, nt)
        n = n1 - n0
        if tm < g.mt and n > 0:
            ld = udiv(n + lanes - 1, lanes) * lanes
            v, sums = off(work, tid * g.room), off(part, tm * products * channels * g.columns)
            block = depth(tiles.block)
            v_step, s_step = block * channels + APART, block * ld + APART
            s, line = off(v, products * v_step), off(v, g.line)
            if first == last:  # no images: a sum of nothing
                for i in range(products * channels):
                    zero(off(sums, i * g.columns + n0), n)
            mode = 0
            while first < last:
                # Blocks of equal size, as the last would otherwise be short.
                blocks = udiv(last - first + tiles.block - 1, tiles.block)
                count = udiv(last - first + blocks - 1, blocks)
                # Forward, along an axis: y = A' ((G g) * (B' d)), summed over channels.  So dg = G'
                # ((A dy) * (B' d)), summed over tiles: B' d of x as in the forward pass, and A dy
                # by `spread`.
                read(x, v, line, tiles, g.x, first, count, channels, channels, v_step)
                spread(off(dy, g.first + n0), s, line, tiles, g.y, first, count, n, ld, s_step)
                for p in range(products):
                    left, into = off(v, p * v_step), off(sums, p * channels * g.columns + n0)
                    for j in range(0, n, width):
                        b, c, w = off(s, p * s_step + j), off(into, j), imin(width, n - j)
                        rows(left, channels, b, ld, c, g.columns, c, count, channels, w, mode)
                # Later blocks add to the sums of the first, which stay transformed: G' is linear.
                mode = ACCUMULATE
                first += count

    return body


def _get_form(out: str | int) -> TileForm:
    """Return the tiles of so many outputs along an axis."""
    return next(form for form in (LARGE, SMALL) if form.out == out)


def _fold_reach(c: KernelCall) -> Reach:
    form = _get_form(c.params[1] if len(c.params) > 1 else LARGE.out)
    return {"part": max(c.parts, 1) * form.products * c.channels * c.columns}


@kernel(
    f"""
    part: update T[...]
    dw: out T[first + columns, channels, {TAPS}, {TAPS}] updates if adds   keep: b1[1] if adds
    work: scratch T[threads, ({FILTERS_WORK}) * tile_columns + lanes * lanes]   g: i64[]
    """,
    words={"g": WINOGRAD_FOLD_WORDS},
    reach=_fold_reach,
)
def winograd_fold(target: Target, T: str, out: int = LARGE.out) -> Body:
    """dw[first + j, c] = G' (sum_i part[i][:, c, j]) G, parts in order.  Uses up part.

    part: as in `winograd_dw`, of tiles with so many outputs.  Adds to dw when `adds` and not
    keep[0].
    """
    lanes, form = target.lanes(ITEMSIZE[T]), _get_form(out)
    width, taps, size, products = target.nv * lanes, TAPS * TAPS, form.size, form.products
    transform, transpose = lines(T, form.gather, size), Intrinsic("transpose", (T,))
    add = loop(T, "x[] y[] -> x[] = x + y")

    def body(part, dw, keep, work, g, tid, nthreads):
        channels, columns = g.channels, g.columns
        plane, row = channels * columns, channels * taps
        adds = 0
        if g.adds != 0 and keep[0] == 0:
            adds = 1
        blocks = udiv(channels + lanes - 1, lanes)
        square = off(work, tid * ((taps * lanes + HALF_WORK) * width + lanes * lanes))
        half = off(square, lanes * lanes)
        rows = off(half, HALF_WORK * width)
        begin, end = share(blocks * udiv(columns + width - 1, width), tid, nthreads)
        for unit in range(begin, end):
            panel = udiv(unit, blocks)
            c, j0 = (unit - panel * blocks) * lanes, panel * width
            high, n = imin(lanes, channels - c), imin(width, columns - j0)
            for i in range(high):
                first = off(part, (c + i) * columns + j0)
                for p in range(products):
                    into = off(first, p * plane)
                    # Parts of other threads, in order, before the transform: there are more sums
                    # than weights, but one transform for all parts.
                    for m in range(1, g.parts):
                        add(into, off(into, m * products * plane), into, n)
                for r in range(size):
                    of = off(first, size * r * plane)
                    to = off(half, r * TAPS * width)
                    transform(of, plane, 0, size, to, width, TAPS, square, n)
                for s in range(TAPS):
                    of, to = off(half, s * width), off(rows, (i * taps + s) * width)
                    transform(of, TAPS * width, 0, size, to, TAPS * width, TAPS, square, n)
            # rows[c, tap][j] to the rows [c, tap] of each j, by squares of vectors.
            whole, wide = udiv(high * taps, lanes) * lanes, udiv(n, lanes) * lanes
            into = off(dw, (g.first + j0) * row + c * taps)
            for q in range(0, whole, lanes):
                for j in range(0, wide, lanes):
                    at, of = off(into, j * row + q), off(rows, q * width + j)
                    if adds == 0:
                        # Straight into dw where nothing is there to be added to.
                        transpose(at, row, of, width)
                    else:
                        transpose(square, lanes, of, width)
                        for i in range(lanes):
                            to = off(at, i * row)
                            add(to, off(square, i * lanes), to, lanes)
            for q in range(high * taps):
                for j in range(wide if q < whole else 0, n):
                    value = rows[q * width + j]
                    if adds != 0:
                        value += into[j * row + q]
                    into[j * row + q] = value

    return body


KERNELS = (winograd_dw, winograd_fold)
