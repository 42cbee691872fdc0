"""Reaches of the kernels that choose, sort and move elements.

An index that a kernel reads at run time it compares with a limit among its numbers; the reach is
that of the largest index below this limit.
"""

from __future__ import annotations

import math

from engine.kernels.reach.call import Call, Pair, Reach, Table, if_, reach

TABLE: Table = {}
STATUS = 4  # words of a status


@reach(TABLE, "gather", writes="y fault")
def _gather(c: Call) -> Reach:
    y = c.outer * c.count * c.inner
    return {
        "x": if_(y, c.outer * c.n * c.inner),
        "index": if_(c.outer, c.count),
        "y": y,
        "fault": STATUS,
    }


@reach(TABLE, "gather_grad", writes="dx fault")
def _gather_grad(c: Call) -> Reach:
    return {
        "index": if_(c.outer, c.count),
        "dy": c.outer * c.count * c.inner,
        "dx": c.outer * c.n * c.inner,
        "reset": if_(c.keeps, 1),
        "fault": STATUS,
    }


def _walk(c: Call, steps: int) -> list[list[Pair]]:
    """The outer dimensions with each of the strides along them, `steps` of them."""
    rank = c.rank
    if len(c.walk) < rank * (1 + steps):
        c.refuse(f"{rank} outer dimensions, with {steps} strides each, in {len(c.walk)} words")
    dims = c.walk[:rank]
    c.limit_rows(dims, c.rows)
    at = range(rank, rank * (1 + steps), rank) if rank else [0] * steps
    return [list(zip(dims, c.walk[i : i + rank], strict=True)) for i in at]


@reach(TABLE, "gather_elements", writes="y fault")
def _gather_elements(c: Call) -> Reach:
    (outer,) = _walk(c, 1)
    size = c.rows * c.length
    x = c.span(0, *outer, (c.length, c.step), (c.n, c.along))
    return {"x": if_(size, x), "index": size, "y": size, "fault": STATUS}


@reach(TABLE, "scatter_elements", writes="y fault")
def _scatter_elements(c: Call) -> Reach:
    c.positive("group")
    (outer,) = _walk(c, 1)
    size = c.rows * c.length
    y = c.span(0, *outer, (c.length, c.step), (c.n, c.along))
    return {"index": size, "u": size, "y": if_(size, y), "fault": STATUS}


def _slices(c: Call) -> int:
    """The product of the limits of the indices of a row."""
    c.positive("batch_rows")
    if len(c.sizes) < c.k:
        c.refuse(f"{c.k} indices a row, and limits {list(c.sizes)}")
    return math.prod(c.sizes[: c.k])


@reach(TABLE, "scatter_nd", writes="y fault")
def _scatter_nd(c: Call) -> Reach:
    slices = _slices(c)
    batches = -(-c.rows // c.batch_rows)
    by_threads = c.rows // c.batch_rows * c.slices
    most = (batches - 1) * c.slices + slices if batches else 0
    return {
        "index": c.rows * c.k,
        "u": c.rows * c.inner,
        "y": min(most, by_threads) * c.inner,
        "fault": STATUS,
    }


@reach(TABLE, "gather_nd", writes="y fault")
def _gather_nd(c: Call) -> Reach:
    slices = _slices(c)
    batches = -(-c.rows // c.batch_rows)
    x = ((batches - 1) * c.slices + slices) * c.inner if batches and slices else 0
    return {"x": x, "index": c.rows * c.k, "y": c.rows * c.inner, "fault": STATUS}


@reach(TABLE, "one_hot", writes="y")
def _one_hot(c: Call) -> Reach:
    y = c.rows * c.depth * c.inner
    return {"index": c.rows * c.inner, "values": if_(c.rows, 2), "y": y}


@reach(TABLE, "index_chains", writes="first next fault")
def _index_chains(c: Call) -> Reach:
    return {"index": c.count, "first": c.n, "next": c.count, "fault": STATUS}


@reach(TABLE, "gather_grad_rows", writes="dx")
def _gather_grad_rows(c: Call) -> Reach:
    c.positive("block")
    return {
        "first": c.rows, "next": c.count, "dy": c.count * c.inner, "dx": c.rows * c.inner
    }  # fmt: skip


def _columns(c: Call) -> int:
    return int(c.outer * c.n * c.inner)


@reach(TABLE, "top_k", writes="y index heap places")
def _top_k(c: Call) -> Reach:
    c.positive("k")
    c.at_most("k", c.n)
    y, work = c.outer * c.k * c.inner, c.scratch(c.k, c.k)
    return {"x": _columns(c), "y": y, "index": y, "heap": work, "places": work}


@reach(TABLE, "sort", writes="y index work places")
def _sort(c: Call) -> Reach:
    c.at_most("k", c.n)
    y, work = c.outer * c.k * c.inner, c.scratch(2 * c.n, 2 * c.n)
    return {"x": _columns(c), "y": y, "index": y, "work": work, "places": work}


@reach(TABLE, "arg_extreme", writes="y")
def _arg_extreme(c: Call) -> Reach:
    c.positive("n")
    return {"x": _columns(c), "y": c.outer * c.inner}


@reach(TABLE, "hardmax", writes="y")
def _hardmax(c: Call) -> Reach:
    c.positive("n")
    return {"x": _columns(c), "y": _columns(c)}


@reach(TABLE, "accumulate", writes="y")
def _accumulate(c: Call) -> Reach:
    c.positive("n")
    c.at_most("exclusive", 1)
    return {"x": _columns(c), "y": _columns(c)}


@reach(TABLE, "cumprod_grad", writes="dx")
def _cumprod_grad(c: Call) -> Reach:
    return {"dy": _columns(c), "x": _columns(c), "dx": _columns(c)}


@reach(TABLE, "count_up", writes="y")
def _count_up(c: Call) -> Reach:
    return {"start": if_(c.n, 1), "delta": if_(c.n, 1), "y": c.n}


@reach(TABLE, "triangle", writes="y")
def _triangle(c: Call) -> Reach:
    c.positive("m")
    return {"x": c.rows * c.n, "k": 1, "y": c.rows * c.n}


@reach(TABLE, "strided_copy", writes="y", signed="x_at y_at line step walk")
def _strided_copy(c: Call) -> Reach:
    c.check_range("walk", c.walk[: c.rank])
    outer = _walk(c, 2)
    if not c.n or not c.m or not c.rows or not c.limit:
        return {}
    c.at_most("m", c.limit)
    full = min(c.m, c.limit // c.n)
    part = c.limit - full * c.n if full < c.m else 0
    found = {}
    for i, name in enumerate("xy"):
        start, line, step = c.numbers[f"{name}_at"], c.line[i], c.step[i]
        whole = c.span(start, *outer[i], (full, line), (c.n, step))
        last = c.span(start + full * line, *outer[i], (min(part, c.n), step))
        found[name] = max(whole, last)
    return found


@reach(TABLE, "transposed_copy", writes="y", signed="x_at y_at xs ys walk")
def _transposed_copy(c: Call) -> Reach:
    c.check_range("walk", c.walk[: c.rank])
    x, y = _walk(c, 2)
    if not c.rows:
        return {}
    return {
        "x": c.span(c.x_at, *x, (c.p, c.xs), (c.q, 1)),
        "y": c.span(c.y_at, *y, (c.q, c.ys), (c.p, 1)),
    }


@reach(TABLE, "draw", writes="y", free="node seed")
def _draw(c: Call) -> Reach:
    return {"y": c.n, "noise": 2}
