"""Convolution and its gradients, over 1 to 3 spatial axes, channels-last.

Forward   Y[n, o, co] = B[co] + sum_{k, ci} X[n, o s - p + k d, ci] W[co, ci, k]
Backward  dX[n, i, ci] = sum_{co, k, o: o s - p + k d = i} dY[n, o, co] W[co, ci, k]
          dW[co, ci, k] = sum_{n, o} dY[n, o, co] X[n, o s - p + k d, ci];  dB = sum_{n, o} dY
          needs X and W, never Y
Error     as of a float dot product in blocks: of K in Y and dX, of pixels in dW and dB;
          winograd.py bounds its own
Source    convolution.py, patch_product.py, winograd.py, weight_gradient.py and depthwise.py say how
"""

from __future__ import annotations

from dataclasses import replace

from engine.base.element_types import FLOATS
from engine.kernels.loops.window import WINDOW, find_windows, infer_out_dims
from engine.kernels.ops.conv.convolution import (
    CONVOLVE_BACK_KERNELS,
    CONVOLVE_KERNELS,
    convolve,
    convolve_back,
)
from engine.kernels.ops.conv.weight_gradient import WEIGHTS_KERNELS, lower_weights
from engine.kernels.ops.epilogue import (
    CURVES,
    IN_CONV,
    activate,
    list_plain_attributes,
    read_parameters,
)
from engine.kernels.vocabulary.facts import CONV, WEIGHT_AND_BIAS, ChannelsLast, Samples, Storage
from engine.kernels.vocabulary.op import MS, Grad, Lowering, Nodes, Op, Site, TensorType


def _lower(lowering: Lowering) -> None:
    x, w, y = lowering.x(0), lowering.x(1), lowering.y(0)
    bias = lowering.x(2) if lowering.site.has(2) else None
    if y.type.size:
        axes = find_windows(lowering.site, x.type, w.type.dims[2:])
        curve = CURVES.get(lowering.site.attrs.get("activation", ""), 0)
        convolve(lowering, (x, w, y, bias), axes, lowering.site.attrs["group"], curve)


def _lower_grad(lowering: Lowering) -> None:
    dy, x, w = lowering.x(0), lowering.x(1), lowering.x(2)
    groups, axes = (
        lowering.site.attrs["group"],
        find_windows(lowering.site, x.type, w.type.dims[2:]),
    )
    # Forward: y = conv(x, w) + b; so dx = the transpose of conv(., w) applied to dy.
    if lowering.wants(0) and x.type.size:
        convolve_back(lowering, (dy, w, lowering.y(0), None), axes, groups)
    # dw and db come together: both sum over the pixels of dy.
    lower_weights(lowering, (x, dy, w), axes, groups, 1, 2)


def choose_storage(site: Site) -> Storage | None:
    """Return the images of a convolution, transposed or not.

    Those of a depthwise one are alike, and in 32 bits where a channel has several filters: copies
    of it are made.
    """
    is_gradient = site.op.endswith("Grad")
    x, w = (site.type(i) for i in ((1, 2) if is_gradient else (0, 1)))
    (co, per), groups = w.dims[:2], site.attrs["group"]
    # The kernels `channels_repeat` and `channels_sum` read and write 32 bits alone.
    is_depthwise = per == 1 < groups
    if x.dtype != "f32" or (is_depthwise and co != groups):
        return None
    return replace(_GRADIENT if is_gradient else _FORWARD, alike=is_depthwise)


# --- ops


def _check(site: Site, x: TensorType, w: TensorType) -> None:
    """Check ONNX's conditions on channels and groups."""
    if x.dtype not in FLOATS or w.dtype != x.dtype:
        site.fail(
            f"the images are {x.dtype} and the weights {w.dtype}", "f32 or f64, both the same"
        )
    if w.rank != x.rank:
        site.wrong(f"the weights have rank {w.rank}, but the images have rank {x.rank}")
    if 0 in w.shape:
        site.wrong(f"the weights are {w}, which has no elements")
    groups = site.attrs["group"]
    # W is [output channels, input channels of a group, taps...].
    ci, per, co = x.shape[1], w.shape[1], w.shape[0]
    if isinstance(ci, int) and isinstance(per, int) and ci != per * groups:
        site.wrong(
            f"input 0 has {ci} channels, but the weights expect {per * groups}: {per} in each of "
            f"group={groups}"
        )
    if isinstance(co, int) and co % groups:
        site.wrong(f"{co} output channels are not divisible by group={groups}")
    declared = site.attrs.get("kernel_shape")
    if declared and list(declared) != [
        d if isinstance(d, int) else k for d, k in zip(w.shape[2:], declared, strict=False)
    ]:
        site.wrong(f"kernel_shape is {list(declared)}, but the weights are {w}")


