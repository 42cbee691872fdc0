"""Bad input, models, files and moments: an error that says what is wrong, and nothing is lost."""

from __future__ import annotations

import errno
import gc
import os
import random
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from engine import artifacts, errors
from engine.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from engine.artifacts import SGD, AdamW, BCEWithLogitsLoss, CrossEntropyLoss, LossType, MSELoss
from engine.base.element_types import NUMPY
from engine.checkpoint import storage
from engine.errors import (
    CacheWarning,
    DTypeError,
    EngineError,
    FileError,
    InputError,
    LabelError,
    ModelError,
    NameNotFoundError,
    NonFiniteError,
    OutOfMemoryError,
    ShapeError,
    StateError,
    UnsupportedOpError,
)
from engine.graphs.ir.graph import Graph, Node, type_of
from engine.graphs.planner.pipeline import make_plan
from engine.kernels.binaries import load
from engine.kernels.machine.target import host
from engine.runtime.arena import allocate
from engine.runtime.program import LAUNCH, Team
from engine.system import config
from tests.support.harness import run, untyped
from tests.support.mlp import MLP, Training
from tests.support.places import GOLDENS, ROOT
from tests.support.thread_calls import run_in_threads

NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]


def proto(part: str) -> onnx.ModelProto:
    return onnx.load(MLP / f"{part}_model.onnx")


def test_errors_are_the_fitting_built_ins() -> None:
    kinds = {
        "InternalError": RuntimeError, "ModelError": ValueError,
        "UnsupportedOpError": NotImplementedError,
        "UnknownValueError": NotImplementedError,
        "ShapeError": ValueError, "DTypeError": TypeError, "InputError": ValueError,
        "LabelError": IndexError, "NonFiniteError": FloatingPointError,
        "NameNotFoundError": KeyError, "StateError": RuntimeError, "CheckpointError": ValueError,
        "PlanError": AssertionError, "FileError": OSError, "OutOfMemoryError": MemoryError,
        "BudgetError": MemoryError, "LimitError": MemoryError, "GroupError": ConnectionError,
        "MessageError": ValueError, "NoInfluenceError": ValueError,
        "EngineError": RuntimeError, "MissingPackageError": ImportError,
    }  # fmt: skip
    kept = (c for c in vars(errors).values() if isinstance(c, type))
    found = {c.__name__: c for c in kept if c.__module__ == errors.__name__}
    for name in ("ModelWarning", "CacheWarning", "CheckpointWarning"):
        assert issubclass(found.pop(name), UserWarning)
    assert found.keys() == kinds.keys()
    assert all(issubclass(c, EngineError) and issubclass(c, kinds[n]) for n, c in found.items())


# --- arguments

