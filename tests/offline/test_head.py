"""Heads of classifiers: the last layer is replaced where classes do not fit, or that is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from engine.errors import ModelError, ShapeError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.offline.head import (
    count_output_classes,
    drop_activation,
    replace_head,
    unfreeze_head,
)

HEAD = '<ir_version: 8, opset_import: ["" : 17]> m (float[n, 4] x) => (float[n, 6] y) '
IMAGE = '<ir_version: 8, opset_import: ["" : 17]> m (float[n, 4, 2, 2] x) => (float[n, 6] y) '
RNG = np.random.default_rng(0)


def graph(text: str, head: str = HEAD, **initializers: Any) -> Graph:
    proto = parser.parse_model(head + text)
    for name, value in initializers.items():
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    made: Graph = onnx_io.load(proto)
    return made


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape)


MODELS: dict[str, Callable[[], Graph]] = {
    "gemm": lambda: graph("{ y = Gemm(x, w, b) }", w=normal(4, 6), b=normal(6)),
    "transposed": lambda: graph("{ y = Gemm<transB=1>(x, w, b) }", w=normal(6, 4), b=normal(6)),
    "matmul": lambda: graph("{ y = MatMul(x, w) }", w=normal(4, 6)),
    "add": lambda: graph("{ h = MatMul(x, w) y = Add(b, h) }", w=normal(4, 6), b=normal(6)),
    "by Transpose": lambda: graph(
        "{ t = Transpose<perm=[1, 0]>(w) h = MatMul(x, t) y = Add(h, b) }",
        w=normal(6, 4), b=normal(6),
    ),
    "conv": lambda: graph(
        "{ h = Conv(x, w, b) p = GlobalAveragePool(h) y = Flatten(p) }", IMAGE,
        w=normal(6, 4, 1, 1), b=normal(6),
    ),
    "sigmoid": lambda: graph("{ h = Gemm(x, w, b) y = Sigmoid(h) }", w=normal(4, 6), b=normal(6)),
    "reshape": lambda: graph(
        "{ p = GlobalAveragePool(x) h = Conv(p, w) y = Reshape(h, s) }", IMAGE,
        w=normal(6, 4, 1, 1), s=np.array([-1, 6]),
    ),
    "dropout": lambda: graph("{ h = Gemm(x, w) y = Dropout(h) }", w=normal(4, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("classes", [2, 6, 9])
def test_a_last_layer_of_another_size(name: str, classes: int, tmp_path: Path) -> None:
    model = MODELS[name]()
    assert count_output_classes(model, "y") == 6
    names = [*model.initializers]
    replace_head(model, classes, seed=1)
    assert [*model.initializers] == names
    assert count_output_classes(model, "y") == classes
    onnx_io.save(model, tmp_path / "m.onnx")
    shape = (3, *(d for d in model.inputs["x"].shape[1:] if isinstance(d, int)))
    (y,) = ReferenceEvaluator(str(tmp_path / "m.onnx")).run(None, {"x": np.ones(shape, np.float32)})
    assert np.shape(y) == (3, classes)
    if "b" in names:
        assert not model.initializers["b"].any()


def test_the_weights_are_those_of_the_seed() -> None:
    actual = []
    for seed in (1, 1, 2):
        model = graph("{ y = Gemm<transB=1>(x, w) }", w=np.zeros((6, 4)))
        replace_head(model, 5000, seed)
        actual.append(model.initializers["w"])
    np.testing.assert_array_equal(actual[0], actual[1])
    assert (actual[0] != actual[2]).any()
    assert actual[0].dtype == np.float32
    assert actual[0].std() == pytest.approx(np.sqrt(2 / 4), rel=0.02)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: graph("{ y = Relu(x) }"), "made by an input, which cannot be replaced"),
        (
            lambda: graph("{ h = Gemm(x, w) y = Mul(h, h) }", w=normal(4, 6)),
            "made by Mul .*export the model with as many outputs as there are classes",
        ),
        (
            lambda: graph("{ v = Mul(w, w) y = MatMul(x, v) }", w=normal(4, 6)),
            "computes its parameter 'v'",
        ),
        (
            lambda: graph(
                "{ e = MatMul(x, u) t = Transpose<perm=[1, 0]>(u) y = MatMul(e, t) }",
                w=normal(4, 6), u=normal(4, 6),
            ),
            "shares its parameter 'u' with",
        ),
        (
            lambda: graph("{ h = Conv<group=2>(x, w) y = Flatten(h) }", IMAGE,
                          w=normal(6, 2, 2, 2)),
            "do not fit a last layer",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_replaced(model: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        replace_head(model(), 3, seed=0)


@pytest.mark.parametrize(
    ("nodes", "initializers"),
    [
        # Images of Keras: channels last, after each convolution.
        ("{ h = Conv(x, w, b) y = Transpose<perm=[0, 2, 3, 1]>(h) }", {}),
        ("{ h = Conv(x, w, b) z = Sub(h, mean) y = Div(z, deviation) }",
         {"mean": 2.0, "deviation": 3.0}),
        ("{ h = Conv(x, w, b) s = Softmax<axis=1>(h) z = Mul(s, places) y = ReduceSum(z, axes) }",
         {"places": normal(1, 6, 1, 1), "axes": np.array([1])}),
        # A scale is computed without inputs; no rounding is there to leave out.
        ("{ h = Conv(x, w, b) c = Constant<value_float=2.0> () t = Add(h, c) y = Tanh(t) }", {}),
    ],
    ids=["transposed", "scaled", "expected place", "a constant node"],
)  # fmt: skip
def test_a_head_that_is_trained_may_be_followed_by_what_computes_with_it_alone(
    nodes: str, initializers: dict[str, Any]
) -> None:
    head = '<ir_version: 8, opset_import: ["" : 17]> m (float[n, 4, 2, 2] x) => (float[] y) '
    weights = {"w": normal(6, 4, 1, 1), "b": normal(6)}
    assert unfreeze_head(graph(nodes, head, **weights, **initializers)) == ["w", "b"]


def test_two_layers_are_not_one_head() -> None:
    model = graph(
        "{ h = MatMul(x, w) z = MatMul(x, v) y = Add(h, z) }", w=normal(4, 6), v=normal(4, 6)
    )
    with pytest.raises(ModelError, match=r"made by Add .* name the parameters to train instead"):
        unfreeze_head(model)


def test_scores_of_another_rank_are_refused() -> None:
    """Three classes at each of four places would be flattened to twelve."""
    model = graph("{ h = Conv(x, w) y = Flatten(h) }", IMAGE, w=normal(6, 4, 1, 1))
    with pytest.raises(ShapeError, match=r"'y' are \['n', 12\], expected \(batch, 3\)"):
        replace_head(model, 3, seed=0)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_normalisation_at_the_end_goes(op: str) -> None:
    model = graph(f"{{ h = Gemm(x, w) y = {op}(h) }}", w=normal(4, 6))
    assert drop_activation(model, "softmax") == op
    assert model.outputs == ["h"]
    assert [node.op for node in model.nodes] == ["Gemm"]
    assert model.types["h"].shape == ("n", 6)
    onnx_io.to_bytes(model)
    assert drop_activation(model, "softmax") == ""


def test_probabilities_that_are_renamed_or_reshaped_go_too() -> None:
    """As PaddlePaddle's exporter writes them."""
    end = "p = Softmax(h) s = Shape(h) r = Reshape(p, s) y = Identity(r)"
    model = graph(f"{{ h = Gemm(x, w) {end} }}", w=normal(4, 6))
    assert drop_activation(model, "softmax") == "Softmax"
    assert [node.op for node in model.nodes] == ["Gemm"]


