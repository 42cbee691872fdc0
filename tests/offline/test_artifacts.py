"""The offline phase: files, conventions, options, numbers of the losses, and what errors say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import artifacts
from engine.api import CheckpointState, Module, Optimizer
from engine.artifacts import (
    SGD,
    AdamW,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    L1Loss,
    Loss,
    LossType,
    MSELoss,
    OptimType,
    generate_artifacts,
)
from engine.checkpoint import storage
from engine.errors import (
    DTypeError,
    FileError,
    InputError,
    ModelError,
    NameNotFoundError,
    ShapeError,
    StateError,
    UnsupportedOpError,
)
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.normalize import name_nodes, set_inference_mode
from engine.training import artifact_set
from tests.support.harness import get_gradient
from tests.support.places import GOLDENS

CASES = ("mlp", "regression_sgd", "bce", "l1", "cnn", "mobilenet")
F32 = np.float32

Arrays = dict[str, np.ndarray[Any, Any]]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[Any]],
    outputs: Sequence[str],
    constants: Mapping[str, Any],
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(n, kind, s) for n, s in inputs.items()]
    outs = [helper.make_tensor_value_info(n, kind, None) for n in outputs]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(list(nodes), "g", infos, outs, tensors)
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def bias(shape: Sequence[Any], value: Any, dtype: Any = F32) -> onnx.ModelProto:
    """y = x + w: the loss's gradient by w is its gradient by the output, summed where broadcast."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node("Add", ["x", "w"], ["y"], name="add")
    return model([node], {"x": shape}, ["y"], {"w": np.asarray(value, dtype)}, kind)


def two_layers(rng: np.random.Generator) -> onnx.ModelProto:
    """Initializers w1, b1, w2, c; values h, r, y."""
    shapes = {"w1": (3, 4), "b1": (4,), "w2": (4, 2), "c": (2,)}
    constants = {n: rng.normal(size=s).astype(F32) for n, s in shapes.items()}
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], name="fc1"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["m"], name="fc2"),
        helper.make_node("Add", ["m", "c"], ["y"]),
    ]
    return model(nodes, {"x": ["batch", 3]}, ["y"], constants)


def names(values: Any) -> list[str]:
    return [v.name for v in values]


def load(folder: Path, name: str) -> onnx.ModelProto:
    return onnx.load(folder / f"{name}.onnx")


# --- the conventions of onnxruntime-training


@pytest.mark.parametrize("case", CASES)
def test_conventions_are_those_of_onnxruntime_training(case: str, tmp_path: Path) -> None:
    """Inputs, outputs, types, order, checkpoint bytes as 1.19.2 made them; the loss has a name."""
    spec = json.loads((GOLDENS / case / "case.json").read_text())
    generate_artifacts(
        GOLDENS / case / "forward.onnx",
        requires_grad=spec["requires_grad"],
        frozen_params=spec["frozen"],
        loss=LossType[spec["loss"]],
        optimizer=OptimType[spec["optimizer"]],
        artifact_directory=tmp_path,
    )
    for name in ("training_model", "eval_model", "optimizer_model"):
        theirs, ours = load(GOLDENS / case, name), load(tmp_path, name)
        assert list(ours.graph.input) == list(theirs.graph.input)
        assert names(ours.graph.output)[1:] == names(theirs.graph.output)[1:]
        assert [v.type for v in ours.graph.output] == [v.type for v in theirs.graph.output]
        assert ours.ir_version == theirs.ir_version
        if name != "optimizer_model":
            assert ours.graph.output[0].name == "loss"
            assert ours.producer_name == "pytorch"
    nodes = load(GOLDENS / case, "forward").graph.node
    forward = {n.name for n in nodes if n.op_type != "Constant"}
    assert forward <= {n.name for n in load(tmp_path, "training_model").graph.node}
    content = storage.read(tmp_path / "checkpoint")
    assert list(content.properties) == [artifact_set.PROPERTY]  # all that is ours
    bare = replace(content, properties={})
    written, _ = storage.encode(bare, artifact=True, checksum=False)
    assert written == (GOLDENS / case / "checkpoint").read_bytes()


