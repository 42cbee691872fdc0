"""Norms over all gradients, and scaling down to one.

Clipping  g = g min(max_norm / (||g|| + 1e-6), 1), the norm over all parameters; NaN stays NaN.
          An output more of the op is that factor: then g stays as it is, and steps multiply what
          they read
Error     squares are added in the working type in runs of 4096 elements, the runs in double and in
          one order, whatever the number of threads
Source    torch.nn.utils.clip_grad_norm_; onnxruntime's clip_grad_norm.cc

The flat tensor of gradients holds all parameters; its zero padding counts for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.errors import nearest
from engine.kernels.target import Target
from engine.kernels.vocabulary.kernel import (
    Body,
    imin,
    inline,
    kernel,
    off,
    share,
    share_blocks,
)
from engine.kernels.vocabulary.op import MS, Lowering, Op, Site, TensorType
from engine.kernels.vocabulary.row_program import loop

RUN = 4096  # elements whose squares are added in the working type
LINE = 64  # threads part arrays at multiples of this many elements: whole cache lines

square_root = loop("f64", "x -> sqrt(x)")  # of one double: square_root(x, 1)


# --- kernels


@kernel("x:T* sums:f64* n:i64 runs:i64 at:i64")
def square_sums(target: Target, T: str) -> Body:
    """sums[at + r] = sum of x[i]^2 over run r of RUN elements.  x: T[n].  Overwrites."""
    run = loop(T, "x[] -> sum(x * x)")

    def body(x, sums, n, runs, at, tid, nthreads):
        first, last = share(runs, tid, nthreads)
        for r in range(first, last):
            sums[at + r] = run(off(x, r * RUN), imin(RUN, n - r * RUN))

    return body


@inline
def norm_of(sums, runs):
    """The square root of the sum of all runs, always added in the same order."""
    total = 0.0
    for r in range(runs):
        total += sums[r]
    return square_root(total, 1)


@kernel("sums:f64* x:T* n:i64 runs:i64 max_norm:f64")
def clip(target: Target, T: str) -> Body:
    """x = x min(max_norm / (norm + 1e-6), 1), in place, norm^2 the sum of all runs.  x: T[n]."""
    run = loop(T, "g[] k -> g[] = g * k")

    def body(sums, x, n, runs, max_norm, tid, nthreads):
        factor = max_norm / (norm_of(sums, runs) + 1e-6)
        # Not `factor < 1`: a NaN norm must reach the gradients.
        if not factor >= 1.0:
            begin, end = share_blocks(n, LINE, tid, nthreads)
            run(off(x, begin), factor, off(x, begin), end - begin)

    return body


@kernel("sums:f64* y:T* runs:i64 max_norm:f64")
def clip_factor(target: Target, T: str) -> Body:
    """y[0] = min(max_norm / (norm + 1e-6), 1), norm^2 the sum of all runs.  Overwrites."""

    def body(sums, y, runs, max_norm, tid, nthreads):
        if tid == 0:
            factor = max_norm / (norm_of(sums, runs) + 1e-6)
            y[0] = 1.0 if factor >= 1.0 else factor

    return body


@kernel("sums:f64* y:T* runs:i64")
def norm(target: Target, T: str) -> Body:
    """y[0] = square root of the sum of all runs.  One thread.  Overwrites."""

    def body(sums, y, runs, tid, nthreads):
        if tid == 0:
            y[0] = norm_of(sums, runs)

    return body


# --- lowering


def runs_of(n: int) -> int:
    """The number of runs of n elements."""
    return -(-n // RUN)


def _lower_clip(lowering: Lowering) -> None:
    """Scale the gradients; or, where output 1 is read, make the factor of which steps do that."""
    if lowering.site.attrs["norm_type"] not in ("fro", b"fro"):
        lowering.site.fail(f"norm_type {lowering.site.attrs['norm_type']!r}", "'fro'")
    g, max_norm = lowering.x(0), float(lowering.site.attrs["max_norm"])
    T, n = g.type.dtype, g.type.size
    runs = runs_of(n)
    sums = lowering.temp("f64", (runs,))
    lowering.call(square_sums(T), [("r", g), ("w", sums)], [n, runs, 0])
    if lowering.wants(1):
        lowering.call(clip_factor(T), [("r", sums), ("w", lowering.y(1))], [runs, max_norm])
    else:
        lowering.call(clip(T), [("r", sums), ("u", g)], [n, runs, max_norm])


def _lower_norm(lowering: Lowering) -> None:
    y, at = lowering.y(0), 0
    counts = [runs_of(lowering.x(i).type.size) for i in range(len(lowering.site.ins))]
    sums = lowering.temp("f64", (sum(counts),))
    for i, runs in enumerate(counts):
        x = lowering.x(i)
        args: list[Any] = [("r", x), ("u" if i else "w", sums)]
        lowering.call(square_sums(x.type.dtype), args, [x.type.size, runs, at])
        at += runs
    lowering.call(norm(y.type.dtype), [("r", sums), ("w", y)], [at])


# --- shapes


CLIP = {"max_norm": 1.0, "norm_type": "fro"}


def check_attributes(site: Site, known: Mapping[str, Any]) -> None:
    """Refuse unknown attributes, and numbers that are not finite."""
    for name, value in site.attrs.items():
        if name not in known:
            site.fail(f"attribute {name!r}{nearest(name, known)}", ", ".join(known) or "none")
        if isinstance(value, float) and not math.isfinite(value):
            site.fail(f"{name} = {value}", "finite numbers")


def _clip_infer(site: Site) -> tuple[TensorType, ...]:
    check_attributes(site, CLIP)
    return (site.type(0), TensorType(site.type(0).dtype, (1,)))[: max(site.n_outs, 1)]


def _norm_infer(site: Site) -> tuple[TensorType, ...]:
    dtype = site.type(0).dtype.removeprefix("seq(").removesuffix(")")
    return (TensorType(dtype, ()),)


OPS = (
    Op(
        name="InplaceClipGradNorm",
        domain=MS,
        attrs=CLIP,
        infer=_clip_infer,
        lower=_lower_clip,
        calls=(square_sums, clip, clip_factor),
        view=True,
    ),
    Op(
        name="ReduceAllL2",
        domain=MS,
        infer=_norm_infer,
        lower=_lower_norm,
        calls=(square_sums, norm),
    ),
)
KERNELS = (square_sums, clip, clip_factor, norm)
