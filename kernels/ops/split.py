"""Parts of a tensor: Concat, Split, Slice, and their training forms.

Forward   one copy for each part, between a slice of the whole tensor and another tensor
Backward  Concat: Split of dY;  Split: Concat of the dY, zeros for outputs that are not used;
          Slice: SliceGrad, dY put into zeros at the same places (steps of either sign)
Error     none: bits are copied
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.base.errors import DTypeError
from engine.kernels.loops.map import MAP_KERNELS, lower_map
from engine.kernels.ops.movement import copy, strided_copy
from engine.kernels.ops.shape import i64s, unknown
from engine.kernels.vocabulary.facts import ALIKE, Layout, Movement, Samples, Storage
from engine.kernels.vocabulary.kernel import Template
from engine.kernels.vocabulary.op import MANY, MS, Dim, Grad, Lowering, Nodes, Op, Site, TensorType
from engine.kernels.vocabulary.shape_rules import make_symbol, normalise_axis

# --- Concat


def _list_inputs(site: Site) -> list[TensorType]:
    return [site.type(i) for i in range(len(site.ins))]


def _concat_infer(site: Site) -> tuple[TensorType, ...]:
    types = _list_inputs(site)
    first = types[0]
    axis = normalise_axis(site, site.attrs["axis"], first.rank)
    dims: list[Dim] = list(first.shape)
    for t in types[1:]:
        if t.dtype != first.dtype:
            raise DTypeError(
                f"{site.where()}: inputs are {first} and {t}; expected one element type"
            )
        if t.rank != first.rank:
            site.wrong(f"inputs have ranks {first.rank} and {t.rank}; expected one rank")
        for i, (mine, d) in enumerate(zip(dims, t.shape, strict=True)):
            if i == axis:
                dims[i] = (
                    mine + d
                    if isinstance(mine, int) and isinstance(d, int)
                    else make_symbol(site, i)
                )
            elif isinstance(mine, str):
                dims[i] = d
            elif isinstance(d, int) and d != mine:
                site.wrong(
                    f"inputs have {mine} and {d} elements along axis {i}; expected equal sizes"
                )
    return (first.but(dims),)


def _concat_training_infer(site: Site) -> tuple[TensorType, ...]:
    return (*_concat_infer(site), TensorType("i64", (len(site.ins),)))[: site.n_outs]


def _concat_training(nodes: Nodes) -> tuple[str, ...]:
    """Expand to Concat, and the lengths of the parts along the axis, which SplitTraining reads."""
    axis, parts = nodes.site.attrs["axis"], [nodes.x(i) for i in range(len(nodes.site.ins))]
    y = nodes.op("Concat", *parts, axis=axis)
    if not nodes.wants(1):
        return (y,)
    at = nodes.const([axis], "i64")
    lengths = [nodes.op("Gather", nodes.op("Shape", x), at) for x in parts]
    return y, nodes.op("Concat", *lengths, axis=0)


def _concat_lower(lowering: Lowering) -> None:
    y, types = lowering.y(0), _list_inputs(lowering.site)
    axis = normalise_axis(lowering.site, lowering.site.attrs["axis"], y.type.rank)
    at, started = 0, False
    for i, t in enumerate(types):
        # Each input is copied to its own part of y: the first call writes y, later ones update it.
        start = (0, at * y.type.strides[axis])
        copy(
            lowering,
            lowering.x(i),
            y,
            t.dims,
            (t.strides, y.type.strides),
            start,
            "u" if started else "w",
        )
        at += t.dims[axis]
        # Empty inputs make no call, so the next one is still the first to write.
        started = started or t.size > 0


def _concat_fold(site: Site) -> tuple[Array, ...]:
    values = [site.known(i, "an input") for i in range(len(site.ins))]
    return (np.concatenate(values, site.attrs["axis"]),)


def _concat_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX_i = part i of Split(dY) by the lengths of the inputs; slices when not all are wanted."""
    types = _list_inputs(grad.site)
    if len(types) == 1:
        return (dy,)
    axis = normalise_axis(grad.site, grad.site.attrs["axis"], types[0].rank)
    # Forward: y = x_0, x_1, ... along the axis; so dx_i is part i of dy.
    lengths = [_length(grad, i, t.shape[axis], axis) for i, t in enumerate(types)]
    if all(grad.wants(i) for i in range(len(types))):
        known = [t.shape[axis] for t in types]
        if grad.site.opset >= 13:
            sizes = grad.op("Concat", *lengths, axis=0)
            return tuple(grad.op("Split", dy, sizes, axis=axis, outputs=len(types)))
        if all(isinstance(d, int) for d in known):
            return tuple(grad.op("Split", dy, axis=axis, split=known, outputs=len(types)))
    out: list[str | None] = []
    # Not all gradients are wanted: slices of dy, without copies of the others.
    begin = i64s(grad, 0)
    for i, length in enumerate(lengths):
        end = grad.op("Add", begin, length) if i else length
        out.append(grad.op("Slice", dy, begin, end, i64s(grad, axis)) if grad.wants(i) else None)
        begin = end
    return tuple(out)


