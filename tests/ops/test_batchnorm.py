"""Batch normalisation in training: statistics in the state, frozen layers, shared initializers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from engine import Trainer, backend
from engine.api import CheckpointState, Module
from engine.artifacts import MSELoss, generate_artifacts
from engine.base.element_types import NUMPY
from engine.errors import InputError, ModelWarning, NameNotFoundError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.offline.normalize import name_nodes
from engine.graphs.passes.infer import infer
from engine.graphs.planner.draft import Place
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.op import TensorType
from engine.tools.dev.case_graphs import OneNode, backward_of
from engine.tools.dev.cases.batchnorm import _ins
from engine.tools.dev.cases.case import Case
from tests.support.harness import copy_parameters, get_gradient, run

RNG = np.random.default_rng(3)
X = RNG.normal(2.0, 3.0, (6, 3, 4, 5)).astype(np.float32)
T = RNG.normal(size=(6, 3, 4, 5)).astype(np.float32)
VALUES = {
    "scale": np.array([1.5, 0.5, -1.0], np.float32),
    "shift": np.array([0.1, 0.2, 0.3], np.float32),
    "mean": np.array([1.0, 2.0, 3.0], np.float32),
    "var": np.array([2.0, 1.0, 0.5], np.float32),
    "w": np.array([[[0.7]], [[1.1]], [[-0.4]]], np.float32),
}
TRAINABLE = ["w", "scale", "shift"]


def network(
    layers: Sequence[Sequence[str]] = (("scale", "shift", "mean", "var"),),
    mode: int = 1,
    values: Mapping[str, Any] = VALUES,
) -> onnx.ModelProto:
    """y = bn(... bn(x * w)), each layer given by the names of its parameters."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["h0"], name="first")]
    for i, names in enumerate(layers):
        outs = [f"h{i + 1}", f"m{i}", f"v{i}"] if mode else [f"h{i + 1}"]
        nodes.append(
            helper.make_node("BatchNormalization", [f"h{i}", *names], outs, name=f"bn{i}",
                             training_mode=mode)
        )  # fmt: skip
    last = f"h{len(layers)}"
    info = helper.make_tensor_value_info
    shape: list[str | int | None] = ["batch", 3, 4, 5]
    read = {"w", *(n for names in layers for n in names)}
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, shape)], [info(last, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(v, n) for n, v in values.items() if n in read],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def artifacts(
    folder: Path, proto: onnx.ModelProto, **kwargs: Any
) -> tuple[CheckpointState, Module]:
    kwargs.setdefault("requires_grad", TRAINABLE)
    generate_artifacts(proto, loss=MSELoss(), artifact_directory=folder, **kwargs)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx", threads=2)
    return state, module


def normalised(x: np.ndarray, mean: Any, var: Any) -> np.ndarray:
    c = (3, 1, 1)
    scale, shift = (VALUES[n].reshape(c) for n in ("scale", "shift"))
    y = (x - np.reshape(mean, c)) / np.sqrt(np.reshape(var, c) + 1e-5)
    return np.asarray(y * scale + shift)


def batch_statistics() -> tuple[np.ndarray, np.ndarray]:
    h = (X * VALUES["w"]).astype(np.float64)
    return h.mean((0, 2, 3)), h.var((0, 2, 3))


def loss_of(y: np.ndarray) -> float:
    return float(np.mean((y - T) ** 2))


def data(state: CheckpointState, name: str) -> np.ndarray:
    return np.array(state.parameters[name].data)


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("listed", [["mean", "var"], []])
def test_training_moves_the_running_statistics(
    tmp_path: Path, mode: int, listed: list[str]
) -> None:
    """Of models exported in either mode, with statistics listed or left as constants."""
    state, module = artifacts(tmp_path, network(mode=mode), frozen_params=listed)
    mean, var = batch_statistics()
    loss = float(module(X, T))
    assert loss == pytest.approx(loss_of(normalised(X * VALUES["w"], mean, var)), rel=1e-5)
    moved = {"mean": 0.9 * VALUES["mean"] + 0.1 * mean, "var": 0.9 * VALUES["var"] + 0.1 * var}
    again = CheckpointState.from_bytes(state.to_bytes())
    for name, statistic in moved.items():
        np.testing.assert_allclose(data(again, name), statistic, rtol=1e-5)
        assert not state.parameters[name].requires_grad
    module.eval()
    expected = loss_of(normalised(X * VALUES["w"], moved["mean"], moved["var"]))
    for _ in range(2):  # and evaluation moves nothing
        assert float(module(X, T)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"requires_grad": ["w"]},
        {"requires_grad": ["w"], "frozen_params": ["scale", "shift"]},
        {"frozen_batch_norm": True},
        {"frozen_batch_norm": ["bn0"]},
        {"frozen_batch_norm": ["scale"], "frozen_params": ["mean", "var"]},
    ],
    ids=["by default", "by default, listed", "all", "by node", "by parameter"],
)
@pytest.mark.parametrize("mode", [0, 1])
def test_frozen_layers_use_and_keep_their_statistics(
    tmp_path: Path, kwargs: dict[str, Any], mode: int
) -> None:
    by_default = "frozen_batch_norm" not in kwargs
    message = r"batch normalisation 'bn0' uses and keeps its .*frozen_batch_norm=True to keep"
    with pytest.warns(ModelWarning, match=message) if by_default else contextlib.nullcontext():
        state, module = artifacts(tmp_path, network(mode=mode), **kwargs)

    def loss(w: np.ndarray) -> float:
        return loss_of(normalised(X * w.astype(np.float64), VALUES["mean"], VALUES["var"]))

    for _ in range(2):
        assert float(module(X, T)) == pytest.approx(loss(VALUES["w"]), rel=1e-5)
    module.eval()
    assert float(module(X, T)) == pytest.approx(loss(VALUES["w"]), rel=1e-5)
    for i in range(3):
        e = np.zeros((3, 1, 1))
        e[i] = 1e-4
        slope = (loss(VALUES["w"] + e) - loss(VALUES["w"] - e)) / 2e-4
        assert 2 * slope == pytest.approx(float(get_gradient(state, "w")[i, 0, 0]), rel=1e-3)
    for name in set(state.names) & {"mean", "var"}:
        np.testing.assert_array_equal(data(state, name), VALUES[name])


