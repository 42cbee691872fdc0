"""The names of onnxruntime's training sessions in Java and C#: code moves by its imports."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from tests.bindings.programs import HERE, TOOLCHAINS
from tests.support.builds import load, make_root, needs_cc
from tests.support.places import GOLDENS


@functools.cache
def make_exporting() -> Path:
    """Return the folder of a build that exports its model, with packages."""
    out = make_root() / "names"
    native = resolve("native")
    options = Options("mnist", native, PlanRequest([4]), bindings=("java", "csharp"), export=True)
    build(GOLDENS / "mlp", out, options)
    return out


@needs_cc
@pytest.mark.parametrize(
    "language", [pytest.param(name, marks=TOOLCHAINS[name].needs) for name in ("java", "csharp")]
)
def test_sessions_have_the_names_of_onnxruntime(language: str, tmp_path: Path) -> None:
    """And what they export answers in onnxruntime as the model that they saved."""
    folder = make_exporting()
    tools = TOOLCHAINS[language]
    made = tools.make(folder, tools.name_program("names"), tmp_path, HERE)
    trained, exported = tmp_path / "trained", tmp_path / "exported.onnx"
    lines = made.run(folder / "checkpoint", trained, exported).splitlines()
    outputs = "[output]" if language == "java" else "output"
    wanted = "[x]" if language == "java" else "x"
    assert lines == [
        "refused there is no scheduler: register one",
        "rate 0.25",
        *["names true"] * 5,
        "falls true",
        "rate 0.0925",
        f"refused this build exports {outputs}, and not {wanted}: build --output",
    ]
    x = np.random.default_rng(0).random((4, 64), np.float32)
    (values,) = ort.InferenceSession(str(exported)).run(None, {"input": x})
    expected = load(folder).Trainer(trained).predict(x)
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
