"""Vector IR of products of 8-bit integers with sums of 32 bits: register tiles and windows.

Weights are packed in panels (vocabulary/integers.py), of 64 bytes for each group of steps, and
activations are turned into a vector of the same order, in which way a target multiplies best:

    dots     vpdpbusd, sdot: a lane sums the four products of a column
    pairs    factors of 16 bits: a lane sums the products of two steps, x86's pmaddwd; two lanes
             make a column
    narrow   Arm without sdot: products of 16 bits, summed in pairs (smull, sadalp)

No product or sum saturates: pmaddubsw, whose sums of 16 bits do, is not used.
"""

from __future__ import annotations

import itertools
from typing import Any

from llvmlite import ir
from numba import types

from engine.kernels.machine.target import Target
from engine.kernels.vector_ir.scalars import I8, memory
from engine.kernels.vector_ir.vectors import (
    I16,
    I32,
    I64,
    LLVM,
    NUMBA,
    call_outlined,
    counted,
    intrinsic,
    load,
    settle,
    splat,
    store,
)
from engine.kernels.vocabulary.integers import GROUP, PANEL, find_sign, find_window

F32 = LLVM["f32"]
WIDE = ir.VectorType(I32, PANEL)  # the sums of a panel
REALS = ir.VectorType(F32, PANEL)
BYTES = PANEL * GROUP  # of a group of steps in a panel
ROUNDER = 12582912.0  # 1.5 2^23: a float32 that is added to it is rounded to an integer
_MADD = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}  # by lanes of a sum


def integer_tile(target: Target, X: str, Y: str, rows: int, panels: int) -> Any:
    """integer_tile(a, b, y, start, factor, k, lda, ldb, ldy, lds, low, high, zero, tail)

    Y[i, j] = out(S[i, j] + sum_p A[i, p] B[p, j]) for `rows` rows and `panels` panels of columns.

    A[i, p] is a[i lda + p], of the type X; if that is not the sign that the target multiplies, its
    highest bit is flipped first.  B is packed, `ldb` bytes from panel to panel; steps after the
    last, up to a whole group, have factors 0 there.  Y[i, j] is y[i ldy + j], S[i, j] is
    start[i lds + j].  Of the last panel `tail` columns are stored; S and factor have whole panels.
    K >= 1.
    out: the sum itself where Y is i32; the sum as float32 times factor[j] where it is f32; this
    rounded to the nearest integer, ties to even, plus `zero`, from `low` to `high`, if 8 bits.
    """
    name = f"integer_tile_{X}{Y}_{rows}x{panels}x{target.lanes(4)}{target.dots}"
    emit = call_outlined(name, lambda fn: _DotTile(fn, target, X, Y).build(rows, panels))

    def op(typingctx, a, b, y, start, factor, k, lda, ldb, ldy, lds, low, high, zero, tail):
        kinds = (NUMBA[X], types.int8, NUMBA[Y], types.int32, types.float32)
        return types.void(*[types.CPointer(t) for t in kinds], *[types.int64] * 9), emit

    return op


def integer_window(target: Target, X: str, Y: str) -> Any:
    """integer_window(x, edge, at, w, y, start, factor, groups, channels, low, high, zero)

    y[c] = out(start[c] + sum_t X_t[c] W[t, c]) for all channels c of one pixel.

    X_t begins at x[at[t]], or at `edge` if at[t] < 0; there are as many as `groups` groups have
    steps.  W is packed, all groups of a panel one after another.  The rest as of `integer_tile`.
    """
    emit = call_outlined(
        f"integer_window_{X}{Y}_{target.lanes(4)}{target.dots}",
        lambda fn: _DotWindow(fn, target, X, Y).build(),
    )

    def op(typingctx, x, edge, at, w, y, start, factor, groups, channels, low, high, zero):
        kinds = (NUMBA[X], NUMBA[X], types.int64, types.int8, NUMBA[Y], types.int32, types.float32)
        return types.void(*[types.CPointer(t) for t in kinds], *[types.int64] * 5), emit

    return op


