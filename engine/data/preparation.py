"""Learned preparation of a table's columns: numbers are normalised, texts become one-hot.

It is learned of the training rows alone and belongs to the model: rows to be predicted must be
prepared with the same numbers.  `Preparation.save` keeps it beside the model.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.base.errors import FileError, InputError, NameNotFoundError, suggest_nearest
from engine.base.signatures import check_arguments
from engine.data.dates import PARTS, compute_part
from engine.system import files

Features = npt.NDArray[np.float32]
FORMAT = 1  # of the file that `save` writes


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: (value - mean) / scale.

    fill: the value for missing ones; NaN leaves them missing, None allows none.
    fills: whether values may be missing.
    part: the part of a date, such as "year"; empty if the column has numbers.
    flag: whether a second feature is 1 where a value is missing, and 0 elsewhere.
    """

    name: str
    mean: float
    scale: float
    fill: float | None
    part: str = ""
    flag: bool = False

    @property
    def width(self) -> int:
        return 2 if self.flag else 1

    @property
    def feature_names(self) -> list[str]:
        """The meaning of each feature."""
        name = f"{self.name}.{self.part}" if self.part else self.name
        return [name, f"{name} is missing"] if self.flag else [name]

    @property
    def fills(self) -> bool:
        return self.fill is not None

    @classmethod
    def of(
        cls,
        name: str,
        values: npt.NDArray[np.float64],
        normalize: bool,
        missing: str,
        part: str = "",
        flag: bool = False,
    ) -> NumberColumn:
        """Learn it of the values of the training rows; NaN stands for a missing one."""
        known = values[~np.isnan(values)]
        if not known.size:
            raise InputError(f"column {name!r} has no values in the rows to train on")
        mean, spread = _compute_moments(known)
        fill = {"mean": mean, "keep": math.nan}.get(missing)
        if missing in ("median", "flag"):
            fill = float(np.median(known))
        if not normalize:
            return cls(name, 0.0, 1.0, fill, part, flag)
        return cls(name, mean, spread or 1.0, fill, part, flag)

    def encode(self, values: npt.NDArray[np.float64]) -> Features:
        """Return the column's features, rows x `width`.

        Raises:
            InputError: a feature is beyond what float32 holds.
        """
        gone = np.isnan(values)
        if self.fill is not None:
            values = np.where(gone, self.fill, values)
        with np.errstate(over="ignore"):
            exact = (values - self.mean) / self.scale
        encoded = convert_to_float32(self.name, values, exact)
        return np.stack([encoded, gone.astype(np.float32)] if self.flag else [encoded], axis=1)


@dataclass(frozen=True)
class Category:
    """A column of texts: 1 in the place of the row's text, 0 in the others; 0 in all if missing.

    fills: whether a text may be missing.
    unknown: whether a text that is not in `values` is taken as missing, and not refused.
    """

    name: str
    values: tuple[str, ...]
    fills: bool
    unknown: bool = False

    @property
    def feature_names(self) -> list[str]:
        """The meaning of each feature."""
        return [f"{self.name}={value}" for value in self.values]

    @property
    def width(self) -> int:
        return len(self.values)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The place of each text."""
        return {value: place for place, value in enumerate(self.values)}

    def encode(self, codes: npt.NDArray[np.intp]) -> Features:
        """Return the features of texts by their places, rows x values; -1 means missing."""
        encoded: Features = np.equal(codes[:, np.newaxis], np.arange(self.width)).astype(np.float32)
        return encoded


@check_arguments
@dataclass(frozen=True)
class Preparation:
    """The conversion of the columns of a table into features.

    Attributes:
        columns: the columns of the features, in order.
        targets: names of the columns that a model learns to predict.
        classes: the texts of the labels 0, 1, ...; None if the target is a number.
    """

    columns: tuple[NumberColumn | Category, ...]
    targets: tuple[str, ...]
    classes: tuple[str, ...] | None

    @property
    def width(self) -> int:
        """The number of features of a row."""
        return sum(column.width for column in self.columns)

    @property
    def feature_names(self) -> list[str]:
        """The meaning of each feature: a column, `column=text`, or a part of a date."""
        return [name for column in self.columns for name in column.feature_names]

    def features(self, rows: Sequence[Mapping[str, Any]]) -> Features:
        """Return the features of rows given by column, for prediction: rows x `width`.

        Raises:
            NameNotFoundError: a row lacks a column.
            InputError: a value is missing or not a number, or a text that no training row had.
        """
        parts = [
            column.encode(
                np.array(
                    [_find_value(column, row, i) for i, row in enumerate(rows)],
                    _choose_dtype(column),
                )
            )
            for column in self.columns
        ]
        return np.concatenate(parts, axis=1)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON.

        Raises:
            FileError: the file cannot be written; what was there before is unchanged.
        """
        kinds = [{"kind": _name_kind(column), **asdict(column)} for column in self.columns]
        content = {
            "format": FORMAT,
            "columns": kinds,
            "targets": self.targets,
            "classes": self.classes,
        }
        text = json.dumps(content, ensure_ascii=False, indent=1)
        files.write(os.fspath(path), [text.encode()])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Preparation:
        """Read what `save` has written.

        Raises:
            FileError: the file is missing or cannot be read.
            InputError: it is not such a file.
        """
        place = os.fspath(path)
        try:
            with open(place, encoding="utf-8") as file:
                content = json.load(file)
            if content["format"] != FORMAT:
                raise InputError(f"{place!r}: format {content['format']!r}; expected {FORMAT}")
            columns = tuple(_read_column(dict(entry)) for entry in content["columns"])
            classes = content["classes"]
            return cls(columns, tuple(content["targets"]), None if classes is None else (*classes,))
        except OSError as error:
            raise FileError(f"cannot read {place!r}: {error.strerror or error}") from error
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{place!r} is not a preparation of a table: {error}") from error


