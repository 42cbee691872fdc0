"""Quantisation-aware training: values are rounded, but stay floats.

Forward   FakeQuant y = (clip(round(x / scale) + zero, low, high) - zero) scale, ties to even
          RoundWeights likewise, without zero point, with scales that follow the largest weights
          (PeakScale) or are learned (LearnedScale, scale = initial exp(t)); RoundBias rounds to
          these scales times the activation's; TrackedScale moves a range towards the batch's
Backward  of FakeQuant it passes straight through inside the range:
          dx = dy where low <= round(x / scale) + zero <= high, 0 elsewhere;
          dscale = sum dy (round(x / scale) - x / scale) inside, sum dy (low or high - zero) outside
          RoundWeights likewise; where its scales follow the largest weights, none is outside:
          dx = dy; RoundBias: db = dy; TrackedScale: none
          LearnedScale: dt = dscale / (scale sqrt(N top)), with N elements that a scale rounds in a
          sample; so plain gradient descent moves the scale, to first order, as it does in the
          paper, and t has no unit for any other optimizer
Source    Jacob et al., CVPR 2018; Bengio et al., arXiv 1308.3432; Esser et al., "Learned step size
          quantization", ICLR 2020
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from engine.base.element_types import NUMPY, ONNX_CODE
from engine.kernels.ops.quantization import (
    UNTRAINED,
    check_extent,
    find_limits,
    lay_along,
    saturate,
    spread,
)
from engine.kernels.ops.shape import with_axes
from engine.kernels.vocabulary.facts import Role
from engine.kernels.vocabulary.formula import elementwise, infer
from engine.kernels.vocabulary.op import MS, OURS, Dim, Grad, Kind, Nodes, Op, Site, TensorType
from engine.kernels.vocabulary.shape_rules import normalise_axis


def _fake_infer(site: Site) -> tuple[TensorType, ...]:
    site.real(0), site.real(1)
    return (site.type(0).but(), site.type(0).but(dtype="b1"))[: site.n_outs]


def _fake(nodes: Nodes) -> tuple[str, ...]:
    ins = [nodes.x(i) for i in range(3)]
    attrs: dict[str, Any] = {k: float(nodes.site.attrs[k]) for k in ("quant_min", "quant_max")}
    # The mask says where the value was inside the range: all that the backward pass needs.
    value = nodes.op("FakeQuantValue", *ins, domain=OURS, **attrs)
    return (value, nodes.op("FakeQuantMask", *ins, domain=OURS, **attrs) if nodes.wants(1) else "")


def _fake_grad(grad: Grad, dy: str, *_: str | None) -> tuple[str | None, ...]:
    """dX = dY where the quantised value was in the range, 0 elsewhere; dscale."""
    dx = grad.op("FakeQuantGrad", dy, grad.y(1, "_mask"), domain=MS)
    if not grad.wants(1):
        return (dx, None, None)
    return (dx, grad.op("Div", grad.reduce_to(_weigh_changes(grad, dy, dx), 1), grad.x(1)), None)


def _weigh_changes(grad: Grad, dy: str, dx: str) -> str:
    """dY Y - dX X, whose sum over the elements of a scale is scale dscale"""
    # Y / scale is round(X / scale) inside the range, where dX = dY; outside, where dX = 0, it is
    # the end of the range.
    return str(grad.op("Sub", grad.op("Mul", dy, grad.y(0)), grad.op("Mul", dx, grad.x(0))))


def _round_trip(nodes: Nodes) -> tuple[str, ...]:
    """Expand to FakeQuant, with scale and zero point broadcast to the input's shape."""
    T = nodes.site.type(0).dtype
    zero = (
        nodes.op("Cast", spread(nodes, 2), to=ONNX_CODE[T])
        if nodes.site.has(2)
        else nodes.like(0.0, 0)
    )
    bounds = {k: nodes.site.attrs[k] for k in ("quant_min", "quant_max")}
    return (nodes.op("FakeQuant", nodes.x(0), spread(nodes, 1), zero, domain=MS, **bounds),)


def _round_trip_infer(site: Site) -> tuple[TensorType, ...]:
    for i in (1, 2)[: 1 + site.has(2)]:
        check_extent(site, i)
    return (site.real(0).but(),)


