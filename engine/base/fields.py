"""Options as fields of dataclasses, from which all that users meet is derived.

    @check_arguments
    @dataclass(frozen=True, kw_only=True)
    class StepOptions:
        threads: int | None = declare_option(None, "Threads per step.", AT_LEAST_1)

    @expand_options(StepOptions)
    def train(model: str, **options: Unpack[StepKeywords]) -> None: ...

A field holds the type, default, range, help text and spelling of an option.  `expand_options`
writes it into the signature and the docstring of a function that takes it as a keyword; a command
has it as an option, a table of a TOML file as a key, and docs/commands.md as a row.
`describe_fields` writes it into the docstring of its class.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from engine.base.signatures import DECLARATION, FREE, Check, Range

T = TypeVar("T")
_WIDTH = 100  # of a docstring
_ROW = re.compile(r"^(\w+(?:, \w+)*): .*(?:\n +\S.*)*", re.MULTILINE)  # of a docstring


class OptionDeclaration(NamedTuple):
    """The part of an option that its type and default do not say.

    text: help, as a sentence.
    range: the numbers that are allowed.
    check: a further check, which gets the name and the value; returns the value to keep.
    flag: the spelling of the option of a command; empty: derived from the name.
    metavar: the placeholder of its value in the help of a command.
    words: reads the words given to a command, if they are not the value itself.
    """

    text: str
    range: Range = FREE
    check: Check | None = None
    flag: str = ""
    metavar: str = ""
    words: Callable[[Sequence[str]], Any] | None = None


def declare_option(
    default: Any,
    text: str,
    range: Range = FREE,
    *,
    check: Check | None = None,
    flag: str = "",
    metavar: str = "",
    words: Callable[[Sequence[str]], Any] | None = None,
) -> Any:
    """Return a field of a dataclass of options; see `Declaration`."""
    metadata = {DECLARATION: OptionDeclaration(text, range, check, flag, metavar, words)}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def inherit_option(kind: type, name: str, default: Any) -> Any:
    """Return the field of a base class with another default."""
    field = find_field(kind, name)
    return dataclasses.field(default=default, metadata=field.metadata)


def find_field(kind: type, name: str) -> dataclasses.Field[Any]:
    fields: dict[str, dataclasses.Field[Any]] = vars(kind)["__dataclass_fields__"]
    return fields[name]


def read_declaration(field: dataclasses.Field[Any]) -> OptionDeclaration:
    """Return the declaration of a field that `declare_option` has made."""
    declared: OptionDeclaration = field.metadata[DECLARATION]
    return declared


def list_options(kind: Any) -> list[dataclasses.Field[Any]]:
    """Return the options of a dataclass: its own ones, then the inherited ones."""
    own = vars(kind).get("__annotations__", {})
    return sorted(dataclasses.fields(kind), key=lambda field: field.name not in own)


def select_options(options: Any, kind: type[T]) -> T:
    """Return the options that a smaller dataclass has too, as an instance of it."""
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]  # of options
    return kind(**{name: getattr(options, name) for name in names})


def expand_options(kind: type) -> Callable[[T], T]:
    """Expand `**options` of a function, or of a class's constructor, into the options of `kind`.

    The signature and the docstring list them as if they had been written there.
    """

    def expand(target: T) -> T:
        function: Any = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]  # of this very class
        function.__signature__ = _expand(inspect.signature(function), kind)
        described: Any = target
        if target.__doc__:
            described.__doc__ = _with_rows(target.__doc__, kind)
        return target

    return expand


def describe_fields(kind: type[T]) -> type[T]:
    """Add to the docstring of a dataclass a row for each field that it does not describe itself.

    A row is the text of the field's declaration, or the row of a base class.

    Raises:
        TypeError: no docstring describes a field.
    """
    described = inspect.cleandoc(kind.__doc__ or "")
    own, inherited = _find_rows(described), dict[str, str]()
    for base in reversed(kind.__mro__):
        inherited |= _find_rows(inspect.cleandoc(vars(base).get("__doc__") or ""))
    rows = []
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # of a dataclass
        if field.name in own:
            continue
        if DECLARATION in field.metadata:
            rows += _wrap_row(field, "")
        elif field.name in inherited:
            rows += [inherited[field.name]]
        else:
            raise TypeError(f"no docstring of {kind.__name__} describes its field {field.name!r}")
    rows = list(dict.fromkeys(rows))  # one row may describe several fields
    kind.__doc__ = "\n".join([described, *([] if own or not rows else [""]), *rows])
    return kind


def _find_rows(docstring: str) -> Mapping[str, str]:
    """Return the rows of a docstring by the names that they describe."""
    return {name: row[0] for row in _ROW.finditer(docstring) for name in row[1].split(", ")}


def _expand(signature: inspect.Signature, kind: type) -> inspect.Signature:
    *parameters, rest = signature.parameters.values()
    if rest.kind is not rest.VAR_KEYWORD:
        raise TypeError("expected a function with **options")
    for field in dataclasses.fields(kind):
        parameters.append(
            inspect.Parameter(
                field.name, rest.KEYWORD_ONLY, default=field.default, annotation=field.type
            )
        )
    return signature.replace(parameters=parameters)


def _with_rows(docstring: str, kind: type) -> str:
    """Return a docstring with a row for each option at the end of its section `Args:`."""
    lines = docstring.splitlines()
    (head,) = (at for at, line in enumerate(lines) if line.strip() == "Args:")
    end = next((at for at in range(head, len(lines)) if not lines[at].strip()), len(lines))
    indent = " " * (len(lines[head]) - len(lines[head].lstrip()) + 4)
    return "\n".join([*lines[:end], *_list_rows(kind, indent), *lines[end:]])


def _list_rows(kind: type, indent: str) -> Iterator[str]:
    for field in dataclasses.fields(kind):
        yield from _wrap_row(field, indent)


def _wrap_row(field: dataclasses.Field[Any], indent: str) -> list[str]:
    row = f"{field.name}: {read_declaration(field).text}"
    return textwrap.wrap(row, _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}    ")
