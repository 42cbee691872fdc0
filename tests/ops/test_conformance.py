"""ONNX's backend node tests, run by `engine.backend`: what passes, and why the rest does not.

tests/data/conformance.txt lists what passes, one test a line; refusals.txt all other tests of the
default domain, each with its reason; docs/conformance.md what they amount to, op by op.
`pytest tests/ops/test_conformance.py --update-golden` writes them from what the engine does.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.runner import Runner, _normalize_tensor

from engine import backend
from engine.base.element_types import ELEMENT_TYPES
from engine.errors import EngineError
from engine.graphs.io import reference
from engine.tools.dev import cases as case_files
from tests.support.node_tests import (
    LISTED,
    PASSED,
    RANDOM,
    REFUSED,
    list_cases,
    make_graph,
    shorten_error,
)
from tests.support.places import DOCS

REPORT = DOCS / "conformance.md"
NUMERIC = {kind.onnx_name for kind in ELEMENT_TYPES.values()}


def kinds(case: TestCase) -> set[str]:
    """Return the kinds of its inputs and outputs: element types, or "sequence_type",
    "optional_type".
    """
    distinct = set()
    for value in (*make_graph(case).input, *make_graph(case).output):
        kind = value.type.WhichOneof("value")
        element = TensorProto.DataType.Name(value.type.tensor_type.elem_type)
        distinct.add(element if kind == "tensor_type" else kind)
    return distinct


@pytest.fixture(autouse=True)
def _engine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants of ops that are not declared are not computed by onnx's own reference."""
    monkeypatch.setattr(reference, "evaluate", lambda *_: [])


def run(case: TestCase, rounding: float = 0) -> None:
    """Run a test as ONNX's runner does.

    rounding: error allowed besides, relative to the largest element of an output.
    """
    rep = backend.prepare(case.model, threads=2)
    for inputs, outputs in case.data_sets or ():
        outcome = rep.run([_normalize_tensor(value) for value in inputs])
        expected = [_normalize_tensor(value) for value in outputs]
        largest = max((np.abs(e).max(initial=0) for e in expected if rounding), default=0)
        atol = max(case.atol, rounding * largest)
        Runner.assert_similar_outputs(expected, outcome, case.rtol, atol)


def reason(case: TestCase) -> str:
    """Why a test does not pass, in a few words; empty if it does."""
    try:
        run(case)
    except EngineError as error:
        return shorten_error(" ".join(str(error).split()))
    except AssertionError:
        if any(n.op_type in RANDOM for n in make_graph(case).node):
            return "random numbers"
        try:
            run(case, 1e-6)
        except AssertionError:
            return "differs"
        return "rounding: within 1e-6 of the largest element, the test allows 1e-7 in all"
    return ""


@pytest.mark.parametrize("name", LISTED)
def test_listed(name: str) -> None:
    run(list_cases()[name])


def gradient_checks() -> dict[str, str]:
    """The file of case rows in which the gradient of an op of ONNX's is checked."""
    actual: dict[str, str] = {}
    for module in pkgutil.iter_modules(case_files.__path__):
        rows = importlib.import_module(f"{case_files.__name__}.{module.name}")
        for case in getattr(rows, "CASES", ()):
            if case.grad and not case.domain:
                actual.setdefault(case.op, f"tools/dev/cases/{module.name}.py")
    return actual


def report(passed: list[str], refused: dict[str, str]) -> str:
    """docs/conformance.md: op by op, and why the rest does not pass."""
    numeric = {name for name, case in list_cases().items() if kinds(case) <= NUMERIC}
    share = len(numeric.intersection(passed)) / len(numeric)
    rows: dict[str, list[bool]] = {}
    for name, case in list_cases().items():
        nodes = make_graph(case).node
        op = nodes[0].op_type if len(nodes) == 1 else "of several nodes"
        rows.setdefault(op, []).append(name in passed)
    checks = gradient_checks()
    lines = [
        "# ONNX's node tests",
        "",
        "Made by `pytest tests/ops/test_conformance.py --update-golden`. The tests come from onnx "
        f"{onnx.__version__}.",
        "",
        f"Of {len(list_cases())} node tests of the default domain {len(passed)} pass; on numeric "
        f"tensors (bool, integers, bfloat16, float16, float32, float64) "
        f"{len(numeric.intersection(passed))} of "
        f"{len(numeric)}, which is {share:.1%}. The last column says where the gradient is checked "
        "against finite differences.",
        "",
        "| operator | passed | tests | gradient |",
        "|---|---:|---:|---|",
        *(f"| {op} | {sum(ordered)} | {len(ordered)} | {checks.get(op, '')} |"
          for op, ordered in sorted(rows.items())),
        "",
        "| tests that do not pass | reason |",
        "|---:|---|",
        *(f"| {count} | {why} |" for why, count in
          sorted(Counter(refused.values()).items(), key=lambda item: (-item[1], item[0]))),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def test_not_listed(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    """Each other test fails, and for the reason that is on record."""
    update = request.config.getoption("--update-golden")
    rest = [name for name in list_cases() if update or name not in LISTED]
    reasons = {name: reason(list_cases()[name]) for name in sorted(rest)}
    refused = {name: why for name, why in reasons.items() if why}
    passed = sorted(list_cases().keys() - refused.keys())
    text = report(passed, refused)
    if update:
        PASSED.write_text("".join(f"{n}\n" for n in passed))
        REFUSED.write_text("".join(f"{n}: {why}\n" for n, why in refused.items()))
        REPORT.write_text(text)
    with capsys.disabled():
        print("\n" + text.splitlines()[4])
    known = dict(line.split(": ", 1) for line in REFUSED.read_text().splitlines())
    assert (passed, refused) == (PASSED.read_text().split(), known), "run with --update-golden"
    assert "differs" not in refused.values()
    assert REPORT.read_text() == text, "run with --update-golden"
