"""Transposed convolution and its gradients, over 1 to 3 spatial axes, channels-last.

Forward   Y[n, i, co] = B[co] + sum_{k, ci, o: o s - p + k d = i} X[n, o, ci] W[ci, co, k]
Backward  dX[n, o, ci] = sum_{k, co} dY[n, o s - p + k d, co] W[ci, co, k]
          dW[ci, co, k] = sum_{n, o} X[n, o, ci] dY[n, o s - p + k d, co];  dB = sum_{n, i} dY
          needs X and W, never Y
Error     as of a float dot product in blocks
Source    it is the gradient of the convolution with weights W that makes X of Y: all three
          directions are as in conv.py, with images and outputs exchanged
"""

from __future__ import annotations

from engine.base.element_types import FLOATS
from engine.kernels.loops.window import WINDOW, find_transposed, infer_transposed_dims
from engine.kernels.ops.conv.conv import choose_storage
from engine.kernels.ops.conv.convolution import (
    CONVOLVE_BACK_KERNELS,
    CONVOLVE_KERNELS,
    convolve,
    convolve_back,
)
from engine.kernels.ops.conv.weight_gradient import WEIGHTS_KERNELS, lower_bias, lower_weights
from engine.kernels.vocabulary.facts import (
    CONV_TRANSPOSE,
    WEIGHT_AND_BIAS,
    ChannelsLast,
    Samples,
)
from engine.kernels.vocabulary.op import MS, Dim, Grad, Kind, Lowering, Op, Site, TensorType


def _lower(lowering: Lowering) -> None:
    x, w, y = lowering.x(0), lowering.x(1), lowering.y(0)
    bias = lowering.x(2) if lowering.site.has(2) else None
    if y.type.size:
        axes = find_transposed(lowering.site, x.type, w.type.dims[2:])
        # A transposed convolution is the gradient of a convolution by its images, and the reverse.
        convolve_back(lowering, (x, w, y, bias), axes, lowering.site.attrs["group"])


def _lower_grad(lowering: Lowering) -> None:
    dy, x, w = lowering.x(0), lowering.x(1), lowering.x(2)
    groups, axes = (
        lowering.site.attrs["group"],
        find_transposed(lowering.site, x.type, w.type.dims[2:]),
    )
    if lowering.wants(0) and x.type.size:
        # Forward: y = convolve_back(x, w); so dx = convolve(dy, w), and dw is a convolution's dw
        # with dy as its images and x as its gradient.
        convolve(lowering, (dy, w, lowering.y(0), None), axes, groups)
    lower_weights(lowering, (dy, x, w), axes, groups, 1, None)
    lower_bias(lowering, dy, 2)


def _infer_out(site: Site, x: TensorType, w: TensorType) -> tuple[Dim, ...]:
    """Return the shape of Y after checking ONNX's conditions on channels and groups."""
    if x.dtype not in FLOATS or w.dtype != x.dtype:
        site.fail(
            f"the images are {x.dtype} and the weights {w.dtype}", "f32 or f64, both the same"
        )
    if w.rank != x.rank:
        site.wrong(f"the weights have rank {w.rank}, but the images have rank {x.rank}")
    if 0 in w.shape:
        site.wrong(f"the weights are {w}, which has no elements")
    if 0 in x.shape[2:]:
        site.wrong(f"the images are {x}, which has no pixels")
    groups, (ci, per) = site.attrs["group"], w.shape[:2]
    if groups < 1:
        site.wrong(f"group={groups}; expected 1 or more")
    if isinstance(ci, int) and isinstance(x.shape[1], int) and ci != x.shape[1]:
        site.wrong(f"input 0 has {x.shape[1]} channels, but the weights expect {ci}")
    if isinstance(ci, int) and ci % groups:
        site.wrong(f"{ci} input channels are not divisible by group={groups}")
    declared = site.attrs.get("kernel_shape")
    if declared and any(
        isinstance(d, int) and d != k for d, k in zip(w.shape[2:], declared, strict=False)
    ):
        site.wrong(f"kernel_shape is {list(declared)}, but the weights are {w}")
    co: Dim = per * groups if isinstance(per, int) else f"{site.name}_d1"
    return (x.shape[0], co, *infer_transposed_dims(site, x, w.shape[2:]))


def _infer(site: Site) -> tuple[TensorType, ...]:
    y = _infer_out(site, site.type(0), site.type(1))
    if site.has(2):
        site.shaped(2, y[1:2])
    return (site.type(0).but(y),)


def _infer_grad(site: Site) -> tuple[TensorType, ...]:
    x, w = site.type(1), site.type(2)
    y = _infer_out(site, x, w)
    site.shaped(0, y)
    return (x.but(), w.but(), w.but(y[1:2]))[: site.n_outs]


def _grad(grad: Grad, dy: str) -> tuple[str | None, ...]:
    """dX, dW, dB = ConvTransposeGrad(dY, X, W)."""
    count = len(grad.site.ins)
    attrs = dict(grad.site.attrs)
    outs = max(count, 2)
    names = grad.op("ConvTransposeGrad", dy, grad.x(0), grad.x(1), domain=MS, outputs=outs, **attrs)
    return tuple(names[i] if grad.wants(i) else None for i in range(count))


ATTRS = {"group": 1, "auto_pad": "NOTSET"}
TAKES: dict[str, Kind] = {**WINDOW, "output_padding": "ints", "output_shape": "ints"}
OPS = (
    Op(
        name="ConvTranspose",
        roles=WEIGHT_AND_BIAS,
        product=CONV_TRANSPOSE,
        attrs=ATTRS,
        infer=_infer,
        lower=_lower,
        calls=CONVOLVE_BACK_KERNELS,
        grad=_grad,
        layout=ChannelsLast((0,), (0,)),
        samples=Samples.FIRST_AXIS,
        storage=choose_storage,
    ),
    Op(
        name="ConvTransposeGrad",
        domain=MS,
        inputs=(3, 3),
        outputs=3,
        gradient_of="ConvTranspose",
        takes=TAKES,
        attrs=ATTRS,
        infer=_infer_grad,
        lower=_lower_grad,
        calls=(*CONVOLVE_KERNELS, *WEIGHTS_KERNELS),
        layout=ChannelsLast((0, 1), (0,)),
        accumulates=(1, 2),
        storage=choose_storage,
    ),
)
