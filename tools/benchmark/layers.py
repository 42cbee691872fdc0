"""Layers of networks as nodes."""

from __future__ import annotations

import numpy as np

from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import TensorType
from engine.tools.benchmark.workload import CLASSES, random_weights


class Layers:
    """Nodes of a forward graph in order, and the initializers that they read."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.shapes: dict[str, tuple[int, ...]] = {}  # of random weights
        self.constants: dict[str, np.ndarray] = {}

    def op(self, op: str, *inputs: str, **attrs: object) -> str:
        """Add a node of one output; return its name."""
        (name,) = self.ops(op, 1, *inputs, **attrs)
        return name

    def ops(self, op: str, outputs: int, *inputs: str, **attrs: object) -> list[str]:
        """Add a node of some outputs; return their names."""
        name = f"{op.lower()}{len(self.nodes)}"
        names = [name if i == 0 else f"{name}.{i}" for i in range(outputs)]
        self.nodes.append(Node(op, inputs, tuple(names), attrs, name=name))
        return names

    def constant(self, name: str, value: object) -> str:
        """Add a constant of any type, unless the name is taken; return the name."""
        self.constants.setdefault(name, np.asarray(value))
        return name

    def number(self, value: float) -> str:
        """Return a float32 scalar, once for every value."""
        return self.constant(f"number.{value:.9g}", np.float32(value))

    def vector(self, name: str, size: int, value: float) -> str:
        """Return a parameter that begins with the same value everywhere: f32[size]."""
        return self.constant(name, np.full(size, value, np.float32))

    def convolution(
        self, x: str, name: str, ci: int, co: int, taps: int, stride: int = 1, rank: int = 2,
        pad: int = 0, bias: bool = False,
    ) -> str:  # fmt: skip
        """Return a convolution over `rank` dimensions, the same taps, stride and pad in each."""
        self.shapes[f"{name}.w"] = (co, ci, *[taps] * rank)
        inputs = [x, f"{name}.w"]
        if bias:
            self.shapes[f"{name}.b"] = (co,)
            inputs.append(f"{name}.b")
        return self.op("Conv", *inputs, pads=[pad] * 2 * rank, strides=[stride] * rank)

    def batch_norm(self, x: str, name: str, channels: int) -> str:
        """Add a batch normalisation, with running statistics."""
        ends = {"scale": 1, "shift": 0, "mean": 0, "var": 1}
        vectors = [self.vector(f"{name}.{end}", channels, value) for end, value in ends.items()]
        return self.op("BatchNormalization", x, *vectors)

    def layer_norm(self, x: str, name: str, width: int, epsilon: float = 1e-5) -> str:
        """Add a layer normalisation over the last dimension."""
        scale, shift = (
            self.vector(f"{name}.{e}", width, v) for e, v in (("scale", 1), ("shift", 0))
        )
        # All three outputs, as onnxruntime-training wants them.
        out, *_ = self.ops("LayerNormalization", 3, x, scale, shift, axis=-1, epsilon=epsilon)
        return out

    def linear(self, x: str, name: str, n_in: int, n_out: int) -> str:
        """Return a linear layer over the last dimension of x."""
        self.shapes |= {f"{name}.w": (n_in, n_out), f"{name}.b": (n_out,)}
        return self.op("Add", self.op("MatMul", x, f"{name}.w"), f"{name}.b")

    def classify(self, x: str, width: int) -> None:
        """Add the last layer, called fc: the scores of the classes, from [batch, width]."""
        self.shapes |= {"fc.w": (CLASSES, width), "fc.b": (CLASSES,)}
        self.nodes.append(Node("Gemm", (x, "fc.w", "fc.b"), ("scores",), {"transB": 1}, name="fc"))

    def gelu(self, x: str) -> str:
        """Add x (1 + erf(x / sqrt 2)) / 2, as PyTorch exports it."""
        ratio = self.op("Div", x, self.number(2**0.5))
        more = self.op("Add", self.op("Erf", ratio), self.number(1))
        return self.op("Mul", self.op("Mul", x, more), self.number(0.5))

    def attend(self, q: str, k: str, v: str, width: int, heads: int, mask: str = "") -> str:
        """Add attention of [batch, positions, width], in heads; q is scaled, as exporters write it.

        mask: a bool of every score, by which it counts, if given.
        """
        split = self.constant("split", [0, 0, heads, width // heads])
        perms = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        q, k, v = (
            self.op("Transpose", self.op("Reshape", part, split), perm=perm)
            for part, perm in zip((q, k, v), perms, strict=True)
        )
        scores = self.op("MatMul", self.op("Mul", q, self.number((width // heads) ** -0.5)), k)
        if mask:
            scores = self.op("Where", mask, scores, self.number(float(np.finfo(np.float32).min)))
        seen = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        back = self.op("Transpose", seen, perm=[0, 2, 1, 3])
        return self.op("Reshape", back, self.constant("join", [0, 0, width]))

    def graph(
        self, name: str, x: TensorType, scores: tuple[str | int, ...] = ("batch", CLASSES)
    ) -> Graph:
        """Return the graph of the layers so far, of the input x and the output `scores`."""
        return Graph(
            name, {"x": x}, ["scores"], {**random_weights(self.shapes), **self.constants},
            self.nodes, {"": 17}, {"scores": TensorType("f32", scores)},
        )  # fmt: skip
