"""The executor: every thread walks the same table of steps and meets the others where told.

It is a kernel like any other, so that trimmed builds run plans with the very same code.

Words of the context (i64; words that threads contend for have a cache line each):
  0 threads   1 table of steps   2 steps   3 stop   4..7 addresses of lock, unlock, wait, wake
  8 mutex   9 condition   10 spins before sleeping   11 status words of the plan   12 stopped
  16 generation   24 arrivals   32 phase   40 sleepers
A step is 4 words: address of the kernel, its argument words, barrier before it, 0.

A kernel that meets bad data sets the first status word.  The last thread to reach a barrier copies
it to word 12, so all threads leave the table at the same step, before anything depends on it.

Waiting spins, then sleeps on the condition.  A sleeper announces itself before it looks a last time
and a publisher stores before it looks for sleepers, both sequentially consistent: one of them sees
the other (Dekker's handshake), so no wake-up is lost.
"""

from __future__ import annotations

from engine.kernels.target import Target
from engine.kernels.vocabulary.kernel import Body, Native, inline, kernel, off

GENERATION, ARRIVALS, PHASE, SLEEPERS, WORDS = 16, 24, 32, 40, 48

load_acquire = Native("load_acquire")
store_release = Native("store_release")
fetch_add = Native("fetch_add")
pause = Native("pause")
pointer_at = Native("pointer_at")
invoke1 = Native("invoke", (1,))
invoke2 = Native("invoke", (2,))
invoke3 = Native("invoke", (3,))


@inline
def _await_change(g, slot, old):
    """Return once the word at `slot` is not `old`."""
    spins = 0
    while load_acquire(off(g, slot)) == old:
        spins += 1
        if spins < g[10]:
            pause()
        else:
            invoke1(g, 4, pointer_at(g, 8))
            fetch_add(off(g, SLEEPERS), 1)
            while load_acquire(off(g, slot)) == old:
                invoke2(g, 6, pointer_at(g, 9), pointer_at(g, 8))
            fetch_add(off(g, SLEEPERS), -1)
            invoke1(g, 5, pointer_at(g, 8))


@inline
def _publish(g, slot, value):
    """Set the word at `slot` and wake whoever sleeps."""
    store_release(off(g, slot), value)
    if load_acquire(off(g, SLEEPERS)) != 0:
        invoke1(g, 4, pointer_at(g, 8))
        invoke1(g, 7, pointer_at(g, 9))
        invoke1(g, 5, pointer_at(g, 8))


@inline
def _meet(g, threads):
    """Barrier of all threads."""
    old = load_acquire(off(g, PHASE))
    if fetch_add(off(g, ARRIVALS), 1) == threads - 1:
        store_release(off(g, ARRIVALS), 0)
        g[12] = pointer_at(g, 11)[0]
        _publish(g, PHASE, old + 1)
    else:
        _await_change(g, PHASE, old)


@inline
def _walk(g, tid, threads):
    """Run the table of steps as thread `tid`, and meet at the end."""
    table = pointer_at(g, 1)
    for i in range(g[2]):
        if table[4 * i + 2] != 0:
            _meet(g, threads)
            if g[12] != 0:
                break
        invoke3(table, 4 * i, pointer_at(table, 4 * i + 1), tid, threads)
    _meet(g, threads)


@kernel("g:i64[]")
def launch(target: Target, T: str) -> Body:
    """Run the table in the context with all threads, as thread 0; returns when all are done."""

    def body(g, tid, nthreads):
        g[12] = 0
        if nthreads > 1:
            _publish(g, GENERATION, load_acquire(off(g, GENERATION)) + 1)
        _walk(g, 0, nthreads)

    return body


@kernel("g:i64[]")
def worker(target: Target, T: str) -> Body:
    """Life of thread `tid`: wait for a new generation, run the table, until word 3 is not 0."""

    def body(g, tid, nthreads):
        seen = 0
        while True:
            _await_change(g, GENERATION, seen)
            seen = seen + 1
            if g[3] != 0:
                break
            _walk(g, tid, nthreads)

    return body


KERNELS = (launch, worker)
