"""Requirements of onnxruntime-training for artifacts, from support/peer_artifacts.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine.kernels.ops.registry import list_ops
from engine.tools.dev.case_graphs import list_cases
from engine.tools.dev.cases.case import Case
from tests.support import peer_artifacts
from tests.support.peer_artifacts import OURS, THEIRS, judge
from tests.support.peer_models import MODELS, is_trainable, make_case_row

POOLS = [c for c in list_cases() if "Pool" in c.op and is_trainable(c)]


def pool_gradients_have_pixels(model: onnx.ModelProto) -> int:
    """Check that the type of what each pool gradient makes is known; return how many there are.

    onnxruntime-training takes the shape of the result from there, and crashes where it is missing.
    """
    types = {v.name: v.type.tensor_type for v in (*model.graph.value_info, *model.graph.output)}
    actual_node = [n for n in model.graph.node if n.op_type in ("MaxPoolGrad", "AveragePoolGrad")]
    for node in (n for n in actual_node if not n.domain):
        dims = types[node.output[0]].shape.dim
        assert all(d.HasField("dim_value") for d in dims[2:]), node.name
    return len(actual_node)


@pytest.mark.parametrize("title", MODELS)
def test_models_use_operators_that_the_peer_has(title: str, tmp_path: Path) -> None:
    MODELS[title]().write_artifacts(tmp_path)
    model = onnx.load(tmp_path / "training_model.onnx")
    known = {op.name for op in onnx.defs.get_all_schemas()}
    known |= {op.name for op in list_ops().values() if op.is_for_training}
    assert {n.domain for n in model.graph.node} <= {"", "com.microsoft"}
    assert {n.op_type for n in model.graph.node if not n.domain} <= known
    assert pool_gradients_have_pixels(model) == ("pool" in title or title == "golden cnn")


@pytest.mark.parametrize("case", POOLS, ids=lambda c: c.id)
def test_pool_gradients_say_how_many_pixels_they_make(case: Case, tmp_path: Path) -> None:
    make_case_row(case).write_artifacts(tmp_path)
    pool_gradients_have_pixels(onnx.load(tmp_path / "training_model.onnx"))


@pytest.mark.parametrize(
    ("ours", "theirs", "kind"),
    [
        (1.0, 1.0, "run as ours"),
        (1.0, None, "run as ours"),
        (None, 1.0, "FAULT, only its own artifacts run"),
        (2.0, 1.0, "FAULT, another gradient"),
        (np.nan, 1.0, "FAULT, another gradient"),
        (2.0, 2.0, "rows whose gradient the peer gets wrong with its own artifacts, too"),
        (None, None, "rows that the peer cannot train itself"),
    ],
)
def test_verdicts(tmp_path: Path, ours: float | None, theirs: float | None, kind: str) -> None:
    """Of a gradient of 1 that each side computes, or fails to."""
    np.savez(tmp_path / "expected.npz", w=np.ones(2))
    for side, value in ((OURS, ours), (THEIRS, theirs)):
        outcome = "ran" if value is not None else "RuntimeError: no kernel"
        (tmp_path / f"{side}.json").write_text(json.dumps(outcome))
        if value is not None:
            np.savez(tmp_path / f"{side}.npz", w=np.full(2, value))
    assert judge(tmp_path)[0] == kind


def test_rows_are_written_as_the_peer_reads_them(tmp_path: Path) -> None:
    assert peer_artifacts.write(tmp_path, "max pool that") == ["max pool that leaves a rim"]
    files = {path.name for path in (tmp_path / "0").iterdir()}
    assert {"forward.onnx", "training_model.onnx", "checkpoint", "batch.npz"} <= files
    assert json.loads((tmp_path / "0" / "row.json").read_text())["weights"] == ["w", "fc"]
