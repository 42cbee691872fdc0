"""Checks of what callers pass: each names the argument, its value and what is expected."""

from __future__ import annotations

import math
import operator
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import DTypeError, FileError, InputError, ShapeError, join_names

_UNITS = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30
}  # fmt: skip
_SHOWN = 80  # characters of a text
_DIGITS = 20  # 2^64 has as many
_AMOUNT = re.compile(
    rf"(\d{{1,{_DIGITS}}}(?:\.\d{{1,{_DIGITS}}})?)\s*({'|'.join(_UNITS)})", re.IGNORECASE | re.ASCII
)
_ODD = complex | np.complexfloating | np.datetime64 | np.timedelta64  # float() may take them


def expect(what: str, value: Any, kind: type) -> None:
    """Check that `value` is an instance of a class.

    Raises:
        DTypeError: it is not.
    """
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise DTypeError(f"{what}: expected {article} {kind.__name__}, got {name_kind(value)}")


def check_path(what: str, value: Any) -> str:
    """Return a path as text.

    Raises:
        DTypeError: it is not a path.
        FileError: it holds a null character, so no file can have it, or has no UTF-8 form.
    """
    try:
        name = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    except Exception:
        name = None
    if not isinstance(name, str):
        raise DTypeError(f"{what}: expected a path, got {name_kind(value)}")
    if "\0" in name:
        raise FileError(f"{what}: {name!r} contains a null character, which no file name may")
    if not _has_utf_8(name):
        raise FileError(f"{what}: {name!r} cannot be written as UTF-8, which reports need")
    return name


def check_prefix(what: str, value: Any) -> str:
    """Return the beginning of names of files, which has no folder, so that they stay in theirs.

    Raises:
        DTypeError: it is not text.
        FileError: as `check_path`, or it has a separator of paths or a drive.
    """
    name = check_path(what, value)
    if "/" in name or "\\" in name or name[1:2] == ":":
        raise FileError(f"{what}={name!r}: expected the beginning of a name, without a folder")
    return name


def check_bytes(what: str, value: Any) -> memoryview:
    """Return the bytes of a `bytes`, `bytearray` or `memoryview`, without a copy.

    Raises:
        DTypeError: it has another type, or its bytes do not lie one after another.
    """
    if not isinstance(value, bytes | bytearray | memoryview):
        raise DTypeError(f"{what}: expected bytes, got {name_kind(value)}")
    view = memoryview(value)
    if not view.c_contiguous:
        raise DTypeError(f"{what}: expected contiguous bytes, got strides {view.strides}")
    return view.cast("B")


class DefaultName(str):
    """A name that nobody has chosen: where something has it already, another one is made of it."""

    __slots__ = ()


def check_text(what: str, value: Any) -> str:
    """Return text that can be written to a file as UTF-8.

    Raises:
        DTypeError: it is not text.
        InputError: it has no UTF-8 form.
    """
    if not isinstance(value, str):
        raise DTypeError(f"{what}: expected text, got {name_kind(value)}")
    if not _has_utf_8(value):
        raise InputError(f"{what} {value!r} cannot be written as UTF-8: it contains surrogates")
    return value if isinstance(value, DefaultName) else str.__str__(value)


def _has_utf_8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # a half of a surrogate pair alone
        return False
    return True


def check_names(what: str, value: Any) -> list[str]:
    """Return a list of names.  One text alone is refused, since it would be a list of its letters.

    Raises:
        InputError: it is not a list of names.
    """
    try:
        listed = None if isinstance(value, str | bytes | bytearray | memoryview) else list(value)
    except Exception:
        listed = None
    if listed is None:
        raise InputError(f"{what}: expected a list of names, got {name_kind(value)}")
    for name in listed:
        if not isinstance(name, str):
            raise InputError(f"{what}: expected a list of names, got {name_kind(name)} in it")
    return [check_text(what, name) for name in listed]


def check_flag(what: str, value: Any) -> bool:
    """Return True or False; 1 and 0 stand for them.

    Raises:
        DTypeError: it is neither.
        InputError: it is another whole number.
    """
    if not isinstance(value, bool | int | np.bool_ | np.integer):
        raise DTypeError(f"{what}: expected True or False, got {name_kind(value)}")
    if value not in (0, 1):
        raise InputError(f"{what}: expected True or False, got {name_kind(value)}")
    return bool(value)


def count(what: str, value: Any) -> int:
    """Return a whole number.

    Raises:
        DTypeError: it is not a whole number.
    """
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return operator.index(value)
    except Exception:
        raise DTypeError(f"{what}: expected a whole number, got {name_kind(value)}") from None


def parse_digits(what: str, value: str, low: int, high: int) -> int:
    """Return a whole number that a text spells in ASCII digits alone: no sign, space or underscore.

    Raises:
        InputError: the text is not one, or the number is not from `low` to `high`.
    """
    few = len(value) <= _DIGITS
    if not (few and value.isascii() and value.isdecimal() and low <= int(value) <= high):
        shown = value if few else f"{value[:_DIGITS]}..."
        raise InputError(f"{what}={shown!r}: expected a whole number from {low} to {high}")
    return int(value)


