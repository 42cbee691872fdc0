"""DeformConv: convolution whose taps are moved by offsets and weighted by masks.

Forward   Y[n, o] = B + sum_k W_k (mask[n, k, o] X[n](o s - p + k d + offset[n, k, o])), X linear
          between its pixels and 0 outside: a GridSample of all taps, and a Conv that sums them
Backward  through these
Error     theirs; places of taps are rounded as parts of the image
Source    Zhu et al., "Deformable ConvNets v2", 2018
"""

from __future__ import annotations

import numpy as np

from engine.element_types import ONNX_CODE
from engine.kernels.loops.window import out_dims
from engine.kernels.ops.shape import i64s, unsqueeze
from engine.kernels.vocabulary.op import Nodes, Op, Site, TensorType


def _infer(s: Site) -> tuple[TensorType, ...]:
    x, w = s.real(0), s.real(1)
    if x.rank != 4 or w.rank != 4:
        s.fail(f"{x.rank - 2} spatial axes", "2")
    groups, parts, (co, per, kh, kw) = s.attrs["group"], s.attrs["offset_group"], w.shape
    if not (isinstance(co, int) and isinstance(kh, int) and isinstance(kw, int)):
        s.fail(f"weights {w}", "weights of known shape")
    if isinstance(x.shape[1], int) and isinstance(per, int) and x.shape[1] != per * groups:
        s.wrong(f"{x.shape[1]} channels in {groups} groups of {per}")
    if co % groups or (isinstance(x.shape[1], int) and x.shape[1] % parts):
        s.wrong(f"{x.shape[1]} channels in {parts} offset groups, {co} outputs in {groups} groups")
    spatial = out_dims(s, x, (kh, kw))
    s.shaped(2, (x.shape[0], 2 * parts * kh * kw, *spatial))
    if s.has(3):
        s.shaped(3, (co,))
    if s.has(4):
        s.shaped(4, (x.shape[0], parts * kh * kw, *spatial))
    return (x.but((x.shape[0], co, *spatial)),)


def _coordinates(g: Nodes, offset: str, axis: int, window: tuple[int, int]) -> str:
    """Where in [-1, 1] the taps are along one axis: [n parts, taps, rows, columns].

    `offset`: of the taps along both axes, [n parts, taps, 2, rows, columns].
    """
    attrs, to = g.site.attrs, ONNX_CODE[g.site.type(0).dtype]
    stride, dilation, pad = (
        int(attrs[name][axis]) if attrs.get(name) else otherwise
        for name, otherwise in (("strides", 1), ("dilations", 1), ("pads", 0))
    )
    taps = np.indices(window)[axis].reshape(-1, 1, 1) * dilation - pad
    scalar = [g.const(np.array(v, np.int64), "i64") for v in (0, 1, axis, axis + 2)]
    size = g.op("Cast", g.op("Gather", g.op("Shape", g.x(0)), scalar[3]), to=to)
    count = g.op("Gather", g.op("Shape", g.x(2)), scalar[3])
    places = g.op("Cast", g.op("Range", scalar[0], count, scalar[1]), to=to)
    line = g.op("Reshape", places, i64s(g, *((-1, 1) if axis == 0 else (1, -1))))
    start = g.op("Add", g.op("Mul", line, g.like(stride, 0)), g.const(taps, g.site.type(0).dtype))
    moved = g.op("Add", g.op("Gather", offset, scalar[2], axis=2), start)
    ends = g.op("Add", g.op("Mul", moved, g.like(2.0, 0)), g.like(1.0, 0))
    return str(g.op("Sub", g.op("Div", ends, size), g.like(1.0, 0)))


def _expand(g: Nodes) -> tuple[str, ...]:
    """Each offset group is an image of its own; taps lie side by side as rows of its samples.

    [n parts, c / parts, taps rows, columns] is then [n, c, taps, rows, columns], which a Conv of
    taps x 1 x 1 sums.
    """
    w, attrs = g.site.type(1), g.site.attrs
    co, per, kh, kw = w.dims
    parts, taps = int(attrs["offset_group"]), kh * kw
    head, tail = (g.op("Slice", g.op("Shape", g.x(i)), i64s(g, a), i64s(g, b))
                  for i, a, b in ((0, 0, 2), (2, 2, 4)))  # fmt: skip
    rows, columns = (g.op("Slice", tail, i64s(g, a), i64s(g, a + 1)) for a in (0, 1))

    def shape(*dims: str | int) -> str:
        ints = [d if isinstance(d, str) else i64s(g, d) for d in dims]
        return str(g.op("Concat", *ints, axis=0))

    offset = g.op("Reshape", g.x(2), shape(-1, taps, 2, tail))
    flat = shape(-1, g.op("Mul", rows, i64s(g, taps)), columns)
    ends = [
        unsqueeze(g, g.op("Reshape", _coordinates(g, offset, axis, (kh, kw)), flat), [3])
        for axis in (1, 0)
    ]
    image = g.op("Slice", g.op("Shape", g.x(0)), i64s(g, 2), i64s(g, 4))
    x = g.op("Reshape", g.x(0), shape(-1, per * int(attrs["group"]) // parts, image))
    taken = g.op("GridSample", x, g.op("Concat", *ends, axis=3), mode=_linear(g))
    if g.site.has(4):
        mask = g.op("Reshape", g.x(4), flat)
        taken = g.op("Mul", taken, unsqueeze(g, mask, [1]))
    columns_of = g.op("Reshape", taken, shape(head, taps, tail))
    weights = g.op("Reshape", g.x(1), i64s(g, co, per, taps, 1, 1))
    bias = [g.x(3)] if g.site.has(3) else []
    y = g.op("Conv", columns_of, weights, *bias, group=attrs["group"])
    return (g.op("Reshape", y, shape(-1, co, tail)),)


def _linear(g: Nodes) -> str:
    """Its name before opset 20."""
    return "linear" if g.site.opset >= 20 else "bilinear"


OPS = (
    Op(
        name="DeformConv",
        infer=_infer,
        expand=_expand,
        becomes="Add Cast Concat Conv Div Gather GridSample Mul Range Reshape Shape Slice Sub "
        "Unsqueeze",
        attrs={"group": 1, "offset_group": 1},
    ),
)
