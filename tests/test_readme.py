"""The README is true: its operator table is the op tables', its switches are the switches."""

from __future__ import annotations

import re
from pathlib import Path

from engine.config import PREFIX, SWITCHES
from engine.kernels import ops

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_operator_table_is_complete_and_marks_what_has_no_gradient() -> None:
    table = README.split("| family | operators")[1].split("\n\n")[0]
    rows = [r for r in table.splitlines() if r.startswith("| ") and "training (com" not in r]
    listed = {w for row in rows for w in re.findall(r"\b[A-Z][A-Za-z0-9]+\*?", row)}
    listed -= {"D"}
    declared = {
        name + ("" if op.grad else "*") for (domain, name), op in ops().items() if not domain
    }
    declared -= {n for n in declared if n.endswith("Grad*")}
    listed_onnx = {w for w in listed if ("com.microsoft", w.rstrip("*")) not in ops()}
    assert listed_onnx == declared


def test_every_switch_is_named() -> None:
    assert set(re.findall(rf"{PREFIX}([A-Z_]+)", README)) == set(SWITCHES)
