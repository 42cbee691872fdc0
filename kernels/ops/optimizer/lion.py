"""Lion: the sign of a moving average of gradients.

Lion      p = p (1 - r wd) - r sign(b1 m + (1 - b1) g);  m = b2 m + (1 - b2) g
Error     a step: 3 roundings of float
Source    Chen et al., arXiv 2302.06675, Algorithm 2

The letters are those of step.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine import arguments
from engine.kernels.ops.optimizer.method import FIRST, Group, Method, betas
from engine.kernels.ops.optimizer.ranges import TABLES, part, ranges_reach
from engine.kernels.ops.optimizer.step import (
    COMMON,
    COUNTS,
    Step,
    factor_of,
    in_blocks,
    optimizer,
)
from engine.kernels.target import Target
from engine.kernels.vocabulary.kernel import Body, kernel, off, share_blocks
from engine.kernels.vocabulary.op import Lowering
from engine.kernels.vocabulary.row_program import loop
from engine.runtime.states import State

# --- options


@dataclass(frozen=True)
class Lion(Method):
    """The sign of a moving average of gradients (Chen et al., arXiv 2302.06675)."""

    op = "LionOptimizer"

    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    clip_grad: float | None = None
    groups: Sequence[Group] = ()

    def attributes(self) -> dict[str, Any]:
        decay = arguments.real("weight_decay", self.weight_decay)
        return {**betas(self.betas), "weight_decay": decay}

    @staticmethod
    def states(attrs: Mapping[str, Any]) -> tuple[State, ...]:
        return (State(FIRST),)


# --- kernels


@kernel(
    f"{COMMON}   m: update T[...]   {COUNTS}   a, b, decay: f64",
    words=TABLES,
    reach=ranges_reach,
    tiling=in_blocks(1),
)
def lion(target: Target, T: str) -> Body:
    """One step of Lion in place of p, m from g; nothing where the signal is false."""
    run = loop(
        T,
        """p[] g[] m[] k keep rate a a1 b b1 -> g = g * k;
        p[] = p * keep - rate * sign(a * m + a1 * g); m[] = b * m + b1 * g""",
    )

    def body(
        lr,
        step,
        p,
        g,
        clip,
        signal,
        ranges,
        m,
        count,
        total,
        block,
        clips,
        signalled,
        scale,
        a,
        b,
        decay,
        tid,
        nthreads,
    ):
        if signalled == 0 or signal[0] != 0:
            rate = lr[0] * scale
            keep = 1.0 - rate * decay
            k = factor_of(clip, clips)
            first, last = share_blocks(total, block, tid, nthreads)
            at = 0
            for r in range(count):
                i, n = part(ranges, r, at, first, last)
                at += off(ranges.ranges, r).size
                pi, mi = off(p, i), off(m, i)
                run(pi, off(g, i), mi, k, keep, rate, a, 1.0 - a, b, 1.0 - b, pi, mi, n)

    return body


# --- lowering


def _lower_lion(lowering: Lowering) -> None:
    step = Step(lowering, Lion.states(lowering.site.attrs))
    (m,) = step.states
    a, b, decay = (step.real(n) for n in ("alpha", "beta", "weight_decay"))
    step.call(lion(step.T), m=m, a=a, b=b, decay=decay)
    step.finish()


OPS = (optimizer(Lion, _lower_lion, lion),)
KERNELS = (lion,)
