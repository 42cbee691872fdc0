"""Losses over class labels: softmax cross-entropy and negative log-likelihood.

Forward   loss_i = -w[l_i] logp[i, l_i], 0 where l_i is ignore_index; `mean` divides the sum by
          the sum of the w[l_i] that count, and is 0 when none does (as onnxruntime; torch: NaN)
Backward  dx = dy_i w[l_i] (exp(logp) - [c = l_i]) / (mean: that sum); needs logp and the labels.
          Of the likelihood alone: the same with logp = -inf, for exp(-inf) = 0.  In 16 bits logp
          would have an error that grows with |logp|, so the pair of ops in domain engine has the
          scores themselves, which are rounded already, and their log sums (passes/losses.py)
Error     as of log softmax (softmax.py); sums over samples are in double; halves are computed with
          as float32, and dx is rounded once

Scores are viewed as [n, classes, inner].  A label outside [0, classes) that is not ignore_index
reads and writes nothing: its loss and gradient are NaN, and it is written to the fault word: 1, the
sample's position, the label, the number of classes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.base.errors import DTypeError
from engine.kernels.loops.bad_data import NO_POSITION, report_at
from engine.kernels.loops.map import MAP_KERNELS, widen_integers
from engine.kernels.machine.target import Target
from engine.kernels.ops.softmax import (
    BLOCK,
    LOG_SUM_KERNELS,
    SOFTMAX_KERNELS,
    softmax,
    take_log_sums,
)
from engine.kernels.vocabulary.facts import Samples, Storage
from engine.kernels.vocabulary.kernel import (
    Body,
    Intrinsic,
    imin,
    inline,
    kernel,
    off,
    pick,
    share,
    udiv,
)
from engine.kernels.vocabulary.op import (
    MS,
    OURS,
    Grad,
    Kind,
    Lowering,
    Op,
    Operand,
    Site,
    TensorType,
    find_stored,
)
from engine.kernels.vocabulary.row_program import loop
from engine.plan.context import LABEL, STATUS

NONE, SUM, MEAN = 0, 1, 2
REDUCTIONS = {"none": NONE, "sum": SUM, "mean": MEAN}
NAN = float("nan")


# --- kernels


@inline
def read_label(label, i, weight, weighted, ignore, ignored, classes, bad):
    """Class and weight of sample i, (-1, 0) if ignored, (-1, NaN) if out of range; and the lowest
    position of a label that is out of range, `bad` or i."""
    at = label[i]
    w = 1.0
    # ignore_index may lie outside the classes, so it is tested first.
    if ignored != 0 and at == ignore[0]:
        at, w = -1, 0.0
    # A label out of range gives NaN: a loss that cannot be missed, while the fault names the label.
    elif at < 0 or at >= classes:
        at, w, bad = -1, NAN, imin(bad, i)
    elif weighted != 0:
        w = weight[at] * 1.0
    return at, w, bad


_OPTIONS = "weight: T[classes] if weighted   ignore: i64[1] if ignored"


@kernel(
    f"""
    x: S[n, classes, inner]   lse: T[2, n, inner] if shifted   label: i64[n, inner]   {_OPTIONS}
    loss: out T[n, inner] if each   sums: out f64[threads, 2] if not each
    fault: update i64[1 record]   n, classes, inner, shifted, weighted, ignored, each: i64
    """,
    words={"fault": STATUS},
)
def likelihood(target: Target, T: str, S: str = "") -> Body:
    """loss[i, d] = -w[l] (x[i, l, d] - lse[0, i, d] - lse[1, i, d]), l = label[i, d].

    lse: as in `log_sums_rows`, 0 when not `shifted`.  Unless `each` is set, writes
    sums[tid] = (sum of losses, sum of weights) instead.  S: how x is stored.
    """
    score = loop(T, "x:S[] -> max(x)", S)

    def body(
        x,
        lse,
        label,
        weight,
        ignore,
        loss,
        sums,
        fault,
        n,
        classes,
        inner,
        shifted,
        weighted,
        ignored,
        each,
        tid,
        nthreads,
    ):
        total, count, bad = 0.0, 0.0, NO_POSITION
        first, last = share(n * inner, tid, nthreads)
        for i in range(first, last):
            at, w, bad = read_label(label, i, weight, weighted, ignore, ignored, classes, bad)
            value = w
            if at >= 0:
                a = udiv(i, inner)
                # Times 1.0: sums are in double, whatever T is.
                value = score(off(x, (a * classes + at) * inner + i - a * inner), 1) * 1.0
                if shifted != 0:
                    value -= lse[i]
                    value -= lse[n * inner + i]
                value = -w * value
            if each != 0:
                loss[i] = value
            total += value
            count += w
        if each == 0:
            # A sum for each thread, which one thread adds in order: without atomics.
            sums[2 * tid] = total
            sums[2 * tid + 1] = count
        report_at(fault, LABEL, label, bad, classes)

    return body


@kernel("sums: f64[parts, 2]  loss: out T[1]  parts, mean: i64")
def total_loss(target: Target, T: str) -> Body:
    """loss[0] = sum of the `parts` loss sums, for `mean` over the sum of weights unless that is 0.

    One thread.
    """

    def body(sums, loss, parts, mean, tid, nthreads):
        if tid == 0:
            total = count = 0.0
            for p in range(parts):
                total += sums[2 * p]
                count += sums[2 * p + 1]
            # All labels ignored: 0 / 0 is taken as 0, as in onnxruntime.
            if mean != 0 and count != 0.0:
                total /= count
            loss[0] = total

    return body


@kernel(
    f"""
    label: i64[n]   {_OPTIONS}   sums: out f64[threads]   fault: update i64[1 record]
    n, classes, weighted, ignored: i64
    """,
    words={"fault": STATUS},
)
def label_weights(target: Target, T: str) -> Body:
    """sums[tid] = sum of w[label[i]] over this thread's part of n labels."""

    def body(label, weight, ignore, sums, fault, n, classes, weighted, ignored, tid, nthreads):
        count, bad = 0.0, NO_POSITION
        first, last = share(n, tid, nthreads)
        for i in range(first, last):
            _, w, bad = read_label(label, i, weight, weighted, ignore, ignored, classes, bad)
            count += w
        sums[tid] = count
        report_at(fault, LABEL, label, bad, classes)

    return body


