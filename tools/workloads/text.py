"""Networks for sequences of words."""

from __future__ import annotations

import numpy as np

from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import TensorType
from engine.tools.workloads.encoder import Encoder
from engine.tools.workloads.workload import random_weights

WORDS = 30522  # of BERT's vocabulary


def minilm(positions: int = 128, words: int = WORDS, layers: int = 6, width: int = 384) -> Graph:
    """MiniLM (Wang et al., arXiv 2002.10957): token numbers to the scores of 10 classes.

    It is BERT of few layers with 12 heads.  x: [batch, positions], numbers below `words`.  The
    attention sees all positions, and the classes are told from their mean.
    """
    to = Encoder(width, 12, 4 * width)
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
        {**random_weights(to.shapes), **to.constants}, to.nodes, {"": 17},
        {"scores": TensorType("f32", ("batch", 10))},
    )  # fmt: skip
