"""Connectionist temporal classification: a loss for sequences whose labels are not aligned in time.

Forward   loss_b = -log of the sum, over all paths that collapse to the labels of b, of the product
          of their probabilities.  A path names a class a step; collapsing joins runs of one class
          and drops the blanks.  The labels with blanks between and around them are the states
          l'_0 .. l'_2U, and
              alpha_t(s) = logp_t(l'_s) + log(exp alpha_t-1(s) + exp alpha_t-1(s-1)
                           + exp alpha_t-1(s-2), the last where l'_s is not blank and not l'_s-2)
          gives loss = -log(exp alpha_T-1(2U) + exp alpha_T-1(2U-1))
Backward  dlogp_t(c) = -dy sum over l'_s = c of exp(alpha_t(s) + beta_t(s) + loss), where beta_t(s)
          is the logarithm of all that follows step t.  It is the gradient of the loss as written,
          with logp of any values; after a log softmax it becomes torch's.  Alphas are computed
          again: nothing but the inputs is kept
Error     alpha is rounded once a step: relative to |loss| at most about `steps` units of the last
          place
Source    Graves et al. 2006, "Connectionist temporal classification", equations 6 to 15

States that no path reaches have the logarithm `NEVER`, which is finite, so that differences of it
are numbers. A loss without a path is infinite, or 0 with `zero_infinity`; its gradient is 0. A
length or label out of range reads nothing: the loss is NaN, the gradient 0, and it is written to
the fault word.
"""

from __future__ import annotations

from engine.base.errors import DTypeError
from engine.kernels.loops.bad_data import report
from engine.kernels.loops.map import MAP_KERNELS, widen_integers
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.kernel import (
    Body,
    Inline,
    Intrinsic,
    imin,
    inline,
    kernel,
    off,
    share,
    udiv,
)
from engine.kernels.vocabulary.op import OURS, Grad, Lowering, Op, Site, TensorType
from engine.kernels.vocabulary.row_program import loop
from engine.plan.context import LABEL, LENGTH, STATUS

NEVER = -1e30
PAD = 2  # states that are never reached, before the alphas and after the betas
INF, NAN = float("inf"), float("nan")

# log(exp a + exp b + exp c), c only where the mark k is 0 and not NEVER.
JOIN = f"""
    d = max(c + k, {NEVER}); m = max(a, max(b, d));
    total = m + log(exp(a - m) + exp(b - m) + exp(d - m))"""


# --- kernels


@inline
def states_of(label, b, width, inputs, lengths, n, steps, classes, fault):
    """Steps and states of sequence b: (-1, 0), recorded, if a length or label is out of range."""
    t, u = inputs[b], lengths[b]
    count = 2 * u + 1
    if t < 0 or t > steps:
        report(fault, LENGTH, b, t, steps + 1)
        t, count = -1, 0
    elif u < 0 or u > width:
        report(fault, LENGTH, b, u, width + 1)
        t, count = -1, 0
    else:
        for i in range(u):
            at = label[b * width + i]
            if at < 0 or at >= classes:
                report(fault, LABEL, b * width + i, at, classes)
                t, count = -1, 0
    return t, count


@inline
def class_of(label, s, blank):
    """l'_s: a blank, or a label."""
    half = udiv(s, 2)
    return blank if s == 2 * half else label[half]


def _alphas(T: str) -> tuple[Inline, ...]:
    """Return inline functions over states: marks, emissions, steps of alpha, and their end."""
    cast = Intrinsic("cast", (T, "i64"))
    fill, bound = loop(T, f"-> y[] = {NEVER}"), loop(T, f"x[] -> y[] = max(x, {NEVER})")
    step = loop(T, f"a[] b[] c[] k[] e[] -> {JOIN}; y[] = max(total + e, {NEVER})")
    last = loop(T, "a[] b[] -> m = max(a, b); y[] = m + log(exp(a - m) + exp(b - m))")

    @inline
    def mark(label, count, blank, marks):
        """0 for states that are reached over the one before, NEVER for others and after all."""
        fill(marks, count + PAD)
        # Labels are the odd states; a blank between equal labels must not be skipped.
        for s in range(3, count, 2):
            here, before = class_of(label, s, blank), class_of(label, s - 2, blank)
            if here != blank and here != before:
                marks[s] = cast(0)

    @inline
    def emit(row, label, count, blank, e):
        """e[s] = row[l'_s]"""
        for s in range(count):
            e[s] = row[class_of(label, s, blank)]

    @inline
    def begin(alpha, e, count):
        """The alphas of step 0, after `PAD` that are never reached."""
        fill(alpha, count + PAD)
        # A path starts with the first blank or the first label.
        bound(e, off(alpha, PAD), imin(count, 2))

    @inline
    def advance(old, marks, e, alpha, count):
        """The alphas of a step from the alphas of the step before."""
        fill(alpha, PAD)
        step(off(old, PAD), off(old, PAD - 1), old, marks, e, off(alpha, PAD), count)

    @inline
    def total(alpha, count, y):
        """y[0] = the logarithm of the probability of all paths, by the alphas of the last step."""
        # A path ends with the last blank or the last label.
        last(off(alpha, count + PAD - 1), off(alpha, count + PAD - 2), y, 1)

    return mark, emit, begin, advance, total