@pytest.mark.parametrize("case", CASES)
def test_all_models_pass_the_checker(case: str, tmp_path: Path) -> None:
    spec = json.loads((GOLDENS / case / "case.json").read_text())
    generate_artifacts(
        str(GOLDENS / case / "forward.onnx"),
        requires_grad=spec["requires_grad"],
        loss=LossType[spec["loss"]],
        optimizer=OptimType[spec["optimizer"]],
        artifact_directory=tmp_path,
    )
    for name in ("training_model", "eval_model", "optimizer_model"):
        proto = load(tmp_path, name)
        for node in proto.graph.node:
            if node.op_type == "MaxPoolGrad":
                node.domain = "com.microsoft"  # as ONNX's own it is only known to onnxruntime
        onnx.checker.check_model(proto, full_check=True)


def test_accumulators_are_numbered_in_order(tmp_path: Path) -> None:
    generate_artifacts(
        two_layers(np.random.default_rng(0)), ["w2", "w1"], ["b1"], LossType.MSELoss,
        artifact_directory=tmp_path,
    )  # fmt: skip
    training = load(tmp_path, "training_model")
    assert names(training.graph.input) == [
        "x", "target", "w1", "b1", "w2", "w1_grad.accumulation.buffer",
        "w2_grad.accumulation.buffer", "lazy_reset_grad",
    ]  # fmt: skip
    assert names(training.graph.initializer)[0] == "c"
    last = training.graph.node[-1]
    assert (last.op_type, last.domain, last.name) == (
        "InPlaceAccumulatorV2", "com.microsoft", "GradientAccumulator2",
    )  # fmt: skip
    assert list(last.input) == ["w2_grad.accumulation.buffer", "w2_grad", "lazy_reset_grad"]
    assert list(last.output) == ["w2_grad.accumulation.out"]
    assert len(set(names(training.graph.node))) == len(training.graph.node)
    assert "" not in names(training.graph.node)
    state = storage.read(tmp_path / "checkpoint")
    assert (list(state.trainable), list(state.frozen)) == (["w1", "w2"], ["b1"])
    assert not (tmp_path / "optimizer_model.onnx").exists()


# --- options


def test_the_model_stays_as_it_was_and_comes_in_any_form(tmp_path: Path) -> None:
    proto = two_layers(np.random.default_rng(0))
    data = proto.SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data)
    made = []
    for i, source in enumerate((proto, data, tmp_path / "m.onnx", str(tmp_path / "m.onnx"))):
        generate_artifacts(
            source, ["w1"], loss=LossType.L1Loss, artifact_directory=tmp_path / str(i)
        )
        made.append((tmp_path / str(i) / "training_model.onnx").read_bytes())
    assert len(set(made)) == 1
    assert proto.SerializeToString() == data


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    generate_artifacts(
        two_layers(np.random.default_rng(0)), ["w1"], loss=LossType.MSELoss,
        optimizer=OptimType.SGD, prefix="a_", nominal_checkpoint=True,
    )  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "a_checkpoint", "a_eval_model.onnx", "a_nominal_checkpoint", "a_optimizer_model.onnx",
        "a_training_model.onnx",
    ]  # fmt: skip
    nominal = storage.read(tmp_path / "a_nominal_checkpoint")
    assert nominal.nominal
    assert nominal.trainable == {"w1": storage.NominalTensor(np.dtype(F32))}


def test_nothing_is_written_when_something_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(NameNotFoundError):
        generate_artifacts(
            two_layers(np.random.default_rng(0)), ["w1"], loss=LossType.MSELoss,
            additional_output_names=["nothing"], artifact_directory=tmp_path / "new",
        )  # fmt: skip
    assert not (tmp_path / "new").exists()


