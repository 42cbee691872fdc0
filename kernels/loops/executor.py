"""The executor: every thread walks the same table of steps and waits for the others at barriers.

It is a kernel like any other, so that trimmed builds run plans with the very same code.  Its words
are the `CONTEXT` of engine/plan/context.py.

A kernel that meets bad data sets the kind of the status.  The last thread to reach a barrier copies
it to `stopped`, so all threads leave the table at the same step, before anything depends on it.

Waiting spins, then sleeps on the condition.  A sleeper announces itself before it looks a last time
and a publisher stores before it looks for sleepers, both sequentially consistent: one of them sees
the other (Dekker's handshake), so no wake-up is lost.

The system has the function that sleeps.  POSIX's takes the condition and the mutex; Windows' takes
two numbers more: how long to sleep, -1 for forever, and flags, here none.  Both get all four: a
function with fewer parameters leaves registers alone.
"""

from __future__ import annotations

from engine.kernels.loops.tiles import run_tile
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.kernel import Body, Native, inline, kernel, off, share
from engine.plan.context import CONTEXT

load_acquire = Native("load_acquire")
store_release = Native("store_release")
fetch_add = Native("fetch_add")
pause = Native("pause")
invoke1 = Native("invoke", (1,))
invoke3 = Native("invoke", (3,))
invoke4 = Native("invoke", (4,))


@inline
def _await_change(g, word, old):
    """Return once the word of the context is not `old`."""
    spins = 0
    while load_acquire(word) == old:
        spins += 1
        if spins < g.spins:
            pause()
        else:
            invoke1(g.lock, g.mutex)
            fetch_add(g.sleepers, 1)
            while load_acquire(word) == old:
                invoke4(g.wait, g.condition, g.mutex, -1, 0)
            fetch_add(g.sleepers, -1)
            invoke1(g.unlock, g.mutex)


@inline
def _publish(g, word, value):
    """Set the word of the context and wake whoever sleeps."""
    store_release(word, value)
    if load_acquire(g.sleepers) != 0:
        invoke1(g.lock, g.mutex)
        invoke1(g.wake, g.condition)
        invoke1(g.unlock, g.mutex)


@inline
def _meet(g, threads):
    """Wait until all threads have arrived; one alone has nobody to wait for."""
    if threads == 1:
        g.stopped = load_acquire(g.status.kind)
        return
    old = load_acquire(g.phase)
    if fetch_add(g.arrivals, 1) == threads - 1:
        store_release(g.arrivals, 0)
        g.stopped = load_acquire(g.status.kind)
        _publish(g, g.phase, old + 1)
    else:
        _await_change(g, g.phase, old)


@inline
def _walk(g, tid, threads):
    """Run the table of steps as thread `tid`, and meet at the end.

    Steps of a group run one after another on a tile, then on the next one, so that what one writes
    is still in the cache when the next reads it.  A thread has a run of tiles for itself: what it
    reads of a tile in a group no other thread writes there, so nobody waits inside.

    Thread 0 runs what is too small to share.  It calls the kernel once for each thread, so that a
    kernel need not know, and results are the same.
    """
    table = g.table
    i = 0
    while i < g.steps:
        step = off(table, i)
        if step.barrier != 0:
            _meet(g, threads)
            if g.stopped != 0:
                break
        if step.alone != 0:
            if tid == 0:
                for other in range(g.team):
                    invoke3(step.kernel, step.arguments, other, g.team)
            i += 1
        elif step.group == 0:
            invoke3(step.kernel, step.arguments, tid, threads)
            i += 1
        else:
            first, last = share(step.tiles.count, tid, threads)
            for tile in range(first, last):
                for k in range(i, i + step.group):
                    run_tile(off(table, k), tile, tid)
            i += step.group
    _meet(g, threads)


@kernel("g:i64[]", words={"g": CONTEXT}, is_internal=True)
def launch(target: Target, T: str) -> Body:
    """Run the table in the context with all threads, as thread 0; returns when all are done.

    nthreads: 1 for a table whose steps are all alone: the others are not woken.
    """

    def body(g, tid, nthreads):
        g.stopped = 0
        if nthreads > 1:
            _publish(g, g.generation, load_acquire(g.generation) + 1)
        _walk(g, 0, nthreads)

    return body


@kernel("g:i64[]", words={"g": CONTEXT}, is_internal=True)
def worker(target: Target, T: str) -> Body:
    """Life of thread `tid`: wait for a new generation, run the table, until told to stop."""

    def body(g, tid, nthreads):
        seen = 0
        while True:
            _await_change(g, g.generation, seen)
            seen = seen + 1
            if g.stop != 0:
                break
            _walk(g, tid, nthreads)

    return body


KERNELS = (launch, worker)
