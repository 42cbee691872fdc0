"""Resampling: along an axis every output is a weighted sum of a few inputs.

    y[o] = sum_{t in row o} weight[t] x[index[t]]          (o, t) a sparse matrix by rows

A table is that matrix.  Several axes are resampled one after the other, two that are neighbours in
memory at once: a line of sums along the first stays in cache for the second.  The transposed tables
make the gradient by the same kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import ITEMSIZE, NUMPY
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    Body,
    Inline,
    Intrinsic,
    drop_same,
    inline,
    kernel,
    off,
    pick,
    share,
    udiv,
)
from engine.kernels.vocabulary.op import Lowering, Operand, find_each_stored, find_stored
from engine.kernels.vocabulary.row_program import loop
from engine.plan.words import Field, Words


@dataclass(frozen=True, slots=True)
class SparseMatrix:
    """A sparse matrix [out, size] by rows: row o is the entries start[o] to start[o + 1]."""

    size: int
    start: Array
    index: Array
    weight: Array

    @property
    def out(self) -> int:
        return len(self.start) - 1

    @classmethod
    def of(cls, size: int, out: int, row: Array, index: Array, weight: Array) -> SparseMatrix:
        """Return the table of entries in any order; entries of weight 0 are dropped."""
        kept = np.flatnonzero(weight)
        order = kept[np.lexsort((index[kept], row[kept]))]
        start = np.searchsorted(row[order], np.arange(out + 1))
        return cls(size, start, index[order], weight[order])

    def transpose(self) -> SparseMatrix:
        """Return the transposed matrix, by which gradients are resampled."""
        # Entry (o, i) becomes (i, o).
        row = np.repeat(np.arange(self.out), np.diff(self.start))
        return SparseMatrix.of(self.out, self.size, self.index, row, self.weight)


_PLAIN = SparseMatrix(
    1, np.zeros(2, np.int64), np.zeros(0, np.int64), np.zeros(0)
)  # leaves an axis alone


# --- kernel

_TABLE = ("size", "out", "at", "plain")
RESAMPLE_WORDS = Words(
    "resample",
    outer="lines of x",
    a=Field(
        "the table of the first axis: inputs, outputs, first entry, whether all is as in x",
        names=_TABLE,
    ),
    b=Field("the table of the second axis", names=_TABLE),
    inner="elements of a pixel",
)


def lines_sum(target: Target, T: str, X: str = "") -> Inline:
    """Return an inline function: y[j] = sum_{t0 <= t < t1} weight[t] x[index[t] step + j], j < n.

    lines(y, x, index, weight, t0, t1, step, n)

    X: how x is stored, T if empty.
    """
    first = loop(T, "a:S[] u -> y[] = a * u", X)
    first_two = loop(T, "a:S[] u b:S[] v -> y[] = a * u + b * v", X)
    next_two = loop(T, "a:S[] u b:S[] v y[] -> y[] = y + a * u + b * v", X)
    last = loop(T, "a:S[] u y[] -> y[] = y + a * u", X)

    @inline
    def run(y, x, index, weight, t0, t1, step, n):
        # Two rows at a time: y is loaded and stored once for both.
        a = off(x, index[t0] * step)
        if t1 == t0 + 1:
            first(a, weight[t0], y, n)
        else:
            first_two(a, weight[t0], off(x, index[t0 + 1] * step), weight[t0 + 1], y, n)
            t = t0 + 2
            while t + 2 <= t1:
                a, b = off(x, index[t] * step), off(x, index[t + 1] * step)
                next_two(a, weight[t], b, weight[t + 1], y, y, n)
                t += 2
            if t < t1:
                last(off(x, index[t] * step), weight[t], y, y, n)

    return run


def _reach(c: KernelCall) -> Reach:
    table = c.content("table")
    a_size, a_out, _, a_plain = c.a
    b_size, b_out, _, b_plain = c.b
    begin = a_out + b_out + 2
    if not c.outer * a_out * c.inner:
        return {}
    if begin > len(table):
        c.refuse(f"rows of {a_out} and {b_out} outputs in a table of {len(table)}")
    ends = [
        _entries(c, table[:first][-out - 1 :], table[begin:], at, size, bool(plain))
        for first, (size, out, at, plain) in ((a_out + 1, c.a), (begin, c.b))
    ]
    line = b_size * c.inner
    y = (c.outer * a_out - 1) * b_out * c.inner + max(b_out, b_size if b_plain else 0) * c.inner
    return {
        "x": ((c.outer - 1) * a_size + max(a_size, a_out if a_plain else 0)) * line,
        "y": y if b_out or b_plain else 0,
        "table": begin + max(ends),
        "weight": max(ends),
        "work": _count_work(c, (a_plain or b_plain) and not any(map(c.type_of, "XY"))),
    }


def _count_work(c: KernelCall, is_none: bool) -> int:
    each = 0 if is_none else count_line(c.b[0], c.b[1], c.inner, c.type_of("Y"))
    return c.scratch(each, each)


def count_line(size: int, out: int, inner: int, Y: str) -> int:
    """Return the scratch elements of a thread: a line along the second axis before it is resampled,
    and after that if y is stored as Y.
    """
    return (size + out if Y else size) * inner


def _entries(
    c: KernelCall, rows: np.ndarray, index: np.ndarray, at: int, size: int, is_plain: bool
) -> int:
    """Return the end of the entries of a table of one axis, whose rows and indices are checked."""
    if is_plain:
        return 0
    if len(rows) and (rows[0] < 0 or (np.diff(rows) < 0).any()):
        c.refuse("the rows of a table do not follow each other")
    first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (0, 0)
    if at + last > len(index):
        c.refuse(f"{last} entries after entry {at} of {len(index)}")
    named = index[at + first : at + last]
    if named.size and not 0 <= named.min() <= named.max() < size:
        c.refuse(f"a table that names places {named.min()} to {named.max()} of {size}")
    return at + last


@kernel(
    """
    x: X[...]   y: out Y[...]   table: i64[...]   weight: T[...]   work: scratch T[...]   fill: f64
    g: i64[]
    """,
    words={"g": RESAMPLE_WORDS},
    reach=_reach,
)
def resample(target: Target, T: str, X: str = "", Y: str = "") -> Body:
    """y[r, p, q, j] = sum_{s, t} a[p, s] b[q, t] x[r, index[s], index[t], j]; fill for empty rows.

    x: [outer, na, nb, inner]; y: [outer, oa, ob, inner].  table: the rows of a, of b, then the
    indices, which share `weight`; work: as of `count_line`.  X, Y: how x and y are stored, T if
    empty; sums are of T, and are rounded once.
    """
    lines_of_x, lines = lines_sum(target, T, X), lines_sum(target, T)
    cast, spread = Intrinsic("cast", (T, "f64")), loop(T, "value -> y[] = value")
    lanes = target.lanes(ITEMSIZE[T])
    widen, narrow = Intrinsic("convert", (T, X or T)), Intrinsic("convert", (Y or T, T))

    @inline
    def as_it_is(x, into, n):
        return x

    @inline
    def widened(x, into, n):
        widen(into, x, n)
        return into

    @inline
    def in_place(y, row):
        return y

    @inline
    def in_scratch(y, row):
        return row

    @inline
    def nothing(y, row, n):
        """Do nothing: the sums are where they belong."""

    @inline
    def narrowed(y, row, n):
        narrow(y, row, n)

    line_of = widened if X else as_it_is
    place, finish = (in_scratch, narrowed) if Y else (in_place, nothing)
    has_row = int(bool(Y))

    def body(x, y, table, weight, work, fill, g, tid, nthreads):
        inner, line, out = g.inner, g.b_size * g.inner, g.b_out * g.inner
        mine, value = off(work, tid * (line + has_row * out)), cast(fill)
        row = off(mine, has_row * line)
        index = off(table, g.a_out + g.b_out + 2)
        index_a, index_b = off(index, g.a_at), off(index, g.b_at)
        weight_a, weight_b = off(weight, g.a_at), off(weight, g.b_at)
        rows_a, rows_b = table, off(table, g.a_out + 1)
        begin, end = share(g.outer * g.a_out, tid, nthreads)
        for unit in range(begin, end):
            r = udiv(unit, g.a_out)
            p = unit - r * g.a_out
            t0, t1 = rows_a[p], rows_a[p + 1]
            given, result = off(x, r * g.a_size * line), off(y, unit * out)
            to, src = place(result, row), mine
            # The line along the first axis: as it is in x, a single row of it, or a sum of rows in
            # the scratch (in y itself if the second axis stays).
            if g.a_plain != 0:
                src = line_of(off(given, p * line), mine, line)
            elif t1 == t0 + 1 and g.b_plain == 0 and weight_a[t0] == 1:
                src = line_of(off(given, index_a[t0] * line), mine, line)
            elif t1 > t0:
                into = pick(g.b_plain, to, mine)
                lines_of_x(into, given, index_a, weight_a, t0, t1, line, line)
                src = into
            else:
                spread(value, to, out)
            if g.b_plain == 0 and (t1 > t0 or g.a_plain != 0):
                for q in range(g.b_out):
                    t0, t1 = rows_b[q], rows_b[q + 1]
                    at = off(to, q * inner)
                    if t1 == t0:
                        spread(value, at, inner)
                    # Pixels of whole vectors are added as lines; smaller ones element by element.
                    elif inner >= lanes:
                        lines(at, src, index_b, weight_b, t0, t1, inner, inner)
                    else:
                        for j in range(inner):
                            total = weight_b[t0] * src[index_b[t0] * inner + j]
                            for t in range(t0 + 1, t1):
                                total += weight_b[t] * src[index_b[t] * inner + j]
                            at[j] = total
            finish(result, to, out)

    return body


# --- lowering


def lower_resample(
    lowering: Lowering,
    x: Operand,
    y: Operand,
    tables: Mapping[int, SparseMatrix],
    fill: float = 0.0,
) -> None:
    """Append the calls that resample x along the axes of `tables` into y, of the same layout.

    Axes that shrink go first, and pairs of neighbours go together.
    """
    order = x.type.order
    places = {order.index(axis): t for axis, t in tables.items()}
    dims = [x.type.dims[axis] for axis in order]
    # Shrinking first leaves less for the axes after it.
    groups = sorted(_pair_axes(places, dims), key=lambda g: math.prod(t.out / t.size for _, t in g))
    for i, group in enumerate(groups):
        into = dims.copy()
        for place, table in group:
            into[place] = table.out
        out = y if i == len(groups) - 1 else lowering.temp(find_stored(x)[0], into)
        _call(lowering, x, out, dims, group, fill)
        x, dims = out, into


def _pair_axes(
    places: Mapping[int, SparseMatrix], dims: list[int]
) -> list[list[tuple[int, SparseMatrix]]]:
    """Return the axes to resample, two neighbours at a time where possible, the last ones first."""
    groups: list[list[tuple[int, SparseMatrix]]] = []
    for place in sorted(places, reverse=True):
        near = groups and len(groups[-1]) == 1
        if near and math.prod(dims[place + 1 : groups[-1][0][0]]) == 1:
            groups[-1].insert(0, (place, places[place]))
        else:
            groups.append([(place, places[place])])
    return groups


def _call(
    lowering: Lowering,
    x: Operand,
    y: Operand,
    dims: list[int],
    group: list[tuple[int, SparseMatrix]],
    fill: float,
) -> None:
    T, stored = find_each_stored(x, y)
    X, Y = [drop_same(kind, T) for kind in stored] or ("", "")
    outer, inner = math.prod(dims[: group[0][0]]), math.prod(dims[group[-1][0] + 1 :])
    a, b = group[0][1], group[-1][1]
    # The kernel has two axes; a single one leaves the other as it is.
    if len(group) == 1:  # along the first axis lines are added, along the second pixels
        is_line = inner >= lowering.target.lanes(ITEMSIZE[T])
        a, b = (a, _PLAIN) if is_line else (_PLAIN, b)
    table = np.concatenate([a.start, b.start, a.index, b.index]).astype(np.int64)
    weight: Array = np.concatenate([a.weight, b.weight, [0.0]]).astype(NUMPY[T])
    words = RESAMPLE_WORDS.pack(
        outer=outer,
        a=(a.size, a.out, 0, int(a is _PLAIN)),
        b=(b.size, b.out, len(a.index), int(b is _PLAIN)),
        inner=inner,
    )
    work = lowering.temp(T, (lowering.threads * count_line(b.size, b.out, inner, Y),))
    lowering.call(
        resample(T, *([X, Y] if stored else [])),
        x=x, y=y, table=lowering.const(table), weight=lowering.const(weight), work=work,
        fill=float(fill), g=words,
    )  # fmt: skip


KERNELS = (resample,)
