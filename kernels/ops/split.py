"""Parts of a tensor: Concat, Split, Slice, and their training forms.

Forward   each part is one copy between a part of the whole and a tensor
Backward  Concat: Split of dY;  Split: Concat of the dY, zeros for outputs that are not used;
          Slice: SliceGrad, dY put into zeros at the same places (steps of either sign)
Error     none: bits are copied
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from engine.element_types import NUMPY
from engine.errors import DTypeError
from engine.kernels.loops.map import MAP_KERNELS, lower_map
from engine.kernels.ops.movement import copy, strided_copy
from engine.kernels.ops.shape import fresh, i64s, unknown
from engine.kernels.vocabulary.kernel import Template
from engine.kernels.vocabulary.op import (
    MS,
    Array,
    Dim,
    Grad,
    Lowering,
    Op,
    Site,
    TensorType,
    normal_axis,
)

# --- Concat


def _inputs(s: Site) -> list[TensorType]:
    return [s.type(i) for i in range(len(s.ins))]


def _concat_infer(s: Site) -> tuple[TensorType, ...]:
    types = _inputs(s)
    first = types[0]
    axis = normal_axis(s, s.attrs["axis"], first.rank)
    dims: list[Dim] = list(first.shape)
    for t in types[1:]:
        if t.dtype != first.dtype:
            raise DTypeError(f"{s.where()}: all inputs must have one element type")
        if t.rank != first.rank:
            s.wrong("inputs differ in rank")
        for i, (mine, d) in enumerate(zip(dims, t.shape, strict=True)):
            if i == axis:
                dims[i] = mine + d if isinstance(mine, int) and isinstance(d, int) else fresh(s, i)
            elif isinstance(mine, str):
                dims[i] = d
            elif isinstance(d, int) and d != mine:
                s.wrong(f"inputs differ along axis {i}, which is not the axis {axis}")
    return (first.but(dims),)


def _concat_lower(s: Lowering) -> None:
    y, types = s.y(0), _inputs(s.site)
    axis = normal_axis(s.site, s.site.attrs["axis"], y.type.rank)
    at, started = 0, False
    for i, t in enumerate(types):
        start = (0, at * y.type.strides[axis])
        copy(s, s.x(i), y, t.dims, (t.strides, y.type.strides), start, "u" if started else "w")
        at += t.dims[axis]
        started = started or t.size > 0


def _concat_fold(s: Site) -> tuple[Array, ...]:
    values = [s.known(i, "an input") for i in range(len(s.ins))]
    return (np.concatenate(values, s.attrs["axis"]),)


def _concat_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX_i = part i of Split(dY) by the lengths of the inputs; slices when not all are wanted."""
    types = _inputs(g.site)
    if len(types) == 1:
        return (dy,)
    axis = normal_axis(g.site, g.site.attrs["axis"], types[0].rank)
    lengths = [_length(g, i, t.shape[axis], axis) for i, t in enumerate(types)]
    if all(g.wants(i) for i in range(len(types))):
        known = [t.shape[axis] for t in types]
        if g.site.opset >= 13:
            sizes = g.op("Concat", *lengths, axis=0)
            return tuple(g.op("Split", dy, sizes, axis=axis, outputs=len(types)))
        if all(isinstance(d, int) for d in known):
            return tuple(g.op("Split", dy, axis=axis, split=known, outputs=len(types)))
    out: list[str | None] = []
    begin = i64s(g, 0)
    for i, length in enumerate(lengths):
        end = g.op("Add", begin, length) if i else length
        out.append(g.op("Slice", dy, begin, end, i64s(g, axis)) if g.wants(i) else None)
        begin = end
    return tuple(out)


def _length(g: Grad, i: int, length: Dim, axis: int) -> str:
    """The length of input i along the axis, as a 1-D tensor."""
    if isinstance(length, int):
        return i64s(g, length)
    return str(g.op("Gather", g.op("Shape", g.x(i)), i64s(g, axis)))


# --- Split


