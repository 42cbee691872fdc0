"""Differentiation of graphs, as text: which nodes come out, what is pruned, what is refused.

The numbers of each rule are checked op by op in test_gradient.py.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import pytest

from engine.errors import (
    DTypeError,
    ModelError,
    NameNotFoundError,
    ShapeError,
    UnsupportedOpError,
)
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.offline.normalize import name_nodes
from engine.graphs.passes.infer import infer
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import Grad, Op, TensorType
from tests.support import harness

F32 = np.float32


def graph(
    inputs: dict[str, str], nodes: list[Node], constants: dict[str, Any] | None = None
) -> Graph:
    """A graph of typed inputs, given as "f32[n,3]"."""
    types = {}
    for name, text in inputs.items():
        dtype, _, dims = text.rstrip("]").partition("[")
        shape = tuple(int(d) if d.isdigit() else d for d in dims.split(",") if d)
        types[name] = TensorType(dtype, shape)
    arrays = {n: np.asarray(a) for n, a in (constants or {}).items()}
    return name_nodes(Graph("g", types, [nodes[-1].outputs[0]], arrays, nodes, {"": 17}))


def run(g: Graph, *wrt: str) -> tuple[dict[str, str], list[str]]:
    """Gradient names, and the new nodes as text."""
    types = infer(g).types
    count = len(g.nodes)
    names = differentiate(g, g.outputs[0], wrt, types)
    g.check()
    return names, [str(n) for n in g.nodes[count:]]


def mean(x: str) -> Node:
    return Node("ReduceSum", (x,), ("loss",), {"keepdims": 0}, name="total")


# The gradient that comes before every example: a sum passes its own on.
TOTAL = [
    "total_Grad/Shape_0_output = Shape({x})  # total_Grad/Shape_0",
    "{x}_grad = Expand(loss_grad, total_Grad/Shape_0_output)  # total_Grad/Expand_1",
]


def total(x: str) -> list[str]:
    return [line.replace("{x}", x) for line in TOTAL]


# --- what comes out


def test_a_chain() -> None:
    nodes = [Node("Exp", ("w",), ("e",)), Node("Tanh", ("e",), ("t",)), mean("t")]
    g = graph({"w": "f32[3]"}, nodes)
    names, text = run(g, "w")
    assert names == {"w": "w_grad"}
    assert text == [
        *total("t"),
        "e_grad = com.microsoft::TanhGrad(t_grad, t)  # Tanh_0_Grad/TanhGrad_0",
        "w_grad = Mul(e_grad, e)  # Exp_0_Grad/Mul_0",
    ]
    assert g.initializers["loss_grad"].dtype == F32
    assert g.initializers["loss_grad"].shape == ()
    assert g.initializers["loss_grad"] == 1
    assert g.types["e_grad"] == g.types["e"]


def test_several_uses_are_summed_once() -> None:
    nodes = [
        Node("Mul", ("x", "w"), ("y",), name="mul"),
        Node("Add", ("y", "w"), ("z",), name="add"),
        Node("Mul", ("z", "w"), ("p",), name="last"),
        mean("p"),
    ]
    names, text = run(graph({"x": "f32[3]", "w": "f32[3]"}, nodes), "w")
    assert names == {"w": "w_grad"}
    assert text == [
        *total("p"),
        "z_grad = Mul(p_grad, w)  # last_Grad/Mul_0",
        "w_grad_0 = Mul(p_grad, z)  # last_Grad/Mul_1",
        "y_grad = Identity(z_grad)  # add_Grad/Identity_0",
        "w_grad_1 = Identity(z_grad)  # add_Grad/Identity_1",
        "w_grad_2 = Mul(y_grad, x)  # mul_Grad/Mul_0",
        "w_grad = Sum(w_grad_0, w_grad_1, w_grad_2)  # AccumulateGrad_w_grad",
    ]


def test_one_value_twice_in_a_node() -> None:
    names, text = run(
        graph({"w": "f32[3]"}, [Node("Mul", ("w", "w"), ("y",), name="sq"), mean("y")]), "w"
    )
    assert names == {"w": "w_grad"}
    assert text[-3:] == [
        "w_grad_0 = Mul(y_grad, w)  # sq_Grad/Mul_0",
        "w_grad_1 = Mul(y_grad, w)  # sq_Grad/Mul_1",
        "w_grad = Sum(w_grad_0, w_grad_1)  # AccumulateGrad_w_grad",
    ]


def test_only_what_is_wanted_is_computed() -> None:
    """No gradient of x, none before it, and none through the branch beside the loss."""
    nodes = [
        Node("Floor", ("x",), ("f",)),
        Node("Mul", ("f", "w"), ("y",), name="mul"),
        Node("Round", ("y",), ("beside",)),
        mean("y"),
    ]
    _, text = run(graph({"x": "f32[3]", "w": "f32[3]"}, nodes), "w")
    assert text == [*total("y"), "w_grad = Mul(y_grad, f)  # mul_Grad/Mul_0"]


def test_a_value_inside_the_graph_can_be_wanted() -> None:
    nodes = [Node("Exp", ("x",), ("e",)), Node("Neg", ("e",), ("y",), name="neg"), mean("y")]
    names, text = run(graph({"x": "f32[3]"}, nodes), "e")
    assert names == {"e": "e_grad"}
    assert text == [*total("y"), "e_grad = Neg(y_grad)  # neg_Grad/Neg_0"]


def test_names_that_are_taken_are_left_alone() -> None:
    nodes = [Node("Exp", ("w",), ("w_grad",), name="exp"), mean("w_grad")]
    names, text = run(graph({"w": "f32[3]"}, nodes), "w")
    assert names == {"w": "w_grad_1"}
    assert text[-1].startswith("w_grad_1 = Mul(")


def test_an_optional_output_is_added_when_a_rule_asks() -> None:
    nodes = [
        Node("MaxPool", ("w",), ("p",), {"kernel_shape": [2, 2], "strides": [2, 2]}, name="pool"),
        mean("p"),
    ]
    g = graph({"w": "f32[1,1,4,4]"}, nodes)
    _, text = run(g, "w")
    assert g.nodes[0].outputs == ("p", "p_mask")
    assert "MaxPoolGrad(p_grad, p_mask)" in text[-1]


def test_unneeded_outputs_of_a_gradient_node_are_absent() -> None:
    nodes = [Node("Conv", ("x", "w", "b"), ("y",), {"kernel_shape": [3]}, name="conv"), mean("y")]
    inputs = {"x": "f32[1,2,9]", "w": "f32[4,2,3]", "b": "f32[4]"}
    _, text = run(graph(inputs, nodes), "w")
    assert text[-1].startswith("-, w_grad = com.microsoft::ConvGrad(y_grad, x, w)")


def test_constants_are_shared() -> None:
    nodes = [Node("Sqrt", ("w",), ("a",)), Node("Sqrt", ("a",), ("y",)), mean("y")]
    g = graph({"w": "f32[3]"}, nodes)
    run(g, "w")
    assert sorted(g.initializers) == ["grad_f32_scalar", "loss_grad"]
    assert g.initializers["grad_f32_scalar"] == 0.5


def test_double_precision_is_kept() -> None:
    g = graph({"w": "f64[3]"}, [Node("Sqrt", ("w",), ("y",)), mean("y")])
    run(g, "w")
    assert {a.dtype for a in g.initializers.values()} == {np.dtype("f8")}


# --- un-broadcasting


@pytest.mark.parametrize(
    ("w", "nodes"),
    [
        ("f32[n,3,4]", ["w_grad = Identity(y_grad)"]),
        ("f32[3,4]", ["w_grad = ReduceSum(y_grad, [0]) keepdims=0"]),
        ("f32[]", ["w_grad = ReduceSum(y_grad, [0, 1, 2]) keepdims=0"]),
        ("f32[3,1]", ["ReduceSum(y_grad, [0, 2]) keepdims=1", "Squeeze(", ", [0])"]),
        ("f32[1,3,1]", ["w_grad = ReduceSum(y_grad, [0, 2]) keepdims=1"]),
        ("f32[n,1,1]", ["w_grad = ReduceSum(y_grad, [1, 2]) keepdims=1"]),
    ],
)
def test_broadcast_axes_are_summed(w: str, nodes: list[str]) -> None:
    g = graph({"x": "f32[n,3,4]", "w": w}, [Node("Add", ("x", "w"), ("y",), name="add"), mean("y")])
    _, text = run(g, "w")
    lines = "\n".join(text[2:])
    for name, value in g.initializers.items():
        lines = lines.replace(name, str(value.tolist()))
    for part in nodes:
        assert part in lines


def test_axes_that_only_the_run_knows_are_computed_there() -> None:
    """m may be 1 or 5: onnxruntime-training's BroadcastGradientArgs decides."""
    nodes = [Node("Add", ("x", "w"), ("y",), name="add"), mean("y")]
    g = graph({"x": "f32[5,3]", "w": "f32[m,3]"}, nodes)
    names, text = run(g, "w")
    assert names == {"w": "w_grad"}
    pre = "add_Grad/"
    assert text[2:] == [
        f"{pre}Shape_0_output = Shape(w)  # {pre}Shape_0",
        f"{pre}Shape_1_output = Shape(y)  # {pre}Shape_1",
        f"{pre}BroadcastGradientArgs_2_output_0 = com.microsoft::BroadcastGradientArgs("
        f"{pre}Shape_0_output, {pre}Shape_1_output)  # {pre}BroadcastGradientArgs_2",
        f"{pre}ReduceSumTraining_3_output = com.microsoft::ReduceSumTraining(y_grad, "
        f"{pre}BroadcastGradientArgs_2_output_0) keepdims=1 noop_with_empty_axes=1"
        f"  # {pre}ReduceSumTraining_3",
        f"w_grad = Reshape({pre}ReduceSumTraining_3_output, {pre}Shape_0_output)  # {pre}Reshape_4",
    ]


