"""Transformers with the normalisation before each part: ViT, GPT-2, an encoder of texts."""

from __future__ import annotations

import numpy as np

from engine.base.errors import ShapeError
from engine.graphs.ir.graph import Graph
from engine.kernels.vocabulary.op import TensorType
from engine.models.initial import Initial, normal, uniform, zeros
from engine.models.layers import CLASSES, Layers

GPT2_WORDS = 8192
PATCH = 16  # height and width


class _PreNorm(Layers):
    """Blocks with the names of timm's.

    drawn: the rules of weights and biases of linear layers.
    """

    def __init__(
        self, width: int, heads: int, epsilon: float, seed: int = 0, transposed: bool = False,
        drawn: tuple[Initial, Initial] | tuple[()] = (),
    ) -> None:  # fmt: skip
        super().__init__(seed, transposed)
        self.width, self.heads, self.epsilon, self.drawn = width, heads, epsilon, drawn

    def norm(self, x: str, name: str) -> str:
        return self.layer_norm(x, name, self.width, self.epsilon)

    def project(self, x: str, name: str, n_in: int, n_out: int) -> str:
        return self.linear(x, name, n_in, n_out, *self.drawn)

    def attention(self, x: str, name: str, mask: str = "") -> str:
        """Add self-attention; queries, keys and values are thirds of one product.

        mask: a bool of every score, by which it counts, if given.
        """
        q, k, v = self.ops(
            "Split", 3, self.project(x, f"{name}.qkv", self.width, 3 * self.width), axis=-1
        )
        joined = self.attend(q, k, v, self.width, self.heads, mask)
        return self.project(joined, f"{name}.proj", self.width, self.width)

    def gelu_tanh(self, x: str) -> str:
        """Return the approximation of GELU that GPT-2 has, as transformers writes it."""
        cube = self.op("Mul", self.op("Pow", x, self.number(3)), self.number(0.044715))
        inner = self.op("Mul", self.op("Add", x, cube), self.number((2 / np.pi) ** 0.5))
        more = self.op("Add", self.op("Tanh", inner), self.number(1))
        return self.op("Mul", self.op("Mul", x, self.number(0.5)), more)

    def block(self, x: str, name: str, mask: str = "", approximate: bool = False) -> str:
        """Add attention and two linear layers, each of the normalised input, added to it."""
        x = self.op("Add", x, self.attention(self.norm(x, f"{name}.norm1"), f"{name}.attn", mask))
        y = self.norm(x, f"{name}.norm2")
        wide = self.project(y, f"{name}.mlp.fc1", self.width, 4 * self.width)
        wide = self.gelu_tanh(wide) if approximate else self.gelu(wide)
        return self.op("Add", x, self.project(wide, f"{name}.mlp.fc2", 4 * self.width, self.width))


def vit_tiny(
    shape: tuple[int, ...] = (3, 224, 224), outputs: int = CLASSES, *, width: int = 192,
    layers: int = 12, heads: int = 3, seed: int = 0,
) -> Graph:  # fmt: skip
    """Return ViT-Tiny (Dosovitskiy et al., arXiv 2010.11929; Touvron et al., arXiv 2012.12877).

    Patches of 16 by 16 and a token of the class, by which the classes are told.  Names and initial
    values are timm's.

    Raises:
        ShapeError: a side is not a multiple of 16.
    """
    channels, *sides = shape
    if any(side % PATCH for side in sides):
        raise ShapeError(
            f"vit_tiny: pictures of {list(shape)}; expected sides that are multiples of {PATCH}"
        )
    to = _PreNorm(width, heads, 1e-6, seed, True, (normal(0.02), zeros))
    patches = sides[0] // PATCH * (sides[1] // PATCH)
    rule = uniform(channels * PATCH**2)
    y = to.convolution(
        "x", "patch_embed.proj", channels, width, PATCH, PATCH, bias=True, rule=rule, bias_rule=rule
    )
    y = to.op("Reshape", y, to.constant("flat", [0, width, patches]))
    y = to.op("Transpose", y, perm=[0, 2, 1])
    token = to.parameter("cls_token", (1, 1, width), normal(1e-6))
    positions = to.parameter("pos_embed", (1, patches + 1, width), normal(0.02))
    batch = to.op("Shape", y, start=0, end=1)
    each = to.op("Concat", batch, to.constant("one_wide", [1, width]), axis=0)
    y = to.op("Concat", to.op("Expand", token, each), y, axis=1)
    y = to.op("Add", y, positions)
    for i in range(layers):
        y = to.block(y, f"blocks.{i}")
    y = to.op("Gather", to.norm(y, "norm"), to.constant("first", 0), axis=1)
    to.scores(y, "head", width, outputs, *to.drawn)
    return to.graph("vit_tiny", TensorType("f32", ("batch", *shape)), ("batch", outputs))


