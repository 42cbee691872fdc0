"""Products of 8-bit integers: sums of 32 bits, scaled and rounded as they are stored.

    Y[m, n] = out(bias[n] + sum_k (A[m, k] - zero) (B[k, n] - shift[n]))

B is packed when the graph is planned (vocabulary/integers.py) and read where it is.  The zero point
of A is not subtracted from each factor, but zero times the sum over a column of B once, and the
shift of a column times the sum over a row of A.

Error     none in the sums, which are exact modulo 2^32; scaling is one product in float32 and one
          rounding, as in onnxruntime (integer_dots.py)
Source    Jacob et al., CVPR 2018, section 2.3
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.gemm import split_threads
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.call import KernelCall
from engine.kernels.vocabulary.integers import (
    GROUP,
    PANEL,
    SQUARE,
    find_offset,
    find_shape,
    takes_squares,
)
from engine.kernels.vocabulary.kernel import (
    BIAS,
    Body,
    Inline,
    Intrinsic,
    Numbers,
    Parameters,
    imin,
    inline,
    kernel,
    off,
    udiv,
)
from engine.kernels.vocabulary.op import Lowering, Operand
from engine.kernels.vocabulary.row_program import loop
from engine.kernels.vocabulary.signature import round_to_unit
from engine.kernels.vocabulary.tiling import Tiling
from engine.plan.words import Field, Words

X_TYPES, Y_TYPES = ("u8", "i8"), ("u8", "i8", "f32", "i32")
BLOCK = 1 << 18  # bytes of A that stay in the second-level cache while all of B goes over them
# What all integer kernels take beside activations: weights and what belongs to their columns.
OPERANDS = """
    w: i8[...]   sums: i32[up(n, 16)]   zero: T[1]   bias: i32[up(n, 16)] if mode & BIAS
    factor: f32[up(n, 16)] if Y != "i32"   work: scratch i32[threads, starts, up(n, 16)]
    """
SHIFT = "shift: i32[up(n, 16)] if starts > 1"
TURNS = "1 where tiles of rows are multiplied by squares, for which panels are turned; otherwise 0"
STARTS = "rows that sums start from: 1; with shifts 1 more than a block has rows"
RESULT: dict[str, str | Field] = {
    "mode": "BIAS or 0",
    "low": Field("least result of 8 bits", range="signed"),
    "high": Field("largest result of 8 bits", range="signed"),
    "offset": Field("zero point of results of 8 bits", range="signed"),
}


def prepare_start(target: Target, T: str) -> Inline:
    """Return an inline function: start[j] = bias[j] - zero sums[j] for n columns.

    prepare(start, bias, sums, zero, n, mode)
    """
    shift = find_offset(target, T)
    with_bias = loop("i32", "b[] s[] z -> y[] = b - z * s")
    without = loop("i32", "s[] z -> y[] = 0 - z * s")

    @inline
    def run(start, bias, sums, zero, n, mode):
        z = zero[0] + shift
        if mode & BIAS != 0:
            with_bias(bias, sums, z, start, n)
        else:
            without(sums, z, start, n)

    return run


def shift_starts(T: str) -> Inline:
    """Return an inline function: what the sums of m rows start from, if columns have shifts.

    shift_starts(start, a, lda, zero, shift, k, m, n)

    Row 0 of `start` is of `prepare_start`; row 1 + i gets this less shift[j] sum_k (A[i, k] - zero)
    in n columns.
    """
    total = loop("i32", f"x:{T}[] -> sum(cast(i32, x))")
    lower = loop("i32", "b[] c[] r -> y[] = b - c * r")

    @inline
    def run(start, a, lda, zero, shift, k, m, n):
        for i in range(m):
            row = total(off(a, i * lda), k) - k * zero[0]
            lower(start, shift, row, off(start, (i + 1) * n), n)

    return run


def rectangle(target: Target, X: str, Y: str) -> Inline:
    """Return an inline function: m rows and n columns of Y; all start at whole panels.

    rectangle(a, lda, w, y, ldy, start, lds, factor, k, m, n, low, high, offset)

    Row i starts from start[i lds:].
    """
    rows, panels = find_shape(target)
    widths = [panels >> i for i in range(panels.bit_length())]
    columns = functools.reduce(_follow, [_sweep(X, Y, rows, width) for width in widths])

    @inline
    def run(a, lda, w, y, ldy, start, lds, factor, k, m, n, low, high, offset):
        columns(a, lda, w, y, ldy, start, lds, factor, k, m, n, low, high, offset, 0)

    return run


def turned_rectangle(target: Target, X: str, Y: str) -> Inline:
    """Return an inline function as `rectangle`, with two more arguments: turned, turns.

    turned: room for a panel of k steps, up to a multiple of 8.  Where `turns` is not 0, a panel is
    turned and multiplied by squares with all tiles of rows before the next one; `turned` stays in
    the nearest cache.  Rows that fill no tile, and other targets, take dot products.
    """
    dots = rectangle(target, X, Y)
    if target.dots != "smmla":

        @inline
        def run(
            a, lda, w, y, ldy, start, lds, factor, k, m, n, low, high, offset, turned, turns
        ):  # fmt: skip
            dots(a, lda, w, y, ldy, start, lds, factor, k, m, n, low, high, offset)

        return run
    rows, _ = find_shape(target)
    turn, tile = Intrinsic("turn_panel"), Intrinsic("integer_squares", (X, Y, rows, 1))

    @inline
    def run_squares(
        a, lda, w, y, ldy, start, lds, factor, k, m, n, low, high, offset, turned, turns
    ):  # fmt: skip
        done = 0
        if turns != 0 and m >= rows and k >= SQUARE:
            groups, j = udiv(k + GROUP - 1, GROUP), 0
            # The last tile begins earlier, so that some rows are made twice, alike; a single row
            # takes no longer by dot products.
            done = m if m - udiv(m, rows) * rows != 1 else m - 1
            while j < n:
                tail = imin(n - j, PANEL)
                turn(off(w, j * groups * GROUP), turned, groups)
                i = 0
                while i < done:
                    i = imin(i, done - rows)
                    tile(
                        off(a, i * lda), turned, off(y, i * ldy + j), off(start, i * lds + j),
                        off(factor, j), k, lda, 0, ldy, lds, low, high, offset, tail,
                    )  # fmt: skip
                    i += rows
                j += PANEL
        if done < m:
            dots(
                off(a, done * lda), lda, w, off(y, done * ldy), ldy, off(start, done * lds), lds,
                factor, k, m - done, n, low, high, offset,
            )  # fmt: skip

    return run_squares


def _sweep(X: str, Y: str, rows: int, width: int) -> Inline:
    """Return an inline function: tiles of `width` panels from column j on, as many as there are.

    It returns the column after them.
    """
    whole, one = (Intrinsic("integer_tile", (X, Y, count, width)) for count in (rows, 1))
    before = (width - 1) * PANEL

    @inline
    def run(a, lda, w, y, ldy, start, lds, factor, k, m, n, low, high, offset, j):
        ldb = udiv(k + GROUP - 1, GROUP) * PANEL * GROUP
        while j + before < n:
            tail = imin(n - j - before, PANEL)
            b, s, f = off(w, udiv(j, PANEL) * ldb), off(start, j), off(factor, j)
            i = 0
            while i + rows <= m:
                whole(
                    off(a, i * lda), b, off(y, i * ldy + j), off(s, i * lds), f,
                    k, lda, ldb, ldy, lds, low, high, offset, tail,
                )  # fmt: skip
                i += rows
            while i < m:
                one(
                    off(a, i * lda), b, off(y, i * ldy + j), off(s, i * lds), f,
                    k, lda, ldb, ldy, lds, low, high, offset, tail,
                )  # fmt: skip
                i += 1
            j += width * PANEL
        return j

    return run


def _follow(first: Inline, second: Inline) -> Inline:
    """Return an inline function: the columns of the first, then the columns of the second."""

    @inline
    def run(a, lda, w, y, ldy, start, lds, factor, k, m, n, low, high, offset, j):
        j = first(a, lda, w, y, ldy, start, lds, factor, k, m, n, low, high, offset, j)
        return second(a, lda, w, y, ldy, start, lds, factor, k, m, n, low, high, offset, j)

    return run


INTEGER_GEMM_WORDS = Words(
    "integer_gemm",
    m="rows of Y",
    n="columns of Y",
    k="length of the sums",
    samples="samples that rows are of, as many of each",
    rows="rows of A that are multiplied with all of B, one after another",
    starts=STARTS,
    turns=TURNS,
    grid=Field("into how many parts threads cut the work", names=("rows", "columns")),
    **RESULT,
)


ROOM = "(starts == 1 or starts > rows)"  # each row of a block has a start, or all have one
_ALONE = {INTEGER_GEMM_WORDS.place(name): 1 for name in ("grid_rows", "grid_columns")}
_COUNTS = (INTEGER_GEMM_WORDS.place("m"),)


def _tiling(params: Parameters, numbers: Numbers) -> Tiling:
    """Return the rows of X and Y; one thread runs a tile."""
    c = INTEGER_GEMM_WORDS.unpack([int(n) for n in numbers])
    x, y = (ITEMSIZE[str(kind)] for kind in params)
    return Tiling(c["m"], (x * c["k"], y * c["n"], *[0] * 8), _COUNTS, _ALONE)


def _samples(c: KernelCall) -> Tiling | None:
    rows = c.m // c.numbers["samples"]
    return c.cut(
        c.numbers["samples"], {"x": rows * c.k, "y": rows * c.n}, counts=_COUNTS, fixed=_ALONE
    )


@kernel(
    f"""
    x: T[m, k]   y: out Y[m, n]   {OPERANDS} {SHIFT}
    turned: scratch i8[threads, up(k, 8) * 16] if turns
    g: i64[] where min(rows, k, samples, min(grid)) >= 1 and mode <= BIAS and {ROOM}
    """,
    words={"g": INTEGER_GEMM_WORDS},
    reach=lambda c: {"w": round_to_unit(c.n, PANEL) * round_to_unit(c.k, GROUP)},
    multiply_adds="m * n * k",
    tiling=_tiling,
    samples=_samples,
    T=X_TYPES,
    Y=Y_TYPES,
)
def integer_gemm(target: Target, T: str, Y: str) -> Body:
    """Y = out(bias + (X - zero) (W - shift)), by rows of X; w: packed, overwrites y.

    sums: of the columns of W.  factor: a result less its zero point for each unit of a sum.
    """
    run, prepare = turned_rectangle(target, T, Y), prepare_start(target, T)
    lower, room = shift_starts(T), SQUARE * PANEL

    def body(x, y, w, sums, zero, bias, factor, work, shift, turned, g, tid, nthreads):
        mt, nt = g.grid_rows, g.grid_columns
        if tid < mt * nt:
            tm = udiv(tid, nt)
            tn = tid - tm * nt
            rows = udiv(g.m + mt - 1, mt)
            columns = udiv(udiv(g.n + PANEL - 1, PANEL) + nt - 1, nt) * PANEL
            m0, n0 = imin(tm * rows, g.m), imin(tn * columns, g.n)
            m1, n1 = imin(m0 + rows, g.m), imin(n0 + columns, g.n)
            start = off(work, tid * g.starts * udiv(g.n + PANEL - 1, PANEL) * PANEL)
            size = udiv(n1 - n0 + PANEL - 1, PANEL) * PANEL
            prepare(start, off(bias, n0), off(sums, n0), zero, size, g.mode)
            b = off(w, n0 * udiv(g.k + GROUP - 1, GROUP) * GROUP)
            mine = off(turned, tid * udiv(g.k + SQUARE - 1, SQUARE) * room)
            first, lds = start, 0  # all rows start alike
            if g.starts > 1:
                first, lds = off(start, size), size
            i = m0
            while i < m1:
                mb = imin(g.rows, m1 - i)
                if g.starts > 1:
                    lower(start, off(x, i * g.k), g.k, zero, off(shift, n0), g.k, mb, size)
                run(
                    off(x, i * g.k), g.k, b, off(y, i * g.n + n0), g.n, first, lds,
                    off(factor, n0), g.k, mb, n1 - n0, g.low, g.high, g.offset, mine, g.turns,
                )  # fmt: skip
                i += mb

    return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Packed weights with what belongs to their columns, as integer kernels take them.

    w: in panels.  sums: of the columns.  zero: the zero point of activations.  factor: None where
    the sums are the result.  shift: what each column of the weights is too large by; None where it
    is 0.  low, high, offset: of results of 8 bits.
    """

    w: Operand
    sums: Operand
    zero: Operand
    factor: Operand | None
    bias: Operand | None
    shift: Operand | None
    low: int
    high: int
    offset: int

    @property
    def operands(self) -> dict[str, Any]:
        """The tensors by the names that kernels have for them."""
        names = "w", "sums", "zero", "factor", "bias", "shift"
        return {name: getattr(self, name) for name in names}

    def count_starts(self, rows: int) -> int:
        """Return the rows that the sums of a block of rows start from."""
        return 1 + rows if self.shift else 1

    def words(self) -> Mapping[str, Any]:
        """Return the fields of `RESULT`."""
        result = {"low": self.low, "high": self.high, "offset": self.offset}
        return {"mode": BIAS if self.bias else 0, **result}


