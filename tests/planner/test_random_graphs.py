"""Random graphs: a share of what `make test-random` compares, and what it once found."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from engine.graphs.io import onnx_io
from tests.random_graphs.check import Check
from tests.random_graphs.compare import compare, has_edges
from tests.random_graphs.patterns import MOST_TRIPS, add_control_flow
from tests.random_graphs.report import DifferentError, Report
from tests.random_graphs.sketch import Model, Sketch, UnfitError
from tests.support.places import ROOT


def test_random_graphs_agree_in_all_ways(tmp_path: Path) -> None:
    """The seeds are fixed; `make test-random` takes new ones every day."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.random_graphs", "30", "--closed", "--folder", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 defects" in done.stdout


# --- what was found


def model(text: str, opset: int = 17) -> Model:
    """The model of a text, fed random numbers."""
    head = f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]>\n'
    graph = onnx_io.load(parser.parse_model(head + text))
    rng = np.random.default_rng(0)
    return Model(graph, {n: rng.standard_normal(t.dims) for n, t in graph.inputs.items()}, 0)


@pytest.mark.parametrize(
    ("axis", "begin", "end", "rows"),
    [(2, 0, 5, "2,3"), (-1, 0, 5, "2,3"), (2, 3, 8, "2,3"), (1, 1, 3, "2,3"), (0, 0, 1, "2,3"),
     (1, 0, 5, "6"), (0, 2, 6, "6"), (3, 0, 5, "1,2,3"), (-2, 0, 2, "1,2,3"), (1, 0, 1, "1,2,3")],
)  # fmt: skip
def test_a_slice_of_a_product_of_any_rank(axis: int, begin: int, end: int, rows: str) -> None:
    """Pass narrow read `inputs[axis]` before the ranks."""
    out = len(rows.split(",")) + 1
    text = f"""g (double[{rows},4] x, double[4,8] w) => (double[{",".join("abcd"[:out])}] y)
    <int64[1] a = {{{axis}}}, int64[1] b = {{{begin}}}, int64[1] e = {{{end}}}> {{
        p = MatMul(x, w)
        y = Slice(p, b, e, a)
    }}"""
    assert compare(model(text)).done["forward, all passes"] == 1


@pytest.mark.parametrize("axis", [0, 1])
def test_a_slice_of_a_product_with_a_constant(axis: int) -> None:
    """Pass narrow sliced the constant, and left the slice out of the graph."""
    text = f"""g (double[2,2] x) => (double[a,b] y)
    <double[2,2] w = {{1, 2, 3, 4}},
     int64[1] a = {{{axis}}}, int64[1] b = {{0}}, int64[1] e = {{1}}> {{
        p = MatMul({"x, w" if axis else "w, x"})
        y = Slice(p, b, e, a)
    }}"""
    assert compare(model(text)).done["forward, all passes"] == 1


def test_a_linear_layer_of_two_values_side_by_side() -> None:
    """Where one of them has no gradient, a slice of rank 3 is all that is read of a product."""
    text = """g (double[2,3,4] h, double[6,5] w) => (double[2,3,5] y)
    <double[2,1,2] some = {1, 2, 3, 4}, int64[3] whole = {2, 3, 2}> {
        x = Expand(some, whole)
        c = Concat<axis = -1>(h, x)
        p = MatMul(c, w)
        y = Tanh(p)
    }"""
    assert compare(model(text)).done["training, all passes"] == 1


def test_a_slice_of_an_empty_product() -> None:
    """A shape that held the length 0 copied a length of another rank."""
    text = """g (double[2,2,0,3] h, double[2,2,0,2] k, double[3,4] w, double[2,4] u)
        => (double[2,2,0,4] y) {
        x = Concat<axis = 3>(h, k)
        c = Concat<axis = 0>(w, u)
        y = MatMul(x, c)
    }"""
    assert compare(model(text)).done["training, all passes"] == 1


def test_a_small_wrong_value_beside_a_large_one_is_seen() -> None:
    """Each value has a bound of its own: what rounding does to it, not to others."""
    text = """g (double[4,5] x, double[5,3] w) => (double[4,3] y, double[4,5] z)
    <double s = {0.000001}, double l = {1000.0}> {
        p = MatMul(x, w)
        t = Tanh(p)
        y = Mul(t, s)
        z = Mul(x, l)
    }"""
    made = model(text)
    check = Check(made.graph, made.fed, Report())
    check.agrees("the same", check.wanted)
    for factor, is_wrong in ((1 + 1e-15, False), (1 + 1e-11, True)):
        actual = {**check.wanted, "y": check.wanted["y"] * factor}
        with pytest.raises(DifferentError) if is_wrong else nullcontext():
            check.agrees("another", actual)


@pytest.mark.parametrize(("op", "rows", "kept"), [("GRU", 15, (2,)), ("LSTM", 20, (3, 4))])
def test_what_recurrent_training_forms_keep_has_no_gradient(
    op: str, rows: int, kept: tuple[int, ...]
) -> None:
    """A loss of it had a gradient without its share, in silence; it is refused."""
    names = ", ".join(f"o{k}" for k in range(max(kept) + 1))
    for k in kept:
        text = f"""g (double[4,3,2] x, double[1,{rows},2] w, double[1,{rows},5] r) => (double y) {{
            {names} = com.microsoft.{op}Training<hidden_size = 5>(x, w, r)
            y = ReduceSum<keepdims = 0>(o{k})
        }}"""
        report = compare(model(text), open_too=False)
        assert "depends on what is kept for the gradient" in dict(report.refused)["gradient"]


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_the_largest_of_a_layer_norm_that_is_computed_again(op: str) -> None:
    """A repeated computation was rounded differently, so nothing equalled the largest."""
    text = f"""g (double[8,2,2] x, double[2] s, double[2] b) => (double[8,1,2] y) {{
        n = LayerNormalization(x, s, b)
        y = {op}<axes = [1]>(n)
    }}"""
    assert compare(model(text)).done["training, all passes"] == 1


def test_squeezes_of_no_axes_are_not_compared_with_onnxruntime() -> None:
    """It removes all axes of length 1; ONNX's reference removes none, and so does the engine."""
    for axes, is_edge in (("", True), ("1", False)):
        given = model(
            f"g (float[3,1] x) => (float[N] y) <int64[{len(axes)}] a = {{{axes}}}> "
            "{ y = Squeeze(x, a) }"
        )
        assert has_edges(given) == is_edge
    assert not has_edges(model("g (float[3,1] x) => (float[3] y) { y = Squeeze(x) }"))


def test_scans_of_random_graphs_have_few_trips() -> None:
    """Of a value of 4,080 elements, all plans to compare took longer than a graph may."""
    lengths = []
    for seed in range(20):
        sketch = Sketch(random.Random(seed), np.float32, 17)
        with contextlib.suppress(UnfitError):
            add_control_flow(sketch, sketch.feed(np.zeros((4080, 2), np.float32)))
        lengths += [sketch.shape(n.inputs[1])[0] for n in sketch.nodes if n.op == "Scan"]
    assert set(lengths) == {MOST_TRIPS}
