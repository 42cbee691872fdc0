"""Models that the peers' Python exports for `bench exporters`: their registry, and its command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROWS, CLASSES, RATE, STEPS = 4, 5, 0.01, 3
MODELS: dict[str, tuple[Callable[[], Any], str]] = {}  # how each is made, and a remark


def model(remark: str = "") -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a model under the name of its function."""

    def register(make: Callable[[], Any]) -> Callable[[], Any]:
        MODELS[make.__name__] = make, remark
        return make

    return register


def export_named(write: Callable[[str, Path], None]) -> None:
    """Write models to the folder that the command names; print each name and why it has none."""
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries is not part of the report
    folder, *names = sys.argv[1:]
    for name in names or MODELS:
        reason = ""
        try:
            write(name, Path(folder))
        except Exception as error:  # whatever the exporter raises, there is nothing to compare
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
        print(f"{name}\t{reason}", file=reports, flush=True)
