"""Checks of the arguments of a function or class by the annotations of its parameters.

    @check_arguments(repeats=AT_LEAST_1)
    def profile(path: str | os.PathLike[str], repeats: int = 20) -> Profile: ...

The annotation of a parameter alone says which values are allowed:

    bool, int, float, str     one of these, or a scalar of NumPy; no bool for a number, no NaN or
                              infinity (unless the range says so), no text without a UTF-8 form
    str | os.PathLike[str]    a path, see `arguments.check_path`
    Sequence[T], tuple[T, ...], Iterable[T], Mapping[K, V]
                              one of these with such items; a text alone is not a sequence of texts
    Literal[...], None, A | B one of these
    Callable[...]             something that can be called
    a class                   an instance of it; of a protocol, something that has its members
    an array of NumPy         what `arguments.make_array` takes, of numbers
    Any, or no annotation     anything: the function itself checks it

A `Range` limits numbers.  Names that a module imports for type checkers alone are
compared with the names of classes, so that nothing is imported for a check.  Annotations are read
at the first call, not at import.
"""

from __future__ import annotations

import builtins
import collections.abc
import functools
import inspect
import math
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, overload

import numpy as np

from engine.base import arguments, other_names
from engine.base.errors import DTypeError, EngineError, InputError, suggest_nearest

T = TypeVar("T")
Check = Callable[[str, Any], Any]  # takes the name and the value; returns what the function gets
_LARGEST = 1 << 64  # no number that means anything here is larger
_ITEMS = 1 << 16  # of a sequence or mapping, which are checked; longer ones are data
DECLARATION = "engine"  # in the metadata of a field: its range and check, see fields.py
_CHECKS = "engine_checks"  # attribute of a function that is checked: a function that returns them
_VARIABLE, _KEYWORDS = 4, 8  # flags of code objects: *args, **options


