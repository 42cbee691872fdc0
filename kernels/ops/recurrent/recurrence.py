"""The walk of recurrences over time: rows of the batch are shared out, steps follow each other.

Every row of a batch is a recurrence of its own, and so is every direction.  A thread takes some of
them through all steps and meets nobody; of few rows of an LSTM threads share the hidden units of a
step instead (lstm_step.py).  The products with X, and the gradients of the weights, run over all
steps at once, before and after.

Gates and what else is kept for the backward are stored by rows, in the order of X: row (t, b) of
direction d is `t rt + b rb + d`.  Y has an order of its own, `t yt + b yb + d yd`, and states
have `b sb + d sd`.  At a step all rows are at the same t: a reverse direction waits, for each row,
until t is inside the row's length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.base.element_types import HALVES, ITEMSIZE
from engine.kernels.loops.bad_data import report
from engine.kernels.loops.contract import (
    depth_of,
    same,
    strip,
    view_panel,
    words_of,
)
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.call import KernelCall
from engine.kernels.vocabulary.kernel import (
    ACCUMULATE,
    Body,
    Inline,
    Intrinsic,
    imax,
    imin,
    inline,
    kernel,
    off,
    pick,
    share,
    udiv,
)
from engine.kernels.vocabulary.signature import count_words
from engine.plan.context import LENGTH, STATUS
from engine.plan.words import Field, Words

# ONNX's default activations and their slopes by their values: what libraries of kernels have.
SIGMOID, TANH, RELU = "sigmoid(x)", "tanh(x)", "max(x,0.0)"
SIGMOID_SLOPE, TANH_SLOPE = "mul(y,sub(1.0,y))", "sub(1.0,mul(y,y))"
RELU_SLOPE = "where(gt(y,0.0),1.0,0.0)"

WALK_WORDS = Words(
    "walk",
    steps="steps of time",
    batch="rows of the batch",
    hidden="hidden units",
    first="the first direction that is walked",
    last="the direction after the last one",
    back="the first direction that is reversed",
    kc="depth of a block of the products",
    row=Field("strides of what is stored by rows, along time and batch", names=("t", "b")),
    y=Field("strides of Y along time, batch and directions", names=("t", "b", "d")),
    state=Field("strides of states along batch and directions", names=("b", "d")),
    dy=Field("strides of dY, all 0 where there is none", names=("t", "b", "d")),
)


def write_panels(k: str, n: str, condition: str = "first < last") -> str:
    """Return the signature of panels of the matrices [k, n] of all directions, of factors P."""
    return f"T[last, words({k}, P), up({n}, tile_columns)] if {condition}"


# Parts of the signatures of all walks.
WALK = "g: i64[] where kc >= 1 and first <= last"
LENS = "lens: i64[batch] if first < last"


class WalkReach:
    """The reaches of a walk over time into what its strides lay out.

    rows: into what is stored by rows, with one number for each hidden unit.
    """

    def __init__(self, c: KernelCall) -> None:
        self._call = c
        by_time, by_row = c.row
        self.rows = self._reach(c.steps, by_time, by_row, 1)
        self.y = self._reach(c.steps, *c.y)
        self.dy = self._reach(c.steps, *c.dy)
        self.states = self._reach(1, 0, *c.state)

    def _reach(self, steps: int, by_time: int, by_row: int, by_direction: int) -> int:
        c = self._call
        if c.first == c.last:
            return 0
        start = (c.last - 1) * by_direction
        return c.span(start, (steps, by_time), (c.batch, by_row)) * int(c.hidden)


# Scratch of walks that store operands, or multiply factors, of 16 bits, in rows of one number for
# each hidden unit: for each row of the batch, and besides, where a step is computed; and for each
# row of the batch the factors of a product.
_SCRATCH = {
    "lstm": (4, 0, 1), "lstm_grad": (4, 7, 4), "gru": (3, 0, 1), "gru_grad_after": (7, 5, 3),
    "gru_grad_before": (6, 4, 2), "rnn": (0, 0, 1), "rnn_grad": (1, 2, 1),
}  # fmt: skip


def count_scratch(kind: str, batch: int, hidden: int, stored: Sequence[str], P: str) -> int:
    """Return the elements of scratch memory of a thread of a walk.

    kind: the name of its kernel.  stored: the types of 16 bits of its operands; "" for T.  P: as of
    `product`.
    """
    if not any((*stored, P)):
        return 0
    each, besides, factors = _SCRATCH[kind]
    rows = (each * batch + besides) * hidden
    return rows + (batch * count_words(factors * hidden, P) if P else 0)


def count_call_scratch(c: KernelCall, kind: str, first: int) -> int:
    """Return the reach into the scratch memory of a walk; first: its first parameter of a type."""
    stored, P = [*map(str, c.params[first:])], c.type_of("P")
    each = count_scratch(kind, int(c.batch), int(c.hidden), stored, P)
    return c.scratch(each, each) if c.first < c.last else 0


def scratch(kind: str, P: str) -> Inline:
    """Return an inline function: scratch(work, g, tid), what a thread has as `count_scratch` says:
    its rows, and its factors.
    """
    each, besides, factors = _SCRATCH[kind]
    words = words_of(P)

    @inline
    def only_rows(work, g, tid):
        mine = off(work, tid * (each * g.batch + besides) * g.hidden)
        return mine, mine

    @inline
    def both(work, g, tid):
        rows = (each * g.batch + besides) * g.hidden
        mine = off(work, tid * (rows + g.batch * words(factors * g.hidden)))
        return mine, off(mine, rows)

    return both if P else only_rows


def count_products(gates: str) -> Callable[[KernelCall], int]:
    """Return the multiply-adds of a walk: all gates of all rows, each a sum over hidden units."""
    return lambda c: int(c.elements[gates] * c.hidden)


def product(target: Target, T: str, P: str) -> Inline:
    """Return an inline function: C (+)= A B (+ bias), B as panels.

    product(a, lda, panels, c, ldc, bias, m, n, k, g, mode, left, t)

    P: the type of 16 bits that factors are rounded to, in panels already; "" for T.  left: room for
    the factors of A.  t: the time; at odd times panels are taken from the last to the first.
    """
    rows = strip(target, T, 0, P)
    width = target.nv * target.lanes(ITEMSIZE[T])
    depth, view = depth_of(P), view_panel(P)
    as_factors, narrow = (Intrinsic("halves", (P,)), mover(P, T)) if P else (same, same)

    @inline
    def in_place(a, lda, left, m, k):
        return a, lda

    @inline
    def rounded(a, lda, left, m, k):
        factors = as_factors(left)
        for i in range(m):
            narrow(off(factors, i * k), off(a, i * lda), k)
        return factors, k

    take = rounded if P else in_place

    @inline
    def run(a, lda, panels, c, ldc, bias, m, n, k, g, mode, left, t):
        kc = g.kc
        x, ldx = take(a, lda, left, m, k)
        b = view(panels)
        count, back = udiv(n + width - 1, width), t & 1
        # To and fro: a step begins with the panels that the step before left in the cache.  Where
        # all panels are just larger than a cache, always from the first they would never be there.
        for i in range(count):
            j = width * (count - 1 - i if back != 0 else i)
            w = imin(width, n - j)
            k0 = 0
            while k0 < k:
                kb = imin(kc, k - k0)
                # The bias comes with the last block of K; blocks after the first add to what is
                # there.
                step = mode if k0 + kb == k else mode & ACCUMULATE
                if k0 > 0:
                    step = step | ACCUMULATE
                panel = off(b, j * depth(k) + depth(k0) * width)
                rows(off(x, k0), ldx, panel, width, off(c, j), ldc, off(bias, j), kb, m, w, step)
                k0 += kc

    return run


def at_direction(target: Target, T: str, P: str) -> Inline:
    """Return an inline function: at_direction(panels, d, k, n), the panels of direction d.

    They are of matrices [k, n], of factors P, as of `product`.
    """
    width, words = target.nv * target.lanes(ITEMSIZE[T]), words_of(P)

    @inline
    def run(panels, d, k, n):
        return off(panels, d * udiv(n + width - 1, width) * width * words(k))

    return run


@inline
def part(g, d, tid, nthreads):
    """This thread's rows [begin, end) of direction d."""
    batch, first = g.batch, g.first
    # The rows of all directions are shared out as one line: a thread may have the end of one
    # direction and the start of the next.
    begin, end = share((g.last - first) * batch, tid, nthreads)
    before = (d - first) * batch
    return imin(imax(begin - before, 0), batch), imin(imax(end - before, 0), batch)


