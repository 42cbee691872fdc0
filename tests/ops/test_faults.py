"""Labels and indices out of range: an error that names them, and no access out of bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.errors import LabelError
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.tools.dev.case_graphs import OneNode
from engine.tools.dev.cases.case import Case, f32
from tests.support.harness import make_runner, run

FAR = 10**15  # an address computed from it would not be mapped


@pytest.mark.parametrize("label", [-1, 5, FAR, -FAR])
@pytest.mark.parametrize("op", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
@pytest.mark.parametrize("inner", [(), (3,)])
def test_labels(op: str, label: int, inner: tuple[int, ...]) -> None:
    labels = np.zeros((4, *inner), np.int64)
    labels.flat[2] = label
    one = OneNode(Case(op, (f32(4, 5, *inner), labels)))
    with pytest.raises(LabelError, match=rf"label {label} at position 2 is outside \[0, 5\)"):
        run(one.graph, one.inputs, threads=2)


@pytest.mark.parametrize("label", [-1, 5, FAR, -FAR])
@pytest.mark.parametrize("inner", [(), (3,)])
def test_labels_of_the_gradient(label: int, inner: tuple[int, ...]) -> None:
    labels = np.zeros((4, *inner), np.int64)
    labels.flat[2] = label
    ins = (f32(), f32(4, 5, *inner), labels)
    one = OneNode(Case("SoftmaxCrossEntropyLossGrad", ins, domain="com.microsoft"))
    with pytest.raises(LabelError, match=rf"label {label} at position 2"):
        run(one.graph, one.inputs, threads=2)


@pytest.mark.parametrize("index", [-6, 5, FAR, -FAR])
@pytest.mark.parametrize("op", ["Gather", "GatherElements"])
def test_indices(op: str, index: int) -> None:
    one = OneNode(Case(op, (f32(5), np.array([0, index, -5]))))
    with pytest.raises(LabelError, match=rf"index {index} at position 1 is outside \[-5, 5\)"):
        run(one.graph, one.inputs, threads=2)


@pytest.mark.parametrize("index", [-6, 5, FAR, -FAR])
def test_indices_of_the_gradients(index: int) -> None:
    shape, indices = np.array([5]), np.array([0, index, -5])
    for op, ins in (
        ("GatherGrad", (shape, indices, f32(3))),
        ("GatherElementsGrad", (f32(3), shape, indices)),
    ):
        one = OneNode(Case(op, ins, domain="com.microsoft"))
        with pytest.raises(LabelError, match=rf"index {index} at position 1"):
            run(one.graph, one.inputs, threads=2)


@pytest.mark.parametrize("index", [-6, 5, FAR, -FAR])
@pytest.mark.parametrize("rest", [(), (200,)])
def test_indices_of_scatters(index: int, rest: tuple[int, ...]) -> None:
    """Threads that share places, columns (a long last axis) or groups (the last row)."""
    indices = np.array([0, index, -5])
    line = np.broadcast_to(indices.reshape(3, *(1 for _ in rest)), (3, *rest)).copy()
    rows, tuples = np.array([[0, index, 1, 2]] * 2), indices.reshape(3, 1)
    for op, ins, domain in (
        ("ScatterElements", (f32(5, *rest), line, f32(3, *rest)), ""),
        ("ScatterND", (f32(5, *rest), tuples, f32(3, *rest)), ""),
        ("GatherND", (f32(5, *rest), tuples), ""),
        ("GatherNDGrad", (np.array([5, *rest]), tuples, f32(3, *rest)), "com.microsoft"),
        ("ScatterElements", (f32(2, 5), rows, f32(2, 4)), ""),
    ):
        attrs = {"axis": 1} if op == "ScatterElements" and ins[1] is rows else {}
        one = OneNode(Case(op, ins, attrs, domain=domain))
        with pytest.raises(LabelError, match=rf"index {index} at position \d+ is outside \[-5, 5"):
            run(one.graph, one.inputs, threads=2)


def test_an_ignored_label_may_be_anything() -> None:
    ins = (f32(3, 5), np.array([0, FAR, 1]))
    one = OneNode(Case("SoftmaxCrossEntropyLoss", ins, {"ignore_index": FAR}))
    assert np.isfinite(run(one.graph, one.inputs, threads=2)["y0"])


MANY = 600  # bad values in a call, shared among threads
TIMES = 25  # that a call is repeated, so that another thread is faster now and then


def reports(graph: Graph, inputs: dict[str, Any]) -> set[str]:
    """Return the reports of calls with many bad values."""
    shapes = {name: array.shape for name, array in inputs.items()}
    run_once = make_runner(make_plan(graph, shapes, target=detect_host(), threads=2))
    distinct = set()
    for _ in range(TIMES):
        with pytest.raises(LabelError) as caught:
            run_once(inputs, True)
        distinct.add(str(caught.value).partition(": ")[2])
    return distinct


FAR_ONES = FAR + np.arange(MANY)


@pytest.mark.parametrize(
    ("op", "ins", "what"),
    [
        ("SoftmaxCrossEntropyLoss", (f32(MANY, 5), FAR_ONES), "label"),
        ("NegativeLogLikelihoodLoss", (f32(MANY, 5, 2), np.stack([FAR_ONES] * 2, 1)), "label"),
        ("Gather", (f32(5), FAR_ONES), "index"),
        ("GatherElements", (f32(5), FAR_ONES), "index"),
        ("GatherND", (f32(5), FAR_ONES[:, None]), "index"),
        ("ScatterElements", (f32(5), FAR_ONES, f32(MANY)), "index"),
        ("ScatterND", (f32(5), FAR_ONES[:, None], f32(MANY)), "index"),
    ],
)  # fmt: skip
def test_the_first_of_many_bad_values_is_reported(op: str, ins: Any, what: str) -> None:
    one = OneNode(Case(op, ins))
    low = -5 if what == "index" else 0
    expected = f"{what} {FAR} at position 0 is outside [{low}, 5)"
    assert reports(one.graph, one.inputs) == {expected}


def test_the_first_of_two_kernels_is_reported() -> None:
    """They read other tensors of other sizes; parts of two reports never mix."""
    ones = np.ones(7, np.float32)
    inputs: dict[str, Any] = {"a": ones[:5], "b": ones, "i": FAR_ONES.copy(), "j": -FAR_ONES}
    inputs["i"][:100] = 0
    inputs["j"][:99] = 0
    nodes = [Node("Gather", ("a", "i"), ("y",), name="one"),
             Node("Gather", ("b", "j"), ("z",), name="two")]  # fmt: skip
    types = {name: find_type(array) for name, array in inputs.items()}
    graph = Graph("g", types, ["y", "z"], {}, nodes, {"": 20})
    (report,) = reports(graph, inputs)
    assert report in (f"index {FAR + 100} at position 100 is outside [-5, 5)",
                     f"index {-FAR - 99} at position 99 is outside [-7, 7)")  # fmt: skip
