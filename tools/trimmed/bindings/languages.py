"""The languages that builds have bindings for, by the names of the option `--bindings`."""

from __future__ import annotations

from collections.abc import Sequence

from engine.base.errors import EngineError, suggest_nearest
from engine.tools.trimmed.bindings.csharp import CSHARP
from engine.tools.trimmed.bindings.go import GO
from engine.tools.trimmed.bindings.java import JAVA
from engine.tools.trimmed.bindings.javascript import JAVASCRIPT
from engine.tools.trimmed.bindings.kotlin import KOTLIN
from engine.tools.trimmed.bindings.package import Language
from engine.tools.trimmed.bindings.rust import RUST
from engine.tools.trimmed.targets import Platform

LANGUAGES: dict[str, Language] = {
    language.name: language for language in (JAVASCRIPT, JAVA, KOTLIN, CSHARP, RUST, GO)
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


def check_languages(names: Sequence[str], platform: Platform, *, archive: bool) -> None:
    """Check that the languages can load a library of the platform.

    archive: whether the build is an archive, which is linked and not loaded.

    Raises:
        EngineError: one cannot.
    """
    for name in names:
        if archive:
            raise EngineError(
                f"--bindings {name}: it loads a shared library, and --static and --freestanding "
                "make archives"
            )
        if LANGUAGES[name].wasm != platform.is_wasm:
            other = "wasm32" if LANGUAGES[name].wasm else "other targets than WebAssembly"
            raise EngineError(
                f"--bindings {name}: it is for {other}, and the target is {platform.name}"
            )
