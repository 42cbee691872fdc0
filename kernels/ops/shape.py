"""Views, and ops that compute with shapes.

Forward   a view has the bytes of its input and another shape; the others are folded with NumPy
          before lowering, because a plan knows every shape
Backward  of a view: dX = Reshape(dY, Shape(X)); nothing flows through a shape
Symbolic  a dimension that follows from symbolic ones is cancelled where that is exact
          (Reshape of [batch,12,5,5] to [-1,300] is [batch,300]), otherwise it gets a fresh symbol
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import OF_NUMPY
from engine.kernels.loops.map import MAP_KERNELS
from engine.kernels.vocabulary.facts import LayoutChoice, Movement, Samples
from engine.kernels.vocabulary.op import MS, Dim, Grad, Nodes, Op, Site, TensorType
from engine.kernels.vocabulary.shape_rules import make_symbol, normalise_axis
from engine.kernels.vocabulary.sizes import make_array

# --- what other families need of shapes


def multiply_dims(site: Site, i: int, dims: Sequence[Dim]) -> Dim:
    """Return the product of dimensions, as dimension i of this node's output."""
    symbols = [d for d in dims if isinstance(d, str)]
    whole = math.prod(d for d in dims if isinstance(d, int))
    # A product with a 0 is 0, whatever its symbols are.
    if not symbols or whole == 0:
        return whole
    return symbols[0] if whole == 1 and len(symbols) == 1 else make_symbol(site, i)


def read_axes(site: Site, i: int = 1) -> list[int] | None:
    """Return `axes`, the attribute or the constant input i; None when absent or empty."""
    if "axes" in site.attrs:
        return list(site.attrs["axes"]) or None
    return (site.integers(i, "axes") if site.has(i) else []) or None


def normalise_axes(site: Site, axes: Sequence[int], rank: int) -> list[int]:
    """Return axes from the front, ascending; ShapeError outside the rank or if repeated."""
    out = sorted(normalise_axis(site, a, rank) for a in axes)
    if len(set(out)) != len(out):
        site.wrong(f"axes {list(axes)} name an axis twice")
    return out


def with_axes(nodes: Nodes, op: str, x: str, axes: Sequence[int], since: int, **attrs: Any) -> str:
    """Emit `op(x, axes)`: the axes are an input from opset `since`, an attribute before."""
    if nodes.site.opset >= since:
        return str(nodes.op(op, x, nodes.const(np.array(axes, np.int64), "i64"), **attrs))
    return str(nodes.op(op, x, axes=list(axes), **attrs))


def unsqueeze(nodes: Nodes, x: str, axes: Sequence[int]) -> str:
    """Emit Unsqueeze as the graph's opset has it."""
    return with_axes(nodes, "Unsqueeze", x, axes, 13)


def reduce_sum(nodes: Nodes, x: str, axes: Sequence[int], keepdims: int = 0) -> str:
    """Emit ReduceSum as the graph's opset has it."""
    return with_axes(nodes, "ReduceSum", x, axes, 13, keepdims=keepdims)


def i64s(nodes: Nodes, *values: int) -> str:
    """Return a 1-D int64 constant."""
    return nodes.const(np.array(values, np.int64), "i64")


def unknown(site: Site, i: int, dtype: str) -> TensorType:
    """Return the type of an output whose shape input i will hold: its length is known."""
    if site.type(i).rank != 1:
        site.wrong(f"input {i} is {site.type(i)}; expected a list")
    (rank,) = site.type(i).shape
    if not isinstance(rank, int):
        site.fail(f"the rank of the result (length of input {i}) is not known")
    return TensorType(dtype, tuple(make_symbol(site, d) for d in range(rank)))


# --- views


def _reshape_infer(site: Site) -> tuple[TensorType, ...]:
    t = site.type(0)
    if site.value(1) is None:
        return (unknown(site, 1, t.dtype),)
    target = site.integers(1, "the shape")
    dims: list[Dim] = []
    for i, d in enumerate(target):
        # 0 copies the input's dimension, unless allowzero says that it means 0.
        if d == 0 and not site.attrs["allowzero"]:
            if i >= t.rank:
                site.wrong(
                    f"shape {target} copies dimension {i} of the input, which has rank {t.rank}"
                )
            dims.append(t.shape[i])
        elif d < -1 or (d == -1 and -1 in dims):
            site.wrong(
                f"shape (input 1) is {target}; expected sizes of 0 or more, and -1 at most once"
            )
        else:
            dims.append(d)
    if -1 in dims:
        at = dims.index(-1)
        dims[at] = _find_rest(site, at, t.shape, [*dims[:at], *dims[at + 1 :]])
    out = t.but(dims)
    if all(isinstance(d, int) for d in (*t.shape, *dims)) and out.size != t.size:
        site.wrong(f"shape {target} needs {out.size} elements, the input has {t.size}")
    return (out,)


