"""Training as if quantised: gradients pass straight through inside the range, none outside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from engine import backend
from engine.api import CheckpointState, Module
from engine.artifacts import LossType, generate_artifacts
from engine.base.aliases import Array
from engine.errors import DTypeError, ModelError, ShapeError, UnsupportedOpError
from engine.graphs.io import onnx_io
from engine.tools.dev.case_graphs import OneNode, backward_of
from engine.tools.dev.cases.case import Case, fed
from tests.support.harness import get_gradient, run

MODEL = """<ir_version: 8, opset_import: ["": 13]> g (float[N,3] x, float[3,2] w, float[2] s,
int8[2] z, float[2] t) => (float[N,2] y) {{
    low = Constant<value = int8 {{-4}}>()
    high = Constant<value = int8 {{4}}>()
    q = QuantizeLinear<axis=1>(w, s, z)
    c = Clip(q, low, high)
    e = Clip(q, , high)
    d = DequantizeLinear<axis=1>({levels}, {scale}, z)
    y = MatMul(x, d)
}}"""
W = np.array([[0.3, -1.2], [0.74, 5.0], [-9.0, 0.0]], np.float32)
SCALE = np.array([0.25, 0.5], np.float32)
ZERO = np.array([1, -2], np.int8)
X = np.array([[1, 2, 3], [-1, 0, 2]], np.float32)
TARGET = np.array([[1, 0], [2, -1]], np.float32)


def test_the_gradient_is_that_of_pytorch() -> None:
    """torch.fake_quantize_per_tensor_affine(x, 1.0, 0, -2, 2), and its gradient for dy = 1."""
    x = fed([-3, 3, 0, -2, 2, -2.4, 2.6], "float32")
    ins = (x, np.array(1.0, "f4"), np.array(0.0, "f4"))
    attrs = {"quant_min": -2, "quant_max": 2}
    one = OneNode(Case("FakeQuant", ins, attrs, (0,), "com.microsoft"))
    assert run(one.graph, one.inputs)["y0"].tolist() == [-2, 2, 0, -2, 2, -2, 2]
    graph, names = backward_of(one, {"y0": np.ones(7, np.float32)})
    assert run(graph, one.inputs)[names["x0"]].tolist() == [0, 0, 1, 1, 1, 1, 0]


def relax(x: Array, scale: Array, zero: int, low: int, high: int, at: tuple[Array, Array]) -> Array:
    """Round to scales as if each value kept the remainder, and the side, that it has at `at`."""
    there = at[0] / at[1]
    level = np.rint(there) + zero
    bound = np.clip(level, low, high)
    return np.where(level == bound, x / scale + np.rint(there) - there, bound - zero) * scale


def differ(f: Callable[[Array], float], x: Array) -> Array:
    """Return the slope of a function by central differences."""
    slope, step = np.zeros_like(x), 1e-6
    for k in np.ndindex(x.shape):
        there = [x.copy(), x.copy()]
        there[0][k] -= step
        there[1][k] += step
        slope[k] = (f(there[1]) - f(there[0])) / (2 * step)
    return slope


# The op, the shape of the scales, along which axis these lie, the zero point, and attributes.
RELAXED: dict[str, tuple[str, str, int | None, int, dict[str, int]]] = {
    "activations": ("QuantizeDequantize", "engine", None, 3, {"quant_min": 0, "quant_max": 9}),
    "channels": ("QuantizeDequantize", "engine", 1, -2, {"quant_min": -8, "quant_max": 7}),
    "fake": ("FakeQuant", "com.microsoft", None, 2, {"quant_min": 0, "quant_max": 6}),
    "weights": ("RoundWeights", "engine", 0, 0, {"bits": 4}),
    "one weight scale": ("RoundWeights", "engine", None, 0, {"bits": 3}),
}


@pytest.mark.parametrize("kind", RELAXED)
def test_gradients_of_learned_scales_are_those_of_the_relaxed_form(kind: str) -> None:
    """In float64, of values and scales: inside the range, and on both sides outside."""
    op, domain, axis, zero, attrs = RELAXED[kind]
    rng = np.random.default_rng(7)
    x = rng.uniform(-6, 6, (5, 4, 3))
    scale = rng.uniform(0.4, 0.6, () if axis is None else x.shape[axis])
    along = [-1 if k == axis else 1 for k in range(3)] if axis is not None else []
    ins: list[Array] = [x, scale]
    if op == "FakeQuant":
        ins.append(np.array(zero, np.float64))
    elif op == "QuantizeDequantize":
        ins.append(np.full(scale.shape, zero, np.int8))
    tensors = (fed(x, "float64"), fed(scale, "float64"), *ins[2:])
    given = attrs if axis is None else {**attrs, "axis": axis}
    one = OneNode(Case(op, tensors, given, (0, 1), domain))
    top = 2 ** (attrs.get("bits", 1) - 1) - 1
    low, high = attrs.get("quant_min", -top), attrs.get("quant_max", top)
    dy = rng.standard_normal(x.shape)
    graph, names = backward_of(one, {"y0": dy})
    made = run(graph, one.inputs)
    at = x, scale.reshape(along)

    def lose(x: Array, scale: Array) -> float:
        return float((dy * relax(x, scale.reshape(along), zero, low, high, at)).sum())

    level = np.rint(x / at[1]) + zero
    assert {-1, 0, 1} == {*np.sign(level - np.clip(level, low, high)).reshape(-1)}
    for name, want in (
        ("x0", differ(lambda v: lose(v, scale), x)),
        ("x1", differ(lambda v: lose(x, v), scale)),
    ):
        np.testing.assert_allclose(made[names[name]], want, rtol=1e-7, atol=1e-7, err_msg=name)


def artifacts(folder: Path, levels: str = "q", scale: str = "s") -> Path:
    proto = parser.parse_model(MODEL.format(levels=levels, scale=scale))
    values: dict[str, np.ndarray] = {"w": W, "s": SCALE, "z": ZERO, "t": SCALE * 2}
    for value in list(proto.graph.input)[1:]:
        proto.graph.initializer.append(numpy_helper.from_array(values[value.name], value.name))
        proto.graph.input.remove(value)
    generate_artifacts(
        proto, requires_grad=["w"], loss=LossType.MSELoss, artifact_directory=folder
    )  # fmt: skip
    return folder


@pytest.mark.parametrize(
    ("levels", "low", "high"), [("q", -128, 127), ("c", -4, 4), ("e", -128, 4)]
)
def test_weights_train_as_if_quantised(tmp_path: Path, levels: str, low: int, high: int) -> None:
    artifacts(tmp_path, levels)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(
        tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx", threads=1
    )
    loss = module(X, TARGET)
    level = np.rint(W / SCALE) + ZERO
    error = X @ ((np.clip(level, low, high) - ZERO) * SCALE) - TARGET
    np.testing.assert_allclose(loss, np.mean(error**2), rtol=1e-6)
    inside = (level >= low) & (level <= high)
    assert 0 < inside.sum() <= 6 - (high == 4)
    expected = np.where(inside, X.T @ error * 2 / error.size, 0)
    np.testing.assert_allclose(get_gradient(state, "w"), expected, rtol=1e-6)
    np.testing.assert_allclose(module.eval()(X, TARGET), loss, rtol=1e-6)
    kinds = [
        [n.op for n in onnx_io.load(tmp_path / f"{name}_model.onnx").nodes]
        for name in ("training", "eval")
    ]
    assert "FakeQuant" in kinds[0]
    assert "QuantizeLinear" not in kinds[0]
    assert "DequantizeLinear" in kinds[1]


def test_scales_that_differ_are_no_round_trip(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not depend on them, or only through inputs"):
        artifacts(tmp_path, scale="t")


def four_bits(nodes: str, kind: str = "int4") -> onnx.ModelProto:
    """y of x[2,4], with constants q[4,3], z[2,3] of 4 bits and s[2,3]."""
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[2,4] x, {kind}[4,3] q,
    {kind}[2,3] z, float[2,3] s) => (float[2,3] y) {{{nodes}}}"""
    proto = parser.parse_model(text)
    dtype = getattr(ml_dtypes, kind)
    values = {"q": Q.astype(dtype), "z": Z.astype(dtype), "s": S}
    for value in list(proto.graph.input)[1:]:
        proto.graph.initializer.append(numpy_helper.from_array(values[value.name], value.name))
        proto.graph.input.remove(value)
    return proto


