"""Columns of a table, each of numbers or of texts, and the cells that are neither."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.base.errors import InputError, NameNotFoundError, suggest_nearest
from engine.data.csv_file import Sheet, describe
from engine.data.dataset import Indices
from engine.data.dates import PARTS, compute_part
from engine.data.preparation import Category, Features, NumberColumn, find_code

CATEGORIES = 1000  # different texts of a column; each becomes a feature


class Numbers:
    """The values of a column of numbers; NaN where one is missing.

    part: the part of a date that the numbers are; empty for other numbers.
    """

    def __init__(self, name: str, values: npt.NDArray[np.float64], part: str = "") -> None:
        self.name, self.values, self.part = name, values, part

    def learn(self, rows: Indices, normalize: bool, missing: str, unknown: str) -> NumberColumn:
        """Learn from these rows of the column; all rows decide whether values may be missing."""
        flag = missing == "flag" and bool(np.isnan(self.values).any())
        return NumberColumn.of(self.name, self.values[rows], normalize, missing, self.part, flag)

    def encode(self, column: Any, rows: Indices) -> Features:
        """Return the features of some rows, given a learned `Number`."""
        encoded: Features = column.encode(self.values[rows])
        return encoded


class TextColumn:
    """The texts of a column and, for each row, which of them it holds; -1 where it is missing."""

    def __init__(self, name: str, texts: tuple[str, ...], codes: npt.NDArray[np.intp]) -> None:
        self.name, self.texts, self.codes = name, texts, codes

    def learn(self, rows: Indices, normalize: bool, missing: str, unknown: str) -> Category:
        """Return the column's type, with the texts of all rows so that both parts know them."""
        fills = missing not in ("error", "drop")
        return Category(self.name, self.texts, fills, unknown == "none")

    def encode(self, column: Any, rows: Indices) -> Features:
        """Return the features of some rows, given a learned `Category`."""
        encoded: Features = column.encode(self.codes[rows])
        return encoded


Raw = Numbers | TextColumn


class Rows(ABC):
    """The rows of a table, whose columns are looked at one by one.

    Attributes:
        title: the title of the table in messages.
        names: the names of the columns.
    """

    def __init__(self, title: str, names: Sequence[str]) -> None:
        self.title, self.names = title, names
        self._places = {name: place for place, name in enumerate(names)}

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def keep(self, rows: Indices) -> None:
        """Drop all rows but these."""

    @abstractmethod
    def place(self, row: int, name: str) -> str:
        """Return the name of a cell in messages."""

    @abstractmethod
    def show(self, row: int, name: str) -> str:
        """Return a cell as it is, for messages."""

    @abstractmethod
    def find_missing(self, name: str) -> npt.NDArray[np.bool_]:
        """Return for each row whether a column's value is missing."""

    @abstractmethod
    def read_cells(self, name: str) -> list[str]:
        """Return the texts of a column; missing ones are empty."""

    @abstractmethod
    def read_numbers(self, name: str) -> npt.NDArray[np.float64] | None:
        """Return a column of numbers, NaN where one is missing; None if it is not numeric.

        Raises:
            InputError: some cells are numbers and some are not, or one is infinite.
        """

    @abstractmethod
    def read_dates(self, name: str) -> npt.NDArray[np.datetime64]:
        """Return a column of dates, to the second; NaT where one is missing.

        Raises:
            InputError: a cell is not a date.
        """

    def find_index(self, name: str) -> int:
        """Return the position of a column."""
        place = self._places.get(name)
        if place is None:
            raise NameNotFoundError(
                f"{self.title}: no column {name!r}; there are "
                f"{', '.join(map(repr, self.names[:20]))}{suggest_nearest(name, self.names)}"
            )
        return place

    def drop_missing(self, used: Sequence[str], drop: bool, refuse: Sequence[str]) -> None:
        """Drop the rows in which a value is missing; or refuse them if it is of these columns.

        used: the columns whose values matter.
        """
        if drop:
            lacking = np.zeros(len(self), bool)
            for name in used:
                lacking |= self.find_missing(name)
            if lacking.all():
                raise InputError(f"{self.title}: a value is missing in every row")
            self.keep(np.flatnonzero(~lacking))
            return
        for name in refuse:
            rows = np.flatnonzero(self.find_missing(name))
            if rows.size:
                row = int(rows[0])
                raise InputError(
                    f"{self.place(row, name)}: the value is missing ({self.show(row, name)}); "
                    "missing='drop' leaves such rows out, missing='mean' fills in features"
                )

    def read_column(
        self, name: str, categorical: bool, known: NumberColumn | Category | None
    ) -> Raw:
        """Return a column of features, of the known kind or the kind of its cells."""
        if isinstance(known, NumberColumn) and known.part:
            return self.read_parts(name, known.part)
        texts = categorical if known is None else isinstance(known, Category)
        values = None if texts else self.read_numbers(name)
        if values is not None:
            return Numbers(name, values)
        cells = self.read_cells(name)
        if isinstance(known, NumberColumn):
            wrong = next((i for i, cell in enumerate(cells) if cell), None)
            if wrong is None:
                return Numbers(name, np.full(len(cells), math.nan))
            raise InputError(f"{self.place(wrong, name)}: {cells[wrong]!r} is not a number")
        if known is not None:
            codes = [
                find_code(known, c, self.place(i, name)) if c else -1 for i, c in enumerate(cells)
            ]
            return TextColumn(name, known.values, np.array(codes, np.intp))
        kinds = sorted(set(cells) - {""})
        if len(kinds) > CATEGORIES:
            raise InputError(
                f"{self.title}: column {name!r} has {len(kinds)} different texts, as "
                f"{kinds[0]!r}; up to {CATEGORIES} can be features; leave it out by features="
            )
        place = {text: i for i, text in enumerate(kinds)}
        return TextColumn(name, tuple(kinds), np.array([place.get(c, -1) for c in cells], np.intp))

    def read_parts(self, name: str, part: str) -> Numbers:
        """Return a part of a column of dates, as "year", as numbers."""
        if part not in PARTS:
            raise InputError(
                f"dates: {name!r} has no part {part!r}{suggest_nearest(part, PARTS)}; known: "
                f"{', '.join(PARTS)}"
            )
        return Numbers(name, compute_part(self.read_dates(name), part), part)


