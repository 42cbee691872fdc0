"""Transformers with the normalisation before each part: ViT, GPT-2, an encoder of texts."""

from __future__ import annotations

import numpy as np

from engine.base.errors import ShapeError
from engine.graphs.ir.graph import Graph
from engine.kernels.vocabulary.op import TensorType
from engine.models.initial import Initial, make_normal, make_uniform, make_zeros
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

    def add_norm(self, x: str, name: str) -> str:
        return self.add_layer_norm(x, name, self.width, self.epsilon)

    def project(self, x: str, name: str, n_in: int, n_out: int) -> str:
        return self.add_linear(x, name, n_in, n_out, *self.drawn)

    def add_attention(self, x: str, name: str, mask: str = "") -> str:
        """Add self-attention; queries, keys and values are thirds of one product.

        mask: a bool of every score, by which it counts, if given.
        """
        q, k, v = self.add_ops(
            "Split", 3, self.project(x, f"{name}.qkv", self.width, 3 * self.width), axis=-1
        )
        joined = self.attend(q, k, v, self.width, self.heads, mask)
        return self.project(joined, f"{name}.proj", self.width, self.width)

    def add_gelu_tanh(self, x: str) -> str:
        """Return the approximation of GELU that GPT-2 has, as transformers writes it."""
        cube = self.add_op(
            "Mul", self.add_op("Pow", x, self.add_number(3)), self.add_number(0.044715)
        )
        inner = self.add_op("Mul", self.add_op("Add", x, cube), self.add_number((2 / np.pi) ** 0.5))
        more = self.add_op("Add", self.add_op("Tanh", inner), self.add_number(1))
        return self.add_op("Mul", self.add_op("Mul", x, self.add_number(0.5)), more)

    def add_block(self, x: str, name: str, mask: str = "", approximate: bool = False) -> str:
        """Add attention and two linear layers, each of the normalised input, added to it."""
        x = self.add_op(
            "Add", x, self.add_attention(self.add_norm(x, f"{name}.norm1"), f"{name}.attn", mask)
        )
        y = self.add_norm(x, f"{name}.norm2")
        wide = self.project(y, f"{name}.mlp.fc1", self.width, 4 * self.width)
        wide = self.add_gelu_tanh(wide) if approximate else self.add_gelu(wide)
        return self.add_op(
            "Add", x, self.project(wide, f"{name}.mlp.fc2", 4 * self.width, self.width)
        )


def build_vit_tiny(
    shape: tuple[int, ...] = (3, 224, 224), outputs: int = CLASSES, *, width: int = 192,
    layers: int = 12, heads: int = 3, seed: int = 0,
) -> Graph:  # fmt: skip
    """Return ViT-Tiny (Dosovitskiy et al., arXiv 2010.11929; Touvron et al., arXiv 2012.12877).

    Patches of 16 by 16 and a class token, from which the classes are predicted.  Names and initial
    values are timm's.

    Raises:
        ShapeError: a side is not a multiple of 16.
    """
    channels, *sides = shape
    if any(side % PATCH for side in sides):
        raise ShapeError(
            f"vit_tiny: pictures of {list(shape)}; expected sides that are multiples of {PATCH}"
        )
    to = _PreNorm(width, heads, 1e-6, seed, True, (make_normal(0.02), make_zeros))
    patches = sides[0] // PATCH * (sides[1] // PATCH)
    rule = make_uniform(channels * PATCH**2)
    y = to.add_convolution(
        "x", "patch_embed.proj", channels, width, PATCH, PATCH, bias=True, rule=rule, bias_rule=rule
    )
    y = to.add_op("Reshape", y, to.add_constant("flat", [0, width, patches]))
    y = to.add_op("Transpose", y, perm=[0, 2, 1])
    token = to.add_parameter("cls_token", (1, 1, width), make_normal(1e-6))
    positions = to.add_parameter("pos_embed", (1, patches + 1, width), make_normal(0.02))
    batch = to.add_op("Shape", y, start=0, end=1)
    each = to.add_op("Concat", batch, to.add_constant("one_wide", [1, width]), axis=0)
    y = to.add_op("Concat", to.add_op("Expand", token, each), y, axis=1)
    y = to.add_op("Add", y, positions)
    for i in range(layers):
        y = to.add_block(y, f"blocks.{i}")
    y = to.add_op("Gather", to.add_norm(y, "norm"), to.add_constant("first", 0), axis=1)
    to.add_scores(y, "head", width, outputs, *to.drawn)
    return to.make_graph("vit_tiny", TensorType("f32", ("batch", *shape)), ("batch", outputs))


