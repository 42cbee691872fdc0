"""The table of what can be trained: statuses and reasons, the command, exit status."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import onnx
import pytest
from onnx import parser

import engine
from engine.errors import EngineError
from engine.graphs.offline import support, untrained
from engine.kernels.ops.registry import list_ops as declared
from engine.tools import cli

HEAD = '<ir_version: 8, opset_import: ["" : 18, "mine" : 1]>\n'
FINE = """m (float[batch, 3, 32, 32] x, float[8, 3, 3, 3] w, int64[other] labels) => (float loss) {
    [conv] a = Conv <pads = [1, 1, 1, 1]> (x, w)
    [shape] s = Shape(a)
    [floor] f = Floor(a)
    [mean] m = ReduceMean <keepdims = 0> (a)
    [sum] t = Add(f, m)
    [flat] g = Flatten(t)
    [best] k = ArgMax <axis = 1, keepdims = 0> (g)
    [loss] loss = SoftmaxCrossEntropyLoss(g, labels)
}"""
POOR = """m (float[n, 4, 6] x, bool c, float[24] b) => (float[n, 24] y) {
    [relu] r = Relu(x)
    [max] p, i = MaxPool <kernel_shape = [2], strides = [2]> (r)
    [odd] u = mine.Odd(p)
    [behind] v = Neg(u)
    [flat] h = Flatten(r)
    [hard] d = Tanh(h)
    [add] z = Add(d, b)
    [choice] y = If (c) <then_branch = t () => (float[n, 24] o) { o = mine.Odd(z) },
                         else_branch = e () => (float[n, 24] o) { o = Neg(z) }>
}"""


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(HEAD + text)


def rows(text: str) -> dict[str, tuple[str, str]]:
    return {row.node: (row.status, row.reason) for row in engine.supported(model(text))}


def test_a_model_that_trains() -> None:
    assert rows(FINE) == {
        "conv": ("trainable", ""),
        "shape": ("needs no gradient", ""),
        "floor": ("needs no gradient", "its gradient is zero everywhere"),
        "mean": ("trainable", ""),
        "sum": ("trainable", ""),
        "flat": ("trainable", ""),
        "best": ("needs no gradient", ""),
        "loss": ("trainable", ""),
    }


def test_long_names_lose_their_middle_in_the_table() -> None:
    """tf2onnx joins the names of all operations that it has merged."""
    name = "model/relu/Relu;" * 30 + "end"
    proto = model(FINE)
    proto.graph.node[0].name = name
    table = engine.supported(proto)
    assert table[0].node == name
    row = str(table).splitlines()[1].split()[0]
    assert len(row) <= 60
    assert row.startswith("model/relu/Relu;")
    assert row.endswith(";end")


@pytest.fixture
def _no_gradient_of_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(declared(), ("", "Tanh"), replace(declared()["", "Tanh"], grad=None))


@pytest.mark.usefixtures("_no_gradient_of_tanh")
def test_every_node_is_tried_whatever_the_others_are() -> None:
    actual_rows = rows(POOR)
    assert (
        actual_rows["relu"]
        == actual_rows["max"]
        == actual_rows["flat"]
        == actual_rows["add"]
        == ("trainable", "")
    )
    assert actual_rows["hard"] == ("forward only", "no gradient")
    assert actual_rows["odd"][0] == "unsupported"
    assert actual_rows["odd"][1].startswith("is not supported")
    assert actual_rows["behind"] == ("unsupported", "the type of 'u' is not known")
    assert actual_rows["choice"][0] == "unsupported"
    assert "Odd" in actual_rows["choice"][1]


def make_layers(count: int) -> str:
    """Return a model of equal layers, each with a constant and sizes of its own."""
    lines = ["m (float[6, 16] x0, float[16, 16] w) => (float[6, 16] y) {"]
    for k in range(count):
        lines.append(f"s{k} = Shape(x{k})  l{k} = Constant <value_ints = [0, 1]> ()")
        lines.append(f"t{k} = Gather(s{k}, l{k})  a{k} = MatMul(x{k}, w)")
        lines.append(f"b{k} = Reshape(a{k}, t{k})  x{k + 1} = Tanh(b{k})")
    return "\n".join([*lines, f"y = Identity(x{count})", "}"])


def test_layers_that_repeat_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deep models cost a look at each node more, not inferences and plans."""
    calls = Counter[str]()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        return run

    for name in ("infer", "make_plan"):
        monkeypatch.setattr(support, name, counted(name, getattr(support, name)))
    counts = []
    for layers in (3, 30):
        calls.clear()
        table = engine.supported(model(make_layers(layers)))
        assert len(table) == 6 * layers + 1
        assert table.count(support.TRAINABLE) == 3 * layers + 1
        counts.append(dict(calls))
    assert counts[0] == counts[1]


def test_long_constants_are_told_apart_by_all_of_their_elements() -> None:
    """Two lists of 2,000 sizes differ in the middle alone, which their texts leave out."""
    sizes = [[1] * 2000, [1] * 2000]
    sizes[0][1000], sizes[1][1000] = 4, 6
    text = "m (float[4, 3] x, float[6, 3] z) => (float[4, 3] y, float[6, 3] v) {"
    for k, (name, result) in enumerate([("x", "y"), ("z", "v")]):
        text += f"""
        c{k} = Constant <value_ints = {sizes[k]}> ()  m{k} = ReduceMax(c{k})
        t{k} = Constant <value_ints = [3]> ()  s{k} = Concat <axis = 0> (m{k}, t{k})
        {result} = Reshape({name}, s{k})"""
    table = engine.supported(model(text + "}"))
    assert [row.status for row in table].count(support.TRAINABLE) == 2
    assert table.count(support.UNSUPPORTED) == 0


def test_a_node_that_cannot_be_read_is_refused_as_when_it_is_loaded() -> None:
    with pytest.raises(EngineError, match="element type string"):
        rows("m (string[2] x) => (string[2] y) { y = Identity(x) }")


@pytest.mark.usefixtures("_no_gradient_of_tanh")
@pytest.mark.parametrize(
    ("text", "status"),
    [
        (FINE, 0),
        ("m (float[2, 3] x) => (float[2, 3] y) { h = Tanh(x) y = Neg(h) }", 3),
        (POOR, 4),
    ],
)
def test_the_command(
    text: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(text), path)
    table = engine.supported(path)
    assert cli.invoke(["ops", str(path)]) == status
    assert capsys.readouterr().out == f"{path}\n{table}\n"
    assert cli.invoke(["ops", str(path), "--json"]) == status
    (value,) = json.loads(capsys.readouterr().out).values()
    assert [(r["node"], r["status"]) for r in value] == [(r.node, r.status) for r in table]


def test_what_does_not_train_is_told_with_what_to_do() -> None:
    """Of a model by node, of all operators by reason; nothing that trains is among them."""
    told = str(engine.supported(model(POOR)))
    assert "what to do about odd" in told
    assert "custom-ops" in told
    untrained_names = {name for _, names, _ in untrained.list_rows() for name in names.split()}
    assert {"Floor", "MatMulInteger", "ArgMax"} <= untrained_names
    for (domain, name), op in declared().items():
        title = f"{domain}::{name}" if domain else name
        assert not (op.differentiable and title in untrained_names)
        assert op.optimizer is None or title not in untrained_names


def test_the_command_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["ops"]) == 0
    assert "MatMulInteger" in capsys.readouterr().out
    assert cli.invoke(["ops", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(row["do"] and row["operators"] for row in rows)
    with pytest.raises(click.UsageError, match="--out and --within read models"):
        cli.invoke(["ops", "--out", "-"])
