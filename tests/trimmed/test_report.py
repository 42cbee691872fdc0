"""Reports of builds: every byte of the library and of a model's memory is counted once."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from bench.builds import MODELS
from bench.firmware import GOALS, Goal
from engine.tools import cli
from engine.tools.benchmark.workload import write_artifacts
from engine.tools.trimmed.build import build
from engine.tools.trimmed.bundle import BUDGETED
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.report import write_report
from engine.tools.trimmed.targets import resolve
from tests.support.builds import needs_cc
from tests.support.places import GOLDENS

pytestmark = needs_cc
GCC = "aarch64-linux-gnu-gcc"


def test_a_report_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = ["build", str(GOLDENS / "mlp"), "--batch", "4", "--name", "mnist", "-o", str(out)]
    assert cli.main([*words, "--report", "--export"]) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    report = manifest["report"]
    assert (
        sum(report["parts"].values()) == report["library"] == (out / "libmnist.so").stat().st_size
    )
    assert sum(report["areas"].values()) == report["memory"]
    header = (out / "mnist.h").read_text()
    assert re.search(rf"MNIST_MEMORY_BYTES +{report['memory']} ", header)
    assert sum(report["kernels"].values()) == report["parts"]["kernels"] > 0
    assert all(report["parts"][part] > 0 for part in report["parts"])
    kernels = set(manifest["kernels"])
    assert kernels >= report["kernels"].keys() - {"shared by kernels"}
    printed = capsys.readouterr().out
    for line in write_report(report):
        assert line in printed
    shares = [float(share) for share in re.findall(r"([\d.]+) %$", printed, re.MULTILINE)]
    assert sum(shares) == pytest.approx(200, abs=1)


@pytest.mark.skipif(not shutil.which(GCC), reason=f"needs {GCC}")
@pytest.mark.parametrize(
    ("name", "goal"),
    [
        pytest.param(name, goal, marks=[] if name == "mlp" else [pytest.mark.whole])
        for name, goals in GOALS.items()
        for goal in goals
        if goal.most
    ],
    ids=str,
)
def test_a_library_stays_as_small_as_it_is_to_be(name: str, goal: Goal, tmp_path: Path) -> None:
    """Of one sample, stripped; `python -m bench firmware.goals` lists them."""
    artifacts = GOLDENS / "mlp"
    if name != "mlp":
        artifacts = tmp_path / "artifacts"
        artifacts.mkdir()
        write_artifacts(MODELS[name].graph(), artifacts)
    options = Options(name.lower(), resolve(goal.target), PlanRequest([1], size=goal.is_small))
    report = build(artifacts, tmp_path / "out", options)["report"]
    assert report["library"] <= goal.most
    assert report["memory"] <= 1.1 * sum(report["areas"][area] for area in BUDGETED)


def test_a_library_of_ops_has_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "ops.config"
    config.write_text("ai.onnx;13;Gemm\n")
    words = ["build", "--ops", str(config), "--report", "-o", str(tmp_path / "out")]
    assert cli.main(words) == 2
    assert "--report is for artifacts" in capsys.readouterr().err
