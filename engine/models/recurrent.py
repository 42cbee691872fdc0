"""Recurrent networks: GRUs and an LSTM."""

from __future__ import annotations

from engine.graphs.ir.graph import Graph
from engine.kernels.vocabulary.op import TensorType
from engine.models.initial import make_normal, make_uniform
from engine.models.layers import Layers


def build_gru(steps: int = 24, features: int = 12, width: int = 48) -> Graph:
    """Return a bidirectional GRU, the mean over time, and a linear layer to 10 classes.

    x: [batch, steps, features].
    """
    to = Layers()
    y = to.add_op("Transpose", "x", perm=[1, 0, 2])
    to.shapes |= {
        "w": (2, 3 * width, features), "r": (2, 3 * width, width), "b": (2, 6 * width)
    }  # fmt: skip
    y = _add_both_ways(to, y, ("w", "r", "b"), width)
    to.classify(to.add_op("ReduceMean", y, axes=[0], keepdims=0), 2 * width)
    return to.make_graph("gru", TensorType("f32", ("batch", steps, features)))


def _add_both_ways(to: Layers, x: str, weights: tuple[str, ...], width: int) -> str:
    """Add a GRU in both directions: [steps, batch, features] to [steps, batch, 2 * width]."""
    y = to.add_op(
        "GRU", x, *weights, hidden_size=width, direction="bidirectional", linear_before_reset=1
    )
    y = to.add_op("Transpose", y, perm=[0, 2, 1, 3])
    return to.add_op("Reshape", y, to.add_constant("join", [0, 0, 2 * width]))


def build_gru_tagger(
    shape: tuple[int, ...] = (64,), outputs: int = 10, *, words: int = 257, width: int = 64,
    seed: int = 0,
) -> Graph:  # fmt: skip
    """Return a tagger: numbers of words, a GRU in both directions, scores of tags for each word.

    x: i64[batch, positions], numbers below `words`; scores: [batch, outputs, positions], as
    cross-entropy takes them.  The reset gate is applied after the product, as in PyTorch.
    """
    to = Layers(seed, transposed=True)
    table = to.add_parameter("embedding.weight", (words, width), make_normal(1))
    y = to.add_op("Transpose", to.add_op("Gather", table, "x", axis=0), perm=[1, 0, 2])
    gates = {"weight_ih": (2, 3 * width, width), "weight_hh": (2, 3 * width, width)}
    names = [
        to.add_parameter(f"gru.{name}", size, make_uniform(width))
        for name, size in (gates | {"bias": (2, 6 * width)}).items()
    ]
    y = to.add_op("Transpose", _add_both_ways(to, y, tuple(names), width), perm=[1, 0, 2])
    rule = make_uniform(2 * width)
    y = to.add_linear(y, "classifier", 2 * width, outputs, rule, rule)
    to.add_last("Transpose", y, perm=[0, 2, 1])
    x = TensorType("i64", ("batch", *shape))
    return to.make_graph("gru_tagger", x, ("batch", outputs, *shape))


def build_lstm(steps: int = 100, features: int = 64, width: int = 256) -> Graph:
    """Return an LSTM, the mean over time, and a linear layer to 10 classes.

    x: [batch, steps, features].
    """
    to = Layers()
    to.shapes |= {
        "w": (1, 4 * width, features), "r": (1, 4 * width, width), "b": (1, 8 * width)
    }  # fmt: skip
    y = to.add_op("Transpose", "x", perm=[1, 0, 2])
    y = to.add_op("LSTM", y, "w", "r", "b", hidden_size=width)
    to.classify(to.add_op("ReduceMean", y, axes=[0, 1], keepdims=0), width)
    return to.make_graph("lstm", TensorType("f32", ("batch", steps, features)))
