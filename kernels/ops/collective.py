"""Collective steps: sums over the ranks of a group, and the buckets that carry them.

AllReduce       y_i = sum of x_i over all ranks; several tensors are sent as one bucket
AllReduceStart  starts the sum of a bucket;  AllReduceWait  waits for it
BucketPart      one tensor of a bucket
JoinLoss        loss of the joined batch = sum over ranks of share * loss
JoinMoments     mean = sum samples mean_r,  var = sum samples (var_r + mean_r^2) - mean^2, for
                moments over parts of a batch; each rank has its part `samples`
Error     JoinMoments adds in double: it leaves 2^-53 mean^2 in the variance, less than rounding x
          to float32 does; everything else is one addition of the working type a rank
Source    Li et al., "PyTorch distributed: experiences on accelerating data parallel training",
          arXiv 2006.15704 (buckets); Chan, Golub, LeVeque 1979 (moments of parts)

The kernels only copy.  The runtime computes the sums (engine/plan/collective.py); with a single
rank, these steps do nothing.  Input 0 of every op is `RANKS`, which keeps their order; the
attribute `ordinal` is the number of an op in this order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from engine.base.element_types import FLOATS
from engine.kernels.machine.target import Target
from engine.kernels.ops.movement import copy, strided_copy
from engine.kernels.vocabulary.kernel import Body, Intrinsic, kernel, off, share_blocks
from engine.kernels.vocabulary.op import OURS, Kind, Lowering, Op, Operand, Site, TensorType
from engine.kernels.vocabulary.shape_rules import make_symbol
from engine.plan.collective import ORDINAL, REDUCTIONS
from engine.plan.context import STATUS

LINE = 64  # elements; threads part arrays at multiples of this many: whole cache lines
RANKS = TensorType("i64", (ORDINAL.size,))

# --- kernels


@kernel(
    """
    x: T[n]   y: out T[n] may alias x   ranks: update i64[1 record]   n: i64   ordinal: any i64
    """,
    params=tuple((T, kind) for T in sorted(FLOATS) for kind in REDUCTIONS),
    words={"ranks": ORDINAL},
)
def all_reduce(target: Target, T: str, kind: str) -> Body:
    """y = x, and the collective step `ordinal` has come.

    kind: the runtime's part, after or before, with the group; see engine/plan/collective.py.
    """
    move = Intrinsic("copy", (T,))

    def body(x, y, ranks, n, ordinal, tid, nthreads):
        first, last = share_blocks(n, LINE, tid, nthreads)
        if last > first:
            move(off(y, first), off(x, first), last - first)
        if tid == 0:
            # The step's number tells the runtime that this thread's part is copied.
            ranks.ordinal = ordinal

    return body


@kernel(
    """
    x: T[n]   y: out T[n]   share: T[1] if n   ranks: update i64[1 record]
    fault: update i64[1 record]   n: i64   ordinal: any i64
    """,
    words={"ranks": ORDINAL, "fault": STATUS},
)
def agree(target: Target, T: str) -> Body:
    """y = share[0] x, and the collective step `ordinal` has come."""

    def body(x, y, share, ranks, fault, n, ordinal, tid, nthreads):
        if tid == 0:
            for i in range(n):
                y[i] = x[i] * share[0]
            ranks.ordinal = ordinal

    return body


@kernel(
    """
    mean: T[n]   y: out f64[2, n]   var: T[n]   samples: f64[1]   ranks: update i64[1 record]
    n: i64   ordinal: any i64
    """,
    words={"ranks": ORDINAL},
)
def reduce_moments(target: Target, T: str) -> Body:
    """y[0] = samples[0] mean, y[1] = samples[0] (var + mean^2), and `ordinal` has come.

    y is then summed.
    """

    def body(mean, y, var, samples, ranks, n, ordinal, tid, nthreads):
        first, last = share_blocks(n, LINE, tid, nthreads)
        # var + mean^2 is the mean of squares, which can be added; in double, so that the
        # subtraction afterwards loses little.
        part = samples[0]
        for c in range(first, last):
            # Times 1.0: in double.
            m = 1.0 * mean[c]
            y[c] = part * m
            y[n + c] = part * (var[c] + m * m)
        if tid == 0:
            ranks.ordinal = ordinal

    return body


@kernel("x: f64[2, n]  mean, var: out T[n]  n: i64")
def join_moments(target: Target, T: str) -> Body:
    """mean = x[0], var = max(x[1] - x[0]^2, 0); a NaN stays one."""

    def body(x, mean, var, n, tid, nthreads):
        first, last = share_blocks(n, LINE, tid, nthreads)
        for c in range(first, last):
            m = x[c]
            v = x[n + c] - m * m
            mean[c] = m
            # Rounding may leave a small negative; a NaN must come through, so not max.
            var[c] = 0.0 if v < 0.0 else v

    return body


# --- lowering


def _reduce(lowering: Lowering, kind: str, x: Operand, y: Operand) -> None:
    """Call the collective step of a kind for x, as y."""
    lowering.call(
        all_reduce(x.type.dtype, kind), x=x, y=y, ranks=lowering.x(0), n=x.type.size,
        ordinal=lowering.site.attrs["ordinal"],
    )  # fmt: skip


def _copy_part(lowering: Lowering, x: Operand, y: Operand, start: tuple[int, int]) -> None:
    """Copy a tensor to a place in a bucket, or out of it; the shorter one has all its elements."""
    # One of the two is the bucket, which has room for more.
    count = min(x.type.size, y.type.size)
    copy(lowering, x, y, (count,), ((1,), (1,)), start, "u" if start[1] else "w")


def _packed(lowering: Lowering, xs: Sequence[Operand]) -> Operand:
    """Return all tensors one after the other; one alone as it is."""
    # A single tensor travels from where it is: no copy into a bucket.
    if len(xs) == 1:
        return xs[0]
    bucket = lowering.temp(xs[0].type.dtype, (sum(x.type.size for x in xs),))
    at = 0
    for x in xs:
        _copy_part(lowering, x, bucket, (0, at))
        at += x.type.size
    return bucket


def _summed(lowering: Lowering) -> list[Operand]:
    return [lowering.x(i) for i in range(1, len(lowering.site.ins))]


def _lower_reduce(lowering: Lowering) -> None:
    xs = _summed(lowering)
    bucket = _packed(lowering, xs)
    if len(xs) == 1:
        _reduce(lowering, "sum", bucket, lowering.y(0))
        return
    # Summed apart from the bucket, as this rank's own values are an input that others may read.
    joined, at = lowering.temp(bucket.type.dtype, bucket.type.dims), 0
    _reduce(lowering, "sum", bucket, joined)
    for i, x in enumerate(xs):
        if lowering.wants(i):
            _copy_part(lowering, joined, lowering.y(i), (at, 0))
        at += x.type.size


def _lower_start(lowering: Lowering) -> None:
    _reduce(lowering, "start", _packed(lowering, _summed(lowering)), lowering.y(0))


def _lower_wait(lowering: Lowering) -> None:
    _reduce(lowering, "wait", lowering.x(1), lowering.y(0))


def _lower_part(lowering: Lowering) -> None:
    _copy_part(lowering, lowering.x(0), lowering.y(0), (lowering.site.attrs["begin"], 0))


def _lower_loss(lowering: Lowering) -> None:
    loss, y = lowering.x(1), lowering.y(0)
    lowering.call(
        agree(loss.type.dtype), x=loss, y=y, share=lowering.x(2), ranks=lowering.x(0),
        fault=lowering.fault(), n=loss.type.size, ordinal=lowering.site.attrs["ordinal"],
    )  # fmt: skip


def _lower_moments(lowering: Lowering) -> None:
    mean, var, samples = (lowering.x(i) for i in (1, 2, 3))
    T, n = mean.type.dtype, mean.type.size
    joined = lowering.temp("f64", (2, n))
    lowering.call(
        reduce_moments(T), mean=mean, y=joined, var=var, samples=samples, ranks=lowering.x(0), n=n,
        ordinal=lowering.site.attrs["ordinal"],
    )  # fmt: skip
    lowering.call(join_moments(T), x=joined, mean=lowering.y(0), var=lowering.y(1), n=n)


# --- shapes


def _checked(site: Site, first: int = 1) -> tuple[TensorType, ...]:
    """Return the types of the inputs after RANKS, which all have one element type."""
    if site.type(0) != RANKS:
        site.wrong(f"input 0 is {site.type(0)}; expected {RANKS}")
    types = tuple(site.type(i) for i in range(first, len(site.ins)))
    if len({t.dtype for t in types}) > 1:
        site.fail(f"the inputs are {', '.join(str(t) for t in types)}", "one element type")
    return types


def _infer_reduce(site: Site) -> tuple[TensorType, ...]:
    return tuple(t.but() for t in _checked(site))


def _infer_start(site: Site) -> tuple[TensorType, ...]:
    types = _checked(site)
    sizes = [d for t in types for d in t.shape]
    if not all(isinstance(d, int) for d in sizes):
        return (TensorType(types[0].dtype, (make_symbol(site, 0),)),)
    return (TensorType(types[0].dtype, (sum(math.prod(t.dims) for t in types),)),)


def _infer_part(site: Site) -> tuple[TensorType, ...]:
    return (site.type(0).but(tuple(site.attrs["dims"])),)


def _infer_loss(site: Site) -> tuple[TensorType, ...]:
    return (_checked(site)[0].but(),)


def _infer_moments(site: Site) -> tuple[TensorType, ...]:
    _checked(site, len(site.ins))
    return (site.real(1).but(), site.real(2).but())


_ORDINAL: dict[str, Kind] = {"ordinal": "int"}


def _op(
    name: str,
    infer: Callable[[Site], tuple[TensorType, ...]],
    lower: Callable[[Lowering], None],
    *calls: Any,
) -> Op:
    return Op(
        name=name,
        domain=OURS,
        needs=_ORDINAL,
        infer=infer,
        lower=lower,
        calls=calls,
        internal=True,
    )


OPS = (
    _op("AllReduce", _infer_reduce, _lower_reduce, all_reduce, strided_copy),
    _op("AllReduceStart", _infer_start, _lower_start, all_reduce, strided_copy),
    _op("AllReduceWait", _infer_reduce, _lower_wait, all_reduce),
    _op("JoinLoss", _infer_loss, _lower_loss, agree),
    _op("JoinMoments", _infer_moments, _lower_moments, reduce_moments, join_moments),
    Op(
        name="BucketPart",
        domain=OURS,
        needs={"begin": "int", "dims": "ints"},
        infer=_infer_part,
        lower=_lower_part,
        calls=(strided_copy,),
        internal=True,
    ),
)
KERNELS = (all_reduce, agree, reduce_moments, join_moments)