ARGUMENTS: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda t: CheckpointState.load_checkpoint(untyped(3)), TypeError, "a path or bytes, got 3"),
    (lambda t: CheckpointState.load_checkpoint("a\0b"), OSError, "a null character"),
    (lambda t: CheckpointState.from_bytes(untyped("ODTC")), TypeError, "bytes, got 'ODTC'"),
    (lambda t: CheckpointState.from_bytes(memoryview(bytes(9))[::2]), TypeError, "one after"),
    (lambda t: CheckpointState.save_checkpoint(untyped(None), "c"),
     TypeError, "state: expected a Check"),
    (lambda t: CheckpointState.save_checkpoint(t.state, untyped(3)),
     TypeError, "expected a path, got"),
    (lambda t: t.state.parameters[5], KeyError, "no parameter 5"),
    (lambda t: t.state.parameters[["x"]], KeyError, "no parameter"),
    (lambda t: t.state.properties[None], KeyError, "no property None"),
    (lambda t: t.state.properties.__setitem__(None, 1), TypeError, "property: expected text"),
    (lambda t: t.state.properties.__setitem__("\udcff", 1), ValueError, "no UTF-8 form"),
    (lambda t: t.state.properties.__setitem__("p", "\udcff"), ValueError, "'p'.*no UTF-8 form"),
    (lambda t: t.state.properties.__setitem__("p", 1e300), ValueError, "too large for float32"),
    (lambda t: Module(MLP / "training_model.onnx", untyped(None)),
     TypeError, "expected a CheckpointS"),
    (lambda t: Module(untyped(3), t.state), TypeError, "train_model_uri: expected a path or"),
    (lambda t: Module(b"", t.state), ValueError, "empty; expected an ONNX model"),
    (lambda t: Module(MLP / "checkpoint", t.state), ValueError, "this is a checkpoint"),
    (lambda t: Module(MLP / "training_model.onnx", t.state, threads=untyped("2")),
     TypeError, "whole num"),
    (lambda t: Module(MLP / "training_model.onnx", t.state, threads=-1), RuntimeError, "1 to 1024"),
    (lambda t: Module(MLP / "training_model.onnx", t.state, threads=2**70), RuntimeError, "1024"),
    (lambda t: Module(MLP / "training_model.onnx", t.state, device=untyped(np.ones(2))),
     RuntimeError, "c"),
    (lambda t: t.module.train("no"), TypeError, "mode: expected True or False, got 'no'"),
    (lambda t: t.module.plan(4, 4), TypeError, r"shapes: expected a list \(each .*\), got 4"),
    (lambda t: t.module.plan((0, 64), (0,)), ValueError, r"positive numbers, got \[0, 64\]"),
    (lambda t: t.module.plan((2**45, 64), (2**45,)), MemoryError, "training_m.*_MAX_PLAN_B"),
    (lambda t: t.module.copy_buffer_to_parameters(None), ValueError, "3610 elements, the buffer 1"),
    (lambda t: t.module.inference_model_to_bytes([1]), ValueError, "expected a list of names"),
    (lambda t: t.module.inference_model_to_bytes(iter(())), ValueError, "at least one"),
    (lambda t: t.module.inference_model_to_bytes(["outpu"]), KeyError, "nearest: 'output'"),
    (lambda t: t.module.export_model_for_inferencing(3, ["output"]), TypeError, "a path, got 3"),
    (lambda t: Optimizer(MLP / "optimizer_model.onnx", untyped(None)),
     TypeError, "expected a Module"),
    (lambda t: t.optimizer.set_learning_rate("fast"), TypeError, "expected a number, got 'fast'"),
    (lambda t: t.optimizer.set_learning_rate(10**400), ValueError, "too large"),
    (lambda t: t.optimizer.set_learning_rate(1e300), ValueError, "too large for float32"),
    (lambda t: LinearLRScheduler(untyped(None), 1, 2, 0.1), TypeError, "expected an Optimizer"),
    (lambda t: LinearLRScheduler(t.optimizer, untyped(1.5), 2, 0.1),
     TypeError, "warmup_step_count.*whole"),
    (lambda t: LinearLRScheduler(t.optimizer, 1, 2, np.nan), ValueError, "initial_lr nan is not"),
]  # fmt: skip


@pytest.fixture(scope="module")
def shared() -> Training:
    """A training that errors must leave as it is."""
    return Training()


@pytest.mark.parametrize("case", ARGUMENTS, ids=lambda c: c[2][:24])
def test_arguments(shared: Training, case: tuple[Any, type[Exception], str]) -> None:
    call, builtin, message = case
    before = shared.kept()
    with pytest.raises(EngineError, match=message) as caught:
        call(shared)
    assert isinstance(caught.value, builtin)
    assert shared.kept() == before
    assert shared.state.to_bytes(include_optimizer_state=True)  # and it can be saved


class Odd:
    def numpy(self) -> Any:
        raise OSError("device lost")


X, Y = np.zeros((4, 64), np.float32), np.zeros(4, np.int64)


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        (X.astype(">f4"), Y, DTypeError, "'input': expected float32, got >f4"),
        (X.astype(object), Y, DTypeError, "'input': expected float32, got object"),
        (np.ma.masked_array(X, X == 0), Y, InputError, "'input': an array with masked elements"),
        ([[1.0, 2.0], [3.0]], Y, InputError, "'input': list cannot become an array"),
        (Odd(), Y, InputError, "'input': Odd cannot become an array: device lost"),
        ("abc", Y, DTypeError, "'input': expected values of type float32"),
        ((r for r in X), Y, DTypeError, "'input': expected values of type float32, got object"),
        ([[1e300] * 64] * 4, Y, InputError, "'input': 1e.300 is too large for float32"),
        (X[0, 0], Y, ShapeError, r"'input': expected 2 dimensions .* got shape \[\]"),
        (X, [2**63] * 4, InputError, "'labels': 9223372036854775808 is too large for int64"),
        (X, [1.0] * 4, DTypeError, "'labels': expected values of type int64, got float64"),
        (X, Y.astype(np.int32), DTypeError, "'labels': expected int64, got int32"),
        (X[:0], Y[:0], InputError, "'input' is empty"),
    ],
)
def test_inputs(shared: Training, x: Any, y: Any, error: type[Exception], message: str) -> None:
    before = shared.kept()
    with pytest.raises(error, match=message):
        shared.module(x, y)
    assert shared.kept() == before


