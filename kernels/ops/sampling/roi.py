"""RoiAlign and MaxRoiPool: regions of images, each pooled into as many bins.

Forward   RoiAlign    Y[r, b] = mean over the samples of bin b of X between its pixels;
                      mode max: the largest product of a pixel and its weight
          MaxRoiPool  Y[r, b] = the largest pixel of bin b
Backward  dX = the sum of dY times the weights of what was averaged, or of what was largest;  none
          flows to the regions
Error     places in f64, weights and sums in the type of X
Source    He et al., "Mask R-CNN", 2017; Girshick, "Fast R-CNN", 2015
"""

from __future__ import annotations

from typing import Any

from engine.element_types import ITEMSIZE
from engine.kernels.loops.map import MAP_KERNELS
from engine.kernels.loops.window import parts, round_up
from engine.kernels.ops.index.gather import wide_index
from engine.kernels.ops.sampling.roi_kernels import (
    ROI_WORDS,
    roi_align,
    roi_align_grad,
    roi_max,
    roi_max_grad,
)
from engine.kernels.vocabulary.op import OURS, Grad, Lowering, Op, Operand, Site, TensorType
from engine.runtime.words import Packed

MODES = {"avg": 0, "max": 1}
COORDINATES = {"output_half_pixel": 0, "half_pixel": 1}


def _images(s: Site, i: int) -> TensorType:
    x = s.real(i)
    if x.rank != 4:
        s.fail(f"{x.rank - 2} spatial axes", "2")
    return x


def _words(s: Lowering, x: TensorType, y: TensorType, ratio: int = 0, half: int = 0) -> Packed:
    images, channels, height, width = x.dims
    regions, _, rows, columns = y.dims
    chunk = round_up(parts(channels, s.threads), s.target.lanes(ITEMSIZE[x.dtype]))
    return ROI_WORDS.pack(
        regions=regions,
        rows=rows,
        columns=columns,
        images=images,
        channels=channels,
        height=height,
        width=width,
        ratio=ratio,
        half=half,
        chunk=chunk,
    )


# --- RoiAlign


def _align_infer(s: Site) -> tuple[TensorType, ...]:
    return (_aligned(s, 0),)


def _aligned(s: Site, i: int) -> TensorType:
    """The type of Y, when X, the regions and their images are the inputs from i on."""
    x = _images(s, i)
    regions = s.shaped(i + 1, (s.type(i + 2).shape[0], 4))
    if regions.dtype != x.dtype:
        s.fail(f"{x.dtype} images and {regions.dtype} regions", "both of one type")
    mode, where = s.attrs["mode"], _coordinates(s)
    if mode not in MODES:
        s.fail(f"mode {mode!r}", ", ".join(MODES))
    if where not in COORDINATES:
        s.fail(f"coordinate_transformation_mode {where!r}", ", ".join(COORDINATES))
    bins = s.attrs["output_height"], s.attrs["output_width"]
    return x.but((regions.shape[0], x.shape[1], *bins))


def _coordinates(s: Site) -> str:
    """The coordinate mode; its default before opset 16 is output_half_pixel."""
    default = "half_pixel" if s.opset >= 16 or s.domain == OURS else "output_half_pixel"
    return str(s.attrs.get("coordinate_transformation_mode", default))


def _align(s: Lowering, i: int, y: TensorType) -> tuple[int, list[Operand], float, Packed]:
    """Whether the kernel takes the maximum, its operands behind x, the scale and the words."""
    attrs, half = s.site.attrs, COORDINATES[_coordinates(s.site)]
    words = _words(s, s.x(i).type, y, int(attrs["sampling_ratio"]), half)
    ins = [s.x(i + 1), wide_index(s, i + 2)]
    return MODES[attrs["mode"]], ins, float(attrs["spatial_scale"]), words


def _align_lower(s: Lowering) -> None:
    x, y = s.x(0), s.y(0)
    if y.type.size:
        largest, ins, scale, words = _align(s, 0, y.type)
        args: list[Any] = [("r", x), *(("r", o) for o in ins), ("w", y), ("u", s.fault())]
        s.call(roi_align(x.type.dtype, largest), args, [scale], words=words)