@inline
def longest(lens, r0, r1):
    """The largest length of rows [r0, r1)."""
    n = 0
    for b in range(r0, r1):
        n = imax(n, lens[b])
    return n


@inline
def time_at(g, d, s):
    """The time of step s of direction d."""
    return s if d < g.back else g.steps - 1 - s


@inline
def row_at(g, d, t, b):
    """Row (t, b) of direction d in what is stored by rows."""
    return t * g.row_t + b * g.row_b + d


@inline
def y_at(g, d, t, b):
    """The same row in Y."""
    return t * g.y_t + b * g.y_b + d * g.y_d


@inline
def dy_at(g, d, t, b):
    """The same row in dY."""
    return t * g.dy_t + b * g.dy_b + d * g.dy_d


@inline
def state_at(g, d, b):
    """Row b of direction d in states."""
    return b * g.state_b + d * g.state_d


@inline
def is_first(g, d, t, length):
    """Return 1 if t is the first step of a row of this length, otherwise 0."""
    # A reversed row starts at its own last step, not at the batch's.
    start = 0 if d < g.back else imin(length, g.steps) - 1
    return 1 if t == start else 0


@inline
def time_before(g, d, t):
    """The time of the step before t."""
    return t - 1 if d < g.back else t + 1


def fill(T: str) -> Inline:
    """Return an inline function: fill(to, x, g, d, r0, r1) copies the states of rows [r0, r1)."""
    copy = Intrinsic("copy", (T,))

    @inline
    def run(to, x, g, d, r0, r1):
        for b in range(r0, r1):
            at = state_at(g, d, b) * g.hidden
            copy(off(to, at), off(x, at), g.hidden)

    return run