def test_arrays_of_any_layout_are_the_same_input(shared: Training) -> None:
    x, y = shared.x, shared.y
    expected = shared.module.eval()(x, y)
    frozen = x.copy()
    frozen.setflags(write=False)
    shifted = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    for same in (
        np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2], frozen, shifted,
        memoryview(untyped(x.copy())),
        x.tolist(), tuple(map(tuple, x)), np.ma.masked_array(x), x.view(np.matrix),
    ):  # fmt: skip
        assert shared.module(same, np.repeat(y, 3)[::3]) == expected
    shared.module.train()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("THREADS", "x", "EDGEGRAD_THREADS='x': expected a whole number"),
        ("THREADS", "0", "EDGEGRAD_THREADS='0': expected a whole number from 1 to 1024"),
        *(
            ("THREADS", text, "EDGEGRAD_THREADS='.*': expected a whole number from 1 to 1024")
            for text in ("1_0", "+1", "-1", " 1", "1 ", "1.0", "\u0661", "1025", "9" * 5000)
        ),
        ("CHECK_FINITE", "yes", "EDGEGRAD_CHECK_FINITE='yes': expected one of 0, 1"),
        ("DEBUG", "9", "EDGEGRAD_DEBUG='9': expected one of 0, 1, 2"),
        ("TREADS", "1", "unknown switch EDGEGRAD_TREADS.*nearest: 'EDGEGRAD_THREADS'"),
    ],
)
def test_switches(monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str) -> None:
    monkeypatch.setenv(config.PREFIX + name, value)
    with pytest.raises(EngineError, match=message):
        config.threads() if "THREADS" in message else config.switch(name)


def test_too_little_memory() -> None:
    with pytest.raises(OutOfMemoryError, match=r"moments: 4611686018427387904 bytes cannot"):
        allocate(2**62, what="moments")


