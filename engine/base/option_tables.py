"""Tables of options from a TOML file or from words `NAME=VALUE`, for a class or function.

The names, types and defaults of options are in one place, the signature of the class or function
that takes them.  An unknown name is refused with the nearest one, and a value that does not fit as
the function itself refuses it (`engine.base.signatures`).
"""

from __future__ import annotations

import dataclasses
import inspect
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from engine.base import other_names
from engine.base.errors import InputError, suggest_nearest
from engine.base.signatures import check_values, describe_annotation

Made = TypeVar("Made")

_UNIONS = (types.UnionType, typing.Union)
_WORDS = {"a mapping": "a table", "True or False": "true or false"}  # Python's, and TOML's


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """The type of an option, and its default; `MISSING` if it must be given."""

    type: Any
    default: Any


def list_options(maker: Callable[..., Any]) -> dict[str, Option]:
    """Return the options that a class or function takes by name, in order."""
    holder = maker
    if isinstance(maker, type) and not dataclasses.is_dataclass(maker):
        holder = maker.__init__  # type: ignore[misc]  # the signature of this very class
    kinds = typing.get_type_hints(holder)
    known = {}
    for name, parameter in inspect.signature(maker).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        default = parameter.default
        if default is parameter.empty:
            default = dataclasses.MISSING
        elif dataclasses.is_dataclass(maker):
            default = _find_default(maker, name, default)
        known[name] = Option(kinds.get(name, Any), default)
    return known


def _find_default(maker: Any, name: str, default: Any) -> Any:
    """Return the default of a dataclass's field, also if a factory makes it."""
    (field,) = (f for f in dataclasses.fields(maker) if f.name == name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return default


def make(maker: Callable[..., Made], table: Mapping[str, Any], place: str, **given: Any) -> Made:
    """Call a class or function with the options in a table; return the result.

    place: the name of the table in messages.
    given: options that cannot be in the table.

    Raises:
        InputError: an unknown name, or one that is missing.
        DTypeError: a value of another type.
    """
    known = {name: option for name, option in list_options(maker).items() if name not in given}
    for name in table:
        if name not in known:
            advice = other_names.suggest_in_toml(name) or suggest_nearest(name, known)
            raise InputError(f"{place}: unknown key {name!r}{advice or _join_names(known)}")
    values = {n: fit_value(v, known[n].type, f"{place}: {n}") for n, v in table.items()}
    for name, option in known.items():
        if option.default is dataclasses.MISSING and name not in values:
            raise InputError(f"{place}: {name!r} is missing")
    return maker(**given, **check_values(maker, values, place))


def to_plain(value: Any) -> Any:
    """Return a value as texts, numbers, lists and tables, from which `fit_value` makes it again.

    An instance of a dataclass becomes the table of its options that do not have their defaults.

    Raises:
        InputError: it has no such form.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return to_plain(value.tolist())
    if dataclasses.is_dataclass(value):
        kind = type(value)
        options = {f.name: (f.default, getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {
            name: to_plain(option)
            for name, (default, option) in options.items()
            if isinstance(option, np.ndarray) or option != _find_default(kind, name, default)
        }
    if isinstance(value, Mapping):
        return {key: to_plain(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [to_plain(each) for each in value]
    raise InputError(f"{value!r} cannot be written as TOML and JSON")


def _join_names(known: Mapping[str, Any]) -> str:
    return f"; known: {', '.join(known)}" if known else "; it takes none"


def fit_value(value: Any, kind: Any, place: str) -> Any:
    """Return a value of TOML in the form that a type asks for; whether it fits is not checked.

    Tables become instances of dataclasses, lists tuples, one text a tuple of texts, and whole
    numbers floats.  An empty table is None where that is allowed.

    Raises:
        InputError, DTypeError: a table does not fit the dataclass.
    """
    kinds = list_kinds(kind)
    origins = {typing.get_origin(each) or each: typing.get_args(each) for each in kinds}
    classes = [each for each in origins if isinstance(each, type)]
    if isinstance(value, Mapping):
        for maker in filter(dataclasses.is_dataclass, classes):
            return make(maker, value, place) if value or type(None) not in classes else None
        for each in (each for each in classes if issubclass(each, Mapping) and origins[each]):
            return {k: fit_value(v, origins[each][1], f"{place}.{k}") for k, v in value.items()}
    lists = [each for each in classes if issubclass(each, Sequence) and each is not str]
    if isinstance(value, str) and str not in classes and any(str in origins[e] for e in lists):
        return (value,)
    if isinstance(value, list | tuple) and lists:
        inner = origins[lists[0]]
        if lists[0] is tuple and Ellipsis not in inner and len(inner) == len(value):
            return tuple(fit_value(v, k, place) for v, k in zip(value, inner, strict=True))
        return tuple(fit_value(v, inner[0] if inner else Any, place) for v in value)
    is_whole = type(value) is int and float in classes and int not in classes
    return float(value) if is_whole else value


def list_kinds(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union of types, or the one type."""
    return typing.get_args(kind) if typing.get_origin(kind) in _UNIONS else (kind,)


def describe(kind: Any) -> str:
    """Return a type in the words of TOML, such as "a whole number"."""
    kinds = list_kinds(kind)
    words = [
        "a table" if dataclasses.is_dataclass(each) else describe_annotation(each)
        for each in kinds
        if each is not type(None)
    ]
    return " or ".join(dict.fromkeys(_WORDS.get(each, each) for each in words))


def parse_assignments(words: Sequence[str], option: str) -> dict[str, Any]:
    """Return the values of words `NAME=VALUE`, read as TOML or, if they are not TOML, as text.

    Raises:
        InputError: a word has no `=`, or a name comes twice.
    """
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.strip():
            raise InputError(f"{option} {word!r}: expected NAME=VALUE")
        if name.strip() in values:
            raise InputError(f"{option}: {name.strip()!r} is given twice")
        values[name.strip()] = parse_value(text.strip())
    return values


def parse_value(text: str) -> Any:
    """Return the value of a text in TOML; the text itself if it is not TOML."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if len(table) == 1 else text
