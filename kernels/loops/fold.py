"""Folds along axes: the kernels and call chains under every reduction.

Forward   y = after(fold of before(x) over the axes), the fold a sum, product, max or min
Error     float sums add runs of at most 4096 elements (rows) or groups of 8 (columns) to one
          accumulator: relative to sum |x| at most about (64 + n / 4096) units of the last place
          in rows, n / 8 in columns

Any set of axes becomes a chain of two kernels, innermost group first: [a, n, b] -> [a, b] with
b = 1 (rows) or b > 1 (columns), after neighbouring axes of one kind have been joined.  The order
of all additions depends on shapes and the number of threads only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.map import MAP_KERNELS, lower_map, update
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary import expression
from engine.kernels.vocabulary.expression import Expr
from engine.kernels.vocabulary.kernel import (
    NUMBER,
    Body,
    Inline,
    Intrinsic,
    Numbers,
    Parameters,
    imin,
    inline,
    kernel,
    list_bools,
    off,
    share,
    udiv,
)
from engine.kernels.vocabulary.op import Lowering, Operand, TensorType, find_stored
from engine.kernels.vocabulary.row_program import Input, Program, loop, start_value
from engine.kernels.vocabulary.tiling import Tiling
from engine.plan.words import Words

RUN = 4096  # elements added before a partial sum is closed
GROUP = 8  # rows added together before they meet the accumulator
PLAIN: dict[str, Any] = {  # parameters of folds without formulas
    "op": ("sum", "prod", "max", "min"), "before": ("x",), "after": ("total",), "form": ("-",),
}  # fmt: skip


# --- kernels

ROW_WORDS = Words(
    "rows",
    rows="rows of x",
    n="elements of a row",
    parts="parts of a row, each with a result of its own",
    count="elements of a whole fold, which `after` may read",
)
COLUMN_WORDS = Words(
    "columns",
    outer="number of matrices",
    n="rows of a matrix",
    cols="columns of a matrix",
    parts="parts of the rows, each with a result of its own",
    block="columns that are folded together",
    count="elements of a whole fold, which `after` may read",
)


def _combine(op: str, x: Expr, y: Expr) -> Expr:
    return ({"sum": "add", "prod": "mul"}.get(op, op), x, y)


def _finish(T: str, after: str, form: str, access: str) -> Intrinsic:
    """Return an intrinsic that writes y = after(...).

    It is called by the names total, count, m, y and flag.

    `access`: how the total comes, "k" as a scalar or "v" as a vector.
    """
    form = form.strip("-")
    total, beside = ("total", "*") if access == "k" else ("total[]", "[]")
    more = {"": "", "m": f"m{beside}", "u": f"y{beside} flag:b1*"}[form]
    return loop(T, f"{total} count:i64 {more} -> y[] = {after}")


def _cut_rows(params: Parameters, numbers: Numbers) -> Tiling | None:
    """Return the rows of x."""
    words = ROW_WORDS.unpack(numbers)
    x, y = _list_sizes(params)
    steps = (x * words["n"], y, y * words["parts"], 0)
    return _cut(words["rows"], steps, ROW_WORDS.place("rows"))


def _cut_matrices(params: Parameters, numbers: Numbers) -> Tiling | None:
    """Return the matrices of x, whose columns are folded."""
    words = COLUMN_WORDS.unpack(numbers)
    x, y = _list_sizes(params)
    row = y * words["cols"]
    steps = (x * words["n"] * words["cols"], row, row * words["parts"], 0, 0)
    return _cut(words["outer"], steps, COLUMN_WORDS.place("outer"))


def _list_sizes(params: Parameters) -> tuple[int, int]:
    """Return the bytes of an element of x, and of one of the others."""
    T, stored = str(params[0]), str(params[5]) if len(params) > 5 else ""
    return ITEMSIZE[stored or T], ITEMSIZE[T]


def _cut(count: int, steps: tuple[int, ...], at: int) -> Tiling | None:
    return Tiling(count, steps, (at,)) if count > 1 else None


_FORM = "where form in ('', '-', 'm', 'u')"


@kernel(
    f"""
    x: S[rows, n] if parts   m: T[rows] if form == 'm'
    y: out T[rows, parts] updates if form == 'u'   flag: b1[1] if form == 'u'   g: i64[] {_FORM}
    """,
    words={"g": ROW_WORDS},
    tiling=_cut_rows,
    T=NUMBER,
    stands_for=list_bools,
    **PLAIN,
)
def reduce_rows(
    target: Target, T: str, op: str, before: str, after: str, form: str, S: str = ""
) -> Body:
    """y[a, p] = after(fold of before(x[a, r]) over r in part p of `parts`).

    `before` is a formula of x and, where `form` is "m", of m, which is m[a]; `after` one of total
    (the fold), count, and m ("m") or y (the old value) and flag ("u").  S: how x is stored.
    """
    join, none = _join(T, op), loop(T, f"-> {op}(0)")
    finish = _finish(T, after, form, "k")
    run = loop(T, f"x:S[] {'m*' if form == 'm' else ''} -> {op}({before})", S)

    def body(x, m, y, flag, g, tid, nthreads):
        rows, n, parts, count = g.rows, g.n, g.parts, g.count
        first, last = share(rows * parts, tid, nthreads)
        for i in range(first, last):
            a = udiv(i, parts)
            begin, end = share(n, i - a * parts, parts)
            total = none(0)
            while begin < end:
                k = imin(end - begin, RUN)
                total = join(total, run(x=off(x, a * n + begin), m=off(m, a), length=k), 1)
                begin += k
            finish(total=total, count=count, m=off(m, a), y=off(y, i), flag=flag, length=1)

    return body


def _join(T: str, op: str) -> Intrinsic:
    """Return an intrinsic join(x, y, 1): two partial results of a reduction, as scalars."""
    both = _combine(op, ("in", 0), ("in", 1))
    return Intrinsic("rows", (Program.computing((Input(T, "k"),) * 2, reductions=[(T, op, both)]),))


@kernel(
    f"""
    x: S[outer, n, cols]   m: T[outer, cols] if form == 'm'
    y: out T[outer, parts, cols] updates if form == 'u'   flag: b1[1] if form == 'u'
    work: scratch T[threads, block]   g: i64[] {_FORM} and block >= 1
    """,
    words={"g": COLUMN_WORDS},
    tiling=_cut_matrices,
    T=NUMBER,
    stands_for=list_bools,
    **PLAIN,
)
def reduce_cols(
    target: Target, T: str, op: str, before: str, after: str, form: str, S: str = ""
) -> Body:
    """y[a, p, j] = after(fold of before(x[a, r, j]) over r in part p of `parts`).

    work: the accumulator.  `before`, `after`, `form`, S: as reduce_rows, with m[a, j].
    """
    group = GROUP if form != "m" else GROUP // 2
    gang = _gang(T, op, before, form, group, S)
    single = _gang(T, op, before, form, 1, S)
    start = Intrinsic("rows", (Program.computing((), [(T, ("const", start_value(op, T)))]),))
    finish = _finish(T, after, form, "v")

    def body(x, m, y, flag, work, g, tid, nthreads):
        outer, n, cols, parts, block, count = g.outer, g.n, g.cols, g.parts, g.block, g.count
        blocks = udiv(cols + block - 1, block)
        acc = off(work, tid * block)
        first, last = share(outer * parts * blocks, tid, nthreads)
        for i in range(first, last):
            ap = udiv(i, blocks)
            j = (i - ap * blocks) * block
            a = udiv(ap, parts)
            r, end = share(n, ap - a * parts, parts)
            k = imin(block, cols - j)
            about = off(m, a * cols + j)
            start(acc, k)
            while r + group <= end:
                gang(acc, off(x, (a * n + r) * cols + j), about, cols, k)
                r += group
            while r < end:
                single(acc, off(x, (a * n + r) * cols + j), about, cols, k)
                r += 1
            into = off(y, ap * cols + j)
            finish(total=acc, count=count, m=about, y=into, flag=flag, length=k)

    return body


def _gang(T: str, op: str, before: str, form: str, group: int, S: str) -> Inline:
    """Return an inline function: gang(acc, x, m, ld, n) folds `group` rows of x into acc, pairwise.

    Pairs of rows meet before the accumulator does: it is loaded and stored once for the group, and
    a sum's error grows with the number of groups, not of rows.
    """
    value = expression.parse(before, ("x", "m"), T=T)
    m: Expr = ("in", 1 + group)
    terms = [expression.substitute(value, [("in", 1 + i), m]) for i in range(group)]
    while len(terms) > 1:
        terms = [_combine(op, x, y) for x, y in zip(terms[::2], terms[1::2], strict=True)]
    ins = (Input(T), *[Input(S or T)] * group, *[Input(T)] * (form == "m"))
    program = Program.computing(ins, [(T, _combine(op, ("in", 0), terms[0]))])
    names = ("acc", *(f"x{i}" for i in range(group)), *["m"] * (form == "m"), "acc", "length")
    run = Intrinsic("rows", (program,), names)

    @inline
    def gang(acc, x, m, ld, n):
        z = off(x, 4 * ld)
        run(
            acc=acc, x0=x, x1=off(x, ld), x2=off(x, 2 * ld), x3=off(x, 3 * ld), x4=z,
            x5=off(z, ld), x6=off(z, 2 * ld), x7=off(z, 3 * ld), m=m, length=n,
        )  # fmt: skip

    return gang


# --- lowering


@dataclass(frozen=True, slots=True)
class Fold:
    """A reduction: the fold `op` of `before`, then `after`, formulas as in `reduce_rows`.

    `ints`: defined for integers too.
    """

    op: str
    before: str = "x"
    after: str = "total"
    ints: bool = True


FOLDS = {
    "ReduceSum": Fold("sum"), "ReduceMean": Fold("sum", after="total / cast(T, count)"),
    "ReduceMax": Fold("max"), "ReduceMin": Fold("min"), "ReduceProd": Fold("prod"),
    "ReduceL1": Fold("sum", "abs(x)"),
    "ReduceL2": Fold("sum", "x * x", "sqrt(total)", ints=False),
    "ReduceLogSum": Fold("sum", after="log(total)", ints=False),
    "ReduceSumSquare": Fold("sum", "x * x"), "ReduceSumTraining": Fold("sum"),
}  # fmt: skip
# Shifted by the largest element m; infinities are not shifted, for inf - inf is NaN.
_SHIFTED = Fold("sum", "exp(x - where(isinf(m), 0, m))", "log(total) + where(isinf(m), 0, m)")


@dataclass(frozen=True, slots=True)
class Stage:
    """One kernel call of a chain: x[outer, n, cols] -> y[outer, parts, cols]."""

    outer: int
    n: int
    cols: int
    parts: int

    @property
    def size(self) -> int:
        """Elements it writes."""
        return self.outer * self.parts * self.cols


def group_axes(dims: Sequence[int], axes: Sequence[int]) -> list[tuple[int, bool]]:
    """Group the axes: (size, is reduced) of the fewest groups; axes of size 1 vanish."""
    out: list[tuple[int, bool]] = []
    for i, d in enumerate(dims):
        if d == 1:
            continue
        if out and out[-1][1] == (i in axes):
            out[-1] = (out[-1][0] * d, out[-1][1])
        else:
            out.append((d, i in axes))
    return out


def chain(walk: list[tuple[int, bool]], threads: int, narrow: bool = True) -> Iterator[Stage]:
    """Yield the calls that reduce the marked groups, the innermost first.

    Few outputs of many elements are first made `parts` partial results each, so that every thread
    has work.  `narrow`: rows of few columns are first taken several at a time, as longer rows.
    """
    while any(reduced for _, reduced in walk):
        at = max(i for i, (_, reduced) in enumerate(walk) if reduced)
        outer = math.prod(size for size, _ in walk[:at])
        n, cols = walk[at][0], math.prod(size for size, _ in walk[at + 1 :])
        if narrow and 1 < cols < 64 and n * cols > 4096:
            most = min(512 // cols, n // 8)
            wide = next(f for f in range(most, 0, -1) if n % f == 0)
            if wide > 1:
                walk = [*walk[:at], (n // wide, True), (wide, True), (cols, False)]
                yield Stage(outer, n // wide, wide * cols, 1)
                walk = [*walk[:at], (wide, True), (cols, False)]
                continue
        items = outer * max(cols // 64, 1)
        even = items >= 4 * threads or items % threads == 0
        parts = 1 if even or n < 8 * threads or outer * n * cols < 16384 else threads
        walk = [*walk[:at], *([(parts, True)] if parts > 1 else []), *walk[at + 1 :]]
        yield Stage(outer, n, cols, parts)


def fold_axes(
    lowering: Lowering,
    fold: Fold,
    x: Operand,
    axes: Sequence[int],
    y: Operand,
    m: Operand | None = None,
) -> None:
    """Call the kernels of y = fold of x over the axes; y may be a gradient buffer to add to.

    `m`: a second operand of the shape of the result that `before` and `after` read.
    """
    (T, S), reset = find_stored(x), lowering.reset(0)
    count = math.prod(x.type.dims[a] for a in axes)
    before, after = fold.before, fold.after
    stages = list(chain(group_axes(x.type.dims, axes), lowering.threads, narrow=m is None))
    if not stages:
        values = {"total": expression.parse(before, ("x",), T=T), "count": ("const", count)}
        formula = expression.parse(after, T=T, values=values)
        if reset is None:
            like = Operand(x.name, y.type.but(dtype=x.type.dtype))
            return lower_map(lowering, [formula], [like], [y])
        return _add_map(lowering, formula, x, y, reset)
    for i, stage in enumerate(stages):
        last = i == len(stages) - 1
        out = y if last else lowering.temp(T, (stage.size,))
        form = "m" if m else "u" if last and reset else "-"
        end = after if last else "total"
        if form == "u":
            end = f"where(flag, {end}, y + {end})"
        _call(
            lowering,
            stage,
            (T, fold.op, "x" if i else before, end, form, *(() if i else S)),
            (x, m, out, reset),
            count,
        )
        x = out
    return None


def _add_map(lowering: Lowering, formula: Expr, x: Operand, y: Operand, reset: Operand) -> None:
    """y = reset ? formula(x) : y + formula(x), element by element."""
    value = expression.substitute(formula, [("in", 1)])
    flag = Operand(reset.name, TensorType("b1", ()))
    like = Operand(x.name, y.type.but(dtype=x.type.dtype))
    update(lowering, ("where", ("in", 2), value, ("add", ("in", 0), value)), [y, like, flag], y)


def _call(
    lowering: Lowering,
    stage: Stage,
    params: tuple[str, ...],
    operands: tuple[Operand, Operand | None, Operand, Operand | None],
    count: int,
) -> None:
    """Append one kernel call of a chain."""
    x, m, y, reset = operands
    flag = reset if params[4] == "u" else None
    outer, n, cols, parts = stage.outer, stage.n, stage.cols, stage.parts
    if cols == 1:
        words = ROW_WORDS.pack(rows=outer, n=n, parts=parts, count=count)
        lowering.call(reduce_rows(*params), x=x, m=m, y=y, flag=flag, g=words)
        return
    share_of = -(-cols * outer * parts // lowering.threads)
    block = min(max(-(-share_of // 16) * 16, 64), 1024)
    work = lowering.temp(params[0], (lowering.threads, block))
    words = COLUMN_WORDS.pack(outer=outer, n=n, cols=cols, parts=parts, block=block, count=count)
    lowering.call(reduce_cols(*params), x=x, m=m, y=y, flag=flag, work=work, g=words)


def lower_logsumexp(lowering: Lowering, x: Operand, axes: Sequence[int], y: Operand) -> None:
    """y = log sum exp x over the axes, group by group: it is associative."""
    walk = group_axes(x.type.dims, axes)
    if not any(reduced for _, reduced in walk):
        return lower_map(lowering, [("in", 0)], [Operand(x.name, y.type)], [y])
    T = x.type.dtype
    while any(reduced for _, reduced in walk):
        at = max(i for i, (_, reduced) in enumerate(walk) if reduced)
        x = Operand(x.name, TensorType(T, tuple(size for size, _ in walk)))
        walk = [*walk[:at], *walk[at + 1 :]]
        dims = [size for size, _ in walk]
        last = not any(reduced for _, reduced in walk)
        out = y if last else lowering.temp(T, dims)
        m = lowering.temp(T, dims)
        fold_axes(lowering, FOLDS["ReduceMax"], x, [at], m)
        fold_axes(lowering, _SHIFTED, x, [at], out, m)
        x = out
    return None


FOLD_KERNELS = (
    reduce_rows,
    reduce_cols,
    *MAP_KERNELS,
)  # what `fold_axes` and `lower_logsumexp` call
KERNELS = (reduce_rows, reduce_cols)