class _Sums:
    """Writes sums of products, in the way of a target, and what is made of them.

    parts: lanes that make the sum of a column.  vectors: of a panel.  step: bytes of a panel's
    group in a vector.
    """

    def __init__(self, fn: Any, target: Target, X: str, Y: str) -> None:
        self.fn, self.target, self.X, self.Y = fn, target, X, Y
        self.lanes = target.lanes(4)
        self.vt = ir.VectorType(I32, self.lanes)
        self.parts = 1 if target.dots else 2
        self.vectors = PANEL * self.parts // self.lanes
        self.step = BYTES // self.vectors
        self.sign = find_sign(target, X)
        self.is_narrow = target.by_lane and not target.dots
        self.b = ir.IRBuilder(fn.append_basic_block("entry"))

    @property
    def none(self) -> Any:
        """Sums of nothing."""
        return ir.Constant(self.vt, [0] * self.lanes)

    def flip(self, left: Any) -> Any:
        """Return activations of the type X with the sign that is multiplied: a word or bytes."""
        if self.sign == self.X:
            return left
        if left.type == I32:
            return self.b.xor(left, I32(0x80808080))
        return self.b.xor(left, ir.Constant(left.type, [0x80] * left.type.count))

    def take(self, left: Any) -> Any:
        """Return bytes of activations as `add_products` takes them."""
        b = self.b
        if self.target.dots or self.is_narrow:
            return left
        return (b.sext if self.sign == "i8" else b.zext)(left, ir.VectorType(I16, self.step))

    def take_weights(self, place: Any) -> Any:
        """Return the weights of a vector at an address as `add_products` takes them."""
        right = load(self.b, place, ir.VectorType(I8, self.step), 1)
        if self.target.dots or self.is_narrow:
            return right
        return self.b.sext(right, ir.VectorType(I16, self.step))

    def add_products(self, total: Any, left: Any, right: Any) -> Any:
        """Return the sums of a vector with more products."""
        b, module = self.b, self.fn.module
        if self.target.dots:
            name = {
                "vpdpbusd": f"llvm.x86.avx512.vpdpbusd.{8 * self.target.vector}",
                "sdot": "llvm.aarch64.neon.sdot.v4i32.v16i8",
            }[self.target.dots]
            dot = intrinsic(module, name, self.vt, [self.vt, left.type, right.type])
            return b.call(dot, [total, left, right])
        if self.is_narrow:
            wide = ir.VectorType(I16, self.step)
            products = b.mul(b.sext(left, wide), b.sext(right, wide))
            add = intrinsic(module, "llvm.aarch64.neon.saddlp.v4i32.v8i16", self.vt, [wide])
            return b.add(total, b.call(add, [products]))
        if self.target.arch == "x86_64":
            madd = intrinsic(module, f"llvm.x86.{_MADD[self.lanes]}", self.vt, [left.type] * 2)
            return b.add(total, b.call(madd, [left, right]))
        wide = ir.VectorType(I32, self.step)
        products = b.mul(b.sext(left, wide), b.sext(right, wide))
        for s in (0, 1):
            total = b.add(total, self._pick(products, range(s, self.step, 2)))
        return total

    def join(self, vectors: list[Any]) -> Any:
        """Return the sums of a panel as one vector."""
        b = self.b
        while len(vectors) > 1:
            size = 2 * vectors[0].type.count
            mask = ir.Constant(ir.VectorType(I32, size), list(range(size)))
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [b.shuffle_vector(x, y, mask) for x, y in pairs]
        if self.parts == 1:
            return vectors[0]
        even, odd = (self._pick(vectors[0], range(s, 2 * PANEL, 2)) for s in (0, 1))
        return b.add(even, odd)

    def _pick(self, vector: Any, lanes: Any) -> Any:
        """Return some lanes of a vector."""
        undef = ir.Constant(vector.type, ir.Undefined)
        order = list(lanes)
        mask = ir.Constant(ir.VectorType(I32, len(order)), order)
        return self.b.shuffle_vector(vector, undef, mask)

    def prepare(self, low: Any, high: Any, zero: Any, tail: Any) -> None:
        """Note the range of the results, and how many columns of a ragged panel are stored."""
        b = self.b
        self.spare = b.alloca(memory(self.Y), size=PANEL)
        self.low, self.high = (splat(b, b.sitofp(b.sub(v, zero), F32), PANEL) for v in (low, high))
        self.zero, self.tail = splat(b, b.trunc(zero, I32), PANEL), tail

    def finish(self, sums: Any, start: Any, factor: Any, into: Any, *, ragged: bool) -> None:
        """Store what is made of the sums of a panel.

        start, factor, into: addresses of its first column.
        """
        b = self.b
        sums = b.add(sums, load(b, start, WIDE, 4))
        value = sums if self.Y == "i32" else self._scale(sums, factor)
        align = 1 if self.Y in ("u8", "i8") else 4
        if not ragged:
            store(b, value, into, align)
            return
        kind = memory(self.Y)

        def move(c: Any) -> None:
            b.store(b.load(b.gep(self.spare, [c]), typ=kind), b.gep(into, [c]))

        with b.if_else(b.icmp_signed(">=", self.tail, I64(PANEL))) as (whole, part):
            with whole:
                store(b, value, into, align)
            with part:
                store(b, value, self.spare, align)
                counted(b, I64(0), self.tail, 1, move)

    def _scale(self, sums: Any, factor: Any) -> Any:
        b = self.b
        real = b.fmul(b.sitofp(sums, REALS), load(b, factor, REALS, 4))
        if self.Y == "f32":
            return real
        real = b.select(b.fcmp_ordered("<", real, self.low), self.low, real)
        real = b.select(b.fcmp_ordered(">", real, self.high), self.high, real)
        rounder = ir.Constant(REALS, [ROUNDER] * PANEL)
        whole = b.sub(b.bitcast(b.fadd(real, rounder), WIDE), b.bitcast(rounder, WIDE))
        return b.trunc(b.add(whole, self.zero), ir.VectorType(I8, PANEL))

    def loop(self, end: Any, starts: list[Any], advance: Any) -> list[Any]:
        """Return vectors after `vectors = advance(i, vectors)` for i in range(end)."""
        b, fn, entry = self.b, self.fn, self.b.block
        inside, done = fn.append_basic_block("loop"), fn.append_basic_block("done")
        b.cbranch(b.icmp_signed("<", I64(0), end), inside, done)
        b.position_at_end(inside)
        at = b.phi(I64)
        live = [b.phi(v.type) for v in starts]
        out = advance(at, live)
        after, latch = b.add(at, I64(1)), b.block
        at.add_incoming(I64(0), entry)
        at.add_incoming(after, latch)
        b.cbranch(b.icmp_signed("<", after, end), inside, done)
        b.position_at_end(done)
        merged = [b.phi(v.type) for v in starts]
        for phi, old, new, joined in zip(live, starts, out, merged, strict=True):
            for value in (phi, joined):
                value.add_incoming(old, entry)
                value.add_incoming(new, latch)
        return merged


