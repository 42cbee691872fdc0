"""Nodes of recurrences: their shapes, operands, and all of their lowering but the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.base import limits
from engine.base.element_types import HALVES, ITEMSIZE
from engine.base.errors import DTypeError
from engine.kernels.loops.fold import COLUMN_WORDS, reduce_cols
from engine.kernels.loops.gemm import GEMM_KERNELS, gemm_pack, lower_gemm
from engine.kernels.loops.map import lower_map
from engine.kernels.ops.recurrent.cells import Curve, read_curves
from engine.kernels.ops.recurrent.recurrence import (
    WALK_WORDS,
    count_scratch,
    recurrent_bias,
    recurrent_lengths,
)
from engine.kernels.vocabulary.integers import GROUP, PANEL
from engine.kernels.vocabulary.kernel import drop_same
from engine.kernels.vocabulary.op import (
    MS,
    Dim,
    Lowering,
    Operand,
    Site,
    TensorType,
    find_stored,
    get_factors,
)
from engine.kernels.vocabulary.signature import count_words, round_to_unit
from engine.plan.words import Packed

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
# The inputs by what they are.
INPUTS = {
    "RNN": "x w r b lens h0", "GRU": "x w r b lens h0", "LSTM": "x w r b lens h0 c0 p",
    "LSTMOfIntegers": "x q sums factor lens h0 c0 p",
    "RNNGrad": "x w r lens h0 y dy dh", "GRUGrad": "x w r b lens h0 y gates dy dh inner",
    "LSTMGrad": "x w r lens h0 c0 y cells gates dy dh dc p",
}  # fmt: skip

# Threads share the units of a step, and meet after it, if none of them has more rows than this to
# itself, and if the weights of the step take at least so many bytes.  Each step is a step of the
# plan then, so there are at most so many.
MOST_ROWS, LEAST_WEIGHTS, MOST_STEPS = 2, 1 << 18, 512


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes and options of a recurrent node."""

    site: Site
    kind: str
    steps: Dim
    batch: Dim
    width: Dim
    hidden: int
    directions: int

    @property
    def gates(self) -> int:
        return GATES[self.kind]

    @property
    def inputs(self) -> list[str]:
        """The roles of the inputs, in their order."""
        return INPUTS[self.site.op.removesuffix("Training")].split()

    @property
    def layout(self) -> int:
        return int(self.site.attrs.get("layout", 0))

    @property
    def state(self) -> tuple[Dim, ...]:
        """Shape of a state."""
        lead = (self.batch, self.directions) if self.layout else (self.directions, self.batch)
        return (*lead, self.hidden)

    @property
    def y(self) -> tuple[Dim, ...]:
        """Shape of Y."""
        d = self.directions
        if self.layout:
            return (self.batch, self.steps, d, self.hidden)
        return (self.steps, d, self.batch, self.hidden)

    def list_dims(self, size: int) -> tuple[Dim, ...]:
        """Return the shape of values that are stored by rows."""
        lead = (self.batch, self.steps) if self.layout else (self.steps, self.batch)
        if self.site.domain == MS:
            return (lead[0], self.directions, lead[1], size)
        return (*lead, self.directions, size)

    def of(self, what: str) -> tuple[Dim, ...]:
        """Return the shape of an input or output by its name in `INPUTS`."""
        d, n = self.directions, self.gates * self.hidden
        lead = (self.batch, self.steps) if self.layout else (self.steps, self.batch)
        return {
            "x": (*lead, self.width),
            "w": (d, n, self.width),
            "r": (d, n, self.hidden),
            "b": (d, 2 * n),
            "q": (d, round_to_unit(n, PANEL) * round_to_unit(self.hidden, GROUP)),
            "sums": (d, round_to_unit(n, PANEL)),
            "factor": (d, round_to_unit(n, PANEL)),
            "lens": (self.batch,),
            "p": (d, 3 * self.hidden),
            "y": self.y,
            "dy": self.y,
            "cells": self.list_dims(self.hidden),
            "inner": self.list_dims(self.hidden),
            "gates": self.list_dims(n),
        }.get(what, self.state)