Q = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 0], [1, 2, 3]])
Z = np.array([[1, 2, 3], [4, 5, 6]])
S = np.array([[0.5, 1, 2], [3, 0.25, 1]], np.float32)
BLOCKS = "d = DequantizeLinear<axis=0, block_size=2>(q, s, z) y = MatMul(x, d)"


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize("is_external", [False, True])
def test_weights_of_four_bits(tmp_path: Path, kind: str, is_external: bool) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(
        four_bits(BLOCKS, kind), path, save_as_external_data=is_external, size_threshold=0,
        location="data",
    )  # fmt: skip
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    (y,) = backend.prepare(str(path)).run([x])
    weights = (Q - np.repeat(Z, 2, axis=0)) * np.repeat(S, 2, axis=0)
    np.testing.assert_allclose(y, x @ weights, rtol=1e-6)


def test_four_bits_are_refused_where_bytes_would_differ() -> None:
    nodes = """t = Transpose(z) zz = Transpose(t)
    q2 = QuantizeLinear<axis=0, block_size=2>(x, s, zz)
    y = DequantizeLinear<axis=0, block_size=2>(q2, s, z)"""
    with pytest.raises(DTypeError, match=r"QuantizeLinear '.*' reads 'zz' with 4 bits per element"):
        backend.prepare(four_bits(nodes))


