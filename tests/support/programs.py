"""Programs that hand a training run on to other packages, which start threads and processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.places import PATHS, ROOT

COLUMNS = {"epoch/loss", "epoch/val_accuracy", "step/loss", "step/lr", "step/samples_per_second"}


def run_code(code: str, folder: Path) -> str:
    """Run a program that has succeeded, with a home of its own; return its last line."""
    own = {"PYTHONPATH": PATHS, "WANDB_SILENT": "true", "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, **own},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return (done.stdout.strip().splitlines() or [""])[-1]
