"""Gradients of ReduceMax and ReduceMin as one op, also where values are rounded."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper, parser

from engine import SGD, Trainer
from engine.base.plan_options import Precision
from engine.graphs.io import onnx_io
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.offline.normalize import name_nodes
from engine.graphs.passes.extremes import join_extreme_grads
from engine.graphs.passes.infer import infer
from engine.tools.dev.case_graphs import with_loss

RNG = np.random.default_rng(28)
# A maximum of rounded values whose gradient matters, as in a normalised spectrum.
MODEL = """<ir_version: 8, opset_import: ["": 18]>
m (float[N,40,64] x) => (float[N,40,64] y) <int64[1] axes = {{{axis}}}> {{
    h = MatMul(x, w) g = Sigmoid(h)
    t = {op} <keepdims = {keep}> (g, axes) {view}
    y = Mul(g, top)
}}"""
FORMS = [
    ("ReduceMax", 1, 2), ("ReduceMax", 0, 2), ("ReduceMin", 1, 1), ("ReduceMin", 0, 1),
]  # fmt: skip


def make(op: str, keep: int, axis: int) -> bytes:
    view = "top = Identity(t)" if keep else "top = Unsqueeze(t, axes)"
    proto = parser.parse_model(MODEL.format(op=op, keep=keep, axis=axis, view=view))
    w = (0.2 * RNG.standard_normal((64, 64))).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(w, "w"))
    return bytes(proto.SerializeToString())


@pytest.mark.parametrize(("op", "keep", "axis"), FORMS)
def test_the_gradient_is_one_node(op: str, keep: int, axis: int) -> None:
    graph = name_nodes(onnx_io.load(make(op, keep, axis)))
    graph = with_loss(graph, {"y": np.ones((8, 40, 64), np.float32)})
    differentiate(graph, "loss", ["w"], infer(graph).types)
    assert join_extreme_grads(graph, infer(graph))
    ops = [n.op for n in graph.nodes]
    assert ops.count("ExtremeGrad") == 1
    assert "Equal" not in ops


@pytest.mark.parametrize("precision", ["bf16", "f16"])
@pytest.mark.parametrize(("op", "keep", "axis"), FORMS)
def test_an_element_is_the_extreme_though_it_was_rounded(
    op: str, keep: int, axis: int, precision: Precision
) -> None:
    """The gradient was 0 / 0: x was computed a second time, without its rounding."""
    model, x = make(op, keep, axis), RNG.standard_normal((8, 40, 64)).astype(np.float32)
    moved = {}
    kinds: list[Precision] = ["f32", precision]
    for kind in kinds:
        trainer = Trainer.from_onnx(
            model, "mse", SGD(lr=1.0), precision=kind, loss_scale=16 if kind == "f16" else None
        )
        ((_, w),) = trainer.state.parameters
        before = np.array(w.data)
        trainer.step(x, np.ones((8, 40, 64), np.float32))
        moved[kind] = np.array(w.data) - before
    assert np.isfinite(moved[precision]).all()
    error = np.linalg.norm(moved[precision] - moved["f32"]) / np.linalg.norm(moved["f32"])
    assert error < 0.2  # elements that round to one value share the gradient