def artifact(**options: Any) -> None:
    artifacts.generate_artifacts(
        MLP / "forward.onnx",
        **{"requires_grad": NAMES, "loss": LossType.CrossEntropyLoss, **options},
    )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"requires_grad": 3}, InputError, "requires_grad: expected a list of names, got 3"),
        ({"requires_grad": ["0.wieght"]}, NameNotFoundError, "nearest: '0.weight'"),
        ({"prefix": 3}, DTypeError, "prefix: expected text, got 3"),
        ({"nominal_checkpoint": "x"}, DTypeError, "nominal_checkpoint: expected True or False"),
        ({"ort_format": np.ones(2)}, DTypeError, "ort_format: expected True or False"),
    ],
)
def test_artifact_options(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        artifact(artifact_directory=tmp_path, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: MSELoss(untyped(["mean"])), DTypeError, "reduction: expected text, got list"),
        (lambda: MSELoss("max"), InputError, "reduction='max'; expected one of mean, sum, none"),
        (lambda: CrossEntropyLoss(ignore_index=untyped(1.5)), DTypeError, "ignore_index: expected"),
        (lambda: CrossEntropyLoss(weight=np.ones(10, complex)), DTypeError, "got complex128"),
        (lambda: BCEWithLogitsLoss(pos_weight=untyped("x")), DTypeError, "pos_weight: expected an"),
        (lambda: BCEWithLogitsLoss(pos_weight=np.array(np.nan)), InputError, "pos_weight: exp"),
        (lambda: AdamW(betas=untyped((0.9,))), InputError, "betas: expected 2 values"),
        (lambda: AdamW(betas=(0.9, 1.0)), InputError, "from 0 to below 1"),
        (lambda: AdamW(adam_mode=2), InputError, r"adam_mode=2; expected 0 \(as torch\) or 1"),
        (lambda: AdamW(bias_correction=False, adam_mode=0), InputError, "always corrects the bias"),
        (lambda: AdamW(eps=np.nan), InputError, "eps nan is not finite"),
        (lambda: AdamW(weight_decay=untyped(None)), DTypeError, "weight_decay: expected a number"),
        (
            lambda: AdamW(groups=untyped(None)),
            DTypeError,
            r"groups: expected a list \(each a Group\), got None",
        ),
        (lambda: SGD(clip_grad=untyped("1")), DTypeError, "clip_grad: expected a number"),
        (lambda: SGD(clip_grad=0), InputError, "clip_grad=0: expected above 0"),
    ],
)
def test_options_of_losses_and_optimizers(
    make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    """They are refused where they are written, not where they are used."""
    with pytest.raises(error, match=message):
        make()


# --- models and checkpoints that do not belong together


def without_buffer(name: str) -> bytes:
    """The training model without the gradient of one parameter."""
    model = proto("training")
    graph = model.graph
    node = next(n for n in graph.node if n.input and n.input[0].startswith(f"{name}_grad.acc"))
    graph.input.remove(next(i for i in graph.input if i.name == node.input[0]))
    graph.output.remove(next(o for o in graph.output if o.name == node.output[0]))
    graph.node.remove(node)
    return bytes(model.SerializeToString())


def split(state: storage.Checkpoint, frozen: str) -> storage.Checkpoint:
    trained = {n: a for n, a in state.trainable.items() if n != frozen}
    return replace(state, trainable=trained, frozen={frozen: state.trainable[frozen]})


CHECKPOINT = storage.read(MLP / "checkpoint")
FILES = {p: MLP / f"{p}_model.onnx" for p in ("training", "eval", "optimizer")}


@pytest.mark.parametrize(
    ("train", "content", "evaluation", "error", "message"),
    [
        (FILES["eval"], CHECKPOINT, None, ModelError, "no gradient of .*it is an eval model"),
        (MLP / "forward.onnx", CHECKPOINT, None, ModelError, "as constants.*inference or forward"),
        (FILES["optimizer"], CHECKPOINT, None, DTypeError, r"'params' of seq\(f32\)"),
        (FILES["training"], CHECKPOINT, FILES["training"], ModelError, "it is a training model"),
        (FILES["training"], CHECKPOINT, MLP / "forward.onnx", ModelError, "eval model holds"),
        (FILES["training"], CHECKPOINT, FILES["optimizer"], DTypeError, "eval model has the inp"),
        (FILES["training"], split(CHECKPOINT, "0.bias"), None, ModelError,
         "accumulates a gradient of '0.bias', which is no trainable"),
        (without_buffer("0.bias"), CHECKPOINT, None, ModelError, r"no gradient of \['0.bias'\]"),
        (FILES["training"], storage.Checkpoint(), None, ModelError, "no trainable parameter"),
        (FILES["training"], storage.read(GOLDENS / "cnn" / "checkpoint"), None, ShapeError,
         r"'0.weight': \[48, 64\] in the training model"),
        (FILES["training"], replace(CHECKPOINT, trainable={
            n: np.asarray(a, np.float64) for n, a in CHECKPOINT.trainable.items()
            if isinstance(a, np.ndarray)}), None, DTypeError, "f32 in the training model, f64"),
    ],
)  # fmt: skip
def test_models_of_another_kind(
    train: Any, content: Any, evaluation: Any, error: type[Exception], message: str
) -> None:
    state = CheckpointState(content)
    before = state.to_bytes()
    with pytest.raises(error, match=message):
        Module(train, state, evaluation)
    assert state.to_bytes() == before


def optimizer_with(change: Callable[[onnx.ModelProto], Any]) -> bytes:
    model = proto("optimizer")
    change(model)
    return bytes(model.SerializeToString())


def attribute(name: str, value: Any) -> bytes:
    def change(model: onnx.ModelProto) -> None:
        node = next(n for n in model.graph.node if n.op_type == "AdamWOptimizer")
        others = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*others, helper.make_attribute(name, value)])

    return optimizer_with(change)


def swapped(model: onnx.ModelProto) -> None:
    node = next(n for n in model.graph.node if n.op_type == "AdamWOptimizer")
    node.input[2], node.input[4] = node.input[4], node.input[2]


def twice(model: onnx.ModelProto) -> None:
    again = model.graph.node.add()
    again.CopyFrom(model.graph.node[0])
    again.output[0] = "again"


def retyped(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (optimizer_with(twice), ModelError, "2 optimizer nodes: exactly one, or one a group"),
        (optimizer_with(swapped), ModelError, "reads 'first_order_moments' in the place of 'par"),
        (optimizer_with(retyped), DTypeError, r"'learning_rate' as f32\[2\], expected f32\[1\]"),
        (attribute("adam_mode", 7), UnsupportedOpError,
         r"AdamWOptimizer '.*' \(opset 1; .*adam_mode 7, correct_bias 1; supported: mode 1, or"),
        (attribute("betas", 0.9), ModelError, "attribute 'betas' of type float; nearest: 'beta'"),
        (attribute("alpha", float("nan")), UnsupportedOpError, "alpha = nan; supported: finite"),
        (attribute("beta", 1.0), UnsupportedOpError, "beta 1.0; supported: from 0 to below 1"),
    ],
)  # fmt: skip
def test_optimizer_models(model: bytes, error: type[Exception], message: str) -> None:
    training = Training()
    training.module(training.x, training.y)
    before = training.kept()
    with pytest.raises(error, match=message):
        Optimizer(model, training.module).step()
    assert training.kept() == before


