"""The LSTM kernel whose R is integers of 8 bits, which are read once at each step.

    a = g + R' h'    R' = Q scale, a scale for each row; g = W x + b
                     h' = (H - z) u, H = round(h / u) + z of 8 bits; u and z are what
                     DynamicQuantizeLinear chooses for the range of h

Each sample has its own range, so what a batch contains besides changes nothing.  onnxruntime takes
the range of all samples that a thread of it has, which is the same for one.

Error     half of u in each h; none in the sums, which 32 bits hold
Source    onnxruntime's DynamicQuantizeLSTM
"""

from __future__ import annotations

from engine.kernels.loops.integer_gemm import prepare_start, rectangle
from engine.kernels.machine.target import Target
from engine.kernels.ops.recurrent import cells as cells_
from engine.kernels.ops.recurrent.lstm import PEEPHOLES
from engine.kernels.ops.recurrent.lstm_step import share_units
from engine.kernels.ops.recurrent.recurrence import (
    LENS,
    SIGMOID,
    TANH,
    WALK,
    WALK_WORDS,
    WalkReach,
    part,
    row_at,
    state_at,
    time_at,
    y_at,
)
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.integers import GROUP, PANEL
from engine.kernels.vocabulary.kernel import (
    Body,
    Inline,
    Intrinsic,
    inline,
    kernel,
    off,
    pick,
    udiv,
)
from engine.kernels.vocabulary.row_program import loop

_LEAST = 2.0**-100  # a range of states below it is 0
_STEP = "(last - first) * batch * hidden * count"


def _reach(c: KernelCall) -> Reach:
    w = WalkReach(c)
    states = dict.fromkeys(("h0", "c0", "h", "c"), w.states)
    return {**states, "gates": 4 * w.rows, "y": w.y if c.has_y else 0}


def _round_state() -> Inline:
    """Return an inline function: round(h, x, zero, unit, n), n states as bytes, the byte of 0, and
    the value of 1.
    """
    highest = loop("f32", "x[] -> max(x)")
    lowest = loop("f32", "x[] -> max(-x)")
    # Comparisons pass over NaN: 0 times what is not finite is NaN, and stays so.
    none = loop("f32", "x[] -> sum(x * 0.0)")
    # Both ends of a range may be in the middle of two integers, and round away from each other.
    level = loop(
        "f32", "x[] u z -> y:u8[] = cast(u8, min(255.0, max(0.0, round(x / u) + round(z))))"
    )

    @inline
    def run(h, x, zero, unit, n):
        high, low = highest(h, n), lowest(h, n)
        high = high if high > 0.0 else 0.0
        low = low if low > 0.0 else 0.0
        u = (high + low) / 255.0
        u = u if u > _LEAST else 1.0
        unit[0] = 0.0
        level(unit, u, low / u, zero, 1)
        level(h, u, low / u, x, n)
        unit[0] = u + none(h, n)

    return run


