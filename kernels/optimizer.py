"""Optimizer steps over one flat region: all parameters back to back, as are their gradients.

AdamW     m = a m + (1 - a) g,  v = b v + (1 - b) g^2,  t the step fed, from 1
  mode 0  p = p (1 - lr wd);  p = p - lr m / ((1 - a^t) (sqrt(v / (1 - b^t)) + eps))        (torch)
  mode 1  p = p - lr c m / (sqrt(v) + eps), c = sqrt(1 - b^t) / (1 - a^t) or 1 without bias
          correction;  p = p (1 - lr wd)                                    (Hugging Face, 2019)
SGD       p = p - lr g
Clipping  g = g min(max_norm / (||g|| + 1e-6), 1), the norm over all parameters; NaN stays NaN
Error     a step: 4 roundings of float; powers of a and b, and norms across runs of 4096, in double
Source    Loshchilov, Hutter, arXiv 1711.05101; onnxruntime's adamwoptimizer.cc has both modes

Zero padding between parameters stays zero: its gradients are zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.errors import nearest
from engine.kernels import _expr
from engine.kernels._kernel import (
    Body,
    Native,
    imin,
    inline,
    kernel,
    off,
    share_blocks,
)  # fmt: skip
from engine.kernels._map import lower_map
from engine.kernels._op import MS, Lowering, Op, Operand, Site, TensorType
from engine.kernels._program import Input, Program
from engine.kernels._target import Target
from engine.kernels.fold import scalar

RUN = 4096  # elements whose squares are added in the working type
LINE = 64  # threads part arrays at multiples of this many elements: whole cache lines


square_root = scalar("sqrt(i0)", "f64")  # of one double: square_root(x, 1)


# --- kernels


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


def _adamw(T: str, mode: int, alpha: str, beta: str, epsilon: str) -> Program:
    """One pass over (p, g, m, v); scalars: 1 - lr wd, the rate, 1 / (1 - b^t)."""
    a, b = float(alpha), float(beta)
    m = f"{a!r} * i2 + {1 - a!r} * i1"
    v = f"{b!r} * i3 + {1 - b!r} * (i1 * i1)"
    if mode == 0:
        p = f"i0 * i4 - i5 * ({m}) / (sqrt(({v}) * i6) + {epsilon})"
    else:
        p = f"(i0 - i5 * ({m}) / (sqrt({v}) + {epsilon})) * i4"
    ins = (Input(T),) * 4 + (Input(T, "k"),) * 3
    return Program(ins, outs=tuple((T, _expr.parse(text)) for text in (p, m, v)))


@kernel(
    "lr:T* step:i64* p:T* g:T* m:T* v:T* signal:b1* "
    "n:i64 signalled:i64 alpha:f64 beta:f64 decay:f64 unbias:i64"
)
def adamw(target: Target, T: str, mode: int, alpha: str, beta: str, epsilon: str) -> Body:
    """One AdamW step: updates p, m, v in place from g; nothing where the signal is false.

    p, g, m, v: T[n]; lr: T[1]; step: i64[1]; the formula is the family's, `mode` 0 or 1.
    """
    run = Native("rows", (_adamw(T, mode, alpha, beta, epsilon),))

    def body(
        lr, step, p, g, m, v, signal, n, signalled, alpha, beta, decay, unbias, tid, nthreads
    ):  # fmt: skip
        if signalled == 0 or signal[0] != 0:
            rate = lr[0] * 1.0
            keep = 1.0 - rate * decay
            root = 1.0
            if unbias != 0:
                rate /= 1.0 - power(alpha, step[0])
                root = 1.0 - power(beta, step[0])
                if mode == 1:
                    rate *= square_root(root, 1)
            begin, end = share_blocks(n, LINE, tid, nthreads)
            q, u, w = off(p, begin), off(m, begin), off(v, begin)
            run(q, off(g, begin), u, w, keep, rate, 1.0 / root, q, u, w, end - begin)

    return body


@kernel("lr:T* p:T* g:T* signal:b1* n:i64 signalled:i64")
def sgd(target: Target, T: str) -> Body:
    """p = p - lr g, in place; nothing where the signal is false.  p, g: T[n]; lr: T[1]."""
    ins = (Input(T), Input(T), Input(T, "s"))
    run = Native("rows", (Program(ins, outs=((T, _expr.parse("i0 - i2 * i1")),)),))

    def body(lr, p, g, signal, n, signalled, tid, nthreads):
        if signalled == 0 or signal[0] != 0:
            begin, end = share_blocks(n, LINE, tid, nthreads)
            run(off(p, begin), off(g, begin), lr, off(p, begin), end - begin)

    return body


@kernel("x:T* sums:f64* n:i64 at:i64")
def square_sums(target: Target, T: str) -> Body:
    """sums[at + tid] = sum of x[i]^2 over this thread's part.  x: T[n].  Overwrites."""
    square = Program((Input(T),), reductions=((T, "sum", _expr.parse("i0 * i0")),))
    run = Native("rows", (square,))

    def body(x, sums, n, at, tid, nthreads):
        begin, end = share_blocks(n, LINE, tid, nthreads)
        total = 0.0
        while begin < end:
            k = imin(end - begin, RUN)
            total += run(off(x, begin), k)
            begin += k
        sums[at + tid] = total

    return body


