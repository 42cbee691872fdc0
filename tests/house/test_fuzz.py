"""Hostile input: a share of what `make fuzz` runs, and what it once found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from engine.api import CheckpointState, Module, Optimizer
from engine.errors import EngineError, ModelError, ShapeError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import MS
from engine.tools.dev.case_graphs import OneNode
from engine.tools.dev.cases.case import Case, f32
from tests.fuzz.artifacts import sets
from tests.support.places import ROOT


def test_mutations_of_all_kinds_are_used_or_refused(tmp_path: Path) -> None:
    """`make fuzz N=...` runs more; it prints how to repeat what it finds."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "750", "--jobs", "1", "--folder", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 defects" in done.stdout


# --- what is checked when a model is read


def test_every_op_that_onnx_has_not_tells_its_operands() -> None:
    schemas = {schema.name for schema in onnx.defs.get_all_schemas()}
    of_onnx = {("", name) for name in schemas}
    missing = [
        op.title
        for key, op in list_ops().items()
        if key not in of_onnx and not op.internal and (op.inputs is None or op.outputs is None)
    ]
    assert not missing


def model(text: str, opset: int = 17) -> onnx.ModelProto:
    head = f'<ir_version: 8, opset_import: ["": {opset}, "{MS}": 1]>\n'
    return parser.parse_model(head + text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("g (float[3] x) => (float[3] y) { y = com.microsoft.Scale(x) }",
         r"com.microsoft::Scale '' \(opset 1\): 1 inputs; expected 2"),
        ("g (float[3] x) => (float[3] y) { y = com.microsoft.ReluGrad(x, x, x) }",
         "3 inputs; expected 2"),
        ("g (float[3] x, bool[1] r) => (bool[1] y) "
         "{ y = com.microsoft.InPlaceAccumulatorV2(x, x, r, r) }",
         "4 inputs; expected 2 or more, up to 3"),
        ("g (float[3] x) => (float[3] y) { y = com.microsoft.ReluGrad(, x) }",
         r"input 0 \(required\) is missing"),
        ("g (float[3] x, bool c) => (float[3] y) { y = If(c) <else_branch = b () => (float[3] o) "
         "{ o = Abs(x) }> }", "'then_branch' is missing; expected one of type graph"),
        ("g (float[3] x, bool c) => (float[3] y) { y = If(c) <then_branch = a (float q) => "
         "(float[3] o) { o = Neg(x) }, else_branch = b () => (float[3] o) { o = Abs(x) }> }",
         "then_branch: the body has 1 inputs; expected 0"),
        ("g (float[3] x, int64 n, bool c) => (float[3] y) { y = Loop(n, c, x) <body = b "
         "(int64 i, bool k) => (bool o) { o = Identity(k) }> }",
         "body: the body has 2 inputs; expected 3"),
        ("g (float[3] x, int64 n, bool c) => (float[3] y) { y = Loop(n, c, x) }",
         "'body' is missing; expected one of type graph"),
        ("g (float[3] x) => (float[3] y) { y = Scan(x) <num_scan_inputs = 2, body = b (float s) => "
         "(float o) { o = Neg(s) }> }", "2 of 1 inputs are scanned; expected 1 to 1"),
        ("g (bool[3] x) => (bool[3] y) { y = Neg(x) }", "neg of b1"),
        ("g (float[3] x, float[1,3] s) => (float[3] y) { y = com.microsoft.Scale(x, s) }",
         r"the scale is f32\[1,3\]; expected one that"),
        ("g (float[3] x) => (float[3] y) { y = Col2Im(x) }", "1 inputs; expected 3"),
        ("g (float[1,2,4] x) => (y) { y = GlobalLpPool <p = 0> (x) }", "p is 0; supported: 1 or m"),
        ("g (float[2,4,8] x, float[9,4] c, int64[2,4] p) => (y) { y = RotaryEmbedding <num_heads = "
         "1, rotary_embedding_dim = -8> (x, c, c, p) }", "rotary_embedding_dim is -8, but heads h"),
    ],
)  # fmt: skip
def test_nodes_that_cannot_be_are_refused(text: str, words: str) -> None:
    with pytest.raises((ModelError, ShapeError), match=words):
        make_plan(onnx_io.load(model(text)), {}, target=detect_host(), threads=1)


def test_a_malformed_model_of_an_old_opset_does_not_reach_the_converter() -> None:
    """The converter of onnx reads the attribute as what it should be, and crashes."""
    bad = model("g (float[2,3] x) => (float[2] y) { y = ReduceSum <axes = 0.0> (x) }", 9)
    with pytest.raises(ModelError, match="'axes' of type float; expected type ints"):
        onnx_io.load(bad)


