"""Products with a matrix of integers of 2, 4 or 8 bits, and rows of one, read as they are stored.

    W[r, c] = (Q[r, c] - zero) scale          zero and scale: of the block of (r, c)

A block of W is turned into floats on its way into the panels of the register tile, so W is never
whole in memory, forward or backward.  After the panels all is `contract.py`.

Error     none in W against (q - zero) scale in floats; the sum as in gemm.py
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.bad_data import report
from engine.kernels.loops.contract import block
from engine.kernels.loops.gemm import balance, split_threads
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    BIAS,
    Body,
    Inline,
    Intrinsic,
    imin,
    inline,
    kernel,
    off,
    share,
    share_blocks,
    udiv,
)
from engine.kernels.vocabulary.op import Lowering, Operand
from engine.kernels.vocabulary.row_program import loop
from engine.kernels.vocabulary.signature import round_to_unit
from engine.plan.context import INDEX, STATUS
from engine.plan.words import Field, Words

AXES = ("row", "column")
STEP = 16  # integers that `block_dot` takes at a time, as the intrinsic `unpack` does
DEPTH = 128  # columns of Q that are turned into floats at a time where they become rows of B
FLOATS = -1  # `zero_bits` of zero points that are floats

MATRIX: dict[str, str | Field] = {
    "bits": "bits of an integer: 2, 4 or 8; the first of a byte are its lowest",
    "row": "integers from row to row of Q",
    "flip": Field("what is flipped in an integer, so that it is unsigned", range="any"),
    "offset": Field("what that adds to it, and the zero point where there is none", range="any"),
    "block": Field("rows and columns of a block", names=AXES),
    "scale": Field("scales from block to block, 0 where all are one", names=AXES),
    "zero_bits": Field(
        "bits of a zero point, 0 without zero points, -1 if they are floats", range="signed"
    ),
    "zero": Field("zero points from block to block", names=AXES),
    "zero_flip": Field("as flip, of zero points", range="any"),
    "zero_offset": Field("what that adds to them", range="any"),
}


def read_zero(T: str) -> Inline:
    """Return an inline function: the zero point of a block, by its place among zero points."""
    real = Intrinsic("cast", (T, "i64"))

    @inline
    def zero_point(z, f, g, at):
        zero = real(g.offset)
        if g.zero_bits > 0:
            bit = at * g.zero_bits
            packed = z[udiv(bit, 8)]
            value = (packed >> (bit & 7)) & ((1 << g.zero_bits) - 1)
            zero += real((value ^ g.zero_flip) - g.zero_offset)
        elif g.zero_bits != 0:
            zero += f[at]
        return zero

    return zero_point


def read_zeros(T: str) -> Inline:
    """Return an inline function: zero points of a row of blocks, one after another.

    zeros(z, f, g, first, n, into): n of them, from the one at place `first` on.
    """
    zero_point, real = read_zero(T), Intrinsic("cast", (T, "i64"))
    four, eight = (Intrinsic("unpack", (T, bits)) for bits in (4, 8))

    @inline
    def run(z, f, g, first, n, into):
        least, step = real(g.zero_offset - g.offset), g.zero_column
        if g.zero_bits == 4 and step == 1:
            four(z, first, into, n, g.zero_flip, least, real(1))
        elif g.zero_bits == 8 and step == 1:
            eight(z, first, into, n, g.zero_flip, least, real(1))
        else:
            for j in range(n):
                into[j] = zero_point(z, f, g, first + j * step)

    return run


def lines(target: Target, T: str) -> Inline:
    """Return an inline function: n elements of a row of W from column c on.

    lines(q, s, z, f, spare, g, r, c, n, into)

    q, s, z, f: the integers, the scales, the zero points that are integers, those that are floats.
    spare: n elements.  Overwrites into and spare.
    """
    two, four, eight = (Intrinsic("unpack", (T, bits)) for bits in (2, 4, 8))
    real = Intrinsic("cast", (T, "i64"))
    zero_point, times = read_zero(T), loop(T, "x[] s[] -> x[] = x * s")
    shifted = loop(T, "x[] z[] s[] -> x[] = (x - z) * s")

    @inline
    def integers(bits, q, at, into, n, flip, zero, scale):
        if bits == 4:
            four(q, at, into, n, flip, zero, scale)
        elif bits == 8:
            eight(q, at, into, n, flip, zero, scale)
        else:
            two(q, at, into, n, flip, zero, scale)

    @inline
    def run(q, s, z, f, spare, g, r, c, n, into):
        down = udiv(r, g.block_row)
        if g.block_column == 1:
            integers(g.bits, q, r * g.row + c, into, n, g.flip, real(g.offset), real(1))
            scales, zeros = off(s, down * g.scale_row + c), down * g.zero_row + c
            if g.zero_bits == 0:
                times(into, scales, into, n)
            elif g.zero_bits > 0:
                least = real(g.zero_offset)
                integers(g.zero_bits, z, zeros, spare, n, g.zero_flip, least, real(1))
                shifted(into, spare, scales, into, n)
            else:
                shifted(into, off(f, zeros), scales, into, n)
        else:
            i = 0
            while i < n:
                beside = udiv(c + i, g.block_column)
                end = imin(n, (beside + 1) * g.block_column - c)
                zero = zero_point(z, f, g, down * g.zero_row + beside * g.zero_column)
                scale = s[down * g.scale_row + beside * g.scale_column]
                place = r * g.row + c + i
                integers(g.bits, q, place, off(into, i), end - i, g.flip, zero, scale)
                i = end

    return run


# --- products

QUANTISED_GEMM_WORDS = Words(
    "quantised_gemm",
    m="rows of C",
    n="columns of C",
    k="length of the sums",
    mode="BIAS or 0",
    grid=Field("into how many parts threads cut the work", names=("rows", "columns")),
    kc="depth of a block",
    nc="columns of a block",
    **MATRIX,
)


def _matrix_reach(c: KernelCall, rows: int, columns: int) -> dict[str, int]:
    """Return the reach into a matrix of small integers with scales and zero points of blocks."""
    c.positive("block")
    if c.bits not in (2, 4, 8) or c.zero_bits not in (-1, 0, 1, 2, 4, 8):
        c.refuse(f"integers of {c.bits} bits, zero points of {c.zero_bits}")
    if not rows * columns:
        return {}
    down, beside = (rows - 1) // c.block[0], (columns - 1) // c.block[1]
    by_column = c.block[1] == 1
    last_scale = down * c.scale[0] + (columns - 1 if by_column else beside * c.scale[1])
    last_zero = down * c.zero[0] + (columns - 1 if by_column else beside * c.zero[1])
    zero_bits = c.bits if by_column else c.zero_bits
    return {
        "q": (((rows - 1) * c.row + columns) * c.bits + 7) // 8,
        "s": last_scale + 1,
        "z": ((last_zero + 1) * zero_bits + 7) // 8 if c.zero_bits > 0 else 0,
        "f": last_zero + 1 if c.zero_bits < 0 else 0,
    }


def _gemm_reach(c: KernelCall) -> Reach:
    trans = c.flag(1)
    spare = max(DEPTH, c.tile_columns) + (c.lanes * DEPTH if trans else 0)
    panels = min(c.kc, c.k) * round_to_unit(min(c.nc, c.n), c.tile_columns)
    used = max(panels, c.kc * c.nc + spare) if c.m * c.n * c.k else 0
    return {
        "work": c.scratch(c.per_thread, used, math.prod(c.grid)),
        **_matrix_reach(c, c.n if trans else c.k, c.k if trans else c.n),
    }


@kernel(
    """
    a: T[m, k]   q: u8|i8[...]   s: T[...]   z: u8|i8[...]   f: T[...]   c: out T[m, n]
    bias: T[n] if mode & BIAS   work: scratch T[...]   per_thread: i64
    g: i64[] where min(kc, nc, min(grid)) >= 1 and mode <= ACCUMULATE | BIAS | RELU
    """,
    words={"g": QUANTISED_GEMM_WORDS},
    reach=_gemm_reach,
    multiply_adds="m * n * k",
)
def quantised_gemm(target: Target, T: str, trans_b: int) -> Body:
    """C = A op(W) (+ bias).

    A: [m, k], op(W): [k, n], C: [m, n] row-major; bias: [n].  C overlaps no input.  Overwrites C.
    """
    lanes = target.lanes(ITEMSIZE[T])
    width = target.nv * lanes
    line, transpose = lines(target, T), Intrinsic("transpose", (T,))

    @inline
    def fill_a(a, into, g, i0, mb, k0, kb):
        return off(a, i0 * g.k + k0), g.k

    @inline
    def by_rows(b, into, g, k0, kb, j0, nb):
        q, s, z, f, spare = b
        for k in range(kb):
            j = 0
            while j < nb:
                w = imin(width, nb - j)
                line(q, s, z, f, spare, g, k0 + k, j0 + j, w, off(into, j * kb + k * width))
                j += width

    @inline
    def by_columns(b, into, g, k0, kb, j0, nb):
        q, s, z, f, spare = b
        rows = off(spare, DEPTH)
        j = 0
        while j < nb:
            panel = off(into, udiv(j, width) * width * kb + (j - udiv(j, width) * width))
            mine = imin(lanes, nb - j)
            k = 0
            while k < kb:
                depth = imin(DEPTH, kb - k)
                for i in range(mine):
                    line(q, s, z, f, spare, g, j0 + j + i, k0 + k, depth, off(rows, i * DEPTH))
                i = 0
                while i + lanes <= depth:
                    transpose(off(panel, (k + i) * width), width, off(rows, i), DEPTH)
                    i += lanes
                for rest in range(i, depth):
                    for jj in range(mine):
                        panel[(k + rest) * width + jj] = rows[jj * DEPTH + rest]
                k += DEPTH
            j += lanes

    pack = by_columns if trans_b else by_rows

    @inline
    def pack_b(b, into, g, k0, kb, j0, nb):
        pack(b, into, g, k0, kb, j0, nb)
        return into, kb * width, width

    run = block(target, T, 0, fill_a, pack_b)

    def body(a, q, s, z, f, c, bias, work, per_thread, g, tid, nthreads):
        mt, nt = g.grid_rows, g.grid_columns
        if tid < mt * nt:
            tm = udiv(tid, nt)
            tn = tid - tm * nt
            rows = udiv(g.m + mt - 1, mt)
            columns = udiv(udiv(g.n + width - 1, width) + nt - 1, nt) * width
            m0, n0 = imin(tm * rows, g.m), imin(tn * columns, g.n)
            m1, n1 = imin(m0 + rows, g.m), imin(n0 + columns, g.n)
            mine = off(work, tid * per_thread)
            b = (q, s, z, f, off(mine, g.kc * g.nc))
            run(a, b, c, g.n, bias, mine, g, m0, m1, n0, n1, g.k, g.kc, g.nc, g.mode)

    return body


# --- products of few rows

COLUMNS = 4  # of C that are made together
FEW = 4  # rows of A up to which W is turned into floats for each again, and stored nowhere

QUANTISED_DOTS_WORDS = Words(
    "quantised_dots",
    m="rows of C",
    n="columns of C",
    k="length of the sums",
    mode="BIAS or 0",
    blocks="blocks of a row of W",
    **MATRIX,
)


def _dots_reach(c: KernelCall) -> Reach:
    reach = _matrix_reach(c, c.n, c.k)
    size = c.block[1]
    if size % STEP or c.blocks * size != c.k or c.block[0] != 1 or c.row * c.bits % 8:
        c.refuse(f"{c.blocks} blocks of {list(c.block)} for rows of {c.k} elements, {c.row} apart")
    if c.bits != c.flag(1):
        c.refuse(f"integers of {c.bits} bits for a kernel of {c.flag(1)}")
    return reach


@kernel(
    """
    a: T[m, k]   q: u8|i8[...]   s: T[...]   z: u8|i8[...]   f: T[...]   c: out T[m, n]
    bias: T[n] if mode & BIAS   work: scratch T[threads, 4, blocks]
    g: i64[] where mode <= BIAS
    """,
    words={"g": QUANTISED_DOTS_WORDS},
    reach=_dots_reach,
    multiply_adds="m * n * k",
    bits=(2, 4, 8),
)
def quantised_dots(target: Target, T: str, bits: int) -> Body:
    """C = A W^T (+ bias), for few rows of A and blocks of one row of W and many columns.

    A: [m, k], W: [n, k], C: [m, n] row-major; bias: [n].  C overlaps no input.  Overwrites C.
    """
    many, one = (Intrinsic("block_dot", (T, bits, count)) for count in (COLUMNS, 1))
    zeros, fill = read_zeros(T), loop(T, "z -> y[] = z")
    real = Intrinsic("cast", (T, "i64"))

    def body(a, q, s, z, f, c, bias, work, g, tid, nthreads):
        own = off(work, tid * COLUMNS * g.blocks)
        first, last = share_blocks(g.n, COLUMNS, tid, nthreads)
        fill(real(g.offset), own, COLUMNS * g.blocks)
        row = udiv(g.row * bits, 8)
        column = first
        while column < last:
            count = imin(last - column, COLUMNS)
            if g.zero_bits != 0:
                for j in range(count):
                    zeros(z, f, g, (column + j) * g.zero_row, g.blocks, off(own, j * g.blocks))
            packed, scales = off(q, column * row), off(s, column * g.scale_row)
            for i in range(g.m):
                x, to = off(a, i * g.k), off(c, i * g.n + column)
                # Columns that are made together read each element of A once.
                if count == COLUMNS:
                    many(
                        packed, x, scales, own, g.flip, g.blocks, g.block_column, row, g.scale_row,
                        to,
                    )  # fmt: skip
                else:
                    for j in range(count):
                        one(
                            off(packed, j * row), x, off(scales, j * g.scale_row),
                            off(own, j * g.blocks), g.flip, g.blocks, g.block_column, row,
                            g.scale_row, off(to, j),
                        )  # fmt: skip
                if g.mode & BIAS != 0:
                    for j in range(count):
                        to[j] += bias[column + j]
            column += COLUMNS

    return body


# --- rows

QUANTISED_ROWS_WORDS = Words(
    "quantised_rows",
    rows="rows of W",
    columns="columns of W",
    count="how many rows are taken",
    **MATRIX,
)


@kernel(
    """
    q: u8|i8[...]   s: T[...]   z: u8|i8[...]   f: T[...]   index: i64[count] within q.rows
    y: out T[count, columns]   fault: update i64[1 record]   work: scratch T[threads, columns]
    g: i64[]
    """,
    words={"fault": STATUS, "g": QUANTISED_ROWS_WORDS},
    reach=lambda c: _matrix_reach(c, c.rows, c.columns),
)
def quantised_rows(target: Target, T: str) -> Body:
    """y[i, c] = W[index[i], c].  index: [count]; y: [count, columns].  Overwrites y.

    An index counts from the end when negative.  The row of one that is out of range is 0, and it is
    written to the fault word.
    """
    line, zero = lines(target, T), loop(T, "-> y[] = 0")

    def body(q, s, z, f, index, y, fault, work, g, tid, nthreads):
        first, last = share(g.count, tid, nthreads)
        spare = off(work, tid * g.columns)
        for i in range(first, last):
            at, to = index[i], off(y, i * g.columns)
            if at < 0:
                at += g.rows
            if at < 0 or at >= g.rows:
                report(fault, INDEX, i, index[i], g.rows)
                zero(to, g.columns)
            else:
                line(q, s, z, f, spare, g, at, 0, g.columns, to)

    return body


# --- lowering


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A matrix of integers, as `lower_quantised_gemm` and `lower_quantised_rows` take it.

    rows, columns: of Q as it is stored.  stride: integers from row to row.  bits: of an integer.
    block: rows and columns of a block that has one scale, each a number or the whole axis.
    zero_stride: zero points from row to row of blocks.  zero_bits: of one, where they are integers.
    zero: the zero point where there are none.  q, scales, zeros: the tensors.
    """

    rows: int
    columns: int
    stride: int
    bits: int
    block: tuple[int, int]
    zero_stride: int
    zero_bits: int
    zero: int
    q: Operand
    scales: Operand
    zeros: Operand | None

    def words(self) -> dict[str, Any]:
        """Return the fields of `MATRIX`."""
        down, beside = (
            min(b, n) for b, n in zip(self.block, (self.rows, self.columns), strict=True)
        )
        wide, high = -(-self.columns // beside), -(-self.rows // down)
        has = self.zeros is not None
        zero_bits = self.zero_bits if self.zeros_dtype in ("i8", "u8") else FLOATS
        flip = 1 << self.bits - 1 if self.q.type.dtype == "i8" else 0
        zero_flip = 1 << self.zero_bits - 1 if self.zeros_dtype == "i8" else 0
        return {
            "bits": self.bits,
            "row": self.stride,
            "flip": flip,
            "offset": flip + (0 if has else self.zero),
            "block": (down, beside),
            "scale": (wide if high > 1 else 0, int(wide > 1)),
            "zero_bits": zero_bits if has else 0,
            "zero": (self.zero_stride if high > 1 else 0, int(wide > 1)),
            "zero_flip": zero_flip,
            "zero_offset": zero_flip,
        }

    @property
    def zeros_dtype(self) -> str:
        """The element type of the zero points, "" without any."""
        return "" if self.zeros is None else self.zeros.type.dtype

    @property
    def arguments(self) -> dict[str, Any]:
        """The tensors by the names that kernels have for them: q, s, z, f."""
        packed = self.zeros_dtype in ("i8", "u8")
        z, f = (self.zeros, None) if packed else (None, self.zeros)
        return {"q": self.q, "s": self.scales, "z": z, "f": f}


def lower_quantised_gemm(
    lowering: Lowering,
    a: Operand,
    matrix: Matrix,
    y: Operand,
    *,
    trans: bool,
    bias: Operand | None = None,
) -> None:
    """Call `quantised_gemm`, or `quantised_dots`: y = a W + bias, or with W^T where `trans`.

    a: rows of k elements; y: of n; of one element type with scales, float zero points and bias.
    """
    kind, target, threads = y.type.dtype, lowering.target, lowering.threads
    k, n = (matrix.columns, matrix.rows) if trans else (matrix.rows, matrix.columns)
    m = y.type.size // n
    if m == 0:
        return
    numbers = dict(m=m, n=n, k=k, mode=BIAS if bias else 0, **matrix.words())
    down, size = numbers["block"]
    aligned = matrix.stride * matrix.bits % 8 == 0
    if trans and m <= FEW and down == 1 and size % STEP == 0 and k % size == 0 and aligned:
        blocks = k // size
        lowering.call(
            quantised_dots(kind, matrix.bits), a=a, **matrix.arguments, c=y, bias=bias,
            work=lowering.temp(kind, (threads, COLUMNS, blocks)),
            g=QUANTISED_DOTS_WORDS.pack(blocks=blocks, **numbers),
        )  # fmt: skip
        return
    lanes = target.lanes(ITEMSIZE[kind])
    width = target.nv * lanes
    _, rows, across = split_threads(m, n, 1, threads, width)
    kc = balance(k, target.kc, lanes)
    panels = -(-n // width)
    nc = balance(-(-panels // across) * width, target.nc, width)
    # After the panels: zero points of a line, then lines that are to be transposed.
    per_thread = kc * nc + max(DEPTH, width) + (lanes * DEPTH if trans else 0)
    work = lowering.temp(kind, (per_thread * threads,))
    lowering.call(
        quantised_gemm(kind, int(trans)),
        a=a,
        **matrix.arguments,
        c=y,
        bias=bias,
        work=work,
        per_thread=per_thread,
        g=QUANTISED_GEMM_WORDS.pack(
            grid=(rows, across),
            kc=kc,
            nc=nc,
            **numbers,
        ),
    )


def lower_quantised_rows(lowering: Lowering, matrix: Matrix, index: Operand, y: Operand) -> None:
    """Call `quantised_rows`: y[..., :] = W[index[...], :].  index: i64."""
    count = index.type.size
    if count == 0 or matrix.columns == 0:
        return
    work = lowering.temp(y.type.dtype, (matrix.columns * lowering.threads,))
    lowering.call(
        quantised_rows(y.type.dtype),
        **matrix.arguments,
        index=index,
        y=y,
        fault=lowering.fault(),
        work=work,
        g=QUANTISED_ROWS_WORDS.pack(
            rows=matrix.rows, columns=matrix.columns, count=count, **matrix.words()
        ),
    )


QUANTISED_KERNELS = (quantised_gemm, quantised_dots)  # what `lower_quantised_gemm` calls
KERNELS = (quantised_gemm, quantised_dots, quantised_rows)
