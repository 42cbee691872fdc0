"""Scatter by index: ScatterElements, ScatterND, the gradients of gathers, and GatherND.

Forward   ScatterElements y = x, then y[j with l_j at the axis] (op)= u[j];  ScatterND, GatherND: an
          index names a place (l_0, ..., l_k-1) whose slice is written or read;
          op: none (the last of the updates of a place wins), add, mul, max, min
Backward  with S the scatter and G the gather of the same indices, dx and du of one place:
          none      dx = S(dy, 0)            du = G(dy) for the update that won, 0 for others
          add       dx = dy                  du = G(dy)
          mul       dx = dy prod u           du = G(dy) times the product of all other factors
          max, min  dx, du = dy / count for all that are equal to y, x included: ties share
Error     none, add, max, min: as the sum in the order of the updates; mul: products likewise

Each place belongs to one thread and meets its updates in order, so results are the same whatever
the threads do.  Indices out of range: kernels/ops/index/gather.py; each index of a tuple is a
position of its own.
"""

from __future__ import annotations

import math
from typing import Any

from engine.base.errors import DTypeError
from engine.kernels.loops.bad_data import NO_POSITION, report_at
from engine.kernels.loops.map import MAP_KERNELS, lower_map
from engine.kernels.machine.target import Target
from engine.kernels.ops.index.gather import (
    AXIS_0,
    BY_COLUMNS,
    BY_GROUPS,
    BY_PLACES,
    ELEMENTS_WORDS,
    count_elements,
    elements_reach,
    place,
    shaped,
    wide_index,
    wrap,
)
from engine.kernels.ops.index.scatter_gradients import scatter_rule
from engine.kernels.ops.movement import find_bits
from engine.kernels.ops.shape import unsqueeze
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.facts import Movement, Samples
from engine.kernels.vocabulary.kernel import (
    ANY,
    MOVED,
    Body,
    Inline,
    imin,
    inline,
    kernel,
    list_bools,
    list_same_size,
    off,
    share,
    share_blocks,
    udiv,
)
from engine.kernels.vocabulary.op import MS, Grad, Lowering, Nodes, Op, Operand, Site, TensorType
from engine.kernels.vocabulary.row_program import loop
from engine.kernels.vocabulary.shape_rules import normalise_axis
from engine.plan.context import INDEX, STATUS
from engine.plan.words import OPEN, Field, Packed, Words

REDUCTIONS = {"none": "u", "add": "y + u", "mul": "y * u", "max": "max(y, u)", "min": "min(y, u)"}

# --- kernels


def _joins(op: str) -> Inline:
    """Return an inline function: join(old, update) of one reduction; NaN wins."""

    @inline
    def none(y, u):
        return u

    @inline
    def add(y, u):
        return y + u

    @inline
    def mul(y, u):
        return y * u

    @inline
    def largest(y, u):
        # u > y is false for NaN, which the second test lets win.
        return u if u > y or u != u else y

    @inline
    def least(y, u):
        return u if u < y or u != u else y

    # One of these is chosen when the kernel is compiled: a body calls a single function.
    return {"none": none, "add": add, "mul": mul, "max": largest, "min": least}[op]


def _list_types(T: str, op: str) -> tuple[str, ...]:
    return list_same_size(T) if op == "none" else list_bools(T, op)


