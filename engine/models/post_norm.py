"""Transformers with the normalisation after each part: an encoder of vectors, and MiniLM."""

from __future__ import annotations

from engine.graphs.ir.graph import Graph
from engine.kernels.vocabulary.op import TensorType
from engine.models.layers import Layers

BERT_WORDS = 30522


class _PostNorm(Layers):
    """Encoder of Vaswani et al. (arXiv 1706.03762)."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.width, self.heads, self.inner = width, heads, inner

    def add_norm(self, x: str, name: str) -> str:
        return self.add_layer_norm(x, name, self.width)

    def add_layer(self, x: str, name: str, activation: str = "Relu") -> str:
        """Add attention and two linear layers, each added to its input and normalised."""
        q, k, v = (self.add_linear(x, f"{name}.{part}", self.width, self.width) for part in "qkv")
        joined = self.attend(q, k, v, self.width, self.heads)
        attended = self.add_linear(joined, f"{name}.o", self.width, self.width)
        x = self.add_norm(self.add_op("Add", x, attended), f"{name}.n1")
        wide = self.add_linear(x, f"{name}.up", self.width, self.inner)
        wide = self.add_op("Relu", wide) if activation == "Relu" else self.add_gelu(wide)
        narrow = self.add_linear(wide, f"{name}.down", self.inner, self.width)
        return self.add_norm(self.add_op("Add", x, narrow), f"{name}.n2")


def build_transformer() -> Graph:
    """Return an encoder of 4 layers, width 256, 4 heads, 1024 inside, over 128 positions; 10
    classes.
    """
    to = _PostNorm(256, 4, 1024)
    y = "x"
    for i in range(4):
        y = to.add_layer(y, f"l{i}")
    to.classify(to.add_op("ReduceMean", y, axes=[1], keepdims=0), 256)
    return to.make_graph("transformer", TensorType("f32", ("batch", 128, 256)))


def build_minilm(
    positions: int = 128, words: int = BERT_WORDS, layers: int = 6, width: int = 384
) -> Graph:
    """Return MiniLM (Wang et al., arXiv 2002.10957): token numbers to the scores of 10 classes.

    It is BERT of few layers with 12 heads.  x: [batch, positions], numbers below `words`.  The
    attention sees all positions, and the classes are predicted from their mean.
    """
    to = _PostNorm(width, 12, 4 * width)
    to.shapes |= {"words.weight": (words, width), "positions.weight": (positions, width)}
    y = to.add_op("Add", to.add_op("Gather", "words.weight", "x", axis=0), "positions.weight")
    y = to.add_norm(y, "embedded")
    for i in range(layers):
        y = to.add_layer(y, f"l{i}", "Gelu")
    to.classify(to.add_op("ReduceMean", y, axes=[1], keepdims=0), width)
    return to.make_graph("minilm", TensorType("i64", ("batch", positions)))
