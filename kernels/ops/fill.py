"""Tensors whose elements depend on their positions: ConstantOfShape, Range, EyeLike, Trilu.

Forward   Range y[i] = start + i delta;  EyeLike y[i, i + k] = 1, 0 elsewhere;
          Trilu y[.., i, j] = x where j >= i + k (upper) or j <= i + k (lower), 0 elsewhere
Backward  Trilu: dX = Trilu(dY); nothing flows through the others
Error     Range of floats: computed in float64 and rounded once
"""

from __future__ import annotations

import math

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.kernels.loops.map import MAP_KERNELS, lower_map
from engine.kernels.machine.target import Target
from engine.kernels.ops.elementwise import read_dtype
from engine.kernels.ops.movement import copy, find_bits, strided_copy
from engine.kernels.ops.shape import infer_nothing, unknown
from engine.kernels.vocabulary.facts import Movement, Samples
from engine.kernels.vocabulary.kernel import (
    MOVED,
    NUMBER,
    Body,
    imax,
    imin,
    kernel,
    off,
    share,
    udiv,
)
from engine.kernels.vocabulary.op import Grad, Lowering, Op, Site, TensorType
from engine.kernels.vocabulary.row_program import loop
from engine.kernels.vocabulary.shape_rules import make_symbol

# --- kernels


@kernel("start, delta: T[1] if n   y: out T[n]   n: i64", T=NUMBER)
def count_up(target: Target, T: str) -> Body:
    """y[i] = start[0] + i delta[0], i < n."""

    def body(start, delta, y, n, tid, nthreads):
        begin, end = share(n, tid, nthreads)
        for i in range(begin, end):
            # Each element by itself: adding delta step by step would add up rounding errors.
            y[i] = start[0] + i * delta[0]

    return body


@kernel(
    """
    x: T[rows, n]   k: i64[1]   y: out T[rows, n] may alias x
    rows: i64   m: i64 where m >= 1   n: i64
    """,
    T=MOVED,
)
def triangle(target: Target, T: str, upper: int) -> Body:
    """y[r, j] = x[r, j] if j - i >= k[0] (upper) or <= k[0] (lower), otherwise 0; i = r mod m."""
    copy_run = loop(T, "x[] -> y[] = x")
    zero = loop(T, "-> y[] = 0")

    def body(x, k, y, rows, m, n, tid, nthreads):
        # k may be any integer: clamped to where it changes nothing, so that sums do not overflow.
        shift = imax(imin(k[0], n), -m)
        first, last = share(rows, tid, nthreads)
        for r in range(first, last):
            # Rows of all matrices lie one after another; i is the row within its own.
            i = r - udiv(r, m) * m
            source, to = off(x, r * n), off(y, r * n)
            if upper:
                cut = imax(imin(i + shift, n), 0)
                zero(to, cut)
                copy_run(off(source, cut), off(to, cut), n - cut)
            else:
                cut = imax(imin(i + shift + 1, n), 0)
                copy_run(source, to, cut)
                zero(off(to, cut), n - cut)

    return body


# --- ConstantOfShape


def _filling(site: Site) -> Array:
    """Return the element that ConstantOfShape repeats, as an array of one element."""
    value = np.asarray(site.attrs.get("value", np.zeros(1, np.float32)))
    if value.size != 1:
        site.wrong(f"value has the shape {list(value.shape)}; expected one element")
    return value.reshape(1)


def _filled_infer(site: Site) -> tuple[TensorType, ...]:
    (one,) = infer_nothing(_filling(site))
    if site.value(0) is None:
        return (unknown(site, 0, one.dtype),)
    return (one.but(site.integers(0, "the shape")),)


def _filled_fold(site: Site) -> tuple[Array, ...]:
    (out,) = _filled_infer(site)
    return (np.broadcast_to(_filling(site)[0], out.dims),)


def _filled_lower(lowering: Lowering) -> None:
    lower_map(lowering, [("const", _filling(lowering.site)[0].item())], [], [lowering.y(0)])


# --- Range


def _read_range(site: Site) -> tuple[Array, Array, int]:
    """Return start, step and number of elements."""
    start, limit, delta = (site.number(i, "a bound") for i in range(3))
    if delta == 0:
        site.wrong("the step (input 2) is 0; expected another number")
    # ONNX: max(ceil((limit - start) / delta), 0) elements.
    count = math.ceil((limit.item() - start.item()) / delta.item())
    return start, delta, max(count, 0)