def read_shape(site: Site, stored: Sequence[str] = ()) -> Shape:
    """Check the inputs of a node against each other; return its sizes and options.

    stored: types that inputs may have beside the one of X: as plans store what is float32.
    """
    kind = next(k for k in GATES if site.op.startswith(k))
    x = site.type(0) if stored else site.real(0)
    if x.rank != 3:
        site.wrong(f"X is {x}; expected rank 3")
    direction = site.attrs["direction"]
    known = ("forward",) if site.domain == MS else ("forward", "reverse", "bidirectional")
    if direction not in known:
        site.fail(f"direction is {direction!r}", ", ".join(known))
    if site.attrs.get("layout", 0) not in (0, 1) or (
        site.domain == MS and site.attrs.get("layout", 0)
    ):
        site.fail(f"layout is {site.attrs['layout']}", "0" if site.domain == MS else "0, 1")
    hidden = site.attrs.get("hidden_size") or site.type(2).shape[-1]
    if not isinstance(hidden, int) or hidden < 1:
        site.fail(f"hidden_size is {hidden}", "1 or more")
    t, b, width = x.shape
    if site.attrs.get("layout", 0):
        t, b = b, t
    shape = Shape(site, kind, t, b, width, hidden, 2 if direction == "bidirectional" else 1)
    for i, what in enumerate(shape.inputs):
        if site.has(i):
            given = site.shaped(i, shape.of(what))
            integers = {"lens": ("i32",), "q": ("i8",), "sums": ("i32",)}
            if given.dtype not in integers.get(what, (x.dtype, *stored)):
                raise DTypeError(
                    f"{site.where()}: input {i} is {given}; expected "
                    f"{integers.get(what, (x.dtype,))[0]}, as X is {x}"
                )
        elif what in ("w", "r", "q", "sums", "factor", "y", "cells", "gates"):
            site.type(i)
    read_curves(site, DEFAULTS[kind], shape.directions, stored[0] if stored else x.dtype)
    return shape


