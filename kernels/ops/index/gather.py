"""Selection by index: Gather and its gradient, GatherElements, OneHot.

Forward   Gather y[a, i, b] = x[a, l_i, b];  GatherElements y[j] = x[j with l_j at the axis]
Backward  gathers: dy is added into zeros at the same places; each place belongs to one thread and
          is added to in the order of the indices, so results are the same whatever the threads do.
          OneHot: dvalues are the sums of dy over the cold and over the hot places
          The gradient of Gather by rows, for a plan that updates: gradient_rows.py
Error     none forward; a place that is hit k times adds k numbers one after the other

An index counts from the end when negative.  One outside [-n, n) reads and writes nothing: the
output there is 0, and it is written to the fault word: 2, position, index, n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import FLOATS, ITEMSIZE
from engine.kernels.loops.bad_data import NO_POSITION, report_at
from engine.kernels.loops.map import MAP_KERNELS, widen_integers
from engine.kernels.machine.target import Target
from engine.kernels.ops.movement import find_bits
from engine.kernels.ops.shape import i64s, unknown
from engine.kernels.vocabulary.call import KernelCall, list_outer_walks
from engine.kernels.vocabulary.facts import ALIKE, Movement, Role, Samples, Storage
from engine.kernels.vocabulary.kernel import (
    MOVED,
    Body,
    Intrinsic,
    imin,
    inline,
    kernel,
    off,
    share,
    share_blocks,
    udiv,
)
from engine.kernels.vocabulary.op import (
    MS,
    Dim,
    Grad,
    Lowering,
    Op,
    Operand,
    Site,
    TensorType,
    find_stored,
)
from engine.kernels.vocabulary.row_program import loop
from engine.kernels.vocabulary.shape_rules import make_symbol, normalise_axis
from engine.plan.context import INDEX, STATUS
from engine.plan.words import OPEN, Field, Words

BY_GROUPS, BY_COLUMNS, BY_PLACES = 0, 1, 2  # how threads share a scatter
FAR = 16 << 20  # bytes of an embedding table's gradient that no cache keeps until the optimizer

# --- kernels


@inline
def wrap(index, i, n):
    """Index i counted from the front, or -1 when it is out of range."""
    # ONNX: a negative index counts from the end.
    at = index[i]
    if at < 0:
        at += n
    if at < 0 or at >= n:
        at = -1
    return at


@kernel(
    """
    x: T[outer, n, inner]   index: i64[count] within x.n   y: out T[outer, count, inner]
    fault: update i64[1 record]   outer, n, count, inner: i64
    """,
    words={"fault": STATUS},
    T=MOVED,
)
def gather(target: Target, T: str) -> Body:
    """y[a, i, b] = x[a, index[i], b]."""
    copy = loop(T, "x[] -> y[] = x")
    zero = loop(T, "-> y[] = 0")

    def body(x, index, y, fault, outer, n, count, inner, tid, nthreads):
        bad = NO_POSITION
        first, last = share(outer * count, tid, nthreads)
        while first < last:
            a = udiv(first, count)
            row, begin = off(x, a * n * inner), first - a * count
            # Threads share (a, i) pairs; the pairs of one a are a run, so that offsets are computed
            # once.
            end = imin(count, begin + last - first)
            for i in range(begin, end):
                at = wrap(index, i, n)
                to = off(y, (a * count + i) * inner)
                if at < 0:
                    bad = imin(bad, i)
                    zero(to, inner)
                # For single elements a vector loop costs more than the copy.
                elif inner == 1:
                    to[0] = row[at]
                else:
                    copy(off(row, at * inner), to, inner)
            first += end - begin
        report_at(fault, INDEX, index, bad, n)

    return body


@kernel(
    """
    index: i64[count] within dx.n   dy: S[outer, count, inner]
    dx: out T[outer, n, inner] updates if keeps   reset: b1[1] if keeps
    fault: update i64[1 record]   outer, n, count, inner, by, far, keeps: i64
    """,
    words={"fault": STATUS},
)
def gather_grad(target: Target, T: str, S: str = "") -> Body:
    """dx[a, index[i], b] += dy[a, i, b].

    Threads share a (`by` 0), columns b (1) or rows of dx (2).  Overwrites dx, past the caches if
    `far`, but adds to it where `keeps` and not reset[0].  S: the type of dy, T if empty.
    """
    near, away = loop(T, "-> y[] = 0"), Intrinsic("zero_far", (T,))
    run = loop(T, "dx[] dy:S[] -> dx[] = dx + dy", S)

    @inline
    def one(to, source):
        to[0] = to[0] + source[0]

    @inline
    def one_converted(to, source):
        run(to, source, to, 1)

    add_one = one_converted if S else one

    @inline
    def zero(x, n, far):
        if far != 0:
            away(x, n)
        else:
            near(x, n)

    def body(index, dy, dx, reset, fault, outer, n, count, inner, by, far, keeps, tid, nthreads):
        # Forward: y[a, i, b] = x[a, l_i, b]; so dx[a, l_i, b] += dy[a, i, b], in the order of i.  A
        # thread walks all indices of its groups and adds at the places that are its own: sums are
        # the same for any number of threads, without atomics.
        low, high, begin, end, first, last = 0, n, 0, inner, 0, outer
        if by == 0:
            first, last = share(outer, tid, nthreads)
        elif by == 1:
            begin, end = share_blocks(inner, 16, tid, nthreads)
        else:
            low, high = share(n, tid, nthreads)
        # An accumulated gradient is cleared by the first of its calls only.
        clear, bad = 1, NO_POSITION
        if keeps != 0:
            clear = 1 if reset[0] != 0 else 0
        for a in range(first, last):
            # Rows that a thread has whole are cleared at once.
            if clear != 0 and end - begin == inner:
                zero(off(dx, (a * n + low) * inner), (high - low) * inner, far)
            elif clear != 0:
                for r in range(low, high):
                    zero(off(dx, (a * n + r) * inner + begin), end - begin, far)
            for i in range(count):
                at = wrap(index, i, n)
                if at >= low and at < high:
                    to = off(dx, (a * n + at) * inner + begin)
                    source = off(dy, (a * count + i) * inner + begin)
                    if inner == 1:
                        add_one(to, source)
                    else:
                        run(to, source, to, end - begin)
                elif at < 0:
                    bad = imin(bad, i)
        report_at(fault, INDEX, index, bad, n)

    return body


@inline
def place(walk, rank, row):
    """Offset into the data of index row `row`, by the `walk` of the words."""
    x = 0
    d = rank
    while d > 0:
        d -= 1
        # The index along dimension d, the last first, times the data's stride along it.
        rest = udiv(row, walk[d])
        x += (row - rest * walk[d]) * walk[rank + d]
        row = rest
    return x


ELEMENTS_WORDS = Words(
    "elements",
    rows="rows of the indices",
    length="indices of a row",
    rank="outer dimensions of the rows",
    step="stride of the data along a row, 0 if that is the axis",
    walk=Field("the outer dimensions, then the data's strides along them", count=OPEN),
)


def elements_reach(c: KernelCall) -> int:
    """Return the reach of `gather_elements` and its kin into the tensor that is indexed."""
    (outer,) = list_outer_walks(c, 1)
    if not c.rows * c.length:
        return 0
    return c.span(0, *outer, (c.length, c.step), (c.n, c.along))


@kernel(
    """
    x: T[...]   index: i64[rows, length] within x.n   y: out T[rows, length]
    fault: update i64[1 record]   n, along: i64   g: i64[]
    """,
    words={"g": ELEMENTS_WORDS, "fault": STATUS},
    reach=lambda c: {"x": elements_reach(c)},
    T=MOVED,
)
def gather_elements(target: Target, T: str) -> Body:
    """y[j] = x[j with index[j] at the axis]; `along` is the stride of x along the axis."""

    def body(x, index, y, fault, n, along, g, tid, nthreads):
        length, rank, step, bad = g.length, g.rank, g.step, NO_POSITION
        first, last = share(g.rows, tid, nthreads)
        for row in range(first, last):
            base = place(g.walk, rank, row)
            for j in range(length):
                i = row * length + j
                at = wrap(index, i, n)
                if at >= 0:
                    y[i] = x[base + j * step + at * along]
                else:
                    bad = imin(bad, i)
                    y[i] = 0
        report_at(fault, INDEX, index, bad, n)

    return body


@kernel(
    """
    index: i64[rows, inner]   values: T[2] if rows   y: out T[rows, depth, inner]
    rows, depth, inner: i64
    """,
    T=MOVED,
)
def one_hot(target: Target, T: str) -> Body:
    """y[r, d, b] = values[1] where index[r, b] is d (or d - depth), values[0] elsewhere."""
    fill = loop(T, "x* -> y[] = x")

    def body(index, values, y, rows, depth, inner, tid, nthreads):
        first, last = share(rows, tid, nthreads)
        for r in range(first, last):
            row = off(y, r * depth * inner)
            fill(values, row, depth * inner)
            for b in range(inner):
                at = index[r * inner + b]
                # Indices out of range are all cold; ONNX asks for no error here.
                at = at + depth if at < 0 else at
                if at >= 0 and at < depth:
                    row[at * inner + b] = values[1]

    return body


# --- lowering


def wide_index(lowering: Lowering, i: int) -> Operand:
    """Return input i as i64."""
    index = lowering.x(i)
    if index.type.dtype in ("b1", "f16") or (
        index.type.dtype in FLOATS and lowering.site.op != "OneHot"
    ):
        lowering.site.fail(f"the indices are {index.type.dtype}", "integers")
    return widen_integers(lowering, index)


def walk_axis(site: Site, t: TensorType) -> tuple[int, int, int]:
    """[outer, n, inner] of a tensor around the axis of the node."""
    axis = normalise_axis(site, site.attrs["axis"], t.rank)
    return math.prod(t.dims[:axis]), t.dims[axis], math.prod(t.dims[axis + 1 :])


def take(
    lowering: Lowering, x: Operand, index: Operand, y: Operand, walk: tuple[int, int, int]
) -> None:
    """Call gather: y = x[outer, index, inner]."""
    outer, n, inner = walk
    lowering.call(
        gather(find_bits(x.type.dtype)), x=x, index=index, y=y, fault=lowering.fault(),
        outer=outer, n=n, count=index.type.size, inner=inner,
    )  # fmt: skip


def _gather_lower(lowering: Lowering) -> None:
    x, y = lowering.x(0), lowering.y(0)
    if y.type.size:
        take(lowering, x, wide_index(lowering, 1), y, walk_axis(lowering.site, x.type))


def _gather_infer(site: Site) -> tuple[TensorType, ...]:
    x, index = site.type(0), site.type(1)
    axis = normalise_axis(site, site.attrs["axis"], x.rank)
    return (x.but((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])),)


def _gather_fold(site: Site) -> tuple[Array, ...]:
    x, index = site.known(0, "the input"), site.known(1, "the indices").astype(np.int64)
    n, axis = x.shape[site.attrs["axis"]], site.attrs["axis"]
    if not np.all((index >= -n) & (index < n)):
        site.wrong(
            f"index {index[(index < -n) | (index >= n)].flat[0]} is outside [-{n}, {n}), "
            f"the range of axis {axis}"
        )
    return (np.asarray(x.take(index, axis=axis)),)


def _gather_rule(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = GatherGrad(Shape(X), indices, dY)."""
    # Forward: y = x[l]; so dx = dy added into zeros at l.
    shape = grad.op("Shape", grad.x(0))
    return (
        grad.op("GatherGrad", shape, grad.x(1), dy, domain=MS, axis=grad.site.attrs["axis"]),
        None,
    )


