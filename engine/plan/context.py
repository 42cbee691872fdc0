"""Words shared in a run of a plan: by the runtime, the executor, kernels and the C runtime.

The executor (kernels/loops/executor.py) walks a table of `STEP` records and finds everything
else in a `CONTEXT`.  Steps that run tile by tile have a `TILES` each.  Kernels of a trimmed build
get a `CALL` instead of their own words (kernels/compiler/calls.py).  Kernels that meet bad data
write a `STATUS`, those that draw read a `RANDOM`.  In a profile, `timed`
(kernels/loops/measuring.py) replaces every kernel, learns which one from `TIMED`, and writes a
`SPAN` for each thread.
"""

from __future__ import annotations

from engine.plan.words import OPEN, Field, Words

LABEL, INDEX, LENGTH = 1, 2, 3  # kinds of bad data
BUSY = -1  # the kind while a thread writes the other words of the status
SPINS = 4000  # turns of a waiting loop before a thread sleeps: about 50 us on a 4 GHz core
STOP = -2  # the phase that ends the threads; even, as outside a run
TURNS = 64  # of a waiting loop, after which it gives its core away; a power of two

STATUS = Words(
    "status",
    kind=Field("0, or what is out of range: a LABEL, an INDEX or a LENGTH", shared=True),
    position="of the value in the tensor it was read from",
    value="what was read",
    limit="what it must be below; an index may also be negative, and is at least -limit",
)

RANDOM = Words("random", seed="seed of the run", step="step that tells runs of one seed apart")

MOVE = Words(
    "move",
    thread="bytes from what one thread has to what the next one has",
    tile="bytes from one tile to the next",
)

TILES = Words(
    "tiles",
    count="number of tiles",
    numbered="whether the kernel finds the rows of a tile by its number, or else pointers move",
    pointers="how many of the argument words are pointers",
    stride="words from the arguments of one thread to the next one's",
    own=Field("argument words of thread 0, in which it puts the pointers of a tile", address=True),
    moves=Field("how each pointer moves", count=OPEN, of=MOVE),
)

STEP = Words(
    "step",
    kernel=Field("code of the kernel", address=True),
    arguments=Field("argument words of the call", address=True),
    barrier="whether all threads meet before the step",
    alone="whether thread 0 runs it, in the place of every thread in turn",
    group="steps that run tile by tile from this one on, 0 for a step that runs whole",
    tiles=Field("the tiles of a step that is in a group", address=True, of=TILES),
)

CLAIM = Words(
    "claim",
    taken=Field("the phase before the stretch whose share can be claimed, a line each", line=True),
)

CALL = Words(
    "call",
    base=Field("the memory of a model, from its parameters on", address=True),
    record=Field("the numbers of the call, constant data", address=True),
    tile="number of the tile",
    thread="number of the thread",
)

CONTEXT = Words(
    "context",
    team="number of threads, the caller's included",
    table=Field("the steps", address=True, of=STEP),
    steps="number of steps",
    lock=Field("function lock(mutex)", address=True),
    unlock=Field("function unlock(mutex)", address=True),
    wait=Field("function wait(condition, mutex)", address=True),
    wake=Field("function wake(condition), all who wait", address=True),
    give=Field("function give(nothing), which lets others use the core", address=True),
    mutex=Field("mutex that guards sleeping", address=True),
    condition=Field("condition that sleepers wait on", address=True),
    spins="turns of a waiting loop before the thread sleeps",
    status=Field("status words of the plan", address=True, of=STATUS),
    arrivals=Field("shares of the stretch that are done", line=True),
    phase=Field("stretches that have begun and runs that have ended; odd during a run", line=True),
    begin=Field("first step of the stretch", shared=True),
    sleepers=Field("threads that sleep or are about to", line=True),
    claims=Field("the claim of each thread's share", line=True, count=OPEN, of=CLAIM),
)

SPAN = Words(
    "span",
    begin="when the first call began, by the clock",
    end="when the last call ended",
    busy="what all calls took",
    calls="number of calls",
)

TIMED = Words(
    "timed",
    kernel=Field("code of the kernel that is timed", address=True),
    arguments=Field("argument words of its call", address=True),
    clock=Field("function clock(id, now), or clock(now) if the id is negative", address=True),
    clock_id="of the clock",
    scale="units of the clock in one of the first word that it writes; the second has the rest",
    now=Field("where the clock writes, a cache line a thread", address=True),
    spans=Field("the span of thread 0", address=True, of=SPAN),
    stride="spans from one thread to the next",
    tiles=Field("the tiles of the step, if it is in a group", address=True, of=TILES),
    tiled="whether it is in a group; `timed` is then told the number of a tile",
    thread="number of the thread, of a step in a group",
)


def count_tile_words(pointers: int, numbers: int, threads: int) -> int:
    """Return the words that a step of a group takes besides its `STEP` and its arguments.

    pointers, numbers: how many it passes.
    """
    return TILES.size + MOVE.size * pointers + threads * (pointers + numbers)


def write_c_header() -> str:
    """Return all of this as lines of a C header."""
    numbers = {"LABEL": LABEL, "INDEX": INDEX, "LENGTH": LENGTH, "SPINS": SPINS, "STOP": STOP}
    return "\n".join(
        [
            *(f"#define {name} {value}" for name, value in numbers.items()),
            *(
                words.write_defines()
                for words in (STATUS, RANDOM, MOVE, TILES, STEP, CALL, CLAIM, CONTEXT)
            ),
        ]
    )
