"""Operators on integers that onnxruntime's quantiser writes, beside onnxruntime itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization as peer

import edgegrad
from engine.base.aliases import Array
from engine.errors import EngineError
from engine.graphs.io import onnx_io
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host

MS = "com.microsoft"
RNG = np.random.default_rng(0)


def draw(*shape: int, scale: float = 1.0) -> Array:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def build(
    nodes: list[onnx.NodeProto], x: Any, y: int = TensorProto.FLOAT, **constants: Array
) -> onnx.ModelProto:
    """y of x and of constants; y: its element type."""
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", *x)],
        [helper.make_tensor_value_info("y", y, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run_peer(model: onnx.ModelProto, x: Array) -> Array:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, {"x": x})[0])


class Samples(peer.CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """Some batches for onnxruntime's quantiser."""

    def __init__(self, batches: list[Array]) -> None:
        self.batches = iter(batches)

    def get_next(self) -> Any:
        return {"x": x} if (x := next(self.batches, None)) is not None else None


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_network_of_all_of_them(tmp_path: Path, per_channel: bool) -> None:
    """Convolutions, a residual sum, pools, a product, activations, Concat and Gemm."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["d"], pads=[1] * 4),
        helper.make_node("Add", ["r", "d"], ["s"]),
        helper.make_node("Sigmoid", ["s"], ["g"]),
        helper.make_node("Mul", ["s", "g"], ["m"]),
        helper.make_node("LeakyRelu", ["m"], ["l"], alpha=0.2),
        helper.make_node("AveragePool", ["l"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Concat", ["p", "p"], ["cc"], axis=1),
        helper.make_node("GlobalAveragePool", ["cc"], ["a"]),
        helper.make_node("Flatten", ["a"], ["f"]),
        helper.make_node("Gemm", ["f", "u", "t"], ["y"], transB=1),
    ]
    model = build(
        nodes, (TensorProto.FLOAT, ["n", 3, 8, 8]), w=draw(8, 3, 3, 3, scale=0.3), b=draw(8),
        v=draw(8, 8, 3, 3, scale=0.1), u=draw(5, 16, scale=0.3), t=draw(5),
    )  # fmt: skip
    onnx.save(onnx.shape_inference.infer_shapes(model), tmp_path / "float.onnx")
    x = draw(6, 3, 8, 8)
    peer.quantize_static(
        tmp_path / "float.onnx", tmp_path / "int8.onnx", Samples([x]),
        quant_format=peer.QuantFormat.QOperator, per_channel=per_channel,
        weight_type=peer.QuantType.QInt8,
    )  # fmt: skip
    made = onnx.load(tmp_path / "int8.onnx")
    ops = {node.op_type for node in made.graph.node}
    assert {"QLinearConv", "QGemm", "QLinearAdd", "QLinearConcat", "QLinearMul"} <= ops
    session = edgegrad.Session(tmp_path / "int8.onnx", threads=1)
    (ours,), wanted = session.run(None, {"x": x}), run_peer(made, x)
    last = next(n for n in made.graph.node if n.op_type == "DequantizeLinear")
    scale = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}[last.input[1]]
    # Sums of residuals and pools are rounded differently there: a step, and a step that follows.
    assert np.abs(ours - wanted).max() <= 2.001 * float(scale)
    plan = make_plan(onnx_io.load(made), {"x": x.shape}, target=detect_host(), threads=1)
    kernels = [step.kernel for step in plan.steps]
    assert sum(k.startswith("integer_conv") for k in kernels) == 2
    assert sum(k.startswith("integer_gemm") for k in kernels) == 1


@pytest.mark.parametrize("alpha", [1.0, 0.3])
@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("is_float", [False, True])
def test_gemm_is_one_integer_step(trans: int, is_float: bool, alpha: float) -> None:
    """Its alpha scales the bias, too, as in onnxruntime."""
    x = RNG.integers(0, 256, (7, 21)).astype(np.uint8)
    w = RNG.integers(-127, 128, (10, 21) if trans else (21, 10)).astype(np.int8)
    scales = RNG.uniform(0.001, 0.01, 10).astype(np.float32)
    names = ["x", "xs", "xz", "w", "ws", "wz", "b", *([] if is_float else ["ys", "yz"])]
    node = helper.make_node("QGemm", names, ["y"], domain=MS, transB=trans, alpha=alpha)
    model = build(
        [node], (TensorProto.UINT8, [7, 21]), xs=np.array(0.02, np.float32),
        xz=np.array(130, np.uint8), w=w, ws=scales, wz=np.zeros(10, np.int8),
        b=RNG.integers(-900, 900, 10).astype(np.int32), ys=np.array(0.1, np.float32),
        yz=np.array(9, np.uint8), y=TensorProto.FLOAT if is_float else TensorProto.UINT8,
    )  # fmt: skip
    (ours,) = edgegrad.Session(model.SerializeToString(), threads=1).run(None, {"x": x})
    wanted = run_peer(model, x)
    assert ours.dtype == wanted.dtype
    if is_float:
        np.testing.assert_allclose(ours, wanted, rtol=1e-6)
    else:
        np.testing.assert_array_equal(ours, wanted)
    plan = make_plan(onnx_io.load(model), {}, target=detect_host(), threads=1)
    assert [step.kernel.split("_u8")[0] for step in plan.steps] == ["integer_gemm"]


def test_attention_has_its_product_in_integers(tmp_path: Path) -> None:
    """As onnxruntime's quantiser writes it, with scales that are computed."""
    nodes = [
        helper.make_node("Attention", ["x", "w", "b"], ["a"], domain=MS, num_heads=2),
        helper.make_node("MatMul", ["a", "v"], ["y"]),
    ]
    model = build(
        nodes, (TensorProto.FLOAT, ["n", 6, 16]), w=draw(16, 48, scale=0.3), b=draw(48),
        v=draw(16, 8, scale=0.3),
    )  # fmt: skip
    source, made = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    onnx.save(model, source)
    x = draw(3, 6, 16)
    peer.quantize_dynamic(source, made, weight_type=peer.QuantType.QInt8, per_channel=True)
    written = onnx.load(made)
    assert "QAttention" in {node.op_type for node in written.graph.node}
    (ours,) = edgegrad.Session(made, threads=1).run(None, {"x": x})
    wanted = run_peer(written, x)
    # A float sum near the middle of two integers may round the other way: a step of one value.
    near = np.abs(ours - wanted) / np.abs(wanted).max()
    assert np.quantile(near, 0.9) < 1e-5
    assert near.max() < 1 / 127
    plan = make_plan(onnx_io.load(written), {"x": x.shape}, target=detect_host(), threads=1)
    assert sum(step.kernel.startswith("integer_gemm") for step in plan.steps) == 2


