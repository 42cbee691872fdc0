"""Graphs made of a model: with its loss and gradients, its training, or other roundings."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.errors import ModelError, UnsupportedOpError
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.offline.normalize import name_nodes
from engine.graphs.offline.training import RESET
from engine.graphs.passes.control import unroll
from engine.graphs.passes.infer import infer
from engine.graphs.passes.simplify import is_acting, prune
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import Movement
from engine.kernels.vocabulary.op import MS, TensorType
from engine.tools.dev import case_graphs
from tests.random_graphs.report import Report
from tests.random_graphs.sketch import Model

# Ops whose results are elements of their inputs, or whole numbers: they do not round.
EXACT = {
    *("Max", "Min", "ReduceMax", "ReduceMin", "Relu", "Abs", "Neg", "Clip", "Sign", "Round"),
    *("Floor", "Ceil", "MaxPool", "GlobalMaxPool", "TopK", "Where", "Cast", "CastLike", "Unique"),
    *("Scatter", "ScatterElements", "ScatterND", "MaxUnpool", "Compress", "Hardmax", "OneHot"),
}
TRAINED = 0.8  # of the real inputs: others have no gradient, as frozen parameters


def rounded(graph: Graph) -> tuple[Graph, dict[str, TensorType]]:
    """Return a graph whose nodes round otherwise, and the inputs that say how.

    The results of nodes that round are multiplied with these; outputs of the graph are not.
    """
    made = unroll(graph.copy())
    types, names, noise = infer(made.copy()).types, Names(made), dict[str, TensorType]()
    nodes, made.nodes = made.nodes, []
    instead: dict[str, str] = {}
    for node in nodes:
        node.inputs = tuple(instead.get(name, name) for name in node.inputs)
        made.nodes.append(node)
        op = list_ops().get((node.domain, node.op))
        if (
            op is None
            or op.movement is not Movement.COMPUTED
            or node.op in EXACT
            or is_acting(node)
        ):
            continue
        for name in filter(None, node.outputs):
            t = types[name]
            if t.dtype in ("f32", "f64") and t.size:
                by, instead[name] = (
                    names.take_fresh(f"{name}_noise"),
                    names.take_fresh(f"{name}_rounded"),
                )
                noise[by] = made.inputs[by] = t
                title = names.take_fresh(f"round_{name}")
                made.nodes.append(Node("Mul", (name, by), (instead[name],), {}, "", title))
    return made, noise


def weighted(graph: Graph, types: Mapping[str, TensorType], seed: int) -> Graph:
    """The graph with the loss: the sum of all real outputs times random numbers."""
    rng = np.random.default_rng(seed)
    floats = {o: types[o] for o in graph.outputs if types[o].dtype in ("f32", "f64")}
    weights = {o: rng.standard_normal(t.dims).astype(NUMPY[t.dtype]) for o, t in floats.items()}
    return case_graphs.with_loss(graph, weights)


def backward(model: Model, report: Report) -> tuple[Graph, dict[str, str]] | None:
    """The graph with the loss and the gradients of all real inputs that have one.

    Returns None where no gradient can be made.
    """
    plain = name_nodes(unroll(model.graph.copy()))
    types = infer(plain.copy()).types
    kinds = {types[o].dtype for o in plain.outputs} & {"f32", "f64"}
    wrt = [n for n, t in plain.inputs.items() if t.dtype in ("f32", "f64") and t.size]
    if len(kinds) != 1:
        return None
    rng = random.Random(model.seed)
    trained = [n for n in wrt if rng.random() < TRAINED]
    wrt = trained or wrt
    while wrt:
        graph = weighted(plain, types, abs(model.seed))
        try:
            names = differentiate(graph, "loss", wrt, infer(graph.copy()).types)
        except ModelError as error:
            lost = set(re.findall(r"'(\w+)'", str(error).rpartition("respect to")[2]))
            if not lost & set(wrt):
                raise
            wrt = [n for n in wrt if n not in lost]
            continue
        except UnsupportedOpError as error:
            report.refused.append(("gradient", str(error)))
            return None
        return graph, names
    return None


def accumulated(graph: Graph, names: Mapping[str, str]) -> Graph:
    """A training graph: each gradient is added to a buffer; the loss is the one output."""
    made = graph.copy()
    made.outputs = ["loss"]
    made.inputs[RESET] = TensorType("b1", (1,))
    for k, (name, gradient) in enumerate(names.items()):
        buffer, done = f"{name}_grad.accumulation.buffer", f"{name}_grad.accumulation.out"
        made.inputs[buffer] = made.inputs[name]
        made.nodes.append(
            Node("InPlaceAccumulatorV2", (buffer, gradient, RESET), (done,), {}, MS, f"keep{k}")
        )
    return made


def with_buffers(graph: Graph, fed: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Return the inputs of a training graph: the model's inputs, the flag, and buffers."""
    rng = np.random.default_rng(seed)
    table = dict(fed)
    for name, t in graph.inputs.items():
        if name == RESET:
            table[name] = np.array([seed % 2 == 0])
        elif name not in table:
            table[name] = rng.standard_normal(t.dims).astype(NUMPY[t.dtype])
    return table


def trimmed(model: Model, ends: Sequence[str]) -> Model:
    """A model with other outputs, without what these do not need."""
    made = model.copy()
    made.graph.outputs = list(ends)
    graph = prune(made.graph)
    read = {i for n in graph.nodes for i in n.list_reads()} | set(ends)
    graph.inputs = {n: t for n, t in graph.inputs.items() if n in read}
    made.fed = {n: a for n, a in made.fed.items() if n in read}
    return made
