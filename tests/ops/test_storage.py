"""Operands stored in 16 bits: every op that takes them, against itself in 32 bits."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.passes import storage
from engine.graphs.passes.pipeline import Work, run_passes
from engine.graphs.passes.storage import SMALL, choose_storage
from engine.graphs.planner.planner import make_plan
from engine.kernels.loops.gemm import gemm_mixed
from engine.kernels.machine.target import Target, detect_host
from engine.kernels.ops.attention.backward import attention_grad
from engine.kernels.ops.attention.forward import attention
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import OURS
from engine.tools.dev.case_graphs import OneNode, backward_of, list_cases
from engine.tools.dev.cases.case import Case
from tests.support.halves import EPSILON, Alone, may_be_halves, round_to_half, wrap
from tests.support.harness import run


def gradients(case: Case) -> Iterator[Alone]:
    """Yield the nodes of the gradient of a row whose op declares a storage."""
    one = OneNode(case)
    graph, _ = backward_of(one)
    for node in graph.nodes:
        op = list_ops()[node.domain, node.op]
        if op.gradient_of and op.storage and op.lower:
            given = graph.copy()
            made = [o for n in given.nodes for o in n.outputs]
            given.outputs = [n for n in node.inputs if n in made]
            read = {**one.inputs, **run(given, one.inputs)}
            inputs = {n: a for n, a in read.items() if n in node.inputs}
            constants = {n: a for n, a in graph.initializers.items() if n in node.inputs}
            kinds = {n: find_type(a) for n, a in inputs.items()}
            outputs = [o for o in node.outputs if o]
            alone = Graph(node.op, kinds, outputs, constants, [node], graph.opsets)
            yield Alone(alone, node, inputs, outputs)


def rounded_factors(one: OneNode | Alone, half: str) -> set[str]:
    """Return the inputs of a product that this CPU rounds wherever they are stored."""
    calls = list_ops()[one.node.domain, one.node.op].calls or ()
    return (
        {*one.node.inputs[:2]} if gemm_mixed in calls and half in detect_host().products else set()
    )


def stored(graph: Graph) -> set[str]:
    """Return the values of a graph that are stored in halves."""
    work = Work(graph.copy())
    run_passes(work)
    choose_storage(work.graph, work.types, work.constants, "bf16")
    return {name for name, t in work.types.items() if t.dtype == "bf16"}


@functools.cache
def rows() -> dict[str, Case]:
    """Return the case rows of ops that declare a storage and keep an operand in halves.

    A product with another activation than Relu is two ops, and what is between them is rounded too.
    """
    cases = [
        c for c in list_cases() if may_be_halves(c) and c.attrs.get("activation", "Relu") == "Relu"
    ]
    with mock.patch.object(storage, "SMALL", 0):
        kept = [c for c in cases if stored(wrap(OneNode(c)))]
    assert {c.op for c in kept} == {c.op for c in cases}
    return {f"{c.op}-{i}": c for i, c in enumerate(kept)}


@pytest.mark.parametrize("title", rows())
def test_an_op_takes_halves(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_halves(OneNode(rows()[title]), monkeypatch)


@pytest.mark.parametrize("title", {c.op: title for title, c in rows().items()}.values())
def test_an_op_takes_float16(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_halves(OneNode(rows()[title]), monkeypatch, "f16")


@functools.cache
def rows_of_gradients() -> dict[str, Alone]:
    """Return the gradients of case rows that declare a storage and keep an operand in halves.

    Those that are case rows themselves are left out.
    """
    known = {c.op for c in rows().values()}
    differentiable = {
        op.gradient_of for op in list_ops().values() if op.gradient_of and op.storage and op.lower
    }
    made = [
        one
        for c in list_cases()
        if c.grad and list_ops()[c.domain, c.op].title in differentiable
        for one in gradients(c)
        if one.node.op not in known
    ]
    with mock.patch.object(storage, "SMALL", 0):
        kept = [one for one in made if stored(wrap(one))]
    assert {one.node.op for one in kept} == {one.node.op for one in made}
    return {f"{one.node.op}-{i}": one for i, one in enumerate(kept)}


@pytest.mark.parametrize("title", rows_of_gradients())
def test_a_gradient_takes_halves(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_halves(rows_of_gradients()[title], monkeypatch)


@pytest.mark.parametrize(
    "title", {one.node.op: title for title, one in rows_of_gradients().items()}.values()
)
def test_a_gradient_takes_float16(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_halves(rows_of_gradients()[title], monkeypatch, "f16")


def choose_target(one: OneNode | Alone) -> Target:
    """Return this CPU; for kernels that round factors of their own making, without such products.

    Tests of these have the bounds.
    """
    calls = list_ops()[one.node.domain, one.node.op].calls or ()
    if not any(kernel in calls for kernel in (attention, attention_grad)):
        return detect_host()
    return replace(
        detect_host(), features=detect_host().features.replace("+avx512bf16", "-avx512bf16")
    )


def check_halves(one: OneNode | Alone, monkeypatch: pytest.MonkeyPatch, half: str = "bf16") -> None:
    """Check that inputs and outputs are rounded, and nothing between them."""
    graph = wrap(one)
    monkeypatch.setattr(storage, "SMALL", 0)  # case rows are
    halves = stored(graph)
    assert halves
    given = {f"{n}_in" if f"{n}_in" in graph.inputs else n: a for n, a in one.inputs.items()}
    made = run(graph, given, threads=2, precision=half, target=choose_target(one))
    cut = halves | rounded_factors(one, half)
    seen = {n: -round_to_half(a, half) if n in cut else a for n, a in one.inputs.items()}
    seen = {n: a if n in cut or f"{n}_in" not in graph.inputs else -a for n, a in seen.items()}
    expected = run(one.graph, seen, threads=2)
    for name in one.outputs:
        want = -expected[name]
        near = EPSILON[half] if name in halves else 2.0**-20
        most = np.abs(want[np.isfinite(want)]).max(initial=1)
        np.testing.assert_allclose(made[f"{name}_out"], want, rtol=near, atol=4e-6 * most)


@pytest.mark.parametrize("half", EPSILON)
def test_a_pool_that_keeps_taps_takes_halves(half: str) -> None:
    """Maxima and their gradients are copies, so all are exact."""
    x = np.arange(2 * 3 * 32 * 32, dtype=np.float32).reshape(2, 3, 32, 32) % 37 - 18
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        Node("Neg", ("x",), ("a",), name="a"),
        Node("MaxPool", ("a",), ("b", "taps"), window, name="b"),
        Node("Neg", ("b",), ("y",), name="y"),
        Node("Abs", ("b",), ("db",), name="db"),
        Node("MaxPoolGrad", ("db", "taps", "a"), ("da",), window, name="da", domain=OURS),
        Node("Neg", ("da",), ("dx",), name="dx"),
    ]
    graph = Graph("g", {"x": find_type(x)}, ["y", "dx"], {}, nodes, {"": 17, OURS: 1})
    plan = make_plan(graph, {}, target=detect_host(), threads=1, precision=half)
    called = {spec.template: spec.params for spec in plan.specs}
    assert called["pool_max_taps"] == called["pool_max_taps_grad"] == ("f32", half)
    made, expected = run(graph, {"x": x}, precision=half), run(graph, {"x": x})
    for name in ("y", "dx"):
        np.testing.assert_array_equal(made[name], expected[name])


def test_a_pool_whose_gradients_are_sums_keeps_them_in_float32() -> None:
    """Of windows of 2 by 2 without a stride, up to four share a pixel."""
    window = {"kernel_shape": [2, 2]}
    nodes = [
        Node("Neg", ("x",), ("dy",), name="dy"),
        Node("AveragePoolGrad", ("dy",), ("dx",), window, name="dx"),
        Node("Neg", ("dx",), ("y",), name="y"),
    ]
    given = {"x": find_type(np.ones((2, 3, 16, 16), np.float32))}
    assert stored(Graph("g", given, ["y"], {}, nodes, {"": 17})) == set()
    nodes[1] = replace(nodes[1], attrs={**window, "strides": [2, 2]})
    assert stored(Graph("g", given, ["y"], {}, nodes, {"": 17})) >= {"dy", "dx"}


def chosen(*nodes: Node) -> set[str]:
    """Return the values of a graph of x [4, 256] to y that are stored in halves."""
    x = np.ones((4, SMALL), np.float32)
    constants = {"s": np.ones(SMALL, np.float32), "axis": np.array(0)}
    return stored(Graph("g", {"x": find_type(x)}, ["y"], constants, list(nodes), {"": 17}))


def test_values_are_stored_in_halves_only_where_all_their_kernels_take_them() -> None:
    neg = Node("Neg", ("x",), ("a",), name="a")
    norm = Node("LayerNormalization", ("a", "s"), ("b",), {"axis": -1}, name="b")
    assert chosen(neg, norm, Node("Neg", ("b",), ("y",), name="y")) == {"a", "b"}
    # CumSum's kernels take no halves, and the norm stores a and b alike.
    assert chosen(neg, norm, Node("CumSum", ("b", "axis"), ("y",), name="y")) == set()
    # Inputs and outputs of a graph stay float32.
    assert chosen(Node("LayerNormalization", ("x", "s"), ("y",), {"axis": -1}, name="y")) == set()
