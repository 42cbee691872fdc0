"""Resize, Upsample, and their gradient.

Forward   along each axis Y[o] = sum_i w(i - x(o)) X[clip(i)], with x(o) by the coordinate mode and
          w a box (nearest), a hat (linear) or Keys' cubic, widened by 1 / scale where antialiased
          of integers, linear Y is computed in float32, and its fraction is cut off, as ONNX's
          reference and onnxruntime do (its QOperator format resizes quantised images so)
Backward  dX = the transposed sums of dY; needs nothing but shapes
Halves    images and their gradients; sums along both axes are float32 and are rounded once
Error     weights are rounded to the type of X, sums are short: some ulps;  nearest is exact
Source    Keys, "Cubic convolution interpolation", 1981; tables of weights per axis, made when the
          shapes are known (resample.py)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.base import limits
from engine.base.aliases import Array
from engine.base.element_types import FLOATS, ONNX_CODE
from engine.kernels.loops.map import MAP_KERNELS, lower_map
from engine.kernels.ops.index.gather import gather, take
from engine.kernels.ops.sampling.resample import SparseMatrix, lower_resample, resample
from engine.kernels.vocabulary.facts import ChannelsLast, Samples, Storage
from engine.kernels.vocabulary.op import (
    MS,
    OURS,
    Dim,
    Grad,
    Lowering,
    Nodes,
    Op,
    Operand,
    Site,
    TensorType,
    find_stored,
)
from engine.kernels.vocabulary.shape_rules import make_symbol, normalise_axis

_INTEGERS = ("i8", "u8", "i32")  # that linear interpolation takes, as in onnxruntime
LONGEST = 1 << 24  # elements of an axis: its weights are a table that stands in the plan
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_crop_and_resize",
)  # fmt: skip
NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """The resizing of one axis; `begin`, `end` of the region are fractions of the input."""

    size: int
    out: int
    scale: float
    begin: float = 0.0
    end: float = 1.0


# --- tables


def _find_coordinates(mode: str, a: Stretch) -> Array:
    """x(o): where the outputs lie between the inputs."""
    # In double: a coordinate that is off by one rounding may choose another pixel.
    o, whole, last = np.arange(a.out, dtype=np.float64), a.scale * a.size, a.size - 1
    if mode == "asymmetric":
        return o / a.scale
    if mode == "align_corners":
        return np.zeros(a.out) if whole == 1 else o * last / (whole - 1)
    if mode == "tf_crop_and_resize":
        span = (a.end - a.begin) * last
        return a.begin * last + (span / 2 + 0 * o if whole == 1 else o * span / (whole - 1))
    if mode == "pytorch_half_pixel" and whole == 1:
        return np.full(a.out, -0.5)
    shift = a.size / 2 * (1 - a.out / whole) if mode == "half_pixel_symmetric" else 0.0
    return shift + (o + 0.5) / a.scale - 0.5


def _weigh_cubic(t: Array, c: float) -> Array:
    """Keys' kernel at distance t."""
    t = np.abs(t)
    near = ((c + 2) * t - (c + 3)) * t * t + 1
    far = ((c * t - 5 * c) * t + 8 * c) * t - 4 * c
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


def _nearest_index(site: Site, a: Stretch) -> Array:
    """Return the input that each output copies; -1 where it takes the extrapolation value."""
    mode, rounding = (
        site.attrs["coordinate_transformation_mode"],
        NEAREST[site.attrs["nearest_mode"]],
    )
    x = _find_coordinates(mode, a)
    # Outputs beyond the edge copy the edge, unless the mode crops: then they take a value.
    index = np.clip(rounding(x), 0, a.size - 1).astype(np.int64)
    outside = (x < 0) | (x > a.size - 1)
    return np.where(outside, -1, index) if mode == "tf_crop_and_resize" else index