def test_an_operator_that_is_not_there_is_named() -> None:
    model = proto("eval")
    next(n for n in model.graph.node if n.op_type == "Relu").op_type = "Relo"
    training = Training()
    module = Module(FILES["training"], training.state, model.SerializeToString()).eval()
    with pytest.raises(UnsupportedOpError, match=r"Relo '.*' \(opset \d+\).*nearest: 'Relu'"):
        module(training.x, training.y)


def test_a_layout_for_one_cpu_is_refused_with_what_to_do() -> None:
    model = proto("eval")
    next(n for n in model.graph.node if n.op_type == "Relu").domain = "com.microsoft.nchwc"
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft.nchwc", 1))
    training = Training()
    module = Module(FILES["training"], training.state, model.SerializeToString()).eval()
    with pytest.raises(UnsupportedOpError, match=r"layout for the CPU.*ORT_ENABLE_EXTENDED"):
        module(training.x, training.y)


def mutate(model: onnx.ModelProto, rng: random.Random) -> None:
    """Change one thing about a model that a careless tool might."""
    graph = model.graph
    node, value = rng.choice(graph.node), rng.choice(graph.input)
    names = [i.name for i in graph.input] + [o for n in graph.node for o in n.output] + ["", "?"]
    numbers = (-1, 0, 2, 7, 2**31, 2**62)
    match rng.randrange(9):
        case 0:
            graph.node.remove(node)
        case 1 if node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(names)
        case 2:
            del node.input[rng.randrange(len(node.input) + 1) :]
        case 3:
            del node.output[rng.randrange(len(node.output) + 1) :]
        case 4 if node.attribute:
            changed = rng.choice(node.attribute)
            changed.i, changed.f = rng.choice(numbers), rng.choice((float("nan"), -1.0, 1e38))
        case 5:
            node.op_type = rng.choice(("Relu", "MatMul", "Conv", "Reshape", "Gather", "If", "?"))
        case 6 if value.type.tensor_type.shape.dim:
            rng.choice(value.type.tensor_type.shape.dim).dim_value = rng.choice(numbers)
        case 7:
            value.type.tensor_type.elem_type = rng.choice((0, 6, 7, 9, 10, 11, 99))
        case _:
            value.name = rng.choice(names)


@pytest.mark.parametrize("part", FILES)
def test_mutated_models(part: str) -> None:
    """A mutated model either works, or an error says why it does not."""
    outcomes = set()
    for seed in range(60):
        rng = random.Random(f"{part} {seed}")
        sources: dict[str, Any] = {**FILES}
        if seed % 4:
            model = proto(part)
            mutate(model, rng)
            sources[part] = model.SerializeToString()
        else:
            data = bytearray(FILES[part].read_bytes())
            data[rng.randrange(len(data))] = rng.randrange(256)
            sources[part] = bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])
        state = CheckpointState.load_checkpoint(MLP / "checkpoint")
        try:
            module = Module(sources["training"], state, sources["eval"], threads=2)
            optimizer = Optimizer(sources["optimizer"], module)
            module(*feeds(module))
            optimizer.step()
            module.eval()(*feeds(module))
            outcomes.add("fine")
        except EngineError as error:
            outcomes.add("a defect" if isinstance(error, errors.PlanError) else "refused")
    assert outcomes == {"fine", "refused"}


def feeds(module: Module) -> list[np.ndarray[Any, Any]]:
    types = [module._model().graph.inputs[n] for n in module.input_names()]
    shapes = [[d if isinstance(d, int) and d < 2**20 else 3 for d in t.shape] for t in types]
    return [np.ones(s, NUMPY[t.dtype]) for s, t in zip(shapes, types, strict=True)]


def one_node(op: str, ins: dict[str, Any], domain: str = "", **attrs: Any) -> Graph:
    node = Node(op, tuple(ins), ("out",), attrs, domain, "n")
    types = {n: type_of(a) for n, a in ins.items()}
    return Graph(op, types, ["out"], {}, [node], {"": 17, "com.microsoft": 1})


A, B, F16 = np.ones((4, 5), np.float32), np.ones((3, 5), np.float32), np.ones(3, np.float16)
MS = "com.microsoft"