def mover(to: str, of: str) -> Intrinsic:
    """Return an intrinsic: move(into, x, n) of elements of type `of`, as elements `to`."""
    is_copy = to == of and to not in HALVES
    return Intrinsic("copy", (to,)) if is_copy else Intrinsic("convert", (to, of))


def state_before(S: str, T: str, Y: str) -> Inline:
    """Return an inline function that writes the h before step t of row b, as elements S.

    write(to, y, h0, length, g, d, t, b): the result of the step before, stored as Y, or at the
    row's first step the given state, stored as T.
    """
    from_state, from_y = mover(S, T), mover(S, Y)

    @inline
    def run(to, y, h0, length, g, d, t, b):
        if is_first(g, d, t, length) != 0:
            from_state(to, off(h0, state_at(g, d, b) * g.hidden), g.hidden)
        else:
            from_y(to, off(y, y_at(g, d, time_before(g, d, t), b) * g.hidden), g.hidden)

    return run


def reader(T: str, S: str) -> Inline:
    """Return an inline function: a row of n elements of T, of x stored as S.

    read(x, at, into, n): it begins at x[at], or in `into` if it has to be converted.
    """
    widen = mover(T, S)

    @inline
    def in_place(x, at, into, n):
        return off(x, at)

    @inline
    def converted(x, at, into, n):
        widen(into, off(x, at), n)
        return into

    return in_place if S == T else converted


def chooser(T: str, S: str) -> Inline:
    """Return an inline function: as `reader`, of a state of T if `first`, otherwise of x.

    choose(first, state, at, x, x_at, into, n)
    """
    copy, widen = mover(T, T), mover(T, S)

    @inline
    def in_place(first, state, at, x, x_at, into, n):
        return pick(first, off(state, at), off(x, x_at))

    @inline
    def converted(first, state, at, x, x_at, into, n):
        if first != 0:
            copy(into, off(state, at), n)
        else:
            widen(into, off(x, x_at), n)
        return into

    return in_place if S == T else converted


def writer(T: str, S: str) -> Inline:
    """Return an inline function: write(x, at, row, n) stores a row of T as S, unless it lies there.

    row: as of `place`.
    """
    narrow = mover(S, T)

    @inline
    def nothing(x, at, row, n):
        """Do nothing: the row is where it belongs."""

    @inline
    def converted(x, at, row, n):
        narrow(off(x, at), row, n)

    return nothing if S == T else converted


def place(T: str, S: str) -> Inline:
    """Return an inline function: where rows of a step are computed as T if they are stored as S.

    place(x, g, d, t, r0, n, mine) returns the pointer to row r0 of what is stored by rows of n
    elements, and the elements from row to row; mine: scratch of n elements for each.
    """

    @inline
    def in_place(x, g, d, t, r0, n, mine):
        return off(x, row_at(g, d, t, r0) * n), g.row_b * n

    @inline
    def in_scratch(x, g, d, t, r0, n, mine):
        return mine, n

    return in_place if S == T else in_scratch


@kernel(
    "lens: i32[n]  out: out i64[n]  fault: update i64[1 record]  n, steps: i64",
    words={"fault": STATUS},
    T=("i32",),
)
def recurrent_lengths(target: Target, T: str) -> Body:
    """out[b] = lens[b], or 0 and the fault word 3, position, length, steps + 1 where it is not in
    [0, steps]."""

    def body(lens, out, fault, n, steps, tid, nthreads):
        begin, end = share(n, tid, nthreads)
        for b in range(begin, end):
            length = lens[b]
            if length < 0 or length > steps:
                report(fault, LENGTH, b, length, steps + 1)
                length = 0
            out[b] = length

    return body


@kernel(
    "b: T[directions, 2, n]  y: out T[directions, n]  directions, n: i64  both: i64 where both <= n"
)
def recurrent_bias(target: Target, T: str) -> Body:
    """y[d, j] = b[d, 0, j] (+ b[d, 1, j] for j < both): what the rows of X start with."""
    copy = Intrinsic("copy", (T,))

    def body(b, y, directions, n, both, tid, nthreads):
        begin, end = share(directions, tid, nthreads)
        for d in range(begin, end):
            x, into = off(b, d * 2 * n), off(y, d * n)
            copy(into, x, n)
            for j in range(both):
                into[j] = x[j] + x[n + j]

    return body
