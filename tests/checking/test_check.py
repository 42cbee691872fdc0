"""Dry runs: predictions of a training run before its first step, and a check of them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.predictions import SMALL, measure_workload, predict_workload
from engine import Trainer
from engine.base.aliases import Shapes
from engine.base.plan_options import PlanOptions, Precision
from engine.checking import Subject, check, process
from engine.checking.report import NO_GRADIENT, NO_KERNEL
from engine.checking.subject import Opened
from engine.errors import BudgetError, InputError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.passes.infer import infer
from engine.kernels.analysis.cost import get_nominal
from engine.kernels.machine.target import explain_storage
from engine.kernels.vocabulary.op import TensorType, title_op
from engine.models.images import build_cnn, build_mlp
from engine.plan.plan import format_bytes
from engine.tools.benchmark.workload import write_artifacts
from engine.training.state import CheckpointState

SHAPES = {"x": (16, 784), "labels": (16,)}
HALF = PlanOptions(precision="bf16")
needs_figures = pytest.mark.skipif(
    process.measure_base() is None, reason="the system does not report memory"
)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_artifacts(build_mlp(), tmp_path_factory.mktemp("mlp"))


def subject_of(folder: Path, threads: int = 2) -> Subject:
    slots = CheckpointState.load_checkpoint(folder / "checkpoint").slots
    return Subject.of(
        folder / "training_model.onnx", folder / "optimizer_model.onnx", slots, threads
    )


@needs_figures
@pytest.mark.parametrize("name", SMALL)
def test_the_process_takes_what_was_predicted(name: str, tmp_path: Path) -> None:
    """Within 10 % and 10 MB, of a fresh process that finds kernels and plans kept."""
    SMALL[name].write(tmp_path)
    peak = measure_workload(tmp_path, steps=2).peak
    figures = predict_workload(tmp_path, get_nominal(2)).figures
    assert figures is not None
    wanted = figures.process
    assert wanted is not None
    assert abs(wanted - peak) <= 0.1 * peak + 10e6, f"{wanted:,} predicted, {peak:,} measured"


def test_variants_have_figures_of_their_own_plans(artifacts: Path) -> None:
    checked = check(subject_of(artifacts), SHAPES, source="mlp", machine=get_nominal(2))
    assert checked.status == "trains"
    assert checked.figures is not None
    assert (checked.trained, checked.frozen) == ((4, 397_510), (0, 0))
    assert checked.figures.nbytes == sum(checked.figures.regions.values())
    by_change = {s.change: s.figures for s in checked.suggestions}
    sgd, all_of_it = by_change["SGD as the optimizer"].regions, checked.figures.regions
    assert sgd["state"] == all_of_it["state"] // 2  # onnxruntime's keeps a moment
    assert sgd["param"] == all_of_it["param"]
    last = by_change["train only the last layer"].regions
    assert last["state"] == 2 * (20032 + 64)  # 10 rows of 500 weights, 10 biases, both aligned
    assert "grad" not in all_of_it  # the step is one plan
    assert by_change["a batch of 8 instead of 16"].seconds < checked.figures.seconds
    for text in (*by_change, "trained  397,510 values in 4 parameters", "here [16,784]"):
        assert text in str(checked)
    assert json.loads(json.dumps(checked.as_dict()))["figures"]["nbytes"] == checked.figures.nbytes


def test_training_fewer_is_what_artifacts_for_fewer_are(artifacts: Path, tmp_path: Path) -> None:
    """A variant cuts the training model; artifacts made for it have the same plan."""
    from engine.checking.subject import list_layers, train_only

    subject = subject_of(artifacts)
    (_, last) = list_layers(subject)
    write_artifacts(build_mlp(), tmp_path, tuple(last))
    cut, made = train_only(subject, last), subject_of(tmp_path)
    assert cut.trained == made.trained
    for mine, theirs in zip(
        cut.open().make_plans(SHAPES), made.open().make_plans(SHAPES), strict=True
    ):  # which have the frozen parameters as constants
        for region in ("grad", "state", "work", "io"):
            assert mine.compute_region_bytes(region) == theirs.compute_region_bytes(region), region


def test_a_trainer_tells_of_a_batch_or_its_shapes(artifacts: Path) -> None:
    trainer = Trainer(artifacts, threads=1)
    before = trainer.state.to_bytes()
    batch = np.zeros((16, 784), np.float32), np.zeros(16, np.int64)
    checked = trainer.check(*batch, variants=False, memory_budget="1 MB")
    assert checked == trainer.check(
        {"labels": (16,), "x": batch[0]}, variants=False, memory_budget=10**6
    )
    assert checked.status == "does not fit"
    assert not checked.suggestions
    assert trainer.state.to_bytes() == before
    with pytest.raises(InputError, match=r"takes 2 inputs \['x', 'labels'\], got 1"):
        trainer.check((16, 784))
    with pytest.raises(InputError, match="lacks the input 'labels'; it has 'x'"):
        trainer.check({"x": (16, 784)})


def test_a_check_in_16_bits_is_of_the_plans_of_its_trainer(artifacts: Path) -> None:
    batch = {"x": (16, 784), "labels": (16,)}
    single, half = (Trainer(artifacts, threads=1, precision=p) for p in ("f32", "bf16"))
    arrays = np.zeros((16, 784), np.float32), np.zeros(16, np.int64)
    plan = half.plan_of(*arrays).plan
    checked, wide = half.check(batch), single.check(batch, variants=False)
    assert checked.figures is not None
    assert wide.figures is not None
    assert checked.figures.regions["work"] == plan.compute_region_bytes("work")
    assert checked.figures.nbytes < wide.figures.nbytes
    by_change = {s.change: s.figures.nbytes for s in checked.suggestions}
    smaller = half.plan_of(*(a[:8] for a in arrays)).plan
    assert by_change["a batch of 8 instead of 16"] == smaller.nbytes
    assert checked.halves is not None
    assert checked.halves.values == sum(b.dtype == "bf16" for b in plan.buffers) > 0
    assert f"  values in 16 bits {checked.halves.values}" in plan.summary()
    assert "16 bits" not in single.plan_of(*arrays).plan.summary() + str(wide)
    assert wide.halves is None


def test_nodes_in_float32_are_counted_by_operator(artifacts: Path) -> None:
    """A product and what is elementwise are not among them, a loss is; nor is the optimizer."""
    subject = replace(subject_of(artifacts), planning=HALF)
    checked = check(subject, SHAPES, source="mlp", machine=get_nominal(2), variants=False)
    loss = "SoftmaxCrossEntropyLoss"
    assert checked.halves is not None
    assert checked.halves.in_float32 == {loss: 1, f"com.microsoft::{loss}Grad": 1, "ReduceSum": 1}
    told = f"nodes in float32: {loss} 1, com.microsoft::{loss}Grad 1, ReduceSum 1"
    few = "values of at most 2048 elements stay as they are"
    assert told in str(checked)
    assert checked.halves.reasons == {few: ["ReduceSum", loss, f"com.microsoft::{loss}Grad"]}
    assert f"    {few}: ReduceSum, {loss}, com.microsoft::{loss}Grad\n" in str(checked)
    assert f"  values in 16 bits {checked.halves.values}\n" in str(checked)
    assert "not counted" not in str(checked)
    assert json.loads(json.dumps(checked.as_dict()))["halves"]["in_float32"]["ReduceSum"] == 1


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_a_cpu_that_only_stores_a_type_is_told_and_the_choice_of_auto(
    artifacts: Path, precision: Precision
) -> None:
    """Of new plans and of kept ones; `auto` lists no nodes where it takes float32 for all."""
    subject = subject_of(artifacts)
    told = explain_storage(subject.open().train.memory.kernels.target, precision)

    def write(chosen: Precision) -> str:
        planning = PlanOptions(precision=chosen)
        machine = get_nominal(2)
        return str(
            check(
                replace(subject, planning=planning), SHAPES, source="mlp", machine=machine,
                variants=False,
            )
        )  # fmt: skip

    for _ in range(2):
        assert f"precision {told or precision}  values in 16 bits " in write(precision)
    automatic = write("auto")
    assert ("nodes in float32" in automatic) == ("values in 16 bits 0" not in automatic)


def test_an_operator_without_kernels_for_16_bits_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w = {name: rng.standard_normal((32, 32)).astype(np.float32) for name in ("w0", "w1")}
    nodes = [
        Node("MatMul", ("x", "w0"), ("a",), name="first"),
        Node("CumSum", ("a", "axis"), ("b",), name="sum"),
        Node("MatMul", ("b", "w1"), ("y",), name="last"),
    ]
    graph = Graph("g", {"x": TensorType("f32", ("n", 32))}, ["y"],
                  {**w, "axis": np.array(1)}, nodes, {"": 17})  # fmt: skip
    graph.types["y"] = TensorType("f32", ("n", 32))
    write_artifacts(graph, tmp_path)
    subject = replace(subject_of(tmp_path), planning=HALF)
    shapes = {"x": (64, 32), "labels": (64,)}
    halves = check(subject, shapes, source="g", machine=get_nominal(2), variants=False).halves
    assert halves is not None
    assert "CumSum" in halves.reasons["no kernels for 16 bits"]


def test_a_node_that_passes_replace_counts_as_it_was(tmp_path: Path) -> None:
    """Convolutions are fused, and change layout; nodes without names cannot be distinguished."""
    write_artifacts(build_cnn(), tmp_path)
    subject = replace(subject_of(tmp_path), planning=HALF)
    shapes = {"x": (4, 1, 28, 28), "labels": (4,)}
    halves = check(subject, shapes, source="cnn", machine=get_nominal(2), variants=False).halves
    assert halves is not None
    graph = onnx_io.load(subject.training)
    assert halves.in_float32["SoftmaxCrossEntropyLoss"] == 1  # of fewer values than are stored so
    assert halves.in_float32.keys() < {title_op(node.domain, node.op) for node in graph.nodes}
    assert "Gemm" not in halves.in_float32
    for node in graph.nodes:
        node.name = ""
    bare = replace(subject, training=onnx_io.to_bytes(graph))
    told = check(bare, shapes, source="cnn", machine=get_nominal(2), variants=False)
    assert told.halves is not None
    assert told.halves.values == halves.values
    assert (told.halves.in_float32, told.halves.unnamed) == ({}, len(graph.nodes))
    assert f"float32: none; not counted, as they have no name of their own: {len(graph.nodes)}" in (
        str(told)
    )


def test_a_budget_is_kept_or_the_least_is_told(artifacts: Path) -> None:
    """Suggestions come with the figures of their own plans, also in the error of a step."""
    free = check(
        subject_of(artifacts), SHAPES, source="mlp", machine=get_nominal(2), variants=False
    )
    assert free.figures is not None
    most = free.figures.nbytes
    bounded = replace(subject_of(artifacts), planning=PlanOptions(budget=1 << 20))
    small = check(bounded, SHAPES, source="mlp", machine=get_nominal(2))
    assert small.status == "does not fit"
    assert small.figures is not None
    assert small.least == small.figures.nbytes <= most
    assert f"the smallest possible budget is {small.least} bytes" in small.why
    assert f"the smallest possible budget is {format_bytes(small.least)}" in str(small)
    trainer = Trainer(artifacts, threads=2, memory_budget=2_500_000)
    batch = np.zeros((16, 784), np.float32), np.zeros(16, np.int64)
    with pytest.raises(BudgetError, match=r"would fit.* train only the last layer .*KiB") as told:
        trainer.step(*batch)
    # The trainer may also compute the batch in parts, whose products of few rows need no scratch.
    assert told.value.least <= small.least
    assert trainer.check(*batch, variants=False).budget == 2_500_000
    trainer = Trainer(artifacts, threads=2, memory_budget=most)
    trainer.step(*batch)
    assert trainer.check(*batch, variants=False).status == "trains"


def test_budgets_of_one_plan_are_suggested_once(
    artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the least of them, as the others would buy the same step."""
    plan = Opened.make_plans

    def plan_alike(self: Opened, shapes: Shapes, budget: int | None = None) -> Any:
        if budget == 1:
            raise BudgetError("there is none", least=4096)
        return plan(self, shapes if budget is None else {"x": (8, 784), "labels": (8,)})

    monkeypatch.setattr(Opened, "make_plans", plan_alike)
    told = check(subject_of(artifacts), SHAPES, source="mlp", machine=get_nominal(2)).suggestions
    budgets = [s.change for s in told if s.change.startswith("a budget")]
    assert budgets == ["a budget of 4096 B"]


