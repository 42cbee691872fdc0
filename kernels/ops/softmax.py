"""Softmax, LogSoftmax and their gradients, along one axis.

Forward   y = exp(x - m) / s,  log y = (x - m) - log s,  with m = max x, s = sum exp(x - m)
Backward  dx = y (dy - sum y dy);  log: dx = dy - exp(y) sum dy.  Both need y, never x
Error     relative (|x - m| + 5) 2^-24 beside the error of the sum s (fold.py), x - m being rounded;
          log: absolute, 3 ulp of max(|y|, 1).  A row of nothing but -inf, or with NaN or +inf,
          gives NaN.  Halves are computed with as float32, and results rounded once

Tensors are viewed as [outer, n, inner]: with inner = 1, vectors run along rows, otherwise along
`inner`.  Before opset 13, the axis and all axes after it were one: the input is viewed as
[outer, n].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.facts import Samples, Storage
from engine.kernels.vocabulary.kernel import (
    Body,
    Instance,
    Intrinsic,
    imin,
    inline,
    kernel,
    off,
    share,
    udiv,
)
from engine.kernels.vocabulary.op import (
    MS,
    Grad,
    Lowering,
    Op,
    Operand,
    Site,
    TensorType,
    find_stored,
)
from engine.kernels.vocabulary.row_program import loop
from engine.kernels.vocabulary.shape_rules import normalise_axis
from engine.kernels.vocabulary.signature import round_to_unit

BLOCK = 256  # columns whose running values stay in the first-level cache


# By `log`: y of x, the maximum m, and s, the logarithm or the inverse of the sum.
_AGAIN = {0: "exp(x - m) * s", 1: "x - m - s"}


@kernel("x: S[rows, n]  y: out S[rows, n] may alias x  rows, n: i64")
def softmax_rows(target: Target, T: str, log: int, S: str = "") -> Body:
    """y[r] = softmax(x[r]), or its logarithm.  S: how x and y are stored."""
    # Forward, in three passes over a row that stays in the cache: maximum, exponentials with their
    # sum, division.  Subtracting the maximum keeps exp from overflowing.
    largest = loop(T, "x:S[] -> max(x)", S)
    exps = loop(T, "x[] m -> e = exp(x - m); y[] = e; sum(e)")
    divide = loop(T, "e[] k -> y[] = e * k")
    total = loop(T, "x:S[] m -> sum(exp(x - m))", S)
    end = loop(T, f"x:S[] m s -> y:S[] = {_AGAIN[log]}", S)
    reciprocal, logarithm = loop(T, "s -> 1 / s"), loop(T, "s -> log(s)")

    @inline
    def plain(x, y, n):
        s = exps(x, largest(x, n), y, n)
        divide(y, reciprocal(s, 1), y, n)

    of_sum = logarithm if log else reciprocal

    @inline
    def twice(x, y, n):
        m = largest(x, n)
        end(x, m, of_sum(total(x, m, n), 1), y, n)

    # Exponentials that y kept in 16 bits would be rounded twice.
    row = twice if log or S else plain

    def body(x, y, rows, n, tid, nthreads):
        first, last = share(rows, tid, nthreads)
        for r in range(first, last):
            row(off(x, r * n), off(y, r * n), n)

    return body


@kernel(
    """
    x: S[outer, n, inner]   y: out S[outer, n, inner] may alias x
    work: scratch T[threads, 2, block]
    outer: i64   n: i64 where n >= 1   inner: i64   block: i64 where block >= 1
    """
)
def softmax_cols(target: Target, T: str, log: int, S: str = "") -> Body:
    """y[a, :, j] = softmax(x[a, :, j]), or its logarithm.

    work: maximum and sum of `block` columns at a time.  S: how x and y are stored.
    """
    first_max = loop(T, "x:S[] -> m[] = x", S)
    more_max = loop(T, "x:S[] m[] -> m[] = max(x, m)", S)
    zero, invert = loop(T, "-> s[] = 0"), loop(T, f"s[] -> s[] = {'log(s)' if log else '1 / s'}")
    # y keeps the exponentials, as an exp costs more than a load; the logarithm needs x itself, and
    # exponentials in 16 bits would be rounded twice.
    collect = loop(T, "x[] m[] s[] -> e = exp(x - m); y[] = e; s[] = s + e")
    end = loop(T, "y[] s[] -> y[] = y * s")
    if log or S:
        collect = loop(T, "s[] x:S[] m[] -> s[] = s + exp(x - m)", S)
        end = loop(T, f"x:S[] m[] s[] -> y:S[] = {_AGAIN[log]}", S)

    def body(x, y, work, outer, n, inner, block, tid, nthreads):
        # Vectors run along `inner`: each lane is a softmax of its own.  A block's maxima and sums
        # stay in the first-level cache while its rows stream by.
        blocks = udiv(inner + block - 1, block)
        m = off(work, tid * 2 * block)
        s = off(m, block)
        first, last = share(outer * blocks, tid, nthreads)
        for i in range(first, last):
            a = udiv(i, blocks)
            j = (i - a * blocks) * block
            k = imin(block, inner - j)
            at = a * n * inner + j
            first_max(off(x, at), m, k)
            for c in range(1, n):
                more_max(off(x, at + c * inner), m, m, k)
            zero(s, k)
            for c in range(n):
                p = at + c * inner
                collect(x=off(x, p), y=off(y, p), m=m, s=s, length=k)
            invert(s, s, k)
            for c in range(n):
                p = at + c * inner
                end(x=off(x, p), y=off(y, p), m=m, s=s, length=k)

    return body


@kernel("x: S[rows, n]  lse: out T[2, rows]  rows: i64  n: i64 where n >= 1")
def log_sums_rows(target: Target, T: str, S: str = "") -> Body:
    """lse[0, r] = m = max x[r], lse[1, r] = log sum exp(x[r] - m).  S: how x is stored.

    Apart: their sum would round away the logarithm where |m| is large.
    """
    largest = loop(T, "x:S[] -> max(x)", S)
    total = loop(T, "x:S[] m -> sum(exp(x - m))", S)
    logarithm = loop(T, "s -> log(s)")

    def body(x, lse, rows, n, tid, nthreads):
        first, last = share(rows, tid, nthreads)
        for r in range(first, last):
            row = off(x, r * n)
            m = largest(row, n)
            lse[r] = m
            lse[rows + r] = logarithm(total(row, m, n), 1)

    return body


@kernel(
    """
    x: S[outer, n, inner]   lse: out T[2, outer, inner]
    outer: i64   n: i64 where n >= 1   inner: i64   block: i64 where block >= 1
    """
)
def log_sums_cols(target: Target, T: str, S: str = "") -> Body:
    """As `log_sums_rows`, of x[a, :, j] for all a and j, by blocks of columns."""
    first_max = loop(T, "x:S[] -> m[] = x", S)
    more_max = loop(T, "x:S[] m[] -> m[] = max(x, m)", S)
    collect = loop(T, "x:S[] m[] s[] -> s[] = s + exp(x - m)", S)
    logarithm = loop(T, "s[] -> s[] = log(s)")
    zero = Intrinsic("zero", (T,))

    def body(x, lse, outer, n, inner, block, tid, nthreads):
        blocks = udiv(inner + block - 1, block)
        first, last = share(outer * blocks, tid, nthreads)
        for i in range(first, last):
            a = udiv(i, blocks)
            j = (i - a * blocks) * block
            k = imin(block, inner - j)
            at = a * n * inner + j
            m = off(lse, a * inner + j)
            s = off(m, outer * inner)
            first_max(off(x, at), m, k)
            for c in range(1, n):
                more_max(off(x, at + c * inner), m, m, k)
            zero(s, k)
            for c in range(n):
                collect(off(x, at + c * inner), m, s, s, k)
            logarithm(s, s, k)

    return body


# By `log`: what is summed, and dx of dy, y and the sum.
_GRAD = {0: ("dy * y", "y * (dy - total)"), 1: ("dy", "dy - exp(y) * total")}


@kernel("dy, y: S[rows, n]   dx: out S[rows, n] may alias dy, y   rows, n: i64")
def softmax_grad_rows(target: Target, T: str, log: int, S: str = "") -> Body:
    """dx[r] from dy[r] and y[r], of softmax or its logarithm.  S: how they are stored."""
    sums, formula = _GRAD[log]
    # Forward: y = softmax(x); so dx = y (dy - sum y dy).  Forward: y = log softmax(x); so dx = dy -
    # exp(y) sum dy.  Both need the sum of a row before its first element.
    total = loop(T, f"dy:S[] y:S[] -> sum({sums})", S)
    write = loop(T, f"dy:S[] y:S[] total -> dx:S[] = {formula}", S)

    def body(dy, y, dx, rows, n, tid, nthreads):
        first, last = share(rows, tid, nthreads)
        for r in range(first, last):
            g, v = off(dy, r * n), off(y, r * n)
            write(g, v, total(g, v, n), off(dx, r * n), n)

    return body


@kernel(
    """
    dy, y: S[outer, n, inner]   dx: out S[outer, n, inner] may alias dy, y
    work: scratch T[threads, 2, block]
    outer: i64   n: i64 where n >= 1   inner: i64   block: i64 where block >= 1
    """
)
def softmax_grad_cols(target: Target, T: str, log: int, S: str = "") -> Body:
    """dx[a, :, j] from dy and y, of softmax or its logarithm.

    work: sums of `block` columns at a time.  S: how dy, y and dx are stored.
    """
    sums, formula = _GRAD[log]
    # As by rows, with a vector of sums, one a column.
    zero = loop(T, "-> total[] = 0")
    add = loop(T, f"dy:S[] y:S[] total[] -> total[] = total + {sums}", S)
    write = loop(T, f"dy:S[] y:S[] total[] -> dx:S[] = {formula}", S)

    def body(dy, y, dx, work, outer, n, inner, block, tid, nthreads):
        blocks = udiv(inner + block - 1, block)
        s = off(work, tid * 2 * block)
        first, last = share(outer * blocks, tid, nthreads)
        for i in range(first, last):
            a = udiv(i, blocks)
            j = (i - a * blocks) * block
            k = imin(block, inner - j)
            at = a * n * inner + j
            zero(s, k)
            for c in range(n):
                add(off(dy, at + c * inner), off(y, at + c * inner), s, s, k)
            for c in range(n):
                p = at + c * inner
                write(off(dy, p), off(y, p), s, off(dx, p), k)

    return body


# --- lowering, gradients


Walk = tuple[int, int, int]  # a tensor as [outer, n, inner]; n is the axis


def softmax(lowering: Lowering, x: Operand, y: Operand, walk: Walk, log: int) -> None:
    """Compute the softmax of x along n, or its logarithm."""
    T, S = find_stored(y)
    _call(lowering, softmax_rows(T, log, *S), softmax_cols(T, log, *S), walk, y, x=x, y=y)


def take_log_sums(lowering: Lowering, x: Operand, lse: Operand, walk: Walk) -> None:
    """Compute the maximum of x along n, and the logarithm of the sum of exponentials above it."""
    (T, S), (outer, n, inner) = find_stored(x), walk
    if inner == 1:
        lowering.call(log_sums_rows(T, *S), x=x, lse=lse, rows=outer, n=n)
        return
    block = _choose_block(lowering, outer * inner)
    lowering.call(log_sums_cols(T, *S), x=x, lse=lse, outer=outer, n=n, inner=inner, block=block)


def _choose_block(lowering: Lowering, columns: int) -> int:
    """Return the columns of blocks small enough that every thread has one, in whole lines."""
    return min(round_to_unit(max(-(-columns // lowering.threads), 1), 16), BLOCK)


def _call(
    lowering: Lowering, rows: Instance, cols: Instance, walk: Walk, out: Operand, **operands: Any
) -> None:
    """Call a kernel for rows, or one for columns where the axis is not the last."""
    outer, n, inner = walk
    if out.type.size == 0:
        return
    # Where the axis is the last one a softmax lies in a row of memory.
    if inner == 1:
        lowering.call(rows, **operands, rows=outer, n=n)
        return
    block = _choose_block(lowering, outer * inner)
    work = lowering.temp(find_stored(out)[0], (lowering.threads, 2, block))
    lowering.call(cols, **operands, work=work, outer=outer, n=n, inner=inner, block=block)


def _walk(site: Site, since: bool) -> Walk:
    """Return [outer, n, inner]: n is the axis, or before opset 13 all axes from it on."""
    dims = site.type(0).dims
    axis = normalise_axis(site, site.attrs.get("axis", -1 if since else 1), max(len(dims), 1))
    outer, rest = math.prod(dims[:axis]), math.prod(dims[axis + 1 :])
    n = dims[axis] if dims else 1
    return (outer, n, rest) if since else (outer, n * rest, 1)


def _forward(log: int) -> Callable[[Lowering], None]:
    def lower(lowering: Lowering) -> None:
        walk = _walk(lowering.site, lowering.site.opset >= 13)
        softmax(lowering, lowering.x(0), lowering.y(0), walk, log)

    return lower


def _backward(log: int, since: bool) -> Callable[[Lowering], None]:
    def lower(lowering: Lowering) -> None:
        dy, y, dx = lowering.x(0), lowering.x(1), lowering.y(0)
        T, S = find_stored(dx)
        rows, cols = softmax_grad_rows(T, log, *S), softmax_grad_cols(T, log, *S)
        _call(lowering, rows, cols, _walk(lowering.site, since), dx, dy=dy, y=y, dx=dx)

    return lower


def _grad(name: str) -> Callable[..., tuple[str | None, ...]]:
    def rule(grad: Grad, dy: str) -> tuple[str | None, ...]:
        new = grad.site.opset >= 13
        axis = grad.site.attrs.get("axis", -1 if new else 1)
        op = f"{name}Grad_13" if new else f"{name}Grad"
        return (grad.op(op, dy, grad.y(0), domain=MS, axis=axis),)

    return rule


def _pair(name: str, log: int) -> tuple[Op, ...]:
    """Declare the op and its two gradient ops."""
    # A logarithm y in 16 bits has an error that grows with |y|, and its gradient reads exp(y).
    storage = None if log else Storage(alike=True)
    return (
        Op(
            name=name,
            infer=lambda site: (site.real(0).but(),),
            lower=_forward(log),
            calls=SOFTMAX_KERNELS,
            grad=_grad(name),
            samples=Samples.SOFTMAX,
            storage=storage,
        ),
        Op(
            name=f"{name}Grad",
            domain=MS,
            inputs=(2, 2),
            outputs=1,
            gradient_of=name,
            takes={"axis": "int"},
            infer=_infer_grad,
            lower=_backward(log, False),
            calls=(softmax_grad_rows,),
            storage=storage,
        ),
        Op(
            name=f"{name}Grad_13",
            domain=MS,
            inputs=(2, 2),
            outputs=1,
            gradient_of=name,
            takes={"axis": "int"},
            infer=_infer_grad,
            lower=_backward(log, True),
            calls=(softmax_grad_rows, softmax_grad_cols),
            storage=storage,
        ),
    )


def _infer_grad(site: Site) -> tuple[TensorType, ...]:
    y = site.real(1)
    site.shaped(0, y.shape)
    return (y.but(),)


SOFTMAX_KERNELS = (softmax_rows, softmax_cols)  # what `softmax` calls forward
LOG_SUM_KERNELS = (log_sums_rows, log_sums_cols)  # what `take_log_sums` calls
OPS = (*_pair("Softmax", 0), *_pair("LogSoftmax", 1))
KERNELS = (*SOFTMAX_KERNELS, *LOG_SUM_KERNELS, softmax_grad_rows, softmax_grad_cols)
