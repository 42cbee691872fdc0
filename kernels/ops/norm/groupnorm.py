"""Normalisation over parts of a tensor, by expansion: over groups and windows of channels, axes.

InstanceNormalization      y = scale h + B for each channel, h standardised over a channel's pixels
GroupNormalization         the same over groups of channels
MeanVarianceNormalization  (x - mean) / (sqrt(var) + 1e-9) over axes
LpNormalization            x / ||x||_p along an axis; 0 stays 0
LRN                        x / (bias + alpha mean of x^2 over `size` channels)^beta
Backward  through the expansion
Error     layernorm.py
Source    Ulyanov, Vedaldi, Lempitsky, arXiv 1607.08022; Wu, He, arXiv 1803.08494
"""

from __future__ import annotations

from collections.abc import Callable

from engine.kernels.ops.norm.batchnorm import across
from engine.kernels.ops.shape import with_axes
from engine.kernels.vocabulary.facts import NORM, Samples
from engine.kernels.vocabulary.op import MS, OURS, Nodes, Op, Site, TensorType
from engine.kernels.vocabulary.shape_rules import normalise_axis


def _standardised(nodes: Nodes, x: str, parts: int) -> str:
    """x [N, C, ...] as [N, parts, -1], standardised along the last axis.  parts 0: C."""
    # A group's values adjoin in [N, C, ...]: one row for each, which the kernel of layernorm.py
    # standardises.
    flat = nodes.op("Reshape", x, nodes.const([0, parts, -1], "i64"))
    attrs = {"axis": -1, "epsilon": nodes.site.attrs["epsilon"]}
    return str(nodes.op("Standardize", flat, domain=OURS, **attrs))


def _affine(nodes: Nodes, h: str, rank: int) -> str:
    """scale h + B, by channels of h, which is of that rank."""
    scaled = nodes.op("Mul", h, across(nodes, nodes.x(1), rank))
    return str(nodes.op("Add", scaled, across(nodes, nodes.x(2), rank)))


def _instance(nodes: Nodes) -> tuple[str, ...]:
    y = _affine(nodes, _standardised(nodes, nodes.x(0), 0), 3)
    return (nodes.op("Reshape", y, nodes.op("Shape", nodes.x(0))),)


def _group(nodes: Nodes) -> tuple[str, ...]:
    """Scale and B are of groups before opset 21, of channels from then on."""
    site, shape = nodes.site, nodes.op("Shape", nodes.x(0))
    h = _standardised(nodes, nodes.x(0), site.attrs["num_groups"])
    if site.opset < 21:
        return (nodes.op("Reshape", _affine(nodes, h, 3), shape),)
    return (_affine(nodes, nodes.op("Reshape", h, shape), site.type(0).rank),)


def _group_ms(nodes: Nodes) -> tuple[str, ...]:
    """com.microsoft's, [N, H, W, C] where channels_last, of channels; activation 1 is SiLU."""
    # Groups are of channels, so channels must be in front of the pixels.
    last = nodes.site.attrs["channels_last"]
    x = nodes.op("Transpose", nodes.x(0), perm=[0, 3, 1, 2]) if last else nodes.x(0)
    h = _standardised(nodes, x, nodes.site.attrs["groups"])
    y = _affine(nodes, nodes.op("Reshape", h, nodes.op("Shape", x)), 4)
    if nodes.site.attrs["activation"]:
        y = nodes.op("Mul", y, nodes.op("Sigmoid", y))
    return (nodes.op("Transpose", y, perm=[0, 2, 3, 1]) if last else y,)


def _mean_variance(nodes: Nodes) -> tuple[str, ...]:
    """Expand MeanVarianceNormalization; a variance of 0 is taken as 1e-30.

    The gradient of its root would be infinite; y is 0 with both.
    """
    axes = nodes.site.attrs["axes"]
    apart = nodes.op(
        "Sub", nodes.x(0), with_axes(nodes, "ReduceMean", nodes.x(0), axes, 18, keepdims=1)
    )
    var = with_axes(nodes, "ReduceMean", nodes.op("Mul", apart, apart), axes, 18, keepdims=1)
    # The gradient of sqrt at 0 is infinite; max passes none there.
    deviation = nodes.op("Sqrt", nodes.op("Max", var, nodes.like(1e-30, 0)))
    return (nodes.op("Div", apart, nodes.op("Add", deviation, nodes.like(1e-9, 0))),)


def _lp(nodes: Nodes) -> tuple[str, ...]:
    site = nodes.site
    axes = [normalise_axis(site, site.attrs["axis"], site.type(0).rank)]
    size = with_axes(nodes, f"ReduceL{site.attrs['p']}", nodes.x(0), axes, 18, keepdims=1)
    # x / 0 would be NaN; a zero vector stays zero.
    is_zero = nodes.op("Equal", size, nodes.like(0.0, 0))
    return (nodes.op("Div", nodes.x(0), nodes.op("Where", is_zero, nodes.like(1.0, 0), size)),)