def _make_table(site: Site, a: Stretch) -> SparseMatrix:
    """Return the weights of one axis.

    Raises:
        LimitError: they would take too many bytes.
    """
    # Antialiased: a window widened by 1 / scale, so that every input counts.
    shrink = min(a.scale, 1.0) if site.attrs["antialias"] else 1.0
    radius = {"nearest": 0.5, "linear": 1}.get(site.attrs["mode"], 2)
    taps = math.ceil(2 * radius / shrink) + 1
    nbytes = 40 * taps * int(a.out)  # five tables of 64 bits while they are made
    limits.check("CONSTANT_BYTES", nbytes, site.where, "the weights of an axis take")
    out, mode = np.arange(a.out), site.attrs["coordinate_transformation_mode"]
    if site.attrs["mode"] == "nearest":
        index = _nearest_index(site, a)
        return SparseMatrix.of(a.size, a.out, out, index, (index >= 0).astype(np.float64))
    x = _find_coordinates(mode, a)
    first = math.floor(-radius / shrink) + 1
    base = np.ceil(x) - 1  # the last input before x
    index = base[:, None] + np.arange(first, 2 - first)
    away = shrink * (index - x[:, None])
    if radius == 1:
        weight = np.clip(1 - np.abs(away), 0, 1)
    else:
        weight = _weigh_cubic(away, float(site.attrs["cubic_coeff_a"]))
    if site.attrs["exclude_outside"]:
        # Inputs outside the image count nothing; the others are scaled up for them below.
        weight = np.where((index < 0) | (index > a.size - 1), 0.0, weight)
    # Weights are normalised: their sum differs from 1 where inputs are left out or the window is
    # widened.
    total = weight.sum(1, keepdims=True)
    weight /= np.where(total == 0, 1.0, total)
    if mode == "tf_crop_and_resize":
        weight[(x < 0) | (x > a.size - 1)] = 0.0
    # Otherwise inputs outside are the edge's: their weights add up there.
    index = np.clip(index, 0, a.size - 1).astype(np.int64)
    row = np.broadcast_to(out[:, None], index.shape)
    return SparseMatrix.of(a.size, a.out, row.reshape(-1), index.reshape(-1), weight.reshape(-1))


# --- attributes and shapes


def _check(site: Site) -> None:
    """Refuse attributes whose meaning is unknown."""
    for name, known in (
        ("mode", ("nearest", "linear", "cubic")),
        ("coordinate_transformation_mode", COORDINATES),
        ("nearest_mode", tuple(NEAREST)),
        ("keep_aspect_ratio_policy", ("stretch", "not_larger", "not_smaller")),
    ):
        if site.attrs[name] not in known:
            site.fail(f"{name} is {site.attrs[name]!r}", ", ".join(known))
    if site.attrs["antialias"] and site.attrs["mode"] == "nearest":
        site.fail("antialias is 1 and mode is 'nearest'", "antialias in the modes linear and cubic")


def _read_axes(site: Site, rank: int) -> list[int]:
    """Return the axes that `roi`, `scales` and `sizes` speak of, in their order."""
    given = site.attrs.get("axes")
    return [normalise_axis(site, a, rank) for a in given] if given else list(range(rank))


def _is_given(site: Site, i: int) -> bool:
    """Return whether input i is there and not the empty tensor that stands for none."""
    return site.has(i) and site.type(i).shape != (0,)


