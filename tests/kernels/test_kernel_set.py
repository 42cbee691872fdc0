"""Kernel sets: what closed plans ask for is what their ops are known to need."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from engine.base.element_types import ELEMENT_TYPES
from engine.errors import ModelError, UnsupportedOpError
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.passes.infer import infer
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.kernels.ops.registry import list_templates
from engine.kernels.vocabulary import expression
from engine.kernels.vocabulary.expression import FUNCTIONS
from engine.kernels.vocabulary.instructions import DOMAINS, Primitive, assign_codes, encode
from engine.kernels.vocabulary.kernel import OPEN
from engine.kernels.vocabulary.op import TensorType
from engine.kernels.vocabulary.terms import Formulas
from engine.plan.plan import KernelSpec, Plan
from engine.tools.dev.case_graphs import OneNode, backward_of, list_cases
from engine.tools.dev.cases.case import Case
from engine.tools.trimmed.kernel_set import find_kernel_set, list_types
from engine.tools.trimmed.opset import OpSet, of_graphs, parse
from tests.support.harness import run

NAMES = {t.name: t.cpp for t in ELEMENT_TYPES.values()}
# Ops that compute with integers in doubles: their config has to allow them.
WIDER = {"Pow": ("double",), "Shrink": ("double",)}
# Kernels with activations that a model chooses in them: a library has them by --models.
OF_MODELS = {"rnn", "rnn_grad", "lstm", "lstm_grad", "gru", "gru_grad_after", "gru_grad_before"}
# ChannelSums is internal: closed plans have it in gradients of batch normalisation only.
DECLARED = [case for case in list_cases() if case.op != "ChannelSums"]


def closed(graph: Graph, threads: int = 2) -> Plan:
    return make_plan(graph.copy(), {}, target=detect_host(), threads=threads, closed=True)


@functools.cache
def known(config: str) -> frozenset[KernelSpec]:
    return frozenset(find_kernel_set(parse(config)))


def config_of(graph: Graph, plan: Plan, more: tuple[str, ...] = ()) -> str:
    """The config of a graph's ops and of the element types of its plan."""
    config = of_graphs([graph])
    kinds = {NAMES[b.dtype] for b in plan.buffers if b.dtype in NAMES} | set(more)
    config.types = tuple(sorted(kinds))
    return str(config)


@pytest.mark.parametrize("case", DECLARED, ids=lambda c: c.name or c.op)
def test_closed_plans_need_what_the_ops_are_known_to_need(case: Case) -> None:
    one = OneNode(case)
    for graph in [one.graph, *([backward_of(one)[0]] if case.grad else [])]:
        plan = closed(graph)
        have = known(config_of(graph, plan, WIDER.get(case.op, ())))
        rest = set(plan.specs) - have
        assert all(k.template in OF_MODELS for k in rest), rest


@pytest.mark.parametrize("activation", ["Relu", "HardSwish", "Tanh", "Clip"])
@pytest.mark.parametrize(
    ("after", "shape"), [("Conv", (4, 3, 6, 5)), ("MatMul", (16, 24))], ids=["images", "vectors"]
)
def test_a_norm_that_trains_before_an_activation_needs_no_kernel_of_its_own(
    after: str, shape: tuple[int, ...], activation: str
) -> None:
    """The gradient of the activation stays outside the sums of the gradient of the norm."""
    channels = ("scale", "shift", "mean", "var")
    weight = (5, 3, 1, 1) if after == "Conv" else (24, 7)
    types = {"x": TensorType("f32", shape), "w": TensorType("f32", weight)}
    types |= {name: TensorType("f32", shape[1:2]) for name in channels}
    limits = {"low": np.array(0, np.float32), "high": np.array(6, np.float32)}
    bounds = tuple(limits) if activation == "Clip" else ()
    nodes = [
        Node("BatchNormalization", ("x", *channels), ("y", "m", "v"), {"training_mode": 1}),
        Node(activation, ("y", *bounds), ("z",)),
        Node(after, ("z", "w"), ("p",)),
        Node("ReduceSum", ("p",), ("loss",), {"keepdims": 0}),
    ]
    graph = Graph("g", types, ["loss"], limits if bounds else {}, nodes, {"": 17})
    wrt = ["x", "scale", "shift", "w"]
    names = differentiate(graph, "loss", wrt, infer(graph.copy()).types)
    graph.outputs = [names[n] for n in wrt]
    plan = closed(graph)
    assert any(k.template.startswith("channel_sums_") for k in plan.specs)
    assert set(plan.specs) <= known(config_of(graph, plan))