@pytest.mark.parametrize("m", [1, 5])
def test_such_axes_are_right_at_run_time(m: int) -> None:
    inputs = {"x": "f32[5,3]", "w": "f32[m,3]"}
    nodes = [
        Node("Mul", ("x", "w"), ("y",), name="mul"),
        Node("Mul", ("y", "x"), ("z",), name="again"),
        mean("z"),
    ]
    g = graph(inputs, nodes)
    names, _ = run(g, "w")
    g.outputs = [names["w"]]
    x = np.arange(15, dtype=F32).reshape(5, 3)
    w_grad = harness.run(g, {"x": x, "w": np.ones((m, 3), F32)})["w_grad"]
    np.testing.assert_array_equal(w_grad, x**2 if m == 5 else (x**2).sum(0, keepdims=True))


def test_two_symbols_on_one_axis_are_never_taken_for_equal() -> None:
    """The 5 keeps numbers from fitting both; then z has one of the two symbols, or the 5."""
    inputs = {"u": "f32[n,3]", "w": "f32[m,3]", "x": "f32[5,3]"}
    nodes = [
        Node("Add", ("u", "w"), ("y",), name="first"),
        Node("Add", ("y", "x"), ("z",), name="second"),
        mean("z"),
    ]
    _, text = run(graph(inputs, nodes), "u", "w")
    assert sum("BroadcastGradientArgs(" in line for line in text) == 3