def run(*words: Any) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "engine.tools.cli", "check", *map(str, words), "--json"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert not done.stderr.count("Traceback"), done.stderr
    return done.returncode, json.loads(done.stdout) if done.stdout else {}


def test_the_command_ends_with_what_it_found(tmp_path: Path) -> None:
    graph = build_cnn()
    onnx_io.save(graph, tmp_path / "good.onnx")
    words = ("--batch", 4, "--brief", "--threads", 1)
    status, actual = run(tmp_path / "good.onnx", *words, "--budget", "1MB")
    assert (status, actual["status"]) == (4, "does not fit")
    assert [i["shape"] for i in actual["inputs"]] == [[4, 1, 28, 28], [4]]
    # A node without a gradient and one without a kernel are reported together, and no others.
    first, *rest = graph.nodes
    (made,) = first.outputs
    first.outputs = ("before",)
    odd = Node("Unheard", ("before",), (made,), domain="com.example", name="/unheard")
    graph.nodes = [first, odd, *rest]
    graph.types[made] = TensorType("f32", ("batch", 32, 26, 26))
    linear = next(node for node in graph.nodes if node.op == "Gemm")
    graph.initializers["none"] = np.zeros(0, np.int64)
    total = Node(
        "ReduceSumTraining", (linear.inputs[0], "none"), ("total",), {"noop_with_empty_axes": 1},
        "com.microsoft", "/total",
    )  # fmt: skip
    linear.inputs = ("total", *linear.inputs[1:])
    graph.nodes.insert(graph.nodes.index(linear), total)
    graph.opsets |= {"com.example": 1, "com.microsoft": 1}
    onnx_io.save(graph, tmp_path / "odd.onnx")
    status, actual = run(tmp_path / "odd.onnx", *words)
    assert (status, actual["status"]) == (3, "cannot train")
    assert {f["node"]: f["lacks"] for f in actual["faults"]} == {
        "/unheard": NO_KERNEL, "/total": NO_GRADIENT
    }  # fmt: skip


