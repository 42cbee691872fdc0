"""Runs graphs through the whole path (plan, compile, execute) for tests and benchmarks."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from engine.api import CheckpointState
from engine.element_types import FLOATS, NUMPY
from engine.graphs.ir.graph import Graph, Node, type_of
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.passes.infer import infer
from engine.graphs.planner.pipeline import make_plan
from engine.kernels.compiler.load import linker
from engine.kernels.target import Target, host
from engine.runtime.arena import allocate
from engine.runtime.plan import Plan
from engine.runtime.program import Program
from tests import cases
from tests.cases.case import Case, Tensor


def all_cases() -> list[Case]:
    """The rows of every file in tests/cases; optimizers have rows of their own kind."""
    files = (m for m in pkgutil.iter_modules(cases.__path__) if not m.ispkg)
    names = [m.name for m in files if m.name != "case"]
    return [c for n in names for c in importlib.import_module(f"tests.cases.{n}").CASES]


def untyped(value: object) -> Any:
    """The value, of which a type checker knows nothing: for arguments that must be refused."""
    return value


def evaluate(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[Any]:
    """The outputs of a model by onnx's reference."""
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(model).run(None, dict(inputs)))


def identity(inputs: dict[str, np.ndarray]) -> onnx.ModelProto:
    """y<i> = x<i> + w<i>, w<i> zero: the gradient by w<i> is that of the loss by y<i>."""
    nodes = [helper.make_node("Add", [x, f"w{x}"], [f"y{x}"], f"add{x}") for x in inputs]
    kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in inputs.items()}
    infos = [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in inputs.items()]
    outs = [helper.make_tensor_value_info(f"y{n}", kinds[n], None) for n in inputs]
    tensors = [numpy_helper.from_array(np.zeros_like(a), f"w{n}") for n, a in inputs.items()]
    graph = helper.make_graph(nodes, "identity", infos, outs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def gradient(state: CheckpointState, name: str) -> np.ndarray:
    """The gradient of a parameter that is trained, as a view."""
    found = state.parameters[name].grad
    assert found is not None, f"{name} is not trained"
    return found


def widen(a: np.ndarray) -> np.ndarray:
    """float32 as float64, anything else as it is."""
    return a.astype(np.float64) if a.dtype == np.float32 else a


class OneNode:
    """A case as a graph of one node; `inputs` are the fed arrays, `graph` holds the constants."""

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
            {n: type_of(a) for n, a in self.inputs.items()},
            list(self.outputs),
            constants,
            [self.node],
            {"": case.opset, "com.microsoft": 1, "engine": 1},
        )


def run(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    *,
    threads: int = 1,
    target: Target | None = None,
    closed: bool = False,
    without: Collection[str] = (),
    changes: bool = False,
) -> dict[str, np.ndarray]:
    """Plan and run a graph; returns its outputs and checks that the inputs are unchanged.

    without: passes to leave out.  changes: the inputs may change, and are returned too.
    """
    shapes = {n: a.shape for n, a in inputs.items()}
    target = target or host()
    plan = make_plan(graph, shapes, target=target, threads=threads, closed=closed, without=without)
    return execute(plan, inputs, target=target, changes=changes)


def execute(
    plan: Plan,
    inputs: Mapping[str, np.ndarray],
    *,
    target: Target | None = None,
    changes: bool = False,
) -> dict[str, np.ndarray]:
    """Run a plan; returns its outputs and checks that the inputs are unchanged.

    target: the one that the plan is for.  changes: the inputs may change, and are returned too.
    """
    return runner(plan, target)(inputs, changes)


def runner(
    plan: Plan, target: Target | None = None
) -> Callable[[Mapping[str, np.ndarray], bool], dict[str, np.ndarray]]:
    """What runs a plan, as often as one likes: takes inputs, and whether they may change."""
    work = allocate(plan.region_bytes("work"), zero=False)
    program = Program(plan, linker(target or host()).addresses, {"work": work})

    def run_once(inputs: Mapping[str, np.ndarray], changes: bool) -> dict[str, np.ndarray]:
        work.view(np.uint8)[...] = 0xFF  # NaN: whatever is read before it is written shows
        for name, array in inputs.items():
            np.copyto(program.inputs[name], array)
        program.run()
        if changes:
            return {n: a.copy() for n, a in {**program.inputs, **program.outputs}.items()}
        for name, array in inputs.items():
            np.testing.assert_array_equal(
                program.inputs[name], array, err_msg=f"{name} was changed"
            )
        return {n: a.copy() for n, a in program.outputs.items()}

    return run_once


@np.errstate(all="ignore")
def reference(one: OneNode) -> list[Any]:
    """The outputs in float64 by onnx.reference, or by the case's own reference."""
    values = {n: widen(a) for n, a in {**one.inputs, **one.graph.initializers}.items()}
    if one.case.reference is not None:
        ins = [values[n] if n else None for n in one.node.inputs]
        out = one.case.reference(*ins, **one.case.attrs)
        return list(out) if isinstance(out, Sequence) else [out]
    from onnx.reference import ReferenceEvaluator

    node = helper.make_node(one.case.op, list(one.node.inputs), list(one.node.outputs),
                            domain=one.case.domain, **one.case.attrs)  # fmt: skip
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for n, a in values.items()]  # fmt: skip
    outs = [helper.make_empty_tensor_value_info(o) for o in one.outputs]
    graph = helper.make_graph([node], "one", infos, outs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", one.case.opset)])
    return list(ReferenceEvaluator(model).run(None, values))


def with_loss(given: Graph, weights: Mapping[str, np.ndarray]) -> Graph:
    """A copy of a graph with loss = sum over outputs of sum(u * y)."""
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
    """The graph that computes the gradients of `with_loss`, and input -> gradient name.

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


def largest_rows() -> dict[str, Case]:
    """For each kernel template, the case row with most input elements whose plans call it."""
    found: dict[str, tuple[int, Case]] = {}
    for case in all_cases():
        one = OneNode(case)
        size = sum(a.size for a in one.inputs.values())
        graphs = [one.graph, backward_of(one)[0]] if case.grad else [one.graph]
        for graph in graphs:
            for spec in make_plan(graph, {}, target=host(), threads=1).specs:
                if size > found.get(spec.template, (-1, case))[0]:
                    found[spec.template] = (size, case)
    return {template: case for template, (_, case) in found.items()}
