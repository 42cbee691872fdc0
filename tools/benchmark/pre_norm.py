"""Transformers with the normalisation before each part: ViT and GPT-2."""

from __future__ import annotations

import numpy as np

from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import TensorType
from engine.tools.benchmark.layers import Layers

GPT2_WORDS = 8192


class _PreNorm(Layers):
    def __init__(self, width: int, heads: int, epsilon: float) -> None:
        super().__init__()
        self.width, self.heads, self.epsilon = width, heads, epsilon

    def norm(self, x: str, name: str) -> str:
        return self.layer_norm(x, name, self.width, self.epsilon)

    def attention(self, x: str, name: str, mask: str = "") -> str:
        """Add self-attention; queries, keys and values are thirds of one product.

        mask: a bool of every score, by which it counts, if given.
        """
        q, k, v = self.ops(
            "Split", 3, self.linear(x, f"{name}.qkv", self.width, 3 * self.width), axis=-1
        )
        joined = self.attend(q, k, v, self.width, self.heads, mask)
        return self.linear(joined, f"{name}.o", self.width, self.width)

    def gelu_tanh(self, x: str) -> str:
        """Return the approximation of GELU that GPT-2 has, as transformers writes it."""
        cube = self.op("Mul", self.op("Pow", x, self.number(3)), self.number(0.044715))
        inner = self.op("Mul", self.op("Add", x, cube), self.number((2 / np.pi) ** 0.5))
        more = self.op("Add", self.op("Tanh", inner), self.number(1))
        return self.op("Mul", self.op("Mul", x, self.number(0.5)), more)

    def block(self, x: str, name: str, mask: str = "", approximate: bool = False) -> str:
        """Add attention and two linear layers, each of the normalised input, added to it."""
        x = self.op("Add", x, self.attention(self.norm(x, f"{name}.n1"), name, mask))
        wide = self.linear(self.norm(x, f"{name}.n2"), f"{name}.up", self.width, 4 * self.width)
        wide = self.gelu_tanh(wide) if approximate else self.gelu(wide)
        return self.op("Add", x, self.linear(wide, f"{name}.down", 4 * self.width, self.width))


def vit(side: int = 224, width: int = 192, layers: int = 12, heads: int = 3) -> Graph:
    """Return ViT-Tiny (Dosovitskiy et al., arXiv 2010.11929; Touvron et al., arXiv 2012.12877).

    Patches of 16 by 16 and a token of the class, by which 10 classes are told.
    """
    to = _PreNorm(width, heads, 1e-6)
    patches = (side // 16) ** 2
    y = to.convolution("x", "patch", 3, width, 16, 16, bias=True)
    y = to.op("Reshape", y, to.constant("flat", [0, width, patches]))
    y = to.op("Transpose", y, perm=[0, 2, 1])
    to.shapes |= {"token": (1, 1, width), "positions": (1, patches + 1, width)}
    batch = to.op("Shape", y, start=0, end=1)
    each = to.op("Concat", batch, to.constant("one_wide", [1, width]), axis=0)
    y = to.op("Concat", to.op("Expand", "token", each), y, axis=1)
    y = to.op("Add", y, "positions")
    for i in range(layers):
        y = to.block(y, f"l{i}")
    y = to.norm(y, "norm")
    to.classify(to.op("Gather", y, to.constant("first", 0), axis=1), width)
    return to.graph("vit", TensorType("f32", ("batch", 3, side, side)))


def gpt2(
    positions: int = 128, words: int = GPT2_WORDS, layers: int = 2, width: int = 256, heads: int = 4
) -> Graph:
    """Return a small GPT-2 (Radford et al. 2019): numbers of words to the scores of the next ones.

    x: [batch, positions], numbers below `words`.  Scores: [batch * positions, words], by the
    transposed table of words.
    """
    to = _PreNorm(width, heads, 1e-5)
    to.shapes |= {"words.w": (words, width), "positions.w": (positions, width)}
    mask = to.constant("mask", np.tri(positions, dtype=bool)[None, None])
    y = to.op("Add", to.op("Gather", "words.w", "x", axis=0), "positions.w")
    for i in range(layers):
        y = to.block(y, f"l{i}", mask, approximate=True)
    y = to.op("MatMul", to.norm(y, "norm"), to.op("Transpose", "words.w", perm=[1, 0]))
    flat = to.constant("rows", [-1, words])
    to.nodes.append(Node("Reshape", (y, flat), ("scores",), {}, name="scores"))
    return to.graph("gpt2", TensorType("i64", ("batch", positions)), ("rows", words))