def test_additional_outputs_follow_the_loss(tmp_path: Path) -> None:
    generate_artifacts(
        two_layers(np.random.default_rng(0)), ["w1"], loss=LossType.MSELoss,
        additional_output_names=["y", "h"], artifact_directory=tmp_path,
    )  # fmt: skip
    evaluation, training = load(tmp_path, "eval_model"), load(tmp_path, "training_model")
    assert names(evaluation.graph.output) == ["loss", "y", "h"]
    assert names(training.graph.output) == ["loss", "y", "h", "w1_grad.accumulation.out"]
    dims = evaluation.graph.output[2].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in dims] == ["batch", 4]


def test_the_loss_inputs_are_chosen_by_name(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    proto = model(nodes, {"x": ["n", 2]}, ["a", "b"], {"w": np.ones(2, F32)})
    with pytest.raises(
        InputError, match=r"outputs \['a', 'b'\]; choose the one for the loss with loss_inputs"
    ):
        generate_artifacts(proto, ["w"], loss=LossType.MSELoss, artifact_directory=tmp_path)
    generate_artifacts(
        proto, ["w"], loss=LossType.MSELoss, loss_input_names=["b", "wish"],
        artifact_directory=tmp_path,
    )  # fmt: skip
    evaluation = load(tmp_path, "eval_model")
    assert names(evaluation.graph.input) == ["x", "wish", "w"]
    generate_artifacts(
        proto, ["w"], loss=LossType.MSELoss, loss_input_names=["b", "x"],
        artifact_directory=tmp_path,
    )  # fmt: skip
    assert names(load(tmp_path, "eval_model").graph.input) == ["x", "w"]
    x = np.array([[1, 2]], F32)
    assert evaluate(tmp_path, {"x": x, "w": np.ones(2, F32)})[0] == pytest.approx(10)  # (-x - x)^2


def test_without_a_loss_the_first_output_is_the_loss(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["y"]),
        helper.make_node("ReduceMean", ["y"], ["cost"], keepdims=0),
    ]
    proto = model(nodes, {"x": ["n", 2]}, ["cost", "y"], {"w": np.ones(2, F32)})
    generate_artifacts(proto, ["w"], optimizer=OptimType.SGD, artifact_directory=tmp_path)
    training = load(tmp_path, "training_model")
    assert names(training.graph.output) == ["cost", "y", "w_grad.accumulation.out"]
    assert "cost_grad" in names(training.graph.initializer)
    assert gradients(tmp_path, np.array([[1, 3]], F32))["w"].tolist() == [0.5, 1.5]


def test_two_empty_lists_freeze_all_floats(tmp_path: Path) -> None:
    proto = two_layers(np.random.default_rng(0))
    generate_artifacts(proto, loss=LossType.MSELoss, artifact_directory=tmp_path)
    training = load(tmp_path, "training_model")
    assert names(training.graph.input) == ["x", "target", "w1", "b1", "w2", "c"]
    assert names(training.graph.output) == ["loss"]
    assert list(storage.read(tmp_path / "checkpoint").frozen) == ["w1", "b1", "w2", "c"]
    with pytest.raises(
        StateError, match="an optimizer needs something to train: give requires_grad"
    ):
        generate_artifacts(
            proto, loss=LossType.MSELoss, optimizer=OptimType.AdamW, artifact_directory=tmp_path
        )


def test_gradients_of_inputs_are_not_accumulated(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\['x'\] are inputs of the model; a Module accumulates"):
        generate_artifacts(bias([2, 2], 0.0), ["w", "x"], artifact_directory=tmp_path)


def test_an_inner_value_called_loss_makes_room(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["loss"]),
        helper.make_node("Neg", ["loss"], ["y"]),
    ]
    proto = model(nodes, {"x": ["n"]}, ["y"], {"w": np.ones(1, F32)})
    generate_artifacts(proto, ["w"], loss=LossType.MSELoss, artifact_directory=tmp_path)
    evaluation = load(tmp_path, "eval_model")
    assert names(evaluation.graph.output) == ["loss"]
    assert list(evaluation.graph.node[0].output) == ["loss_1"]
    for extra, told in (["loss"], ["loss", "loss_1"]), ([], ["loss"]):
        generate_artifacts(
            proto, ["w"], loss=LossType.MSELoss, artifact_directory=tmp_path,
            additional_output_names=extra,
        )  # fmt: skip
        assert names(load(tmp_path, "eval_model").graph.output) == told


