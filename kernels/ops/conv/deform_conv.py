"""DeformConv: convolution whose taps are moved by offsets and weighted by masks.

Forward   Y[n, o] = B + sum_k W_k (mask[n, k, o] X[n](o s - p + k d + offset[n, k, o])), X linear
          between its pixels and 0 outside: a GridSample of all taps, and a Conv that sums them
Backward  through these
Error     theirs; places of taps are rounded as parts of the image
Source    Zhu et al., "Deformable ConvNets v2", 2018
"""

from __future__ import annotations

import numpy as np

from engine.base.element_types import ONNX_CODE
from engine.kernels.loops.window import infer_out_dims
from engine.kernels.ops.shape import i64s, unsqueeze
from engine.kernels.vocabulary.op import Nodes, Op, Site, TensorType


def _infer(site: Site) -> tuple[TensorType, ...]:
    x, w = site.real(0), site.real(1)
    if x.rank != 4 or w.rank != 4:
        site.fail(f"the images have {x.rank - 2} spatial axes", "2")
    groups, parts, (co, per, kh, kw) = site.attrs["group"], site.attrs["offset_group"], w.shape
    if min(groups, parts) < 1:
        site.wrong(f"group={groups} and offset_group={parts}; expected 1 or more")
    if not (isinstance(co, int) and isinstance(kh, int) and isinstance(kw, int)):
        site.fail(f"the weights are {w}", "weights of known shape")
    if isinstance(x.shape[1], int) and isinstance(per, int) and x.shape[1] != per * groups:
        site.wrong(
            f"input 0 has {x.shape[1]} channels, but the weights expect {per * groups}: {per} in "
            f"each of group={groups}"
        )
    if co % groups or (isinstance(x.shape[1], int) and x.shape[1] % parts):
        site.wrong(
            f"{x.shape[1]} input channels must be divisible by offset_group={parts}, and "
            f"{co} output channels by group={groups}"
        )
    spatial = infer_out_dims(site, x, (kh, kw))
    site.shaped(2, (x.shape[0], 2 * parts * kh * kw, *spatial))
    if site.has(3):
        site.shaped(3, (co,))
    if site.has(4):
        site.shaped(4, (x.shape[0], parts * kh * kw, *spatial))
    return (x.but((x.shape[0], co, *spatial)),)


def _coordinates(nodes: Nodes, offset: str, axis: int, window: tuple[int, int]) -> str:
    """Return where in [-1, 1] the taps are along one axis: [n parts, taps, rows, columns].

    `offset`: of the taps along both axes, [n parts, taps, 2, rows, columns].
    """
    attrs, to = nodes.site.attrs, ONNX_CODE[nodes.site.type(0).dtype]
    stride, dilation, pad = (
        int(attrs[name][axis]) if attrs.get(name) else otherwise
        for name, otherwise in (("strides", 1), ("dilations", 1), ("pads", 0))
    )
    # Where tap k of output o looks: o stride - pad + k dilation, moved by its offset.
    taps = np.indices(window)[axis].reshape(-1, 1, 1) * dilation - pad
    scalar = [nodes.const(np.array(v, np.int64), "i64") for v in (0, 1, axis, axis + 2)]
    size = nodes.op("Cast", nodes.op("Gather", nodes.op("Shape", nodes.x(0)), scalar[3]), to=to)
    count = nodes.op("Gather", nodes.op("Shape", nodes.x(2)), scalar[3])
    places = nodes.op("Cast", nodes.op("Range", scalar[0], count, scalar[1]), to=to)
    line = nodes.op("Reshape", places, i64s(nodes, *((-1, 1) if axis == 0 else (1, -1))))
    start = nodes.op(
        "Add",
        nodes.op("Mul", line, nodes.like(stride, 0)),
        nodes.const(taps, nodes.site.type(0).dtype),
    )
    moved = nodes.op("Add", nodes.op("Gather", offset, scalar[2], axis=2), start)
    # GridSample, with align_corners 0, takes pixel p of `size` as (2 p + 1) / size - 1.
    ends = nodes.op("Add", nodes.op("Mul", moved, nodes.like(2.0, 0)), nodes.like(1.0, 0))
    return str(nodes.op("Sub", nodes.op("Div", ends, size), nodes.like(1.0, 0)))


def _expand(nodes: Nodes) -> tuple[str, ...]:
    """Expand to nodes in which each offset group is an image, and taps are rows of its samples.

    [n parts, c / parts, taps rows, columns] is then [n, c, taps, rows, columns], which a Conv of
    taps x 1 x 1 sums.
    """
    w, attrs = nodes.site.type(1), nodes.site.attrs
    co, per, kh, kw = w.dims
    parts, taps = int(attrs["offset_group"]), kh * kw
    head, tail = (
        nodes.op("Slice", nodes.op("Shape", nodes.x(i)), i64s(nodes, a), i64s(nodes, b))
        for i, a, b in ((0, 0, 2), (2, 2, 4))
    )
    rows, columns = (nodes.op("Slice", tail, i64s(nodes, a), i64s(nodes, a + 1)) for a in (0, 1))

    def reshape(*dims: str | int) -> str:
        ints = [d if isinstance(d, str) else i64s(nodes, d) for d in dims]
        return str(nodes.op("Concat", *ints, axis=0))

    # [n, 2 parts taps, rows, columns], along the rows before the columns for each tap.
    offset = nodes.op("Reshape", nodes.x(2), reshape(-1, taps, 2, tail))
    flat = reshape(-1, nodes.op("Mul", rows, i64s(nodes, taps)), columns)
    ends = [
        unsqueeze(
            nodes, nodes.op("Reshape", _coordinates(nodes, offset, axis, (kh, kw)), flat), [3]
        )
        # GridSample wants the coordinate along the width first.
        for axis in (1, 0)
    ]
    image = nodes.op("Slice", nodes.op("Shape", nodes.x(0)), i64s(nodes, 2), i64s(nodes, 4))
    x = nodes.op("Reshape", nodes.x(0), reshape(-1, per * int(attrs["group"]) // parts, image))
    taken = nodes.op("GridSample", x, nodes.op("Concat", *ends, axis=3), mode=_linear(nodes))
    if nodes.site.has(4):
        mask = nodes.op("Reshape", nodes.x(4), flat)
        taken = nodes.op("Mul", taken, unsqueeze(nodes, mask, [1]))
    # As in im2col, but with the taps as an axis, so that a Conv over them has the groups of W.
    columns_of = nodes.op("Reshape", taken, reshape(head, taps, tail))
    weights = nodes.op("Reshape", nodes.x(1), i64s(nodes, co, per, taps, 1, 1))
    bias = [nodes.x(3)] if nodes.site.has(3) else []
    y = nodes.op("Conv", columns_of, weights, *bias, group=attrs["group"])
    return (nodes.op("Reshape", y, reshape(-1, co, tail)),)


def _linear(nodes: Nodes) -> str:
    """Return the name of linear interpolation, which opset 20 changed."""
    return "linear" if nodes.site.opset >= 20 else "bilinear"


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
