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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine import arguments
from engine.element_types import ITEMSIZE
from engine.kernels.loops.blocks import Blocks
from engine.kernels.ops.optimizer.clipping import in_runs, square_root
from engine.kernels.ops.optimizer.method import (
    FIRST,
    SECOND,
    Group,
    Method,
    at_least_0,
    betas,
)
from engine.kernels.ops.optimizer.ranges import (
    RUN,
    TABLE,
    TABLES,
    ends_of,
    ranges_reach,
    runs_of,
    within,
)
from engine.kernels.ops.optimizer.step import Step, factor_of, optimizer, power
from engine.kernels.target import Target
from engine.kernels.vocabulary.call import KernelCall, Reach
from engine.kernels.vocabulary.kernel import (
    Body,
    Numbers,
    Parameters,
    imin,
    kernel,
    off,
    share,
    share_blocks,
)
from engine.kernels.vocabulary.op import Lowering
from engine.kernels.vocabulary.row_program import loop
from engine.runtime.states import State

UPDATE = "m * rate / (sqrt(v * whole) + eps) + decay * p"


# --- options


@dataclass(frozen=True)
class LAMB(Method):
    """Adam scaled by layers (You et al., arXiv 1904.00962), bias corrected."""

    op = "LambOptimizer"

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.0
    clip_grad: float | None = None
    groups: Sequence[Group] = ()

    def attributes(self) -> dict[str, Any]:
        return {
            **betas(self.betas),
            "epsilon": at_least_0("eps", self.eps),
            "weight_decay": arguments.real("weight_decay", self.weight_decay),
        }

    @staticmethod
    def states(attrs: Mapping[str, Any]) -> tuple[State, ...]:
        return State(FIRST), State(SECOND)


# --- kernels


def _tiling(params: Parameters, numbers: Numbers) -> Blocks | None:
    step = RUN * ITEMSIZE[str(params[0])]
    return in_runs((0, step, step, 0, step, step, 0, 0, 2 * ITEMSIZE["f64"]), numbers, 2)


def _moments_reach(c: KernelCall) -> Reach:
    _, runs = ends_of(c)
    return {**ranges_reach(c), "sums": 2 * min(runs, c.runs)}


def _apply_reach(c: KernelCall) -> Reach:
    _, runs = ends_of(c)
    return {**ranges_reach(c), "sums": 2 * runs}


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

    def body(
        step,
        p,
        g,
        clip,
        m,
        v,
        signal,
        ranges,
        sums,
        count,
        runs,
        block,
        clips,
        signalled,
        a,
        b,
        eps,
        decay,
        tid,
        nthreads,
    ):
        if signalled == 0 or signal[0] != 0:
            rate = 1.0 / (1.0 - power(a, step[0]))
            whole = 1.0 / (1.0 - power(b, step[0]))
            k = factor_of(clip, clips)
            first, last = share_blocks(runs, block, tid, nthreads)
            at = 0
            for r in range(count):
                low, high, own = within(ranges, r, at, first, last)
                for c in range(low, high):
                    i = off(ranges.ranges, r).begin + c * RUN
                    n = imin(RUN, off(ranges.ranges, r).size - c * RUN)
                    u, w = off(m, i), off(v, i)
                    pp, uu = run(
                        off(p, i),
                        off(g, i),
                        u,
                        w,
                        k,
                        rate,
                        whole,
                        a,
                        1.0 - a,
                        b,
                        1.0 - b,
                        eps,
                        decay,
                        u,
                        w,
                        n,
                    )
                    sums[2 * (at + c)] = pp
                    sums[2 * (at + c) + 1] = uu
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

    def body(
        lr,
        step,
        p,
        m,
        v,
        signal,
        ranges,
        sums,
        count,
        runs,
        signalled,
        scale,
        a,
        b,
        eps,
        decay,
        tid,
        nthreads,
    ):
        if signalled == 0 or signal[0] != 0:
            rate = 1.0 / (1.0 - power(a, step[0]))
            whole = 1.0 / (1.0 - power(b, step[0]))
            first, last = share(runs, tid, nthreads)
            at = 0
            for r in range(count):
                low, high, own = within(ranges, r, at, first, last)
                if low < high:
                    pp = 0.0
                    uu = 0.0
                    for c in range(at, at + own):
                        pp += sums[2 * c]
                        uu += sums[2 * c + 1]
                    trust = lr[0] * scale
                    if pp != 0.0 and uu != 0.0:
                        trust *= square_root(pp / uu, 1)
                    i = off(ranges.ranges, r).begin + low * RUN
                    n = imin(high * RUN, off(ranges.ranges, r).size) - low * RUN
                    q = off(p, i)
                    run(q, off(m, i), off(v, i), rate, whole, eps, decay, trust, q, n)
                at += own

    return body


# --- lowering


def _lower_lamb(lowering: Lowering) -> None:
    step = Step(lowering, LAMB.states(lowering.site.attrs))
    a, b = step.real("alpha"), step.real("beta")
    eps, decay = step.real("epsilon"), step.real("weight_decay")
    parts = step.parts
    table = step.table([(q.begin, q.size) for q in parts])
    runs = sum(runs_of(q.size) for q in parts)
    sums = lowering.temp("f64", (runs, 2))
    m, v = step.states
    clips, signalled = step.flags
    shared: dict[str, Any] = {
        "step": step.step, "p": step.p, "m": m, "v": v, "signal": step.signal, "ranges": table,
        "sums": sums, "count": len(parts), "runs": runs, "signalled": signalled,
        "a": a, "b": b, "eps": eps, "decay": decay,
    }  # fmt: skip
    lowering.call(lamb_moments(step.T), **shared, g=step.g, clip=step.clip, block=1, clips=clips)
    lowering.call(lamb_apply(step.T), **shared, lr=step.lr, scale=step.scale)
    step.finish()


OPS = (optimizer(LAMB, _lower_lamb, lamb_moments, lamb_apply),)
KERNELS = (lamb_moments, lamb_apply)
