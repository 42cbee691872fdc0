"""Data movement: a strided copy, and the ops that consist of it.

Forward   y[i] = x[some affine map of i]: Transpose, Expand, Tile, and the change between plain and
          channels-last storage
Backward  Transpose: by the inverse permutation; Expand, Tile: the sum over the copies
Error     none: bits are copied, whatever the type

A copy walks over dimensions, each with a stride for the source and one for the target.  It takes
them in the order of the target, and drops and joins dimensions where possible.  Then it copies
contiguous lines.  If source and target are contiguous in different directions, it transposes blocks
in registers, or interleaves lines, such as the planes of a picture.  Otherwise it copies element by
element.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.map import collapse
from engine.kernels.machine.target import Target
from engine.kernels.ops.shape import i64s, reduce_sum, unknown, unsqueeze
from engine.kernels.vocabulary.call import KernelCall, Reach, list_outer_walks
from engine.kernels.vocabulary.facts import ALIKE, LayoutChoice, Movement, Samples
from engine.kernels.vocabulary.kernel import (
    MOVED,
    Body,
    Inline,
    Intrinsic,
    Template,
    imin,
    inline,
    kernel,
    list_same_size,
    off,
    share,
    udiv,
)
from engine.kernels.vocabulary.op import OURS, Dim, Grad, Lowering, Op, Operand, Site, TensorType
from engine.kernels.vocabulary.row_program import loop
from engine.kernels.vocabulary.shape_rules import broadcast
from engine.kernels.vocabulary.tiling import Tiling
from engine.plan.words import OPEN, Field, Words

BITS = {8: "f64", 4: "f32", 2: "i16", 1: "u8"}  # the type whose bits are copied, by item size
TRANSPOSED = (BITS[8], BITS[4], BITS[2])  # those that registers transpose
WOVEN = (2, 3)  # lines that are woven into one: fewer than a transpose pays for
CHUNK = 4096  # elements of a line that one thread copies at least, when lines are few


def find_bits(dtype: str) -> str:
    """Return the element type whose bits are copied for all types of a size."""
    return BITS[ITEMSIZE[dtype]]


# --- kernels


@inline
def offsets(walk, rank, row):
    """Offsets in x and in y of outer row `row`, by the `walk` of the words."""
    x = y = 0
    d = rank
    while d > 0:
        d -= 1
        size = walk[d]
        # The last dimension first: its index is the remainder.
        rest = udiv(row, size)
        i = row - rest * size
        x += i * walk[rank + d]
        y += i * walk[2 * rank + d]
        row = rest
    return x, y


def line(T: str) -> Inline:
    """Return an inline function line(x, y, n, xs, ys): copies n elements with strides."""
    copy = loop(T, "x[] -> y[] = x")
    spread = loop(T, "x* -> y[] = x")

    @inline
    def run(x, y, n, xs, ys):
        # Lines that adjoin in y are vectors, copied or repeated; others go element by element.
        if ys == 1 and xs == 1:
            copy(x, y, n)
        elif ys == 1 and xs == 0:
            spread(x, y, n)
        else:
            for i in range(n):
                y[i * ys] = x[i * xs]

    return run


_WALK = Field(
    "the outer dimensions, the strides of x along them, then the strides of y",
    count=OPEN,
    range="signed",
)
_START: dict[str, str | Field] = {
    "x_at": Field("the first element in x", range="signed"),
    "y_at": Field("the first element in y", range="signed"),
}
COPY_WORDS = Words(
    "strided_copy",
    **_START,
    m="lines of an outer row",
    n="elements of a line",
    limit="elements of all lines of an outer row",
    line=Field("strides from line to line", names=("x", "y"), range="signed"),
    step=Field("strides along a line", names=("x", "y"), range="signed"),
    rows="product of the outer dimensions",
    rank="number of outer dimensions",
    walk=_WALK,
)
TRANSPOSE_WORDS = Words(
    "transposed_copy",
    **_START,
    p="rows of a matrix in x, columns in y",
    q="columns of a matrix in x, rows in y",
    xs=Field("elements from row to row of a matrix in x", range="signed"),
    ys=Field("elements from row to row of a matrix in y", range="signed"),
    rows="product of the outer dimensions",
    rank="number of outer dimensions",
    walk=_WALK,
)

WEAVE_WORDS = Words(
    "woven_copy",
    **_START,
    q="elements of a line of x",
    xs=Field("elements from line to line of x", range="signed"),
    rows="product of the outer dimensions",
    rank="number of outer dimensions",
    walk=_WALK,
)


def _cut_walk(layout: Words) -> Callable[[KernelCall], Tiling | None]:
    """Return how a copy is cut along the first one of its outer dimensions."""

    def rule(c: KernelCall) -> Tiling | None:
        if not c.rank:
            return None
        x, y = c.walk[c.rank], c.walk[2 * c.rank]
        if x < 0 or y <= 0:
            return None
        counts = layout.place("rows"), layout.place("walk")
        return c.cut(c.walk[0], {"x": x, "y": y}, counts=counts)

    return rule


def _copy_reach(c: KernelCall) -> Reach:
    c.check_range("walk", c.walk[: c.rank])
    outer = list_outer_walks(c, 2)
    if not c.n or not c.m or not c.rows or not c.limit:
        return {}
    c.at_most("m", c.limit)
    full = min(c.m, c.limit // c.n)
    part = c.limit - full * c.n if full < c.m else 0
    reach = {}
    for i, name in enumerate("xy"):
        start, line, step = c.numbers[f"{name}_at"], c.line[i], c.step[i]
        whole = c.span(start, *outer[i], (full, line), (c.n, step))
        last = c.span(start + full * line, *outer[i], (min(part, c.n), step))
        reach[name] = max(whole, last)
    return reach


@kernel(
    "x: T[...]  y: out T[...]  g: i64[]",
    words={"g": COPY_WORDS},
    reach=_copy_reach,
    samples=_cut_walk(COPY_WORDS),
    T=MOVED,
)
def strided_copy(target: Target, T: str) -> Body:
    """y[row, k, i] = x[row, k, i] over outer dimensions, m lines of n elements, `limit` in all.

    Strides may be 0 or negative in x.
    """
    run = line(T)

    def body(x, y, g, tid, nthreads):
        m, n, limit = g.m, g.n, g.limit
        first, last = share(g.rows * m, tid, nthreads)
        while first < last:
            row = udiv(first, m)
            begin = first - row * m
            # Lines of one outer row are a run: its offsets are computed once.
            end = imin(m, begin + last - first)
            xo, yo = offsets(g.walk, g.rank, row)
            for k in range(begin, end):
                run(
                    off(x, g.x_at + xo + k * g.line_x),
                    off(y, g.y_at + yo + k * g.line_y),
                    imin(n, limit - k * n),
                    g.step_x,
                    g.step_y,
                )
            first += end - begin

    return body


def _transpose_reach(c: KernelCall) -> Reach:
    c.check_range("walk", c.walk[: c.rank])
    x, y = list_outer_walks(c, 2)
    if not c.rows:
        return {}
    return {
        "x": c.span(c.x_at, *x, (c.p, c.xs), (c.q, 1)),
        "y": c.span(c.y_at, *y, (c.q, c.ys), (c.p, 1)),
    }


@kernel(
    "x: T[...]  y: out T[...]  g: i64[]",
    words={"g": TRANSPOSE_WORDS},
    reach=_transpose_reach,
    samples=_cut_walk(TRANSPOSE_WORDS),
    T=TRANSPOSED,
    stands_for=list_same_size,
)
def transposed_copy(target: Target, T: str) -> Body:
    """y[row, j ys + i] = x[row, i xs + j], i < p, j < q, over outer dimensions."""
    lanes = target.lanes(ITEMSIZE[T])
    block = Intrinsic("transpose", (T,))

    def body(x, y, g, tid, nthreads):
        p, q, xs, ys = g.p, g.q, g.xs, g.ys
        strips = udiv(p + lanes - 1, lanes)
        first, last = share(g.rows * strips, tid, nthreads)
        for s in range(first, last):
            row = udiv(s, strips)
            i = (s - row * strips) * lanes
            xo, yo = offsets(g.walk, g.rank, row)
            source, to = off(x, g.x_at + xo + i * xs), off(y, g.y_at + yo + i)
            wide = imin(lanes, p - i)
            j = 0
            if wide == lanes:
                # Squares of vectors are transposed in registers: rows read and columns written one
                # by one would take a cache line for each element.
                while j + lanes <= q:
                    block(off(to, j * ys), ys, off(source, j), xs)
                    j += lanes
            while j < q:
                for k in range(wide):
                    to[j * ys + k] = source[k * xs + j]
                j += 1

    return body


def _weave_reach(c: KernelCall) -> Reach:
    c.check_range("walk", c.walk[: c.rank])
    x, y = list_outer_walks(c, 2)
    k = c.flag(-1)
    if not c.rows or not c.q:
        return {}
    return {
        "x": c.span(c.x_at, *x, (k, c.xs), (c.q, 1)),
        "y": c.span(c.y_at, *y, (c.q * k, 1)),
    }


@kernel(
    "x: T[...]  y: out T[...]  g: i64[]",
    words={"g": WEAVE_WORDS},
    reach=_weave_reach,
    samples=_cut_walk(WEAVE_WORDS),
    T=MOVED,
    k=WOVEN,
)
def woven_copy(target: Target, T: str, k: int) -> Body:
    """y[row, j k + i] = x[row, i xs + j], i < k, j < q, over outer dimensions."""

    @inline
    def weave_two(x, y, xs, n):
        b = off(x, xs)
        for j in range(n):
            y[2 * j] = x[j]
            y[2 * j + 1] = b[j]

    @inline
    def weave_three(x, y, xs, n):
        b, c = off(x, xs), off(x, 2 * xs)
        for j in range(n):
            y[3 * j] = x[j]
            y[3 * j + 1] = b[j]
            y[3 * j + 2] = c[j]

    weave = weave_two if k == 2 else weave_three

    def body(x, y, g, tid, nthreads):
        parts = udiv(g.q + CHUNK - 1, CHUNK)
        first, last = share(g.rows * parts, tid, nthreads)
        for s in range(first, last):
            row = udiv(s, parts)
            j = (s - row * parts) * CHUNK
            xo, yo = offsets(g.walk, g.rank, row)
            source, to = off(x, g.x_at + xo + j), off(y, g.y_at + yo + j * k)
            weave(source, to, g.xs, imin(CHUNK, g.q - j))

    return body


# --- lowering


def copy(
    lowering: Lowering,
    x: Operand,
    y: Operand,
    dims: Sequence[int],
    strides: tuple[Sequence[int], Sequence[int]],
    start: tuple[int, int] = (0, 0),
    mode: Literal["w", "u"] = "w",
) -> None:
    """Call a copy over dims, with strides and first elements of x and of y.

    `mode` "u": other parts of y are written by other calls.
    """
    if math.prod(dims) == 0:
        return
    T = find_bits(y.type.dtype)
    xs, ys = strides
    walk = lowering.once(
        (_walk, T), [dims, xs, ys], functools.partial(_walk, T, dims, xs, ys, lowering.threads)
    )
    words = walk.words.pack(x_at=start[0], y_at=start[1], **walk.sizes)
    lowering.call(
        walk.template(T, *walk.params), x=x, y=y, g=words, updates="y" if mode == "u" else ""
    )


class _Walk(NamedTuple):
    """A walk over operands: the template, its parameters besides the type, and its words but the
    first elements.
    """

    template: Template
    params: tuple[int, ...]
    words: Words
    sizes: Mapping[str, Any]


def _walk(T: str, dims: Sequence[int], x: Sequence[int], y: Sequence[int], threads: int) -> _Walk:
    """Return the walk over dims with strides of x and y."""
    # In the order of y, so that what is written adjoins.
    order = sorted(range(len(dims)), key=lambda a: -abs(y[a]))
    size, (xs, ys) = collapse(dims, (x, y), order)
    cross = _find_crossing(size, xs, ys) if T in TRANSPOSED else None
    if cross is not None:
        # x and y are contiguous along different axes: these two are a matrix, the others its outer
        # dimensions.
        rest = [i for i in range(len(size) - 1) if i != cross]
        outer = [*(size[i] for i in rest), *(xs[i] for i in rest), *(ys[i] for i in rest)]
        rows = math.prod(size[i] for i in rest)
        sizes = {
            "p": size[-1],
            "q": size[cross],
            "xs": xs[-1],
            "ys": ys[cross],
            "rows": rows,
            "rank": len(rest),
            "walk": outer,
        }
        return _Walk(transposed_copy, (), TRANSPOSE_WORDS, sizes)
    planes = _find_planes(size, xs, ys)
    if planes is not None:
        # Lines are too few for a transpose, but a kernel that knows their number takes vectors of
        # each and shuffles them into one; element by element it is a seventh as fast.
        sizes = {
            "q": size[planes],
            "xs": xs[-1],
            "rows": math.prod(size[:planes]),
            "rank": planes,
            "walk": [*size[:planes], *xs[:planes], *ys[:planes]],
        }
        return _Walk(woven_copy, (size[-1],), WEAVE_WORDS, sizes)
    n, xi, yi = size.pop(), xs.pop(), ys.pop()
    rows, limit = math.prod(size), n
    # Few long lines are cut into chunks, so that every thread has some.
    if n >= 2 * CHUNK and rows < 4 * threads:
        m, n, xm, ym = -(-n // CHUNK), CHUNK, CHUNK * xi, CHUNK * yi
    # The dimension before the line gives the lines of a row; those before it are outer.
    elif size:
        m, xm, ym = size.pop(), xs.pop(), ys.pop()
        limit, rows = m * n, math.prod(size)
    else:
        m, xm, ym = 1, 0, 0
    sizes = {
        "m": m,
        "n": n,
        "limit": limit,
        "line": (xm, ym),
        "step": (xi, yi),
        "rows": rows,
        "rank": len(size),
        "walk": [*size, *xs, *ys],
    }
    return _Walk(strided_copy, (), COPY_WORDS, sizes)


def _find_crossing(size: Sequence[int], xs: Sequence[int], ys: Sequence[int]) -> int | None:
    """Return the axis along which x is contiguous, if it is not y's and both are long."""
    # Lines that adjoin in both, or are repeated, need no transpose; short ones do not pay for it.
    if ys[-1] != 1 or xs[-1] in (0, 1) or size[-1] < 4:
        return None
    crossing = [i for i in range(len(size) - 1) if xs[i] == 1 and size[i] >= 4]
    return crossing[0] if crossing else None