def test_all_outputs_of_a_model_are_learnt(tmp_path: Path) -> None:
    """A detector has several, and its parameters reach one or another; indices have no loss."""
    types = {"x": TensorType("f32", ("batch", 6))}
    nodes = [
        Node("Gemm", ("x", "v"), ("scores",)),
        Node("Gemm", ("x", "w"), ("wide",)),
        Node("Reshape", ("wide", "shape"), ("boxes",)),
        Node("ArgMax", ("scores",), ("best",), {"axis": 1, "keepdims": 0}),
    ]
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal((6, 8), np.float32) for n in "vw"}
    arrays["shape"] = np.array([0, 2, 4])
    graph = Graph("two", types, ["scores", "boxes", "best"], arrays, nodes, {"": 17})
    graph.types = infer(graph.copy()).types
    onnx_io.save(graph, tmp_path / "two.onnx")
    status, actual = run(tmp_path / "two.onnx", "--batch", 4, "--brief", "--threads", 1)
    assert (status, actual["status"]) == (0, "trains")
    assert [i["shape"] for i in actual["inputs"]] == [[4, 6], [4], [4, 2, 4]]
    status, actual = run(tmp_path / "two.onnx", "--batch", 4, "--brief", "--loss", "l1")
    assert [i["shape"] for i in actual["inputs"]] == [[4, 6], [4, 8], [4, 2, 4]]
