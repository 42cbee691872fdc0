"""Representations of objects by the arguments that made them, and names that fit into tables."""

from __future__ import annotations

import os
from typing import Any

LETTERS = 60  # of a value or a name, at most
_MISSING = object()


def shorten_name(name: str) -> str:
    """Return a name that fits into a table, for a longer one without its middle."""
    half = (LETTERS - 3) // 2
    return name if len(name) <= LETTERS else f"{name[:half]}...{name[-half:]}"


def represent(self: object) -> str:
    """Return the class of an object with the arguments of its constructor that say most.

    Shown are numbers, texts, paths and short lists of them that the object keeps in an attribute of
    the argument's name, perhaps after an underscore, unless they are the default.
    """
    import inspect

    shown = []
    kept = vars(self) if hasattr(self, "__dict__") else {}
    for name, parameter in inspect.signature(type(self)).parameters.items():
        value = kept.get(name, kept.get(f"_{name}", _MISSING))
        if not _is_plain(value) or value in (parameter.default, *_make_empty(parameter.default)):
            continue
        text = repr(os.fspath(value)) if isinstance(value, os.PathLike) else repr(value)
        if len(text) <= LETTERS:
            shown.append(f"{name}={text}")
    return f"{type(self).__name__}({', '.join(shown)})"


def _make_empty(default: Any) -> tuple[list[Any], ...]:
    """Return the empty list, as which objects may keep an empty default."""
    return ([],) if isinstance(default, tuple) and not default else ()


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(each) for each in value)
    return value is None or isinstance(value, bool | int | float | str | os.PathLike)