def _find_planes(size: Sequence[int], xs: Sequence[int], ys: Sequence[int]) -> int | None:
    """Return the axis of the lines of x that are woven into lines of y; None if that is not so."""
    lines = len(size) - 2
    if lines < 0 or size[-1] not in WOVEN or (ys[-1], ys[lines]) != (1, size[-1]):
        return None
    return lines if xs[lines] == 1 and xs[-1] not in (0, 1) else None


def _read_perm(site: Site) -> list[int]:
    rank = site.type(0).rank
    perm = [int(p) for p in site.attrs.get("perm", reversed(range(rank)))]
    if sorted(perm) != list(range(rank)):
        site.wrong(f"perm {perm} is not a permutation of {rank} axes")
    return perm


def _transpose_infer(site: Site) -> tuple[TensorType, ...]:
    t = site.type(0)
    return (t.but([t.shape[p] for p in _read_perm(site)]),)


def _transpose_lower(lowering: Lowering) -> None:
    x, y = lowering.x(0), lowering.y(0)
    copy(
        lowering,
        x,
        y,
        y.type.dims,
        ([x.type.strides[p] for p in _read_perm(lowering.site)], y.type.strides),
    )


def _choose_transposed_layout(site: Site, y: TensorType) -> LayoutChoice:
    """Return the layout of y that has the bytes of x, if one has, and plain otherwise.

    Channels-last x [N, C, H, W] is stored as [N, H, W, C], which is y of perm 0, 2, 3, 1.  The way
    back, 0, 3, 1, 2, makes y channels-last.
    """
    x, perm = site.type(0), _read_perm(site)
    for as_stored in y.list_layouts():
        if [perm[axis] for axis in as_stored.order] == list(x.order):
            return LayoutChoice(as_stored.last, view="TransposedView")
    return LayoutChoice(last=False)


