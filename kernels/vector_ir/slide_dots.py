"""Vector loops of depthwise convolution over channels-last pixels: the sums of products.

A *tile* is two lines of a few outputs each, four say, for one vector of channels.  Its eight sums
stay in registers while the rows of x that its windows see are read: a row that both lines see is
loaded once for both, and each of its pixels once for all windows of the line that hold it.  Two
lines of weights, eight sums and a pixel are fifteen registers of windows three wide, so the tile
fits every target.  Tiles follow each other along the line and channels are innermost, so that
memory is read and written in the order in which it lies.

Code for whole tiles checks the columns at the edges alone, so that it serves where padding is, too.
A last tile that would be a part begins earlier, and makes some outputs twice, with the same bits;
where they are sums of gradients, a part stays a part, and everything in it is checked.

Kernels describe a row of tiles by the words `TILES` (`depthwise.py` computes them).  Weights, and
sums of their gradients, lie by vectors of channels: [channel / lanes][tap][lanes].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba import types

from engine.kernels.machine.target import Target
from engine.kernels.vector_ir.curves import at_least, at_most, hard_swish
from engine.kernels.vector_ir.scalars import memory, read, written
from engine.kernels.vector_ir.slide import Channels
from engine.kernels.vector_ir.vectors import (
    I32,
    I64,
    LLVM,
    NUMBA,
    Vector,
    counted,
    intrinsic,
    load,
    opaque,
    reserve,
    splat,
    store,
)
from engine.kernels.vocabulary.kernel import BIAS, HARD_SWISH, RELU, SIX
from engine.kernels.vocabulary.tiles import TILES


def count_columns(pixels: int, width: int, step: int) -> int:
    """Return the columns of x that a tile sees; `step` as `find_tap` takes it."""
    if step > 0:
        return (pixels - 1) * step + width
    return (pixels - 1) // -step + (width - 1) // -step + 1


def find_tap(column: int, pixel: int, width: int, step: int) -> int | None:
    """Return the tap by which a pixel of a tile sees a column of it, if any.

    step: the stride; negative where outputs are the inputs of a convolution of that stride, whose
    tap 0 the first of them meets.
    """
    tap = column - pixel * step
    if step < 0:
        tap = pixel - (column - (width - 1) // -step) * -step
    return tap if 0 <= tap < width else None


class Tiles:
    """Emits the loops over the tiles of two lines, their channels, and the rows they see."""

    def __init__(
        self, v: Channels, pixels: int, width: int, step: int, words: Any, *, overlap: bool = False
    ) -> None:
        """Read the words of a row of tiles.

        overlap: the last tile may begin earlier, so that it is whole.
        """
        self.v, self.b, self.many, self.width, self.step = v, v.b, pixels, width, step
        self.overlap = overlap
        self.g: Any = SimpleNamespace(**{name: self._read(words, name) for name in TILES.members})
        self.c: Any = None  # the channel
        self.o: Any = None  # the first pixel of the tile
        self.col: Any = None  # the column of its tap 0
        self.x_at: Any = None  # the offset of that in x
        self.y_at: Any = None  # the offset of the first pixel in y
        self.checked = True  # whether pixels and columns may be none

    def _read(self, words: Any, name: str) -> Any:
        """Return a word of `TILES`."""
        place = self.b.gep(words, [I64(TILES.find_member(name).offset)], source_etype=I64)
        return self.b.load(place, typ=I64)

    def walk(
        self,
        body: Callable[[], None],
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """Run `body` for every tile and vector of channels, checked where the tile needs that.

        `before` and `after` all channels of a tile run what belongs to it alone, checked.
        """
        b, g = self.b, self.g

        def tile(t: Any) -> None:
            first = b.mul(t, I64(self.many))
            self.col, self.x_at = b.mul(t, g.col_tile), b.mul(t, g.x_tile)
            if self.overlap:
                pixels, columns = self._count_over(first)
                first = b.sub(first, pixels)
                self.col = b.sub(self.col, b.mul(columns, g.col_pixel))
                self.x_at = b.sub(self.x_at, b.mul(columns, g.x_pixel))
            self.o, self.col = b.add(g.first, first), b.add(g.col, self.col)
            self.y_at = b.mul(first, g.y_pixel)
            whole = self._whole()
            if before is not None:
                self.c, self.checked = I64(0), True
                before()

            self._walk_channels(body, whole)
            if after is not None:
                self.c, self.checked = I64(0), True
                after()

        counted(b, I64(0), g.tiles, 1, tile)

    def _walk_channels(self, body: Callable[[], None], whole: Any) -> None:
        """Run `body` for every vector of channels; `whole`: whether the tile needs no checks."""
        b, g = self.b, self.g

        # Two copies of the code: one without comparisons and masks for the inside of an image,
        # which is most of it, and one with them for its edges and the last channels.
        def choose(fast: Any) -> None:
            with b.if_else(fast) as (yes, no):
                with yes:
                    mask, self.v.mask, self.checked = self.v.mask, None, False
                    body()
                with no:
                    self.v.mask, self.checked = mask, True
                    body()

        def channels(found: list[Any]) -> None:
            (self.c,) = found
            if self.v.mask is None:
                choose(whole)
            else:
                self.checked = True
                body()

        def masked(c: Any) -> None:
            left, self.c = b.sub(g.channels, c), c
            self.v.narrow(left)
            choose(b.and_(whole, b.icmp_signed(">=", left, I64(self.v.lanes))))

        if self.v.masks:
            counted(b, I64(0), b.add(g.channels, I64(self.v.lanes - 1)), self.v.lanes, masked)
            self.v.mask = None
        else:
            self.v.walk(g.channels, channels, 1)

    def _count_over(self, first: Any) -> tuple[Any, Any]:
        """Return the pixels by which a tile begins earlier, so that it ends with the line.

        And the columns that these are.  There are none where the first tile has too many pixels.
        """
        b, g, by = self.b, self.g, max(1, -self.step)
        over = b.sub(b.add(b.add(g.first, first), I64(self.many)), g.outs)
        over = b.and_(over, I64(-by))  # so that pixels see the same taps; one may stay too many
        fits = b.and_(b.icmp_signed(">", over, I64(0)), b.icmp_signed("<=", over, first))
        over = b.select(fits, over, I64(0))
        return over, b.sdiv(over, I64(by)) if by > 1 else over

    def _whole(self) -> Any:
        """Return whether all pixels of the tile are there, and all columns that they see.

        Of compiled rows the columns at the edges, where padding is, are checked one by one.
        """
        b, g = self.b, self.g
        if self.width:
            low = b.add(self.col, I64(self.edge))
            reach = I64(count_columns(self.many, self.width, self.step) - 1 - 2 * self.edge)
        else:
            taps = b.mul(b.sub(g.taps_w, I64(1)), g.col_tap)
            back = b.icmp_signed("<", taps, I64(0))
            low = b.add(self.col, b.select(back, taps, I64(0)))
            reach = b.add(b.select(back, b.neg(taps), taps), b.mul(g.col_pixel, I64(self.many - 1)))
        least = b.or_(self.o, low)  # negative if one of them is
        fits = b.icmp_signed("<", b.add(low, reach), g.size)
        ends = b.icmp_signed("<", b.add(self.o, I64(self.many - 1)), g.outs)
        return b.and_(b.icmp_signed(">=", least, I64(0)), b.and_(fits, ends))

    @contextmanager
    def _among(self, i: Any, count: Any) -> Iterator[None]:
        """Write code that runs only if 0 <= i < count, in a tile that is checked."""
        if self.checked:
            with self.b.if_then(self.b.icmp_unsigned("<", i, count)):
                yield
        else:
            yield

    def ask(self, pointer: Any, at: Any, *, write: bool = False) -> None:
        """Ask for the memory at an offset, in tiles that are whole."""
        if not self.checked:
            b = self.b
            place = b.bitcast(b.gep(pointer, [at]), ir.IntType(8).as_pointer())
            kinds = [place.type, I32, I32, I32]
            fn = intrinsic(b.module, "llvm.prefetch.p0", ir.VoidType(), kinds)
            b.call(fn, [place, I32(int(write)), I32(3), I32(1)])

    @property
    def edge(self) -> int:
        """The columns on each side of a compiled tile that padding of half a window may take.

        None back of a stride: a tile has few columns, and pixel -1 where it meets padding.
        """
        return self.width // 2 if self.step > 0 else 0

    @contextmanager
    def _in_column(self, i: int) -> Iterator[None]:
        """Write code that runs only if column i of the tile is one of x."""
        outer = min(i, count_columns(self.many, self.width, self.step) - 1 - i)
        if self.checked or outer < self.edge:
            with self.b.if_then(
                self.b.icmp_unsigned("<", self.b.add(self.col, I64(i)), self.g.size)
            ):
                yield
        else:
            yield

    def _move(self, start: Any, last: Any, step: Any, i: int) -> Any:
        """Return the pointer i steps after `start`; `last` is the one before it.

        Each is made from the last, in one register for all.  In order, the load of a pointer would
        wait for the sum before it, and so they are made from `start`.
        """
        if i == 0:
            return start
        if self.v.target.in_order:
            return self.b.gep(start, [self.b.mul(step, I64(i))])
        return self.b.gep(last, [step])

    def walk_pixels(
        self, lines: Sequence[Any], body: Callable[[int, int, Any], None], *, write: bool
    ) -> None:
        """body(line, p, offset) for every pixel of the tile: `lines` are pointers to pixel 0."""
        b, g = self.b, self.g

        def walk_line(q: int) -> None:
            start = here = b.gep(lines[q], [b.add(self.y_at, self.c)])
            for p in range(self.many):
                here = self._move(start, here, g.y_pixel, p)
                with self._among(b.add(self.o, I64(p)), g.outs):
                    self.ask(here, b.mul(b.mul(g.ahead, g.y_pixel), I64(self.many)), write=write)
                    body(q, p, here)

        walk_line(0)
        with b.if_then(b.icmp_signed("!=", g.two, I64(0))):
            walk_line(1)

    def walk_rows(self, x: Any, body: Callable[[tuple[int, ...], Any, Any], None]) -> None:
        """body(lines, row, w) for every row of x: the lines that see it, a pointer, an offset.

        row: to the channel of what tap 0 of pixel 0 sees.  w: of the weights.
        """
        b, g = self.b, self.g
        row_now, w_now = reserve(b, x.type), reserve(b, I64)

        def depth(d: Any) -> None:
            first = b.gep(x, [b.add(b.add(self.x_at, self.c), b.mul(d, g.x_depth))])
            w = b.add(b.mul(self.c, g.taps), b.mul(d, g.w_depth))
            for lines, begin, end in (
                ((0,), g.only0_begin, g.only0_end),
                ((0, 1), g.both_begin, g.both_end),
                ((1,), g.only1_begin, g.only1_end),
            ):
                b.store(b.gep(first, [b.mul(begin, g.x_row)]), row_now)
                b.store(b.add(w, b.mul(begin, g.w_row)), w_now)

                def row(r: Any, lines: tuple[int, ...] = lines) -> None:
                    here, w_here = b.load(row_now, typ=x.type), b.load(w_now, typ=I64)
                    body(lines, here, w_here)
                    b.store(b.gep(here, [g.x_row]), row_now)
                    b.store(b.add(w_here, g.w_row), w_now)

                counted(b, begin, end, 1, row)

        counted(b, I64(0), g.taps_d, 1, depth)

    def add_row(
        self,
        row: Any,
        weights_at: Any,
        taps: Callable[[Any, int], Any],
        add: Callable[[Any, Any, int, int], None],
    ) -> None:
        """Emit add(weights, pixel of x, p, k) for each pixel p of a row of x and its tap k.

        row: as of `walk_rows`.  `taps(offset, count)` is a context with the weights of the row from
        that offset on: of all taps if their number is known, otherwise of one tap at a time, k = 0.
        """
        b, g = self.b, self.g
        if self.width:
            with taps(weights_at, self.width) as weights:
                here = row
                for i in range(count_columns(self.many, self.width, self.step)):
                    here = self._move(row, here, g.x_tap, i)
                    with self._in_column(i):
                        value = self.v.read_pixel(here, I64(0))
                        # The first columns of the next tile are the last ones of this tile, which
                        # has asked for them already.
                        if i >= self.width - abs(self.step):
                            self.ask(here, b.mul(g.ahead, g.x_tile))
                        for p in range(self.many):
                            k = find_tap(i, p, self.width, self.step)
                            if k is not None:
                                add(weights, value, p, k)
            return

        def tap(k: Any) -> None:
            column, start = b.mul(k, g.col_tap), b.gep(row, [b.mul(k, g.x_tap)])
            here = start
            with taps(b.add(weights_at, b.mul(k, g.w_tap)), 1) as weights:
                for p in range(self.many):
                    here = self._move(start, here, g.x_pixel, p)
                    col = b.add(b.add(self.col, column), b.mul(g.col_pixel, I64(p)))
                    with self._among(col, g.size):
                        add(weights, self.v.read_pixel(here, I64(0)), p, 0)

        counted(b, I64(0), g.taps_w, 1, tap)


class ShortTiles(Tiles):
    """Emits loops over the same tiles by short code: one line, pixel and tap at a time, checked.

    The terms of every sum keep their order, and the sum its bits.
    """

    def _walk_channels(self, body: Callable[[], None], whole: Any) -> None:
        """Run `body` for every vector of channels, checked."""

        def channels(found: list[Any]) -> None:
            (self.c,) = found
            body()

        self.v.walk(self.g.channels, channels, 1)

    def walk_lines(
        self, pairs: Sequence[Sequence[Any]], body: Callable[[Sequence[Any], Any, Any], None]
    ) -> None:
        """body(own of each pair, begin, end): for each line what is its own, and its rows."""
        b, g = self.b, self.g

        def line(q: Any) -> None:
            is_first = b.icmp_signed("==", q, I64(0))
            own = [b.select(is_first, *pair) for pair in pairs]
            # Line 0 ends no later than line 1, so the rows of both end with it.
            rows = (g.only0_begin, g.both_begin), (g.both_end, g.only1_end)
            body(own, *(b.select(is_first, *pair) for pair in rows))

        lines = b.select(b.icmp_signed("!=", g.two, I64(0)), I64(2), I64(1))
        counted(b, I64(0), lines, 1, line, rolled=True)

    def walk_pixels_of(self, line: Any, body: Callable[[Any, Any], None]) -> None:
        """body(p, pointer) for every pixel of a line that is there."""
        b, g = self.b, self.g

        def pixel(p: Any) -> None:
            with b.if_then(b.icmp_unsigned("<", b.add(self.o, p), g.outs)):
                body(p, b.gep(line, [b.add(b.add(self.y_at, b.mul(g.y_pixel, p)), self.c)]))

        counted(b, I64(0), I64(self.many), 1, pixel, rolled=True)

    def walk_taps(self, begin: Any, end: Any, body: Callable[[Any, Any, Any], None]) -> None:
        """body(column of pixel 0, offset of it, offset of the weights) for every tap of rows."""
        b, g = self.b, self.g

        def depth(d: Any) -> None:
            def row(r: Any) -> None:
                def tap(k: Any) -> None:
                    x, w = (
                        b.add(b.add(at, b.mul(d, by_d)), b.add(b.mul(r, by_r), b.mul(k, by_k)))
                        for at, by_d, by_r, by_k in (
                            (b.add(self.x_at, self.c), g.x_depth, g.x_row, g.x_tap),
                            (b.mul(self.c, g.taps), g.w_depth, g.w_row, g.w_tap),
                        )
                    )
                    body(b.add(self.col, b.mul(k, g.col_tap)), x, w)

                counted(b, I64(0), g.taps_w, 1, tap, rolled=True)

            counted(b, begin, end, 1, row, rolled=True)

        counted(b, I64(0), g.taps_d, 1, depth, rolled=True)

    def add_pixel(self, x: Any, at: Any, col: Any, p: Any, factor: Any, slot: Any) -> None:
        """slot += pixel of x that pixel p sees by a tap, times a factor, if that is inside."""
        b, g, v = self.b, self.g, self.v
        with b.if_then(b.icmp_unsigned("<", b.add(col, b.mul(g.col_pixel, p)), g.size)):
            pixel = v.read_pixel(x, b.add(at, b.mul(g.x_pixel, p)))
            b.store(v.muladd(pixel, factor(), b.load(slot, typ=v.vt)), slot)


def _op(T: str, emit: Callable[..., Any], X: str, Y: str) -> Any:
    """Return the callee of an intrinsic of tiles, whose arguments have the names of its docstring.

    X, Y: how x and y are stored; T if empty.
    """

    def op(
        typingctx: Any, x: Any, w0: Any, w1: Any, y0: Any, y1: Any, bias: Any, tiles: Any, mode: Any
    ) -> Any:
        own, x, y = (types.CPointer(NUMBA[kind or T]) for kind in ("", X, Y))
        return types.void(x, own, own, y, y, own, tiles, types.int64), emit

    return op


def window_dots(target: Target, T: str, pixels: int, width: int, step: int, S: str = "") -> Any:
    """window_dots(x, w0, w1, y0, y1, bias, tiles, mode): y = act(sum of x w (+ bias)).

    y0, y1: the two lines; w0, w1: the weights that they give to row 0.  `width`, `step`: the taps
    of a row and the stride as in `find_tap`; width 0 where they are known at run time, and step 1
    then asks for short code.  S: how x and y are stored.
    """
    is_short = not width and step == 1

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, w0, w1, y0, y1, bias, words, mode = args
        v, weights_of = Channels(b, target, T, S), (w0, w1)
        kind = ShortTiles if is_short else Tiles
        tiles = kind(v, pixels, width, step, words, overlap=not is_short)
        has_bias = b.icmp_signed("!=", b.and_(mode, I64(BIAS)), I64(0))
        has_curve = b.icmp_signed("!=", b.and_(mode, I64(HARD_SWISH)), I64(0))
        floor, ceiling = (
            b.select(
                splat(b, b.icmp_signed("!=", b.and_(mode, I64(bit)), I64(0)), v.lanes),
                v.const(bound), v.const(infinite),
            )
            for bit, bound, infinite in ((RELU, 0.0, float("-inf")), (SIX, 6.0, float("inf")))
        )  # fmt: skip
        if target.keeps_order:  # a bound that LLVM knows would be compared with, and then masked
            floor, ceiling = opaque(b, [floor, ceiling], "r")
        bent = v.slots([v.const(0.0)])[0]

        def tile() -> None:
            start = v.slots([v.const(0.0)])[0]
            with b.if_then(has_bias):
                b.store(v.read(bias, tiles.c), start)
            first = b.load(start, typ=v.vt)

            def write(total: Any, to: Any) -> None:
                made = at_most(b, at_least(b, total, floor), ceiling)
                b.store(made, bent)
                with b.if_then(has_curve):
                    b.store(hard_swish(b, made), bent)
                v.write_pixel(b.load(bent, typ=v.vt), to, I64(0))

            if isinstance(tiles, ShortTiles):
                _weigh_shortly(tiles, x, (weights_of, (y0, y1)), first, write)
                return
            sums = [v.slots([first] * pixels) for _ in weights_of]
            _weigh(tiles, x, weights_of, sums)
            tiles.walk_pixels(
                (y0, y1), lambda q, p, to: write(b.load(sums[q][p], typ=v.vt), to), write=True
            )

        tiles.walk(tile)
        return context.get_dummy_value()

    return _op(T, emit, S, S)


def tap_dots(target: Target, T: str, pixels: int, width: int, step: int, S: str = "") -> Any:
    """tap_dots(x, w0, w1, y0, y1, _, tiles, _): w += sum of x y, as `window_dots` is called.

    y0, y1: the gradients of two lines; w0, w1: the sums for the weights they give to row 0.  Others
    as of `window_dots`.
    """
    is_short = not width and step == 1

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, w0, w1, y0, y1, _, words, _ = args
        v, sums_of = Channels(b, target, T, S), (w0, w1)
        tiles = (ShortTiles if is_short else Tiles)(v, pixels, width, step, words)

        def tile() -> None:
            if isinstance(tiles, ShortTiles):
                _gather_shortly(tiles, x, (sums_of, (y0, y1)))
                return
            tops = [v.slots([v.const(0.0)] * pixels) for _ in sums_of]

            def read(q: int, p: int, at: Any) -> None:
                b.store(v.read_pixel(at, I64(0)), tops[q][p])

            tiles.walk_pixels((y0, y1), read, write=False)
            _gather(tiles, x, sums_of, tops)

        tiles.walk(tile)
        return context.get_dummy_value()

    return _op(T, emit, S, S)


def filter_dots(target: Target, T: str, pixels: int, width: int, step: int, X: str, Y: str) -> Any:
    """filter_dots(x, w0, w1, y0, y1, bias, tiles, mode): y = act(sum of x w (+ bias)).

    As `window_dots`, but the sum is over channels too: y0, y1 are one line, of two of its channels,
    w0, w1 the weights of their two filters, bias the numbers of the two.  X, Y: how x and y are
    stored.
    """

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, w0, w1, y0, y1, bias, words, mode = args
        v, weights_of = Channels(b, target, T, X), (w0, w1)
        tiles = Tiles(v, pixels, width, step, words)
        has_bias = b.icmp_signed("!=", b.and_(mode, I64(BIAS)), I64(0))
        relu = b.icmp_signed("!=", b.and_(mode, I64(RELU)), I64(0))
        floor = b.select(relu, LLVM[T](0.0), LLVM[T](float("-inf")))
        sums = [v.slots([v.const(0.0)] * pixels) for _ in weights_of]
        totals = [v.slots([LLVM[T](0.0)] * pixels) for _ in weights_of]

        more = v.slots([LLVM[T](0.0)] * 2)
        with b.if_then(has_bias):
            for q, slot in enumerate(more):
                at = b.select(b.icmp_signed("!=", tiles.g.two, I64(0)), I64(q), I64(0))
                b.store(b.load(b.gep(bias, [at]), typ=LLVM[T]), slot)
        added = [b.load(slot, typ=LLVM[T]) for slot in more]

        def clear() -> None:
            for slot in sums[0] + sums[1]:
                b.store(v.const(0.0), slot)

        def write(q: int, p: int, to: Any) -> None:
            value = b.load(totals[q][p], typ=LLVM[T])
            made = b.select(b.fcmp_ordered("<", value, floor), floor, value)
            b.store(written(b, made, Y or T, target), to)

        def finish() -> None:
            summed = _totals(v, [b.load(s, typ=v.vt) for s in sums[0] + sums[1]])
            for q in range(2):
                for p in range(pixels):
                    b.store(b.fadd(summed[q * pixels + p], added[q]), totals[q][p])
            tiles.walk_pixels((y0, y1), write, write=True)

        tiles.walk(lambda: _weigh(tiles, x, weights_of, sums), clear, finish)
        return context.get_dummy_value()

    return _op(T, emit, X, Y)


def filter_tap_dots(
    target: Target, T: str, pixels: int, width: int, step: int, X: str, Y: str
) -> Any:
    """filter_tap_dots(x, w0, w1, y0, y1, _, tiles, _): w += sum of x y, as `filter_dots`.

    y0, y1: the gradients of one line by two of its channels; w0, w1: the sums of their filters.
    X, Y: how x and y are stored.
    """

    def emit(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x, w0, w1, y0, y1, _, words, _ = args
        v, sums_of = Channels(b, target, T, X), (w0, w1)
        tiles = Tiles(v, pixels, width, step, words)
        tops = [v.slots([v.const(0.0)] * pixels) for _ in sums_of]

        def take(q: int, p: int, at: Any) -> None:
            top = read(b, b.load(at, typ=memory(Y or T)), Y or T, target)
            b.store(splat(b, top, v.lanes), tops[q][p])

        def start() -> None:
            for slot in tops[0] + tops[1]:
                b.store(v.const(0.0), slot)
            tiles.walk_pixels((y0, y1), take, write=False)

        tiles.walk(lambda: _gather(tiles, x, sums_of, tops), start)
        return context.get_dummy_value()

    return _op(T, emit, X, Y)


def _weigh(tiles: Tiles, x: Any, weights_of: Sequence[Any], sums: Sequence[Sequence[Any]]) -> None:
    """sums[line][pixel] += the pixels of x that it sees, times the weights of the line."""
    v, b = tiles.v, tiles.b

    def row(lines: tuple[int, ...], at: Any, weights_at: Any) -> None:
        @contextmanager
        def taps(offset: Any, count: int) -> Iterator[list[list[Any]]]:
            yield [[_load(v, weights_of[q], offset, k) for k in range(count)] for q in lines]

        def add(weights: list[list[Any]], pixel: Any, p: int, k: int) -> None:
            for q, own in zip(lines, weights, strict=True):
                total = v.muladd(pixel, own[k], b.load(sums[q][p], typ=v.vt))
                b.store(total, sums[q][p])
            _hold(v, [sums[q][p] for q in lines])

        tiles.add_row(at, weights_at, taps, add)

    tiles.walk_rows(x, row)


def _weigh_shortly(
    tiles: ShortTiles,
    x: Any,
    pairs: tuple[tuple[Any, Any], tuple[Any, Any]],
    first: Any,
    write: Callable[[Any, Any], None],
) -> None:
    """Pass `write` each pixel: `first` and the pixels of x that it sees, times weights.

    pairs: the weights of the two lines, and the lines.
    """
    v, b = tiles.v, tiles.b

    def line(own: Sequence[Any], begin: Any, end: Any) -> None:
        weights, y = own

        def pixel(p: Any, to: Any) -> None:
            (total,) = v.slots([first])
            tiles.walk_taps(
                begin,
                end,
                lambda col, at, w_at: tiles.add_pixel(
                    x, at, col, p, lambda: _load(v, weights, w_at, 0), total
                ),
            )
            write(b.load(total, typ=v.vt), to)

        tiles.walk_pixels_of(y, pixel)

    tiles.walk_lines(pairs, line)


def _gather_shortly(
    tiles: ShortTiles, x: Any, pairs: tuple[tuple[Any, Any], tuple[Any, Any]]
) -> None:
    """Add the pixels of x that taps meet, times pixels of y, to the sums in memory.

    pairs: the sums of the two lines, and the lines.
    """
    v, b = tiles.v, tiles.b

    def line(own: Sequence[Any], begin: Any, end: Any) -> None:
        sums, y = own

        def tap(col: Any, at: Any, sums_at: Any) -> None:
            (total,) = v.slots([_load(v, sums, sums_at, 0)])
            tiles.walk_pixels_of(
                y,
                lambda p, top: tiles.add_pixel(
                    x, at, col, p, lambda: v.read_pixel(top, I64(0)), total
                ),
            )
            store(b, b.load(total, typ=v.vt), b.gep(sums, [sums_at]), v.size)

        tiles.walk_taps(begin, end, tap)

    tiles.walk_lines(pairs, line)


def _gather(tiles: Tiles, x: Any, sums_of: Sequence[Any], tops: Sequence[Sequence[Any]]) -> None:
    """Add the pixels of x that a line's taps meet, times tops, to the sums in memory."""
    v, b = tiles.v, tiles.b

    def row(lines: tuple[int, ...], at: Any, sums_at: Any) -> None:
        @contextmanager
        def taps(offset: Any, count: int) -> Iterator[list[list[Any]]]:
            sums = [v.slots([_load(v, sums_of[q], offset, k) for k in range(count)]) for q in lines]
            yield sums
            for q, own in zip(lines, sums, strict=True):
                for k, slot in enumerate(own):
                    to = b.gep(sums_of[q], [b.add(offset, I64(k * v.lanes))])
                    store(b, b.load(slot, typ=v.vt), to, v.size)

        def add(sums: list[list[Any]], pixel: Any, p: int, k: int) -> None:
            for q, own in zip(lines, sums, strict=True):
                top = b.load(tops[q][p], typ=v.vt)
                b.store(v.muladd(pixel, top, b.load(own[k], typ=v.vt)), own[k])
            _hold(v, [own[k] for own in sums])

        tiles.add_row(at, sums_at, taps, add)

    tiles.walk_rows(x, row)


