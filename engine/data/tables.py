"""Tables: DataFrames, columns and files of comma-separated values as features and targets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from engine.base.aliases import Array
from engine.base.errors import DTypeError, InputError
from engine.base.signatures import check_arguments
from engine.data.columns import Raw, Rows, SheetRows
from engine.data.csv_file import read
from engine.data.dataset import Dataset, Indices
from engine.data.frames import FrameRows, is_frame
from engine.data.preparation import Preparation
from engine.data.samples import Sample, read_only
from engine.data.targets import Task, read_target

Missing = Literal["error", "drop", "mean", "median", "flag", "keep"]
Unknown = Literal["error", "none"]

MISSING_VALUES = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "?")


@check_arguments
class Table(Dataset):
    """A table as samples (features, target): a DataFrame, columns by name, or the path of a CSV.

    The features of a row are one float32 array.  Columns of numbers are normalised to mean 0 and
    standard deviation 1; in columns of texts, each distinct text becomes a feature that is 1 or 0.
    A column must contain only numbers or only texts; otherwise the error names the cell.  Means and
    deviations come from this table's rows; `split` computes them from the training rows, for both
    parts.  `preparation` contains them, for further rows and for prediction.

    The target is an index into `classes` (int64) for classification, or a float32 array with a
    number for each target column for regression.

    Args:
        source: a DataFrame of pandas or polars, a mapping of columns by name, or the path of a
            file of comma-separated values.
        label: the column to predict, several for regression, or None: samples are (features,).
        features: the columns to predict from, by default all others.
        task: "classification" or "regression".  By default, texts are classes and numbers with
            fractions are values; whole numbers may be either, so they need this argument.
        categorical: columns whose numbers are names, such as postal codes; the label may be one.
        dates: columns of dates, and the parts of them that become features: "year", "month",
            "day", "weekday", "day_of_year", "hour", "minute", "days" since 1970.
        missing: the treatment of missing values: "error"; "drop" leaves the row out; "mean" and
            "median" replace a number by the column's mean or median, and a text by no text; "flag"
            is "median" with an extra feature for each column of numbers, which is 1 if the value is
            missing; "keep" leaves NaN among the features.  A missing target is an error,
            except with "drop".
        unknown: the treatment of texts that no training row has: "error", or "none", so that none
            of the column's features is 1.
        missing_values: texts in a file that mean a missing value.
        normalize: whether numbers are normalised.
        preparation: the preparation of other rows, to use instead of one for these rows.
        delimiter, encoding, header: options for a file, see `engine.data.csv_file.read`.

    Attributes:
        preparation: how columns became features.

    Raises:
        FileError: the file is missing or cannot be read.
        NameNotFoundError: there is no such column.
        InputError: the table is malformed, a value is missing or of another kind than its column,
            all targets are of one class, or a column has more than 1000 different texts.
        DTypeError: the source is not a table.
    """

    cheap = True

    def __init__(
        self,
        source: Any,
        label: str | Sequence[str] | None,
        *,
        features: Sequence[str] | None = None,
        task: Task | None = None,
        categorical: Sequence[str] = (),
        dates: Mapping[str, Sequence[str]] | None = None,
        missing: Missing = "error",
        unknown: Unknown = "error",
        missing_values: Sequence[str] = MISSING_VALUES,
        normalize: bool = True,
        preparation: Preparation | None = None,
        delimiter: str = ",",
        encoding: str = "utf-8",
        header: bool = True,
    ) -> None:
        self._missing: Missing = missing
        self._unknown: Unknown = unknown
        self._normalize = normalize
        self._form = {
            "missing_values": list(missing_values),
            "delimiter": delimiter,
            "encoding": encoding,
            "header": header,
        }
        rows = _read_rows(source, missing_values, delimiter, encoding, header)
        targets = [label] if isinstance(label, str) else list(label or ())
        if preparation is not None:
            chosen = list(dict.fromkeys(column.name for column in preparation.columns))
        elif features is not None:
            chosen = list(features)
        else:
            chosen = [name for name in rows.names if name not in targets]
        _check_features(rows, chosen, targets)
        for name in (*chosen, *targets, *categorical, *(dates or ())):
            rows.find_index(name)
        if preparation is not None:
            strict = [c.name for c in preparation.columns if not c.fills]
        else:
            strict = chosen if missing == "error" else []
        rows.drop_missing([*chosen, *targets], drop=missing == "drop", refuse=[*strict, *targets])
        self._columns = (
            _read_raw(rows, chosen, list(categorical), dates or {})
            if preparation is None
            else [rows.read_column(known.name, False, known) for known in preparation.columns]
        )
        kept = None if preparation is None else preparation.classes
        if preparation is not None and task is None:
            task = "regression" if kept is None else "classification"
        self._target, classes = read_target(rows, targets, task, kept, list(categorical))
        self._targets = tuple(targets)
        self._given = preparation is not None
        self._rows = np.arange(len(rows))
        self.preparation = preparation or self._learn(self._rows, classes)
        self.classes = None if classes is None else list(classes)
        self._features = self._encode()

    def list_options(self) -> dict[str, Any]:
        """Return the arguments that decide how a file is read."""
        return {"target": list(self._targets), **self._form}

    @property
    def width(self) -> int:
        """The number of features of a sample, which a model takes: [batch, width]."""
        return self.preparation.width

    def _learn(self, rows: Indices, classes: Sequence[str] | None) -> Preparation:
        """Return the preparation that these rows give."""
        columns = [
            column.learn(rows, self._normalize, self._missing, self._unknown)
            for column in self._columns
        ]
        known = None if classes is None else tuple(classes)
        return Preparation(tuple(columns), self._targets, known)

    def _encode(self) -> npt.NDArray[np.float32]:
        pairs = zip(self.preparation.columns, self._columns, strict=True)
        return np.concatenate([raw.encode(column, self._rows) for column, raw in pairs], axis=1)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Sample:
        features = read_only(self._features[index])
        if self._target is None:
            return (features,)
        return features, read_only(self._target[self._rows[index]])

    def take(self, indices: Indices) -> tuple[Array, ...]:
        batch = self._features[indices]
        return (batch,) if self._target is None else (batch, self._target[self._rows[indices]])

    def labels(self) -> Array:
        if self._target is None:
            raise InputError("a table without a target has no labels")
        return self._target[self._rows]

    def split(
        self, share: float, *, seed: int = 0, stratify: bool | None = None
    ) -> tuple[Table, Table]:
        """See `Dataset.split`.  Both parts are prepared by what the first one's rows tell."""
        first, second = (self._rows[part] for part in self.split_rows(share, seed, stratify))
        learned = self.preparation if self._given else self._learn(first, self.classes)
        return self._take_part(first, learned), self._take_part(second, learned)

    def _take_part(self, rows: Indices, preparation: Preparation) -> Table:
        part = copy(self)
        part._rows, part.preparation, part._given = rows, preparation, True
        part._features = part._encode()
        return part

    def like(self, source: Any, **options: Any) -> Table:
        """Return other rows, prepared as these are, without a target: to predict for them.

        source, options: see the class.

        Raises:
            EngineError: as the class.
        """
        return Table(source, None, preparation=self.preparation, **options)


