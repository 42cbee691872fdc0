"""Normalisation over parts of a tensor, by expansion: over groups and windows of channels, axes.

InstanceNormalization      y = scale h + B for each channel, h standardised over a channel's pixels
GroupNormalization         the same over groups of channels
MeanVarianceNormalization  (x - mean) / (sqrt(var) + 1e-9) over axes
LpNormalization            x / ||x||_p along an axis; 0 stays 0
LRN                        x / (bias + alpha mean of x^2 over `size` channels)^beta
Backward  that of the expansion
Error     layernorm.py
Source    Ulyanov, Vedaldi, Lempitsky, arXiv 1607.08022; Wu, He, arXiv 1803.08494
"""

from __future__ import annotations

from collections.abc import Callable

from engine.kernels.ops.norm.batchnorm import across
from engine.kernels.ops.shape import with_axes
from engine.kernels.vocabulary.op import MS, OURS, Nodes, Op, Site, TensorType, normal_axis


def _standardised(g: Nodes, x: str, parts: int) -> str:
    """x [N, C, ...] as [N, parts, -1], standardised along the last axis.  parts 0: C."""
    flat = g.op("Reshape", x, g.const([0, parts, -1], "i64"))
    attrs = {"axis": -1, "epsilon": g.site.attrs["epsilon"]}
    return str(g.op("Standardize", flat, domain=OURS, **attrs))


def _affine(g: Nodes, h: str, rank: int) -> str:
    """scale h + B, by channels of h, which is of that rank."""
    scaled = g.op("Mul", h, across(g, g.x(1), rank))
    return str(g.op("Add", scaled, across(g, g.x(2), rank)))


def _instance(g: Nodes) -> tuple[str, ...]:
    y = _affine(g, _standardised(g, g.x(0), 0), 3)
    return (g.op("Reshape", y, g.op("Shape", g.x(0))),)


def _group(g: Nodes) -> tuple[str, ...]:
    """Scale and B are of groups before opset 21, of channels from then on."""
    s, shape = g.site, g.op("Shape", g.x(0))
    h = _standardised(g, g.x(0), s.attrs["num_groups"])
    if s.opset < 21:
        return (g.op("Reshape", _affine(g, h, 3), shape),)
    return (_affine(g, g.op("Reshape", h, shape), s.type(0).rank),)


def _group_ms(g: Nodes) -> tuple[str, ...]:
    """com.microsoft's, [N, H, W, C] where channels_last, of channels; activation 1 is SiLU."""
    last = g.site.attrs["channels_last"]
    x = g.op("Transpose", g.x(0), perm=[0, 3, 1, 2]) if last else g.x(0)
    h = _standardised(g, x, g.site.attrs["groups"])
    y = _affine(g, g.op("Reshape", h, g.op("Shape", x)), 4)
    if g.site.attrs["activation"]:
        y = g.op("Mul", y, g.op("Sigmoid", y))
    return (g.op("Transpose", y, perm=[0, 2, 3, 1]) if last else y,)


def _mean_variance(g: Nodes) -> tuple[str, ...]:
    """A variance of 0 is taken as 1e-30: the gradient of its root is infinite, y is 0 with both."""
    axes = g.site.attrs["axes"]
    apart = g.op("Sub", g.x(0), with_axes(g, "ReduceMean", g.x(0), axes, 18, keepdims=1))
    var = with_axes(g, "ReduceMean", g.op("Mul", apart, apart), axes, 18, keepdims=1)
    deviation = g.op("Sqrt", g.op("Max", var, g.like(1e-30, 0)))
    return (g.op("Div", apart, g.op("Add", deviation, g.like(1e-9, 0))),)


def _lp(g: Nodes) -> tuple[str, ...]:
    s = g.site
    axes = [normal_axis(s, s.attrs["axis"], s.type(0).rank)]
    size = with_axes(g, f"ReduceL{s.attrs['p']}", g.x(0), axes, 18, keepdims=1)
    is_zero = g.op("Equal", size, g.like(0.0, 0))
    return (g.op("Div", g.x(0), g.op("Where", is_zero, g.like(1.0, 0), size)),)