def build_gpt2(
    positions: int = 128, words: int = GPT2_WORDS, layers: int = 2, width: int = 256, heads: int = 4
) -> Graph:
    """Return a small GPT-2 (Radford et al. 2019): numbers of words to the scores of the next ones.

    x: [batch, positions], numbers below `words`.  Scores: [batch * positions, words], by the
    transposed table of words.
    """
    to = _PreNorm(width, heads, 1e-5)
    to.shapes |= {"words.weight": (words, width), "positions.weight": (positions, width)}
    mask = to.add_constant("mask", np.tri(positions, dtype=bool)[None, None])
    y = to.add_op("Add", to.add_op("Gather", "words.weight", "x", axis=0), "positions.weight")
    for i in range(layers):
        y = to.add_block(y, f"l{i}", mask, approximate=True)
    y = to.add_op(
        "MatMul", to.add_norm(y, "norm"), to.add_op("Transpose", "words.weight", perm=[1, 0])
    )
    to.add_last("Reshape", y, to.add_constant("rows", [-1, words]))
    return to.make_graph("gpt2", TensorType("i64", ("batch", positions)), ("rows", words))


def build_text_transformer(
    shape: tuple[int, ...] = (128,), outputs: int = CLASSES, *, words: int = 257,
    pad: int | None = None, width: int = 128, layers: int = 2, heads: int = 4, seed: int = 0,
) -> Graph:  # fmt: skip
    """Return an encoder of texts (Vaswani et al., arXiv 1706.03762) for classes of whole texts.

    Learned positions, blocks as in ViT, the mean over positions.  x: i64[batch, positions], numbers
    below `words`; neither attention nor the mean sees the number `pad`, which fills texts up.
    """
    to = _PreNorm(width, heads, 1e-6, seed, True, (make_normal(0.02), make_zeros))
    table = to.add_parameter("embedding.weight", (words, width), make_normal(0.02))
    positions = to.add_parameter("pos_embed", (1, *shape, width), make_normal(0.02))
    y = to.add_op("Add", to.add_op("Gather", table, "x", axis=0), positions)
    is_word = mask = ""
    if pad is not None:
        is_word = to.add_op("Not", to.add_op("Equal", "x", to.add_constant("pad", pad)))
        mask = to.add_op("Unsqueeze", is_word, to.add_constant("over_heads", [1, 2]))
    for i in range(layers):
        y = to.add_block(y, f"blocks.{i}", mask)
    y = to.add_norm(y, "norm")
    if is_word:
        count = to.add_op("Cast", is_word, to=1)
        y = to.add_op("Mul", y, to.add_op("Unsqueeze", count, to.add_constant("over_width", [2])))
        count = to.add_op("ReduceSum", count, to.add_constant("over_positions", [1]), keepdims=1)
        y = to.add_op("ReduceSum", y, to.add_constant("over_positions", [1]), keepdims=0)
        y = to.add_op("Div", y, to.add_op("Max", count, to.add_number(1)))
    else:
        y = to.add_op("ReduceMean", y, axes=[1], keepdims=0)
    to.add_scores(y, "head", width, outputs, *to.drawn)
    return to.make_graph(
        "text_transformer", TensorType("i64", ("batch", *shape)), ("batch", outputs)
    )
