"""Products of few rows, as answers to one sample are: each element of B is used once or twice.

To pack B in each run would take longer than to multiply, so its rows are read where they are, each
from its beginning to its end, as caches fetch ahead.  Where B is stored as columns, a sum is the
product of a row of A and a row of what is stored (`dots.py`).  Otherwise rows of B, times an
element of A each, are added to a row of C, several at a time, so that C is read and written less
often.
"""

from __future__ import annotations

from engine.base.element_types import ITEMSIZE
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    BIAS,
    RELU,
    Inline,
    Intrinsic,
    imin,
    inline,
    off,
)
from engine.kernels.vocabulary.row_program import loop

COLUMNS = 4  # of C that are made together where B is stored as columns
ROWS = 8  # of B that are added together
LINE = 8192  # bytes of a row of C that are made together: they stay in the nearest cache


def few_rows(target: Target, T: str, trans_b: int) -> Inline:
    """Return an inline function: a thread's rectangle of C, called as `block` of contract.py.

    A is stored as rows; no scratch memory is used.
    """
    return _by_dots(target, T) if trans_b else _by_rows(T)


def _by_dots(target: Target, T: str) -> Inline:
    """Return the function for B stored as columns."""
    many, single = (_strip(target, T, columns) for columns in (COLUMNS, 1))

    @inline
    def run(a, b, c, ldc, bias, work, g, m0, m1, n0, n1, k, kc, nc, mode):
        lda, ldb = g.lda, g.ldb
        j = n0
        while j + COLUMNS <= n1:
            many(a, off(b, j * ldb), off(c, j), off(bias, j), k, lda, ldb, ldc, m0, m1, mode)
            j += COLUMNS
        while j < n1:
            single(a, off(b, j * ldb), off(c, j), off(bias, j), k, lda, ldb, ldc, m0, m1, mode)
            j += 1

    return run


def _strip(target: Target, T: str, columns: int) -> Inline:
    """Return an inline function: rows m0 ... m1 of the columns of C that c, b and bias start at."""
    most = 4 if target.mr * target.nv > 12 else 2  # rows whose sums the registers hold
    rows, row = (Intrinsic("dots", (T, count, columns)) for count in (most, 1))

    @inline
    def run(a, b, c, bias, k, lda, ldb, ldc, m0, m1, mode):
        i = m0
        while i + most <= m1:
            rows(off(a, i * lda), b, off(c, i * ldc), bias, k, lda, ldb, ldc, mode)
            i += most
        while i < m1:
            row(off(a, i * lda), b, off(c, i * ldc), bias, k, lda, ldb, ldc, mode)
            i += 1

    return run


def _by_rows(T: str) -> Inline:
    """Return the function for B stored as rows."""
    rows = range(ROWS)
    terms = " + ".join(f"f{r} * x{r}" for r in rows)
    several = loop(
        T,
        f"{' '.join(f'x{r}[]' for r in rows)} {' '.join(f'f{r}*' for r in rows)} c[] "
        f"-> c[] = c + ({terms})",
    )
    one, clear = loop(T, "x[] f* c[] -> c[] = c + f * x"), loop(T, "-> c[] = 0")
    copy, add = loop(T, "x[] -> c[] = x"), loop(T, "x[] c[] -> c[] = c + x")
    # The comparison is false for NaN, which must come through.
    relu = loop(T, "c[] -> c[] = where(c < 0, 0, c)")
    length = LINE // ITEMSIZE[T]

    @inline
    def run(a, b, c, ldc, bias, work, g, m0, m1, n0, n1, k, kc, nc, mode):
        lda, ldb = g.lda, g.ldb
        j = n0
        while j < n1:
            n = imin(length, n1 - j)
            for i in range(m0, m1):
                x, y = off(a, i * lda), off(c, i * ldc + j)
                if mode & ACCUMULATE == 0:
                    if mode & BIAS != 0:
                        copy(off(bias, j), y, n)
                    else:
                        clear(y, n)
                elif mode & BIAS != 0:
                    add(off(bias, j), y, y, n)
                p = 0
                while p + ROWS <= k:
                    several(
                        off(b, p * ldb + j), off(b, (p + 1) * ldb + j), off(b, (p + 2) * ldb + j),
                        off(b, (p + 3) * ldb + j), off(b, (p + 4) * ldb + j),
                        off(b, (p + 5) * ldb + j), off(b, (p + 6) * ldb + j),
                        off(b, (p + 7) * ldb + j),
                        off(x, p), off(x, p + 1), off(x, p + 2), off(x, p + 3), off(x, p + 4),
                        off(x, p + 5), off(x, p + 6), off(x, p + 7),
                        y, y, n,
                    )  # fmt: skip
                    p += ROWS
                while p < k:
                    one(off(b, p * ldb + j), off(x, p), y, y, n)
                    p += 1
                if mode & RELU != 0:
                    relu(y, y, n)
            j += length

    return run
