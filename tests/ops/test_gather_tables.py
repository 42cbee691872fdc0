"""Gradients of embedding tables that no cache holds."""

from __future__ import annotations

import numpy as np
import pytest

from engine.graphs.ir.graph import Graph, Node, find_type
from engine.kernels.ops.index.gather import FAR
from engine.kernels.vocabulary.op import MS
from tests.support.harness import run


@pytest.mark.parametrize("width", [384, 401])  # rows of whole cache lines, and of parts of them
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_without_a_word_are_zero_and_the_others_sums(width: int, threads: int) -> None:
    words = FAR // (4 * width) + 1
    rng = np.random.default_rng(width)
    index = rng.integers(-words, words, 300)
    dy = rng.standard_normal((300, width)).astype(np.float32)
    inputs: dict[str, np.ndarray] = {"i": index, "dy": dy}
    node = Node("GatherGrad", ("shape", "i", "dy"), ("dx",), {}, MS, "grad")
    shape = {"shape": np.array([words, width])}
    types = {n: find_type(a) for n, a in inputs.items()}
    graph = Graph("table", types, ["dx"], shape, [node], {"": 17, MS: 1})
    expected = np.zeros((words, width), np.float32)
    np.add.at(expected, index, dy)
    np.testing.assert_array_equal(run(graph, inputs, threads=threads)["dx"], expected)
