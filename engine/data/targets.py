"""Columns of a table that a model learns to predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from engine.base.aliases import Array
from engine.base.errors import InputError, suggest_nearest
from engine.data.columns import Rows
from engine.data.preparation import convert_to_float32

Task = Literal["classification", "regression"]


def read_target(
    table: Rows,
    targets: Sequence[str],
    task: Task | None,
    classes: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
) -> tuple[Array | None, Sequence[str] | None]:
    """Return the target of every row, and the names of the classes; None where there are none.

    Args:
        targets: names of columns.
        task: see `Table`.
        classes: to keep to.
        categorical: columns whose numbers are names.

    Raises:
        InputError: a target is of the wrong kind, of a class that is not known, or all are of one.
    """
    if not targets:
        return None, None
    values = [None if name in categorical else table.read_numbers(name) for name in targets]
    if len(targets) > 1:
        if task == "classification":
            raise InputError("target: several columns; a classification has one")
        task = "regression"
    if task is None:
        task = _find_task(table, targets[0], values[0])
    if task == "classification":
        return find_classes(table, targets[0], values[0], classes)
    columns = []
    for name, column in zip(targets, values, strict=True):
        if column is None:
            raise InputError(
                f"{table.place(0, name)}: {table.read_cells(name)[0]!r} is not a number; "
                "a regression needs numbers, texts are for task='classification'"
            )
        columns.append(convert_to_float32(name, column, column))
    return np.stack(columns, axis=1), None


def _find_task(table: Rows, name: str, values: npt.NDArray[np.float64] | None) -> Task:
    """Return the only kind of target that a column can be."""
    if values is None:
        return "classification"
    if np.any(values != np.rint(values)):
        return "regression"
    raise InputError(
        f"{table.title}: the target {name!r} holds whole numbers, which may be classes or "
        "amounts; pass task='classification' or task='regression'"
    )


def find_classes(
    table: Rows,
    name: str,
    values: npt.NDArray[np.float64] | None,
    known: Sequence[str] | None,
) -> tuple[Array, Sequence[str]]:
    """Return the label of every row (int64), and the names of the classes, in order.

    Args:
        values: the numbers of the column; None for a column of texts.
        known: the classes to keep to.

    Raises:
        InputError: see `read_target`.
    """
    cells = table.read_cells(name)
    if values is not None:
        broken = np.flatnonzero(values != np.rint(values))
        if broken.size:
            i = int(broken[0])
            raise InputError(
                f"{table.place(i, name)}: {cells[i]!r} is not a class: labels are texts or "
                "whole numbers; task='regression' predicts amounts"
            )
        cells = [str(int(value)) for value in values]
    distinct = sorted(set(cells), key=_make_sort_key)
    if known is None:
        if len(distinct) < 2:
            raise InputError(
                f"{table.title}: all targets are of one class, {distinct[0]!r}; "
                "a classifier needs two or more"
            )
        known = distinct
    place = {text: i for i, text in enumerate(known)}
    for i, cell in enumerate(cells):
        if cell not in place:
            raise InputError(
                f"{table.place(i, name)}: {cell!r} is not one of the classes that the model was "
                f"trained with{suggest_nearest(cell, known)}"
            )
    return np.array([place[cell] for cell in cells], np.int64), known


def _make_sort_key(text: str) -> tuple[bool, int, str]:
    """Return the sort key of a class: whole numbers by their value, then texts."""
    try:
        return False, int(text), text
    except ValueError:
        return True, 0, text
