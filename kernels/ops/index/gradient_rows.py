"""The gradient of a table that is read by index, made of the rows that were read.

Forward   y[i] = x[l_i]
Backward  dx[r] is the sum of the dy[i] with l_i = r, in the order of i, and 0 where there is none:
          as in gather.py, to the last bit.  The positions i of a row are a chain: the first
          one, and after each the next one.  With the chains any rows can be made by themselves
Source    chains of buckets, as of hash tables; sparse gradients of embeddings as in torch

A planner takes these two kernels instead of `gather_grad` where the gradient is read by
updates alone (graphs/planner/gradient_rows.py): then it never exists whole.  An index counts from
the end when negative; one out of range is written to the fault word, see gather.py.
"""

from __future__ import annotations

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.bad_data import NO_POSITION, report_at
from engine.kernels.loops.blocks import Blocks
from engine.kernels.machine.target import Target
from engine.kernels.ops.index.gather import wrap
from engine.kernels.vocabulary.kernel import (
    Body,
    Numbers,
    Parameters,
    imin,
    kernel,
    off,
    share,
    share_blocks,
)
from engine.kernels.vocabulary.row_program import loop
from engine.plan.context import INDEX, STATUS


@kernel(
    """
    index: T[count] within first.n   first: out T[n]   next: out T[count]
    fault: update i64[1 record]   n, count: i64
    """,
    words={"fault": STATUS},
    T=("i64",),
)
def index_chains(target: Target, T: str) -> Body:
    """Chain the positions of each row: first[r] = min i with index[i] = r, next[i] the one after i.

    -1 ends a chain.  next where an index is out of range is left as it is.  Threads share the rows,
    and each reads all indices.
    """
    clear = loop(T, "-> y[] = -1")

    def body(index, first, next, fault, n, count, tid, nthreads):
        low, high = share(n, tid, nthreads)
        clear(off(first, low), high - low)
        bad = NO_POSITION
        for k in range(count):
            # From the last position to the first: each goes to the front of its chain, which so
            # ends up in ascending order.
            i = count - 1 - k
            at = wrap(index, i, n)
            if at >= low and at < high:
                next[i] = first[at]
                first[at] = i
            elif at < 0:
                bad = imin(bad, i)
        report_at(fault, INDEX, index, bad, n)

    return body


def _tiling(params: Parameters, numbers: Numbers) -> Blocks:
    rows, inner = map(int, numbers[:2])
    steps = (0, 0, 0, inner * ITEMSIZE[str(params[0])])
    return Blocks(rows, steps, numbered=True, unit=inner, at=2)


@kernel(
    """
    first: i64[rows] within next.count   next: i64[count] within dy.count
    dy: S[count, inner]   dx: out T[rows, inner]
    rows, inner: i64   block: i64 where block >= 1   count: i64
    """,
    tiling=_tiling,
)
def gather_grad_rows(target: Target, T: str, S: str = "") -> Body:
    """dx[r] = sum of dy[i] over the chain of row r.

    Threads share the rows in blocks of `block`.  A chain ends before a position that
    is not after the one before, or not below `count`: no chain of `index_chains` has one.  S: the
    type of dy, T if empty.
    """
    zero = loop(T, "-> y[] = 0")
    add = loop(T, "dx[] dy:S[] -> dx[] = dx + dy", S)

    def body(first, next, dy, dx, rows, inner, block, count, tid, nthreads):
        begin, end = share_blocks(rows, block, tid, nthreads)
        # Forward: y[i] = x[l_i]; so dx[r] += dy[i] for every i of the chain of r.
        zero(off(dx, begin * inner), (end - begin) * inner)
        for r in range(begin, end):
            i = first[r]
            to = off(dx, r * inner)
            while i >= 0 and i < count:
                add(to, off(dy, i * inner), to, inner)
                # Chains ascend; one that does not was forged, and would never end.
                i = next[i] if next[i] > i else -1

    return body


KERNELS = (index_chains, gather_grad_rows)
