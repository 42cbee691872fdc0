"""The product of patches and filters: one convolution, or the parts of one, as a matrix product.

Y = P B for each job, where a row of P is the patch of the images that an output pixel sees
(patches.py), and B has the filters (filter_panels.py).
"""

from __future__ import annotations

import math

from engine.base.element_types import ITEMSIZE
from engine.kernels.machine.target import Target
from engine.kernels.ops.conv import patches
from engine.kernels.ops.conv.filter_panels import measure_panels
from engine.kernels.ops.conv.patches import sweep
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    BIAS,
    Body,
    Numbers,
    Parameters,
    imin,
    kernel,
    off,
    udiv,
)
from engine.kernels.vocabulary.tiling import Tiling
from engine.plan.words import OPEN, Field, Words

CONV_WORDS = Words(
    "conv",
    count="number of jobs",
    groups="groups of channels",
    mode="bits: BIAS, RELU, SIX, HARD_SWISH",
    room="elements of work of a thread",
    jobs=Field("the jobs", count=OPEN, of=patches.JOB),
)


def _tiling(params: Parameters, numbers: Numbers) -> Tiling | None:
    """Return the rows of P, where they are rows of X and Y as they lie in memory."""
    at = CONV_WORDS.place("jobs")
    if numbers[CONV_WORDS.place("count")] != 1:
        return None
    q = patches.JOB.unpack([int(n) for n in numbers[at : at + patches.JOB.size]])
    if not patches.is_plain(q) or (q["scatter"] and not patches.is_spread_in_order(q)):
        return None
    x, y = (ITEMSIZE[str(kind)] for kind in params[1:3] or 2 * params)
    steps = (x * q["ldx"], 0, y * q["ldy"], 0, 0)
    return Tiling(q["rows"], steps, (at + patches.JOB.place("rows"),), patches.run_alone(at))


def _reach(c: KernelCall) -> Reach:
    T, X, _, factors = map(str, (*c.params, *("",) * 4)[:4])
    takes_x = (X or T) == (factors or T)  # as it is stored
    each = 2 if factors else 1
    x = b = y = work = bias = 0
    for q in c.records("jobs", patches.JOB, c.count):
        patches.check_job(c, q)
        rows, n, depth, mc = q["rows"], q["columns"], q["depth"], q["mc"]
        if not rows * n * c.groups:
            continue
        if q["kc"] % each:
            c.refuse(f"words of two factors, {q['kc']} at a time; expected an even number")
        last = c.groups * n
        if depth:
            panels = measure_panels(c, factors, n, depth, q["panel"])
            b = max(b, q["b_at"] + (c.groups - 1) * q["b_group"] + panels)
        if depth and q["direct"] and takes_x:
            x = max(x, c.span(0, (rows, q["ldx"]), (c.groups, q["channels"]), (depth, 1)))
        elif depth:
            x = max(x, patches.images_reach(c, q, c.groups))
            work = max(work, -(-min(mc, rows) * min(q["kc"], depth) // each))
        if q["scatter"]:
            walks = zip((patches.count_images(q), *q["out"]), q["y_step"], strict=True)
            y = max(y, c.span(q["y_at"], *walks) + last - 1)
            work = max(work, mc * q["kc"] // each + min(mc, rows) * n)
        elif depth:
            y = max(y, (rows - 1) * q["ldy"] + last)
        if c.mode & BIAS:
            bias = max(bias, last)
    return {"x": x, "b": b, "y": y, "bias": bias, "work": c.scratch(c.room, work)}


def _samples(c: KernelCall) -> Tiling | None:
    first = CONV_WORDS.place("jobs")
    places = [first + n * patches.JOB.size for n in range(c.count)]
    layouts = set()
    for q in patches.list_jobs(c.jobs):
        y = q["y_step"][0] if q["scatter"] else math.prod(q["out"]) * q["ldy"]
        layouts.add((patches.count_whole_images(q), patches.find_image_step(q), int(y)))
    if len(layouts) != 1:  # some residue has no pixels
        return None
    ((images, x, y),) = layouts
    fixed = {place: one for at in places for place, one in patches.run_alone(at).items()}
    rows = tuple([at + patches.JOB.place("rows") for at in places])
    return c.cut(images, {"x": x, "y": y}, counts=rows, fixed=fixed)


def _products(c: KernelCall) -> int:
    jobs = patches.list_jobs(c.jobs)
    return sum(int(c.groups * q["rows"] * q["columns"] * q["depth"]) for q in jobs)


@kernel(
    """
    x: X[...]   b: T[...]   y: out Y[...]   bias: T[...]   work: scratch T[...]
    g: i64[] where mode <= BIAS | CURVES
    """,
    words={"g": CONV_WORDS},
    reach=_reach,
    multiply_adds=_products,
    tiling=_tiling,
    samples=_samples,
)
def conv(target: Target, T: str, X: str = "", Y: str = "", P: str = "") -> Body:
    """Y = act(P B (+ bias)) for every job and group of channels.

    x, y: channels-last; b: panels of `conv_pack`.  X, Y: how x and y are stored.  P: one of
    `Target.products` to which factors are rounded; the depth of every block is even then.
    Error: of rounding x, w and y to their types; sums as of `tile`.
    """
    run = sweep(target, T, X or T, Y or T, P)
    mr, width = target.mr, target.nv * target.lanes(ITEMSIZE[T])

    def body(x, b, y, bias, work, g, tid, nthreads):
        mine = off(work, tid * g.room)
        for i in range(g.count * g.groups):
            group = i - udiv(i, g.groups) * g.groups
            q = off(g.jobs, udiv(i, g.groups))
            m, n, mt, nt = q.rows, q.columns, q.mt, q.nt
            tm, tn = udiv(tid, nt), tid - udiv(tid, nt) * nt
            # Threads get whole register tiles of rows and whole panels of columns: no tile is cut.
            mstep = udiv(udiv(m + mr - 1, mr) + mt - 1, mt) * mr
            nstep = udiv(udiv(n + width - 1, width) + nt - 1, nt) * width
            m0, n0 = imin(tm * mstep, m), imin(tn * nstep, n)
            m1, n1 = imin(m0 + mstep, m), imin(n0 + nstep, n)
            if m0 < m1 and n0 < n1:
                left, right = off(x, group * q.channels), off(b, q.b_at + group * q.b_group)
                into, add = off(y, group * n), off(bias, group * n)
                run(left, right, into, add, mine, q, m0, m1, n0, n1, g.mode)

    return body


KERNELS = (conv,)
