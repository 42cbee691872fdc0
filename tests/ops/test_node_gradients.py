"""Gradients of ONNX's node tests, in float64, against central differences in a random direction.

tests/data/node_gradients.txt lists the tests that have an input of real numbers: each passes, or
stands there with the reason.  `pytest tests/ops/test_node_gradients.py --update-golden` writes it
from what the engine does.  A sample of the tests that pass is run; with --whole all of them are.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, GraphProto, TensorProto, helper, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.runner import _normalize_tensor

from engine.base.element_types import FLOATS
from engine.errors import EngineError, NoInfluenceError, UnknownValueError, UnsupportedOpError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.offline.normalize import name_nodes, rename
from engine.graphs.passes.control import unroll
from engine.graphs.passes.infer import infer
from engine.tools.dev.case_graphs import with_loss
from tests.support.harness import run
from tests.support.node_tests import LISTED, RANDOM, list_cases, make_graph, shorten_error
from tests.support.places import DATA

LIST = DATA / "node_gradients.txt"
KNOWN = dict(line.split(": ", 1) for line in LIST.read_text().splitlines())
PASSED = [name for name, why in KNOWN.items() if why == "passes"]
REST = [name for name, why in KNOWN.items() if why != "passes"]
SAMPLE = 4  # one of so many is run without --whole
EPS, TOL = 1e-4, 1e-6
EPS_F32, TOL_F32 = 1e-2, 1e-3  # where the body of a function computes in float32 on its own
# Off the kinks, and off the ends of a domain, at which tests like to begin: noise, and a shift.
STARTS = ((0.0, 0.0), (1e-3, 0.0), (1e-2, 0.05))
MOST = 1 << 16  # elements of an input: more would only take long


def _wide(graph: GraphProto) -> None:
    """Make float32 float64 in a graph and in the bodies of its control flow."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in graph.initializer:
        tensor.CopyFrom(_widen_tensor(tensor))
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and not node.attribute:  # whose default is float32
            node.attribute.append(
                helper.make_attribute("value", numpy_helper.from_array(np.zeros(1)))
            )
        for a in node.attribute:
            match a.type:
                case AttributeProto.GRAPH:
                    _wide(a.g)
                case AttributeProto.TENSOR:
                    a.t.CopyFrom(_widen_tensor(a.t))
                case AttributeProto.INT if a.name in ("to", "dtype") and a.i == TensorProto.FLOAT:
                    a.i = TensorProto.DOUBLE
        if node.op_type == "Constant" and node.attribute[0].name in ("value_float", "value_floats"):
            value = np.array(helper.get_attribute_value(node.attribute[0]), np.float64)
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(value)))


def _widen_tensor(tensor: TensorProto) -> TensorProto:
    if tensor.data_type != TensorProto.FLOAT:
        return tensor
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name)


def _arrays(case: TestCase) -> dict[str, Any]:
    """The inputs of a test by name, float32 as float64."""
    (inputs, _), *_ = case.data_sets or ()
    arrays = [_normalize_tensor(value) for value in inputs]
    named = zip((i.name for i in make_graph(case).input), arrays, strict=False)
    return {n: _finite(a) if a.dtype in (np.float32, np.float64) else a for n, a in named}


def _finite(a: Any) -> Any:
    """An array in float64, with a half where it is not finite."""
    return np.where(np.isfinite(a), a, 0.5).astype(np.float64)


def _is_real(case: TestCase) -> bool:
    """Return whether a test has an input of real numbers, and only tensors."""
    graph = make_graph(case)
    if any(v.type.WhichOneof("value") != "tensor_type" for v in (*graph.input, *graph.output)):
        return False
    if any(n.op_type in RANDOM for n in graph.node):
        return False
    real = (TensorProto.FLOAT, TensorProto.DOUBLE)
    ends = [
        {v.type.tensor_type.elem_type for v in values} for values in (graph.input, graph.output)
    ]
    return all(kinds.intersection(real) for kinds in ends)


def _graph(case: TestCase, arrays: dict[str, Any], fed: list[str]) -> Graph:
    """The graph of a test in float64, in which all inputs are constants but those that are fed."""
    model = onnx.ModelProto()
    assert case.model is not None
    model.CopyFrom(case.model)
    _wide(model.graph)
    held = [i for i in model.graph.input if i.name not in fed and i.name in arrays]
    for value in held:
        model.graph.initializer.append(numpy_helper.from_array(arrays[value.name], value.name))
        model.graph.input.remove(value)
    graph = unroll(name_nodes(onnx_io.load(model)))
    graph.types.clear()
    if "loss" in graph.outputs:  # as the sum of all outputs is called
        rename(graph, "loss", "loss of the test")
    return name_nodes(graph)


def _largest(arrays: dict[str, Any]) -> int:
    return max(int(a.size) for a in arrays.values())


