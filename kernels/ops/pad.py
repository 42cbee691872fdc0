"""Pad: constant, edge, reflect and wrap.

Forward   constant: fill, then copy (a negative pad crops);  the others: along one axis after the
          other, y = x[index] with a constant index, e.g. [2,1,0,1,2,1] for reflect of 3 by (2, 1);
          negative pads crop first
Backward  constant: Pad by the negated amounts;  the others: GatherGrad with the same index, which
          is Pad of Range(0, n), the last axis first
Error     none: bits are copied
"""

from __future__ import annotations

import math

import numpy as np

from engine.kernels.loops.map import MAP_KERNELS, lower_map
from engine.kernels.ops.index.gather import gather, take
from engine.kernels.ops.movement import copy, strided_copy
from engine.kernels.ops.shape import axes_of, i64s
from engine.kernels.vocabulary.op import (
    MS,
    Array,
    Dim,
    Grad,
    Lowering,
    Op,
    Operand,
    Site,
    TensorType,
    normal_axis,
)

MODES = {"constant": "constant", "edge": "edge", "reflect": "reflect", "wrap": "wrap"}


def _mode(s: Site) -> str:
    mode = s.attrs["mode"]
    name = mode.decode() if isinstance(mode, bytes) else str(mode)
    if name not in MODES:
        s.fail(f"mode {name!r}", ", ".join(MODES))
    return name


def _amounts(s: Site) -> dict[int, tuple[int, int]] | None:
    """(before, after) of each padded axis, ascending; None when the pads are not known yet."""
    rank = s.type(0).rank
    given = s.attrs.get("pads")
    if given is None:
        if s.value(1) is None:
            return None
        given = s.integers(1, "pads")
    pads = list(given)
    axes = axes_of(s, 3) or list(range(rank))
    if len(pads) != 2 * len(axes):
        s.wrong(f"{len(pads)} pads for {len(axes)} axes")
    pairs = zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True)
    found = {normal_axis(s, a, rank): (p, q) for a, p, q in pairs if p or q}
    return dict(sorted(found.items()))


def _known(s: Site) -> dict[int, tuple[int, int]]:
    amounts = _amounts(s)
    if amounts is None:
        s.fail("pads (input 1) must be constants known before lowering")
    return amounts


def _infer(s: Site) -> tuple[TensorType, ...]:
    t, amounts = s.type(0), _amounts(s)
    if s.has(2) and (s.type(2).dtype != t.dtype or s.type(2).shape not in ((), (1,))):
        s.fail(f"the value (input 2) is {s.type(2)}", f"one {t.dtype}")
    if amounts is None:
        return (t.but([f"{s.name}_d{i}" for i in range(t.rank)]),)
    dims: list[Dim] = []
    for i, d in enumerate(t.shape):
        p, q = amounts.get(i, (0, 0))
        if isinstance(d, str):
            dims.append(d if p + q == 0 else f"{s.name}_d{i}")
            continue
        kept = d + min(p, 0) + min(q, 0)
        if kept < 0 or (kept == 0 and max(p, q) > 0 and _mode(s) != "constant"):
            s.wrong(f"pads ({p}, {q}) of an axis of {d}")
        dims.append(d + p + q)
    return (t.but(dims),)


def _index(mode: str, n: int, p: int, q: int) -> Array:
    """For each element of an axis of n padded by (p, q): the element it copies."""
    first, n = max(-p, 0), n + min(p, 0) + min(q, 0)
    i = np.arange(-max(p, 0), n + max(q, 0))
    if mode == "edge":
        return first + np.clip(i, 0, n - 1)
    if mode == "wrap":
        return first + i % n
    period = max(2 * (n - 1), 1)
    i = np.abs(i) % period
    return first + np.minimum(i, period - i)


