"""Vector IR of rows rounded to 8 bits by blocks, and of their products with packed integers.

A chunk is what a vector of packed bytes holds: its integers are multiplied at once.  A record has
the chunk of a rounded row as targets multiply it, a vector each:

    integers   of 4 bits: those with even numbers, then those with odd ones, as bytes hold them in
               their low and in their high bits; of 8 bits: all in order
    sums       of the integers that a lane of 32 bits sums, times -1
    scales     of the block that a lane belongs to

Products have no sign on one side at least, so they are summed as far as a target can without any
saturation: 4 by vpdpbusd and sdot, 2 by pmaddubsw, whose sums of 16 bits hold 255 127 only if the
255 are fewer (4 bits) or both have signs that the other side takes (8 bits), 1 elsewhere.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from engine.kernels.machine.target import Target
from engine.kernels.vector_ir.dots import add_lanes
from engine.kernels.vector_ir.integer_dots import find_dot
from engine.kernels.vector_ir.vectors import (
    I16,
    I32,
    I64,
    LINE,
    LLVM,
    Vector,
    call_outlined,
    counted,
    intrinsic,
    load,
    splat,
    store,
)

I8, F32 = ir.IntType(8), LLVM["f32"]
STEP = 16  # floats that are rounded at a time
REALS = Vector(F32, STEP)
ROUNDER = 12582912.0  # 1.5 2^23: a float32 that is added to it is rounded to an integer
LARGEST = 127.0  # of a rounded row, which is symmetric
LEAST = 2.0**-100  # largest number of a block that has a finite reciprocal, by far


class _ChunkedRows:
    """The sizes of chunks and records for a target.

    parts: integers of a byte.  chunk, record: integers and bytes.  per_chunk: blocks of a chunk;
    per_block: chunks of a block.  spread: lanes of a block in a chunk.
    """

    def __init__(self, fn: Any, target: Target, bits: int, block: int) -> None:
        self.fn, self.target, self.bits, self.block = fn, target, bits, block
        self.width, self.lanes = target.vector, target.lanes(4)
        self.parts = 8 // bits
        self.chunk = self.width * self.parts
        self.record = self.chunk + 2 * self.width
        self.per_chunk, self.per_block = max(1, self.chunk // block), max(1, block // self.chunk)
        self.spread = self.lanes // self.per_chunk
        self.bytes = Vector(I8, self.width)
        self.words = Vector(I32, self.lanes)
        self.reals = Vector(F32, self.lanes)
        self.b = ir.IRBuilder(fn.append_basic_block("entry"))

    def fill(self, kind: Any, value: float) -> Any:
        """Return a vector of one number."""
        return ir.Constant(kind, [value] * kind.count)

    def spread_blocks(self, values: Any) -> Any:
        """Return the address of a number for each block of a chunk as one for each lane."""
        b = self.b
        if self.per_chunk == 1:
            return splat(b, b.load(values, typ=F32), self.lanes)
        each = load(b, values, Vector(F32, self.per_chunk), 4)
        order = [lane // self.spread for lane in range(self.lanes)]
        mask = ir.Constant(Vector(I32, self.lanes), order)
        return b.shuffle_vector(each, ir.Constant(each.type, ir.Undefined), mask)


# --- rounding


def round_blocks(target: Target, bits: int, block: int) -> Any:
    """round_blocks(a, n, x): the records of n floats, and of zeros after them.

    n is at most the larger one of a chunk and a block, whose records are written.  The scale of a
    block is its largest number over 127, NaN if any is not finite; integers are the nearest ones,
    ties to even.
    """
    name = f"round_blocks_{bits}_{block}_{target.vector}"
    emit = call_outlined(name, lambda fn: _BlockRounding(fn, target, bits, block).build())

    def op(typingctx, a, n, x):
        floats, bytes_ = (types.CPointer(kind) for kind in (types.float32, types.int8))
        return types.void(floats, types.int64, bytes_), emit

    return op


class _BlockRounding(_ChunkedRows):
    """Writes the body of `round_blocks`."""

    def build(self) -> None:
        b = self.b
        a, n, x = self.fn.args
        for pointer in (a, x):
            pointer.add_attribute("noalias")
        cell = max(self.block, self.chunk)
        floats, integers, scales = (
            b.alloca(kind, size=count)
            for kind, count in ((F32, cell), (I8, cell), (F32, cell // self.block))
        )

        def move(i: Any) -> None:
            store(b, load(b, b.gep(a, [i]), REALS, 4), b.gep(floats, [i]), 4)

        done = counted(b, I64(0), n, STEP, move)
        done = counted(b, done, n, 1, lambda i: b.store(b.load(b.gep(a, [i])), b.gep(floats, [i])))
        counted(b, done, I64(cell), 1, lambda i: b.store(F32(0.0), b.gep(floats, [i])))

        def round_block(j: Any) -> None:
            first = b.mul(j, I64(self.block))
            into = b.gep(integers, [first])
            b.store(self._round(b.gep(floats, [first]), into), b.gep(scales, [j]))

        counted(b, I64(0), I64(cell // self.block), 1, round_block, rolled=True)
        for i in range(cell // self.chunk):
            of, at = b.gep(integers, [I64(i * self.chunk)]), b.gep(x, [I64(i * self.record)])
            self._write_record(of, b.gep(scales, [I64(i * self.per_chunk // self.per_block)]), at)
        b.ret_void()

    def _round(self, floats: Any, integers: Any) -> Any:
        """Round a block; return its scale."""
        b = self.b
        absolute = intrinsic(self.fn.module, "llvm.fabs.v16f32", REALS, [REALS])
        most, none = self.fill(REALS, 0.0), self.fill(REALS, 0.0)
        for i in range(0, self.block, STEP):
            value = load(b, b.gep(floats, [I64(i)]), REALS, 4)
            size = b.call(absolute, [value])
            most = b.select(b.fcmp_ordered(">", size, most), size, most)
            # Comparisons pass over NaN: 0 times what is not finite is NaN, and stays so.
            none = b.fadd(none, b.fmul(value, self.fill(REALS, 0.0)))
        largest = self._fold(most, lambda x, y: b.select(b.fcmp_ordered(">", x, y), x, y))
        none = self._fold(none, b.fadd)
        is_small = b.fcmp_ordered("<", largest, F32(LEAST))
        factor = b.select(is_small, F32(0.0), b.fdiv(F32(LARGEST), largest))
        rounder, highest = (self.fill(REALS, value) for value in (ROUNDER, LARGEST))
        factors = splat(b, factor, STEP)
        kind = Vector(I32, STEP)
        for i in range(0, self.block, STEP):
            value = b.fmul(load(b, b.gep(floats, [I64(i)]), REALS, 4), factors)
            # Nothing is beyond it, but with `rounder` a product alone would be one operation, which
            # rounds once, where onnxruntime rounds twice.
            value = b.select(b.fcmp_ordered(">", value, highest), highest, value)
            whole = b.sub(b.bitcast(b.fadd(value, rounder), kind), b.bitcast(rounder, kind))
            store(b, b.trunc(whole, Vector(I8, STEP)), b.gep(integers, [I64(i)]), 1)
        return b.fadd(b.fdiv(largest, F32(LARGEST)), none)

    def _fold(self, vector: Any, join: Any) -> Any:
        """Return what `join` makes of all elements, halves of the vector by halves."""
        b, count = self.b, vector.type.count
        while count > 1:
            count //= 2
            halves = [
                ir.Constant(Vector(I32, count), list(range(first, first + count)))
                for first in (0, count)
            ]
            vector = join(*(b.shuffle_vector(vector, vector, half) for half in halves))
        return b.extract_element(vector, I32(0))

    def _write_record(self, integers: Any, scales: Any, x: Any) -> None:
        b = self.b
        if self.parts == 1:
            parts = [load(b, integers, self.bytes, 1)]
        else:
            pairs = load(b, integers, Vector(I16, self.width), 1)
            odd = b.lshr(pairs, self.fill(pairs.type, 8))
            parts = [b.trunc(half, self.bytes) for half in (pairs, odd)]
        sums = self.fill(self.words, 0)
        for i, part in enumerate(parts):
            store(b, part, b.gep(x, [I64(i * self.width)]), 1)
            word = b.bitcast(part, self.words)
            for shift in (24, 16, 8, 0):
                byte = b.shl(word, self.fill(self.words, shift))
                sums = b.sub(sums, b.ashr(byte, self.fill(self.words, 24)))
        store(b, sums, b.gep(x, [I64(self.chunk)]), 4)
        spread = self.spread_blocks(scales)
        store(b, spread, b.gep(x, [I64(self.chunk + self.width)]), 4)


# --- products


def block_tile(target: Target, bits: int, block: int, zeros: int, rows: int, columns: int) -> Any:
    """block_tile(q, s, z, x, y, chunks, q_row, s_row, z_row, x_row, ldy)

    y[i ldy + j] = the product of row i of X and row j of W, for `rows` and `columns` of them.

    Row j of W: integers from q + j q_row on, packed as for `unpack`, the first of `chunks` chunks;
    scales of its blocks from s + j s_row on; packed zero points from z + j z_row on where `zeros`,
    otherwise they are the middle one of the integers.  Row i of X: records from x + i x_row on.
    All integers of a block are summed in 32 bits, the sums of blocks in float32.
    """
    name = f"block_tile_{bits}_{block}_{zeros}_{rows}x{columns}_{target.vector}{target.dots}"
    emit = call_outlined(
        name, lambda fn: _BlockProducts(fn, target, bits, block, zeros).build(rows, columns)
    )

    def op(typingctx, q, s, z, x, y, chunks, q_row, s_row, z_row, x_row, ldy):
        return types.void(*_POINTERS, *[types.int64] * 6), emit

    return op


def block_rest(target: Target, bits: int, block: int, zeros: int) -> Any:
    """block_rest(q, s, z, x, y, blocks): y[0] += the product of some blocks less than a chunk.

    The arguments are as in `block_tile`.
    """
    name = f"block_rest_{bits}_{block}_{zeros}_{target.vector}{target.dots}"
    emit = call_outlined(
        name, lambda fn: _BlockProducts(fn, target, bits, block, zeros).build_rest()
    )

    def op(typingctx, q, s, z, x, y, blocks):
        return types.void(*_POINTERS, types.int64), emit

    return op


_POINTERS = [
    types.CPointer(kind)
    for kind in (types.uint8, types.float32, types.uint8, types.int8, types.float32)
]


class _BlockProducts(_ChunkedRows):
    """Writes the bodies of `block_tile` and `block_rest`.

    base: what weights are larger by than the numbers that are multiplied.
    """

    def __init__(self, fn: Any, target: Target, bits: int, block: int, zeros: int) -> None:
        super().__init__(fn, target, bits, block)
        self.zeros = zeros
        self.is_wide = target.arch == "x86_64" and target.vector >= 32
        has_sign = target.dots == "sdot" or (not target.dots and (self.is_wide or target.by_lane))
        self.base = 128 if bits == 8 and has_sign else 0
        for pointer in fn.args[:5]:
            pointer.add_attribute("noalias")
        kind = f"v{self.lanes}f32"
        self.fma = intrinsic(fn.module, f"llvm.fmuladd.{kind}", self.reals, [self.reals] * 3)

    def build(self, rows: int, columns: int) -> None:
        b = self.b
        q, s, z, x, y, chunks, q_row, s_row, z_row, x_row, ldy = self.fn.args
        weights = [
            [b.gep(p, [b.mul(step, I64(j))]) for p, step in ((q, q_row), (s, s_row), (z, z_row))]
            for j in range(columns)
        ]
        left = [b.gep(x, [b.mul(x_row, I64(i))]) for i in range(rows)]
        totals = [self.fill(self.reals, 0.0)] * (rows * columns)

        def advance(at: Any, sums: list[Any]) -> list[Any]:
            records = [b.gep(row, [b.mul(at, I64(self.record))]) for row in left]
            places = [self._find_chunk(row, at) for row in weights]
            if rows == 1:
                self._ask_early([q for q, *_ in places], b.mul(q_row, I64(columns)))
            return self._add_chunk(records, places, sums)

        totals = self._loop(chunks, totals, advance)
        for i in range(rows):
            value = add_lanes(b, totals[i * columns : (i + 1) * columns], self.lanes)
            into = b.gep(y, [b.mul(ldy, I64(i))])
            for j in range(columns):
                b.store(b.extract_element(value, I32(j)), b.gep(into, [I64(j)]))
        b.ret_void()

    def _ask_early(self, places: list[Any], ahead: Any) -> None:
        """Ask memory for what the tile of the next columns reads.

        Of a single row each weight is read once, as fast as memory gives it, and a row of weights
        ends before caches have noticed that it is read in order.
        """
        b = self.b
        kinds = [I32.as_pointer(), I32, I32, I32]
        fetch = intrinsic(self.fn.module, "llvm.prefetch.p0", ir.VoidType(), kinds)
        for place in places:
            for line in range(0, self.width, LINE):
                at = b.gep(place, [b.add(ahead, I64(line))])
                # To be read, kept in the nearest cache, as data.
                b.call(fetch, [b.bitcast(at, kinds[0]), I32(0), I32(3), I32(1)])

    def build_rest(self) -> None:
        b = self.b
        q, s, z, x, y, blocks = self.fn.args
        # A whole chunk is read, so that it is copied to where there is room for one.
        whole = self.per_chunk * self.bits
        sizes = {
            "q": (I8, self.width, b.mul(blocks, I64(self.block * self.bits // 8))),
            "s": (F32, self.per_chunk, blocks),
            "z": (I8, -(-whole // 8), b.udiv(b.add(b.mul(blocks, I64(self.bits)), I64(7)), I64(8))),
        }
        copies = []
        for of, (kind, room, count) in zip((q, s, z), sizes.values(), strict=True):
            into = b.alloca(kind, size=room)
            copies.append(into)
            if of is z and not self.zeros:
                continue

            def move(i: Any, of: Any = of, into: Any = into, kind: Any = kind) -> None:
                b.store(b.load(b.gep(of, [i]), typ=kind), b.gep(into, [i]))

            def clear(i: Any, into: Any = into, kind: Any = kind) -> None:
                b.store(ir.Constant(kind, None), b.gep(into, [i]))

            counted(b, counted(b, I64(0), count, 1, move), I64(room), 1, clear)
        (total,) = self._add_chunk([x], [(*copies, I64(0))], [self.fill(self.reals, 0.0)])
        value = b.extract_element(add_lanes(b, [total], self.lanes), I32(0))
        b.store(b.fadd(b.load(y, typ=F32), value), y)
        b.ret_void()

    def _find_chunk(self, row: list[Any], at: Any) -> tuple[Any, ...]:
        """Return the addresses of a chunk in a row of W, and its first bit in the zero point's."""
        b = self.b
        q, s, z = row
        first = b.udiv(b.mul(at, I64(self.per_chunk)), I64(self.per_block))
        bit = b.mul(first, I64(self.bits))
        byte = b.gep(z, [b.udiv(bit, I64(8))])
        return b.gep(q, [b.mul(at, I64(self.width))]), b.gep(s, [first]), byte, b.and_(bit, I64(7))

    def _add_chunk(
        self, records: list[Any], places: list[tuple[Any, ...]], totals: list[Any]
    ) -> list[Any]:
        """Return the sums of rows and columns with the products of a chunk of each."""
        b, out = self.b, list(totals)
        middle = self.fill(self.words, (1 << self.bits - 1) - self.base)
        left = [self._read_record(record) for record in records]
        starts = [] if self.zeros else [b.mul(sums, middle) for _, sums, _ in left]
        for j, (q, s, z, bit) in enumerate(places):
            weights, scales = self._read_weights(q), self.spread_blocks(s)
            zero = self._read_zeros(z, bit) if self.zeros else None
            for i, (integers, sums, own) in enumerate(left):
                start = starts[i] if zero is None else b.mul(sums, zero)
                value = b.sitofp(self._multiply(start, weights, integers), self.reals)
                at = i * len(places) + j
                out[at] = b.call(self.fma, [value, b.fmul(scales, own), out[at]])
        return out

    def _read_record(self, x: Any) -> tuple[list[Any], Any, Any]:
        b = self.b
        parts = [load(b, b.gep(x, [I64(i * self.width)]), self.bytes, 1) for i in range(self.parts)]
        sums = load(b, b.gep(x, [I64(self.chunk)]), self.words, 4)
        return parts, sums, load(b, b.gep(x, [I64(self.chunk + self.width)]), self.reals, 4)

    def _read_weights(self, q: Any) -> list[Any]:
        b = self.b
        packed = load(b, q, self.bytes, 1)
        if self.parts == 1:
            return [b.xor(packed, self.fill(self.bytes, 0x80)) if self.base else packed]
        low = b.and_(packed, self.fill(self.bytes, 15))
        return [low, b.lshr(packed, self.fill(self.bytes, 4))]

    def _read_zeros(self, z: Any, bit: Any) -> Any:
        """Return the zero points of a chunk, less `base`: one for each lane."""
        b = self.b
        kind = ir.IntType(max(8, self.per_chunk * self.bits))
        word = b.load(b.bitcast(z, kind.as_pointer()), typ=kind)
        word.align = 1
        word = b.zext(word, I32) if kind.width < 32 else word
        if self.per_chunk == 1:
            word = b.lshr(word, b.trunc(bit, I32))
        shifts = [lane // self.spread * self.bits for lane in range(self.lanes)]
        each = b.lshr(splat(b, word, self.lanes), ir.Constant(self.words, shifts))
        each = b.and_(each, self.fill(self.words, 2**self.bits - 1))
        return b.sub(each, self.fill(self.words, self.base))

    def _multiply(self, sums: Any, weights: list[Any], integers: list[Any]) -> Any:
        """Return sums with the products of four bytes a lane."""
        b, module = self.b, self.fn.module
        pairs = list(zip(weights, integers, strict=True))
        if self.target.dots:
            sign = "i8" if self.target.dots == "sdot" else "u8"  # of weights
            name = find_dot(self.target, sign, 8 * self.width)
            dot = intrinsic(module, name, self.words, [self.words, self.bytes, self.bytes])
            for right, left in pairs:
                sums = b.call(dot, [sums, right, left])
            return sums
        if self.is_wide:
            return b.add(sums, self._add_pairs(pairs))
        if self.target.by_lane:
            return b.add(sums, self._add_long(pairs))
        for right, left in pairs:
            sums = b.add(sums, self._add_halves(right, left))
        return sums

    def _add_pairs(self, pairs: list[tuple[Any, Any]]) -> Any:
        """Return sums of four by pmaddubsw: 2 15 127, or 2 128 127, are less than 2^15."""
        b, module = self.b, self.fn.module
        halves = Vector(I16, self.width // 2)
        form = "avx512.pmaddubs.w.512" if self.width == 64 else "avx2.pmadd.ub.sw"
        madd = intrinsic(module, f"llvm.x86.{form}", halves, [self.bytes] * 2)
        every = None
        for right, left in pairs:
            if self.bits == 8:
                # The sign of the weight moves to the other factor, which is never -128.
                sign = b.ashr(right, self.fill(self.bytes, 7))
                right, left = (b.sub(b.xor(v, sign), sign) for v in (right, left))
            two = b.call(madd, [right, left])
            every = two if every is None else b.add(every, two)
        form = "avx512.pmaddw.d.512" if self.width == 64 else "avx2.pmadd.wd"
        add = intrinsic(module, f"llvm.x86.{form}", self.words, [halves] * 2)
        return b.call(add, [every, self.fill(halves, 1)])

    def _add_long(self, pairs: list[tuple[Any, Any]]) -> Any:
        """Return sums of four on Arm without sdot: products of 16 bits, then sums of neighbours."""
        b, module = self.b, self.fn.module
        wide, half = Vector(I16, self.width), Vector(I16, self.width // 2)
        every = None
        for right, left in pairs:
            products = b.mul(b.sext(right, wide), b.sext(left, wide))
            every = products if every is None else b.add(every, products)
        add = intrinsic(module, "llvm.aarch64.neon.saddlp.v4i32.v8i16", self.words, [half])
        low, high = (
            b.call(add, [self._pick(every, every, range(first, first + half.count))])
            for first in (0, half.count)
        )
        even, odd = (self._pick(low, high, range(first, 2 * self.lanes, 2)) for first in (0, 1))
        return b.add(even, odd)

    def _add_halves(self, right: Any, left: Any) -> Any:
        """Return sums of four by 16 bits: products of even bytes, then of odd ones."""
        b = self.b
        halves = Vector(I16, self.width // 2)
        right, left = (b.bitcast(v, halves) for v in (right, left))
        eight = self.fill(halves, 8)
        even = b.and_(right, self.fill(halves, 255)), b.ashr(b.shl(left, eight), eight)
        odd = b.lshr(right, eight), b.ashr(left, eight)
        if self.target.arch == "x86_64":
            name = "llvm.x86.sse2.pmadd.wd"
            madd = intrinsic(self.fn.module, name, self.words, [halves] * 2)
            return b.add(b.call(madd, even), b.call(madd, odd))
        sixteen, total = self.fill(self.words, 16), None
        for x, y in (even, odd):
            products = b.bitcast(b.mul(x, y), self.words)
            two = b.add(b.ashr(b.shl(products, sixteen), sixteen), b.ashr(products, sixteen))
            total = two if total is None else b.add(total, two)
        return total

    def _pick(self, x: Any, y: Any, order: Any) -> Any:
        """Return some elements of two vectors."""
        places = list(order)
        return self.b.shuffle_vector(x, y, ir.Constant(Vector(I32, len(places)), places))

    def _loop(self, end: Any, starts: list[Any], advance: Any) -> list[Any]:
        """Return vectors after `vectors = advance(i, vectors)` for i in range(end)."""
        b, fn, entry = self.b, self.fn, self.b.block
        head, inside, done = (fn.append_basic_block(n) for n in ("head", "body", "done"))
        b.branch(head)
        b.position_at_end(head)
        at, live = b.phi(I64), [b.phi(v.type) for v in starts]
        b.cbranch(b.icmp_signed("<", at, end), inside, done)
        b.position_at_end(inside)
        out = advance(at, live)
        after, latch = b.add(at, I64(1)), b.block
        b.branch(head)
        for phi, old, new in zip([at, *live], [I64(0), *starts], [after, *out], strict=True):
            phi.add_incoming(old, entry)
            phi.add_incoming(new, latch)
        b.position_at_end(done)
        return live