TELLING = ("Gelu", "Where", "Cast", "ReduceL2", "LeakyReluGrad", "ReduceLogSumExp", "Dropout")


@pytest.mark.parametrize(
    "case", [c for c in list_cases() if c.op in TELLING], ids=lambda c: c.name or c.op
)
def test_closed_plans_compute_the_same(case: Case) -> None:
    one = OneNode(case)
    expected = run(one.graph.copy(), one.inputs, threads=2)
    for name, items in run(one.graph.copy(), one.inputs, threads=2, closed=True).items():
        np.testing.assert_allclose(items, expected[name], rtol=1e-4, atol=1e-5)


def test_every_function_of_floats_is_an_instruction() -> None:
    have = {
        p.function for p in assign_codes("real") if isinstance(p, Primitive) and "f32" in p.kinds
    }
    others = {"and_", "or_", "xor", "not_", "philox0", "philox1", "bitand", "bitor", "bitxor",
              "bitnot", "shl", "shr"}  # fmt: skip
    assert set(FUNCTIONS) - others <= have
    whole = {p.function for p in assign_codes("whole") if isinstance(p, Primitive)}
    assert others <= whole
    assert all(set(assign_codes("real")) <= set(assign_codes(domain)) for domain in DOMAINS)


def test_registers_are_given_back() -> None:
    chain = ("in", 0)
    for _ in range(20):
        chain = ("add", ("exp", chain), ("in", 1))  # type: ignore[assignment]  # it grows
    encoded = encode(Formulas.of(chain), [("f32", 1), ("f32", 0)], ["f32"])
    assert encoded is not None
    domain, words, registers = encoded
    assert (domain, registers) == ("real", 2)
    assert len(words) == 2 + 40 + 1  # instructions
    half = encode(Formulas.of(expression.parse("x + x", ("x",))), [("f16", 1)], ["f16"])
    assert half is not None
    assert len(half[1]) == 5  # load, to f32, add, to f16, store


def test_parameters_of_kernels_are_flags_or_declared() -> None:
    for template in list_templates().values():
        for name, given in template.ranges.items():
            assert name in (*template.build.__annotations__, "params"), template.name
            assert given == OPEN or len(given) > 0


def test_types_of_configs() -> None:
    assert list_types(OpSet()) == ("f32", "i64", "b1")
    assert list_types(parse("!globally_allowed_types;double,uint8_t\n")) == (
        "f64",
        "i64",
        "u8",
        "b1",
    )
    one = parse('ai.onnx;13;Add{"inputs":{"0":["float","int32_t"]}}\n')
    assert list_types(one) == ("f32", "i64", "i32", "b1")
    with pytest.raises(ModelError, match="'flaot' of the config; nearest: 'float'"):
        list_types(OpSet(types=("flaot",)))
    with pytest.raises(UnsupportedOpError, match="'Gem' of the config"):
        find_kernel_set(parse("ai.onnx;13;Gem\n"))


def test_a_set_has_no_kernel_of_other_ops() -> None:
    names = {spec.template for spec in find_kernel_set(parse("ai.onnx;13;Gemm,Relu\n"))}
    assert {"gemm", "formula"} <= names
    assert not names & {"conv", "pool_max", "gather", "softmax_rows", "map"}


def test_all_ops_are_all_kernels() -> None:
    every = find_kernel_set(parse("!no_ops_specified_means_all_ops_are_required\n"))
    runtime = {"launch", "worker", "map", "peak", "stream", "timed"}
    planned = {"index_chains", "gather_grad_rows"}  # plans of a library keep gradients whole
    in_halves = {"gemm_mixed"}  # plans of a library store nothing in 16 bits
    assert {s.template for s in every} >= set(list_templates()) - runtime - planned - in_halves


def test_the_shape_of_an_operand_is_no_part_of_a_kernel() -> None:
    specs = []
    for shape in ((3, 5), (7, 300), (2, 3, 4)):
        types = {"x": TensorType("f32", shape), "y": TensorType("f32", shape[-1:])}
        graph = Graph("g", types, ["z"], {}, [Node("Add", ("x", "y"), ("z",))], {"": 17})
        specs.append(closed(graph).specs)
    assert specs[0] == specs[1] == specs[2]
