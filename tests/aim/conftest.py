"""The test that needs Aim: `make test-aim`.  Without it, it is not collected."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("aim") else ["test_*.py"]
