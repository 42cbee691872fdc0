"""Products of rows with the matrix of their group: the rules, and what they must leave alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from engine.base.errors import EngineError
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.offline.normalize import name_nodes
from engine.graphs.passes.grouped import RULES
from engine.graphs.passes.infer import infer
from engine.graphs.passes.patterns import fuse_patterns
from engine.kernels.vocabulary.op import TensorType
from tests.support.harness import run

GROUPS, IN, OUT = 5, 6, 3
RNG = np.random.default_rng(7)
PATTERNS = [rule.pattern for rule in RULES]


def make(
    pattern: str, *, samples: tuple[int, ...] = (17,), rows: int = 1,
    swaps: tuple[bool, bool] = (False, False), kind: str = "float64",
) -> tuple[Graph, dict[str, np.ndarray]]:  # fmt: skip
    """Return a graph of a pattern, with the loss sum(y * dy), and its inputs.

    swaps: whether the transposes before and after the selection swap the axes of matrices.
    """
    is_left = pattern.endswith("x)")
    swapped = sum(s for s, n in zip(swaps, ("before", "after"), strict=True) if n in pattern) % 2
    inner, outer = (IN, OUT) if is_left else (OUT, IN)  # of what is selected, as it is multiplied
    matrix = (outer, inner) if is_left != bool(swapped) else (inner, outer)
    matrix = matrix if is_left else matrix[::-1]
    by_nd = "GatherND" in pattern
    x = (*samples, IN, 1) if is_left else (*samples, rows, IN)
    fed = {
        "x": RNG.standard_normal(x).astype(kind),
        "w": RNG.standard_normal((GROUPS, *matrix)).astype(kind),
        "group": RNG.integers(-GROUPS, GROUPS - 1, (*samples, 1) if by_nd else samples),
        "dy": RNG.standard_normal((*samples, OUT, 1) if is_left else (*samples, rows, OUT)),
    }
    fed["dy"] = fed["dy"].astype(kind)
    nodes, value = [], "w"

    def turn(value: str, rank: int, swap: bool) -> str:
        perm = [*range(rank - 2), *((rank - 1, rank - 2) if swap else (rank - 2, rank - 1))]
        nodes.append(Node("Transpose", (value,), (f"{value}t",), {"perm": perm}, "", f"{value}t"))
        return f"{value}t"

    if "before" in pattern:
        value = turn(value, 3, swaps[0])
    nodes.append(
        Node("GatherND" if by_nd else "Gather", (value, "group"), ("m",), {}, "", "select")
    )
    value = "m"
    if "after" in pattern:
        value = turn(value, len(samples) + 2, swaps[1])
    factors = (value, "x") if is_left else ("x", value)
    nodes += [
        Node("MatMul", factors, ("y",), {}, "", "product"),
        Node("Mul", ("y", "dy"), ("weighed",), {}, "", "weigh"),
        Node("ReduceSum", ("weighed",), ("loss",), {"keepdims": 0}, "", "sum"),
    ]
    types = {name: find_type(value) for name, value in fed.items()}
    return Graph("groups", types, ["y", "loss"], {}, nodes, {"": 17}), fed


def compute(graph: Graph, fed: Mapping[str, np.ndarray], threads: int) -> dict[str, Any]:
    """Return y and the gradients of x and w; the planner is kept from fusing by itself."""
    name_nodes(graph)
    made = differentiate(graph, "loss", ["x", "w"], infer(graph).types)
    graph.outputs = ["y", made["x"], made["w"]]
    values = run(graph, fed, threads=threads, without=("fuse patterns",))
    return dict(zip(("y", "dx", "dw"), (values[n] for n in graph.outputs), strict=True))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("swaps", [(False, False), (True, False), (False, True)])
def test_selected_matrices_become_products_of_groups(
    pattern: str, swaps: tuple[bool, bool]
) -> None:
    for samples, rows in (((17,), 1), ((4, 3), 1), ((17,), 4)):
        graph, fed = make(pattern, samples=samples, rows=rows, swaps=swaps)
        fused = graph.copy()
        assert fuse_patterns(fused, infer(fused))
        ops = [node.op for node in fused.nodes]
        assert "SegmentMatMul" in ops
        assert not {"MatMul", "GatherND"} & {*ops}
        expected = compute(graph, fed, 1)
        for threads in (1, 3):
            values = compute(fused.copy(), fed, threads)
            for name, want in expected.items():
                np.testing.assert_allclose(values[name], want, rtol=0, atol=1e-12, err_msg=name)


def test_a_batch_of_any_size_is_kept() -> None:
    graph, fed = make("MatMul(chosen := Gather(w, group), x)")
    for name in ("x", "group", "dy"):
        t = graph.inputs[name]
        graph.inputs[name] = t.but(("batch", *t.shape[1:]))
    assert fuse_patterns(graph, infer(name_nodes(graph)))
    assert infer(graph).types["y"] == TensorType("f64", ("batch", OUT, 1))
    for size in (1, 5):
        cut = {n: a if n == "w" else a[:size] for n, a in fed.items()}
        want = cut["w"][cut["group"]] @ cut["x"]
        np.testing.assert_allclose(run(graph.copy(), cut)["y"], want, atol=1e-12)


def _select_rows(graph: Graph) -> None:
    graph.nodes[0].attrs["axis"] = 1
    graph.inputs["w"] = TensorType("f64", (17, GROUPS, IN))
    graph.inputs["dy"] = TensorType("f64", (17, 17, 1))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_select_rows, "selects other parts"),
        (lambda g: g.initializers.update(group=np.zeros(17, np.int64)), "the groups are constant"),
        (lambda g: g.inputs.update(x=TensorType("f64", (1, IN, 1))), "expected rows for each"),
        (lambda g: g.inputs.update(x=TensorType("f64", (17, IN, 2))), "expected one column"),
        (lambda g: g.outputs.append("m"), "read elsewhere"),
    ],
)
def test_other_selections_stay(
    change: Any, why: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("EDGEGRAD_DEBUG", "1")
    graph, _ = make("MatMul(chosen := Gather(w, group), x)")
    change(graph)
    if "group" in graph.initializers:
        del graph.inputs["group"]
    assert not fuse_patterns(graph, infer(graph))
    assert re.search(why, capsys.readouterr().err)


def test_a_group_out_of_range_is_named() -> None:
    graph, fed = make("MatMul(chosen := Gather(w, group), x)")
    fuse_patterns(graph, infer(name_nodes(graph)))
    fed["group"][7] = GROUPS
    with pytest.raises(EngineError, match=f"{GROUPS}.*7|7.*{GROUPS}"):
        run(graph, fed)
