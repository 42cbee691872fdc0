"""Slices of products, nested as deep as they come: the same numbers, and no slice of a slice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from onnx import parser

from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.offline.normalize import name_nodes
from engine.graphs.passes.infer import infer
from engine.graphs.passes.pipeline import OPTIONAL, PassState, run_passes
from tests.random_graphs.derived import weighted
from tests.support.harness import run

PARTS = {"a": 2, "b": 3, "c": 1, "d": 4}  # values of a row each
JOINS = {
    "two": "h = Concat<axis = {axis}>(a, b)",
    "left": "i = Concat<axis = {axis}>(a, b) h = Concat<axis = {axis}>(i, c)",
    "right": "i = Concat<axis = {axis}>(a, b) h = Concat<axis = {axis}>(c, i)",
    "three deep": "i = Concat<axis = {axis}>(a, b) j = Concat<axis = {axis}>(c, i) "
    "h = Concat<axis = {axis}>(j, d)",
    "a shared part": "i = Concat<axis = {axis}>(a, b) h = Concat<axis = {axis}>(a, i)",
    "a shared join": "i = Concat<axis = {axis}>(a, b) h = Concat<axis = {axis}>(i, c, i)",
}
WIDTHS = {"two": 5, "left": 6, "right": 6, "three deep": 10, "a shared part": 7}
WIDTHS["a shared join"] = 11


def graph_of(inputs: str, body: str, outputs: str = "double[M,N] y") -> Graph:
    """The graph of a model's text."""
    head = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
    return onnx_io.load(parser.parse_model(f"{head} g ({inputs}) => ({outputs}) {{ {body} }}"))


def leaves(joins: str) -> list[str]:
    """The parts that a text joins."""
    return [name for name in PARTS if re.search(rf"\b{name}\b", joins)]


def check_numbers(graph: Graph) -> None:
    """Compare the results of a graph by all passes and by the needed ones alone."""
    rng = np.random.default_rng(0)
    fed = {n: rng.standard_normal(t.dims) for n, t in graph.inputs.items()}
    expected = run(graph.copy(), fed, closed=True, without=OPTIONAL)
    outcome = run(graph.copy(), fed, closed=True)
    for name, array in expected.items():
        np.testing.assert_allclose(outcome[name], array, rtol=1e-12, atol=1e-12, err_msg=name)


def check_slices(graph: Graph) -> None:
    """Check that no slice reads another one's result."""
    work = PassState(graph.copy(), closed=True)
    run_passes(work)
    slices = [n for n in work.graph.nodes if n.op == "Slice"]
    cut = {n.outputs[0] for n in slices}
    assert cut.isdisjoint(n.inputs[0] for n in slices), str(work.graph)


def check_gradients(graph: Graph, trained: Sequence[str]) -> None:
    """Check the gradients of every choice of one or two of these inputs."""
    plain = name_nodes(graph)
    types = infer(plain.copy()).types
    for count in (1, 2):
        for wrt in combinations(trained, count):
            training = weighted(plain, types, 0)
            made = differentiate(training, "loss", wrt, infer(training.copy()).types)
            training.outputs = ["loss", *made.values()]
            check_numbers(training)
            if count == 1:  # two may be reached by a Split, whose parts are sliced as they are
                check_slices(training)


@pytest.mark.parametrize("product", ["MatMul(h, w)", "Gemm<transB = 1>(h, w, v)", "Gemm(h, w, v)"])
@pytest.mark.parametrize("joins", JOINS)
def test_gradients_of_nested_joins_before_a_product(joins: str, product: str) -> None:
    """A slice of a slice of an operand was made nowhere."""
    text, width = JOINS[joins].format(axis=1), WIDTHS[joins]
    rows = leaves(text)
    shape = f"7,{width}" if "transB" in product else f"{width},7"
    inputs = [f"double[4,{PARTS[name]}] {name}" for name in rows]
    inputs += [f"double[{shape}] w", *(["double[7] v"] if "v" in product else [])]
    check_gradients(graph_of(", ".join(inputs), f"{text} y = {product}"), rows)


@pytest.mark.parametrize("rows", ["4", "2,3"])
@pytest.mark.parametrize("joins", JOINS)
def test_gradients_of_weights_in_nested_joins(joins: str, rows: str) -> None:
    """A product of rank 3 has gradients of values that were reshaped."""
    text, width = JOINS[joins].format(axis=0), WIDTHS[joins]
    weights = leaves(text)
    inputs = [f"double[{rows},{width}] x", *(f"double[{PARTS[name]},5] {name}" for name in weights)]
    shape = ",".join("KMN"[-1 - rows.count(",") :])
    graph = graph_of(", ".join(inputs), f"{text} y = MatMul(x, h)", f"double[{shape},5] y")
    check_gradients(graph, weights)


@pytest.mark.parametrize("joins", JOINS)
def test_gradients_of_convolutions_by_nested_joins(joins: str) -> None:
    text, width = JOINS[joins].format(axis=1), WIDTHS[joins]
    weights = leaves(text)
    inputs = [f"double[2,{width},4,4] x"]
    inputs += [f"double[3,{PARTS[name]},3,3] {name}" for name in weights]
    graph = graph_of(", ".join(inputs), f"{text} y = Conv(x, h)", "double[2,3,2,2] y")
    check_gradients(graph, weights)


@pytest.mark.parametrize("product", ["MatMul(x, w)", "Gemm<transA = 1, transB = 1>(u, v)"])
@pytest.mark.parametrize("axes", ["0,0", "1,1", "0,1", "1,0", "1,1,1", "0,1,0", "1,0,0"])
def test_slices_of_slices_of_a_product(axes: str, product: str) -> None:
    inputs = "double[7,3] x, double[3,8] w, double[3,7] u, double[8,3] v"
    lines, last = [f"p = {product}"], "p"
    for k, axis in enumerate(axes.split(",")):
        limits = {"begin": 1, "end": 5 - k, "axis": int(axis)}
        lines += [f"{n}{k} = Constant<value_ints = [{i}]>()" for n, i in limits.items()]
        lines.append(f"s{k} = Slice({last}, begin{k}, end{k}, axis{k})")
        last = f"s{k}"
    graph = graph_of(inputs, " ".join([*lines, f"y = Identity({last})"]))
    check_numbers(graph)
    check_slices(graph)


def test_a_part_that_is_read_whole_and_in_part() -> None:
    """The first slice becomes a product, and the others stay slices of it."""
    limits = {"zero": 0, "one": 1, "two": 2, "four": 4}
    lines = [f"{n} = Constant<value_ints = [{i}]>()" for n, i in limits.items()]
    lines += ["p = MatMul(x, w)", "s = Slice(p, zero, four, one)", "y = Slice(s, one, two, one)"]
    lines += ["z = Slice(s, two, four, zero)", "t = Tanh(s)"]
    outputs = "double[7,1] y, double[2,4] z, double[7,4] t"
    check_numbers(graph_of("double[7,3] x, double[3,8] w", " ".join(lines), outputs))
