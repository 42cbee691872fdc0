"""Layers of transformers as nodes."""

from __future__ import annotations

import numpy as np

from engine.graphs.ir.graph import Node


class Encoder:
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
