"""One description: every language has every function of the header, and a new one by itself."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest

from engine.base.errors import EngineError, InternalError
from engine.tools import cli
from engine.tools.trimmed.api import find_description, list_functions
from engine.tools.trimmed.bindings.languages import LANGUAGES, check_languages
from engine.tools.trimmed.bindings.package import Language, write_package
from engine.tools.trimmed.targets import TARGETS, resolve
from tests.support.builds import make_source
from tests.support.places import GOLDENS

NEW = """
/* Return whether a thing is fancy. */
@NAME@_API int @name@_is_fancy(const @name@ *m, const char *thing, int64_t count);
@NAME@_API int @name@_set_fancy(@name@ *m, const float *values, size_t count, int fancy_only);
/* Return the size of things in bytes. */
@NAME@_API size_t @name@_things_size(@name@ *m, int64_t count);
/* Write some things, one after another, to a buffer of exactly @name@_things_size bytes. */
@NAME@_API int @name@_write_things(@name@ *m, int64_t count, void *things, size_t size);
"""


def write(language: Language, more: str = "") -> str:
    """Return all text of the package of a language, with declarations added to the header."""
    source = make_source("mnist")
    platforms = [resolve(language.list_targets()[0])]
    api = source.describe_api("1.0.0", platforms, freestanding=language.freestanding)
    api = replace(api, functions=[*api.functions, *list_functions(more)])
    return "\n".join(text for _, text in write_package(language, api))


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
def test_a_language_has_every_function(language: Language) -> None:
    """But those that make a model in memory of the caller's, where the language has none."""
    api = make_source("mnist").describe_api("", [], freestanding=language.freestanding)
    text = write(language)
    called = set(re.findall(r"\bmnist_(\w+)|[\"'](\w+)[\"']", text))
    names = {name for pair in called for name in pair}
    missing = [f.name for f in api.functions if f.name not in names and not f.places]
    assert missing == []
    assert not re.findall(r"@\w+@", text)


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
def test_a_new_function_is_in_every_language(language: Language) -> None:
    text = write(language, NEW)
    assert re.search(r"is_?fancy\b", text, re.IGNORECASE)
    assert re.search(r"set_?fancy\b", text, re.IGNORECASE)
    assert re.search(r"(Return|// IsFancy reports) whether a thing is fancy\.", text)
    assert re.search(r"(Return|// Things returns) some things, one after another\.", text)


def test_comments_belong_to_what_they_stand_at() -> None:
    functions = {f.name: f for f in list_functions(make_source("mnist").read_header())}
    assert functions["batch_size"].comment.startswith("Return a batch size")
    assert functions["set_batch"].comment.endswith(
        "@NAME@_BAD_INPUT: the model has no plans for it."
    )
    assert functions["has_phase"].comment == "Return whether the model has the steps of a phase."
    described = find_description(functions["gradient"], list(functions.values()))
    assert described.name == "parameter_info"
    assert find_description(functions["output"], list(functions.values())).name == "output_info"


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("int @name@_f(@name@ *m, struct x y)", "f: no binding knows the parameter 'struct x y'"),
        ("long @name@_f(@name@ *m)", "f: no binding knows the result 'long'"),
    ],
)
def test_what_no_rule_knows_is_refused(declared: str, message: str) -> None:
    (function,) = list_functions(f"@NAME@_API {declared};\n")
    with pytest.raises(InternalError, match=re.escape(message)):
        print(function.answer, function.arguments)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bindings", "jss"], "--bindings jss: no bindings.*'js'"),
        (["--bindings", "js"], "it is for wasm32, .*, wasm32-threads, .*and the target is"),
        (["--bindings", "js", "--target", "wasm32", "--static"], "make archives"),
        (["--bindings", "js", "--target", "wasm32,wasm32-threads"], "several threads: give --th"),
        (["--target", "wasm32-threads", "--threads", "2"], "beside a module for pages that cannot"),
        (["--bindings", "swift", "--target", "macos-arm64", "--freestanding"], "the C library"),
        (["--bindings", "swift", "--target", "macos-arm64,pi4"], "the target is pi4"),
        (
            ["--bindings", "go", "--target", "ios-arm64"],
            "only Xcode, on a Mac, links; --bindings s",
        ),
        (["--bindings", "rust", "--name", "match"], "'match' is a keyword or module of Rust, so"),
        (["--bindings", "go", "--name", "fmt"], "'fmt' is a keyword or module of Go, so"),
        (["--bindings", "java", "--name", "native"], "'native' is a keyword or module of Java, so"),
        (["--bindings", "kotlin", "--name", "native"], "'native' is a keyword or module of Kotlin"),
        (["--bindings", "kotlin", "--name", "fun"], "'fun' is a keyword or module of Kotlin, so"),
        (["--bindings", "js", "--target", "wasm32", "--name", "stream"], "or module of JavaScript"),
        (["--bindings", "swift", "--target", "macos-arm64", "--name", "foundation"], "of Swift"),
        (["--bindings", "rust", "--target", "pi4,pi5"], "pi4 and pi5 are the same platform for it"),
    ],
)
def test_bad_requests_are_refused(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "xcrun" else name)
    assert cli.main(["build", str(GOLDENS / "mlp"), "--batch", "4", "-o", "x", *words]) == 1
    assert re.search(message, capsys.readouterr().err)


def test_languages_of_other_targets_are_refused() -> None:
    for name, language in LANGUAGES.items():
        fitting = language.list_targets()
        assert fitting
        for target in set(TARGETS) - set(fitting):
            platforms = [resolve(fitting[0]), resolve(target)]
            with pytest.raises(EngineError, match=f"the target is {target}"):
                check_languages([name], platforms, build="mnist", archive=False, freestanding=False)
