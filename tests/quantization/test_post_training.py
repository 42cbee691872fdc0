"""Post-training quantisation: integers and scales, onnxruntime beside our engine, bad input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import edgegrad
from engine.base.aliases import Array
from engine.errors import InputError, UnsupportedOpError
from engine.graphs.io import onnx_io
from engine.models.catalog import find_architecture
from engine.models.named_model import make
from engine.quantization import Quantization, Quantized, quantize
from engine.quantization.calibration import BINS, _cut_tails, _keep_entropy
from tests.support.integer_models import write

RNG = np.random.default_rng(3)


def draw(*shape: int, scale: float = 1.0, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def build(
    nodes: Sequence[onnx.NodeProto],
    weights: dict[str, Array],
    shape: Sequence[Any] = ("n", 3, 8, 8),
    outputs: Sequence[str] = ("y",),
) -> bytes:
    """Return a model of nodes with the input x."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(onnx.shape_inference.infer_shapes(model).SerializeToString())


def run_peer(model: bytes, x: Array, *, optimised: bool = True) -> list[Array]:
    options = onnxruntime.SessionOptions()
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [np.asarray(y) for y in session.run(None, {session.get_inputs()[0].name: x})]


def run_ours(model: bytes, x: Array) -> list[Array]:
    session = edgegrad.Session(model, threads=1)
    return session.run(None, {session.get_inputs()[0].name: x})


def list_ops(made: Quantized) -> list[str]:
    return [node.op for node in made.graph.nodes]


def residual() -> bytes:
    """Two convolutions with norms, one inside a residual sum, a pool, and a convolution at the
    end.
    """
    norm = {f"{name}{k}": np.abs(draw(8, seed=k)) + 0.5 for name in ("s", "v") for k in (1, 2)}
    norm |= {f"{name}{k}": draw(8, seed=9 + k) for name in ("b", "m") for k in (1, 2)}
    weights = {
        "w1": draw(8, 3, 3, 3, scale=0.3), "c1": draw(8, seed=5), "w2": draw(8, 8, 3, 3, scale=0.2),
        "w3": draw(5, 8, 1, 1, scale=0.5), "c3": draw(5, seed=6), **norm,
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w1", "c1"], ["a"], "first", pads=[1] * 4),
        helper.make_node("BatchNormalization", ["a", "s1", "b1", "m1", "v1"], ["an"]),
        helper.make_node("Relu", ["an"], ["h"]),
        helper.make_node("Conv", ["h", "w2"], ["d"], "second", pads=[1] * 4),
        helper.make_node("BatchNormalization", ["d", "s2", "b2", "m2", "v2"], ["dn"]),
        helper.make_node("Add", ["dn", "h"], ["sum"]),
        helper.make_node("MaxPool", ["sum"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "w3", "c3"], ["y"], "last"),
    ]
    return build(nodes, weights)


def dense() -> bytes:
    """Gemm and MatMul over a flattened input, with a large weight that is transposed in front."""
    weights = {
        "w": draw(600, 192, scale=0.1), "b": draw(600, seed=1), "t": draw(500, 600, scale=0.1),
        "r": draw(500, 4, scale=0.1),
    }  # fmt: skip
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "b"], ["g"], "gemm", transB=1),
        helper.make_node("Relu", ["g"], ["h"]),
        helper.make_node("Transpose", ["t"], ["tt"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "tt"], ["k"], "product"),
        helper.make_node("Sigmoid", ["k"], ["s"]),
        helper.make_node("MatMul", ["s", "r"], ["y"], "last"),
    ]
    return build(nodes, weights)


