"""LAMB: Adam's step, scaled for each parameter tensor by the ratio of two norms.

Forward  m = a m + (1 - a) g,  v = b v + (1 - b) g^2,
         u = m / ((1 - a^t) (sqrt(v / (1 - b^t)) + eps)) + wd p,
         p = p - r ||p|| / ||u|| u, the norms over one tensor; the ratio is 1 where one of them is 0
Error    a step: 5 roundings of float; norms as in clipping.py, the same for any number of threads
Source   You et al., arXiv 1904.00962, Algorithm 2 with the identity as phi

Two passes, the second computes u again: m and v are read from the cache or memory either way, and
u would have to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.blocks import Blocks
from engine.kernels.machine.target import Target
from engine.kernels.ops.optimizer.clipping import cut_runs, square_root
from engine.kernels.ops.optimizer.method import (
    Group,
    Moments,
)
from engine.kernels.ops.optimizer.node import OptimizerNode, optimizer
from engine.kernels.ops.optimizer.ranges import (
    RUN,
    TABLE,
    TABLES,
    count_runs,
    find_ends,
    ranges_reach,
    within,
)
from engine.kernels.ops.optimizer.update import factor_of, is_due, power
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    Body,
    Numbers,
    Parameters,
    imin,
    inline,
    kernel,
    off,
    share,
    share_blocks,
)
from engine.kernels.vocabulary.op import Lowering
from engine.kernels.vocabulary.row_program import loop

UPDATE = "m * rate / (sqrt(v * whole) + eps) + decay * p"


# --- options


@dataclass(frozen=True)
class LAMB(Moments):
    """Adam with steps scaled layer by layer, and bias correction (You et al., arXiv 1904.00962).

    weight_decay: the factor of the parameters that is added to a step before it is scaled.
    """

    op = "LambOptimizer"

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.0
    clip_grad: float | None = None
    groups: Sequence[Group] = ()


# --- kernels


def _tiling(params: Parameters, numbers: Numbers) -> Blocks | None:
    step = RUN * ITEMSIZE[str(params[0])]
    return cut_runs((0, step, step, 0, step, step, 0, 0, 2 * ITEMSIZE["f64"]), numbers, 2)


def _moments_reach(c: KernelCall) -> Reach:
    _, runs = find_ends(c)
    return {**ranges_reach(c), "sums": 2 * min(runs, c.runs)}


def _apply_reach(c: KernelCall) -> Reach:
    _, runs = find_ends(c)
    return {**ranges_reach(c), "sums": 2 * runs}


@inline
def corrections(call):
    """Return what the first moment and the second are multiplied by, as they began with 0."""
    return 1.0 / (1.0 - power(call.a, call.step[0])), 1.0 / (1.0 - power(call.b, call.step[0]))


@kernel(
    f"""
    step: i64[1]   p, g: T[...]   clip: f64[1] if clips   m, v: update T[...]
    signal: b1[1] if signalled   {TABLE}   sums: out f64[...]   count, runs: i64
    block: i64 where block >= 1   clips, signalled: i64   a, b, eps, decay: f64
    """,
    words=TABLES,
    reach=_moments_reach,
    tiling=_tiling,
)
def lamb_moments(target: Target, T: str) -> Body:
    """Update m, v from g; sums[r] = (sum p^2, sum u^2) over run r of RUN elements of a tensor.

    p, g, m, v: T[n]; sums: f64[runs, 2], overwritten; step: i64[1].  Threads share the runs in
    blocks of `block`.
    """
    run = loop(
        T,
        f"""p[] g[] m[] v[] k rate whole a a1 b b1 eps decay -> g = g * k;
        m = a * m + a1 * g; v = b * v + b1 * (g * g); u = {UPDATE};
        m[]; v[]; sum(p * p); sum(u * u)""",
    )

    def body(call, tid, nthreads):
        if is_due(call):
            rate, whole = corrections(call)
            k, a, b, eps = factor_of(call), call.a, call.b, call.eps
            first, last = share_blocks(call.runs, call.block, tid, nthreads)
            at = 0
            for r in range(call.count):
                low, high, own = within(call.ranges, r, at, first, last)
                for c in range(low, high):
                    i = off(call.ranges.ranges, r).begin + c * RUN
                    n = imin(RUN, off(call.ranges.ranges, r).size - c * RUN)
                    p, g, m, v = off(call.p, i), off(call.g, i), off(call.m, i), off(call.v, i)
                    pp, uu = run(
                        p, g, m, v, k, rate, whole, a, 1.0 - a, b, 1.0 - b, eps, call.decay, m, v, n
                    )
                    # A sum for each run, not for each thread: the norm is then the same, to the
                    # last bit, for any number of threads.
                    call.sums[2 * (at + c)] = pp
                    call.sums[2 * (at + c) + 1] = uu
                at += own

    return body


@kernel(
    f"""
    lr: f32[1]   step: i64[1]   p: update T[...]   m, v: T[...]   signal: b1[1] if signalled
    {TABLE}   sums: f64[...]   count, runs, signalled: i64   scale, a, b, eps, decay: f64
    """,
    words=TABLES,
    reach=_apply_reach,
)
def lamb_apply(target: Target, T: str) -> Body:
    """p = p - lr ||p|| / ||u|| u for each tensor, norms^2 the sums of its runs."""
    run = loop(T, f"p[] m[] v[] rate whole eps decay trust -> p[] = p - trust * ({UPDATE})")

    def body(call, tid, nthreads):
        if is_due(call):
            rate, whole = corrections(call)
            first, last = share(call.runs, tid, nthreads)
            at = 0
            for r in range(call.count):
                low, high, own = within(call.ranges, r, at, first, last)
                if low < high:
                    # Each thread adds up all runs of the tensor, in one order, which saves
                    # a meeting of the threads.
                    pp = 0.0
                    uu = 0.0
                    for c in range(at, at + own):
                        pp += call.sums[2 * c]
                        uu += call.sums[2 * c + 1]
                    trust = call.lr[0] * call.scale
                    if pp != 0.0 and uu != 0.0:
                        trust *= square_root(pp / uu, 1)
                    i = off(call.ranges.ranges, r).begin + low * RUN
                    n = imin(high * RUN, off(call.ranges.ranges, r).size) - low * RUN
                    p, m, v = off(call.p, i), off(call.m, i), off(call.v, i)
                    run(p, m, v, rate, whole, call.eps, call.decay, trust, p, n)
                at += own

    return body


# --- lowering


def _lower(lowering: Lowering) -> None:
    node = OptimizerNode(lowering, LAMB)
    parts = node.parts
    runs = sum(count_runs(q.size) for q in parts)
    m, v = node.states
    clips, signalled = node.flags
    shared: dict[str, Any] = {
        "step": node.step, "p": node.p, "m": m, "v": v, "signal": node.signal,
        "ranges": node.pack_ranges([(q.begin, q.size) for q in parts]),
        "sums": lowering.temp("f64", (runs, 2)), "count": len(parts), "runs": runs,
        "signalled": signalled, "a": node.real("alpha"), "b": node.real("beta"),
        "eps": node.real("epsilon"), "decay": node.real("weight_decay"),
    }  # fmt: skip
    lowering.call(lamb_moments(node.T), **shared, g=node.g, clip=node.clip, block=1, clips=clips)
    lowering.call(lamb_apply(node.T), **shared, lr=node.lr, scale=node.scale)
    node.finish()


OPS = (optimizer(LAMB, lamb_moments, lamb_apply, lower=_lower),)
KERNELS = (lamb_moments, lamb_apply)
