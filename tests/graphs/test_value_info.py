"""Types in files are right, in inference models and in training artifacts.

Inference models pass ONNX's strict inference and run in stock onnxruntime; see
export_checks.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from bench.families.recorded import DATA, SAMPLED
from bench.families.train import compare
from engine import artifacts
from engine.api import CheckpointState, Module
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import TensorType
from engine.tools.benchmark.workloads import WORKLOADS
from engine.tools.dev.export_artifacts import list_batch
from tests.support.export_checks import export_faults, list_type_faults
from tests.support.places import GOLDENS

ALIKE = {"resnet50", "resnet18_head", "mobilenet_v3_head", "vit_head"}  # other workloads have all
Inputs = dict[str, np.ndarray]


def faults(folder: Path, outputs: list[str], batches: list[list[np.ndarray]]) -> list[str]:
    """Return the faults of the types of artifacts and of the model that they export.

    batches: of the module's inputs, the labels among them.
    """
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    path = folder / "inference.onnx"
    module.export_model_for_inferencing(path, outputs)
    needed = {i.name for i in onnx.load(path).graph.input}
    out = []
    for batch in batches:
        names = module.input_names()
        inputs = {n: np.asarray(a) for n, a in zip(names, batch, strict=True)}
        out += export_faults(path, {n: a for n, a in inputs.items() if n in needed})
        for file in ("training_model.onnx", "eval_model.onnx"):
            out += list_type_faults(folder / file, {n: a.shape for n, a in inputs.items()})
    return out


@pytest.mark.parametrize("case", sorted(p.parent.name for p in GOLDENS.glob("*/forward.onnx")))
def test_goldens(case: str, tmp_path: Path) -> None:
    spec = json.loads((GOLDENS / case / "case.json").read_text())
    forward = GOLDENS / case / "forward.onnx"
    artifacts.generate_artifacts(
        str(forward),
        requires_grad=spec["requires_grad"],
        frozen_params=spec["frozen"],
        loss=artifacts.LossType[spec["loss"]],
        optimizer=artifacts.OptimType[spec["optimizer"]],
        artifact_directory=tmp_path,
    )
    trace = np.load(GOLDENS / case / "trace.npz")
    batches = [[trace["x"][0], trace["y"][0]]]
    if isinstance(onnx_io.load(forward).inputs["input"].shape[0], str):
        batches.append([a[:1] for a in batches[0]])
    assert faults(tmp_path, [onnx.load(forward).graph.output[0].name], batches) == []
    onnx.checker.check_model(str(tmp_path / "optimizer_model.onnx"), full_check=True)


@pytest.mark.parametrize("tag", SAMPLED)
def test_families(tag: str, tmp_path: Path) -> None:
    compare(DATA / f"{tag}.onnx", tmp_path)
    with np.load(DATA / f"{tag}.npz") as file:
        batch = list_batch(dict(file))
    assert faults(tmp_path, ["logits"], [batch]) == []


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.whole if name in ALIKE else ()) for name in WORKLOADS],
)
def test_bench_models(name: str, tmp_path: Path) -> None:
    work = WORKLOADS[name]
    work.write(tmp_path)
    batches = [[*work.batch(2)], [*work.batch(1)]]
    assert faults(tmp_path, ["scores"], batches) == []


# --- a model that broadcasts a head, and joins the batch with the positions


def shared_key() -> Graph:
    """Attention of four heads over one key and value, as in Falcon; scores of each position."""
    rng = np.random.default_rng(0)
    floats = {"wq": (8, 32), "wk": (8, 8), "wv": (8, 8), "wo": (32, 5)}
    constants = {n: 0.3 * rng.standard_normal(s).astype(np.float32) for n, s in floats.items()}
    ints = {"heads": [0, 6, 4, 8], "one": [0, 6, 1, 8], "join": [0, 6, 32], "flat": [-1, 5]}
    arrays = {**constants, **{n: np.array(s) for n, s in ints.items()}}

    def head(what: str, shape: str, perm: list[int]) -> list[Node]:
        return [
            Node("MatMul", ("x", f"w{what}"), (f"{what}0",)),
            Node("Reshape", (f"{what}0", shape), (f"{what}1",)),
            Node("Transpose", (f"{what}1",), (what,), {"perm": perm}),
        ]

    nodes = [
        *head("q", "heads", [0, 2, 1, 3]), *head("k", "one", [0, 2, 3, 1]),
        *head("v", "one", [0, 2, 1, 3]),
        Node("MatMul", ("q", "k"), ("weights",)),
        Node("Softmax", ("weights",), ("p",), {"axis": -1}),
        Node("MatMul", ("p", "v"), ("mixed",)),
        Node("Transpose", ("mixed",), ("back",), {"perm": [0, 2, 1, 3]}),
        Node("Reshape", ("back", "join"), ("joined",)),
        Node("MatMul", ("joined", "wo"), ("positions",)),
        Node("Reshape", ("positions", "flat"), ("scores",)),
    ]  # fmt: skip
    x = {"x": TensorType("f32", ("batch", 6, 8))}
    types = {"scores": TensorType("f32", ("rows", 5))}
    return Graph("shared_key", x, ["scores"], arrays, nodes, {"": 17}, types)


def test_a_shared_key_and_joined_positions(tmp_path: Path) -> None:
    """The labels have one size, a multiple of the batch, and each gradient its own shape."""
    trained = ["wq", "wk", "wv", "wo"]
    onnx_io.save(shared_key(), tmp_path / "forward.onnx")
    artifacts.generate_artifacts(
        str(tmp_path / "forward.onnx"),
        requires_grad=trained,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=tmp_path,
    )
    training = onnx_io.load(tmp_path / "training_model.onnx")
    assert training.inputs["labels"].shape == ("6*batch",)
    rng = np.random.default_rng(1)
    batches: list[list[np.ndarray]] = [
        [rng.standard_normal((n, 6, 8)).astype(np.float32), rng.integers(0, 5, 6 * n)]
        for n in (3, 1)
    ]
    assert faults(tmp_path, ["scores"], batches) == []
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    for batch in batches:
        assert np.isfinite(module(*batch)).all()
