"""Gradient descent, plain and with momentum.

SGD       p = p - r d;  with momentum m = mu m + (1 - damp) d, the first time m = d, and
          p = p - r m, or p - r (d + mu m) by Nesterov                                    (torch)
Error     a step: 3 roundings of float
Source    torch.optim

The letters are those of step.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine import arguments
from engine.errors import InputError
from engine.kernels.loops.map import MAP_KERNELS
from engine.kernels.ops.optimizer.method import FIRST, Group, Method, Rule, at_least_0
from engine.kernels.ops.optimizer.ranges import TABLES, part, ranges_reach
from engine.kernels.ops.optimizer.step import (
    COMMON,
    COUNTS,
    Step,
    factor_of,
    in_blocks,
    optimizer,
    rule,
    stretch,
)
from engine.kernels.target import Target
from engine.kernels.vocabulary.kernel import Body, kernel, off, share_blocks
from engine.kernels.vocabulary.op import MS, Lowering, Op, Update
from engine.kernels.vocabulary.row_program import loop
from engine.runtime.states import State

PLAIN = "SGDOptimizerV2"  # onnxruntime's
STATELESS = Update(lambda attrs: (), has_step=False)
BLOCK = 1024  # elements without a gradient that are passed over: few rows of an embedding table


# --- options


@dataclass(frozen=True)
class SGD(Method):
    """Gradient descent, with momentum if it is not 0."""

    op = "SGDOptimizer"

    clip_grad: float | None = None
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    groups: Sequence[Group] = ()

    def attributes(self) -> dict[str, Any]:
        momentum = at_least_0("momentum", self.momentum)
        dampening = arguments.real("dampening", self.dampening)
        nesterov = arguments.flag("nesterov", self.nesterov)
        if nesterov and not (momentum and not dampening):
            raise InputError("nesterov=True needs a momentum and no dampening")
        return {
            "momentum": momentum,
            "dampening": dampening,
            "nesterov": int(nesterov),
            "weight_decay": arguments.real("weight_decay", self.weight_decay),
        }

    @staticmethod
    def states(attrs: Mapping[str, Any]) -> tuple[State, ...]:
        return (State(FIRST),) if attrs["momentum"] else ()

    def rule(self, *, is_divided: bool = False) -> Rule:
        """The plain one is onnxruntime's, whose model and checkpoint have moments nobody reads."""
        found = super().rule()
        if is_divided or self.momentum or self.weight_decay:
            return found
        return Rule(PLAIN, {}, (), MS, has_step=False, unread=(State(FIRST),))


# --- kernels


@kernel(
    f"{COMMON.replace('step: i64[1]', 'step: i64[0]')}   {COUNTS}   decay: f64",
    words=TABLES,
    reach=ranges_reach,
    tiling=in_blocks(0, BLOCK),
)
def sgd(target: Target, T: str) -> Body:
    """p = p - lr (g + decay p), in place; nothing where the signal is false.

    Rows of the ranges without a gradient are passed over, which decay 0 and a factor that is a
    number make exact.
    """
    run = loop(T, "p[] g[] k rate decay -> p[] = p - rate * (g * k + decay * p)")
    row_of = stretch(T)

    def body(
        lr,
        step,
        p,
        g,
        clip,
        signal,
        ranges,
        count,
        total,
        block,
        clips,
        signalled,
        scale,
        decay,
        tid,
        nthreads,
    ):
        if signalled == 0 or signal[0] != 0:
            k = factor_of(clip, clips)
            first, last = share_blocks(total, block, tid, nthreads)
            at = 0
            for r in range(count):
                found = off(ranges.ranges, r)
                i, n = part(ranges, r, at, first, last)
                at += found.size
                end = i + n
                while i < end:
                    stop, moves = row_of(found, g, i, end)
                    if moves or not k >= 0.0:
                        run(off(p, i), off(g, i), k, lr[0] * scale, decay, off(p, i), stop - i)
                    i = stop

    return body


@kernel(
    f"{COMMON}   m: update T[...]   {COUNTS}   mu, damp, decay: f64",
    words=TABLES,
    reach=ranges_reach,
    tiling=in_blocks(1),
)
def momentum(target: Target, T: str, nesterov: int) -> Body:
    """SGD with the momentum m, in place of p and m; nothing where the signal is false.

    The formula is the family's.
    """
    run = loop(
        T,
        f"""p[] g[] m[] k rate mu fresh decay -> d = g * k + decay * p; m = mu * m + fresh * d;
        m[]; p[] = p - rate * {"(d + mu * m)" if nesterov else "m"}""",
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
        mu,
        damp,
        decay,
        tid,
        nthreads,
    ):
        if signalled == 0 or signal[0] != 0:
            fresh = 1.0 if step[0] == 1 else 1.0 - damp
            k = factor_of(clip, clips)
            first, last = share_blocks(total, block, tid, nthreads)
            at = 0
            for r in range(count):
                i, n = part(ranges, r, at, first, last)
                at += off(ranges.ranges, r).size
                q, u = off(p, i), off(m, i)
                run(q, off(g, i), u, k, lr[0] * scale, mu, fresh, decay, u, q, n)

    return body


# --- lowering


def _lower_plain_sgd(lowering: Lowering) -> None:
    step = Step(lowering, (), has_step=False)
    step.call(sgd(step.T), decay=0.0, skipped=BLOCK)
    step.finish()


def _lower_sgd(lowering: Lowering) -> None:
    step = Step(lowering, SGD.states(lowering.site.attrs))
    decay = step.real("weight_decay")
    if step.states:
        nesterov = int(bool(lowering.site.attrs["nesterov"]))
        (m,) = step.states
        mu, damp = step.real("momentum"), step.real("dampening")
        step.call(momentum(step.T, nesterov), m=m, mu=mu, damp=damp, decay=decay)
    else:
        step.call(sgd(step.T), decay=decay, skipped=0 if decay else BLOCK)
    step.finish()


OPS = (
    Op(
        name=PLAIN,
        domain=MS,
        inputs=(3, 5),
        outputs=2,
        infer=rule(STATELESS, {}),
        lower=_lower_plain_sgd,
        calls=(sgd, *MAP_KERNELS),
        optimizer=STATELESS,
    ),
    optimizer(SGD, _lower_sgd, sgd, momentum),
)
KERNELS = (sgd, momentum)
