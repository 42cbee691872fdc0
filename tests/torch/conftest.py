"""Tests that need PyTorch: `make test-torch`.  Without it they are not collected."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") and find_spec("onnxscript") else ["test_*.py"]