class _Case:
    """A node test with its loss: the sum of all outputs times random weights."""

    def __init__(self, case: TestCase) -> None:
        self.arrays = _arrays(case)
        self.fed = [n for n, a in self.arrays.items() if a.dtype == np.float64 and a.size]
        while True:
            self.graph = _graph(case, self.arrays, self.fed)
            try:
                types = infer(self.graph.copy()).types
                self.outputs = self.run(self.graph, {})
                break
            except UnknownValueError as error:  # what decides a shape has no gradient
                known = [n for n in error.inputs if n in self.fed]
                if not known:
                    raise
                self.fed = [n for n in self.fed if n not in known]
        kinds = {t.dtype for t in types.values()}
        self.eps, self.tol = (EPS_F32, TOL_F32) if kinds & {"f16", "f32"} else (EPS, TOL)
        rng = np.random.default_rng(1)
        finite = {
            n: rng.standard_normal(y.shape)
            for n, y in self.outputs.items()
            if y.dtype.kind == "f" and types[n].dtype in FLOATS and np.isfinite(y).all()
        }
        self.weights = {n: u.astype(self.outputs[n].dtype) for n, u in finite.items()}
        self.lost: list[str] = []

    def run(self, graph: Graph, moved: dict[str, Any]) -> dict[str, Any]:
        """Run a graph on the inputs of the test, some of them moved."""
        inputs = {n: moved.get(n, self.arrays[n]) for n in self.fed}
        return run(graph, inputs, closed=True)

    def backward(self) -> tuple[Graph, dict[str, str]]:
        """The graph of gradients, and their names; inputs without any are noted in `lost`.

        Statistics that are outputs besides, of batch and layer norms, have no gradient of their
        own: then the loss is of the first output alone.
        """
        self.loss = with_loss(self.graph, self.weights)
        try:
            return self.differentiated()
        except UnsupportedOpError:
            if len(self.weights) < 2:
                raise
        first = next(iter(self.weights))
        self.loss = with_loss(self.graph, {first: self.weights[first]})
        return self.differentiated()

    def differentiated(self) -> tuple[Graph, dict[str, str]]:
        """The graph of gradients of `loss`, and their names."""
        wrt = list(self.fed)
        while True:
            graph = self.loss.copy()
            try:
                names = differentiate(graph, "loss", wrt, infer(graph.copy()).types)
            except NoInfluenceError as error:
                self.lost += error.names
                wrt = [n for n in wrt if n not in error.names]
                if not wrt:
                    raise
                continue
            graph.outputs = [names[n] for n in wrt]
            return graph, names

    def difference(self, start: dict[str, Any], direction: dict[str, Any], eps: float) -> float:
        """The slope of the loss, from both sides of the inputs."""
        losses = []
        for e in (eps, -eps):
            moved = {n: a + e * direction[n] if n in direction else a for n, a in start.items()}
            losses.append(float(self.run(self.loss, moved)["loss"]))
        return (losses[0] - losses[1]) / (2 * eps)

    def differs(self, noise: float, shift: float) -> str:
        """Return how far both derivatives are apart; empty if they agree."""
        rng = np.random.default_rng(2)
        start = {n: self.arrays[n] + shift + noise * rng.standard_normal(self.arrays[n].shape)
                 for n in self.fed}  # fmt: skip
        backward, names = self.backward()
        grads = self.run(backward, start)
        direction = {n: rng.standard_normal(start[n].shape) for n in names}
        whole, half = (self.difference(start, direction, e) for e in (self.eps, self.eps / 2))
        numeric = (4 * half - whole) / 3
        exact = sum(float(np.sum(grads[names[n]] * direction[n])) for n in names)
        scale = sum(float(np.linalg.norm(grads[g])) for g in names.values()) + 1
        if not np.isfinite([numeric, exact]).all():
            by = "differences" if np.isfinite(exact) else "the gradient"
            return f"not finite by {by}"
        if abs(numeric - exact) <= self.tol * scale:
            return ""
        return f"differs: {numeric:.9g} by differences, {exact:.9g} by the gradient"


def outcome(case: TestCase) -> str:
    """ "passes", or why it does not."""
    try:
        one = _Case(case)
        if not one.weights:
            return "no output of finite real numbers"
        why = ""
        for noise, shift in STARTS:
            if not (why := one.differs(noise, shift)):
                return "passes"
    except EngineError as error:
        text = " ".join(str(error).split()).removeprefix(f"{case.name}: ")
        if "does not depend on them" in text:
            return f"no gradient flows through {make_graph(case).node[0].op_type}"
        return shorten_error(text)
    return why


@functools.cache
def names() -> list[str]:
    """The tests with real inputs that the engine passes."""
    return [
        n
        for n in LISTED
        if _is_real(list_cases()[n]) and _largest(_arrays(list_cases()[n])) <= MOST
    ]


def _sampled(listed: list[str]) -> list[Any]:
    """Every `SAMPLE`th test; the others run with --whole."""
    marks = [pytest.mark.whole]
    return [pytest.param(n, marks=marks if i % SAMPLE else []) for i, n in enumerate(listed)]


@pytest.mark.parametrize("name", _sampled(PASSED))
def test_gradient(name: str) -> None:
    assert outcome(list_cases()[name]) == "passes"


@pytest.mark.parametrize("name", _sampled(REST))
def test_no_gradient_for_the_reason_on_record(name: str) -> None:
    assert outcome(list_cases()[name]) == KNOWN[name]


def test_every_test_is_listed(request: pytest.FixtureRequest) -> None:
    """The list has each test with real inputs, and no gradient that is wrong."""
    if request.config.getoption("--update-golden"):
        LIST.write_text("".join(f"{n}: {outcome(list_cases()[n])}\n" for n in names()))
    known = dict(line.split(": ", 1) for line in LIST.read_text().splitlines())
    assert list(known) == names(), "run with --update-golden"
    assert not [n for n, why in known.items() if why.startswith("differs")]