def convert_to_float32(
    name: str, values: npt.NDArray[np.float64], exact: npt.NDArray[np.float64]
) -> Features:
    """Convert the features of a column to float32; NaN stays.

    Raises:
        InputError: it is beyond what float32 holds, naming the column and the value.
    """
    with np.errstate(over="ignore"):
        rounded: Features = exact.astype(np.float32)
    beyond = np.flatnonzero(np.isinf(rounded))
    if beyond.size:
        most = float(np.finfo(np.float32).max)
        raise InputError(
            f"column {name!r}: {float(values[beyond[0]])!r} is beyond float32, which holds numbers "
            f"up to {most:.3g}"
        )
    return rounded


def _compute_moments(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return mean and standard deviation, also of numbers whose squares are not finite."""
    with np.errstate(over="ignore"):
        mean, spread = float(values.mean()), float(values.std())
    if math.isfinite(spread):
        return mean, spread
    largest = float(np.abs(values).max())
    parts = values / largest
    return float(parts.mean()) * largest, float(parts.std()) * largest


def _name_kind(column: NumberColumn | Category) -> str:
    """Return the name of a column's kind in files, which does not change with the class's."""
    return "Number" if isinstance(column, NumberColumn) else "Category"


def _read_column(entry: dict[str, Any]) -> NumberColumn | Category:
    kind = entry.pop("kind")
    if kind == "Number":
        if entry.get("part") and entry["part"] not in PARTS:
            raise ValueError(f"a date has no part {entry['part']!r}")
        return NumberColumn(**entry)
    if kind == "Category":
        return Category(**{**entry, "values": tuple(entry["values"])})
    raise ValueError(f"a column of the kind {kind!r}")


def _choose_dtype(column: NumberColumn | Category) -> type:
    return np.float64 if isinstance(column, NumberColumn) else np.intp


def _find_value(column: NumberColumn | Category, row: Mapping[str, Any], index: int) -> float:
    """Return a number, or the place of a text."""
    if column.name not in row:
        raise NameNotFoundError(
            f"row {index}: no column {column.name!r}{suggest_nearest(column.name, map(str, row))}"
        )
    value = row[column.name]
    place = f"row {index}, column {column.name!r}"
    absent = value is None or value == "" or (isinstance(value, float) and math.isnan(value))
    if isinstance(column, Category):
        if absent and column.fills:
            return -1
        return find_code(column, str(value), place)
    if absent:
        if column.fill is None:
            raise InputError(f"{place}: the value is missing")
        return math.nan
    if column.part:
        return _compute_part(column, value, place)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"{place}: expected a number, got {value!r}") from None


def _compute_part(column: NumberColumn, value: Any, place: str) -> float:
    """Return the part of a date that a column has."""
    try:
        date = np.array([np.datetime64(value, "s")])
    except (TypeError, ValueError):
        raise InputError(f"{place}: {value!r} is not a date, such as 2026-11-23") from None
    return float(compute_part(date, column.part)[0])


def find_code(column: Category, text: str, place: str) -> int:
    """Return the place of a text among the column's values; -1 if it may be unknown and is.

    Raises:
        InputError: it is something else.
    """
    place_of_text = column.places.get(text)
    if place_of_text is None and column.unknown:
        return -1
    if place_of_text is None:
        raise InputError(
            f"{place}: {text!r} is not one of the {column.width} texts that the model was trained "
            f"with{suggest_nearest(text, column.values)}"
        )
    return place_of_text
