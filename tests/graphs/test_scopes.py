"""Scopes of names: functions of a model see their inputs, bodies the graphs around them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, checker, helper, numpy_helper

from engine import backend
from engine.errors import ModelError

X = np.array([1, 2], np.float32)
node = helper.make_node
BOTH = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]


def value(name: str, kind: int = TensorProto.FLOAT, shape: Sequence[int] = (2,)) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str, values: Any) -> TensorProto:
    return numpy_helper.from_array(np.asarray(values), name)


def body(nodes: Sequence[NodeProto], output: str, weights: Sequence[TensorProto] = ()) -> Any:
    return helper.make_graph(nodes, "body", [], [value(output)], weights)


def branch(then: Any, other: Any = None, output: str = "q") -> NodeProto:
    other = other or body([node("Abs", ["x"], ["other"])], "other")
    return node("If", ["c"], [output], name="choice", then_branch=then, else_branch=other)


def model(nodes: Sequence[NodeProto], functions: Any = (), weights: Any = ()) -> onnx.ModelProto:
    inputs = [value("x"), value("c", TensorProto.BOOL, ())]
    nodes = [*nodes, node("Where", ["c", "y", "x"], ["out"])]  # so that both inputs are read
    graph = helper.make_graph(nodes, "g", inputs, [value("out")], weights)
    return helper.make_model(graph, opset_imports=BOTH, functions=functions, ir_version=9)


def calling(
    nodes: Sequence[NodeProto], inputs: Sequence[str] = ("a",), outputs: Sequence[str] = ("b",)
) -> onnx.ModelProto:
    """A model that calls a function of these nodes; its own values are x, h, w, c and y."""
    function = helper.make_function("local", "F", inputs, outputs, nodes, BOTH)
    call = node("F", ["x"] * len(inputs), ["y"], domain="local", name="call")
    whole = [node("Exp", ["x"], ["h"]), call, node("Add", ["h", "w"], ["unused"])]
    return model(whole, [function], [constant("w", X)])


YES = node("Constant", [], ["yes"], value=constant("", True))
E_ = node("Exp", ["a"], ["e"])


def inner(name: str) -> NodeProto:
    """A branch that reads a value."""
    return node("If", ["yes"], ["b"], name="inner",
                then_branch=body([node("Neg", [name], ["t"])], "t"),
                else_branch=body([node("Abs", ["a"], ["u"])], "u"))  # fmt: skip


LOOP = helper.make_graph(
    [node("Identity", ["go"], ["on"]), node("Add", ["x", "x"], ["s"])], "body",
    [value("i", TensorProto.INT64, ()), value("go", TensorProto.BOOL, ()), value("x")],
    [value("on", TensorProto.BOOL, ()), value("s")],
)  # fmt: skip
H = node("Exp", ["x"], ["h"])
Y = node("Add", ["q", "h"], ["y"])

GOOD: dict[str, tuple[onnx.ModelProto, Any]] = {
    "a function": (calling([node("Neg", ["a"], ["b"])]), -X),
    "a function with the names of its caller": (
        calling([node("Neg", ["x"], ["h"]), node("Neg", ["h"], ["y"])], ["x"], ["y"]), X
    ),
    "a branch in a function reads it": (calling([YES, E_, inner("e")]), -np.exp(X)),
    "a branch in a function reads its input": (calling([YES, inner("a")]), -X),
    "an input that is left out": (calling([node("Clip", ["a", "", ""], ["b"])]), X),
    "a branch reads what is around it": (
        model([H, branch(body([node("Neg", ["h"], ["t"])], "t")), Y]), 0 * X
    ),
    "a weight of a branch is called as one around it": (
        model([H, branch(body([node("Neg", ["h"], ["t"])], "t", [constant("h", X)])), Y]),
        np.exp(X) - X,
    ),
    "an input of a loop is called as one around it": (
        model([H, node("Loop", ["m", "", "h"], ["y"], body=LOOP)], (), [constant("m", 2)]),
        4 * np.exp(X),
    ),
    "two branches make one name": (
        model([H, branch(body([node("Neg", ["x"], ["t"])], "t"),
                         body([node("Abs", ["x"], ["t"])], "t")), Y]), np.exp(X) - X
    ),
}  # fmt: skip

BAD: dict[str, tuple[onnx.ModelProto, str]] = {
    "reads a value of its caller": (
        calling([node("Add", ["a", "h"], ["b"], name="sum")]),
        "function 'F': Add 'sum' reads 'h', which is neither an input of the function",
    ),
    "reads a weight of its caller": (calling([node("Add", ["a", "w"], ["b"])]), "reads 'w'"),
    "reads an input of its caller": (calling([node("Add", ["a", "x"], ["b"])]), "reads 'x'"),
    "reads its own result": (calling([node("Add", ["a", "b"], ["b"])]), "reads 'b'"),
    "reads what is made later": (
        calling([node("Neg", ["e"], ["b"]), E_]), "function 'F': Neg '' reads 'e'"
    ),
    "a branch reads a value of the caller": (
        calling([YES, inner("h")]),
        "function 'F', If 'inner': in the body 'body' Neg '' reads 'h' before it is computed",
    ),
    "a branch of a function makes a name of it": (
        calling([YES, E_, node("If", ["yes"], ["b"], then_branch=body([E_], "e"),
                               else_branch=body([node("Abs", ["a"], ["u"])], "u"))]),
        "Exp '' makes 'e', a name of the graph around it",
    ),
    "makes a value twice": (
        calling([E_, node("Neg", ["a"], ["e"]), node("Neg", ["e"], ["b"])]),
        "function 'F': Neg '' makes 'e' a second time",
    ),
    "makes its input": (calling([node("Neg", ["a"], ["a"])]), "makes 'a' a second time"),
    "two inputs": (calling([node("Neg", ["a"], ["b"])], ["a", "a"]), "two inputs named 'a'"),
    "two outputs": (
        calling([node("Neg", ["a"], ["b"])], ["a"], ["b", "b"]), "two outputs named 'b'"
    ),
    "an output that nothing makes": (
        calling([node("Neg", ["a"], ["e"])]), "function 'F': no node computes the output 'b'"
    ),
    "a body makes a name around it": (
        model([H, branch(body([node("Neg", ["x"], ["h"])], "h")), Y]),
        "If 'choice': in the body 'body' Neg '' makes 'h', a name of the graph around it",
    ),
    "a body reads a name and makes it then": (
        model([H, branch(body([node("Neg", ["h"], ["t"]), node("Abs", ["x"], ["h"])], "t")), Y]),
        "Neg '' reads 'h' before it is computed",
    ),
    "a body makes a name twice": (
        model([H, branch(body([node("Neg", ["x"], ["t"]), node("Abs", ["x"], ["t"])], "t")), Y]),
        "If 'choice': body 'body': Abs '' makes 't' a second time",
    ),
    "a body that is not sorted": (
        model([H, branch(body([node("Neg", ["t"], ["u"]), node("Abs", ["x"], ["t"])], "u")), Y]),
        "Neg '' reads 't' before it is computed",
    ),
    "the graph reads what a branch makes": (
        model([H, branch(body([node("Neg", ["x"], ["t"])], "t")), node("Add", ["q", "t"], ["y"])]),
        "reads ['t'], which no node computes",
    ),
    "a branch reads what the other makes": (
        model([H, branch(body([node("Neg", ["x"], ["t"])], "t"),
                         body([node("Neg", ["t"], ["u"])], "u")), Y]),
        "reads ['t'], which no node computes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_names_that_may_be_read(name: str) -> None:
    proto, expected = GOOD[name]
    checker.check_model(proto)
    (outcome,) = backend.prepare(proto).run([X, np.array(True)])
    np.testing.assert_allclose(outcome, expected, rtol=1e-6)


@pytest.mark.parametrize("name", BAD)
def test_names_that_may_not(name: str) -> None:
    proto, message = BAD[name]
    with pytest.raises(ModelError, match=re.escape(message)):
        backend.prepare(proto)


@pytest.mark.parametrize("name", BAD)
def test_onnx_refuses_them_too(name: str) -> None:
    """So that nothing is refused here which other tools take; it misses outputs of functions."""
    if name == "an output that nothing makes":
        return
    with pytest.raises(checker.ValidationError):
        checker.check_model(BAD[name][0])
