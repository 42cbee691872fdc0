"""Tables: files of comma-separated values as features and targets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from typing import Literal

import numpy as np
import numpy.typing as npt

from engine.base.errors import InputError
from engine.base.signatures import checked
from engine.data.columns import Raw, Table
from engine.data.csv_file import Sheet, read
from engine.data.dataset import Dataset, Indices
from engine.data.preparation import Preparation
from engine.data.samples import Array, Sample, read_only
from engine.data.targets import Task, target_of

Missing = Literal["error", "drop", "mean", "keep"]

MISSING_VALUES = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "?")


@checked
class Csv(Dataset):
    """A file of comma-separated values: samples (features, target).

    The features of a row are one array of float32: columns of numbers, normalised to mean 0 and
    standard deviation 1, and columns of texts, each text a feature that is 1 or 0.  A column is of
    numbers if all its values are, and of texts if none is; otherwise it is refused, naming the
    cell.  Mean and deviation come from this dataset's rows; `split` computes them from the training
    rows, for both parts.  `preparation` holds them, for further files and for prediction.

    The target is an index into `classes` (int64) for classification, and an array of float32, a
    number for each target column, for regression.

    Args:
        path: of the file.
        target: the column to predict, several for regression, or None: samples are (features,).
        features: the columns to predict from, by default all others.
        task: "classification" or "regression".  By default texts are classes, and numbers with
            fractions are not; whole numbers may be either, so that it must be said.
        categorical: columns whose numbers are names, as postal codes; the target may be one.
        missing: what happens to a row with a missing value: an "error"; "drop" leaves the row out;
            "mean" replaces a number by the column's mean, and a text by no text;
            "keep" leaves NaN among the features.  A missing target is an error or dropped.
        missing_values: texts that stand for a missing value.
        normalize: whether numbers are normalised.
        preparation: of other rows, to be used instead of these rows' own.
        delimiter, encoding, header: of the file, see `engine.data.csv_file.read`.

    Attributes:
        preparation: how columns became features.

    Raises:
        FileError: the file is missing or cannot be read.
        NameNotFoundError: there is no such column.
        InputError: the file is malformed, a value is missing or of another kind than its column,
            all targets are of one class, or a column has more than 1000 different texts.
    """

    cheap = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        target: str | Sequence[str] | None,
        *,
        features: Sequence[str] | None = None,
        task: Task | None = None,
        categorical: Sequence[str] = (),
        missing: Missing = "error",
        missing_values: Sequence[str] = MISSING_VALUES,
        normalize: bool = True,
        preparation: Preparation | None = None,
        delimiter: str = ",",
        encoding: str = "utf-8",
        header: bool = True,
    ) -> None:
        self._missing: Missing = missing
        self._normalize = normalize
        sheet = read(path, delimiter, encoding, header)
        targets = [target] if isinstance(target, str) else list(target or ())
        if preparation is not None:
            chosen = [column.name for column in preparation.columns]
        elif features is not None:
            chosen = list(features)
        else:
            chosen = [name for name in sheet.names if name not in targets]
        table = Table(sheet, [*chosen, *targets], missing_values)
        _check_features(sheet, chosen, targets)
        if preparation is not None:
            strict = [c.name for c in preparation.columns if not c.fills]
        else:
            strict = chosen if missing == "error" else []
        table.absent(drop=missing == "drop", refuse=[*strict, *targets])
        names = list(categorical)
        for name in names:
            table.index(name)
        self._columns: list[Raw] = []
        for i, name in enumerate(chosen):
            known = None if preparation is None else preparation.columns[i]
            self._columns.append(table.column(name, name in names, known))
        kept = None if preparation is None else preparation.classes
        if preparation is not None and task is None:
            task = "regression" if kept is None else "classification"
        self._target, classes = target_of(table, targets, task, kept, names)
        self._targets = tuple(targets)
        self._given = preparation is not None
        self._rows = np.arange(len(table.rows))
        self.preparation = preparation or self._learned(self._rows, classes)
        self.classes = None if classes is None else list(classes)
        self._features = self._encoded()

    def _learned(self, rows: Indices, classes: Sequence[str] | None) -> Preparation:
        """Return the preparation that these rows give."""
        columns = [column.learn(rows, self._normalize, self._missing) for column in self._columns]
        known = None if classes is None else tuple(classes)
        return Preparation(tuple(columns), self._targets, known)

    def _encoded(self) -> npt.NDArray[np.float32]:
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
    ) -> tuple[Csv, Csv]:
        """See `Dataset.split`.  Both parts are prepared by what the first one's rows tell."""
        first, second = (self._rows[part] for part in self.split_rows(share, seed, stratify))
        learned = self.preparation if self._given else self._learned(first, self.classes)
        return self._part(first, learned), self._part(second, learned)

    def _part(self, rows: Indices, preparation: Preparation) -> Csv:
        part = copy(self)
        part._rows, part.preparation, part._given = rows, preparation, True
        part._features = part._encoded()
        return part


def _check_features(sheet: Sheet, chosen: Sequence[str], targets: Sequence[str]) -> None:
    if not chosen:
        raise InputError(f"{sheet.path!r}: no column is left to predict from")
    if "" in chosen:
        raise InputError(
            f"{sheet.path!r}: column {chosen.index('')} has no name; if it counts the rows, as "
            "pandas' index does, leave it out by features= or write the file with index=False"
        )
    both = sorted(set(chosen) & set(targets))
    if both:
        raise InputError(f"column {both[0]!r} is both a feature and the target")