def test_batch_norms_can_move_while_their_parameters_are_frozen(tmp_path: Path) -> None:
    state, module = artifacts(tmp_path, network(), requires_grad=["w"], frozen_batch_norm=False)
    module(X, T)
    mean, _ = batch_statistics()
    np.testing.assert_allclose(data(state, "mean"), 0.9 * VALUES["mean"] + 0.1 * mean, rtol=1e-5)


def test_statistics_stored_as_one_tensor_with_parameters_do_not_corrupt_them(
    tmp_path: Path,
) -> None:
    """Exporters store equal tensors once: scale and variance, shift and mean, of several layers."""
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    layers = [("ones", "zeros", "zeros", "ones")] * 2
    proto = network(layers, values={"w": VALUES["w"], "ones": ones, "zeros": zeros})
    state, module = artifacts(tmp_path, proto, requires_grad=["w", "ones", "zeros"])
    losses = [float(module(X, T)) for _ in range(4)]
    assert losses == [losses[0]] * 4
    np.testing.assert_array_equal(data(state, "ones"), ones)
    np.testing.assert_array_equal(data(state, "zeros"), zeros)
    first, second = data(state, "bn0.running_mean"), data(state, "bn1.running_mean")
    mean, _ = batch_statistics()
    np.testing.assert_allclose(first, mean * (1 - 0.9**4), rtol=1e-4)
    np.testing.assert_allclose(second, 0, atol=1e-6)  # of what the first layer has normalised


def test_layers_that_share_statistics_get_their_own_and_one_layer_used_twice_keeps_them(
    tmp_path: Path,
) -> None:
    values = {**VALUES, "scale2": VALUES["scale"] * 2}
    layers = [("scale", "shift", "mean", "var"), ("scale2", "shift", "mean", "var")]
    state, module = artifacts(tmp_path / "two", network(layers, values=values))
    module(X, T)
    assert {"bn0.running_mean", "bn1.running_var"} <= {n for n, _ in state.parameters}
    assert "mean" not in state.parameters
    state, module = artifacts(tmp_path / "one", network([layers[0]] * 2))
    module(X, T)
    mean, _ = batch_statistics()
    then = 0.9 * (0.9 * VALUES["mean"] + 0.1 * mean) + 0.1 * VALUES["shift"]
    np.testing.assert_allclose(data(state, "mean"), then, rtol=1e-4)


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"requires_grad: 'mean': running statistics .* frozen_par"
    ):
        artifacts(tmp_path, network(), requires_grad=["w", "mean"])
    with pytest.raises(NameNotFoundError, match=r"frozen_batch_norm: .* 'bn7'; nearest: 'bn0'"):
        artifacts(tmp_path, network(), frozen_batch_norm=["bn7"])
    with pytest.raises(InputError, match="frozen_batch_norm: expected a list of names, got 'bn0'"):
        artifacts(tmp_path, network(), frozen_batch_norm="bn0")


