"""docs/from-pytorch.md runs, and each of its recipes trains as PyTorch does."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.measuring import ROOT
from bench.recipes import PAGE, Recipe, list_recipes

PEERS = ("torchvision", "timm", "transformers", "onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


def test_the_page_begins_with_what_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = PAGE.read_text("utf-8").partition("```python\n")[2].partition("```")[0]
    room: dict[str, list[float]] = {}
    exec(first, room)
    assert len(room["losses"]) == 5
    assert (tmp_path / "inference.onnx").exists()


@pytest.mark.skipif(not all(map(find_spec, PEERS)), reason=f"recipes need {', '.join(PEERS)}")
@pytest.mark.parametrize("recipe", [*list_recipes(PAGE.read_text("utf-8"))], ids=lambda r: r.title)
def test_a_recipe_trains_as_in_torch(recipe: Recipe) -> None:
    """In a process of its own, which can take this folder off its path."""
    command = [sys.executable, "-m", "bench", "recipes", recipe.title]
    environment = {**os.environ, "EDGEGRAD_KERNELS": "native"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert recipe.title in done.stdout
