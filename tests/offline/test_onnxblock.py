"""Blocks: the scripts of onnxruntime-training's documentation and tests, with another import."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import engine.onnxblock as onnxblock
from engine import artifacts, loss_types
from engine.api import CheckpointState, Module, Optimizer
from engine.checkpoint import storage
from engine.errors import (
    CheckpointError,
    DTypeError,
    InputError,
    ModelError,
    NameNotFoundError,
    StateError,
    UnsupportedOpError,
)
from engine.graphs.io import onnx_io
from engine.graphs.offline.optim_types import OPTIMIZERS
from engine.onnxblock import _graph_utils, model_accessor
from tests.support.harness import drop_type, run
from tests.support.places import DOCS

F32 = np.float32
NAMES = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
LOSSES = ("MSELoss", "CrossEntropyLoss", "BCEWithLogitsLoss", "L1Loss")


def simple_net(seed: int = 0, kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """output = fc2(relu(fc1(input))), [batch, 5] to [batch, 3], as an exporter writes it."""
    rng = np.random.default_rng(seed)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    shapes = ((4, 5), (4,), (3, 4), (3,))
    values = [rng.standard_normal(s).astype(dtype) for s in shapes]
    nodes = [
        helper.make_node("Gemm", ["input-0", *NAMES[:2]], ["h"], "fc1", transB=1),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("Gemm", ["r", *NAMES[2:]], ["output-0"], "fc2", transB=1),
    ]
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("input-0", kind, ["batch", 5])],
        [helper.make_tensor_value_info("output-0", kind, ["batch", 3])],
        [numpy_helper.from_array(v, n) for n, v in zip(NAMES, values, strict=True)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


class WithLoss(onnxblock.ForwardBlock):
    def __init__(self, loss: onnxblock.Block) -> None:
        super().__init__()
        self.loss = loss

    def build(self, output_name: str) -> str:
        return str(self.loss(output_name))


class Training(onnxblock.TrainingBlock):
    def __init__(self, loss: onnxblock.Block) -> None:
        super().__init__()
        self.loss = loss

    def build(self, output_name: str) -> str:
        return str(self.loss(output_name))


def batch(loss: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((6, 5)).astype(F32)
    if loss == "CrossEntropyLoss":
        return {"input-0": x, "labels": rng.integers(0, 3, 6)}
    return {"input-0": x, "target": rng.uniform(0, 1, (6, 3)).astype(F32)}


def expected(loss: str, fed: dict[str, np.ndarray]) -> float:
    """The loss of simple_net, in float64."""
    w1, b1, w2, b2 = (
        numpy_helper.to_array(t).astype(np.float64) for t in simple_net().graph.initializer
    )
    y = np.maximum(fed["input-0"] @ w1.T + b1, 0) @ w2.T + b2
    if loss == "CrossEntropyLoss":
        p = np.exp(y) / np.exp(y).sum(1, keepdims=True)
        return float(-np.log(p[np.arange(6), fed["labels"]]).mean())
    t = fed["target"]
    if loss == "BCEWithLogitsLoss":
        s = 1 / (1 + np.exp(-y))
        return float(-(t * np.log(s) + (1 - t) * np.log(1 - s)).mean())
    return float(((y - t) ** 2).mean() if loss == "MSELoss" else np.abs(y - t).mean())


def values(model: onnx.ModelProto) -> list[str]:
    return [v.name for v in (*model.graph.input, *model.graph.output)]


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_on_a_forward_model(loss: str) -> None:
    block = WithLoss(getattr(onnxblock.loss, loss)())
    with onnxblock.base(simple_net()):
        output = block("output-0")
    model = block.to_model_proto()
    onnx.checker.check_model(model, full_check=True)
    fed = batch(loss)
    assert values(model) == ["input-0", [*fed][1], output]
    outcome = run(onnx_io.load(model), fed)[output]
    assert outcome == pytest.approx(expected(loss, fed), rel=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_training_and_eval_models_with_their_checkpoint(loss: str, tmp_path: Path) -> None:
    block = Training(getattr(onnxblock.loss, loss)())
    for name in NAMES[1:]:
        block.requires_grad(name)
    block.requires_grad("fc1.weight", False)
    with onnxblock.base(simple_net()) as accessor:
        output = block("output-0")
        assert values(accessor.model) == values(block.to_model_proto()[0])
    training, evaluation = block.to_model_proto()
    trainable, frozen = block.parameters()
    assert ([t.name for t in trainable], [t.name for t in frozen]) == (NAMES[1:], NAMES[:1])
    onnxblock.save_checkpoint(block.parameters(), tmp_path / "checkpoint")
    with onnxblock.empty_base() as accessor:
        onnxblock.optim.SGD(clip_grad=onnxblock.optim.ClipGradNorm(2.5))(block.parameters())
        update = accessor.model.SerializeToString()

    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(training.SerializeToString(), state, evaluation.SerializeToString(), threads=1)
    assert module.output_names() == [output]
    fed = batch(loss)
    first = module(*fed.values())
    assert first == pytest.approx(expected(loss, fed), rel=1e-5)
    optimizer = Optimizer(update, module)
    optimizer.set_learning_rate(0.1)
    optimizer.step()
    assert module.eval()(*fed.values()) < first


@pytest.mark.parametrize("kind", [onnxblock.ForwardBlock, onnxblock.TrainingBlock])
def test_a_weighted_sum_of_losses(kind: Any) -> None:
    class Weighted(kind):  # type: ignore[misc]  # one of two classes
        def __init__(self) -> None:
            super().__init__()
            self.loss1, self.loss2 = (onnxblock.loss.CrossEntropyLoss() for _ in range(2))
            self.w1, self.w2 = onnxblock.blocks.Constant(0.75), onnxblock.blocks.Constant(0.5)
            self.mul, self.add = onnxblock.blocks.Mul(), onnxblock.blocks.Add()

        def build(self, name1: str, name2: str) -> Any:
            return self.add(
                self.mul(self.w1(), self.loss1(name1, labels_name="labels1")),
                self.mul(self.w2(), self.loss2(name2, labels_name="labels2")),
            )

    model = simple_net()
    model.graph.node.append(helper.make_node("Neg", ["output-0"], ["output-1"], "neg"))
    model.graph.output.append(
        helper.make_tensor_value_info("output-1", TensorProto.FLOAT, ["batch", 3])
    )
    block = Weighted()
    if kind is onnxblock.TrainingBlock:
        block.requires_grad("fc2.weight")
    with onnxblock.base(model):
        block("output-0", "output-1")
    made = block.to_model_proto()
    made = made if kind is onnxblock.ForwardBlock else made[1]
    assert values(made)[:3] == ["input-0", "labels1", "labels2"]


@pytest.mark.parametrize("clip", [None, 2.5, onnxblock.optim.ClipGradNorm(2.5)])
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_optimizer_models_are_the_artifacts_own(optimizer: str, clip: Any, tmp_path: Path) -> None:
    block = Training(onnxblock.loss.MSELoss())
    for name in NAMES:
        block.requires_grad(name)
    with onnxblock.base(simple_net()):
        block("output-0")
    with onnxblock.empty_base(14) as accessor:
        flag = getattr(onnxblock.optim, optimizer)(clip_grad=clip)(block.parameters())
        built = accessor.model
    onnx.checker.check_model(built, full_check=True)
    assert [v.name for v in built.graph.output] == [flag]
    artifacts.generate_artifacts(
        simple_net(), NAMES, loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path,
        optimizer=getattr(artifacts, optimizer)(clip_grad=None if clip is None else 2.5),
    )  # fmt: skip
    ours = onnx.load(tmp_path / "optimizer_model.onnx")
    assert built.graph.node == ours.graph.node
    assert built.graph.input == ours.graph.input
    assert built.opset_import == ours.opset_import
    assert built.ir_version == ours.ir_version


def test_models_are_asked_for_too_early() -> None:
    block = Training(onnxblock.loss.MSELoss())
    with pytest.raises(StateError, match="Please build the training model first before trying to"):
        block.parameters()
    with pytest.raises(StateError, match="Please build the training and eval models first"):
        block.to_model_proto()
    with pytest.raises(StateError, match="Please build the forward model first"):
        WithLoss(onnxblock.loss.MSELoss()).to_model_proto()
    with pytest.raises(StateError, match="blocks build inside"):
        block("output-0")
    with (
        onnxblock.empty_base(),
        pytest.raises(StateError, match="open already"),
        onnxblock.base(simple_net()),
    ):
        pass
    assert model_accessor._GLOBAL_ACCESSOR is None


def test_gradients_of_inputs() -> None:
    block = Training(onnxblock.loss.MSELoss())
    block.requires_grad("input-0")
    with onnxblock.base(simple_net()):
        block("output-0")
    training, _ = block.to_model_proto()
    assert {"input-0_grad.accumulation.buffer", "input-0_grad.accumulation.out"} <= {
        *values(training)
    }


def test_checkpoints_fill_initializers(tmp_path: Path) -> None:
    tensors = list(simple_net(1).graph.initializer)
    onnxblock.save_checkpoint((tensors[:2], tensors[2:3]), tmp_path / "c")
    model = simple_net()
    onnxblock.load_checkpoint_to_model(tmp_path / "c", model)
    to_arrays = [numpy_helper.to_array(t) for t in model.graph.initializer]
    for i, seed in enumerate((1, 1, 1, 0)):
        given = numpy_helper.to_array(simple_net(seed).graph.initializer[i])
        np.testing.assert_array_equal(to_arrays[i], given)
    onnxblock.save_checkpoint((tensors[:2], tensors[2:3]), tmp_path / "n", nominal_checkpoint=True)
    assert storage.read(tmp_path / "n").nominal
    with pytest.raises(CheckpointError, match="a nominal checkpoint holds no values"):
        onnxblock.load_checkpoint_to_model(tmp_path / "n", model)
    with pytest.raises(DTypeError, match=r"parameters: expected 2 values \(a list"):
        onnxblock.save_checkpoint(drop_type(None), tmp_path / "x")


class Custom(onnxblock.Block):
    """Without super().__init__(), as blocks in the wild are."""

    def __init__(self) -> None:
        self.loss, self.add = onnxblock.loss.MSELoss(), onnxblock.blocks.Add()
        self.sum = onnxblock.blocks.ReduceSum(keepdims=False)

    def build(self, output: str) -> Any:
        """MSE + the sum of |weights|, with a node appended by hand."""
        name = _graph_utils.generate_graph_name("abs")
        weights = [t.name for t in self.base.graph.initializer if t.name.endswith("weight")]
        assert weights == ["fc1.weight", "fc2.weight"]
        self.base.graph.node.append(helper.make_node("Abs", [weights[1]], [name], "abs_weight"))
        return self.add(self.loss(output), self.sum(name))


class CustomOptimizer(onnxblock.ForwardBlock):
    """AdamW by its node, over clipped gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.clip = onnxblock.optim.ClipGradNorm(0.5)
        self.node = onnxblock.optim.AdamWOptimizer(weight_decay=0.01)

    def build(self, parameters: Any) -> Any:
        graph = self.base.graph
        assert [t.name for t in parameters[0]] == NAMES
        for name, kind in (("learning_rate", TensorProto.FLOAT), ("step", TensorProto.INT64)):
            graph.input.append(helper.make_tensor_value_info(name, kind, [1]))
        many = ["params", "gradients", "first_order_moments", "second_order_moments"]
        for name in many:
            graph.input.append(
                helper.make_tensor_sequence_value_info(name, parameters[0][0].data_type, None)
            )
        flag = self.node("learning_rate", "step", many[0], self.clip(many[1]), *many[2:])
        graph.output.append(helper.make_tensor_value_info(flag, TensorProto.BOOL, [1]))
        return flag