def make_turned(lowering: Lowering, k: int) -> Operand:
    """Return room for a turned panel of sums of k products, for each thread."""
    return lowering.temp("i8", (lowering.threads * round_to_unit(k, SQUARE) * PANEL,))


def lower_integer_gemm(
    lowering: Lowering, x: Operand, weights: Weights, y: Operand, mnk: tuple[int, int, int]
) -> None:
    """Call `integer_gemm`: y = x W, rows of both one after another."""
    m, n, k = mnk
    threads = lowering.threads
    _, rows, columns = split_threads(m, n, 1, threads, PANEL)
    high, _ = find_shape(lowering.target)
    # A block of A stays near the core, and with it what its rows start from.
    row = max(k, 4 * n) if weights.shift else k
    block = max(BLOCK // row // high * high, high)
    starts, turns = weights.count_starts(block), takes_squares(lowering.target, m, k)
    lowering.call(
        integer_gemm(x.type.dtype, y.type.dtype),
        x=x,
        y=y,
        **weights.operands,
        work=lowering.temp("i32", (threads * starts * round_to_unit(n, PANEL),)),
        turned=make_turned(lowering, k) if turns else None,
        g=INTEGER_GEMM_WORDS.pack(
            m=m,
            n=n,
            k=k,
            samples=x.type.dims[0] if x.type.rank > 1 else 1,
            rows=block,
            starts=starts,
            turns=int(turns),
            grid=(rows, columns),
            **weights.words(),
        ),
    )


KERNELS = (integer_gemm,)
