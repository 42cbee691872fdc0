"""The inference model that a library writes by itself, without Python and onnx."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from engine.artifacts import AdamW, LossType, SparseUpdate, generate_artifacts
from engine.errors import ModelError
from engine.tools import cli
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from tests.support.builds import (
    SANITIZE,
    WARNINGS,
    compile_c,
    list_sources,
    load,
    make_root,
    needs_cc,
    run,
)
from tests.support.places import DRIVERS, GOLDENS

pytestmark = needs_cc


def make_exporting(case: str, artifacts: Path) -> Path:
    """Return the folder of a native build, called `mnist`, whose library exports."""
    out = make_root() / f"exporting-{case}"
    build(artifacts, out, Options("mnist", resolve("native"), PlanRequest([4]), export=True))
    return out


def check_exports(folder: Path, tmp_path: Path) -> None:
    """Check a file that C wrote: onnxruntime computes what the library does."""
    program = compile_c(
        tmp_path / "export", *WARNINGS, *SANITIZE, DRIVERS / "export.c", *list_sources(folder)
    )
    path = tmp_path / "model.onnx"
    run(program, folder / "checkpoint", path, tmp_path / "values")
    values = np.fromfile(tmp_path / "values", np.float32)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (given,), count = session.get_inputs(), 4
    size = count * int(np.prod(given.shape[1:]))
    x, expected = values[:size].reshape(count, *given.shape[1:]), values[size:]
    (scores,) = session.run(None, {given.name: x})
    np.testing.assert_allclose(scores.ravel(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["mlp", "cnn"])
def test_a_library_writes_a_model_that_onnxruntime_runs(case: str, tmp_path: Path) -> None:
    folder = make_exporting(case, GOLDENS / case)
    check_exports(folder, tmp_path)
    trainer = load(folder).Trainer()
    assert trainer.module.inference_model_to_bytes() == (folder / "mnist.onnx").read_bytes()


def test_parts_of_a_weight_become_one_tensor_again(tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    update = SparseUpdate(biases=True, channels={"[28].weight": 0.5})
    generate_artifacts(
        GOLDENS / "cnn/forward.onnx", loss=LossType.CrossEntropyLoss, optimizer=AdamW(),
        artifact_directory=artifacts, update=update,
    )  # fmt: skip
    check_exports(make_exporting("sparse", artifacts), tmp_path)


def test_libraries_without_the_option_lack_the_functions(tmp_path: Path) -> None:
    build(GOLDENS / "mlp", tmp_path / "out", Options("mnist", resolve("native"), PlanRequest([4])))
    assert "export_model" not in (tmp_path / "out" / "mnist.h").read_text()
    assert "own_graph[]" in (tmp_path / "out" / "src" / "mnist.c").read_text()
    assert b"edgegrad_graph" not in (tmp_path / "out" / "src" / "kernels.o").read_bytes()


def test_artifacts_without_an_inference_model_are_refused(tmp_path: Path) -> None:
    here = tmp_path / "artifacts"
    here.mkdir()
    for name in ("training_model.onnx", "optimizer_model.onnx", "checkpoint"):
        (here / name).write_bytes((GOLDENS / "mlp" / name).read_bytes())
    with pytest.raises(ModelError, match="--export: there is no inference model"):
        build(
            here,
            tmp_path / "out",
            Options("mnist", resolve("native"), PlanRequest([4]), export=True),
        )
    assert not (tmp_path / "out").exists()


def test_a_library_of_ops_cannot_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "ops.config"
    config.write_text("ai.onnx;13;Gemm\n")
    words = ["build", "--ops", str(config), "--export", "-o", str(tmp_path / "out")]
    assert cli.main(words) == 2
    assert "--export is for artifacts" in capsys.readouterr().err
