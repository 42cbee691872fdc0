"""The executor: threads share the stretches of a table of steps, from one meeting to the next.

It is a kernel like any other, so that libraries in C run plans with the very same code.  Its words
are the `CONTEXT` of engine/plan/context.py.  A trimmed build for one thread has nobody to wait for
and no table in memory: `walk` of tools/trimmed/runtime/run.c reads its steps in place.

A stretch has a share for each thread: its part of every step up to the next meeting.  A thread
claims its own share, runs it, and then those that nobody has claimed, if somebody sleeps or is
late.  The thread that completes the last share begins the next stretch, or ends the run: after the
last step, and when a kernel has met bad data and set the kind of the status, before anything
depends on it.  So nobody waits for a thread that sleeps, and a thread that wakes takes part at
once, with its own share if that is still there.  A call of a kernel has the number of the share,
not of the thread that computes it, so results are the same.

The word `phase` counts stretches that begin and runs that end: it is odd during a run.  The claim
of a share is `phase - 1` before it is taken, and `phase + 1` afterwards.  A thread that is late by
a stretch or by a run fails to claim, since all shares of what it saw were taken.

Waiting spins, then sleeps on the condition.  A sleeper announces itself before it looks a last time
and a publisher stores before it looks for sleepers, both sequentially consistent: one of them sees
the other (Dekker's handshake), so no wake-up is lost.  A thread that spins gives its core away now
and then, and looks for shares again: the system may have put the thread that it waits for on the
same core.

The system has the function that sleeps.  POSIX's takes the condition and the mutex; Windows' takes
two numbers more: how long to sleep, -1 for forever, and flags, here none.  Both get all four: a
function with fewer parameters leaves registers alone.
"""

from __future__ import annotations

from engine.kernels.loops.tiles import run_tile
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.kernel import Body, Intrinsic, imax, imin, inline, kernel, off, share
from engine.plan.context import CONTEXT, STOP, TURNS

atomic_load = Intrinsic("atomic_load")
atomic_store = Intrinsic("atomic_store")
fetch_add = Intrinsic("fetch_add")
replace = Intrinsic("replace")
pause = Intrinsic("pause")
invoke1 = Intrinsic("invoke", (1,))
invoke3 = Intrinsic("invoke", (3,))
invoke4 = Intrinsic("invoke", (4,))


@inline
def _publish(g, phase):
    """Set the phase and wake whoever sleeps."""
    atomic_store(g.phase, phase)
    if atomic_load(g.sleepers) != 0:
        invoke1(g.lock, g.mutex)
        invoke1(g.wake, g.condition)
        invoke1(g.unlock, g.mutex)


@inline
def _sleep(g, phase):
    """Sleep until the phase is another."""
    invoke1(g.lock, g.mutex)
    fetch_add(g.sleepers, 1)
    while atomic_load(g.phase) == phase:
        invoke4(g.wait, g.condition, g.mutex, -1, 0)
    fetch_add(g.sleepers, -1)
    invoke1(g.unlock, g.mutex)


@inline
def _run_share(g, i, thread):
    """Run the share of a thread in the stretch from step i on, and return the step after it.

    Steps of a group run one after another on a tile, then on the next one, so that what one writes
    is still in the cache when the next reads it.  A share has a run of tiles for itself: what it
    reads of a tile in a group no other share writes there, so nobody waits inside.

    Steps too small to share belong to the share of thread 0.  It calls the kernel once for each
    thread, so that a kernel need not know, and results are the same.
    """
    table = g.table
    while True:
        step = off(table, i)
        first, end = thread, thread + 1  # the threads as which this one calls
        if step.alone != 0:
            first, end = 0, g.team if thread == 0 else 0
        for mine in range(first, end):
            if step.group == 0:
                invoke3(step.kernel, step.arguments, mine, g.team)
            else:
                low, high = share(step.tiles.count, mine, g.team)
                for tile in range(low, high):
                    for k in range(i, i + step.group):
                        run_tile(off(table, k), tile, mine)
        i += imax(step.group, 1)
        if i >= g.steps or off(table, i).barrier != 0:
            return i


@inline
def _take_part(g, tid):
    """Run shares as thread `tid`: thread 0 until the run has ended, others until told to stop."""
    seen, spins = -1, 0
    while True:
        phase = atomic_load(g.phase)
        if phase != seen:
            seen, spins = phase, 0
        if phase & 1 != 0:
            begin = atomic_load(g.begin)
            for k in range(g.team):
                # While nobody sleeps, every thread is about to claim its own share, so this one
                # looks at other shares only after a first wait.
                if k == 1 and spins == 0 and atomic_load(g.sleepers) == 0:
                    break
                thread = tid + k if tid + k < g.team else tid + k - g.team
                claim = off(g.claims, thread)
                is_free = atomic_load(claim.taken) == phase - 1
                if is_free and replace(claim.taken, phase - 1, phase + 1) != 0:
                    after = _run_share(g, begin, thread)
                    if fetch_add(g.arrivals, 1) == g.team - 1:
                        atomic_store(g.arrivals, 0)
                        if after >= g.steps or atomic_load(g.status.kind) != 0:
                            _publish(g, phase + 1)
                        else:
                            atomic_store(g.begin, after)
                            _publish(g, phase + 2)
        elif tid == 0 or phase == STOP:
            break
        turns = imin(g.spins, TURNS)
        while turns > 0 and atomic_load(g.phase) == phase:
            turns -= 1
            pause()
        if turns == 0:
            spins += TURNS
            if spins < g.spins:
                invoke1(g.give, 0)
            else:
                _sleep(g, phase)


@kernel("g:i64[]", words={"g": CONTEXT}, is_internal=True)
def launch(target: Target, T: str) -> Body:
    """Run the table in the context with all threads, as thread 0; returns when all are done.

    nthreads: 1 for a table whose steps are all alone: the others are not woken.
    """

    def body(g, tid, nthreads):
        if nthreads > 1:
            if g.steps > 0:
                atomic_store(g.begin, 0)
                _publish(g, atomic_load(g.phase) + 1)
                _take_part(g, 0)
        else:
            i = 0
            while i < g.steps and atomic_load(g.status.kind) == 0:
                i = _run_share(g, i, 0)

    return body


@kernel("g:i64[]", words={"g": CONTEXT}, is_internal=True)
def worker(target: Target, T: str) -> Body:
    """Life of thread `tid`: take part in runs until told to stop."""

    def body(g, tid, nthreads):
        _take_part(g, tid)

    return body


KERNELS = (launch, worker)
