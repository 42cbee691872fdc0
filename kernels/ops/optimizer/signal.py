"""Signals: whether the updates of a step may change parameters.

UpdateSignal    y[0] = no fault so far, and the loss is finite or not asked to be
GradientSignal  y[0] = before[0] if it is given, and all elements of all other inputs are finite
Source          the update signal of onnxruntime's optimizers; GradScaler of torch.amp and
                apply_if_finite of optax skip steps likewise

All updates of a plan read the last signal, so that it comes before the first of them.  A run that
met bad data ends at the barrier before it, and no parameter and no state has changed.

UpdateSignal belongs to a step that trains and updates in one plan.  GradientSignal is in optimizer
models that skip updates whose gradients are not finite, over the sequence of all gradients; in
plans it reads flat tensors, or the norm that clipping has taken of the same gradients.
"""

from __future__ import annotations

from engine.kernels.machine.target import Target
from engine.kernels.ops.optimizer.clipping import (
    RUN_SUMS,
    check_floats,
    cut_run_sums,
    measure_runs_reach,
    sum_runs,
)
from engine.kernels.ops.optimizer.ranges import (
    TABLES,
    count_runs,
    pack_ranges,
)
from engine.kernels.vocabulary.kernel import (
    Body,
    Intrinsic,
    kernel,
)
from engine.kernels.vocabulary.op import MANY, OURS, Lowering, Op, Site, TensorType
from engine.plan.context import STATUS

atomic_load = Intrinsic("atomic_load")
FLAG = TensorType("b1", (1,))


@kernel(
    "loss: T[n]  check: b1[1]  y: out b1[1]  fault: update i64[1 record]  n: i64",
    words={"fault": STATUS},
)
def update_signal(target: Target, T: str) -> Body:
    """y[0] = the kind of the fault is 0, and the loss is finite where check[0]."""

    def body(loss, check, y, fault, n, tid, nthreads):
        if tid == 0:
            is_fine = atomic_load(fault.kind) == 0
            if check[0] != 0:
                for i in range(n):
                    if loss[i] - loss[i] != 0.0:  # NaN of infinities and of NaN
                        is_fine = False
            y[0] = is_fine

    return body


@kernel(RUN_SUMS, words=TABLES, reach=measure_runs_reach, tiling=cut_run_sums)
def nonfinite_counts(target: Target, T: str) -> Body:
    """sums[at + r] = elements of run r of the range that are not finite."""
    # x - x is NaN for infinities and for NaN.
    return sum_runs(T, "x[] -> sum(where(x - x == 0.0, 0.0, 1.0))")


@kernel("before: b1[1] if given  counts: f64[runs]  y: out b1[1]  runs, given: i64")
def gradient_signal(target: Target, T: str) -> Body:
    """y[0] = before[0] where `given`, and all counts are 0.  One thread."""

    def body(before, counts, y, runs, given, tid, nthreads):
        if tid == 0:
            is_fine = given == 0 or before[0] != 0
            for r in range(runs):
                if counts[r] != 0.0:
                    is_fine = False
            y[0] = is_fine

    return body


def _infer(site: Site) -> tuple[TensorType, ...]:
    if site.type(1) != FLAG:
        site.wrong(f"input 1 is {site.type(1)}; expected {FLAG}")
    return (FLAG,)


def _lower(lowering: Lowering) -> None:
    loss, check, y = lowering.x(0), lowering.x(1), lowering.y(0)
    lowering.call(
        update_signal(loss.type.dtype), loss=loss, check=check, y=y, fault=lowering.fault(),
        n=loss.type.size,
    )  # fmt: skip


def _gradient_infer(site: Site) -> tuple[TensorType, ...]:
    if site.has(0) and site.type(0) != FLAG:
        site.wrong(f"input 0 is {site.type(0)}; expected {FLAG}, or nothing")
    if len(site.ins) < 2:
        site.fail("no gradients", "at least one input after the signal before")
    check_floats(site, 1)
    return (FLAG,)


def _lower_gradient(lowering: Lowering) -> None:
    xs = [lowering.x(i) for i in range(1, len(lowering.site.ins))]
    at = 0
    counts = lowering.temp("f64", (sum(count_runs(x.type.size) for x in xs),))
    for x in xs:
        n, runs = x.type.size, count_runs(x.type.size)
        table = lowering.const(pack_ranges([(0, n)]))
        lowering.call(
            nonfinite_counts(x.type.dtype), x=x, sums=counts, ranges=table, count=1, runs=runs,
            at=at, block=1, updates=("sums",) if at else (),
        )  # fmt: skip
        at += runs
    given = lowering.site.has(0)
    before = lowering.x(0) if given else None
    lowering.call(
        gradient_signal(xs[0].type.dtype), before=before, counts=counts, y=lowering.y(0), runs=at,
        given=int(given),
    )  # fmt: skip


OPS = (
    Op(
        name="UpdateSignal",
        domain=OURS,
        infer=_infer,
        lower=_lower,
        calls=(update_signal,),
        internal=True,
    ),
    Op(
        name="GradientSignal",
        domain=OURS,
        inputs=(2, MANY),
        outputs=1,
        may_be_absent=frozenset((0,)),
        infer=_gradient_infer,
        lower=_lower_gradient,
        calls=(nonfinite_counts, gradient_signal),
        reads_all_gradients=True,
    ),
)
KERNELS = (update_signal, nonfinite_counts, gradient_signal)
