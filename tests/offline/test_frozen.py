"""Frozen parts cost nothing: no step for them in the backward pass, no bytes kept for it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from engine import artifacts
from engine.api import CheckpointState
from engine.artifacts import CrossEntropyLoss, SparseUpdate
from engine.base.element_types import ITEMSIZE
from engine.errors import ModelWarning
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.parameters import list_parameters
from engine.graphs.passes.infer import infer
from engine.graphs.passes.patterns import fuse_patterns
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.op import TensorType
from engine.plan.plan import Plan
from engine.tools.benchmark.workloads import WORKLOADS
from engine.training.memory import Memory
from engine.training.model import Model

PARTS = ("head", "last blocks", "first layer", "every second layer", "biases", "norms")
SAMPLE = [("cnn", "biases"), ("mobilenet_v3", "last blocks"), ("transformer", "first layer")]
PRODUCTS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
LINEAR = {  # whose gradients need only the outputs' gradients, and shapes
    "Add", "Sub", "Neg", "Sum", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze",
    "Transpose", "Concat", "Split", "Slice", "Gather", "Expand", "Pad", "ReduceMean", "ReduceSum",
    "AveragePool", "GlobalAveragePool", "Cast", "Where", "Constant", "ConstantOfShape",
}  # fmt: skip
WITHOUT_NORMS = {"mlp", "cnn", "lstm"}
BESIDES = {"LSTM": 5, "MaxPool": 2}  # times the output: gates and cells; places of 64 bits


def trained(graph: Graph, part: str) -> list[str] | SparseUpdate:
    """Return the options `requires_grad` or `update` for a forward graph."""
    names = list_parameters(graph)
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    if part in ("biases", "norms"):
        return SparseUpdate(biases=part == "biases", norms=part == "norms")
    if part in ("head", "last blocks"):
        return SparseUpdate(last=1 if part == "head" else max(2, len(layers) // 6))
    chosen = layers[:1] if part == "first layer" else layers[::2]
    return [name for name in names if name.rpartition(".")[0] in chosen]


def planned(name: str, part: str, folder: Path, size: int = 2) -> tuple[Plan, Model, list[str]]:
    """Return the training plan of a partly trained workload, and its trained parameters."""
    work = WORKLOADS[name]
    graph = work.build()
    onnx_io.save(graph, folder / "forward.onnx")
    choice = trained(graph, part)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)
        artifacts.generate_artifacts(
            folder / "forward.onnx",
            requires_grad=choice if isinstance(choice, list) else None,
            update=choice if isinstance(choice, SparseUpdate) else None,
            loss=CrossEntropyLoss(),
            artifact_directory=folder,
            frozen_batch_norm=True,
        )
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    model = Model(
        folder / "training_model.onnx", state, Memory(), 2, "training model", detect_host()
    )
    x, labels = work.batch(size)
    plan = model.plan(dict(zip(model.inputs, (x.shape, labels.shape), strict=True)))
    return plan, model, state.trainable_names()


def idle(plan: Plan) -> Iterator[str]:
    """The backward steps that lead to no gradient: what they write, no step that does so reads."""
    wanted = {i for i, b in enumerate(plan.buffers) if b.region in ("grad", "io")}
    for step in reversed(plan.steps):
        if any(a.buffer in wanted for a in step.args if a.mode in "wu"):
            wanted |= {a.buffer for a in step.args if a.mode in "ru"}
        elif step.phase == "bwd":
            yield f"{step.kernel}  # {step.source}"


def needed(folder: Path, names: Sequence[str], shapes: dict[str, tuple[int, ...]]) -> int:
    """Bytes that gradients of these parameters need, by a rule for each op of the forward model.

    A product needs an operand where the other one has a gradient.  An op that is linear needs
    nothing.  A recurrent layer needs its gates, a maximum the places where it was found.  Any other
    op needs its inputs or its outputs, whichever is less, and attention or a normalisation a few
    numbers of each row besides, which the caller allows for.
    """
    graph = onnx_io.load(folder / "eval_model.onnx")
    for name, shape in shapes.items():
        graph.inputs[name] = TensorType(graph.inputs[name].dtype, shape)
    fuse_patterns(graph, infer(graph))
    types = infer(graph).types
    moving = set(names)
    for node in graph.nodes:
        if not moving.isdisjoint(node.inputs):
            moving.update(node.outputs)
    made = {o for node in graph.nodes for o in node.outputs} | set(shapes)
    kept: set[str] = set()
    besides = 0
    for node in graph.nodes:
        kept |= (mine := _of(node, moving, types, made))
        if mine and node.op in BESIDES:
            besides += BESIDES[node.op] * _bytes(types[node.outputs[0]])
    return besides + sum(_bytes(types[name]) for name in kept)


def _of(node: Node, moving: set[str], types: dict[str, TensorType], made: set[str]) -> set[str]:
    """The values that the gradient of one node needs."""
    moved = [i for i in node.inputs if i in moving]
    if not moved or node.op in LINEAR:
        return set()
    if node.op in PRODUCTS or node.op == "Mul":
        pair = node.inputs[:2]
        return {a for a, b in (pair, pair[::-1]) if b in moving and a in made}
    ins, outs = {i for i in node.inputs if i in made}, {o for o in node.outputs if o in types}
    if node.op in ("BatchNormalization", "LayerNormalization"):
        return ins if node.op[0] == "L" or node.inputs[1] in moving else set()
    if node.op in ("Softmax", "Erf", "LSTM", "SoftmaxCrossEntropyLoss", "Div", "Pow"):
        return ins | outs
    return min(ins, outs, key=lambda found: sum(_bytes(types[name]) for name in found))


def _bytes(t: TensorType) -> int:
    return math.prod(d for d in t.shape if isinstance(d, int)) * ITEMSIZE[t.dtype]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        pytest.param(name, part, marks=() if (name, part) in SAMPLE else pytest.mark.whole)
        for name in WORKLOADS
        for part in PARTS
        if part != "norms" or name not in WITHOUT_NORMS
    ],
)
def test_nothing_is_kept_or_done_for_what_is_frozen(name: str, part: str, tmp_path: Path) -> None:
    plan, model, names = planned(name, part, tmp_path)
    assert list(idle(plan)) == []
    x, labels = WORKLOADS[name].batch(2)
    allowed = needed(tmp_path, names, dict(zip(model.inputs, (x.shape, labels.shape), strict=True)))
    assert plan.kept_bytes <= 1.02 * allowed + (64 << 10)
