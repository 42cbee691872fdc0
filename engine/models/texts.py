"""A convolutional network for texts."""

from __future__ import annotations

from engine.base.errors import ShapeError
from engine.graphs.ir.graph import Graph
from engine.kernels.vocabulary.op import TensorType
from engine.models.initial import make_normal, make_uniform
from engine.models.layers import CLASSES, Layers

TAPS = (3, 4, 5)  # words that a filter sees


def build_textcnn(
    shape: tuple[int, ...] = (128,), outputs: int = CLASSES, *, words: int = 257, width: int = 64,
    filters: int = 100, dropout: float = 0.0, seed: int = 0,
) -> Graph:  # fmt: skip
    """Return Kim's CNN (arXiv 1408.5882): filters over 3, 4 and 5 words, the largest answer of
    each, and a linear layer.

    x: i64[batch, positions], numbers below `words`.

    Raises:
        ShapeError: there are fewer than 5 positions.
    """
    if shape[0] < max(TAPS):
        raise ShapeError(f"textcnn: texts of {shape[0]} tokens; expected {max(TAPS)} or more")
    to = Layers(seed)
    table = to.add_parameter("embedding.weight", (words, width), make_normal(1))
    y = to.add_op("Transpose", to.add_op("Gather", table, "x", axis=0), perm=[0, 2, 1])
    answers = []
    for i, taps in enumerate(TAPS):
        rule = make_uniform(taps * width)
        heard = to.add_convolution(
            y, f"convs.{i}", width, filters, taps, rank=1, bias=True, rule=rule, bias_rule=rule
        )
        answers.append(to.add_op("ReduceMax", to.add_op("Relu", heard), axes=[2], keepdims=0))
    y = to.add_dropout(to.add_op("Concat", *answers, axis=1), dropout)
    to.add_scores(y, "classifier", len(TAPS) * filters, outputs)
    return to.make_graph("textcnn", TensorType("i64", ("batch", *shape)), ("batch", outputs))