@pytest.mark.parametrize("is_product", [True, False])
def test_quantisers_write_scales_below_0_and_of_0(is_product: bool) -> None:
    """onnxruntime's of 4 bits does: where the largest weight is -8 times it, and for zeros."""
    nodes = (
        BLOCKS
        if is_product
        else BLOCKS.replace("y = MatMul(x, d)", "i = Identity(d)")
        + """
        y = MatMul(x, i)"""
    )
    proto = four_bits(nodes, "int4")
    scales = np.array([[-0.5, 1, 0], [3, -0.25, -0.0]], np.float32)
    tensor = next(t for t in proto.graph.initializer if t.name == "s")
    tensor.CopyFrom(numpy_helper.from_array(scales, "s"))
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    weights = (Q - np.repeat(Z, 2, axis=0)) * np.repeat(scales, 2, axis=0)
    (y,) = backend.prepare(proto).run([x])
    np.testing.assert_allclose(y, x @ weights, rtol=1e-6)


WEIGHTS = "DequantizeLinear<axis=0>(q, s, z) y = MatMul(x, d)"
LINEAR = "QLinearMatMul(x, xs, xz, q, s, z, ys, yz)"
REFUSED: dict[str, tuple[str, dict[str, object], str]] = {
    "a scale of 0": (WEIGHTS, {"s": 0.0}, r"scale \(input 1\) is 0.0; .*other than 0"),
    "a scale of NaN": (WEIGHTS, {"s": [1, np.nan, 2, 1]}, r"scale \(input 1\) is nan at \[1\]"),
    "a factor of 0": (LINEAR, {"xs": 0.0}, r"scale \(input 1\) is 0.0; .*other than 0"),
    "a divisor of 0": (LINEAR, {"ys": 0.0}, r"scale \(input 6\) is 0.0; .* above 0"),
    "a divisor below 0": (LINEAR, {"ys": -0.5}, r"scale \(input 6\) is -0.5; .* above 0"),
    "too few scales": (WEIGHTS, {"s": [1, 1, 1]}, r"input 1 .*expected the shape \[4\]"),
    "a block below 0": (WEIGHTS.replace("=0>", "=0, block_size=-2>"), {}, "block_size is -2"),
    "blocks that do not divide": (
        WEIGHTS.replace("=0>", "=0, block_size=3>"), {"s": np.ones((1, 3)), "z": 0},
        r"input 1 .*expected the shape \[2, 3\]",
    ),
    "mixed signs": (WEIGHTS, {"z": np.uint8(3)}, r"\(input 2\) is u8\[\], but the "
    r"integers are i8\[4,3\]"),
    "a result's scale": (LINEAR, {"ys": np.inf}, r"scale \(input 6\) is inf"),
    "scales of columns": (LINEAR, {"s": [1, 1]}, r"input 4\) is f32\[2\]; .* 1 element, or 3"),
    "signs of a column": (LINEAR, {"z": np.uint8(3)}, r"\(input 5\) .* are i8\[4,3\] \(input 3\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_integers_can_stand_for_is_refused_by_node(case: str) -> None:
    nodes, changed, words = REFUSED[case]
    kinds = {"s": np.float32, "xs": np.float32, "ys": np.float32}
    values: dict[str, object] = {
        "q": np.arange(12, dtype=np.int8).reshape(4, 3), "s": 0.5, "z": np.int8(0), "xs": 0.5,
        "xz": np.uint8(0), "ys": 0.5, "yz": np.uint8(0),
    } | changed  # fmt: skip
    x, y = ("uint8", "uint8") if nodes == LINEAR else ("float", "float")
    proto = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]> g ({x}[2,4] x) => ({y}[2,3] y) {{
            {"y" if nodes == LINEAR else "d"} = {nodes}
        }}"""
    )
    proto.graph.node[0].name = "weights"
    for name, value in values.items():
        kind = kinds.get(name, np.asarray(value).dtype if name != "z" or value != 0 else np.int8)
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value, kind), name))
    with pytest.raises((UnsupportedOpError, ShapeError, DTypeError), match=f"'weights' .*{words}"):
        backend.prepare(proto).run([np.ones((2, 4), np.dtype(x.replace("float", "float32")))])
