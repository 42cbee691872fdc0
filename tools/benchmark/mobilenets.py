"""MobileNetV2 and MobileNetV3-Small."""

from __future__ import annotations

import numpy as np

from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import TensorType
from engine.tools.benchmark.workload import random_weights

# Expansion, channels, blocks and first stride of MobileNetV2's stages.
STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip


# Taps, expanded channels, channels, squeeze-and-excitation, activation and stride of the blocks of
# MobileNetV3-Small.
SMALL = (
    (3, 16, 16, 1, "Relu", 2),
    (3, 72, 24, 0, "Relu", 2),
    (3, 88, 24, 0, "Relu", 1),
    (5, 96, 40, 1, "HardSwish", 2),
    (5, 240, 40, 1, "HardSwish", 1),
    (5, 240, 40, 1, "HardSwish", 1),
    (5, 120, 48, 1, "HardSwish", 1),
    (5, 144, 48, 1, "HardSwish", 1),
    (5, 288, 96, 1, "HardSwish", 2),
    (5, 576, 96, 1, "HardSwish", 1),
    (5, 576, 96, 1, "HardSwish", 1),
)


class MobileNet:
    """Builder of the layers of MobileNetV2 (Sandler et al., arXiv 1801.04381).

    The blocks of MobileNetV3 (Howard et al., arXiv 1905.02244) have other activations, and weigh
    their channels by squeeze and excitation.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.constants: dict[str, np.ndarray] = {
            "low": np.array(0, np.float32),
            "high": np.array(6, np.float32),
        }

    def convolution(
        self, x: str, ci: int, co: int, taps: int, stride: int = 1, group: int = 1,
        activation: str = "Clip",
    ) -> str:  # fmt: skip
        """Add a convolution, a batch normalisation and, for most, an activation; Clip is to 0 and
        6.
        """
        name = f"c{len(self.shapes)}"
        self.shapes[f"{name}.w"] = (co, ci // group, taps, taps)
        attrs = {"pads": [taps // 2] * 4, "strides": [stride] * 2, "group": group}
        self.nodes.append(Node("Conv", (x, f"{name}.w"), (name,), attrs, name=name))
        vectors = [f"{name}.{end}" for end in ("scale", "shift", "mean", "var")]
        for vector, value in zip(vectors, (1, 0, 0, 1), strict=True):
            self.constants[vector] = np.full(co, value, np.float32)
        out = f"{name}.n"
        self.nodes.append(Node("BatchNormalization", (name, *vectors), (out,), name=out))
        bounds = ("low", "high") if activation == "Clip" else ()
        return self.op(activation, f"{name}.y", out, *bounds) if activation else out

    def op(self, op: str, out: str, *inputs: str, **attrs: object) -> str:
        """Add a node of one output, which has its name."""
        self.nodes.append(Node(op, inputs, (out,), attrs, name=out))
        return out

    def block(self, x: str, ci: int, co: int, expansion: int, stride: int) -> str:
        """Add an inverted residual."""
        wide = ci * expansion
        y = self.convolution(x, ci, wide, 1) if expansion > 1 else x
        y = self.convolution(y, wide, wide, 3, stride, wide)
        y = self.convolution(y, wide, co, 1, activation="")
        return self.op("Add", f"{y}.sum", x, y) if stride == 1 and ci == co else y

    def block_v3(
        self, x: str, ci: int, co: int, taps: int, wide: int, squeeze: int, act: str, stride: int
    ) -> str:
        """Add an inverted residual of MobileNetV3."""
        y = self.convolution(x, ci, wide, 1, activation=act) if wide > ci else x
        y = self.convolution(y, wide, wide, taps, stride, wide, act)
        y = self.excite(y, wide) if squeeze else y
        y = self.convolution(y, wide, co, 1, activation="")
        return self.op("Add", f"{y}.sum", x, y) if stride == 1 and ci == co else y

    def excite(self, x: str, channels: int) -> str:
        """Scale every channel by a number in (0, 1) that two layers make of all means."""
        few = max(channels // 4 + 4, 8) // 8 * 8
        few += 8 * (few < 0.9 * (channels // 4))
        y = self.op("GlobalAveragePool", f"{x}.mean", x)
        for name, act, ci, co in (
            ("down", "Relu", channels, few),
            ("up", "HardSigmoid", few, channels),
        ):
            self.shapes |= {f"{x}.{name}.w": (co, ci, 1, 1), f"{x}.{name}.b": (co,)}
            y = self.op("Conv", f"{x}.{name}", y, f"{x}.{name}.w", f"{x}.{name}.b")
            alpha = {"alpha": 1 / 6} if act == "HardSigmoid" else {}
            y = self.op(act, f"{x}.{name}.y", y, **alpha)
        return self.op("Mul", f"{x}.weighed", x, y)

    def graph(self, name: str, side: int) -> Graph:
        """Return the graph of the layers so far, for square images; the last is called `scores`."""
        return Graph(
            name, {"x": TensorType("f32", ("batch", 3, side, side))}, ["scores"],
            {**random_weights(self.shapes), **self.constants}, self.nodes, {"": 17},
            {"scores": TensorType("f32", ("batch", 10))},
        )  # fmt: skip


def mobilenet(side: int = 224) -> Graph:
    """Return MobileNetV2 with 10 classes, for square images."""
    to = MobileNet()
    y, channels = to.convolution("x", 3, 32, 3, 2), 32
    for expansion, co, blocks, stride in STAGES:
        for i in range(blocks):
            y = to.block(y, channels, co, expansion, 1 if i else stride)
            channels = co
    y = to.convolution(y, channels, 1280, 1)
    to.shapes |= {"fc.w": (10, 1280), "fc.b": (10,)}
    to.op("ReduceMean", "flat", y, axes=[2, 3], keepdims=0)
    to.op("Gemm", "scores", "flat", "fc.w", "fc.b", transB=1)
    return to.graph("mobilenet", side)


def mobilenet_v3(side: int = 224) -> Graph:
    """Return MobileNetV3-Small with 10 classes, for square images."""
    to = MobileNet()
    y, channels = to.convolution("x", 3, 16, 3, 2, activation="HardSwish"), 16
    for taps, wide, co, squeeze, act, stride in SMALL:
        y = to.block_v3(y, channels, co, taps, wide, squeeze, act, stride)
        channels = co
    y = to.convolution(y, channels, 576, 1, activation="HardSwish")
    to.shapes |= {"fc1.w": (1024, 576), "fc1.b": (1024,), "fc2.w": (10, 1024), "fc2.b": (10,)}
    to.op("GlobalAveragePool", "pool", y)
    to.op("Flatten", "flat", "pool")
    to.op("HardSwish", "wide", to.op("Gemm", "fc1", "flat", "fc1.w", "fc1.b", transB=1))
    to.op("Gemm", "scores", "wide", "fc2.w", "fc2.b", transB=1)
    return to.graph("mobilenet_v3", side)
