"""The Makefile: every target is described, and what it runs and imports is there."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from tests.support.places import ROOT

TEXT = (ROOT / "Makefile").read_text("utf-8")
DESCRIBED = re.findall(r"^# make ([\w-]+) ", TEXT, re.MULTILINE)
PYTHON = re.compile(r"/bin/python (?!-m )(?P<file>[\w./]+)")
MODULE = re.compile(r"/bin/python -m (?P<name>[\w.]+)")


def test_the_targets_are_the_ones_described() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", TEXT, re.MULTILINE)
    assert sorted(phony.split()) == sorted(DESCRIBED)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target", DESCRIBED)
def test_a_target_runs_modules_that_are_there(target: str) -> None:
    """A module finds the packages of the repository; a file that is run finds its own folder."""
    command = ["make", "--dry-run", "--always-make", target]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert not [match["file"] for match in PYTHON.finditer(run.stdout)], run.stdout
    names = {match["name"] for match in MODULE.finditer(run.stdout)} - {"pip", "venv"}
    assert names, f"no module in {run.stdout}"
    assert not [name for name in names if importlib.util.find_spec(name) is None]


def test_make_test_torch_installs_what_its_tests_import() -> None:
    """CI has neither PyTorch nor what comes with it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    listed = [*extras["torch-tests"], *extras["torch"]]
    named = {re.split(r"[\[<>=]", requirement)[0] for requirement in listed}
    used = set()
    for path in (ROOT / "tests" / "torch").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                used |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                used.add((node.module or "").split(".")[0])
    assert {"torch", "timm"} <= used
    foreign = used - set(sys.stdlib_module_names) - named
    assert not {name for name in foreign if importlib.util.find_spec(name) is None}


def test_a_clone_beside_a_program_is_not_taken_for_the_package(tmp_path: Path) -> None:
    """It is a folder called `edgegrad` without `__init__.py`: a namespace package, for Python."""
    if not list(Path(sysconfig.get_path("purelib")).glob("edgegrad-alias.pth")):
        pytest.skip("needs an environment that make has installed")
    (tmp_path / "edgegrad").mkdir()
    (tmp_path / "train.py").write_text("import edgegrad; print(edgegrad.Trainer.__name__)")
    words = [sys.executable, str(tmp_path / "train.py")]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    run = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("Trainer\n", "")