def shaped(at: int, like: int) -> Callable[[Site], tuple[TensorType, ...]]:
    """Return a shape rule: the value of input `at`, with the element type of input `like`."""

    def infer(site: Site) -> tuple[TensorType, ...]:
        dtype = site.type(like).dtype
        if site.value(at) is None:
            return (unknown(site, at, dtype),)
        return (TensorType(dtype, tuple(site.integers(at, "the shape"))),)

    return infer


def _gather_grad_lower(lowering: Lowering) -> None:
    dy, dx, reset = lowering.x(2), lowering.y(0), lowering.reset(0)
    if dx.type.size == 0:
        return
    outer, n, inner = walk_axis(lowering.site, dx.type)
    index = wide_index(lowering, 1)
    axis = lowering.site.attrs["axis"] % dx.type.rank
    lowering.site.shaped(2, (*dx.type.dims[:axis], *index.type.dims, *dx.type.dims[axis + 1 :]))
    # Groups write apart.  Few groups are shared by places, uneven where indices are, or by columns
    # where rows are long enough for vectors.
    by = BY_GROUPS if outer >= lowering.threads else BY_PLACES
    if inner >= 32 * lowering.threads and outer < 8 * lowering.threads:
        by = BY_COLUMNS
    # A large gradient is cleared past the caches, which would not keep it until the optimizer.
    far = int(dx.type.size * ITEMSIZE[dx.type.dtype] >= FAR)
    T, stored = find_stored(dy)
    lowering.call(
        gather_grad(T, *stored), index=index, dy=dy, dx=dx, reset=reset, fault=lowering.fault(),
        outer=outer, n=n, count=index.type.size, inner=inner, by=by, far=far,
        keeps=int(reset is not None),
    )  # fmt: skip