@pytest.mark.parametrize(
    ("graph", "error", "message"),
    [
        (one_node("SoftmaxGrad_13", {"a": A, "b": B}, MS), ShapeError, r"expected the shape \[3"),
        (one_node("SoftmaxCrossEntropyLossGrad", {"a": A, "b": B, "y": np.zeros(3, int)}, MS),
         ShapeError, r"input 0 is f32\[4,5\]; expected the shape \[\]"),
        (one_node("ReluGrad", {"a": A}, MS), UnsupportedOpError, "input 1 is missing"),
        (one_node("MaxPool", {"x": A.reshape(1, 1, 4, 5)}, kernel_shape=[0, 2]),
         ShapeError, "a window"),
        (one_node("And", {"a": F16, "b": F16}), UnsupportedOpError, "and of f16; supported: func"),
        (one_node("Exp", {"a": np.ones(3, int)}), UnsupportedOpError, "exp of i64; supported"),
    ],
)  # fmt: skip
def test_operands(graph: Graph, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"{graph.name} 'n' \(opset .*{message}"):
        make_plan(graph, {}, target=host(), threads=2)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_division_of_integers_never_traps(dtype: Any) -> None:
    least = np.iinfo(dtype).min
    ins = {"a": np.array([7, 8, least, 9], dtype), "b": np.array([2, 0, -1, 1]).astype(dtype)}
    out = run(one_node("Div", ins), ins)["out"]
    np.testing.assert_array_equal(out, np.array([3, 0, least, 9], dtype))


# --- the order of calls


def test_a_nominal_state_waits_for_values(tmp_path: Path) -> None:
    artifact(artifact_directory=tmp_path, optimizer=AdamW(), nominal_checkpoint=True)
    state = CheckpointState.load_checkpoint(tmp_path / "nominal_checkpoint")
    bias = np.zeros(48, np.float32)
    with pytest.raises(ModelError, match=r"'6\.weight'"):  # a failure must not fix any shape
        Module(GOLDENS / "cnn" / "training_model.onnx", state)
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    other = Training()
    x, y = other.x, other.y
    assert "0.bias" in state.parameters
    with pytest.raises(StateError, match=r"Please load the parameter states first$"):
        state.parameters["0.bias"]
    for _, parameter in state.parameters:
        with pytest.raises(StateError, match=r"Please load the parameter states first$"):
            parameter.data.any()
    with pytest.raises(StateError, match=r"Please load all the parameter states first$"):
        state.parameters["0.bias"] = bias
    for call in (
        lambda: module.train()(x, y), lambda: module.eval()(x, y), optimizer.step,
        module.get_contiguous_parameters, lambda: module.inference_model_to_bytes(["output"]),
        lambda: module.export_model_for_inferencing(tmp_path / "m.onnx", ["output"]),
    ):  # fmt: skip
        with pytest.raises(StateError, match=r"Please load the model parameters first\.$"):
            call()
    with pytest.raises(StateError, match="trainable_only=False"):
        module.copy_buffer_to_parameters(np.zeros(3610, np.float32))
    with pytest.raises(DTypeError):
        module.copy_buffer_to_parameters(np.zeros(3610), trainable_only=False)
    assert module.get_parameters_size() == 3610
    assert not state.loaded
    assert not CheckpointState.from_bytes(state.to_bytes(True)).loaded  # saving is possible
    values = other.module.get_contiguous_parameters()
    module.copy_buffer_to_parameters(values, trainable_only=False)
    assert module.train()(x, y) == other.module(x, y)
    optimizer.step()


def test_a_second_optimizer_takes_over() -> None:
    training = Training()
    training.module(training.x, training.y)
    training.optimizer.step()
    second = Optimizer(FILES["optimizer"], training.module)
    before = training.kept()
    with pytest.raises(StateError, match="another Optimizer was made for this state"):
        training.optimizer.step()
    assert training.kept() == before
    second.step()
    assert second._group.step == 2


