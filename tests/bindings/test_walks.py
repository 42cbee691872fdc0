"""Every method of every language, with values that nobody should pass, beside C's answers."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.tools.trimmed.api import Only, list_enumerations, list_functions
from engine.tools.trimmed.bindings.package import Api
from engine.tools.trimmed.build import build
from engine.tools.trimmed.decoders import DecoderOptions
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from tests.bindings.packages import NATIVE, make_example, make_package
from tests.bindings.programs import HERE, TOOLCHAINS, make_objective_c
from tests.bindings.swift import run_swift
from tests.bindings.walks.judging import check
from tests.bindings.walks.methods import Method, Row, list_methods
from tests.bindings.walks.programs import find_source, list_tongues, write_program
from tests.bindings.walks.values import Values
from tests.support import decoders
from tests.support.builds import compile_c, list_sources, make_build, needs_cc
from tests.support.needs import needs_cargo, needs_gnustep
from tests.support.places import BINDINGS, GOLDENS
from tests.support.roots import needs_root
from tests.support.shared import make_once

SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
FILES = ("good", "empty", "one", "half", "clipped", "other", "garbage")
VALUES = Values(256, 4, 3610, FILES)
ROUNDS = "6"  # of all calls, in whose second half no memory may be lost


@dataclass(frozen=True)
class Subject:
    """A kind of build that is walked.

    find: returns its folder.
    values: of its calls.
    only, federated: as in the options of the build.
    decodes: whether it has a decoder.
    """

    find: Callable[[], Path]
    values: Values = VALUES
    only: Only = ""
    federated: bool = False
    decodes: bool = False

    @property
    def checkpoint(self) -> str:
        """The path of the values, for a program; "-" if the library has them."""
        path = self.find() / "checkpoint"
        return str(path) if path.exists() else "-"


def make_kind(**words: Any) -> Path:
    """Return the folder of a build of the mlp with these options."""
    name = "-".join(["walked", *words, *map(str, words.values())])
    options = Options("mnist", resolve("native"), PlanRequest([4], **words))
    return make_once(name, lambda out: build(GOLDENS / "mlp", out, options))


def make_wide() -> Path:
    return make_example("wide", NATIVE, "native")  # the build that test_wide.py makes


def make_alone() -> Path:
    """Return the folder of a build of a decoder alone, with its own values."""
    model = decoders.make_artifacts("gpt2") / "decoder.onnx"
    decoder = DecoderOptions(decoders.CAPACITY, path=model)
    options = Options("mnist", resolve("native"), PlanRequest(decoder=decoder))
    return make_once("walked-alone", lambda out: build(None, out, options))


TEXTS = Values(8, 8, 80712, FILES, "l", ("l*8=1", "l*8=1"), decoders.WORDS)
SUBJECTS = {
    "mlp": Subject(lambda: make_package("mlp", NATIVE), federated=True),
    "joined": Subject(lambda: make_kind(joined=True)),
    "inference": Subject(lambda: make_kind(only="inference"), only="inference"),
    "train": Subject(lambda: make_kind(only="train"), only="train"),
    "float64": Subject(make_wide, Values(16, 4, 15, FILES, "d")),
    "decoder": Subject(lambda: decoders.make_decoder_build("qwen2"), TEXTS, decodes=True),
    "decoder alone": Subject(make_alone, TEXTS, only="decoder", decodes=True),
}


def write_files(folder: Path, subject: Subject) -> Path:
    """Write the files that calls read."""
    folder.mkdir(exist_ok=True)
    content = b"" if subject.checkpoint == "-" else Path(subject.checkpoint).read_bytes()
    other = (make_build("cnn") / "checkpoint").read_bytes()
    contents = (content, b"", b"\0", content[: len(content) // 2], content[:-9], other,
                bytes(range(256)) * 9)  # fmt: skip
    for name, data in zip(FILES, contents, strict=True):
        (folder / name).write_bytes(data)
    shutil.copy(BINDINGS / "walk.h", folder)
    return folder


@functools.cache
def read_api(subject: Subject) -> Api:
    """Return the API that the header of a build declares."""
    text = (subject.find() / "mnist.h").read_text()
    header = text.replace("mnist", "@name@").replace("MNIST", "@NAME@")
    functions = [
        function
        for function in list_functions(header)
        if function.exists(
            freestanding=False,
            threads=1,
            only=subject.only,
            federated=subject.federated,
            decodes=subject.decodes,
        )
    ]
    enumerations = tuple(list_enumerations(header))
    return Api("mnist", "1.0.0", functions, enumerations, {}, [resolve("native")])


def write_walk(
    language: str, folder: Path, subject: Subject, *, at_length: bool, beside: str = ""
) -> tuple[Path, list[Row]]:
    """Write the program of a language and its calls.

    beside: another language, which can make these calls, too.
    """
    api, values = read_api(subject), subject.values
    methods = list(list_methods(api))
    tongue, other = (list_tongues(values)[name] for name in (language, beside or language))
    every = values.list_rows(methods, at_length=at_length)
    rows = [row for row in every if tongue.fits(row) and other.fits(row)]
    source = write_files(folder, subject) / find_source(language).name
    source.write_text(write_program(language, tongue, methods, api))
    (folder / "calls").write_text("".join(f"{row}\n" for row in rows))
    return source, rows


@functools.cache
def list_answers(subject: Subject, at_length: bool, beside: str = "") -> dict[str, str]:
    """Return what C says to each call; its program is compiled with sanitizers, which find what it
    reads or writes outside of a buffer, and what it does not free.

    beside: the language whose calls they are alone, where each call changes what later ones say.
    """
    name = "-".join(["walk", *subject.find().parts[-2:], str(at_length), beside])
    made = make_once(
        name, lambda folder: _write_answers(subject, folder, beside, at_length=at_length)
    )
    said: dict[str, str] = json.loads((made / "said.json").read_text())
    assert not [row for row, answer in said.items() if answer.endswith(" changed")]
    return said


def _write_answers(subject: Subject, folder: Path, beside: str, *, at_length: bool) -> None:
    source, rows = write_walk("c", folder, subject, at_length=at_length, beside=beside)
    made, words = subject.find(), ("-std=c11", "-Wall", "-Wextra", "-Werror")
    program = compile_c(folder / "walk", *words, *SANITIZERS, source, *list_sources(made), "-lm")
    command = [str(program), subject.checkpoint, "calls", "1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()[:-1]
    said = {str(row): line.partition(" ")[2] for row, line in zip(rows, lines, strict=True)}
    (folder / "said.json").write_text(json.dumps(said))


def run_program(language: str, source: Path, folder: Path, subject: Subject) -> str:
    """Compile and run the program of a language in its folder."""
    made = subject.find()
    if language == "swift":
        return run_swift("mlp", source, folder / "inside", "checkpoint", "calls", ROUNDS)
    if language == "objc":
        package = make_package("mlp", "swift", "macos-aarch64")
        program = make_objective_c(package, source, folder, made)
    else:
        package = make_package("mlp", "js", "wasm32") if language == "js" else made
        program = TOOLCHAINS[language].make(package, source, folder, HERE)
    with contextlib.chdir(folder):
        return program.run(subject.checkpoint, "calls", ROUNDS)


THREADED = ("go", "java", "kotlin", "csharp", "swift", "objc")  # two threads can have one model
LANGUAGES = [
    *(
        pytest.param(name, marks=TOOLCHAINS[name].needs)
        for name in ("cpp", "python", "rust", "go", "java", "kotlin", "csharp", "js")
    ),
    pytest.param("objc", marks=needs_gnustep),
    pytest.param("swift", marks=[needs_root("swift"), pytest.mark.whole]),
]


@needs_cc
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_refuses_what_c_refuses(
    language: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    at_length, subject = bool(request.config.option.whole), SUBJECTS["mlp"]
    source, rows = write_walk(language, tmp_path, subject, at_length=at_length)
    if language == "swift":
        write_files(tmp_path / "inside", subject)
        shutil.copy(tmp_path / "calls", tmp_path / "inside")
    printed = run_program(language, source, tmp_path, subject)
    wrong = check(rows, printed, list_answers(subject, at_length), races=language in THREADED)
    assert wrong == []


@needs_cc
@pytest.mark.parametrize("kind", [name for name in SUBJECTS if name != "mlp"])
@pytest.mark.parametrize(
    "language", ["python", pytest.param("cpp", marks=[TOOLCHAINS["cpp"].needs, pytest.mark.whole])]
)
def test_builds_of_other_kinds_refuse_as_much(
    kind: str, language: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Their packages in other languages are of the same sources."""
    at_length, subject = bool(request.config.option.whole), SUBJECTS[kind]
    source, rows = write_walk(language, tmp_path, subject, at_length=at_length)
    printed = run_program(language, source, tmp_path, subject)
    assert check(rows, printed, list_answers(subject, at_length, language)) == []


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
    shutil.copytree(SUBJECTS["mlp"].find() / "rust", tmp_path / "rust")
    (tmp_path / "rust/examples/sharing.rs").write_text(SHARING)
    command = ["cargo", "check", "--offline", "--example", "sharing"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path / "rust")
    assert done.returncode != 0
    assert "cannot be shared between threads safely" in done.stderr