def _response(g: Nodes) -> tuple[str, ...]:
    """The mean over channels is that of a pool along them, zeros around counted."""
    a = g.site.attrs
    size = a["size"]
    flat = g.op("Reshape", g.x(0), g.const([0, 0, -1], "i64"))
    turned = g.op("Transpose", g.op("Mul", flat, flat), perm=[0, 2, 1])
    mean = g.op(
        "AveragePool", turned, kernel_shape=[size], pads=[(size - 1) // 2, size // 2],
        count_include_pad=1,
    )  # fmt: skip
    scaled = g.op("Mul", g.op("Transpose", mean, perm=[0, 2, 1]), g.like(a["alpha"], 0))
    power = g.op("Pow", g.op("Add", scaled, g.like(a["bias"], 0)), g.like(a["beta"], 0))
    return (g.op("Reshape", g.op("Div", flat, power), g.op("Shape", g.x(0))),)


# --- shapes


def _images(groups: str, per_group: Callable[[Site], bool]) -> Callable[[Site], tuple[TensorType]]:
    """Shape rule: X [N, C, ...] in groups (that attribute), scale and B of groups or channels."""

    def infer(s: Site) -> tuple[TensorType]:
        x = s.real(0)
        if x.rank < 3:
            s.fail(f"X of rank {x.rank}", "[N, C, pixels...]")
        channels = x.shape[3 if s.attrs.get("channels_last") else 1]
        count = s.attrs.get(groups, 1)
        if count < 1 or (isinstance(channels, int) and channels % count):
            s.wrong(f"{channels} channels in {count} groups")
        for i in (1, 2):
            if s.shaped(i, (count if per_group(s) else channels,)).dtype != x.dtype:
                s.fail(f"input {i} is {s.type(i)} beside X of {x.dtype}", "one element type")
        return (x.but(),)

    return infer


def _infer_ms(s: Site) -> tuple[TensorType]:
    if s.type(0).rank != 4 or s.attrs["activation"] not in (0, 1):
        found = f"X {s.type(0)}, activation {s.attrs['activation']}"
        s.fail(found, "X of rank 4, activation 0 or 1")
    return _images("groups", lambda s: False)(s)


def _infer_lp(s: Site) -> tuple[TensorType]:
    x = s.real(0)
    normal_axis(s, s.attrs["axis"], x.rank)
    if s.attrs["p"] not in (1, 2):
        s.fail(f"p = {s.attrs['p']}", "1 or 2")
    return (x.but(),)


def _infer_axes(s: Site) -> tuple[TensorType]:
    x = s.real(0)
    for axis in s.attrs["axes"]:
        normal_axis(s, axis, x.rank)
    return (x.but(),)


def _infer_response(s: Site) -> tuple[TensorType]:
    x = s.real(0)
    if x.rank < 3 or s.attrs.get("size", 0) < 1:
        s.fail(f"X {x}, size {s.attrs.get('size')}", "[N, C, pixels...], size from 1")
    return (x.but(),)


_STANDARD = f"Add Mul Reshape Shape {OURS}::Standardize"
OPS = (
    Op(
        name="InstanceNormalization", attrs={"epsilon": 1e-5},
        infer=_images("", lambda s: False), expand=_instance, becomes=_STANDARD,
    ),
    Op(
        name="GroupNormalization", since=18, attrs={"epsilon": 1e-5}, expand=_group,
        becomes=_STANDARD,
        infer=_images("num_groups", lambda s: s.opset < 21),
    ),
    Op(
        name="GroupNorm", domain=MS, needs={"groups": "int"}, infer=_infer_ms, expand=_group_ms,
        becomes=f"{_STANDARD} Sigmoid Transpose",
        attrs={"epsilon": 1e-5, "channels_last": 1, "activation": 0},
    ),
    Op(
        name="MeanVarianceNormalization", attrs={"axes": [0, 2, 3]}, infer=_infer_axes,
        expand=_mean_variance, becomes="Add Div Max Mul ReduceMean Sqrt Sub",
    ),
    Op(
        name="LpNormalization", attrs={"axis": -1, "p": 2}, infer=_infer_lp, expand=_lp,
        becomes="Div Equal ReduceL1 ReduceL2 Where",
    ),
    Op(
        name="LRN", attrs={"alpha": 1e-4, "beta": 0.75, "bias": 1.0}, infer=_infer_response,
        expand=_response, becomes="Add AveragePool Div Mul Pow Reshape Shape Transpose",
    ),
)  # fmt: skip
