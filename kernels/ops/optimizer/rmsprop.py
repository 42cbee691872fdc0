"""RMSprop: gradients over the root of their mean square, or of their variance.

RMSprop   v = a v + (1 - a) d^2,  s = sqrt(v), or centered u = u + (1 - a) (d - u) and
          s = sqrt(v - u^2);  p = p - r d / (s + eps);
          with momentum  m = mu m + d / (s + eps),  p = p - r m                           (torch)
Error     a step: 4 roundings of float.  v - u^2 is taken as 0 where rounding makes it negative
Source    torch.optim

The letters are those of step.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine import arguments
from engine.kernels.ops.optimizer.method import SECOND, Group, Method, at_least_0, below_1
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
class RMSprop(Method):
    """Gradients over the root of their mean square, or of their variance when `centered`."""

    op = "RMSpropOptimizer"

    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False
    clip_grad: float | None = None
    groups: Sequence[Group] = ()

    def attributes(self) -> dict[str, Any]:
        return {
            "alpha": below_1("alpha", self.alpha),
            "epsilon": at_least_0("eps", self.eps),
            "weight_decay": arguments.real("weight_decay", self.weight_decay),
            "momentum": at_least_0("momentum", self.momentum),
            "centered": int(arguments.flag("centered", self.centered)),
        }

    @staticmethod
    def states(attrs: Mapping[str, Any]) -> tuple[State, ...]:
        names = [SECOND]
        if attrs["centered"]:
            names.append("gradient_averages")
        if attrs["momentum"]:
            names.append("momentums")
        return tuple(map(State, names))


# --- kernels


@kernel(
    f"{COMMON}   v, u, m: update T[...]   {COUNTS}   a, eps, decay, mu: f64",
    words=TABLES,
    reach=ranges_reach,
    tiling=in_blocks(3),
)
def rmsprop(target: Target, T: str, centered: int, is_moving: int) -> Body:
    """One step of RMSprop in place of p, v, u, m from g; nothing where the signal is false.

    p, g, v, u, m: T[n]; lr: T[1].  Where it is not centered u is v, without momentum m is p: both
    are written the same value.
    """
    spread = (
        "u = u + a1 * (d - u); s = sqrt(max(v - u * u, 0.0))" if centered else "u = v; s = sqrt(v)"
    )
    moved = (
        "m = mu * m + q; m[]; p[] = p - rate * m" if is_moving else "p = p - rate * q; p[]; m[] = p"
    )
    run = loop(
        T,
        f"""p[] g[] v[] u[] m[] k rate a a1 eps decay mu ->
        d = g * k + decay * p; v = a * v + a1 * (d * d); {spread}; q = d / (s + eps);
        v[]; u[]; {moved}""",
    )

    def body(
        lr,
        step,
        p,
        g,
        clip,
        signal,
        ranges,
        v,
        u,
        m,
        count,
        total,
        block,
        clips,
        signalled,
        scale,
        a,
        eps,
        decay,
        mu,
        tid,
        nthreads,
    ):
        if signalled == 0 or signal[0] != 0:
            rate = lr[0] * scale
            k = factor_of(clip, clips)
            first, last = share_blocks(total, block, tid, nthreads)
            at = 0
            for r in range(count):
                i, n = part(ranges, r, at, first, last)
                at += off(ranges.ranges, r).size
                pi, vi, ui, mi = off(p, i), off(v, i), off(u, i), off(m, i)
                one, two = (mi, pi) if is_moving else (pi, mi)
                run(
                    pi,
                    off(g, i),
                    vi,
                    ui,
                    mi,
                    k,
                    rate,
                    a,
                    1.0 - a,
                    eps,
                    decay,
                    mu,
                    vi,
                    ui,
                    one,
                    two,
                    n,
                )

    return body


# --- lowering


def _lower_rmsprop(lowering: Lowering) -> None:
    attrs = lowering.site.attrs
    centered, is_moving = int(bool(attrs["centered"])), int(attrs["momentum"] != 0)
    step = Step(lowering, RMSprop.states(attrs))
    v, *rest = step.states
    u = rest.pop(0) if centered else v
    m = rest.pop(0) if is_moving else step.p
    a = step.real("alpha")
    eps, decay, mu = (step.real(n) for n in ("epsilon", "weight_decay", "momentum"))
    step.call(rmsprop(step.T, centered, is_moving), v=v, u=u, m=m, a=a, eps=eps, decay=decay, mu=mu)
    step.finish()


OPS = (optimizer(RMSprop, _lower_rmsprop, rmsprop, outputs=5),)
KERNELS = (rmsprop,)
