"""Types and constants of a graph: by numbers, by symbols, and what errors say."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from onnx import parser

from engine.errors import NameNotFoundError, ShapeError, UnsupportedOpError
from engine.graphs.io import onnx_io
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
    """Return a graph of float inputs whose outputs are the last node's."""
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
        ({"x": (8,)}, ShapeError, r"input 'x': the shape \[8\] has rank 1; expected f32\[n,3\]"),
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
    inferred = infer(g)
    assert [n.op for n in g.nodes] == ["Reshape", "MatMul"]
    assert g.initializers["u"].tolist() == [5, -1]
    assert inferred.constants["u"] is g.initializers["u"]
    assert str(inferred.types["y"]) == "f32[5,4]"
    g.check()


def test_what_depends_on_an_input_stays() -> None:
    g = graph({"x": (2,)}, [Node("Add", ("x", "c"), ("y",))], {"c": np.ones(2, F32)})
    assert set(infer(g).constants) == {"c"}
    assert [n.op for n in g.nodes] == ["Add"]


def test_ops_without_a_declaration_are_folded_by_the_reference() -> None:
    nodes = [
        Node("Det", ("c",), ("h",)),
        Node("Add", ("x", "h"), ("y",)),
    ]
    g = graph({"x": (3,)}, nodes, {"c": np.array([[2, 1], [1, 4]], F32)})
    infer(g)
    assert g.initializers["h"].tolist() == 7


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
    """The inner dimensions of a product have to be equal, also where they are 1."""
    g = graph({"x": (3, "n"), "y": ("m", 3)}, [Node("MatMul", ("x", "y"), ("z",))])
    infer(g)
    assert {n: str(t) for n, t in g.inputs.items()} == {"x": "f32[3,n]", "y": "f32[n,3]"}
    with pytest.raises(
        ShapeError, match=r"input 'y': dimension 0 \('n'\) is 1, but 5 in input 'x'"
    ):
        bind(g, {"x": (3, 5), "y": (1, 3)})


def test_symbols_of_which_one_may_be_one_stay() -> None:
    """The sum of f32[n] and f32[m] has the size n or m, whichever is not 1."""
    nodes = [Node("Add", ("x", "y"), ("z",)), Node("Mul", ("z", "y"), ("v",))]
    g = graph({"x": ("n", 3), "y": ("m", 3)}, nodes)
    types = infer(g).types
    assert {n: str(t) for n, t in g.inputs.items()} == {"x": "f32[n,3]", "y": "f32[m,3]"}
    assert str(types["z"]) == "f32[dim_0,3]"
    assert types["v"] == types["z"]
    bind(g, {"x": (5, 3), "y": (1, 3)})


def test_sizes_made_of_different_symbols_are_different() -> None:
    """max(n, m) and max(n, k) are equal when one of n, m and k is 1, and differ when two are."""
    nodes = [
        Node("Add", ("x", "y"), ("a",)), Node("Add", ("x", "z"), ("b",)),
        Node("Add", ("a", "z"), ("c",)),
    ]  # fmt: skip
    types = infer(graph({"x": ("n",), "y": ("m",), "z": ("k",)}, nodes)).types
    assert len({types[name].shape for name in "xyzabc"}) == 6


def test_broadcasting_by_symbols_alone() -> None:
    """No numbers are tried that fit, because v is 1 or 5: the shape rules get the symbols."""
    nodes = [Node("Add", ("x", "y"), ("z",)), Node("Add", ("y", "x"), ("w",))]
    types = infer(graph({"x": ("b", "t", 5), "y": ("c", "u", "v")}, nodes)).types
    assert types["z"].shape[2] == types["w"].shape[2] == 5
    made = {*types["z"].shape[:2], *types["w"].shape[:2]}
    assert len(made) == 4  # nodes without names make symbols of their own
    assert made.isdisjoint("btcuv")
    assert all(isinstance(d, str) for d in made)