def _find_stretches(
    site: Site, x: TensorType, at: int
) -> dict[int, tuple[Dim, float | None]] | None:
    """Return (size, scale) of the output along each axis; None if they are not constants yet.

    `at` is the place of `scales` among the inputs; `sizes` follow.
    """
    axes = _read_axes(site, x.rank)
    if _is_given(site, at) == _is_given(site, at + 1):
        site.fail(
            f"scales and sizes are {'both' if _is_given(site, at) else 'not'} given",
            "one of the two",
        )
    is_scaled = _is_given(site, at)
    value = site.value(at if is_scaled else at + 1)
    if value is None:
        return None
    wanted = [float(v) for v in value.reshape(-1)]
    if len(wanted) != len(axes):
        site.wrong(
            f"{'scales' if is_scaled else 'sizes'} has {len(wanted)} numbers; expected "
            f"{len(axes)}, one per axis"
        )
    if not all(0 < v < LONGEST for v in wanted):
        title = f"scales are {wanted}" if is_scaled else f"sizes are {[int(v) for v in wanted]}"
        site.wrong(f"{title}; expected numbers above 0 and below {LONGEST}")
    if is_scaled:
        return {a: _scale(site, a, x.shape[a], v) for a, v in zip(axes, wanted, strict=True)}
    return _stretch_to_sizes(site, x, dict(zip(axes, map(int, wanted), strict=True)))


def _scale(site: Site, axis: int, d: Dim, scale: float) -> tuple[Dim, float]:
    if isinstance(d, str):
        return d if scale == 1 else make_symbol(site, axis), scale
    return math.floor(np.float32(d) * np.float32(scale)), scale  # in f32, as ONNX does


def _stretch_to_sizes(
    site: Site, x: TensorType, sizes: dict[int, int]
) -> dict[int, tuple[Dim, float | None]] | None:
    """Do the same as `_find_stretches`, for sizes, which keep_aspect_ratio_policy may change."""
    known = {a: (n, x.shape[a]) for a, n in sizes.items()}
    if any(d == 0 for _, d in known.values()):
        site.wrong(f"input 0 is {x}, which has no elements to resize")
    scales = {a: n / d if isinstance(d, int) else None for a, (n, d) in known.items()}
    if site.attrs["keep_aspect_ratio_policy"] == "stretch":
        return {a: (sizes[a], scales[a]) for a in sizes}
    known_scales = [v for v in scales.values() if v is not None]
    if len(known_scales) < len(scales):
        return None
    # One scale for all axes: the smallest that fits inside the sizes, or the largest that covers
    # them.
    smallest = site.attrs["keep_aspect_ratio_policy"] == "not_larger"
    scale = min(known_scales) if smallest else max(known_scales)
    return {a: (int(scale * x.dims[a] + 0.5), scale) for a in sizes}


def _infer_out(site: Site, x: TensorType, at: int) -> tuple[Dim, ...]:
    """Return the shape of the output."""
    stretches = _find_stretches(site, x, at)
    axes = _read_axes(site, x.rank)
    if stretches is None:
        return tuple(make_symbol(site, a) if a in axes else d for a, d in enumerate(x.shape))
    out = tuple(stretches[a][0] if a in stretches else d for a, d in enumerate(x.shape))
    if any(isinstance(d, int) and d >= LONGEST for d in out):
        site.wrong(
            f"the output would have the shape {list(out)}; expected fewer than {LONGEST} "
            "elements along an axis"
        )
    return out


def _plan_axes(site: Site, x: TensorType, y: TensorType, at: int) -> dict[int, Stretch]:
    """Return how each changing axis is resized; by the ratio of the shapes if nothing says it."""
    axes, roi = _read_axes(site, x.rank), None
    crops = site.attrs["coordinate_transformation_mode"] == "tf_crop_and_resize"
    if crops:
        # The region is a constant: the tables of weights are made of it.
        roi = site.known(at - 1, "roi")
        if roi.size != 2 * len(axes):
            site.wrong(f"roi has {roi.size} numbers; expected 2 for each of {len(axes)} axes")
        roi = roi.reshape(2, -1).astype(np.float64)
    given = _find_stretches(site, x, at) if _is_given(site, at) or _is_given(site, at + 1) else None
    out = {}
    for i, axis in enumerate(axes):
        size, into = x.dims[axis], y.dims[axis]
        scale = given[axis][1] if given else into / size
        ends = (float(roi[0, i]), float(roi[1, i])) if roi is not None else (0.0, 1.0)
        if scale is not None and (scale != 1 or size != into or ends != (0.0, 1.0)):
            out[axis] = Stretch(size, into, scale, *ends)
    return out