NETS: dict[str, Callable[[], bytes]] = {"residual": residual, "dense": dense}
WAYS: dict[str, dict[str, Any]] = {
    "uint8": {},
    "int8, symmetric": {"activations": "int8", "symmetric": True},
    "per tensor": {"per_channel": False},
    "4 bits": {"weight_bits": 4},
    "int8": {"activations": "int8"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("net", NETS)
def test_both_engines_agree_to_a_step(net: str, way: str) -> None:
    model, x = NETS[net](), draw(16, 3, 8, 8, seed=7)
    made = quantize(model, x, Quantization(**WAYS[way]))
    content = made.to_bytes()
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    (ours,), (peer,) = run_ours(content, x), run_peer(content, x)
    (before,) = run_peer(model, x)
    last = made.graph.nodes[-1]
    if last.op == "DequantizeLinear":
        step = float(made.graph.initializers[last.inputs[1]])
    else:  # a step of what the last product reads
        scales = [n for n in made.graph.nodes if n.outputs[0] == last.inputs[0]]
        read = onnx_io.load(content).initializers
        rows = np.abs(read["r_quantized"] * read["r_scale"])
        step = float(read[scales[0].inputs[1]]) * rows.max()
    assert np.abs(ours - peer).max() <= step * 1.001
    assert np.mean(np.abs(ours - peer) > step / 2) < 0.05  # sums near a half round either way
    error = np.sqrt(np.mean((ours - before) ** 2) / np.mean(before**2))
    assert error < (0.2 if way == "4 bits" else 0.03)


def test_norms_are_folded_and_weights_are_integers_with_a_scale_a_channel() -> None:
    model = residual()
    made = quantize(model, draw(16, 3, 8, 8, seed=7))
    assert "BatchNormalization" not in list_ops(made)
    constants = made.graph.initializers
    integers = {name: a for name, a in constants.items() if name.endswith("_quantized")}
    assert {str(a.dtype) for a in integers.values()} == {"int8", "int32"}
    assert not any(a.dtype == np.float32 and a.ndim > 1 for a in constants.values())
    weights = next(a for a in integers.values() if a.dtype == np.int8 and a.shape == (8, 3, 3, 3))
    assert np.abs(weights).max((1, 2, 3)).tolist() == [127] * 8
    # Rounding moves a weight by half a step at most.
    assert made.float_bytes == 4 * made.integer_bytes == 4 * (8 * 3 * 9 + 8 * 8 * 9 + 5 * 8)


def test_what_moves_elements_keeps_their_scale() -> None:
    graph = quantize(residual(), draw(16, 3, 8, 8, seed=7)).graph
    quantisers = {node.inputs[0]: node for node in graph.nodes if node.op == "QuantizeLinear"}
    values = [graph.initializers[quantisers[name].inputs[1]] for name in ("sum", "p")]
    assert values[0] == values[1]
    # The sum is quantised for the pool; the inner result of a convolution before Relu is not.
    assert quantisers.keys() >= {"x", "h", "sum", "p"}
    assert "an" not in quantisers


def test_a_bias_fits_beside_weights_that_are_nearly_nothing() -> None:
    weights = {"w": draw(3, 3, 1, 1), "b": np.array([50, -3, 7], np.float32)}
    weights["w"][0] = 1e-9
    weights["w"][1] = 0
    model = build([helper.make_node("Conv", ["x", "w", "b"], ["y"], "c")], weights)
    x = draw(4, 3, 8, 8)
    made = quantize(model, x)
    (y,), (before,) = run_ours(made.to_bytes(), x), run_peer(model, x)
    assert np.abs(y - before).max() < 0.4
    (peer,) = run_peer(made.to_bytes(), x)
    assert np.abs(y - peer).max() < 0.3


def test_outputs_and_shared_weights_keep_their_meaning() -> None:
    weights = {"w": draw(8, 8, scale=0.3), "u": draw(8, 8, 1, 1, scale=0.3)}
    nodes = [
        helper.make_node("Conv", ["x", "u"], ["a"], "one"),
        helper.make_node("Conv", ["a", "u"], ["b"], "two"),
        helper.make_node("GlobalAveragePool", ["b"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["g"], "three"),
        helper.make_node("Gemm", ["g", "w"], ["y"], "four", transB=1),
    ]
    model = build(nodes, weights, ("n", 8, 4, 4), ("a", "y", "f"))
    x = draw(6, 8, 4, 4)
    made = quantize(model, x)
    assert made.graph.outputs == ["a", "y", "f"]
    held = [name for name in made.graph.initializers if name.startswith(("u_q", "w_q"))]
    assert len(held) == 3  # w once by rows and once by columns
    for ours, peer, before in zip(
        run_ours(made.to_bytes(), x), run_peer(made.to_bytes(), x), run_peer(model, x), strict=True
    ):
        assert np.abs(ours - peer).max() < 0.02
        assert np.abs(ours - before).max() < 0.05 * np.abs(before).max()


@pytest.mark.parametrize("name", ["ds_cnn", "mobilenet_v3_small", "text_transformer"])
def test_architectures_run_in_both_engines(name: str) -> None:
    kind = find_architecture(name)
    if name == "text_transformer":
        x: Array = RNG.integers(1, 60, (6, 16)).astype(np.int64)
        graph = make(kind, classes=4, words=60, input_shape=(16,), seed=0).graph
    else:
        shape = (1, 20, 16) if name == "ds_cnn" else (3, 32, 32)
        x = draw(6, *shape)
        graph = make(kind, classes=4, input_shape=shape, seed=0).graph
    model = onnx_io.to_bytes(graph)
    made = quantize(model, (x,), Quantization(threads=1))
    assert made.scheme.products
    (ours,), (peer,), (before,) = (
        run_ours(made.to_bytes(), x), run_peer(made.to_bytes(), x), run_peer(model, x)
    )  # fmt: skip
    spread = np.abs(before - before.mean(0)).max() + 1e-3
    assert np.abs(ours - peer).max() <= 0.1 * spread
    assert np.abs(ours - before).max() <= 0.6 * spread


def test_factors_of_gemm_are_folded_where_onnxruntimes_quantiser_loses_them(
    tmp_path: Path,
) -> None:
    weights = {
        "w": draw(24, 20, scale=0.3), "u": draw(20, 7, scale=0.3), "a": draw(20), "c": draw(7),
    }  # fmt: skip
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "a"], ["h"], "plain"),
        helper.make_node("Gemm", ["h", "u", "c"], ["y"], "scaled", alpha=0.5, beta=2.0),
    ]
    model, x = build(nodes, weights, ("n", 3, 2, 4)), draw(32, 3, 2, 4)
    made = quantize(model, x)
    assert not made.scheme.left
    (before,) = run_peer(model, x)
    theirs = write(onnx.load_from_string(model), "QDQ", x, tmp_path).read_bytes()
    errors = [
        float(np.abs(run_peer(content, x)[0] - before).max() / np.abs(before).max())
        for content in (made.to_bytes(), theirs)
    ]
    assert errors[0] < 0.03
    assert errors[1] > 0.1  # as docs/quantization.md says of it
    np.testing.assert_allclose(run_ours(theirs, x)[0], run_peer(theirs, x)[0], atol=1e-5)


