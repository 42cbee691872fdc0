"""Libraries of one use, `--only inference` and `--only train`: smaller, and with equal results."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

from engine.artifacts import LossType, generate_artifacts
from engine.base.plan_options import PlanOptions, Precision
from engine.errors import InputError, ModelError
from engine.tools import cli
from engine.tools.dev.emulators import find_emulator
from engine.tools.trimmed.api import Only
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from tests.support.builds import (
    SANITIZE,
    STRICT,
    WARNINGS,
    compile_c,
    list_sources,
    load,
    make_build,
    make_root,
    needs_cc,
    run,
)
from tests.support.needs import needs_emulator
from tests.support.places import DRIVERS, GOLDENS

pytestmark = needs_cc


def make_only(only: Only, case: str = "mlp") -> Path:
    """Return the folder of a native build of one use, called `mnist`."""
    out = make_root() / f"{case}-only-{only}"
    if not out.exists():
        build(GOLDENS / case, out, Options("mnist", resolve("native"), PlanRequest([4], only=only)))
    return out


@pytest.mark.parametrize("case", ["mlp", "cnn"])
def test_inference_alone_answers_as_the_whole_library(case: str, tmp_path: Path) -> None:
    folder = make_only("inference", case)
    program = compile_c(
        tmp_path / "answers", *WARNINGS, *SANITIZE, DRIVERS / "answers.c", *list_sources(folder)
    )
    trainer = load(make_build(case)).Trainer()
    trainer.save(tmp_path / "checkpoint")
    run(program, tmp_path / "checkpoint", tmp_path / "values")
    values = np.fromfile(tmp_path / "values", np.float32)
    shape = trainer.state._handle.phases[0]["infer"][0][0]["shape"]
    x = values[: int(np.prod(shape))].reshape(shape)
    np.testing.assert_array_equal(values[x.size :], trainer.predict(x).ravel())


def test_training_alone_passes_its_self_test() -> None:
    folder = make_only("train")
    assert "passed" in run(folder / "selftest", folder / "checkpoint")


ANSWER = re.compile(r"inference (\d): squares of '(\w+)' (\S+), recorded (\S+), (\w+);")


def run_changed(folder: Path, old: str, new: str, out: Path) -> subprocess.CompletedProcess[str]:
    """Run the self-test of a build with another text in the place of one in its source."""
    text = (folder / "src/selftest.c").read_text()
    assert old in text
    (out / "changed.c").write_text(text.replace(old, new))
    compile_c(out / "changed", *STRICT, "-std=c11", out / "changed.c", *list_sources(folder))
    words = [out / "changed", folder / "checkpoint"]
    return subprocess.run(words, capture_output=True, text=True)


@pytest.mark.parametrize("case", ["mlp", "cnn"])
def test_inference_alone_tests_its_answers(case: str, tmp_path: Path) -> None:
    """It says so where one differs; `STRICT` compiles the self-test without a warning."""
    folder = make_only("inference", case)
    said = run(folder / "selftest")
    rows = ANSWER.findall(said)
    assert [(number, verdict) for number, *_, verdict in rows] == [(k, "equal") for k in "123"]
    assert len({value for _, _, value, *_ in rows}) == 3
    assert "passed" in said
    (recorded,) = re.findall(
        r"recorded_outputs\[\] = \{(.*)\};", (folder / "src/selftest.c").read_text()
    )
    first, *rest = recorded.split(", ")
    wrong = (float.fromhex(first) * 1.001).hex()
    done = run_changed(folder, recorded, ", ".join([wrong, *rest]), tmp_path)
    assert done.returncode == 1
    assert [verdict for *_, verdict in ANSWER.findall(done.stdout)] == ["WRONG", "equal", "equal"]
    assert "FAILED" in done.stdout


def test_answers_of_every_batch_size_are_tested(tmp_path: Path) -> None:
    options = Options("mnist", resolve("native"), PlanRequest([4, 1, 3, 2], 2, only="inference"))
    build(GOLDENS / "mlp", tmp_path / "out", options)
    rows = ANSWER.findall(run(tmp_path / "out/selftest"))
    assert [verdict for *_, verdict in rows] == ["equal"] * 4


ODD = """
<ir_version: 8, opset_import: ["" : 17]>
odd (float[n, 3] x) => (float[n, 2] scores, int64[n] best, bool[n, 2] high, float[n, 2] undefined)
<float[3, 2] w = {1, 2, 3, 4, 5, 6}, float two = {2.0}>
{
    scores = MatMul(x, w)
    best = ArgMax<axis = 1, keepdims = 0>(scores)
    high = Greater(scores, two)
    less = Sub(scores, scores)
    undefined = Div(less, less)
}
"""


def test_outputs_of_every_type_are_tested(tmp_path: Path) -> None:
    """Integers, booleans and numbers that are NaN, too, which C has no word for."""
    names = ["scores", "best", "high", "undefined"]
    generate_artifacts(
        parser.parse_model(ODD), ["w"], loss=LossType.MSELoss, loss_input_names=["scores"],
        additional_output_names=names[1:], artifact_directory=tmp_path / "artifacts",
    )  # fmt: skip
    options = Options("mnist", resolve("native"), PlanRequest([4], outputs=names, only="inference"))
    build(tmp_path / "artifacts", tmp_path / "out", options)
    rows = ANSWER.findall(run(tmp_path / "out/selftest"))
    assert [name for _, name, *_ in rows] == names * 3
    assert {verdict for *_, verdict in rows} == {"equal"}
    assert {value.lstrip("-") for _, name, value, *_ in rows if name == "undefined"} == {"nan"}
    done = run_changed(tmp_path / "out", "NAN", "1.0", tmp_path)
    assert done.returncode == 1
    assert [verdict for *_, verdict in ANSWER.findall(done.stdout)] == [*["equal"] * 3, "WRONG"] * 3


@pytest.mark.whole
@pytest.mark.parametrize(
    "target",
    [
        pytest.param(name, marks=needs_emulator(name))
        for name in ("raspberrypi2", "raspberrypi5", "riscv64", "windows-x86_64", "wasm32")
    ],
)
def test_answers_elsewhere_are_as_here(target: str, tmp_path: Path) -> None:
    platform, emulator = resolve(target), find_emulator(target)
    assert emulator is not None
    options = Options("mnist", platform, PlanRequest([4], only="inference"), compiler="zig")
    build(GOLDENS / "cnn", tmp_path / "out", options)
    program = tmp_path / "out" / platform.file_name("executable", "selftest")
    rows = ANSWER.findall(emulator.run(program, tmp_path / "out/checkpoint"))
    assert len(rows) == 3
    for _, _, value, recorded, _ in rows:
        assert float(value) == pytest.approx(float(recorded), rel=1e-5)


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_answers_in_16_bits_are_tested_in_16_bits(precision: Precision, tmp_path: Path) -> None:
    planning = PlanOptions(precision=precision)
    options = Options(
        "mnist", resolve("native"), PlanRequest([4], planning=planning, only="inference")
    )
    build(GOLDENS / "cnn", tmp_path / "out", options)
    assert "passed" in run(tmp_path / "out/selftest")


@pytest.mark.parametrize(
    ("only", "there", "gone"),
    [
        ("inference", ["infer", "set_parameters"], ["train_step", "eval_step", "save", "gradient"]),
        ("train", ["train_step", "optimizer_step", "save"], ["infer", "eval_step"]),
    ],
)
def test_functions_without_a_use_are_gone(only: Only, there: list[str], gone: list[str]) -> None:
    folder, whole = make_only(only), make_build("mlp")
    mine, all_ = (json.loads((f / "manifest.json").read_text()) for f in (folder, whole))
    functions = {name.removeprefix("mnist_") for name in mine["functions"]}
    assert functions >= set(there)
    assert not functions & set(gone)
    assert functions < {name.removeprefix("mnist_") for name in all_["functions"]}
    assert mine["sizes"]["memory"] < all_["sizes"]["memory"]
    assert mine["sizes"]["library"] < all_["sizes"]["library"]
    assert set(mine["kernels"]) < set(all_["kernels"])


@pytest.mark.parametrize("only", ["inference", "train"])
@pytest.mark.parametrize("define", ["", "-DEDGEGRAD_FREESTANDING"])
def test_what_is_left_compiles_without_warnings(only: Only, define: str, tmp_path: Path) -> None:
    folder = make_only(only)
    strict = ("-std=c11", "-pedantic", *WARNINGS, "-Wshadow", "-Wconversion", "-O2")
    flags = (*strict, *filter(None, [define]), f"-I{folder}")
    compile_c(tmp_path / "x.o", *flags, "-c", folder / "src" / "mnist.c")
    modern = ("-x", "c++", "-std=c++17", *WARNINGS, *filter(None, [define]), f"-I{folder}")
    compile_c(tmp_path / "y.o", *modern, "-c", folder / "mnist.hpp")


@pytest.mark.parametrize(
    ("only", "is_joined", "change", "why"),
    [
        ("inference", True, {}, "--joined updates in training steps: leave out"),
        ("train", False, {"export": True}, "--export writes the inference model: leave out"),
        ("inference", False, {"federated": True}, "--federated trains and evaluates: leave out"),
    ],
)
def test_options_that_need_what_is_left_out_are_refused(
    only: Only, is_joined: bool, change: dict[str, Any], why: str
) -> None:
    with pytest.raises(InputError, match=re.escape(why)):
        Options("mnist", resolve("native"), PlanRequest([4], only=only, joined=is_joined), **change)


def test_inference_needs_an_inference_model(tmp_path: Path) -> None:
    here = tmp_path / "artifacts"
    here.mkdir()
    for name in ("training_model.onnx", "optimizer_model.onnx", "checkpoint"):
        (here / name).write_bytes((GOLDENS / "mlp" / name).read_bytes())
    options = Options("mnist", resolve("native"), PlanRequest([4], only="inference"))
    with pytest.raises(ModelError, match="--only inference: there is no inference model"):
        build(here, tmp_path / "out", options)


def test_the_command_lists_the_functions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "build",
        str(GOLDENS / "mlp"),
        "--batch",
        "4",
        "--name",
        "mnist",
        "--only",
        "inference",
    ]
    assert cli.main([*words, "-o", str(tmp_path / "out")]) == 0
    (line,) = re.findall(r"^functions: (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert "mnist_infer" in line.split(", ")
    assert "passed" in run(tmp_path / "out" / "selftest")
