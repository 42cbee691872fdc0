"""Models and checkpoints that do not belong together, and models that were changed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from engine import errors
from engine.api import CheckpointState, Module, Optimizer
from engine.base.element_types import NUMPY
from engine.checkpoint import storage
from engine.errors import (
    DTypeError,
    EngineError,
    ModelError,
    ShapeError,
    UnsupportedOpError,
)
from tests.support.mlp import MLP, Training
from tests.support.mlp_files import FILES, make_proto
from tests.support.places import GOLDENS


def without_buffer(name: str) -> bytes:
    """The training model without the gradient of one parameter."""
    model = make_proto("training")
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
         "accumulates a gradient of '0.bias', which is not a trainable"),
        (without_buffer("0.bias"), CHECKPOINT, None, ModelError, r"no gradient of \['0.bias'\]"),
        (FILES["training"], storage.Checkpoint(), None, ModelError, "not a trainable parameter"),
        (FILES["training"], storage.read(GOLDENS / "cnn" / "checkpoint"), None, ShapeError,
         r"'0.weight' is \[48, 64\] in the training model"),
        (FILES["training"], replace(CHECKPOINT, trainable={
            n: np.asarray(a, np.float64) for n, a in CHECKPOINT.trainable.items()
            if isinstance(a, np.ndarray)}), None, DTypeError, "f32 in the training model, but f64"),
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
    model = make_proto("optimizer")
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
        (optimizer_with(twice), ModelError, "2 optimizer nodes; supported: one, or one per"),
        (optimizer_with(swapped), ModelError, "reads 'first_order_moments'; expected 'par"),
        (optimizer_with(retyped), DTypeError, r"'learning_rate' as f32\[2\], expected f32\[1\]"),
        (attribute("adam_mode", 7), UnsupportedOpError,
         r"AdamWOptimizer '.*' \(opset 1; .*adam_mode is 7 and correct_bias 1; supported: "
         "adam_mode 1, or"),
        (attribute("betas", 0.9), ModelError, "attribute 'betas' of type float; nearest: 'beta'"),
        (attribute("alpha", float("nan")), UnsupportedOpError, "alpha is nan; supported: finite"),
        (attribute("beta", 1.0), UnsupportedOpError, "beta is 1.0; supported: from 0 to below 1"),
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
    model = make_proto("eval")
    next(n for n in model.graph.node if n.op_type == "Relu").op_type = "Relo"
    training = Training()
    module = Module(FILES["training"], training.state, model.SerializeToString()).eval()
    with pytest.raises(UnsupportedOpError, match=r"Relo '.*' \(opset \d+\).*nearest: 'Relu'"):
        module(training.x, training.y)


def test_a_layout_for_one_cpu_is_refused_with_what_to_do() -> None:
    model = make_proto("eval")
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
            model = make_proto(part)
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
    types = [module._get_model().graph.inputs[n] for n in module.input_names()]
    shapes = [[d if isinstance(d, int) and d < 2**20 else 3 for d in t.shape] for t in types]
    return [np.ones(s, NUMPY[t.dtype]) for s, t in zip(shapes, types, strict=True)]