def test_a_loss_and_an_optimizer_of_ones_own(tmp_path: Path) -> None:
    artifacts.generate_artifacts(
        simple_net(), NAMES, loss=Custom(), optimizer=CustomOptimizer(),
        additional_output_names=["output-0"], artifact_directory=tmp_path,
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, threads=1)
    assert module.output_names() == ["loss", "output-0"]
    fed = batch("MSELoss")
    loss, y = module(*fed.values())
    w2 = state.parameters["fc2.weight"]
    assert loss == pytest.approx(expected("MSELoss", fed) + np.abs(w2.data).sum(), rel=1e-5)
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.01)
    optimizer.step()
    means = [moments["momentum0"] for moments in state.groups[0].states.values()]
    norm = np.sqrt(sum((m**2).sum() for m in means))
    assert norm == pytest.approx((1 - 0.9) * 0.5, rel=1e-5)
    module.lazy_reset_grad()
    assert module(*fed.values())[0] < loss
    assert y.shape == (6, 3)


def test_an_optimizer_that_no_optimizer_could_run_is_refused(tmp_path: Path) -> None:
    class Broken(CustomOptimizer):
        def __init__(self, attribute: str, flag: str) -> None:
            super().__init__()
            self.attribute, self.flag = attribute, flag

        def build(self, parameters: Any) -> Any:
            flag = super().build(parameters)
            node = self.base.graph.node[-1]
            node.attribute.append(helper.make_attribute(self.attribute, 0.5))
            node.op_type = self.flag
            return flag

    for attribute, op, message in (
        ("betas", "AdamWOptimizer", "attribute 'betas' of type float; nearest: 'beta'"),
        ("x", "AdamOptimiser", "nearest: 'AdamWOptimizer'"),
    ):
        with pytest.raises(ModelError, match=message):
            artifacts.generate_artifacts(
                simple_net(), NAMES, loss=artifacts.LossType.MSELoss,
                optimizer=Broken(attribute, op), artifact_directory=tmp_path,
            )  # fmt: skip
    assert not list(tmp_path.iterdir())


