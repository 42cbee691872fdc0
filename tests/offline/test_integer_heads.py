"""Heads of integers, as quantisers of other projects write them: they become floats, and train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnxruntime import quantization as peer

from edgegrad import AdamW, Trainer
from engine.errors import ModelError
from engine.graphs.io import onnx_io
from engine.graphs.offline.head import drop_normalisation, unfreeze_head

Array = np.ndarray[Any, np.dtype[Any]]
RNG = np.random.default_rng(0)
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]


def draw(*shape: int) -> Array:
    made: Array = (RNG.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
    return made


def make_float(kind: str) -> onnx.ModelProto:
    """Return a classifier of two layers with six classes, whose last layer is a kind of product."""
    node = helper.make_node
    if kind == "Conv":
        x = [None, 3, 8, 8]
        constants = {
            "w1": draw(16, 3, 3, 3),
            "b1": draw(16),
            "w2": draw(6, 16, 1, 1),
            "b2": draw(6),
        }
        nodes = [
            node("Conv", ["x", "w1", "b1"], ["h"], "c1"), node("Relu", ["h"], ["a"], "r"),
            node("Conv", ["a", "w2", "b2"], ["m"], "c2"),
            node("GlobalAveragePool", ["m"], ["p"], "gap"), node("Flatten", ["p"], ["y"], "flat"),
        ]  # fmt: skip
    else:
        x = [None, 20]
        constants = {"w1": draw(20, 32), "w2": draw(32, 6)}
        last = [node("Gemm", ["a", "w2", "b2"], ["y"], "fc2")]
        if kind != "Gemm":
            last = [node("MatMul", ["a", "w2"], ["m"], "fc2"), node("Add", ["m", "b2"], ["y"], "s")]
        nodes = [
            node("MatMul", ["x", "w1"], ["t"], "fc1"), node("Add", ["t", "b1"], ["h"], "s1"),
            node("Relu", ["h"], ["a"], "r"), *last[: 1 if kind == "bare" else 2],
        ]  # fmt: skip
        if kind == "bare":
            nodes[-1].output[0] = "y"
    constants |= {"b1": draw(16 if kind == "Conv" else 32), "b2": draw(6)}
    graph = helper.make_graph(
        nodes, kind, [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 6])],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=8)


class Samples(peer.CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """A batch for onnxruntime's quantiser."""

    def __init__(self, x: Array) -> None:
        self.batches = iter([x])

    def get_next(self) -> Any:
        return {"x": x} if (x := next(self.batches, None)) is not None else None


def write(model: onnx.ModelProto, how: str, x: Array, folder: Path) -> Path:
    """Quantise a model with onnxruntime; return the file."""
    source, made, optimised = (folder / f"{n}.onnx" for n in ("float", "int8", "optimised"))
    onnx.save(model, source)
    if how.startswith("dynamic"):
        peer.quantize_dynamic(source, made, per_channel="channels" in how)
    else:
        form = peer.QuantFormat.QDQ if how == "QDQ" else peer.QuantFormat.QOperator
        peer.quantize_static(source, made, Samples(x), quant_format=form, per_channel=True)
    if "optimised" not in how:
        return made
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(optimised)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    return optimised


def run_peer(model: Any, x: Array) -> Array:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize(
    "how", ["dynamic", "dynamic channels", "dynamic optimised", "QOperator", "QDQ"]
)
@pytest.mark.parametrize("kind", ["MatMul", "bare", "Gemm", "Conv"])
def test_a_head_that_onnxruntime_quantised_is_trained(how: str, kind: str, tmp_path: Path) -> None:
    model = make_float(kind)
    x = RNG.standard_normal((64, *([3, 8, 8] if kind == "Conv" else [20]))).astype(np.float32)
    file = write(model, how, x, tmp_path)
    graph = onnx_io.load(file)
    names = unfreeze_head(graph)
    weight, *biases = (graph.initializers[name] for name in names)
    source = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    # The weights are the float model's to half of a step, and biases as they were.
    step = np.abs(source["w2"]).max() / 127
    given = source["w2"] if weight.shape == source["w2"].shape else source["w2"].T
    np.testing.assert_allclose(weight, given, atol=step * 1.01)
    assert len(biases) == (kind != "bare")
    assert all(b.dtype == np.float32 and b.size == 6 for b in biases)
    # All that is in front of the head stays as it was.
    assert sum(t.dtype in (np.int8, np.uint8) and t.ndim > 1 for t in graph.initializers.values())
    ours, exact = run_peer(onnx_io.to_bytes(graph), x), run_peer(model.SerializeToString(), x)
    assert np.abs(ours - exact).max() < 0.03 * np.abs(exact).max()

    trainer = Trainer.from_onnx(
        file, "cross_entropy", AdamW(lr=1e-2), train="head", classes=3, threads=1, seed=0
    )
    data = x, (x.reshape(64, -1)[:, :3]).argmax(1).astype(np.int64)
    before = trainer.evaluate(data)["loss"]
    trainer.fit(data, epochs=4, progress=False)
    assert trainer.evaluate(data)["loss"] < before
    trainer.export(tmp_path / "trained.onnx")
    # In one batch: dynamic ranges are taken over the samples that are answered together.
    predicted: Any = trainer.predict(x, batch_size=64)
    theirs = run_peer(tmp_path / "trained.onnx", x)
    assert np.abs(predicted - theirs).max() < 1e-5 * np.abs(theirs).max()


