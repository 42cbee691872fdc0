"""Vector IR of products of bf16 by tile registers, which Intel calls AMX.

A core has eight of them, of 16 rows of 64 bytes: 16 x 16 sums of float32, 16 rows of A with 32
factors each, or 16 words of 16 columns of B, as they lie in panels (packing.py).  `tdpbf16ps` adds
the product of such an A and B to the sums.  A configuration says how many rows registers have.  It
takes hundreds of cycles to load, and has to be gone when other code runs: so a function loads it
once, for all rows that it is given.

Source: Intel, "Architectures Software Developer's Manual", volume 1, chapter 18.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from engine.base.element_types import ITEMSIZE
from engine.kernels.machine.target import Target
from engine.kernels.vector_ir.tile import RegisterTile
from engine.kernels.vector_ir.vectors import (
    I1,
    I16,
    I64,
    NUMBA,
    Vector,
    call_outlined,
    counted,
    first_lanes,
    intrinsic,
    load_part,
    splat,
    store,
    transposed,
)

I8 = ir.IntType(8)
BYTE = I8.as_pointer()
REGISTERS, ROWS, ROW_BYTES = 8, 16, 64
WORDS, FACTORS = ROW_BYTES // 4, ROW_BYTES // 2  # in a row of A
PALETTE, WIDTHS, HEIGHTS = 0, 16, 48  # bytes of a configuration: where its parts begin


def tile_column(target: Target, T: str, a_cols: int, nv: int, P: str) -> Any:
    """tile_column(a, b, c, bias, k, lda, ldb, ldc, rows, mode, tail): `tile` of so many rows.

    The other operands are as of `tile`; P is bf16, T is f32, and vectors have 64 bytes.
    Error: products are exact.  Sums of 16 even and of 16 odd ones are added, and then to C; numbers
    below 2^-126 count as 0.
    """

    def body(fn: Any) -> None:
        fn.attributes.add("optsize")  # one loop for all modes, where LLVM would write one for each
        _TileColumn(fn, target, T, a_cols, nv).build()

    name = f"tile_column_{P}{T}_{'t' if a_cols else 'n'}_{nv}"
    emit = call_outlined(name, body)

    def op(typingctx, a, b, c, bias, k, lda, ldb, ldc, rows, mode, tail):
        left = NUMBA[T if a_cols else P]
        pointers = [types.CPointer(t) for t in (left, *[NUMBA[T]] * 3)]
        return types.void(*pointers, *[types.int64] * 7), emit

    return op


class _TileColumn(RegisterTile):
    """Writes the body of a column of tiles: 16 rows at a time, by all of K.

    The sums of a vector of columns are in a register each, and go to C by way of the stack.  A's
    register is the next, and the rest take turns with parts of B.  Where rows are left over, the
    last 16 are computed again, and only those left over are stored.  Where K is, the last factors
    of A and B are filled up with zeros on the stack: after them may lie anything, and NaN times 0
    is NaN.  Of A in columns, words are put into rows there.
    """

    def __init__(self, fn: Any, target: Target, T: str, a_cols: int, nv: int) -> None:
        super().__init__(fn, target, T, a_cols, 1, nv)
        self.left, self.right = nv, range(nv + 1, REGISTERS)
        self.width = nv * WORDS  # words in a row of B, or sums in one of C

    def build(self) -> None:
        b = self.b
        a, bp, c, bias, k, lda, ldb, ldc, rows, mode, tail = self.fn.args
        for pointer in (a, bp, c, bias):
            pointer.add_attribute("noalias")
        configuration = self._reserve(ROW_BYTES, I8)
        spare = self._reserve(ROWS * WORDS, self.scalar)
        last = self._reserve(ROWS * self.width, self.scalar)
        sums = self._reserve(ROWS * self.width, self.scalar)
        mask = self.mask_tail(tail)
        height = self._least(rows, I64(ROWS))
        words = b.lshr(b.add(k, I64(1)), I64(1))

        def sixteen_rows(i: Any) -> None:
            first = self._least(i, b.sub(rows, height))
            for j in range(self.nv):
                self._call("tilezero", I8(j))

            def step(p: Any) -> None:
                factors = b.sub(k, b.shl(p, I64(1)))
                is_last = b.icmp_signed("<", factors, I64(FACTORS))
                if self.a_cols:
                    at = b.gep(a, [b.add(first, b.mul(p, lda))])
                    self._turn(spare, at, lda, height, b.sub(words, p))
                    row, to_next = spare, I64(ROW_BYTES)
                else:
                    at = b.gep(a, [b.add(b.mul(first, lda), b.shl(p, I64(1)))])
                    with b.if_then(is_last):
                        self._fill_up(spare, at, lda, height, factors)
                    row = b.select(is_last, b.bitcast(spare, at.type), at)
                    to_next = b.select(is_last, I64(ROW_BYTES), b.mul(lda, I64(ITEMSIZE["bf16"])))
                self._load(self.left, row, to_next)
                row = b.select(is_last, last, b.gep(bp, [b.mul(p, ldb)]))
                words_apart = b.select(is_last, I64(self.width), ldb)
                to_next = b.mul(words_apart, I64(self.size))
                for j in range(self.nv):
                    right = self.right[j % len(self.right)]
                    self._load(right, b.gep(row, [I64(j * WORDS)]), to_next)
                    self._call("tdpbf16ps", I8(j), I8(self.left), I8(right))

            counted(b, I64(0), b.add(words, I64(WORDS - 1)), WORDS, step)
            for j in range(self.nv):
                into = b.bitcast(b.gep(sums, [I64(j * WORDS)]), BYTE)
                self._call("tilestored64", I8(j), into, I64(self.width * self.size))

            def finish(r: Any) -> None:
                at = b.gep(sums, [b.mul(r, I64(self.width))])
                into = b.gep(c, [b.mul(b.add(first, r), ldc)])
                self.finish([self.load_right(at)], (into, ldc), bias, mode, mask)

            counted(b, b.sub(i, first), height, 1, finish)

        with b.if_then(b.icmp_signed(">", rows, I64(0))):
            self._configure(configuration, height)
            self._copy_last(last, bp, ldb, k, words)
            counted(b, I64(0), b.add(rows, I64(ROWS - 1)), ROWS, sixteen_rows)
            self._call("tilerelease")
        b.ret_void()

    def _reserve(self, size: int, element: Any) -> Any:
        """Return room on the stack, with the alignment of a line."""
        room = self.b.alloca(element, size=size)
        room.align = ROW_BYTES
        return room

    def _least(self, x: Any, y: Any) -> Any:
        return self.b.select(self.b.icmp_signed("<", x, y), x, y)

    def _call(self, name: str, *args: Any) -> None:
        """Call an intrinsic; constants of 8 bits are the numbers of registers."""
        params = [arg.type for arg in args]
        void = ir.VoidType()
        self.b.call(intrinsic(self.fn.module, f"llvm.x86.{name}", void, params), args)

    def _load(self, register: int, row: Any, to_next: Any) -> None:
        """Load a register; to_next: bytes from row to row."""
        self._call("tileloadd64", I8(register), self.b.bitcast(row, BYTE), to_next)

    def _configure(self, room: Any, height: Any) -> None:
        """Load the configuration: A and the sums have `height` rows, 1 to 16, and B has 16."""
        b = self.b
        eight = Vector(I8, REGISTERS)
        is_of_rows = ir.Constant(Vector(I1, REGISTERS), [i <= self.nv for i in range(8)])
        full = ir.Constant(eight, [ROWS] * REGISTERS)
        heights = b.select(is_of_rows, splat(b, b.trunc(height, I8), REGISTERS), full)
        widths = ir.Constant(Vector(I16, REGISTERS), [ROW_BYTES] * REGISTERS)
        store(b, ir.Constant(Vector(I8, ROW_BYTES), None), room, ROW_BYTES)
        for at, value in ((PALETTE, I8(1)), (WIDTHS, widths), (HEIGHTS, heights)):
            store(b, value, b.gep(room, [I64(at)]), 1)
        self._call("ldtilecfg", room)

    def _copy_last(self, into: Any, bp: Any, ldb: Any, k: Any, words: Any) -> None:
        """Copy the words of B that do not fill a register, and zeros after them."""
        b = self.b
        whole = b.shl(b.lshr(k, I64(5)), I64(4))
        zero = ir.Constant(self.vt, [0.0] * self.lanes)

        def write(r: Any, vectors: list[Any]) -> None:
            for j, v in enumerate(vectors):
                at = b.add(b.mul(r, I64(self.width)), I64(j * self.lanes))
                store(b, v, b.gep(into, [at]), ROW_BYTES)

        def copy(r: Any) -> None:
            write(r, self.load_right(b.gep(bp, [b.mul(b.add(whole, r), ldb)])))

        with b.if_then(b.icmp_signed("!=", b.and_(k, I64(FACTORS - 1)), I64(0))):
            done = counted(b, I64(0), b.sub(words, whole), 1, copy)
            counted(b, done, I64(ROWS), 1, lambda r: write(r, [zero] * self.nv))

    def _fill_up(self, into: Any, at: Any, lda: Any, height: Any, factors: Any) -> None:
        """Copy so many factors of each row of A, and zeros after them."""
        b, kind = self.b, Vector(I16, FACTORS)
        iota = ir.Constant(kind, list(range(FACTORS)))
        mask = b.icmp_signed("<", iota, splat(b, b.trunc(factors, I16), FACTORS))

        def row(r: Any) -> None:
            part = load_part(b, b.gep(at, [b.mul(r, lda)]), kind, ITEMSIZE["bf16"], mask)
            store(b, part, b.gep(into, [b.mul(r, I64(WORDS))]), ROW_BYTES)

        counted(b, I64(0), height, 1, row)

    def _turn(self, into: Any, at: Any, lda: Any, height: Any, words: Any) -> None:
        """Put the words of 16 columns of A into its rows, zeros where there are fewer."""
        b = self.b
        present = first_lanes(b, height, self.lanes)
        absent = ir.Constant(present.type, None)
        columns = []
        for p in range(WORDS):
            mask = b.select(b.icmp_signed("<", I64(p), words), present, absent)
            column = b.gep(at, [b.mul(lda, I64(p))])
            columns.append(load_part(b, column, self.vt, self.size, mask))
        for r, row in enumerate(transposed(b, columns)):
            store(b, row, b.gep(into, [I64(r * WORDS)]), ROW_BYTES)
