"""Op set configs: the grammar reads and writes, lines add up, faults have line numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import FileError, ModelError, UnsupportedOpError
from engine.graphs.io import onnx_io
from engine.tools import cli
from engine.tools.trimmed.opset import OpSet, check, of_graphs, parse
from tests.support.places import GOLDENS

SAMPLE = """\
# as onnxruntime's script writes it

ai.onnx;13;Gemm,SoftmaxCrossEntropyLoss
com.microsoft;1;FusedGemm,InPlaceAccumulatorV2
  ai.onnx ; 13,14 ; Relu
ai.onnx;13;Cast{"inputs":{"0":["float"]},"outputs":{"0":["int64_t"]}},Add
"""


def test_lines_add_up() -> None:
    parsed = parse(SAMPLE)
    assert set(parsed.ops[("ai.onnx", 13)]) == {
        "Gemm", "SoftmaxCrossEntropyLoss", "Relu", "Cast", "Add",
    }  # fmt: skip
    assert set(parsed.ops[("ai.onnx", 14)]) == {"Relu"}
    assert parsed.ops[("ai.onnx", 13)]["Cast"] == {
        "inputs": {"0": ["float"]}, "outputs": {"0": ["int64_t"]},
    }  # fmt: skip
    assert parsed.has("", "Relu")
    assert parsed.has("com.microsoft", "FusedGemm")
    assert not parsed.has("", "FusedGemm")


def test_what_is_written_reads_back() -> None:
    parsed = parse(SAMPLE)
    assert parse(str(parsed)) == parsed
    assert str(parse(str(parsed))) == str(parsed)


def test_types_of_an_op_add_up_and_none_means_all() -> None:
    parsed = parse('a;1;X{"inputs":{"0":["float"]}}\na;1;X{"inputs":{"0":["double"],"1":["bool"]}}')
    assert parsed.ops[("a", 1)]["X"] == {"inputs": {"0": ["float", "double"], "1": ["bool"]}}
    assert parse('a;1;X{"inputs":{"0":["float"]}}\na;1;X').ops[("a", 1)]["X"] is None
    assert parse('a;1;X\na;1;X{"inputs":{"0":["float"]}}').ops[("a", 1)]["X"] is None


def test_directives() -> None:
    parsed = parse("!globally_allowed_types;float,int64_t\nai.onnx;1;Add")
    assert parsed.types == ("float", "int64_t")
    assert parse(str(parsed)) == parsed
    every = parse("!no_ops_specified_means_all_ops_are_required")
    assert every.has("", "Anything")
    assert not parse("").has("", "Anything")
    assert not parse("!no_ops_specified_means_all_ops_are_required\na;1;X").has("", "Anything")
    assert parse(str(every)) == every


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Gemm", "expected `domain;opset"),
        (";13;Gemm", "expected `domain;opset"),
        ("ai.onnx;x;Gemm", "whole numbers"),
        ("ai.onnx;0;Gemm", "at least 1"),
        ("ai.onnx;13;", "not the name of an op"),
        ("ai.onnx;13;Gemm,,Add", "not the name of an op"),
        ('ai.onnx;13;Gemm{"inputs":', "types of Gemm"),
        ('ai.onnx;13;Gemm{"weights":{}}', "expected inputs, outputs or custom"),
        ('ai.onnx;13;Gemm{"inputs":{}}Add', "after the types of Gemm"),
        ("!unknown", "expected `"),
        ("!globally_allowed_types;", "expected `"),
    ],
)
def test_a_fault_names_its_line(line: str, words: str) -> None:
    with pytest.raises(ModelError, match=rf"^ops\.config:3: .*{words}"):
        parse(f"# one\nai.onnx;13;Add\n{line}\n", "ops.config")


def test_two_ways_to_restrict_types_exclude_each_other() -> None:
    with pytest.raises(ModelError, match="not both"):
        parse('!globally_allowed_types;float\na;1;X{"inputs":{"0":["float"]}}')


def test_the_ops_of_a_training_step() -> None:
    files = (GOLDENS / "mlp").glob("*.onnx")
    graphs = of_graphs(onnx_io.load(path) for path in files)
    assert {"ai.onnx::Gemm", "com.microsoft::AdamWOptimizer",
            "com.microsoft::InPlaceAccumulatorV2"} <= set(graphs.list_names())  # fmt: skip
    assert parse(str(graphs)) == graphs


def test_a_model_outside_the_set_is_refused_by_op_and_node() -> None:
    graph = onnx_io.load(GOLDENS / "mlp" / "eval_model.onnx")
    allowed = OpSet()
    for node in graph.nodes:
        if node.op != "Gemm":
            allowed.add(node.domain, 13, node.op)
    with pytest.raises(UnsupportedOpError, match=r"ai\.onnx::Gemm \(node "):
        check(graph, allowed, "eval_model.onnx")
    check(graph, of_graphs([graph]), "eval_model.onnx")


def test_the_command_writes_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "required_operators.config"
    assert cli.invoke(["ops", str(GOLDENS / "mlp"), "-o", str(out)]) == 0
    assert cli.invoke(["ops", str(GOLDENS / "mlp" / "eval_model.onnx"), "--within", str(out)]) == 0
    with pytest.raises(UnsupportedOpError, match="Conv"):
        cli.invoke(["ops", str(GOLDENS / "cnn" / "training_model.onnx"), "--within", str(out)])
    assert cli.invoke(["ops", str(GOLDENS / "mlp"), "-o", "-"]) == 0
    assert capsys.readouterr().out == out.read_text()
    with pytest.raises(FileError, match="no such"):
        cli.invoke(["ops", str(tmp_path / "none.onnx")])