@inline
def over(sums, parts):
    """1 / sum of the weights of all parts; 1 without parts or weights."""
    count = 0.0
    for p in range(parts):
        count += sums[p]
    # All labels ignored: any factor will do, since every weight is 0.
    return 1.0 / count if count != 0.0 else 1.0


@kernel(
    f"""
    dy: T[(n - 1) * each + 1] if n   x: S[n, classes]   lse: T[2, n] if shifted
    label: i64[n]   {_OPTIONS}   sums: f64[parts]   dx: out S[n, classes] may alias x
    fault: update i64[1 record]   n, classes, shifted, weighted, ignored, each, parts: i64
    """,
    words={"fault": STATUS},
)
def cross_entropy_grad_rows(target: Target, T: str, S: str = "") -> Body:
    """dx[i] = f_i (exp(x[i] - lse[0, i] - lse[1, i]) - [c = label[i]]).

    f_i = dy w[label[i]] / sum of sums.  dy: T[n] if `each`, and T[1] otherwise.  lse: 0 unless
    `shifted`.  S: how x and dx are stored.
    """
    write = loop(T, f"c:i32.. x:S[] top log_sum f label:i32 -> dx:S[] = {_SPREAD}", S)
    zero = loop(T, "-> 0")

    def body(
        dy,
        x,
        lse,
        label,
        weight,
        ignore,
        sums,
        dx,
        fault,
        n,
        classes,
        shifted,
        weighted,
        ignored,
        each,
        parts,
        tid,
        nthreads,
    ):
        scale, bad = over(sums, parts), NO_POSITION
        top = log_sum = zero(1)
        first, last = share(n, tid, nthreads)
        for i in range(first, last):
            at, w, bad = read_label(label, i, weight, weighted, ignore, ignored, classes, bad)
            if shifted != 0:
                top, log_sum = lse[i], lse[n + i]
            # Forward: loss_i = -w (x[l] - log sum exp x); so dx = w dy (softmax(x) - [c = l]).
            f = scale * w * dy[i * each]
            write(0, off(x, i * classes), top, log_sum, f, at, off(dx, i * classes), classes)
        report_at(fault, LABEL, label, bad, classes)

    return body


# Exactly 0 where f is.
_SPREAD = "where(f == 0, 0, f * exp(x - top - log_sum)) - where(c == label, f, 0)"


