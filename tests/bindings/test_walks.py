"""Every method of every language, with values that nobody should pass, beside C's answers."""

from __future__ import annotations

import contextlib
import functools
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.tools.trimmed.api import list_enumerations, list_functions
from engine.tools.trimmed.bindings.package import Api
from engine.tools.trimmed.targets import resolve
from tests.bindings import walks
from tests.bindings.packages import NATIVE, make_package
from tests.bindings.programs import HERE, TOOLCHAINS, make_objective_c
from tests.bindings.swift import run_swift
from tests.support.builds import compile_c, list_sources, make_build, make_root, needs_cc
from tests.support.needs import needs_cargo, needs_gnustep
from tests.support.places import BINDINGS
from tests.support.roots import needs_root

SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
VALUES = walks.Values(256, 4, 3610, ("good", "empty", "one", "half", "clipped", "other", "garbage"))
ROUNDS = "6"  # of all calls, in whose second half no memory may be lost


def find_build() -> Path:
    return make_package("mlp", NATIVE)


def write_files(folder: Path) -> Path:
    """Write the files that calls read."""
    folder.mkdir(exist_ok=True)
    content = (find_build() / "checkpoint").read_bytes()
    other = (make_build("cnn") / "checkpoint").read_bytes()
    contents = (content, b"", b"\0", content[: len(content) // 2], content[:-9], other,
                bytes(range(256)) * 9)  # fmt: skip
    for name, data in zip(VALUES.files, contents, strict=True):
        (folder / name).write_bytes(data)
    shutil.copy(BINDINGS / "walk.h", folder)
    return folder


@functools.cache
def read_api() -> Api:
    """Return the API that the header of the build declares."""
    text = (find_build() / "mnist.h").read_text()
    header = text.replace("mnist", "@name@").replace("MNIST", "@NAME@")
    functions = [
        function
        for function in list_functions(header)
        if function.exists(freestanding=False, threads=1, federated=True)
    ]
    enumerations = tuple(list_enumerations(header))
    return Api("mnist", "1.0.0", functions, enumerations, {}, [resolve("native")])


def write_walk(language: str, folder: Path, *, at_length: bool) -> tuple[Path, list[walks.Row]]:
    """Write the program of a language and its calls."""
    methods = list(walks.list_methods(read_api()))
    tongue = walks.list_tongues(VALUES)[language]
    rows = [row for row in VALUES.list_rows(methods, at_length=at_length) if tongue.fits(row)]
    source = write_files(folder) / walks.find_source(language).name
    source.write_text(walks.write_program(language, tongue, methods, read_api()))
    (folder / "calls").write_text("".join(f"{row}\n" for row in rows))
    return source, rows


@functools.cache
def list_answers(at_length: bool) -> dict[str, str]:
    """Return what C says to each call; its program is compiled with sanitizers, which find what it
    reads or writes outside of a buffer, and what it does not free.
    """
    folder = make_root() / f"walk-{at_length}"
    source, rows = write_walk("c", folder, at_length=at_length)
    build, words = find_build(), ("-std=c11", "-Wall", "-Wextra", "-Werror")
    program = compile_c(folder / "walk", *words, *SANITIZERS, source, *list_sources(build), "-lm")
    command = [str(program), str(build / "checkpoint"), "calls", "1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()[:-1]
    said = {str(row): line.partition(" ")[2] for row, line in zip(rows, lines, strict=True)}
    assert not [row for row, answer in said.items() if answer.endswith(" changed")]
    return said


def run_program(language: str, source: Path, folder: Path) -> str:
    """Compile and run the program of a language in its folder."""
    build = find_build()
    if language == "swift":
        return run_swift("mlp", source, folder / "inside", "checkpoint", "calls", ROUNDS)
    if language == "objc":
        package = make_package("mlp", "swift", "macos-aarch64")
        program = make_objective_c(package, source, folder, build)
    else:
        package = make_package("mlp", "js", "wasm32") if language == "js" else build
        program = TOOLCHAINS[language].make(package, source, folder, HERE)
    with contextlib.chdir(folder):
        return program.run(build / "checkpoint", "calls", ROUNDS)


THREADED = ("go", "java", "kotlin", "csharp", "swift", "objc")  # two threads can have one model
LANGUAGES = [
    *(
        pytest.param(name, marks=TOOLCHAINS[name].needs)
        for name in ("cpp", "rust", "go", "java", "kotlin", "csharp", "js")
    ),
    pytest.param("objc", marks=needs_gnustep),
    pytest.param("swift", marks=[needs_root("swift"), pytest.mark.whole]),
]


@needs_cc
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_refuses_what_c_refuses(
    language: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    at_length = bool(request.config.option.whole)
    source, rows = write_walk(language, tmp_path, at_length=at_length)
    if language == "swift":
        write_files(tmp_path / "inside")
        shutil.copy(tmp_path / "calls", tmp_path / "inside")
    printed = run_program(language, source, tmp_path)
    wrong = walks.check(rows, printed, list_answers(at_length), races=language in THREADED)
    assert wrong == []


SHARING = """
use mnist::Model;
fn main() {
    let model = Model::create("checkpoint").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| model.get_step());
        drop(model);
    });
}
"""


@needs_cc
@needs_cargo
def test_rust_refuses_threads_that_share_a_model(tmp_path: Path) -> None:
    """And so has no model that one closes while another one steps."""
    shutil.copytree(find_build() / "rust", tmp_path / "rust")
    (tmp_path / "rust/examples/sharing.rs").write_text(SHARING)
    command = ["cargo", "check", "--offline", "--example", "sharing"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path / "rust")
    assert done.returncode != 0
    assert "cannot be shared between threads safely" in done.stderr


@needs_cc
def test_every_kind_of_refusal_is_walked_into() -> None:
    """And everything that a model does succeeds at least once, or calls would prove nothing."""
    said = list_answers(False)
    codes = {answer.split()[0] for answer in said.values()}
    assert codes >= {"1", "2", "3", "4", "5", "6", "7"}
    methods = {m.name for m in walks.list_methods(read_api()) if m.function and m.acts}
    done = {row.split()[1] for row, answer in said.items() if answer.startswith("ok")}
    others = {m for m in methods if m.endswith("_f64")}  # of another model
    others |= {"set_loss_scale", "take_request", "write_answer"}
    others |= {"save_to", "export_model_to"}  # of exact sizes, which other languages find
    assert methods - done <= others


def test_wrong_answers_are_noticed() -> None:
    method = walks.Method("set_step", ("long",), shows=True)
    rows = [walks.Row("live", method, ("-1",))]
    by_c = {"live set_step -1": "1 step -1 is negative: give at least 0"}
    assert walks.check(rows, "0 1 step -1 is negative: give at least 0\ngrown 0", by_c) == []
    assert walks.check(rows, "0 1 expected a number\ngrown 0", by_c) == []
    for line in ("ok", "1 ", "5 step -1 is negative: give at least 0", "other error: ?",
                 "1 step -1 is negative: give at least 0 changed"):  # fmt: skip
        assert len(walks.check(rows, f"0 {line}\ngrown 0", by_c)) == 1
    assert len(walks.check(rows, "0 1 expected a number\ngrown 9", by_c)) == 1
    beyond = [walks.Row("live", walks.Method("input_info", ("phase", "int"), shows=True),
                        (str(2**32), "0"))]  # fmt: skip
    assert walks.check(beyond, "0 ok none\ngrown 0", {}) == []
    assert len(walks.check(beyond, "0 ok some\ngrown 0", {})) == 1