def count_elements(site: Site, data: TensorType, index: TensorType) -> dict[str, Any]:
    """Return the numbers of `gather_elements` by name."""
    rank = data.rank
    if index.rank != rank or rank == 0:
        site.wrong(f"data has rank {rank}, but indices have rank {index.rank}")
    axis = normalise_axis(site, site.attrs["axis"], rank)
    for i, (d, own) in enumerate(zip(index.dims, data.dims, strict=True)):
        if i != axis and d > own:
            site.wrong(f"indices have {d} elements along axis {i}, but data has {own}")
    # Along the axis the index decides, so the walk stands still there.
    strides = [0 if i == axis else step for i, step in enumerate(data.strides)]
    outer = list(index.dims[:-1])
    words = ELEMENTS_WORDS.pack(
        rows=math.prod(outer),
        length=index.dims[-1],
        rank=rank - 1,
        step=strides[-1],
        walk=[*outer, *strides[:-1]],
    )
    return {"n": data.dims[axis], "along": data.strides[axis], "g": words}


def _elements_lower(lowering: Lowering) -> None:
    x, y, index = lowering.x(0), lowering.y(0), wide_index(lowering, 1)
    numbers = count_elements(lowering.site, x.type, index.type)
    lowering.call(
        gather_elements(find_bits(x.type.dtype)),
        x=x,
        index=index,
        y=y,
        fault=lowering.fault(),
        **numbers,
    )


