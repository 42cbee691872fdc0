"""Operands stored in 16 bits: every op that takes them, against itself in 32 bits."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from engine.base.plan_options import PlanOptions, Precision
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.passes import storage
from engine.graphs.passes.pipeline import PassState, run_passes
from engine.graphs.passes.storage import SMALL, choose_storage
from engine.graphs.planner.planner import make_plan
from engine.kernels.loops.gemm import gemm_mixed
from engine.kernels.machine.target import Target, detect_host
from engine.kernels.ops.attention.backward import attention_grad
from engine.kernels.ops.attention.forward import attention
from engine.kernels.ops.conv import convolution, weight_gradient
from engine.kernels.ops.conv.patch_product import conv
from engine.kernels.ops.conv.winograd_tiles import LARGE
from engine.kernels.ops.recurrent.gru import gru, gru_grad_after, gru_grad_before
from engine.kernels.ops.recurrent.lstm import lstm, lstm_grad, rnn, rnn_grad
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import OURS
from engine.tools.dev.case_graphs import OneNode, backward_of, list_cases, wrap
from engine.tools.dev.cases.case import Case
from tests.support.halves import EPSILON, Alone, may_be_halves, round_to_half
from tests.support.harness import run

WALKS = (rnn, rnn_grad, lstm, lstm_grad, gru, gru_grad_after, gru_grad_before)


def gradients(case: Case) -> Iterator[Alone]:
    """Yield the nodes of the gradient of a row whose op declares a storage."""
    one = OneNode(case)
    graph, _ = backward_of(one)
    for node in graph.nodes:
        op = list_ops()[node.domain, node.op]
        if op.gradient_of and op.storage and op.lower:
            given = graph.copy()
            made = [o for n in given.nodes for o in n.outputs if o]
            given.outputs = [n for n in node.inputs if n in made]
            read = {**one.inputs, **run(given, one.inputs)}
            shapes = {o for n in given.nodes if n.op == "Shape" for o in n.outputs}
            inputs = {n: a for n, a in read.items() if n in node.inputs and n not in shapes}
            known = {**graph.initializers, **{n: read[n] for n in shapes & read.keys()}}
            constants = {n: a for n, a in known.items() if n in node.inputs}
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
    work = PassState(graph.copy())
    run_passes(work)
    choose_storage(work.graph, work.types, work.constants, "bf16")
    return {name for name, t in work.types.items() if t.dtype == "bf16"}


@functools.cache
def rows() -> dict[str, Case]:
    """Return the case rows of ops that declare a storage and keep an operand in halves.

    A product with a sum or another activation than Relu is several ops, and what is between them
    is rounded too.
    """
    cases = [
        c
        for c in list_cases()
        if may_be_halves(c)
        and c.attrs.get("activation", "Relu") == "Relu"
        and not (c.op == "FusedConv" and len(c.ins) > 3)
    ]
    with mock.patch.object(storage, "SMALL", 0):
        kept = [c for c in cases if stored(wrap(OneNode(c).graph))]
    assert {c.op for c in kept} == {c.op for c in cases}
    return {f"{c.op}-{i}": c for i, c in enumerate(kept)}


@pytest.mark.parametrize("title", rows())
def test_an_op_takes_halves(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_halves(OneNode(rows()[title]), monkeypatch)


@pytest.mark.parametrize("title", {c.op: title for title, c in rows().items()}.values())
def test_an_op_takes_float16(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_halves(OneNode(rows()[title]), monkeypatch, "f16")


def differentiable() -> list[tuple[str, str]]:
    """Return domain and type of each op whose gradient declares a storage and has no case rows."""
    ops, known = list_ops(), {c.op for c in rows().values()}
    whole = {
        op.gradient_of
        for (_, kind), op in ops.items()
        if op.gradient_of and op.storage and op.lower and kind not in known
    }
    return [key for key, op in ops.items() if op.title in whole]


def kept_gradients(domain: str, op: str) -> Iterator[Alone]:
    """Yield the gradients of the rows of an op that keep an operand in halves.

    Those that are case rows themselves are left out.
    """
    known = {c.op for c in rows().values()}
    for case in (c for c in list_cases() if c.grad and (c.domain, c.op) == (domain, op)):
        yield from (
            one for one in gradients(case) if one.node.op not in known and stored(wrap(one.graph))
        )


@pytest.mark.parametrize(("domain", "op"), differentiable())
def test_a_gradient_takes_halves(domain: str, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "SMALL", 0)  # case rows are
    count = 0
    for one in kept_gradients(domain, op):
        check_halves(one, monkeypatch)
        count += 1
    assert count


@pytest.mark.parametrize(("domain", "op"), differentiable())
def test_a_gradient_takes_float16(domain: str, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "SMALL", 0)  # case rows are
    check_halves(next(kept_gradients(domain, op)), monkeypatch, "f16")


def choose_target(one: OneNode | Alone) -> Target:
    """Return this CPU; for kernels that round factors which are stored in 32 bits or of their own
    making, without such products.

    Tests of these have the bounds.
    """
    calls = list_ops()[one.node.domain, one.node.op].calls or ()
    rounds = any(kernel in calls for kernel in (attention, attention_grad, conv, *WALKS))
    return without_products() if rounds else detect_host()


def without_products() -> Target:
    """Return this CPU without instructions for products of 16 bits."""
    host = detect_host()
    return replace(host, features=host.features.replace("+avx512bf16", "-avx512bf16"))


def check_halves(
    one: OneNode | Alone, monkeypatch: pytest.MonkeyPatch, half: Precision = "bf16"
) -> None:
    """Check that inputs and outputs are rounded, and nothing between them.

    A walk over time also keeps in halves what other kernels make of the gates before and after it.
    """
    graph = wrap(one.graph)
    monkeypatch.setattr(storage, "SMALL", 0)  # case rows are
    halves = stored(graph)
    assert halves
    given = {f"{n}_in" if f"{n}_in" in graph.inputs else n: a for n, a in one.inputs.items()}
    made = run(graph, given, threads=2, precision=half, target=choose_target(one))
    cut = halves | rounded_factors(one, half)
    seen = {n: -round_to_half(a, half) if n in cut else a for n, a in one.inputs.items()}
    seen = {n: a if n in cut or f"{n}_in" not in graph.inputs else -a for n, a in seen.items()}
    expected = run(one.graph, seen, threads=2)
    calls = list_ops()[one.node.domain, one.node.op].calls or ()
    keeps = any(walk in calls for walk in WALKS)
    for name in one.outputs:
        want = -expected[name]
        near = EPSILON[half] if name in halves else 2.0**-20
        most = np.abs(want[np.isfinite(want)]).max(initial=1)
        apart = 4 * EPSILON[half] if keeps else 4e-6
        np.testing.assert_allclose(made[f"{name}_out"], want, rtol=near, atol=apart * most)


@pytest.mark.parametrize("half", EPSILON)
def test_a_pool_that_keeps_taps_takes_halves(half: Precision) -> None:
    """Maxima and their gradients are copies, so all are exact."""
    x = np.arange(4 * 3 * 32 * 32, dtype=np.float32).reshape(4, 3, 32, 32) % 37 - 18
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
    options = PlanOptions(precision=half)
    plan = make_plan(graph, {}, target=detect_host(), threads=1, options=options)
    called = {spec.template: spec.params for spec in plan.specs}
    assert called["pool_max_taps"] == called["pool_max_taps_grad"] == ("f32", half)
    made, expected = run(graph, {"x": x}, precision=half), run(graph, {"x": x})
    for name in ("y", "dx"):
        np.testing.assert_array_equal(made[name], expected[name])


# Windows that share pixels: along both axes, unevenly, with pixels that none sees, and beyond the
# padding (a last one under ceil_mode).
SHARED: tuple[dict[str, Any], ...] = (
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [3, 2], "strides": [1, 3], "pads": [2, 0, 0, 1]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 1, 1, 0], "ceil_mode": 1},
    {"kernel_shape": [2, 5], "strides": [1, 1], "pads": [0, 3, 1, 4]},
)
PADDED = {"count_include_pad": 1}
GRADIENTS = [
    (op, {**window, **more})
    for op, more in (("MaxPool", {}), ("AveragePool", {}), ("AveragePool", PADDED), ("SumPool", {}))
    for window in SHARED
]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("op", "window"), GRADIENTS)
def test_gradients_that_windows_share_are_sums_rounded_once(
    op: str, window: dict[str, Any], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit what float32 kernels make of rounded gradients; they divide less exactly."""
    monkeypatch.setattr(storage, "SMALL", 0)
    x = np.random.default_rng(0).standard_normal((2, 19, 8, 7)).astype(np.float32)
    taps = ("taps",) if op == "MaxPool" else ()
    domain = OURS if op == "SumPool" else ""
    nodes = [
        Node("Neg", ("x",), ("a",), name="a"),
        Node(op, ("a",), ("b", *taps), window, domain, "pool"),
        Node("Neg", ("b",), ("y",), name="y"),
    ]
    forward = Graph("g", {"x": find_type(x)}, ["y"], {}, nodes, {"": 19, OURS: 1})
    y = run(forward, {"x": x})["y"]
    nodes += [
        Node("Neg", ("dy",), ("db",), name="db"),
        Node(f"{op}Grad", ("db", *taps, "a"), ("da",), window, OURS, "gradient"),
        Node("Neg", ("da",), ("dx",), name="dx"),
    ]
    given = {"x": x, "dy": np.random.default_rng(1).standard_normal(y.shape).astype(np.float32)}
    kinds = {name: find_type(value) for name, value in given.items()}
    graph = Graph("g", kinds, ["y", "dx"], {}, nodes, forward.opsets)
    options = PlanOptions(precision="bf16")
    plan = make_plan(graph, {}, target=detect_host(), threads=threads, options=options)
    assert "pool_grad_sums" in {spec.template for spec in plan.specs}
    made = run(graph, given, threads=threads, precision="bf16")
    want = run(graph, {name: round_to_half(value, "bf16") for name, value in given.items()})
    for name in ("y", "dx"):
        rounded = round_to_half(want[name], "bf16")
        if op == "AveragePool":
            np.testing.assert_allclose(made[name], want[name], rtol=2.0**-8, atol=1e-6)
            assert (made[name] != rounded).mean() < 0.01
        else:
            np.testing.assert_array_equal(made[name], rounded)