@check_arguments
class Csv(Table):
    """A file of comma-separated values; `target` and the options as for `Table`."""

    def __init__(
        self, path: str | os.PathLike[str], target: str | Sequence[str] | None, **options: Any
    ) -> None:
        super().__init__(os.fspath(path), target, **options)


def _read_rows(
    source: Any, missing_values: Sequence[str], delimiter: str, encoding: str, header: bool
) -> Rows:
    """Return the rows of a source.

    Raises:
        DTypeError: it is not a table.
    """
    if isinstance(source, str | os.PathLike):
        return SheetRows(read(source, delimiter, encoding, header), missing_values)
    if is_frame(source) or isinstance(source, Mapping):
        return FrameRows(source)
    advice = "; collect() makes a DataFrame of it" if hasattr(source, "collect") else ""
    raise DTypeError(
        f"source: expected a DataFrame, a mapping of columns or the path of a CSV, got "
        f"{type(source).__name__}{advice}"
    )


def _read_raw(
    rows: Rows,
    chosen: Sequence[str],
    categorical: Sequence[str],
    dates: Mapping[str, Sequence[str]],
) -> list[Raw]:
    """Return the columns of features, of whatever kind they are."""
    columns: list[Raw] = []
    for name in chosen:
        if name in dates:
            parts = [dates[name]] if isinstance(dates[name], str) else dates[name]
            columns += [rows.read_parts(name, str(part)) for part in parts]
        else:
            columns.append(rows.read_column(name, name in categorical, None))
    return columns


def _check_features(rows: Rows, chosen: Sequence[str], targets: Sequence[str]) -> None:
    if not chosen:
        raise InputError(f"{rows.title}: no column is left to predict from")
    if "" in chosen:
        raise InputError(
            f"{rows.title}: column {chosen.index('')} has no name; if it counts the rows, as "
            "pandas' index does, leave it out by features= or write the file with index=False"
        )
    both = sorted(set(chosen) & set(targets))
    if both:
        raise InputError(f"column {both[0]!r} is both a feature and the target")