def gpt2(
    positions: int = 128, words: int = GPT2_WORDS, layers: int = 2, width: int = 256, heads: int = 4
) -> Graph:
    """Return a small GPT-2 (Radford et al. 2019): numbers of words to the scores of the next ones.

    x: [batch, positions], numbers below `words`.  Scores: [batch * positions, words], by the
    transposed table of words.
    """
    to = _PreNorm(width, heads, 1e-5)
    to.shapes |= {"words.weight": (words, width), "positions.weight": (positions, width)}
    mask = to.constant("mask", np.tri(positions, dtype=bool)[None, None])
    y = to.op("Add", to.op("Gather", "words.weight", "x", axis=0), "positions.weight")
    for i in range(layers):
        y = to.block(y, f"l{i}", mask, approximate=True)
    y = to.op("MatMul", to.norm(y, "norm"), to.op("Transpose", "words.weight", perm=[1, 0]))
    to.last("Reshape", y, to.constant("rows", [-1, words]))
    return to.graph("gpt2", TensorType("i64", ("batch", positions)), ("rows", words))


def text_transformer(
    shape: tuple[int, ...] = (128,), outputs: int = CLASSES, *, words: int = 257,
    pad: int | None = None, width: int = 128, layers: int = 2, heads: int = 4, seed: int = 0,
) -> Graph:  # fmt: skip
    """Return an encoder of texts (Vaswani et al., arXiv 1706.03762) for classes of whole texts.

    Learned positions, blocks as in ViT, the mean over positions.  x: i64[batch, positions], numbers
    below `words`; neither attention nor the mean sees the number `pad`, which fills texts up.
    """
    to = _PreNorm(width, heads, 1e-6, seed, True, (normal(0.02), zeros))
    table = to.parameter("embedding.weight", (words, width), normal(0.02))
    positions = to.parameter("pos_embed", (1, *shape, width), normal(0.02))
    y = to.op("Add", to.op("Gather", table, "x", axis=0), positions)
    is_word = mask = ""
    if pad is not None:
        is_word = to.op("Not", to.op("Equal", "x", to.constant("pad", pad)))
        mask = to.op("Unsqueeze", is_word, to.constant("over_heads", [1, 2]))
    for i in range(layers):
        y = to.block(y, f"blocks.{i}", mask)
    y = to.norm(y, "norm")
    if is_word:
        count = to.op("Cast", is_word, to=1)
        y = to.op("Mul", y, to.op("Unsqueeze", count, to.constant("over_width", [2])))
        count = to.op("ReduceSum", count, to.constant("over_positions", [1]), keepdims=1)
        y = to.op("ReduceSum", y, to.constant("over_positions", [1]), keepdims=0)
        y = to.op("Div", y, to.op("Max", count, to.number(1)))
    else:
        y = to.op("ReduceMean", y, axes=[1], keepdims=0)
    to.scores(y, "head", width, outputs, *to.drawn)
    return to.graph("text_transformer", TensorType("i64", ("batch", *shape)), ("batch", outputs))
