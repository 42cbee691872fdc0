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

from engine.base.element_types import ITEMSIZE, ONNX_CODE
from engine.kernels.loops.window import count_parts, round_up
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
from engine.kernels.ops.shape import i64s
from engine.kernels.vocabulary.facts import ChannelsLast
from engine.kernels.vocabulary.op import OURS, Dim, Grad, Lowering, Nodes, Op, Site, TensorType
from engine.kernels.vocabulary.shape_rules import make_symbol
from engine.plan.words import Packed

MODES = {"nearest": 1, "linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}
PADDINGS = {"zeros": ZEROS, "border": BORDER, "reflection": REFLECTION}


def _check(site: Site, i: int) -> tuple[TensorType, TensorType]:
    """Images and points: inputs i and i + 1."""
    x, grid = site.real(i), site.real(i + 1)
    for name, known in (("mode", MODES), ("padding_mode", PADDINGS)):
        if site.attrs[name] not in known:
            site.fail(f"{name} is {site.attrs[name]!r}", ", ".join(known))
    if not 4 <= x.rank <= 5:
        site.fail(f"the images have {x.rank - 2} spatial axes", "2 or 3")
    if 0 in x.shape[2:]:
        site.wrong(f"the images are {x}, which has no pixels")
    if grid.dtype != x.dtype:
        site.fail(f"the images are {x.dtype} and the points {grid.dtype}", "both of one type")
    site.shaped(i + 1, (x.shape[0], *(make_symbol(site, a) for a in range(2, x.rank)), x.rank - 2))
    return x, grid


def _infer(site: Site) -> tuple[TensorType, ...]:
    x, grid = _check(site, 0)
    return (x.but((*x.shape[:2], *grid.shape[1:-1])),)


def _pack_words(lowering: Lowering, x: TensorType, grid: TensorType) -> Packed:
    images, channels, *spatial = x.dims
    rank, points = len(spatial), math.prod(grid.dims[1:-1])
    # The backward kernel shares images; few of them are cut by channels, in whole vectors.
    pieces = count_parts(lowering.threads, max(images, 1))
    chunk = round_up(count_parts(channels, pieces), lowering.target.lanes(ITEMSIZE[x.dtype]))
    attrs = lowering.site.attrs
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


def _make_scratch(lowering: Lowering, dtype: str) -> dict[str, Any]:
    size = (lowering.threads * SCRATCH,)
    return {"work": lowering.temp(dtype, size), "places": lowering.temp("i64", size)}


def _lower(lowering: Lowering) -> None:
    x, grid, y = lowering.x(0), lowering.x(1), lowering.y(0)
    if y.type.size:
        rest = _make_scratch(lowering, x.type.dtype)
        words = _pack_words(lowering, x.type, grid.type)
        lowering.call(sample(x.type.dtype), x=x, grid=grid, y=y, **rest, g=words)


def _grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX, dG = GridSampleGrad(dY, X, G)."""
    names = grad.op(
        "GridSampleGrad", dy, grad.x(0), grad.x(1), domain=OURS, outputs=2, **grad.site.attrs
    )
    return tuple(names[i] if grad.wants(i) else None for i in range(2))


def _infer_grad(site: Site) -> tuple[TensorType, ...]:
    x, grid = _check(site, 1)
    site.shaped(0, (*x.shape[:2], *grid.shape[1:-1]))
    return (x.but(), grid.but())[: site.n_outs]


def _lower_grad(lowering: Lowering) -> None:
    dy, x, grid = lowering.x(0), lowering.x(1), lowering.x(2)
    T, words = x.type.dtype, _pack_words(lowering, x.type, grid.type)
    rest = _make_scratch(lowering, T)
    if lowering.wants(0) and x.type.size:
        lowering.call(sample_dx(T), dy=dy, grid=grid, dx=lowering.y(0), **rest, g=words)
    if lowering.wants(1) and grid.type.size:
        dgrid = lowering.y(1)
        lowering.call(sample_dgrid(T), dy=dy, x=x, grid=grid, dgrid=dgrid, **rest, g=words)


# --- AffineGrid


def _affine_infer(site: Site) -> tuple[TensorType, ...]:
    theta, rank = site.real(0), site.type(1).size if site.type(1).rank == 1 else 0
    if rank not in (4, 5):
        site.fail(f"input 1 is {site.type(1)}", "4 or 5 numbers: images of 2 or 3 axes")
    site.shaped(0, (theta.shape[0], rank - 2, rank - 1))
    spatial: list[Dim] = [make_symbol(site, i) for i in range(1, rank - 1)]
    if site.value(1) is not None:
        size = site.integers(1, "the size")
        site.shaped(0, (size[0], rank - 2, rank - 1))
        spatial = list(size[2:])
    return (theta.but((theta.shape[0], *spatial, rank - 2)),)


def _line(nodes: Nodes, axis: int) -> str:
    """Return the coordinates of the pixels along spatial axis `axis`: -1 ... 1."""
    to = ONNX_CODE[nodes.site.type(0).dtype]
    scalar = [nodes.const(np.array(v, np.int64), "i64") for v in (0, 1)]
    n = nodes.op("Gather", nodes.x(1), nodes.const(np.array(axis + 2, np.int64), "i64"))
    places = nodes.op("Cast", nodes.op("Range", scalar[0], n, scalar[1]), to=to)
    size, one, two = nodes.op("Cast", n, to=to), nodes.like(1.0, 0), nodes.like(2.0, 0)
    if nodes.site.attrs["align_corners"]:
        # -1 and 1 are the centres of the outermost pixels; a single pixel is at -1.
        last = nodes.op("Max", nodes.op("Sub", size, one), one)
        return str(nodes.op("Sub", nodes.op("Div", nodes.op("Mul", places, two), last), one))
    # -1 and 1 are the edges of the image: pixel p is at (2 p + 1) / size - 1.
    ends = nodes.op("Add", nodes.op("Mul", places, two), one)
    return str(nodes.op("Sub", nodes.op("Div", ends, size), one))


def _affine(nodes: Nodes) -> tuple[str, ...]:
    """G = theta[:, :, :d] b + theta[:, :, d], b by broadcasting one line an axis."""
    rank = nodes.site.type(1).shape[0]
    assert isinstance(rank, int)
    d = rank - 2
    columns = nodes.op(
        "Split", nodes.x(0), i64s(nodes, *[1] * (d + 1)), outputs=d + 1, axis=2
    )  # d + 1 times [n, d, 1]
    batch = nodes.op("Gather", nodes.op("Shape", nodes.x(0)), i64s(nodes, 0))
    shape = nodes.op("Concat", batch, i64s(nodes, *[1] * d, d), axis=0)
    # theta (x, y, 1): a column times one coordinate line each, broadcast, plus the last column.  No
    # grid of coordinates is made.
    whole = nodes.op("Reshape", columns[d], shape)
    for k in range(d):  # x is the last spatial axis
        axis = d - 1 - k
        line = nodes.op(
            "Reshape", _line(nodes, axis), i64s(nodes, *[1] * (axis + 1), -1, *[1] * (d - axis))
        )
        whole = nodes.op(
            "Add", whole, nodes.op("Mul", nodes.op("Reshape", columns[k], shape), line)
        )
    return (whole,)


ATTRS = {"mode": "linear", "padding_mode": "zeros", "align_corners": 0}
OPS = (
    Op(
        name="GridSample",
        attrs=ATTRS,
        infer=_infer,
        lower=_lower,
        calls=(sample,),
        grad=_grad,
        layout=ChannelsLast((0,), (0,)),
    ),
    Op(
        name="GridSampleGrad",
        domain=OURS,
        inputs=(3, 3),
        outputs=2,
        gradient_of="GridSample",
        attrs=ATTRS,
        infer=_infer_grad,
        lower=_lower_grad,
        calls=(sample_dx, sample_dgrid),
        layout=ChannelsLast((0, 1), (0,)),
    ),
    Op(
        name="AffineGrid",
        attrs={"align_corners": 0},
        infer=_affine_infer,
        expand=_affine,
        becomes="Add Cast Concat Div Gather Max Mul Range Reshape Shape Split Sub",
        no_gradient=frozenset((1,)),
    ),
)
