"""`edgegrad plan`: plans printed, compared, checked and written."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.errors import InputError
from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import TensorType
from engine.tools import cli
from engine.tools.trimmed.plans import bind_shapes
from engine.training import plan_cache
from tests.support.places import GOLDENS

MLP = GOLDENS / "mlp"
FORWARD = str(MLP / "forward.onnx")


def said(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> str:
    """Return the output of `edgegrad plan`."""
    assert cli.main(["plan", *map(str, words)]) == status
    return capsys.readouterr().out


def test_a_model_by_its_batch_size(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, FORWARD, "--batch", "8")
    assert text == said(capsys, FORWARD, "--shape", "input=8,64")
    assert re.match(r"plan \S+  \S+  threads \d+  steps \d+ ", text)
    assert text.count("\nplan ") == 0
    assert said(capsys, FORWARD, "--batch", "8,4").count("arena/bound") == 2


def test_artifacts_have_a_plan_for_each_phase(capsys: pytest.CaptureFixture[str]) -> None:
    words = (MLP, "--batch", "4", "--threads", "1")
    text = said(capsys, *words)
    names = re.findall(r"^plan (\w+)", text, re.MULTILINE)
    calls = ["training_model", "eval_model", "inference_model", "optimizer_model"]
    assert names == ["training_step", *calls]
    actual_data = json.loads(said(capsys, *words, "--json"))
    calls = ["train, batch 4", "eval, batch 4", "infer, batch 4", "optimizer"]
    assert list(actual_data) == ["step, batch 4", *calls]
    train = actual_data["train, batch 4"]
    assert train["threads"] == 1
    assert {b["region"] for b in train["buffers"]} >= {"param", "grad", "work"}
    assert any("m" in step["words"] for step in train["steps"])
    assert len(train["steps"]) == text.split("\nplan ")[1].count("; ")
    step = actual_data["step, batch 4"]
    assert not any(b["region"] == "grad" for b in step["buffers"])
    alone = json.loads(said(capsys, *words, "--budget", "1MB", "--json"))
    assert alone == {"step, batch 4": step}
    assert cli.main(["plan", *map(str, words), "--budget", "10kB"]) == 1
    assert re.search(
        "smallest possible budget is .*train only the last layer", capsys.readouterr().err
    )


def test_steps_of_ranks_and_their_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (MLP, "--batch", "4", "--threads", "1", "--ranks", "4")
    text = said(capsys, *words, "--words")
    for line in (
        r"fwd agree_f32\(.*# \S*JoinLoss",
        r"bwd all_reduce_f32_start\(.*# \S*_grad/AllReduceStart",
        r"all_reduce_f32_wait: n=\d+ ordinal=3",
    ):
        assert re.search(line, text), line
    assert text.count("\nplan ") == 0
    page = tmp_path / "plan.html"
    said(capsys, *words, "--picture", page)
    assert "Collective steps: 3, sums of " in page.read_text("utf-8")
    assert "all_reduce" in said(capsys, *words, "--diff", GOLDENS / "regression_sgd", status=3)
    for others, status, why in (
        ((FORWARD, "--batch", "4", "--ranks", "4"), 1, "ranks share a training step, which takes"),
        ((*words, "-o", tmp_path / "mlp.plan"), 2, "a library trains without other ranks"),
    ):
        assert cli.main(["plan", *map(str, others)]) == status
        assert why in capsys.readouterr().err


def test_pictures_and_words(capsys: pytest.CaptureFixture[str]) -> None:
    plain = said(capsys, FORWARD, "--batch", "8")
    more = said(capsys, FORWARD, "--batch", "8", "--words", "--arena")
    assert more.startswith(plain)
    assert re.search(r"^ +0 gemm_\w+: .*\bm=8 n=48 k=64\b", more, re.MULTILINE)
    assert re.search(r"^ +0 [a-z.]{72} /0/Gemm$", more, re.MULTILINE)


def test_what_is_kept_for_backward(capsys: pytest.CaptureFixture[str]) -> None:
    words = (MLP, "--batch", "4", "--threads", "1")
    text = said(capsys, *words, "--kept")
    _, train, *rest = re.split(r"^(?=plan )", text, flags=re.MULTILINE)[1:]
    title, *rows = train.splitlines()[1:]
    assert re.fullmatch(rf"kept for backward: \d+ B in {len(rows)}", title)
    assert re.search(r"^ +\d+ B  \S+  f32\[4,48\]  /0/Gemm -> .*Gemm_1", train, re.MULTILINE)
    assert all(plan.count("\n") == 1 for plan in rest)  # no other model has a backward pass
    actual_data = json.loads(said(capsys, *words, "--json"))["train, batch 4"]
    assert len(actual_data["kept"]) == len(rows)
    assert all(actual_data["buffers"][k["buffer"]]["region"] == "work" for k in actual_data["kept"])


def test_show_is_its_old_name(capsys: pytest.CaptureFixture[str]) -> None:
    new = said(capsys, FORWARD, "--batch", "8", "--words")
    assert cli.main(["show", FORWARD, "--batch", "8", "--words"]) == 0
    printed = capsys.readouterr()
    assert printed.out == new
    assert printed.err == "edgegrad show is now `edgegrad plan`, with the same options\n"


def test_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(FORWARD, tmp_path / "copy.onnx")
    same = (FORWARD, "--batch", "8", "--diff", tmp_path / "copy.onnx")
    assert said(capsys, *same) == ""
    assert json.loads(said(capsys, *same, "--json")) == {"equal": True, "differences": {}}
    words = (MLP, "--batch", "4", "--diff", GOLDENS / "regression_sgd")
    text = said(capsys, *words, status=3)
    assert f"--- {MLP}: train, batch 4\n+++ {GOLDENS / 'regression_sgd'}: train, batch 4" in text
    actual_data = json.loads(said(capsys, *words, "--json", status=3))
    assert not actual_data["equal"]
    assert "optimizer" in actual_data["differences"]


def test_every_plan_of_artifacts_has_the_precision(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, MLP, "--batch", "4", "--precision", "f16", "--target", "raspberrypi5")
    by_model = {part.split()[0]: part for part in text.split("plan ")[1:]}
    scaled = [name for name, part in by_model.items() if "input #loss_scale[]" in part]
    assert scaled == ["training_step", "training_model"]


def test_files_of_plans_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mlp.plan"
    made = said(capsys, MLP, "--batch", "4,2", "-o", path)
    assert made == f"{path}: {path.stat().st_size:,} bytes\n"
    assert re.match(r"plans for a library  .*  threads 1  plans 7 ", said(capsys, path, "--verify"))
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    assert cli.main(["plan", str(path), "--verify"]) == 1
    assert capsys.readouterr().err == f"edgegrad plan: {path}: damaged, the checksum is wrong\n"


def test_prepared_plans_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("training_model.onnx", "checkpoint"):
        shutil.copy(MLP / name, tmp_path)
    assert cli.main(["prepare", str(tmp_path), "--batch", "2", "--threads", "1"]) == 0
    capsys.readouterr()
    path = tmp_path / plan_cache.PREPARED
    assert "threads 1  training model" in said(capsys, path, "--verify")
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    assert cli.main(["plan", str(path), "--verify"]) == 1
    assert re.search(r"damaged; run `edgegrad prepare .* --batch N`", capsys.readouterr().err)


def test_checking_prints_a_line_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, MLP, "--batch", "4", "--verify").splitlines()
    assert len(lines) == 5
    assert all(line.startswith("plan ") for line in lines)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ([FORWARD, "--shape", "inptu=8,64"], 1, "no input 'inptu'; nearest: 'input'"),
        ([FORWARD, "--batch", "8", "-o", "x"], 2, "-o writes the plans of a folder of artifacts"),
        ([str(MLP), "-o", "x"], 1, "does not fix its number of samples"),
        ([str(MLP), "--batch", "8", "-o", "x", "--arena"], 2, "-o writes plans and prints none"),
        ([str(MLP), "--batch", "8", "--ops", FORWARD], 2, "--ops is for plans that -o writes"),
        ([FORWARD, "--target", "vax"], 1, "unknown target 'vax'"),
        ([FORWARD, "--batch", "eight"], 2, "'eight': expected numbers from 1 to"),
        ([FORWARD, "--shape", "8,64"], 2, "expected NAME=D,D,..."),
        ([FORWARD, "--threads", "0"], 2, "--threads"),
    ],
)
def test_wrong_words(
    words: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", *words, "--json"]) == status
    out, error = capsys.readouterr()
    assert not out
    assert message in " ".join(error.split())


def test_a_size_that_follows_from_the_batch_is_not_asked_for() -> None:
    """The labels of a model that tells each position are as many as all its positions."""
    declared = {"x": ("batch", 16), "labels": ("16*batch",), "weights": ("rows", 2)}
    expected = {"x": (4, 16), "labels": (64,), "weights": (4, 2)}
    graph = Graph("model", {}, [], {}, [], {"": 17})
    assert bind_shapes(declared, 4, {}, "model", graph) == expected
    given = {"x": (4, 16), "weights": (4, 2)}
    assert bind_shapes(declared, None, given, "model", graph) == expected


def test_a_size_is_not_taken_from_weights() -> None:
    """A convolution reads pictures of any size, and weights that are known like its labels."""
    weights, pictures = np.zeros((8, 3, 3, 3), "f4"), TensorType("f32", ("batch", 3, "h", "w"))
    nodes = [Node("Conv", ("x", "k"), ("y",))]
    inputs = {"x": pictures, "labels": TensorType("i64", ("batch",))}
    graph = Graph("model", inputs, ["y"], {"k": weights}, nodes, {"": 17})
    declared = {name: t.shape for name, t in inputs.items()}
    with pytest.raises(InputError, match=r"give --shape x=4,3,N,N"):
        bind_shapes(declared, 4, {}, "model", graph)


@pytest.mark.parametrize(
    ("loss", "target", "shape"),
    [("mse", "target", "[2,3,16,16]"), ("cross_entropy", "labels", "[2,16,16]")],
)
def test_a_size_that_the_model_computes_is_not_asked_for(
    loss: str, target: str, shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pictures of any size, halved and doubled again: no symbol of the file has that size."""
    weights = {n: numpy_helper.from_array(np.ones(s, np.float32), n)
               for n, s in (("w", (4, 1, 3, 3)), ("v", (4, 3, 2, 2)))}  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("ConvTranspose", ["h", "v"], ["y"], strides=[2, 2]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, "height", "width"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3, "rows", "columns"])
    graph = helper.make_graph(nodes, "unet", [x], [y], [*weights.values()])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset]), tmp_path / "model.onnx")
    words = [str(tmp_path / "model.onnx"), "--loss", loss, "--shape", "x=2,1,15,15"]
    assert cli.main(["check", *words]) == 0
    told = next(line for line in capsys.readouterr().out.splitlines() if f"input {target}" in line)
    assert told.endswith(f"here {shape}")


@pytest.mark.parametrize("source", [FORWARD, str(MLP)])
def test_a_step_has_8_samples_where_nobody_says(
    source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, source) == said(capsys, source, "--batch", 8)