@needs_cc
def test_every_kind_of_refusal_is_walked_into() -> None:
    """And everything that a model does succeeds at least once, or calls would prove nothing."""
    subject = SUBJECTS["mlp"]
    said = list_answers(subject, False)
    codes = {answer.split()[0] for answer in said.values()}
    assert codes >= {"1", "2", "3", "4", "5", "6", "7"}
    methods = {m.name for m in list_methods(read_api(subject)) if m.function and m.acts}
    done = {row.split()[1] for row, answer in said.items() if answer.startswith("ok")}
    others = {m for m in methods if m.endswith("_f64")}  # of another model
    others |= {"set_loss_scale", "take_request", "write_answer"}
    others |= {"save_to", "export_model_to"}  # of exact sizes, which other languages find
    assert methods - done <= others


def test_wrong_answers_are_noticed() -> None:
    method = Method("set_step", ("long",), shows=True)
    rows = [Row("live", method, ("-1",))]
    by_c = {"live set_step -1": "1 step -1 is negative: give at least 0"}
    assert check(rows, "0 1 step -1 is negative: give at least 0\ngrown 0", by_c) == []
    assert check(rows, "0 1 expected a number\ngrown 0", by_c) == []
    for line in ("ok", "1 ", "5 step -1 is negative: give at least 0", "other error: ?",
                 "1 step -1 is negative: give at least 0 changed"):  # fmt: skip
        assert len(check(rows, f"0 {line}\ngrown 0", by_c)) == 1
    assert len(check(rows, "0 1 expected a number\ngrown 9", by_c)) == 1
    beyond = [Row("live", Method("input_info", ("phase", "int"), shows=True),
                        (str(2**32), "0"))]  # fmt: skip
    assert check(beyond, "0 ok none\ngrown 0", {}) == []
    assert len(check(beyond, "0 ok some\ngrown 0", {})) == 1
