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
from engine.data.pictures import encode_mask
from engine.drawing.class_colours import choose_colours
from engine.system import files
from engine.tools.actions import run_data, runs
from engine.tools.actions.run_config import RunConfig
from engine.trainer.places import make_rows
from engine.trainer.trainer import Trainer

FORMATS = (".csv", ".json")
SHOWN = 8  # shares of a line


def predict(
    folder: Path, trainer: Trainer, paths: Sequence[Path], batch_size: int | None = None
) -> list[dict[str, Any]]:
    """Return a row for each file, or for each row of a table.

    A row has the file, and the class with its probability and the ones of all classes; or the mask
    and the share of each class in it; or otherwise the values of the model's output.

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
        raise InputError(
            f"the model has the outputs {trainer.outputs}; predicting from files supports one"
        )
    classes = config.data.classes
    if not classes and config.model.loss == "cross_entropy" and outputs.ndim == 2:
        classes = list(map(str, range(outputs.shape[1])))  # labels of arrays have no names
    return make_rows(places, outputs, classes)


def format_row(row: Mapping[str, Any]) -> str:
    """Return a row as a line for people."""
    place = str(row["file"]) + (f", row {row['row']}" if "row" in row else "")
    if "tags" in row:
        pairs = zip(row["words"], row["tags"], strict=True)
        return f"{place}  " + " ".join(f"{word}/{tag}" for word, tag in pairs)
    if "shares" in row:
        shares = sorted(row["shares"].items(), key=lambda item: -item[1])
        return f"{place}  " + ", ".join(f"{name} {100 * s:.1f} %" for name, s in shares[:SHOWN])
    if "class" in row:
        return f"{place}  {row['class']}  {100 * row['probability']:.1f} %"
    return f"{place}  {' '.join(f'{value:.6g}' for value in np.ravel(row['values']).tolist())}"


def write(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows as CSV or JSON, as the name of the file says, without masks.

    Raises:
        FileError: it cannot be written.
    """
    rows = drop_masks(rows)
    text = _list_columns(rows) if path.suffix == ".csv" else json.dumps(rows, indent=1) + "\n"
    files.write(os.fspath(path), [text.encode()])


def drop_masks(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without their masks, which are pictures."""
    return [{key: value for key, value in row.items() if key != "mask"} for row in rows]


def write_masks(
    rows: Sequence[Mapping[str, Any]], folder: Path, sources: Sequence[Path], config: RunConfig
) -> list[Path]:
    """Write the masks of rows as PNG files, whose palettes have a colour for each class.

    They have the names of the pictures, in the same folders below one of the sources.

    Raises:
        InputError: the rows have no masks, or two would have one name.
        FileError: a file cannot be written.
    """
    written: dict[Path, str] = {}
    colours = choose_colours(len(config.data.classes), config.data.options.get("values", ()))
    for row in rows:
        if "mask" not in row:
            raise InputError(
                f"{folder}: the predictions are not masks; expected a name that ends with "
                f"{' or '.join(FORMATS)}"
            )
        source = Path(row["file"])
        root = next((path for path in sources if path in source.parents), source.parent)
        path = (folder / source.relative_to(root)).with_suffix(".png")
        if path in written:
            raise InputError(f"{written[path]!r} and {row['file']!r} would both be {path}")
        if path.resolve() == source.resolve():
            raise InputError(f"{path} is the picture itself: give another folder")
        written[path] = row["file"]
        files.make_folder(os.fspath(path.parent))
        files.write(os.fspath(path), [encode_mask(row["mask"], colours)])
    return list(written)


def _list_columns(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a column for each probability, or for each value."""
    flat = []
    for row in rows:
        cells = {k: v for k, v in row.items() if k not in ("probabilities", "values")}
        if "tags" in row:
            cells |= {key: " ".join(row[key]) for key in ("words", "tags")}
            flat.append(cells)
            continue
        cells |= {f"share({name})": s for name, s in cells.pop("shares", {}).items()}
        cells |= {f"p({name})": p for name, p in row.get("probabilities", {}).items()}
        values = np.ravel(row.get("values", ())).tolist()
        flat.append(cells | {f"value {i}": value for i, value in enumerate(values)})
    return foreign_text.format_csv(flat, flat[0])