@kernel(
    f"""
    gates: T[...]   q: i8[last, up(4 * hidden, 16) * up(hidden, 4)]
    sums: i32[last, up(4 * hidden, 16)]   factor: f32[last, up(4 * hidden, 16)]
    {LENS}   h0, c0: T[...]   {PEEPHOLES}   y, h, c: out T[...]
    x: scratch u8[threads, batch, hidden]   zero: scratch u8[threads, batch]
    start: scratch i32[threads, batch, up(4 * hidden, 16)]
    work: scratch T[threads, batch, 4, hidden]   unit: scratch T[threads, batch]
    has_y, by_units, count, step: i64
    {WALK} and step + count <= steps
        and (by_units == 0 or (hidden % tile_columns == 0 and hidden % 16 == 0))
    """,
    words={"g": WALK_WORDS},
    reach=_reach,
    multiply_adds=lambda c: 4 * int((c.last - c.first) * c.batch * c.hidden * c.hidden * c.count),
    touches={"gates": f"4 * {_STEP}", "y": _STEP},
    T=("f32",),
    f=(SIGMOID,),
    g=(TANH,),
    h=(TANH,),
)
def lstm_integers(
    target: Target, T: str, f: str, g: str, h: str, peephole: int, couple: int
) -> Body:
    """Run `count` steps of an LSTM from number `step` on: h, c of h0, c0, and its rows of y.

    gates: by rows, W x + b of i, o, f, c; q, sums, factor: R^T in panels, of each direction.
    Threads share rows or, by_units, whole panels of units, of one step: results are the same.
    """
    run, units_of = cells_.lstm(T, f, g, h, peephole, couple), share_units(target, T)
    copy, zero_y, round_state = Intrinsic("copy", (T,)), Intrinsic("zero", (T,)), _round_state()
    times, prepare = rectangle(target, "u8", "f32"), prepare_start(target, "u8")
    join = loop(T, "g[] a[] u -> y[] = g + a * u")

    def body(
        gates, q, sums, factor, lens, h0, c0, p, y, h, c, x, zero, start, work, unit, has_y,
        by_units, count, step, g, tid, nthreads,
    ):  # fmt: skip
        n, batch = g.hidden, g.batch
        columns = udiv(4 * n + PANEL - 1, PANEL) * PANEL
        depth = udiv(n + GROUP - 1, GROUP) * GROUP
        mine, rows = off(x, tid * batch * n), off(work, tid * batch * 4 * n)
        begin, units_at = off(start, tid * batch * columns), off(unit, tid * batch)
        points = off(zero, tid * batch)
        for d in range(g.first, g.last):
            r0, r1, u, units, parts, width = 0, batch, 0, n, 1, 4 * n
            if by_units != 0:
                u, units = units_of(g, d, tid, nthreads)
                parts, width = 4, units
            else:
                r0, r1 = part(g, d, tid, nthreads)
            total = off(sums, d * columns)
            for k in range(step, step + count if units > 0 and r0 < r1 else step):
                t = time_at(g, d, k)
                for b in range(r0, r1):
                    # The states before the call are apart from the ones that it makes, which other
                    # threads may have made already.
                    at = state_at(g, d, b) * n
                    old = pick(k == step, off(h0, at), off(h, at))
                    i = b - r0
                    round_state(old, off(mine, i * n), off(points, i), off(units_at, i), n)
                for j in range(parts):
                    first = j * n + u
                    for b in range(r1 - r0):
                        # There is no bias: the gates have it.
                        own, sum_at = off(begin, b * columns + first), off(total, first)
                        prepare(own, sum_at, sum_at, off(points, b), width, 0)
                    at = d * columns + first
                    times(
                        mine, n, off(q, at * depth), off(rows, j * n), 4 * n, off(begin, first),
                        columns, off(factor, at), n, r1 - r0, width, 0, 0, 0,
                    )  # fmt: skip
                for b in range(r0, r1):
                    at, i = state_at(g, d, b) * n + u, row_at(g, d, t, b) * 4 * n + u
                    new_h, new_c = off(h, at), off(c, at)
                    into, peep = off(y, y_at(g, d, t, b) * n + u), off(p, d * 3 * n + u)
                    if k == step:
                        copy(new_c, off(c0, at), units)
                    if t < lens[b]:
                        a, scale = off(rows, (b - r0) * 4 * n), units_at[b - r0]
                        for j in range(4):
                            part_of = off(a, j * n)
                            join(off(gates, i + j * n), part_of, scale, part_of, units)
                        run(
                            i=a, o=off(a, n), f=off(a, 2 * n), c=off(a, 3 * n), s=new_c,
                            pi=peep, po=off(peep, n), pf=off(peep, 2 * n), y=new_h, length=units,
                        )  # fmt: skip
                        if has_y != 0:
                            copy(into, new_h, units)
                    else:
                        # A row that waits for its length keeps the state that it begins with.
                        if k == step:
                            copy(new_h, off(h0, at), units)
                        if has_y != 0:
                            zero_y(into, units)

    return body
