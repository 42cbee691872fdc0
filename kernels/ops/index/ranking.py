"""Order along an axis: TopK, ArgMax and ArgMin.

Forward   TopK: the k largest (or smallest) of x[a, :, b] with indices, the best first; of equals
          the lower index comes first; NaN is larger than anything, as in numpy and torch
Backward  TopK: dX = GatherElementsGrad: dY at the indices, 0 elsewhere
Error     none: elements are compared and copied

Few elements are found by a heap of the k best so far, the worst on top: O(n log k), without a sort
of the rest; many by a merge sort.  Indices break ties, so the order is the only one.
Unsorted TopK is sorted too.
"""

from __future__ import annotations

import math
from typing import Any

from engine.kernels.machine.target import Target
from engine.kernels.ops.index.gather import walk_axis
from engine.kernels.vocabulary.facts import Samples
from engine.kernels.vocabulary.kernel import (
    ANY,
    NUMBER,
    Body,
    Inline,
    imin,
    inline,
    kernel,
    off,
    share,
    udiv,
)
from engine.kernels.vocabulary.op import MS, Grad, Lowering, Op, Site, TensorType
from engine.kernels.vocabulary.shape_rules import normalise_axis

FEW = 16  # the best by a heap, when they are fewer than one in so many
BLOCK = 256  # columns that one thread takes at a time

# --- kernels


def _before(sign: int) -> Inline:
    """Return an inline function before(x, i, y, j): whether x at i comes before y at j."""

    @inline
    def largest(x, i, y, j):
        if x == y or (x != x and y != y):
            return i < j
        return x > y or x != x

    @inline
    def smallest(x, i, y, j):
        if x == y or (x != x and y != y):
            return i < j
        return x < y or y != y

    return largest if sign > 0 else smallest


def _beats(sign: int) -> Inline:
    """Return an inline function: beats(x, y), whether x comes before a y of a lower index."""

    @inline
    def largest(x, y):
        return (x > y) | ((x != x) & (y == y))

    @inline
    def smallest(x, y):
        return (x < y) | ((y != y) & (x == x))

    return largest if sign > 0 else smallest


@kernel(
    """
    x: T[outer, n, inner]   y: out T[outer, k, inner]   index: out i64[outer, k, inner]
    heap: scratch T[threads, k]   places: scratch i64[threads, k]
    outer, n, inner: i64   k: i64 where 1 <= k <= n
    """,
    T=ANY,
    sign=(-1, 1),
)
def top_k(target: Target, T: str, sign: int) -> Body:
    """y[a, :, b], index[a, :, b] = the k <= n first of x[a, :, b] by `sign`, and where they were.

    sign: 1 for the largest, -1 for the smallest.
    """
    before, beats = _before(sign), _beats(sign)

    @inline
    def sink(heap, places, size, v, p):
        """Put (v, p) into the heap, whose top is free and whose worst element belongs on top."""
        i = 0
        while 2 * i + 1 < size:
            c = 2 * i + 1
            # The worse of the two children, as the worst belongs on top.
            if c + 1 < size and before(heap[c], places[c], heap[c + 1], places[c + 1]):
                c += 1
            if not before(v, p, heap[c], places[c]):
                break
            heap[i], places[i] = heap[c], places[c]
            i = c
        heap[i], places[i] = v, p

    def body(x, y, index, heap, places, outer, n, inner, k, tid, nthreads):
        h, w = off(heap, tid * k), off(places, tid * k)
        first, last = share(outer * inner, tid, nthreads)
        for r in range(first, last):
            a = udiv(r, inner)
            b = r - a * inner
            row = off(x, a * n * inner + b)
            # A heap of the first k elements, the worst on top: an element rises while it is worse.
            for c in range(k):
                v, i = row[c * inner], c
                while i > 0:
                    up = (i - 1) >> 1
                    if before(v, c, h[up], w[up]):
                        break
                    h[i], w[i] = h[up], w[up]
                    i = up
                h[i], w[i] = v, c
            worst = h[0]
            # Most elements do not beat the worst of the best, and cost one comparison.
            for c in range(k, n):
                v = row[c * inner]
                if beats(v, worst):
                    sink(h, w, k, v, c)
                    worst = h[0]
            # The worst leaves first, so the output is filled from its end.
            for left in range(k):
                size = k - 1 - left
                at = (a * k + size) * inner + b
                y[at], index[at] = h[0], w[0]
                sink(h, w, size, h[size], w[size])

    return body