def _constant(s: Lowering, x: Operand, y: Operand, amounts: dict[int, tuple[int, int]]) -> None:
    """y = the value; y[inside] = x."""
    if s.site.has(2):
        value = Operand(s.x(2).name, s.x(2).type.but(()))
        lower_map(s, [("in", 0)], [value], [y])
    else:
        lower_map(s, [("const", s.site.attrs.get("value", 0))], [], [y])
    dims, source, to = [], 0, 0
    for i, d in enumerate(x.type.dims):
        p, q = amounts.get(i, (0, 0))
        source += max(-p, 0) * x.type.strides[i]
        to += max(p, 0) * y.type.strides[i]
        dims.append(max(d + min(p, 0) + min(q, 0), 0))
    copy(s, x, y, dims, (x.type.strides, y.type.strides), (source, to), "u")


def _lower(s: Lowering) -> None:
    x, y, amounts, mode = s.x(0), s.y(0), _known(s.site), _mode(s.site)
    if y.type.size == 0:
        return
    if mode == "constant":
        return _constant(s, x, y, amounts)
    if not amounts:
        return copy(s, x, y, y.type.dims, (x.type.strides, y.type.strides))
    dims = list(x.type.dims)
    for axis, (p, q) in amounts.items():
        n, index = dims[axis], s.const(_index(mode, dims[axis], p, q))
        walk = (math.prod(dims[:axis]), n, math.prod(dims[axis + 1 :]))
        dims[axis] = n + p + q
        out = y if axis == max(amounts) else s.temp(x.type.dtype, dims)
        take(s, x, index, out, walk)
        x = out
    return None


def _fold(s: Site) -> tuple[Array, ...]:
    x, mode = s.known(0, "the input"), _mode(s)
    (out,) = _infer(s)
    if mode != "constant":
        for axis, (p, q) in _known(s).items():
            x = x.take(_index(mode, x.shape[axis], p, q), axis)
        return (x,)
    value = s.value(2)
    fill = s.attrs.get("value", 0) if value is None else value.reshape(-1)[0]
    y = np.full(out.dims, fill, x.dtype)
    inside, source = [], []
    for i, d in enumerate(x.shape):
        p, q = _known(s).get(i, (0, 0))
        inside.append(slice(max(p, 0), out.dims[i] - max(q, 0)))
        source.append(slice(max(-p, 0), d - max(-q, 0)))
    y[tuple(inside)] = x[tuple(source)]
    return (y,)


def _grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = Pad(dY, -pads); in the other modes GatherGrad along each axis, the last one first."""
    s = g.site
    rest = [None] * (len(s.ins) - 1)
    if _mode(s) == "constant":
        if "pads" in s.attrs:
            return (g.op("Pad", dy, pads=[-int(p) for p in s.attrs["pads"]]), *rest)
        axes = ["", g.x(3)] if s.has(3) else []
        return (g.op("Pad", dy, g.op("Neg", g.x(1)), *axes), *rest)
    amounts, mode, rank = _known(s), _mode(s), s.type(0).rank
    before, after = g.op("Shape", g.x(0)), g.op("Shape", dy)
    scalar = [g.const(np.array(v, np.int64), "i64") for v in (0, 1)]
    for axis, (p, q) in reversed(amounts.items()):
        n = g.op("Gather", before, g.const(np.array(axis, np.int64), "i64"))
        line = g.op("Range", scalar[0], n, scalar[1])
        if "pads" in s.attrs:
            index = g.op("Pad", line, mode=mode, pads=[p, q])
        else:
            index = g.op("Pad", line, i64s(g, p, q), mode=mode)
        # Axes in front are still padded, this one and those behind no longer.
        left = g.op("Gather", after, i64s(g, *range(axis)))
        right = g.op("Gather", before, i64s(g, *range(axis, rank)))
        shape = g.op("Concat", left, right, axis=0)
        dy = g.op("GatherGrad", shape, index, dy, domain=MS, axis=axis)
    return (dy, *rest)


OPS = (
    Op(
        name="Pad",
        infer=_infer,
        lower=_lower,
        calls=(gather, strided_copy, *MAP_KERNELS),
        grad=_grad,
        fold=_fold,
        attrs={"mode": "constant"},
        stop=frozenset((1, 2, 3)),
    ),
)
