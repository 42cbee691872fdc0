"""Columns of a table, each of numbers or of texts, and the cells that are neither."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.base.errors import InputError, NameNotFoundError, nearest
from engine.data.csv_file import Sheet, describe
from engine.data.dataset import Indices
from engine.data.preparation import Category, Features, Number, code

CATEGORIES = 1000  # different texts of a column; each becomes a feature


class Numbers:
    """The values of a column of numbers; NaN where one is missing."""

    def __init__(self, name: str, values: npt.NDArray[np.float64]) -> None:
        self.name, self.values = name, values

    def learn(self, rows: Indices, normalize: bool, missing: str) -> Number:
        """Learn from these rows of the column."""
        return Number.of(self.name, self.values[rows], normalize, missing)

    def encode(self, column: Any, rows: Indices) -> Features:
        """Return the features of some rows, given a learned `Number`."""
        encoded: Features = column.encode(self.values[rows])
        return encoded


class Texts:
    """The texts of a column and, for each row, which of them it holds; -1 where it is missing."""

    def __init__(self, name: str, texts: tuple[str, ...], codes: npt.NDArray[np.intp]) -> None:
        self.name, self.texts, self.codes = name, texts, codes

    def learn(self, rows: Indices, normalize: bool, missing: str) -> Category:
        """Return the column's type, with the texts of all rows so that both parts know them."""
        return Category(self.name, self.texts, missing in ("mean", "keep"))

    def encode(self, column: Any, rows: Indices) -> Features:
        """Return the features of some rows, given a learned `Category`."""
        encoded: Features = column.encode(self.codes[rows])
        return encoded


Raw = Numbers | Texts


class Table:
    """The rows of a file whose columns are looked at one by one."""

    def __init__(self, sheet: Sheet, used: Sequence[str], missing_values: Sequence[str]) -> None:
        self.sheet = sheet
        self.rows, self.lines = sheet.rows, sheet.lines
        self.missing = set(missing_values)
        self._places = {name: place for place, name in enumerate(sheet.names)}
        self.used = [self.index(name) for name in used]

    def index(self, name: str) -> int:
        """Return the position of a column."""
        place = self._places.get(name)
        if place is None:
            names = self.sheet.names
            raise NameNotFoundError(
                f"{self.sheet.path!r}: no column {name!r}; there are "
                f"{', '.join(map(repr, names[:20]))}{nearest(name, names)}"
            )
        return place

    def absent(self, drop: bool, refuse: Sequence[str]) -> None:
        """Drop the rows in which a value is missing; or refuse them if it is of these columns."""
        if drop:
            whole = [
                i for i, row in enumerate(self.rows)
                if not any(row[j] in self.missing for j in self.used)
            ]  # fmt: skip
            if not whole:
                raise InputError(f"{self.sheet.path!r}: a value is missing in every row")
            self.rows = [self.rows[i] for i in whole]
            self.lines = [self.lines[i] for i in whole]
            return
        for name in refuse:
            j = self.index(name)
            for i, row in enumerate(self.rows):
                if row[j] in self.missing:
                    raise InputError(
                        f"{self.place(i, name)}: the value is missing ({row[j]!r}); missing='drop' "
                        "leaves such rows out, missing='mean' fills features up"
                    )

    def place(self, row: int, name: str) -> str:
        """Return the name of a cell in messages."""
        return describe(self.sheet.path, self.lines[row], name)

    def cells(self, name: str) -> list[str]:
        """Return the texts of a column; missing ones are empty."""
        j = self.index(name)
        return ["" if row[j] in self.missing else row[j] for row in self.rows]

    def numbers(self, name: str) -> npt.NDArray[np.float64] | None:
        """Return a column of numbers, NaN where one is missing; None: it has no number.

        Raises:
            InputError: some cells are numbers and some are not, or one is infinite.
        """
        cells = self.cells(name)
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
            raise InputError(
                f"{self.place(wrong, name)}: {cells[wrong]!r} is not a number, but others in "
                f"this column are; if they are names, pass categorical=[{name!r}]"
            )
        flawed = np.flatnonzero([bool(cell) for cell in cells] & ~np.isfinite(parsed))
        if flawed.size:
            i = int(flawed[0])
            raise InputError(f"{self.place(i, name)}: {cells[i]!r} is not finite")
        return parsed

    def column(self, name: str, categorical: bool, known: Number | Category | None) -> Raw:
        """Return a column of features, of the known kind or the kind of its cells."""
        texts = categorical if known is None else isinstance(known, Category)
        values = None if texts else self.numbers(name)
        if values is not None:
            return Numbers(name, values)
        cells = self.cells(name)
        if isinstance(known, Number):
            wrong = next(i for i, cell in enumerate(cells) if cell)
            raise InputError(f"{self.place(wrong, name)}: {cells[wrong]!r} is not a number")
        if known is not None:
            codes = [code(known, c, self.place(i, name)) if c else -1 for i, c in enumerate(cells)]
            return Texts(name, known.values, np.array(codes, np.intp))
        kinds = sorted(set(cells) - {""})
        if len(kinds) > CATEGORIES:
            raise InputError(
                f"{self.sheet.path!r}: column {name!r} has {len(kinds)} different texts, as "
                f"{kinds[0]!r}; up to {CATEGORIES} can be features; leave it out by features="
            )
        place = {text: i for i, text in enumerate(kinds)}
        return Texts(name, tuple(kinds), np.array([place.get(c, -1) for c in cells], np.intp))
