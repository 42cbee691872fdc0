"""Vector IR of products of 8-bit integers with sums of 32 bits: register tiles.

Weights are packed in panels (vocabulary/integers.py), of 64 bytes for each group of steps, and
activations are turned into a vector of the same order, in which way a target multiplies best:

    dots     vpdpbusd, sdot, usdot: a lane sums the four products of a column
    squares  smmla, usmmla: the lanes of a vector are two rows by two columns, of eight products
             each; of tiles of rows, by panels that are turned
    pairs    factors of 16 bits: a lane sums the products of two steps, x86's pmaddwd; two lanes
             make a column
    narrow   Arm without sdot: products of 16 bits, summed in pairs (smull, sadalp)

No product or sum saturates: pmaddubsw, whose sums of 16 bits do, is not used.
"""

from __future__ import annotations

import functools
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
    Vector,
    call_outlined,
    counted,
    intrinsic,
    load,
    splat,
    store,
)
from engine.kernels.vocabulary.integers import GROUP, PANEL, SQUARE, find_sign

F32, F64 = LLVM["f32"], LLVM["f64"]
WIDE = Vector(I32, PANEL)  # the sums of a panel
REALS = Vector(F32, PANEL)
BYTES = PANEL * GROUP  # of a group of steps in a panel
ROUNDER = 12582912.0  # 1.5 2^23: a float32 that is added to it is rounded to an integer
# By lanes of 32 bits: instructions that round floats to integers, and that narrow integers to 16
# bits, from there to u8, and to i8, all with bounds of their types.
_CONVERT = {4: "llvm.x86.sse2.cvtps2dq", 8: "llvm.x86.avx.cvt.ps2dq.256",
            16: "llvm.x86.avx512.mask.cvtps2dq.512"}  # fmt: skip
_PACKS = {
    4: tuple(f"llvm.x86.sse2.pack{kind}.128" for kind in ("ssdw", "uswb", "sswb")),
    8: tuple(f"llvm.x86.avx2.pack{kind}" for kind in ("ssdw", "uswb", "sswb")),
    16: tuple(f"llvm.x86.avx512.pack{kind}.512" for kind in ("ssdw", "uswb", "sswb")),
}
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
    return _make_tile("integer_tile", _DotTile, target, X, Y, rows, panels)


def integer_squares(target: Target, X: str, Y: str, rows: int, panels: int) -> Any:
    """integer_squares(a, b, y, start, factor, k, lda, ldb, ldy, lds, low, high, zero, tail)

    As `integer_tile`, for an even number of rows, K >= 8, and panels that `turn_panel` wrote.
    """
    return _make_tile("integer_squares", _DotSquares, target, X, Y, rows, panels)


def _make_tile(
    kind: str, writer: type[_DotTile], target: Target, X: str, Y: str, rows: int, panels: int
) -> Any:
    """Return the intrinsic of a register tile; writer: the class that writes its body."""
    name = f"{kind}_{X}{Y}_{rows}x{panels}x{target.lanes(4)}{target.dots}"
    emit = call_outlined(name, lambda fn: writer(fn, target, X, Y).build(rows, panels))

    def op(typingctx, a, b, y, start, factor, k, lda, ldb, ldy, lds, low, high, zero, tail):
        kinds = (NUMBA[X], types.int8, NUMBA[Y], types.int32, types.float32)
        return types.void(*[types.CPointer(t) for t in kinds], *[types.int64] * 9), emit

    return op


def turn_panel(target: Target) -> Any:
    """turn_panel(w, into, groups): what `integer_squares` reads of a panel of so many groups.

        two groups  a0-3 b0-3 c0-3 d0-3 ..., a4-7 b4-7 c4-7 d4-7 ...     columns a, b, c, d, ...
        turned      a0-7 b0-7, c0-7 d0-7, ...

    Of an odd number of groups the last is followed by 0.
    """
    emit = call_outlined(f"turn_panel_{target.lanes(4)}", _build_turn)

    def op(typingctx, w, into, groups):
        return types.void(*[types.CPointer(types.int8)] * 2, types.int64), emit

    return op


