"""16-bit floats in tests: their rounding in numpy, nodes that may store them, models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from engine.graphs.ir.graph import Graph, Node
from engine.kernels.ops.registry import list_ops
from engine.tools.dev.case_graphs import OneNode
from engine.tools.dev.cases.case import Case
from tests.support.product_calls import load_as, store_as
from tests.support.tiny import forward

EPSILON = {"bf16": 2.0**-8, "f16": 2.0**-11}  # the half of the distance from 1 to the next number


def round_to_half(x: np.ndarray, half: str) -> np.ndarray:
    """Return float32 rounded to a half float, ties to even."""
    return load_as(store_as(x, half), half).astype(np.float32)


@dataclass(frozen=True)
class Alone:
    """A node as a graph of its own, as in `OneNode`.

    inputs: what is fed; the graph holds the constants.
    """

    graph: Graph
    node: Node
    inputs: Mapping[str, np.ndarray]
    outputs: list[str]


def may_be_halves(case: Case) -> bool:
    """Return whether a row is of an op that declares a storage, and its first input is float32."""
    op, inputs = list_ops().get((case.domain, case.op)), OneNode(case).graph.inputs
    declares = op is not None and op.storage is not None and op.lower is not None
    return declares and "x0" in inputs and inputs["x0"].dtype == "f32"


def make_halved() -> onnx.ModelProto:
    """The tiny model in float16, inputs and outputs included."""
    proto = forward()
    for t in proto.graph.initializer:
        t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float16), t.name))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return proto


def make_bfloats(*, as_bytes: bool = True) -> onnx.ModelProto:
    """The tiny model in bfloat16, inputs and outputs included; as_bytes: how its weights are."""
    proto = forward()
    for t in proto.graph.initializer:
        bits = store_as(numpy_helper.to_array(t), "bf16")
        made = TensorProto(name=t.name, data_type=TensorProto.BFLOAT16, dims=t.dims)
        if as_bytes:
            made.raw_data = bits.tobytes()
        else:
            made.int32_data.extend(bits.reshape(-1).tolist())
        t.CopyFrom(made)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    return proto
