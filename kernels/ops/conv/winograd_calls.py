"""When convolutions are computed by Winograd's algorithm, and the calls that do.

The choice is by a count of vector instructions and by nothing that is measured, so that a plan is
the same wherever it is made.  A plan shows it by the names of its kernels, `winograd` or `conv`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.contract import count_in_row
from engine.kernels.loops.window import Axes, Axis, count_parts, round_up
from engine.kernels.machine.target import Target
from engine.kernels.ops.conv import winograd as W
from engine.kernels.ops.conv import winograd_weights as D
from engine.kernels.ops.conv.winograd_tiles import LARGE, SMALL, TAPS, TileForm, get_tiles
from engine.kernels.vocabulary.op import Dim, Lowering, Operand, find_each_stored
from engine.system.config import switch

LINES = 16 << 10  # bytes of the lines of a transform: half of a first-level cache
TRANSFORMS = 5  # what the transforms of a tile cost, for each of its channels, in columns
FILTERS = 8 << 20  # bytes of transformed filters that a call reads
PANEL = 290  # instructions of packing a vector of filters for one channel, for direct products
PART = 3  # what adding up the sums of one more part costs, in tiles


def fits(axes: Axes, groups: int) -> bool:
    """Return whether Winograd's algorithm can compute a convolution."""
    d, h, w = axes
    windows = all((a.taps, a.stride, a.dilation) == (TAPS, 1, 1) for a in (h, w))
    return groups == 1 and windows and d.plain


def may_fit(taps: Sequence[Dim], strides: Sequence[int], groups: int) -> bool:
    """Return whether it can compute a convolution of these windows, whatever its dilation."""
    return groups == 1 and set(taps[-2:]) == {TAPS} and set(strides) <= {1}