@kernel(
    f"""
    dy: T[(n * inner - 1) * each + 1] if n * inner   x: S[n, classes, inner]
    lse: T[2, n, inner] if shifted   label: i64[n, inner]   {_OPTIONS}   sums: f64[parts]
    dx: out S[n, classes, inner] may alias x   fault: update i64[1 record]
    work: scratch T[threads, 2, block]
    n, classes, shifted, weighted, ignored, each, parts, inner: i64   block: i64 where block >= 1
    """,
    words={"fault": STATUS},
)
def cross_entropy_grad_cols(target: Target, T: str, S: str = "") -> Body:
    """As cross_entropy_grad_rows of [n, classes, inner], inner > 1: dx[i, :, d] of label[i, d].

    work: the factors f of `block` columns at a time, and as many zeros.
    """
    write = loop(T, f"x:S[] top[] log_sum[] f[] label:i64[] c:i64 -> dx:S[] = {_SPREAD}", S)
    zero = Intrinsic("zero", (T,))

    def body(
        dy,
        x,
        lse,
        label,
        weight,
        ignore,
        sums,
        dx,
        fault,
        work,
        n,
        classes,
        shifted,
        weighted,
        ignored,
        each,
        parts,
        inner,
        block,
        tid,
        nthreads,
    ):
        scale, bad = over(sums, parts), NO_POSITION
        factors = off(work, tid * 2 * block)
        zeros = off(factors, block)
        zero(zeros, block)
        blocks = udiv(inner + block - 1, block)
        first, last = share(n * blocks, tid, nthreads)
        for b in range(first, last):
            i = udiv(b, blocks)
            # Vectors run along `inner`; the classes of a sample are `inner` apart.
            d = (b - i * blocks) * block
            k = imin(block, inner - d)
            top = i * classes * inner + d
            p = i * inner + d
            for j in range(k):
                _, w, bad = read_label(
                    label, p + j, weight, weighted, ignore, ignored, classes, bad
                )
                # As by rows; factors of a block of columns, since vectors run along `inner`.
                factors[j] = scale * w * dy[(p + j) * each]
            highest = pick(shifted, off(lse, p), zeros)
            log_sum = pick(shifted, off(lse, n * inner + p), zeros)
            for c in range(classes):
                q = top + c * inner
                write(off(x, q), highest, log_sum, factors, off(label, p), c, off(dx, q), k)
        report_at(fault, LABEL, label, bad, classes)

    return body


# --- lowering


def _read_reduction(site: Site) -> int:
    name = site.attrs["reduction"]
    if name not in REDUCTIONS:
        site.fail(f"reduction is {name!r}", "none, sum, mean")
    return REDUCTIONS[name]


def _optional(lowering: Lowering, i: int) -> Operand | None:
    return lowering.x(i) if lowering.site.has(i) else None


def _ignore(lowering: Lowering, at: int | None) -> Operand | None:
    """Return ignore_index as an operand: input `at` of the node, or its attribute."""
    if at is not None and lowering.site.has(at):
        return widen_integers(lowering, lowering.x(at))
    index = lowering.site.attrs.get("ignore_index")
    return None if index is None else lowering.const(np.array([index], np.int64))


def _read_dims(site: Site, i: int) -> tuple[int, int, int]:
    """[n, classes, inner] of the scores, input i."""
    dims = site.type(i).dims
    return dims[0], dims[1], math.prod(dims[2:])


def _lower_loss(lowering: Lowering, at: int | None, *, scores: bool) -> None:
    """Append the calls for the likelihood of log softmax(x), or of x unless `scores`; reduce it."""
    x, y = lowering.x(0), lowering.y(0)
    (T, S), (n, classes, inner) = find_stored(x), _read_dims(lowering.site, 0)
    reduction, lse = _read_reduction(lowering.site), None
    is_wanted = lowering.site.n_outs > 1 and lowering.wants(1)
    # log softmax is made only if it is an output; otherwise log sum exp is enough: two numbers a
    # sample, not one a class.
    if scores and is_wanted and lowering.site.domain != OURS:
        softmax(lowering, x, lowering.y(1), (n, classes, inner), 1)
        x = lowering.y(1)
    elif scores:
        lse = lowering.y(1) if is_wanted else lowering.temp(T, (2, n, inner))
        take_log_sums(lowering, x, lse, (n, classes, inner))
    weight, ignore = _optional(lowering, 2), _ignore(lowering, at)
    label = widen_integers(lowering, lowering.x(1))
    sums = None if reduction == NONE else lowering.temp("f64", (lowering.threads, 2))
    lowering.call(
        likelihood(T, *S), x=x, lse=lse, label=label, weight=weight, ignore=ignore,
        loss=y if sums is None else None, sums=sums, fault=lowering.fault(),
        n=n, classes=classes, inner=inner, shifted=int(lse is not None),
        weighted=int(weight is not None), ignored=int(ignore is not None), each=int(sums is None),
    )  # fmt: skip
    if sums is not None:
        mean = int(reduction == MEAN)
        lowering.call(total_loss(T), sums=sums, loss=y, parts=lowering.threads, mean=mean)


