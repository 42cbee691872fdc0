"""Reaches of the kernels that choose, sort and move elements.

An index that a kernel reads at run time it compares with a limit among its numbers; the reach is
that of the largest index below this limit.
"""

from __future__ import annotations

from engine.kernels.reach.call import Call, Pair, Reach, Table, if_, reach

TABLE: Table = {}
STATUS = 4  # words of a status


def _walk(c: Call, steps: int) -> list[list[Pair]]:
    """The outer dimensions with each of the strides along them, `steps` of them."""
    rank = c.rank
    if len(c.walk) < rank * (1 + steps):
        c.refuse(f"{rank} outer dimensions, with {steps} strides each, in {len(c.walk)} words")
    dims = c.walk[:rank]
    c.limit_rows(dims, c.rows)
    at = range(rank, rank * (1 + steps), rank) if rank else [0] * steps
    return [list(zip(dims, c.walk[i : i + rank], strict=True)) for i in at]


def _columns(c: Call) -> int:
    return int(c.outer * c.n * c.inner)


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
