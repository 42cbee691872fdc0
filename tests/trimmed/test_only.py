"""Libraries of one use, `--only inference` and `--only train`: smaller, and with equal results."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.errors import InputError, ModelError
from engine.tools import cli
from engine.tools.trimmed.api import Only
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options
from engine.tools.trimmed.targets import resolve
from tests.support.builds import (
    SANITIZE,
    WARNINGS,
    compile_c,
    list_sources,
    load,
    make_build,
    make_root,
    needs_cc,
    run,
)
from tests.support.places import DRIVERS, GOLDENS

pytestmark = needs_cc


def make_only(only: Only, case: str = "mlp") -> Path:
    """Return the folder of a native build of one use, called `mnist`."""
    out = make_root() / f"{case}-only-{only}"
    if not out.exists():
        build(GOLDENS / case, out, Options("mnist", resolve("native"), [4], only=only))
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
    ("change", "why"),
    [
        ({"only": "inference", "joined": True}, "--joined updates in training steps: leave out"),
        ({"only": "train", "export": True}, "--export writes the inference model: leave out"),
        ({"only": "inference", "federated": True}, "--federated trains and evaluates: leave out"),
    ],
)
def test_options_that_need_what_is_left_out_are_refused(
    change: dict[str, object], why: str
) -> None:
    options = Options("mnist", resolve("native"), [4])
    with pytest.raises(InputError, match=re.escape(why)):
        replace(options, **change)  # type: ignore[arg-type]  # of several fields


def test_inference_needs_an_inference_model(tmp_path: Path) -> None:
    here = tmp_path / "artifacts"
    here.mkdir()
    for name in ("training_model.onnx", "optimizer_model.onnx", "checkpoint"):
        (here / name).write_bytes((GOLDENS / "mlp" / name).read_bytes())
    options = Options("mnist", resolve("native"), [4], only="inference")
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
    assert not (tmp_path / "out" / "selftest").exists()
