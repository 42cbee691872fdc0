"""Frozen layers in integers: sums and roundings equal to their definition, on every instruction
set.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bench.programs import load
from engine.base.aliases import Array
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.integers import GROUP, PANEL, pack_panels
from tests.support.harness import run
from tests.support.integer_targets import find_target

PASS = "compute in integers"
RNG = np.random.default_rng(0)
KINDS = {"u8": np.uint8, "i8": np.int8}


def draw(shape: tuple[int, ...], kind: str = "i8") -> Array:
    """Integers over the whole range of a type, its ends among them."""
    info = np.iinfo(KINDS[kind])
    out = RNG.integers(info.min, info.max + 1, shape).astype(KINDS[kind])
    out.flat[0], out.flat[-1] = info.min, info.max
    return out


def build(nodes: list[onnx.NodeProto], x: Array, **constants: Array) -> Graph:
    """y of x and of constants."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21)]
    return onnx_io.load(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def list_kernels(graph: Graph, x: Array) -> set[str]:
    plan = make_plan(graph, {"x": x.shape}, target=detect_host(), threads=1)
    return {step.kernel.split("_u8")[0].split("_i8")[0] for step in plan.steps}


def quantise(real: Array, scale: Array, zero: Array) -> Array:
    """QuantizeLinear's definition, in float32."""
    info = np.iinfo(zero.dtype)
    level = np.rint(real.astype(np.float32) / scale)
    return np.clip(level.astype(np.float64) + float(zero), info.min, info.max).astype(zero.dtype)


def requantise(sums: Array, factor: Array, zero: Array) -> Array:
    """Scale and round sums as onnxruntime defines it: one product, one rounding, ties to even."""
    info = np.iinfo(zero.dtype)
    level = np.rint(sums.astype(np.float32) * factor.astype(np.float32)).astype(np.float64)
    return np.clip(level + float(zero), info.min, info.max).astype(zero.dtype)


def convolve(x: Array, w: Array, stride: int, pad: int, dilation: int, groups: int) -> Array:
    """The exact sums of a convolution of integers [n, c, h, w]."""
    x = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    size = [(x.shape[i] - dilation * (w.shape[i] - 1) - 1) // stride + 1 for i in (2, 3)]
    out = np.zeros((len(x), len(w), *size), np.int64)
    per, filters = w.shape[1], len(w) // groups
    for g in range(groups):
        mine, theirs = x[:, g * per : (g + 1) * per], w[g * filters : (g + 1) * filters]
        for i, j in itertools.product(range(w.shape[2]), range(w.shape[3])):
            window = mine[
                :, :,
                i * dilation : i * dilation + (size[0] - 1) * stride + 1 : stride,
                j * dilation : j * dilation + (size[1] - 1) * stride + 1 : stride,
            ]  # fmt: skip
            part = np.einsum("nchw,oc->nohw", window, theirs[:, :, i, j].astype(np.int64))
            out[:, g * filters : (g + 1) * filters] += part
    return out


SCALE = np.array(0.03, np.float32)
# On this CPU, and on those without its instructions.
TARGETS = ("native", "x86-64-v3", "evex", *(pytest.param(t, marks=pytest.mark.whole) for t in
           ("x86-64-v4", "x86-64-v2")))  # fmt: skip


def draw_weights(shape: tuple[int, ...], columns: int, kind: str) -> tuple[Array, Array]:
    """Weights, and zero points of columns: 0 of int8; of uint8 any, so that 9 bits are used.

    The first column of uint8 stands for 255 and the last one for -255, which are the ends.
    """
    if kind == "i8":
        return draw(shape), np.zeros(columns, np.int8)
    weights, zeros = draw(shape, kind), RNG.integers(0, 256, columns).astype(np.uint8)
    of_columns = np.moveaxis(weights, 0 if len(shape) == 4 else 1, 0)
    for column, end in ((0, 255), (-1, 0)):
        of_columns[column], zeros[column] = end, 255 - end
    return weights, zeros


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("weights", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_exact(kind: str, weights: str, target: str) -> None:
    """Ragged rows, sums and columns; all of one or several panels, on one and two threads."""
    own = find_target(target)
    zero, y_zero = np.array(7, KINDS[kind]), np.array(11, KINDS[kind])
    node = helper.make_node("QLinearMatMul", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"])
    for m, k, n, threads in ((13, 37, 150, 2), (1, 4, 16, 1), (7, 3, 1, 1), (3, 130, 40, 2)):
        x, (w, wz) = draw((m, k), kind), draw_weights((k, n), n, weights)
        ws = RNG.uniform(0.001, 0.01, n).astype(np.float32)
        ys = np.array(k * 0.01, np.float32)
        constants: dict[str, Any] = {
            "xs": SCALE,
            "xz": zero,
            "w": w,
            "ws": ws,
            "wz": wz,
            "ys": ys,
            "yz": y_zero,
        }
        graph = build([node], x, **constants)
        assert list_kernels(graph, x) == {"integer_gemm"}
        made = run(graph, {"x": x}, threads=threads, target=own)["y"]
        sums = (x.astype(np.int64) - int(zero)) @ (w.astype(np.int64) - wz)
        np.testing.assert_array_equal(made, requantise(sums, SCALE * ws / ys, y_zero))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("weights", KINDS)
@pytest.mark.parametrize(("channels", "filters", "groups", "taps", "stride", "pad", "dilation"), [
    (19, 24, 1, 3, 2, 1, 1), (3, 40, 1, 3, 1, 2, 2), (24, 24, 24, 3, 1, 1, 1),
    (40, 40, 40, 5, 2, 2, 1), (16, 33, 1, 1, 1, 0, 1), (112, 112, 112, 3, 2, 1, 1),
    (203, 203, 203, 5, 1, 2, 1), (9, 9, 9, 3, 1, 1, 2),
])  # fmt: skip
def test_convolutions_are_exact(
    channels: int, filters: int, groups: int, taps: int, stride: int, pad: int, dilation: int,
    weights: str, target: str,
) -> None:  # fmt: skip
    """Dense, dilated, depthwise and 1x1; windows see zero points outside of the image."""
    own = find_target(target)
    zero, y_zero = np.array(131, np.uint8), np.array(120, np.uint8)
    x = draw((2, channels, 9, 8), "u8")
    w, wz = draw_weights((filters, channels // groups, taps, taps), filters, weights)
    b = RNG.integers(-5000, 5000, filters).astype(np.int32)
    ws = RNG.uniform(0.001, 0.01, filters).astype(np.float32)
    ys = np.array(0.7, np.float32)
    node = helper.make_node(
        "QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], ["y"], group=groups,
        pads=[pad] * 4, strides=[stride] * 2, dilations=[dilation] * 2,
    )  # fmt: skip
    constants: dict[str, Any] = {
        "xs": SCALE,
        "xz": zero,
        "w": w,
        "ws": ws,
        "wz": wz,
        "ys": ys,
        "yz": y_zero,
        "b": b,
    }
    graph = build([node], x, **constants)
    assert any("integer" in kernel for kernel in list_kernels(graph, x))
    centred = w.astype(np.int64) - wz.reshape(-1, 1, 1, 1)
    sums = convolve(x.astype(np.int64) - int(zero), centred, stride, pad, dilation, groups)
    across = (1, -1, 1, 1)
    sums += b.reshape(across)
    wanted = requantise(sums, (SCALE * ws / ys).reshape(across), y_zero)
    for threads in (1, 2):
        made = run(graph, {"x": x}, threads=threads, target=own)["y"]
        np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("weights", KINDS)
def test_sums_are_results_too(weights: str) -> None:
    """MatMulInteger, with a zero point of activations that is computed."""
    x, w = draw((5, 21), "u8"), draw((21, 18), weights)
    wz = np.array(121 if weights == "u8" else 0, KINDS[weights])
    cast = helper.make_node("Cast", ["p"], ["xz"], to=TensorProto.UINT8)
    nodes = [
        helper.make_node("ReduceMin", ["f"], ["p"], keepdims=0),
        cast,
        helper.make_node("MatMulInteger", ["x", "w", "xz", "wz"], ["y"]),
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
    ]
    graph = build([nodes[3], *nodes[:3]], x + np.uint8(3), w=w, wz=wz)
    fed = np.maximum(x, 3)
    assert "integer_gemm" in list_kernels(graph, fed)
    made = run(graph, {"x": fed})["y"]
    np.testing.assert_array_equal(
        made, (fed.astype(np.int64) - int(fed.min())) @ (w.astype(np.int64) - int(wz))
    )
    assert made.dtype == np.int32


@pytest.mark.parametrize("between", ["", "Relu", "Clip"])
@pytest.mark.parametrize("reader", ["Conv", "Gemm", "MatMul"])
def test_layers_between_quantisers_become_one_step(reader: str, between: str) -> None:
    shape = (2, 6, 5, 5) if reader == "Conv" else (4, 6)
    x = draw(shape, "u8")
    w = draw((10, 6, 1, 1) if reader == "Conv" else (10, 6) if reader == "Gemm" else (6, 10))
    axis = 1 if reader == "MatMul" else 0
    ws = RNG.uniform(0.001, 0.01, 10).astype(np.float32)
    b = RNG.integers(-900, 900, 10).astype(np.int32)
    xz, ys, yz = np.array(100, np.uint8), np.array(0.1, np.float32), np.array(-20, np.int8)
    has_bias = reader != "MatMul"
    how: dict[str, Any] = {"transB": 1} if reader == "Gemm" else {}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["v"], axis=axis),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["c"], axis=0),
        helper.make_node(
            reader, ["d", "v", "c"][: 2 + has_bias], ["r"],
            **how,
        ),
    ]  # fmt: skip
    if between:
        bounds = ["", "lo", "hi"] if between == "Clip" else []
        nodes.append(helper.make_node(between, ["r", *bounds[1:]], ["t"]))
    nodes.append(helper.make_node("QuantizeLinear", ["t" if between else "r", "ys", "yz"], ["y"]))
    lo, hi = np.array(-0.5, np.float32), np.array(1.3, np.float32)
    graph = build(
        nodes, x, xs=SCALE, xz=xz, w=w, ws=ws, b=b, bs=SCALE * ws, ys=ys, yz=yz, lo=lo, hi=hi
    )
    # Beside copies to channels-last and back.
    assert {k for k in list_kernels(graph, x) if "copy" not in k} == {"integer_gemm"}
    matrix = w.reshape(10, 6).T if reader != "MatMul" else w
    rows = x.transpose(0, 2, 3, 1).reshape(-1, 6) if reader == "Conv" else x
    sums = (rows.astype(np.int64) - 100) @ matrix.astype(np.int64) + b * has_bias
    wanted = requantise(sums, SCALE * ws / ys, yz)
    least, most = {"": (-128, 127), "Relu": (-20, 127)}.get(
        between, (int(quantise(lo, ys, yz)), int(quantise(hi, ys, yz)))
    )
    wanted = np.clip(wanted, least, most)
    made = run(graph, {"x": x})["y"]
    made = made.transpose(0, 2, 3, 1).reshape(-1, 10) if reader == "Conv" else made
    np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("bias", ["none", "integers", "floats", "rows"])
@pytest.mark.parametrize(
    ("alpha", "beta", "trans"), [(0.5, 2.0, 0), (-3.0, 0.0, 1), (2.0, -0.25, 1)]
)
def test_gemm_has_factors_and_a_transposed_input(
    alpha: float, beta: float, trans: int, bias: str
) -> None:
    x, w = draw((6, 4) if trans else (4, 6), "u8"), draw((6, 10))
    ws = RNG.uniform(0.001, 0.01, 10).astype(np.float32)
    unit = SCALE * ws * np.float32(alpha)
    constants: dict[str, Array] = {"xs": SCALE, "xz": np.array(100, np.uint8), "w": w, "ws": ws}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["v"], axis=1),
    ]
    added: Array = np.zeros(10)
    if bias == "integers":  # in units of the sums, as beta scales them
        b = RNG.integers(-900, 900, 10).astype(np.int32)
        bs = np.abs(unit / np.float32(beta or 1))
        b = (b * np.sign(alpha * (beta or 1))).astype(np.int32)
        constants |= {"b": b, "bs": bs}
        nodes.append(helper.make_node("DequantizeLinear", ["b", "bs"], ["c"], axis=0))
        added = b * bs.astype(np.float64)
    elif bias != "none":
        c = RNG.standard_normal((4, 1) if bias == "rows" else 10).astype(np.float32)
        constants["c"], added = c, c.astype(np.float64)
    inputs = ["d", "v"] if bias == "none" else ["d", "v", "c"]
    nodes.append(helper.make_node("Gemm", inputs, ["y"], alpha=alpha, beta=beta, transA=trans))
    graph = build(nodes, x, **constants)
    assert "integer_gemm" in list_kernels(graph, x)
    rows = (x.T if trans else x).astype(np.int64) - 100
    wanted = (rows @ w.astype(np.int64)) * unit.astype(np.float64) + beta * added
    made = run(graph, {"x": x})["y"]
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_layers_of_other_scales_share_their_kernels() -> None:
    """Sums of what layers make: a model with many compiles no more than one with a single sum."""
    x = draw((2, 6, 5, 5), "u8")

    def plan_kernels(scale: float, zero: int) -> set[str]:
        nodes = [
            helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["d"]),
            helper.make_node("Sigmoid", ["d"], ["s"]),
            helper.make_node("Add", ["d", "s"], ["t"]),
            helper.make_node("QuantizeLinear", ["t", "xs", "xz"], ["y"]),
        ]
        xs, xz = np.array(scale, np.float32), np.array(zero, np.uint8)
        graph = build(nodes, x, xs=xs, xz=xz)
        real = (x.astype(np.float32) - zero) * xs
        wanted = quantise(real + 1 / (1 + np.exp(-real)), xs, xz)
        assert np.abs(run(graph, {"x": x})["y"].astype(int) - wanted).max() <= 1
        return list_kernels(graph, x)

    assert plan_kernels(0.03, 7) == plan_kernels(0.0171, 120)


