"""The gradients of ScatterElements and ScatterND for every reduction; their maths: scatter.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import NUMPY, ONNX_CODE
from engine.kernels.ops.shape import i64s, unsqueeze
from engine.kernels.vocabulary.op import Grad, Site


def _is_distinct(site: Site) -> bool:
    """Return whether the indices are constant and name no place twice."""
    index = site.value(1)
    if index is None or (index.size and index.min() < 0):
        return False
    if site.op == "ScatterND":
        rows = index.reshape(-1, index.shape[-1])
        return len(np.unique(rows, axis=0)) == len(rows)
    line = np.sort(index, site.attrs["axis"])
    return bool(np.all(np.diff(line, axis=site.attrs["axis"]) != 0))


def _count_up(grad: Grad, shape: str) -> str:
    """Return the numbers 0, 1, 2, ... in the given shape."""
    size = grad.op("ReduceProd", shape, keepdims=0)
    zero, one = (grad.const(v, "i64") for v in (0, 1))
    return str(grad.op("Reshape", grad.op("Range", zero, size, one), shape))


class _IndexedPlaces:
    """Scatters and gathers along the indices of a node."""

    def __init__(self, grad: Grad) -> None:
        self.grad = grad
        self.is_nd = grad.site.op == "ScatterND"
        self.attrs = {} if self.is_nd else {"axis": grad.site.attrs["axis"]}

    def gather(self, x: str) -> str:
        op = "GatherND" if self.is_nd else "GatherElements"
        return str(self.grad.op(op, x, self.grad.x(1), **self.attrs))

    def scatter(self, x: str, u: str, reduction: str = "none") -> str:
        op = "ScatterND" if self.is_nd else "ScatterElements"
        attrs: dict[str, Any] = {} if reduction == "none" else {"reduction": reduction}
        return str(self.grad.op(op, x, self.grad.x(1), u, **self.attrs, **attrs))

    def fill(self, like: int, value: float, dtype: str = "") -> str:
        """Return a tensor of one value in the shape of an input."""
        fill: Array = np.array([value], NUMPY[dtype or self.grad.site.type(0).dtype])
        return str(
            self.grad.op("ConstantOfShape", self.grad.op("Shape", self.grad.x(like)), value=fill)
        )

    def mark_winners(self) -> str:
        """Return a mask over the updates: whether an update was the last one of its place."""
        grad, index = self.grad, self.grad.site.type(1)
        shapes = [grad.op("Shape", grad.x(i)) for i in (0, 1)]
        if self.is_nd:
            k = index.shape[-1]
            assert isinstance(k, int)
            cuts = ((0, k), (0, index.rank - 1))
            shapes = [
                grad.op("Slice", shape, i64s(grad, a), i64s(grad, b), i64s(grad, 0))
                for shape, (a, b) in zip(shapes, cuts, strict=True)
            ]
        # Scatter the numbers of the updates as the forward pass scattered the updates: the number
        # that is there afterwards names the update that won.
        none = grad.op("ConstantOfShape", shapes[0], value=np.zeros(1, np.int64))
        number = _count_up(grad, shapes[1])
        wins = grad.op("Equal", self.gather(self.scatter(none, number)), number)
        rest = grad.site.type(2).rank - (index.rank - 1) if self.is_nd else 0
        return unsqueeze(grad, wins, range(-rest, 0)) if rest else str(wins)


def _none(grad: Grad, at: _IndexedPlaces, dy: str) -> tuple[str | None, ...]:
    """dX = dY, 0 at the places; dU = dY there, for the last update of each."""
    dx = at.scatter(dy, at.fill(2, 0.0)) if grad.wants(0) else None
    du = None
    if grad.wants(2):
        du = at.gather(dy)
        # Where no place is named twice every update wins.
        if not _is_distinct(grad.site):
            du = grad.op("Where", at.mark_winners(), du, grad.like(0.0, 0))
    return (dx, None, du)


def _add(grad: Grad, at: _IndexedPlaces, dy: str) -> tuple[str | None, ...]:
    """dX = dY; dU = dY at the places."""
    return (dy, None, at.gather(dy) if grad.wants(2) else None)


def _mul(grad: Grad, at: _IndexedPlaces, dy: str) -> tuple[str | None, ...]:
    """dX = dY prod U; dU = dY P / U without zeros, dY P at an only zero, 0 with more.

    P is the product of all factors of a place that are not 0, X's own included.
    """
    zero, one, to = grad.like(0.0, 0), grad.like(1.0, 0), ONNX_CODE[grad.site.type(0).dtype]
    dx = du = None
    if grad.wants(0):
        dx = grad.op("Mul", dy, at.scatter(at.fill(0, 1.0), grad.x(2), "mul"))
    if grad.wants(2):
        # Forward: y = x prod u.  The product of all other factors is the whole product by u;
        # with zeros taken as 1 the quotient exists, and the number of zeros says whether it counts.
        is_zero = [grad.op("Equal", grad.x(i), zero) for i in (0, 2)]
        safe = [grad.op("Where", z, one, grad.x(i)) for z, i in zip(is_zero, (0, 2), strict=True)]
        zeros = [grad.op("Cast", z, to=to) for z in is_zero]
        count = at.gather(at.scatter(zeros[0], zeros[1], "add"))
        product = at.gather(grad.op("Mul", dy, at.scatter(safe[0], safe[1], "mul")))
        quotient = grad.op(
            "Where", grad.op("Equal", count, zero), grad.op("Div", product, safe[1]), zero
        )
        only = grad.op("Where", grad.op("Equal", count, one), product, zero)
        du = grad.op("Where", is_zero[1], only, quotient)
    return (dx, None, du)


def _extreme(grad: Grad, at: _IndexedPlaces, dy: str) -> tuple[str | None, ...]:
    """dX = dY / n where X = Y, dU = dY / n where U = Y, n being their number at a place."""
    to = ONNX_CODE[grad.site.type(0).dtype]
    # Forward: y = max(x, u...).  All that equal y share dy.
    mine = grad.op("Cast", grad.op("Equal", grad.x(0), grad.y(0)), to=to)
    theirs = grad.op("Cast", grad.op("Equal", grad.x(2), at.gather(grad.y(0))), to=to)
    part = grad.op("Div", dy, at.scatter(mine, theirs, "add"))
    dx = grad.op("Mul", part, mine) if grad.wants(0) else None
    du = grad.op("Mul", at.gather(part), theirs) if grad.wants(2) else None
    return (dx, None, du)


_RULES = {"none": _none, "add": _add, "mul": _mul, "max": _extreme, "min": _extreme}


def scatter_rule(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """Return the gradients of the data and of the updates: see the head of the file."""
    return _RULES[str(grad.site.attrs.get("reduction", "none"))](grad, _IndexedPlaces(grad), dy)