def test_two_outputs_of_different_ranks_have_a_loss_each(tmp_path: Path) -> None:
    class Both(onnxblock.Block):
        def __init__(self) -> None:
            self._loss1, self._loss2 = onnxblock.loss.MSELoss(), onnxblock.loss.BCEWithLogitsLoss()
            self._add = onnxblock.blocks.Add()

        def build(self, a: str, b: str) -> Any:
            return self._add(
                self._loss1(a, target_name="target1"), self._loss2(b, target_name="target2")
            )

    model = simple_net()
    model.graph.node.append(
        helper.make_node("ReduceMean", ["output-0"], ["flat"], "mean", axes=[1], keepdims=0)
    )
    model.graph.output.append(helper.make_tensor_value_info("flat", TensorProto.FLOAT, ["batch"]))
    artifacts.generate_artifacts(model, NAMES, loss=Both(), artifact_directory=tmp_path)
    loaded = onnx.load(tmp_path / "eval_model.onnx")
    assert values(loaded)[:3] == ["input-0", "target1", "target2"]
    assert values(loaded)[-1] == "loss"


def test_the_example_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "onnxblock.md").read_text()
    monkeypatch.chdir(tmp_path)
    onnx.save(simple_net(), "forward.onnx")
    exec(text.split("```python\n")[1].split("```")[0], {"__name__": "example"})
    state = CheckpointState.load_checkpoint("artifacts/checkpoint")
    module = Module("artifacts/training_model.onnx", state, threads=1)
    fed = batch("MSELoss")
    squares = sum((state.parameters[n].data ** 2).sum() for n in NAMES[::2])
    assert module(*fed.values()) == pytest.approx(expected("MSELoss", fed) + 1e-4 * squares)
    before = module.get_contiguous_parameters()
    Optimizer("artifacts/optimizer_model.onnx", module).step()
    assert np.all(module.get_contiguous_parameters() != before)