@kernel(
    """
    index: i64[rows, length] within y.n   u: T[rows, length]   y: update T[...]
    fault: update i64[1 record]   n, along, by: i64   group: i64 where group >= 1   g: i64[]
    """,
    words={"g": ELEMENTS_WORDS, "fault": STATUS},
    reach=lambda c: {"y": elements_reach(c)},
    T=ANY,
    op=tuple(REDUCTIONS),
    stands_for=_list_types,
)
def scatter_elements(target: Target, T: str, op: str) -> Body:
    """y[j with index[j] at the axis] = join(itself, u[j]).  n, along: as for `gather_elements`.

    Threads share groups of `group` rows that meet no place of another (`by` 0), columns (1), or the
    places along the axis, whoever walks there (2).  Updates y.
    """
    join = _joins(op)

    def body(index, u, y, fault, n, along, by, group, g, tid, nthreads):
        length, rank, step, bad = g.length, g.rank, g.step, NO_POSITION
        # A place belongs to one thread, which has its group, its columns or the place itself; so
        # the updates of a place meet it in their order.
        low, high, begin, end, first, last = 0, n, 0, length, 0, g.rows
        if by == 0:
            first, last = share(udiv(g.rows, group), tid, nthreads)
            # Rows of one group walk the same places, so a thread has whole groups.
            first, last = first * group, last * group
        elif by == 1:
            begin, end = share_blocks(length, 16, tid, nthreads)
        else:
            low, high = share(n, tid, nthreads)
        for row in range(first, last):
            base = place(g.walk, rank, row)
            for j in range(begin, end):
                i = row * length + j
                # Every thread looks at every index that may be its own: the lowest bad one is
                # reported by all.
                at = wrap(index, i, n)
                if at < 0:
                    bad = imin(bad, i)
                elif at >= low and at < high:
                    to = base + j * step + at * along
                    y[to] = join(y[to], u[i])
        report_at(fault, INDEX, index, bad, n)

    return body


ND_WORDS = Words(
    "slices",
    rows="rows of indices",
    batch_rows="rows of indices of a batch",
    k="indices of a row",
    slices="slices of a batch that a row may name",
    inner="elements of a slice",
    sizes=Field("limits of the k indices of a row", count=OPEN),
)


@inline
def place_nd(index, row, g, bad):
    """Number of the slice that index row `row` names, or -1 when it is out of range; and the lowest
    position of an index that is."""
    k = g.k
    to = 0
    for d in range(k):
        at = wrap(index, row * k + d, g.sizes[d])
        if at < 0:
            return -1, imin(bad, row * k + d)
        # The tuple as one number, as the named dimensions lie in memory.
        to = to * g.sizes[d] + at
    return udiv(row, g.batch_rows) * g.slices + to, bad


@inline
def report_nd(index, g, bad, fault):
    """As `report_at`, of an index of a row."""
    if bad != NO_POSITION:
        report_at(fault, INDEX, index, bad, g.sizes[bad - udiv(bad, g.k) * g.k])


