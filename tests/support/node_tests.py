"""ONNX's backend node tests: which the engine passes, and the kinds of its refusals."""

from __future__ import annotations

import functools
import re
import warnings

import onnx
from onnx import TensorProto
from onnx.backend.test.case.test_case import TestCase

from tests.support.places import DATA

PASSED, REFUSED = DATA / "conformance.txt", DATA / "refusals.txt"

LISTED = PASSED.read_text().split()
RANDOM = {"Bernoulli", "Dropout", "RandomUniformLike"}  # every implementation draws others


def make_graph(case: TestCase) -> onnx.GraphProto:
    """The model of a test that comes with one, as node tests do."""
    assert case.model is not None
    return case.model.graph


@functools.cache
def list_cases() -> dict[str, TestCase]:
    """The node tests all of whose nodes are of ONNX's default domain."""
    from onnx.backend.test.case.node import collect_testcases
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflows on purpose
        load_model_tests(kind="node")
        testcases = collect_testcases(None)
    return {c.name: c for c in testcases if not any(n.domain for n in make_graph(c).node)}


def shorten_error(text: str) -> str:
    """The kind of an error."""
    missing = re.findall(r"(\w+) '[^']*' \(opset \d+\) in '[^']*' is not supported", text)
    missing += re.findall(r"also: (\w+)", text)
    if missing:
        return f"no {', '.join(sorted(set(missing)))}"
    if name := re.search(rf"\b({'|'.join(TensorProto.DataType.keys())})\b", text):
        return f"element type {name[1].lower()}"
    for pattern, kind in (
        (r"seq\(|is a sequence", "a sequence"),
        (r"optional_type|type_proto", "an optional value"),
        (r"is supported from opset|model: opset 1\b", "an old opset"),
        (r"element type (\w+)", "element type {}"),
        (r"\bf16\b", "element type float16"),
    ):
        if match := re.search(pattern, text):
            return kind.format(*match.groups())
    return text[:80]
