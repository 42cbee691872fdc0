"""Models of one layer, in every form in which LoRA finds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from engine.base.aliases import Array


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def write(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    values: Mapping[str, Array],
    x: Sequence[int | str] = ("batch", 6),
    opset: int = 17,
) -> Path:
    """A model from `x` to `y`."""
    floats = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "made", [floats("x", TensorProto.FLOAT, list(x))],
        [floats("y", TensorProto.FLOAT, [f"d{i}" for i in range(len(x))])],
        [numpy_helper.from_array(a, n) for n, a in values.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def make_node(
    op: str, *inputs: str, out: str = "y", domain: str = "", **attrs: Any
) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [out], f"made/{out}/{op}", domain=domain, **attrs)


NBITS: dict[str, Any] = {"K": 40, "N": 5, "bits": 4, "block_size": 16, "domain": "com.microsoft"}
PACKED: dict[str, Array] = {
    "fc.weight_Q4": np.random.default_rng(3).integers(0, 256, (5, 3, 8)).astype(np.uint8),
    "s": np.abs(draw(15)) / 10,
    "z": np.random.default_rng(4).integers(0, 256, (5 * 2,)).astype(np.uint8),
    "b": draw(5),
}

INT8 = np.random.default_rng(5).integers(-127, 128, (6, 5)).astype(np.int8)

FORMS: dict[str, tuple[list[onnx.NodeProto], dict[str, Array], Sequence[int | str]]] = {
    "right": ([make_node("MatMul", "x", "fc.weight")], {"fc.weight": draw(6, 5)}, ("b", 3, 6)),
    "left": ([make_node("MatMul", "fc.weight", "x")], {"fc.weight": draw(5, 6)}, ("b", 6, 2)),
    "batched": ([make_node("MatMul", "x", "fc.weight")], {"fc.weight": draw(3, 6, 5)}, (3, "b", 6)),
    "gemm": (
        [make_node("Gemm", "x", "fc.weight", "c", transA=1, transB=1, alpha=0.5, beta=2.0)],
        {"fc.weight": draw(5, 6), "c": draw(5)}, (6, 4),
    ),
    "gemm left": (
        [make_node("Gemm", "fc.weight", "x", transA=1, transB=1, alpha=2.0)],
        {"fc.weight": draw(6, 5)}, (3, 6),
    ),
    "transposed": (
        [make_node("Transpose", "fc.weight", out="t", perm=[1, 0]), make_node("MatMul", "x", "t")],
        {"fc.weight": draw(5, 6)}, ("b", 6),
    ),
    "moved": (
        [
            make_node("Reshape", "fc.weight", "shape", out="r"),
            make_node("Identity", "r", out="i"),
            make_node("Transpose", "i", out="t", perm=[0, 2, 1]), make_node("MatMul", "x", "t"),
        ],
        {"fc.weight": draw(30), "shape": np.array([1, 5, 6])}, (1, "b", 6),
    ),
    "conv": (
        [make_node("Conv", "x", "fc.weight", "c", strides=[2, 2], pads=[1, 1, 0, 0])],
        {"fc.weight": draw(5, 6, 1, 1), "c": draw(5)}, ("b", 6, 4, 4),
    ),
    "groups": (
        [make_node("Conv", "x", "fc.weight", "c", group=3)],
        {"fc.weight": draw(9, 2, 1, 1), "c": draw(9)}, ("b", 6, 4, 4),
    ),
    "conv 3x2": (
        [make_node("Conv", "x", "fc.weight", "c", strides=[2, 1], pads=[1, 1, 0, 1])],
        {"fc.weight": draw(5, 6, 3, 2), "c": draw(5)}, ("b", 6, 5, 4),
    ),
    "conv of signals": (
        [make_node("Conv", "x", "fc.weight", strides=[2], auto_pad="SAME_UPPER")],
        {"fc.weight": draw(5, 6, 3)}, ("b", 6, 7),
    ),
    "groups of 2x2": (
        [make_node("Conv", "x", "fc.weight", "c", group=3, kernel_shape=[2, 2], dilations=[1, 2])],
        {"fc.weight": draw(9, 2, 2, 2), "c": draw(9)}, ("b", 6, 4, 5),
    ),
    "fused conv": (
        [
            make_node("Conv", "x", "same", out="z"),
            make_node("FusedConv", "x", "fc.weight", "c", "z", domain="com.microsoft",
                      activation="LeakyRelu", activation_params=[0.3], pads=[1, 1, 1, 1]),
        ],
        {"fc.weight": draw(5, 6, 3, 3), "c": draw(5), "same": draw(5, 6, 1, 1)}, ("b", 6, 4, 4),
    ),
    "fused gemm": (
        [make_node("FusedGemm", "x", "fc.weight", "c", transB=1, alpha=0.5, domain="com.microsoft",
                   activation="LeakyRelu", activation_alpha=0.3)],
        {"fc.weight": draw(5, 6), "c": draw(5)}, ("b", 6),
    ),
    "twice": (
        [
            make_node("MatMul", "x", "fc.weight", out="h"), make_node("Tanh", "h", out="a"),
            make_node("MatMul", "a", "fc.weight"),
        ],
        {"fc.weight": draw(6, 6)}, ("b", 6),
    ),
    "int8": (
        [
            make_node("DequantizeLinear", "fc.weight_quantized", "s", "z", out="w", axis=1),
            make_node("MatMul", "x", "w"),
        ],
        {"fc.weight_quantized": INT8, "s": np.abs(draw(5)), "z": np.zeros(5, np.int8)}, ("b", 6),
    ),
    "int8 conv": (
        [
            make_node("DequantizeLinear", "fc.weight_quantized", "s", "z", out="w", axis=0),
            make_node("Conv", "x", "w", pads=[1, 1, 1, 1]),
        ],
        {
            "fc.weight_quantized": np.tile(INT8.reshape(5, 6, 1, 1), (1, 1, 3, 3)),
            "s": np.abs(draw(5)), "z": np.zeros(5, np.int8),
        },
        ("b", 6, 4, 4),
    ),
    "4 bits": (
        [make_node("MatMulNBits", "x", "fc.weight_Q4", "s", **NBITS)],
        {k: PACKED[k] for k in ("fc.weight_Q4", "s")}, ("b", 2, 40),
    ),
    "4 bits, zeros, bias": (
        [make_node("MatMulNBits", "x", "fc.weight_Q4", "s", "z", "", "b", **NBITS)],
        PACKED, ("b", 40),
    ),
}  # fmt: skip
