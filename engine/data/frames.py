"""DataFrames of pandas or polars as the rows of a table, known by what they can do.

Neither package is imported: a frame has `columns`, and a column of it `to_numpy` and `to_list`.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.base import arguments
from engine.base.errors import InputError, ShapeError
from engine.data.columns import Rows, check_finite, explain_mixed
from engine.data.dataset import Indices

NUMBERS = (int, float, np.integer, np.floating, decimal.Decimal)
DATES = (datetime.date, np.datetime64)  # a Timestamp of pandas is a datetime, which is a date
ABSENT = ("NAType", "NaTType")  # types of the missing values of pandas


def is_frame(source: object) -> bool:
    """Return whether it is a DataFrame: named columns with values in rows."""
    # The shape first: a LazyFrame of polars has none, and warns when it is asked for its columns.
    needed = ("shape", "columns", "dtypes", "__getitem__")
    return not isinstance(source, np.ndarray) and all(hasattr(source, name) for name in needed)


class FrameRows(Rows):
    """The rows of a DataFrame, or of a mapping of columns."""

    def __init__(self, source: Any) -> None:
        keys = list(source) if isinstance(source, Mapping) else list(source.columns)
        title = "the DataFrame" if is_frame(source) else "the columns"
        super().__init__(title, [str(key) for key in keys])
        twice = sorted(name for name, count in Counter(self.names).items() if count > 1)
        if twice:
            raise InputError(f"{self.title}: two columns are named {twice[0]!r}")
        if not keys:
            raise InputError(f"{self.title}: no columns")
        given = {name: source[key] for name, key in zip(self.names, keys, strict=True)}
        self._columns = {name: _read_values(column) for name, column in given.items()}
        self._categories = {name for name, column in given.items() if _is_category(column)}
        for name, values in self._columns.items():
            if values.ndim != 1:
                raise ShapeError(
                    f"{self.title}: column {name!r} has the shape {list(values.shape)}; expected "
                    "one value a row"
                )
        lengths = {len(values) for values in self._columns.values()}
        if len(lengths) > 1:
            raise ShapeError(f"{self.title}: columns of different lengths, {sorted(lengths)} rows")
        self._rows = np.arange(lengths.pop())
        if not len(self._rows):
            raise InputError(f"{self.title} has columns, but no rows")

    def __len__(self) -> int:
        return len(self._rows)

    def keep(self, rows: Indices) -> None:
        self._rows = self._rows[rows]

    def place(self, row: int, name: str) -> str:
        return f"{self.title}, row {self._rows[row]}, column {name!r}"

    def _read_column(self, name: str) -> npt.NDArray[Any]:
        self.find_index(name)
        return self._columns[name][self._rows]

    def show(self, row: int, name: str) -> str:
        return str(self._read_column(name)[row])

    def find_missing(self, name: str) -> npt.NDArray[np.bool_]:
        values = self._read_column(name)
        if values.dtype == object:
            return np.array([_is_missing(value) for value in values.tolist()], bool)
        if values.dtype.kind in "mM":
            return np.asarray(np.isnat(values), bool)
        if values.dtype.kind != "f":
            return np.zeros(len(values), bool)
        return np.asarray(np.isnan(values), bool)

    def read_cells(self, name: str) -> list[str]:
        values = self._read_column(name)
        items = values.astype(str) if values.dtype.kind in "mM" else values
        return [
            "" if gone else _format_text(value)
            for value, gone in zip(items.tolist(), self.find_missing(name), strict=True)
        ]

    def read_numbers(self, name: str) -> npt.NDArray[np.float64] | None:
        values, gone = self._read_column(name), self.find_missing(name)
        if values.dtype.kind == "b" or name in self._categories:
            return None  # texts, as in a file
        if values.dtype.kind in "iuf":
            return check_finite(self, name, values.astype(np.float64), (~gone).tolist())
        parsed = np.full(len(values), math.nan)
        wrong: list[int] = []
        right = False
        for i, value in enumerate(values.tolist() if values.dtype == object else values):
            if gone[i]:
                continue
            if isinstance(value, NUMBERS) and not isinstance(value, bool):
                parsed[i], right = float(value), True
                continue
            self._check_kind(i, name, value)
            wrong.append(i)
        if wrong and right:
            raise explain_mixed(self, wrong[0], name, values[wrong[0]])
        return None if wrong else check_finite(self, name, parsed, (~gone).tolist())

    def _check_kind(self, row: int, name: str, value: Any) -> None:
        """Refuse a value that is neither a number nor a text."""
        if isinstance(value, str | bool | np.bool_):
            return
        if isinstance(value, DATES):
            raise InputError(
                f"{self.place(row, name)}: a date; dates={{{name!r}: ['year', 'month']}} makes "
                "features of its parts, and features= leaves the column out"
            )
        raise InputError(
            f"{self.place(row, name)}: a value of type {type(value).__name__}; expected "
            "numbers or texts"
        )

    def read_dates(self, name: str) -> npt.NDArray[np.datetime64]:
        values, gone = self._read_column(name), self.find_missing(name)
        if values.dtype.kind == "M":
            return values.astype("M8[s]")
        parsed_dates = np.full(len(values), "NaT", "M8[s]")
        for i, value in enumerate(values.tolist()):
            if gone[i]:
                continue
            try:
                naive = value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value
                parsed_dates[i] = np.datetime64(naive, "s")
            except (ValueError, TypeError):
                raise InputError(
                    f"{self.place(i, name)}: {value!r} is not a date; expected a date, or a text "
                    "as 2026-11-23"
                ) from None
        return parsed_dates


def _read_values(column: Any) -> npt.NDArray[Any]:
    """Return the values of a column: an array of numbers, or of objects."""
    if not isinstance(column, np.ndarray) and callable(getattr(column, "to_numpy", None)):
        array = np.asarray(column.to_numpy())
    elif isinstance(column, list | tuple):
        kinds = {type(value) for value in column}
        array = np.array(column, None if kinds in ({int}, {float}, {bool}) else object)
    else:
        array = arguments.make_array("column", column)
    return array.astype(object) if array.dtype.kind in "UST" else array


def _is_category(column: Any) -> bool:
    """Return whether a column says that its values are names, whatever they look like."""
    return str(getattr(column, "dtype", "")).startswith(("category", "Categorical", "Enum"))


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ABSENT:
        return True
    return isinstance(value, float) and math.isnan(value)


def _format_text(value: Any) -> str:
    """Return a cell as the text of a category; a whole number is written without a fraction."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)