@inline
def norm_of(sums, parts):
    """The square root of the sum of all parts, always added in the same order."""
    total = 0.0
    for i in range(parts):
        total += sums[i]
    return square_root(total, 1)


@kernel("sums:f64* x:T* n:i64 parts:i64 max_norm:f64")
def clip(target: Target, T: str) -> Body:
    """x = x min(max_norm / (norm + 1e-6), 1), in place, norm^2 the sum of `parts` sums.  T[n]."""
    ins = (Input(T), Input(T, "k"))
    run = Native("rows", (Program(ins, outs=((T, _expr.parse("i0 * i1")),)),))

    def body(sums, x, n, parts, max_norm, tid, nthreads):
        factor = max_norm / (norm_of(sums, parts) + 1e-6)
        # Not `factor < 1`: a NaN norm must reach the gradients.
        if not factor >= 1.0:
            begin, end = share_blocks(n, LINE, tid, nthreads)
            run(off(x, begin), factor, off(x, begin), end - begin)

    return body


@kernel("sums:f64* y:T* parts:i64")
def norm(target: Target, T: str) -> Body:
    """y[0] = square root of the sum of `parts` sums.  One thread.  Overwrites."""

    def body(sums, y, parts, tid, nthreads):
        if tid == 0:
            y[0] = norm_of(sums, parts)

    return body


# --- lowering


def _signal(s: Lowering, i: int) -> tuple[Operand | None, list[int]]:
    """The optional update signal, input i, and whether it is there."""
    found = s.x(i) if s.site.has(i) else None
    return found, [int(found is not None)]


def _updated(s: Lowering, signal: Operand | None) -> None:
    """Output 0, "an update took place": the signal, or true."""
    if s.wants(0):
        flag = s.y(0)
        if signal is None:
            lower_map(s, [("const", True)], [], [flag])
        else:
            lower_map(s, [("in", 0)], [Operand(signal.name, flag.type)], [flag])


def _lower_adamw(s: Lowering) -> None:
    a = s.site.attrs
    mode, unbias = a["adam_mode"], a["correct_bias"]
    if mode not in (0, 1) or (mode == 0 and unbias != 1):
        s.site.fail(f"adam_mode {mode}, correct_bias {unbias}", "mode 1, or mode 0 with correction")
    p, (signal, signalled) = s.x(2), _signal(s, 6)
    numbers = [float(a[k]) for k in ("alpha", "beta", "epsilon")]
    if not all(0 <= x < 1 for x in numbers[:2]):
        s.site.fail(f"alpha {a['alpha']}, beta {a['beta']}", "from 0 to below 1")
    s.call(
        adamw(p.type.dtype, mode, *map(repr, numbers)),
        [
            ("r", s.x(0)), ("r", s.x(1)), ("u", p), ("r", s.x(3)), ("u", s.x(4)), ("u", s.x(5)),
            ("r", signal),
        ],
        [p.type.size, *signalled, *numbers[:2], float(a["weight_decay"]), unbias],
    )  # fmt: skip
    _updated(s, signal)