def _hold(v: Channels, slots: Sequence[Any]) -> None:
    """Keep loads that follow after the sums in these slots, on targets that keep the order.

    Otherwise LLVM would load all pixels of a row before its first product, for which an engine has
    too few registers.
    """
    if v.target.keeps_order:
        sums = [v.b.load(slot, typ=v.vt) for slot in slots]
        for slot, total in zip(slots, opaque(v.b, sums, "r", is_fence=True), strict=True):
            v.b.store(total, slot)


def _totals(v: Channels, vectors: Sequence[Any]) -> list[Any]:
    """Return the sum of the lanes of each vector, whose number is a power of two.

    Two vectors are added half to half into one that has the halves of both, and so on, so that the
    last has a lane for each; what are more vectors than lanes go in groups.
    """
    b, lanes = v.b, v.lanes
    if len(vectors) > lanes:
        groups = [vectors[i : i + lanes] for i in range(0, len(vectors), lanes)]
        return [total for group in groups for total in _totals(v, group)]
    partial, width = list(vectors), lanes  # width: lanes of a vector that are of one sum
    while width > 1:
        half, many = width // 2, len(partial) > 1
        other = partial[1::2] if many else [ir.Constant(partial[0].type, ir.Undefined)]
        size = partial[0].type.count
        runs = range(0, 2 * size if many else size, width)
        low, high = (
            ir.Constant(
                Vector(I32, len(runs) * half),
                [r + i + shift for r in runs for i in range(half)],
            )
            for shift in (0, half)
        )
        pairs = zip(partial[::2], other, strict=True)
        partial = [
            b.fadd(b.shuffle_vector(x, y, low), b.shuffle_vector(x, y, high)) for x, y in pairs
        ]
        width = half
    return [b.extract_element(partial[0], I32(i)) for i in range(len(vectors))]


def _load(v: Channels, pointer: Any, offset: Any, tap: int) -> Any:
    """Return the vector of a tap, so many vectors after an offset."""
    row = v.b.gep(pointer, [offset])
    return load(v.b, v.b.gep(row, [I64(tap * v.lanes)], inbounds=True), v.vt, v.size)


BUILDERS: dict[str, Callable[..., Any]] = {
    "window_dots": window_dots, "tap_dots": tap_dots,
    "filter_dots": filter_dots, "filter_tap_dots": filter_tap_dots,
}  # fmt: skip