def _response(nodes: Nodes) -> tuple[str, ...]:
    """Expand LRN: its mean over channels is a pool along them that counts the zeros around."""
    a = nodes.site.attrs
    size = a["size"]
    flat = nodes.op("Reshape", nodes.x(0), nodes.const([0, 0, -1], "i64"))
    # Channels as pixels, so that the mean over neighbouring channels is an average pool.
    turned = nodes.op("Transpose", nodes.op("Mul", flat, flat), perm=[0, 2, 1])
    mean = nodes.op(
        "AveragePool",
        turned,
        kernel_shape=[size],
        pads=[(size - 1) // 2, size // 2],
        count_include_pad=1,
    )
    scaled = nodes.op("Mul", nodes.op("Transpose", mean, perm=[0, 2, 1]), nodes.like(a["alpha"], 0))
    power = nodes.op(
        "Pow", nodes.op("Add", scaled, nodes.like(a["bias"], 0)), nodes.like(a["beta"], 0)
    )
    return (nodes.op("Reshape", nodes.op("Div", flat, power), nodes.op("Shape", nodes.x(0))),)


# --- shapes


def _images(groups: str, per_group: Callable[[Site], bool]) -> Callable[[Site], tuple[TensorType]]:
    """Shape rule: X [N, C, ...] in groups (that attribute), scale and B of groups or channels."""

    def infer(site: Site) -> tuple[TensorType]:
        x = site.real(0)
        if x.rank < 3:
            site.fail(f"X has rank {x.rank}", "[N, C, pixels...]")
        channels = x.shape[3 if site.attrs.get("channels_last") else 1]
        count = site.attrs.get(groups, 1)
        if count < 1 or (isinstance(channels, int) and channels % count):
            site.wrong(f"{channels} channels are not divisible by {groups}={count}")
        for i in (1, 2):
            if site.shaped(i, (count if per_group(site) else channels,)).dtype != x.dtype:
                site.fail(f"input {i} is {site.type(i)}, but X is {x.dtype}", "one element type")
        return (x.but(),)

    return infer


def _infer_ms(site: Site) -> tuple[TensorType]:
    if site.type(0).rank != 4 or site.attrs["activation"] not in (0, 1):
        unsupported = f"X is {site.type(0)} and activation {site.attrs['activation']}"
        site.fail(unsupported, "X of rank 4, activation 0 or 1")
    return _images("groups", lambda s: False)(site)


def _infer_lp(site: Site) -> tuple[TensorType]:
    x = site.real(0)
    normalise_axis(site, site.attrs["axis"], x.rank)
    if site.attrs["p"] not in (1, 2):
        site.fail(f"p is {site.attrs['p']}", "1 or 2")
    return (x.but(),)


def _infer_axes(site: Site) -> tuple[TensorType]:
    x = site.real(0)
    for axis in site.attrs["axes"]:
        normalise_axis(site, axis, x.rank)
    return (x.but(),)


def _infer_response(site: Site) -> tuple[TensorType]:
    x = site.real(0)
    if x.rank < 3 or site.attrs.get("size", 0) < 1:
        site.fail(
            f"X is {x} and size {site.attrs.get('size')}",
            "[N, C, pixels...] and a size of 1 or more",
        )
    return (x.but(),)


_STANDARD = f"Add Mul Reshape Shape {OURS}::Standardize"
OPS = (
    Op(
        name="InstanceNormalization",
        roles=NORM,
        attrs={"epsilon": 1e-5},
        infer=_images("", lambda s: False),
        expand=_instance,
        becomes=_STANDARD,
        samples=Samples.FIRST_AXIS,
    ),
    Op(
        name="GroupNormalization",
        roles=NORM,
        since=18,
        attrs={"epsilon": 1e-5},
        expand=_group,
        becomes=_STANDARD,
        infer=_images("num_groups", lambda site: site.opset < 21),
        samples=Samples.FIRST_AXIS,
    ),
    Op(
        name="GroupNorm",
        domain=MS,
        inputs=(3, 3),
        outputs=1,
        needs={"groups": "int"},
        infer=_infer_ms,
        expand=_group_ms,
        becomes=f"{_STANDARD} Sigmoid Transpose",
        attrs={"epsilon": 1e-5, "channels_last": 1, "activation": 0},
    ),
    Op(
        name="MeanVarianceNormalization",
        attrs={"axes": [0, 2, 3]},
        infer=_infer_axes,
        expand=_mean_variance,
        becomes="Add Div Max Mul ReduceMean Sqrt Sub",
    ),
    Op(
        name="LpNormalization",
        attrs={"axis": -1, "p": 2},
        infer=_infer_lp,
        expand=_lp,
        becomes="Div Equal ReduceL1 ReduceL2 Where",
        samples=Samples.AXIS_APART,
    ),
    Op(
        name="LRN",
        attrs={"alpha": 1e-4, "beta": 0.75, "bias": 1.0},
        infer=_infer_response,
        expand=_response,
        becomes="Add AveragePool Div Mul Pow Reshape Shape Transpose",
        samples=Samples.FIRST_AXIS,
    ),
)
