"""Decomposed ops become ops: every pattern of every rule, built from its text, and near misses."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.offline.normalize import name_nodes
from engine.graphs.passes.infer import infer
from engine.graphs.passes.patterns import RULES, fuse_patterns
from engine.graphs.passes.rewrite import Rule, _list_operators
from engine.kernels.ops.registry import list_ops
from tests.support.harness import evaluate, run

SHAPE = (3, 4, 8)
GIVEN = {
    "x": np.random.default_rng(0).standard_normal(SHAPE),
    "scale": np.random.default_rng(1).uniform(0.5, 2, SHAPE[-1:]),
    "bias": np.random.default_rng(2).standard_normal(SHAPE[-1:]),
    "eps": np.array(1e-2),
    "alpha": np.array(1.3),
    "z": np.random.default_rng(3).standard_normal(SHAPE),
    "n": np.array(8.0),
    "m": np.array(7.0),
    "shape": np.array([1, 3, 4, 8]),
    "front": np.array([0]),
}
CONSTANT = {"eps", "alpha", "n", "m", "shape", "front"}


def decomposed(pattern: str, opset: int = 17) -> Graph:
    """The graph a pattern's text describes, in f64; y is its output."""
    nodes: list[Node] = []
    graph = Graph("decomposed", {}, ["y"], {}, nodes, {"": opset, "com.microsoft": 1})
    made: dict[str, str] = {}

    def build(tree: ast.expr) -> str:
        text = ast.unparse(tree)
        if isinstance(tree, ast.NamedExpr):
            made[tree.target.id] = build(tree.value)
            return made[tree.target.id]
        if text in made:
            return made[text]
        if isinstance(tree, ast.Name):
            if tree.id in made:
                return made[tree.id]
            kept = graph.initializers if tree.id in CONSTANT else None
            if kept is None:
                graph.inputs[tree.id] = find_type(GIVEN[tree.id])
            else:
                kept[tree.id] = GIVEN[tree.id]
            return tree.id
        inputs = tuple(build(a) for a in tree.args) if isinstance(tree, ast.Call) else ()
        name = f"v{len(made)}"
        if isinstance(tree, ast.Call):
            op = ast.unparse(tree.func)
            is_old = op in ("ReduceMean", "ReduceSumSquare")
            attrs: dict[str, Any] = {"axes": [-1]} if is_old else {}
            if op == "ReduceSum":
                graph.initializers["axes"] = np.array([-1])
                inputs = (*inputs, "axes")
            if op == "HardSigmoid":
                attrs = {"alpha": 1 / 6, "beta": 0.5}
            nodes.append(Node(op, inputs, (name,), attrs, "", name))
        else:
            graph.initializers[name] = np.array(float(ast.literal_eval(tree)))
        made[text] = name
        return name

    last = build(ast.parse(pattern, mode="eval").body)
    nodes.append(Node("Identity", (last,), ("y",), {}, "", "out"))
    graph.types["y"] = find_type(GIVEN["x"])
    return graph


def reference(graph: Graph) -> Any:
    feeds = {n: GIVEN[n] for n in graph.inputs}
    return evaluate(onnx_io.to_proto(graph), feeds)[0]


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.pattern)
def test_the_ops_of_a_pattern_are_known_before_it_is_parsed(rule: Rule) -> None:
    calls = [part for part in ast.walk(ast.parse(rule.pattern)) if isinstance(part, ast.Call)]
    assert _list_operators(rule.pattern) == {ast.unparse(call.func) for call in calls}


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.pattern)
def test_every_pattern_becomes_the_op_and_computes_the_same(rule: Rule) -> None:
    graph = decomposed(rule.pattern)
    expected = reference(graph)
    fused = graph.copy()
    assert fuse_patterns(fused, infer(fused))
    ops_made = [key.rpartition("::")[2] for key in rule.makes.split()]
    assert {n.op for n in fused.nodes} - {"Identity"} <= set(ops_made)
    assert len(ops_made) > 1 or [n.op for n in fused.nodes] == [*ops_made, "Identity"]
    outcome = run(graph, {n: GIVEN[n] for n in graph.inputs})["y"]
    np.testing.assert_allclose(outcome, expected, rtol=1e-3, atol=2e-4)  # FastGelu's cubic constant
    assert all(list_ops()[n.domain, n.op].differentiable for n in fused.nodes)


def test_a_value_that_is_read_elsewhere_stops_the_match(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEGRAD_DEBUG", "1")
    graph = decomposed("Mul(x, Sigmoid(x))")
    graph.outputs.append(graph.nodes[0].outputs[0])
    assert not fuse_patterns(graph, infer(graph))
    assert "not fused to QuickGelu: Mul" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pattern", "change"),
    [
        ("Mul(x, HardSigmoid(x))", {"alpha": 0.2}),
        ("Mul(Mul(x, Add(Erf(Div(x, 1.5)), 1)), 0.5)", {}),
        ("Mul(Div(d := Sub(x, ReduceMean(x)), Sqrt(Add(ReduceMean(Pow(d, 3)), eps))), scale)", {}),
    ],
)
def test_near_misses_stay(pattern: str, change: dict[str, float]) -> None:
    graph = decomposed(pattern)
    graph.nodes[0].attrs.update(change)
    before = Counter(n.op for n in graph.nodes)
    assert not fuse_patterns(graph, infer(graph))
    assert Counter(n.op for n in graph.nodes) == before


