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

from engine.base import limits
from engine.base.aliases import Array
from engine.kernels.loops.map import MAP_KERNELS, lower_map
from engine.kernels.ops.index.gather import gather, take
from engine.kernels.ops.movement import copy, strided_copy
from engine.kernels.ops.shape import i64s, read_axes
from engine.kernels.vocabulary.facts import ALIKE, Layout, Movement, Samples
from engine.kernels.vocabulary.op import MS, Dim, Grad, Lowering, Op, Operand, Site, TensorType
from engine.kernels.vocabulary.shape_rules import normalise_axis

MODES = {"constant": "constant", "edge": "edge", "reflect": "reflect", "wrap": "wrap"}


def _read_mode(site: Site) -> str:
    mode = site.attrs["mode"]
    name = mode.decode() if isinstance(mode, bytes) else str(mode)
    if name not in MODES:
        site.fail(f"mode is {name!r}", ", ".join(MODES))
    return name


def _read_amounts(site: Site) -> dict[int, tuple[int, int]] | None:
    """Return (before, after) of each padded axis, ascending; None if the pads are not known yet."""
    rank = site.type(0).rank
    given = site.attrs.get("pads")
    if given is None:
        if site.value(1) is None:
            return None
        given = site.integers(1, "pads")
    pads = list(given)
    axes = read_axes(site, 3) or list(range(rank))
    if len(pads) != 2 * len(axes):
        site.wrong(f"pads has {len(pads)} numbers; expected 2 for each of {len(axes)} axes")
    pairs = zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True)
    amounts = {normalise_axis(site, a, rank): (p, q) for a, p, q in pairs if p or q}
    return dict(sorted(amounts.items()))


def _require_amounts(site: Site) -> dict[int, tuple[int, int]]:
    amounts = _read_amounts(site)
    if amounts is None:
        site.fail("pads (input 1) must be constants known before lowering")
    return amounts


def _infer(site: Site) -> tuple[TensorType, ...]:
    t, amounts = site.type(0), _read_amounts(site)
    if site.has(2) and (site.type(2).dtype != t.dtype or site.type(2).shape not in ((), (1,))):
        site.fail(f"the value (input 2) is {site.type(2)}", f"one {t.dtype}")
    if amounts is None:
        return (t.but([f"{site.name}_d{i}" for i in range(t.rank)]),)
    dims: list[Dim] = []
    for i, d in enumerate(t.shape):
        p, q = amounts.get(i, (0, 0))
        if isinstance(d, str):
            dims.append(d if p + q == 0 else f"{site.name}_d{i}")
            continue
        kept = d + min(p, 0) + min(q, 0)
        if kept < 0 or (kept == 0 and max(p, q) > 0 and _read_mode(site) != "constant"):
            site.wrong(f"pads ({p}, {q}) leave nothing of an axis of {d} elements")
        dims.append(d + p + q)
    return (t.but(dims),)


def _find_sources(mode: str, n: int, p: int, q: int) -> Array:
    """Return, for each element of an axis of n padded by (p, q), the element it copies."""
    # Negative pads crop before the mode looks at the axis.
    first, n = max(-p, 0), n + min(p, 0) + min(q, 0)
    i = np.arange(-max(p, 0), n + max(q, 0))
    if mode == "edge":
        return first + np.clip(i, 0, n - 1)
    if mode == "wrap":
        return first + i % n
    # Reflect: there and back without the ends twice; one element reflects itself.
    period = max(2 * (n - 1), 1)
    i = np.abs(i) % period
    return first + np.minimum(i, period - i)


def _constant(
    lowering: Lowering, x: Operand, y: Operand, amounts: dict[int, tuple[int, int]]
) -> None:
    """Append the calls for y = the value; y[inside] = x."""
    if lowering.site.has(2):
        value = Operand(lowering.x(2).name, lowering.x(2).type.but(()))
        lower_map(lowering, [("in", 0)], [value], [y])
    else:
        lower_map(lowering, [("const", lowering.site.attrs.get("value", 0))], [], [y])
    # One strided copy: negative pads move the start in x, positive ones in y.
    dims, source, to = [], 0, 0
    for i, d in enumerate(x.type.dims):
        p, q = amounts.get(i, (0, 0))
        source += max(-p, 0) * x.type.strides[i]
        to += max(p, 0) * y.type.strides[i]
        dims.append(max(d + min(p, 0) + min(q, 0), 0))
    copy(lowering, x, y, dims, (x.type.strides, y.type.strides), (source, to), "u")


