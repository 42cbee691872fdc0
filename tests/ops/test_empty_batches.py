"""Batches without samples: outputs and gradients equal empty sums, or are refused."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from engine.errors import ShapeError
from engine.graphs.io import onnx_io
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from tests.random_graphs.check import numbers
from tests.random_graphs.compare import compare
from tests.random_graphs.derived import accumulated, backward, with_buffers
from tests.random_graphs.sketch import Model


def model(text: str, seed: int = 0) -> Model:
    """The model of a text, fed random numbers."""
    head = '<ir_version: 8, opset_import: ["": 21, "com.microsoft": 1]>\ng '
    graph = onnx_io.load(parser.parse_model(head + text))
    rng = np.random.default_rng(0)
    fed = {n: rng.standard_normal(t.dims) for n, t in graph.inputs.items()}
    return Model(graph, fed, seed)


EMPTY = {
    "a product": "(double[0,2] x, double[2,3] w) => (double[0,3] y) { y = MatMul(x, w) }",
    "of three axes": "(double[4,0,2] x, double[2,3] w) => (double[4,0,3] y) { y = MatMul(x, w) }",
    "of batches": "(double[4,0,2] x, double[4,2,3] w) => (double[4,0,3] y) { y = MatMul(x, w) }",
    "a layer": """(double[0,2] x, double[3,2] w, double[3] b) => (double[0,3] y) {
        y = Gemm<transB = 1, beta = 0.5>(x, w, b) }""",
    "a convolution": """(double[0,2,5,5] x, double[3,2,3,3] w, double[3] b)
        => (double[0,3,3,3] y) { y = Conv(x, w, b) }""",
    "one back": """(double[0,4,5,5] x, double[4,2,3,3] w, double[2] b)
        => (double[0,2,7,7] y) { y = ConvTranspose(x, w, b) }""",
    "an LSTM": """(double[5,0,3] x, double[1,8,3] w, double[1,8,2] r, double[1,16] b)
        => (double[5,1,0,2] y) { y = LSTM<hidden_size = 2>(x, w, r, b) }""",
    "a GRU": """(double[5,0,3] x, double[1,6,3] w, double[1,6,2] r, double[1,12] b)
        => (double[5,1,0,2] y) { y = GRU<hidden_size = 2, linear_before_reset = 1>(x, w, r, b) }""",
    "an RNN": """(double[5,0,3] x, double[1,2,3] w, double[1,2,2] r)
        => (double[5,1,0,2] y) { y = RNN<hidden_size = 2>(x, w, r) }""",
    "a layer norm": """(double[0,3] x, double[3] s, double[3] b) => (double[0,3] y) {
        y = LayerNormalization(x, s, b) }""",
    "an instance norm": """(double[0,4,3] x, double[4] s, double[4] b) => (double[0,4,3] y) {
        y = InstanceNormalization(x, s, b) }""",
    "a group norm": """(double[0,4,3] x, double[4] s, double[4] b) => (double[0,4,3] y) {
        y = GroupNormalization<num_groups = 2>(x, s, b) }""",
    "an Einsum": """(double[0,3] x, double[3,4] w) => (double[0,4] y) {
        y = Einsum<equation = "bi,ij->bj">(x, w) }""",
    "attention": """(double[0,4,6] x, double[6,6] w) => (double[0,4,6] y) {
        q = MatMul(x, w)
        h = Constant<value = int64[4] {0, 0, 2, -1}>()
        j = Constant<value = int64[3] {0, 0, -1}>()
        r = Reshape(q, h)
        k = Transpose<perm = [0, 2, 3, 1]>(r)
        v = Transpose<perm = [0, 2, 1, 3]>(r)
        a = MatMul(v, k)
        p = Softmax(a)
        o = MatMul(p, v)
        t = Transpose<perm = [0, 2, 1, 3]>(o)
        y = Reshape(t, j) }""",
}


@pytest.mark.parametrize("text", EMPTY.values(), ids=EMPTY.keys())
def test_gradients_of_an_empty_batch_are_zero(text: str) -> None:
    """A buffer that is to be overwritten kept the gradients of the batch before."""
    made = model(text)
    gradients = backward(made, compare(made, open_too=False))
    assert gradients is not None
    graph, names = gradients
    for seed in (0, 1):  # overwrite, add
        training = accumulated(graph, names)
        fed = with_buffers(training, made.fed, seed)
        for threads in (1, 2):
            plan = make_plan(
                training.copy(), {}, target=detect_host(), threads=threads, closed=True
            )
            kept = numbers(plan, fed)
            for name in names:
                buffer = f"{name}_grad.accumulation.buffer"
                np.testing.assert_array_equal(kept[buffer], seed * fed[buffer], err_msg=name)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(float[2,3,5,5] x, float[0,3,3,3] w) => (float[2,0,3,3] y) { y = Conv(x, w) }",
         "the weights are f32.0,3,3,3., which has no elements"),
        ("""(float[2,6,0,5] x, float[6,1,3,2] w) => (float[2,3,2,6] y) {
            y = ConvTranspose<group = 3>(x, w) }""", "f32.2,6,0,5., which has no pixels"),
        ("""(float[2,3,0,5] x, float[2,4,4,2] g) => (float[2,3,4,4] y) {
            y = GridSample<padding_mode = "reflection">(x, g) }""", "which has no pixels"),
        ("(float[2,5,0] x) => (float[2,5,0] y) { y = com.microsoft.MultiHeadAttention"
         "<num_heads = 2>(x, x, x) }", "the heads have width 0"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_without_elements_is_refused(text: str, why: str) -> None:
    """Some of these ended the process: a kernel divided by a size."""
    with pytest.raises(ShapeError, match=why):
        make_plan(model(text).graph, {}, target=detect_host(), threads=1, closed=True)


def test_a_loss_of_labels_without_pixels() -> None:
    """The kernel of its gradient divided by the size of a block of pixels."""
    text = """(float[3] dy, float[2,5,0] p) => (float[2,5,0] dx) <int64[2,0] l = {}> {
        dx = com.microsoft.SoftmaxCrossEntropyLossGrad<reduction = "sum">(dy, p, l) }"""
    made = model(text.replace("float[3]", "float"))
    plan = make_plan(made.graph, {}, target=detect_host(), threads=1, closed=True)
    assert numbers(plan, made.fed)["dx"].size == 0