class Walk:
    """The lowering of one node: its operands, and the words of its walk over time."""

    def __init__(self, lowering: Lowering) -> None:
        self.T = find_stored(lowering.x(0))[0]
        # The factors of R's products: rounded to 16 bits where the CPU multiplies these.
        self.P = get_factors(lowering, self.T)
        stored = ("f32", *HALVES) if self.T == "f32" else ()
        self.lowering, self.shape = lowering, read_shape(lowering.site, stored)
        x = lowering.x(0).type.dims
        self.rows = x[0] * x[1]
        self.batch, self.steps = (x[0], x[1]) if self.shape.layout else (x[1], x[0])
        self.width, self.n, self.d = x[2], self.shape.hidden, self.shape.directions
        self.all = self.d * self.shape.gates * self.n  # columns of the gates
        self._zeros: Operand | None = None

    def get(self, what: str) -> Operand | None:
        """Return an input by its name, None if absent."""
        names = self.shape.inputs
        i = names.index(what) if what in names else -1
        return self.lowering.x(i) if i >= 0 and self.lowering.site.has(i) else None

    def get_input(self, what: str) -> Operand:
        """Return an input by its name; a tensor of zeros for a state that is absent."""
        return self.get(what) or self.zeros()

    def zeros(self) -> Operand:
        if self._zeros is None:
            self._zeros = self.lowering.temp(self.T, self._require_numbers(self.shape.state))
            lower_map(self.lowering, [("const", 0.0)], [], [self._zeros])
        return self._zeros

    def _require_numbers(self, shape: tuple[Dim, ...]) -> tuple[int, ...]:
        return tuple(int(d) for d in shape)

    def temp(self, what: str, dtype: str = "") -> Operand:
        """Return a temporary of the shape of an input or output; dtype: if it is not T."""
        return self.lowering.temp(dtype or self.T, self._require_numbers(self.shape.of(what)))

    def list_stored(self, *operands: Operand | None) -> list[str]:
        """Return the last parameters of a walk: the types of 16 bits that operands are stored in,
        "" for T, and of factors; none if all are T.
        """
        kinds = [drop_same(x.type.dtype, self.T) if x else "" for x in operands]
        kinds += [self.P] if self.P else []
        return kinds if any(kinds) else []

    def make_scratch(self, kind: str, stored: Sequence[str]) -> Operand:
        """Return the scratch memory of a walk; kind, stored: as of `count_scratch`."""
        each = count_scratch(kind, self.batch, self.n, stored, self.P)
        return self.lowering.temp(self.T, (self.lowering.threads * each,))

    def get_output(self, i: int, what: str) -> Operand:
        """Return output i, or a temporary if nobody reads it."""
        return self.lowering.y(i) if self.lowering.wants(i) else self.temp(what)

    def get_lengths(self) -> Operand:
        """Return the length of every row."""
        lens = self.get("lens")
        if lens is None:
            where = self.lowering.site.where()
            limits.check("CONSTANT_BYTES", 8 * self.batch, where, "the lengths of its rows take")
            # Without lengths every row has all steps.
            return self.lowering.const(np.full(self.batch, self.steps, np.int64))
        out = self.lowering.temp("i64", (self.batch,))
        self.lowering.call(
            recurrent_lengths("i32"),
            lens=lens,
            out=out,
            fault=self.lowering.fault(),
            n=self.batch,
            steps=self.steps,
        )
        return out

    def pack_panels(self, gate: int, count: int, trans: bool) -> Operand:
        """Return R of `count` gates, for products with h (`trans`) or with their gradients."""
        r, size = self.get_input("r"), self.n * self.n
        n, k = (count * self.n, self.n) if trans else (self.n, count * self.n)
        width = self.lowering.target.nv * self.lowering.target.lanes(ITEMSIZE[self.T])
        columns = round_to_unit(n, width)
        out = self.lowering.temp(self.T, (self.d * columns * count_words(k, self.P),))
        self.lowering.call(
            gemm_pack(self.T, int(trans), *([self.P] if self.P else [])),
            x=r,
            b=out,
            count=self.d,
            stride=self.shape.gates * size,
            at=gate * size,
            n=n,
            k=k,
        )
        return out

    def shares_units(self, size: int = 0) -> bool:
        """Return whether threads are to share the hidden units at each step, and not the rows.

        size: bytes of an element of R as a step reads it; 0: of T.
        """
        lowering, of_t = self.lowering, ITEMSIZE[self.T]
        panel = lowering.target.nv * lowering.target.lanes(of_t)
        rows = -(-self.batch * self.d // lowering.threads)  # of the busiest thread
        weights = self.shape.gates * self.n * self.n * (size or of_t)
        is_short = 0 < self.steps <= MOST_STEPS and self.batch > 0
        is_wide = self.n % panel == 0 and self.n > panel and weights >= LEAST_WEIGHTS
        return lowering.threads > 1 and rows <= MOST_ROWS and is_short and is_wide

    def group_directions(self) -> list[tuple[tuple[Curve, ...], Packed]]:
        """Group directions of equal activations; return each group with its walk's words."""
        activations = read_curves(self.lowering.site, DEFAULTS[self.shape.kind], self.d, self.T)
        # Directions of equal activations run in one call, so threads share the rows of both.
        parts = [(0, self.d)] if activations[0] == activations[-1] else [(0, 1), (1, 2)]
        back = {"forward": self.d, "reverse": 0, "bidirectional": 1}
        t, b, d = self.steps, self.batch, self.d
        batch_first = bool(self.shape.layout)
        y = (d, t * d, 1) if batch_first else (b * d, 1, b)
        return [
            (
                activations[first],
                WALK_WORDS.pack(
                    steps=t,
                    batch=b,
                    hidden=self.n,
                    first=first,
                    last=end,
                    back=back[self.lowering.site.attrs["direction"]],
                    kc=self.lowering.target.kc,
                    row=(d, t * d) if batch_first else (b * d, d),
                    y=y,
                    state=(d, 1) if batch_first else (1, b),
                    dy=y if self.get("dy") else (0, 0, 0),
                ),
            )
            for first, end in parts
        ]

    def append_products(self, gates: Operand, after: bool) -> None:
        """Append the call for gates = W x + b, of all rows."""
        bias = b = self.get("b")
        if b is not None:
            bias = self.lowering.temp(self.T, (self.all,))
            each = self.all // self.d
            # A GRU that resets after R_n adds n's part of the second bias inside the step: r
            # multiplies it.
            both = 2 * self.n if after else each
            self.lowering.call(
                recurrent_bias(self.T), b=b, y=bias, directions=self.d, n=each, both=both
            )
        # Forward: W x_t of all steps is one product, as no step needs another's.
        flat = Operand(gates.name, TensorType(gates.type.dtype, (self.rows, self.all)))
        mnk = (self.rows, self.all, self.width)
        lower_gemm(
            self.lowering,
            self.lowering.x(0),
            self.lowering.x(1),
            flat,
            mnk=mnk,
            trans=(False, True),
            bias=bias,
        )

    def append_weights(self, dgates: Operand, dinner: Operand, past: Operand, each: int) -> None:
        """Append the calls for dX, dW, dR, dB from the gradients of the products of X and of h.

        past: the factor of R, for `each` gates together.
        """
        lowering, n = self.lowering, self.n
        # Forward: gates = X W^T + b, one product over all rows; so dX = dgates W, dW = dgates^T X.
        if lowering.wants(0):
            mnk = (self.rows, self.width, self.all)
            lower_gemm(lowering, dgates, lowering.x(1), lowering.y(0), mnk=mnk)
        if lowering.wants(1):
            mnk = (self.all, self.width, self.rows)
            lower_gemm(
                lowering,
                dgates,
                lowering.x(0),
                lowering.y(1),
                mnk=mnk,
                trans=(True, False),
                reset=lowering.reset(1),
            )
        if lowering.wants(2):
            # Forward: R h' at every step; so dR = the sum over steps of da^T h': one product with
            # `past`, the h' of every row.
            count = self.all // (each * n)  # products: one a direction, or one a gate
            lower_gemm(
                lowering,
                dinner,
                past,
                lowering.y(2),
                mnk=(each * n, n, self.rows),
                trans=(True, False),
                batch=((count,), (each * n,), (n,)),
                ld=(self.all, count * n),
                reset=lowering.reset(2),
            )
        if lowering.wants(3):
            self.append_bias_grad(dgates, dinner, lowering.y(3))

    def append_bias_grad(self, dgates: Operand, dinner: Operand, db: Operand) -> None:
        """Append the calls for dB: sums of both, the second after the first."""
        each = self.all // self.d
        out = Operand(db.name, TensorType(self.T, (self.d, 2, each)))
        parts = [
            self.append_sums(x, 1, self.rows, self.all) for x in dict.fromkeys((dgates, dinner))
        ]
        parts = [Operand(p.name, TensorType(self.T, (self.d, 1, each))) for p in parts]
        if len(parts) == 1:
            lower_map(self.lowering, [("in", 0)], parts, [out])
            return
        # B has two halves, for W x and for R h, whose gradients differ in a GRU only.
        second = self.lowering.const(np.array([[[False], [True]]]))
        lower_map(
            self.lowering, [("where", ("in", 2), ("in", 1), ("in", 0))], [*parts, second], [out]
        )

    def append_sums(
        self, x: Operand, outer: int, n: int, cols: int, out: Operand | None = None
    ) -> Operand:
        """Sum x[outer, n, cols] over n, in an order that no number of threads changes."""
        out = out or self.lowering.temp(self.T, (outer * cols,))
        # One part: rows are added in their order, whatever the threads do, which share columns
        # alone.
        block = min(max(-(-cols * outer // self.lowering.threads) // 16 * 16, 16), 1024)
        work = self.lowering.temp(self.T, (self.lowering.threads, block))
        self.lowering.call(
            reduce_cols(self.T, "sum", "x", "total", "-", *find_stored(x)[1]),
            x=x,
            y=out,
            work=work,
            g=COLUMN_WORDS.pack(outer=outer, n=n, cols=cols, parts=1, block=block, count=n),
        )
        return out


# The kernels that walks call, forward and backward, in addition to those with the cells.
WALK_KERNELS = (recurrent_bias, recurrent_lengths, *GEMM_KERNELS)
WALK_BACK_KERNELS = (recurrent_lengths, reduce_cols, *GEMM_KERNELS)
