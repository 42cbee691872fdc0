"""Case rows of kernels/ops/conv/conv.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.tools.dev.cases.activation import activated
from engine.tools.dev.cases.case import Case, f32

# (X, W, bias, attributes): what each row is for stands beside it.
_CONV: tuple[tuple[tuple[int, ...], tuple[int, ...], bool, dict[str, Any]], ...] = (
    ((2, 3, 8, 9), (4, 3, 3, 3), True, {}),
    ((2, 5, 7, 6), (7, 5, 3, 3), False, {"pads": [1, 1, 1, 1]}),  # odd channels
    ((1, 1, 28, 28), (32, 1, 5, 5), True, {}),  # a first layer
    ((2, 4, 11), (6, 4, 3), True, {"pads": [0, 2], "strides": [2]}),  # 1-D, uneven pads
    ((1, 3, 5, 6, 7), (4, 3, 2, 3, 2), True, {"strides": [1, 2, 3], "pads": [1, 0, 0, 0, 1, 1]}),
    ((2, 3, 6, 5, 7), (5, 3, 3, 3, 3), False, {"strides": [2, 2, 2], "dilations": [1, 2, 1]}),
    ((2, 16, 5, 5), (24, 16, 1, 1), True, {}),  # a plain product
    ((2, 5, 4, 5), (64, 5, 1, 1), True, {}),  # many more outputs than inputs
    ((1, 4, 5, 6), (64, 2, 3, 2), False, {"group": 2, "strides": [2, 1]}),
    ((2, 6, 5, 5), (4, 6, 1, 1), False, {"strides": [2, 2]}),  # pixels that no window sees
    ((2, 6, 5, 5), (4, 6, 1, 1), True, {"pads": [1, 0, 0, 1]}),
    ((2, 3, 13, 12), (4, 3, 2, 2), True, {"strides": [3, 3]}),  # stride over kernel
    ((2, 3, 13, 12), (4, 3, 5, 5), True, {"strides": [2, 2], "pads": [2, 2, 2, 2]}),
    ((2, 3, 13, 12), (4, 3, 3, 3), True, {"strides": [3, 2], "dilations": [2, 2]}),
    ((1, 4, 14, 15), (4, 4, 3, 3), True, {"strides": [2, 3], "dilations": [3, 3]}),
    ((1, 4, 14, 15), (4, 4, 3, 3), False, {"strides": [4, 4], "dilations": [2, 6]}),
    ((2, 4, 9, 9), (4, 4, 3, 3), True, {"dilations": [2, 3], "pads": [2, 0, 1, 3]}),
    ((1, 10, 17, 16), (15, 2, 3, 3), True, {"group": 5, "dilations": [7, 5], "pads": [6, 3, 8, 5]}),
    ((1, 2, 1, 1), (3, 2, 3, 3), True, {"pads": [1, 1, 1, 1]}),  # one pixel
    ((1, 2, 2, 3), (3, 2, 5, 5), True, {"pads": [3, 3, 3, 3]}),  # windows wholly in padding
    ((2, 8, 6, 7), (12, 2, 3, 3), True, {"group": 4, "pads": [1, 1, 1, 1]}),
    ((2, 6, 7, 7), (9, 2, 3, 3), True, {"group": 3, "strides": [2, 2], "dilations": [2, 1]}),
    ((2, 6, 5, 5), (9, 2, 1, 1), False, {"group": 3}),
    ((1, 4, 5, 4, 3), (8, 2, 2, 2, 2), True, {"group": 2, "strides": [2, 1, 2]}),
    ((2, 7, 9, 8), (7, 1, 3, 3), True, {"group": 7, "pads": [1, 1, 1, 1]}),  # depthwise
    ((2, 40, 9, 9), (40, 1, 3, 3), False, {"group": 40, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 24, 12, 11), (24, 1, 5, 5), True, {"group": 24, "pads": [2, 2, 2, 2]}),
    ((2, 18, 7, 9), (18, 1, 3, 2), True, {"group": 18, "strides": [1, 3], "dilations": [2, 1]}),
    ((1, 5, 6, 7, 5), (5, 1, 3, 2, 3), True, {"group": 5, "pads": [1, 0, 1, 1, 1, 1]}),
    ((2, 6, 9), (6, 1, 4), True, {"group": 6, "pads": [3, 2], "strides": [2]}),
    ((2, 3, 6, 6), (6, 1, 3, 3), True, {"group": 3}),  # two filters a channel
    ((2, 17, 8, 8), (51, 1, 3, 3), False, {"group": 17, "strides": [2, 2], "pads": [0, 1, 1, 0]}),
    # Depthwise windows of every width; odd lines, lines shorter than a tile, parts of vectors.
    ((2, 19, 5, 3), (19, 1, 1, 1), True, {"group": 19}),
    ((1, 16, 9, 10), (16, 1, 2, 2), False, {"group": 16, "strides": [2, 2], "pads": [0, 0, 1, 1]}),
    ((2, 33, 9, 14), (33, 1, 3, 3), True, {"group": 33, "pads": [1, 1, 1, 1]}),
    ((3, 16, 10, 13), (16, 1, 3, 3), True, {"group": 16, "strides": [2, 2], "pads": [0, 0, 1, 1]}),
    ((2, 20, 8, 2), (20, 1, 3, 3), False, {"group": 20, "strides": [1, 2], "pads": [2, 1, 0, 2]}),
    ((1, 5, 11, 12), (5, 1, 4, 4), True, {"group": 5, "strides": [3, 2], "pads": [3, 2, 1, 0]}),
    ((2, 17, 12, 15), (17, 1, 5, 5), False, {"group": 17, "strides": [2, 2], "pads": [2, 2, 2, 2]}),
    ((1, 32, 11, 10), (32, 1, 5, 5), True, {"group": 32, "strides": [2, 2], "pads": [1, 2, 2, 1]}),
    ((1, 6, 9, 9), (6, 1, 6, 6), False, {"group": 6, "pads": [3, 2, 2, 3]}),
    ((1, 18, 13, 12), (18, 1, 7, 7), True, {"group": 18, "pads": [3, 3, 3, 3]}),
    ((2, 7, 15, 14), (7, 1, 7, 7), False, {"group": 7, "strides": [3, 3], "pads": [3, 2, 1, 3]}),
    ((1, 21, 9, 14), (21, 1, 3, 3), True, {"group": 21, "dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    ((1, 9, 14, 13), (9, 1, 3, 3), True, {"group": 9, "strides": [2, 3], "dilations": [3, 2]}),
    ((1, 16, 6, 7), (16, 1, 1, 3), False, {"group": 16, "strides": [2, 2], "pads": [0, 1, 0, 1]}),
    ((2, 40, 23), (40, 1, 5), True, {"group": 40, "strides": [2], "pads": [2, 2]}),
    ((1, 16, 3, 5, 6), (16, 1, 3, 3, 3), True, {"group": 16, "strides": [2] * 3, "pads": [1] * 6}),
    ((1, 4, 3, 3), (8, 1, 3, 3), True, {"group": 4, "strides": [2, 2], "pads": [4, 4, 4, 4]}),
    # Few channels written, by Y or by dX: 1 to 4 of them, windows as above.
    ((2, 17, 7, 9), (3, 17, 3, 3), True, {"pads": [1, 1, 1, 1]}),
    ((1, 35, 6, 5), (1, 35, 5, 5), True, {"pads": [2, 2, 2, 2]}),
    ((3, 16, 9, 3), (2, 16, 1, 1), False, {"strides": [2, 1]}),
    ((1, 8, 10, 11), (4, 8, 3, 3), True, {"strides": [2, 2], "pads": [0, 1, 1, 0]}),
    ((1, 9, 12, 11), (3, 9, 7, 4), True, {"strides": [1, 3], "dilations": [1, 2], "pads": [3] * 4}),
    ((2, 12, 19), (1, 12, 9), True, {"pads": [4, 4]}),
    ((1, 10, 4, 5, 6), (2, 10, 3, 3, 3), True, {"strides": [1, 2, 2], "pads": [1] * 6}),
    ((2, 3, 13, 14), (33, 3, 7, 7), True, {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    ((2, 3, 10, 13), (20, 3, 3, 3), True, {"strides": [2, 2], "pads": [0, 0, 1, 1]}),
    ((1, 1, 12, 9), (16, 1, 5, 5), False, {"strides": [2, 2], "pads": [2, 2, 2, 2]}),
    ((2, 2, 9, 8), (18, 2, 3, 3), True, {"strides": [3, 1], "dilations": [2, 2], "pads": [2] * 4}),
    ((2, 4, 21), (9, 4, 5), True, {"strides": [3], "pads": [2, 1]}),
    ((1, 3, 5, 6, 4), (11, 3, 2, 3, 2), False, {"strides": [2, 1, 2], "pads": [1, 1, 0, 0, 1, 1]}),
    ((2, 300, 4, 4), (70, 300, 3, 3), True, {"pads": [1, 1, 1, 1]}),  # many blocks of K
    ((3, 100, 9, 9), (130, 100, 1, 1), True, {}),
    ((2, 32, 13, 12), (64, 32, 3, 3), True, {"pads": [1, 1, 1, 1]}),  # by Winograd's algorithm
    ((1, 40, 18, 11), (48, 40, 3, 3), False, {"pads": [2, 1, 0, 2]}),
    ((2, 32, 9, 16), (32, 32, 3, 3), True, {}),
)  # fmt: skip

_AUTO = tuple(
    Case("Conv", (f32(2, 3, *size), f32(4, 3, *kernel), f32(4)),
         {"auto_pad": mode, **({"strides": [2] * len(size)} if strided else {})}, grad=(0, 1, 2))
    for mode in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    for strided in (False, True)
    for size, kernel in (((7, 8), (4, 3)), ((9,), (2,)))
)  # fmt: skip


def _conv() -> Iterator[Case]:
    for x, w, bias, attrs in _CONV:
        ins = (f32(*x), f32(*w), *((f32(w[0]),) if bias else ()))
        yield Case("Conv", ins, attrs, grad=tuple(range(len(ins))))


def _fused(x: Any, w: Any, b: Any = None, z: Any = None, *, activation: str = "",
           activation_params: Any = (), **attrs: Any) -> Any:  # fmt: skip
    """FusedConv by onnx.reference's Conv."""
    from onnx.reference.ops import op_conv

    spatial = w.ndim - 2
    convolve: Any = op_conv._conv_implementation  # without annotations
    y = convolve(
        x, w, b, "NOTSET", attrs.get("dilations", [1] * spatial),
        attrs.get("group", 1), list(w.shape[2:]), attrs.get("pads", [0] * 2 * spatial),
        attrs.get("strides", [1] * spatial),
    )  # fmt: skip
    y = y if z is None else y + z
    return activated(y, activation, *activation_params)