@pytest.mark.parametrize("rank", [64, 65])
def test_ranks_are_those_that_arrays_can_have(rank: int) -> None:
    ones, made = [1] * rank, onnx.ModelProto()
    made.CopyFrom(model("g (float[1] x) => (float[1] y) { y = Neg(x) }"))
    values: list[Any] = [made.graph.input[0], made.graph.output[0]]
    for value in values:
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, ones))
    grown = model("g (float[1] x) => (y) { y = Reshape(x, s) }")
    shape = numpy_helper.from_array(np.array(ones), "s")
    grown.graph.initializer.append(shape)
    constant = model("g (float[1] x) => (y) { y = Add(x, w) }")
    constant.graph.initializer.add(
        name="w", data_type=TensorProto.FLOAT, dims=ones, raw_data=bytes(4)
    )
    for each in (made, grown, constant):
        if rank > 64:
            with pytest.raises(EngineError, match="65 dimensions; supported: up to 64"):
                make_plan(onnx_io.load(each), {}, target=detect_host(), threads=1)
        else:
            make_plan(onnx_io.load(each), {}, target=detect_host(), threads=1)


def test_names_are_texts_and_not_empty() -> None:
    bad = model("g (float[3] x) => (float[3] y) { y = Neg(x) }")
    data = bad.SerializeToString()
    with pytest.raises(ModelError, match="is not UTF-8"):
        onnx_io.load(data.replace(b"Neg", b"N\xffg"))
    bad.graph.output.add(name="")
    with pytest.raises(ModelError, match="an output of 'g' has no name"):
        onnx_io.load(bad)


# --- optimizer models


def changed(change: Any) -> bytes:
    """The optimizer model of AdamW with clipping and one thing changed."""
    made = onnx.load_from_string(sets()[0].optimizer)
    change({node.op_type: node for node in made.graph.node})
    data: bytes = made.SerializeToString()
    return data


def attribute(name: str, value: Any) -> Any:
    def change(nodes: dict[str, Any]) -> None:
        (node,) = (n for op, n in nodes.items() if op == "AdamWOptimizer")
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])

    return change


def read(op: str, at: int, name: str) -> Any:
    def change(nodes: dict[str, Any]) -> None:
        ins = nodes[op].input
        ins.extend([""] * (at + 1 - len(ins)))
        ins[at] = name

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (attribute("correct_bias", 1.0), "'correct_bias' of type float; expected type int"),
        (attribute("correct_bias", "x"), "'correct_bias' of type string; expected type int"),
        (attribute("weight_decay", float("nan")), "weight_decay is nan; supported: finite"),
        (attribute("adam_mode", -1), "adam_mode is -1 and correct_bias 1; supported: adam_mode 1"),
        (attribute("alpha", 1.5), "alpha is 1.5, beta is .*from 0 to below 1"),
        (read("AdamWOptimizer", 6, "learning_rate"), r"input 6 is f32\[1\]; expected b1\[1\]"),
        (read("InplaceClipGradNorm", 0, "params"), r"reads \['params'\]; expected only"),
    ],
)
def test_optimizer_models_are_refused_when_they_are_opened(change: Any, words: str) -> None:
    given = sets()[0]
    state = CheckpointState.load_checkpoint(given.checkpoint)
    module = Module(given.training, state, given.eval, threads=1)
    with pytest.raises(EngineError, match=words):
        Optimizer(changed(change), module)


def test_scales_of_no_elements_are_no_reason_to_stop() -> None:
    old = model("g (float[1,2,4,3] x) => (y) { y = Upsample <scales: floats = []> (x) }", 7)
    with pytest.raises(EngineError):
        make_plan(onnx_io.load(old), {}, target=detect_host(), threads=1)


@pytest.mark.parametrize("group", [0, -1])
@pytest.mark.parametrize(
    ("op", "name"), [("Conv", "group"), ("ConvTranspose", "group"), ("DeformConv", "offset_group")]
)
def test_groups_of_nothing_are_refused(op: str, name: str, group: int) -> None:
    ins = f32(1, 4, 5, 5), f32(4, 4, 3, 3), f32(1, 18, 3, 3)
    one = OneNode(Case(op, ins[: 3 if op == "DeformConv" else 2], {name: group}, opset=19))
    with pytest.raises(ShapeError, match="group"):
        make_plan(one.graph, {}, target=detect_host(), threads=1)


def test_an_empty_constant_of_endless_sizes_is_refused() -> None:
    made = {"one": np.ones(1, np.float32), "to": np.array([1 << 40, 1 << 40, 0])}
    graph = Graph("g", {}, ["y"], made, [Node("Expand", ("one", "to"), ("y",), {})], {"": 17})
    with pytest.raises(ShapeError, match="the output would have the shape"):
        make_plan(graph, {}, target=detect_host(), threads=1)