# Filters and the shape of images, for convolutions by Winograd's algorithm, for few channels of y
# and of x, and by gathered patches; the last two are read in place.
CONVOLUTIONS = {
    "winograd": ((35, 17, 3, 3), (2, 17, 9, 7)),
    "few": ((3, 19, 3, 3), (2, 19, 9, 7)),
    "few_dx": ((19, 3, 3, 3), (2, 3, 9, 7)),
    "conv": ((40, 17, 5, 3), (2, 17, 9, 7)),
    "plain": ((40, 32, 1, 1), (2, 32, 9, 7)),
}


@pytest.mark.parametrize(
    ("x_half", "y_half"), [("", "bf16"), ("bf16", ""), ("bf16", "bf16"), ("", "f16")]
)
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_convolution_stores_what_it_reads_and_writes_apart(
    monkeypatch: pytest.MonkeyPatch, kind: str, x_half: Any, y_half: Any
) -> None:
    """The first of a network reads pictures in 32 bits.  Float32 kernels give the same for rounded
    images, and the result is rounded once.
    """
    w_shape, x_shape = CONVOLUTIONS[kind]
    y_shape = (
        x_shape[0],
        w_shape[0],
        *(n + 3 - k for n, k in zip(x_shape[2:], w_shape[2:], strict=True)),
    )
    rng = np.random.default_rng(0)
    shapes = {"x": x_shape, "w": w_shape, "dy": y_shape}
    given = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    for module in (convolution, weight_gradient):
        monkeypatch.setattr(
            module, "choose_tiles", lambda *_: LARGE if kind == "winograd" else None
        )
    monkeypatch.setattr(storage, "SMALL", 0)

    attrs = {"pads": [1, 1, 1, 1]}

    def convolve(x: str, dy: str, y: str, dx: str) -> list[Node]:
        gradient = Node("ConvGrad", (dy, x, "w"), (dx, "dw"), attrs, "com.microsoft", "gradient")
        return [Node("Conv", (x, "w"), (y,), attrs, name="conv"), gradient]

    kinds = {name: find_type(a) for name, a in given.items()}
    opsets = {"": 17, "com.microsoft": 1}
    halves = {"x": x_half, "dx": x_half, "dy": y_half, "y": y_half}
    inner = {name: f"{name}_half" if half else name for name, half in halves.items()}
    before = [Node("Neg", (n,), (inner[n],), name=n) for n in ("x", "dy") if halves[n]]
    after = [Node("Neg", (inner[n],), (n,), name=n) for n in ("y", "dx") if halves[n]]
    graph = Graph("g", kinds, ["y", "dx", "dw"], {}, [*before, *convolve(**inner), *after], opsets)
    half = x_half or y_half
    if half == "bf16":
        kept = {name.removesuffix("__last") for name in stored(graph)}  # and channels-last
        assert kept == {inner[name] for name in halves if halves[name]}
    target = without_products()
    made = run(graph, given, threads=2, precision=half, target=target)
    seen = {n: -round_to_half(given[n], half) if halves[n] else given[n] for n in ("x", "dy")}
    plain = Graph("g", kinds, ["y", "dx", "dw"], {}, convolve("x", "dy", "y", "dx"), opsets)
    want = run(plain, {**given, **seen}, threads=2, target=target)
    for name in ("y", "dx"):
        value = -round_to_half(want[name], half) if halves[name] else want[name]
        np.testing.assert_array_equal(made[name], value)
    np.testing.assert_array_equal(made["dw"], want["dw"])


def chosen(*nodes: Node) -> set[str]:
    """Return the values of a graph of x [4, SMALL] to y that are stored in halves."""
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
    # A value of a number a channel wins no memory, and statistics are such: it stays float32.
    mean = Node("ReduceMean", ("x",), ("a",), {"axes": [0]}, name="a")
    assert chosen(mean, Node("Neg", ("a",), ("b",)), Node("Neg", ("b",), ("y",))) == set()