# --- Resize


def _infer(site: Site) -> tuple[TensorType, ...]:
    _check(site)
    x, mode = site.type(0), site.attrs["mode"]
    if mode != "nearest" and x.dtype not in FLOATS and not _cuts_fractions(site):
        wide = ", with antialiasing or cropping" if mode == "linear" else ""
        site.fail(
            f"the image is {x.dtype} and mode is {mode!r}{wide}",
            "f32, f64; i8, u8, i32 in mode linear without antialiasing and cropping; any type in "
            "mode nearest",
        )
    return (x.but(_infer_out(site, x, 2)),)


def _cuts_fractions(site: Site) -> bool:
    """Return whether integers are interpolated: by means, which their type holds."""
    attrs = site.attrs
    is_mean = attrs["mode"] == "linear" and not attrs["antialias"]
    is_whole = attrs["coordinate_transformation_mode"] != "tf_crop_and_resize"
    return is_mean and is_whole and site.type(0).dtype in _INTEGERS


def _expand(nodes: Nodes) -> tuple[str, ...] | None:
    site = nodes.site
    if not _cuts_fractions(site):
        return None
    x = nodes.op("Cast", nodes.x(0), to=ONNX_CODE["f32"])
    rest = [nodes.x(i) if site.has(i) else "" for i in range(1, len(site.ins))]
    y = nodes.op("Resize", x, *rest, **site.attrs)
    return (nodes.op("Cast", y, to=ONNX_CODE[site.type(0).dtype]),)


def _lower(lowering: Lowering) -> None:
    x, y = lowering.x(0), lowering.y(0)
    if not y.type.size:
        return
    if not x.type.size:
        lowering.site.wrong(f"input 0 is {x.type}, which has no elements to resize")
    plans, fill = (
        _plan_axes(lowering.site, x.type, y.type, 2),
        float(lowering.site.attrs["extrapolation_value"]),
    )
    if not plans:
        lower_map(lowering, [("in", 0)], [x], [y])
    elif find_stored(x)[0] in FLOATS:
        lower_resample(
            lowering, x, y, {a: _make_table(lowering.site, p) for a, p in plans.items()}, fill
        )
    else:
        _lower_nearest(lowering, x, y, plans)


def _lower_nearest(lowering: Lowering, x: Operand, y: Operand, plans: dict[int, Stretch]) -> None:
    """Append calls that copy elements of any type, along one axis after the other."""
    order = x.type.order
    dims = [x.type.dims[axis] for axis in order]
    for i, (axis, plan) in enumerate(plans.items()):
        place, index = order.index(axis), _nearest_index(lowering.site, plan)
        if index.min() < 0:
            lowering.site.fail(f"the image is {x.type.dtype} and extrapolated", "f32, f64")
        walk = (math.prod(dims[:place]), plan.size, math.prod(dims[place + 1 :]))
        dims[place] = plan.out
        out = y if i == len(plans) - 1 else lowering.temp(x.type.dtype, dims)
        take(lowering, x, lowering.const(index), out, walk)
        x = out


