"""Builds with packages for other languages; each is made once."""

from __future__ import annotations

import functools
from pathlib import Path

from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options
from engine.tools.trimmed.targets import resolve
from tests.support.builds import make_root
from tests.support.places import GOLDENS

NATIVE = "java,kotlin,csharp,rust,go"  # languages of most systems


@functools.cache
def make_package(case: str, languages: str, target: str = "native", threads: int = 1) -> Path:
    """Return the folder of a build of a golden, called `mnist`, with packages for languages.

    target: one, or several with commas.
    """
    out = make_root() / f"{case}-{languages}-{target}-{threads}".replace(
        ",", "-"
    )  # linkers split at them
    platform, *also = map(resolve, target.split(","))
    options = Options(
        "mnist", platform, [4], threads, federated=True, bindings=languages.split(","), also=also,
        export=True,
    )  # fmt: skip
    build(GOLDENS / case, out, options)
    return out
