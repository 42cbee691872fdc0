"""Vector IR of depthwise windows of 8-bit integers, which round as integer_dots.py does."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from llvmlite import ir
from numba import types

from engine.kernels.machine.target import Target
from engine.kernels.vector_ir.integer_dots import BYTES, F32, WIDE, DotSums
from engine.kernels.vector_ir.scalars import I8
from engine.kernels.vector_ir.vectors import (
    I16,
    I32,
    I64,
    NUMBA,
    Vector,
    call_outlined,
    counted,
    load,
    settle,
    store,
)
from engine.kernels.vocabulary.integers import GROUP, PANEL


def integer_windows(target: Target, X: str, Y: str) -> Any:
    """integer_windows(x, edge, at, w, y, groups, channels, low, high, zero, count, step)

    y[p, c] = out(start[c] + sum_t X_t[p step + c] W[t, c]) for `count` pixels, all channels c.

    X_t begins at x[at[t]]; if at[t] < 0 it is `edge` for all pixels.  There are as many as `groups`
    groups have steps.  W, start and factor are what `turn_windows` writes; the rest is as of
    `integer_tile`.
    """
    emit = call_outlined(
        f"integer_windows_{X}{Y}_{target.lanes(4)}{target.dots}",
        lambda fn: _DotWindows(fn, target, X, Y).build(),
    )

    def op(typingctx, x, edge, at, w, y, groups, channels, low, high, zero, count, step):
        kinds = (NUMBA[X], NUMBA[X], types.int64, types.int8, NUMBA[Y])
        return types.void(*[types.CPointer(t) for t in kinds], *[types.int64] * 7), emit

    return op


def turn_windows(target: Target, X: str, Y: str) -> Any:
    """turn_windows(w, start, factor, into, groups, channels): what `integer_windows` reads.

    w, start and factor are as `integer_tile` reads them.  They are written for one block of
    channels after another, as wide as vectors of bytes; `count_turned` bytes.
    """
    emit = call_outlined(
        f"turn_windows_{X}{Y}_{target.lanes(4)}{target.dots}",
        lambda fn: _DotWindows(fn, target, X, Y).build_turning(),
    )

    def op(typingctx, w, start, factor, into, groups, channels):
        kinds = (types.int8, types.int32, types.float32, types.int8)
        return types.void(*[types.CPointer(t) for t in kinds], *[types.int64] * 2), emit

    return op


class _DotWindows(DotSums):
    """Writes the bodies of `integer_windows` and `turn_windows`.

    A block of channels is as wide as a vector of bytes, at most, and no less than a panel.  Its
    taps are interleaved in each 16 bytes of the vectors, which takes one instruction where whole
    vectors take several, and 16-byte units of weights are put into that order once:

        taps        a0 a1 ... a63, b0 b1 ... b63, ...         vectors of one tap
        vector v    a[16 l + 4 v + i] b[...] c[...] d[...]     for its units l, for i < 4

    widths: of blocks, the widest first.
    """

    def __init__(self, fn: Any, target: Target, X: str, Y: str) -> None:
        super().__init__(fn, target, X, Y)
        self.widths = [PANEL]
        while target.dots and 2 * self.widths[0] <= target.vector:
            self.widths.insert(0, 2 * self.widths[0])

    def build(self) -> None:
        b = self.b
        x, edge, at, w, y, groups, channels, low, high, zero, count, step = self.fn.args
        for pointer in (x, edge, at, w, y):
            pointer.add_attribute("noalias")
        self.x, self.edge, self.at, self.y, self.groups = x, edge, at, y, groups
        self.channels, self.count, self.step_x = channels, count, step
        self.rest = b.alloca(Vector(I8, PANEL))
        self.prepare(low, high, zero, b.and_(channels, I64(PANEL - 1)))
        places = self._lay_out(w)

        def run_block(c: Any, width: int) -> None:
            weights, start, factor = places
            weights = b.gep(weights, [b.mul(c, b.mul(groups, I64(GROUP)))])
            ends = (b.gep(p, [b.mul(c, I64(4))]) for p in (start, factor))
            self._run_pixels(c, width, weights, *ends, ragged=False)

        c = I64(0)
        for width in self.widths:
            c = counted(b, c, channels, width, functools.partial(run_block, width=width))
        with b.if_then(b.icmp_signed("<", c, channels)):
            # The last block begins earlier if there is room: some channels are made twice.
            is_wide = b.icmp_signed(">=", channels, I64(PANEL))
            last = self._lay_out_last(w)
            with b.if_else(is_wide) as (wide, narrow):
                with wide:
                    self._run_pixels(b.sub(channels, I64(PANEL)), PANEL, *last, ragged=False)
                with narrow:
                    self._run_pixels(I64(0), PANEL, *last, ragged=True)
        b.ret_void()

    def build_turning(self) -> None:
        b = self.b
        w, start, factor, into, groups, channels = self.fn.args
        for pointer in (w, start, factor, into):
            pointer.add_attribute("noalias")
        self.groups, self.channels = groups, channels
        w, start, factor = (b.bitcast(p, I8.as_pointer()) for p in (w, start, factor))
        size = b.mul(groups, I64(BYTES))
        per = b.mul(groups, I64(GROUP))  # bytes of a channel

        def turn_block(c: Any, width: int) -> None:
            units = width // PANEL
            to, *ends = self._lay_out(into)
            to = b.gep(to, [b.mul(c, per)])
            of = b.gep(w, [b.mul(c, per)])

            def turn_group(g: Any) -> None:
                for unit, v in itertools.product(range(units), range(GROUP)):
                    at = b.add(b.mul(size, I64(unit)), b.add(b.mul(g, I64(BYTES)), I64(PANEL * v)))
                    dst = b.add(b.mul(g, I64(GROUP * width)), I64(width * v + PANEL * unit))
                    self._move(b.gep(of, [at]), b.gep(to, [dst]), PANEL)

            counted(b, I64(0), groups, 1, turn_group)
            for source, end in zip((start, factor), ends, strict=True):
                if source is factor and self.Y == "i32":
                    continue
                at = b.mul(c, I64(4))
                for unit, v in itertools.product(range(units), range(GROUP)):
                    of_unit = b.gep(source, [b.add(at, I64(BYTES * unit + PANEL * v))])
                    to_unit = b.gep(end, [b.add(at, I64(width * v + PANEL * unit))])
                    self._move(of_unit, to_unit, PANEL)

        c = I64(0)
        for width in self.widths:
            c = counted(b, c, channels, width, functools.partial(turn_block, width=width))
        with b.if_then(b.icmp_signed("<", c, channels)):
            first = b.sub(channels, I64(PANEL))
            first = b.select(b.icmp_signed(">", first, I64(0)), first, I64(0))
            to, *ends = self._lay_out_last(into)

            def turn_channels(g: Any) -> None:
                for i in range(PANEL):
                    c = b.add(first, I64(i))
                    panel, column = b.udiv(c, I64(PANEL)), b.and_(c, I64(PANEL - 1))
                    at = b.add(b.mul(panel, size), b.mul(g, I64(BYTES)))
                    at = b.add(at, b.mul(column, I64(GROUP)))
                    dst = b.add(b.mul(g, I64(BYTES)), I64(GROUP * i))
                    self._move(b.gep(w, [at]), b.gep(to, [dst]), GROUP)

            counted(b, I64(0), groups, 1, turn_channels)
            for source, end in zip((start, factor), ends, strict=True):
                if source is start or self.Y != "i32":
                    self._move(b.gep(source, [b.mul(first, I64(4))]), end, BYTES)
        b.ret_void()

    def _lay_out(self, memory: Any) -> tuple[Any, Any, Any]:
        """Return where weights, start and factor of the blocks begin."""
        start = self.b.gep(memory, [self.b.mul(self._count_words(), self.groups)])
        return memory, start, self.b.gep(start, [self._count_words()])

    def _lay_out_last(self, memory: Any) -> tuple[Any, Any, Any]:
        """Return the same of the last block, where the last channels fill no panel."""
        b = self.b
        weights = b.gep(self._lay_out(memory)[2], [self._count_words()])
        start = b.gep(weights, [b.mul(self.groups, I64(BYTES))])
        return weights, start, b.gep(start, [I64(BYTES)])

    def _count_words(self) -> Any:
        """Return the bytes of a word for each channel of whole panels."""
        b = self.b
        return b.mul(b.and_(b.add(self.channels, I64(PANEL - 1)), I64(-PANEL)), I64(4))

    def _move(self, source: Any, into: Any, nbytes: int) -> None:
        """Copy some bytes."""
        store(self.b, load(self.b, source, Vector(I8, nbytes), 1), into, 1)

    def _run_pixels(
        self, c: Any, width: int, weights: Any, start: Any, factor: Any, *, ragged: bool
    ) -> None:
        """Make a block of channels of all pixels.

        weights, start, factor: as `turn_windows` has written them for this block.
        """
        b = self.b
        kind = Vector(I8, width)

        def run(p: Any) -> None:
            first = b.gep(self.x, [b.mul(p, self.step_x)])

            def add_group(g: Any, sums: list[Any]) -> list[Any]:
                places = [
                    b.gep(self.at, [b.add(b.mul(g, I64(GROUP)), I64(t))]) for t in range(GROUP)
                ]
                taps = [self._read_tap(first, place, c, kind, ragged=ragged) for place in places]
                mine = b.gep(weights, [b.mul(g, I64(GROUP * width))])
                return self._multiply(taps, mine, sums)

            sums = self.loop(self.groups, self._start(start, width), add_group)
            into = b.gep(self.y, [b.add(b.mul(p, self.channels), c)])
            self._finish_block(sums, start, factor, into, ragged=ragged)

        counted(b, I64(0), self.count, 1, run)

    def _start(self, start: Any, width: int) -> list[Any]:
        """Return what sums of a block begin with."""
        if self.parts == 2:
            return [self.none] * self.vectors
        kind = Vector(I32, width // GROUP)
        return [load(self.b, self.b.gep(start, [I64(width * v)]), kind, 4) for v in range(GROUP)]

    def _read_tap(self, first: Any, place: Any, c: Any, kind: Any, *, ragged: bool) -> Any:
        """Return the channels of a block of a tap, from channel c on.

        first: where the pixel of the first tap of the first window would be.
        """
        b = self.b
        offset = b.load(place, typ=I64)
        is_inside = b.icmp_signed(">=", offset, I64(0))
        base = b.select(is_inside, b.gep(first, [b.select(is_inside, offset, I64(0))]), self.edge)
        tap = b.gep(base, [c])
        if not ragged:
            return load(b, tap, kind, 1)
        into = b.bitcast(self.rest, I8.as_pointer())

        def move(i: Any) -> None:
            b.store(b.load(b.gep(tap, [i]), typ=I8), b.gep(into, [i]))

        counted(b, I64(0), self.tail, 1, move)
        return settle(b, b.load(self.rest, typ=kind))

    def _multiply(self, taps: list[Any], weights: Any, sums: list[Any]) -> list[Any]:
        """Return the sums and the products of a group of taps with their weights."""
        b, out = self.b, list[Any]()
        taps = [self.flip(tap) for tap in taps]
        if self.parts == 1:
            width = taps[0].type.count
            for v, (total, left) in enumerate(zip(sums, self._weave(taps), strict=True)):
                right = load(b, b.gep(weights, [I64(width * v)]), left.type, 1)
                out.append(self.add_products(total, left, right))
            return out
        low, high = (self._interleave(taps[t], taps[t + 2]) for t in (0, 1))
        every = self._interleave(low, high)
        for v, total in enumerate(sums):
            left = self.take(self.pick(every, range(v * self.step, (v + 1) * self.step)))
            right = self.take_weights(b.gep(weights, [I64(v * self.step)]))
            out.append(self.add_products(total, left, right))
        return out

    def _weave(self, taps: list[Any]) -> list[Any]:
        """Return four taps as four vectors, in which the taps of a channel lie together."""
        b, kind = self.b, taps[0].type
        pairs = Vector(I16, kind.count // 2)
        (a, c), (d, e) = (self._zip(taps[t], taps[t + 1]) for t in (0, 2))
        a, c, d, e = (b.bitcast(half, pairs) for half in (a, c, d, e))
        return [b.bitcast(v, kind) for v in (*self._zip(a, d), *self._zip(c, e))]

    def _zip(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return the elements of two vectors in turns: the lower and upper halves of 16 bytes."""
        count = x.type.count
        unit = PANEL * 8 // x.type.element.width  # elements of 16 bytes
        halves = []
        for half in (0, unit // 2):
            order = [
                start + half + k // 2 + k % 2 * count
                for start in range(0, count, unit)
                for k in range(unit)
            ]
            mask = ir.Constant(Vector(I32, count), order)
            halves.append(self.b.shuffle_vector(x, y, mask))
        return halves[0], halves[1]

    def _interleave(self, x: Any, y: Any) -> Any:
        """Return the elements of two vectors in turns."""
        size = x.type.count
        order = [k // 2 + k % 2 * size for k in range(2 * size)]
        return self.b.shuffle_vector(x, y, ir.Constant(Vector(I32, 2 * size), order))

    def _finish_block(
        self, sums: list[Any], start: Any, factor: Any, into: Any, *, ragged: bool
    ) -> None:
        """Store what is made of the sums of a block."""
        b = self.b
        if self.parts == 2 or ragged:
            joined = self.join(sums)
            if self.parts == 2:
                joined = b.add(joined, load(b, start, WIDE, 4))
            self.store_panel(self.make(joined, factor), into, ragged=ragged)
            return
        each = sums[0].type.count
        factors: list[Any] = [None] * GROUP
        if self.Y != "i32":
            kind = Vector(F32, each)
            factors = [load(b, b.gep(factor, [I64(4 * each * v)]), kind, 4) for v in range(GROUP)]
        if self.Y in ("u8", "i8"):
            reals = [b.fmul(b.sitofp(s, f.type), f) for s, f in zip(sums, factors, strict=True)]
            store(b, self.pack(reals), into, 1)
            return
        for v, (total, scale) in enumerate(zip(sums, factors, strict=True)):
            value = total if scale is None else b.fmul(b.sitofp(total, scale.type), scale)
            for unit in range(each // 4):
                part = self.pick(value, range(4 * unit, 4 * unit + 4))
                store(b, part, b.gep(into, [I64(PANEL * unit + 4 * v)]), 4)
