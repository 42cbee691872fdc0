"""Float layers in front of layers of integers, and after them: both train, by name or pattern."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgegrad import SGD, AdamW, Trainer, artifacts
from engine.base.aliases import Array
from engine.errors import NameNotFoundError
from engine.graphs.io import onnx_io
from engine.graphs.offline.parameters import list_parameters
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from tests.support.integer_models import (
    FORMS,
    RNG,
    draw_samples,
    make_float,
    run_peer,
    write,
    write_attention,
    write_blocks,
)

CASES = (
    *((how, kind) for how in FORMS for kind in ("MatMul", "Gemm", "Conv")),
    ("", "attention"), ("MatMulNBits", "blocks"), ("DequantizeLinear", "blocks"),
)  # fmt: skip


def write_model(how: str, kind: str, folder: Path) -> tuple[Path, str, Array]:
    """Write a model whose first layer is of floats; return it, the weight there, and samples."""
    if kind == "attention":
        x = RNG.standard_normal((64, 5, 12)).astype(np.float32)
        return write_attention(folder, ["embed"]), "u", x
    if kind == "blocks":
        return write_blocks(how, folder), "w0", draw_samples("Gemm")
    x = draw_samples(kind)
    return write(make_float(kind), how, x, folder, ["fc1", "c1"]), "w1", x


def make_labels(x: Array) -> Array:
    labels: Array = x.reshape(len(x), -1)[:, :3].argmax(1).astype(np.int64)
    return labels


def step(file: Path, weight: str, x: Array) -> Array:
    """Return by how much a step of SGD changes a weight."""
    trainer = Trainer.from_onnx(file, "cross_entropy", SGD(lr=0.1), train=[weight], threads=1)
    values = dict(trainer.state.parameters)
    before = values[weight].data.copy()
    trainer.step(x, make_labels(x))
    change: Array = values[weight].data - before
    return change


@pytest.mark.parametrize(("how", "kind"), CASES)
def test_layers_in_front_of_integers_are_trained(how: str, kind: str, tmp_path: Path) -> None:
    file, weight, x = write_model(how, kind, tmp_path)
    if (tmp_path / "float.onnx").exists():  # straight through roundings: the float network's
        ours, exact = (
            step(file, weight, x).ravel(),
            step(tmp_path / "float.onnx", weight, x).ravel(),
        )
        assert np.vdot(ours, exact) > 0.95 * np.linalg.norm(ours) * np.linalg.norm(exact)
    # The pattern also matches what lies in front of the integers; "*" alone does not.
    trainer = Trainer.from_onnx(
        file, "cross_entropy", AdamW(lr=1e-2), train=[f"{weight}*"], threads=1, seed=0
    )
    data = x, make_labels(x)
    before, first = trainer.evaluate(data)["loss"], run_peer(file, x)
    predicted: Any = trainer.predict(x, batch_size=len(x))
    # Evaluation still computes in integers, as the file says.
    assert np.abs(predicted - first).max() < 0.02 * np.abs(first).max()
    trainer.fit(data, epochs=6, progress=False)
    assert trainer.evaluate(data)["loss"] < before
    trainer.export(tmp_path / "trained.onnx")
    predicted = trainer.predict(x, batch_size=len(x))
    theirs = run_peer(tmp_path / "trained.onnx", x)
    change = np.abs(predicted - theirs)
    assert change.max() < 0.02 * np.abs(first).max()
    assert change.mean() < 2e-3 * np.abs(first).max()
    source, made = onnx.load(file), onnx.load(tmp_path / "trained.onnx")
    assert {n.op_type for n in made.graph.node} == {n.op_type for n in source.graph.node}


@pytest.mark.parametrize("how", ["QOperator", "dynamic"])
def test_the_step_reads_the_integers(how: str, tmp_path: Path) -> None:
    """Forward and backward: the plan has no float copy of their weights."""
    file, weight, _ = write_model(how, "MatMul", tmp_path)
    artifacts.generate_artifacts(
        file, requires_grad=[weight], artifact_directory=tmp_path,
        loss=artifacts.LossType.CrossEntropyLoss, optimizer=artifacts.OptimType.SGD,
    )  # fmt: skip
    graph = onnx_io.load(tmp_path / "training_model.onnx")
    plan = make_plan(graph, {"x": (8, 20), "labels": (8,)}, target=detect_host(), threads=1)
    constants = [b for b in plan.buffers if b.region == "const"]
    assert any(b.dtype in ("i8", "u8") and np.prod(b.shape) >= 32 * 6 for b in constants)
    assert all(b.dtype in ("i8", "u8") or np.prod(b.shape) < 32 * 6 for b in constants)
    assert sum(s.kernel.startswith(("quantised_gemm", "integer_gemm")) for s in plan.steps) == 2


def test_all_stands_for_what_is_after_integers(tmp_path: Path) -> None:
    file, *_ = write_model("QDQ", "Gemm", tmp_path)
    with pytest.raises(NameNotFoundError, match=r"'\*' matches none"):
        Trainer.from_onnx(file, "cross_entropy", SGD(lr=0.1), threads=1)
    with pytest.raises(NameNotFoundError, match="'q1' matches none"):
        Trainer.from_onnx(file, "cross_entropy", SGD(lr=0.1), train=["q1"], threads=1)
    trainer = Trainer.from_onnx(
        write_blocks("MatMulNBits", tmp_path), "cross_entropy", SGD(lr=0.1), threads=1
    )
    assert {"w0", "w2"} <= {name for name, _ in trainer.state.parameters}
    # Scales of integers are not parameters, in whatever form they are written.
    file, *_ = write_model("dynamic channels", "Gemm", tmp_path)
    assert list_parameters(onnx_io.load(file)) == ["b2"]