def _align_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = RoiAlignGrad(dY, X, rois, batch_indices)."""
    attrs = {**g.site.attrs, "coordinate_transformation_mode": _coordinates(g.site)}
    return (g.op("RoiAlignGrad", dy, g.x(0), g.x(1), g.x(2), domain=OURS, **attrs), None, None)


def _align_grad_infer(s: Site) -> tuple[TensorType, ...]:
    s.shaped(0, _aligned(s, 1).shape)
    return (s.type(1).but(),)


def _align_grad_lower(s: Lowering) -> None:
    dy, x, dx = s.x(0), s.x(1), s.y(0)
    if dx.type.size:
        largest, ins, scale, words = _align(s, 1, dy.type)
        args: list[Any] = [("r", dy), ("r", x), *(("r", o) for o in ins), ("w", dx)]
        args.append(("u", s.fault()))
        s.call(roi_align_grad(dx.type.dtype, largest), args, [scale], words=words)


# --- MaxRoiPool


def _pool_infer(s: Site) -> tuple[TensorType, ...]:
    x = _images(s, 0)
    regions = s.shaped(1, (s.type(1).shape[0], 5)).shape[0]
    if s.type(1).dtype != x.dtype:
        s.fail(f"{x.dtype} images and {s.type(1).dtype} regions", "both of one type")
    if len(s.attrs.get("pooled_shape", ())) != 2:
        s.fail(f"pooled_shape {s.attrs.get('pooled_shape')}", "2 numbers")
    return (x.but((regions, x.shape[1], *s.attrs["pooled_shape"])),)


def _pool_lower(s: Lowering) -> None:
    if s.y(0).type.size:
        _largest(s, s.x(0), s.x(1), s.y(0))


def _largest(s: Lowering, x: Operand, rois: Operand, y: Operand) -> Operand:
    """Call for y; returns where in x its elements are."""
    index = s.temp("i64", (y.type.size,))
    args: list[Any] = [("r", x), ("r", rois), ("w", y), ("w", index), ("u", s.fault())]
    scale = float(s.site.attrs["spatial_scale"])
    s.call(roi_max(x.type.dtype), args, [scale], words=_words(s, x.type, y.type))
    return index


def _pool_grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = MaxRoiPoolGrad(dY, X, rois)."""
    return (g.op("MaxRoiPoolGrad", dy, g.x(0), g.x(1), domain=OURS, **g.site.attrs), None)


def _pool_grad_infer(s: Site) -> tuple[TensorType, ...]:
    s.shaped(0, (s.type(2).shape[0], _images(s, 1).shape[1], *s.attrs["pooled_shape"]))
    return (s.type(1).but(),)


def _pool_grad_lower(s: Lowering) -> None:
    dy, x, dx = s.x(0), s.x(1), s.y(0)
    if dx.type.size:
        y = Operand(s.temp(x.type.dtype, dy.type.dims).name, dy.type)
        index = _largest(s, x, s.x(2), y)
        args: list[Any] = [("r", dy), ("r", index), ("w", dx)]
        s.call(roi_max_grad(x.type.dtype), args, words=_words(s, x.type, dy.type))


ALIGN = {
    "mode": "avg", "output_height": 1, "output_width": 1, "sampling_ratio": 0, "spatial_scale": 1.0,
}  # fmt: skip
SCALE = {"spatial_scale": 1.0}
OPS = (
    Op(
        name="RoiAlign",
        attrs=ALIGN,
        infer=_align_infer,
        lower=_align_lower,
        calls=(roi_align, *MAP_KERNELS),
        grad=_align_grad,
        last=((0,), (0,)),
        stop=frozenset((1, 2)),
    ),
    Op(
        name="RoiAlignGrad",
        domain=OURS,
        takes={"coordinate_transformation_mode": "string"},
        attrs=ALIGN,
        infer=_align_grad_infer,
        lower=_align_grad_lower,
        calls=(roi_align_grad, *MAP_KERNELS),
        last=((0, 1), (0,)),
    ),
    Op(
        name="MaxRoiPool",
        attrs=SCALE,
        infer=_pool_infer,
        lower=_pool_lower,
        calls=(roi_max,),
        grad=_pool_grad,
        last=((0,), (0,)),
        stop=frozenset((1,)),
    ),
    Op(
        name="MaxRoiPoolGrad",
        domain=OURS,
        needs={"pooled_shape": "ints"},
        attrs=SCALE,
        infer=_pool_grad_infer,
        lower=_pool_grad_lower,
        calls=(roi_max, roi_max_grad),
        last=((0, 1), (0,)),
    ),
)
