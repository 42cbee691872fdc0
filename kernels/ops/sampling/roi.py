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

from engine.base.element_types import ITEMSIZE
from engine.kernels.loops.map import MAP_KERNELS
from engine.kernels.loops.window import count_parts, round_up
from engine.kernels.ops.index.gather import wide_index
from engine.kernels.ops.sampling.roi_kernels import (
    ROI_WORDS,
    roi_align,
    roi_align_grad,
    roi_max,
    roi_max_grad,
)
from engine.kernels.vocabulary.facts import ChannelsLast
from engine.kernels.vocabulary.op import OURS, Grad, Lowering, Op, Operand, Site, TensorType
from engine.plan.words import Packed

MODES = {"avg": 0, "max": 1}
COORDINATES = {"output_half_pixel": 0, "half_pixel": 1}


def _images(site: Site, i: int) -> TensorType:
    x = site.real(i)
    if x.rank != 4:
        site.fail(f"the images have {x.rank - 2} spatial axes", "2")
    return x


def _pack_words(
    lowering: Lowering, x: TensorType, y: TensorType, ratio: int = 0, half: int = 0
) -> Packed:
    images, channels, height, width = x.dims
    regions, _, rows, columns = y.dims
    # Threads of the backward kernels share channels, in whole vectors.
    chunk = round_up(
        count_parts(channels, lowering.threads), lowering.target.lanes(ITEMSIZE[x.dtype])
    )
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


def _align_infer(site: Site) -> tuple[TensorType, ...]:
    return (_aligned(site, 0),)


def _aligned(site: Site, i: int) -> TensorType:
    """Return the type of Y, when X, the regions and their images are the inputs from i on."""
    x = _images(site, i)
    regions = site.shaped(i + 1, (site.type(i + 2).shape[0], 4))
    if regions.dtype != x.dtype:
        site.fail(f"the images are {x.dtype} and the regions {regions.dtype}", "both of one type")
    mode, where = site.attrs["mode"], _read_mode(site)
    if mode not in MODES:
        site.fail(f"mode is {mode!r}", ", ".join(MODES))
    if where not in COORDINATES:
        site.fail(f"coordinate_transformation_mode is {where!r}", ", ".join(COORDINATES))
    bins = site.attrs["output_height"], site.attrs["output_width"]
    return x.but((regions.shape[0], x.shape[1], *bins))


def _read_mode(site: Site) -> str:
    """Return the coordinate mode; its default before opset 16 is output_half_pixel."""
    # Our own gradient op always says which mode it means.
    default = "half_pixel" if site.opset >= 16 or site.domain == OURS else "output_half_pixel"
    return str(site.attrs.get("coordinate_transformation_mode", default))


def _align(lowering: Lowering, i: int, y: TensorType) -> tuple[int, dict[str, Any]]:
    """Return whether the kernel takes the maximum, and its regions, scale and words by name."""
    attrs, half = lowering.site.attrs, COORDINATES[_read_mode(lowering.site)]
    words = _pack_words(lowering, lowering.x(i).type, y, int(attrs["sampling_ratio"]), half)
    rest = {
        "rois": lowering.x(i + 1), "batch": wide_index(lowering, i + 2),
        "scale": float(attrs["spatial_scale"]), "g": words,
    }  # fmt: skip
    return MODES[attrs["mode"]], rest


def _align_lower(lowering: Lowering) -> None:
    x, y = lowering.x(0), lowering.y(0)
    if y.type.size:
        largest, rest = _align(lowering, 0, y.type)
        fault = lowering.fault()
        lowering.call(roi_align(x.type.dtype, largest), x=x, y=y, fault=fault, **rest)


