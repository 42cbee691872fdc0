"""Tables of options, as a TOML file or words `NAME=VALUE` give them, for what takes the options.

The names, types and defaults of options stand in one place, the signature of the class or function
that takes them.  A name that it lacks is refused with the nearest one, a value of another type with
what is expected.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from engine.errors import DTypeError, InputError, nearest

Made = TypeVar("Made")

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """An option: the type that it must have, and its default; `MISSING` if it must be given."""

    type: Any
    default: Any


def options(maker: Callable[..., Any]) -> dict[str, Option]:
    """The options that a class or function takes by name, in order."""
    holder = maker
    if isinstance(maker, type) and not dataclasses.is_dataclass(maker):
        holder = maker.__init__  # type: ignore[misc]  # the signature of this very class
    kinds = typing.get_type_hints(holder)
    found = {}
    for name, parameter in inspect.signature(maker).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        default = parameter.default
        if default is parameter.empty:
            default = dataclasses.MISSING
        elif dataclasses.is_dataclass(maker):
            default = _default(maker, name, default)
        found[name] = Option(kinds.get(name, Any), default)
    return found


def _default(maker: Any, name: str, default: Any) -> Any:
    """The default of a dataclass's field, also where a factory makes it."""
    (field,) = (f for f in dataclasses.fields(maker) if f.name == name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return default


def make(maker: Callable[..., Made], table: Mapping[str, Any], place: str, **given: Any) -> Made:
    """What a class or function makes of a table of its options.

    place: what messages call the table.
    given: options that are no business of the table.

    Raises:
        InputError: an unknown name, or one that is missing.
        DTypeError: a value of another type.
    """
    known = {name: option for name, option in options(maker).items() if name not in given}
    for name in table:
        if name not in known:
            raise InputError(
                f"{place}: unknown key {name!r}{nearest(name, known) or _listed(known)}"
            )
    values = {n: convert(v, known[n].type, f"{place}: {n}") for n, v in table.items()}
    for name, option in known.items():
        if option.default is dataclasses.MISSING and name not in values:
            raise InputError(f"{place}: {name!r} is missing")
    return maker(**given, **values)


def _listed(known: Mapping[str, Any]) -> str:
    return f"; known: {', '.join(known)}" if known else "; it takes none"


def convert(value: Any, kind: Any, place: str) -> Any:
    """A value as a type: whole numbers as floats, lists as tuples, one text as a tuple of texts.

    Raises:
        DTypeError: it is of another type.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        return _of_union(value, inner, place)
    if origin is typing.Literal:
        if value in inner and type(value) in {type(each) for each in inner}:
            return value
        near = nearest(value, [each for each in inner if isinstance(each, str)])
        raise InputError(f"{place} = {value!r}: expected one of {_choices(inner)}{near}")
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            raise _wrong(value, kind, place)
        return make(kind, value, place)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(value, kind, place)
        return {k: convert(v, inner[1], f"{place}.{k}") for k, v in value.items()}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _of_sequence(value, kind, inner, place)
    if kind is float and type(value) is int:
        return float(value)
    if not isinstance(kind, type) or type(value) is not kind:
        raise _wrong(value, kind, place)
    return value


def _of_union(value: Any, kinds: Sequence[Any], place: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    exact = [kind for kind in kinds if kind is type(value)]
    for kind in (*exact, *(k for k in kinds if k is not type(None) and k not in exact)):
        try:
            return convert(value, kind, place)
        except (DTypeError, InputError):
            continue
    raise _wrong(value, functools.reduce(operator.or_, kinds), place)


def _of_sequence(value: Any, kind: Any, inner: Sequence[Any], place: str) -> tuple[Any, ...]:
    values = [value] if isinstance(value, str) and str in inner else value
    if not isinstance(values, list | tuple):
        raise _wrong(value, kind, place)
    if typing.get_origin(kind) is tuple and inner[-1] is not Ellipsis:
        if len(values) != len(inner):
            raise _wrong(value, kind, place)
        return tuple(convert(v, k, place) for v, k in zip(values, inner, strict=True))
    return tuple(convert(v, inner[0], place) for v in values)


def _wrong(value: Any, kind: Any, place: str) -> DTypeError:
    return DTypeError(f"{place} = {value!r}: expected {describe(kind)}")


def _choices(values: Sequence[Any]) -> str:
    return ", ".join(f'"{v}"' if isinstance(v, str) else str(v) for v in values)


def describe(kind: Any) -> str:
    """A type in words, as "a whole number", "a list of texts"."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        named = [k for k in inner if k is not type(None)]
        return " or ".join(dict.fromkeys(map(describe, named)))
    if origin is typing.Literal:
        return f"one of {_choices(inner)}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a table"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        if origin is tuple and inner[-1] is not Ellipsis:
            return f"a list of {len(inner)}: {', '.join(map(describe, inner))}"
        return f"a list, each {describe(inner[0])}"
    if dataclasses.is_dataclass(kind):
        return "a table"
    if kind in _WORDS:
        return _WORDS[kind]
    return "anything" if kind is Any else getattr(kind, "__name__", str(kind))


def assignments(words: Sequence[str], option: str) -> dict[str, Any]:
    """The values of words `NAME=VALUE`; a value is read as TOML, and is a text if it is none.

    Raises:
        InputError: a word has no `=`, or a name comes twice.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.strip():
            raise InputError(f"{option} {word!r}: expected NAME=VALUE")
        if name.strip() in found:
            raise InputError(f"{option}: {name.strip()!r} is given twice")
        found[name.strip()] = value_of(text.strip())
    return found


def value_of(text: str) -> Any:
    """A value as TOML writes it; a text that is none is that text."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if len(table) == 1 else text