_SEQUENCES = """
    logp: T[steps, n, classes]   label: i64[n, width]   inputs, lengths: i64[n]
"""
_NUMBERS = """
    fault: update i64[1 record]   n, steps, classes, width: i64
    blank: i64 where blank < classes or not n * steps
"""


@kernel(
    f"""
    {_SEQUENCES}   loss: out T[n]   work: scratch T[threads, 4, 2 * width + {1 + PAD}]
    {_NUMBERS}   zero: i64
    """,
    words={"fault": STATUS},
)
def ctc(target: Target, T: str) -> Body:
    """loss[b] = -log of the probability of label[b, :lengths[b]] in logp[:inputs[b], b].

    Without a path: 0 if `zero`, and infinite otherwise.
    """
    mark, emit, begin, advance, total = _alphas(T)

    def body(
        logp,
        label,
        inputs,
        lengths,
        loss,
        work,
        fault,
        n,
        steps,
        classes,
        width,
        blank,
        zero,
        tid,
        nthreads,
    ):
        row = 2 * width + 1 + PAD
        marks = off(work, 4 * row * tid)
        e, old, new = off(marks, row), off(marks, 2 * row), off(marks, 3 * row)
        first, last = share(n, tid, nthreads)
        for b in range(first, last):
            t, count = states_of(label, b, width, inputs, lengths, n, steps, classes, fault)
            labels = off(label, b * width)
            value = NAN
            if t == 0:
                # No steps: only the empty labelling has a path.
                value = 0.0 if count == 1 else (0.0 if zero != 0 else INF)
            elif t > 0:
                mark(labels, count, blank, marks)
                emit(off(logp, b * classes), labels, count, blank, e)
                begin(old, e, count)
                for i in range(1, t):
                    emit(off(logp, (i * n + b) * classes), labels, count, blank, e)
                    advance(old, marks, e, new, count)
                    old, new = new, old
                total(old, count, e)
                value = -1.0 * e[0]
                # NEVER plus rounding: no path.
                if value > -0.5 * NEVER:
                    value = 0.0 if zero != 0 else INF
            loss[b] = value

    return body


@kernel(
    f"""
    dy: T[n]   {_SEQUENCES}   dx: out T[steps, n, classes]
    work: scratch T[threads, steps + 3, 2 * width + {1 + PAD}]   {_NUMBERS}
    """,
    words={"fault": STATUS},
)
def ctc_grad(target: Target, T: str) -> Body:
    """dx[t, b, c] = -dy[b] times the probability that a path is in a state of class c at step t."""
    mark, emit, begin, advance, total = _alphas(T)
    cast = Intrinsic("cast", (T, "i64"))
    clear, fill = loop(T, "-> y[] = 0"), loop(T, f"-> y[] = {NEVER}")
    follow = loop(T, "beta[] e[] -> y[] = beta + e")
    back = loop(T, f"a[] b[] c[] k[] -> {JOIN}; y[] = max(total, {NEVER})")
    occupy = loop(T, "a[] b[] p* dy* -> y[] = dy * exp(a + b - p)")

    def body(
        dy,
        logp,
        label,
        inputs,
        lengths,
        dx,
        work,
        fault,
        n,
        steps,
        classes,
        width,
        blank,
        tid,
        nthreads,
    ):
        row = 2 * width + 1 + PAD
        marks = off(work, (steps + 3) * row * tid)
        e, beta, alphas = off(marks, row), off(marks, 2 * row), off(marks, 3 * row)
        first, last = share(n, tid, nthreads)
        for b in range(first, last):
            t, count = states_of(label, b, width, inputs, lengths, n, steps, classes, fault)
            labels = off(label, b * width)
            for i in range(steps):
                clear(off(dx, (i * n + b) * classes), classes)
            if t > 0:
                mark(labels, count, blank, marks)
                emit(off(logp, b * classes), labels, count, blank, e)
                begin(alphas, e, count)
                # Forward again, now with the alphas of all steps.  To keep them from the forward
                # pass would take more memory than the scores themselves.
                for i in range(1, t):
                    emit(off(logp, (i * n + b) * classes), labels, count, blank, e)
                    old = off(alphas, (i - 1) * row)
                    advance(old, marks, e, off(alphas, i * row), count)
                # The total is kept in a pad before the first alphas, which nothing reads any more.
                total(off(alphas, (t - 1) * row), count, alphas)
                # Without a path the gradient is 0, as cleared.
                if alphas[0] > 0.5 * NEVER:
                    fill(beta, count + PAD)
                    for s in range(count - imin(count, 2), count):
                        beta[s] = cast(0)
                    for j in range(t):
                        i = t - 1 - j
                        if j > 0:
                            # beta_i(s) sums over the states that follow s, with what they emit at
                            # step i + 1.
                            emit(off(logp, ((i + 1) * n + b) * classes), labels, count, blank, e)
                            follow(beta, e, e, count)
                            fill(off(e, count), PAD)
                            back(e, off(e, 1), off(e, PAD), off(marks, PAD), beta, count)
                        # alpha + beta - total: the logarithm of the share of paths in each state at
                        # step i.
                        alpha = off(alphas, i * row + PAD)
                        occupy(alpha, beta, alphas, off(dy, b), e, count)
                        to = off(dx, (i * n + b) * classes)
                        for s in range(count):
                            # Forward: loss = -log sum over paths; so -dlogp[c] is the share of the
                            # paths that are in a state of class c now.
                            to[class_of(labels, s, blank)] -= e[s]

    return body