@pytest.mark.parametrize("shape", [(4, 24, 20, 30), (3, 5, 40, 50), (64, 100)])
def test_results_do_not_depend_on_threads(shape: tuple[int, ...]) -> None:
    one = OneNode(Case("BatchNormalization", _ins(*shape), {"training_mode": 1}, grad=(0, 1, 2)))
    graph, _ = backward_of(one)
    results = [run(graph, one.inputs, threads=n) for n in (1, 2, 3)]
    for name, expected in results[0].items():
        for other in results[1:]:
            np.testing.assert_array_equal(other[name], expected)


def norm_behind(
    op: str, weights: tuple[int, ...], **attrs: Any
) -> tuple[Graph, dict[str, np.ndarray]]:
    """y = Relu(BatchNormalization(a)), a = a convolution of 3 channels to 4."""
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 3, 6, 7), "w": weights, "c": (4,), "s": (4,), "b": (4,), "m": (4,)}
    given = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    given["v"] = rng.uniform(0.5, 2, 4).astype(np.float32)
    nodes = [
        Node(op, ("x", "w", "c"), ("a",), attrs, name="conv"),
        Node("BatchNormalization", ("a", "s", "b", "m", "v"), ("n",), name="bn"),
        Node("Relu", ("n",), ("y",), name="relu"),
    ]
    types = {n: find_type(a) for n, a in given.items()}
    return Graph("g", types, ["y"], {}, nodes, {"": 17}), given


