"""Nodes of recurrences: their shapes, operands, and all of their lowering but the steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.element_types import ITEMSIZE
from engine.errors import DTypeError
from engine.kernels.loops.fold import COLUMN_WORDS, reduce_cols
from engine.kernels.loops.gemm import GEMM_KERNELS, lower_gemm
from engine.kernels.loops.map import lower_map
from engine.kernels.ops.recurrent.cells import Curve, curves
from engine.kernels.ops.recurrent.recurrence import (
    WALK_WORDS,
    recurrent_bias,
    recurrent_lengths,
    recurrent_pack,
)
from engine.kernels.vocabulary.op import MS, Dim, Lowering, Operand, Site, TensorType
from engine.runtime.words import Packed

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
# The inputs by what they are.
INPUTS = {
    "RNN": "x w r b lens h0", "GRU": "x w r b lens h0", "LSTM": "x w r b lens h0 c0 p",
    "RNNGrad": "x w r lens h0 y dy dh", "GRUGrad": "x w r b lens h0 y gates dy dh",
    "LSTMGrad": "x w r lens h0 c0 y cells gates dy dh dc p",
}  # fmt: skip


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

    def rows(self, size: int) -> tuple[Dim, ...]:
        """Shape of what is stored by rows."""
        lead = (self.batch, self.steps) if self.layout else (self.steps, self.batch)
        if self.site.domain == MS:
            return (lead[0], self.directions, lead[1], size)
        return (*lead, self.directions, size)

    def of(self, what: str) -> tuple[Dim, ...]:
        """Shape of an input or output by its name in `INPUTS`."""
        d, n = self.directions, self.gates * self.hidden
        lead = (self.batch, self.steps) if self.layout else (self.steps, self.batch)
        return {
            "x": (*lead, self.width), "w": (d, n, self.width), "r": (d, n, self.hidden),
            "b": (d, 2 * n), "lens": (self.batch,), "p": (d, 3 * self.hidden), "y": self.y,
            "dy": self.y, "cells": self.rows(self.hidden), "gates": self.rows(n),
        }.get(what, self.state)  # fmt: skip


def shape_of(s: Site) -> Shape:
    """The sizes and options of a node, after its inputs have been checked against each other."""
    kind = next(k for k in GATES if s.op.startswith(k))
    x = s.real(0)
    if x.rank != 3:
        s.wrong(f"X is {x}; expected 3 axes")
    direction = s.attrs["direction"]
    known = ("forward",) if s.domain == MS else ("forward", "reverse", "bidirectional")
    if direction not in known:
        s.fail(f"direction {direction!r}", ", ".join(known))
    if s.attrs.get("layout", 0) not in (0, 1) or (s.domain == MS and s.attrs.get("layout", 0)):
        s.fail(f"layout {s.attrs['layout']}", "0" if s.domain == MS else "0, 1")
    hidden = s.attrs.get("hidden_size") or s.type(2).shape[-1]
    if not isinstance(hidden, int) or hidden < 1:
        s.fail(f"hidden_size {hidden}", "a positive number")
    t, b, width = x.shape
    if s.attrs.get("layout", 0):
        t, b = b, t
    found = Shape(s, kind, t, b, width, hidden, 2 if direction == "bidirectional" else 1)
    for i, what in enumerate(found.inputs):
        if s.has(i):
            given = s.shaped(i, found.of(what))
            if given.dtype != ("i32" if what == "lens" else x.dtype):
                raise DTypeError(f"{s.where()}: input {i} is {given}; X is {x}, lengths are i32")
        elif what in ("w", "r", "y", "cells", "gates"):
            s.type(i)
    curves(s, DEFAULTS[kind], found.directions, x.dtype)
    return found


class Walk:
    """The lowering of one node: its operands, and the words of its walk over time."""

    def __init__(self, s: Lowering) -> None:
        self.s, self.shape = s, shape_of(s.site)
        self.T = s.x(0).type.dtype
        x = s.x(0).type.dims
        self.rows = x[0] * x[1]
        self.batch, self.steps = (x[0], x[1]) if self.shape.layout else (x[1], x[0])
        self.width, self.n, self.d = x[2], self.shape.hidden, self.shape.directions
        self.all = self.d * self.shape.gates * self.n  # columns of the gates
        self._zeros: Operand | None = None

    def get(self, what: str) -> Operand | None:
        """An input by its name, None if absent."""
        names = self.shape.inputs
        i = names.index(what) if what in names else -1
        return self.s.x(i) if i >= 0 and self.s.site.has(i) else None

    def need(self, what: str) -> Operand:
        """An input by its name; a tensor of zeros for a state that is absent."""
        return self.get(what) or self.zeros()

    def zeros(self) -> Operand:
        if self._zeros is None:
            self._zeros = self.s.temp(self.T, self._numbers(self.shape.state))
            lower_map(self.s, [("const", 0.0)], [], [self._zeros])
        return self._zeros

    def _numbers(self, shape: tuple[Dim, ...]) -> tuple[int, ...]:
        return tuple(int(d) for d in shape)

    def temp(self, what: str) -> Operand:
        """A temporary of the shape of an input or output."""
        return self.s.temp(self.T, self._numbers(self.shape.of(what)))

    def out(self, i: int, what: str) -> Operand:
        """Output i, or a temporary if nobody reads it."""
        return self.s.y(i) if self.s.wants(i) else self.temp(what)

    def lengths(self) -> Operand:
        """The length of every row."""
        lens = self.get("lens")
        if lens is None:
            return self.s.const(np.full(self.batch, self.steps, np.int64))
        out = self.s.temp("i64", (self.batch,))
        self.s.call(
            recurrent_lengths("i32"), [("r", lens), ("w", out), ("u", self.s.fault())],
            [self.batch, self.steps],
        )  # fmt: skip
        return out

    def panels(self, gate: int, count: int, trans: bool) -> Operand:
        """R of `count` gates, for products with h (`trans`) or with their gradients."""
        r, size = self.need("r"), self.n * self.n
        n, k = (count * self.n, self.n) if trans else (self.n, count * self.n)
        width = self.s.target.nv * self.s.target.lanes(ITEMSIZE[self.T])
        out = self.s.temp(self.T, (self.d * -(-n // width) * width * k,))
        self.s.call(
            recurrent_pack(self.T, int(trans)), [("r", r), ("w", out)],
            [self.d, self.shape.gates * size, gate * size, n, k],
        )  # fmt: skip
        return out

    def groups(self) -> list[tuple[tuple[Curve, ...], Packed]]:
        """The directions grouped by equal activations, each group with the words of its walk."""
        found = curves(self.s.site, DEFAULTS[self.shape.kind], self.d, self.T)
        parts = [(0, self.d)] if found[0] == found[-1] else [(0, 1), (1, 2)]
        back = {"forward": self.d, "reverse": 0, "bidirectional": 1}
        t, b, d = self.steps, self.batch, self.d
        batch_first = bool(self.shape.layout)
        y = (d, t * d, 1) if batch_first else (b * d, 1, b)
        return [
            (
                found[first],
                WALK_WORDS.pack(
                    steps=t,
                    batch=b,
                    hidden=self.n,
                    first=first,
                    last=end,
                    back=back[self.s.site.attrs["direction"]],
                    kc=self.s.target.kc,
                    row=(d, t * d) if batch_first else (b * d, d),
                    y=y,
                    state=(d, 1) if batch_first else (1, b),
                    dy=y if self.get("dy") else (0, 0, 0),
                ),
            )
            for first, end in parts
        ]

    def products(self, gates: Operand, after: bool) -> None:
        """gates = W x + b, of all rows."""
        bias = b = self.get("b")
        if b is not None:
            bias = self.s.temp(self.T, (self.all,))
            each = self.all // self.d
            both = 2 * self.n if after else each
            self.s.call(recurrent_bias(self.T), [("r", b), ("w", bias)], [self.d, each, both])
        flat = Operand(gates.name, TensorType(self.T, (self.rows, self.all)))
        mnk = (self.rows, self.all, self.width)
        lower_gemm(
            self.s, self.s.x(0), self.s.x(1), flat, mnk=mnk, trans=(False, True), bias=bias
        )  # fmt: skip

    def weights(self, dgates: Operand, dinner: Operand, past: Operand, each: int) -> None:
        """dX, dW, dR, dB from the gradients of the products of X and of h.

        past: what R was multiplied with, for `each` gates together.
        """
        s, n = self.s, self.n
        if s.wants(0):
            mnk = (self.rows, self.width, self.all)
            lower_gemm(s, dgates, s.x(1), s.y(0), mnk=mnk)
        if s.wants(1):
            mnk = (self.all, self.width, self.rows)
            lower_gemm(s, dgates, s.x(0), s.y(1), mnk=mnk, trans=(True, False), reset=s.reset(1))
        if s.wants(2):
            count = self.all // (each * n)  # products: one a direction, or one a gate
            lower_gemm(
                s, dinner, past, s.y(2), mnk=(each * n, n, self.rows), trans=(True, False),
                batch=((count,), (each * n,), (n,)), ld=(self.all, count * n), reset=s.reset(2),
            )  # fmt: skip
        if s.wants(3):
            self.bias_grad(dgates, dinner, s.y(3))

    def bias_grad(self, dgates: Operand, dinner: Operand, db: Operand) -> None:
        """dB = sums of both, the second behind the first."""
        each = self.all // self.d
        out = Operand(db.name, TensorType(self.T, (self.d, 2, each)))
        parts = [self.sums(x, 1, self.rows, self.all) for x in dict.fromkeys((dgates, dinner))]
        parts = [Operand(p.name, TensorType(self.T, (self.d, 1, each))) for p in parts]
        if len(parts) == 1:
            lower_map(self.s, [("in", 0)], parts, [out])
            return
        second = self.s.const(np.array([[[False], [True]]]))
        lower_map(self.s, [("where", ("in", 2), ("in", 1), ("in", 0))], [*parts, second], [out])

    def sums(
        self, x: Operand, outer: int, n: int, cols: int, out: Operand | None = None
    ) -> Operand:
        """x[outer, n, cols] summed over n, in an order that no number of threads changes."""
        out = out or self.s.temp(self.T, (outer * cols,))
        block = min(max(-(-cols * outer // self.s.threads) // 16 * 16, 16), 1024)
        work = self.s.temp(self.T, (self.s.threads, block))
        self.s.call(
            reduce_cols(self.T, "sum", "x", "total", "-"),
            [("r", x), ("r", None), ("w", out), ("r", None), ("s", work)],
            words=COLUMN_WORDS.pack(outer=outer, n=n, cols=cols, parts=1, block=block, count=n),
        )
        return out


# What a walk calls, forward and backward, beside the kernels of its cells.
WALK_KERNELS = (recurrent_bias, recurrent_pack, recurrent_lengths, *GEMM_KERNELS)
WALK_BACK_KERNELS = (recurrent_pack, recurrent_lengths, reduce_cols, *GEMM_KERNELS)
