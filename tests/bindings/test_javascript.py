"""JavaScript: the package of a wasm32 build, in Node.js."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bindings import drill
from tests.bindings.packages import make_package
from tests.support.builds import run
from tests.support.needs import needs_node
from tests.support.places import BINDINGS


@needs_node
@pytest.mark.parametrize("case", ["mlp", "cnn"])
def test_node_trains_resumes_and_refuses(case: str, tmp_path: Path) -> None:
    folder = make_package(case, "js", "wasm32")
    drill.write_steps(case, tmp_path / "steps")
    words = (folder / "js", folder / "checkpoint", tmp_path / "steps", tmp_path / "out", "1000")
    printed = run("node", BINDINGS / "drill.mjs", *words)
    drill.check(printed, tmp_path / "out", case, exact=False)
