"""Making a failure small: every value of a model can be fed, so any part of it is a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from engine.errors import EngineError
from engine.graphs.ir.graph import find_type
from tests.random_graphs.check import numbers, plain_plan
from tests.random_graphs.derived import trimmed
from tests.random_graphs.sketch import Model

TRIES = 400  # smaller models that are compared, at most
SECONDS = 60.0  # of the processor after which no more are tried


def shrink(model: Model, fails: Callable[[Model], bool]) -> Model:
    """The smallest model found that still fails.

    fails: whether a model fails in the way that is looked for.
    """
    tries, begin = 0, time.process_time()
    while True:
        for smaller in _smaller(model):
            tries += 1
            if tries > TRIES or time.process_time() - begin > SECONDS:
                return model
            if fails(smaller):
                model = smaller
                break
        else:
            return model


def _smaller(model: Model) -> Iterator[Model]:
    """Models with less in them: outputs, nodes, then what is fed and what is odd."""
    graph = model.graph
    if len(graph.outputs) > 1:
        for name in graph.outputs:
            yield trimmed(model, [name])
        for name in graph.outputs:
            yield trimmed(model, [o for o in graph.outputs if o != name])
    values = _values(model)
    for node in reversed(graph.nodes):  # what stands before it is fed
        if values.keys() >= {o for o in node.outputs if o}:
            yield _fed(model, [o for o in node.outputs if o], values)
    for node in graph.nodes:  # what it reads is the output
        for name in node.inputs:
            if name in values and name not in graph.inputs and name not in graph.initializers:
                yield trimmed(model, [name])
    for name in graph.inputs:
        yield _constant(model, name)


def _values(model: Model) -> dict[str, np.ndarray]:
    """The arrays of all values; none where the model cannot be computed plainly."""
    graph = model.graph.copy()
    graph.outputs = [o for n in graph.nodes for o in n.outputs if o]
    try:
        return numbers(plain_plan(graph), model.fed)
    except EngineError:
        return {}


def _fed(model: Model, names: list[str], values: dict[str, np.ndarray]) -> Model:
    """The model that is fed these values; the node that made them goes."""
    made = model.copy()
    graph = made.graph
    gone = next(n for n in graph.nodes if names[0] in n.outputs)
    graph.nodes = [n for n in graph.nodes if n is not gone]
    graph.outputs = [o for o in graph.outputs if o not in names]
    if not graph.outputs:
        return model.copy()  # that node was all
    for name in names:
        graph.inputs[name] = find_type(values[name])
        made.fed[name] = values[name]
    return trimmed(made, graph.outputs)


def _constant(model: Model, name: str) -> Model:
    """The model in which an input is a constant."""
    made = model.copy()
    del made.graph.inputs[name]
    made.graph.initializers[name] = made.fed.pop(name)
    return made
