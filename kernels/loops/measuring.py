"""Kernels that measure: what a machine can do at most, and how long the steps of a plan take.

`peak` and `stream` are the two lines of a roofline (Williams, Waterman, Patterson, CACM 2009).
`timed` stands in a table of steps in the place of another kernel, calls it, and notes the time, so
that the executor times nothing and knows of no profile.
"""

from __future__ import annotations

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.tiles import run_tile
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.kernel import Body, Intrinsic, inline, kernel, off, share_blocks
from engine.kernels.vocabulary.row_program import loop
from engine.plan.context import TIMED
from engine.plan.words import LINE

invoke1 = Intrinsic("invoke", (1,))
invoke3 = Intrinsic("invoke", (3,))
invoke4 = Intrinsic("invoke", (4,))


@kernel("x: update T[...]  done: update i64[...]  rounds: i64", T=("f32",), is_internal=True)
def peak(target: Target, T: str) -> Body:
    """Every thread does `rounds` >= 1 rounds of multiply-adds on registers.

    x: T, a cache line a thread, which it overwrites; done: i64, a cache line a thread: the
    floating-point operations that it has done, two a multiply-add.
    """
    run = Intrinsic("multiply_adds", (T,))
    line = 8 * LINE // ITEMSIZE[T]

    def body(x, done, rounds, tid, nthreads):
        done[tid * LINE] = run(off(x, tid * line), rounds)

    return body


@kernel("x: update T[...]  y: update T[...]  n: i64  times: i64", T=("f32",), is_internal=True)
def stream(target: Target, T: str) -> Body:
    """y[i] = x[i] + y[i] / 2, `times` times.  x, y: T[n]; every thread has a part of them.

    It reads two elements and writes one that it has read, so that no line is fetched for nothing.
    """
    run = loop(T, "x[] y[] -> y[] = x + 0.5 * y")
    lanes = target.lanes(ITEMSIZE[T])

    def body(x, y, n, times, tid, nthreads):
        begin, end = share_blocks(n, lanes, tid, nthreads)
        for _ in range(times):
            run(off(x, begin), off(y, begin), off(y, begin), end - begin)

    return body


@inline
def _time(g, now):
    """The time of the clock, in its own units."""
    if g.clock_id < 0:
        invoke1(g.clock, now)
    else:
        invoke4(g.clock, g.clock_id, now, 0, 0)
    return now[0] * g.scale + now[1]


@kernel("g: i64[]", words={"g": TIMED}, is_internal=True)
def timed(target: Target, T: str) -> Body:
    """Call a kernel as the executor does, and add the time it takes to the span of the thread.

    Of a step in a group, tid is the number of a tile.
    """

    def body(g, tid, nthreads):
        thread = tid
        if g.tiled != 0:
            thread = g.thread
        now = off(g.now, thread * LINE)
        begin = _time(g, now)
        if g.tiled != 0:
            run_tile(g, tid, thread)
        else:
            invoke3(g.kernel, g.arguments, tid, nthreads)
        end = _time(g, now)
        span = off(g.spans, thread * g.stride)
        if span.calls == 0:
            span.begin = begin
        span.end = end
        span.busy = span.busy + (end - begin)
        span.calls = span.calls + 1

    return body


KERNELS = (peak, stream, timed)
