"""Models that onnxruntime-training 1.19.2 can train, as rows for tests/support/peer_artifacts.py.

`MODELS` are whole models, including tests/data/goldens; `make_case_row` makes a row of a case.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from engine.api import CheckpointState, Module
from engine.artifacts import LossType, generate_artifacts
from engine.base.element_types import FLOATS, NUMPY
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.passes.infer import infer
from engine.kernels.vocabulary.op import TensorType
from engine.loss_types import LOSSES
from engine.proximal import ANCHOR, set_anchors
from engine.tools.dev.case_graphs import OneNode, with_loss
from engine.tools.dev.cases.case import Case
from tests.support.harness import get_gradient, make_identity
from tests.support.places import DATA, GOLDENS

LOSS_ROWS = DATA / "torch_losses.json"
GOLDEN = ("mlp", "regression_sgd", "bce", "l1", "cnn", "mobilenet", "transformer", "lstm")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Row:
    """A model to train: its graph, the names of its weights, the loss, and a batch by input.

    mu: the weight of a proximal term, whose anchors are half of the weights; 0: there is no term.
    """

    graph: Graph
    weights: list[str]
    loss: str
    batch: dict[str, Any]
    mu: float = 0

    def write(self, folder: Path) -> None:
        """Write the model, our artifacts, the batch, and the gradients of a step of ours."""
        onnx_io.save(self.graph, folder / "forward.onnx")
        spec = {"weights": self.weights, "loss": self.loss}
        (folder / "row.json").write_text(json.dumps(spec))
        self.write_artifacts(folder)
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(folder / "training_model.onnx", state, threads=1)
        module(*(self.batch[name] for name in module.input_names()))
        np.savez(folder / "batch.npz", **self.batch)
        expected: dict[str, Any] = {n: get_gradient(state, n) for n in self.weights}
        np.savez(folder / "expected.npz", **expected)

    def write_artifacts(self, folder: Path) -> None:
        """Write our artifacts alone."""
        loss = LossType[self.loss] if self.loss else None
        model = onnx_io.to_bytes(self.graph)
        generate_artifacts(
            model, self.weights, loss=loss, artifact_directory=folder, proximal=bool(self.mu)
        )
        if self.mu:
            state = CheckpointState.load_checkpoint(folder / "checkpoint")
            set_anchors(state, self.mu)
            for name in self.weights:
                state.parameters[name + ANCHOR].data[...] /= 2
            CheckpointState.save_checkpoint(state, folder / "checkpoint")


def is_trainable(case: Case) -> bool:
    """Return whether a case is of ONNX's domain, and differentiates inputs of float32."""
    kinds = {str(getattr(case.ins[i], "dtype", "")) for i in case.grad}
    return not case.domain and kinds == {"float32"}


def make_case_row(case: Case) -> Row:
    """The gradient of a case with respect to the inputs that it differentiates.

    The loss is the sum of all float outputs, each with random weights, times an input of 1.
    """
    one = OneNode(case)
    rng = np.random.default_rng(1)
    types = infer(one.graph.copy()).types
    floats = [(o, types[o]) for o in one.outputs if types[o].dtype in FLOATS]
    graph = with_loss(
        one.graph, {o: rng.standard_normal(t.dims).astype(NUMPY[t.dtype]) for o, t in floats}
    )
    weights = [f"x{i}" for i in case.grad]
    for name in weights:
        graph.initializers[name] = one.inputs[name]
        del graph.inputs[name]
    kind = floats[0][1].dtype
    graph.inputs["one"] = TensorType(kind, ())
    graph.nodes.append(Node("Mul", ("loss", "one"), ("scaled",), name="scaled"))
    graph.outputs = ["scaled"]
    graph.opsets = {"": case.opset, "com.microsoft": 1}
    graph.types = {"scaled": TensorType(kind, ())}
    batch = {name: one.inputs[name] for name in graph.inputs if name != "one"}
    return Row(graph, weights, "", {**batch, "one": np.ones((), NUMPY[kind])})


def make_golden_row(name: str) -> Row:
    """The model of a trace of the peer."""
    spec = json.loads((GOLDENS / name / "case.json").read_text())
    trace = np.load(GOLDENS / name / "trace.npz")
    graph = onnx_io.load(GOLDENS / name / "forward.onnx")
    (x,) = graph.inputs
    labels = "labels" if spec["loss"] == "CrossEntropyLoss" else "target"
    batch = {x: trace["x"][0], labels: trace["y"][0]}
    return Row(graph, spec["requires_grad"], spec["loss"], batch)