def _check_bits(site: Site) -> None:
    """Refuse bits that weights cannot be rounded with."""
    if not 2 <= site.attrs["bits"] <= 8:
        site.fail(f"bits={site.attrs['bits']}", "2 to 8")


def _find_channels(site: Site, i: int) -> tuple[Dim, ...]:
    """Return the shape of the scales of input i: of the channels on an axis, or of all."""
    if site.attrs["axis"] < 0:
        return ()
    return (site.type(i).shape[normalise_axis(site, site.attrs["axis"], site.type(i).rank)],)


def _peak_infer(site: Site) -> tuple[TensorType, ...]:
    _check_bits(site)
    return (site.real(0).but(shape=_find_channels(site, 0)),)


def _peak(nodes: Nodes) -> tuple[str, ...]:
    """Return the scales that the largest weight of each channel decides."""
    axis = nodes.site.attrs["axis"]
    over = [k for k in range(nodes.site.type(0).rank) if k != axis]
    peak = with_axes(nodes, "ReduceMax", nodes.op("Abs", nodes.x(0)), over, 18, keepdims=0)
    scale = nodes.op("Div", peak, nodes.like(float(find_top(nodes.site.attrs["bits"])), 0))
    # Weights that are all 0 are 0 in any scale, and 1 divides nothing by 0.
    is_none = nodes.op("Equal", scale, nodes.like(0.0, 0))
    return (nodes.op("Where", is_none, nodes.like(1.0, 0), scale),)


def find_top(bits: int) -> int:
    """Return the largest integer of a weight, symmetric about 0: the least one stays unused."""
    return int(2 ** (bits - 1) - 1)


def _round_weights_infer(site: Site) -> tuple[TensorType, ...]:
    _check_bits(site)
    site.shaped(1, _find_channels(site, 0)), site.real(1)
    return (site.real(0).but(),)


def _list_rounding(nodes: Nodes) -> tuple[str, str, str]:
    """Return the weights, their scales in a shape that broadcasts to them, and the zero point."""
    scale, axis = nodes.x(1), nodes.site.attrs["axis"]
    if axis >= 0:
        along = lay_along(axis, nodes.site.type(0).rank)
        scale = nodes.op("Reshape", scale, nodes.const(along, "i64"))
    return nodes.x(0), scale, nodes.like(0.0, 0)


def _find_bounds(nodes: Nodes) -> dict[str, Any]:
    top = float(find_top(nodes.site.attrs["bits"]))
    return {"quant_min": -top, "quant_max": top}


def _round_weights(nodes: Nodes) -> tuple[str, ...]:
    ins = _list_rounding(nodes)
    return (nodes.op("FakeQuantValue", *ins, domain=OURS, **_find_bounds(nodes)),)


