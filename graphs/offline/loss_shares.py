"""Shares of the loss, with which the backward passes of parts of a batch begin.

Each gradient in it is then one of the loss of the whole batch, and the sums over the parts need no
weights.

    Before   loss = Loss(y, labels); dy = LossGrad(loss_grad, ...); dw = ...; accumulate(dw)
    After    loss = Loss(y, labels); dy = LossGrad(#share, ...);    dw = ...; accumulate(dw)
"""

from __future__ import annotations

import numpy as np

from engine.base.element_types import ONNX_CODE
from engine.base.errors import ModelError
from engine.base.proximal import MU
from engine.graphs.ir.graph import Graph, Names, Node, find_type
from engine.kernels.vocabulary.op import TensorType
from engine.plan.collective import SHARE


def begin(graph: Graph, loss: str) -> TensorType:
    """Let the backward pass of a training graph begin with an input `SHARE`; return its type.

    Raises:
        ModelError: the graph has no initializer that begins the backward pass.
    """
    seed = f"{loss}_grad"
    value = graph.initializers.pop(seed, None)
    if value is None or not np.all(value == 1):
        raise ModelError(
            f"the training model cannot run on parts of a batch: its backward pass does not begin "
            f"with an initializer {seed!r} of ones"
        )
    kind = graph.inputs[SHARE] = find_type(value)
    read_instead(graph, seed, SHARE)
    return kind


def read_instead(graph: Graph, name: str, other: str) -> None:
    """Let all nodes read another value instead of this one."""
    for node in graph.nodes:
        node.inputs = tuple(other if each == name else each for each in node.inputs)


def make_part_graph(training: Graph, loss: str) -> Graph:
    """Return the training graph of a part of a batch; the graph given stays as it is.

    It has the input `SHARE`, which the pull to anchors (proximal.py) is multiplied with, too.

    Raises:
        ModelError: as `begin`.
    """
    graph = training.copy()
    begin(graph, loss)
    if MU in graph.inputs:
        names = Names(graph)
        part, mine = names.take_fresh(f"{MU}/share"), names.take_fresh(f"{MU}/part")
        read_instead(graph, MU, mine)
        graph.nodes[:0] = [
            Node("Cast", (SHARE,), (part,), {"to": ONNX_CODE[graph.inputs[MU].dtype]}, "", part),
            Node("Mul", (MU, part), (mine,), {}, "", mine),
        ]
    return graph
