"""The executor: every thread walks the same table of steps and waits for the others at barriers.

It is a kernel like any other, so that trimmed builds run plans with the very same code.  Its words
are the `CONTEXT` of engine/plan/context.py.

A kernel that meets bad data sets the kind of the status.  The last thread to reach a barrier copies
it to `stopped`, so all threads leave the table at the same step, before anything depends on it.

Waiting spins, then sleeps on the condition.  A sleeper announces itself before it looks a last time
and a publisher stores before it looks for sleepers, both sequentially consistent: one of them sees
the other (Dekker's handshake), so no wake-up is lost.  A thread that spins gives its core away now
and then: the system may have put the thread that it waits for on the same one.

Answers do not wait for threads that sleep when the run begins.  Thread 0 calls them, and does their
shares as well, step by step, until all are awake; from there, all of them share the run.  Nobody
sleeps during a call, since a step may take longer than a thread spins.  So a plan for many threads
is hardly slower than one for a single thread, however long they take to wake, and results are the
same, since the shares are.  Runs that train wait: they follow one another, and a first step that
thread 0 does alone may be long, as an update is.

The system has the function that sleeps.  POSIX's takes the condition and the mutex; Windows' takes
two numbers more: how long to sleep, -1 for forever, and flags, here none.  Both get all four: a
function with fewer parameters leaves registers alone.
"""

from __future__ import annotations

from engine.kernels.loops.tiles import run_tile
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.kernel import Body, Native, imax, inline, kernel, off, share
from engine.plan.context import CONTEXT, TURNS

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
        if spins < g.spins or load_acquire(g.calling) != 0:
            pause()
            if spins & (TURNS - 1) == 0:
                invoke1(g.give, 0)
        else:
            invoke1(g.lock, g.mutex)
            fetch_add(g.sleepers, 1)
            while load_acquire(word) == old and load_acquire(g.calling) == 0:
                invoke4(g.wait, g.condition, g.mutex, -1, 0)
            fetch_add(g.sleepers, -1)
            invoke1(g.unlock, g.mutex)
            spins = 0


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
def _walk(g, tid, threads, i, is_shared):
    """Run the table from step i on as thread `tid`, and meet at the end.

    Steps of a group run one after another on a tile, then on the next one, so that what one writes
    is still in the cache when the next reads it.  A thread has a run of tiles for itself: what it
    reads of a tile in a group no other thread writes there, so nobody waits inside.

    Thread 0 runs what is too small to share, and everything until nobody sleeps.  It calls the
    kernel once for each thread, so that a kernel need not know, and results are the same.

    is_shared: 0 as long as thread 0 has not told the others to begin.
    """
    table = g.table
    while i < g.steps:
        if is_shared == 0 and load_acquire(g.sleepers) == 0:
            g.begin = i
            _publish(g, g.generation, load_acquire(g.generation) + 1)
            store_release(g.calling, 0)
            is_shared = 1
        step = off(table, i)
        if step.barrier != 0:
            _meet(g, threads if is_shared != 0 else 1)
            if g.stopped != 0:
                break
        first, end = tid, tid + 1  # the threads whose shares this one does
        if step.alone != 0 or is_shared == 0:
            first, end = 0, g.team if tid == 0 else 0
        for thread in range(first, end):
            if step.group == 0:
                invoke3(step.kernel, step.arguments, thread, g.team)
            else:
                low, high = share(step.tiles.count, thread, g.team)
                for tile in range(low, high):
                    for k in range(i, i + step.group):
                        run_tile(off(table, k), tile, thread)
        i += imax(step.group, 1)
    if is_shared == 0:
        store_release(g.calling, 0)
    _meet(g, threads if is_shared != 0 else 1)


@kernel("g:i64[]", words={"g": CONTEXT}, is_internal=True)
def launch(target: Target, T: str) -> Body:
    """Run the table in the context with all threads, as thread 0; returns when all are done.

    nthreads: 1 for a table whose steps are all alone: the others are not woken.
    """

    def body(g, tid, nthreads):
        g.stopped = 0
        is_shared = 1
        if nthreads > 1:
            if g.waits != 0:
                g.begin = 0
                _publish(g, g.generation, load_acquire(g.generation) + 1)
            else:
                _publish(g, g.calling, 1)
                is_shared = 0
        _walk(g, 0, nthreads, 0, is_shared)

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
            _walk(g, tid, nthreads, g.begin, 1)

    return body


KERNELS = (launch, worker)