@pytest.mark.parametrize("is_causal", [0, 1])
@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("mask", ["none", "lengths", "ends", "keys", "pairs"])
def test_attention_has_masks_and_keys_from_before(mask: str, past: int, is_causal: int) -> None:
    """Equal to onnxruntime's, for masks of all ranks that its kernel takes."""
    keys, rng = 5 + past, np.random.default_rng(7)
    constants: dict[str, Any] = {
        "w": rng.integers(-128, 128, (8, 24)).astype(np.int8), "b": draw(24),
        "xs": np.array(0.02, np.float32), "ws": rng.uniform(0.005, 0.02, 24).astype(np.float32),
        "xz": np.array(120, np.uint8), "wz": np.zeros(24, np.int8),
    }  # fmt: skip
    hidden = rng.integers(0, 2, (2, 5, keys) if mask == "pairs" else (2, keys)).astype(np.int32)
    hidden[..., 0] = 1  # a query that sees no key has no answer
    masks = {
        "lengths": np.array([3, keys], np.int32),
        "ends": np.array([keys - 1, keys, 1, 0], np.int32),
    }
    if mask != "none":
        constants["m"] = masks.get(mask, hidden)
    if past:
        constants["p"] = draw(2, 2, 2, past, 4)
    names = ["x", "w", "b", "xs", "ws", "m" if mask != "none" else "", "xz", "wz"]
    node = helper.make_node(
        "QAttention", [*names, *(["p"] if past else [])], ["y", *(["present"] if past else [])],
        domain=MS, num_heads=2, unidirectional=is_causal,
    )  # fmt: skip
    model = build([node], (TensorProto.UINT8, [2, 5, 8]), **constants)
    x = rng.integers(0, 256, (2, 5, 8)).astype(np.uint8)
    (ours,) = edgegrad.Session(model.SerializeToString(), threads=1).run(None, {"x": x})
    np.testing.assert_allclose(ours, run_peer(model, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("xs", np.array(0.0, np.float32), r"scale \(input 2\) is 0\.0"),
        ("ws", np.array([0.1, np.nan, 0.1], np.float32), r"scale \(input 3\) is nan at \[1\]"),
        (
            "ws",
            np.array([0.1, 0.1], np.float32),
            r"input 3\) is f32\[2\]; supported: 1 element, or 3",
        ),
        ("wz", np.zeros(3, np.uint8), "one type"),
    ],
)
def test_scales_of_sums_are_checked(name: str, value: Array, error: str) -> None:
    constants: dict[str, Any] = {
        "xs": np.array(0.1, np.float32), "xz": np.array(3, np.uint8),
        "w": np.ones((4, 3), np.int8), "ws": np.full(3, 0.1, np.float32),
        "wz": np.zeros(3, np.int8),
    } | {name: value}  # fmt: skip
    node = helper.make_node("MatMulIntegerToFloat", ["x", "w", "xs", "ws", "xz", "wz"], ["y"],
                            domain=MS, name="layer")  # fmt: skip
    model = build([node], (TensorProto.UINT8, [2, 4]), **constants)
    with pytest.raises(EngineError, match=f"layer.*{error}"):
        make_plan(onnx_io.load(model), {}, target=detect_host(), threads=1)


