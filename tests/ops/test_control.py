"""Control flow: what If, Loop, Scan and sequences unroll to, their gradients, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from onnxruntime import InferenceSession

from engine import Session, backend
from engine.api import CheckpointState, Module
from engine.artifacts import LossType, generate_artifacts
from engine.errors import UnknownValueError, UnsupportedOpError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Node
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.offline.normalize import name_nodes
from engine.graphs.passes import control
from engine.graphs.passes.infer import _InferenceWalk, infer
from engine.tools.dev.case_graphs import with_loss
from tests.support.harness import run

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(HEAD + text)


def stock(proto: onnx.ModelProto) -> InferenceSession:
    return InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


def ops(text: str) -> list[str]:
    """The ops of a model after unrolling, without the names that outputs get."""
    graph = control.unroll(onnx_io.load(model(text)))
    return [n.op for n in graph.check().nodes if n.op != "Identity"]


IF = """m ({inputs}) => (double[3] y) {{
    {condition}
    h = Mul(x, x)
    y = If (c) <
        then_branch = a () => (double[3] o) {{ o = Mul(h, x) }},
        else_branch = b () => (double[3] o) <double[3] w = {{1, 2, 3}}>
            {{ t = Mul(w, x) o = Sin(t) }}
    >
}}"""
KNOWN = IF.format(inputs="double[3] x", condition="c = Constant <value = bool {1}> ()")
OPEN = IF.format(
    inputs="double[3] x",
    condition="""s = ReduceSum <keepdims = 0> (x) zero = Constant <value = double {0}> ()
    c = Greater(s, zero)""",
)
LOOP = """m (double[3] x) => (double[3] y, double[4, 3] seen, double[3] z) {
    n = Constant <value = int64 {4}> ()
    go = Constant <value = bool {1}> ()
    one = Constant <value = double {1}> ()
    y, z, seen = Loop (n, go, x, x) <body = b (int64 i, bool c, double[3] s, double[3] t)
            => (bool k, double[3] u, double[3] v, double[3] p) {
        k = Identity(c)
        f = Cast <to = 11> (i)
        g = Add(f, one)
        q = Mul(t, g)
        u = Sin(q)
        v = Mul(s, x)
        p = Exp(u)
    }>
}"""
SCAN = """m (double[2] s, double[2, 3] a, double[3, 2] b)
        => (double[2] e, double[2, 3] p, double[3, 2] q) {
    e, p, q = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [0, 1],
        scan_output_axes = [1, 0], scan_output_directions = [1, 0],
        body = body (double[2] h, double[2] x, double[2] y)
                => (double[2] n, double[2] o, double[2] r) {
            t = Mul(h, x)
            n = Add(t, y)
            o = Tanh(n)
            r = Mul(y, y)
        }> (s, a, b)
}"""
NESTED = """m (double[3] x) => (double[3] y) {
    n = Constant <value = int64 {3}> ()
    y = Loop (n, , x) <body = outer (int64 i, bool c, double[3] s) => (bool k, double[3] u) {
        k = Identity(c)
        one = Constant <value = int64 {1}> ()
        is_one = Equal(i, one)
        u = If (is_one) <
            then_branch = a () => (double[3] o) { o = Loop (n, c, s) <body = inner
                (int64 j, bool d, double[3] r) => (bool l, double[3] v) {
                    l = Identity(d) w = Mul(r, x) v = Sin(w) }> },
            else_branch = b () => (double[3] o) { o = Add(s, x) }
        >
    }>
}"""
SEQUENCE = """m (double[2, 6] x) => (double[8, 2] y, int64 n) {
    lengths = Constant <value = int64[3] {1, 3, 2}> ()
    one = Constant <value = int64 {1}> ()
    back = Constant <value = int64 {-1}> ()
    parts = SplitToSequence <axis = 1> (x, lengths)
    second = SequenceAt(parts, one)
    last = SequenceAt(parts, back)
    twice = SequenceInsert(parts, last, one)
    less = SequenceErase(twice, one)
    empty = SequenceEmpty <dtype = 11> ()
    some = SequenceInsert(empty, second)
    third = SequenceAt(some, back)
    square = Mul(third, third)
    all = SequenceInsert(less, square)
    j = ConcatFromSequence <axis = 1> (all)
    y = Transpose(j)
    n = SequenceLength(all)
}"""


@pytest.mark.parametrize("text", [KNOWN, OPEN, LOOP, SCAN, NESTED, SEQUENCE],
                         ids=["known", "open", "loop", "scan", "nested", "sequence"])  # fmt: skip
@pytest.mark.parametrize("sign", [1, -1])
def test_values_and_gradients(text: str, sign: int) -> None:
    proto = model(text)
    rng = np.random.default_rng(3)
    graph = name_nodes(control.unroll(onnx_io.load(proto)))
    x = {n: sign * np.abs(rng.standard_normal(t.dims)) for n, t in graph.inputs.items()}
    reference = stock(proto)
    expected = dict(zip(graph.outputs, reference.run(None, x), strict=True))
    outcome = run(graph, x)
    for name, value in expected.items():
        np.testing.assert_allclose(outcome[name], value, rtol=1e-12)

    u = {n: rng.standard_normal(e.shape) for n, e in expected.items() if e.dtype == np.float64}
    direction = {n: rng.standard_normal(a.shape) for n, a in x.items()}
    backward = with_loss(graph, u)
    names = differentiate(backward, "loss", list(x), infer(backward.copy()).types)
    backward.outputs = list(names.values())
    gradients = run(backward, x)
    by_rule = sum(np.vdot(gradients[names[n]], direction[n]) for n in x)

    def loss(step: float) -> float:
        moved = reference.run(None, {n: a + step * direction[n] for n, a in x.items()})
        values = dict(zip(graph.outputs, moved, strict=True))
        return float(sum(np.vdot(u[n], values[n]) for n in u))

    step = 1e-6
    assert by_rule == pytest.approx((loss(step) - loss(-step)) / (2 * step), rel=1e-6)


def test_what_is_unrolled() -> None:
    assert ops(KNOWN) == ["Constant", "Mul", "Mul"]
    assert ops(OPEN)[4:] == ["Mul", "Mul", "Sin", "Reshape", "Where"]
    assert ops(LOOP).count("Exp") == 4
    assert ops(LOOP).count("Concat") == 1
    assert ops(NESTED).count("Sin") == 3
    assert ops(NESTED).count("Add") == 2
    assert not [op for op in ops(SEQUENCE) if op.startswith("Sequence")]


PARTS = """m (double[batch, 8] x) => (double[batch, 2, 4] y) {
    batch = Shape <start = 0, end = 1> (x)
    rest = Constant <value = int64[2] {4, 2}> ()
    shape = Concat <axis = 0> (batch, rest)
    half = Constant <value = int64 {2}> ()
    one = Constant <value = int64 {1}> ()
    a = Reshape(x, shape)
    b = Transpose <perm = [0, 2, 1]> (a)
    c = SplitToSequence <axis = -1> (b, half)
    d = SequenceAt(c, one)
    f = Reshape(x, shape)
    g = Transpose <perm = [0, 2, 1]> (f)
    h = SplitToSequence <axis = -1> (g, half)
    i = SequenceAt(h, one)
    y = Concat <axis = -1> (d, i)
}"""


def test_shapes_of_the_batch_are_asked_about_again() -> None:
    """A second question keeps the value of a shape that the first one has met.

    The batch is open, so the shape is not a constant, and its type alone does not determine what is
    reshaped with it.
    """
    proto = model(PARTS)
    graph = control.unroll(onnx_io.load(proto))
    x = np.arange(24.0).reshape(3, 8)
    (expected,) = stock(proto).run(None, {"x": x})
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], expected)


def count_inferred(splits: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many nodes are inferred to unroll a chain of splits of a batch."""
    lines = [
        f"s{i} = SplitToSequence<axis=1>(x{i}, two)\n a{i} = SequenceAt(s{i}, zero)\n"
        f"b{i} = SequenceAt(s{i}, one)\n x{i + 1} = Concat<axis=1>(b{i}, a{i})\n"
        for i in range(splits)
    ]
    graph = onnx_io.load(
        model(
            f"m (float[batch,4] x0) => (float[batch,4] x{splits})\n"
            "<int64 two = {2}, int64 zero = {0}, int64 one = {1}> {" + "".join(lines) + "}"
        )
    )
    seen = list[str]()
    plain = _InferenceWalk.infer_node

    def count(self: _InferenceWalk, node: Node) -> None:
        seen.append(node.op)
        plain(self, node)

    with monkeypatch.context() as patch:
        patch.setattr(_InferenceWalk, "infer_node", count)
        control.unroll(graph)
    assert {n.op for n in graph.nodes} == {"Split", "Concat", "Identity"}
    return len(seen)


