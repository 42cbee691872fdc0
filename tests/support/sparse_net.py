"""A net with every kind of layer that can be updated in part, and a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

from engine.base.aliases import Array

NET = """<ir_version: 8, opset_import: ["": 17]>
g (FLOAT[N,3,6,6] x) => (FLOAT[N,4] scores)
<FLOAT[8,3,3,3] w1, FLOAT[8] b1, FLOAT[10,8,3,3] w2, FLOAT[10] s2, FLOAT[10] t2, FLOAT[10] m2,
 FLOAT[10] v2, FLOAT[10,12] w3, FLOAT[12] b3, FLOAT[6,12] w4, FLOAT[6] b4, FLOAT[4,6] w5> {
    [conv1] c1 = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)
    [relu] r1 = Relu(c1)
    [conv2] c2 = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(r1, w2)
    [norm] n2 = BatchNormalization(c2, s2, t2, m2, v2)
    [act] a2 = Sigmoid(n2)
    [rows] p = Transpose<perm = [0, 2, 3, 1]>(a2)
    [product] h = MatMul(p, w3)
    [bias] hb = Add(h, b3)
    [tanh] t = Tanh(hb)
    [mean] m = ReduceMean<axes = [1, 2], keepdims = 0>(t)
    [gemm] y = Gemm<transB = 1>(m, w4, b4)
    [turned] w5t = Transpose<perm = [1, 0]>(w5)
    [last] scores = MatMul(y, w5t)
}"""
SHAPES = {
    "w1": (8, 3, 3, 3), "b1": (8,), "w2": (10, 8, 3, 3), "s2": (10,), "t2": (10,), "m2": (10,),
    "v2": (10,), "w3": (10, 12), "b3": (12,), "w4": (6, 12), "b4": (6,), "w5": (4, 6),
}  # fmt: skip


def forward(kind: str = "float") -> onnx.ModelProto:
    """The net with random weights; kind: float or double."""
    proto = parser.parse_model(NET.replace("FLOAT", kind))
    rng = np.random.default_rng(0)
    del proto.graph.initializer[:]
    for name, shape in SHAPES.items():
        made = rng.standard_normal(shape) / 2
        made = np.abs(made) + 0.5 if name in ("s2", "v2") else made
        dtype = np.float32 if kind == "float" else np.float64
        proto.graph.initializer.append(numpy_helper.from_array(made.astype(dtype), name))
    return proto


def make_batch(dtype: Any) -> tuple[Array, Array]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((5, 3, 6, 6)).astype(dtype), np.array([0, 1, 2, 3, 1])