def test_only_those_become_one_that_must() -> None:
    """The labels are as many as the scores, which are as many as the longer of ids and mask."""
    nodes = [
        Node("Add", ("ids", "mask"), ("y",)),
        Node("MatMul", ("y", "c"), ("scores",)),
        Node("Transpose", ("labels",), ("t",), {"perm": [1, 0]}),
        Node("MatMul", ("t", "scores"), ("z",)),
    ]
    inputs = {"ids": ("b", 2), "mask": ("b1", 2), "labels": ("k", 1)}
    g = graph(inputs, nodes, {"c": np.ones((2, 2), F32)})
    types = infer(g).types
    assert {n: t.shape for n, t in g.inputs.items()} == inputs
    assert str(types["scores"]) == "f32[k,2]"


def test_sizes_that_follow_are_named_by_polynomials() -> None:
    nodes = [
        Node("Concat", ("x", "x"), ("a",), {"axis": 1}),
        Node("Slice", ("a", "one", "end", "axis"), ("b",)),
        Node("Reshape", ("b", "flat"), ("c",)),
        Node("MaxPool", ("x",), ("p",), {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}),
    ]
    constants = {
        "one": np.array([1]), "end": np.array([1 << 30]), "axis": np.array([1]),
        "flat": np.array([-1, 3]),
    }  # fmt: skip
    types = infer(graph({"x": ("n", "t", 3)}, nodes, constants)).types
    assert str(types["a"]) == "f32[n,2*t,3]"
    assert str(types["b"]) == "f32[n,2*t - 1,3]"
    assert str(types["c"]) == "f32[2*n*t - n,3]"
    assert types["p"].shape == ("n", "t", 1)


def test_a_size_that_data_decide_for_some_sizes_only_gets_a_name() -> None:
    """Beside an axis of one element the size is what data say, and n for all other n."""
    nodes = [
        Node("ConstantOfShape", ("s",), ("z",)),
        Node("Add", ("z", "x"), ("v",)),
        Node("Concat", ("v", "v"), ("y",), {"axis": 0}),
    ]
    g = graph({"x": ("n", 5)}, nodes)
    g.inputs["s"] = TensorType("i64", (2,))
    first = infer(g).types["v"].shape[0]
    assert isinstance(first, str)
    assert first != "n"


def test_values_that_sizes_decide_are_named() -> None:
    """They are not constants of the graph, nor values that data decide."""
    assert infer(computed_shape()).varying == {"s", "t", "u"}


def test_an_input_may_have_the_size_of_a_polynomial() -> None:
    """Labels of all positions: n and 6*n are not two symbols."""
    nodes = [
        Node("Reshape", ("x", "flat"), ("scores",)),
        Node("SoftmaxCrossEntropyLoss", ("scores", "labels"), ("loss", "log")),
    ]
    g = graph({"x": ("n", 6, 4)}, nodes, {"flat": np.array([-1, 4])})
    g.inputs["labels"] = TensorType("i64", ("6*n",))
    types = infer(g).types
    assert str(types["log"]) == "f32[6*n,4]"
    assert str(bind(g, {"x": (2, 6, 4)}).inputs["labels"]) == "i64[12]"
    with pytest.raises(ShapeError, match=r"'6\*n'.* is 13"):
        bind(g, {"x": (2, 6, 4), "labels": (13,)})