def test_pass_through_is_no_loss(tmp_path: Path) -> None:
    model = simple_net()
    model.graph.node.append(
        helper.make_node("ReduceMean", ["output-0"], ["loss"], "mean", keepdims=0)
    )
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    for folder, loss in (("a", None), ("b", onnxblock.blocks.PassThrough())):
        artifacts.generate_artifacts(model, NAMES, loss=loss, artifact_directory=tmp_path / folder)
    a, b = (onnx.load(tmp_path / f / "training_model.onnx") for f in "ab")
    assert a.graph.node == b.graph.node
    assert values(a) == values(b)


BLOCKS = onnxblock.blocks
X = np.array([[-2.0, 0.5, 3.0]], F32)


@pytest.mark.parametrize("dtype", [F32, np.float64])
@pytest.mark.parametrize(
    ("block", "reference"),
    [
        (BLOCKS.Pow(3.0), lambda x: x**3),
        (BLOCKS.ReduceMean(), lambda x: x.mean(keepdims=True)),
        (BLOCKS.ReduceSum(keepdims=False), lambda x: x.sum()),
        (BLOCKS.Sigmoid(), lambda x: 1 / (1 + np.exp(-x))),
        (BLOCKS.Log(), np.log),
        (BLOCKS.Neg(), lambda x: -x),
        (BLOCKS.Abs(), np.abs),
        (BLOCKS.Clip(-1.0, 1.0), lambda x: x.clip(-1, 1)),
        (BLOCKS.Clip(clip_max=1.0), lambda x: x.clip(None, 1)),
        (BLOCKS.ReduceAllL2(), lambda x: np.sqrt((x**2).sum())),
        (BLOCKS.Cast(int(TensorProto.INT64)), lambda x: x.astype(np.int64)),
    ],
)
def test_blocks_of_one_input(block: Any, reference: Any, dtype: Any) -> None:
    with np.errstate(invalid="ignore"):
        check_block(lambda: block("x"), reference(X.astype(dtype)), X.astype(dtype))