def _list_filled(dims: Sequence[Dim]) -> list[int]:
    """Return the dimensions that are known and not 0."""
    return [d for d in dims if isinstance(d, int) and d != 0]


def _find_rest(site: Site, at: int, whole: Sequence[Dim], parts: Sequence[Dim]) -> Dim:
    """Return the missing dimension: the size of `whole` divided by the size of `parts`.

    Dimensions of 0 in both are left out, so that an empty batch gives what any other gives.
    """
    # Symbols that both sides have cancel; a symbol left over makes the quotient unknown.
    left = [d for d in whole if isinstance(d, str)]
    for d in parts:
        if isinstance(d, str):
            if d not in left:
                return make_symbol(site, at)
            left.remove(d)
    size = math.prod(d for d in whole if isinstance(d, int))
    known = math.prod(d for d in parts if isinstance(d, int))
    if not left:
        if known == 0:
            # Both are 0: without the zeros the division is defined again, if both have as many.
            size, known = (math.prod(_list_filled(dims)) for dims in (whole, parts))
            size *= int(
                len(whole) - len(_list_filled(whole)) == len(parts) - len(_list_filled(parts))
            )
        if known == 0 or size % known:
            site.wrong(f"{size} elements cannot be divided into {list(parts)} and -1")
        return size // known
    return left[0] if len(left) == 1 and size == known else make_symbol(site, at)


def _flatten_infer(site: Site) -> tuple[TensorType, ...]:
    t, axis = site.type(0), site.attrs["axis"]
    if not -t.rank <= axis <= t.rank:
        site.wrong(f"axis is {axis}, but the input has rank {t.rank}")
    # An axis of `rank` is allowed: then all dimensions are in front of it.
    cut = axis + t.rank if axis < 0 else axis
    return (t.but((multiply_dims(site, 0, t.shape[:cut]), multiply_dims(site, 1, t.shape[cut:]))),)


def _squeeze_infer(site: Site) -> tuple[TensorType, ...]:
    t, axes = site.type(0), read_axes(site)
    if axes is None and not site.has(1) and site.attrs.get("axes") is None:
        if any(isinstance(d, str) for d in t.shape):
            site.fail(
                f"input 0 is {t}; the axes to squeeze are neither given nor known", "the input axes"
            )
        return (t.but([d for d in t.shape if d != 1]),)
    normal = normalise_axes(site, axes or [], t.rank)
    for a in normal:
        if isinstance(t.shape[a], int) and t.shape[a] != 1:
            site.wrong(f"axis {a} is to be squeezed, but its size is {t.shape[a]}, not 1")
    return (t.but([d for i, d in enumerate(t.shape) if i not in normal]),)


def _unsqueeze_infer(site: Site) -> tuple[TensorType, ...]:
    t, axes = site.type(0), read_axes(site) or []
    dims = list(t.shape)
    for a in normalise_axes(site, axes, t.rank + len(axes)):
        dims.insert(a, 1)
    return (t.but(dims),)


def _view_fold(infer: Callable[[Site], tuple[TensorType, ...]]) -> Callable[..., Any]:
    def fold(site: Site) -> tuple[Array, ...]:
        (out,) = infer(site)
        return (site.known(0, "the input").reshape(out.dims),)

    return fold


def view_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = Reshape(dY, Shape(X)); a dimension of 0 is meant."""
    # Forward: y has the elements of x in the same order; so dx = dy in x's shape.  An empty batch's
    # 0 must not be read as "copy".
    is_empty = grad.site.opset >= 14 and 0 in grad.site.type(0).shape
    attrs: dict[str, Any] = {"allowzero": 1} if is_empty else {}
    dx = grad.op("Reshape", dy, grad.op("Shape", grad.x(0)), **attrs)
    return (dx, *[None] * (len(grad.site.ins) - 1))


def _choose_view_layout(site: Site, y: TensorType) -> LayoutChoice | None:
    """Return how the shape of another number of pixels is stored: as the input is.

    [N, C, H, W] that is stored as [N, H, W, C] has the bytes of [N, H W, C], for instance.
    """
    x = site.type(0)
    if not x.last:
        return LayoutChoice(last=False)
    return LayoutChoice(last=True) if y.rank >= 3 and y.dims[:2] == x.dims[:2] else None


def _view(
    name: str, infer: Callable[[Site], tuple[TensorType, ...]], **attrs: Any
) -> Op:  # an op whose only tensor is input 0
    return Op(
        name=name,
        infer=infer,
        is_view=True,
        layout=_choose_view_layout,
        movement=Movement.KEPT,
        samples=Samples.KEPT,
        attrs=attrs,
        grad=view_grad,
        no_gradient=frozenset((1,)),
        fold=_view_fold(infer),
    )


def _identity_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = dY."""
    return (dy,)


