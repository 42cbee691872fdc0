"""Optimizer steps over one flat region: all parameters back to back, as are their gradients.

t the step fed, from 1; g the gradient, d = g + wd p; r the learning rate times lr_scale

SGD       p = p - r d;  with momentum m = mu m + (1 - damp) d, the first time m = d, and
          p = p - r m, or p - r (d + mu m) by Nesterov                                    (torch)
Adam      m = a m + (1 - a) d,  v = b v + (1 - b) d^2,
          p = p - r m / ((1 - a^t) (sqrt(v / (1 - b^t)) + eps))                           (torch)
AdamW     m, v of g alone
  mode 0  p = p (1 - r wd), then as Adam                                                  (torch)
  mode 1  p = p - r c m / (sqrt(v) + eps), c = sqrt(1 - b^t) / (1 - a^t) or 1 without bias
          correction;  p = p (1 - r wd)                                    (Hugging Face, 2019)
Error     a step: 4 roundings of float; powers of a and b in double
Source    torch.optim; Loshchilov, Hutter, arXiv 1711.05101; onnxruntime's adamwoptimizer.cc

Nodes of the domain `engine` update the parameters that they name in `parameters`, the planner says
where these are by `ranges` (pairs of begin and size, in elements).  Zero padding between parameters
stays zero: its gradients are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from engine.element_types import ITEMSIZE
from engine.kernels.loops.map import MAP_KERNELS, lower_map
from engine.kernels.ops.optimizer.clipping import LINE, check_attributes, square_root
from engine.kernels.target import Target
from engine.kernels.vocabulary import expression
from engine.kernels.vocabulary.kernel import (
    Body,
    Native,
    Template,
    imax,
    imin,
    inline,
    kernel,
    off,
    share_blocks,
)
from engine.kernels.vocabulary.op import MS, OURS, Lowering, Op, Operand, Site, TensorType
from engine.kernels.vocabulary.row_program import Input, Program
from engine.runtime.plan import ALIGN

DECOUPLED, HUGGING_FACE, COUPLED = 0, 1, 2  # forms of Adam


def program(T: str, vectors: str, scalars: str, outs: Mapping[str, str]) -> Native:
    """One pass over tensors; `outs` are formulas by the vector they overwrite, in order.

    A formula may use those above it by name, in braces.
    """
    names = [*vectors.split(), *scalars.split()]
    made: dict[str, str] = {}
    for name, formula in outs.items():
        made[name] = f"({formula.format_map(made)})"
    ins = [Input(T, "v" if n in vectors.split() else "k") for n in names]
    kept = [expression.parse(made[n], names) for n in outs if n in names]
    return Native("rows", (Program(tuple(ins), outs=tuple((T, e) for e in kept)),))


# --- kernels

COMMON = "lr:T* step:i64* p:T* g:T* signal:b1* ranges:i64* "
COUNTS = " count:i64 total:i64 signalled:i64 scale:f64 "


@inline
def power(x, n):
    """x^n for n >= 0, by repeated squaring."""
    out = 1.0
    while n > 0:
        if n & 1:
            out *= x
        x *= x
        n >>= 1
    return out


@inline
def part(ranges, r, at, first, last):
    """Begin and size of what [first, last) has of range r, which starts at `at` of all elements."""
    low, high = imax(first, at), imin(last, at + ranges[2 * r + 1])
    return ranges[2 * r] + low - at, high - low


@kernel(COMMON + "m:T* v:T*" + COUNTS + "a:f64 b:f64 eps:f64 decay:f64 unbias:i64")
def adam(target: Target, T: str, mode: int) -> Body:
    """One step of Adam in place of p, m, v from g; nothing where the signal is false.

    p, g, m, v: T[n]; lr: T[1]; step: i64[1]; the formula is the family's.
    """
    d = "g + keep * p" if mode == COUPLED else "g"
    p = {
        DECOUPLED: "p * keep - rate * {m} / (sqrt({v} * whole) + eps)",
        HUGGING_FACE: "(p - rate * {m} / (sqrt({v}) + eps)) * keep",
        COUPLED: "p - rate * {m} / (sqrt({v} * whole) + eps)",
    }[mode]
    outs = {"d": d, "m": "a * m + a1 * {d}", "v": "b * v + b1 * ({d} * {d})", "p": p}
    run = program(T, "p g m v", "keep rate whole a a1 b b1 eps", outs)

    def body(
        lr, step, p, g, signal, ranges, m, v,
        count, total, signalled, scale, a, b, eps, decay, unbias, tid, nthreads,
    ):  # fmt: skip
        if signalled == 0 or signal[0] != 0:
            rate = lr[0] * scale
            keep = decay if mode == COUPLED else 1.0 - rate * decay
            root = 1.0
            if unbias != 0:
                rate /= 1.0 - power(a, step[0])
                root = 1.0 - power(b, step[0])
                if mode == HUGGING_FACE:
                    rate *= square_root(root, 1)
            first, last = share_blocks(total, LINE, tid, nthreads)
            at = 0
            for r in range(count):
                i, n = part(ranges, r, at, first, last)
                at += ranges[2 * r + 1]
                q, u, w = off(p, i), off(m, i), off(v, i)
                run(
                    q, off(g, i), u, w, keep, rate, 1.0 / root, a, 1.0 - a, b, 1.0 - b, eps,
                    u, w, q, n,
                )  # fmt: skip

    return body


@kernel(COMMON + COUNTS + "decay:f64")
def sgd(target: Target, T: str) -> Body:
    """p = p - lr (g + decay p), in place; nothing where the signal is false.  p, g: T[n]."""
    run = program(T, "p g", "rate decay", {"p": "p - rate * (g + decay * p)"})

    def body(
        lr, step, p, g, signal, ranges, count, total, signalled, scale, decay, tid, nthreads
    ):  # fmt: skip
        if signalled == 0 or signal[0] != 0:
            first, last = share_blocks(total, LINE, tid, nthreads)
            at = 0
            for r in range(count):
                i, n = part(ranges, r, at, first, last)
                at += ranges[2 * r + 1]
                run(off(p, i), off(g, i), lr[0] * scale, decay, off(p, i), n)

    return body


@kernel(COMMON + "m:T*" + COUNTS + "mu:f64 damp:f64 decay:f64")
def momentum(target: Target, T: str, nesterov: int) -> Body:
    """SGD with the momentum m, in place of p and m; nothing where the signal is false.

    p, g, m: T[n]; lr: T[1]; step: i64[1]; the formula is the family's.
    """
    outs = {
        "d": "g + decay * p",
        "m": "mu * m + fresh * {d}",
        "p": "p - rate * ({d} + mu * {m})" if nesterov else "p - rate * {m}",
    }
    run = program(T, "p g m", "rate mu fresh decay", outs)

    def body(
        lr, step, p, g, signal, ranges, m,
        count, total, signalled, scale, mu, damp, decay, tid, nthreads,
    ):  # fmt: skip
        if signalled == 0 or signal[0] != 0:
            fresh = 1.0 if step[0] == 1 else 1.0 - damp
            first, last = share_blocks(total, LINE, tid, nthreads)
            at = 0
            for r in range(count):
                i, n = part(ranges, r, at, first, last)
                at += ranges[2 * r + 1]
                q, u = off(p, i), off(m, i)
                run(q, off(g, i), u, lr[0] * scale, mu, fresh, decay, u, q, n)

    return body


# --- lowering


class Step:
    """The operands of an optimizer node.  Its inputs: lr, step unless `at` is 1, p, g, moments."""

    def __init__(self, s: Lowering, count: int, at: int = 2) -> None:
        self.s, self.lr, self.p, self.g = s, s.x(0), s.x(at), s.x(at + 1)
        self.moments = [s.x(at + 2 + k) for k in range(count)]
        self.signal = s.x(at + 2 + count) if s.site.has(at + 2 + count) else None
        self.step = s.x(1) if at == 2 else None
        self.T = self.p.type.dtype
        flat = s.site.attrs.get("ranges") or (0, self.p.type.size)
        self.ranges = list(zip(flat[::2], flat[1::2], strict=True))

    def real(self, name: str, default: float = 0.0) -> float:
        """A hyperparameter."""
        return float(self.s.site.attrs.get(name, default))

    def within_one(self, *names: str) -> list[float]:
        """Hyperparameters from 0 to below 1."""
        found = [self.real(n) for n in names]
        if not all(0 <= x < 1 for x in found):
            text = ", ".join(f"{n} {x}" for n, x in zip(names, found, strict=True))
            self.s.site.fail(text, "from 0 to below 1")
        return found

    def merged(self) -> list[tuple[int, int]]:
        """The ranges with their padding, those one after another as one."""
        line = ALIGN // ITEMSIZE[self.T]
        out: list[tuple[int, int]] = []
        for begin, size in self.ranges:
            size = min(-(-size // line) * line, self.p.type.size - begin)
            if out and sum(out[-1]) == begin:
                begin, size = out[-1][0], out.pop()[1] + size
            out.append((begin, size))
        return out

    def call(self, kernel: Any, moments: Sequence[Operand], consts: Sequence[float | int]) -> None:
        """Call a kernel of the common signature, its moments, the scale, then `consts`."""
        ranges, s = self.merged(), self.s
        table = s.const(np.array(ranges, np.int64).reshape(-1))
        args: list[Any] = [
            ("r", self.lr), ("r", self.step), ("u", self.p), ("r", self.g), ("r", self.signal),
            ("r", table),
        ]  # fmt: skip
        counts = [len(ranges), sum(n for _, n in ranges), int(self.signal is not None)]
        s.call(kernel, [*args, *(("u", m) for m in moments)], [*counts, self.scale, *consts])

    @property
    def scale(self) -> float:
        """What the learning rate is multiplied by."""
        return self.real("lr_scale", 1.0)

    def finish(self) -> None:
        """Output 0, "an update took place": the signal, or true."""
        s, signal = self.s, self.signal
        if s.wants(0):
            flag = s.y(0)
            if signal is None:
                lower_map(s, [("const", True)], [], [flag])
            else:
                lower_map(s, [("in", 0)], [Operand(signal.name, flag.type)], [flag])


def _lower_adam(s: Lowering, mode: int | None = None) -> None:
    step, unbias = Step(s, 2), s.site.attrs.get("correct_bias", 1)
    if mode is None:
        mode = s.site.attrs["adam_mode"]
        if mode not in (0, 1) or (mode == 0 and unbias != 1):
            s.site.fail(
                f"adam_mode {mode}, correct_bias {unbias}", "mode 1, or mode 0 with correction"
            )
    a, b = step.within_one("alpha", "beta")
    consts = [a, b, step.real("epsilon"), step.real("weight_decay"), unbias]
    step.call(adam(step.T, mode), step.moments, consts)
    step.finish()


def _lower_plain_sgd(s: Lowering) -> None:
    step = Step(s, 0, at=1)
    step.call(sgd(step.T), [], [0.0])
    step.finish()


def _lower_sgd(s: Lowering) -> None:
    step = Step(s, int(s.site.attrs["momentum"] != 0))
    decay = step.real("weight_decay")
    if step.moments:
        nesterov = int(bool(s.site.attrs["nesterov"]))
        consts = [step.real("momentum"), step.real("dampening"), decay]
        step.call(momentum(step.T, nesterov), step.moments, consts)
    else:
        step.call(sgd(step.T), [], [decay])
    step.finish()


# --- shapes

GROUP = {"lr_scale": 1.0, "parameters": (), "ranges": ()}  # which parameters, and where they are
ADAM = {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-8, "weight_decay": 0.0}
ADAMW = {**ADAM, "weight_decay": 1e-2, "correct_bias": 1, "adam_mode": 0}
SGD = {"momentum": 0.0, "dampening": 0.0, "nesterov": 0, "weight_decay": 0.0}


def rule(moments: Callable[[Mapping[str, Any]], int], attrs: Mapping[str, Any], at: int = 2) -> Any:
    """Shape rule: the flag, then parameters and moments as they are after the step.

    Inputs before the signal, which is last, must be there; all but the rate, the step and the
    signal have the type of the parameters, input `at`.
    """

    def infer(s: Site) -> tuple[TensorType, ...]:
        check_attributes(s, attrs)
        p, count = s.type(at), moments(s.attrs)
        signal = at + 2 + count
        singles = {0: TensorType(p.dtype, (1,)), signal: TensorType("b1", (1,))}
        if at == 2:
            singles[1] = TensorType("i64", (1,))
        is_sequence = p.dtype.startswith("seq(")  # as files have it; plans have flat tensors
        for i in range(signal + s.has(signal)):
            if s.type(i) != singles.get(i, p) and not is_sequence:
                s.wrong(f"input {i} is {s.type(i)}; expected {singles.get(i, p)}")
        if len(s.ins) > signal + 1:
            s.fail(f"{len(s.ins)} inputs", f"{signal}, and the signal, with these attributes")
        types = (TensorType("b1", (1,)), p, *(s.type(at + 2 + k) for k in range(count)))
        return types[: max(s.n_outs, 1)]

    return infer


def optimizer(
    name: str,
    moments: Callable[[Mapping[str, Any]], int],
    attrs: Mapping[str, Any],
    lower: Callable[[Lowering], None],
    *kernels: Template,
) -> Op:
    """An optimizer of the domain `engine`: inputs lr, step, parameters, gradients, moments.

    kernels: those that `lower` calls beside what `Step` does.
    """
    known = {**attrs, **GROUP}
    return Op(
        name=name,
        domain=OURS,
        attrs=known,
        infer=rule(moments, known),
        lower=lower,
        calls=(*kernels, *MAP_KERNELS),
        optimizer=True,
    )


OPS = (
    Op(
        name="AdamWOptimizer", domain=MS, attrs=ADAMW, infer=rule(lambda a: 2, ADAMW),
        lower=_lower_adam, calls=(adam, *MAP_KERNELS), optimizer=True,
    ),
    Op(
        name="SGDOptimizerV2", domain=MS, infer=rule(lambda a: 0, {}, at=1),
        lower=_lower_plain_sgd, calls=(sgd, *MAP_KERNELS), optimizer=True,
    ),
    optimizer("AdamWOptimizer", lambda a: 2, ADAMW, _lower_adam, adam),
    optimizer("AdamOptimizer", lambda a: 2, ADAM, lambda s: _lower_adam(s, COUPLED), adam),
    optimizer("SGDOptimizer", lambda a: int(a["momentum"] != 0), SGD, _lower_sgd, sgd, momentum),
)  # fmt: skip
KERNELS = (adam, sgd, momentum)