@pytest.mark.parametrize(
    ("block", "op"),
    [(BLOCKS.Add(), np.add), (BLOCKS.Sub(), np.subtract), (BLOCKS.Mul(), np.multiply),
     (BLOCKS.Div(), np.divide)],
)  # fmt: skip
def test_blocks_of_two_inputs(block: Any, op: Any) -> None:
    check_block(lambda: block("x", BLOCKS.Constant(4.0)()), op(X, F32(4)), X)


def test_linear_and_inputs_like_others() -> None:
    with onnxblock.empty_base(17) as accessor:
        kind = TensorProto.FLOAT
        accessor.model.graph.input.append(helper.make_tensor_value_info("x", kind, [2, 3]))
        y = BLOCKS.Linear(3, 4, alpha=2.0)("x")
        _graph_utils.register_graph_outputs(accessor.model, y)
        BLOCKS.Linear(3, 4, bias=False)(BLOCKS.InputLike("x")("like"))
        BLOCKS.InputLike(y)("target")
        graph = onnx_io.load(accessor.model)
    assert {n: str(t) for n, t in graph.inputs.items()} == {
        "x": "f32[2,3]", "like": "f32[2,3]", "target": "f32[2,4]",
    }  # fmt: skip
    assert [a.shape for a in graph.initializers.values()] == [(3, 4), (4,), (3, 4)]
    with onnxblock.base(simple_net()), pytest.raises(NameNotFoundError, match="output_0'; nearest"):
        BLOCKS.InputLike("output_0")()


def test_composed_only() -> None:
    """Blocks of what the engine does not run, for other runtimes."""
    model = simple_net()
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    model.graph.input.append(helper.make_tensor_value_info("raw", TensorProto.INT64, ["batch"]))
    with onnxblock.base(model) as accessor:
        encode = BLOCKS.LabelEncoder(default_int64=7, keys_int64s=[0, 1], values_int64s=[5, 6])
        labels = encode("raw")
        onnxblock.loss.CrossEntropyLoss()("output-0", labels)
        BLOCKS.SequenceConstruct()("output-0", "h")
        assert "labels" not in values(accessor.model)
        ops = [n.op_type for n in accessor.model.graph.node[3:]]
    assert ops == ["LabelEncoder", "SoftmaxCrossEntropyLoss", "SequenceConstruct"]


def check_block(build: Any, reference: Any, x: np.ndarray) -> None:
    class Model(onnxblock.ForwardBlock):
        def build(self) -> Any:
            return build()

    with onnxblock.empty_base(17) as accessor:
        kind = helper.np_dtype_to_tensor_dtype(x.dtype)
        accessor.model.graph.input.append(helper.make_tensor_value_info("x", kind, x.shape))
        model = Model()
        y = model()
    outcome = run(onnx_io.load(model.to_model_proto()), {"x": x})[y]
    assert outcome.dtype == np.asarray(reference).dtype
    np.testing.assert_allclose(outcome, reference, rtol=1e-6)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: onnxblock.loss.MSELoss("avg"), InputError, "expected one of mean, sum, none"),
        (lambda: onnxblock.loss.MSELoss()("lost"), ModelError, "needs the value 'lost', which"),
        (lambda: WithLoss(BLOCKS.Neg())("lost"), ModelError, "malformed model"),
        (lambda: onnxblock.optim.SGD()(([], [])), InputError, "needs something to train"),
        (lambda: onnxblock.custom_op_library("x.so"), UnsupportedOpError, "not supported"),
        (lambda: BLOCKS.ReduceAllL2("/x"), InputError, "expected a relative path"),
        (lambda: _graph_utils.get_input_from_input_name(simple_net(), "input_0"),
         LookupError, "'input_0' is not a graph input; nearest: 'input-0'"),
        (lambda: _graph_utils.get_output_from_output_name(simple_net(), "h"),
         LookupError, "'h' is not a graph output"),
        (lambda: onnxblock.optim.AdamW()(([numpy_helper.from_array(np.zeros(2, int), "i")], [])),
         DTypeError, r"types \{'i': 7\} cannot be trained"),
    ],
)  # fmt: skip
def test_what_errors_say(build: Any, error: type[Exception], message: str) -> None:
    with onnxblock.base(simple_net()), pytest.raises(error, match=message):
        build()