def _lower(lowering: Lowering) -> None:
    x, y, amounts, mode = (
        lowering.x(0),
        lowering.y(0),
        _require_amounts(lowering.site),
        _read_mode(lowering.site),
    )
    if y.type.size == 0:
        return
    if mode == "constant":
        return _constant(lowering, x, y, amounts)
    if not amounts:
        return copy(lowering, x, y, y.type.dims, (x.type.strides, y.type.strides))
    order = x.type.order
    dims = [x.type.dims[axis] for axis in order]  # as they are stored
    places = {order.index(axis): pair for axis, pair in amounts.items()}
    # One axis after the other: a corner copies what its edges copied before.
    for axis, (p, q) in places.items():
        nbytes = 24 * (dims[axis] + p + q)
        limits.check("CONSTANT_BYTES", nbytes, lowering.site.where, "the index of an axis takes")
        n, index = dims[axis], lowering.const(_find_sources(mode, dims[axis], p, q))
        walk = (math.prod(dims[:axis]), n, math.prod(dims[axis + 1 :]))
        dims[axis] = n + p + q
        out = y if axis == list(places)[-1] else lowering.temp(x.type.dtype, dims)
        take(lowering, x, index, out, walk)
        x = out
    return None


def _fold(site: Site) -> tuple[Array, ...]:
    x, mode = site.known(0, "the input"), _read_mode(site)
    (out,) = _infer(site)
    if mode != "constant":
        for axis, (p, q) in _require_amounts(site).items():
            x = x.take(_find_sources(mode, x.shape[axis], p, q), axis)
        return (x,)
    value = site.value(2)
    fill = site.attrs.get("value", 0) if value is None else value.reshape(-1)[0]
    y = np.full(out.dims, fill, x.dtype)
    inside, source = [], []
    for i, d in enumerate(x.shape):
        p, q = _require_amounts(site).get(i, (0, 0))
        inside.append(slice(max(p, 0), out.dims[i] - max(q, 0)))
        source.append(slice(max(-p, 0), d - max(-q, 0)))
    y[tuple(inside)] = x[tuple(source)]
    return (y,)


def _grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = Pad(dY, -pads); in the other modes GatherGrad along each axis, the last one first."""
    site = grad.site
    rest = [None] * (len(site.ins) - 1)
    if _read_mode(site) == "constant":
        if "pads" in site.attrs:
            return (grad.op("Pad", dy, pads=[-int(p) for p in site.attrs["pads"]]), *rest)
        axes = ["", grad.x(3)] if site.has(3) else []
        return (grad.op("Pad", dy, grad.op("Neg", grad.x(1)), *axes), *rest)
    # Forward: y = x[index] along each axis in turn; so dx adds dy at index, in reverse order.  The
    # index is Range padded the same way, as sizes may be symbolic.
    amounts, mode, rank = _require_amounts(site), _read_mode(site), site.type(0).rank
    before, after = grad.op("Shape", grad.x(0)), grad.op("Shape", dy)
    scalar = [grad.const(np.array(v, np.int64), "i64") for v in (0, 1)]
    for axis, (p, q) in reversed(amounts.items()):
        n = grad.op("Gather", before, grad.const(np.array(axis, np.int64), "i64"))
        line = grad.op("Range", scalar[0], n, scalar[1])
        if "pads" in site.attrs:
            index = grad.op("Pad", line, mode=mode, pads=[p, q])
        else:
            index = grad.op("Pad", line, i64s(grad, p, q), mode=mode)
        # Axes before this one are still padded; this one and those after it no longer are.
        left = grad.op("Gather", after, i64s(grad, *range(axis)))
        right = grad.op("Gather", before, i64s(grad, *range(axis, rank)))
        shape = grad.op("Concat", left, right, axis=0)
        dy = grad.op("GatherGrad", shape, index, dy, domain=MS, axis=axis)
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
        no_gradient=frozenset((1, 2, 3)),
        samples=Samples.PADDED,
        layout=Layout.ANY,
        movement=Movement.FILLED,
        storage=ALIKE,
        is_cheap=True,
    ),
)