def _count_slices(c: KernelCall) -> tuple[int, int]:
    """Return the batches of rows of indices, and how many slices a row of indices may name."""
    # The numbers of a plan from a file are not trusted: the kernel reads k limits.
    if len(c.sizes) < c.k:
        c.refuse(f"{c.k} indices a row, and limits {list(c.sizes)}")
    return -(-c.rows // c.batch_rows), math.prod(c.sizes[: c.k])


def _scatter_reach(c: KernelCall) -> Reach:
    batches, slices = _count_slices(c)
    # The last batch may be a part: threads share the places of whole batches alone.
    by_threads = c.rows // c.batch_rows * c.slices
    most = (batches - 1) * c.slices + slices if batches else 0
    return {"y": min(most, by_threads) * c.inner}


def _gather_reach(c: KernelCall) -> Reach:
    batches, slices = _count_slices(c)
    return {"x": ((batches - 1) * c.slices + slices) * c.inner if batches and slices else 0}


@kernel(
    """
    index: i64[rows, k] within y.slices   u: T[rows, inner]   y: update T[...]
    fault: update i64[1 record]   by_columns: i64   g: i64[] where batch_rows >= 1
    """,
    words={"g": ND_WORDS, "fault": STATUS},
    reach=_scatter_reach,
    T=ANY,
    op=tuple(REDUCTIONS),
    stands_for=_list_types,
)
def scatter_nd(target: Target, T: str, op: str) -> Body:
    """y[index[row]] = join(itself, u[row]), slice by slice.

    A thread owns slices of y, or columns when `by_columns`.
    """
    run = loop(T, f"y[] u[] -> y[] = {REDUCTIONS[op]}")

    def body(index, u, y, fault, by_columns, g, tid, nthreads):
        inner = g.inner
        # As above: every thread reads all indices and writes the slices, or the columns, it owns.
        low, begin, end, bad = 0, 0, inner, NO_POSITION
        high = udiv(g.rows, g.batch_rows) * g.slices
        if by_columns != 0:
            begin, end = share_blocks(inner, 16, tid, nthreads)
        else:
            low, high = share(high, tid, nthreads)
        for row in range(g.rows):
            at, bad = place_nd(index, row, g, bad)
            if at >= low and at < high:
                to = off(y, at * inner + begin)
                run(to, off(u, row * inner + begin), to, end - begin)
        report_nd(index, g, bad, fault)

    return body


@kernel(
    """
    x: T[...]   index: i64[rows, k] within x.slices   y: out T[rows, inner]
    fault: update i64[1 record]   g: i64[] where batch_rows >= 1
    """,
    words={"g": ND_WORDS, "fault": STATUS},
    reach=_gather_reach,
    T=MOVED,
)
def gather_nd(target: Target, T: str) -> Body:
    """y[row] = x[index[row]], slice by slice."""
    copy = loop(T, "x[] -> y[] = x")
    zero = loop(T, "-> y[] = 0")

    def body(x, index, y, fault, g, tid, nthreads):
        inner, bad = g.inner, NO_POSITION
        first, last = share(g.rows, tid, nthreads)
        for row in range(first, last):
            at, bad = place_nd(index, row, g, bad)
            if at >= 0:
                copy(off(x, at * inner), off(y, row * inner), inner)
            else:
                zero(off(y, row * inner), inner)
        report_nd(index, g, bad, fault)

    return body


# --- lowering


def _read_reduction(site: Site) -> str:
    op = str(site.attrs.get("reduction", "none"))
    if op not in REDUCTIONS:
        site.fail(f"reduction is {op!r}", ", ".join(REDUCTIONS))
    return op


def _choose_kind(dtype: str, op: str) -> tuple[str, str]:
    """Return the element type and the reduction of a kernel; bools are u8, and-ed or or-ed."""
    if op == "none":
        return find_bits(dtype), op
    # Bools are added as or, multiplied as and, as in ONNX: max and min of their bytes.
    if dtype == "b1":
        return "u8", {"add": "max", "mul": "min"}.get(op, op)
    return dtype, op


def _start(lowering: Lowering, data: Operand | None, y: Operand) -> None:
    """Append the call for y = data, or 0."""
    if data is None:
        return lower_map(lowering, [("const", 0)], [], [y])
    # Copied as bits: data of every type is moved by the same few kernels.
    plain = find_bits(y.type.dtype)
    ends = [Operand(o.name, o.type.but(dtype=plain)) for o in (data, y)]
    return lower_map(lowering, [("in", 0)], ends[:1], ends[1:])


def _elements(
    lowering: Lowering, data: Operand | None, index: Operand, u: Operand, y: Operand, op: str
) -> None:
    """Append the calls for y = data (or 0), then scattered to along the node's axis."""
    _start(lowering, data, y)
    if u.type.size == 0:
        return
    numbers = count_elements(lowering.site, y.type, index.type)
    dims = index.type.dims
    axis = normalise_axis(lowering.site, lowering.site.attrs["axis"], len(dims))
    # Groups are the rows before the axis: they cannot meet.  Few groups are shared otherwise.
    groups, by = math.prod(dims[:axis]), BY_GROUPS
    if axis < len(dims) - 1 and dims[-1] >= 16 * lowering.threads:
        by = BY_COLUMNS
    elif groups < lowering.threads:
        by = BY_PLACES
    lowering.call(
        scatter_elements(*_choose_kind(y.type.dtype, op)), index=index, u=u, y=y,
        fault=lowering.fault(), by=by, group=math.prod(dims[axis:-1]), **numbers,
    )  # fmt: skip


def _scatter_elements_lower(lowering: Lowering) -> None:
    _elements(
        lowering,
        lowering.x(0),
        wide_index(lowering, 1),
        lowering.x(2),
        lowering.y(0),
        _read_reduction(lowering.site),
    )


def _gather_elements_grad_lower(lowering: Lowering) -> None:
    index = wide_index(lowering, 2)
    lowering.site.shaped(0, index.type.dims)
    _elements(lowering, None, index, lowering.x(0), lowering.y(0), "add")


def _pack_words(site: Site, data: TensorType, index: TensorType) -> Packed:
    """Return the words of `scatter_nd` and `gather_nd`."""
    batch, k = site.attrs.get("batch_dims", 0), index.dims[-1]
    named = data.dims[batch : batch + k]
    rows, batches = math.prod(index.dims[:-1]), math.prod(data.dims[:batch])
    per_batch = rows // batches if batches else rows
    inner = math.prod(data.dims[batch + k :])
    return ND_WORDS.pack(
        rows=rows,
        batch_rows=per_batch,
        k=k,
        slices=math.prod(named),
        inner=inner,
        sizes=named,
    )


def _scatter_nd(
    lowering: Lowering, data: Operand | None, index: Operand, u: Operand, y: Operand, op: str
) -> None:
    """Append the calls for y = data (or 0), then scattered to by tuples."""
    _start(lowering, data, y)
    if u.type.size == 0:
        return
    words = _pack_words(lowering.site, y.type, index.type)
    inner = ND_WORDS.unpack(words.values)["inner"]
    # Columns where slices are long enough for every thread to have vectors of them.
    by_columns = int(inner >= 32 * lowering.threads)
    lowering.call(
        scatter_nd(*_choose_kind(y.type.dtype, op)), index=index, u=u, y=y, fault=lowering.fault(),
        by_columns=by_columns, g=words,
    )  # fmt: skip


def _scatter_nd_lower(lowering: Lowering) -> None:
    _scatter_nd(
        lowering,
        lowering.x(0),
        wide_index(lowering, 1),
        lowering.x(2),
        lowering.y(0),
        _read_reduction(lowering.site),
    )


def _gather_nd_grad_lower(lowering: Lowering) -> None:
    y, index = lowering.y(0), wide_index(lowering, 1)
    lowering.site.shaped(2, _infer_gathered(lowering.site, y.type, index.type))
    _scatter_nd(lowering, None, index, lowering.x(2), y, "add")


def _gather_nd_lower(lowering: Lowering) -> None:
    x, y, index = lowering.x(0), lowering.y(0), wide_index(lowering, 1)
    if y.type.size == 0:
        return
    words = _pack_words(lowering.site, x.type, index.type)
    lowering.call(
        gather_nd(find_bits(x.type.dtype)), x=x, index=index, y=y, fault=lowering.fault(), g=words
    )


# --- shapes


def _same_type(site: Site) -> TensorType:
    data = site.type(0)
    if site.type(2).dtype != data.dtype:
        raise DTypeError(
            f"{site.where()}: data are {data.dtype}, but updates are {site.type(2).dtype}"
        )
    _read_reduction(site)
    return data.but()


def _scatter_elements_infer(site: Site) -> tuple[TensorType, ...]:
    data = _same_type(site)
    normalise_axis(site, site.attrs["axis"], data.rank)
    site.shaped(2, site.type(1).shape)
    if site.type(1).rank != data.rank:
        site.wrong(f"data has rank {data.rank}, but indices have rank {site.type(1).rank}")
    return (data,)


def _infer_gathered(site: Site, data: TensorType, index: TensorType) -> list[Any]:
    """Return the shape of what the indices of a GatherND or ScatterND name."""
    batch = site.attrs.get("batch_dims", 0)
    k = index.shape[-1] if index.rank else 0
    if not isinstance(k, int):
        site.fail(f"the last dimension of the indices, {k!r}, is not known", "a fixed size")
    if not 0 <= batch < min(index.rank, data.rank) or not 1 <= k <= data.rank - batch:
        site.wrong(
            f"the indices {index} do not fit the data {data} with batch_dims={batch}; "
            "expected batch_dims below both ranks, and in the last dimension of the indices at "
            "most as many numbers as data has further dimensions"
        )
    for mine, other in zip(data.shape[:batch], index.shape, strict=False):
        if isinstance(mine, int) and isinstance(other, int) and mine != other:
            site.wrong(f"a batch dimension is {mine} in data, but {other} in indices")
    return [*index.shape[:-1], *data.shape[batch + k :]]


def _scatter_nd_infer(site: Site) -> tuple[TensorType, ...]:
    data = _same_type(site)
    site.shaped(2, _infer_gathered(site, data, site.type(1)))
    return (data,)


# --- gradients and expansions


def _gather_nd_rule(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = GatherNDGrad(Shape(X), indices, dY)."""
    # Forward: y = x[index]; so dx is 0, and dy added at the index.
    shape, batch = grad.op("Shape", grad.x(0)), grad.site.attrs["batch_dims"]
    return (grad.op("GatherNDGrad", shape, grad.x(1), dy, domain=MS, batch_dims=batch), None)


def _cache_infer(site: Site) -> tuple[TensorType, ...]:
    past, update = site.type(0), site.type(1)
    axis = normalise_axis(site, site.attrs["axis"], past.rank)
    if axis == 0:
        site.wrong(f"axis is {site.attrs['axis']}, the axis of the batch; expected another")
    if update.rank != past.rank:
        site.wrong(f"input 1 is {update}; expected rank {past.rank}")
    site.shaped(1, [*past.shape[:axis], update.shape[axis], *past.shape[axis + 1 :]])
    return (past.but(),)


def _cache_expand(nodes: Nodes) -> tuple[str, ...] | None:
    """Expand to ScatterElements at start_b + 0, 1, ..., less the cache's length if circular.

    None while that length is needed and not known.
    """
    site = nodes.site
    rank, axis = site.type(0).rank, site.attrs["axis"] % site.type(0).rank
    zero, one, at = (nodes.const(v, "i64") for v in (0, 1, axis))
    line = nodes.op("Range", zero, nodes.op("Gather", nodes.op("Shape", nodes.x(1)), at), one)
    index = unsqueeze(nodes, line, [0])
    if site.has(2):
        index = nodes.op("Add", unsqueeze(nodes, nodes.x(2), [1]), line)
        if site.attrs["mode"] == "circular":
            length = site.type(0).shape[axis]
            if isinstance(length, str):
                return None
            limit = nodes.const(length, "i64")
            inside, beyond = nodes.op("Less", index, limit), nodes.op("Sub", index, limit)
            # A circular cache starts over at its front.
            index = nodes.op("Where", inside, index, beyond)
    index = unsqueeze(nodes, index, [i for i in range(1, rank) if i != axis])
    index = nodes.op("Expand", index, nodes.op("Shape", nodes.x(1)))
    return (nodes.op("ScatterElements", nodes.x(0), index, nodes.x(1), axis=axis),)


SCATTER: dict[str, Any] = {"grad": scatter_rule, "no_gradient": frozenset((1,))}

OPS = (
    *(
        Op(
            name=name,
            infer=_scatter_elements_infer,
            by_reference=name == "ScatterElements",
            lower=_scatter_elements_lower,
            calls=(scatter_elements, *MAP_KERNELS),
            attrs=AXIS_0,
            **SCATTER,
        )
        for name in ("Scatter", "ScatterElements")
    ),
    Op(
        name="ScatterND",
        infer=_scatter_nd_infer,
        by_reference=True,
        lower=_scatter_nd_lower,
        calls=(scatter_nd, *MAP_KERNELS),
        **SCATTER,
    ),
    Op(
        name="GatherND",
        by_reference=True,
        lower=_gather_nd_lower,
        calls=(gather_nd, *MAP_KERNELS),
        grad=_gather_nd_rule,
        no_gradient=frozenset((1,)),
        infer=lambda site: (site.type(0).but(_infer_gathered(site, site.type(0), site.type(1))),),
        attrs={"batch_dims": 0},
        movement=Movement.MOVED,
        samples=Samples.GATHERED_ND,
    ),
    Op(
        name="GatherNDGrad",
        domain=MS,
        inputs=(3, 3),
        outputs=1,
        gradient_of="GatherND",
        infer=shaped(0, 2),
        lower=_gather_nd_grad_lower,
        calls=(scatter_nd, *MAP_KERNELS),
        attrs={"batch_dims": 0},
    ),
    Op(
        name="GatherElementsGrad",
        domain=MS,
        inputs=(3, 3),
        outputs=1,
        gradient_of="GatherElements",
        infer=shaped(1, 0),
        attrs=AXIS_0,
        lower=_gather_elements_grad_lower,
        calls=(scatter_elements, *MAP_KERNELS),
    ),
    Op(
        name="TensorScatter",
        infer=_cache_infer,
        expand=_cache_expand,
        becomes="Add Expand Gather Less Range ScatterElements Shape Sub Unsqueeze Where",
        no_gradient=frozenset((2,)),
        attrs={"axis": -2, "mode": "linear"},
    ),
)
KERNELS = (scatter_elements, scatter_nd, gather_nd)