def test_a_base_with_external_data(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(simple_net(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    model = onnx.load(path, load_external_data=False)
    with pytest.raises(InputError, match="give its path as model_path"), onnxblock.base(model):
        pass
    block = Training(onnxblock.loss.MSELoss())
    block.requires_grad("fc1.weight")
    with onnxblock.base(model, str(path)) as accessor:
        assert accessor.has_path
        block("output-0")
    given = numpy_helper.to_array(simple_net().graph.initializer[0])
    np.testing.assert_array_equal(numpy_helper.to_array(block.parameters()[0][0]), given)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "w.bin"]


def test_large_constants_are_not_copied_to_the_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    check = onnx.checker.check_model

    def measured(model: ModelProto, **options: Any) -> None:
        seen.append(model.ByteSize())
        check(model, **options)

    monkeypatch.setattr(onnx.checker, "check_model", measured)
    model = simple_net()
    large = numpy_helper.from_array(np.zeros((3, 100_000), F32), "large")
    model.graph.initializer.append(large)
    model.graph.node.append(helper.make_node("MatMul", ["output-0", "large"], ["y"], "big"))
    with onnxblock.base(model) as accessor:
        loss = onnxblock.loss.L1Loss()("y")
        assert onnx_io.load(accessor.model).initializers["large"].shape == (3, 100_000)
        assert str(onnx_io.load(accessor.model).inputs["target"]).startswith("f32[batch,100000")
    assert loss.startswith("loss/ReduceMean")
    assert seen
    assert max(seen) < 10_000


POSITIONS = {  # of onnxruntime-training 1.19.2; ours may follow
    "optim.AdamW": "bias_correction betas eps weight_decay clip_grad",
    "optim.AdamWOptimizer": "bias_correction betas eps weight_decay",
    "optim.SGD": "clip_grad",
    "loss.BCEWithLogitsLoss": "weight reduction pos_weight",
    "loss.CrossEntropyLoss": "weight reduction ignore_index",
    "loss.MSELoss": "reduction",
    "loss.L1Loss": "reduction",
}


@pytest.mark.parametrize("name", POSITIONS)
def test_parameters_stand_where_the_reference_has_them(name: str) -> None:
    room, block = name.split(".")
    value = getattr(getattr(onnxblock, room), block)
    words = POSITIONS[name].split()
    assert [*inspect.signature(value).parameters][: len(words)] == words


@pytest.mark.parametrize("settings", [*OPTIMIZERS.values(), *loss_types.LOSSES.values()])
def test_blocks_show_the_parameters_of_their_settings(settings: type) -> None:
    room = onnxblock.optim if settings in OPTIMIZERS.values() else onnxblock.loss
    block = getattr(room, settings.__name__)
    assert settings.__name__ in room.__all__
    shown, own = inspect.signature(block).parameters, inspect.signature(settings).parameters
    mine = [(n, p.default) for n, p in own.items() if n != "lr"]  # which is not a part of a model
    assert [(n, p.default) for n, p in shown.items()] == mine
    assert settings.__doc__
    assert block.__doc__ == settings.__doc__
    with pytest.raises(TypeError, match="unexpected keyword argument 'momentun'"):
        block(momentun=1)


def test_losses_are_given_names_by_place_and_by_name() -> None:
    cross_entropy = inspect.signature(onnxblock.loss.CrossEntropyLoss().build)
    assert str(cross_entropy) == "(scores_input_name: 'str', labels_name: 'str' = 'labels')"
    cosine = inspect.signature(onnxblock.loss.CosineEmbeddingLoss().build)
    assert [*cosine.parameters] == ["input_name1", "input_name2", "target_name"]
