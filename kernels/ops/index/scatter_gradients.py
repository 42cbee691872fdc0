"""The gradients of ScatterElements and ScatterND for every reduction; their maths: scatter.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.element_types import NUMPY, ONNX_CODE
from engine.kernels.ops.shape import i64s, unsqueeze
from engine.kernels.vocabulary.op import Array, Grad, Site


def _is_distinct(s: Site) -> bool:
    """Whether the indices are constant and name no place twice."""
    index = s.value(1)
    if index is None or (index.size and index.min() < 0):
        return False
    if s.op == "ScatterND":
        rows = index.reshape(-1, index.shape[-1])
        return len(np.unique(rows, axis=0)) == len(rows)
    line = np.sort(index, s.attrs["axis"])
    return bool(np.all(np.diff(line, axis=s.attrs["axis"]) != 0))


def _count_up(g: Grad, shape: str) -> str:
    """The numbers 0, 1, 2, ... in the given shape."""
    size = g.op("ReduceProd", shape, keepdims=0)
    zero, one = (g.const(v, "i64") for v in (0, 1))
    return str(g.op("Reshape", g.op("Range", zero, size, one), shape))


class _Places:
    """Scatters and gathers along the indices of a node."""

    def __init__(self, g: Grad) -> None:
        self.g = g
        self.is_nd = g.site.op == "ScatterND"
        self.attrs = {} if self.is_nd else {"axis": g.site.attrs["axis"]}

    def gather(self, x: str) -> str:
        op = "GatherND" if self.is_nd else "GatherElements"
        return str(self.g.op(op, x, self.g.x(1), **self.attrs))

    def scatter(self, x: str, u: str, reduction: str = "none") -> str:
        op = "ScatterND" if self.is_nd else "ScatterElements"
        attrs: dict[str, Any] = {} if reduction == "none" else {"reduction": reduction}
        return str(self.g.op(op, x, self.g.x(1), u, **self.attrs, **attrs))

    def filled(self, like: int, value: float, dtype: str = "") -> str:
        """A tensor of one value in the shape of an input."""
        fill: Array = np.array([value], NUMPY[dtype or self.g.site.type(0).dtype])
        return str(self.g.op("ConstantOfShape", self.g.op("Shape", self.g.x(like)), value=fill))

    def winners(self) -> str:
        """A mask over the updates: whether an update was the last one of its place."""
        g, index = self.g, self.g.site.type(1)
        shapes = [g.op("Shape", g.x(i)) for i in (0, 1)]
        if self.is_nd:
            k = index.shape[-1]
            assert isinstance(k, int)
            cuts = ((0, k), (0, index.rank - 1))
            shapes = [
                g.op("Slice", shape, i64s(g, a), i64s(g, b), i64s(g, 0))
                for shape, (a, b) in zip(shapes, cuts, strict=True)
            ]
        none = g.op("ConstantOfShape", shapes[0], value=np.zeros(1, np.int64))
        number = _count_up(g, shapes[1])
        wins = g.op("Equal", self.gather(self.scatter(none, number)), number)
        rest = g.site.type(2).rank - (index.rank - 1) if self.is_nd else 0
        return unsqueeze(g, wins, range(-rest, 0)) if rest else str(wins)


def _none(g: Grad, at: _Places, dy: str) -> tuple[str | None, ...]:
    """dX = dY, 0 at the places; dU = dY there, for the last update of each."""
    dx = at.scatter(dy, at.filled(2, 0.0)) if g.wants(0) else None
    du = None
    if g.wants(2):
        du = at.gather(dy)
        if not _is_distinct(g.site):
            du = g.op("Where", at.winners(), du, g.like(0.0, 0))
    return (dx, None, du)


def _add(g: Grad, at: _Places, dy: str) -> tuple[str | None, ...]:
    """dX = dY; dU = dY at the places."""
    return (dy, None, at.gather(dy) if g.wants(2) else None)


def _mul(g: Grad, at: _Places, dy: str) -> tuple[str | None, ...]:
    """dX = dY prod U; dU = dY P / U without zeros, dY P at an only zero, else 0.

    P is the product of all factors of a place that are not 0, X's own included.
    """
    zero, one, to = g.like(0.0, 0), g.like(1.0, 0), ONNX_CODE[g.site.type(0).dtype]
    dx = du = None
    if g.wants(0):
        dx = g.op("Mul", dy, at.scatter(at.filled(0, 1.0), g.x(2), "mul"))
    if g.wants(2):
        is_zero = [g.op("Equal", g.x(i), zero) for i in (0, 2)]
        safe = [g.op("Where", z, one, g.x(i)) for z, i in zip(is_zero, (0, 2), strict=True)]
        zeros = [g.op("Cast", z, to=to) for z in is_zero]
        count = at.gather(at.scatter(zeros[0], zeros[1], "add"))
        product = at.gather(g.op("Mul", dy, at.scatter(safe[0], safe[1], "mul")))
        quotient = g.op("Where", g.op("Equal", count, zero), g.op("Div", product, safe[1]), zero)
        only = g.op("Where", g.op("Equal", count, one), product, zero)
        du = g.op("Where", is_zero[1], only, quotient)
    return (dx, None, du)


def _extreme(g: Grad, at: _Places, dy: str) -> tuple[str | None, ...]:
    """dX = dY / n where X = Y, dU = dY / n where U = Y, n being their number at a place."""
    to = ONNX_CODE[g.site.type(0).dtype]
    mine = g.op("Cast", g.op("Equal", g.x(0), g.y(0)), to=to)
    theirs = g.op("Cast", g.op("Equal", g.x(2), at.gather(g.y(0))), to=to)
    part = g.op("Div", dy, at.scatter(mine, theirs, "add"))
    dx = g.op("Mul", part, mine) if g.wants(0) else None
    du = g.op("Mul", at.gather(part), theirs) if g.wants(2) else None
    return (dx, None, du)


_RULES = {"none": _none, "add": _add, "mul": _mul, "max": _extreme, "min": _extreme}


def scatter_rule(g: Grad, dy: str) -> tuple[str | None, ...]:
    """The gradients of the data and of the updates: see the head of the file."""
    return _RULES[str(g.site.attrs.get("reduction", "none"))](g, _Places(g), dy)
