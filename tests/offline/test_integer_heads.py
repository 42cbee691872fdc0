"""Heads of integers, as quantisers of other projects write them: they become floats, and train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from edgegrad import AdamW, Trainer
from engine.errors import ModelError, ModelWarning
from engine.graphs.io import onnx_io
from engine.graphs.offline.head import drop_activation, unfreeze_head
from tests.support.integer_models import (
    FORMS,
    KINDS,
    RNG,
    draw,
    draw_samples,
    make_float,
    run_peer,
    write,
)


@pytest.mark.parametrize("how", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_onnxruntime_quantised_is_trained(how: str, kind: str, tmp_path: Path) -> None:
    model = make_float(kind)
    x = draw_samples(kind)
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
    assert drop_activation(graph, "softmax") == "Softmax"
    weight, bias = unfreeze_head(graph)
    source = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    np.testing.assert_allclose(graph.initializers[weight].T, source["w2"] * np.float32(0.003))
    np.testing.assert_array_equal(graph.initializers[bias], source["b2"])  # it was rounded, too
    assert [n.op for n in graph.nodes].count("DynamicQuantizeLinear") == 2

    onnx.save(model, tmp_path / "dynamic_range.onnx")
    with pytest.warns(ModelWarning, match="'y' is probabilities"):
        trainer = Trainer.from_onnx(
            tmp_path / "dynamic_range.onnx", "cross_entropy", AdamW(lr=1e-2), train="head"
        )
    assert {p.data.size for _, p in trainer.state.parameters} == {192, 6}


def test_integer_heads_that_cannot_be_trained_are_refused() -> None:
    """The weights are computed, or rows have scales of their own."""
    nodes = {
        "computed": "q, s, z = DynamicQuantizeLinear(x) p = Add(x, x) g = ReduceSum<keepdims=0>(p) "
        "i = Cast<to=3>(g) v = Add(w8, i) "
        "m = MatMulInteger(q, v, z) f = Cast<to=1>(m) c = Mul(s, u) y = Mul(f, c)",
        "scaled": "q, s, z = DynamicQuantizeLinear(x) m = MatMulInteger(q, w8, z) "
        "f = Cast<to=1>(m) r = ReduceMean<axes=[1]>(x) y = Mul(f, r)",
    }
    for name, body in nodes.items():
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
        texts = {
            "computed": r"computes its parameter",
            "scaled": r"made by Mul .*of integers with constant weights",
        }
        with pytest.raises(ModelError, match=texts[name]):
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
        (weight, *_) = unfreeze_head(graph)
        expected = values["w"] if name == "scores" else np.ones((4, 6))
        np.testing.assert_array_equal(graph.initializers[weight], expected)
