"""Labels and indices out of range: an error that names them, and no access out of bounds."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import LabelError
from engine.tools.dev.case_graphs import OneNode
from engine.tools.dev.cases.case import Case, f32
from tests.harness import run

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
