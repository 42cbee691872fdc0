"""Summaries of trainers: layers, shapes, parameters, memory and cost."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from engine import Trainer
from engine.artifacts import AdamW, CrossEntropyLoss
from engine.errors import InputError
from engine.trainer.step_plan import REGION_NAMES
from engine.trainer.summary import Summary
from tests.support import tiny


def trainer(train: Sequence[str] = ("*",)) -> Trainer:
    return Trainer.from_onnx(
        tiny.forward(tiny.NORMED), CrossEntropyLoss(), AdamW(1e-3), train=train, seed=0, threads=1
    )


def check_sums(summary: Summary, made: Trainer) -> None:
    """Every parameter is in one layer, and the sums are the checkpoint's."""
    sizes = {n: (p.data.size, p.requires_grad) for n, p in made.state.parameters}
    assert summary.parameters == sum(size for size, _ in sizes.values())
    assert summary.trained == sum(size for size, trained in sizes.values() if trained)
    assert sum(layer.parameters for layer in summary.layers) == summary.parameters
    assert sum(layer.trained for layer in summary.layers) == summary.trained
    assert sum(layer.nbytes for layer in summary.layers) == summary.nbytes
    assert summary.nbytes == 4 * summary.parameters


def test_layers_before_any_step_have_symbolic_shapes_and_no_cost() -> None:
    made = trainer(train=["*", "!body.*"])
    summary = made.summary()
    check_sums(summary, made)
    assert [(layer.parameters, layer.trained) for layer in summary.layers] == [
        (48, 0), (8, 0), (32, 16), (24, 24), (3, 3),
    ]  # fmt: skip
    assert [layer.output for layer in summary.layers] == [("N", 8)] * 3 + [("N", 3)] * 2
    assert not summary.is_planned
    assert summary.flops is summary.step_flops is None
    assert not made.module.plans(), "nothing was planned"
    assert "are known after a step, or summary(*batch)" in str(summary)


def test_the_cost_is_of_the_plan_of_the_last_step() -> None:
    made = trainer()
    made.step(tiny.X[:8], tiny.LABELS[:8])
    summary = made.summary()
    check_sums(summary, made)
    first, *_ = summary.layers
    assert first.operators == ("MatMul",)
    assert first.flops == 2 * 8 * 6 * 8
    assert first.step_flops == 2 * first.flops, "forward and weights; the data need no gradient"
    assert summary.flops == 2 * 8 * (6 * 8 + 8 * 3)
    assert summary.step_flops == 2 * 8 * (2 * 6 * 8 + 3 * 8 * 3)
    assert summary.inputs == {"x": (8, 6), "labels": (8,)}
    assert dict(summary.regions) == made.plan.regions
    assert "memory of a step on x [8, 6], labels [8]: " in str(summary)


def test_a_batch_or_its_shapes_are_planned_for() -> None:
    for batch in (((4, 6), (4,)), (np.zeros((4, 6), np.float32), np.zeros(4, np.int64))):
        made = trainer()
        summary = made.summary(*batch)
        assert summary.inputs["x"] == (4, 6)
        assert summary.layers[0].output == (4, 8)
        assert summary.flops == 2 * 4 * (6 * 8 + 8 * 3)
        assert made.steps == 0, "nothing was trained"
    with pytest.raises(InputError, match="a step takes 2 inputs"):
        trainer().summary((4, 6))


def test_all_of_it_is_data() -> None:
    summary = trainer().summary((4, 6), (4,))
    told = json.loads(json.dumps(summary.to_dict()))
    assert told["inputs"] == {"x": [4, 6], "labels": [4]}
    assert [row["name"] for row in told["layers"]] == [row["name"] for row in summary.rows]
    assert told["step_flops"] == summary.step_flops
    head, *rows = str(summary).splitlines()
    assert head.split() == [
        "layer", "operators", "output", "parameters", "trained", "size", "forward", "step",
    ]  # fmt: skip
    assert "4×8" in rows[0]
    assert repr(summary) == str(summary)


def test_a_trainer_is_three_lines_and_a_table(tmp_path: Path) -> None:
    made = Trainer.from_onnx(
        tiny.forward(), CrossEntropyLoss(), AdamW(1e-3), train=["head.*"], folder=tmp_path
    )
    assert repr(made).splitlines() == [
        f"Trainer({str(tmp_path)!r}) of x f32[N,6], labels i64[N]",
        "83 parameters (332 B), 27 trained; 0 steps done, learning rate 0.001",
        "no step is planned yet",
    ]
    made.step(tiny.X, tiny.LABELS)
    *_, last = repr(made).splitlines()
    assert last.startswith("a step on x [20, 6], labels [20]: ")
    assert last.endswith(f"{len(made.plan.plan.steps)} kernel calls")
    shown = made._repr_html_()
    assert shown.count("<tr>") == 1 + len(made.summary().layers)
    assert "83 parameters" in shown


def test_lines_shorten_names_of_hundreds_of_letters() -> None:
    model = tiny.forward()
    for node in model.graph.node:
        node.name = ";".join(f"{node.name}/{node.op_type}_{i}" for i in range(40))
    lines = str(Trainer.from_onnx(model, "cross_entropy").summary()).splitlines()
    assert max(map(len, lines)) < 160


def test_names_in_notebooks_are_escaped() -> None:
    model = tiny.forward()
    for node in model.graph.node:
        node.name = f"<img src=x>{node.op_type}"
    shown = Trainer.from_onnx(model, "cross_entropy")._repr_html_()
    assert "<img" not in shown
    assert "&lt;img" in shown


def test_a_device_without_the_planner_shows_all_but_the_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trainer.from_onnx(tiny.forward(), "cross_entropy", folder=tmp_path)
    made = Trainer(tmp_path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setattr(
        type(made.learner.session.training), "graph", property(_raise_missing), raising=False
    )
    summary = made.summary()
    assert not summary.layers
    assert summary.parameters == 83
    assert str(summary).startswith("83 parameters (332 B)")


def _raise_missing(_: object) -> None:
    from engine.errors import MissingPackageError

    raise MissingPackageError("needs the package onnx")


def test_a_plan_is_three_lines() -> None:
    made = trainer()
    made.step(tiny.X[:8], tiny.LABELS[:8])
    lines = str(made.plan).splitlines()
    assert repr(made.plan) == str(made.plan)
    assert len(lines) == 3
    assert lines[0].startswith("a training step on x [8, 6], labels [8]: one plan, ")
    assert lines[1].startswith("threads 1, kernels ")
    named = [name for name, size in made.plan.regions.items() if size]
    assert all(REGION_NAMES[name] in lines[2] for name in named)
