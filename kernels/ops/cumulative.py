"""Running sums and products along an axis: CumSum and CumProd.

Forward   y_k = op of x_j over j <= k (exclusive: j < k), from the front or from the back (reverse)
Backward  CumSum   dX = CumSum of dY in the other direction
          CumProd  dx_i = L_i R_i, L_i = prod of x_j, j < i, and R_i = dy_i + x_i+1 R_i+1
                   (exclusive: dy_i+1 + x_i+1 R_i+1), 0 after the end: exact with zeros
Error     one rounding an element, one after the other: relative to sum |x| at most k units of the
          last place, whatever the number of threads
"""

from __future__ import annotations

import math
from typing import Any

from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.facts import Samples
from engine.kernels.vocabulary.kernel import (
    NUMBER,
    Body,
    Intrinsic,
    imin,
    inline,
    kernel,
    off,
    share,
    udiv,
)
from engine.kernels.vocabulary.op import OURS, Grad, Lowering, Op, Site, TensorType
from engine.kernels.vocabulary.row_program import loop, start_value
from engine.kernels.vocabulary.shape_rules import normalise_axis, same_as

BLOCK = 256  # columns that one thread takes at a time


@kernel(
    """
    x: T[outer, n, inner]   y: out T[outer, n, inner]   outer: i64   n: i64 where n >= 1
    inner, reverse: i64   exclusive: i64 where exclusive <= 1
    """,
    T=NUMBER,
    op=("sum", "prod"),
)
def accumulate(target: Target, T: str, op: str) -> Body:
    """y[a, k, b] = sum or product of x[a, j, b] over j <= k; `exclusive`: j < k.

    `reverse`: over j >= k, or j > k.
    """
    first_value, cast = start_value(op, T), Intrinsic("cast", (T, "i64"))
    start = loop(T, f"-> y[] = {first_value}")
    copy = loop(T, "x[] -> y[] = x")
    join = loop(T, f"total[] x[] -> y[] = total {'+' if op == 'sum' else '*'} x")

    @inline
    def line(x, y, n, step, exclusive):
        """One column, element by element."""
        x, y = off(x, 0 if step > 0 else n - 1), off(y, 0 if step > 0 else n - 1)
        total = cast(first_value)
        for i in range(n):
            before = total
            # One accumulator, in the order of the axis: the result has no other order.
            total = before + x[i * step] if op == "sum" else before * x[i * step]
            y[i * step] = before if exclusive != 0 else total

    @inline
    def columns(x, y, n, step, k, exclusive):
        """k columns, row by row; `step`: from one row to the next."""
        if exclusive != 0:
            start(y, k)
        else:
            copy(x, y, k)
        for i in range(1, n):
            join(off(y, (i - 1) * step), off(x, (i - exclusive) * step), off(y, i * step), k)

    def body(x, y, outer, n, inner, reverse, exclusive, tid, nthreads):
        # A single column has no vectors; columns side by side do, and threads share blocks of them.
        if inner == 1:
            first, last = share(outer, tid, nthreads)
            for r in range(first, last):
                line(off(x, r * n), off(y, r * n), n, 1 if reverse == 0 else -1, exclusive)
        else:
            blocks = udiv(inner + BLOCK - 1, BLOCK)
            first, last = share(outer * blocks, tid, nthreads)
            for i in range(first, last):
                a = udiv(i, blocks)
                j = (i - a * blocks) * BLOCK
                at = a * n * inner + j
                # From the back: the same walk with a negative step.
                if reverse != 0:
                    at += (n - 1) * inner
                step = inner if reverse == 0 else -inner
                columns(off(x, at), off(y, at), n, step, imin(BLOCK, inner - j), exclusive)

    return body