class Range(NamedTuple):
    """The range of a number, or of every number of a sequence, mapping or array.

    low, high: the bounds, which belong to the range unless `above` or `below` says otherwise.
    finite: whether infinity and NaN are refused.
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False
    finite: bool = True

    def holds(self, value: Any) -> bool:
        """Return whether a number, or each of an array, is in the range; NaN always is."""
        low = self.low < value if self.above else self.low <= value
        high = value < self.high if self.below else value <= self.high
        return bool(np.all((low & high) | (value != value)))

    def __str__(self) -> str:
        low = f"above {self.low}" if self.above else f"from {self.low}"
        high = f"to below {self.high}" if self.below else f"to {self.high}"
        if self.high == math.inf:
            return low if self.above else f"{self.low} or more"
        return f"{low} {high}" if self.low > -math.inf else high.removeprefix("to ")


AT_LEAST_0, AT_LEAST_1, ABOVE_0 = Range(0), Range(1), Range(0, above=True)
SHARE, BELOW_1 = Range(0, 1), Range(0, 1, below=True)
FINITE, ANY, FREE = Range(), Range(finite=False), Range()  # FREE: arrays are not looked at


class _Kind(NamedTuple):
    """A kind of value: its check, and its name in messages."""

    check: Check
    words: str
    is_list: bool = False  # of all values that are allowed


@overload
def check_arguments(target: T, /) -> T: ...
@overload
def check_arguments(**ranges: Range) -> Callable[[T], T]: ...
def check_arguments(target: Any = None, /, **ranges: Range) -> Any:
    """Check every argument of a function, or of all public methods of a class, before it runs.

    ranges: the ranges of numbers, by the names of parameters.

    The function gets the values as given, except that numbers and texts become Python's own, and
    an iterator becomes a list where a sequence is expected.

    Raises, when it is called:
        DTypeError: an argument is of another kind.
        InputError, FileError: it has a value that is not allowed.
    """
    if target is None:
        return lambda target: _wrap(target, ranges)
    return _wrap(target, ranges)


def _wrap(target: Any, ranges: Mapping[str, Range]) -> Any:
    if not isinstance(target, type):
        return _wrap_function(target, ranges)
    for name, member in list(vars(target).items()):
        if name.startswith("_") and name not in ("__init__", "__call__"):
            continue
        if isinstance(member, staticmethod | classmethod):
            setattr(target, name, type(member)(_wrap_function(member.__func__, ranges, target)))
        elif isinstance(member, types.FunctionType):
            setattr(target, name, _wrap_function(member, ranges, target))
    return target


def check_fields(what: str, value: Any) -> None:
    """Check the fields of an instance of a dataclass that takes them unchecked.

    what: the name of the instance in errors; the name of the field follows.

    Raises:
        DTypeError, InputError: as a function that is `check_arguments`.
    """
    for name, check in _find_checks(type(value)).items():
        if check is not None and name != "self":
            _pass_value(check, f"{what} {name}", getattr(value, name))


def check_values(
    maker: Callable[..., Any], values: Mapping[str, Any], place: str
) -> dict[str, Any]:
    """Check arguments by name for a function or class, without a call of it.

    place: the beginning of messages; the name of the argument follows.

    Returns the values that it would get.

    Raises:
        DTypeError, InputError: as the call of a function that is `check_arguments`.
    """
    checks = _find_checks(maker)
    passed = dict(values)
    for name, value in values.items():
        check = checks.get(name)
        if check is not None:
            passed[name] = _pass_value(check, f"{place}: {name}", value)
    return passed


def _find_checks(maker: Callable[..., Any]) -> Mapping[str, Check | None]:
    """Return the checks of parameters, by their names."""
    owner = maker if isinstance(maker, type) else None
    function: Any = maker if owner is None else owner.__init__  # type: ignore[misc]  # of this class
    made: Callable[[], _Checks] | None = vars(function).get(_CHECKS)
    return (_make_checks(function, {}, owner) if made is None else made()).names


def describe_annotation(annotation: Any) -> str:
    """Return an annotation in words, such as "a whole number"."""
    kind = _find_kind(annotation, FREE)
    return "anything" if kind is None else kind.words


class _Checks(NamedTuple):
    """The checks of a function's arguments: by position, of all further ones, by name.

    known: the names of all arguments; None if keywords may have any.
    """

    positions: tuple[tuple[str, Check | None], ...]
    rest: tuple[str, Check | None]
    names: dict[str, Check | None]
    options: Check | None
    known: tuple[str, ...] | None


def _wrap_function(
    function: Callable[..., Any], ranges: Mapping[str, Range], owner: type | None = None
) -> Callable[..., Any]:
    """Return a function that checks its arguments first; the same one if it takes anything."""
    hints = [hint for name, hint in function.__annotations__.items() if name != "return"]
    if all(hint in ("Any", Any) for hint in hints):
        return function
    made: _Checks | None = None

    def make_checks() -> _Checks:
        nonlocal made
        made = made or _make_checks(function, ranges, owner)
        return made

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        checks = made or make_checks()
        given = []
        if len(args) > len(checks.positions) and not checks.rest[0]:
            raise _refuse_positions(function, [name for name, _ in checks.positions], len(args))
        for at, value in enumerate(args):
            name, check = checks.positions[at] if at < len(checks.positions) else checks.rest
            given.append(value if check is None else _pass_value(check, name, value))
        for name, value in options.items():
            if checks.known is not None and name not in checks.known:
                raise _refuse_keyword(function, owner, name, checks.known)
            check = checks.names.get(name, checks.options)
            if check is not None:
                options[name] = _pass_value(check, name, value)
        return function(*given, **options)

    vars(call)[_CHECKS] = make_checks
    return call


def _refuse_positions(function: Callable[..., Any], names: Sequence[str], count: int) -> TypeError:
    """Return the error of more arguments than a function takes by position.

    names: the names of those that it takes.
    """
    title = function.__qualname__.removesuffix(".__init__")
    first = next((name for name in names if name != "self"), "")
    return TypeError(
        f"{title}() takes {len(names)} positional argument{'s' * (len(names) != 1)} but {count} "
        f"were given{other_names.suggest_pair(first)}"
    )


def _refuse_keyword(
    function: Callable[..., Any], owner: type | None, name: str, known: Sequence[str]
) -> TypeError:
    """Return the error of a keyword that a function does not take, with what may be meant."""
    title = function.__qualname__.removesuffix(".__init__")
    hint = other_names.suggest_in_python(name) or suggest_nearest(name, known)
    if not hint and owner is not None:
        takers = [
            f"{owner.__name__}.{each}"
            for each in dir(owner)
            if not each.startswith("_") and inspect.isroutine(getattr(owner, each))
            and name in inspect.signature(getattr(owner, each)).parameters
        ]  # fmt: skip
        names = " and ".join(filter(None, (", ".join(takers[:-1]), *takers[-1:])))
        hint = f"; {names} {'take' if takers[1:] else 'takes'} it" if takers else ""
    return TypeError(f"{title}() got an unexpected keyword argument {name!r}{hint}")


def _pass_value(check: Check, name: str, value: Any) -> Any:
    """Return the value as the function gets it."""
    try:
        return check(name, value)
    except EngineError:
        raise
    except Exception as error:  # whatever the methods of an object of somebody else raise
        raise DTypeError(
            f"{name}: {type(value).__name__} cannot be read: {type(error).__name__}"
        ) from error


def _make_checks(
    function: Callable[..., Any], ranges: Mapping[str, Range], owner: type | None
) -> _Checks:
    inner: Any = function
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    scopes = _find_scopes(owner) if inner.__name__ == "__init__" and owner is not None else {}
    made: dict[str, Check | None] = {}
    fields = vars(owner).get("__dataclass_fields__", {}) if scopes else {}
    for name, hint in inner.__annotations__.items():
        if isinstance(hint, str) and hint.startswith("Unpack["):
            continue  # the dataclass that is made of these keywords checks them
        scope = scopes.get(name, inner.__globals__)
        declared = fields[name].metadata.get(DECLARATION) if name in fields else None
        numbers = ranges.get(name, FREE) if declared is None else declared.range
        kind = _find_kind(_evaluate(hint, scope), numbers)
        made[name] = None if kind is None else kind.check
        if declared is not None and declared.check is not None:
            made[name] = _chain(made[name], declared.check)
    code = inner.__code__
    count, named = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames
    has_rest, has_options = bool(code.co_flags & _VARIABLE), bool(code.co_flags & _KEYWORDS)
    return _Checks(
        tuple((n, made.get(n)) for n in names[:count]),
        (names[named], made.get(names[named])) if has_rest else ("", None),
        {n: made.get(n) for n in names[:named]},
        made.get(names[named + has_rest]) if has_options else None,
        _list_known(function, names[:named], has_options),
    )


def _list_known(
    function: Callable[..., Any], names: Sequence[str], has_options: bool
) -> tuple[str, ...] | None:
    """Return the names of a function's arguments, the expanded ones included; None: any.

    names: the names of the arguments that its code has.
    """
    if not has_options:
        return tuple(names)
    expanded = vars(function).get("__signature__")
    return None if expanded is None else tuple(expanded.parameters)


def _chain(first: Check | None, second: Check) -> Check:
    """Return a check that gives the value of one check to another one."""

    def check(what: str, value: Any) -> Any:
        return second(what, value if first is None else first(what, value))

    return check


def _find_scopes(owner: type) -> dict[str, dict[str, Any]]:
    """Return the names that an annotation may hold, by field of a dataclass."""
    scopes: dict[str, dict[str, Any]] = {}
    for base in reversed(owner.__mro__):
        for name in vars(base).get("__dataclass_fields__", ()):
            if name in vars(base).get("__annotations__", ()):
                scopes[name] = vars(sys.modules[base.__module__])
    return scopes


# --- annotations


class _NamedClass:
    """A class that is known by its name alone, as its module is imported by type checkers only."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> _NamedClass:
        if name.startswith("__"):
            raise AttributeError(name)
        return _NamedClass(name)

    def __getitem__(self, arguments: object) -> _NamedClass:
        return self

    def __or__(self, other: Any) -> _Either:
        return _Either((self, *_list_members(other)))

    def __ror__(self, other: Any) -> _Either:
        return _Either((*_list_members(other), self))