def test_an_output_called_loss_keeps_its_name(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "w"], ["loss"])]
    proto = model(nodes, {"x": ["n"]}, ["loss"], {"w": np.ones(1, F32)})
    for extra, told in ([], ["loss_1"]), (["loss"], ["loss_1", "loss"]):
        generate_artifacts(
            proto, ["w"], loss=LossType.MSELoss, artifact_directory=tmp_path,
            additional_output_names=extra,
        )  # fmt: skip
        assert names(load(tmp_path, "eval_model").graph.output) == told


def test_a_loss_of_ones_own(tmp_path: Path) -> None:
    class Largest(Loss):
        def build(self, graph: Graph, *inputs: str) -> str:
            graph.nodes.append(Node("ReduceMax", inputs, ("largest",), {"keepdims": 0}))
            return "largest"

    generate_artifacts(bias(["n"], 0.0), ["w"], loss=Largest(), artifact_directory=tmp_path)
    x = np.array([3, 7, 5], F32)
    assert evaluate(tmp_path, {"x": x, "w": np.array(0, F32)})[0] == 7
    assert gradients(tmp_path, x)["w"] == 1


def test_old_opsets_are_converted_first(tmp_path: Path) -> None:
    node = helper.make_node("ReduceSum", ["h"], ["y"], axes=[1], keepdims=0, name="sum")
    first = helper.make_node("Mul", ["x", "w"], ["h"], name="mul")
    proto = model([first, node], {"x": ["n", 2]}, ["y"], {"w": np.ones(2, F32)})
    proto.opset_import[0].version = 9
    generate_artifacts(proto, ["w"], loss=LossType.MSELoss, artifact_directory=tmp_path)
    assert load(tmp_path, "training_model").opset_import[0].version == 13
    actual_gradients = gradients(tmp_path, np.array([[1, 2]], F32), np.array([1], F32))
    assert actual_gradients["w"].tolist() == [4, 8]  # 2 (3 - 1) x


def test_batch_normalization_and_dropout_infer_in_the_eval_model() -> None:
    stats = ("x", "s", "b", "m", "v")
    graph = name_nodes(
        Graph("g", {}, ["z"], {}, [
            Node("BatchNormalization", stats, ("y", "m1", "v1"), {"training_mode": 1}),
            Node("Dropout", ("y", "ratio", "mode"), ("z", "mask")),
        ], {"": 17})
    )  # fmt: skip
    set_inference_mode(graph)
    assert [(n.inputs, n.outputs, n.attrs) for n in graph.nodes] == [
        (stats, ("y",), {"training_mode": 0}),
        (("y", "ratio", ""), ("z", "mask"), {}),
    ]
    graph.nodes[0].outputs = ("y", "m1", "v1")
    graph.outputs.append("v1")
    with pytest.raises(
        ModelError, match=r"BatchNormalization 'BatchNormalization_0': \['v1'\] are"
    ):
        set_inference_mode(graph)


# --- the optimizers


def optimizer(folder: Path) -> tuple[list[str], list[str], dict[str, Any]]:
    graph = load(folder, "optimizer_model").graph
    attrs = {a.name: helper.get_attribute_value(a) for a in graph.node[-1].attribute}
    return [n.op_type for n in graph.node], names(graph.input), attrs


def test_adamw_graph(tmp_path: Path) -> None:
    generate_artifacts(
        bias([2], [0.0, 0]), ["w"], loss=LossType.MSELoss, artifact_directory=tmp_path,
        optimizer=AdamW(betas=(0.8, 0.99), eps=1e-7, weight_decay=0.1, clip_grad=2.5, adam_mode=0),
    )  # fmt: skip
    kinds, inputs, attrs = optimizer(tmp_path)
    assert kinds == ["InplaceClipGradNorm", "AdamWOptimizer"]
    assert inputs == [
        "learning_rate", "step", "params", "gradients", "first_order_moments",
        "second_order_moments",
    ]  # fmt: skip
    assert attrs == {
        "alpha": F32(0.8), "beta": F32(0.99), "epsilon": F32(1e-7), "weight_decay": F32(0.1),
        "correct_bias": 1, "adam_mode": 0,
    }  # fmt: skip
    clip = load(tmp_path, "optimizer_model").graph.node[0]
    assert helper.get_attribute_value(clip.attribute[0]) == 2.5
    assert list(clip.input) == ["gradients"]