def _transpose_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = Transpose(dY) by the inverse permutation."""
    perm = _read_perm(grad.site)
    return (grad.op("Transpose", dy, perm=[perm.index(i) for i in range(len(perm))]),)


def _layout_lower(lowering: Lowering) -> None:
    x, y = lowering.x(0), lowering.y(0)
    copy(lowering, x, y, y.type.dims, (x.type.strides, y.type.strides))


def _expand_infer(site: Site) -> tuple[TensorType, ...]:
    t = site.type(0)
    if site.value(1) is None:
        return (unknown(site, 1, t.dtype),)
    return (t.but(broadcast(site, t, t.but(site.integers(1, "the shape")))),)


def _expand_fold(site: Site) -> tuple[Array, ...]:
    (out,) = _expand_infer(site)
    if math.prod(max(d, 1) for d in out.dims) >= 1 << 60:  # with a size of 0; no array has it
        site.wrong(f"the output would have the shape {list(out.dims)}, which is too large")
    return (np.broadcast_to(site.known(0, "the input"), out.dims),)


def _expand_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = the sum of dY over the axes along which X was repeated."""
    return (grad.reduce_to(dy, 0), None)


def _read_repeats(site: Site) -> list[int]:
    return site.integers(1, "repeats")


def _tile_infer(site: Site) -> tuple[TensorType, ...]:
    t = site.type(0)
    if site.value(1) is None:
        return (unknown(site, 1, t.dtype),)
    repeats = _read_repeats(site)
    if len(repeats) != t.rank:
        site.wrong(f"repeats has {len(repeats)} numbers, but the input has rank {t.rank}")
    dims: list[Dim] = []
    for i, (d, r) in enumerate(zip(t.shape, repeats, strict=True)):
        known = d if r == 1 else f"{site.name}_d{i}"
        dims.append(d * r if isinstance(d, int) else known)
    return (t.but(dims),)