@kernel(
    """
    x: T[outer, n, inner]   y: out T[outer, k, inner]   index: out i64[outer, k, inner]
    work: scratch T[threads, 2, n]   places: scratch i64[threads, 2, n]
    outer, n, inner: i64   k: i64 where k <= n
    """,
    T=ANY,
    sign=(-1, 1),
)
def sort(target: Target, T: str, sign: int) -> Body:
    """As top_k, by merging runs of 1, 2, 4, ... elements."""
    beats = _beats(sign)

    @inline
    def merge(p, pi, q, qi, begin, middle, end):
        """q[begin:end] = the sorted p[begin:middle] and p[middle:end]; of equals the left first."""
        left, right, to = begin, middle, begin
        while left < middle and right < end:
            v, i, w, j = p[left], pi[left], p[right], pi[right]
            # Without a branch: which side wins is random, so a branch would be mispredicted often.
            other = 1 if beats(w, v) else 0
            q[to] = w if other != 0 else v
            qi[to] = j if other != 0 else i
            right += other
            left += 1 - other
            to += 1
        while left < middle:
            q[to], qi[to] = p[left], pi[left]
            left += 1
            to += 1
        while right < end:
            q[to], qi[to] = p[right], pi[right]
            right += 1
            to += 1

    def body(x, y, index, work, places, outer, n, inner, k, tid, nthreads):
        p, pi = off(work, 2 * tid * n), off(places, 2 * tid * n)
        q, qi = off(p, n), off(pi, n)
        first, last = share(outer * inner, tid, nthreads)
        for r in range(first, last):
            a = udiv(r, inner)
            b = r - a * inner
            row = off(x, a * n * inner + b)
            for c in range(n):
                p[c], pi[c] = row[c * inner], c
            run = 1
            while run < n:
                begin = 0
                while begin < n:
                    middle = imin(begin + run, n)
                    end = imin(middle + run, n)
                    merge(p, pi, q, qi, begin, middle, end)
                    begin = end
                # Merged runs are in the other buffer.
                p, pi, q, qi = q, qi, p, pi
                run *= 2
            for c in range(k):
                at = (a * k + c) * inner + b
                y[at], index[at] = p[c], pi[c]

    return body


@kernel(
    """
    x: T[outer, n, inner]   y: out i64[outer, inner]
    outer: i64   n: i64 where n >= 1   inner, latest: i64
    """,
    T=NUMBER,
    sign=(-1, 1),
)
def arg_extreme(target: Target, T: str, sign: int) -> Body:
    """y[a, b] = index of the largest sign x[a, :, b]; NaN is best; first or latest of equals."""

    @inline
    def beats(v, best, latest):
        # No comparison with NaN is true, so NaN is asked for by itself.
        better = v > best if sign > 0 else v < best
        return better or (v != v and best == best) or (latest != 0 and v == best)

    def body(x, y, outer, n, inner, latest, tid, nthreads):
        if inner == 1:
            first, last = share(outer, tid, nthreads)
            for a in range(first, last):
                row = off(x, a * n)
                best, at = row[0], 0
                for c in range(1, n):
                    if beats(row[c], best, latest):
                        best, at = row[c], c
                y[a] = at
        else:
            blocks = udiv(inner + BLOCK - 1, BLOCK)
            first, last = share(outer * blocks, tid, nthreads)
            for i in range(first, last):
                a = udiv(i, blocks)
                j = (i - a * blocks) * BLOCK
                columns, to = off(x, a * n * inner + j), off(y, a * inner + j)
                # Columns are walked along memory; `to` holds the best place of each so far.
                wide = imin(BLOCK, inner - j)
                for b in range(wide):
                    to[b] = 0
                for c in range(1, n):
                    for b in range(wide):
                        if beats(columns[c * inner + b], columns[to[b] * inner + b], latest):
                            to[b] = c

    return body