@kernel(
    """
    dy, x: T[outer, n, inner]   dx: out T[outer, n, inner]
    outer, n, inner, reverse, exclusive: i64
    """
)
def cumprod_grad(target: Target, T: str) -> Body:
    """dx[a, :, b] from dy[a, :, b] and x[a, :, b] of a running product."""
    cast = Intrinsic("cast", (T, "i64"))

    def body(dy, x, dx, outer, n, inner, reverse, exclusive, tid, nthreads):
        step = inner if reverse == 0 else -inner
        first, last = share(outer * inner, tid, nthreads)
        for r in range(first, last):
            a = udiv(r, inner)
            at = a * n * inner + r - a * inner
            if reverse != 0:
                at += (n - 1) * inner
            g, v, to = off(dy, at), off(x, at), off(dx, at)
            left, right = cast(1), cast(0)
            for i in range(n):
                # Forward: y_k = x_0 ... x_k; so dx_i = sum over k >= i of dy_k times all x_j but
                # x_i, = L_i R_i.  Dividing y by x_i would fail at zeros.  First L, then R from the
                # end.
                to[i * step] = left
                left = left * v[i * step]
            for back in range(n):
                i = (n - 1 - back) * step
                if exclusive != 0:
                    to[i] = to[i] * right
                    right = g[i] + v[i] * right
                else:
                    right = g[i] + right
                    to[i] = to[i] * right
                    right = v[i] * right

    return body


def _walk(site: Site, t: TensorType) -> dict[str, Any]:
    """Return [outer, n, inner] around the axis, and whether reversed and exclusive, by name."""
    axis = normalise_axis(site, site.integer(len(site.ins) - 1, "the axis"), t.rank)
    dims = t.dims
    return {
        "outer": math.prod(dims[:axis]), "n": dims[axis], "inner": math.prod(dims[axis + 1 :]),
        "reverse": int(bool(site.attrs["reverse"])),
        "exclusive": int(bool(site.attrs["exclusive"])),
    }  # fmt: skip


def _lower(lowering: Lowering) -> None:
    x, y = lowering.x(0), lowering.y(0)
    if y.type.size:
        op = "sum" if lowering.site.op == "CumSum" else "prod"
        lowering.call(accumulate(y.type.dtype, op), x=x, y=y, **_walk(lowering.site, x.type))


def _grad_lower(lowering: Lowering) -> None:
    dy, x, dx = lowering.x(0), lowering.x(1), lowering.y(0)
    if dx.type.size:
        walk = _walk(lowering.site, x.type)
        lowering.call(cumprod_grad(dx.type.dtype), dy=dy, x=x, dx=dx, **walk)


def _grad_infer(site: Site) -> tuple[TensorType, ...]:
    x = site.real(1)
    site.shaped(0, x.shape)
    return (x.but(),)


def _sum_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = CumSum(dY) in the other direction."""
    attrs = {"exclusive": grad.site.attrs["exclusive"], "reverse": 1 - grad.site.attrs["reverse"]}
    return (grad.op("CumSum", dy, grad.x(1), **attrs), None)


def _prod_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = CumProdGrad(dY, X, axis)."""
    attrs = {name: grad.site.attrs[name] for name in WAYS}
    return (grad.op("CumProdGrad", dy, grad.x(0), grad.x(1), domain=OURS, **attrs), None)


WAYS = {"exclusive": 0, "reverse": 0}

OPS = (
    *(
        Op(
            name=name,
            infer=same_as(0),
            by_reference=True,
            lower=_lower,
            calls=(accumulate,),
            grad=grad,
            attrs=WAYS,
            no_gradient=frozenset((1,)),
            samples=Samples.INPUT_AXIS_APART,
        )
        for name, grad in (("CumSum", _sum_grad), ("CumProd", _prod_grad))
    ),
    Op(
        name="CumProdGrad",
        domain=OURS,
        inputs=(3, 3),
        outputs=1,
        gradient_of="CumProd",
        infer=_grad_infer,
        lower=_grad_lower,
        calls=(cumprod_grad,),
        attrs=WAYS,
    ),
)
KERNELS = (accumulate, cumprod_grad)
