"""Packages that only some readers of data need, imported when such a reader is made."""

from __future__ import annotations

import importlib
from typing import Any

from engine.base.errors import MissingPackageError


def require(module: str, extra: str, purpose: str) -> Any:
    """Return a module of an optional package.

    Args:
        module: its dotted name.
        extra: the extra of this package that installs it.
        purpose: what it is needed for, as the beginning of a sentence.

    Raises:
        MissingPackageError: it is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"{purpose} needs the package {module.partition('.')[0]}: "
            f"pip install 'edgegrad[{extra}]' ({error})"
        ) from error
