"""Kernels between guard pages: a sample of the case rows, and plans that somebody has forged.

`python -m tests.guard` runs all rows, for all levels of this CPU, and `--forge N` forges more.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import artifacts
from engine.api import CheckpointState, Module
from engine.errors import CacheWarning, PlanError
from engine.kernels.analysis.bounds import check
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.call import Machine
from engine.plan import plan_file
from engine.plan.plan import Arg, KernelSpec, Plan
from engine.plan.plan_file import PlanReader, Tables
from engine.plan.verify import verify
from engine.tools.actions.plans import check_file
from engine.tools.dev.cases.case import f32
from engine.training import plan_cache
from tests.guard.rows import KINDS, cases
from tests.guard.run import run, run_forged
from tests.guard.steps import numbered, plan_of, softmax, with_step
from tests.support import tiny
from tests.support.places import ROOT

SAMPLE = 40  # rows
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the harness calls mprotect")


def test_a_sample_of_rows_stays_inside() -> None:
    rows = random.Random(0).sample(range(len(cases())), SAMPLE)
    report = run(rows, kinds=[KINDS.index(kind) for kind in KINDS if kind.threads == 2])
    assert not report.strays
    assert report.plans > SAMPLE


def test_forged_plans_are_refused_or_stay_inside() -> None:
    report = run_forged(300)
    assert not report.strays
    assert 0 < report.refused < report.forged


def refusal(plan: Plan) -> str:
    """Return the refusal of a plan that all other rules let pass."""
    with pytest.raises(PlanError) as refused:
        check(verify(plan), Machine.of(detect_host()))
    return str(refused.value)


def test_a_refusal_names_step_operand_reach_and_size() -> None:
    plan = plan_of("Softmax", f32(6, 10))
    said = refusal(numbered(plan, 0, 0, 7))  # a row more
    assert re.search(r"step 0 softmax_rows\w* \(softmax\): it reaches 70 elements into", said)
    assert "argument 0 (x), %" in said
    assert said.endswith("which has 60")


FORGED: dict[str, tuple[Callable[[], Plan], str]] = {
    "a divisor": (lambda: numbered(softmax_columns(), 0, 3, 0), "block is 0; expected block >= 1"),
    "a count below 0": (lambda: numbered(softmax(), 0, 0, -1), "rows is -1"),
    "a count above all": (lambda: numbered(softmax(), 0, 1, 1 << 50), "n is 1125899906842624"),
    "a stride": (lambda: numbered(transpose(), 0, 5, -1), "elements before an operand"),
    "an operand that is null": (
        lambda: with_step(softmax(), 0, args=(softmax().steps[0].args[0], Arg(-1, "-"))),
        "it reaches 60 elements into argument 1 (y), null, which has 0",
    ),
    "a result that is only read": (
        lambda: with_step(softmax_columns(), 0, args=reading(softmax_columns(), 0, 2)),
        "it writes argument 2 (work), which the plan only reads",
    ),
    "a table": (lambda: with_table(resize(), -1, 1 << 20), "a table that names places"),
    "a signature": (
        lambda: with_kernel(softmax(), takes=("i64*", "i64*", "i64", "i64")),
        "takes ('i64*', 'i64*', 'i64', 'i64'); it is made for ('f32*', 'f32*', 'i64', 'i64')",
    ),
    "a kernel of the runtime": (
        lambda: with_kernel(softmax(), spec=KernelSpec("launch", ("i64",))),
        "no kernel that plans may call",
    ),
    "parameters that read as others": (
        lambda: with_kernel(softmax(), spec=KernelSpec("softmax_rows", ("f32", "0"))),
        "read as others",
    ),
}


def softmax_columns() -> Plan:
    return plan_of("Softmax", f32(4, 10, 6), axis=1)


def transpose() -> Plan:
    return plan_of("Transpose", f32(3, 7, 5), perm=[0, 2, 1])


def resize() -> Plan:
    sizes = np.array([1, 1, 7, 5])
    return plan_of("Resize", f32(1, 1, 4, 4), None, None, sizes, mode="linear")


def reading(plan: Plan, step: int, at: int) -> tuple[Arg, ...]:
    """Return the arguments of a step, one of them marked as read."""
    args = list(plan.steps[step].args)
    args[at] = replace(args[at], mode="r")
    return tuple(args)


def with_table(plan: Plan, at: int, value: int) -> Plan:
    """The plan with another integer in its table of indices."""
    constants = list(plan.constants)
    (place,) = [i for i, (b, _) in enumerate(constants) if plan.buffers[b].dtype == "i64"]
    buffer, data = constants[place]
    values = np.frombuffer(data, np.int64).copy()
    values[at] = value
    constants[place] = buffer, values.tobytes()
    return replace(plan, constants=tuple(constants))


def with_kernel(plan: Plan, **changes: Any) -> Plan:
    """The plan with another kernel in the place of its only one."""
    (kernel,) = plan.kernels
    made = replace(kernel, **changes)
    return with_step(replace(plan, kernels=(made,)), 0, kernel=made.symbol)


@pytest.mark.parametrize("what", FORGED)
def test_what_is_forged_is_refused(what: str) -> None:
    forged, said = FORGED[what]
    with pytest.raises(PlanError) as refused:
        check(forged(), Machine.of(detect_host()))
    assert said in str(refused.value)


@pytest.mark.parametrize(("rows", "signal"), [(6, 0), (7, -11)])
def test_the_harness_finds_a_stray(rows: int, signal: int) -> None:
    code = f"""