# --- edges without a gradient


def test_stopped_edges_and_integers_carry_nothing() -> None:
    nodes = [
        Node("Less", ("w", "x"), ("c",)),
        Node("Cast", ("w",), ("i",), {"to": 7}),
        Node("Cast", ("i",), ("j",), {"to": 1}),
        Node("Where", ("c", "w", "j"), ("y",), name="where"),
        mean("y"),
    ]
    _, text = run(graph({"x": "f32[3]", "w": "f32[3]"}, nodes), "w")
    assert text[2:] == ["w_grad = Where(c, y_grad, grad_f32_scalar)  # where_Grad/Where_0"]


def test_what_has_no_influence_is_refused_all_of_it() -> None:
    nodes = [Node("Mul", ("x", "w"), ("y",)), Node("Sign", ("u",), ("s",)), mean("y")]
    g = graph({"x": "f32[3]", "w": "f32[3]", "u": "f32[3]", "v": "f32[3]"}, nodes)
    with pytest.raises(
        ModelError,
        match="the partial derivative of 'loss' with respect to 'u', 'v': it does not",
    ):
        run(g, "w", "u", "v")


def test_all_ops_without_a_rule_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("One", "Two"):
        monkeypatch.setitem(
            list_ops(), ("", name), Op(name=name, infer=lambda site: (site.type(0),))
        )
    nodes = [
        Node("One", ("w",), ("a",), name="first"),
        Node("Exp", ("a",), ("b",)),
        Node("Two", ("b",), ("c",), name="second"),
        mean("c"),
    ]
    g = graph({"w": "f32[3]"}, nodes)
    types = infer(g).types
    before = str(g)
    with pytest.raises(UnsupportedOpError) as caught:
        differentiate(g, "loss", ["w"], types)
    assert "g: no gradient for" in str(caught.value)
    assert "One 'first' (opset 17; f32[3])" in str(caught.value)
    assert "Two 'second' (opset 17; f32[3])" in str(caught.value)
    assert str(g) == before


def test_rules_that_refuse_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def grad(grad: Grad, dy: str) -> NoReturn:
        grad.site.fail("a kind without a gradient", "another")

    op = Op(name="Odd", infer=lambda site: (site.type(0),), grad=grad)
    monkeypatch.setitem(list_ops(), ("", "Odd"), op)
    nodes = [
        Node("Odd", ("w",), ("a",), name="first"),
        Node("Odd", ("v",), ("b",), name="second"),
        Node("Add", ("a", "b"), ("y",)),
        mean("y"),
    ]
    with pytest.raises(UnsupportedOpError, match=r"(?s)'second'.*supported: another.*'first'"):
        run(graph({"w": "f32[3]", "v": "f32[3]"}, nodes), "w", "v")


def test_losses_and_names_that_cannot_be() -> None:
    nodes = [Node("Exp", ("w",), ("loss",))]
    with pytest.raises(ShapeError, match=r"loss 'loss' is f32\[3\]; training needs a scalar: use"):
        run(graph({"w": "f32[3]"}, nodes), "w")
    nodes = [Node("Less", ("w", "w"), ("loss",))]
    with pytest.raises(DTypeError, match=r"loss 'loss' is b1\[1\]; expected a floating-point"):
        run(graph({"w": "f32[1]"}, nodes), "w")
    nodes = [Node("Add", ("w", "w"), ("y",)), mean("y")]
    with pytest.raises(NameNotFoundError, match="no value is named 'weights'; nearest: 'weight'"):
        run(graph({"w": "f32[3]", "weight": "f32[1]"}, nodes), "weights")
    with pytest.raises(DTypeError, match=r"'i' is i64\[3\]: only floats have gradients"):
        run(graph({"w": "f32[3]", "i": "i64[3]"}, nodes), "i")