def _build_turn(fn: Any) -> None:
    b, (w, into, groups) = ir.IRBuilder(fn.append_basic_block("entry")), fn.args
    for pointer in (w, into):
        pointer.add_attribute("noalias")
    kind, per = Vector(I32, PANEL // GROUP), BYTES // PANEL  # columns of a vector, vectors
    masks = [
        ir.Constant(kind, [first, first + 4, first + 1, first + 5])
        for first in (0, kind.count // 2)
    ]

    def turn_pair(at: Any, *, is_whole: bool) -> None:
        of, to = (b.gep(p, [b.mul(at, I64(2 * BYTES))]) for p in (w, into))
        for v in range(per):
            low = load(b, b.gep(of, [I64(PANEL * v)]), kind, 1)
            high = ir.Constant(kind, [0] * kind.count)
            if is_whole:
                high = load(b, b.gep(of, [I64(BYTES + PANEL * v)]), kind, 1)
            for half, mask in enumerate(masks):
                place = b.gep(to, [I64(2 * PANEL * v + PANEL * half)])
                store(b, b.shuffle_vector(low, high, mask), place, 1)

    pairs = b.lshr(groups, I64(1))
    counted(b, I64(0), pairs, 1, functools.partial(turn_pair, is_whole=True))
    with b.if_then(b.icmp_signed("!=", b.and_(groups, I64(1)), I64(0))):
        turn_pair(pairs, is_whole=False)
    b.ret_void()


def join_vectors(b: Any, vectors: list[Any]) -> Any:
    """Return the elements of vectors one after another, as one."""
    while len(vectors) > 1:
        size = 2 * vectors[0].type.count
        mask = ir.Constant(Vector(I32, size), list(range(size)))
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [b.shuffle_vector(x, y, mask) for x, y in pairs]
    return vectors[0]


def find_dot(target: Target, left: str, bits: int) -> str:
    """Return LLVM's intrinsic that adds dot products of four bytes to sums, of vectors of `bits`.

    left: the type of the first factor, "u8" or "i8"; the second one is signed.
    """
    if target.dots == "vpdpbusd":
        return f"llvm.x86.avx512.vpdpbusd.{bits}"
    return f"llvm.aarch64.neon.{'usdot' if left == 'u8' else 'sdot'}.v4i32.v16i8"


class DotSums:
    """Writes sums of products, in the way of a target, and what is made of them.

    parts: lanes that make the sum of a column.  vectors: of a panel.  step: bytes of a panel's
    group in a vector.
    """

    def __init__(self, fn: Any, target: Target, X: str, Y: str) -> None:
        self.fn, self.target, self.X, self.Y = fn, target, X, Y
        self.lanes = target.lanes(4)
        self.vt = Vector(I32, self.lanes)
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
        return (b.sext if self.sign == "i8" else b.zext)(left, Vector(I16, self.step))

    def take_weights(self, place: Any) -> Any:
        """Return the weights of a vector at an address as `add_products` takes them."""
        right = load(self.b, place, Vector(I8, self.step), 1)
        if self.target.dots or self.is_narrow:
            return right
        return self.b.sext(right, Vector(I16, self.step))

    def add_products(self, total: Any, left: Any, right: Any) -> Any:
        """Return the sums of a vector with more products."""
        b, module = self.b, self.fn.module
        if self.target.dots:
            name = find_dot(self.target, self.sign, 32 * total.type.count)
            dot = intrinsic(module, name, total.type, [total.type, left.type, right.type])
            return b.call(dot, [total, left, right])
        if self.is_narrow:
            wide = Vector(I16, self.step)
            products = b.mul(b.sext(left, wide), b.sext(right, wide))
            add = intrinsic(module, "llvm.aarch64.neon.saddlp.v4i32.v8i16", self.vt, [wide])
            return b.add(total, b.call(add, [products]))
        if self.target.arch == "x86_64":
            madd = intrinsic(module, f"llvm.x86.{_MADD[self.lanes]}", self.vt, [left.type] * 2)
            return b.add(total, b.call(madd, [left, right]))
        wide = Vector(I32, self.step)
        products = b.mul(b.sext(left, wide), b.sext(right, wide))
        for s in (0, 1):
            total = b.add(total, self.pick(products, range(s, self.step, 2)))
        return total

    def join(self, vectors: list[Any]) -> Any:
        """Return the sums of a panel as one vector."""
        whole = join_vectors(self.b, vectors)
        if self.parts == 1:
            return whole
        even, odd = (self.pick(whole, range(s, 2 * PANEL, 2)) for s in (0, 1))
        return self.b.add(even, odd)

    def pick(self, vector: Any, lanes: Any) -> Any:
        """Return some lanes of a vector."""
        undef = ir.Constant(vector.type, ir.Undefined)
        order = list(lanes)
        mask = ir.Constant(Vector(I32, len(order)), order)
        return self.b.shuffle_vector(vector, undef, mask)

    def prepare(self, low: Any, high: Any, zero: Any, tail: Any) -> None:
        """Note the range of the results, and how many columns of a ragged panel are stored."""
        b = self.b
        self.spare = b.alloca(memory(self.Y), size=PANEL)
        self.low, self.high = (b.sitofp(b.sub(v, zero), F32) for v in (low, high))
        self.least, self.zero, self.tail = b.trunc(low, I8), b.trunc(zero, I32), tail

    def make(self, sums: Any, factor: Any) -> Any:
        """Return what is made of the sums of a panel; factor: the address of its first column."""
        b = self.b
        if self.Y == "i32":
            return sums
        real = b.fmul(b.sitofp(sums, REALS), load(b, factor, REALS, 4))
        return real if self.Y == "f32" else self.round([real])

    def store_panel(self, value: Any, into: Any, *, ragged: bool) -> None:
        """Store the results of a panel; of a ragged one the first `tail`."""
        b = self.b
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

    def round(self, reals: list[Any]) -> Any:
        """Return numbers as bytes, rounded, ties to even, and within their range; in order."""
        b = self.b
        if self.target.arch == "x86_64" and len(reals) == GROUP:
            units = reals[0].type.count // 4  # 16-byte units of a vector
            order = [4 * (k % units) + k // units for k in range(GROUP * units)]
            packed = b.bitcast(self.pack(reals), Vector(I32, GROUP * units))
            return b.bitcast(self.pick(packed, order), Vector(I8, 16 * units))
        return self._join_bytes(reals)

    def pack(self, reals: list[Any]) -> Any:
        """Return four vectors of numbers as the bytes of one, as `round` does.

        Of each vector in turn there are four, and then the next four: of results that are woven,
        that is their order.
        """
        b, module, each = self.b, self.fn.module, reals[0].type.count
        if self.target.arch != "x86_64":
            assert each == 4, "one unit of 16 bytes: all are in order"
            return self._join_bytes(reals)
        ints, words = Vector(I32, each), Vector(I16, 2 * each)
        octets = Vector(I8, 4 * each)
        to_words, to_bytes = _PACKS[each][0], _PACKS[each][1 + (self.Y == "i8")]
        high, parts = splat(b, self.high, each), list[Any]()
        for real in reals:
            # A number beyond 32 bits becomes the least one, so the upper bound comes before.
            parts.append(self._convert(b.select(b.fcmp_ordered(">", real, high), high, real), ints))
        pack = intrinsic(module, to_words, words, [ints, ints])
        add = intrinsic(module, f"llvm.sadd.sat.v{2 * each}i16", words, [words, words])
        zero = splat(b, b.trunc(self.zero, I16), 2 * each)
        halves = [b.call(add, [b.call(pack, parts[i : i + 2]), zero]) for i in (0, 2)]
        pack = intrinsic(module, to_bytes, octets, [words, words])
        kind = "s" if self.Y == "i8" else "u"
        most = intrinsic(module, f"llvm.{kind}max.v{4 * each}i8", octets, [octets, octets])
        return b.call(most, [b.call(pack, halves), splat(b, self.least, 4 * each)])

    def _convert(self, real: Any, kind: Any) -> Any:
        """Return numbers rounded to integers of 32 bits, by the instruction of x86."""
        b, name = self.b, _CONVERT[kind.count]
        if kind.count < 16:
            return b.call(intrinsic(self.fn.module, name, kind, [real.type]), [real])
        taken = [real.type, kind, I16, I32]
        convert = intrinsic(self.fn.module, name, kind, taken)
        return b.call(convert, [real, ir.Constant(kind, None), I16(-1), I32(4)])

    def _join_bytes(self, reals: list[Any]) -> Any:
        """Return numbers as bytes, by operations that every target has."""
        b = self.b
        out = []
        for real in reals:
            count = real.type.count
            kind = Vector(I32, count)
            low, high = (splat(b, bound, count) for bound in (self.low, self.high))
            real = b.select(b.fcmp_ordered("<", real, low), low, real)
            real = b.select(b.fcmp_ordered(">", real, high), high, real)
            rounder = ir.Constant(real.type, [ROUNDER] * count)
            whole = b.sub(b.bitcast(b.fadd(real, rounder), kind), b.bitcast(rounder, kind))
            out.append(b.add(whole, splat(b, self.zero, count)))
        whole = join_vectors(b, out)
        return b.trunc(whole, Vector(I8, whole.type.count))

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


class _DotTile(DotSums):
    """Writes the body of `integer_tile`.

    depth: steps along the sum that it multiplies at a time.  height: rows of a vector of sums.
    """

    depth, height = GROUP, 1

    def build(self, rows: int, panels: int) -> None:
        b = self.b
        a, bp, y, start, factor, k, lda, ldb, ldy, lds, low, high, zero, tail = self.fn.args
        for pointer in (a, bp, y, start, factor):
            pointer.add_attribute("noalias")
        self.prepare(low, high, zero, tail)
        left = [b.gep(a, [b.mul(lda, I64(i))]) for i in range(rows)]
        right = [b.gep(bp, [b.mul(ldb, I64(j))]) for j in range(panels)]
        groups, rest = b.udiv(k, I64(self.depth)), b.and_(k, I64(self.depth - 1))

        def whole(at: Any, sums: list[Any]) -> list[Any]:
            words = [self._read_word(row, b.mul(at, I64(self.depth))) for row in left]
            return self._multiply(self._turn_rows(words), right, at, sums)

        def part(_: Any, sums: list[Any]) -> list[Any]:
            words = [self._read_rest(row, b.mul(groups, I64(self.depth)), k) for row in left]
            return self._multiply(self._turn_rows(words), right, groups, sums)

        sums = self.loop(groups, [self.none] * (rows * panels * self.vectors), whole)
        # Fewer than a group are left: B has 0 where a row has ended.
        some = b.select(b.icmp_signed("==", rest, I64(0)), I64(0), I64(1))
        step = iter(self._part_rows(self.loop(some, sums, part), rows))
        for i in range(rows):
            row = [self.join(list(itertools.islice(step, self.vectors))) for _ in range(panels)]
            at = b.gep(start, [b.mul(lds, I64(i))])
            self._finish_row(row, at, factor, b.gep(y, [b.mul(ldy, I64(i))]))
        b.ret_void()

    def _part_rows(self, sums: list[Any], rows: int) -> list[Any]:
        """Return the sums of one row after another."""
        assert len(sums) % rows == 0
        return sums

    def _finish_row(self, row: list[Any], start: Any, factor: Any, y: Any) -> None:
        """Store what is made of the sums of a row's panels."""
        b = self.b
        firsts = [load(b, b.gep(start, [I64(PANEL * j)]), WIDE, 4) for j in range(len(row))]
        row = [b.add(sums, first) for sums, first in zip(row, firsts, strict=True)]
        ends = [b.gep(factor, [I64(PANEL * j)]) for j in range(len(row))]
        if len(row) < GROUP or self.lanes < PANEL or self.Y not in ("u8", "i8"):
            for j, (sums, end) in enumerate(zip(row, ends, strict=True)):
                into = b.gep(y, [I64(PANEL * j)])
                self.store_panel(self.make(sums, end), into, ragged=j + 1 == len(row))
            return
        reals = [
            b.fmul(b.sitofp(sums, REALS), load(b, end, REALS, 4))
            for sums, end in zip(row, ends, strict=True)
        ]
        value = self.round(reals)
        with b.if_else(b.icmp_signed(">=", self.tail, I64(PANEL))) as (whole, part):
            with whole:
                store(b, value, y, 1)
            with part:
                for j in range(len(row)):
                    panel = self.pick(value, range(PANEL * j, PANEL * (j + 1)))
                    self.store_panel(panel, b.gep(y, [I64(PANEL * j)]), ragged=j + 1 == len(row))

    def _read_word(self, row: Any, at: Any) -> Any:
        """Return a group of factors of A as a word."""
        word = self.b.load(self.b.bitcast(self.b.gep(row, [at]), I32.as_pointer()), typ=I32)
        word.align = 1
        return word

    def _read_rest(self, row: Any, at: Any, k: Any) -> Any:
        """Return the factors from `at` to the end as a word: the last one of all in their place."""
        b, word, most = self.b, I32(0), self.b.sub(k, I64(1))
        for p in range(GROUP):
            place = b.add(at, I64(p))
            place = b.select(b.icmp_signed("<", place, most), place, most)
            byte = b.zext(b.load(b.gep(row, [place]), typ=I8), I32)
            word = b.or_(word, b.shl(byte, I32(8 * p)))
        return word

    def _turn_rows(self, words: list[Any]) -> list[Any]:
        """Return the words of rows as the left factors of `add_products`."""
        b = self.b
        # Flipped before they are spread: the other order keeps LLVM 22 busy for ever.
        spread = [splat(b, self.flip(word), self.step // GROUP) for word in words]
        return [self.take(b.bitcast(word, Vector(I8, self.step))) for word in spread]

    def _multiply(self, left: list[Any], panels: list[Any], at: Any, sums: list[Any]) -> list[Any]:
        """Return the sums and the products of a group of each row with the panels."""
        b, out = self.b, list(sums)
        vectors = self.height * self.vectors  # of a group of a panel
        for n, (j, v) in enumerate(itertools.product(range(len(panels)), range(vectors))):
            place = b.add(b.mul(at, I64(PANEL * self.depth)), I64(v * self.step))
            right = self.take_weights(b.gep(panels[j], [place]))
            for i, factors in enumerate(left):
                mine = i * len(panels) * vectors + n
                out[mine] = self.add_products(out[mine], factors, right)
        return out


class _DotSquares(_DotTile):
    """Writes the body of `integer_squares`: a vector of sums is of two rows by two columns."""

    depth, height = SQUARE, 2

    def add_products(self, total: Any, left: Any, right: Any) -> Any:
        kind = "usmmla" if self.sign == "u8" else "smmla"
        name = f"llvm.aarch64.neon.{kind}.v4i32.v16i8"
        square = intrinsic(self.fn.module, name, self.vt, [self.vt, left.type, right.type])
        return self.b.call(square, [total, left, right])

    def _turn_rows(self, words: list[Any]) -> list[Any]:
        # As float64, which LLVM loads into vector registers straight away.
        b, pair = self.b, ir.Constant(Vector(F64, self.height), ir.Undefined)
        left = list[Any]()
        for both in zip(words[::2], words[1::2], strict=True):
            vector = pair
            for i, word in enumerate(both):
                vector = b.insert_element(vector, b.bitcast(word, F64), I32(i))
            left.append(b.bitcast(vector, Vector(I8, self.step)))
        return left

    def _part_rows(self, sums: list[Any], rows: int) -> list[Any]:
        out, per = list[Any](), len(sums) // (rows // self.height)
        for i in range(0, len(sums), per):
            beside = list(zip(sums[i : i + per : 2], sums[i + 1 : i + per : 2], strict=True))
            for lanes in ((0, 1, 4, 5), (2, 3, 6, 7)):
                mask = ir.Constant(self.vt, list(lanes))
                out += [self.b.shuffle_vector(x, y, mask) for x, y in beside]
        return out

    def _read_word(self, row: Any, at: Any) -> Any:
        return self._load_square(self.b.gep(row, [at]))

    def _read_rest(self, row: Any, at: Any, k: Any) -> Any:
        """Return the factors from `at` to the end as a word: of the last 8, these, and then 0."""
        b = self.b
        missing = b.sub(b.add(at, I64(SQUARE)), k)
        word = self._load_square(b.gep(row, [b.sub(k, I64(SQUARE))]))
        return b.lshr(word, b.mul(missing, I64(8)))

    def _load_square(self, place: Any) -> Any:
        word = self.b.load(self.b.bitcast(place, I64.as_pointer()), typ=I64)
        word.align = 1
        return word