@pytest.mark.parametrize("softmax", ["", "p = Softmax(d) k = QuantizeLinear(p, r, o) "])
def test_a_head_whose_scores_are_rounded_becomes_floats(softmax: str) -> None:
    """As converters of TensorFlow Lite write it: every value is rounded."""
    last = "k" if softmax else "q"
    lite = graph(
        "{ wf = DequantizeLinear<axis=1>(w, s, z) bf = DequantizeLinear<axis=0>(b, s) "
        "h = MatMul(x, wf) t = Add(h, bf) q = QuantizeLinear(t, r, o) "
        f"d = DequantizeLinear(q, r, o) {softmax} y = DequantizeLinear({last}, r, o) }}",
        w=RNG.integers(-127, 128, (4, 6)).astype(np.int8), s=np.full(6, 0.01),
        z=np.zeros(6, np.int8), b=RNG.integers(-99, 99, 6).astype(np.int32),
        r=np.float32(0.1), o=np.int8(0),
    )  # fmt: skip
    assert drop_activation(lite, "softmax") == ("Softmax" if softmax else "")
    weight, bias = unfreeze_head(lite)
    assert {node.op for node in lite.nodes} == {"MatMul", "Add", "Identity"}
    assert lite.initializers[weight].shape == (4, 6)
    assert lite.initializers[bias].shape == (6,)
    assert lite.initializers[weight].dtype == lite.initializers[bias].dtype == np.float32
