"""The models the benchmarks train, as forward-only graphs, and their artifacts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine import artifacts
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import TensorType


@dataclass(frozen=True)
class Workload:
    """A model to train: `build` makes the forward graph; x has shape `x`, labels are below 10.

    words: x holds numbers of words below this; 0 if x is float32.
    """

    name: str
    x: tuple[int, ...]
    build: Callable[[], Graph]
    words: int = 0

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """A fixed random batch."""
        rng = np.random.default_rng(0)
        x = (
            rng.integers(0, self.words, self.x)
            if self.words
            else rng.standard_normal(self.x).astype(np.float32)
        )
        return x, rng.integers(0, 10, self.x[0]).astype(np.int64)


def write_artifacts(graph: Graph, folder: Path) -> Path:
    """Write artifacts (cross-entropy, AdamW, all parameters) and return the folder."""
    path = folder / "forward.onnx"
    moving = {i for n in graph.nodes if n.op == "BatchNormalization" for i in n.inputs[3:]}
    onnx_io.save(graph, path)
    artifacts.generate_artifacts(
        str(path),
        requires_grad=[
            n
            for n, a in graph.initializers.items()
            if a.ndim and a.dtype.kind == "f" and n not in moving
        ],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )
    return folder


def _weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: (rng.standard_normal(s) / np.sqrt(max(math.prod(s[1:]), 1))).astype(np.float32)
        for name, s in shapes.items()
    }


def mlp() -> Graph:
    """784-500-10."""
    weights = {"w1": (500, 784), "b1": (500,), "w2": (10, 500), "b2": (10,)}
    return Graph(
        "mlp", {"x": TensorType("f32", ("batch", 784))}, ["scores"], _weights(weights),
        [
            Node("Gemm", ("x", "w1", "b1"), ("h",), {"transB": 1}, name="fc1"),
            Node("Relu", ("h",), ("r",), name="relu"),
            Node("Gemm", ("r", "w2", "b2"), ("scores",), {"transB": 1}, name="fc2"),
        ],
        {"": 17}, {"scores": TensorType("f32", ("batch", 10))},
    )  # fmt: skip


def cnn() -> Graph:
    """Two 3x3 convolutions (32, 64 channels) on 28x28, maxpool, 9216-128-10."""
    weights = {
        "c1.w": (32, 1, 3, 3), "c1.b": (32,), "c2.w": (64, 32, 3, 3), "c2.b": (64,),
        "f1.w": (128, 9216), "f1.b": (128,), "f2.w": (10, 128), "f2.b": (10,),
    }  # fmt: skip
    return Graph(
        "cnn", {"x": TensorType("f32", ("batch", 1, 28, 28))}, ["scores"], _weights(weights),
        [
            Node("Conv", ("x", "c1.w", "c1.b"), ("a1",), {"kernel_shape": [3, 3]}, name="conv1"),
            Node("Relu", ("a1",), ("r1",), name="relu1"),
            Node("Conv", ("r1", "c2.w", "c2.b"), ("a2",), {"kernel_shape": [3, 3]}, name="conv2"),
            Node("Relu", ("a2",), ("r2",), name="relu2"),
            Node("MaxPool", ("r2",), ("p",), {"kernel_shape": [2, 2], "strides": [2, 2]},
                 name="pool"),
            Node("Flatten", ("p",), ("f",), name="flatten"),
            Node("Gemm", ("f", "f1.w", "f1.b"), ("h",), {"transB": 1}, name="fc1"),
            Node("Relu", ("h",), ("r3",), name="relu3"),
            Node("Gemm", ("r3", "f2.w", "f2.b"), ("scores",), {"transB": 1}, name="fc2"),
        ],
        {"": 17}, {"scores": TensorType("f32", ("batch", 10))},
    )  # fmt: skip


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


class _MobileNet:
    """Appends the layers of MobileNetV2 (Sandler et al., arXiv 1801.04381) to lists.

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
        """Convolution, batch normalisation and, for most, an activation; Clip is to 0 and 6."""
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
        """A node of one output, which has its name."""
        self.nodes.append(Node(op, inputs, (out,), attrs, name=out))
        return out

    def block(self, x: str, ci: int, co: int, expansion: int, stride: int) -> str:
        """An inverted residual."""
        wide = ci * expansion
        y = self.convolution(x, ci, wide, 1) if expansion > 1 else x
        y = self.convolution(y, wide, wide, 3, stride, wide)
        y = self.convolution(y, wide, co, 1, activation="")
        return self.op("Add", f"{y}.sum", x, y) if stride == 1 and ci == co else y

    def block_v3(
        self, x: str, ci: int, co: int, taps: int, wide: int, squeeze: int, act: str, stride: int
    ) -> str:
        """An inverted residual of MobileNetV3."""
        y = self.convolution(x, ci, wide, 1, activation=act) if wide > ci else x
        y = self.convolution(y, wide, wide, taps, stride, wide, act)
        y = self.excite(y, wide) if squeeze else y
        y = self.convolution(y, wide, co, 1, activation="")
        return self.op("Add", f"{y}.sum", x, y) if stride == 1 and ci == co else y

    def excite(self, x: str, channels: int) -> str:
        """Every channel times a number between 0 and 1 that two layers make of all their means."""
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
        """The graph of the layers so far, for square images; the last is called `scores`."""
        return Graph(
            name, {"x": TensorType("f32", ("batch", 3, side, side))}, ["scores"],
            {**_weights(self.shapes), **self.constants}, self.nodes, {"": 17},
            {"scores": TensorType("f32", ("batch", 10))},
        )  # fmt: skip