@pytest.mark.parametrize("reset", [True, False])
def test_a_loss_that_is_not_finite_spoils_no_later_step(reset: bool) -> None:
    training = Training()
    module = training.module
    module.check_finite = True
    module(training.x, training.y)
    once = training.kept()
    if reset:
        module.lazy_reset_grad()
    with pytest.raises(NonFiniteError, match="is .*nan" + ("]$" if reset else ".*lazy_reset_grad")):
        module(training.x * np.float32(np.nan), training.y)
    if not reset:
        module.lazy_reset_grad()
    module(training.x, training.y)
    assert training.kept() == once


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("ignored", [None, 255])
def test_labels_of_a_map(tmp_path: Path, threads: int, dtype: Any, ignored: int | None) -> None:
    shape: list[str | int | None] = ["n", 5, 4, 6]
    w = np.ones((1, 5, 1, 1), np.float32)
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])], "map",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, shape)], [onnx.numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    forward = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    loss = CrossEntropyLoss(ignore_index=ignored)
    artifacts.generate_artifacts(forward, ["w"], loss=loss, artifact_directory=tmp_path)
    model = onnx.load(tmp_path / "training_model.onnx")
    labels = next(i for i in model.graph.input if i.name == "labels")
    labels.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(model.SerializeToString(), state, threads=threads)
    x = np.random.default_rng(0).standard_normal((3, 5, 4, 6)).astype(np.float32)
    y = np.random.default_rng(1).integers(0, 5, (3, 4, 6)).astype(dtype)
    module(x, y)
    kept = state.regions["grad"].tobytes()
    for label in (5, -1, int(np.iinfo(dtype).max), int(np.iinfo(dtype).min)):
        bad = y.copy()
        bad[2, 3, 5] = label
        with pytest.raises(LabelError, match=rf"label {label} at position 71 is outside \[0, 5\)"):
            module(x, bad)
        assert state.regions["grad"].tobytes() == kept
    if ignored is not None:
        assert module(x, np.full_like(y, ignored)) == 0


# --- files


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the n-th file that is written from now on find no space."""

    def arm(n: int) -> None:
        real, left = os.fsync, [n]

        def fsync(file: int) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(file)

        monkeypatch.setattr(os, "fsync", fsync)

    return arm


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_a_full_disk_keeps_the_old_artifacts(
    tmp_path: Path, full_disk: Callable[[int], None], n: int
) -> None:
    options = {"optimizer": AdamW(), "nominal_checkpoint": True, "artifact_directory": tmp_path}
    artifact(**options)
    old = contents(tmp_path)
    assert len(old) == 5
    full_disk(n)
    with pytest.raises(FileError, match="No space left"):
        artifact(**options | {"requires_grad": NAMES[:2]})
    assert contents(tmp_path) == old


def test_a_full_disk_keeps_the_old_file(
    tmp_path: Path, full_disk: Callable[[int], None], shared: Training
) -> None:
    (tmp_path / "m.onnx").write_bytes(b"old")
    (tmp_path / "c").write_bytes(b"old")
    full_disk(1)
    with pytest.raises(FileError, match=r"m\.onnx': No space left"):
        shared.module.export_model_for_inferencing(tmp_path / "m.onnx", ["output"])
    full_disk(1)
    with pytest.raises(FileError, match=r"c': No space left"):
        CheckpointState.save_checkpoint(shared.state, tmp_path / "c", True)
    assert contents(tmp_path) == {"m.onnx": b"old", "c": b"old"}


def test_links_are_followed_and_devices_kept(tmp_path: Path, shared: Training) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    shared.module.export_model_for_inferencing(tmp_path / "link", ["output"])
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").stat().st_size > 10_000
    os.mkfifo(tmp_path / "pipe")
    for call in (
        lambda p: shared.module.export_model_for_inferencing(p, ["output"]),
        lambda p: CheckpointState.save_checkpoint(shared.state, p),
        CheckpointState.load_checkpoint,
        lambda p: Module(p, shared.state),
    ):
        with pytest.raises(FileError, match="not a regular file"):
            call(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


BITCODE = b"BC\xc0\xde" * 100  # as it begins; nothing here reads more of it


class Compiler:
    """In the place of the compiler: counts, and returns what would be code."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
        self.calls = 0
        monkeypatch.setattr(load, "compile_kernel", self.compile)
        if folder is not None:
            monkeypatch.setenv("EDGEGRAD_CACHE_DIR", str(folder))

    def compile(self, *_: Any, **__: Any) -> bytes:
        self.calls += 1
        return BITCODE

    def ask(self) -> int:
        """Return how often it compiled for one request, whose answer must be right."""
        before = self.calls
        assert load.bitcode(LAUNCH, host()) == BITCODE
        return self.calls - before


def test_a_damaged_cache_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(monkeypatch, tmp_path)
    assert (compiler.ask(), compiler.ask()) == (1, 0)
    (file,) = tmp_path.rglob("*.bc")
    whole = file.read_bytes()
    for n in (0, 5, 32, 33, len(whole) - 1):
        file.write_bytes(whole[:n])
        assert (compiler.ask(), compiler.ask()) == (1, 0)
    file.write_bytes(whole[:-1] + b"?")
    assert (compiler.ask(), compiler.ask()) == (1, 0)
    file.unlink()
    file.mkdir()
    with pytest.warns(CacheWarning, match="is not a regular file"):
        assert compiler.ask() == 1
    assert compiler.ask() == 1
    assert list(tmp_path.rglob("*")) == [file.parent, file]  # no temporary file


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert Compiler(monkeypatch, tmp_path / "file").ask() == 1
    for name in ("EDGEGRAD_CACHE_DIR", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "home", nobody)
        assert Compiler(patch, None).ask() == 1

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert Compiler(monkeypatch, tmp_path / "full").ask() == 1
    assert not [p for p in (tmp_path / "full").rglob("*") if p.is_file()]


def test_writers_of_one_cache_do_not_disturb_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, wrong = Compiler(monkeypatch, tmp_path), []

    def work() -> None:
        for _ in range(30):
            if load.bitcode(LAUNCH, host()) != BITCODE:
                wrong.append(1)
            for file in tmp_path.rglob("*.bc"):
                file.unlink(missing_ok=True)

    run_in_threads([work] * 4)
    assert not wrong
    assert compiler.calls > 4


# --- threads, processes, lifetimes


def test_one_module_from_several_threads() -> None:
    module = Training().module.eval()
    x, y = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32), np.arange(64) % 10
    sizes = (1, 3, 64)
    expected, wrong = {n: module(x[:n], y[:n]) for n in sizes}, []
    again = Training().module.eval()  # plans are made while others run

    def work() -> None:
        for i in range(60):
            n = sizes[i % 3]
            if again(x[:n], y[:n]) != expected[n]:
                wrong.append(n)

    run_in_threads([work] * 4)
    assert not wrong