def _infer(site: Site) -> tuple[TensorType, ...]:
    x, w = site.type(0), site.type(1)
    _check(site, x, w)
    if site.has(2):
        site.shaped(2, w.shape[:1])
    return (x.but((x.shape[0], w.shape[0], *infer_out_dims(site, x, w.shape[2:]))),)


def _infer_fused(site: Site) -> tuple[TensorType, ...]:
    read_parameters(site)
    (y,) = _infer(site)
    if site.has(3) and site.shaped(3, y.shape).dtype != y.dtype:
        site.fail(f"Z (input 3) is {site.type(3)}", f"{y}, the type of the convolution")
    return (y,)


def _expand_fused(nodes: Nodes) -> tuple[str, ...]:
    """Expand to Conv, the sum Z, the activation; planning makes those with a curve one again."""
    site = nodes.site
    bias = nodes.x(2) if site.has(2) else ""
    y = nodes.op("Conv", nodes.x(0), nodes.x(1), bias, **list_plain_attributes(site.attrs))
    if site.has(3):
        y = nodes.op("Add", y, nodes.x(3))
    return (activate(nodes, y),)


def _infer_grad(site: Site) -> tuple[TensorType, ...]:
    x, w = site.type(1), site.type(2)
    _check(site, x, w)
    y = (x.shape[0], w.shape[0], *infer_out_dims(site, x, w.shape[2:]))
    site.shaped(0, y)
    return (x.but(), w.but(), w.but(w.shape[:1]))[: site.n_outs]


def _grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX, dW, dB = ConvGrad(dY, X, W)."""
    # As many gradients as inputs, but ConvGrad has two outputs at least.
    count = len(grad.site.ins)
    names = grad.op(
        "ConvGrad", dy, grad.x(0), grad.x(1), domain=MS, outputs=max(count, 2), **grad.site.attrs
    )
    return tuple(names[i] if grad.wants(i) else None for i in range(count))


ATTRS = {"group": 1, "auto_pad": "NOTSET"}
_FORWARD = Storage(frozenset({0}), frozenset({0}))
_GRADIENT = Storage(frozenset({0, 1}), frozenset({0}))
OPS = (
    Op(
        name="Conv",
        roles=WEIGHT_AND_BIAS,
        product=CONV,
        attrs=ATTRS,
        infer=_infer,
        lower=_lower,
        calls=CONVOLVE_KERNELS,
        grad=_grad,
        layout=ChannelsLast((0,), (0,)),
        samples=Samples.FIRST_AXIS,
        storage=choose_storage,
    ),
    Op(
        name="FusedConv",
        roles=WEIGHT_AND_BIAS,
        product=CONV.as_part(),
        domain=MS,
        inputs=(2, 4),
        outputs=1,
        attrs={**ATTRS, "activation": ""},
        takes={**WINDOW, "activation_params": "floats"},
        infer=_infer_fused,
        lower=_lower,
        calls=CONVOLVE_KERNELS,
        expand=_expand_fused,
        becomes=f"Add Conv {' '.join(IN_CONV)}",
        layout=ChannelsLast((0,), (0,)),
        samples=Samples.FIRST_AXIS,
        storage=choose_storage,
    ),
    Op(
        name="ConvGrad",
        domain=MS,
        inputs=(3, 3),
        outputs=3,
        gradient_of="Conv",
        attrs=ATTRS,
        takes=WINDOW,
        infer=_infer_grad,
        lower=_lower_grad,
        calls=(*CONVOLVE_BACK_KERNELS, *WEIGHTS_KERNELS),
        layout=ChannelsLast((0, 1), (0,)),
        accumulates=(1, 2),
        storage=choose_storage,
    ),
)
