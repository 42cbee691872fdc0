"""Adagrad: gradients over the root of the sum of their squares.

Adagrad   v = v + d^2, v the initial value before the first step;
          p = p - r / (1 + (t - 1) decay) d / (sqrt(v) + eps)                             (torch)
Error     a step: 4 roundings of float
Source    torch.optim

The letters are those of step.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine import arguments
from engine.kernels.ops.optimizer.method import Group, Method, at_least_0
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
class Adagrad(Method):
    """Gradients over the root of the sum of their squares."""

    op = "AdagradOptimizer"

    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    clip_grad: float | None = None
    groups: Sequence[Group] = ()

    def attributes(self) -> dict[str, Any]:
        return {
            "lr_decay": at_least_0("lr_decay", self.lr_decay),
            "weight_decay": arguments.real("weight_decay", self.weight_decay),
            "initial_accumulator_value": at_least_0(
                "initial_accumulator_value", self.initial_accumulator_value
            ),
            "epsilon": at_least_0("eps", self.eps),
        }

    @staticmethod
    def states(attrs: Mapping[str, Any]) -> tuple[State, ...]:
        return (State("square_sums", initial=attrs["initial_accumulator_value"]),)


# --- kernels


@kernel(
    f"{COMMON}   v: update T[...]   {COUNTS}   eps, decay, lr_decay: f64",
    words=TABLES,
    reach=ranges_reach,
    tiling=in_blocks(1),
)
def adagrad(target: Target, T: str) -> Body:
    """One step of Adagrad in place of p, v from g; nothing where the signal is false.

    v: the initial value before the first step.
    """
    run = loop(
        T,
        """p[] g[] v[] k rate decay eps -> d = g * k + decay * p; v = v + d * d;
        v[]; p[] = p - rate * d / (sqrt(v) + eps)""",
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
        count,
        total,
        block,
        clips,
        signalled,
        scale,
        eps,
        decay,
        lr_decay,
        tid,
        nthreads,
    ):
        if signalled == 0 or signal[0] != 0:
            rate = lr[0] * scale / (1.0 + (step[0] - 1) * lr_decay)
            k = factor_of(clip, clips)
            first, last = share_blocks(total, block, tid, nthreads)
            at = 0
            for r in range(count):
                i, n = part(ranges, r, at, first, last)
                at += off(ranges.ranges, r).size
                pi, vi = off(p, i), off(v, i)
                run(pi, off(g, i), vi, k, rate, decay, eps, vi, pi, n)

    return body


# --- lowering


def _lower_adagrad(lowering: Lowering) -> None:
    step = Step(lowering, Adagrad.states(lowering.site.attrs))
    (v,) = step.states
    eps, decay, lr_decay = (step.real(n) for n in ("epsilon", "weight_decay", "lr_decay"))
    step.call(adagrad(step.T), v=v, eps=eps, decay=decay, lr_decay=lr_decay)
    step.finish()


OPS = (optimizer(Adagrad, _lower_adagrad, adagrad),)
KERNELS = (adagrad,)