NEAR_MISSES: dict[str, dict[str, Any]] = {
    "weights that are computed": {"w": None},
    "activations scaled by column": {"xs": np.full(6, 0.03, np.float32),
                                     "xz": np.full(6, 100, np.uint8)},
}  # fmt: skip


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_other_layers_stay_as_they_are(case: str) -> None:
    x = draw((4, 6), "u8")
    changed = {"wz": np.array(0, np.int8), "w": draw((6, 10)), "xs": SCALE,
               "xz": np.array(100, np.uint8)} | NEAR_MISSES[case]  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["d"], axis=1),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["v"]),
        helper.make_node("MatMul", ["d", "v"], ["y"]),
    ]
    if changed["w"] is None:
        nodes.insert(0, helper.make_node("Concat", ["x", "rest"], ["w"], axis=0))
        nodes[0] = helper.make_node("Gather", ["x", "rest"], ["w"], axis=0)
        changed |= {"rest": np.zeros(6, np.int64), "wz": np.array(0, np.uint8)}
        del changed["w"]
    graph = build(nodes, x, ws=np.array(0.01, np.float32), **changed)
    assert not any("integer" in k for k in list_kernels(graph, x))
    kept = run(graph, {"x": x}, without=(PASS,))["y"]
    np.testing.assert_allclose(run(graph, {"x": x})["y"], kept, rtol=1e-6)


def test_a_program_keeps_large_constants_once() -> None:
    """Weights are in region const alone, and are part of the plan that is read again."""
    x, w = draw((4, 600), "u8"), draw((600, 200))
    graph = build([helper.make_node("MatMulInteger", ["x", "w"], ["y"])], x, w=w)
    program = load(graph, 1, {"x": x})
    assert program.nbytes < 1.5 * w.nbytes
    target = detect_host()
    assert program.plan == make_plan(graph, {"x": x.shape}, target=target, threads=1)


def test_panels_hold_groups_of_steps_of_each_column() -> None:
    w = draw((6, 18))
    packed = pack_panels(w)
    assert packed.shape == (2, 2, PANEL, GROUP)
    for k, j in itertools.product(range(6), range(18)):
        assert packed[j // PANEL, k // GROUP, j % PANEL, k % GROUP] == w[k, j]
    assert not packed[:, 1, :, 2:].any()
    assert not packed[1, :, 2:].any()