def test_a_norm_over_other_axes_stays() -> None:
    text = next(r.pattern for r in RULES if r.name == "LayerNormalization")
    graph = decomposed(text)
    for node in graph.nodes:
        if node.op == "ReduceMean":
            node.attrs["axes"] = [1]
    assert not fuse_patterns(graph, infer(graph))


ROOTS = [r.pattern for r in RULES if r.name.startswith("ReduceL2") and "z" not in r.pattern]


def gradient_of(graph: Graph, x: np.ndarray) -> np.ndarray:
    """The gradient of the sum of y by x."""
    graph.nodes.append(Node("ReduceSum", ("y",), ("loss",), {"keepdims": 0}, "", "sum"))
    graph.outputs = ["loss"]
    graph.types.clear()
    fuse_patterns(graph, infer(name_nodes(graph)))
    graph.outputs = [differentiate(graph, "loss", ["x"], infer(graph).types)["x"]]
    return np.asarray(run(graph, {**{n: GIVEN[n] for n in graph.inputs}, "x": x})[graph.outputs[0]])


@pytest.mark.parametrize("pattern", ROOTS)
def test_a_root_of_squares_has_a_gradient_where_all_are_zero(pattern: str) -> None:
    """PyTorch's std and norm take 0 there; the root's own is 0 / 0, and one row spoils a model."""
    x = GIVEN["x"].copy()
    x[0, 1] = 0
    gradient = gradient_of(decomposed(pattern), x)
    assert not gradient[0, 1].any()
    scale = np.sqrt((np.abs(gradient) ** 2).sum(-1))  # a unit vector, scaled alike everywhere
    rest = np.delete(scale.reshape(-1), 1)
    np.testing.assert_allclose(rest, rest[0])
    others = x / np.where(x == 0, 1, np.linalg.norm(x, axis=-1, keepdims=True)) * rest[0]
    np.testing.assert_allclose(gradient, others, atol=1e-12)


@pytest.mark.parametrize("square", ["Mul({0}, {0})", "Pow({0}, 2)"])
def test_a_root_of_two_sums_has_a_gradient_where_one_is_zero(square: str) -> None:
    """The old exporter's cosine similarity; a row of zeros spoiled every parameter."""
    sums = (f"{n} := ReduceSum({square.format(v)})" for n, v in (("s", "x"), ("t", "z")))
    x = GIVEN["x"].copy()
    x[0, 1] = 0
    gradient = gradient_of(decomposed(f"Sqrt(Mul({', '.join(sums)}))"), x)
    assert not gradient[0, 1].any()
    a, b = (np.linalg.norm(v, axis=-1, keepdims=True) for v in (x, GIVEN["z"]))
    np.testing.assert_allclose(gradient, x / np.where(a == 0, 1, a) * b, atol=1e-12)


def test_a_root_behind_a_view_of_a_sum_has_one_too() -> None:
    """As the new exporter writes `std(keepdim=True)`."""
    x = GIVEN["x"].copy()
    x[0, 1] = 0
    graph = decomposed(
        "Sqrt(view := Expand(w := Unsqueeze(s := ReduceSum(Mul(x, x)), front), shape))"
    )
    graph.initializers["shape"] = np.array([1, 3, 4, 1])
    gradient = gradient_of(graph, x)
    assert not gradient[0, 1].any()
    size = np.linalg.norm(x, axis=-1, keepdims=True)
    np.testing.assert_allclose(gradient, x / np.where(size == 0, 1, size), atol=1e-12)


def test_a_root_of_a_mean_over_an_unknown_batch_has_one_too() -> None:
    graph = decomposed("Sqrt(s := ReduceMean(Mul(x, x)))")
    graph.inputs["x"] = graph.inputs["x"].but(["batch", *SHAPE[1:]])
    graph.nodes[1].attrs["axes"] = [0]
    x = GIVEN["x"].copy()
    x[:, 1, 2] = 0
    gradient = gradient_of(graph, x)
    assert not gradient[:, 1, 2].any()
    size = np.linalg.norm(x, axis=0, keepdims=True)
    expected = x / np.where(size == 0, 1, size) / np.sqrt(len(x))
    np.testing.assert_allclose(gradient, expected, atol=1e-12)


