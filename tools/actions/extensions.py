"""Extensions: Python files with a user's operators, which a command imports first."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.base.errors import FileError


def load(files: Sequence[Path]) -> None:
    """Import Python files, each as a module with its name; a file is imported only once.

    Raises:
        FileError: a file does not exist, has the name of another module, or raises an
            exception, which is the cause.
    """
    for path in files:
        known = sys.modules.get(path.stem)
        if known is not None and Path(known.__file__ or "").resolve() == path.resolve():
            continue
        if known is not None:
            raise FileError(f"--import {path}: there is another module {path.stem!r}; rename it")
        spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
        if spec is None or spec.loader is None or not path.is_file():
            raise FileError(f"--import {path}: not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[path.stem]
            raise FileError(f"--import {path}: {type(error).__name__}: {error}") from error
