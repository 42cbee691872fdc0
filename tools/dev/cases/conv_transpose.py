"""Case rows of kernels/ops/conv/conv_transpose.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.tools.dev.cases.case import Case, f32


def _along(x: int, taps: int, i: int, rank: int, attrs: Any) -> tuple[int, int]:
    """Size of the output along one axis and the padding before it, by ONNX's formulas."""
    stride = attrs.get("strides", [1] * rank)[i]
    reach = (taps - 1) * attrs.get("dilations", [1] * rank)[i] + 1
    whole = stride * (x - 1) + attrs.get("output_padding", [0] * rank)[i] + reach
    mode, pads = attrs.get("auto_pad", "NOTSET"), attrs.get("pads", [0] * 2 * rank)
    if "output_shape" in attrs or mode.startswith("SAME"):
        size = attrs["output_shape"][i] if "output_shape" in attrs else x * stride
        total = max(whole - size, 0)
        return size, total // 2 if mode == "SAME_UPPER" else total - total // 2
    return whole - pads[i] - pads[i + rank], pads[i]


def _reference(x: Any, w: Any, b: Any = None, **attrs: Any) -> Any:
    """By the definition: every input adds its filter to the output."""
    rank, groups = x.ndim - 2, attrs.get("group", 1)
    strides, dilations = attrs.get("strides", [1] * rank), attrs.get("dilations", [1] * rank)
    places = [_along(x.shape[i + 2], w.shape[i + 2], i, rank, attrs) for i in range(rank)]
    y = np.zeros((x.shape[0], w.shape[1] * groups, *(size for size, _ in places)))
    ci, co = x.shape[1] // groups, w.shape[1]
    for at in np.ndindex(*x.shape[2:]):
        for k in np.ndindex(*w.shape[2:]):
            to = [a * s + t * d - p for a, s, t, d, (_, p) in
                  zip(at, strides, k, dilations, places, strict=True)]  # fmt: skip
            if any(t < 0 or t >= size for t, (size, _) in zip(to, places, strict=True)):
                continue
            for g in range(groups):
                part = x[:, g * ci : (g + 1) * ci, *at] @ w[g * ci : (g + 1) * ci, :, *k]
                y[:, g * co : (g + 1) * co, *to] += part
    return y if b is None else y + b.reshape(1, -1, *[1] * rank)


# (X, W, bias, attributes): what each row is for stands beside it.
_ROWS: tuple[tuple[tuple[int, ...], tuple[int, ...], bool, dict[str, Any]], ...] = (
    ((2, 3, 5, 6), (3, 4, 3, 3), True, {}),
    ((2, 5, 4, 5), (5, 7, 2, 2), True, {"strides": [2, 2]}),  # a U-Net's way up
    ((1, 20, 4, 3), (20, 17, 4, 4), False, {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 4, 5, 4), (4, 3, 3, 3), True,
     {"strides": [2, 3], "pads": [0, 1, 2, 1], "output_padding": [1, 2]}),
    ((1, 3, 4, 4), (3, 5, 2, 1), True, {"strides": [3, 2]}),  # outputs that nothing reaches
    ((2, 3, 7), (3, 4, 4), True, {"strides": [3], "dilations": [2], "pads": [2, 1]}),
    ((1, 3, 3, 4, 3), (3, 4, 2, 3, 2), True, {"strides": [2, 1, 2], "pads": [0, 1, 0, 1, 0, 1]}),
    ((2, 3, 5, 5), (3, 2, 3, 3), False, {"dilations": [2, 3], "pads": [2, 1, 1, 2]}),
    ((1, 6, 4, 5), (6, 3, 3, 3), True, {"group": 2, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 7, 4, 5), (7, 1, 3, 3), True, {"group": 7, "strides": [2, 2]}),  # depthwise
    ((1, 7, 4, 3), (7, 1, 1, 1), True, {"group": 7, "strides": [2, 2]}),
    ((2, 6, 4, 5), (6, 1, 3, 2), True, {"group": 3, "strides": [2, 1]}),  # two filters an output
    ((2, 6, 4, 5), (6, 1, 3, 2), False, {"group": 3}),
    ((1, 18, 4, 5), (18, 3, 4, 4), True, {"strides": [2, 2], "pads": [1, 1, 1, 1]}),  # a decoder's
    ((2, 9, 3, 4), (9, 1, 3, 3), True, {"strides": [3, 2], "output_padding": [2, 1]}),  # last ones
    ((2, 2, 5, 4), (2, 21, 3, 3), True, {"strides": [1, 2], "dilations": [2, 1]}),  # and a first
    ((2, 32, 14, 15), (32, 48, 3, 3), True, {"pads": [1, 1, 1, 1]}),  # by Winograd's algorithm
    ((1, 3, 4, 4), (3, 2, 3, 3), True, {"strides": [3, 2], "output_shape": [10, 8]}),
    ((1, 3, 4, 4), (3, 2, 3, 3), True, {"strides": [2, 2], "output_shape": [12, 9]}),  # too large
    ((1, 3, 4, 4), (3, 2, 3, 4), False,
     {"strides": [2, 2], "output_shape": [8, 7], "auto_pad": "SAME_UPPER"}),
    *(
        ((1, 3, 4, 5), (3, 2, 4, 3), True, {"auto_pad": mode, "strides": [2, 3]})
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
)  # fmt: skip

CASES = (
    *(
        Case(
            "ConvTranspose",
            (f32(*x), f32(*w), *((f32(w[1] * attrs.get("group", 1)),) if bias else ())),
            attrs,
            grad=(0, 1, 2) if bias else (0, 1),
            reference=_reference,
        )
        for x, w, bias, attrs in _ROWS
    ),
    Case("ConvTranspose", (f32(4, 128, 28, 28), f32(128, 64, 2, 2), f32(64)),
         {"strides": [2, 2]}, bench=True, name="unet_up"),
)  # fmt: skip