def check_nbytes(what: str, value: Any) -> int:
    """Return a number of bytes, at least 1: an integer, or text as "48 MB", "48MiB", "1.5 GB".

    kB, MB and GB are powers of 1000, KiB, MiB and GiB of 1024; fractions of a byte are dropped.

    Raises:
        DTypeError: it is neither an integer nor text.
        InputError: the text does not give a number of bytes, or it is less than 1.
    """
    if isinstance(value, str):
        amount = _AMOUNT.fullmatch(value.strip())
        if amount is None:
            units = ", ".join(_UNITS)
            raise InputError(
                f"{what}={value!r}: expected a number of bytes, such as '48 MB'; units: {units}"
            )
        factor = next(n for unit, n in _UNITS.items() if unit.lower() == amount[2].lower())
        whole, _, decimals = amount[1].partition(".")
        value = int(whole + decimals) * factor // 10 ** len(decimals)
    size = count(what, value)
    if size < 1:
        raise InputError(f"{what}={size}: expected at least 1 byte")
    return size


def check_real(what: str, value: Any) -> float:
    """Return a finite number.

    Raises:
        DTypeError: it is not a number.
        InputError: it is not finite, or too large.
    """
    try:
        if isinstance(value, str | bytes | bytearray | bool | np.bool_ | _ODD):
            raise TypeError
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError
        number = float(value)
    except OverflowError:
        raise InputError(f"{what} {value!r} is too large") from None
    except Exception:
        raise DTypeError(f"{what}: expected a number, got {name_kind(value)}") from None
    if not math.isfinite(number):
        raise InputError(f"{what} {value!r} is not finite")
    return number


def check_number(what: str, value: Any) -> float:
    """Return a finite number rounded to float32.

    Raises:
        DTypeError, InputError: as `check_real`, or it is too large for float32.
    """
    with np.errstate(over="ignore", under="ignore"):
        rounded = float(np.float32(check_real(what, value)))
    if not math.isfinite(rounded):
        raise InputError(f"{what} {value!r} is too large for float32")
    return rounded


def check_shape(what: str, value: Any) -> tuple[int, ...]:
    """Return the shape of a tensor that has elements, as a tuple.

    Raises:
        ShapeError: it is not a sequence of positive whole numbers.
    """
    try:
        dims = tuple(operator.index(d) for d in value)
    except (TypeError, NotImplementedError):  # the latter of memoryviews
        raise ShapeError(f"{what}: expected a shape of whole numbers, got {value!r}") from None
    if any(d < 1 for d in dims):
        raise ShapeError(f"{what}: expected a shape of positive numbers, got {list(dims)}")
    return dims


def make_array(what: str, value: Any) -> Array:
    """Return an array from an array, a tensor with a method `numpy()`, or nested lists.

    Raises:
        InputError: it has another type, or has masked elements, whose mask would be lost.
    """
    if isinstance(value, Mapping):
        raise InputError(
            f"{what}: expected an array, got a mapping with {join_names(map(str, value))}; a "
            "mapping is a whole batch, with labels among its arrays"
        )
    masked = sys.modules.get("numpy.ma")  # importing it takes time; without it nothing is masked
    if masked is not None and masked.is_masked(value):
        raise InputError(
            f"{what}: a masked array; replace its masked elements first: x.filled(value)"
        )
    try:
        if not isinstance(value, np.ndarray) and callable(getattr(value, "numpy", None)):
            value = value.numpy()
        return np.asarray(value)
    except Exception as error:  # lists of unequal lengths, or whatever another package raises
        raise InputError(f"{what}: {name_kind(value)} cannot become an array: {error}") from error


def cast(what: str, value: Any, dtype: np.dtype[Any]) -> Array:
    """Return the value, as `make_array` takes it, as an array of this element type.

    Raises:
        DTypeError: its elements are of another kind: floats do not become integers.
        InputError: see `make_array`; or a number is too large for the type.
    """
    given = make_array(what, value)
    if given.dtype == object or not np.can_cast(given.dtype, dtype, "same_kind"):
        raise DTypeError(f"{what}: expected values of type {dtype}, got {given.dtype}")
    with np.errstate(over="ignore", under="ignore"):
        out = given.astype(dtype)
    lost = out != given if dtype.kind in "iu" else np.isfinite(given) & ~np.isfinite(out)
    if np.any(lost):
        raise InputError(f"{what}: {given[lost][0]} is too large for {dtype}")
    return out


def parse_numbers(what: str, texts: Any, dtype: np.dtype[Any]) -> Array:
    """Return the numbers that an array of texts spells, as an array of an element type.

    Raises:
        DTypeError: it holds something else than texts.
        InputError: a text is not a number of that type.
    """
    given = make_array(what, texts)
    if not all(isinstance(text, str | bytes) for text in given.ravel().tolist()):
        raise DTypeError(f"{what}: expected texts, got {name_kind(given)}")
    read = int if dtype.kind in "iu" else float
    try:
        return np.array([read(text) for text in given.ravel().tolist()], dtype).reshape(given.shape)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{what}: expected texts of {dtype}: {error}") from None


def name_kind(value: Any) -> str:
    """Return the name of a value in messages, without a call of its methods."""
    kind = type(value)
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array"
    if value is None or (kind in (bool, int, float) and abs(value) < 1e20):
        return repr(value)
    return f"{value[:_SHOWN]!r}" if kind is str else kind.__name__
