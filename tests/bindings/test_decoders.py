"""Decoders in every language that runs here: the same calls, and the scores of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bindings.packages import NATIVE
from tests.bindings.programs import HERE, TOOLCHAINS, make_objective_c
from tests.support.builds import needs_cc
from tests.support.decoders import check_drill, make_decoder_build
from tests.support.needs import needs_gnustep, needs_node
from tests.support.places import BINDINGS


def make_words(folder: Path, out: Path) -> tuple[Path, Path]:
    """Return the arguments of a drill."""
    return folder / "checkpoint", out / "scores"


@needs_cc
@pytest.mark.parametrize(
    "language",
    [
        pytest.param(name, marks=TOOLCHAINS[name].needs)
        for name in ("cpp", "java", "kotlin", "csharp", "rust", "go")
    ],
)
def test_a_language_continues_a_text(language: str, tmp_path: Path) -> None:
    folder, tools = make_decoder_build("qwen2", NATIVE), TOOLCHAINS[language]
    program = tools.make(folder, tools.name_program("tokens"), tmp_path, HERE)
    printed = program.run(*make_words(folder, tmp_path))
    check_drill(printed, tmp_path / "scores", "qwen2")


@needs_node
@pytest.mark.parametrize("shape", ["gpt2", "qwen2"])
def test_node_continues_a_text(shape: str, tmp_path: Path) -> None:
    """WebAssembly rounds otherwise: it has no fused sums."""
    folder, tools = make_decoder_build(shape, "js", "wasm32"), TOOLCHAINS["js"]
    program = tools.make(folder, tools.name_program("tokens"), tmp_path, HERE)
    printed = program.run(*make_words(folder, tmp_path))
    check_drill(printed, tmp_path / "scores", shape, exact=False)
    assert "append(tokens: Int32Array): void;" in (folder / "js/mnist.d.ts").read_text()


@needs_cc
@needs_gnustep
def test_objective_c_continues_a_text(tmp_path: Path) -> None:
    """Over the library of this machine, which has the same functions as one for Apple's systems."""
    package = make_decoder_build("qwen2", "swift", "macos-aarch64")
    native = make_decoder_build("qwen2", NATIVE)
    program = make_objective_c(package, BINDINGS / "Tokens.m", tmp_path, native)
    printed = program.run(*make_words(native, tmp_path))
    check_drill(printed, tmp_path / "scores", "qwen2")


def test_swift_has_the_functions(tmp_path: Path) -> None:
    package = make_decoder_build("qwen2", "swift", "macos-aarch64")
    text = (package / "swift/Sources/Mnist/Model.swift").read_text()
    for head in (
        "public func append(_ tokens: [Int32]) throws",
        "public func scores() -> Values?",
        "public func truncate(_ length: Int64) throws",
    ):
        assert head in text, head
