"""Every example runs in an empty folder, and is listed.  Applications run at a reduced size."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import examples
from engine.tools.actions import run_config, templates
from tests.support.places import PATHS, ROOT

PROGRAMS = sorted((ROOT / "examples").glob("*.py"))
APPLICATIONS = ["anomaly-detector", "image-classifier", "keyword-spotter", "next-word"]
FEDERATED = "federated"  # has no program that trains: Flower runs it


def run(words: Sequence[str | Path], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PATHS},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_a_program_runs(path: Path, tmp_path: Path) -> None:
    run([path], tmp_path)


@pytest.mark.parametrize("name", [*APPLICATIONS, FEDERATED])
def test_a_new_project_passes_its_tests(name: str, tmp_path: Path) -> None:
    """As its user runs them: in the project's folder, which holds the template alone."""
    if name == FEDERATED:
        pytest.importorskip("flwr", reason="Flower is not installed")
    project = tmp_path / "project"
    templates.copy(name, project)
    told = run(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"], project)
    assert " passed" in told
    assert "skipped" not in told


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_configuration_fits(name: str) -> None:
    path = ROOT / "examples" / name / "run.toml"
    config = run_config.make_config(tomllib.loads(path.read_text()), str(path))
    assert config.output.folder == "run-toml"  # beside the folder of train.py
    config.make_optimizer()
    config.make_schedule()


@pytest.mark.whole
@pytest.mark.parametrize("name", APPLICATIONS)
def test_an_application_reaches_its_goal(name: str, tmp_path: Path) -> None:
    """Data, training, export in onnxruntime, and a step of a trimmed build."""
    assert examples.run(name, tmp_path).said


def test_an_application_that_misses_its_goal_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print('too bad'); sys.exit(True)")
    with pytest.raises(RuntimeError, match=r"\$ python train.py: status 1"):
        examples.execute("python train.py", tmp_path)
    assert examples.execute("edgegrad version", tmp_path).strip()
    with pytest.raises(RuntimeError, match="expected a command of python or edgegrad"):
        examples.execute("rm train.py", tmp_path)


def test_every_example_is_listed() -> None:
    listed = (ROOT / "examples" / "README.md").read_text()
    names = [path.name for path in PROGRAMS] + [
        f"{name}/README.md" for name in templates.list_templates()
    ]
    assert [name for name in names if name not in listed] == []
    assert list(templates.list_templates()) == sorted([*APPLICATIONS, FEDERATED])