def write_gemms(scales: Sequence[float] = (0.5, 3, 2, 0.5, -1, -0.25)) -> bytes:
    """Return a model of Gemm nodes with factors, a transposed input and biases of all shapes."""
    sizes = {"w": (24, 20), "u": (7, 20), "v": (7, 9), "t": (9, 5)}
    biases = {"a": (20,), "b": (1, 7), "c": (), "e": (5,)}
    weights = {name: draw(*shape, scale=0.3) for name, shape in sizes.items()}
    weights |= {name: draw(*shape) for name, shape in biases.items()}
    a, b, c, d, e, f = map(float, scales)
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "a"], ["g"], "first", alpha=a),
        helper.make_node("Gemm", ["g", "u", "b"], ["h"], "both", alpha=b, beta=c, transB=1),
        helper.make_node("Transpose", ["h"], ["i"], perm=[1, 0]),
        helper.make_node("Gemm", ["i", "v", "c"], ["j"], "turned", beta=d, transA=1),
        helper.make_node("Relu", ["j"], ["k"]),
        helper.make_node("Gemm", ["k", "t", "e"], ["l"], "none", beta=0.0),
        helper.make_node("Gemm", ["k", "t", "l"], ["y"], "computed", alpha=e, beta=f),
    ]
    return build(nodes, weights, ("n", 3, 2, 4))