class _DotTile(_Sums):
    """Writes the body of `integer_tile`."""

    def build(self, rows: int, panels: int) -> None:
        b = self.b
        a, bp, y, start, factor, k, lda, ldb, ldy, lds, low, high, zero, tail = self.fn.args
        for pointer in (a, bp, y, start, factor):
            pointer.add_attribute("noalias")
        self.prepare(low, high, zero, tail)
        left = [b.gep(a, [b.mul(lda, I64(i))]) for i in range(rows)]
        right = [b.gep(bp, [b.mul(ldb, I64(j))]) for j in range(panels)]
        groups, rest = b.udiv(k, I64(GROUP)), b.and_(k, I64(GROUP - 1))

        def whole(at: Any, sums: list[Any]) -> list[Any]:
            words = [self._read_word(row, b.mul(at, I64(GROUP))) for row in left]
            return self._multiply(words, right, at, sums)

        def part(_: Any, sums: list[Any]) -> list[Any]:
            words = [self._read_rest(row, b.mul(groups, I64(GROUP)), k) for row in left]
            return self._multiply(words, right, groups, sums)

        sums = self.loop(groups, [self.none] * (rows * panels * self.vectors), whole)
        # Fewer than a group are left: the last factor of a row stands where B has 0.
        some = b.select(b.icmp_signed("==", rest, I64(0)), I64(0), I64(1))
        step = iter(self.loop(some, sums, part))
        for i, j in itertools.product(range(rows), range(panels)):
            at = I64(PANEL * j)
            self.finish(
                self.join(list(itertools.islice(step, self.vectors))),
                b.gep(start, [b.add(b.mul(lds, I64(i)), at)]),
                b.gep(factor, [at]),
                b.gep(y, [b.add(b.mul(ldy, I64(i)), at)]),
                ragged=j + 1 == panels,
            )
        b.ret_void()

    def _read_word(self, row: Any, at: Any) -> Any:
        """Return a group of factors of A as a word."""
        word = self.b.load(self.b.bitcast(self.b.gep(row, [at]), I32.as_pointer()), typ=I32)
        word.align = 1
        return word

    def _read_rest(self, row: Any, at: Any, k: Any) -> Any:
        b, word, most = self.b, I32(0), self.b.sub(k, I64(1))
        for p in range(GROUP):
            place = b.add(at, I64(p))
            place = b.select(b.icmp_signed("<", place, most), place, most)
            byte = b.zext(b.load(b.gep(row, [place]), typ=I8), I32)
            word = b.or_(word, b.shl(byte, I32(8 * p)))
        return word

    def _multiply(self, words: list[Any], panels: list[Any], at: Any, sums: list[Any]) -> list[Any]:
        """Return the sums and the products of a group of each row with the panels."""
        b, out = self.b, list(sums)
        kind = ir.VectorType(I8, self.step)
        # Flipped before they are spread: the other order keeps LLVM 22 busy for ever.
        spread = [splat(b, self.flip(word), self.step // GROUP) for word in words]
        left = [self.take(b.bitcast(word, kind)) for word in spread]
        for n, (j, v) in enumerate(itertools.product(range(len(panels)), range(self.vectors))):
            place = b.add(b.mul(at, I64(BYTES)), I64(v * self.step))
            right = self.take_weights(b.gep(panels[j], [place]))
            for i in range(len(words)):
                mine = i * len(panels) * self.vectors + n
                out[mine] = self.add_products(out[mine], left[i], right)
        return out


class _DotWindow(_Sums):
    """Writes the body of `integer_window`."""

    def build(self) -> None:
        b = self.b
        x, edge, at, w, y, start, factor, groups, channels, low, high, zero = self.fn.args
        for pointer in (x, edge, at, w, y, start, factor):
            pointer.add_attribute("noalias")
        whole = b.and_(channels, I64(-PANEL))
        self.prepare(low, high, zero, b.sub(channels, whole))
        size = b.mul(groups, I64(BYTES))
        rest = b.alloca(ir.VectorType(I8, PANEL))

        def run(c: Any, count: int, *, ragged: bool) -> None:
            """Run some panels from channel c on, which share the addresses of taps."""
            first = b.gep(w, [b.mul(b.udiv(c, I64(PANEL)), size)])

            def group(g: Any, sums: list[Any]) -> list[Any]:
                places = [b.gep(at, [b.add(b.mul(g, I64(GROUP)), I64(t))]) for t in range(GROUP)]
                starts = [self._read_tap(x, edge, place, c) for place in places]
                out: list[Any] = []
                for j in range(count):
                    taps = [b.gep(start, [I64(PANEL * j)]) for start in starts]
                    if ragged:
                        taps = [self._read_part(tap, rest) for tap in taps]
                    else:
                        taps = [load(b, tap, ir.VectorType(I8, PANEL), 1) for tap in taps]
                    weights = b.gep(first, [b.add(b.mul(size, I64(j)), b.mul(g, I64(BYTES)))])
                    mine = sums[j * self.vectors : (j + 1) * self.vectors]
                    out += self._multiply(taps, weights, mine)
                return out

            sums = self.loop(groups, [self.none] * (count * self.vectors), group)
            for j in range(count):
                part = sums[j * self.vectors : (j + 1) * self.vectors]
                ends = (b.gep(p, [b.add(c, I64(PANEL * j))]) for p in (start, factor, y))
                self.finish(self.join(part), *ends, ragged=ragged)

        most = find_window(self.target)
        done = counted(b, I64(0), whole, PANEL * most, lambda c: run(c, most, ragged=False))
        if most > 1:
            counted(b, done, whole, PANEL, lambda c: run(c, 1, ragged=False))
        with b.if_then(b.icmp_signed("<", whole, channels)):
            run(whole, 1, ragged=True)
        b.ret_void()

    def _read_tap(self, x: Any, edge: Any, at: Any, c: Any) -> Any:
        """Return the address of channel c of a tap."""
        b = self.b
        offset = b.load(at, typ=I64)
        is_inside = b.icmp_signed(">=", offset, I64(0))
        base = b.select(is_inside, b.gep(x, [b.select(is_inside, offset, I64(0))]), edge)
        return b.gep(base, [c])

    def _read_part(self, tap: Any, rest: Any) -> Any:
        """Return the last channels of a tap, with others after them."""
        b = self.b
        into = b.bitcast(rest, I8.as_pointer())

        def move(c: Any) -> None:
            b.store(b.load(b.gep(tap, [c]), typ=I8), b.gep(into, [c]))

        counted(b, I64(0), self.tail, 1, move)
        return settle(b, b.load(rest, typ=ir.VectorType(I8, PANEL)))

    def _multiply(self, taps: list[Any], weights: Any, sums: list[Any]) -> list[Any]:
        """Return the sums and the products of a group of taps with their weights."""
        b = self.b
        low, high = (self._interleave(taps[t], taps[t + 2]) for t in (0, 1))
        every = self._interleave(low, high)
        out = []
        for v, total in enumerate(sums):
            lanes = range(v * self.step, (v + 1) * self.step)
            left = self.take(self.flip(self._pick(every, lanes)))
            right = self.take_weights(b.gep(weights, [I64(v * self.step)]))
            out.append(self.add_products(total, left, right))
        return out

    def _interleave(self, x: Any, y: Any) -> Any:
        """Return the elements of two vectors in turns."""
        size = x.type.count
        order = [k // 2 + k % 2 * size for k in range(2 * size)]
        return self.b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, 2 * size), order))