def make_loss_row(name: str) -> Row:
    """A loss with its default options, by its first row in tests/data/torch_losses.json."""
    cases = json.loads(LOSS_ROWS.read_text())["cases"]
    case = next(c for c in cases if c["loss"] == name and not c["options"])
    inputs = {str(i): np.array(x, np.float32) for i, x in enumerate(case["inputs"])}
    targets = [np.array(t) for t in case["targets"]]
    batch = {n: t.astype(np.float32) if t.dtype.kind == "f" else t
             for n, t in zip(LOSSES[LossType[name]].targets, targets, strict=False)}  # fmt: skip
    graph = onnx_io.load(make_identity(inputs))
    graph.types = {f"y{n}": t for n, t in graph.inputs.items()}
    return Row(graph, [f"w{n}" for n in inputs], name, {**inputs, **batch})


def make_image_row(
    *nodes: Node, batch: str | int = "batch", pixels: tuple[str | int, str | int] = (9, 8)
) -> Row:
    """A classifier of images: a convolution that makes a, `nodes` from a to p, and a layer.

    batch, pixels: the dimensions that the model declares; its batch is 2 images of 9 x 8 pixels.
    """
    rng = np.random.default_rng(0)
    shapes = {"w": (4, 2, 3, 3), "v": (4, 4, 3, 3), "s": (4,), "fc": (3, 4)}
    read = {i for n in nodes for i in n.inputs} | {"w", "fc"}
    weights = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items() if n in read}
    graph = Graph(
        "image",
        {"x": TensorType("f32", (batch, 2, *pixels))},
        ["y"],
        dict(weights),
        [
            Node("Conv", ("x", "w"), ("a",), {"pads": [1, 1, 1, 1]}, name="first"),
            *nodes,
            Node("GlobalAveragePool", ("p",), ("mean",), name="mean"),
            Node("Flatten", ("mean",), ("flat",), name="flat"),
            Node("Gemm", ("flat", "fc"), ("y",), {"transB": 1}, name="last"),
        ],
        {"": 14},
        {"y": TensorType("f32", (batch, 3))},
    )
    x = rng.normal(size=(2, 2, 9, 8)).astype(np.float32)
    data = {"x": x, "labels": np.array([0, 2])}
    return Row(graph, list(weights), LossType.CrossEntropyLoss.name, data)


def _pool(op: str, size: int, stride: int, pad: int = 0, end: str = "p") -> Node:
    attrs = {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
    return Node(op, ("a",), (end,), attrs, name="pool")


PEER_HAS_OPS_OF = (
    "FocalLoss", "GIoULoss", "CIoULoss", "DiceLoss", "TripletMarginLoss", "BatchHardTripletLoss",
    "InfoNCELoss",
)  # fmt: skip

MODELS: dict[str, Callable[[], Row]] = {
    **{f"loss {name}": partial(make_loss_row, name) for name in PEER_HAS_OPS_OF},
    **{f"golden {name}": partial(make_golden_row, name) for name in GOLDEN},
    "proximal term": lambda: replace(make_golden_row("mlp"), mu=0.5),
    "relu": partial(make_image_row, Node("Relu", ("a",), ("p",), name="relu")),
    "images of any size": partial(
        make_image_row, Node("Relu", ("a",), ("p",), name="relu"), pixels=("height", "width")
    ),
    "max pool": partial(make_image_row, _pool("MaxPool", 3, 2, 1)),
    "max pool that leaves a rim": partial(make_image_row, _pool("MaxPool", 2, 3)),
    "max pool beside a skip connection": partial(
        make_image_row, _pool("MaxPool", 3, 1, 1, "m"), Node("Add", ("m", "a"), ("p",), name="skip")
    ),
    "mean pool": partial(make_image_row, _pool("AveragePool", 2, 1), batch=2),
    "mean pool that leaves a rim": partial(make_image_row, _pool("AveragePool", 2, 3), batch=2),
    "mean pool beside a skip connection": partial(
        make_image_row, _pool("AveragePool", 3, 1, 1, "m"),
        Node("Add", ("m", "a"), ("p",), name="skip"), batch=2,
    ),
    "pool, convolution and skip": partial(
        make_image_row,
        _pool("MaxPool", 2, 2, 0, "m"),
        Node("Conv", ("m", "v"), ("c",), {"pads": [1] * 4}, name="second"),
        Node("Add", ("c", "m"), ("p",), name="skip"),
    ),
}  # fmt: skip