CASES = (
    *_conv(),
    *_AUTO,
    *(
        Case(
            "FusedConv",
            (f32(2, ci, 7, 6), f32(co, per, 3, 3), f32(co)),
            {"activation": activation, "group": ci // per, "pads": [1, 0, 1, 2]},
            domain="com.microsoft",
            reference=_fused,
        )
        for ci, co, per in ((5, 7, 5), (6, 4, 3), (20, 20, 1), (3, 6, 1), (19, 3, 19))
        for activation in ("", "Relu")
    ),
    *(
        Case(
            "FusedConv",
            (f32(2, 3, 5, 4), f32(4, 3, 3, 3), f32(4), *more),
            {"activation": activation, "activation_params": list(params)},
            grad=(0, 1, 2, 3) if more else (0, 1, 2),
            domain="com.microsoft",
            reference=_fused,
        )
        for activation, params, more in (
            ("Relu", (), (f32(2, 4, 3, 2),)),
            ("Tanh", (), ()),
            ("Sigmoid", (), ()),
            ("LeakyRelu", (0.2,), (f32(2, 4, 3, 2),)),
            ("Clip", (-3.0, 4.0), ()),
            ("HardSigmoid", (0.05, 0.4), ()),
            ("Elu", (0.3,), ()),
            ("HardSwish", (), ()),
            ("Selu", (1.5, 1.2), ()),
            ("Softplus", (), ()),
            ("Softsign", (), ()),
            ("ThresholdedRelu", (-0.5,), ()),
        )
    ),
    Case(  # by Winograd's algorithm
        "FusedConv",
        (f32(2, 32, 12, 13), f32(48, 32, 3, 3), f32(48)),
        {"activation": "Relu", "pads": [1, 1, 1, 1]},
        domain="com.microsoft",
        reference=_fused,
    ),
    Case(
        "FusedConv",
        (f32(2, 3, 9), f32(4, 3, 3)),
        {"activation": "Relu"},
        grad=(0, 1),
        domain="com.microsoft",
        reference=_fused,
    ),
    Case("Conv", (f32(64, 1, 28, 28), f32(32, 1, 3, 3), f32(32)), bench=True, name="cnn_conv1"),
    Case("Conv", (f32(64, 32, 26, 26), f32(64, 32, 3, 3), f32(64)), bench=True, name="cnn_conv2"),
)
