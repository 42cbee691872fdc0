"""Case rows of kernels/ops/pool/pool.py."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from engine.tools.dev.cases.case import Case, Tensor, f32


class Apart(Tensor):
    """A random order of numbers 0.01 apart: no two are so close that a small step swaps them."""

    def make(self, rng: np.random.Generator) -> np.ndarray:
        count = int(np.prod(self.shape))
        return (rng.permutation(count).reshape(self.shape) * 0.01 - 1).astype(self.dtype)


def _seen(n: int, taps: int, stride: int, dilation: int, pads: tuple[int, int], attrs: Any) -> Any:
    """The inputs that each window along one axis sees."""
    reach, (begin, end) = (taps - 1) * dilation + 1, pads
    mode = attrs.get("auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        out = -(-n // stride)
        total = max((out - 1) * stride + reach - n, 0)
        begin = total // 2 if mode == "SAME_UPPER" else -(-total // 2)
    else:
        steps = (n + begin + end - reach) / stride
        out = int(np.ceil(steps) if attrs.get("ceil_mode") else np.floor(steps)) + 1
        out -= (out - 1) * stride >= n + begin
    places = [[o * stride - begin + k * dilation for k in range(taps)] for o in range(out)]
    return [[i for i in window if 0 <= i < n] for window in places]


def windows_of(x: np.ndarray, attrs: Any) -> list[Any]:
    """The inputs that each window sees, along each spatial axis."""
    kernel = attrs.get("kernel_shape", x.shape[2:])
    rank = len(kernel)
    pads = attrs.get("pads", [0] * 2 * rank)
    strides, dilations = attrs.get("strides", [1] * rank), attrs.get("dilations", [1] * rank)
    return [
        _seen(x.shape[i + 2], kernel[i], strides[i], dilations[i], (pads[i], pads[i + rank]), attrs)
        for i in range(rank)
    ]


def _max_pool(x: np.ndarray, **attrs: Any) -> list[np.ndarray]:
    """MaxPool by its definition; onnx.reference has other indices and only 2-D global pools."""
    axes = windows_of(x, attrs)
    shape = (*x.shape[:2], *map(len, axes))
    y, index = np.empty(shape, x.dtype), np.empty(shape, np.int64)
    order: Literal["F", "C"] = "F" if attrs.get("storage_order") else "C"
    for n, c, *o in np.ndindex(*shape):
        seen = np.meshgrid(*(axis[i] for axis, i in zip(axes, o, strict=True)), indexing="ij")
        window = x[n, c][tuple(seen)]
        first = np.unravel_index(window.argmax(), window.shape)
        at = [int(axis[first]) for axis in seen]
        place = np.ravel_multi_index(at, x.shape[2:], order=order)
        y[n, c, *o] = window[first]
        index[n, c, *o] = place + (n * x.shape[1] + c) * int(np.prod(x.shape[2:]))
    return [y, index]


def _max_pool_taps(x: np.ndarray, **attrs: Any) -> list[np.ndarray]:
    """As `_max_pool`, but the index counts taps, from the first one that lies in the image."""
    axes = windows_of(x, attrs)
    y = _max_pool(x, **attrs)[0]
    taps = np.empty(y.shape, np.uint8)
    for n, c, *o in np.ndindex(*y.shape):
        seen = np.meshgrid(*(axis[i] for axis, i in zip(axes, o, strict=True)), indexing="ij")
        window = x[n, c][tuple(seen)]
        first = np.unravel_index(window.argmax(), window.shape)
        taps[n, c, *o] = np.ravel_multi_index(first, attrs["kernel_shape"])
    return [y, taps]


# (shape, attributes) of windows that every pool takes.
WINDOWS: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((2, 3, 8, 8), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((2, 5, 7, 9), {"kernel_shape": [2, 2], "strides": [2, 2]}),  # a row left over
    ((2, 20, 7, 9), {"kernel_shape": [3, 3]}),
    ((1, 70, 9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 9, 8), {"kernel_shape": [3, 2], "strides": [1, 2], "pads": [0, 1, 2, 0]}),
    ((2, 3, 10, 11), {"kernel_shape": [2, 2], "strides": [3, 3]}),  # pixels in no window
    ((2, 17, 11), {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}),
    ((1, 2, 5, 6, 7), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2], "pads": [0, *[1] * 5]}),
    ((1, 16, 1, 1), {"kernel_shape": [1, 1]}),
    ((2, 3, 5, 5), {"kernel_shape": [5, 5]}),
    ((1, 3, 9, 10), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ((1, 3, 6, 6), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "pads": [1] * 4}),
    ((1, 3, 7, 7), {"kernel_shape": [1, 1], "strides": [2, 2], "ceil_mode": 1}),
    ((1, 3, 4, 5), {"kernel_shape": [1, 2], "strides": [2, 3], "ceil_mode": 1}),
    ((2, 3, 7, 8), {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER", "strides": [2, 1]}),
    ((2, 3, 7, 8), {"kernel_shape": [4, 2], "auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    ((2, 3, 7, 8), {"kernel_shape": [3, 2], "auto_pad": "VALID", "strides": [3, 2]}),
)  # fmt: skip
DILATED = (
    ((2, 3, 9, 9), {"kernel_shape": [3, 3], "dilations": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 9, 9), {"kernel_shape": [2, 3], "dilations": [3, 2], "strides": [2, 2]}),
)
# A window that is larger than what there is, as PyTorch allows; onnx.reference pads it wrongly.
SHORT = ((2, 3, 4, 2), {"kernel_shape": [6, 5], "strides": [6, 5], "ceil_mode": 1})
_GLOBAL: tuple[tuple[int, ...], ...] = (
    (2, 3, 7, 7), (1, 40, 5, 6), (3, 70, 4), (2, 3, 3, 4, 5), (2, 16, 1, 1)
)  # fmt: skip


def _max(shape: tuple[int, ...], attrs: dict[str, Any], outs: int = 1) -> Case:
    def reference(x: np.ndarray, **given: Any) -> list[np.ndarray]:
        return _max_pool(x, **given)[:outs]

    return Case(
        "MaxPool", (Apart(shape),), attrs, grad=(0,), outs=outs, tol=0, reference=reference
    )  # fmt: skip


def _halved(x: np.ndarray, **_: Any) -> list[np.ndarray]:
    """The largest of each 2 x 2 pixels, and which of the four it is."""
    n, c, h, w = x.shape
    fours = x.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 1, 2, 4, 3, 5)
    fours = fours.reshape(n, c, h // 2, w // 2, 4)
    return [fours.max(-1), fours.argmax(-1).astype(np.uint8)]


_HALVES = {"kernel_shape": [2, 2], "strides": [2, 2]}  # of images of 4 x 4
# Where in a tensor [2, 3, 4, 4] the largest is of each window: its last corner.
_CORNERS = np.arange(96).reshape(2, 3, 4, 4)[:, :, 1::2, 1::2].copy()


_TWO_BY_TWO = {"kernel_shape": [2, 2]}  # of images of 5 x 5, without a stride


def _give_to_corner(dy: np.ndarray, down: int, right: int) -> np.ndarray:
    """Return dX where every window of 2 x 2 gives its dY to one corner."""
    return np.pad(dy, [(0, 0), (0, 0), (down, 1 - down), (right, 1 - right)])


def _spread_out(share: float) -> Any:
    """Return the reference of dX where every window of 2 x 2 gives a share to all four corners."""

    def reference(dy: np.ndarray, *_: Any, **__: Any) -> np.ndarray:
        corners = [_give_to_corner(share * dy, i, j) for i in range(2) for j in range(2)]
        total: np.ndarray = np.sum(corners, axis=0)
        return total

    return reference


def _max_pool_grad(dy: np.ndarray, index: np.ndarray, **_: Any) -> np.ndarray:
    dx = np.zeros(96)
    dx[index] = dy
    return dx.reshape(2, 3, 4, 4)


CASES = (
    *(_max(shape, attrs) for shape, attrs in (*WINDOWS, *DILATED)),
    *(_max(shape, attrs, 2) for shape, attrs in (*WINDOWS[:9], *DILATED)),
    *(_max(shape, {**attrs, "storage_order": 1}, 2) for shape, attrs in WINDOWS[:8]),
    *(
        Case("MaxPool", (Apart(shape),), attrs, outs=2, tol=0, domain="engine",
             reference=_max_pool_taps)
        for shape, attrs in (*WINDOWS, *DILATED)
    ),
    _max(*SHORT),
    Case("AveragePool", (f32(*SHORT[0]),), SHORT[1], grad=(0,),
         reference=lambda x, **_: x.mean((2, 3), keepdims=True)),
    *(Case("AveragePool", (f32(*shape),), attrs, grad=(0,)) for shape, attrs in WINDOWS),
    *(
        Case("AveragePool", (f32(*shape),), {**attrs, "count_include_pad": 1}, grad=(0,), opset=19)
        for shape, attrs in WINDOWS
    ),
    *(Case("AveragePool", (f32(*shape),), attrs, grad=(0,), opset=19) for shape, attrs in DILATED),
    *(
        Case("MaxPool", (Tensor((2, 5, 7, 6), dtype, 0, 100),), {"kernel_shape": [3, 2]}, outs=outs,
             reference=lambda x, outs=outs, **given: _max_pool(x, **given)[:outs])
        for dtype in ("int8", "uint8") for outs in (1, 2)
    ),
    *(Case("GlobalAveragePool", (f32(*shape),), grad=(0,)) for shape in _GLOBAL),
    *(
        Case("GlobalMaxPool", (Apart(shape),), grad=(0,), tol=0,
             reference=lambda x: _max_pool(x)[:1])
        for shape in _GLOBAL
    ),
    # The gradients as in onnxruntime-training, without the pool they belong to.
    Case("MaxPoolGrad", (f32(2, 3, 2, 2), _CORNERS), _HALVES, tol=0, reference=_max_pool_grad),
    Case("MaxPoolGrad", (f32(2, 3, 2, 2), np.full((2, 3, 2, 2), 3, np.uint8)), _HALVES, tol=0,
         reference=lambda dy, tap, **given: _max_pool_grad(dy, _CORNERS, **given)),
    *(
        Case("MaxPoolGrad", (f32(2, 3, 2, 2), index, f32(2, 3, 4, 4)), _HALVES, tol=0,
             domain="engine",
             reference=lambda dy, index, x, **given: _max_pool_grad(dy, _CORNERS, **given))
        for index in (_CORNERS, np.full((2, 3, 2, 2), 3, np.uint8))
    ),
    Case("AveragePoolGrad", (f32(2, 3, 2, 2),), _HALVES,
         reference=lambda dy, **_: np.kron(dy, np.full((2, 2), 0.25))),
    # And of windows that share pixels.
    *(
        Case("MaxPoolGrad", (f32(2, 3, 4, 4), np.full((2, 3, 4, 4), 3, np.uint8), *x), _TWO_BY_TWO,
             tol=0, domain=domain, reference=lambda dy, *_, **__: _give_to_corner(dy, 1, 1))
        for domain, x in (("", ()), ("engine", (f32(2, 3, 5, 5),)))
    ),
    *(
        Case(op, (f32(2, 3, 4, 4), *x), _TWO_BY_TWO, domain=domain, reference=_spread_out(share))
        for op, share, domain, x in (
            ("AveragePoolGrad", 0.25, "", ()),
            ("AveragePoolGrad", 0.25, "engine", (f32(2, 3, 5, 5),)),
            ("SumPoolGrad", 1.0, "engine", (f32(2, 3, 5, 5),)),
        )
    ),
    Case("MaxPool", (f32(64, 64, 24, 24),), {"kernel_shape": [2, 2], "strides": [2, 2]}, outs=2,
         tol=0, bench=True, name="cnn_pool"),
    Case("MaxPool", (f32(64, 64, 24, 24),), {"kernel_shape": [2, 2], "strides": [2, 2]}, outs=2,
         tol=0, domain="engine", reference=_halved, bench=True, name="cnn_pool_taps"),
)  # fmt: skip