def test_gemm_computes_in_integers_with_any_factors_and_biases() -> None:
    model, x = write_gemms(), draw(32, 3, 2, 4)
    made = quantize(model, x)
    names = ["first", "both", "turned", "none", "computed"]
    assert [product.node.name for product in made.scheme.products] == names
    assert not made.scheme.left
    assert made.graph.initializers["w_quantized"].dtype == np.int8  # by its name, though scaled
    (ours,), (peer,), (before,) = (
        run_ours(made.to_bytes(), x), run_peer(made.to_bytes(), x), run_peer(model, x)
    )  # fmt: skip
    largest = np.abs(before).max()
    assert np.abs(ours - peer).max() < 1e-5 * largest
    assert np.abs(ours - before).max() < 0.03 * largest


# --- ranges


def test_a_percentile_leaves_out_the_rarest_on_both_sides() -> None:
    values = RNG.standard_normal(200_000)
    values[:3] = 40, -60, 50
    low, high = float(values.min()), float(values.max())
    counts = np.histogram(values, BINS, (low, high))[0]
    below, above = _cut_tails(counts, low, high, 99.0)
    width = (high - low) / BINS
    assert below == pytest.approx(np.quantile(values, 0.005), abs=width)
    assert above == pytest.approx(np.quantile(values, 0.995), abs=width)
    assert _cut_tails(counts, low, high, 100.0) == (low, high)


def test_entropy_drops_outliers_and_keeps_what_is_even() -> None:
    values = np.abs(RNG.standard_normal(200_000))
    values[0] = 60
    high = float(values.max())
    counts = np.histogram(values, BINS, (0, high))[0]
    low, bound = _keep_entropy(counts, 0.0, high)
    assert low == 0
    assert 3 < bound < 15
    even = np.full(BINS, 100)
    assert _keep_entropy(even, -1.0, 1.0) == (-1.0, 1.0)


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy"])
def test_ranges_do_not_depend_on_batches(method: Any) -> None:
    x = draw(21, 3, 8, 8)
    options = {"method": method, "threads": 1}
    one = quantize(residual(), x, Quantization(batch_size=21, **options)).ranges
    other = quantize(residual(), x[::-1], Quantization(batch_size=4, **options)).ranges
    assert one.keys() == other.keys()
    for name, bounds in one.items():
        assert bounds == pytest.approx(other[name], rel=2e-3, abs=1e-6)


# --- what stays float, and what is refused


def test_what_stays_float_is_listed_with_its_reason() -> None:
    weights = {
        "w": draw(4, 3, 3, 3), "k": draw(1, 16, 36), "r": draw(1, 16, 4), "v": draw(4, 2),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("Flatten", ["c"], ["f"], axis=2),
        helper.make_node("Reshape", ["c", "shape"], ["q"]),
        helper.make_node("LSTM", ["q", "k", "r"], ["", "h"], "lstm", hidden_size=4),
        helper.make_node("Squeeze", ["h", "axes"], ["hs"]),
        helper.make_node("PRelu", ["hs", "slope"], ["hp"], "slopes"),
        helper.make_node("MatMul", ["hp", "v"], ["m"], "head.out"),
        helper.make_node("MatMul", ["m", "mt"], ["y"], "square"),
    ]
    nodes.insert(7, helper.make_node("Transpose", ["m"], ["mt"], perm=[1, 0]))
    weights |= {"shape": np.array([4, -1, 36]), "axes": np.array([0]), "slope": draw(4)}
    model = build(nodes, weights)
    made = quantize(model, draw(8, 3, 8, 8), Quantization(keep_float=["head.*"]))
    assert {each.name: each.reason for each in made.scheme.left} == {
        "lstm": "supported: Conv, Gemm, MatMul",
        "head.out": "kept by a pattern",
        "square": "both factors are computed",
    }
    assert "stays float: LSTM lstm" in str(made)


def refuse(model: bytes, data: Any, problem: type[Exception], words: str, **options: Any) -> None:
    with pytest.raises(problem, match=words):
        quantize(model, data, Quantization(**options))


def test_data_that_measure_nothing_are_refused() -> None:
    model, x = residual(), draw(4, 3, 8, 8)
    refuse(model, [], InputError, "an empty list")
    refuse(model, x[:0], InputError, "no samples")
    refuse(model, np.full_like(x, 0.5), InputError, "every element of the input 'x' is 0.5")
    refuse(model, np.where(x > 2, np.nan, x), InputError, "NaN")
    refuse(model, np.where(x > 2, np.inf, x), InputError, "the input 'x' is not finite in batch 0")
    refuse(model, iter([(x,)]), InputError, "yields its batches once", method="entropy")


