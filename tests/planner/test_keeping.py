"""Values that ops keep for their gradients: a limit for each, by the plan of a small training step.

An op that is new, or is changed so that it keeps more, shows here and not in somebody's memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.passes import recompute
from engine.graphs.passes.infer import infer
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.op import MS
from tests.support.harness import run

WIDTH = 256  # of h, which has as many rows

# h = x w; y = op(h); z = y v: the gradient of v reads y, and the op's gradient what it needs.
LINEAR = """<ir_version: 8, opset_import: ["": 20]>
g (float[256,256] x, float[256,256] w, float[256,256] v, float[256] s, float[256] b,
   float ratio, bool on) => (float loss) {{
    h = MatMul(x, w)
    {}
    z = MatMul(y, v)
    q = Mul(z, z)
    loss = ReduceSum<keepdims = 0>(q)
}}"""
IMAGES = """<ir_version: 8, opset_import: ["": 20]>
g (float[4,8,32,32] x, float[16,8,3,3] w, float[4,16,3,3] v) => (float loss) {{
    h = Conv<pads = [1, 1, 1, 1]>(x, w)
    {}
    z = Conv<pads = [1, 1, 1, 1]>(y, v)
    q = Mul(z, z)
    loss = ReduceSum<keepdims = 0>(q)
}}"""
CONSTANTS = {"ratio": np.float32(0.25), "on": np.array(True)}


def training(text: str) -> Graph:
    """The step of a model: its loss, and the gradients of its parameters added to buffers."""
    graph = onnx_io.load(parser.parse_model(text))
    for name, value in CONSTANTS.items():
        if graph.inputs.pop(name, None):
            graph.initializers[name] = np.asarray(value)
    for number, node in enumerate(graph.nodes):
        node.name = f"n{number}"
    read = {i for n in graph.nodes for i in n.inputs}
    wrt = [name for name in graph.inputs if name != "x" and name in read]
    names = differentiate(graph, "loss", wrt, infer(graph.copy()).types)
    for name in wrt:
        graph.inputs[f"{name}_buffer"] = graph.inputs[name]
        ins = (f"{name}_buffer", names[name])
        graph.nodes.append(
            Node("InPlaceAccumulatorV2", ins, (f"{name}_done",), {}, MS, f"add_{name}")
        )
    return graph


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a second computation come right after the first, because the models here are short."""
    monkeypatch.setattr(recompute, "NEAR", 0)


def kept_bytes(graph: Graph) -> int:
    """Return the bytes that a step keeps for its backward pass, without z, which its loss reads."""
    plan = make_plan(graph, {}, target=detect_host(), threads=1)
    sizes = {plan.buffers[k.buffer].name: plan.buffers[k.buffer].nbytes for k in plan.kept()}
    return sum(size for name, size in sizes.items() if name != "z")


# For each op the most bytes that it may keep for each element of h.
LIMITS = {
    "Abs(h)": 4, "Celu(h)": 4, "Cos(h)": 4, "Elu(h)": 4, "Erf(h)": 4, "Exp(h)": 4, "Gelu(h)": 4,
    "Gelu<approximate = \"tanh\">(h)": 4, "HardSigmoid(h)": 4, "HardSwish(h)": 4,
    "LeakyRelu(h)": 4, "Log(h)": 4, "LogSoftmax(h)": 4, "Mish(h)": 4, "Mul(h, h)": 4, "Neg(h)": 4,
    "Reciprocal(h)": 4, "Relu(h)": 4, "Selu(h)": 4, "Sigmoid(h)": 4, "Sin(h)": 4, "Softmax(h)": 4,
    "Softplus(h)": 4, "Softsign(h)": 4, "Sqrt(h)": 4, "Tanh(h)": 4, "ThresholdedRelu(h)": 4,
    "Add(h, b)": 4, "Mul(h, s)": 4, "PRelu(h, s)": 4, "Transpose(h)": 4, "Dropout(h, ratio, on)": 4,
    "LayerNormalization(h, s, b)": 4 + 2 * 4 / WIDTH,
}  # fmt: skip


@pytest.mark.parametrize("op", LIMITS)
def test_an_op_keeps_no_more(op: str) -> None:
    assert kept_bytes(training(LINEAR.format(f"y = {op}"))) <= LIMITS[op] * WIDTH**2


def test_a_chain_keeps_its_beginning() -> None:
    """Of a normalisation, an activation and dropout h is kept, and two numbers a row."""
    chain = """n = LayerNormalization(h, s, b)
    a = Gelu(n)
    y = Dropout(a, ratio, on)"""
    assert kept_bytes(training(LINEAR.format(chain))) <= 4 * WIDTH**2 + 2 * 4 * WIDTH


# Lines of a model of images, and the most bytes for each element of y.
POOLS = {
    "y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(h)": 4 + 1,
    "r = Relu(h)\ny = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)": 4 + 1,
    "r = Relu(h)\ny = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(r)": 5,
    "y = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(h)": 4,
}


@pytest.mark.parametrize("lines", POOLS)
def test_a_pool_keeps_no_more(lines: str) -> None:
    assert kept_bytes(training(IMAGES.format(lines))) <= POOLS[lines] * 4 * 16 * 16 * 16


@pytest.mark.parametrize(
    "text",
    [IMAGES.format(lines) for lines in POOLS]
    + [LINEAR.format("n = LayerNormalization(h, s, b)\na = Gelu(n)\ny = Dropout(a, ratio, on)")],
    ids=["pool", "relu and pool", "relu and overlapping pool", "mean", "chain"],
)
def test_gradients_stay_as_they_are(text: str) -> None:
    """Bit for bit, also where many elements of a window are equal."""
    rng = np.random.default_rng(0)
    graph = training(text)
    fed: dict[str, Any] = {
        name: rng.integers(-2, 3, t.dims).astype(np.float32) / 8 for name, t in graph.inputs.items()
    }
    outcome, wanted = (
        run(graph.copy(), fed, threads=2, changes=True, without=without)
        for without in ((), ("keep taps", "relu grads read pools", "recompute"))
    )
    for name, value in wanted.items():
        np.testing.assert_array_equal(outcome[name], value, err_msg=name)
    assert any(np.any(outcome[name] != fed[name]) for name in fed if name.endswith("_buffer"))