def mobilenet(side: int = 224) -> Graph:
    """MobileNetV2 of 10 classes, for square images."""
    to = _MobileNet()
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
    """MobileNetV3-Small of 10 classes, for square images."""
    to = _MobileNet()
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


class _Transformer:
    """Appends the layers of a post-norm encoder (Vaswani et al. 2017) to lists."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        self.width, self.heads, self.inner = width, heads, inner
        self.nodes: list[Node] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.constants: dict[str, np.ndarray] = {
            "split": np.array([0, 0, heads, width // heads]), "join": np.array([0, 0, width]),
            "root": np.array((width // heads) ** -0.5, np.float32),
        }  # fmt: skip

    def op(self, op: str, *inputs: str, **attrs: object) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(Node(op, inputs, (name,), attrs, name=name))
        return name

    def linear(self, x: str, name: str, n_in: int, n_out: int) -> str:
        self.shapes |= {f"{name}.w": (n_in, n_out), f"{name}.b": (n_out,)}
        return self.op("Add", self.op("MatMul", x, f"{name}.w"), f"{name}.b")

    def norm(self, x: str, name: str) -> str:
        for end, value in (("scale", 1), ("shift", 0)):
            self.constants[f"{name}.{end}"] = np.full(self.width, value, np.float32)
        outs = (name, f"{name}.mean", f"{name}.root")  # all three, for onnxruntime-training
        inputs = (x, f"{name}.scale", f"{name}.shift")
        self.nodes.append(Node("LayerNormalization", inputs, outs, {"axis": -1}, name=name))
        return name

    def gelu(self, x: str) -> str:
        """x (1 + erf(x / sqrt 2)) / 2, as PyTorch exports it."""
        more = self.op("Add", self.op("Erf", self.op("Div", x, "sqrt2")), "one")
        return self.op("Mul", self.op("Mul", x, more), "half")

    def layer(self, x: str, name: str, activation: str = "Relu") -> str:
        """Attention and two linear layers, each added to its input and normalised."""
        perms = {"q": [0, 2, 1, 3], "k": [0, 2, 3, 1], "v": [0, 2, 1, 3]}
        heads = {
            part: self.op(
                "Transpose",
                self.op("Reshape", self.linear(x, f"{name}.{part}", *[self.width] * 2), "split"),
                perm=perm,
            )
            for part, perm in perms.items()
        }
        scores = self.op("MatMul", self.op("Mul", heads["q"], "root"), heads["k"])
        seen = self.op("MatMul", self.op("Softmax", scores, axis=-1), heads["v"])
        joined = self.op("Reshape", self.op("Transpose", seen, perm=[0, 2, 1, 3]), "join")
        attended = self.linear(joined, f"{name}.o", self.width, self.width)
        x = self.norm(self.op("Add", x, attended), f"{name}.n1")
        wide = self.linear(x, f"{name}.up", self.width, self.inner)
        wide = self.op("Relu", wide) if activation == "Relu" else self.gelu(wide)
        narrow = self.linear(wide, f"{name}.down", self.inner, self.width)
        return self.norm(self.op("Add", x, narrow), f"{name}.n2")


def transformer() -> Graph:
    """An encoder of 4 layers, width 256, 4 heads, 1024 inside, over 128 positions; 10 classes."""
    to = _Transformer(256, 4, 1024)
    y = "x"
    for i in range(4):
        y = to.layer(y, f"l{i}")
    to.shapes |= {"fc.w": (10, 256), "fc.b": (10,)}
    to.nodes += [
        Node("ReduceMean", (y,), ("flat",), {"axes": [1], "keepdims": 0}, name="pool"),
        Node("Gemm", ("flat", "fc.w", "fc.b"), ("scores",), {"transB": 1}, name="fc"),
    ]
    return Graph(
        "transformer", {"x": TensorType("f32", ("batch", 128, 256))}, ["scores"],
        {**_weights(to.shapes), **to.constants}, to.nodes, {"": 17},
        {"scores": TensorType("f32", ("batch", 10))},
    )  # fmt: skip


WORDS = 30522  # of BERT's vocabulary


def minilm(positions: int = 128, words: int = WORDS, layers: int = 6, width: int = 384) -> Graph:
    """MiniLM (Wang et al., arXiv 2002.10957): token numbers to the scores of 10 classes.

    It is BERT of few layers with 12 heads.  x: [batch, positions], numbers below `words`.  The
    attention sees all positions, and the classes are told from their mean.
    """
    to = _Transformer(width, 12, 4 * width)
    to.shapes |= {"words.w": (words, width), "positions.w": (positions, width)}
    to.constants |= {"sqrt2": np.array(2**0.5, np.float32), "one": np.array(1, np.float32),
                     "half": np.array(0.5, np.float32)}  # fmt: skip
    y = to.op("Add", to.op("Gather", "words.w", "x", axis=0), "positions.w")
    y = to.norm(y, "embedded")
    for i in range(layers):
        y = to.layer(y, f"l{i}", "Gelu")
    to.shapes |= {"fc.w": (10, width), "fc.b": (10,)}
    to.nodes += [
        Node("ReduceMean", (y,), ("flat",), {"axes": [1], "keepdims": 0}, name="pool"),
        Node("Gemm", ("flat", "fc.w", "fc.b"), ("scores",), {"transB": 1}, name="fc"),
    ]
    return Graph(
        "minilm", {"x": TensorType("i64", ("batch", positions))}, ["scores"],
        {**_weights(to.shapes), **to.constants}, to.nodes, {"": 17},
        {"scores": TensorType("f32", ("batch", 10))},
    )  # fmt: skip


def gru(steps: int = 24, features: int = 12, width: int = 48) -> Graph:
    """A bidirectional GRU, the mean over time, and a linear layer to 10 classes.

    x: [batch, steps, features].
    """
    weights = {
        "w": (2, 3 * width, features), "r": (2, 3 * width, width), "b": (2, 6 * width),
        "fc.w": (10, 2 * width), "fc.b": (10,),
    }  # fmt: skip
    constants = {"join": np.array([0, 0, 2 * width])}
    attrs = {"hidden_size": width, "direction": "bidirectional", "linear_before_reset": 1}
    return Graph(
        "gru", {"x": TensorType("f32", ("batch", steps, features))}, ["scores"],
        {**_weights(weights), **constants},
        [
            Node("Transpose", ("x",), ("t",), {"perm": [1, 0, 2]}, name="by_time"),
            Node("GRU", ("t", "w", "r", "b"), ("h",), attrs, name="gru"),
            Node("Transpose", ("h",), ("both",), {"perm": [0, 2, 1, 3]}, name="by_sample"),
            Node("Reshape", ("both", "join"), ("joined",), name="join_directions"),
            Node("ReduceMean", ("joined",), ("flat",), {"axes": [0], "keepdims": 0}, name="pool"),
            Node("Gemm", ("flat", "fc.w", "fc.b"), ("scores",), {"transB": 1}, name="fc"),
        ],
        {"": 17}, {"scores": TensorType("f32", ("batch", 10))},
    )  # fmt: skip


WORKLOADS = {
    "mlp": Workload("mlp", (64, 784), mlp),
    "cnn": Workload("cnn", (64, 1, 28, 28), cnn),
    "mobilenet": Workload("mobilenet", (8, 3, 224, 224), mobilenet),
    "transformer": Workload("transformer", (8, 128, 256), transformer),
    "minilm": Workload("minilm", (8, 128), minilm, WORDS),
}


def write_workload(name: str, folder: Path) -> Path:
    """Write the artifacts of a workload, and batch.npz with its batch; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    x, y = WORKLOADS[name].batch()
    np.savez(folder / "batch.npz", x=x, y=y)
    return write_artifacts(WORKLOADS[name].build(), folder)