class _Either(tuple[Any, ...]):
    """A union with members that are known by their names alone."""

    def __or__(self, other: Any) -> _Either:
        return _Either((*self, *_list_members(other)))

    def __ror__(self, other: Any) -> _Either:
        return _Either((*_list_members(other), *self))


class _Scope(dict[str, Any]):
    """The names that an annotation may hold; those that are not known are names of classes."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name) if hasattr(builtins, name) else _NamedClass(name)


def _evaluate(hint: Any, scope: Mapping[str, Any]) -> Any:
    """Evaluate an annotation, which is a text in every module of this package."""
    return eval(hint, {}, _Scope(scope)) if isinstance(hint, str) else hint


def _open_alias(hint: Any) -> Any:
    """Return the annotation that the name of a `type` statement stands for (PEP 695).

    On Python 3.12 and newer, NumPy 2.5 declares its `NDArray` so.  Its `ArrayLike` stays a name.
    """
    alias = typing.get_origin(hint) or hint
    if not hasattr(alias, "__value__") or getattr(alias, "__name__", "") == "ArrayLike":
        return hint
    value, given = alias.__value__, typing.get_args(hint)
    return _open_alias(value[given] if given else value)


def _list_members(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation itself."""
    hint = _open_alias(hint)
    if isinstance(hint, typing.ForwardRef):  # in an alias: a class that only type checkers import
        hint = _evaluate(hint.__forward_arg__, {})
    if isinstance(hint, _Either):
        return tuple(hint)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return tuple(m for each in typing.get_args(hint) for m in _list_members(each))
    return (type(None) if hint is None else hint,)


