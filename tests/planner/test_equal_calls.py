"""Equal calls of a plan: which are made once, what they compute, and what they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.base.plan_options import PlanOptions
from engine.graphs.io import onnx_io
from engine.graphs.planner import planner
from engine.graphs.planner.draft import Draft
from engine.graphs.planner.equal_calls import share_equal_calls
from engine.graphs.planner.lower import DraftSource
from engine.graphs.planner.planner import make_plan
from engine.inference import Session
from engine.kernels.machine.target import detect_host
from engine.plan.plan import Plan
from tests.support.blocks import make_model

DEPTH, COLUMNS = 64, 48


def make_attention(kind: str) -> onnx.ModelProto:
    """Three products of one input, as queries, keys and values are; each node rounds its input."""
    rng = np.random.default_rng(0)
    nodes, constants = [], dict[str, np.ndarray]()
    for part in "abc":
        if kind == "dynamic":
            constants[f"w{part}"] = rng.integers(-100, 100, (DEPTH, COLUMNS)).astype(np.int8)
            constants[f"s{part}"] = np.array(rng.uniform(0.01, 0.02), np.float32)
            inputs = ["x", f"w{part}", f"s{part}"]
            made = helper.make_node("DynamicQuantizeMatMul", inputs, [part], domain="com.microsoft")
        else:
            constants[f"w{part}"] = rng.integers(0, 256, (COLUMNS, 2, 32)).astype(np.uint8)
            constants[f"s{part}"] = rng.uniform(0.01, 0.02, COLUMNS * 2).astype(np.float32)
            made = helper.make_node(
                "MatMulNBits", ["x", f"w{part}", f"s{part}"], [part], domain="com.microsoft",
                K=DEPTH, N=COLUMNS, bits=8, block_size=32, accuracy_level=4,
            )  # fmt: skip
        nodes.append(made)
    nodes.append(helper.make_node("Mul", ["a", "b"], ["ab"]))
    nodes.append(helper.make_node("Add", ["ab", "c"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", DEPTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", COLUMNS])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def plan(model: onnx.ModelProto, *, rows: int = 300, budget: int | None = None) -> Plan:
    return make_plan(
        onnx_io.load(model), {"x": (rows, DEPTH)}, target=detect_host(), threads=1,
        options=PlanOptions(budget=budget),
    )  # fmt: skip


@contextmanager
def sharing_nothing() -> Iterator[None]:
    """Make plans with equal calls meanwhile."""
    with mock.patch.object(planner, "share_equal_calls"):
        yield


def count_kernels(made: Plan) -> Counter[str]:
    return Counter(step.kernel for step in made.steps)


@pytest.mark.parametrize("kind", ["dynamic", "blocks"])
def test_one_rounding_serves_three_products(kind: str) -> None:
    model = make_attention(kind)
    made = plan(model)
    with sharing_nothing():
        plain = plan(model)
    products = {n for k, n in count_kernels(made).items() if k.startswith("integer_")}
    assert products == {3}
    before, after = count_kernels(plain), count_kernels(made)
    fewer = {name: n - after[name] for name, n in before.items() if n != after[name]}
    assert fewer
    assert set(fewer.values()) == {2}  # each of three became one
    assert made.compute_region_bytes("work") <= plain.compute_region_bytes("work")


@pytest.mark.parametrize("kind", ["dynamic", "blocks"])
def test_results_have_the_same_bits(kind: str) -> None:
    model = make_attention(kind)
    x = np.random.default_rng(1).standard_normal((37, DEPTH)).astype(np.float32)
    with sharing_nothing():
        plain = Session(model.SerializeToString(), threads=2).run(None, {"x": x})[0]
    shared = Session(model.SerializeToString(), threads=2).run(None, {"x": x})[0]
    assert np.array_equal(shared, plain)


def make_draft(text: str) -> Draft:
    """Return the draft of a model before equal calls are shared."""
    drafts = list[Draft]()

    def keep(source: DraftSource) -> Draft:
        drafts.append(make(source))
        return replace(drafts[-1], calls=list(drafts[-1].calls), values=dict(drafts[-1].values))

    make = DraftSource.make_draft
    with mock.patch.object(DraftSource, "make_draft", keep):
        make_plan(onnx_io.load(make_model(text)), {}, target=detect_host(), threads=1)
    return drafts[0]


# Two convolutions that differ in their epilogue pack the same weights.
FAR = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,64,30,30] x, float[64,64,3,3] w) => (float[1,64,26,26] y) {
    a = Conv(x, w)
    b = Conv(a, w)
    y = Relu(b)
}"""


def test_results_that_would_raise_the_peak_are_made_twice() -> None:
    """Both convolutions make the same of their weights, which a budget has no room to keep."""
    draft = make_draft(FAR)
    count = len(draft.calls)
    share_equal_calls(draft, keeps=False, is_tight=True)
    assert len(draft.calls) == count
    share_equal_calls(draft, keeps=True, is_tight=False)
    assert len(draft.calls) < count


def test_calls_that_draw_or_update_are_all_made() -> None:
    """Two dropouts of one value draw other numbers, so their calls differ."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[64,64] x, float r) => (float[64,64] y) {
        on = Constant<value = bool {1}>()
        ratio = Constant<value = float {0.5}>()
        a = Dropout(x, ratio, on)
        b = Dropout(x, ratio, on)
        y = Add(a, b)
    }"""
    draft = make_draft(text)
    count = len(draft.calls)
    share_equal_calls(draft, keeps=False, is_tight=False)
    assert len(draft.calls) == count