# --- ops that are folded


def infer_nothing(*values: Array) -> tuple[TensorType, ...]:
    return tuple(TensorType(OF_NUMPY[v.dtype], v.shape) for v in values)


def _read_range(site: Site) -> range:
    rank = site.type(0).rank
    return range(*slice(site.attrs.get("start"), site.attrs.get("end")).indices(rank))


def _shape_fold(site: Site) -> tuple[Array, ...]:
    return (make_array([site.type(0).dims[i] for i in _read_range(site)], np.int64),)


def _constant_fold(site: Site) -> tuple[Array, ...]:
    for name, dtype in (("float", np.float32), ("int", np.int64)):
        for key in (f"value_{name}", f"value_{name}s"):
            if key in site.attrs:
                return (np.array(site.attrs[key], dtype),)
    if "value" not in site.attrs:
        site.fail(
            f"the value is given as {', '.join(site.attrs) or 'nothing'}",
            "value, value_float(s), value_int(s)",
        )
    return (np.asarray(site.attrs["value"]),)


def _gradient_axes(site: Site) -> tuple[Array, ...]:
    """Return, for each of two shapes, the axes along which it was broadcast, the last first."""
    shapes = [site.integers(i, "a shape") for i in (0, 1)]
    rank = max(map(len, shapes))
    a, b = ([-1] * (rank - len(shape)) + shape for shape in shapes)
    # -1 marks axes that one shape lacks; a shape was broadcast where it lacks the axis or has 1.
    pairs = list(enumerate(zip(a, b, strict=True)))
    left = [i for i, (x, y) in pairs if x != y and (x == -1 or (x == 1 and y != -1))]
    right = [i for i, (x, y) in pairs if x != y and (y == -1 or (y == 1 and x != -1))]
    return np.array(left[::-1], np.int64), np.array(right[::-1], np.int64)


def _gradient_axes_infer(site: Site) -> tuple[TensorType, ...]:
    if site.value(0) is None or site.value(1) is None:
        return tuple(TensorType("i64", (f"{site.name}_n{i}",)) for i in (0, 1))
    return infer_nothing(*_gradient_axes(site))


OPS = (
    _view("Reshape", _reshape_infer, allowzero=0),
    _view("Flatten", _flatten_infer, axis=1),
    _view("Squeeze", _squeeze_infer),
    _view("Unsqueeze", _unsqueeze_infer),
    Op(
        name="Identity",
        infer=lambda site: (site.type(0).but(),),
        is_view=True,
        layout=_choose_view_layout,
        grad=_identity_grad,
        fold=lambda site: (site.known(0, "the input"),),
        calls=MAP_KERNELS,  # where an output of the graph needs bytes of its own
        samples=Samples.ELEMENTWISE,
        movement=Movement.KEPT,
    ),
    Op(
        name="Shape",
        infer=lambda site: (TensorType("i64", (len(_read_range(site)),)),),
        fold=_shape_fold,
        no_gradient=frozenset((0,)),
        type_only=frozenset((0,)),
    ),
    Op(
        name="Size",
        infer=lambda site: (TensorType("i64", ()),),
        no_gradient=frozenset((0,)),
        fold=lambda site: (make_array(site.type(0).size, np.int64),),
        type_only=frozenset((0,)),
    ),
    Op(
        name="Constant",
        infer=lambda site: infer_nothing(*_constant_fold(site)),
        fold=_constant_fold,
    ),
    Op(
        name="BroadcastGradientArgs",
        domain=MS,
        inputs=(2, 2),
        outputs=2,
        training_only=True,
        infer=_gradient_axes_infer,
        fold=_gradient_axes,
        no_gradient=frozenset((0, 1)),
    ),
)
