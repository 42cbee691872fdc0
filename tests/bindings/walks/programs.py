"""Programs that walk: a language's own one, with a line for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.tools.trimmed.bindings.package import Api
from tests.bindings.programs import TOOLCHAINS
from tests.bindings.walks import (
    csharp,
    go,
    java,
    javascript,
    kotlin,
    objective_c,
    python,
    rust,
    swift,
)
from tests.bindings.walks.c import make_c, make_cpp
from tests.bindings.walks.methods import Method
from tests.bindings.walks.tongue import Tongue
from tests.bindings.walks.values import Values
from tests.support.places import BINDINGS


def list_tongues(values: Values) -> Mapping[str, Tongue]:
    """Return the languages of walks by their names in `TOOLCHAINS`."""
    return {
        "c": make_c(values),
        "cpp": make_cpp(values),
        "python": python.TONGUE,
        "rust": rust.TONGUE,
        "go": go.TONGUE,
        "java": java.TONGUE,
        "kotlin": kotlin.TONGUE,
        "csharp": csharp.TONGUE,
        "swift": swift.TONGUE,
        "objc": objective_c.TONGUE,
        "js": javascript.TONGUE,
    }


def find_source(language: str) -> Path:
    """Return the program of a language without its calls."""
    apple = {"swift": "Walk.swift", "objc": "Walk.m"}
    return (
        BINDINGS / apple[language]
        if language in apple
        else TOOLCHAINS[language].name_program("walk")
    )


def write_program(language: str, tongue: Tongue, methods: Sequence[Method], api: Api) -> str:
    """Return the source of the program of a language."""
    text = find_source(language).read_text()
    lines = tongue.write_methods(methods, api)
    if language == "c":
        names = [m.name for m in methods if tongue.has(m)]
        text = text.replace("/*@calls@*/", lines)
        lines = "\n".join(f'    {{"{name}", call_{name}}},' for name in names)
    return text.replace("    # @rows@", lines).replace("/*@rows@*/", lines)