def test_sgd_graph(tmp_path: Path) -> None:
    generate_artifacts(
        bias([2], [0.0, 0]), ["w"], loss=LossType.MSELoss, optimizer=SGD(),
        artifact_directory=tmp_path,
    )  # fmt: skip
    kinds, inputs, attrs = optimizer(tmp_path)
    assert kinds == ["SGDOptimizerV2"]
    assert inputs == ["learning_rate", "step", "params", "gradients", "first_order_moments"]
    assert attrs == {}


# --- numbers: the eval model in stock onnxruntime, the gradients by the engine


def evaluate(folder: Path, feeds: Arrays) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        folder / "eval_model.onnx", options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


def gradients(folder: Path, *inputs: Any) -> Arrays:
    """All gradients of one training step, by the engine."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, threads=1)
    module(*inputs)
    return {
        name: get_gradient(state, name).copy() for name, p in state.parameters if p.requires_grad
    }


def check(folder: Path, loss: Any, x: Any, t: Any, expected: float, dx: Any) -> None:
    """The loss over y = x + 0, its value and its gradient."""
    generate_artifacts(
        bias(x.shape, np.zeros(x.shape)), ["w"], loss=loss, artifact_directory=folder
    )
    name = "target" if t.dtype == F32 else "labels"
    scores = evaluate(folder, {"x": x, name: t, "w": np.zeros(x.shape, F32)})[0]
    assert scores.shape == ()
    assert scores == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(gradients(folder, x, t)["w"], dx, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_squared_and_absolute_error(reduction: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, t = (rng.normal(size=(4, 3)).astype(F32) for _ in range(2))
    scale = 1 / x.size if reduction == "mean" else 1.0
    d = x - t
    check(tmp_path, MSELoss(reduction), x, t, (d**2).sum() * scale, 2 * d * scale)
    check(tmp_path, L1Loss(reduction), x, t, np.abs(d).sum() * scale, np.sign(d) * scale)


@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4), (2, 3, 2, 2)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [None, 1, -1])
def test_cross_entropy(
    shape: tuple[int, ...], reduction: str, weighted: bool, ignore: int | None, tmp_path: Path
) -> None:
    """Classes on axis 1, whatever follows it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype(F32)
    labels = rng.integers(0, 3, (shape[0], *shape[2:]))
    if ignore == -1:
        labels.flat[0] = -1
    weight = np.array([0.5, 2, 3], F32) if weighted else None
    rows = np.moveaxis(x, 1, -1).reshape(-1, 3).astype(np.float64)
    flat = labels.reshape(-1)
    p = np.exp(rows) / np.exp(rows).sum(1, keepdims=True)
    w = (np.ones(3) if weight is None else weight)[flat] * (flat != ignore)
    hot = np.eye(3)[flat]
    scale = 1 / w.sum() if reduction == "mean" else 1.0
    value = -(w * np.log((p * hot).sum(1) + (flat == ignore))).sum() * scale
    dx = (p - hot) * w[:, None] * scale
    dx = np.moveaxis(dx.reshape(*labels.shape, 3), -1, 1)
    check(tmp_path, CrossEntropyLoss(weight, reduction, ignore), x, labels, value, dx)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("positive", [False, True])
