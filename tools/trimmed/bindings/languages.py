"""The languages that builds have bindings for, by the names of the option `--bindings`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from engine.base.errors import EngineError, suggest_nearest
from engine.tools.trimmed.bindings.csharp import CSHARP
from engine.tools.trimmed.bindings.go import GO
from engine.tools.trimmed.bindings.java import JAVA
from engine.tools.trimmed.bindings.javascript import JAVASCRIPT
from engine.tools.trimmed.bindings.kotlin import KOTLIN
from engine.tools.trimmed.bindings.package import Language
from engine.tools.trimmed.bindings.rust import RUST
from engine.tools.trimmed.bindings.swift import SWIFT
from engine.tools.trimmed.targets import Platform

LANGUAGES: dict[str, Language] = {
    language.name: language for language in (JAVASCRIPT, JAVA, KOTLIN, SWIFT, CSHARP, RUST, GO)
}


def parse_languages(value: str) -> tuple[str, ...]:
    """Return names of languages from a word `LANGUAGE,...`; none from an empty one.

    Raises:
        EngineError: one has no bindings.
    """
    names = tuple(dict.fromkeys(word.strip() for word in value.split(",") if value))
    for name in names:
        if name not in LANGUAGES:
            near = suggest_nearest(name, list(LANGUAGES))
            raise EngineError(
                f"--bindings {name}: no bindings{near}. There are: {', '.join(LANGUAGES)}"
            )
    return names


def _list_static() -> str:
    """Return the options of the languages whose packages have archives."""
    named = [language.name for language in LANGUAGES.values() if language.kind == "static"]
    return " or ".join(f"--bindings {name}" for name in named)


def check_languages(
    names: Sequence[str],
    platforms: Sequence[Platform],
    *,
    build: str,
    archive: bool,
    freestanding: bool,
) -> None:
    """Check that the languages can load libraries of the platforms.

    build: the name of the build, which is also the one of the package.
    archive, freestanding: whether the build is an archive, and one that needs no C library.

    Raises:
        EngineError: one cannot, or has a word for something else that the build is named by.
    """
    for language in map(LANGUAGES.__getitem__, names):
        word = f"--bindings {language.name}"
        if build in language.words.split():
            raise EngineError(
                f"{word}: {build!r} is a keyword or module of {language.title}, so its package "
                "cannot have that name; choose another by --name"
            )
        if freestanding or (archive and language.kind != "static"):
            raise EngineError(
                f"{word}: it loads a shared library, and --static and --freestanding make archives"
                if language.kind != "static"
                else f"{word}: its library uses the C library, and --freestanding has none"
            )
        for platform in platforms:
            if not language.fits(platform):
                fitting = ", ".join(language.list_targets())
                wanted = fitting if language.systems else "targets with a system of their own"
                raise EngineError(f"{word}: it is for {wanted}, and the target is {platform.name}")
            has_linker = any(shutil.which(command.split()[0]) for command in platform.cc)
            needs_xcode = platform.form == "macho" and platform.sdk and language.kind != "static"
            if needs_xcode and not has_linker:
                raise EngineError(
                    f"{word}: it loads a shared library, which for {platform.name} only "
                    f"{platform.sdk}, links; {_list_static()} with --static needs no Xcode"
                )
        places: dict[str, Platform] = {}
        for platform in platforms:
            place = language.place("", platform)
            first = places.setdefault(place, platform)
            if first is not platform:
                raise EngineError(
                    f"{word}: targets {first.name} and {platform.name} are the same platform for "
                    "it; give one of them"
                )
