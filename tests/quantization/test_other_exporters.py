"""Files of other quantisers: scales of float16, biases of floats, MatMulNBits as the last layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import edgegrad
from engine.base.aliases import Array
from engine.kernels.vocabulary.op import MS
from tests.support.resident_integers import make_nbits, run_unrounded

LABELS = np.arange(8) % 6


def make_model(
    nodes: list[onnx.NodeProto], constants: dict[str, Array], x: tuple[Any, ...], opset: int = 21
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "exported", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


# --- float16


def make_halves(form: str) -> onnx.ModelProto:
    """Return a model of float32 with a layer whose weights become floats by scales of float16."""
    rng, node = np.random.default_rng(0), helper.make_node
    constants: dict[str, Array] = {
        "w0": (rng.standard_normal((32, 32)) / 5).astype(np.float32),
        "q": rng.integers(-128, 128, (32, 6)).astype(np.int8),
        "s": rng.uniform(0.001, 0.005, 6).astype(np.float16),
    }
    nodes = [node("MatMul", ["x", "w0"], ["h"], "first"), node("Relu", ["h"], ["r"])]
    if form == "cast":
        nodes += [
            node("DequantizeLinear", ["q", "s"], ["w16"], axis=1),
            node("Cast", ["w16"], ["w"], to=TensorProto.FLOAT),
            node("MatMul", ["r", "w"], ["y"], "last"),
        ]
    else:
        blocks = rng.integers(0, 256, (6, 2, 8)).astype(np.uint8)
        constants |= {"q": blocks, "s": rng.uniform(0.02, 0.1, 12).astype(np.float16)}
        sizes: dict[str, Any] = {"N": 6, "K": 32, "bits": 4, "block_size": 16}
        nodes += [
            node("Cast", ["r"], ["r16"], to=TensorProto.FLOAT16),
            node("MatMulNBits", ["r16", "q", "s"], ["y16"], "last", domain=MS, **sizes),
            node("Cast", ["y16"], ["y"], to=TensorProto.FLOAT),
        ]
    return make_model(nodes, constants, ("n", 32))


@pytest.mark.filterwarnings("ignore:the weights of the model are float16")
@pytest.mark.parametrize("how", [{"train": "head"}, {"lora": "."}], ids=["head", "lora"])
@pytest.mark.parametrize("form", ["cast", "nbits"])
def test_scales_of_float16_in_a_model_of_float32(
    form: str, how: dict[str, Any], tmp_path: Path
) -> None:
    """It runs, trains, and is written with float16 only where it had it."""
    model, path = make_halves(form), tmp_path / "model.onnx"
    onnx.save(model, path)
    x = np.random.default_rng(1).standard_normal((8, 32)).astype(np.float32)
    want = run_unrounded(path, x)
    got = edgegrad.Session(path, threads=1).run(None, {"x": x})[0]
    np.testing.assert_allclose(got, want, atol=2e-3 * np.abs(want).max())
    trainer = edgegrad.Trainer.from_onnx(
        path, "cross_entropy", edgegrad.AdamW(lr=1e-2), threads=1, seed=0, **how
    )
    first, *_, last = (float(trainer.step(x, LABELS)) for _ in range(4))
    assert last < first
    trainer.export(tmp_path / "trained.onnx")
    kinds = {t.name: t.data_type for t in onnx.load(tmp_path / "trained.onnx").graph.initializer}
    assert kinds["w0"] == TensorProto.FLOAT
    if how == {"lora": "."}:
        assert kinds["s"] == TensorProto.FLOAT16
        near_first = [kind for name, kind in kinds.items() if name.startswith("w0.lora")]
        assert near_first == [TensorProto.FLOAT] * 2
    trained = trainer.predict(x)
    off = np.abs(run_unrounded(tmp_path / "trained.onnx", x) - trained).max()
    assert off < 2e-3 * np.abs(trained).max()


# --- biases


def test_a_bias_of_floats_is_added_without_rounding() -> None:
    """Integers equal exact arithmetic; onnxruntime first rounds the bias to integers in
    units of the sums, so its results differ by one step where a sum is near a middle.
    """
    rng, node = np.random.default_rng(2), helper.make_node
    x_scale, y_scale = np.float32(0.028), np.float32(0.019)
    constants: dict[str, Any] = {
        "xs": x_scale, "ys": y_scale, "z": np.int8(0),
        "q": rng.integers(-127, 128, (16, 3, 3, 3)).astype(np.int8),
        "s": rng.uniform(0.0012, 0.0016, 16).astype(np.float32),
        "zs": np.zeros(16, np.int8),
        "b": rng.uniform(-0.2, 0.2, 16).astype(np.float32),
    }  # fmt: skip
    constants = {name: np.asarray(value) for name, value in constants.items()}
    nodes = [
        node("QuantizeLinear", ["x", "xs", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "xs", "z"], ["xd"]),
        node("DequantizeLinear", ["q", "s", "zs"], ["w"], axis=0),
        node("Conv", ["xd", "w", "b"], ["c"]),
        node("QuantizeLinear", ["c", "ys", "z"], ["yq"]),
        node("DequantizeLinear", ["yq", "ys", "z"], ["y"]),
    ]
    model = make_model(nodes, constants, (8, 3, 34, 34)).SerializeToString()
    x = rng.standard_normal((8, 3, 34, 34)).astype(np.float32)
    integers = np.clip(np.rint(x / x_scale), -128, 127).astype(np.float64)
    windows: Array = np.lib.stride_tricks.sliding_window_view(integers, (3, 3), (2, 3))
    sums = np.einsum("nchwij,ocij->nohw", windows, constants["q"].astype(np.float64))
    unit = (np.float64(x_scale) * constants["s"]).reshape(-1, 1, 1)
    bias = constants["b"].astype(np.float64).reshape(-1, 1, 1)

    def round_sums(added: Array) -> Array:
        levels = np.rint((sums * unit + added) / np.float64(y_scale))
        return np.asarray(np.clip(levels, -128, 127))

    exact, rounded = round_sums(bias), round_sums(np.rint(bias / unit) * unit)
    ours = np.rint(edgegrad.Session(model, threads=1).run(None, {"x": x})[0] / y_scale)
    assert np.count_nonzero(ours != exact) <= 1  # within a rounding of float32 of a middle
    differences = np.abs(exact - rounded)
    assert differences.max() == 1
    assert np.count_nonzero(differences) > 20
    peer = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    theirs = np.rint(peer.run(None, {"x": x})[0] / y_scale)
    assert np.abs(theirs - exact).max() <= 1
    assert np.count_nonzero(theirs != rounded) < np.count_nonzero(theirs != exact)


# --- the last layer


@pytest.mark.parametrize(("bits", "zeros"), [(2, False), (4, False), (4, True), (8, True)], ids=str)
def test_a_last_layer_of_few_bits_becomes_floats(bits: int, zeros: bool, tmp_path: Path) -> None:
    """MatMulNBits with a bias: its scores stay, it trains, and it may have other classes."""
    model = make_nbits(bits, zeros=zeros)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    x = np.random.default_rng(3).standard_normal((8, 80)).astype(np.float32)
    trainer = edgegrad.Trainer.from_onnx(
        path, "cross_entropy", edgegrad.AdamW(lr=1e-2), train="head", threads=1
    )
    want = run_unrounded(path, x)
    np.testing.assert_allclose(trainer.predict(x), want, atol=1e-5 * np.abs(want).max())
    first, *_, last = (float(trainer.step(x, LABELS)) for _ in range(4))
    assert last < first
    trainer.export(tmp_path / "trained.onnx")
    off = np.abs(run_unrounded(tmp_path / "trained.onnx", x) - trainer.predict(x)).max()
    assert off < 1e-5 * np.abs(want).max()
    other = edgegrad.Trainer.from_onnx(
        path, "cross_entropy", edgegrad.AdamW(lr=1e-2), train="head", classes=6, threads=1
    )
    assert np.asarray(other.predict(x)).shape == (8, 6)
