"""Gradients of Relus before max pools, which read what the pools return."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from engine.graphs.ir.graph import Graph, Node
from engine.graphs.passes.infer import infer
from engine.graphs.passes.pools import let_relu_grads_read_pools
from engine.kernels.vocabulary.op import MS, TensorType
from tests.support.harness import run

NAME = "relu grads read pools"
WINDOW = {"kernel_shape": [3, 3], "strides": [2, 2]}


def make_graph(masks: int) -> Graph:
    """Return the gradient of a pool of a Relu, masked by the Relu so many times."""
    names = [f"d{n}" for n in range(masks + 1)]
    nodes = [
        Node("Relu", ("x",), ("r",), name="relu"),
        Node("MaxPool", ("r",), ("y", "i"), dict(WINDOW), name="pool"),
        Node("MaxPoolGrad", ("dy", "i", "r"), (names[0],), dict(WINDOW), name="pool_grad"),
        *(
            Node("ReluGrad", (a, "r"), (b,), domain=MS, name=f"mask_{b}")
            for a, b in pairwise(names)
        ),
    ]
    types = {"x": TensorType("f32", (2, 3, 9, 9)), "dy": TensorType("f32", (2, 3, 4, 4))}
    return Graph("pools", types, [names[-1]], {}, nodes, {"": 17, MS: 1})


@pytest.mark.parametrize("masks", [1, 2, 3])
def test_relu_grads_of_a_pool_read_what_it_returns(masks: int) -> None:
    graph = make_graph(masks)
    let_relu_grads_read_pools(graph, infer(graph.copy()).types)
    graph.check()
    grads = [n for n in graph.nodes if n.op == "ReluGrad"]
    assert [n.inputs[1] for n in grads] == ["y"] * masks
    rng = np.random.default_rng(0)
    fed = {n: rng.standard_normal(t.dims).astype(np.float32) for n, t in graph.inputs.items()}
    (value,) = run(make_graph(masks), fed).values()
    (expected,) = run(make_graph(masks), fed, without=[NAME]).values()
    assert np.array_equal(value, expected)
    assert np.count_nonzero(value)