def _find_kind(hint: Any, numbers: Range) -> _Kind | None:
    """Return the kind of value that an annotation allows; None: anything.

    numbers: the range of its numbers.
    """
    members = _list_members(hint)
    paths = [m for m in members if typing.get_origin(m) is os.PathLike]
    if paths:
        members = (*(m for m in members if m is not str and m not in paths), paths[0])
    if any(m in _OCTETS for m in members):
        members = (*(m for m in members if m not in _OCTETS), bytes)
    if any(getattr(m, "__module__", "").startswith("numpy._typing") for m in members):
        return _make_array(numbers)  # npt.ArrayLike
    kinds = [_find_single_kind(member, numbers) for member in members]
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return None
    return known[0] if len(known) == 1 else _join_kinds(known)


def _join_kinds(kinds: Sequence[_Kind]) -> _Kind:
    """Return the kind of values that are of one of several kinds."""
    words = [kind.words for kind in kinds]
    told = f"{', '.join(words[:-1])} or {words[-1]}"

    def check(what: str, value: Any) -> Any:
        fault: EngineError | None = None
        for kind in kinds:
            try:
                return kind.check(what, value)
            except EngineError as error:
                if kind.is_list and isinstance(error, InputError):
                    shown = arguments.name_kind(value)
                    fault = InputError(f"{what}={shown}; expected {told}")
                elif not isinstance(error, DTypeError) or str(error).startswith(f"{what}["):
                    fault = fault or error  # it is of the right kind, so this says more
        raise fault or DTypeError(f"{what}: expected {told}, got {arguments.name_kind(value)}")

    return _Kind(check, told)