# --- shapes, lowering, gradient


def _types(site: Site, at: int) -> TensorType:
    """Return the type of the log-probabilities, input `at`, before labels and lengths."""
    logp, label = site.real(at), site.type(at + 1)
    for i in range(at + 1, at + 4):
        if site.type(i).dtype not in ("i32", "i64"):
            raise DTypeError(f"{site.where()}: input {i} is {site.type(i)}; supported: i32, i64")
    if logp.rank != 3 or label.rank != 2:
        site.wrong(
            f"the log-probabilities are {logp} and the labels {label}; expected [T, N, C] "
            "and [N, S]"
        )
    site.shaped(at + 1, (logp.shape[1], label.shape[1]))
    for i in (at + 2, at + 3):
        site.shaped(i, logp.shape[1:2])
    blank, classes = site.attrs["blank"], logp.shape[2]
    if blank < 0 or (isinstance(classes, int) and blank >= classes):
        site.fail(
            f"blank is {blank}, but there are {classes} classes", "the number of a class, from 0"
        )
    return logp


def _infer(site: Site) -> tuple[TensorType, ...]:
    logp = _types(site, 0)
    return (logp.but(logp.shape[1:2]),)


def _infer_grad(site: Site) -> tuple[TensorType, ...]:
    logp = _types(site, 1)
    site.shaped(0, logp.shape[1:2])
    return (logp.but(),)


def _lower(lowering: Lowering) -> None:
    logp, y = lowering.x(0), lowering.y(0)
    T, (steps, n, classes) = logp.type.dtype, logp.type.dims
    width = lowering.x(1).type.dims[1]
    work = lowering.temp(T, (lowering.threads, 4 * (2 * width + 1 + PAD)))
    blank, zero = lowering.site.attrs["blank"], int(bool(lowering.site.attrs["zero_infinity"]))
    label, inputs, lengths = (widen_integers(lowering, lowering.x(i)) for i in (1, 2, 3))
    lowering.call(
        ctc(T), logp=logp, label=label, inputs=inputs, lengths=lengths, loss=y, work=work,
        fault=lowering.fault(), n=n, steps=steps, classes=classes, width=width, blank=blank,
        zero=zero,
    )  # fmt: skip


def _lower_grad(lowering: Lowering) -> None:
    dy, logp, dx = lowering.x(0), lowering.x(1), lowering.y(0)
    T, (steps, n, classes) = logp.type.dtype, logp.type.dims
    width = lowering.x(2).type.dims[1]
    work = lowering.temp(T, (lowering.threads, (steps + 3) * (2 * width + 1 + PAD)))
    label, inputs, lengths = (widen_integers(lowering, lowering.x(i)) for i in (2, 3, 4))
    lowering.call(
        ctc_grad(T), dy=dy, logp=logp, label=label, inputs=inputs, lengths=lengths, dx=dx,
        work=work, fault=lowering.fault(), n=n, steps=steps, classes=classes, width=width,
        blank=lowering.site.attrs["blank"],
    )  # fmt: skip


def _grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dlogp = CTCLossGrad(dY, logp, labels, input lengths, label lengths)."""
    inputs = [grad.x(i) for i in range(4)]
    blank = grad.site.attrs["blank"]
    return (grad.op("CTCLossGrad", dy, *inputs, domain=OURS, blank=blank), None, None, None)


OPS = (
    Op(
        name="CTCLoss",
        domain=OURS,
        inputs=(4, 4),
        outputs=1,
        infer=_infer,
        lower=_lower,
        calls=(ctc, *MAP_KERNELS),
        attrs={"blank": 0, "zero_infinity": 0},
        grad=_grad,
        no_gradient=frozenset((1, 2, 3)),
    ),
    Op(
        name="CTCLossGrad",
        domain=OURS,
        inputs=(5, 5),
        outputs=1,
        gradient_of=f"{OURS}::CTCLoss",
        infer=_infer_grad,
        lower=_lower_grad,
        calls=(ctc_grad, *MAP_KERNELS),
        attrs={"blank": 0},
    ),
)
KERNELS = (ctc, ctc_grad)
