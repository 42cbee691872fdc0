"""Builds of one use, `--only` and decoders alone: their packages, and the example of each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from engine.base.errors import InternalError
from engine.tools.trimmed.api import Only
from engine.tools.trimmed.bindings.languages import LANGUAGES
from engine.tools.trimmed.bindings.package import select_lines
from tests.bindings.programs import (
    HERE,
    OBJECTIVE_C_EXAMPLE,
    TOOLCHAINS,
    make_objective_c,
    needs_gnustep,
)
from tests.bindings.uses import (
    PLATFORMS,
    check_example,
    continue_text,
    list_words,
    make_use,
)
from tests.support.builds import load, make_build, needs_cc

IN_SHORT = {"inference": ("c", "js"), "train": ("cpp",),
            "decoder": ("c", "java", "csharp", "go", "js")}  # fmt: skip
CELLS = [
    pytest.param(
        only, name, marks=[tools.needs, *[pytest.mark.whole] * (name not in IN_SHORT[only])]
    )
    for only in IN_SHORT
    for name, tools in TOOLCHAINS.items()
    if tools.example
]


@needs_cc
@pytest.mark.parametrize(("only", "language"), CELLS)
def test_a_package_of_one_use_has_an_example_that_runs(
    only: Only, language: str, tmp_path: Path
) -> None:
    tools = TOOLCHAINS[language]
    folder = make_use(only, PLATFORMS.get(language, "native"))
    program = tools.make(folder, folder / tools.example, tmp_path, HERE)
    check_example(only, program.run(*list_words(only, folder, tmp_path)), tmp_path)


@needs_cc
@needs_gnustep
@pytest.mark.parametrize(
    "only", ["decoder", *(pytest.param(x, marks=pytest.mark.whole) for x in ("inference", "train"))]
)
def test_a_class_of_objective_c_of_one_use_runs(only: Only, tmp_path: Path) -> None:
    folder, native = make_use(only, "macos-aarch64"), make_use(only)
    program = make_objective_c(folder, folder / OBJECTIVE_C_EXAMPLE, tmp_path, native)
    check_example(only, program.run(*list_words(only, native, tmp_path)), tmp_path)


@needs_cc
@pytest.mark.parametrize("only", ["inference", "train", "decoder"])
def test_python_has_classes_for_one_use(only: Only, tmp_path: Path) -> None:
    folder = make_use(only)
    module = load(folder)
    assert hasattr(module, "Trainer") == (only == "train")
    assert hasattr(module.Predictor, "predict") == (only == "inference")
    if only == "train":
        x, labels = np.ones((4, 64), np.float32), np.zeros(4, np.int64)
        trainer = module.Trainer()
        losses = [float(trainer.step(x, labels)) for _ in range(3)]
        assert losses[2] < losses[0]
        trainer.save(tmp_path / "trained")
        assert module.Trainer(tmp_path / "trained").steps == 3
        assert not hasattr(trainer, "evaluate")
    elif only == "inference":
        predictor = module.Predictor()
        x = np.random.default_rng(0).random((4, 64), np.float32)
        expected = load(make_build("mlp")).Trainer().predict_batch(x)
        assert predictor.outputs == list(expected)
        for name, values in predictor.predict_batch(x).items():
            np.testing.assert_array_equal(values, expected[name])
        with pytest.raises(module.StateError, match="has no train phase; it has infer"):
            predictor.module._run("train", [x])
    else:
        decoder = module.Predictor().decoder()
        text = [0]
        while len(text) < 10:
            text.append(int(np.argmax(decoder.append(text[-1:]))))
        assert text == continue_text()


@pytest.mark.parametrize("only", ["inference", "decoder"])
def test_packages_say_what_they_are_for(only: Only) -> None:
    """And have nothing of what the library has not."""
    said = {"inference": "Inference with one model", "decoder": "Text generation with one model"}
    for language in LANGUAGES:
        folder = make_use(only, PLATFORMS.get(language, "native"))
        gone = {f"mnist_{f}" for f in ("train_step", "optimizer_step", "save")}
        assert not gone & set(json.loads((folder / "manifest.json").read_text())["functions"])
        readme = (folder / language / "README.md").read_text()
        assert f"{said[only]} on the device" in readme
        assert ("The initial values are in" in readme) == (only == "inference")
        for path in (folder / language).rglob("*"):
            if path.suffix in (".java", ".kt", ".cs", ".rs", ".go", ".js", ".ts", ".swift", ".m"):
                text = path.read_text()
                assert text.strip(), path
                assert not re.search(r"train_?step|@if |@end@", text, re.IGNORECASE), path


def test_lines_of_templates_are_for_functions() -> None:
    text = "a\n//@if x@\nb\n  /*@if !y@*/\nc\n# @end@\n//@end@\n<!-- @if y or x z@ -->\nd\n@end@\n"
    assert select_lines(text, {"x"}) == "a\nb\nc\n"
    assert select_lines(text, {"x", "y"}) == "a\nb\nd\n"
    assert select_lines(text, {"x", "z"}) == "a\nb\nc\nd\n"
    assert select_lines(text, ()) == "a\n"
    for broken in ("//@if x@\n", "//@end@\n"):
        with pytest.raises(InternalError, match=r"a template has an? (end|condition)"):
            select_lines(broken, {"x"})
