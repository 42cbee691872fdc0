"""Case rows as graphs of one node, and with the gradients with respect to its inputs."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

import numpy as np

from engine.base.element_types import FLOATS, NUMPY
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.passes.infer import infer
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.tools.dev import cases
from engine.tools.dev.cases.case import Case, Tensor


def list_cases() -> list[Case]:
    """Return the rows of every file of cases; optimizers have rows of their own kind."""
    files = (m for m in pkgutil.iter_modules(cases.__path__) if not m.ispkg)
    names = [m.name for m in files if m.name != "case"]
    return [c for n in names for c in importlib.import_module(f"engine.tools.dev.cases.{n}").CASES]


def widen(a: np.ndarray) -> np.ndarray:
    """Return float32 as float64, anything else as it is."""
    return a.astype(np.float64) if a.dtype == np.float32 else a


class OneNode:
    """Case as a graph of one node; `inputs` are the fed arrays, `graph` holds the constants."""

    def __init__(self, case: Case, *, double: bool = False, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.case = case
        self.inputs: dict[str, np.ndarray] = {}
        constants: dict[str, np.ndarray] = {}
        names = []
        for i, given in enumerate(case.ins):
            name = "" if given is None else f"x{i}"
            names.append(name)
            if isinstance(given, Tensor):
                made = given.make(rng)
                self.inputs[name] = widen(made) if double else made
            elif given is not None:
                value = np.asarray(given)
                constants[name] = widen(value) if double else value
        while names and not names[-1]:
            names.pop()
        given_outs = case.outs
        outs = [f"y{i}" for i in range(given_outs)] if isinstance(given_outs, int) else given_outs
        self.outputs = [o for o in outs if o]
        attrs = dict(case.attrs)
        if double and attrs.get("to") == 1:
            attrs["to"] = 11  # Cast to float: to double
        self.node = Node(case.op, tuple(names), tuple(outs), attrs, case.domain, case.op.lower())
        self.graph = Graph(
            case.op,
            {n: find_type(a) for n, a in self.inputs.items()},
            list(self.outputs),
            constants,
            [self.node],
            {"": case.opset, "com.microsoft": 1, "engine": 1},
        )


def with_loss(given: Graph, weights: Mapping[str, np.ndarray]) -> Graph:
    """Return a copy of a graph with loss = sum over outputs of sum(u * y)."""
    graph = given.copy()
    parts = []
    for name, u in weights.items():
        graph.initializers[f"u_{name}"] = u
        graph.nodes.append(Node("Mul", (name, f"u_{name}"), (f"p_{name}",), name=f"mul_{name}"))
        graph.nodes.append(
            Node("ReduceSum", (f"p_{name}",), (f"s_{name}",), {"keepdims": 0}, name=f"sum_{name}")
        )
        parts.append(f"s_{name}")
    graph.nodes.append(Node("Sum", tuple(parts), ("loss",), name="total"))
    graph.outputs = ["loss"]
    return graph


def backward_of(
    one: OneNode, weights: Mapping[str, np.ndarray] | None = None
) -> tuple[Graph, dict[str, str]]:
    """Return the graph of the gradients of `with_loss`, and input -> gradient name.

    By default every output of a float type has random weights.
    """
    if weights is None:
        rng = np.random.default_rng(1)
        types = infer(one.graph.copy()).types
        floats = [(o, types[o]) for o in one.outputs if types[o].dtype in FLOATS]
        weights = {o: rng.standard_normal(t.dims).astype(NUMPY[t.dtype]) for o, t in floats}
    graph = with_loss(one.graph, weights)
    wrt = [f"x{i}" for i in one.case.grad]
    names = differentiate(graph, "loss", wrt, infer(graph.copy()).types)
    graph.outputs = [names[n] for n in wrt]
    return graph, names


def wrap(given: Graph) -> Graph:
    """Return a copy of a graph with a Neg before each float32 input and after each output.

    The values between them may be stored in 16 bits; inputs and outputs of a graph are not.
    """
    graph = given.copy()
    reads = {name for node in given.nodes for name in node.inputs}
    made = [n for n, t in given.inputs.items() if t.dtype == "f32" and n in reads]
    before = [Node("Neg", (f"{n}_in",), (n,), name=f"neg_{n}") for n in made]
    after = [Node("Neg", (o,), (f"{o}_out",), name=f"neg_{o}") for o in given.outputs]
    graph.inputs = {f"{n}_in" if n in made else n: t for n, t in given.inputs.items()}
    graph.nodes = [*before, *graph.nodes, *after]
    graph.outputs = [f"{o}_out" for o in given.outputs]
    return graph


def find_largest_rows() -> dict[str, Case]:
    """Return, by kernel template, the case row with most input elements whose plans call it."""
    largest: dict[str, tuple[int, Case]] = {}
    for case in list_cases():
        one = OneNode(case)
        size = sum(a.size for a in one.inputs.values())
        graphs = [one.graph, backward_of(one)[0]] if case.grad else [one.graph]
        for graph in graphs:
            for spec in make_plan(graph, {}, target=detect_host(), threads=1).specs:
                if size > largest.get(spec.template, (-1, case))[0]:
                    largest[spec.template] = (size, case)
    return {template: case for template, (_, case) in largest.items()}