def test_constant_data_are_refused_before_a_model_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*given: Any, **options: Any) -> None:
        raise AssertionError("a model was made to run")

    monkeypatch.setattr("engine.quantization.calibration.Session", run)
    model, x = residual(), np.full((40, 3, 8, 8), 0.5, np.float32)
    refuse(model, x, InputError, "element of the input 'x' is 0.5; expected data")
    refuse(model, lambda epoch: iter([]), InputError, "no batches")
    refuse(model, [(x[:0],)], InputError, "no samples|empty")
    x[39, 2, 7, 7] = 1
    with pytest.raises(AssertionError, match="made to run"):
        quantize(model, x)


def test_an_iterator_is_read_once_although_its_first_batches_are_alike() -> None:
    blank, x = np.zeros((4, 3, 8, 8), np.float32), draw(4, 3, 8, 8)
    once = quantize(residual(), iter([(blank,), (blank,), (x,)])).ranges
    whole = quantize(residual(), np.concatenate([blank, blank, x])).ranges
    assert once.keys() == whole.keys()
    for name, bounds in once.items():
        assert bounds == pytest.approx(whole[name], rel=1e-5)


def test_values_that_are_not_finite_or_always_zero_name_their_node() -> None:
    weights = {
        "w": draw(4, 3, 1, 1, scale=1e30), "u": draw(4, 4, 1, 1),
        "low": np.array(-1e30, np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "big"),
        helper.make_node("Mul", ["a", "a"], ["b"], "squared"),
        helper.make_node("Conv", ["b", "u"], ["y"], "next"),
    ]
    x = draw(4, 3, 8, 8)
    refuse(build(nodes, weights), x, InputError, "Mul 'squared': 'b' is not finite in batch 0")
    nodes[1:2] = [
        helper.make_node("Add", ["a", "low"], ["s"], "shifted"),
        helper.make_node("Relu", ["s"], ["b"], "dead"),
    ]
    weights["w"] = draw(4, 3, 1, 1)
    refuse(build(nodes, weights), x, InputError, "Relu 'dead': 'b' is 0 for all calibration data")


def test_both_branches_of_a_choice_are_rounded() -> None:
    """A detector of wake words asks a second network where the first has one."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> m (float[n, 3] x) => (float[n, 5] y) {
            s = ReduceSum <keepdims = 0> (x)
            b = Greater(s, zero)
            y = If(b) <
                then_branch = one () => (float[n, 5] p) { p = MatMul(x, w) },
                else_branch = two () => (float[n, 5] q) { q = MatMul(x, v) }
            >
        }"""
    )
    weights = {"w": draw(3, 5), "v": draw(3, 5), "zero": np.zeros((), np.float32)}
    for name, value in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    made = quantize(model, draw(8, 3))
    assert len([n for n in made.graph.nodes if n.op == "MatMul"]) == 2


def test_models_without_work_are_refused() -> None:
    x = draw(4, 3, 8, 8)
    refuse(build([helper.make_node("Relu", ["x"], ["y"])], {}), x, UnsupportedOpError, "no product")
    made = quantize(residual(), x)
    refuse(made.to_bytes(), x, InputError, "quantises 'x' already; give the float model")
    words = "keep_float: 'frist' matches none of 3 products; nearest: 'first'"
    refuse(residual(), x, InputError, words, keep_float=["frist"])
    fixed = onnx.load_from_string(residual())
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    refuse(fixed.SerializeToString(), x, InputError, "batch_size=3, but the file", batch_size=3)
    assert quantize(fixed.SerializeToString(), x).ranges


def test_it_is_written(tmp_path: Path) -> None:
    made = edgegrad.quantize(residual(), draw(4, 3, 8, 8))
    made.save(tmp_path / "int8.onnx")
    assert (tmp_path / "int8.onnx").read_bytes() == made.to_bytes()
    assert made.to_dict()["products"] == ["first", "second", "last"]
