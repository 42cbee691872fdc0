"""GridSample: images sampled at points; AffineGrid: the points of an affine map.

Forward   Y[n, :, p] = sum_k w_k(G[n, p]) X[n, :, k] over the pixels k around the point, one
          (nearest), two (linear) or four (cubic) along each axis
          AffineGrid G[n, p] = theta[n] (b_p, 1), b_p pixel p of the image [-1, 1]^d
Backward  dX = sum_p w_k dY[n, :, p];  dG = sum_k w_k' (dY[n, :, p] . X[n, :, k]); needs X and G
          a coordinate that the padding moves takes 0 from a border, and turns at a reflection
Error     coordinates in f64, weights and sums in the type of X
Source    ONNX: cubic moves coordinates by the padding before it moves taps
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engine.element_types import ITEMSIZE, ONNX_CODE
from engine.kernels.loops.window import parts, round_up
from engine.kernels.ops.sampling.taps import (
    BORDER,
    REFLECTION,
    SAMPLE_WORDS,
    SCRATCH,
    ZEROS,
    sample,
    sample_dgrid,
    sample_dx,
)
from engine.kernels.ops.shape import fresh, i64s
from engine.kernels.vocabulary.op import OURS, Dim, Grad, Lowering, Nodes, Op, Site, TensorType
from engine.runtime.words import Packed

MODES = {"nearest": 1, "linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}
PADDINGS = {"zeros": ZEROS, "border": BORDER, "reflection": REFLECTION}


def _check(s: Site, i: int) -> tuple[TensorType, TensorType]:
    """Images and points: inputs i and i + 1."""
    x, grid = s.real(i), s.real(i + 1)
    for name, known in (("mode", MODES), ("padding_mode", PADDINGS)):
        if s.attrs[name] not in known:
            s.fail(f"{name} {s.attrs[name]!r}", ", ".join(known))
    if not 4 <= x.rank <= 5:
        s.fail(f"{x.rank - 2} spatial axes", "2 or 3")
    if grid.dtype != x.dtype:
        s.fail(f"{x.dtype} images and {grid.dtype} points", "both of one type")
    s.shaped(i + 1, (x.shape[0], *(fresh(s, a) for a in range(2, x.rank)), x.rank - 2))
    return x, grid


def _infer(s: Site) -> tuple[TensorType, ...]:
    x, grid = _check(s, 0)
    return (x.but((*x.shape[:2], *grid.shape[1:-1])),)


def _words(s: Lowering, x: TensorType, grid: TensorType) -> Packed:
    images, channels, *spatial = x.dims
    rank, points = len(spatial), math.prod(grid.dims[1:-1])
    pieces = parts(s.threads, max(images, 1))
    chunk = round_up(parts(channels, pieces), s.target.lanes(ITEMSIZE[x.dtype]))
    attrs = s.site.attrs
    return SAMPLE_WORDS.pack(
        images=images,
        points=points,
        channels=channels,
        rank=rank,
        size=[*[1] * (3 - rank), *spatial],
        taps=MODES[attrs["mode"]],
        padding=PADDINGS[attrs["padding_mode"]],
        align=attrs["align_corners"],
        chunk=chunk,
    )


def _scratch(s: Lowering, dtype: str) -> list[Any]:
    size = (s.threads * SCRATCH,)
    return [("s", s.temp(dtype, size)), ("s", s.temp("i64", size))]


def _lower(s: Lowering) -> None:
    x, grid, y = s.x(0), s.x(1), s.y(0)
    if y.type.size:
        args: list[Any] = [("r", x), ("r", grid), ("w", y), *_scratch(s, x.type.dtype)]
        s.call(sample(x.type.dtype), args, words=_words(s, x.type, grid.type))


def _grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX, dG = GridSampleGrad(dY, X, G)."""
    names = g.op("GridSampleGrad", dy, g.x(0), g.x(1), domain=OURS, outputs=2, **g.site.attrs)
    return tuple(names[i] if g.wants(i) else None for i in range(2))


def _infer_grad(s: Site) -> tuple[TensorType, ...]:
    x, grid = _check(s, 1)
    s.shaped(0, (*x.shape[:2], *grid.shape[1:-1]))
    return (x.but(), grid.but())[: s.n_outs]


