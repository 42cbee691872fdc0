"""Convolution and its gradients, over 1 to 3 spatial axes, channels-last.

Forward   Y[n, o, co] = B[co] + sum_{k, ci} X[n, o s - p + k d, ci] W[co, ci, k]
Backward  dX[n, i, ci] = sum_{co, k, o: o s - p + k d = i} dY[n, o, co] W[co, ci, k]
          dW[co, ci, k] = sum_{n, o} dY[n, o, co] X[n, o s - p + k d, ci];  dB = sum_{n, o} dY
          needs X and W, never Y
Error     that of a float dot product in blocks: of K in Y and dX, of pixels in dW and dB
Source    convolution.py, weight_gradient.py and depthwise.py say how
"""

from __future__ import annotations

from engine.element_types import FLOATS
from engine.kernels.loops.window import WINDOW, out_dims, windows
from engine.kernels.ops.conv.convolution import (
    CONVOLVE_BACK_KERNELS,
    CONVOLVE_KERNELS,
    convolve,
    convolve_back,
)
from engine.kernels.ops.conv.weight_gradient import WEIGHTS_KERNELS, lower_weights
from engine.kernels.vocabulary.op import MS, Grad, Lowering, Op, Site, TensorType


def _lower(s: Lowering) -> None:
    x, w, y = s.x(0), s.x(1), s.y(0)
    bias = s.x(2) if s.site.has(2) else None
    if y.type.size:
        axes = windows(s.site, x.type, w.type.dims[2:])
        relu = s.site.attrs.get("activation") == "Relu"
        convolve(s, (x, w, y, bias), axes, s.site.attrs["group"], relu)


def _lower_grad(s: Lowering) -> None:
    dy, x, w = s.x(0), s.x(1), s.x(2)
    groups, axes = s.site.attrs["group"], windows(s.site, x.type, w.type.dims[2:])
    if s.wants(0) and x.type.size:
        convolve_back(s, (dy, w, s.y(0), None), axes, groups)
    lower_weights(s, (x, dy, w), axes, groups, 1, 2)


# --- ops


def _check(s: Site, x: TensorType, w: TensorType) -> None:
    """ONNX's conditions on channels and groups."""
    if x.dtype not in FLOATS or w.dtype != x.dtype:
        s.fail(f"{x.dtype} images and {w.dtype} weights", "f32 or f64, both the same")
    if w.rank != x.rank:
        s.wrong(f"weights of rank {w.rank} for images of rank {x.rank}")
    groups = s.attrs["group"]
    ci, per, co = x.shape[1], w.shape[1], w.shape[0]
    if isinstance(ci, int) and isinstance(per, int) and ci != per * groups:
        s.wrong(f"{ci} channels in {groups} groups of {per}")
    if isinstance(co, int) and co % groups:
        s.wrong(f"{co} output channels in {groups} groups")
    declared = s.attrs.get("kernel_shape")
    if declared and list(declared) != [
        d if isinstance(d, int) else k for d, k in zip(w.shape[2:], declared, strict=False)
    ]:
        s.wrong(f"kernel_shape {list(declared)} for weights {w}")


def _infer(s: Site) -> tuple[TensorType, ...]:
    x, w = s.type(0), s.type(1)
    _check(s, x, w)
    if s.has(2):
        s.shaped(2, w.shape[:1])
    return (x.but((x.shape[0], w.shape[0], *out_dims(s, x, w.shape[2:]))),)


def _infer_fused(s: Site) -> tuple[TensorType, ...]:
    if s.attrs["activation"] not in ("", "Relu") or s.has(3):
        found = "a sum Z" if s.has(3) else f"activation {s.attrs['activation']!r}"
        s.fail(found, "inputs X, W, B with activation Relu or none")
    return _infer(s)


def _infer_grad(s: Site) -> tuple[TensorType, ...]:
    x, w = s.type(1), s.type(2)
    _check(s, x, w)
    y = (x.shape[0], w.shape[0], *out_dims(s, x, w.shape[2:]))
    s.shaped(0, y)
    return (x.but(), w.but(), w.but(w.shape[:1]))[: s.n_outs]


def _grad(g: Grad, dy: str) -> tuple[str | None, ...]:
    """dX, dW, dB = ConvGrad(dY, X, W)."""
    attrs = {k: v for k, v in g.site.attrs.items() if k != "activation"}
    count = len(g.site.ins)
    names = g.op("ConvGrad", dy, g.x(0), g.x(1), domain=MS, outputs=max(count, 2), **attrs)
    return tuple(names[i] if g.wants(i) else None for i in range(count))


def _grad_fused(g: Grad, dy: str) -> tuple[str | None, ...]:
    """The gradients of Conv, of dY where Y > 0."""
    if g.site.attrs["activation"] == "Relu":
        dy = g.op("ReluGrad", dy, g.y(0), domain=MS)
    return _grad(g, dy)


ATTRS = {"group": 1, "auto_pad": "NOTSET"}
OPS = (
    Op(
        name="Conv",
        attrs=ATTRS,
        infer=_infer,
        lower=_lower,
        calls=CONVOLVE_KERNELS,
        grad=_grad,
        last=((0,), (0,)),
    ),
    Op(
        name="FusedConv",
        domain=MS,
        attrs={**ATTRS, "activation": ""},
        takes={**WINDOW, "activation_params": "floats"},
        infer=_infer_fused,
        lower=_lower,
        calls=CONVOLVE_KERNELS,
        grad=_grad_fused,
        last=((0,), (0,)),
    ),
    Op(
        name="ConvGrad",
        domain=MS,
        attrs=ATTRS,
        takes=WINDOW,
        infer=_infer_grad,
        lower=_lower_grad,
        calls=(*CONVOLVE_BACK_KERNELS, *WEIGHTS_KERNELS),
        last=((0, 1), (0,)),
        accumulates=(1, 2),
    ),
)
