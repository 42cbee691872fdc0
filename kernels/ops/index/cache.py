"""Caches of keys and values: new rows are written among those that earlier calls have written.

Forward   WriteCache: cache[b, h, at_b + j] = rows[b, h, j], in place; it outlives the run.  A cache
          is [batch, heads, capacity, width], so that rows of a head adjoin
Backward  none: it serves the generation of text
Error     none: bits are copied

Rows that do not fit are bad data: the caller counts the rows of a cache.
"""

from __future__ import annotations

from engine.kernels.loops.bad_data import NO_POSITION, report_at
from engine.kernels.machine.target import Target
from engine.kernels.ops.movement import find_bits
from engine.kernels.vocabulary.kernel import MOVED, Body, imin, kernel, off, share, udiv
from engine.kernels.vocabulary.op import OURS, Lowering, Op, Operand, Site, TensorType
from engine.kernels.vocabulary.row_program import loop
from engine.plan.context import LENGTH, STATUS


@kernel(
    """
    at: i64[batch]   rows: T[batch, heads, count, width]
    cache: update T[batch, heads, capacity, width]   fault: update i64[1 record]
    batch, heads, count, width: i64   capacity: i64 where capacity >= count
    """,
    words={"fault": STATUS},
    T=MOVED,
)
def write_cache(target: Target, T: str) -> Body:
    """cache[b, h, at[b] + j] = rows[b, h, j]; updates the cache, in nothing but these rows.

    Threads share the heads.
    """
    copy = loop(T, "x[] -> y[] = x")

    def body(at, rows, cache, fault, batch, heads, count, width, capacity, tid, nthreads):
        bad = NO_POSITION
        first, last = share(batch * heads, tid, nthreads)
        for head in range(first, last):
            b = udiv(head, heads)
            start = at[b]
            if start < 0 or start > capacity - count:
                bad = imin(bad, b)
            else:
                to = off(cache, (head * capacity + start) * width)
                copy(off(rows, head * count * width), to, count * width)
        report_at(fault, LENGTH, at, bad, capacity - count + 1)

    return body


def _infer(site: Site) -> tuple[TensorType, ...]:
    cache, rows = site.real(0), site.real(1)
    if cache.rank != 4 or rows.rank != 4:
        site.wrong(f"the cache is {cache} and the rows are {rows}; expected 4 dimensions each")
    batch, heads, capacity, width = cache.shape
    count = rows.shape[2]
    site.shaped(1, (batch, heads, count, width))
    site.shaped(2, (batch,))
    if isinstance(capacity, int) and isinstance(count, int) and count > capacity:
        site.wrong(f"input 1 has {count} rows, but the cache has room for {capacity}")
    return (cache.but(),)


def _lower(lowering: Lowering) -> None:
    cache, rows = lowering.x(0), lowering.x(1)
    batch, heads, capacity, width = cache.type.dims
    bits = find_bits(cache.type.dtype)
    rows, cache = (Operand(o.name, o.type.but(dtype=bits)) for o in (rows, cache))
    lowering.call(
        write_cache(bits), at=lowering.x(2), rows=rows, cache=cache, fault=lowering.fault(),
        batch=batch, heads=heads, count=rows.type.dims[2], width=width, capacity=capacity,
    )  # fmt: skip


OPS = (
    Op(
        name="WriteCache",
        domain=OURS,
        internal=True,
        infer=_infer,
        lower=_lower,
        calls=(write_cache,),
        is_view=True,
        is_acting=True,
        no_gradient=frozenset((0, 1, 2)),
    ),
)
KERNELS = (write_cache,)
