"""Builds with packages for other languages; each is made once."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper, save

from engine import artifacts
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from tests.support.places import GOLDENS
from tests.support.shared import make_once

NATIVE = "java,kotlin,csharp,rust,go"  # languages of most systems
Nodes = list[NodeProto]
Ports = list[tuple[str, TensorProto.DataType, int]]
Weights = list[tuple[str, Any]]


@functools.cache
def make_package(case: str, languages: str, target: str = "native", threads: int = 1) -> Path:
    """Return the folder of a build of a golden, called `mnist`, with packages for languages.

    target: one, or several with commas.
    """
    name = f"{case}-{languages}-{target}-{threads}".replace(",", "-")  # linkers split at them
    platform, *also = map(resolve, target.split(","))
    options = Options(
        "mnist",
        platform,
        PlanRequest([4], threads),
        federated=True,
        bindings=languages.split(","),
        also=also,
        export=True,
    )
    return make_once(name, lambda out: build(GOLDENS / case, out, options))


def make_mixed() -> tuple[Nodes, Ports, Weights]:
    """Return the nodes, inputs and weights of a model of bytes, words, a mask and numbers."""
    nodes = [
        helper.make_node("Cast", ["pixels"], ["p"], to=TensorProto.FLOAT),
        helper.make_node("Gather", ["table", "words"], ["w"]),
        helper.make_node("ReduceMean", ["w"], ["m"], axes=[1], keepdims=0),
        helper.make_node("Cast", ["mask"], ["k"], to=TensorProto.FLOAT),
        helper.make_node("Concat", ["p", "m", "k", "numbers"], ["all"], axis=1),
        helper.make_node("Dropout", ["all", "ratio"], ["d"]),
        helper.make_node("Gemm", ["d", "fc.weight", "fc.bias"], ["scores"], transB=1),
    ]
    inputs = [("pixels", TensorProto.UINT8, 6), ("words", TensorProto.INT32, 5),
              ("mask", TensorProto.BOOL, 2), ("numbers", TensorProto.FLOAT, 3)]  # fmt: skip
    weights = {"table": (7, 4), "fc.weight": (3, 15), "fc.bias": (3,)}
    return nodes, inputs, [*make_weights(weights, np.float32), ("ratio", np.float32(0.1))]


def make_wide() -> tuple[Nodes, Ports, Weights]:
    """Return the nodes, inputs and weights of a model of float64."""
    nodes = [helper.make_node("Gemm", ["x", "fc.weight", "fc.bias"], ["scores"], transB=1)]
    weights = {"fc.weight": (3, 4), "fc.bias": (3,)}
    return nodes, [("x", TensorProto.DOUBLE, 4)], make_weights(weights, np.float64)


def make_weights(shapes: dict[str, tuple[int, ...]], dtype: type) -> Weights:
    """Return drawn weights."""
    draw = np.random.default_rng(0).standard_normal
    return [(name, np.asarray(draw(shape) / 4, dtype)) for name, shape in shapes.items()]


MODELS = {"mixed": make_mixed, "wide": make_wide}


@functools.cache
def make_example(model: str, languages: str, target: str) -> Path:
    """Return the folder of a build of a model, called `mnist`, with packages."""
    name = "-".join(["example", model, target, *languages.split(",")])
    made = make_once(name, lambda folder: _write_example(model, languages, target, folder))
    return made / "build"


def _write_example(model: str, languages: str, target: str, folder: Path) -> None:
    folder.mkdir()
    nodes, inputs, weights = MODELS[model]()
    wide = TensorProto.DOUBLE if model == "wide" else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, model,
        [helper.make_tensor_value_info(name, kind, ["batch", n]) for name, kind, n in inputs],
        [helper.make_tensor_value_info("scores", wide, ["batch", 3])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "model.onnx")
    artifacts.generate_artifacts(
        folder / "model.onnx",
        requires_grad=[name for name, value in weights if np.ndim(value)],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder / "artifacts",
    )
    named = languages.split(",") if languages else []
    options = Options("mnist", resolve(target), PlanRequest([4]), bindings=named)
    build(folder / "artifacts", folder / "build", options)