def test_binary_cross_entropy(
    reduction: str, weighted: bool, positive: bool, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(4, 3)).astype(F32), rng.uniform(size=(4, 3)).astype(F32)
    w = np.array([1, 0.5, 2], F32) if weighted else None
    pw = np.array([3, 1, 0.25], F32) if positive else None
    s = 1 / (1 + np.exp(-x.astype(np.float64)))
    scale = (1 / x.size if reduction == "mean" else 1.0) * (1 if w is None else w)
    p = 1 if pw is None else pw
    value = (-scale * (p * t * np.log(s) + (1 - t) * np.log(1 - s))).sum()
    dx = scale * ((1 - t) * s - p * t * (1 - s))
    check(tmp_path, BCEWithLogitsLoss(w, reduction, pw), x, t, value, dx)


def test_binary_cross_entropy_of_large_logits_is_finite_and_exact(tmp_path: Path) -> None:
    x = np.array([-200, -200, 200, 200, 0], F32)
    t = np.array([0, 1, 0, 1, 0.5], F32)
    value = 200 + 200 + np.log(2)
    check(tmp_path, BCEWithLogitsLoss(reduction="sum"), x, t, value, [0, -1, 1, 0, 0])


def test_double_precision(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, t, w = (rng.normal(size=(4, 3)) for _ in range(3))
    generate_artifacts(
        bias(x.shape, w, np.float64), ["w"], loss=LossType.MSELoss, optimizer=OptimType.SGD,
        artifact_directory=tmp_path,
    )  # fmt: skip
    seed = numpy_helper.to_array(
        {i.name: i for i in load(tmp_path, "training_model").graph.initializer}["loss_grad"]
    )
    assert seed.dtype == np.float64
    d = x + w - t
    scores = evaluate(tmp_path, {"x": x, "w": w, "target": t})[0]
    assert scores == pytest.approx((d**2).mean(), rel=1e-14)
    np.testing.assert_allclose(gradients(tmp_path, x, t)["w"], 2 * d / d.size, rtol=1e-14)


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    generate_artifacts(
        two_layers(rng), ["w1", "b1", "w2"], loss=LossType.CrossEntropyLoss,
        optimizer=AdamW(clip_grad=1.0), artifact_directory=tmp_path,
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    steps = Optimizer(tmp_path / "optimizer_model.onnx", module)
    steps.set_learning_rate(0.05)
    x = rng.normal(size=(32, 3)).astype(F32)
    labels = (x.sum(1) > 0).astype(np.int64)
    losses = []
    for _ in range(60):
        losses.append(float(module(x, labels)))
        steps.step()
        module.lazy_reset_grad()
    assert losses[-1] < 0.3 < losses[0]


# --- errors


def wrong(message: str, error: type[Exception], **kwargs: Any) -> Any:
    return pytest.param(kwargs, error, message, id=next(iter(kwargs)) + "-" + message[:24])


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        wrong("ort_format=True: .ort files are not written", UnsupportedOpError, ort_format=True),
        wrong("custom_op_library='a.so': custom operators", UnsupportedOpError,
              custom_op_library="a.so"),
        wrong("both in requires_grad and in frozen_params: b1", InputError,
              requires_grad=["w1", "b1"], frozen_params=["b1"]),
        wrong("requires_grad: the model has no initializer 'ww1'; nearest: 'w1'",
              NameNotFoundError, requires_grad=["ww1"]),
        wrong("frozen_params: the model has no initializer 'x'", NameNotFoundError,
              frozen_params=["x"]),
        wrong("requires_grad: expected a list of names, got 'w1'", InputError, requires_grad="w1"),
        wrong("additional_output_names: the model has no value 'hh'", NameNotFoundError,
              additional_output_names=["hh"]),
        wrong("additional_output_names: expected a list", InputError,
              additional_output_names="y"),
        wrong("the loss needs the value 'z', which the model lacks", ModelError,
              loss_input_names=["z"]),
        wrong("MSELoss takes one model output, optionally followed by", InputError,
              loss_input_names=["y", "x", "h"]),
        wrong("the loss needs 'x' as i64[batch], but the model has one that is f32[batch,3]",
              ModelError, loss=LossType.CrossEntropyLoss, loss_input_names=["y", "x"]),
        wrong("loss: expected a LossType, a Loss, a Block, a mapping or None, got 3", DTypeError,
              loss=3),
        wrong("optimizer: expected an OptimType, an OptimizerSpec, a Block or N", DTypeError,
              optimizer="AdamW"),
        wrong("the loss 'y' is f32[batch,2]; training needs a scalar", ShapeError, loss=None),
        wrong("the loss 'loss' is f32[batch,2]; training needs a scalar: use reduction='mean'",
              ShapeError, loss=MSELoss("none")),
        wrong("the loss 'loss' is f32[batch]; training needs a scalar", ShapeError,
              loss=CrossEntropyLoss(reduction="none")),
        wrong("weight has shape [3]; expected [2]", ShapeError,
              loss=CrossEntropyLoss(np.ones(3, F32))),
    ],
)  # fmt: skip
def test_what_errors_say(
    kwargs: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    arguments = {"requires_grad": ["w1"], "loss": LossType.MSELoss, "optimizer": OptimType.SGD}
    with pytest.raises(error) as caught:
        generate_artifacts(
            two_layers(np.random.default_rng(0)),
            artifact_directory=tmp_path,
            **{**arguments, **kwargs},
        )
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_parameters_without_influence_are_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"]), helper.make_node("Mul", ["x", "u"], ["z"])]
    proto = model(nodes, {"x": ["n", 2]}, ["y", "z"], {"w": np.ones(2, F32), "u": np.ones(2, F32)})
    with pytest.raises(ModelError, match="partial derivative of 'loss' with respect to 'u'"):
        generate_artifacts(
            proto, ["w", "u"], loss=LossType.MSELoss, loss_input_names=["y"],
            artifact_directory=tmp_path,
        )  # fmt: skip


def test_names_of_the_artifacts_are_reserved(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "w"], ["lazy_reset_grad"]),
             helper.make_node("Neg", ["lazy_reset_grad"], ["y"])]  # fmt: skip
    proto = model(nodes, {"x": ["n"]}, ["y"], {"w": np.ones(1, F32)})
    with pytest.raises(ModelError, match=r"the artifacts reserves: .*lazy_reset_grad"):
        generate_artifacts(proto, ["w"], loss=LossType.MSELoss, artifact_directory=tmp_path)