def test_the_gradient_goes_through_the_fused_op() -> None:
    graph = decomposed("Mul(Mul(x, Add(Erf(Div(x, 1.4142135)), 1)), 0.5)")
    graph.nodes.append(Node("ReduceSum", ("y",), ("loss",), {"keepdims": 0}, "", "sum"))
    graph.outputs = ["loss"]
    inferred = infer(name_nodes(graph))
    plain = graph.copy()
    assert fuse_patterns(graph, inferred)
    gradients = []
    for g in (graph, plain):
        names = differentiate(g, "loss", ["x"], infer(g).types)
        g.outputs = [names["x"]]
        gradients.append(run(g, {"x": GIVEN["x"]})[names["x"]])
    assert "GeluGrad" in {n.op for n in graph.nodes}
    fused, expected = gradients
    np.testing.assert_allclose(fused, expected, rtol=1e-6, atol=1e-6)


# --- logarithms

STABLE: dict[str, Callable[[np.ndarray], Any]] = {
    "Log(Sigmoid(x))": lambda x: -np.logaddexp(0, -x),
    "Log(Sub(1, Sigmoid(x)))": lambda x: -np.logaddexp(0, x),
    "Log(Add(Exp(x), 1))": lambda x: np.logaddexp(0, x),
    "Log(p := Softmax(x))": lambda x: x - np.logaddexp.reduce(x, -1, keepdims=True),
    "Log(s := ReduceSum(Exp(x)))": lambda x: np.logaddexp.reduce(x, -1, keepdims=True),
}
FAR = np.array([[-1000, -200, -95, -20, 0, 20, 95, 1000], [88, 89, 90, 500, 1, 2, 3, 4]], "f4")


def logarithm(pattern: str, keepdims: int = 1, opset: int = 17) -> Graph:
    """A graph of the pattern in f32, of two rows."""
    graph = decomposed(pattern, opset)
    graph.inputs["x"] = find_type(FAR)
    graph.initializers = {
        n: a.astype(np.float32) if a.dtype == np.float64 else a
        for n, a in graph.initializers.items()
    }
    for node in graph.nodes:
        if node.op == "ReduceSum":
            node.attrs["keepdims"] = keepdims
    graph.types = {}
    return graph


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("keepdims", [1, 0])
@pytest.mark.parametrize("pattern", STABLE)
def test_logarithms_are_finite_wherever_they_are(pattern: str, keepdims: int, opset: int) -> None:
    """Values and gradients; as they stand in the graph they are infinite or NaN from 89 on."""
    graph = logarithm(pattern, keepdims, opset)
    expected = STABLE[pattern](FAR.astype(np.float64))
    expected = expected if keepdims or "ReduceSum" not in pattern else expected[:, 0]
    np.testing.assert_allclose(run(graph, {"x": FAR})["y"], expected, rtol=1e-6, atol=1e-37)
    weights = np.random.default_rng(0).uniform(1, 2, expected.shape).astype(np.float32)
    graph.initializers["u"] = weights
    graph.nodes.append(Node("Mul", ("y", "u"), ("weighted",), {}, "", "weigh"))
    graph.nodes.append(Node("ReduceSum", ("weighted",), ("loss",), {"keepdims": 0}, "", "total"))
    graph.outputs = ["loss"]
    assert fuse_patterns(graph, infer(name_nodes(graph)))
    names = differentiate(graph, "loss", ["x"], infer(graph).types)
    graph.outputs = [names["x"]]
    outcome = run(graph, {"x": FAR})[names["x"]]
    step = 1e-4 * np.maximum(1, abs(FAR.astype(np.float64)))
    for i, j in np.ndindex(*FAR.shape):
        ends = []
        for sign in (1, -1):
            moved = FAR.astype(np.float64)
            moved[i, j] += sign * step[i, j]
            value = STABLE[pattern](moved)
            value = value if keepdims or "ReduceSum" not in pattern else value[:, 0]
            ends.append((weights * value).sum())
        assert outcome[i, j] == pytest.approx((ends[0] - ends[1]) / (2 * step[i, j]), abs=2e-3)


def test_a_probability_that_is_read_elsewhere_stays_beside_its_logarithms() -> None:
    """As binary cross-entropy of probabilities has it: log p and log(1 - p) of one sigmoid."""
    graph = logarithm("Add(Log(p := Sigmoid(x)), Log(Sub(1, p)))")
    graph.outputs.append(next(n.outputs[0] for n in graph.nodes if n.op == "Sigmoid"))
    wide = FAR.astype(np.float64)
    outcome = run(graph, {"x": FAR})
    np.testing.assert_allclose(
        outcome["y"], -np.logaddexp(0, -wide) - np.logaddexp(0, wide), rtol=1e-6
    )
    np.testing.assert_allclose(
        outcome[graph.outputs[1]], np.exp(-np.logaddexp(0, -wide)), atol=1e-6
    )
    assert fuse_patterns(graph, infer(graph))
    assert Counter(n.op for n in graph.nodes) == {
        "Sigmoid": 1, "Neg": 3, "Softplus": 2, "Add": 1, "Identity": 1
    }  # fmt: skip