def _round_weights_grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dW = dY; if the scales are trained 0 outside the range, and dscale."""
    if not grad.wants(1):
        return (dy, None)
    # Weights are few beside activations: to make their mask again costs less than to keep it.
    mask = grad.op("FakeQuantMask", *_list_rounding(grad), domain=OURS, **_find_bounds(grad))
    dw = grad.op("FakeQuantGrad", dy, mask, domain=MS)
    axis = grad.site.attrs["axis"]
    over = [k for k in range(grad.site.type(0).rank) if k != axis]
    change = _weigh_changes(grad, dy, dw)
    total = grad.op("ReduceSum", change, grad.const(over, "i64"), keepdims=0)
    return (dw, grad.op("Div", total, grad.x(1)))


def _round_bias_infer(site: Site) -> tuple[TensorType, ...]:
    site.real(0), site.real(1), site.real(2)
    return (site.type(0).but(),)


def _round_bias(nodes: Nodes) -> tuple[str, ...]:
    """Round to the product of the scales of the weights and of the activation."""
    # The units in which integer products sum, so that an exported bias is the same number.
    scale = nodes.op("Mul", nodes.x(1), nodes.x(2))
    return (nodes.op("Mul", nodes.op("Round", nodes.op("Div", nodes.x(0), scale)), scale),)


def _learned_infer(site: Site) -> tuple[TensorType, ...]:
    initial, top = site.attrs["initial"], site.attrs["top"]
    wrong = next((k for k, v in enumerate(initial) if not (math.isfinite(v) and v > 0)), None)
    if wrong is not None:
        site.fail(f"initial[{wrong}]={initial[wrong]}", "finite scales above 0")
    if top < 1:
        site.fail(f"top={top}", "1 or more")
    site.shaped(1, (len(initial),))
    if site.attrs["axis"] < 0 and len(initial) != 1:
        site.wrong(f"initial has {len(initial)} scales and axis=-1; expected one")
    shape = _find_channels(site, 0)
    if isinstance(size := (*shape, 1)[0], int) and size != len(initial):
        site.wrong(f"initial has {len(initial)} scales for {size} channels")
    if site.real(1).dtype != site.real(0).dtype:
        site.fail(f"t is {site.type(1)} and the value {site.type(0)}", "one element type")
    return (site.type(1).but(shape=shape),)


def _learned(nodes: Nodes) -> tuple[str, ...]:
    site = nodes.site
    initial = nodes.const(np.array(site.attrs["initial"]), site.type(1).dtype)
    # A power is never 0 or negative, whatever an optimizer makes of t; and decay of t leads back to
    # the scale at the start.
    scale = nodes.op("Mul", initial, nodes.op("Exp", nodes.x(1)))
    if site.attrs["axis"] < 0:
        scale = nodes.op("Reshape", scale, nodes.const(np.zeros(0), "i64"))
    return (scale,)


def _learned_grad(grad: Grad, dscale: str) -> tuple[str | None, ...]:
    """dt = dscale / (scale sqrt(N top))"""
    site, T = grad.site, grad.site.type(1).dtype
    # The loss is a mean over samples, so a sum over them does not grow with their number.
    apart = {0} if site.attrs["samples"] else set[int]()
    apart |= {site.attrs["axis"]} if site.attrs["axis"] >= 0 else set()
    counted = [k for k in range(site.type(0).rank) if k not in apart]
    sizes = grad.op("Gather", grad.op("Shape", grad.x(0)), grad.const(counted, "i64"))
    count = grad.op("Cast", grad.op("ReduceProd", sizes, keepdims=0), to=ONNX_CODE[T])
    root = grad.op("Sqrt", grad.op("Mul", count, grad.like(float(site.attrs["top"]), 1)))
    dt = grad.op("Div", dscale, grad.op("Mul", grad.y(0), root))
    return (None, grad.op("Reshape", dt, grad.const([-1], "i64")))


def _tracked_infer(site: Site) -> tuple[TensorType, ...]:
    T = site.real(0).dtype
    if site.shaped(1, (2,)).dtype != T:
        site.fail(f"the range is {site.type(1)} and the value {site.type(0)}", "one element type")
    momentum = site.attrs["momentum"]
    if not 0 <= momentum <= 1:
        site.fail(f"momentum={momentum}", "0 to 1")
    kind = "i8" if site.attrs["signed"] else "u8"
    made = TensorType(T, ()), TensorType(kind, ()), TensorType(T, (2,))
    return made[: site.n_outs]


def _tracked(nodes: Nodes) -> tuple[str, ...]:
    """Return the scale and the zero point of a range, and in training the range of the batch."""
    attrs, span, batch = nodes.site.attrs, nodes.x(1), ""
    T = nodes.site.type(0).dtype
    if attrs["training_mode"]:
        ends = [nodes.op(op, nodes.x(0), keepdims=0) for op in ("ReduceMin", "ReduceMax")]
        flat = [nodes.op("Reshape", end, nodes.const([1], "i64")) for end in ends]
        batch = nodes.op("Concat", *flat, axis=0)
        momentum = attrs["momentum"]
        kept = nodes.op("Mul", span, nodes.like(momentum, 0))
        span = nodes.op("Add", kept, nodes.op("Mul", batch, nodes.like(1 - momentum, 0)))
    zero, one = nodes.like(0.0, 0), nodes.like(1.0, 0)
    low = nodes.op("Min", nodes.op("ReduceMin", span, keepdims=0), zero)
    high = nodes.op("Max", nodes.op("ReduceMax", span, keepdims=0), zero)
    least, _ = find_limits(kind := "i8" if attrs["signed"] else "u8")
    if attrs["symmetric"]:
        bound = nodes.op("Max", nodes.op("Neg", low), high)
        scale = nodes.op("Div", bound, nodes.like(127.0, 0))
    else:
        scale = nodes.op("Div", nodes.op("Sub", high, low), nodes.like(255.0, 0))
    # A value that is always 0 is 0 in any scale, and 1 divides nothing by 0.
    scale = nodes.op("Where", nodes.op("Equal", scale, zero), one, scale)
    if attrs["symmetric"]:
        return (scale, nodes.const(np.array(least + 128, NUMPY[kind]), kind), batch)
    point = nodes.op("Sub", nodes.like(float(least), 0), nodes.op("Div", low, scale))
    return (scale, saturate(nodes, point, "", T, kind), batch)


_LEVEL = "round(x / scale) + zero"
_INPUTS = "x scale zero"
_ROUNDING: dict[str, Kind] = {"axis": "int", "bits": "int"}
_BOUNDS: dict[str, Kind] = {"quant_min": "float", "quant_max": "float"}
OPS = (
    Op(
        name="FakeQuant",
        domain=MS,
        inputs=(3, 3),
        outputs=2,
        training_only=True,
        infer=_fake_infer,
        expand=_fake,
        grad=_fake_grad,
        becomes=f"{OURS}::FakeQuantMask {OURS}::FakeQuantValue",
        attrs={"quant_min": 0, "quant_max": 255},
        no_gradient=frozenset((2,)),
    ),
    elementwise(
        "FakeQuantGrad",
        "where(mask, dy, 0)",
        inputs="dy mask",
        domain=MS,
        gradient_of=f"{MS}::FakeQuant",
        infer=infer,
    ),
    elementwise(
        "FakeQuantValue",
        f"(min(quant_max, max(quant_min, {_LEVEL})) - zero) * scale",
        inputs=_INPUTS,
        domain=OURS,
        needs=_BOUNDS,
    ),
    elementwise(
        "FakeQuantMask",
        f"and_({_LEVEL} >= quant_min, {_LEVEL} <= quant_max)",
        inputs=_INPUTS,
        domain=OURS,
        needs=_BOUNDS,
    ),
    Op(
        name="PeakScale",
        domain=OURS,
        inputs=(1, 1),
        outputs=1,
        attrs={"axis": -1, "bits": 8},
        takes=_ROUNDING,
        infer=_peak_infer,
        expand=_peak,
        no_gradient=UNTRAINED,
        becomes="Abs Div Equal ReduceMax Where",
    ),
    Op(
        name="LearnedScale",
        domain=OURS,
        inputs=(2, 2),
        outputs=1,
        attrs={"axis": -1, "samples": 0, "top": 127},
        takes={"axis": "int", "samples": "int", "top": "int"},
        needs={"initial": "floats"},
        infer=_learned_infer,
        expand=_learned,
        grad=_learned_grad,
        no_gradient=frozenset((0,)),
        becomes="Exp Mul Reshape",
    ),
    Op(
        name="RoundWeights",
        domain=OURS,
        inputs=(2, 2),
        outputs=1,
        attrs={"axis": -1, "bits": 8},
        takes=_ROUNDING,
        roles={0: Role.WEIGHT},
        infer=_round_weights_infer,
        expand=_round_weights,
        grad=_round_weights_grad,
        becomes=f"Reshape {OURS}::FakeQuantValue",
    ),
    Op(
        name="RoundBias",
        domain=OURS,
        inputs=(3, 3),
        outputs=1,
        roles={0: Role.BIAS},
        infer=_round_bias_infer,
        expand=_round_bias,
        grad=lambda grad, dy: (dy, None, None),
        no_gradient=frozenset((1, 2)),
        becomes="Div Mul Round",
    ),
    Op(
        name="TrackedScale",
        domain=OURS,
        inputs=(2, 2),
        outputs=3,
        attrs={"signed": 0, "symmetric": 0, "momentum": 0.99, "training_mode": 0},
        infer=_tracked_infer,
        expand=_tracked,
        no_gradient=frozenset((0, 1)),
        becomes="Add Cast Clip Concat Div Equal Max Min Mul Neg ReduceMax ReduceMin Reshape Round "
        "Sub Where",
    ),
    Op(
        name="QuantizeDequantize",
        domain=OURS,
        inputs=(3, 3),
        outputs=1,
        needs={"quant_min": "int", "quant_max": "int"},
        infer=_round_trip_infer,
        expand=_round_trip,
        becomes=f"Cast Gather Reshape {MS}::FakeQuant",
        attrs={"axis": 1, "block_size": 0},
        no_gradient=frozenset((2,)),
    ),
)
