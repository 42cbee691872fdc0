"""The LSTM kernel whose R is integers of 8 bits, which are read once at each step.

    a = g + R' h'    R' = Q scale, a scale for each row; g = W x + b
                     h' = H u, u = largest |h| / 32512, H = round(h / u) in two bytes: 256 H1 + H0

Of few rows a step is the time to read R: integers have a quarter of the bytes of floats, and two
products of 8 bits, for which R is loaded once, take less time than that.  So h keeps 16 bits, where
onnxruntime rounds it to 8.

Error     half of u in each h; none in the sums of a byte, which 32 bits hold
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
from engine.kernels.vocabulary.kernel import Body, Inline, Native, inline, kernel, off, pick, udiv
from engine.kernels.vocabulary.row_program import loop

ZERO = 128  # of the bytes of a rounded state
_LARGEST, _LEAST = 32512.0, 2.0**-100  # 127 256; the least state whose reciprocal is finite, by far
_STEP = "(last - first) * batch * hidden * count"


def _reach(c: KernelCall) -> Reach:
    w = WalkReach(c)
    states = dict.fromkeys(("h0", "c0", "h", "c"), w.states)
    return {**states, "gates": 4 * w.rows, "y": w.y if c.has_y else 0}


def _round_state() -> Inline:
    """Return an inline function: round(h, x, n), n states as two rows of bytes; it returns u."""
    largest = loop("f32", "x[] -> max(abs(x))")
    # Comparisons pass over NaN: 0 times what is not finite is NaN, and stays so.
    none = loop("f32", "x[] -> sum(x * 0.0)")
    high = f"floor((round(x * f) + {ZERO}.0) * {1 / 256})"
    halves = loop(
        "f32",
        f"x[] f -> a:u8[] = cast(u8, {high} + {ZERO}.0); "
        f"b:u8[] = cast(u8, round(x * f) - 256.0 * {high} + {ZERO}.0)",
    )

    @inline
    def run(h, x, n):
        most = largest(h, n)
        most = most if most > _LEAST else _LEAST
        halves(h, _LARGEST / most, x, off(x, n), n)
        return most / _LARGEST + none(h, n)

    return run


@kernel(
    f"""
    gates: T[...]   q: i8[last, up(4 * hidden, 16) * up(hidden, 4)]   zero: u8[1]
    sums: i32[last, up(4 * hidden, 16)]   factor: f32[last, up(4 * hidden, 16)]
    {LENS}   h0, c0: T[...]   {PEEPHOLES}   y, h, c: out T[...]
    x: scratch u8[threads, batch, 2, hidden]   start: scratch i32[threads, up(4 * hidden, 16)]
    work: scratch T[threads, batch, 8, hidden]   unit: scratch T[threads, batch]
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
    copy, zero_y, round_state = Native("copy", (T,)), Native("zero", (T,)), _round_state()
    # Both bytes of a row go over R together.
    times, prepare = rectangle(target, "u8", "f32", 2), prepare_start(target, "u8")
    join = loop(T, "g[] a[] b[] u -> y[] = g + (a * 256.0 + b) * u")

    def body(
        gates, q, zero, sums, factor, lens, h0, c0, p, y, h, c, x, start, work, unit, has_y,
        by_units, count, step, g, tid, nthreads,
    ):  # fmt: skip
        n, batch = g.hidden, g.batch
        columns = udiv(4 * n + PANEL - 1, PANEL) * PANEL
        depth = udiv(n + GROUP - 1, GROUP) * GROUP
        mine, rows = off(x, tid * batch * 2 * n), off(work, tid * batch * 8 * n)
        begin, units_at = off(start, tid * columns), off(unit, tid * batch)
        for d in range(g.first, g.last):
            r0, r1, u, units, parts, width = 0, batch, 0, n, 1, 4 * n
            if by_units != 0:
                u, units = units_of(g, d, tid, nthreads)
                parts, width = 4, units
            else:
                r0, r1 = part(g, d, tid, nthreads)
            if units > 0 and r0 < r1:
                # There is no bias: the gates have it.
                total = off(sums, d * columns)
                prepare(begin, total, total, zero, columns, 0)
            for k in range(step, step + count if units > 0 and r0 < r1 else step):
                t = time_at(g, d, k)
                for b in range(r0, r1):
                    # The states before the call are apart from the ones that it makes, which other
                    # threads may have made already.
                    at = state_at(g, d, b) * n
                    old = pick(k == step, off(h0, at), off(h, at))
                    units_at[b - r0] = round_state(old, off(mine, (b - r0) * 2 * n), n)
                for j in range(parts):
                    at = d * columns + j * n + u
                    times(
                        mine, n, off(q, at * depth), off(rows, j * n), 4 * n,
                        off(begin, j * n + u), 0, off(factor, at), n, 2 * (r1 - r0), width, 0, 0, 0,
                    )  # fmt: skip
                for b in range(r0, r1):
                    at, i = state_at(g, d, b) * n + u, row_at(g, d, t, b) * 4 * n + u
                    new_h, new_c = off(h, at), off(c, at)
                    into, peep = off(y, y_at(g, d, t, b) * n + u), off(p, d * 3 * n + u)
                    if k == step:
                        copy(new_c, off(c0, at), units)
                    if t < lens[b]:
                        a, scale = off(rows, (b - r0) * 8 * n), units_at[b - r0]
                        for j in range(4):
                            high = off(a, j * n)
                            join(off(gates, i + j * n), high, off(high, 4 * n), scale, high, units)
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