from tests.guard.walk import Walk
from tests.guard.worker import memory
from engine.kernels.binaries.load import get_linker
from engine.kernels.machine.target import detect_host
from tests.guard.steps import numbered, softmax
plan = numbered(softmax(), 0, 0, {rows})
addresses = get_linker(detect_host()).get_addresses(plan.kernels)
Walk(plan, addresses, memory(plan, {{}}), lambda call: None).run()
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == signal


def test_a_forged_plan_beside_artifacts_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attacker who can write the file can write its digests; the error names the straying
    step.
    """
    artifacts.generate_artifacts(
        tiny.forward(),
        requires_grad=tiny.NAMES,
        loss=artifacts.LossType.CrossEntropyLoss,
        artifact_directory=str(tmp_path),
    )
    command = [sys.executable, "-m", "engine.tools.cli", "prepare", str(tmp_path), "--batch", "4"]
    subprocess.run([*command, "--threads", "1"], cwd=ROOT, check=True, capture_output=True)
    forge_prepared(tmp_path / plan_cache.PREPARED)
    monkeypatch.setenv("EDGEGRAD_CACHE_DIR", str(tmp_path / "cache"))
    state = CheckpointState.load_checkpoint(str(tmp_path / "checkpoint"))
    module = Module(str(tmp_path / "training_model.onnx"), state, threads=1)
    with pytest.warns(CacheWarning, match=r"it reaches \d+ elements into argument"):
        module(tiny.X[:4], tiny.LABELS[:4])
    with pytest.raises(PlanError, match="it reaches"):
        check_file(tmp_path / plan_cache.PREPARED)


def forge_prepared(path: Path) -> None:
    """Write another number into the first product of every prepared plan, and all digests again."""
    prepared = plan_cache.Prepared(os.fspath(path))
    assert prepared.made is not None
    records = {}
    for name in prepared.list_names():
        record = prepared.get(name)
        assert record is not None
        if record.startswith(plan_file.MAGIC):
            (plan,) = PlanReader(Tables(record)).read_plans()
            at = next(n for n, s in enumerate(plan.steps) if s.kernel.startswith("gemm"))
            record = plan_file.to_bytes([numbered(plan, at, 2, 1000)], plan.target)
        records[name] = record
    plan_cache.write_prepared(os.fspath(path), prepared.made, records)
