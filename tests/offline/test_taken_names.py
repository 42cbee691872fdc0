"""A model may use any name that artifacts add, and trains as with any other name.

The names are collected from artifacts.  Each is given to an input, the output, a parameter, a value
and a node of a model, and to a value inside a body of control flow.  Names that
onnxruntime-training fixes are refused there, with the name.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from engine import Trainer
from engine.api import CheckpointState, Module, Optimizer
from engine.artifacts import (
    SGD,
    AdamW,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    MSELoss,
    generate_artifacts,
)
from engine.errors import ModelError
from engine.graphs.io import onnx_io
from engine.loss_types import Loss
from engine.onnxblock import Block
from engine.onnxblock import loss as blocks
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from engine.training.model_file import RESET
from tests.support.builds import load, needs_cc
from tests.support.tiny import LABELS, NORMED, X, forward

TARGETS = np.random.default_rng(3).random((20, 3)).astype(np.float32)
ROLES = {"input": "x", "output": "scores", "parameter": "head.bias", "statistic": "norm.mean",
         "value": "b", "node": "", "body": ""}  # fmt: skip
IN_FORMAT = ("input", "output", "parameter", "statistic", "value")  # roles that fixed names refuse
OPTIMIZERS: dict[str, Any] = {"adamw": AdamW(0.05), "sgd": SGD(0.1, momentum=0.9)}


def target(loss: Loss) -> np.ndarray:
    """Return the values with which the loss compares."""
    return LABELS if isinstance(loss, CrossEntropyLoss) else TARGETS


def named(role: str, name: str) -> onnx.ModelProto:
    """The model in which something has this name."""
    proto = forward(NORMED)
    for n, node in enumerate(proto.graph.node):
        node.name = f"node{n}"
    if role == "node":
        proto.graph.node[1].name = name
    elif role == "body":
        _add_branches(proto, name)
    else:
        _rename(proto.graph, ROLES[role], name)
    return proto


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = new if value.name == old else value.name
    for node in graph.node:
        node.input[:] = [new if i == old else i for i in node.input]
        node.output[:] = [new if o == old else o for o in node.output]


def _add_branches(proto: onnx.ModelProto, name: str) -> None:
    """Let an If that the inputs decide compute the hidden values; `name` is inside of it."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N,8] b) => (float[N,8] c) {
        total = ReduceSum<keepdims = 0>(b)
        big = Constant<value = float {1e9}>()
        is_small = Less(total, big)
        c = If(is_small) <
            then_branch = yes () => (float[N,8] then_out) { inside = Neg(b)
                then_out = Neg(inside) },
            else_branch = no () => (float[N,8] else_out) { else_out = Abs(b) }
        >
    }"""
    added = parser.parse_model(text).graph
    for attribute in added.node[-1].attribute:
        if attribute.name == "then_branch":
            _rename(attribute.g, "inside", name)
    at = next(n for n, node in enumerate(proto.graph.node) if "b" in node.output)
    rest = list(proto.graph.node[at + 1 :])
    del proto.graph.node[at + 1 :]
    for node in rest:
        node.input[:] = ["c" if i == "b" else i for i in node.input]
    for n, node in enumerate([*added.node, *rest]):
        node.name = f"new{n}"
    proto.graph.node.extend([*added.node, *rest])


def trained(
    proto: onnx.ModelProto, loss: Loss, optimizer: str, *, proximal: bool = False
) -> list[Any]:
    """Return the results of two steps, one plan and two: losses, parameters by value,
    predictions.
    """
    method = OPTIMIZERS[optimizer]
    trainer = Trainer.from_onnx(proto, loss, method, threads=1, proximal=proximal)
    actual: list[Any] = [trainer.step(X, target(loss)), trainer.accumulate(X, target(loss))]
    trainer.update()
    actual.append(trainer.evaluate([(X, target(loss))])["loss"])
    actual.append(np.asarray(trainer.predict(X)).tobytes())
    parameters = [p.data for _, p in trainer.state.parameters]
    actual.append(sorted(p.tobytes() for p in parameters))
    return actual


@cache
def added(loss: str, *, proximal: bool) -> tuple[str, ...]:
    """Return the names of all values and nodes that artifacts add to the model."""
    kind: Loss = {"classes": CrossEntropyLoss(), "mse": MSELoss(), "bce": BCEWithLogitsLoss()}[loss]
    proto = named("node", "node1")
    method = AdamW(0.05, clip_grad=1.0, skip_nonfinite=True)
    mine = onnx_io.load(proto)
    known = {*mine.list_values(), *(n.name for n in mine.nodes)}
    actual: dict[str, None] = {}
    with tempfile.TemporaryDirectory() as folder:
        Trainer.from_onnx(proto, kind, method, folder=folder, proximal=proximal)
        for path in sorted(Path(folder).glob("*.onnx")):
            graph = onnx_io.load(path)
            names = [*graph.list_values(), *(n.name for n in graph.nodes)]
            actual |= {name: None for name in names if name not in known}
    return tuple(actual)


LOSSES: dict[str, Loss] = {
    "classes": CrossEntropyLoss(), "mse": MSELoss(), "bce": BCEWithLogitsLoss()
}  # fmt: skip
_expected: dict[tuple[str, ...], list[Any]] = {}


def check(role: str, name: str, loss: str, optimizer: str, *, proximal: bool = False) -> str:
    """Train a model with the name as with another; return why it is refused, or nothing."""
    key = "body" if role == "body" else "", loss, optimizer, str(proximal)
    if key not in _expected:
        other = named("body" if role == "body" else "node", "neutral")
        _expected[key] = trained(other, LOSSES[loss], optimizer, proximal=proximal)
    try:
        actual_trained = trained(named(role, name), LOSSES[loss], optimizer, proximal=proximal)
    except ModelError as error:
        if role not in IN_FORMAT or repr(name) not in str(error):
            raise
        return str(error)
    assert actual_trained == _expected[key], f"{role} {name!r}, {loss}"
    return ""


def is_fixed(name: str) -> bool:
    """Return whether onnxruntime-training, or a federation, relies on the name."""
    return name in (RESET, "proximal_mu") or ".accumulation." in name or name.endswith(".anchor")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", ["target", "labels", "loss", RESET])
def test_the_names_that_users_have_most(name: str, role: str) -> None:
    loss = "classes" if name == "labels" else "mse"
    refused = check(role, name, loss, "adamw")
    assert bool(refused) == (name == RESET and role in IN_FORMAT)


@pytest.mark.parametrize("role", ROLES)
def test_names_that_artifacts_add(role: str) -> None:
    """A sample: every 48th of them, others for each role and loss."""
    for n, loss in enumerate(LOSSES):
        names = added(loss, proximal=False)[(n + len(role)) % 48 :: 48]
        for name in names:
            assert bool(check(role, name, loss, "sgd")) <= is_fixed(name)


@pytest.mark.whole
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("role", ROLES)
def test_all_names_that_artifacts_add(role: str, loss: str, optimizer: str) -> None:
    for proximal in (False, True):
        for name in added(loss, proximal=proximal):
            refused = check(role, name, loss, optimizer, proximal=proximal)
            assert bool(refused) <= is_fixed(name)


@pytest.mark.parametrize("name", ["x_grad.accumulation.buffer", "x_grad.accumulation.out", RESET])
def test_inputs_and_outputs_that_end_as_gradients_do(name: str, tmp_path: Path) -> None:
    """In a model that trains something else, and in one that trains nothing."""
    if name != RESET:
        for role in ("input", "output"):
            assert not check(role, name, "mse", "sgd")
    generate_artifacts(named("input", name), [], loss=MSELoss(), artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    assert module.input_names() == [name, "target"]
    assert module(X, TARGETS) == module.eval()(X, TARGETS)


def test_a_value_may_be_the_target_by_name(tmp_path: Path) -> None:
    """Where it is asked for, and in blocks, that add inputs of their own."""
    proto = named("input", "target")
    generate_artifacts(
        proto, ["head.bias"], loss=MSELoss(), optimizer=SGD(), artifact_directory=tmp_path,
        loss_input_names=["scores", "truth"], frozen_batch_norm=True,
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    assert module.input_names() == ["target", "truth"]
    module(X, TARGETS)
    Optimizer(tmp_path / "optimizer_model.onnx", module).step()


@pytest.mark.parametrize("name", ["x", "target"])
def test_losses_of_one_model_share_their_target(name: str, tmp_path: Path) -> None:
    class Both(Loss):
        def build(self, graph: Any, *inputs: str) -> str:
            parts = [kind.build(graph, *inputs) for kind in (MSELoss(), BCEWithLogitsLoss())]
            graph.nodes.append(type(graph.nodes[0])("Add", tuple(parts), ("both",), {}, "", "both"))
            return "both"

    class BothBlocks(Block):
        def build(self, *names: str) -> Any:
            return blocks.MSELoss()(*names), blocks.BCEWithLogitsLoss()(*names)

    free = "target" if name == "x" else "target_1"
    losses: tuple[Loss | Block, ...] = Both(), BothBlocks()
    for number, loss in enumerate(losses):
        folder = tmp_path / str(number)
        generate_artifacts(
            named("input", name), ["head.bias"], loss=loss, artifact_directory=folder,
            frozen_batch_norm=True,
        )  # fmt: skip
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        assert Module(folder / "training_model.onnx", state).input_names() == [name, free]


@needs_cc
def test_a_build_takes_the_names_from_its_artifacts(tmp_path: Path) -> None:
    """An input with the name of the flag is the caller's where the model has no such flag."""
    proto = named("input", "target")
    names = ["head.bias", "head.weight"]
    generate_artifacts(
        proto, names, loss=MSELoss(), optimizer=SGD(), artifact_directory=tmp_path / "artifacts",
        frozen_batch_norm=True,
    )  # fmt: skip
    options = Options("mnist", resolve("native"), PlanRequest([20]))
    build(tmp_path / "artifacts", tmp_path / "out", options)
    trainer = load(tmp_path / "out").Trainer(tmp_path / "artifacts" / "checkpoint")
    state = CheckpointState.load_checkpoint(tmp_path / "artifacts" / "checkpoint")
    module = Module(tmp_path / "artifacts" / "training_model.onnx", state, threads=1)
    assert trainer.step(X, TARGETS) == module(X, TARGETS)