def _lengths(s: Site) -> list[Dim]:
    """The lengths of the parts along the axis."""
    t = s.type(0)
    whole = t.shape[normal_axis(s, s.attrs["axis"], t.rank)]
    given = s.attrs.get("split")
    if given is None and s.has(1):
        if s.value(1) is None:
            return [f"{s.name}_n{i}" for i in range(s.n_outs)]
        given = s.integers(1, "the split")
    if given is not None:
        parts = list(given)
        if len(parts) != s.n_outs or (isinstance(whole, int) and sum(parts) != whole):
            s.wrong(f"parts {parts} for {s.n_outs} outputs of an axis of {whole}")
        return list(parts)
    if s.n_outs == 1:
        return [whole]
    if isinstance(whole, str):
        return [f"{s.name}_n{i}" for i in range(s.n_outs)]
    each = -(-whole // s.n_outs)
    if s.opset < 18 and s.domain == "" and whole % s.n_outs:
        s.wrong(f"an axis of {whole} does not divide into {s.n_outs} equal parts")
    return [max(min(each, whole - i * each), 0) for i in range(s.n_outs)]


def _split_infer(s: Site) -> tuple[TensorType, ...]:
    t = s.type(0)
    axis = normal_axis(s, s.attrs["axis"], t.rank)
    return tuple(t.but([*t.shape[:axis], d, *t.shape[axis + 1 :]]) for d in _lengths(s))


def _split_lower(s: Lowering) -> None:
    x, at = s.x(0), 0
    axis = normal_axis(s.site, s.site.attrs["axis"], x.type.rank)
    for i, t in enumerate(_split_infer(s.site)):
        if s.wants(i):
            y, start = s.y(i), (at * x.type.strides[axis], 0)
            copy(s, x, y, t.dims, (x.type.strides, y.type.strides), start)
        at += t.dims[axis]


def _split_fold(s: Site) -> tuple[Array, ...]:
    ends = list(accumulate(int(d) for d in _lengths(s)))
    return tuple(np.split(s.known(0, "the input"), ends[:-1], s.attrs["axis"]))


def _split_grad(g: Grad, *dys: str | None) -> tuple[str | None, ...]:
    """dX = Concat(dY_i), with zeros where an output has no gradient."""
    zero: Array = np.zeros(1, NUMPY[g.site.type(0).dtype])
    known = (*dys, *[None] * (g.site.n_outs - len(dys)))
    parts = [
        dy or g.op("ConstantOfShape", g.op("Shape", g.y(i)), value=zero)
        for i, dy in enumerate(known)
    ]
    return (g.op("Concat", *parts, axis=g.site.attrs["axis"]), None)


# --- Slice

Window = list[tuple[int, int, int]]  # (start, step, count) of every axis


def _bounds(s: Site, first: int) -> tuple[list[int], list[int], list[int], list[int]] | None:
    """(starts, ends, axes, steps) from attributes, or from inputs `first` on; None when unknown."""
    if "starts" in s.attrs:
        starts, ends = list(s.attrs["starts"]), list(s.attrs["ends"])
        axes = list(s.attrs.get("axes", range(len(starts))))
        return starts, ends, axes, [1] * len(starts)
    found = [s.value(i) for i in range(first, first + 4)]
    if any(s.has(first + i) and v is None for i, v in enumerate(found)):
        return None
    names = ("starts", "ends", "axes", "steps")
    lists = [
        s.integers(first + i, names[i]) if v is not None else None for i, v in enumerate(found)
    ]
    starts, ends = lists[0] or [], lists[1] or []
    axes = list(range(len(starts))) if lists[2] is None else lists[2]
    steps = [1] * len(starts) if lists[3] is None else lists[3]
    if not len(starts) == len(ends) == len(axes) == len(steps):
        s.wrong("starts, ends, axes and steps differ in length")
    if 0 in steps:
        s.wrong("a step of 0")
    return starts, ends, axes, steps


def _window(s: Site, shape: Sequence[Dim], first: int) -> Window:
    """The slice of a tensor of that shape, clamped as ONNX (and Python) clamps."""
    bounds = _bounds(s, first)
    if bounds is None:
        s.fail("starts, ends, axes and steps must be constants known before lowering")
    window = [(0, 1, d if isinstance(d, int) else -1) for d in shape]
    for start, end, axis, step in zip(*bounds, strict=True):
        axis = normal_axis(s, axis, len(shape))
        d = shape[axis]
        if isinstance(d, int):
            r = range(*slice(start, end, step).indices(d))
            window[axis] = (r.start, step, len(r))
        elif (start, step) != (0, 1) or end < 2**31 - 1:
            window[axis] = (start, step, -2)  # a length that is not known
    return window


def _slice_infer(s: Site) -> tuple[TensorType, ...]:
    t = s.type(0)
    if _bounds(s, 1) is None:
        return (t.but([fresh(s, i) for i in range(t.rank)]),)
    counts = [count for _, _, count in _window(s, t.shape, 1)]
    pairs = enumerate(zip(t.shape, counts, strict=True))
    return (t.but([{-1: d, -2: fresh(s, i)}.get(n, n) for i, (d, n) in pairs]),)


def _place(window: Window, strides: Sequence[int]) -> tuple[list[int], int]:
    """Strides and first element of a window into a tensor."""
    first = sum(start * stride for (start, _, _), stride in zip(window, strides, strict=True))
    return [step * stride for (_, step, _), stride in zip(window, strides, strict=True)], first


def _slice_lower(s: Lowering) -> None:
    x, y = s.x(0), s.y(0)
    steps, first = _place(_window(s.site, x.type.dims, 1), x.type.strides)
    copy(s, x, y, y.type.dims, (steps, y.type.strides), (first, 0))


def _slice_fold(s: Site) -> tuple[Array, ...]:
    x = s.known(0, "the input")
    index = []
    for start, step, count in _window(s, x.shape, 1):
        end = start + count * step
        index.append(slice(start, end if end >= 0 else None, step) if count else slice(0, 0))
    return (x[tuple(index)],)


def _slice_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = SliceGrad(dY, Shape(X), starts, ends, axes, steps)."""
    s = g.site
    if "starts" in s.attrs:
        starts, ends, axes, _ = _bounds(s, 1) or ([], [], [], [])
        rest = [i64s(g, *v) for v in (starts, ends, axes)]
    else:
        rest = [g.x(i) if s.has(i) else "" for i in range(1, len(s.ins))]
    dx = g.op("SliceGrad", dy, g.op("Shape", g.x(0)), *rest, domain=MS)
    return (dx, *[None] * (len(s.ins) - 1))


def _slice_grad_infer(s: Site) -> tuple[TensorType, ...]:
    dtype = s.type(0).dtype
    if s.value(1) is None:
        return (unknown(s, 1, dtype),)
    return (TensorType(dtype, tuple(s.integers(1, "the shape"))),)


def _slice_grad_lower(s: Lowering) -> None:
    """dX = 0; dX[window] = dY."""
    dy, dx = s.x(0), s.y(0)
    window = _window(s.site, dx.type.dims, 2)
    counts = [count for _, _, count in window]
    if counts != list(dy.type.dims):
        s.site.wrong(f"the slice has shape {counts}")
    steps, first = _place(window, dx.type.strides)
    whole = dy.type.size == dx.type.size
    if not whole:
        lower_map(s, [("const", 0)], [], [dx])
    copy(s, dy, dx, counts, (dy.type.strides, steps), (0, first), "w" if whole else "u")


def _op(
    name: str,
    infer: Any,
    lower: Any,
    fold: Any = None,
    calls: tuple[Template, ...] = (strided_copy,),
    **more: Any,
) -> Op:
    return Op(name=name, infer=infer, lower=lower, fold=fold, calls=calls, **more)


_SPLIT = (_split_infer, _split_lower, _split_fold)
_AXIS_0: dict[str, Any] = {"attrs": {"axis": 0}}

OPS = (
    _op("Concat", _concat_infer, _concat_lower, _concat_fold, grad=_concat_grad, keeps=True),
    _op("Split", *_SPLIT, grad=_split_grad, stop=frozenset((1,)), keeps=True, **_AXIS_0),
    _op("SplitTraining", *_SPLIT, domain=MS, keeps=True, **_AXIS_0),
    _op(
        "Slice",
        _slice_infer,
        _slice_lower,
        _slice_fold,
        grad=_slice_grad,
        stop=frozenset((1, 2, 3, 4)),
    ),
    _op(
        "SliceGrad",
        _slice_grad_infer,
        _slice_grad_lower,
        domain=MS,
        calls=(strided_copy, *MAP_KERNELS),
    ),
)