@pytest.mark.parametrize(
    ("op", "weights", "attrs"),
    [
        ("Conv", (4, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
        ("ConvTranspose", (3, 4, 3, 2), {"strides": [2, 1]}),
    ],
)
def test_a_convolution_absorbs_the_statistics_behind_it(
    op: str, weights: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    """Where they are given, as in evaluation: the convolution is left; Relu is Conv's epilogue."""
    graph, given = norm_behind(op, weights, **attrs)
    plain = graph.copy()
    plain.outputs.append("a")  # whoever wants the convolution's own output gets it
    both = run(plain, given)
    plan = make_plan(graph, {}, target=detect_host(), threads=1)
    apart = {"bn", "relu"} if op == "Conv" else {"bn"}
    assert not apart & {s.source for s in plan.steps}
    assert "conv" in {s.source for s in plan.steps}
    np.testing.assert_allclose(run(graph, given)["y"], both["y"], rtol=0, atol=2e-5)
    column = (4, 1, 1)
    scale = (given["s"] / np.sqrt(given["v"] + 1e-5)).reshape(column)
    expected = (both["a"] - given["m"].reshape(column)) * scale + given["b"].reshape(column)
    np.testing.assert_allclose(both["y"], np.maximum(expected, 0), rtol=0, atol=2e-5)


def test_a_transposed_convolution_with_groups_keeps_the_norm_behind_it() -> None:
    graph, given = norm_behind("ConvTranspose", (4, 2, 3, 3), group=2)
    given["x"] = np.random.default_rng(1).normal(size=(2, 4, 6, 7)).astype(np.float32)
    graph.inputs["x"] = find_type(given["x"])
    plain = graph.copy()
    plain.outputs.append("a")
    np.testing.assert_array_equal(run(graph, given)["y"], run(plain, given)["y"])


def test_the_backward_pass_stores_neither_y_nor_the_masked_gradient() -> None:
    """Of convolution, batch normalisation and a clip: both are made again from x where needed."""
    nodes = [
        Node("Mul", ("x", "k"), ("a",), name="first"),
        Node("BatchNormInternal", ("a", "s", "b", "m", "v"), ("n",), {}, "com.microsoft", "bn"),
        Node("Clip", ("n", "low", "high"), ("z",), name="clip"),
        Node("MatMul", ("z", "t"), ("q",), name="product"),
        Node("ReduceSum", ("q",), ("loss",), {"keepdims": 0}, name="total"),
    ]
    images, vector = TensorType("f32", (4, 8, 6, 6)), TensorType("f32", (8,))
    types = {"x": images, "k": images, **dict.fromkeys("sbmv", vector)}
    types["t"] = TensorType("f32", (6, 6))
    bounds = {"low": np.float32(0), "high": np.float32(6)}
    constants = {n: np.array(v) for n, v in bounds.items()}
    graph = Graph("g", types, ["loss"], constants, nodes, {"": 17, "com.microsoft": 1})
    names = differentiate(graph, "loss", ["k", "s", "b"], infer(graph.copy()).types)
    graph.outputs += list(names.values())
    places = {n: Place("param", 64 * i) for i, n in enumerate("mv")}
    plan = make_plan(
        graph, {}, target=detect_host(), threads=1, places=places, region_bytes={"param": 128}
    )
    stored = {b.name for b in plan.buffers if b.shape == images.shape}
    assert not stored & {"n", "n_grad"}
    assert {"a", "z", "z_grad"} <= stored


def residual_block(training: int) -> tuple[Graph, dict[str, np.ndarray]]:
    """Convolutions, hard-swish, squeeze and excitation, a residual sum and Relu, with two norms."""
    rng = np.random.default_rng(5)
    c = 6
    shapes = {
        "x": (2, c, 5, 4), "w1": (c, c, 3, 3), "w2": (c, c, 1, 1), "wg": (c, c, 1, 1), "u": (),
        **dict.fromkeys(("s1", "b1", "s2", "b2"), (c,)),
    }  # fmt: skip
    given = {n: np.asarray(rng.normal(size=s)) for n, s in shapes.items()}
    given["u"] = rng.normal(size=shapes["x"])
    constants = {"m": rng.normal(size=c), "v": rng.uniform(0.5, 2, c)}
    norm = {"training_mode": training}
    nodes = [
        Node("Conv", ("x", "w1"), ("c1",), {"pads": [1, 1, 1, 1]}, name="conv1"),
        Node("BatchNormalization", ("c1", "s1", "b1", "m", "v"), ("n1",), norm, name="bn1"),
        Node("HardSwish", ("n1",), ("h",), name="swish"),
        Node("GlobalAveragePool", ("h",), ("p",), name="pool"),
        Node("Conv", ("p", "wg"), ("g",), name="gate"),
        Node("Sigmoid", ("g",), ("q",), name="sigmoid"),
        Node("Mul", ("h", "q"), ("e",), name="excite"),
        Node("Conv", ("e", "w2"), ("c2",), name="conv2"),
        Node("BatchNormalization", ("c2", "s2", "b2", "m", "v"), ("n2",), norm, name="bn2"),
        Node("Add", ("n2", "x"), ("sum",), name="residual"),
        Node("Relu", ("sum",), ("y",), name="relu"),
        Node("Mul", ("y", "u"), ("yu",), name="weigh"),
        Node("ReduceSum", ("yu",), ("loss",), {"keepdims": 0}, name="total"),
    ]
    types = {n: find_type(a) for n, a in given.items()}
    return Graph("block", types, ["loss"], constants, nodes, {"": 17}), given


@pytest.mark.parametrize("training", [0, 1])
def test_gradients_through_what_is_fused_with_the_norms(training: int) -> None:
    graph, given = residual_block(training)
    wrt = [n for n in given if n != "u"]
    backward = graph.copy()
    names = differentiate(backward, "loss", wrt, infer(graph.copy()).types)
    backward.outputs = ["loss", *names.values()]
    outcome = run(backward, given, threads=2)
    rng = np.random.default_rng(6)
    direction = {n: rng.normal(size=given[n].shape) for n in wrt}
    step = 1e-6
    losses = [
        float(run(graph, {n: a + e * direction.get(n, 0) for n, a in given.items()})["loss"])
        for e in (step, -step)
    ]
    exact = sum(float(np.sum(outcome[names[n]] * direction[n])) for n in wrt)
    scale = sum(float(np.linalg.norm(outcome[names[n]])) for n in wrt) + abs(losses[0])
    assert abs((losses[0] - losses[1]) / (2 * step) - exact) <= 1e-6 * scale
    assert float(outcome["loss"]) == pytest.approx(float(run(graph, given)["loss"]), rel=1e-12)


def test_gradient_ops_name_all_outputs_as_onnxruntime_training_wants(tmp_path: Path) -> None:
    """Its schema of BatchNormalizationGrad has three, also where only the scale is trained."""
    artifacts(tmp_path, network(), requires_grad=["scale"], frozen_params=["shift", "w"])
    nodes = onnx.load(tmp_path / "training_model.onnx").graph.node
    (actual,) = [n for n in nodes if n.op_type == "BatchNormalizationGrad"]
    assert len([o for o in actual.output if o]) == 3
    artifacts(tmp_path, network(), requires_grad=["w", "scale"], frozen_batch_norm=True)
    nodes = onnx.load(tmp_path / "training_model.onnx").graph.node
    assert {n.domain for n in nodes if n.op_type != "InPlaceAccumulatorV2"} <= {"", "ai.onnx"}


@pytest.mark.parametrize("training", [0, 1])
@pytest.mark.parametrize(("own", "running"), [("float", "float"), ("double", "float")])
def test_vectors_may_be_of_other_types_than_x(own: str, running: str, training: int) -> None:
    """The result and all gradients equal a model of one type with the same values."""
    rng = np.random.default_rng(4)
    outputs = "y, mean, var" if training else "y"
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (double[5, 3, 2] x, OWN[3] s, OWN[3] b, RUN[3] m, RUN[3] v, double[5, 3, 2] u)
        => (double loss{", RUN[3] mean, RUN[3] var" if training else ""}) {{
            {outputs} = BatchNormalization<training_mode = {training}>(x, s, b, m, v)
            z = Mul(y, u)
            loss = ReduceSum<keepdims = 0>(z)
        }}"""
    wrt = ["x", "s", "b"] if training else ["x", "s", "b", "m", "v"]
    values = {n: rng.random(3).astype(np.float32) + 0.5 for n in "sbmv"}
    images = {n: rng.standard_normal((5, 3, 2)) for n in "xu"}
    actual = []
    for types in ((own, running), ("double", "double")):
        model = parser.parse_model(text.replace("OWN", types[0]).replace("RUN", types[1]))
        graph = name_nodes(onnx_io.load(model))
        names = differentiate(graph, "loss", wrt, infer(graph.copy()).types)
        graph.outputs += [names[n] for n in wrt]
        given = {n: a.astype(NUMPY[graph.inputs[n].dtype]) for n, a in {**values, **images}.items()}
        outs = run(graph, given)
        actual.append([outs[n] for n in graph.outputs])
    for one, two in zip(*actual, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_norm_of_other_types_trains_alike(frozen: bool) -> None:
    """The parameters and the running statistics keep their element types."""
    rng = np.random.default_rng(6)
    x, target = rng.standard_normal((8, 6)), rng.standard_normal((8, 3))
    shapes = {"w": (6, 3), "s": (3,), "b": (3,), "m": (3,), "v": (3,)}
    values = {n: rng.random(shape).astype(np.float32) + 0.5 for n, shape in shapes.items()}
    actual = []
    for own in (np.float32, np.float64):
        proto = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
            g (double[N, 6] x) => (double[N, 3] y) {
                h = MatMul(x, w)
                y = BatchNormalization(h, s, b, m, v)
            }""")
        for name, value in values.items():
            kind = np.float64 if name == "w" else own
            proto.graph.initializer.append(numpy_helper.from_array(value.astype(kind), name))
        trainer = Trainer.from_onnx(proto, "mse", "sgd", threads=1, frozen_batch_norm=frozen)
        for _ in range(3):
            trainer.step(x, target)
        actual.append(copy_parameters(trainer))
        assert actual[-1]["s"].dtype == own
        assert frozen or actual[-1]["m"].dtype == own
    for name, value in actual[0].items():
        np.testing.assert_allclose(value, actual[1][name], rtol=1e-5, err_msg=name)


def test_a_convolution_leaves_a_norm_of_another_type() -> None:
    rng = np.random.default_rng(8)
    values = {n: rng.random(3).astype(np.float32) + 0.5 for n in "sbmv"}
    x, w = rng.standard_normal((2, 2, 4, 4)), rng.standard_normal((3, 2, 1, 1))
    actual = []
    for kind in (np.float32, np.float64):
        proto = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
            g (double[2, 2, 4, 4] x) => (double[2, 3, 4, 4] y) {
                h = Conv(x, w)
                y = BatchNormalization(h, s, b, m, v)
            }""")
        for name, value in {"w": w, **{n: a.astype(kind) for n, a in values.items()}}.items():
            proto.graph.initializer.append(numpy_helper.from_array(value, name))
        (y,) = backend.prepare(proto).run([x])
        actual.append(y)
    np.testing.assert_allclose(actual[0], actual[1], rtol=1e-9)
