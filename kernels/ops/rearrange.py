"""Rearrangements composed of other ops: none has a kernel of its own.

Forward   DepthToSpace, SpaceToDepth: Reshape, Transpose, Reshape
          ReverseSequence: GatherND by (t', b), t' = len_b - 1 - t where t < len_b, otherwise t
          CenterCropPad: Slice, then Pad, of the middle
          Compress: Gather of the indices where a constant condition holds
          Col2Im: GatherGrad, the sum of all columns' elements at their places of the padded image,
          then Slice
Backward  of the ops that they expand to
Error     Col2Im: as sums; the others none
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from engine.base.aliases import Array
from engine.kernels.ops.shape import i64s, normalise_axes, unsqueeze
from engine.kernels.vocabulary.facts import Samples
from engine.kernels.vocabulary.op import MS, Dim, Nodes, Op, Site, TensorType
from engine.kernels.vocabulary.shape_rules import make_symbol, normalise_axis

# --- sizes that may not be known yet: a number, or the name of a tensor of one element

Size = int | str
LARGEST = 1 << 24  # places of an image, whose index stands in the plan


def _read_size(nodes: Nodes, i: int, axis: int) -> Size:
    """Return a dimension of input i."""
    d = nodes.site.type(i).shape[axis]
    if isinstance(d, int):
        return d
    return str(nodes.op("Gather", nodes.op("Shape", nodes.x(i)), i64s(nodes, axis)))


def _multiply(nodes: Nodes, size: Size, by: int) -> Size:
    # Known sizes stay numbers, so that planning sees constants; others become nodes.
    return size * by if isinstance(size, int) else str(nodes.op("Mul", size, i64s(nodes, by)))


def _divide(nodes: Nodes, size: Size, by: int) -> Size:
    return size // by if isinstance(size, int) else str(nodes.op("Div", size, i64s(nodes, by)))


def _shape(nodes: Nodes, sizes: Sequence[Size]) -> str:
    """Return the given sizes as one 1-D tensor."""
    if all(isinstance(d, int) for d in sizes):
        return i64s(nodes, *(int(d) for d in sizes))
    return str(
        nodes.op("Concat", *(i64s(nodes, d) if isinstance(d, int) else d for d in sizes), axis=0)
    )


def _scale(site: Site, i: int, d: Dim, up: int = 1, down: int = 1) -> Dim:
    """Return dimension i of the output, d times `up` over `down`."""
    if isinstance(d, str):
        return make_symbol(site, i)
    if d % down:
        site.wrong(f"dimension {i} has {d} elements, which are not divisible by {down}")
    return d * up // down


# --- DepthToSpace, SpaceToDepth

# axes of [N, b, b, C, H, W] and [N, C, b, b, H, W], of [N, C, H, b, W, b]
_TO_SPACE = {"DCR": (0, 3, 4, 1, 5, 2), "CRD": (0, 1, 4, 2, 5, 3)}
_TO_DEPTH = {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)}


def _read_block(site: Site) -> tuple[int, str]:
    mode, b = str(site.attrs["mode"]), int(site.attrs["blocksize"])
    if mode not in _TO_SPACE:
        site.fail(f"mode is {mode!r}", ", ".join(_TO_SPACE))
    if site.type(0).rank != 4 or b < 1:
        site.wrong(
            f"blocksize is {b} and input 0 is {site.type(0)}; expected 1 or more, and rank 4"
        )
    return b, mode


def _to_space_infer(site: Site) -> tuple[TensorType, ...]:
    (b, _), (n, c, h, w) = _read_block(site), site.type(0).shape
    scaled = [_scale(site, 1, c, 1, b * b), _scale(site, 2, h, b), _scale(site, 3, w, b)]
    return (site.type(0).but([n, *scaled]),)


def _to_space(nodes: Nodes) -> tuple[str, ...]:
    b, mode = _read_block(nodes.site)
    n, c, h, w = (_read_size(nodes, 0, i) for i in range(4))
    c = _divide(nodes, c, b * b)
    # The b x b pixels of a block are channels: slowest in DCR (depth first), fastest in CRD.
    apart = [n, b, b, c, h, w] if mode == "DCR" else [n, c, b, b, h, w]
    x = nodes.op(
        "Transpose", nodes.op("Reshape", nodes.x(0), _shape(nodes, apart)), perm=_TO_SPACE[mode]
    )
    return (
        nodes.op(
            "Reshape", x, _shape(nodes, [n, c, _multiply(nodes, h, b), _multiply(nodes, w, b)])
        ),
    )


def _to_depth_infer(site: Site) -> tuple[TensorType, ...]:
    (b, _), (n, c, h, w) = _read_block(site), site.type(0).shape
    scaled = [_scale(site, 1, c, b * b), _scale(site, 2, h, 1, b), _scale(site, 3, w, 1, b)]
    return (site.type(0).but([n, *scaled]),)


def _to_depth(nodes: Nodes) -> tuple[str, ...]:
    b, mode = _read_block(nodes.site)
    n, c, h, w = (_read_size(nodes, 0, i) for i in range(4))
    h, w = _divide(nodes, h, b), _divide(nodes, w, b)
    x = nodes.op("Reshape", nodes.x(0), _shape(nodes, [n, c, h, b, w, b]))
    x = nodes.op("Transpose", x, perm=_TO_DEPTH[mode])
    return (nodes.op("Reshape", x, _shape(nodes, [n, _multiply(nodes, c, b * b), h, w])),)


# --- ReverseSequence


def _reverse_infer(site: Site) -> tuple[TensorType, ...]:
    t = site.type(0)
    if {site.attrs["time_axis"], site.attrs["batch_axis"]} != {0, 1}:
        site.fail(
            f"time_axis is {site.attrs['time_axis']} and batch_axis {site.attrs['batch_axis']}",
            "0 and 1, or 1 and 0",
        )
    if t.rank < 2:
        site.wrong(f"input 0 is {t}; expected rank 2 or more")
    site.shaped(1, [t.shape[site.attrs["batch_axis"]]])
    return (t.but(),)


def _reverse(nodes: Nodes) -> tuple[str, ...]:
    """Return the index of every (t, b), or (b, t), as a pair."""
    batch, time = nodes.site.attrs["batch_axis"], nodes.site.attrs["time_axis"]
    zero, one = (nodes.const(v, "i64") for v in (0, 1))
    lines = [
        nodes.op("Range", zero, nodes.op("Gather", nodes.op("Shape", nodes.x(0)), axis), one)
        for axis in (zero, one)
    ]
    steps, rows = unsqueeze(nodes, lines[time], [batch]), unsqueeze(nodes, lines[batch], [time])
    length = unsqueeze(nodes, nodes.x(1), [time])
    # Inside a row's length the steps run backwards; padding stays where it is.
    mirrored = nodes.op("Sub", nodes.op("Sub", length, one), steps)
    steps = nodes.op("Where", nodes.op("Less", steps, length), mirrored, steps)
    rows = nodes.op("Add", rows, nodes.op("Mul", steps, zero))
    pair = [unsqueeze(nodes, v, [2]) for v in ((steps, rows) if time == 0 else (rows, steps))]
    return (nodes.op("GatherND", nodes.x(0), nodes.op("Concat", *pair, axis=2)),)


# --- CenterCropPad


def _read_center_axes(site: Site) -> list[int]:
    rank = site.type(0).rank
    return [normalise_axis(site, a, rank) for a in site.attrs.get("axes", range(rank))]


def _center_infer(site: Site) -> tuple[TensorType, ...]:
    t, axes, shape = site.type(0), _read_center_axes(site), site.known(1, "the shape")
    normalise_axes(site, axes, t.rank)
    if shape.size != len(axes):
        site.wrong(
            f"the shape (input 1) has {shape.size} numbers; expected {len(axes)}, one per axis"
        )
    dims = list(t.shape)
    for a, d in zip(axes, shape.reshape(-1), strict=True):
        dims[a] = int(d)
    return (t.but(dims),)


def _center(nodes: Nodes) -> tuple[str, ...] | None:
    """Slice, then Pad; None while a size to crop or pad is unknown."""
    site, axes = nodes.site, _read_center_axes(nodes.site)
    own = [site.type(0).shape[a] for a in axes]
    starts, ends, before, after = [], [], [], []
    for have, want in zip(own, site.known(1, "the shape").reshape(-1).tolist(), strict=True):
        if isinstance(have, str):
            return None
        # An odd pixel is cropped or padded at the end.
        starts.append(max(have - want, 0) // 2)
        ends.append(starts[-1] + min(have, want))
        missing = max(want - have, 0)
        before.append(missing // 2)
        after.append(missing - missing // 2)
    x = nodes.op("Slice", nodes.x(0), i64s(nodes, *starts), i64s(nodes, *ends), i64s(nodes, *axes))
    return (nodes.op("Pad", x, i64s(nodes, *before, *after), "", i64s(nodes, *axes)),)


# --- Compress


def _kept(site: Site) -> Array:
    """Return the indices where the constant condition holds."""
    t, axis = site.type(0), site.attrs.get("axis")
    (kept,) = np.nonzero(site.known(1, "the condition").reshape(-1))
    dims = t.shape if axis is None else [t.shape[normalise_axis(site, axis, t.rank)]]
    # A condition may be shorter than the axis, but not hold beyond it.
    limit = math.prod(d for d in dims if isinstance(d, int))
    if len(kept) and kept[-1] >= limit and all(isinstance(d, int) for d in dims):
        site.wrong(
            f"the condition (input 1) is true at {kept[-1]}, but there are only {limit} elements"
        )
    return kept


def _compress_infer(site: Site) -> tuple[TensorType, ...]:
    t, axis = site.type(0), site.attrs.get("axis")
    if axis is None:
        return (t.but([len(_kept(site))]),)
    axis = normalise_axis(site, axis, t.rank)
    return (t.but([*t.shape[:axis], len(_kept(site)), *t.shape[axis + 1 :]]),)


def _compress(nodes: Nodes) -> tuple[str, ...]:
    axis, x = nodes.site.attrs.get("axis"), nodes.x(0)
    if axis is None:
        axis, x = 0, nodes.op("Reshape", x, i64s(nodes, -1))
    return (nodes.op("Gather", x, i64s(nodes, *_kept(nodes.site).tolist()), axis=axis),)


# --- Col2Im


def _find_geometry(site: Site) -> tuple[list[int], list[int], list[tuple[int, int]], list[Array]]:
    """Return image and block sizes, pads of each axis, and the padded place of [tap, window]."""
    image = site.integers(1, "the image's shape")
    block = site.integers(2, "the block's shape")
    rank = len(image)
    strides = site.attrs.get("strides") or [1] * rank
    dilations = site.attrs.get("dilations") or [1] * rank
    flat = site.attrs.get("pads") or [0] * 2 * rank
    if not len(block) == len(strides) == len(dilations) == rank or len(flat) != 2 * rank:
        site.wrong(
            f"image, block, strides, dilations and pads have {rank}, {len(block)}, "
            f"{len(strides)}, {len(dilations)} and {len(flat)} numbers; expected {rank} "
            f"of each, and {2 * rank} pads"
        )
    if min(*image, *block, *strides, *dilations, 1) < 1:
        site.wrong(
            f"image, block, strides and dilations are {image}, {block}, {list(strides)} "
            f"and {list(dilations)}; expected 1 or more"
        )
    if max(math.prod(image), math.prod(block), *map(abs, flat), *strides) >= LARGEST:
        site.wrong(f"the image {image} in blocks of {block} has {LARGEST} places or more")
    pads = list(zip(flat[:rank], flat[rank:], strict=True))
    places = []
    for d, taps, stride, dilation, pad in zip(image, block, strides, dilations, pads, strict=True):
        # The windows that fit into the padded axis.
        count = (d + sum(pad) - dilation * (taps - 1) - 1) // stride + 1
        places.append(np.arange(taps)[:, None] * dilation + np.arange(max(count, 0)) * stride)
    return image, block, pads, places


def _to_image_infer(site: Site) -> tuple[TensorType, ...]:
    t, (image, block, _, places) = site.type(0), _find_geometry(site)
    taps, windows = math.prod(block), math.prod(p.shape[1] for p in places)
    if t.rank != 3:
        site.wrong(f"input 0 is {t}; expected rank 3")
    n, rows, columns = t.shape
    if isinstance(columns, int) and columns != windows:
        site.wrong(f"input 0 has {columns} columns, but the image has {windows} windows")
    return (t.but([n, _scale(site, 1, rows, 1, taps), *image]),)


def _to_image(nodes: Nodes) -> tuple[str, ...]:
    image, block, pads, places = _find_geometry(nodes.site)
    padded = [d + sum(p) for d, p in zip(image, pads, strict=True)]
    index: Array = np.zeros((1, 1), np.int64)
    for d, place in zip(padded, places, strict=True):
        # Places of the axes so far, times this axis, plus its own: flat places in the padded image.
        both = index[:, None, :, None] * d + place[None, :, None, :]
        index = both.reshape(index.shape[0] * place.shape[0], -1)
    n, c = _read_size(nodes, 0, 0), _divide(nodes, _read_size(nodes, 0, 1), math.prod(block))
    lines = nodes.op("Reshape", nodes.x(0), _shape(nodes, [n, c, *index.shape]))
    flat = _shape(nodes, [n, c, math.prod(padded)])
    # Windows overlap, so columns are added up: the gradient of a Gather at these places.
    y = nodes.op("GatherGrad", flat, nodes.const(index, "i64"), lines, domain=MS, axis=2)
    y = nodes.op("Reshape", y, _shape(nodes, [n, c, *padded]))
    if any(map(any, pads)):
        start = [p for p, _ in pads]
        end = [p + d for p, d in zip(start, image, strict=True)]
        y = nodes.op(
            "Slice",
            y,
            i64s(nodes, *start),
            i64s(nodes, *end),
            i64s(nodes, *range(2, 2 + len(image))),
        )
    return (y,)


_SIZES = "Concat Gather Shape"  # of shapes that are not known yet
OPS = (
    *(
        Op(
            name=name,
            infer=shapes,
            expand=nodes,
            attrs={"mode": "DCR"},
            becomes=f"Div Mul Reshape Transpose {_SIZES}",
            samples=Samples.FIRST_AXIS,
        )
        for name, shapes, nodes in (
            ("DepthToSpace", _to_space_infer, _to_space),
            ("SpaceToDepth", _to_depth_infer, _to_depth),
        )
    ),
    Op(
        name="ReverseSequence",
        infer=_reverse_infer,
        expand=_reverse,
        no_gradient=frozenset((1,)),
        becomes=f"Add GatherND Less Mul Range Sub Unsqueeze Where {_SIZES}",
        attrs={"time_axis": 0, "batch_axis": 1},
    ),
    Op(
        name="CenterCropPad",
        infer=_center_infer,
        expand=_center,
        becomes="Pad Slice",
        no_gradient=frozenset((1,)),
    ),
    Op(
        name="Compress",
        infer=_compress_infer,
        expand=_compress,
        becomes="Gather Reshape",
        no_gradient=frozenset((1,)),
    ),
    Op(
        name="Col2Im",
        infer=_to_image_infer,
        expand=_to_image,
        no_gradient=frozenset((1, 2)),
        becomes=f"Div Reshape Slice {MS}::GatherGrad {_SIZES}",
    ),
)