def _align_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = RoiAlignGrad(dY, X, rois, batch_indices)."""
    # The mode is written out: the gradient op may stand in a graph of another opset.
    attrs = {**grad.site.attrs, "coordinate_transformation_mode": _read_mode(grad.site)}
    return (
        grad.op("RoiAlignGrad", dy, grad.x(0), grad.x(1), grad.x(2), domain=OURS, **attrs),
        None,
        None,
    )


def _align_grad_infer(site: Site) -> tuple[TensorType, ...]:
    site.shaped(0, _aligned(site, 1).shape)
    return (site.type(1).but(),)


def _align_grad_lower(lowering: Lowering) -> None:
    dy, x, dx = lowering.x(0), lowering.x(1), lowering.y(0)
    if dx.type.size:
        largest, rest = _align(lowering, 1, dy.type)
        kernel, fault = roi_align_grad(dx.type.dtype, largest), lowering.fault()
        lowering.call(kernel, dy=dy, x=x, dx=dx, fault=fault, **rest)


# --- MaxRoiPool


def _pool_infer(site: Site) -> tuple[TensorType, ...]:
    x = _images(site, 0)
    regions = site.shaped(1, (site.type(1).shape[0], 5)).shape[0]
    if site.type(1).dtype != x.dtype:
        site.fail(
            f"the images are {x.dtype} and the regions {site.type(1).dtype}", "both of one type"
        )
    if len(site.attrs.get("pooled_shape", ())) != 2:
        site.fail(f"pooled_shape is {site.attrs.get('pooled_shape')}", "2 numbers")
    return (x.but((regions, x.shape[1], *site.attrs["pooled_shape"])),)


def _pool_lower(lowering: Lowering) -> None:
    if lowering.y(0).type.size:
        _largest(lowering, lowering.x(0), lowering.x(1), lowering.y(0))


def _largest(lowering: Lowering, x: Operand, rois: Operand, y: Operand) -> Operand:
    """Append the call for y; return where in x its elements are."""
    # Made forward too, where nobody reads it: one kernel serves both directions.
    index = lowering.temp("i64", (y.type.size,))
    lowering.call(
        roi_max(x.type.dtype), x=x, rois=rois, y=y, index=index, fault=lowering.fault(),
        scale=float(lowering.site.attrs["spatial_scale"]), g=_pack_words(lowering, x.type, y.type),
    )  # fmt: skip
    return index


def _pool_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = MaxRoiPoolGrad(dY, X, rois)."""
    return (
        grad.op("MaxRoiPoolGrad", dy, grad.x(0), grad.x(1), domain=OURS, **grad.site.attrs),
        None,
    )


def _pool_grad_infer(site: Site) -> tuple[TensorType, ...]:
    site.shaped(0, (site.type(2).shape[0], _images(site, 1).shape[1], *site.attrs["pooled_shape"]))
    return (site.type(1).but(),)


def _pool_grad_lower(lowering: Lowering) -> None:
    dy, x, dx = lowering.x(0), lowering.x(1), lowering.y(0)
    if dx.type.size:
        # Forward kept no index: the maxima are searched again.
        y = Operand(lowering.temp(x.type.dtype, dy.type.dims).name, dy.type)
        index = _largest(lowering, x, lowering.x(2), y)
        words = _pack_words(lowering, x.type, dy.type)
        lowering.call(roi_max_grad(x.type.dtype), dy=dy, index=index, dx=dx, g=words)


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
        layout=ChannelsLast((0,), (0,)),
        no_gradient=frozenset((1, 2)),
    ),
    Op(
        name="RoiAlignGrad",
        domain=OURS,
        inputs=(4, 4),
        outputs=1,
        gradient_of="RoiAlign",
        takes={"coordinate_transformation_mode": "string"},
        attrs=ALIGN,
        infer=_align_grad_infer,
        lower=_align_grad_lower,
        calls=(roi_align_grad, *MAP_KERNELS),
        layout=ChannelsLast((0, 1), (0,)),
    ),
    Op(
        name="MaxRoiPool",
        attrs=SCALE,
        infer=_pool_infer,
        lower=_pool_lower,
        calls=(roi_max,),
        grad=_pool_grad,
        layout=ChannelsLast((0,), (0,)),
        no_gradient=frozenset((1,)),
    ),
    Op(
        name="MaxRoiPoolGrad",
        domain=OURS,
        inputs=(3, 3),
        outputs=1,
        gradient_of="MaxRoiPool",
        needs={"pooled_shape": "ints"},
        attrs=SCALE,
        infer=_pool_grad_infer,
        lower=_pool_grad_lower,
        calls=(roi_max, roi_max_grad),
        layout=ChannelsLast((0, 1), (0,)),
    ),
)
