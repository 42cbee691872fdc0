"""Types and constants of a graph: by numbers, by symbols, and what errors say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.errors import NameNotFoundError, ShapeError, UnsupportedOpError
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.passes.infer import FOLD_BYTES, bind, infer
from engine.kernels.vocabulary.op import TensorType

F32, I64 = np.float32, np.int64


def graph(
    inputs: dict[str, tuple[Any, ...]],
    nodes: list[Node],
    constants: dict[str, Any] | None = None,
    opset: int = 17,
) -> Graph:
    """A graph of float inputs whose outputs are those of the last node."""
    types = {n: TensorType("f32", s) for n, s in inputs.items()}
    arrays = {n: np.asarray(a) for n, a in (constants or {}).items()}
    return Graph("g", types, list(nodes[-1].outputs), arrays, nodes, {"": opset})


def computed_shape() -> Graph:
    """y = Reshape(x, [Shape(x)[0], -1]), as exporters write it."""
    nodes = [
        Node("Shape", ("x",), ("s",)),
        Node("Mul", ("s", "mask"), ("t",)),
        Node("Add", ("t", "rest"), ("u",)),
        Node("Reshape", ("x", "u"), ("r",)),
        Node("MatMul", ("r", "w"), ("y",)),
    ]
    constants = {
        "mask": np.array([1, 0], I64), "rest": np.array([0, -1], I64), "w": np.ones((6, 4), F32)
    }  # fmt: skip
    return graph({"x": ("batch", 6)}, nodes, constants)


# --- binding


def test_a_symbol_has_one_value() -> None:
    g = graph({"x": ("n", 3), "labels": ("n",)}, [Node("Relu", ("x",), ("y",))])
    bound = bind(g, {"x": (8, 3)})
    assert {n: t.shape for n, t in bound.inputs.items()} == {"x": (8, 3), "labels": (8,)}
    assert g.inputs["x"].shape == ("n", 3)


@pytest.mark.parametrize(
    ("shapes", "error", "message"),
    [
        ({"z": (1,)}, NameNotFoundError, "no input 'z'; inputs: x, labels"),
        ({"label": (1,)}, NameNotFoundError, "nearest: 'labels'"),
        ({"x": (8,)}, ShapeError, r"input 'x': shape \[8\] of rank 1; expected f32\[n,3\]"),
        ({"x": (8, 4)}, ShapeError, r"input 'x': dimension 1 is 4; expected 3 \(f32\[n,3\]\)"),
        ({"x": (-1, 3)}, ShapeError, "input 'x': dimension 0 is -1"),
        ({"x": (8, 3), "labels": (4,)}, ShapeError,
         r"input 'labels': dimension 0 \('n'\) is 4, but 8 in input 'x'"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit(
    shapes: dict[str, tuple[int, ...]], error: type[Exception], message: str
) -> None:
    g = graph({"x": ("n", 3), "labels": ("n",)}, [Node("Relu", ("x",), ("y",))])
    with pytest.raises(error, match=message):
        bind(g, shapes)


# --- constants


def test_known_nodes_become_initializers() -> None:
    g = bind(computed_shape(), {"x": (5, 6)})
    found = infer(g)
    assert [n.op for n in g.nodes] == ["Reshape", "MatMul"]
    assert g.initializers["u"].tolist() == [5, -1]
    assert found.constants["u"] is g.initializers["u"]
    assert str(found.types["y"]) == "f32[5,4]"
    g.check()


def test_what_depends_on_an_input_stays() -> None:
    g = graph({"x": (2,)}, [Node("Add", ("x", "c"), ("y",))], {"c": np.ones(2, F32)})
    assert set(infer(g).constants) == {"c"}
    assert [n.op for n in g.nodes] == ["Add"]


def test_ops_without_a_declaration_are_folded_by_the_reference() -> None:
    nodes = [
        Node("Hardmax", ("c",), ("h",), {"axis": 0}),
        Node("Add", ("x", "h"), ("y",)),
    ]
    g = graph({"x": (3,)}, nodes, {"c": np.array([1, 5, 2], F32)})
    infer(g)
    assert g.initializers["h"].tolist() == [0, 1, 0]


def test_large_values_are_not_folded() -> None:
    c = np.ones(FOLD_BYTES // 4 + 1, F32)
    nodes = [Node("Neg", ("c",), ("d",)), Node("Add", ("x", "d"), ("y",))]
    g = graph({"x": c.shape}, nodes, {"c": c})
    infer(g)
    assert [n.op for n in g.nodes] == ["Neg", "Add"]


def test_large_constants_are_constants() -> None:
    nodes = [
        Node("Constant", (), ("c",), {"value": np.ones(FOLD_BYTES, F32)}),
        Node("Add", ("x", "c"), ("y",)),
    ]
    g = graph({"x": (FOLD_BYTES,)}, nodes)
    infer(g)
    assert [n.op for n in g.nodes] == ["Add"]
    assert g.initializers["c"].size == FOLD_BYTES


# --- symbols


def test_computed_shapes_are_known_by_their_symbols() -> None:
    g = computed_shape()
    types = infer(g).types
    assert str(types["r"]) == "f32[batch,6]"
    assert str(types["y"]) == "f32[batch,4]"
    assert [n.op for n in g.nodes] == ["Shape", "Mul", "Add", "Reshape", "MatMul"]


def test_equal_sizes_get_equal_symbols() -> None:
    nodes = [
        Node("Flatten", ("x",), ("a",), {"axis": 0}),
        Node("Flatten", ("y",), ("b",), {"axis": 0}),
        Node("Add", ("a", "b"), ("z",)),
    ]
    types = infer(graph({"x": ("n", "m"), "y": ("m", "n")}, nodes)).types
    assert types["a"] == types["b"] == types["z"]
    assert types["a"].shape[0] == 1
    assert isinstance(types["a"].shape[1], str)
    assert types["a"].shape[1] not in ("n", "m")


def test_symbols_that_can_only_be_equal_become_one() -> None:
    g = graph({"x": ("n", 3), "y": ("m", 3)}, [Node("Add", ("x", "y"), ("z",))])
    assert str(infer(g).types["z"]) == "f32[n,3]"
    assert {str(t) for t in g.inputs.values()} == {"f32[n,3]"}
    with pytest.raises(
        ShapeError, match=r"input 'y': dimension 0 \('n'\) is 1, but 5 in input 'x'"
    ):
        bind(g, {"x": (5, 3), "y": (1, 3)})


def test_only_those_become_one_that_must() -> None:
    nodes = [Node("Add", ("ids", "mask"), ("y",)), Node("MatMul", ("other", "c"), ("z",))]
    inputs = {"ids": ("b", "s"), "mask": ("b1", "s1"), "other": ("k", 2)}
    g = graph(inputs, nodes, {"c": np.ones((2, 2), F32)})
    infer(g)
    assert {n: t.shape for n, t in g.inputs.items()} == {
        "ids": ("b", "s"), "mask": ("b", "s"), "other": ("k", 2),
    }  # fmt: skip


def test_sizes_with_a_limit_are_met() -> None:
    """Only sizes up to 40 fit: 67, the first one tried, does not."""
    kernel = {"kernel_shape": [3]}
    nodes = [Node("Conv", ("x", "w"), ("c",), kernel), Node("Add", ("c", "p"), ("y",))]
    w = np.ones((2, 2, 3), F32)
    g = graph({"x": (1, 2, "t"), "p": (1, 2, 1)}, nodes, {"w": w})
    assert isinstance(infer(g).types["y"].shape[2], str)


def test_a_symbol_against_a_number_is_left_to_the_rules() -> None:
    types = infer(graph({"x": ("n", 3), "y": (5, 3)}, [Node("Add", ("x", "y"), ("z",))])).types
    assert str(types["z"]) == "f32[5,3]"


def test_a_rank_that_depends_on_sizes_is_refused() -> None:
    nodes = [
        Node("Shape", ("x",), ("s",)),
        Node("ConstantOfShape", ("s",), ("ones",), {"value": np.ones(1, I64)}),
        Node("Reshape", ("x", "ones"), ("y",)),
    ]
    with pytest.raises(ShapeError, match=r"Reshape '' .*f32\[67\].*with n=67"):
        infer(graph({"x": ("n",)}, nodes))


# --- errors


def test_all_missing_ops_are_named() -> None:
    nodes = [
        Node("Rellu", ("x",), ("a",), name="first"),
        Node("Abs", ("a",), ("b",), name="between"),
        Node("Frobnicate", ("b",), ("y",), name="second"),
    ]
    with pytest.raises(UnsupportedOpError) as caught:
        infer(graph({"x": (2,)}, nodes))
    text = str(caught.value)
    assert "Rellu 'first' (opset 17) in 'g' is not supported; nearest: 'Relu'" in text
    assert "also: Frobnicate 'second'" in text
    assert "between" not in text


def test_operands_that_do_not_fit_name_the_node() -> None:
    g = graph({"x": ("n", 3), "y": ("n", 4)}, [Node("Add", ("x", "y"), ("z",), name="plus")])
    with pytest.raises(ShapeError, match=r"Add 'plus' .*f32\[67,3\], f32\[67,4\].*\(with n=67\)"):
        infer(g)


@pytest.mark.parametrize(
    ("op", "limit", "size"), [("Mod", 2, 4), ("Mod", 6, 6), ("Min", 10, 4), ("Less", 9, 4)]
)
def test_what_is_the_same_for_some_sizes_only_is_not_known(op: str, limit: int, size: int) -> None:
    """All primes are odd and large, yet n % 2 and min(n, 10) depend on n."""
    nodes = [
        Node("Shape", ("x",), ("s",)),
        Node("Gather", ("s", "zero"), ("n",)),
        Node(op, ("n", "limit"), ("r",)),
        Node("Cast", ("r",), ("y",), {"to": 7}),
    ]
    g = graph({"x": ("n", 3)}, nodes, {"zero": np.array(0), "limit": np.array(limit)})
    assert "y" not in infer(g).constants
    expected = {"Mod": size % limit, "Min": min(size, limit), "Less": size < limit}[op]
    assert infer(bind(g, {"x": (size, 3)})).constants["y"] == expected
