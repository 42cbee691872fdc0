"""Faults of passes are found right after them: types and names, with the pass and the node."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.errors import InternalError
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.passes import pipeline
from engine.graphs.passes.pipeline import PASSES, Pass, PassState
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.op import TensorType


def graph() -> Graph:
    """y = Relu(x w)"""
    nodes = [
        Node("MatMul", ("x", "w"), ("a",), {}, "", "product"),
        Node("Relu", ("a",), ("y",), {}, "", "relu"),
    ]
    types = {"x": TensorType("f32", (2, 3)), "w": TensorType("f32", (3, 4))}
    return Graph("g", types, ["y"], {}, nodes, {"": 17})


def other_shape(work: PassState) -> None:
    work.types["a"] = TensorType("f32", (2, 5))
    work.graph.nodes[0].attrs["touched"] = 1


def other_dtype(work: PassState) -> None:
    (product, relu) = work.graph.nodes
    work.graph.nodes = [
        product,
        Node("Cast", ("a",), ("b",), {"to": 7}, "", "cast"),
        Node("Relu", ("b",), relu.outputs, {}, "", "relu"),
    ]
    work.types["b"] = TensorType("f32", (2, 4))


def no_type(work: PassState) -> None:
    work.graph.nodes[1].inputs = ("b",)
    work.graph.nodes.insert(1, Node("Neg", ("a",), ("b",), {}, "", "minus"))


def read_too_early(work: PassState) -> None:
    work.graph.nodes.reverse()


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (read_too_early, r"'broken'.*reads 'a' before any node computes it"),
        (other_shape, r"'broken'.*product.*a is recorded as f32\[2,5\], but is made as f32\[2,4\]"),
        (other_dtype, r"'broken'.*cast.*b is recorded as f32\[2,4\], but is made as i64\[2,4\]"),
        (no_type, r"'broken'.*minus.*b have no type"),
    ],
)
def test_a_pass_that_breaks_a_type_is_named(
    broken: Callable[[PassState], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = [p.name for p in PASSES].index("infer") + 1
    wrong = Pass("broken", broken, lambda held: held | {("", "Cast"), ("", "Neg")})
    monkeypatch.setattr(pipeline, "PASSES", (*PASSES[:at], wrong, *PASSES[at:]))
    with pytest.raises(InternalError, match=words):
        make_plan(graph(), {}, target=detect_host(), threads=1)


def test_a_pass_that_breaks_nothing_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def turn(work: PassState) -> None:
        work.graph.nodes.reverse()
        work.graph.sort()

    plain = Pass("plain", turn)
    at = [p.name for p in PASSES].index("infer") + 1
    monkeypatch.setattr(pipeline, "PASSES", (*PASSES[:at], plain, *PASSES[at:]))
    assert make_plan(graph(), {}, target=detect_host(), threads=1).steps