RANGES = """<ir_version: 8, opset_import: ["" : 17]> m (float[n, 20] x) => (float[n, 6] y) {
    q1, s1, z1 = DynamicQuantizeLinear(x)  d1 = DequantizeLinear(q1, s1, z1)
    v1 = DequantizeLinear<axis=0>(w1, u1, o1)  t1 = Transpose<perm=[1, 0]>(v1)
    m1 = MatMul(d1, t1)  qb1, sb1, zb1 = DynamicQuantizeLinear(b1)
    db1 = DequantizeLinear(qb1, sb1, zb1)  h = Add(m1, db1)  a = Relu(h)
    q2, s2, z2 = DynamicQuantizeLinear(a)  d2 = DequantizeLinear(q2, s2, z2)
    v2 = DequantizeLinear<axis=0>(w2, u2, o2)  t2 = Transpose<perm=[1, 0]>(v2)
    m2 = MatMul(d2, t2)  qb2, sb2, zb2 = DynamicQuantizeLinear(b2)
    db2 = DequantizeLinear(qb2, sb2, zb2)  h2 = Add(m2, db2)  y = Softmax(h2) }"""


def make_ranges() -> onnx.ModelProto:
    """Return a model of TensorFlow Lite with dynamic ranges, as tf2onnx writes it."""
    proto = parser.parse_model(RANGES)
    for k, (rows, columns) in enumerate([(32, 20), (6, 32)], 1):
        values: dict[str, Any] = {
            f"w{k}": RNG.integers(-127, 128, (rows, columns)).astype(np.int8),
            f"u{k}": np.full(rows, 0.003, np.float32), f"o{k}": np.zeros(rows, np.int8),
            f"b{k}": draw(rows),
        }  # fmt: skip
        proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in values.items())
    return proto


def test_a_head_of_dynamic_ranges_is_trained(tmp_path: Path) -> None:
    model = make_ranges()
    graph = onnx_io.load(model)
    assert drop_normalisation(graph) == "Softmax"
    weight, bias = unfreeze_head(graph)
    source = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    np.testing.assert_allclose(graph.initializers[weight].T, source["w2"] * np.float32(0.003))
    np.testing.assert_array_equal(graph.initializers[bias], source["b2"])  # it was rounded, too
    assert [n.op for n in graph.nodes].count("DynamicQuantizeLinear") == 2

    onnx.save(model, tmp_path / "dynamic_range.onnx")
    trainer = Trainer.from_onnx(
        tmp_path / "dynamic_range.onnx", "cross_entropy", AdamW(lr=1e-2), train="head", threads=1
    )
    assert {p.data.size for _, p in trainer.state.parameters} == {192, 6}


def test_integer_heads_that_cannot_be_trained_are_refused() -> None:
    """The weights are computed, or the scores are integers."""
    nodes = {
        "computed": "q, s, z = DynamicQuantizeLinear(x) v, t, o = DynamicQuantizeLinear(w) "
        "m = MatMulInteger(q, v, z, o) f = Cast<to=1>(m) c = Mul(s, t) y = Mul(f, c)",
        "scaled": "q, s, z = DynamicQuantizeLinear(x) m = MatMulInteger(q, w8, z) "
        "f = Cast<to=1>(m) y = Mul(f, u)",
    }
    for body in nodes.values():
        proto = parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> m (float[n, 4] x) => (float[n, 6] y) '
            f"{{ {body} }}"
        )
        values: dict[str, Any] = {
            "w": draw(4, 6),
            "w8": np.ones((4, 6), np.int8),
            "u": np.float32(0.1),
        }
        proto.graph.initializer.extend(
            numpy_helper.from_array(np.asarray(a), n) for n, a in values.items() if n in body
        )
        with pytest.raises(ModelError, match=r"made by Mul .*of integers with constant weights"):
            unfreeze_head(onnx_io.load(proto))


def test_deep_graphs_of_scales_take_no_time() -> None:
    """Values that are read twice in a row have 2^n paths, and long rows are deeper than calls."""
    deep = 3000
    rows = {
        "scores": "v0 = MatMul(x, w) "
        + " ".join(f"v{k + 1} = Mul(v{k}, v{k})" for k in range(deep))
        + f" y = Mul(v{deep}, v{deep})",
        "weights": "v0 = DequantizeLinear(w8, u) "
        + " ".join(f"v{k + 1} = Mul(v{k}, v{k})" for k in range(deep))
        + f" y = MatMul(x, v{deep})",
    }
    values = {"w": draw(4, 6), "w8": np.ones((4, 6), np.int8), "u": np.float32(1)}
    for name, body in rows.items():
        proto = parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> m (float[n, 4] x) => (float[n, 6] y) '
            f"{{ {body} }}"
        )
        read = ("w",) if name == "scores" else ("w8", "u")
        proto.graph.initializer.extend(
            numpy_helper.from_array(np.asarray(values[n]), n) for n in read
        )
        graph = onnx_io.load(proto)
        if name == "scores":
            with pytest.raises(ModelError, match="made by Mul"):
                unfreeze_head(graph)
        else:
            (weight, *_) = unfreeze_head(graph)
            np.testing.assert_array_equal(graph.initializers[weight], np.ones((4, 6)))