def _lower_sgd(s: Lowering) -> None:
    p, (signal, signalled) = s.x(1), _signal(s, 3)
    args: list[Any] = [("r", s.x(0)), ("u", p), ("r", s.x(2)), ("r", signal)]
    s.call(sgd(p.type.dtype), args, [p.type.size, *signalled])
    _updated(s, signal)


def _lower_clip(s: Lowering) -> None:
    if s.site.attrs["norm_type"] not in ("fro", b"fro"):
        s.site.fail(f"norm_type {s.site.attrs['norm_type']!r}", "'fro'")
    g = s.x(0)
    T, n = g.type.dtype, g.type.size
    sums = s.temp("f64", (s.threads,))
    s.call(square_sums(T), [("r", g), ("w", sums)], [n, 0])
    s.call(clip(T), [("r", sums), ("u", g)], [n, s.threads, float(s.site.attrs["max_norm"])])


def _lower_norm(s: Lowering) -> None:
    y, count = s.y(0), len(s.site.ins)
    sums = s.temp("f64", (count, s.threads))
    for i in range(count):
        x, mode = s.x(i), "u" if i else "w"
        args: list[Any] = [("r", x), (mode, sums)]
        s.call(square_sums(x.type.dtype), args, [x.type.size, i * s.threads])
    s.call(norm(y.type.dtype), [("r", sums), ("w", y)], [count * s.threads])


# --- shapes


ADAMW = {
    "alpha": 0.9, "beta": 0.999, "epsilon": 1e-8, "weight_decay": 1e-2, "correct_bias": 1,
    "adam_mode": 0,
}  # fmt: skip
CLIP = {"max_norm": 1.0, "norm_type": "fro"}


def _flag(
    *updated: int, signal: int, step: int | None = None, attrs: Mapping[str, Any] | None = None
) -> Any:
    """Shape rule: the flag, then inputs `updated` as they are after the step.

    Inputs before the `signal` must be there; all but `step`, the rate (0) and the signal have the
    type of the first updated one.
    """

    def infer(s: Site) -> tuple[TensorType, ...]:
        p = s.type(updated[0])
        singles = {0: TensorType(p.dtype, (1,)), signal: TensorType("b1", (1,))}
        if step is not None:
            singles[step] = TensorType("i64", (1,))
        is_sequence = p.dtype.startswith("seq(")  # as files have it; plans have flat tensors
        for i in range(signal + s.has(signal)):
            if s.type(i) != singles.get(i, p) and not is_sequence:
                s.wrong(f"input {i} is {s.type(i)}; expected {singles.get(i, p)}")
        _check_attributes(s, attrs or {})
        types = (TensorType("b1", (1,)), *(s.type(i) for i in updated))
        return types[: max(s.n_outs, 1)]

    return infer


def _check_attributes(s: Site, known: Mapping[str, Any]) -> None:
    """Refuse unknown attributes, and numbers that are not finite."""
    for name, value in s.attrs.items():
        if name not in known:
            s.fail(f"attribute {name!r}{nearest(name, known)}", ", ".join(known) or "none")
        if isinstance(value, float) and not math.isfinite(value):
            s.fail(f"{name} = {value}", "finite numbers")


def _clip_infer(s: Site) -> tuple[TensorType, ...]:
    _check_attributes(s, CLIP)
    return (s.type(0),)


def _norm_infer(s: Site) -> tuple[TensorType, ...]:
    dtype = s.type(0).dtype.removeprefix("seq(").removesuffix(")")
    return (TensorType(dtype, ()),)


OPS = (
    Op(
        name="AdamWOptimizer", domain=MS, attrs=ADAMW, lower=_lower_adamw,
        infer=_flag(2, 4, 5, signal=6, step=1, attrs=ADAMW),
    ),
    Op(name="SGDOptimizerV2", domain=MS, infer=_flag(1, signal=3), lower=_lower_sgd),
    Op(
        name="InplaceClipGradNorm", domain=MS, attrs=CLIP, infer=_clip_infer, lower=_lower_clip,
        view=True,
    ),
    Op(name="ReduceAllL2", domain=MS, infer=_norm_infer, lower=_lower_norm),
)  # fmt: skip
KERNELS = (adamw, sgd, square_sums, clip, norm)