def _lower_grad(lowering: Lowering, at: int | None) -> None:
    dy, x, dx = lowering.x(0), lowering.x(1), lowering.y(0)
    label = widen_integers(lowering, lowering.x(2))
    if not dx.type.size:
        return
    (T, S), (n, classes, inner) = find_stored(x), _read_dims(lowering.site, 1)
    reduction, lse = _read_reduction(lowering.site), _optional(lowering, _LSE)
    weight, ignore = _optional(lowering, 3), _ignore(lowering, at)
    labels: dict[str, Any] = {
        "label": label, "weight": weight, "ignore": ignore, "classes": classes,
        "weighted": int(weight is not None), "ignored": int(ignore is not None),
    }  # fmt: skip
    sums = None
    # The mean divides by the sum of weights, which is summed again: a pass over the labels costs
    # less than keeping it for the backward pass.
    if reduction == MEAN:
        sums = lowering.temp("f64", (lowering.threads,))
        lowering.call(label_weights(T), **labels, sums=sums, fault=lowering.fault(), n=n * inner)
    labels |= {
        "dy": dy,
        "x": x,
        "lse": lse,
        "sums": sums,
        "dx": dx,
        "n": n,
        "shifted": int(lse is not None),
        "fault": lowering.fault(),
        "each": int(reduction == NONE),
        "parts": lowering.threads if sums else 0,
    }
    if inner == 1:
        lowering.call(cross_entropy_grad_rows(T, *S), **labels)
        return
    block = min(-(-inner // 16) * 16, BLOCK)
    work = lowering.temp(T, (lowering.threads, 2, block))
    lowering.call(cross_entropy_grad_cols(T, *S), **labels, work=work, inner=inner, block=block)


# --- shapes, gradients


def _infer(site: Site) -> tuple[TensorType, ...]:
    loss, x = _loss_and_scores(site, 0)
    second = x.but((2, *site.type(1).shape)) if site.domain == OURS else x.but()
    return (loss, second)[: max(site.n_outs, 1)]


def _infer_grad(site: Site) -> tuple[TensorType, ...]:
    loss, x = _loss_and_scores(site, 1)
    if loss.rank or site.type(0).shape not in ((), (1,)):
        site.shaped(0, loss.shape)
    return (x.but(),)


def _loss_and_scores(site: Site, at: int) -> tuple[TensorType, TensorType]:
    """Return the types of the loss and of the scores: input `at`, before labels and weights."""
    x, label = site.real(at), site.type(at + 1)
    if label.dtype not in ("i32", "i64"):
        raise DTypeError(f"{site.where()}: the labels are {label}; supported: i32, i64")
    if x.rank < 2 or label.rank != x.rank - 1:
        site.wrong(
            f"the scores are {x} and the labels {label}; expected [N, C, d...] and [N, d...]"
        )
    site.shaped(at + 1, (x.shape[0], *x.shape[2:]))
    if site.has(at + 2):
        site.shaped(at + 2, x.shape[1:2])
    return x.but(label.shape if _read_reduction(site) == NONE else ()), x


def _read_options(grad: Grad) -> dict[str, Any]:
    attrs = grad.site.attrs
    kept = {"reduction": attrs["reduction"]}
    if attrs.get("ignore_index") is not None:
        kept["ignore_index"] = attrs["ignore_index"]
    return kept


def _cross_entropy_grad(
    grad: Grad, dy: str | None, dlogp: str | None = None
) -> tuple[str | None, ...]:
    """dX = SoftmaxCrossEntropyLossGrad(dY, log_prob) (+ LogSoftmaxGrad(dlog_prob, log_prob))."""
    logp = grad.y(1, "_log_prob")
    dx: str | None = None
    if dy is not None:
        rest = [grad.x(i) for i in range(1, len(grad.site.ins)) if grad.site.has(i)]
        dx = grad.op(
            "SoftmaxCrossEntropyLossGrad", dy, logp, *rest, domain=MS, **_read_options(grad)
        )
    if dlogp is not None:
        # Output log_prob may have a gradient of its own, which adds up with the loss's.
        more = grad.op("LogSoftmaxGrad_13", dlogp, logp, domain=MS, axis=1)
        dx = more if dx is None else grad.op("Add", dx, more)
    return (dx, None, None)


def _likelihood_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = SoftmaxCrossEntropyLossGrad(dY, -inf), for exp(-inf) = 0."""
    # Forward: loss = -w x[l], without the softmax; so its part of the gradient must vanish.
    low: Array = np.array([-np.inf], NUMPY[grad.site.type(0).dtype])
    logp = grad.op("ConstantOfShape", grad.op("Shape", grad.x(0)), value=low)
    rest = [grad.x(i) for i in range(1, len(grad.site.ins)) if grad.site.has(i)]
    dx = grad.op("SoftmaxCrossEntropyLossGrad", dy, logp, *rest, domain=MS, **_read_options(grad))
    return (dx, None, None)


_LSE = 5  # the input of a gradient that has log sums
MEAN_OF_ALL = {"reduction": "mean"}
IGNORED: dict[str, Kind] = {"ignore_index": "int", "output_type": "int"}
LABELS = frozenset((1, 2))

LIKELIHOOD_KERNELS = (likelihood, total_loss, *MAP_KERNELS)
CROSS_ENTROPY_KERNELS = (*LIKELIHOOD_KERNELS, *LOG_SUM_KERNELS, *SOFTMAX_KERNELS)
CROSS_ENTROPY_GRAD_KERNELS = (
    label_weights,
    cross_entropy_grad_rows,
    cross_entropy_grad_cols,
    *MAP_KERNELS,
)
OPS = (
    Op(
        name="SoftmaxCrossEntropyLoss",
        infer=_infer,
        attrs=MEAN_OF_ALL,
        no_gradient=LABELS,
        lower=lambda lowering: _lower_loss(lowering, None, scores=True),
        calls=CROSS_ENTROPY_KERNELS,
        grad=_cross_entropy_grad,
        samples=Samples.CROSS_ENTROPY,
    ),
    Op(
        name="NegativeLogLikelihoodLoss",
        infer=_infer,
        attrs=MEAN_OF_ALL,
        no_gradient=LABELS,
        lower=lambda lowering: _lower_loss(lowering, None, scores=False),
        calls=LIKELIHOOD_KERNELS,
        grad=_likelihood_grad,
    ),
    Op(
        name="SoftmaxCrossEntropyLossInternal",
        domain=MS,
        inputs=(2, 4),
        outputs=2,
        training_only=True,
        takes=IGNORED,
        infer=_infer,
        attrs=MEAN_OF_ALL,
        lower=lambda lowering: _lower_loss(lowering, 3, scores=True),
        calls=CROSS_ENTROPY_KERNELS,
        no_gradient=frozenset((1, 2, 3)),
        samples=Samples.CROSS_ENTROPY,
    ),
    Op(
        name="SoftmaxCrossEntropyLossGrad",
        domain=MS,
        inputs=(3, 4),
        outputs=1,
        gradient_of="SoftmaxCrossEntropyLoss",
        takes=IGNORED,
        infer=_infer_grad,
        attrs=MEAN_OF_ALL,
        lower=lambda lowering: _lower_grad(lowering, None),
        calls=CROSS_ENTROPY_GRAD_KERNELS,
    ),
    Op(
        name="SoftmaxCrossEntropyLossInternalGrad",
        domain=MS,
        inputs=(3, 6),
        outputs=1,
        gradient_of=f"{MS}::SoftmaxCrossEntropyLossInternal",
        takes=IGNORED,
        infer=_infer_grad,
        attrs=MEAN_OF_ALL,
        lower=lambda lowering: _lower_grad(lowering, 4),
        calls=CROSS_ENTROPY_GRAD_KERNELS,
    ),
    # As the Internal pair, with the log sums of the scores in the place of log softmax: its output
    # 1, and its gradient's input 5 beside the scores.
    Op(
        name="SoftmaxCrossEntropyLoss",
        domain=OURS,
        internal=True,
        takes=IGNORED,
        infer=_infer,
        attrs=MEAN_OF_ALL,
        lower=lambda lowering: _lower_loss(lowering, 3, scores=True),
        calls=(*LIKELIHOOD_KERNELS, *LOG_SUM_KERNELS),
        no_gradient=frozenset(range(4)),
        storage=Storage(frozenset({0}), frozenset()),
    ),
    Op(
        name="SoftmaxCrossEntropyLossGrad",
        domain=OURS,
        internal=True,
        gradient_of=f"{OURS}::SoftmaxCrossEntropyLoss",
        takes=IGNORED,
        infer=_infer_grad,
        attrs=MEAN_OF_ALL,
        lower=lambda lowering: _lower_grad(lowering, 4),
        calls=CROSS_ENTROPY_GRAD_KERNELS,
        storage=Storage(frozenset({1}), frozenset({0}), alike=True),
    ),
)
KERNELS = (
    likelihood,
    total_loss,
    label_weights,
    cross_entropy_grad_rows,
    cross_entropy_grad_cols,
)