def _elements_rule(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = GatherElementsGrad(dY, Shape(X), indices)."""
    shape, axis = grad.op("Shape", grad.x(0)), grad.site.attrs["axis"]
    return (grad.op("GatherElementsGrad", dy, shape, grad.x(1), domain=MS, axis=axis), None)


def _one_hot_infer(site: Site) -> tuple[TensorType, ...]:
    index = site.type(0)
    axis = normalise_axis(site, site.attrs["axis"], index.rank + 1)
    site.shaped(2, (2,))
    size: Dim = (
        make_symbol(site, axis) if site.value(1) is None else int(site.number(1, "the depth"))
    )
    return (site.type(2).but((*index.shape[:axis], size, *index.shape[axis:])),)


def _one_hot_lower(lowering: Lowering) -> None:
    y = lowering.y(0)
    outer, depth, inner = walk_axis(lowering.site, y.type)
    lowering.call(
        one_hot(find_bits(y.type.dtype)), index=wide_index(lowering, 0), values=lowering.x(2), y=y,
        rows=outer, depth=depth, inner=inner,
    )  # fmt: skip


def _one_hot_rule(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dvalues = sums of dY where it is cold and where it is hot."""
    axis = grad.site.attrs["axis"]
    parts = []
    # Forward: y = hot ? values[1] : values[0]; a OneHot of (1, 0) or (0, 1) masks dy.
    for place in (0, 1):
        mask = grad.const(np.arange(2) == place, grad.site.type(2).dtype)
        chosen = grad.op("Mul", dy, grad.op("OneHot", grad.x(0), grad.x(1), mask, axis=axis))
        parts.append(grad.op("Reshape", grad.op("ReduceSum", chosen, keepdims=0), i64s(grad, 1)))
    return (None, None, grad.op("Concat", *parts, axis=0))


def _grad_rule(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """Return the gradient of GatherGrad by its dY: Gather."""
    return (None, None, grad.op("Gather", dy, grad.x(1), axis=grad.site.attrs["axis"]))


AXIS_0 = {"axis": 0}

OPS = (
    Op(
        name="Gather",
        roles={0: Role.TABLE},
        infer=_gather_infer,
        lower=_gather_lower,
        calls=(gather, *MAP_KERNELS),
        fold=_gather_fold,
        attrs=AXIS_0,
        grad=_gather_rule,
        no_gradient=frozenset((1,)),
        samples=Samples.GATHERED,
        movement=Movement.MOVED,
        storage=ALIKE,
    ),
    Op(
        name="GatherGrad",
        domain=MS,
        inputs=(3, 3),
        outputs=1,
        gradient_of="Gather",
        infer=shaped(0, 2),
        lower=_gather_grad_lower,
        calls=(gather_grad, *MAP_KERNELS),
        attrs=AXIS_0,
        grad=_grad_rule,
        no_gradient=frozenset((0, 1)),
        accumulates=(0,),
        storage=Storage(frozenset({2}), frozenset()),
    ),
    Op(
        name="GatherElements",
        by_reference=True,
        lower=_elements_lower,
        calls=(gather_elements, *MAP_KERNELS),
        grad=_elements_rule,
        attrs=AXIS_0,
        infer=lambda site: (site.type(0).but(site.type(1).shape),),
        no_gradient=frozenset((1,)),
        samples=Samples.GATHERED_EACH,
        movement=Movement.MOVED,
    ),
    Op(
        name="OneHot",
        infer=_one_hot_infer,
        lower=_one_hot_lower,
        calls=(one_hot, *MAP_KERNELS),
        attrs={"axis": -1},
        grad=_one_hot_rule,
        no_gradient=frozenset((0, 1)),
    ),
)
KERNELS = (gather, gather_grad, gather_elements, one_hot)
