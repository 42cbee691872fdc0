"""Predictions of a run for new files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.base import foreign_text
from engine.base.errors import InputError
from engine.system import files
from engine.tools.actions import run_data, runs
from engine.trainer.places import make_rows
from engine.trainer.trainer import Trainer

FORMATS = (".csv", ".json")


def predict(
    folder: Path, trainer: Trainer, paths: Sequence[Path], batch_size: int | None = None
) -> list[dict[str, Any]]:
    """Return a row for each file, or for each row of a table.

    A row has the file, and the class with its probability and the ones of all classes, or otherwise
    the values of the model's output.

    folder: the folder of the run.
    paths: files, or folders of them.
    batch_size: by default the training's.

    Raises:
        FileError: a file cannot be read.
        InputError: there are none, or the model has several outputs.
    """
    config = runs.read_config(folder)
    learned = run_data.read_learned(config.data, folder)
    places, samples = run_data.open_unlabelled(config.data, list(paths), learned)
    outputs = trainer.predict(samples, batch_size=batch_size or config.data.batch_size)
    if isinstance(outputs, tuple):
        raise InputError(f"the model has the outputs {trainer.outputs}: predictions are of one")
    return make_rows(places, outputs, config.data.classes)


def format_row(row: Mapping[str, Any]) -> str:
    """Return a row as a line for people."""
    place = str(row["file"]) + (f", row {row['row']}" if "row" in row else "")
    if "class" in row:
        return f"{place}  {row['class']}  {100 * row['probability']:.1f} %"
    return f"{place}  {' '.join(f'{value:.6g}' for value in np.ravel(row['values']).tolist())}"


def write(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows as CSV or JSON, as the name of the file says.

    Raises:
        FileError: it cannot be written.
    """
    text = _list_columns(rows) if path.suffix == ".csv" else json.dumps(rows, indent=1) + "\n"
    files.write(os.fspath(path), [text.encode()])


def _list_columns(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a column for each probability, or for each value."""
    flat = []
    for row in rows:
        cells = {k: v for k, v in row.items() if k not in ("probabilities", "values")}
        cells |= {f"p({name})": p for name, p in row.get("probabilities", {}).items()}
        values = np.ravel(row.get("values", ())).tolist()
        flat.append(cells | {f"value {i}": value for i, value in enumerate(values)})
    return foreign_text.format_csv(flat, flat[0])
