"""The runner of the peer's test suite, without the suite, which is not part of this repository."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine import onnxblock
from tests.support import peer_suite
from tests.support.peer_suite import DIFFERS, Session, rewrite
from tests.support.places import GOLDENS, ROOT


def test_the_documentation_lists_every_test_that_differs() -> None:
    text = (ROOT / "docs" / "compatibility.md").read_text("utf-8")
    section = text.split("## The tests of onnxruntime-training")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(test_[^`]+)` \| (.*) \|$", section, re.MULTILINE)
    assert dict(rows) == DIFFERS


def test_imports_are_changed() -> None:
    text = (
        "import onnxruntime\nimport onnxruntime.training.onnxblock as onnxblock\n"
        "from onnxruntime.training import artifacts\n"
        "from onnxruntime.training.api import CheckpointState\n"
        '    device = "cuda"\n'
        "session = onnxruntime.InferenceSession(path, providers=[])\n"
    )
    assert rewrite(text) == (
        "import onnxruntime\nfrom tests import peer_suite\n"
        "import engine.onnxblock as onnxblock\nfrom engine import artifacts\n"
        'from engine.api import CheckpointState\n    device = "cpu"\n'
        "session = peer_suite.Session(path, providers=[])\n"
    )


def test_a_suite_of_two_files_is_run_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = peer_suite.FILES
    (tmp_path / first).write_text("def test_passes():\n    from engine import artifacts\n")
    (tmp_path / second).write_text(
        f"from {first[:-3]} import test_passes as _passes\n"
        "def test_fails():\n    assert False, 'why'\n"
    )
    monkeypatch.setattr(peer_suite, "DIFFERS", {"test_fails": "by design"})
    assert peer_suite.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"test_fails  by design\n +AssertionError: why\n2 tests, 1 passed", printed)
    monkeypatch.setattr(peer_suite, "DIFFERS", {"test_passes": "by design"})
    assert peer_suite.main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"test_fails +NOT EXPECTED\n", printed)
    assert "test_passes  passes or is not there, but is listed" in printed


def test_graphs_of_every_kind_run() -> None:
    rng = np.random.default_rng(0)
    folder = GOLDENS / "mlp"
    training = onnx.load(folder / "training_model.onnx")
    inputs: dict[str, np.ndarray] = {}
    for value in training.graph.input:
        dims = [d.dim_value or 4 for d in value.type.tensor_type.shape.dim]
        inputs[value.name] = rng.standard_normal(dims).astype(np.float32) / 8
    inputs["labels"], inputs["lazy_reset_grad"] = np.arange(4), np.array([True])
    names = [o.name for o in training.graph.output]
    loss, *flags = Session(str(folder / "training_model.onnx")).run(names, inputs)
    assert all(flags)
    evaluation = onnx.load(folder / "eval_model.onnx")
    forward = {i.name: inputs[i.name] for i in evaluation.graph.input}
    (same,) = Session(str(folder / "eval_model.onnx")).run(names[:1], forward)
    assert loss == pytest.approx(same)


def test_clipped_gradients_are_read_off_a_step(tmp_path: Path) -> None:
    with onnxblock.empty_base(17) as accessor:
        sequence = onnx.helper.make_tensor_sequence_value_info
        accessor.model.graph.input.append(sequence("gradients", onnx.TensorProto.FLOAT, None))
        name = onnxblock.optim.ClipGradNorm(2.5)("gradients")
        onnx.save(accessor.model, tmp_path / "clip.onnx")
    gradients = [np.array([3, 0], np.float32), np.array([[4]], np.float32)]
    (clipped,) = Session(str(tmp_path / "clip.onnx")).run([name], {"gradients": gradients})
    for actual, gradient in zip(clipped, gradients, strict=True):
        np.testing.assert_allclose(actual, gradient / 2, rtol=1e-5)
