"""Start-up of the demo's model: a whole process from `python` to the first finished step."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.models import write_artifacts
from engine.tools.demo import classifier

SCRIPT = Path(__file__).parent / "first_step.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = write_artifacts(classifier(np.random.default_rng(0)), tmp_path_factory.mktemp("digits"))
    x = np.random.default_rng(0).random((32, 1, 8, 8)).astype(np.float32)
    np.savez(out / "batch.npz", x=x, y=np.arange(32) % 10)
    return out


def start(folder: Path, cache: Path) -> None:
    """Run the script in a process of its own with this kernel cache."""
    root = str(SCRIPT.parents[1])
    env = {**os.environ, "EDGEGRAD_CACHE_DIR": str(cache), "PYTHONPATH": root}
    subprocess.run([sys.executable, str(SCRIPT), str(folder)], check=True, env=env)


def bench_warm_start(benchmark: Any, folder: Path, tmp_path: Path) -> None:
    """All kernels are in the cache."""
    benchmark.pedantic(start, args=(folder, tmp_path), rounds=10, warmup_rounds=1)


def bench_cold_start(benchmark: Any, folder: Path, tmp_path: Path) -> None:
    """Nothing is in the cache."""
    fresh = itertools.count()
    benchmark.pedantic(start, setup=lambda: ((folder, tmp_path / str(next(fresh))), {}), rounds=3)