def test_each_split_infers_the_nodes_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of values with a symbolic batch: a model of 130 splits spent a minute on them."""
    few, many = (count_inferred(n, monkeypatch) for n in (8, 32))
    assert many < 4.5 * few


def test_a_loop_ends_with_its_condition() -> None:
    text = """m (float[1] x) => (float[1] y, float[k, 2] none) {
        go = Constant <value = bool {1}> ()
        zero = Constant <value = int64 {0}> ()
        y = Loop (, go, x) <body = b (int64 i, bool c, float[1] s) => (bool k, float[1] t) {
            three = Constant <value = int64 {3}> ()
            k = Less(i, three)
            t = Add(s, x)
        }>
        z, none = Loop (zero, , x) <body = d (int64 i, bool c, float[1] s)
                => (bool k, float[1] t, float[2] p) {
            k = Identity(c)
            t = Identity(s)
            p = Concat <axis = 0> (s, s)
        }>
    }"""
    y, none = backend.run_model(model(text), [np.array([1], np.float32)])
    assert y.tolist() == [5]
    assert none.shape == (0, 2)


LENGTHS = """m (int64 n, float[1] x) => (float[1] y, float[k, 1] all) {
    y, all = Loop (n, , x) <body = b (int64 i, bool c, float[1] s)
            => (bool k, float[1] t, float[1] p) {
        k = Identity(c)
        t = Add(s, x)
        p = Identity(t)
    }>
}"""


def test_the_backend_plans_for_the_trip_count_it_is_given() -> None:
    rep = backend.prepare(model(LENGTHS), threads=1)
    for n in (2, 4):
        y, every = rep.run([np.int64(n), np.array([1], np.float32)])
        assert y.tolist() == [n + 1]
        assert every.reshape(-1).tolist() == list(range(2, n + 2))


RATES = """m (float[b, n] x, int64 rate) => (float[b, m] y) {
    low = Constant <value = int64 {8000}> ()
    is_low = Equal(rate, low)
    y = If (is_low) <
        then_branch = a () => (float[b, m] o) <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}>
            { p = MatMul(x, w) q = Shape(p) o = Reshape(p, q) },
        else_branch = c () => (float[b, m] o) <float[6, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9,
            1, 2, 3, 4, 5, 6, 7, 8, 9}>
            { p = MatMul(x, w) one = Constant <value = int64 {1}> () s = Shape(p)
              d = Gather(s, one) three = Constant <value = int64 {3}> () is_three = Equal(d, three)
              o = If (is_three) <
                  then_branch = f () => (float[b, m] r) { r = Relu(p) },
                  else_branch = g () => (float[b, m] r) { r = Identity(p) } > }
    >
}"""


@pytest.mark.parametrize(("rate", "width"), [(8000, 4), (16000, 6)])
def test_the_value_of_a_condition_is_asked_for_where_a_branch_does_not_fit(
    rate: int, width: int
) -> None:
    """A speech model with a branch for each sampling rate: samples fit one of them."""
    proto = model(RATES)
    feed = {"x": np.ones((2, width), np.float32), "rate": np.array(rate)}
    (expected,) = stock(proto).run(None, feed)
    np.testing.assert_array_equal(Session(proto.SerializeToString()).run(None, feed)[0], expected)
    message = r"If 'y' .* condition known before lowering: MatMul 'y/MatMul.*: A has . columns"
    shapes = {"x": (2, width), "rate": ()}
    graph = onnx_io.load(proto)
    for name, shape in shapes.items():
        graph.inputs[name] = replace(graph.inputs[name], shape=shape)
    with pytest.raises(UnknownValueError, match=message) as caught:
        control.unroll(graph)
    assert caught.value.inputs == ("rate",)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (LENGTHS, UnknownValueError, r"Loop 'y' .*: the trip count 'n' must be a constant"),
        (
            LENGTHS.replace("int64 n,", "bool c,").replace("(n, , x)", "(, c, x)"),
            UnknownValueError,
            r"Loop 'y' .*: the condition 'c' must be a constant",
        ),
        (
            LENGTHS.replace("(int64 n, float", "(float").replace("(n, , x)", "(, , x)"),
            UnsupportedOpError,
            r"Loop 'y' .*: the loop never ends: .*; supported: loops",
        ),
        (
            OPEN.replace("o = Sin(t)", "o = Concat <axis = 0> (t, t)"),
            UnknownValueError,
            r"If 'y' .*: output 'y' needs branches of equal types.*f64\[3\] of one .* f64\[6\]",
        ),
        (
            SCAN.replace("a, double", "a, double", 1).replace("double[2, 3] a", "double[2, n] a"),
            UnsupportedOpError,
            r"Scan 'e' .*: axis 1 of 'a', f64\[2,n\], has no fixed size to unroll; "
            "supported: sizes known",
        ),
        (
            SCAN.replace("double[3, 2] b", "double[4, 2] b"),
            UnsupportedOpError,
            r"Scan 'e' .*: the scanned inputs have the lengths \[3, 4\]",
        ),
        (
            SEQUENCE.replace("SequenceAt(parts, back)", "SequenceAt(parts, three)").replace(
                "back = Constant", "three = Constant <value = int64 {3}> () back = Constant"
            ),
            UnsupportedOpError,
            r"SequenceAt 'last' .*: the position is 3; supported: -3 to 2",
        ),
        (
            SEQUENCE.replace("SequenceInsert(parts, last, one)", "SequenceInsert(parts, last, low)")
            .replace("back = Constant", "low = Constant <value = int64 {-4}> () back = Constant"),
            UnsupportedOpError,
            r"SequenceInsert 'twice' .*: the position is -4; supported: -3 to 3",
        ),
        (
            "m (float[4] x) => (float[4] y) { s = SequenceConstruct(x) y = Relu(s) }",
            UnsupportedOpError,
            r"Relu .*: input 's' is a sequence; supported: tensors",
        ),
        (
            "m (float[4] x) => (seq(float[4]) s) { s = SequenceConstruct(x) }",
            UnsupportedOpError,
            "m: the output 's' is a sequence; supported: tensors",
        ),
    ],
)  # fmt: skip
def test_the_rest_is_refused_by_name(
    text: str, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEGRAD_MAX_NODES", "300")
    with pytest.raises(error, match=message):
        control.unroll(onnx_io.load(model(text)))


def test_artifacts_hold_what_is_unrolled(tmp_path: Path) -> None:
    text = """m (float[batch, 3] x) => (float[batch, 3] y)
            <float[3, 3] w = {0.5, 0, 0, 0, 0.5, 0, 0, 1, 0.5}> {
        n = Constant <value = int64 {3}> ()
        y = Loop (n, , x) <body = b (int64 i, bool c, float[batch, 3] s)
                => (bool k, float[batch, 3] t) <float[3] bias = {1, 2, 3}> {
            k = Identity(c)
            m = MatMul(s, w)
            a = Add(m, bias)
            t = Tanh(a)
        }>
    }"""
    proto = model(text)
    generate_artifacts(
        proto, requires_grad=["w", "bias"], loss=LossType.MSELoss, artifact_directory=tmp_path
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, threads=1)
    rng = np.random.default_rng(0)
    x, target = (rng.standard_normal((4, 3)).astype(np.float32) for _ in range(2))
    actual_module = module(x, target)
    expected = np.mean((stock(proto).run(None, {"x": x})[0] - target) ** 2)
    np.testing.assert_allclose(actual_module, expected, rtol=1e-5)
    assert np.any(state.parameters["bias"].grad)


def test_old_loops_are_converted_and_old_scans_refused() -> None:
    old = LENGTHS.replace("Add(s, x)", "Unsqueeze <axes = [0]> (s)\n r = Squeeze <axes = [0]> (t0)")
    old = old.replace("t = Unsqueeze", "t0 = Unsqueeze").replace("r = Squeeze", "t = Squeeze")
    proto = parser.parse_model(HEAD.replace("17", "11") + old)
    y, _ = backend.run_model(proto, [np.int64(2), np.array([1], np.float32)])
    assert y.tolist() == [1]
    proto = parser.parse_model(HEAD.replace("17", "8") + SCAN)
    with pytest.raises(UnsupportedOpError, match=r"Scan '' of opset 8; Scan is supp"):
        onnx_io.load(proto)