def choose_tiles(
    target: Target,
    T: str,
    images: int,
    axes: Axes,
    channels: int,
    columns: int,
    groups: int,
    P: str = "",
) -> TileForm | None:
    """Return the tiles of a convolution by Winograd's algorithm, if it is cheaper by a fifth.

    axes: from the images read, of `channels`, to the images written, of `columns`.  P: the type of
    16 bits of its factors, if any.  Large tiles multiply float32 all the same.  Never for f64: a
    user who asks for double precision gets it.
    """
    _, h, w = axes
    if T != "f32" or not fits(axes, groups):
        return None
    if switch("CONVOLUTION") == "direct":
        return None
    lanes = target.lanes(ITEMSIZE[T])
    products = channels * count_parts(columns, lanes)
    # After the last whole vector the transforms go by single elements.
    transforms = sum(n // lanes + n % lanes for n in (channels, columns))
    # An instruction for factors of 16 bits does two multiply-adds where one for float32 does one.
    at_once = 2 if P else 1

    def count(form: TileForm) -> float:
        tiles = images * count_parts(h.out, form.out) * count_parts(w.out, form.out)
        made = form.products * products / (at_once if form is SMALL else 1)
        return (
            round_up(tiles, target.mr) * (made + form.transform * transforms) + form.pack * products
        )

    direct = images * h.out * w.out * TAPS**2 * products / at_once + PANEL * products
    # Sums of f16 lose too much for the sums of a transform.
    best = min((LARGE, SMALL) if P == "bf16" else (LARGE,), key=count)
    return best if 5 * count(best) < 4 * direct else None


def backward(axes: Axes) -> Axes:
    """Return the axes of the convolution, of stride 1, that makes dX of dY."""
    # Forward: y[o] = sum_k x[o - p + k] w[k]; so dx[i] sums dy[i + p - k] w[k]: a convolution of
    # stride 1 whose padding is taps - 1 - p.
    d, h, w = (Axis(a.out, a.size, a.taps, 1, a.dilation, a.reach - 1 - a.pad) for a in axes)
    return d, h, w


def make_grid(
    form: TileForm, images: int, h: Axis, w: Axis, channels: int, T: str
) -> dict[str, Any]:
    """Return the fields of `TILES` except `block`; channels: as many as a tile reads or writes."""
    across = count_parts(w.out, form.out)
    lines = LINES // (form.size * form.out * ITEMSIZE[T] * max(channels, 1))
    return {
        "images": images,
        "down": count_parts(h.out, form.out),
        "across": across,
        "span": max(1, min(across, lines)),
    }


def choose_block(target: Target, T: str, numbers: int, tiles: int, least: int) -> int:
    """Return the tiles of a block, whole register tiles whose matrices fill most of an L2 cache.

    numbers: those that the matrices have for a tile, of the size of T.  No fewer than `least`
    register tiles, which share reading the filters, or adding to their sums.
    """
    # The size of the block of B that the matrix product keeps in that cache.
    room = target.kc * target.nc * 4 // ITEMSIZE[T]
    wanted = max(room // numbers, least * target.mr)
    return max(1, min(wanted // target.mr, count_parts(tiles, target.mr))) * target.mr


def split(
    tiles: int, columns: int, target: Target, T: str, threads: int, part: int = 0
) -> tuple[int, int]:
    """Return the threads along tiles and columns that leave the busiest thread the least to do.

    part: what a further part along tiles costs all threads, in multiplications of a column.
    """
    mr, width = target.mr, target.nv * target.lanes(ITEMSIZE[T])

    def busiest(nt: int) -> int:
        mine = min(count_parts(count_parts(columns, width), nt) * width, columns)
        mt = threads // nt
        return count_parts(count_parts(tiles, mr), mt) * mr * (
            mine + TRANSFORMS
        ) + part * columns * (mt - 1)

    nt = min(range(1, threads + 1), key=busiest)
    return threads // nt, nt


def pack_image(h: int, w: int, pads: tuple[int, int], ld: int) -> Any:
    """Return the words of an image."""
    return W.IMAGE.pack(height=h, width=w, pad_h=pads[0], pad_w=pads[1], ld=ld)


def _cut_columns(
    lowering: Lowering, form: TileForm, T: str, channels: int, columns: int
) -> list[tuple[int, int]]:
    """Return pieces of the columns, each of at most `FILTERS` bytes: its first, and its length.

    The transformed filters of a piece are dead when the next one begins.  Threads can share the
    panels of a piece evenly: were they to share tiles instead, each would have sums of its own for
    gradients of weights, which are as large as the filters of a piece.
    """
    target, threads = lowering.target, lowering.threads
    width = target.nv * target.lanes(ITEMSIZE[T])
    room = FILTERS // (ITEMSIZE[T] * form.products * channels * width * threads)
    # Transformed filters are up to four times as large as w: pieces bound the memory they take.
    rounds = count_parts(columns, threads * width)
    step = count_parts(rounds, count_parts(rounds, max(room, 1))) * threads * width
    return [(first, min(step, columns - first)) for first in range(0, columns, step)]


def _transform_filters(
    lowering: Lowering, w: Operand, P: str, turned: bool, first: int, columns: int
) -> tuple[Operand, int, int]:
    """Return transformed filters, the columns of a panel, and the elements between products."""
    T, target, form = w.type.dtype, lowering.target, get_tiles(P)
    lanes = target.lanes(ITEMSIZE[T])
    co, ci = w.type.dims[:2]
    taps = TAPS**2
    # Turned, for dX: filters read dY's channels and write X's, so W's dimensions exchange.
    channels, c_step, j_step = (co, ci * taps, taps) if turned else (ci, taps, ci * taps)
    width = target.nv * lanes
    panel = min(round_up(columns, lanes), width)
    plane = count_parts(columns, width) * (channels // count_in_row(P)) * panel + W.APART
    u = lowering.temp(T, (form.products * plane,))
    words = W.FILTERS_WORDS.pack(
        channels=channels,
        first=first,
        columns=columns,
        c_step=c_step,
        j_step=j_step,
        turned=int(turned),
        panel=panel,
        plane=plane,
    )
    room = (taps * lanes + W.HALF_WORK) * width
    work = lowering.temp(T, (room * lowering.threads,))
    kind = W.winograd_filters(T, P) if P else W.winograd_filters(T)
    lowering.call(kind, w=w, u=u, work=work, g=words)
    return u, panel, plane


def _find_kinds(form: TileForm, *images: Operand) -> tuple[str, tuple[str, ...], str]:
    """Return the type that a kernel computes with, its other parameters, and its factors' type.

    Factors of small tiles are of bf16.
    """
    T, kinds = find_each_stored(*images)
    P = "bf16" if form is SMALL else ""
    return T, (*(x.type.dtype for x in images), P) if P else kinds, P


def lower_winograd(
    lowering: Lowering,
    operands: tuple[Operand, Operand, Operand, Operand | None],
    axes: Axes,
    mode: int,
    form: TileForm,
    *,
    back: bool = False,
) -> None:
    """Append the calls for y = conv(x, w) + bias; operands are x, w, y and bias.

    back: x is dY and y dX of a convolution with w; axes: from x to y.  form: of `choose_tiles`.
    """
    x, w, y, bias = operands
    (T, kinds, P), target = _find_kinds(form, x, y), lowering.target
    each = count_in_row(P)
    _, h, v = axes
    images, channels = x.type.dims[:2]
    width = target.nv * target.lanes(ITEMSIZE[T])
    most = each * target.kc * 3 // 2  # channels of a block
    for first, columns in _cut_columns(lowering, form, T, channels // each, y.type.dims[1]):
        u, panel, plane = _transform_filters(lowering, w, P, back, first, columns)
        tiles = make_grid(form, images, h, v, max(channels, columns), T)
        count = images * tiles["down"] * tiles["across"]
        mt, nt = split(count, columns, target, T, lowering.threads)
        n = min(columns, count_parts(count_parts(columns, width), nt) * width)
        mine = count_parts(count_parts(count, target.mr), mt) * target.mr
        depth = channels // each
        block = choose_block(target, T, form.products * (depth + n), mine, 4)
        line = form.products * (block * (depth + n) + 2 * W.APART)
        span = tiles["span"]
        # The lines of reading and of writing share memory: a block is read before it is written.
        reading = (form.size + 1) * (form.out * span + 2) * channels
        lines = max(reading, (form.size * form.out * span + 1) * n)
        room = round_up(line + W.APART + n + lines, 16)
        words = W.WINOGRAD_WORDS.pack(
            tiles=W.TILES.pack(**tiles, block=block),
            x=pack_image(h.size, v.size, (h.pad, v.pad), channels),
            y=pack_image(h.out, v.out, (0, 0), y.type.dims[1]),
            channels=channels,
            first=first,
            columns=columns,
            mode=mode,
            panel=panel,
            plane=plane,
            kc=round_up(count_parts(channels, max(1, count_parts(channels, most))), each),
            mt=mt,
            nt=nt,
            room=room,
            line=line,
        )
        work = lowering.temp(T, (room * lowering.threads,))
        earlier = ("y",) if first else ()  # pieces have written parts of it
        kind = W.winograd(T, *kinds)
        lowering.call(kind, x=x, u=u, y=y, bias=bias, work=work, updates=earlier, g=words)


def lower_winograd_weights(
    lowering: Lowering,
    operands: tuple[Operand, Operand, Operand],
    axes: Axes,
    reset: Operand | None,
    form: TileForm,
) -> None:
    """Append the calls for dW of a convolution of these axes; operands are x, dY and dW.

    reset: the flag "overwrite, do not add" where dW is accumulated.  form: of `choose_tiles`.
    """
    x, dy, dw = operands
    (T, kinds, P), target, threads = _find_kinds(form, x, dy), lowering.target, lowering.threads
    each = count_in_row(P)
    _, h, v = axes
    lanes = target.lanes(ITEMSIZE[T])
    width = target.nv * lanes
    images, channels = x.type.dims[:2]
    for first, columns in _cut_columns(lowering, form, T, channels, dy.type.dims[1]):
        tiles = make_grid(form, images, h, v, max(channels, columns), T)
        count = images * tiles["down"] * tiles["across"]
        mt, nt = split(count, columns, target, T, threads, part=PART)
        n = min(round_up(columns, lanes), count_parts(count_parts(columns, width), nt) * width)
        mine = count_parts(count_parts(count, target.mr), mt) * target.mr
        # Adding to sums that leave the cache costs as much as two matrices of so many tiles.
        least = min(channels * n // (channels + n), 16 * target.mr)
        numbers = form.products * count_parts(channels + n, each)
        block = choose_block(target, T, numbers, mine, count_parts(least, target.mr))
        line = form.products * (count_parts(block, each) * (channels + n) + 2 * W.APART)
        # Words of two tiles are made of the products of both, which lie after the lines.
        lines = (form.size + 1) * (form.out * tiles["span"] + 2) + (form.products if P else 0)
        room = round_up(line + lines * max(channels, n), 16)
        words = D.WINOGRAD_DW_WORDS.pack(
            tiles=W.TILES.pack(**tiles, block=block),
            x=pack_image(h.size, v.size, (h.pad, v.pad), channels),
            y=pack_image(h.out, v.out, (0, 0), dy.type.dims[1]),
            channels=channels,
            first=first,
            columns=columns,
            mt=mt,
            nt=nt,
            room=room,
            line=line,
        )
        part = lowering.temp(T, (mt * form.products * channels * columns,))
        work = lowering.temp(T, (room * threads,))
        lowering.call(D.winograd_dw(T, *kinds), x=x, dy=dy, part=part, work=work, g=words)
        words = D.WINOGRAD_FOLD_WORDS.pack(
            parts=mt, channels=channels, first=first, columns=columns, adds=int(reset is not None)
        )
        room = (TAPS**2 * lanes + W.HALF_WORK) * width + lanes**2
        work = lowering.temp(T, (room * threads,))
        kind = D.winograd_fold(T, form.out) if P else D.winograd_fold(T)
        earlier = ("dw",) if first else ()
        lowering.call(kind, part=part, dw=dw, keep=reset, work=work, updates=earlier, g=words)


WINOGRAD_KERNELS = (W.winograd_filters, W.winograd)  # what `lower_winograd` calls
WINOGRAD_WEIGHTS_KERNELS = (D.winograd_dw, D.winograd_fold)  # what `lower_winograd_weights` calls
