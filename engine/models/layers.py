"""Layers of networks as nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import TensorType
from engine.models.initial import Initial, draw, make_uniform

CLASSES = 10  # of networks that nobody gives another number


class Layers:
    """Nodes of a forward graph in order, and the initializers that they read.

    seed: the seed of the random weights.
    transposed: weights of linear layers are [outputs, inputs], as in PyTorch, and not [inputs,
        outputs].
    """

    def __init__(self, seed: int = 0, transposed: bool = False) -> None:
        self.seed, self.transposed = seed, transposed
        self.nodes: list[Node] = []
        self.shapes: dict[str, tuple[int, ...]] = {}  # of random weights
        self.rules: dict[str, Initial] = {}  # of their values, where `shapes` alone do not decide
        self.constants: dict[str, np.ndarray[Any, Any]] = {}

    def add_op(self, op: str, *inputs: str, **attrs: object) -> str:
        """Add a node of one output; return its name."""
        (name,) = self.add_ops(op, 1, *inputs, **attrs)
        return name

    def add_ops(self, op: str, outputs: int, *inputs: str, **attrs: object) -> list[str]:
        """Add a node of some outputs; return their names."""
        name = f"{op.lower()}{len(self.nodes)}"
        names = [name if i == 0 else f"{name}.{i}" for i in range(outputs)]
        self.nodes.append(Node(op, inputs, tuple(names), attrs, name=name))
        return names

    def add_last(self, op: str, *inputs: str, **attrs: object) -> None:
        """Add the node that makes the scores."""
        self.nodes.append(Node(op, inputs, ("scores",), attrs, name="scores"))

    def add_parameter(self, name: str, shape: tuple[int, ...], rule: Initial | None = None) -> str:
        """Add a parameter with random values; return its name."""
        self.shapes[name] = shape
        if rule is not None:
            self.rules[name] = rule
        return name

    def add_constant(self, name: str, value: object) -> str:
        """Add a constant of any type, unless the name is taken; return the name."""
        self.constants.setdefault(name, np.asarray(value))
        return name

    def add_number(self, value: float) -> str:
        """Return a float32 scalar, once for every value."""
        return self.add_constant(f"number.{value:.9g}", np.float32(value))

    def add_vector(self, name: str, size: int, value: float) -> str:
        """Return a parameter that begins with the same value everywhere: f32[size]."""
        return self.add_constant(name, np.full(size, value, np.float32))

    def add_convolution(
        self, x: str, name: str, ci: int, co: int, taps: int | tuple[int, ...], stride: int = 1,
        rank: int = 2, pad: int | tuple[int, ...] = 0, group: int = 1, bias: bool = False,
        rule: Initial | None = None, bias_rule: Initial | None = None,
    ) -> str:  # fmt: skip
        """Return a convolution over `rank` dimensions, the same stride in each.

        taps, pad: a number for every dimension, or one for all.
        """
        sizes = (taps,) * rank if isinstance(taps, int) else taps
        pads = (pad,) * rank if isinstance(pad, int) else pad
        inputs = [x, self.add_parameter(f"{name}.weight", (co, ci // group, *sizes), rule)]
        if bias:
            inputs.append(self.add_parameter(f"{name}.bias", (co,), bias_rule))
        groups = {"group": group} if group > 1 else {}
        strides = [stride] * len(sizes)
        return self.add_op("Conv", *inputs, pads=[*pads, *pads], strides=strides, **groups)

    def add_batch_norm(self, x: str, name: str, channels: int, **attrs: float) -> str:
        """Add a batch normalisation, with running statistics; attrs: of the node."""
        ends = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}
        vectors = [self.add_vector(f"{name}.{end}", channels, value) for end, value in ends.items()]
        return self.add_op("BatchNormalization", x, *vectors, **attrs)

    def add_layer_norm(self, x: str, name: str, width: int, epsilon: float = 1e-5) -> str:
        """Add a layer normalisation over the last dimension."""
        scale, shift = (
            self.add_vector(f"{name}.{e}", width, v) for e, v in (("weight", 1), ("bias", 0))
        )
        # All three outputs, as onnxruntime-training wants them.
        out, *_ = self.add_ops("LayerNormalization", 3, x, scale, shift, axis=-1, epsilon=epsilon)
        return out

    def add_linear(
        self, x: str, name: str, n_in: int, n_out: int, rule: Initial | None = None,
        bias_rule: Initial | None = None,
    ) -> str:  # fmt: skip
        """Return a linear layer over the last dimension of x."""
        shape = (n_out, n_in) if self.transposed else (n_in, n_out)
        weight = self.add_parameter(f"{name}.weight", shape, rule)
        bias = self.add_parameter(f"{name}.bias", (n_out,), bias_rule)
        if self.transposed:
            weight = self.add_op("Transpose", weight, perm=[1, 0])
        return self.add_op("Add", self.add_op("MatMul", x, weight), bias)

    def add_dense(
        self, x: str, name: str, n_in: int, n_out: int, rule: Initial | None = None,
        bias_rule: Initial | None = None,
    ) -> str:  # fmt: skip
        """Add a linear layer of [batch, n_in], by default with PyTorch's initial values."""
        weight, bias = self._add_dense(name, n_in, n_out, rule, bias_rule)
        return self.add_op("Gemm", x, weight, bias, transB=1)

    def add_scores(
        self, x: str, name: str, n_in: int, n_out: int, rule: Initial | None = None,
        bias_rule: Initial | None = None,
    ) -> None:  # fmt: skip
        """Add the last layer as `add_dense` does; its node is called as the layer."""
        weight, bias = self._add_dense(name, n_in, n_out, rule, bias_rule)
        self.nodes.append(Node("Gemm", (x, weight, bias), ("scores",), {"transB": 1}, name=name))

    def _add_dense(
        self, name: str, n_in: int, n_out: int, rule: Initial | None, bias_rule: Initial | None
    ) -> tuple[str, str]:
        weight = self.add_parameter(f"{name}.weight", (n_out, n_in), rule or make_uniform(n_in))
        return weight, self.add_parameter(f"{name}.bias", (n_out,), bias_rule or make_uniform(n_in))

    def classify(self, x: str, width: int) -> None:
        """Add the last layer, called fc: the scores of 10 classes, from [batch, width]."""
        self.shapes |= {"fc.weight": (CLASSES, width), "fc.bias": (CLASSES,)}
        vectors = (x, "fc.weight", "fc.bias")
        self.nodes.append(Node("Gemm", vectors, ("scores",), {"transB": 1}, name="fc"))

    def add_dropout(self, x: str, ratio: float) -> str:
        """Add a dropout of this ratio; 0: none."""
        return self.add_op("Dropout", x, self.add_number(ratio)) if ratio else x

    def add_gelu(self, x: str) -> str:
        """Add x (1 + erf(x / sqrt 2)) / 2, as PyTorch exports it."""
        ratio = self.add_op("Div", x, self.add_number(2**0.5))
        more = self.add_op("Add", self.add_op("Erf", ratio), self.add_number(1))
        return self.add_op("Mul", self.add_op("Mul", x, more), self.add_number(0.5))

    def attend(self, q: str, k: str, v: str, width: int, heads: int, mask: str = "") -> str:
        """Add attention of [batch, positions, width], in heads; q is scaled, as exporters write it.

        mask: a bool of every score, by which it counts, if given.
        """
        split = self.add_constant("split", [0, 0, heads, width // heads])
        perms = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        q, k, v = (
            self.add_op("Transpose", self.add_op("Reshape", part, split), perm=perm)
            for part, perm in zip((q, k, v), perms, strict=True)
        )
        scores = self.add_op(
            "MatMul", self.add_op("Mul", q, self.add_number((width // heads) ** -0.5)), k
        )
        if mask:
            scores = self.add_op(
                "Where", mask, scores, self.add_number(float(np.finfo(np.float32).min))
            )
        seen = self.add_op("MatMul", self.add_op("Softmax", scores, axis=-1), v)
        back = self.add_op("Transpose", seen, perm=[0, 2, 1, 3])
        return self.add_op("Reshape", back, self.add_constant("join", [0, 0, width]))

    def make_graph(
        self, name: str, x: TensorType, scores: tuple[str | int, ...] = ("batch", CLASSES)
    ) -> Graph:
        """Return the graph of the layers so far, of the input x and the output `scores`."""
        values = draw(self.shapes, self.rules, self.seed)
        return Graph(
            name, {"x": x}, ["scores"], {**values, **self.constants},
            self.nodes, {"": 17}, {"scores": TensorType("f32", scores)},
        )  # fmt: skip
