"""Rows of com.microsoft's operators in onnxruntime itself: what they mean is what it computes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from engine.tools.dev.case_graphs import OneNode, list_cases
from tests.support.harness import run

# Operators that stock onnxruntime has kernels for on a CPU, and how many of their rows it refuses:
# forms of other processors, activations it lacks, types it has not registered.
REFUSED = {
    "Attention": 0,
    "BiasGelu": 0,
    "DequantizeLinear": 1,
    "DynamicQuantizeLSTM": 0,
    "DynamicQuantizeMatMul": 0,
    "EmbedLayerNormalization": 0,
    "FastGelu": 1,
    "FusedConv": 10,
    "FusedGemm": 1,
    "FusedMatMul": 0,
    "GatherBlockQuantized": 0,
    "Gelu": 0,
    "GroupQueryAttention": 1,
    "MatMulIntegerToFloat": 0,
    "MatMulNBits": 1,
    "MultiHeadAttention": 2,
    "QAttention": 0,
    "QGemm": 0,
    "QLinearAdd": 0,
    "QLinearAveragePool": 0,
    "QLinearConcat": 0,
    "QLinearGlobalAveragePool": 0,
    "QLinearLeakyRelu": 0,
    "QLinearMul": 0,
    "QLinearSigmoid": 0,
    "QLinearSoftmax": 0,
    "QLinearWhere": 0,
    "QuantizeLinear": 1,
    "QuickGelu": 0,
    "RotaryEmbedding": 0,
    "SkipLayerNormalization": 0,
    "SkipSimplifiedLayerNormalization": 0,
}
# Integers that differ by one: it adds powers that it has rounded to integers.
BY_A_STEP = {"QLinearSoftmax"}


def _model(one: OneNode) -> onnx.ModelProto:
    """The row as a model, its constants as initializers."""

    attrs = {k: v for k, v in one.node.attrs.items() if v != []}

    def infos(arrays: dict[str, np.ndarray]) -> list[onnx.ValueInfoProto]:
        code = helper.np_dtype_to_tensor_dtype
        return [helper.make_tensor_value_info(n, code(a.dtype), a.shape) for n, a in arrays.items()]

    node = helper.make_node(
        one.node.op, one.node.inputs, one.node.outputs, domain=one.node.domain, **attrs
    )
    constants = [onnx.numpy_helper.from_array(a, n) for n, a in one.graph.initializers.items()]
    outs = [helper.make_empty_tensor_value_info(o) for o in one.outputs]
    graph = helper.make_graph([node], "one", infos(one.inputs), outs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _compare(one: OneNode, session: onnxruntime.InferenceSession) -> None:
    """Run a row here and there, which rounds inputs to 8 bits in LSTM.

    Where accuracy_level is 4, both round alike, but it computes in floats if scales are not
    constant; test_integer_blocks.py compares the others.  Integers are the same ones.
    """
    rough = one.node.attrs.get("accuracy_level") == 4 or one.node.op == "DynamicQuantizeLSTM"
    outcome = run(one.graph, one.inputs)
    for name, want in zip(one.outputs, session.run(None, one.inputs), strict=True):
        scale = np.abs(want).max(initial=1.0)
        atol = (1e-2 if rough else 1e-4) * scale
        if want.dtype.kind in "iu":
            atol = float(one.node.op in BY_A_STEP)
        np.testing.assert_allclose(outcome[name], want, rtol=0, atol=atol, err_msg=one.case.id)


@pytest.mark.parametrize("op", REFUSED)
def test_rows_agree_with_onnxruntime(op: str) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    refused, compared = [], 0
    for case in list_cases():
        if (case.domain, case.op) != ("com.microsoft", op):
            continue
        one = OneNode(case)
        try:
            session = onnxruntime.InferenceSession(
                _model(one).SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            session.run(None, one.inputs)
        except Exception as error:  # it has a class for each code of its own
            refused.append(f"{case.id}: {error}")
            continue
        _compare(one, session)
        compared += 1
    assert len(refused) == REFUSED[op], "\n".join(refused)
    assert compared