@pytest.mark.parametrize("stride", [2, 3, 8])
def test_an_input_may_have_the_size_of_another_value(stride: int) -> None:
    """Targets of a convolution with strides: only t = out = 1 fits if both are free.

    Where the file says nothing, or says what is wrong, all sizes that fit are still tried.
    """
    kernel = {"kernel_shape": [3], "pads": [1, 1], "strides": [stride]}
    nodes = [
        Node("Conv", ("x", "w"), ("c",), kernel),
        Node("Shape", ("c",), ("s",)),
        Node("Sub", ("c", "target"), ("y",)),
        Node("Reshape", ("y", "s"), ("z",)),
    ]
    g = graph(
        {"x": ("n", 2, "t"), "target": ("n", 2, "out")}, nodes, {"w": np.ones((2, 2, 3), F32)}
    )
    told = g.copy()
    told.types["c"] = TensorType("f32", ("n", 2, "out"))
    types = infer(told).types
    assert [str(types[name]) for name in "cyz"] == ["f32[n,2,out]"] * 3
    assert "s" not in told.initializers
    bound = infer(bind(told, {"x": (4, 2, 24), "target": (4, 2, 24 // stride)}), settled=True)
    assert str(bound.types["z"]) == f"f32[4,2,{24 // stride}]"
    wrong = g.copy()
    wrong.types["c"] = TensorType("f32", ("n", "out"))
    for silent in (g, wrong):
        with contextlib.suppress(ShapeError):
            infer(silent)


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


@pytest.mark.parametrize("other", [{}, {"b": ("k",)}], ids=["alone", "beside another"])
def test_a_symbol_for_which_only_1_fits_is_1(other: dict[str, tuple[Any, ...]]) -> None:
    """A speech model declares that the batch may vary, and has a first state of one sequence."""
    nodes = [
        Node("Transpose", ("x",), ("t",), {"perm": [1, 0, 2]}),
        Node("GRU", ("t", "w", "r", "", "", "h"), ("s",), {"hidden_size": 2}),
        *(Node("Exp", (name,), ("z",)) for name in other),
        Node("Squeeze", ("s",), ("y",)),
    ]
    weights = {"w": np.ones((1, 6, 4), F32), "r": np.ones((1, 6, 2), F32)}
    g = graph({"x": ("batch", "n", 4), **other, "h": (1, 1, 2)}, nodes, weights)
    inferred = infer(g)
    assert str(inferred.types["s"]) == "f32[n,1,1,2]"
    assert g.inputs["x"].shape == (1, "n", 4)
    if other:
        assert str(inferred.types["z"]) == "f32[k]"


def test_a_rank_that_depends_on_sizes_is_refused() -> None:
    nodes = [
        Node("Shape", ("x",), ("s",)),
        Node("ConstantOfShape", ("s",), ("ones",), {"value": np.ones(1, I64)}),
        Node("Reshape", ("x", "ones"), ("y",)),
    ]
    with pytest.raises(ShapeError, match=r"Reshape '' .*f32\[67,2\].*with n=67"):
        infer(graph({"x": ("n", 2)}, nodes))


@pytest.mark.parametrize("op", ["Equal", "GreaterOrEqual", "Min"])
@pytest.mark.parametrize("limit", [1, 2, 4, 70, 139])
@pytest.mark.parametrize("factor", [1, 3])
def test_a_size_that_is_compared_with_a_number(op: str, limit: int, factor: int) -> None:
    """3 n + 5 == 3 limit + 5 is false for all n but one, which the usual choices leave out."""
    nodes = [
        Node("Shape", ("x",), ("s",)),
        Node("Gather", ("s", "zero"), ("n",)),
        Node("Mul", ("n", "factor"), ("m",)),
        Node("Add", ("m", "five"), ("a",)),
        Node(op, ("a", "limit"), ("r",)),
        Node("Cast", ("r",), ("y",), {"to": 7}),
    ]
    numbers = {"zero": 0, "factor": factor, "five": 5, "limit": factor * limit + 5}
    g = graph({"x": ("n", 3)}, nodes, {n: np.array(v) for n, v in numbers.items()})
    assert "y" not in infer(g.copy()).constants or (op, limit) in (
        ("GreaterOrEqual", 1), ("Min", 1)
    )  # fmt: skip
    for size in (limit, limit + 1):
        total = factor * size + 5
        expected = {"Equal": size == limit, "GreaterOrEqual": True, "Min": factor * limit + 5}[op]
        assert infer(bind(g, {"x": (size, 3)})).constants["y"] == expected, total


def test_sizes_that_are_compared_with_each_other() -> None:
    nodes = [
        Node("Shape", ("x",), ("s",)),
        Node("Shape", ("y",), ("t",)),
        Node("Equal", ("s", "t"), ("e",)),
        Node("Cast", ("e",), ("z",), {"to": 7}),
    ]
    assert "z" not in infer(graph({"x": ("n",), "y": ("m",)}, nodes)).constants


def test_a_size_that_is_no_shape_is_compared() -> None:
    """Expand, as exporters write it, asks whether a size is -1.  None is, so it is folded."""
    nodes = [
        Node("Shape", ("x",), ("s",)),
        Node("Equal", ("s", "minus"), ("e",)),
        Node("Where", ("e", "ones", "s"), ("z",)),
    ]
    constants = {"minus": np.array([-1, -1]), "ones": np.array([1, 1])}
    assert infer(graph({"x": ("n", 3)}, nodes, constants)).constants["e"].tolist() == [False] * 2


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


@pytest.mark.parametrize("shapes", [((2, 4, 3), (3, 5)), ((4, 3), (3, 5))])
def test_a_batch_after_axis_0_is_of_both_operands(shapes: tuple[tuple[int, ...], ...]) -> None:
    """As in onnxruntime, which reads the batch axes of operands of one rank."""
    attrs = {"transBatchA": 1}
    nodes = [Node("FusedMatMul", ("x", "w"), ("y",), attrs, "com.microsoft", "fused")]
    ranks = f"ranks {len(shapes[0])} and {len(shapes[1])}; supported: operands of one rank of 3"
    with pytest.raises(UnsupportedOpError, match=f"transBatchB is set for operands of {ranks}"):
        infer(graph(dict(zip("xw", shapes, strict=True)), nodes))


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


# Values that are the same for nearly all sizes n of x and m of z, and the sizes for which they are
# others; none for the last two, which may be folded.
EXCEPTIONS: dict[str, tuple[str, tuple[int, int] | None]] = {
    "equal": ("y = Equal(n, four)", (4, 1)),
    "both": ("p = Equal(n, four)\n q = Equal(m, five)\n y = And(p, q)", (4, 5)),
    "bool": ("d = Sub(n, four)\n y = Cast<to = 9>(d)", (4, 1)),
    "sign": ("d = Sub(n, four)\n e = Abs(d)\n f = Sign(e)\n y = Cast<to = 9>(f)", (4, 1)),
    "float": ("f = Cast<to = 1>(n)\n g = Cast<to = 1>(four)\n y = Equal(f, g)", (4, 1)),
    "quotient": ("d = Div(n, four)\n y = Equal(d, five)", (21, 1)),
    "remainder": ("d = Mod(n, five)\n y = Equal(d, four)", (14, 1)),
    "product": ("d = Mul(n, m)\n y = Equal(d, four)", (2, 2)),
    "square": ("d = Mul(n, n)\n y = Equal(d, four)", (2, 1)),
    "least": ("d = Min(n, five, m)\n y = Equal(d, four)", (9, 4)),
    "negative": ("y = Equal(n, minus)", None),
    "no rest": ("d = Mod(n, one)\n y = Equal(d, one)", None),
}


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_a_comparison_of_sizes_is_folded_only_where_no_size_decides_it(name: str) -> None:
    body, sizes = EXCEPTIONS[name]
    graph = onnx_io.load(
        parser.parse_model(
            f"""<ir_version: 8, opset_import: ["": 17]>
            g (float[N,3] x, float[M] z) => (bool[1] y)
            <int64[1] one={{1}}, int64[1] four={{4}}, int64[1] five={{5}}, int64[1] minus={{-1}}> {{
                n = Shape<start = 0, end = 1>(x)
                m = Shape(z)
                {body}
            }}"""
        )
    )
    known = infer(graph.copy()).constants.get("y")
    assert (known is None) == (sizes is not None)
    values = []
    for n, m in (sizes or (4, 1), (100, 100)):
        values.append(infer(bind(graph, {"x": (n, 3), "z": (m,)})).constants["y"])
    assert (values[0] == values[1]).all() == (sizes is None)