def _find_single_kind(hint: Any, numbers: Range) -> _Kind | None:
    """Return the kind of value that an annotation allows, one of `_list_members`."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint in _SCALARS:
        return _make_scalar(hint, numbers)
    if hint is bytes:
        return _make_instance("bytes", lambda value: isinstance(value, _OCTETS), "bytes")
    if hint is Any or hint is object or isinstance(hint, TypeVar):
        return None
    if isinstance(hint, _NamedClass):
        return _make_instance(
            hint.name, lambda v: hint.name in (c.__name__ for c in type(v).__mro__)
        )
    if origin is Literal:
        return _make_literal(inner)
    if origin is np.ndarray or hint is np.ndarray:
        return _make_array(numbers, "iu" if "int" in str(inner[1:]) else "")
    if origin is os.PathLike:
        return _Kind(arguments.check_path, "a path")
    if origin is collections.abc.Callable:
        return _make_instance("function", callable)
    if origin is tuple and inner and Ellipsis not in inner:
        return _make_tuple([_find_kind(each, numbers) for each in inner])
    if origin in (tuple, list, collections.abc.Sequence):
        return _make_sequence(_find_kind(inner[0], numbers) if inner else None)
    if origin in (collections.abc.Iterable, set, frozenset):
        return _make_instance("collection", _can_be_walked)
    if origin in (dict, collections.abc.Mapping):
        return _make_mapping(*(_find_kind(each, numbers) for each in inner))
    if origin is typing.IO:
        return _make_instance("stream", lambda value: hasattr(value, "write"))
    cls = origin or hint
    if isinstance(cls, type):
        if getattr(cls, "_is_protocol", False):
            members = [n for n in vars(cls) if not n.startswith("_") or n == "__call__"]
            return _make_instance(cls.__name__, lambda v: all(hasattr(v, n) for n in members))
        return _make_instance(cls.__name__, lambda value: isinstance(value, cls))
    return None


_OCTETS = (bytes, bytearray, memoryview)
_SCALARS = (bool, int, float, str, type(None))


def _make_scalar(hint: type, numbers: Range) -> _Kind:
    if hint is bool:
        return _Kind(arguments.check_flag, "True or False", is_list=True)
    if hint is str:
        return _Kind(arguments.check_text, "text")
    if hint is type(None):
        return _make_instance("None", lambda value: value is None, "None")
    read = _check_whole if hint is int else _check_real

    def check(what: str, value: Any) -> Any:
        number = read(what, value, numbers)
        if not numbers.holds(number):
            raise InputError(f"{what}={number!r}: expected {numbers}")
        return number

    return _Kind(check, "a whole number" if hint is int else "a number")


def _describe_range(numbers: Range) -> str:
    """Return a range in words, for the end of a message; empty if it has no bounds."""
    return f"; {numbers}" if numbers[:2] != FREE[:2] else ""


def _check_whole(what: str, value: Any, numbers: Range) -> int:
    number = arguments.count(what, value)
    if abs(number) >= _LARGEST:
        bits = number.bit_length()
        raise InputError(f"{what}: a number of {bits} bits is too large{_describe_range(numbers)}")
    return number


def _check_real(what: str, value: Any, numbers: Range) -> float:
    if not numbers.finite and isinstance(value, float | np.floating) and not math.isfinite(value):
        return float(value)
    number = arguments.check_real(what, value)
    return int(value) if type(value) is int else number


def _make_instance(name: str, holds: Callable[[Any], bool], words: str = "") -> _Kind:
    words = words or f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"

    def check(what: str, value: Any) -> Any:
        if not holds(value):
            raise DTypeError(f"{what}: expected {words}, got {arguments.name_kind(value)}")
        return value

    return _Kind(check, words)


def _make_literal(values: tuple[Any, ...]) -> _Kind:
    words = f"one of {', '.join(map(repr, values))}" if len(values) > 1 else repr(values[0])

    def check(what: str, value: Any) -> Any:
        kinds = {type(each) for each in values}
        if not isinstance(value, tuple(kinds)):
            raise DTypeError(f"{what}: expected {words}, got {arguments.name_kind(value)}")
        if value not in values:
            near = suggest_nearest(str(value), [each for each in values if isinstance(each, str)])
            raise InputError(f"{what}={arguments.name_kind(value)}; expected {words}{near}")
        return value

    return _Kind(check, words, is_list=True)


def _can_be_walked(value: Any) -> bool:
    """Return whether a value has items; texts do not count, whose items would be letters."""
    kind = type(value)
    is_text = isinstance(value, str | bytes | bytearray | memoryview)
    return not is_text and (hasattr(kind, "__iter__") or hasattr(kind, "__getitem__"))


def _make_sequence(item: _Kind | None) -> _Kind:
    if item is not None and item.words == "text":
        return _Kind(_check_names, "a list of names")
    words = "a list" if item is None else f"a list (each {item.words})"

    def check(what: str, value: Any) -> Any:
        if not _can_be_walked(value):
            raise DTypeError(f"{what}: expected {words}, got {arguments.name_kind(value)}")
        values = value if hasattr(type(value), "__len__") else list(value)
        if item is None or len(values) > _ITEMS:
            return values
        plain = values.tolist() if isinstance(values, np.ndarray) else values
        read = [item.check(f"{what}[{at}]", each) for at, each in enumerate(plain)]
        return tuple(read) if isinstance(values, tuple) else values

    return _Kind(check, words)


def _check_names(what: str, value: Any) -> Any:
    read = arguments.check_names(what, value)
    return tuple(read) if isinstance(value, tuple) else read


def _make_tuple(items: Sequence[_Kind | None]) -> _Kind:
    """Return the kind of a sequence with one value for each kind."""
    each = ", ".join("anything" if item is None else item.words for item in items)
    words = f"{len(items)} values ({each})"

    def check(what: str, value: Any) -> Any:
        values = tuple(value) if _can_be_walked(value) else None
        if values is None:
            raise DTypeError(f"{what}: expected {words}, got {arguments.name_kind(value)}")
        if len(values) != len(items):
            raise InputError(f"{what}: expected {words}, got {len(values)}")
        return tuple(
            v if item is None else item.check(f"{what}[{at}]", v)
            for at, (item, v) in enumerate(zip(items, values, strict=True))
        )

    return _Kind(check, words)


def _make_mapping(key: _Kind | None = None, item: _Kind | None = None) -> _Kind:
    def check(what: str, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise DTypeError(f"{what}: expected a mapping, got {arguments.name_kind(value)}")
        for name, each in value.items() if len(value) <= _ITEMS else ():
            if key is not None:
                key.check(f"a key of {what}", name)
            if item is not None:
                item.check(f"{what}[{arguments.name_kind(name)}]", each)
        return value

    return _Kind(check, "a mapping")


def _make_array(numbers: Range, kinds: str = "") -> _Kind:
    """Return the kind of value that NumPy can make an array of.

    kinds: the kinds of its elements, as NumPy names them; "" for any.
    """

    def check(what: str, value: Any) -> Any:
        if isinstance(value, str | bytes) or value is None:
            raise DTypeError(f"{what}: expected an array, got {arguments.name_kind(value)}")
        read = arguments.make_array(what, value)
        if read.dtype == object:
            raise DTypeError(f"{what}: expected an array, got {arguments.name_kind(value)}")
        if kinds and read.size and read.dtype.kind not in kinds:
            raise DTypeError(f"{what}: expected whole numbers, got {read.dtype}")
        if numbers is not FREE:
            plain = arguments.cast(what, read, np.dtype("f8"))
            if not np.all(np.isfinite(plain)) or not numbers.holds(plain):
                raise InputError(f"{what}: expected finite numbers{_describe_range(numbers)}")
        return value

    return _Kind(check, "an array")
