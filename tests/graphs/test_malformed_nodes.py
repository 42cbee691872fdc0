"""Nodes with one thing wrong are refused by what is wrong with them, never by a crash of a rule.

Every case row is a node that works.  Here its attributes, inputs, outputs, constants and opset are
changed one at a time.  The result must be a plan or an error that blames the model: an
`InternalError` would mean that a rule assumed what neither reading nor its shape rule had checked.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, helper

from engine.base.errors import (
    EngineError,
    InternalError,
    ModelError,
    OutOfMemoryError,
    UnsupportedOpError,
    defects,
)
from engine.custom import Op, register, same_as, unregister
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.passes.infer import infer
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import TensorType
from engine.tools.dev.case_graphs import list_cases
from engine.tools.dev.cases.case import Case
from tests.support.malformed import MUTATIONS, find_outcome, make_model

REFUSALS = {
    "ModelError", "ShapeError", "DTypeError", "UnsupportedOpError", "UnknownValueError",
    "InputError", "NoInfluenceError", "OutOfMemoryError",
}  # fmt: skip
SAMPLE, WHOLE = range(2), range(2, 40)  # seeds of the mutations of each row


def rows() -> dict[str, list[Case]]:
    """The case rows of each op that a file may hold."""
    actual: dict[str, list[Case]] = {}
    for case in list_cases():
        declared = list_ops().get((case.domain, case.op))
        if declared is None or not declared.internal:
            actual.setdefault(f"{case.domain}::{case.op}".removeprefix("::"), []).append(case)
    return actual


ROWS = rows()


@pytest.mark.parametrize("op", ROWS)
def test_mutated_nodes_are_planned_or_refused(op: str) -> None:
    try_mutations(op, SAMPLE)


@pytest.mark.whole
@pytest.mark.parametrize("op", ROWS)
def test_more_mutated_nodes_are_planned_or_refused(op: str) -> None:
    try_mutations(op, WHOLE)


def try_mutations(op: str, seeds: range) -> None:
    for case in ROWS[op]:
        plain = make_model(case)
        for seed in seeds:
            model, rng = ModelProto(), random.Random(f"{case.id} {seed}")
            model.CopyFrom(plain)
            mutation = rng.choice(MUTATIONS)
            mutation(model, rng)
            outcome = find_outcome(model)
            assert outcome in {*REFUSALS, "fine", "large"}, (
                f"{case.id}: {mutation.__name__}, {seed}"
            )


def test_rows_as_they_are_pass_the_checks_of_reading() -> None:
    """Mutations above would show nothing if their originals were refused."""
    refused = Counter[str]()
    for op, cases in ROWS.items():
        for case in cases:
            try:
                onnx_io.load(make_model(case))
            except EngineError:
                refused[op] += 1
    assert refused == {"TopK": 1}  # the row of one output, where ONNX asks for two


# --- what reading refuses


def read(op: str, ins: list[str], *, domain: str = "", opset: int = 17, **attrs: Any) -> None:
    node = helper.make_node(op, ins, ["y"], domain=domain, name="n", **attrs)
    refuse(node, domain, opset)


def refuse(node: onnx.NodeProto, domain: str = "", opset: int = 17) -> None:
    """Load the model of a node whose inputs are f32[4,5]."""
    infos = [
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4, 5])
        for n in dict.fromkeys(node.input)
        if n
    ]
    outs = [onnx.ValueInfoProto(name=n) for n in node.output if n]
    graph = helper.make_graph([node], "g", infos, outs)
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, 1)] if domain else []
    onnx_io.load(helper.make_model(graph, opset_imports=imports, ir_version=8))


MS = "com.microsoft"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: read("Softmax", ["x"], axes=1),
         r"Softmax 'n' \(opset 17\): unknown attribute 'axes' of type int; nearest: 'axis'; "
         r"expected one of: axis \(int\)"),
        (lambda: read("Relu", ["x"], alpha=1.0), "'alpha' of type float; expected one of: none"),
        (lambda: read("Softmax", ["x"], axis=1.0), "attribute 'axis' of type float; expected type"),
        (lambda: read("Cast", ["x"]), "attribute 'to' is missing; expected one of type int"),
        (lambda: read("Conv", ["x"]), "1 inputs; expected 2 or more, up to 3"),
        (lambda: read("Relu", ["x", "x"]), "2 inputs; expected 1"),
        (lambda: read("Conv", ["", "x"]), r"input 0 \(X\) is missing, which is required"),
        (lambda: read("ConvGrad", ["x"] * 3, domain=MS, groups=2),
         "com.microsoft::ConvGrad 'n' .*unknown attribute 'groups' of type int; nearest: 'group'"),
        (lambda: read("ConvGrad", ["x"] * 3, domain=MS, group=2.0), "'group' of type float; expec"),
        (lambda: read("MatMulNBits", ["x"] * 3, domain=MS, N=4), "'K' is missing; expected one of"),
        (lambda: read("RandomMask", ["x"], domain="engine"), "'ratio' is missing"),
        (lambda: read("LSTMTraining", ["x"] * 3, domain="engine", clip="x"),
         "attribute 'clip' of type string; expected type float"),
    ],
)  # fmt: skip
def test_what_schemas_and_declarations_refuse(call: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        call()


def test_an_attribute_twice_or_by_reference() -> None:
    node = helper.make_node("Softmax", ["x"], ["y"], name="n", axis=1)
    node.attribute.append(node.attribute[0])
    with pytest.raises(ModelError, match="attribute 'axis' is given twice; expected it once"):
        refuse(node)
    del node.attribute[:]
    node.attribute.add(name="axis", type=AttributeProto.INT, ref_attr_name="outer")
    with pytest.raises(ModelError, match="attribute 'axis' refers to 'outer' of a function"):
        refuse(node)


def test_nodes_that_make_nothing_and_operators_of_the_planner() -> None:
    with pytest.raises(ModelError, match="the node has no output; expected at least one"):
        refuse(helper.make_node("PassThrough", ["x"], [], domain=MS), MS)
    with pytest.raises(UnsupportedOpError, match=r"engine::Map 'n' .*only the planner makes"):
        read("Map", ["x"], domain="engine", formulas=["exp(i0)"])


def test_every_declaration_tells_the_types_of_its_attributes() -> None:
    assert all(isinstance(op.attributes(), dict) for op in list_ops().values())
    with pytest.raises(TypeError, match=r"attribute a=\(\): give its type in `takes`"):
        Op(name="Mine", infer=same_as(0), attrs={"a": ()}).attributes()
    assert Op(name="Mine", infer=same_as(0), attrs={"a": ()}, takes={"a": "ints"}).attributes()


# --- what is our defect


def crash(site: Any) -> tuple[TensorType, ...]:
    raise KeyError("axis")


@pytest.mark.parametrize("domain", ["", "my.ops"])
def test_a_crash_of_a_rule_is_a_defect_of_who_wrote_it(
    domain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = Op(name="Mine", domain=domain, infer=crash, is_view=True)
    monkeypatch.setitem(list_ops(), (domain, "Mine"), op)
    node = Node("Mine", ("x",), ("y",), {"k": 3}, domain, "n")
    graph = Graph("g", {"x": TensorType("f32", (2, 3))}, ["y"], {}, [node], {"": 17})
    with pytest.raises(InternalError, match="the shape rule stopped with KeyError") as caught:
        infer(graph)
    text = str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "Mine 'n' (opset" in text
    assert "f32[2,3]" in text
    if domain:
        assert "a defect of the operator my.ops::Mine, registered from 'tests.graphs.test_" in text
        assert "edgegrad version" not in text
    else:
        assert "a defect of edgegrad, not of your model or data: report it" in text
        assert "`edgegrad version` and this line:\n  y = Mine(x) k=3  # n" in text


def test_errors_of_the_engine_and_want_of_memory_are_no_defects() -> None:
    with pytest.raises(ModelError, match=r"^said$"), defects("a rule", "here"):
        raise ModelError("said")
    text = "here: a rule needs more memory than is available"
    with pytest.raises(OutOfMemoryError, match=text), defects("a rule", "here"):
        raise MemoryError


def test_an_attribute_of_unknown_type_cannot_be_registered() -> None:
    op = Op(name="Mine", domain="my.ops", infer=same_as(0), is_view=True, attrs={"k": np.zeros(2)})
    with pytest.raises(EngineError, match=r"my\.ops::Mine: attribute k=.*give its type in `takes`"):
        register(op)
    unregister(op)
    assert ("my.ops", "Mine") not in list_ops()