def test_errors_in_one_thread_do_not_reach_another() -> None:
    alone, beside, failing = Training(), Training(), Training()
    caught = []

    def train(t: Training) -> None:
        for _ in range(50):
            t.module(t.x, t.y)
            t.optimizer.step()
            t.module.lazy_reset_grad()

    def fail() -> None:
        for _ in range(100):
            try:
                failing.module(failing.x, failing.y + 99)
            except LabelError as error:
                caught.append(error)

    train(alone)
    run_in_threads([lambda: train(beside), fail])
    assert len(caught) == 100
    assert beside.kept() == alone.kept()


def test_an_interrupt_leaves_a_module_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    training, run = Training(), Team.run

    def interrupted(self: Team, *args: Any) -> None:
        run(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Team, "run", interrupted)
        for call in (lambda: training.module(training.x, training.y), training.optimizer.step):
            with pytest.raises(KeyboardInterrupt):
                call()
    assert np.isfinite(training.module.eval()(training.x, training.y))
    training.module.train()(training.x, training.y)
    training.optimizer.step()
    assert training.optimizer._group.step == 2


def test_threads_that_the_system_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == "edgegrad-2":
            raise RuntimeError("can't start new thread")
        start(self)

    before = threading.active_count()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(EngineError, match=r"threads=4: the system gave 2 \(can't start"):
            Team(4, load.addresses)
    assert threading.active_count() == before


def test_a_stopped_team_does_not_hang() -> None:
    team = Team(2, load.addresses)
    team.stop()
    with pytest.raises(StateError, match="the worker threads were stopped"):
        team.run(0, 0, 0)


IN_CHILD = """
import os, sys, threading
sys.path[:0] = sys.argv[1:2]
from tests.support.mlp import Training
mine, same = Training(), Training()
for t in (mine, same):  # a fork while another thread plans or compiles is not promised to work
    t.module(t.x, t.y)
    t.optimizer.step()
def train():
    while True:
        same.module(same.x, same.y)
        same.optimizer.step()
threading.Thread(target=train, daemon=True).start()
for t in (mine, same) * 3:
    child = os.fork()
    if child == 0:
        t.module(t.x, t.y)
        t.optimizer.step()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("done")
"""


def test_children_and_the_end_of_a_process_that_trains() -> None:
    """Forked while threads train, then ended while they do: nothing hangs."""
    root = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", IN_CHILD, root], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


def test_nothing_is_kept_but_what_is_used() -> None:
    threads, gone, arrays = threading.active_count(), [], []
    for _ in range(50):
        t = Training()
        t.module(t.x, t.y)
        t.optimizer.step()
        arrays.append((t.module(t.x, t.y), t.state.parameters["0.weight"].data,
                       t.state.parameters["0.weight"].grad))  # fmt: skip
        gone += [weakref.ref(o) for o in (t.module, t.state, t.optimizer, t.module.session.memory)]
        del t
    gc.collect()
    assert not [r for r in gone if r() is not None]
    assert threading.active_count() == threads
    rubbish = [np.full(50_000, 7, np.float32) for _ in range(50)]
    for found in arrays:  # views outlive their state
        assert all(np.array_equal(a, b) for a, b in zip(found, arrays[0], strict=True))
    del rubbish