@pytest.mark.parametrize(("i", "n"), [(240, 320), (12, 20)])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_a_recurrence_has_8_bit_weights(tmp_path: Path, direction: str, i: int, n: int) -> None:
    """As onnxruntime's quantiser writes it; of one sample, everything is rounded as there."""
    d = 1 if direction == "forward" else 2
    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["y", "h"], hidden_size=n,
                            direction=direction)  # fmt: skip
    model = build(
        [node], (TensorProto.FLOAT, [9, "batch", i]), w=draw(d, 4 * n, i, scale=0.06),
        r=draw(d, 4 * n, n, scale=0.06), b=draw(d, 8 * n, scale=0.1),
    )  # fmt: skip
    source, made = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    onnx.save(model, source)
    x = draw(9, 2, i)
    peer.quantize_dynamic(source, made)
    written = onnx.load(made)
    assert [node.op_type for node in written.graph.node] == ["DynamicQuantizeLSTM"]
    session = edgegrad.Session(made, threads=1)
    (ours,) = session.run(["y"], {"x": x})
    assert np.abs(ours - run_peer(model, x)).max() < 0.03
    # The samples of a batch have ranges of their own here, and a common one there.
    assert np.abs(ours - run_peer(written, x)).max() < 0.005
    alone, theirs = session.run(["y"], {"x": x[:, :1]})[0], run_peer(written, x[:, :1])
    # A state in the middle of two integers may round to the other one.
    assert np.abs(alone - theirs).max() < 0.001
    assert np.median(np.abs(alone - theirs)) < 1e-6
    assert np.abs(alone - theirs).mean() < 1e-4
    # The plan holds large weights in 8 bits; a column of them has a bias, two sums and two scales.
    plan = make_plan(onnx_io.load(written), {"x": x.shape}, target=detect_host(), threads=1)
    assert plan.compute_region_bytes("const") < d * 4 * n * (i + n + 4 * 5) + 4096


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("w", np.ones((1, 5, 12), np.float32), r"W \(input 1\) is f32\[1,5,12\]; supported: u8"),
        ("ws", np.full(2, 0.1, np.float32), r"W_scale \(input 8\) is f32\[2\]; supported: \[1\]"),
        ("rs", np.ones((1, 3), np.float32), r"R_scale \(input 10\) is f32\[1,3\]; .*\[1,12\]"),
        ("ws", np.full(1, 0.1, np.float64), r"W_scale \(input 8\) is f64\[1\]; supported: f32"),
        ("rs", np.array([np.nan], np.float32), r"scale \(input 10\) is nan at \[0\]"),
        (
            "wz",
            np.zeros(1, np.uint8),
            r"zero point \(input 9\) is u8\[1\], but the integers are i8\[1,5,12\] \(input 1\)",
        ),
        ("rz", np.zeros((12,), np.int8), r"R_zero_point \(input 11\) is i8\[12\]"),
        ("w", np.ones((1, 4, 12), np.int8), r"expected the shape \[1, 12, 5\]"),
    ],
)
def test_weights_of_recurrences_are_checked(name: str, value: Array, error: str) -> None:
    constants: dict[str, Any] = {
        "w": np.ones((1, 5, 12), np.int8), "r": np.ones((1, 3, 12), np.int8),
        "ws": np.full(1, 0.1, np.float32), "wz": np.zeros(1, np.int8),
        "rs": np.full((1, 12), 0.1, np.float32), "rz": np.zeros((1, 12), np.int8),
    } | {name: value}  # fmt: skip
    ins = ["x", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"]
    node = helper.make_node("DynamicQuantizeLSTM", ins, ["y"], domain=MS, name="layer",
                            hidden_size=3)  # fmt: skip
    model = build([node], (TensorProto.FLOAT, [4, 2, 5]), **constants)
    with pytest.raises(EngineError, match=f"layer.*{error}"):
        make_plan(onnx_io.load(model), {}, target=detect_host(), threads=1)