def _length(grad: Grad, i: int, length: Dim, axis: int) -> str:
    """Return the length of input i along the axis, as a 1-D tensor."""
    if isinstance(length, int):
        return i64s(grad, length)
    return str(grad.op("Gather", grad.op("Shape", grad.x(i)), i64s(grad, axis)))


# --- Split


def _read_lengths(site: Site) -> list[Dim]:
    """Return the lengths of the parts along the axis."""
    t = site.type(0)
    whole = t.shape[normalise_axis(site, site.attrs["axis"], t.rank)]
    given = site.attrs.get("split")
    if given is None and site.has(1):
        if site.value(1) is None:
            return [f"{site.name}_n{i}" for i in range(site.n_outs)]
        given = site.integers(1, "the split")
    if given is not None:
        parts = list(given)
        if len(parts) != site.n_outs or (isinstance(whole, int) and sum(parts) != whole):
            site.wrong(
                f"split is {parts}; expected {site.n_outs} parts that add up to {whole} elements"
            )
        return list(parts)
    if site.n_outs == 1:
        return [whole]
    if isinstance(whole, str):
        return [f"{site.name}_n{i}" for i in range(site.n_outs)]
    # From opset 18 the last part may be shorter; before, parts are equal.
    each = -(-whole // site.n_outs)
    if site.opset < 18 and site.domain == "" and whole % site.n_outs:
        site.wrong(f"an axis of {whole} elements cannot be split into {site.n_outs} equal parts")
    return [max(min(each, whole - i * each), 0) for i in range(site.n_outs)]


def _split_infer(site: Site) -> tuple[TensorType, ...]:
    t = site.type(0)
    axis = normalise_axis(site, site.attrs["axis"], t.rank)
    return tuple(t.but([*t.shape[:axis], d, *t.shape[axis + 1 :]]) for d in _read_lengths(site))


def _split_lower(lowering: Lowering) -> None:
    x, at = lowering.x(0), 0
    axis = normalise_axis(lowering.site, lowering.site.attrs["axis"], x.type.rank)
    for i, t in enumerate(_split_infer(lowering.site)):
        if lowering.wants(i):
            y, start = lowering.y(i), (at * x.type.strides[axis], 0)
            copy(lowering, x, y, t.dims, (x.type.strides, y.type.strides), start)
        at += t.dims[axis]


def _split_fold(site: Site) -> tuple[Array, ...]:
    ends = list(accumulate(int(d) for d in _read_lengths(site)))
    return tuple(np.split(site.known(0, "the input"), ends[:-1], site.attrs["axis"]))


def _split_grad(grad: Grad, *dys: str | None) -> tuple[str | None, ...]:
    """dX = Concat(dY_i), with zeros where an output has no gradient."""
    # Forward: y_i are parts of x; so dx = the dy_i side by side, zeros for a part nobody reads.
    zero: Array = np.zeros(1, NUMPY[grad.site.type(0).dtype])
    known = (*dys, *[None] * (grad.site.n_outs - len(dys)))
    parts = [
        dy or grad.op("ConstantOfShape", grad.op("Shape", grad.y(i)), value=zero)
        for i, dy in enumerate(known)
    ]
    return (grad.op("Concat", *parts, axis=grad.site.attrs["axis"]), None)


# --- Slice

Window = list[tuple[int, int, int]]  # (start, step, count) of every axis


def _read_bounds(
    site: Site, first: int
) -> tuple[list[int], list[int], list[int], list[int]] | None:
    """Return starts, ends, axes and steps: attributes, or inputs from `first`; None if unknown."""
    if "starts" in site.attrs:
        starts, ends = list(site.attrs["starts"]), list(site.attrs["ends"])
        axes = list(site.attrs.get("axes", range(len(starts))))
        return starts, ends, axes, [1] * len(starts)
    values = [site.value(i) for i in range(first, first + 4)]
    if any(site.has(first + i) and v is None for i, v in enumerate(values)):
        return None
    names = ("starts", "ends", "axes", "steps")
    lists = [
        site.integers(first + i, names[i]) if v is not None else None for i, v in enumerate(values)
    ]
    starts, ends = lists[0] or [], lists[1] or []
    axes = list(range(len(starts))) if lists[2] is None else lists[2]
    steps = [1] * len(starts) if lists[3] is None else lists[3]
    if not len(starts) == len(ends) == len(axes) == len(steps):
        site.wrong(
            f"starts, ends, axes and steps have {len(starts)}, {len(ends)}, {len(axes)} and "
            f"{len(steps)} numbers; expected as many of each"
        )
    if 0 in steps:
        site.wrong(f"steps are {steps}; expected none of 0")
    return starts, ends, axes, steps


def _read_window(site: Site, shape: Sequence[Dim], first: int) -> Window:
    """Return the slice of a tensor of that shape, clamped as ONNX (and Python) clamps."""
    bounds = _read_bounds(site, first)
    if bounds is None:
        site.fail("starts, ends, axes and steps must be constants known before lowering")
    window = [(0, 1, d if isinstance(d, int) else -1) for d in shape]
    for start, end, axis, step in zip(*bounds, strict=True):
        axis = normalise_axis(site, axis, len(shape))
        d = shape[axis]
        if isinstance(d, int):
            # Python clamps starts and ends as ONNX does, for steps of either sign.
            r = range(*slice(start, end, step).indices(d))
            window[axis] = (r.start, step, len(r))
        elif (start, step) != (0, 1) or end < 2**31 - 1:
            window[axis] = (start, step, -2)  # a length that is not known
    return window


def _slice_infer(site: Site) -> tuple[TensorType, ...]:
    t = site.type(0)
    if _read_bounds(site, 1) is None:
        return (t.but([make_symbol(site, i) for i in range(t.rank)]),)
    counts = [count for _, _, count in _read_window(site, t.shape, 1)]
    pairs = enumerate(zip(t.shape, counts, strict=True))
    return (t.but([{-1: d, -2: make_symbol(site, i)}.get(n, n) for i, (d, n) in pairs]),)


def _place(window: Window, strides: Sequence[int]) -> tuple[list[int], int]:
    """Return strides and first element of a window into a tensor."""
    first = sum(start * stride for (start, _, _), stride in zip(window, strides, strict=True))
    return [step * stride for (_, step, _), stride in zip(window, strides, strict=True)], first


def _slice_lower(lowering: Lowering) -> None:
    x, y = lowering.x(0), lowering.y(0)
    steps, first = _place(_read_window(lowering.site, x.type.dims, 1), x.type.strides)
    copy(lowering, x, y, y.type.dims, (steps, y.type.strides), (first, 0))


def _slice_fold(site: Site) -> tuple[Array, ...]:
    x = site.known(0, "the input")
    index = []
    for start, step, count in _read_window(site, x.shape, 1):
        # A backward slice may end before element 0, which Python writes as None.
        end = start + count * step
        index.append(slice(start, end if end >= 0 else None, step) if count else slice(0, 0))
    return (x[tuple(index)],)


def _slice_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = SliceGrad(dY, Shape(X), starts, ends, axes, steps)."""
    site = grad.site
    if "starts" in site.attrs:
        starts, ends, axes, _ = _read_bounds(site, 1) or ([], [], [], [])
        rest = [i64s(grad, *v) for v in (starts, ends, axes)]
    else:
        rest = [grad.x(i) if site.has(i) else "" for i in range(1, len(site.ins))]
    dx = grad.op("SliceGrad", dy, grad.op("Shape", grad.x(0)), *rest, domain=MS)
    return (dx, *[None] * (len(site.ins) - 1))


def _slice_grad_infer(site: Site) -> tuple[TensorType, ...]:
    dtype = site.type(0).dtype
    if site.value(1) is None:
        return (unknown(site, 1, dtype),)
    return (TensorType(dtype, tuple(site.integers(1, "the shape"))),)


def _slice_grad_lower(lowering: Lowering) -> None:
    """Append the calls for dX = 0; dX[window] = dY."""
    dy, dx = lowering.x(0), lowering.y(0)
    window = _read_window(lowering.site, dx.type.dims, 2)
    counts = [count for _, _, count in window]
    if counts != list(dy.type.dims):
        lowering.site.wrong(f"dY is {dy.type}, but the slice has shape {counts}")
    # Forward: y[j] = x[start + j step]; so dx[start + j step] = dy[j], 0 elsewhere.
    steps, first = _place(window, dx.type.strides)
    # A slice of everything writes every element: nothing is cleared before.
    whole = dy.type.size == dx.type.size
    if not whole:
        lower_map(lowering, [("const", 0)], [], [dx])
    copy(lowering, dy, dx, counts, (dy.type.strides, steps), (0, first), "w" if whole else "u")


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

_PARTS = Storage(frozenset({0}), alike=True)  # what is cut, and all pieces
OPS = (
    _op(
        "Concat",
        _concat_infer,
        _concat_lower,
        _concat_fold,
        grad=_concat_grad,
        layout=Layout.ANY,
        samples=Samples.CONCATENATED,
        movement=Movement.JOINED,
        storage=Storage(alike=True),
        is_cheap=True,
    ),
    Op(
        name="ConcatTraining",
        domain=MS,
        inputs=(1, MANY),
        outputs=2,
        needs={"axis": "int"},
        infer=_concat_training_infer,
        expand=_concat_training,
        expands_first=True,
        becomes="Concat Gather Shape",
        training_only=True,
    ),
    _op(
        "Split",
        *_SPLIT,
        grad=_split_grad,
        no_gradient=frozenset((1,)),
        layout=Layout.ANY,
        **_AXIS_0,
        samples=Samples.SPLIT,
        movement=Movement.MOVED,
        storage=_PARTS,
    ),
    _op(
        "SplitTraining",
        *_SPLIT,
        domain=MS,
        inputs=(2, 2),
        outputs=MANY,
        training_only=True,
        layout=Layout.ANY,
        **_AXIS_0,
        movement=Movement.MOVED,
        storage=_PARTS,
    ),
    _op(
        "Slice",
        _slice_infer,
        _slice_lower,
        _slice_fold,
        grad=_slice_grad,
        no_gradient=frozenset((1, 2, 3, 4)),
        layout=Layout.ANY,
        samples=Samples.SLICED,
        movement=Movement.MOVED,
        storage=ALIKE,
        is_cheap=True,
    ),
    _op(
        "SliceGrad",
        _slice_grad_infer,
        _slice_grad_lower,
        domain=MS,
        inputs=(4, 6),
        outputs=1,
        gradient_of="Slice",
        calls=(strided_copy, *MAP_KERNELS),
        storage=ALIKE,
    ),
)