class SheetRows(Rows):
    """The rows of a file, whose cells are texts."""

    def __init__(self, sheet: Sheet, missing_values: Sequence[str]) -> None:
        super().__init__(repr(sheet.path), sheet.names)
        self._path, self._rows, self._lines = sheet.path, sheet.rows, sheet.lines
        self._missing = set(missing_values)

    def __len__(self) -> int:
        return len(self._rows)

    def keep(self, rows: Indices) -> None:
        self._rows = [self._rows[i] for i in rows]
        self._lines = [self._lines[i] for i in rows]

    def place(self, row: int, name: str) -> str:
        return describe(self._path, self._lines[row], name)

    def show(self, row: int, name: str) -> str:
        return repr(self._rows[row][self.find_index(name)])

    def find_missing(self, name: str) -> npt.NDArray[np.bool_]:
        j = self.find_index(name)
        return np.array([row[j] in self._missing for row in self._rows], bool)

    def read_cells(self, name: str) -> list[str]:
        j = self.find_index(name)
        return ["" if row[j] in self._missing else row[j] for row in self._rows]

    def read_numbers(self, name: str) -> npt.NDArray[np.float64] | None:
        cells = self.read_cells(name)
        parsed = np.full(len(cells), math.nan)
        wrong: int | None = None
        right = False
        for i, cell in enumerate(cells):
            if not cell:
                continue
            try:
                parsed[i] = float(cell)
                right = True
            except ValueError:
                wrong = i if wrong is None else wrong
        if wrong is not None:
            if not right:
                return None
            raise explain_mixed(self, wrong, name, cells[wrong])
        return check_finite(self, name, parsed, [bool(cell) for cell in cells])

    def read_dates(self, name: str) -> npt.NDArray[np.datetime64]:
        cells = self.read_cells(name)
        parsed_dates = np.full(len(cells), "NaT", "M8[s]")
        for i, cell in enumerate(cells):
            if cell:
                try:
                    parsed_dates[i] = np.datetime64(cell.replace(" ", "T"), "s")
                except ValueError:
                    raise InputError(
                        f"{self.place(i, name)}: {cell!r} is not a date; expected the form "
                        "2026-11-23, or 2026-11-23 17:30:00"
                    ) from None
        return parsed_dates


def explain_mixed(rows: Rows, row: int, name: str, cell: object) -> InputError:
    """Return the error of a column that holds numbers and something that is not a number."""
    return InputError(
        f"{rows.place(row, name)}: {cell!r} is not a number, but others in "
        f"this column are; if they are names, pass categorical=[{name!r}]"
    )


def check_finite(
    rows: Rows, name: str, values: npt.NDArray[np.float64], given: Sequence[bool]
) -> npt.NDArray[np.float64]:
    """Return numbers, unless one that is given is not finite.

    Raises:
        InputError: one is not, naming its cell.
    """
    flawed = np.flatnonzero(np.asarray(given) & ~np.isfinite(values))
    if flawed.size:
        i = int(flawed[0])
        shown = rows.read_cells(name)[i]
        raise InputError(f"{rows.place(i, name)}: {shown!r} is not finite")
    return values
