"""Recurrences: what is refused, lengths that do not fit, equal bits for any number of threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.errors import DTypeError, LabelError, ShapeError, UnsupportedOpError
from engine.graphs.passes.infer import infer
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.op import MS, OURS, TensorType
from engine.tools.dev.case_graphs import OneNode, backward_of
from engine.tools.dev.cases.case import Case
from engine.tools.dev.cases.recurrent import DEFAULTS, case
from tests.support.harness import run


def _refused(row: Case, **changes: Any) -> None:
    infer(OneNode(replace(row, **changes)).graph)


def test_refusals_say_what_is_wrong() -> None:
    row = case("LSTM", 4, 3, 2, 5, "bhc")
    for attrs, text in (
        ({"direction": "sideways"}, "direction is 'sideways'; supported: forward, reverse"),
        ({"layout": 2}, "layout is 2"),
        ({"activations": ["Tanh"]}, "activations has 1 entries; supported: 3 for each"),
        ({"activations": ["Tanh", "Gelu", "Tanh"]}, "activations has 'Gelu'; supported: Affine"),
    ):
        with pytest.raises(UnsupportedOpError, match=text):
            _refused(row, attrs={**row.attrs, **attrs})
    with pytest.raises(
        ShapeError, match=r"input 1 is f32\[1,20,2\]; expected the shape \[1, 24, 2"
    ):
        _refused(row, attrs={"hidden_size": 6})
    with pytest.raises(ShapeError, match=r"input 5 .* expected the shape \[3, 1, 5\]"):
        _refused(row, attrs={**row.attrs, "layout": 1}, ins=(row.ins[0].__class__((3, 4, 2)),
                                                             *row.ins[1:]))  # fmt: skip
    with pytest.raises(DTypeError, match=r"input 4 is i64\[3\]; expected i32"):
        _refused(row, ins=(*row.ins[:4], np.array([1, 2, 3]), *row.ins[5:]))
    with pytest.raises(UnsupportedOpError, match="input 2 is missing"):
        _refused(row, ins=(*row.ins[:2], None), attrs={"hidden_size": 5})


def test_a_slope_that_its_value_does_not_tell_is_refused() -> None:
    attrs = {"activations": ["LeakyRelu"], "activation_alpha": [-0.5]}
    one = OneNode(case("RNN", 2, 2, 3, 4, attrs=attrs))
    run(one.graph, one.inputs)
    with pytest.raises(UnsupportedOpError, match=r"the slope of LeakyRelu with alpha -0\.5"):
        backward_of(one)


def test_threads_share_the_units_of_few_rows() -> None:
    for batch, units, threads, by_units in (
        (1, 128, 2, True), (3, 128, 2, True), (8, 128, 2, False), (1, 128, 1, False),
        (1, 130, 2, False), (1, 64, 2, False),
    ):  # fmt: skip
        graph, _ = backward_of(OneNode(case("LSTM", 4, batch, 3, units)))
        plan = make_plan(graph, {}, target=detect_host(), threads=threads)
        templates = {kernel.symbol: kernel.spec.template for kernel in plan.kernels}
        called = [templates[step.kernel] for step in plan.steps]
        names = ("lstm_step", "lstm", "lstm_grad_step", "lstm_grad")
        counts = tuple(map(called.count, names))
        assert counts == ((4, 0, 5, 0) if by_units else (0, 1, 0, 1)), (batch, units, threads)


@pytest.mark.parametrize("length", [-1, 5])
def test_a_length_outside_the_steps_ends_the_run(length: int) -> None:
    row = case("GRU", 4, 3, 2, 5, "l")
    lens = np.array([4, length, 0], np.int32)
    one = OneNode(replace(row, ins=(*row.ins[:4], lens, *row.ins[5:])))
    with pytest.raises(LabelError, match=rf"length {length} at position 1 is outside \[0, 5\)"):
        run(one.graph, one.inputs)


def test_steps_and_rows_may_be_symbols() -> None:
    graph = OneNode(case("LSTM", 4, 3, 2, 5, "bhc", attrs={"direction": "bidirectional"})).graph
    graph.inputs["x0"] = TensorType("f32", ("steps", "rows", 2))
    for name in ("x5", "x6"):
        graph.inputs[name] = TensorType("f32", (2, "rows", 5))
    types = infer(graph).types
    assert types["y0"].shape == ("steps", 2, "rows", 5)
    assert types["y2"].shape == (2, "rows", 5)


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_artifacts_hold_the_training_ops_of_onnxruntime_where_it_has_them(kind: str) -> None:
    for given, attrs, domain in (
        ("bhc", {}, MS), ("bhc", {"activations": DEFAULTS[kind]}, MS), ("blhc", {}, OURS),
        ("bhc", {"layout": 1}, OURS), ("bhc", {"direction": "reverse"}, OURS),
        ("bhc", {"clip": 1.0}, OURS),
    ):  # fmt: skip
        graph, _ = backward_of(OneNode(case(kind, 4, 3, 2, 5, given, attrs=attrs)))
        domains = {n.op: n.domain for n in graph.nodes if n.op.startswith(kind)}
        assert domains == {f"{kind}Training": domain, f"{kind}Grad": domain}


@pytest.mark.parametrize(
    ("kind", "rows", "units"), [("RNN", 5, 6), ("GRU", 5, 6), ("LSTM", 5, 6), ("LSTM", 2, 128)]
)
def test_threads_do_not_change_a_bit(kind: str, rows: int, units: int) -> None:
    one = OneNode(case(kind, 5, rows, 3, units, "blhcp", attrs={"direction": "bidirectional"}))
    graph, _ = backward_of(one)
    graph.outputs += one.outputs
    first = run(graph, one.inputs, threads=1)
    for threads in (2, 3):
        for name, items in run(graph, one.inputs, threads=threads).items():
            np.testing.assert_array_equal(items, first[name], err_msg=name)