def test_parameters_that_cannot_be_trained(tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match=r"requires_grad: 'w' is i64\[2\]; supported: f32, f64"):
        generate_artifacts(
            bias([2], [1, 2], np.int64), ["w"], loss=LossType.MSELoss, artifact_directory=tmp_path
        )


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match="cannot make the folder"):
        generate_artifacts(
            bias([2], [1, 2]), ["w"], loss=LossType.MSELoss,
            artifact_directory=tmp_path / "file" / "sub",
        )  # fmt: skip
    (tmp_path / "eval_model.onnx").mkdir()
    with pytest.raises(FileError, match=r"cannot write .*eval_model\.onnx': Is a directory"):
        generate_artifacts(
            bias([2], [1, 2]), ["w"], loss=LossType.MSELoss, artifact_directory=tmp_path
        )


def test_the_signature_is_that_of_onnxruntime_training() -> None:
    import inspect

    parameters = inspect.signature(artifacts.generate_artifacts).parameters
    assert {n: p.default for n, p in parameters.items() if n != "model"} == {
        "requires_grad": None, "frozen_params": None, "loss": None, "optimizer": None,
        "artifact_directory": None, "prefix": "", "ort_format": False, "custom_op_library": None,
        "additional_output_names": None, "nominal_checkpoint": False, "loss_input_names": None,
        "frozen_batch_norm": None, "update": None, "external_data": None, "proximal": False,
        "tie": None,
    }  # fmt: skip
    assert [(m.name, m.value) for m in LossType][:4] == [
        ("MSELoss", 1), ("CrossEntropyLoss", 2), ("BCEWithLogitsLoss", 3), ("L1Loss", 4),
    ]  # fmt: skip
    assert [(m.name, m.value) for m in OptimType][:2] == [("AdamW", 1), ("SGD", 2)]