def _grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX = ResizeGrad(dY, X, roi, scales), with the sizes too where they are given."""
    ins = [grad.x(i) if grad.site.has(i) else "" for i in range(1, len(grad.site.ins))]
    domain = MS if len(ins) < 3 else OURS
    dx = grad.op("ResizeGrad", dy, grad.x(0), *ins, domain=domain, **grad.site.attrs)
    return (dx, *[None] * len(ins))


def _infer_grad(site: Site) -> tuple[TensorType, ...]:
    _check(site)
    site.real(0)
    x = site.type(1)
    if x.rank and 0 in site.type(0).shape and 0 not in x.shape:
        site.wrong(f"input 0 is {site.type(0)}, which has no elements")
    if site.type(0).rank != x.rank:
        site.wrong(f"input 0 is {site.type(0)}; expected rank {x.rank}")
    site.shaped(
        0,
        _infer_out(site, x, 3) if _is_given(site, 3) or _is_given(site, 4) else site.type(0).shape,
    )
    return (x.but(),)


def _lower_grad(lowering: Lowering) -> None:
    dy, dx = lowering.x(0), lowering.y(0)
    if not dx.type.size:
        return
    plans = _plan_axes(lowering.site, dx.type, dy.type, 3)
    if plans:
        # Forward: y = T x along each axis; so dx = T^T dy.
        tables = {a: _make_table(lowering.site, p).transpose() for a, p in plans.items()}
        lower_resample(lowering, dy, dx, tables)
    else:
        lower_map(lowering, [("in", 0)], [dy], [dx])


# --- Upsample


def _upsample_infer(site: Site) -> tuple[TensorType, ...]:
    x, scales = site.type(0), site.attrs.get("scales", site.value(1))
    if scales is None:
        return (x.but([make_symbol(site, i) for i in range(x.rank)]),)
    scales = [float(v) for v in np.asarray(scales).reshape(-1)]
    if len(scales) != x.rank:
        site.wrong(f"scales has {len(scales)} numbers; expected {x.rank}, one per axis")
    if not all(0 < v < LONGEST for v in scales):
        site.wrong(f"scales are {scales}; expected numbers above 0 and below {LONGEST}")
    return (x.but([_scale(site, i, x.shape[i], v)[0] for i, v in enumerate(scales)]),)


def _upsample(nodes: Nodes) -> tuple[str, ...]:
    """Upsample is Resize with asymmetric coordinates and the pixel before (floor)."""
    attrs, scales = dict(nodes.site.attrs), nodes.site.attrs.get("scales")
    given = nodes.x(1) if scales is None else nodes.const(scales, "f32")
    y = nodes.op(
        "Resize",
        nodes.x(0),
        "",
        given,
        mode="nearest" if attrs["mode"] == "nearest" else "linear",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    return (y,)


ATTRS = {
    "mode": "nearest", "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.75,
    "exclude_outside": 0, "extrapolation_value": 0.0, "nearest_mode": "round_prefer_floor",
    "antialias": 0, "keep_aspect_ratio_policy": "stretch",
}  # fmt: skip
IMAGE = ChannelsLast((0,), (0,))
_STORAGE = Storage(frozenset({0}), frozenset({0}))  # X and Y, or dY and dX
OPS = (
    Op(
        name="Resize",
        attrs=ATTRS,
        infer=_infer,
        expand=_expand,
        becomes="Resize Cast",
        lower=_lower,
        calls=(resample, gather, *MAP_KERNELS),
        grad=_grad,
        layout=IMAGE,
        keeps_units=True,
        no_gradient=frozenset((1, 2, 3)),
        samples=Samples.RESIZED,
        storage=_STORAGE,
    ),
    *(
        Op(
            name="ResizeGrad",
            domain=domain,
            inputs=(2, 4 if domain == MS else 5),
            outputs=1,
            gradient_of="Resize",
            takes={"axes": "ints"},
            attrs=ATTRS,
            infer=_infer_grad,
            lower=_lower_grad,
            calls=(resample, *MAP_KERNELS),
            layout=IMAGE,
            type_only=frozenset((1, 2, 3, 4)),
            storage=_STORAGE,
        )
        for domain in (MS, OURS)
    ),
    Op(
        name="Upsample",
        attrs={"mode": "nearest"},
        infer=_upsample_infer,
        expand=_upsample,
        becomes="Resize",
        keeps_units=True,
        no_gradient=frozenset((1,)),
        samples=Samples.RESIZED,
    ),
)