# --- shapes, lowering, gradients


def _count(site: Site) -> int:
    given = site.attrs.get("k")
    k = site.integer(1, "k") if given is None else int(given)
    if k < 0:
        site.wrong(f"k is {k}; expected 0 or more")
    return k


def _top_infer(site: Site) -> tuple[TensorType, ...]:
    t = site.type(0)
    axis, k = normalise_axis(site, site.attrs["axis"], t.rank), _count(site)
    n = t.shape[axis]
    if isinstance(n, int) and k > n:
        site.wrong(f"k is {k}, but axis {axis} has {n} elements")
    shape = (*t.shape[:axis], k, *t.shape[axis + 1 :])
    return t.but(shape), TensorType("i64", shape)


def _top_lower(lowering: Lowering) -> None:
    x, k = lowering.x(0), _count(lowering.site)
    outer, n, inner = walk_axis(lowering.site, x.type)
    shape, T = (outer, k, inner), x.type.dtype
    if math.prod(shape) == 0:
        return
    y = lowering.y(0) if lowering.wants(0) else lowering.temp(T, shape)
    index = lowering.y(1) if lowering.wants(1) else lowering.temp("i64", shape)
    # A heap costs about n comparisons if few elements enter it, a merge sort n log n.
    few = k * FEW <= n
    work = [lowering.temp(kind, (lowering.threads, k if few else 2 * n)) for kind in (T, "i64")]
    sign = 1 if lowering.site.attrs["largest"] else -1
    first: dict[str, Any] = {"heap" if few else "work": work[0]}
    lowering.call(
        (top_k if few else sort)(T, sign), x=x, y=y, index=index, **first, places=work[1],
        outer=outer, n=n, inner=inner, k=k,
    )  # fmt: skip


def _top_grad(grad: Grad, dy: str | None, *_: str | None) -> tuple[str | None, ...]:
    """dX = GatherElementsGrad(dY, Shape(X), indices)."""
    if dy is None:
        return (None, None)
    # Forward: y = x[index]; so dx is dy at the index, 0 elsewhere.
    shape, axis = grad.op("Shape", grad.x(0)), grad.site.attrs["axis"]
    return (grad.op("GatherElementsGrad", dy, shape, grad.y(1), domain=MS, axis=axis), None)


def _arg_infer(site: Site) -> tuple[TensorType, ...]:
    t, keep = site.type(0), site.attrs["keepdims"]
    axis = normalise_axis(site, site.attrs["axis"], t.rank)
    if t.shape[axis] == 0:
        site.wrong(f"axis {axis} has no elements to compare")
    dims = (*t.shape[:axis], *([1] if keep else []), *t.shape[axis + 1 :])
    return (TensorType("i64", dims),)


def _arg_lower(lowering: Lowering) -> None:
    x, sign = lowering.x(0), 1 if lowering.site.op == "ArgMax" else -1
    outer, n, inner = walk_axis(lowering.site, x.type)
    lowering.call(
        arg_extreme(x.type.dtype, sign), x=x, y=lowering.y(0), outer=outer, n=n, inner=inner,
        latest=lowering.site.attrs["select_last_index"],
    )  # fmt: skip


def _arg(name: str) -> Op:
    return Op(
        name=name,
        infer=_arg_infer,
        by_reference=True,
        lower=_arg_lower,
        calls=(arg_extreme,),
        no_gradient=frozenset((0,)),
        attrs={"axis": 0, "keepdims": 1, "select_last_index": 0},
        samples=Samples.REDUCED_AXIS,
    )


OPS = (
    Op(
        name="TopK",
        by_reference=True,
        infer=_top_infer,
        lower=_top_lower,
        calls=(top_k, sort),
        grad=_top_grad,
        no_gradient=frozenset((1,)),
        attrs={"axis": -1, "largest": 1, "sorted": 1},
        samples=Samples.AXIS_APART,
    ),
    _arg("ArgMax"),
    _arg("ArgMin"),
)
KERNELS = (top_k, sort, arg_extreme)