def _range_infer(site: Site) -> tuple[TensorType, ...]:
    if any(site.value(i) is None for i in range(3)):
        return (site.type(0).but([make_symbol(site, 0)]),)
    return (site.type(0).but([_read_range(site)[2]]),)


def _range_fold(site: Site) -> tuple[Array, ...]:
    start, delta, count = _read_range(site)
    return ((start + np.arange(count) * delta).astype(start.dtype),)


def _range_lower(lowering: Lowering) -> None:
    y = lowering.y(0)
    start, delta = lowering.x(0), lowering.x(2)
    lowering.call(count_up(y.type.dtype), start=start, delta=delta, y=y, n=y.type.size)


# --- EyeLike


def _eye_infer(site: Site) -> tuple[TensorType, ...]:
    t, to = site.type(0), site.attrs.get("dtype")
    if t.rank != 2:
        site.wrong(f"input 0 is {t}; expected a matrix")
    return (t.but(dtype=t.dtype if to is None else read_dtype(site, to)),)


def _eye_lower(lowering: Lowering) -> None:
    """Append the calls for y = 0; y[diagonal] = 1."""
    y, k = lowering.y(0), lowering.site.attrs["k"]
    lower_map(lowering, [("const", 0)], [], [y])
    m, n = y.type.dims
    row, col = max(-k, 0), max(k, 0)
    count = min(m - row, n - col)
    if count > 0:
        one = lowering.const(np.ones(1, NUMPY[y.type.dtype]))
        # The diagonal is a line of stride n + 1, and its source one element of stride 0.
        copy(lowering, one, y, [count], ([0], [n + 1]), (0, row * n + col), "u")


# --- Trilu


def _trilu_lower(lowering: Lowering) -> None:
    x, y = lowering.x(0), lowering.y(0)
    if y.type.size == 0:
        return
    # k may be computed, so the kernel reads it from memory.
    k = lowering.x(1) if lowering.site.has(1) else lowering.const(np.array(0))
    *_, m, n = y.type.dims
    kernel_ = triangle(find_bits(y.type.dtype), int(bool(lowering.site.attrs["upper"])))
    lowering.call(kernel_, x=x, k=k, y=y, rows=y.type.size // n, m=m, n=n)


def _trilu_infer(site: Site) -> tuple[TensorType, ...]:
    t = site.type(0)
    if t.rank < 2:
        site.wrong(f"input 0 is {t}; expected matrices, [..., m, n]")
    if site.value(1) is not None:
        site.integer(1, "k")
    elif site.has(1) and site.type(1).shape not in ((), (1,)):
        site.wrong(f"k (input 1) is {site.type(1)}; expected one integer")
    return (t.but(),)


def _trilu_fold(site: Site) -> tuple[Array, ...]:
    # NumPy takes no diagonal beyond 32 bits; beyond the matrix all are the same.
    k = int(np.clip(site.integer(1, "k"), -(2**31), 2**31 - 1)) if site.has(1) else 0
    return ((np.triu if site.attrs["upper"] else np.tril)(site.known(0, "the input"), k),)


def _trilu_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = Trilu(dY, k)."""
    k = [grad.x(1)] if grad.site.has(1) else []
    return (grad.op("Trilu", dy, *k, upper=grad.site.attrs["upper"]), None)


OPS = (
    Op(
        name="ConstantOfShape",
        infer=_filled_infer,
        fold=_filled_fold,
        lower=_filled_lower,
        calls=MAP_KERNELS,
        no_gradient=frozenset((0,)),
        samples=Samples.UNIFORM,
        movement=Movement.FILLED,
    ),
    Op(
        name="Range",
        infer=_range_infer,
        fold=_range_fold,
        lower=_range_lower,
        calls=(count_up,),
        no_gradient=frozenset((0, 1, 2)),
    ),
    Op(
        name="EyeLike",
        infer=_eye_infer,
        lower=_eye_lower,
        calls=(strided_copy, *MAP_KERNELS),
        attrs={"k": 0},
        no_gradient=frozenset((0,)),
        type_only=frozenset((0,)),
    ),
    Op(
        name="Trilu",
        infer=_trilu_infer,
        lower=_trilu_lower,
        calls=(triangle,),
        fold=_trilu_fold,
        grad=_trilu_grad,
        attrs={"upper": 1},
        no_gradient=frozenset((1,)),
        samples=Samples.MATRICES_APART,
    ),
)
KERNELS = (count_up, triangle)
