"""`edgegrad check --target --ram --flash`: a library against the memory of a device."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engine.artifacts import LossType, OptimType, generate_artifacts
from engine.errors import EngineError
from engine.graphs.io import onnx_io
from engine.quantization import Quantization, quantize
from engine.quantization.post_training import freeze_in_integers
from engine.tools import cli
from engine.tools.actions.device_checks import CALLS_OF_TRAINING
from engine.tools.trimmed import binary
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from tests.support.builds import make_build_for
from tests.support.places import GOLDENS

MLP = str(GOLDENS / "mlp")


def check(
    capsys: pytest.CaptureFixture[str], *words: str, source: str = MLP
) -> tuple[int, dict[str, Any]]:
    """Return the status and the answer of a check for a Cortex-M7."""
    status = cli.main(["check", source, "--target", "cortex-m7", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_the_figures_are_those_of_the_build(capsys: pytest.CaptureFixture[str]) -> None:
    status, answer = check(capsys, "--batch", "8", "--ram", "256KiB", "--flash", "1MiB")
    assert status == 0
    assert answer["fits"]
    (row,) = answer["variants"]
    folder = make_build_for("cortex-m7", "mlp")
    assert re.search(rf"MNIST_MEMORY_BYTES +{row['ram']} ", (folder / "mnist.h").read_text())
    archive = (folder / "libmnist.a").read_bytes()
    calls = [f"mnist_{name}" for name in CALLS_OF_TRAINING]
    assert row["flash"] == binary.count_loaded(archive, calls) < binary.count_loaded(archive)
    with pytest.raises(EngineError, match="it defines no mnist_fly"):
        binary.count_loaded(archive, ["mnist_fly"])
    assert row["checkpoint"] == (folder / "checkpoint").stat().st_size


def test_changes_are_tried_until_one_fits(capsys: pytest.CaptureFixture[str]) -> None:
    _, whole = check(capsys, "--batch", "8", "--ram", "1MiB")
    (most,) = whole["variants"]
    status, answer = check(capsys, "--batch", "8", "--ram", str(most["ram"] - 1))
    assert status == 4
    assert not answer["fits"]
    first, second = answer["variants"]
    assert first["missing"] == {"RAM": 1}
    assert second["change"] == "--joined"
    assert not second["missing"]
    status, answer = check(capsys, "--batch", "8", "--ram", str(most["ram"] // 8))
    assert status == 4
    assert all(row["missing"] for row in answer["variants"])
    changes = [row["change"] for row in answer["variants"]]
    assert changes[:4] == [
        "", "--joined", "--batch 1, adding up gradients of steps", "--batch 1 --joined",
    ]  # fmt: skip


def test_too_little_flash_asks_for_small_code(capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["check", MLP, "--target", "cortex-m7", "--batch", "8", "--flash", "16KB"])
    assert status == 4
    out = capsys.readouterr().out
    assert "lacks" in out
    assert "--size" in out
    assert out.splitlines()[-1].startswith("nothing that was tried fits")


def test_a_forward_model_may_train_fewer_layers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "forward.onnx"
    shutil.copy(GOLDENS / "mlp" / "forward.onnx", path)
    status, answer = check(capsys, "--batch", "8", "--ram", "4KB", source=str(path))
    assert status == 4
    first, *_, sparse, least_sparse, integers, least_integers = answer["variants"]
    assert sparse["change"] == "SparseUpdate(biases=True, last=2)"
    assert sparse["ram"] <= first["ram"]
    assert integers["change"] == "int8, with the last layer trained in float32"
    assert integers["ram"] < sparse["ram"] / 2
    assert integers["checkpoint"] < first["checkpoint"] / 2
    for usual, least in ((sparse, least_sparse), (integers, least_integers)):
        assert least["change"] == f"{usual['change']} --batch 1 --joined"
        assert least["ram"] < usual["ram"]


def test_columns_are_below_each_other(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "forward.onnx"
    shutil.copy(GOLDENS / "mlp" / "forward.onnx", path)
    words = ["--batch", "8", "--target", "cortex-m7", "--ram", "4KB", "--flash", "16KB"]
    assert cli.main(["check", str(path), *words]) == 4
    head, *rows = capsys.readouterr().out.splitlines()[1:]
    rows = [row for row in rows if "lacks" in row]
    assert len(rows) >= 8
    places = {row[: head.index("  bytes")].rstrip()[-1].isdigit() for row in rows}
    assert places == {True}
    assert {row.index("  lacks") for row in rows} == {head.index("  bytes")}


def test_integers_have_the_sizes_of_a_quantised_model(tmp_path: Path) -> None:
    """Whose ranges come from data: the libraries have the same code and memory, and other
    values.
    """
    made, trained = freeze_in_integers(str(GOLDENS / "mlp" / "forward.onnx"))
    samples = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)
    last = next(node for node in reversed(made.graph.nodes) if set(trained) & set(node.inputs))
    options = Quantization(keep_float=[last.name], threads=1)
    real = quantize(GOLDENS / "mlp" / "forward.onnx", samples, options)
    sizes = []
    for name, graph in (("assumed", made.graph), ("measured", real.graph)):
        artifacts = tmp_path / name
        artifacts.mkdir()
        generate_artifacts(
            onnx.load_from_string(onnx_io.to_bytes(graph)),
            requires_grad=list(trained),
            loss=LossType.CrossEntropyLoss,
            optimizer=OptimType.AdamW,
            artifact_directory=artifacts,
        )
        wanted = Options("mnist", resolve("cortex-m7"), PlanRequest([8]))
        report = build(artifacts, tmp_path / f"{name}-build", wanted)["report"]
        sizes.append((report["memory"], report["parts"]["kernels"], report["parts"]["constants"]))
    assert sizes[0] == sizes[1]


def test_a_target_alone_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", MLP, "--target", "cortex-m7"]) == 2
    assert "--target is for --ram and --flash" in capsys.readouterr().err
