"""The files of this checkout that tests read, and the folders that hold them."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALIAS = ROOT / "engine/alias"  # where `edgegrad` is found, as `engine` is in ROOT
DOCS = ROOT / "docs"
BINDINGS = ROOT / "tests/bindings"  # and the drills of all languages
DRIVERS = ROOT / "tests/c"  # programs in C that call trimmed libraries
SUPPORT = ROOT / "tests/support"
PLANS = ROOT / "tests/golden"  # texts of plans, as `--update-golden` writes them
DATA = ROOT / "tests/data"
CHECKPOINTS = DATA / "checkpoints"  # written by onnxruntime-training
EXPORTS = DATA / "exports"  # models as PyTorch's exporters write them
FROM_TORCH = DATA / "from_torch"  # models with the steps that PyTorch took
GOLDENS = DATA / "goldens"  # artifacts and traces of onnxruntime-training
PATHS = f"{ROOT}{os.pathsep}{ALIAS}"  # PYTHONPATH of processes that import this checkout
