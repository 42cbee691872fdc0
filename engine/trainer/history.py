"""History: the results of a training run, a row per epoch, and which of two values is better."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from engine.base import arguments, foreign_text
from engine.base.errors import (
    FileError,
    InputError,
    MissingPackageError,
    NameNotFoundError,
    suggest_nearest,
)
from engine.drawing import amounts
from engine.drawing.text_table import align_cells
from engine.system import files
from engine.trainer.metrics.named import find_declaration, is_share
from engine.training.mode import Mode

if TYPE_CHECKING:
    from engine.drawing.plot import Plot

SHOWN = 24  # rows of a table
_LESS = re.compile(r"(^|_)(loss|loss_.*|error)$")
_MORE = re.compile(r"(^|_)auc$")


def direction(column: str, mode: Mode | None = None) -> Mode:
    """Return the better direction of a column, "min" or "max": `mode`, or as its name says.

    Names that end with error, with loss, or with loss_ and the name of an output are better when
    less, those that end with auc when more; and those with the name of a metric as it declares.

    Raises:
        InputError: the mode is another, or the name does not say it and no mode is given.
    """
    if mode is not None:
        given: Any = mode
        if not isinstance(given, str) or given not in ("min", "max"):
            raise InputError(f"mode={mode!r}; expected 'min' or 'max'")
        return mode
    if _LESS.search(column):
        return "min"
    if _MORE.search(column):
        return "max"
    declared = find_declaration(column)
    if declared is not None:
        return declared.mode
    raise InputError(
        f"the name {column!r} does not say whether less or more is better: give mode='min' or 'max'"
    )


def is_better(value: float, best: float | None, mode: Mode, min_delta: float = 0.0) -> bool:
    """Return whether a value beats the best so far by more than `min_delta`; NaN never does."""
    if math.isnan(value):
        return False
    if best is None or math.isnan(best):
        return True
    return value < best - min_delta if mode == "min" else value > best + min_delta


# The columns that a training run itself writes into histories and logs; callbacks use other names
# in `fit.logs`.
RESERVED = ("epoch", "seconds", "samples_per_second", "memory", "kind", "time", "step")


class History:
    """The rows of a training run, one an epoch.

    rows: for each epoch, its columns: "epoch" (counted from 0), "loss" (the mean over the samples
        of the epoch; of those whose loss was finite, where updates are skipped), "skipped" (the
        updates that were, where they may be), "loss_scale" (of the next step, where there is one),
        the results of the validation, such as "val_loss" and "val_accuracy", "lr" (the learning
        rate of the last step), "seconds" (of the epoch, its validation included),
        "samples_per_second" (of the training alone, without planning and compiling), "memory" (the
        largest resident size of the process so far, in bytes; where the system tells it).
    stop_reason: why the training has ended before its last epoch; None if it has not.

    `repr` is a table, which notebooks show, too; `plot` draws curves.
    """

    def __init__(
        self, rows: Sequence[Mapping[str, float]] = (), stop_reason: str | None = None
    ) -> None:
        self.rows: list[dict[str, float]] = [dict(row) for row in rows]
        self.stop_reason = stop_reason

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in the order in which they have first appeared."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, column: str) -> list[float]:
        """Return the values of a column, one an epoch; NaN for an epoch without one.

        Raises:
            NameNotFoundError: no row has it.
        """
        known = self.columns
        if column not in known:
            raise NameNotFoundError(
                f"the history has no column {column!r}; it has "
                f"{known}{suggest_nearest(column, known)}"
            )
        return [row.get(column, math.nan) for row in self.rows]

    def __contains__(self, column: object) -> bool:
        return column in self.columns

    def best(self, monitor: str, mode: Mode | None = None) -> dict[str, float]:
        """Return the row with the best value of a column, the first of equal ones.

        mode: "min" or "max"; by default the name decides, see `direction`.

        Raises:
            NameNotFoundError: no row has the column.
            InputError: the name does not say what is better; or no value is a number.
        """
        mode = direction(monitor, mode)
        best: dict[str, float] | None = None
        for row, value in zip(self.rows, self[monitor], strict=True):
            if is_better(value, None if best is None else best[monitor], mode):
                best = row
        if best is None:
            raise InputError(f"{monitor!r} has no value that is a number")
        return best

    def to_csv(self) -> str:
        """Return the rows as CSV with a line of names; a missing value is an empty cell."""
        return foreign_text.format_csv(self.rows, self.columns)

    def to_jsonl(self) -> str:
        """Return the rows as JSON, an object a line; NaN and infinities are null."""
        finite = ({k: v if math.isfinite(v) else None for k, v in row.items()} for row in self.rows)
        return "".join(json.dumps(row) + "\n" for row in finite)

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the rows as CSV, in one step.

        Raises:
            FileError: it cannot be written; what was there is unchanged.
        """
        files.write(arguments.check_path("history", path), [self.to_csv().encode()])

    def write_jsonl(self, path: str | os.PathLike[str]) -> None:
        """Write the rows as JSON lines, in one step.

        Raises:
            FileError: it cannot be written; what was there is unchanged.
        """
        files.write(arguments.check_path("history", path), [self.to_jsonl().encode()])

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> History:
        """Read a history from a file that `write_csv` (*.csv) or `write_jsonl` (*.jsonl) wrote.

        Raises:
            FileError: it cannot be read, or is not a history.
        """
        name = arguments.check_path("history", path)
        data = files.read(name, "history")
        try:
            text = data.decode()
            if name.endswith(".csv"):
                return cls(
                    [
                        {column: _parse_number(cell) for column, cell in row.items() if cell != ""}
                        for row in foreign_text.read_table(text)
                    ]
                )
            return cls([_parse_row(json.loads(line)) for line in text.splitlines() if line.strip()])
        except (ValueError, TypeError, AttributeError, csv.Error) as error:
            raise FileError(f"{name!r} is not a history: {error}") from error

    def to_pandas(self) -> Any:
        """Return the rows as a `pandas.DataFrame`, whose index is the epoch.

        Raises:
            MissingPackageError: pandas is not installed.
        """
        try:
            pandas: Any = import_module("pandas")
        except ImportError as error:
            raise MissingPackageError(
                "History.to_pandas needs the package pandas: pip install pandas; `rows` has the "
                "same values"
            ) from error
        return pandas.DataFrame(self.rows, columns=self.columns or ["epoch"]).set_index("epoch")

    def plot(self, *columns: str, best: str | None = None) -> Plot:
        """Draw columns over the epochs, each with its validation column, as one picture.

        Notebooks show the picture, and `save` writes it as an SVG file.

        columns: by default the loss and the first metrics, eight charts at most.
        best: the column whose best epoch a line marks, such as "val_loss".

        Raises:
            NameNotFoundError: no row has a column.
            InputError: the history has no rows; or the name `best` does not say what is better.
        """
        from engine.drawing.plot import Plot
        from engine.trainer.epoch_charts import MOST, VALIDATION, list_charts, make_charts

        if not self.rows:
            raise InputError("the history has no epochs to draw")
        for name in columns:
            self[name]
        names = dict.fromkeys(name.removeprefix(VALIDATION) for name in columns)
        marked = None if best is None else int(self.best(best)["epoch"])
        return Plot(make_charts(self.rows, names or list_charts(self.rows)[:MOST], marked))

    def __repr__(self) -> str:
        if not self.rows:
            return "History(no epochs)"
        ended = f"stopped: {self.stop_reason}" if self.stop_reason else ""
        return (align_cells([self.columns, *self._list_cells()]) + ended).rstrip()

    def _repr_html_(self) -> str:
        from engine.drawing.page import escape, make_table  # imports html, hashlib, base64

        ended = f"<p>stopped: {escape(self.stop_reason)}</p>" if self.stop_reason else ""
        cells = [[escape(cell) for cell in row] for row in self._list_cells()]
        return make_table([escape(column) for column in self.columns], cells) + ended

    def _list_cells(self) -> list[list[str]]:
        """Return the rows as texts, epochs from 1 on; of a long history the first and the last."""
        shown = self.rows
        if len(shown) > SHOWN:
            shown = [*shown[: SHOWN // 4], *shown[SHOWN // 4 - SHOWN :]]
        cells = [[_format_cell(name, row.get(name)) for name in self.columns] for row in shown]
        if len(shown) < len(self.rows):
            cells.insert(SHOWN // 4, ["..." for _ in self.columns])
        return cells


def _format_cell(column: str, value: float | None) -> str:
    """Format a value of a column; a missing one is empty."""
    if value is None:
        return ""
    forms: dict[str, Callable[[float], str]] = {
        "epoch": lambda epoch: f"{int(epoch) + 1}",
        "seconds": amounts.format_duration,
        "memory": amounts.format_size,
        "skipped": lambda count: f"{int(count)}",
        "loss_scale": lambda factor: f"{factor:,.10g}",
    }
    return forms[column](value) if column in forms else amounts.measure(value, is_share(column))


def _parse_number(cell: str) -> float:
    return int(cell) if cell.lstrip("-").isdecimal() else float(cell)


def _parse_row(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else value + 0 for name, value in values.items()}