def _tile_lower(lowering: Lowering) -> None:
    x, y = lowering.x(0), lowering.y(0)
    dims, xs, ys = [], [], []
    for r, d, a, b in zip(
        _read_repeats(lowering.site), x.type.dims, x.type.strides, y.type.strides, strict=True
    ):
        # An axis of r repeats of d elements: x has stride 0 along the repeats.
        dims += [r, d]
        xs += [0, a]
        ys += [d * b, b]
    copy(lowering, x, y, dims, (xs, ys))


def _tile_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = the sum over the repeats of dY, seen as [r0, d0, r1, d1, ...]."""
    rank = grad.site.type(0).rank
    # Forward: y[r, d] = x[d] for each axis; so dx sums dy over the r.
    pairs = [unsqueeze(grad, name, [1]) for name in (grad.x(1), grad.op("Shape", grad.x(0)))]
    apart = grad.op("Reshape", grad.op("Concat", *pairs, axis=1), i64s(grad, -1))
    return (reduce_sum(grad, grad.op("Reshape", dy, apart), range(0, 2 * rank, 2)), None)


# The kernels that `copy` calls; between equal orders of axes `strided_copy` alone.
COPY_KERNELS = (strided_copy, transposed_copy, woven_copy)
OPS = (
    Op(
        name="Transpose",
        lower=_transpose_lower,
        calls=COPY_KERNELS,
        grad=_transpose_grad,
        infer=_transpose_infer,
        fold=lambda site: (site.known(0, "the input").transpose(_read_perm(site)),),
        layout=_choose_transposed_layout,
        samples=Samples.TRANSPOSED,
        movement=Movement.TRANSPOSED,
        storage=ALIKE,
        is_cheap=True,
    ),
    Op(
        name="TransposedView",  # where the layouts of x and y make their bytes the same
        domain=OURS,
        internal=True,
        is_view=True,
        infer=_transpose_infer,
        movement=Movement.TRANSPOSED,
        storage=ALIKE,
    ),
    Op(
        name="Expand",
        infer=_expand_infer,
        fold=_expand_fold,
        grad=_expand_grad,
        expr=lambda site: ("in", 0),
        no_gradient=frozenset((1,)),
        samples=Samples.EXPANDED,
        movement=Movement.MOVED,
        is_cheap=True,
    ),
    Op(
        name="Tile",
        infer=_tile_infer,
        lower=_tile_lower,
        calls=(strided_copy,),
        grad=_tile_grad,
        no_gradient=frozenset((1,)),
        fold=lambda site: (np.tile(site.known(0, "the input"), _read_repeats(site)),),
        samples=Samples.TILED,
        movement=Movement.MOVED,
        storage=ALIKE,
    ),
    Op(
        name="ToChannelsLast",
        domain=OURS,
        internal=True,
        lower=_layout_lower,
        storage=ALIKE,
        calls=COPY_KERNELS,
        infer=lambda site: (site.type(0).as_last(),),
    ),
    Op(
        name="ToPlain",
        domain=OURS,
        internal=True,
        lower=_layout_lower,
        storage=ALIKE,
        calls=COPY_KERNELS,
        infer=lambda site: (site.type(0).as_last(False),),
    ),
)
KERNELS = COPY_KERNELS
