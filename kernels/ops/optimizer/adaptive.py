"""Optimizers that scale each element by what its gradients were; d = g + wd p, r the rate.

RMSprop   v = a v + (1 - a) d^2,  s = sqrt(v), or centered u = u + (1 - a) (d - u) and
          s = sqrt(v - u^2);  p = p - r d / (s + eps);
          with momentum  m = mu m + d / (s + eps),  p = p - r m                           (torch)
Adagrad   v = v + d^2, v the initial value before the first step;
          p = p - r / (1 + (t - 1) decay) d / (sqrt(v) + eps)                             (torch)
Lion      p = p (1 - r wd) - r sign(b1 m + (1 - b1) g);  m = b2 m + (1 - b2) g
Error     a step: 4 roundings of float.  v - u^2 is taken as 0 where rounding makes it negative
Source    torch.optim; Chen et al., arXiv 2302.06675, Algorithm 2
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.kernels.ops.optimizer.clipping import LINE
from engine.kernels.ops.optimizer.optimizer import COMMON, COUNTS, Step, optimizer, part, program
from engine.kernels.target import Target
from engine.kernels.vocabulary.kernel import Body, kernel, off, share_blocks
from engine.kernels.vocabulary.op import Lowering

# --- kernels


@kernel(COMMON + "v:T* u:T* m:T*" + COUNTS + "a:f64 eps:f64 decay:f64 mu:f64")
def rmsprop(target: Target, T: str, centered: int, is_moving: int) -> Body:
    """One step of RMSprop in place of p, v, u, m from g; nothing where the signal is false.

    p, g, v, u, m: T[n]; lr: T[1].  Where it is not centered u is v, without momentum m is p: both
    are written the same value.
    """
    outs = {
        "d": "g + decay * p",
        "v": "a * v + a1 * ({d} * {d})",
        "u": "u + a1 * ({d} - u)" if centered else "{v}",
        "s": "sqrt(max({v} - {u} * {u}, 0.0))" if centered else "sqrt({v})",
        "q": "{d} / ({s} + eps)",
    }
    if is_moving:
        outs |= {"m": "mu * m + {q}", "p": "p - rate * {m}"}
    else:
        outs |= {"p": "p - rate * {q}", "m": "{p}"}
    run = program(T, "p g v u m", "rate a a1 eps decay mu", outs)

    def body(
        lr, step, p, g, signal, ranges, v, u, m,
        count, total, signalled, scale, a, eps, decay, mu, tid, nthreads,
    ):  # fmt: skip
        if signalled == 0 or signal[0] != 0:
            rate = lr[0] * scale
            first, last = share_blocks(total, LINE, tid, nthreads)
            at = 0
            for r in range(count):
                i, n = part(ranges, r, at, first, last)
                at += ranges[2 * r + 1]
                pi, vi, ui, mi = off(p, i), off(v, i), off(u, i), off(m, i)
                one, two = (mi, pi) if is_moving else (pi, mi)
                run(
                    pi, off(g, i), vi, ui, mi, rate, a, 1.0 - a, eps, decay, mu,
                    vi, ui, one, two, n,
                )  # fmt: skip

    return body


@kernel(COMMON + "v:T*" + COUNTS + "eps:f64 decay:f64 lr_decay:f64 initial:f64")
def adagrad(target: Target, T: str) -> Body:
    """One step of Adagrad in place of p, v from g; nothing where the signal is false.

    p, g, v: T[n], v zero before the first step; lr: T[1]; step: i64[1].
    """
    outs = {
        "d": "g + decay * p",
        "v": "(v + initial) + {d} * {d}",
        "p": "p - rate * {d} / (sqrt({v}) + eps)",
    }
    run = program(T, "p g v", "rate decay initial eps", outs)

    def body(
        lr, step, p, g, signal, ranges, v,
        count, total, signalled, scale, eps, decay, lr_decay, initial, tid, nthreads,
    ):  # fmt: skip
        if signalled == 0 or signal[0] != 0:
            rate = lr[0] * scale / (1.0 + (step[0] - 1) * lr_decay)
            start = initial if step[0] == 1 else 0.0
            first, last = share_blocks(total, LINE, tid, nthreads)
            at = 0
            for r in range(count):
                i, n = part(ranges, r, at, first, last)
                at += ranges[2 * r + 1]
                pi, vi = off(p, i), off(v, i)
                run(pi, off(g, i), vi, rate, decay, start, eps, vi, pi, n)

    return body


@kernel(COMMON + "m:T*" + COUNTS + "a:f64 b:f64 decay:f64")
def lion(target: Target, T: str) -> Body:
    """One step of Lion in place of p, m from g; nothing where the signal is false.

    p, g, m: T[n]; lr: T[1].
    """
    outs = {"p": "p * keep - rate * sign(a * m + a1 * g)", "m": "b * m + b1 * g"}
    run = program(T, "p g m", "keep rate a a1 b b1", outs)

    def body(
        lr, step, p, g, signal, ranges, m,
        count, total, signalled, scale, a, b, decay, tid, nthreads,
    ):  # fmt: skip
        if signalled == 0 or signal[0] != 0:
            rate = lr[0] * scale
            keep = 1.0 - rate * decay
            first, last = share_blocks(total, LINE, tid, nthreads)
            at = 0
            for r in range(count):
                i, n = part(ranges, r, at, first, last)
                at += ranges[2 * r + 1]
                pi, mi = off(p, i), off(m, i)
                run(pi, off(g, i), mi, keep, rate, a, 1.0 - a, b, 1.0 - b, pi, mi, n)

    return body


# --- lowering


def _lower_rmsprop(s: Lowering) -> None:
    attrs = s.site.attrs
    centered, is_moving = int(bool(attrs["centered"])), int(attrs["momentum"] != 0)
    step = Step(s, _rmsprop_moments(attrs))
    v, *rest = step.moments
    u = rest.pop(0) if centered else v
    m = rest.pop(0) if is_moving else step.p
    (a,) = step.within_one("alpha")
    consts = [a, step.real("epsilon"), step.real("weight_decay"), step.real("momentum")]
    step.call(rmsprop(step.T, centered, is_moving), [v, u, m], consts)
    step.finish()


def _rmsprop_moments(attrs: Mapping[str, Any]) -> int:
    return 1 + int(bool(attrs["centered"])) + int(attrs["momentum"] != 0)


def _lower_adagrad(s: Lowering) -> None:
    step = Step(s, 1)
    names = ("epsilon", "weight_decay", "lr_decay", "initial_accumulator_value")
    step.call(adagrad(step.T), step.moments, [step.real(n) for n in names])
    step.finish()


def _lower_lion(s: Lowering) -> None:
    step = Step(s, 1)
    step.call(
        lion(step.T), step.moments, [*step.within_one("alpha", "beta"), step.real("weight_decay")]
    )
    step.finish()


RMSPROP = {"alpha": 0.99, "epsilon": 1e-8, "weight_decay": 0.0, "momentum": 0.0, "centered": 0}
ADAGRAD = {
    "epsilon": 1e-10, "weight_decay": 0.0, "lr_decay": 0.0, "initial_accumulator_value": 0.0,
}  # fmt: skip
LION = {"alpha": 0.9, "beta": 0.99, "weight_decay": 0.0}

OPS = (
    optimizer("RMSpropOptimizer", _rmsprop_moments, RMSPROP, _lower_rmsprop, rmsprop),
    optimizer("AdagradOptimizer", lambda a: 1, ADAGRAD, _lower_adagrad, adagrad),
    optimizer("LionOptimizer", lambda a: 1, LION, _lower_lion, lion),
)
KERNELS = (rmsprop, adagrad, lion)
