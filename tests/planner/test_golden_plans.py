"""Whole plans as text: a change of planner or lowering shows as a change of these files."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from engine.graphs.io import onnx_io
from engine.plan.plan import Plan
from engine.tools import cli
from engine.tools.actions.plan_text import draw_arena, format_words
from tests.support.golden_plans import make_golden_plan
from tests.support.places import GOLDENS


def plan(case: str, batch: int) -> Plan:
    """Return the training plan of a golden model, for the target of the golden texts."""
    return make_golden_plan(case, batch, 2)


@pytest.mark.parametrize("case", ["mlp", "cnn", "bce", "regression_sgd"])
def test_plan_text(case: str, golden: Callable[[str, str], None]) -> None:
    made = plan(case, 8)
    golden(f"{case}.plan.txt", f"{made}\n{draw_arena(made)}")


@pytest.mark.parametrize("case", ["mlp", "cnn", "bce", "regression_sgd"])
def test_the_words_of_steps_have_names(case: str) -> None:
    """Every number of a step is written, in its order, and no other number is."""
    made = plan(case, 8)
    rows = format_words(made).splitlines()
    assert len(rows) == len(made.steps)
    for row, step in zip(rows, made.steps, strict=True):
        told = re.findall(r"[=(,](-?[\d.e+-]+)", row)
        assert list(map(float, told)) == list(step.consts), row


def test_show_names_the_words_of_steps(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(GOLDENS / "mlp" / "forward.onnx")
    graph = onnx_io.load(model)
    (name,) = graph.inputs
    assert cli.main(["show", model, "--shape", f"{name}=8,64", "--words"]) == 0
    assert re.search(r"^ +0 gemm_\w+: .*\bm=8 n=48 k=64\b", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("case", ["mlp", "cnn", "bce", "l1", "regression_sgd"])
@pytest.mark.parametrize("batch", [1, 8, 33])
def test_arenas_are_optimal_for_their_order(case: str, batch: int) -> None:
    assert plan(case, batch).ratio == pytest.approx(1.0)


def test_planning_is_deterministic() -> None:
    assert str(plan("cnn", 8)) == str(plan("cnn", 8))


def test_no_reuse_gives_every_buffer_its_own_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEGRAD_REUSE", "0")
    made = plan("mlp", 8)
    work = sorted((b.offset, b.nbytes) for b in made.buffers if b.region == "work")
    ends = np.cumsum([n for _, n in work])
    assert [o for o, _ in work] == [0, *ends[:-1]]


def test_the_debug_switch_prints_every_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEGRAD_DEBUG", "2")
    plan("mlp", 8)
    text = capsys.readouterr().err
    assert text.count("--- after") >= 6
    assert "FusedGemm" in text
    assert "plan mlp" in text