def _lower_grad(s: Lowering) -> None:
    dy, x, grid = s.x(0), s.x(1), s.x(2)
    T, words, rest = x.type.dtype, _words(s, x.type, grid.type), _scratch(s, x.type.dtype)
    points: Any = ("r", grid)
    if s.wants(0) and x.type.size:
        s.call(sample_dx(T), [("r", dy), points, ("w", s.y(0)), *rest], words=words)
    if s.wants(1) and grid.type.size:
        s.call(sample_dgrid(T), [("r", dy), ("r", x), points, ("w", s.y(1)), *rest], words=words)


# --- AffineGrid


def _affine_infer(s: Site) -> tuple[TensorType, ...]:
    theta, rank = s.real(0), s.type(1).size if s.type(1).rank == 1 else 0
    if rank not in (4, 5):
        s.fail(f"input 1 is {s.type(1)}", "4 or 5 numbers: images of 2 or 3 axes")
    s.shaped(0, (theta.shape[0], rank - 2, rank - 1))
    spatial: list[Dim] = [fresh(s, i) for i in range(1, rank - 1)]
    if s.value(1) is not None:
        size = s.integers(1, "the size")
        s.shaped(0, (size[0], rank - 2, rank - 1))
        spatial = list(size[2:])
    return (theta.but((theta.shape[0], *spatial, rank - 2)),)


def _line(g: Nodes, axis: int) -> str:
    """The coordinates of the pixels along spatial axis `axis`: -1 ... 1."""
    to = ONNX_CODE[g.site.type(0).dtype]
    scalar = [g.const(np.array(v, np.int64), "i64") for v in (0, 1)]
    n = g.op("Gather", g.x(1), g.const(np.array(axis + 2, np.int64), "i64"))
    places = g.op("Cast", g.op("Range", scalar[0], n, scalar[1]), to=to)
    size, one, two = g.op("Cast", n, to=to), g.like(1.0, 0), g.like(2.0, 0)
    if g.site.attrs["align_corners"]:
        last = g.op("Max", g.op("Sub", size, one), one)
        return str(g.op("Sub", g.op("Div", g.op("Mul", places, two), last), one))
    ends = g.op("Add", g.op("Mul", places, two), one)
    return str(g.op("Sub", g.op("Div", ends, size), one))


def _affine(g: Nodes) -> tuple[str, ...]:
    """G = theta[:, :, :d] b + theta[:, :, d], b by broadcasting one line an axis."""
    rank = g.site.type(1).shape[0]
    assert isinstance(rank, int)
    d = rank - 2
    columns = g.op(
        "Split", g.x(0), i64s(g, *[1] * (d + 1)), outputs=d + 1, axis=2
    )  # d + 1 times [n, d, 1]
    batch = g.op("Gather", g.op("Shape", g.x(0)), i64s(g, 0))
    shape = g.op("Concat", batch, i64s(g, *[1] * d, d), axis=0)
    whole = g.op("Reshape", columns[d], shape)
    for k in range(d):  # x is the last spatial axis
        axis = d - 1 - k
        line = g.op("Reshape", _line(g, axis), i64s(g, *[1] * (axis + 1), -1, *[1] * (d - axis)))
        whole = g.op("Add", whole, g.op("Mul", g.op("Reshape", columns[k], shape), line))
    return (whole,)


ATTRS = {"mode": "linear", "padding_mode": "zeros", "align_corners": 0}
OPS = (
    Op(
        name="GridSample", attrs=ATTRS, infer=_infer, lower=_lower, calls=(sample,), grad=_grad,
        last=((0,), (0,)),
    ),
    Op(
        name="GridSampleGrad", domain=OURS, attrs=ATTRS, infer=_infer_grad, lower=_lower_grad,
        calls=(sample_dx, sample_dgrid), last=((0, 1), (0,)),
    ),
    Op(
        name="AffineGrid", attrs={"align_corners": 0}, infer=_affine_infer, expand=_affine,
        becomes="Add Cast Concat Div Gather Max Mul Range Reshape Shape Split Sub",
        stop=frozenset((1,)),
    ),
)  # fmt: skip
