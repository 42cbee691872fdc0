"""Comparisons of runs: their curves, best values, cost, and the settings that differ."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from engine.base import arguments
from engine.base.errors import EngineError, FileError, InputError
from engine.base.signatures import check_arguments
from engine.drawing import amounts
from engine.drawing.axes import Kind
from engine.drawing.charts import COLOURS, Line, draw_line_chart
from engine.drawing.page import escape, make_page, make_table
from engine.drawing.text_table import align_cells
from engine.system import files
from engine.trainer.epoch_charts import list_charts
from engine.trainer.history import History, direction, is_better
from engine.trainer.metrics.named import NOT_RESULTS, is_share
from engine.trainer.reports.sections.request import flatten
from engine.trainer.runs import CONFIG, HISTORY, INFERENCE, RUN, RunFolder
from engine.training.artifact_set import CHECKPOINT
from engine.training.mode import Mode

CHANGING = ("format", "started", "resumed")  # entries of run.json that are not settings
NONE = "–"
DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")  # SHA-256; its first digits are shown


@dataclass(frozen=True, slots=True)
class BestEpoch:
    """The best value of a column, and the epoch that reached it, from 0 on."""

    value: float
    epoch: int


@check_arguments
class RunRecord:
    """A run as its folder records it.

    folder: the folder of the run.
    history: a row an epoch.
    monitor: the column that decides which checkpoint is the best.
    steps, seconds: the steps and the seconds of the whole run; None if no checkpoint records them.
    settings: names and values, from run.toml and run.json.
    sizes: bytes of the best checkpoint and of the exported model, by "checkpoint" and "model".

    Raises:
        FileError: the folder has no run, or the run no epoch yet.
        CheckpointError: a file of the run is damaged.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        described = self.folder / RUN
        if not described.is_file():
            raise FileError(
                f"{os.fspath(self.folder)!r} is not a run: it has no {RUN}; `edgegrad train` and "
                "Trainer.fit(folder=...) make runs"
            )
        content = _read_json(described)
        run = RunFolder(self.folder)
        position = {} if run.last is None else run.position(run.last)
        self.history = self._read_history(position)
        self.monitor = str(content.get("monitor", "loss"))
        self.steps: int | None = position.get("step")
        self.seconds: float | None = position.get("seconds")
        self.settings = dict(flatten({k: v for k, v in content.items() if k not in CHANGING}))
        self.settings |= _read_settings(self.folder / CONFIG)
        best = run.best
        places = {"checkpoint": best and best / CHECKPOINT, "model": self.folder / INFERENCE}
        self.sizes = {name: p.stat().st_size for name, p in places.items() if p and p.is_file()}

    def _read_history(self, position: Mapping[str, Any]) -> History:
        """Return the rows of the last checkpoint, or of history.csv if it has more."""
        saved = History(position.get("history", ()))
        path = self.folder / HISTORY
        logged = History.read(path) if path.is_file() else History()
        if not saved.rows and not logged.rows:
            raise FileError(f"{os.fspath(self.folder)!r}: the run has no epoch yet")
        return logged if len(logged) > len(saved) else saved

    def best(self, column: str) -> BestEpoch | None:
        """Return the best value of a column; None if it has none, or does not say what is best."""
        try:
            row = self.history.best(column)
        except EngineError:
            return None
        return BestEpoch(row[column], int(row["epoch"]))

    @property
    def memory(self) -> float | None:
        """The largest resident size of the process, in bytes; None if not recorded."""
        return max((row["memory"] for row in self.history.rows if "memory" in row), default=None)

    def __repr__(self) -> str:
        return f"RunRecord({os.fspath(self.folder)!r}, {len(self.history)} epochs)"


@check_arguments
class Comparison:
    """Several runs side by side.  `print` shows tables, notebooks show the page's contents.

    runs: by name: of their folders, or their paths if two folders have one name.
    """

    def __init__(self, runs: Mapping[str, RunRecord]) -> None:
        self.runs = dict(runs)

    @cached_property
    def columns(self) -> list[str]:
        """The columns of histories that can be compared, the validation's last."""
        rows = [row for run in self.runs.values() for row in run.history.rows]
        names = [column for row in rows for column in row if column not in NOT_RESULTS]
        order = list_charts(rows)
        return sorted(
            dict.fromkeys(names),
            key=lambda c: (c.startswith("val_"), order.index(c.removeprefix("val_"))),
        )

    @property
    def differing(self) -> dict[str, list[str | None]]:
        """The settings that differ: of each the value in every run, None where it has none."""
        names = dict.fromkeys(name for run in self.runs.values() for name in run.settings)
        values = {n: [run.settings.get(n) for run in self.runs.values()] for n in names}
        return {name: row for name, row in values.items() if len(set(row)) > 1}

    def best(self, column: str) -> list[BestEpoch | None]:
        """Return the best value of a column in every run."""
        return [run.best(column) for run in self.runs.values()]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON types."""
        return {
            "runs": {
                name: {
                    "folder": os.fspath(run.folder),
                    "epochs": len(run.history),
                    "steps": run.steps,
                    "seconds": run.seconds,
                    "memory": run.memory,
                    "sizes": run.sizes,
                    "best": {
                        column: {"value": best.value, "epoch": best.epoch}
                        for column in self.columns
                        if (best := run.best(column)) is not None
                    },
                }
                for name, run in self.runs.items()
            },
            "differing": self.differing,
        }

    def __str__(self) -> str:
        parts = [align_cells(self._list_values())]
        if self.differing:
            head = ["settings that differ", *self.runs]
            parts.append(align_cells([head, *self._list_settings()], left=len(head)))
        return "\n".join(parts).rstrip()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return "".join(
            f"<h3>{escape(title)}</h3>{content}" for _, title, content in self._list_sections()
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the page as a file, in one step; it needs no other file and no network.

        Raises:
            FileError: it cannot be written; what was there is unchanged.
        """
        names = ", ".join(self.runs)
        content = make_page(f"Comparison of {names}", "", self._list_sections())
        files.write(arguments.check_path("comparison", path), [content.encode()])

    def _list_sections(self) -> Iterator[tuple[str, str, str]]:
        head, *rows = self._list_values()
        told = "<p>In parentheses is the epoch. A star marks the best of all runs.</p>"
        cells = [list(map(escape, row)) for row in rows]
        yield "runs", "Runs", told + make_table(list(map(escape, head)), cells, "scores")
        yield "curves", "Curves", f'<div class="charts">{"".join(self._draw_charts())}</div>'
        settings = [[escape(cell) for cell in row] for row in self._list_settings()]
        head = ["setting", *map(escape, self.runs)]
        told = make_table(head, settings) if settings else "<p>No setting differs.</p>"
        yield "settings", "Settings that differ", told

    def _list_values(self) -> list[list[str]]:
        """Return a row a run: best values with their epochs, time, memory and sizes.

        A star marks the best of all runs.
        """
        columns = [c for c in self.columns if any(self.best(c))]
        head = ["run", *(f"best {column}" for column in columns), "epochs", "steps", "time"]
        rows = [[name] for name in self.runs]
        for column in columns:
            values, mode = self.best(column), direction(column)
            top = _find_best([None if v is None else v.value for v in values], mode)
            for i, (row, best) in enumerate(zip(rows, values, strict=True)):
                star = "* " if i == top and len(rows) > 1 else ""
                row.append(
                    NONE
                    if best is None
                    else f"{star}{amounts.measure(best.value, is_share(column))} ({best.epoch + 1})"
                )
        for row, run in zip(rows, self.runs.values(), strict=True):
            row += [
                f"{len(run.history)}",
                NONE if run.steps is None else f"{run.steps:,}",
                NONE if run.seconds is None else amounts.format_duration(run.seconds),
                NONE if run.memory is None else amounts.format_size(run.memory),
                *(amounts.format_size(run.sizes[k]) if k in run.sizes else NONE for k in SIZES),
            ]
        return [[*head, "memory", *SIZES], *rows]

    def _list_settings(self) -> list[list[str]]:
        return [
            [name, *(NONE if value is None else DIGEST.sub(r"\1", value) for value in row)]
            for name, row in self.differing.items()
        ]

    def _draw_charts(self) -> Iterator[str]:
        """Yield a chart for each column, with a line a run."""
        for column in self.columns:
            kind: Kind = "share" if is_share(column) else "number"
            lines = [
                Line(name, [row["epoch"] + 1 for row in rows], [row[column] for row in rows],
                     i % COLOURS)
                for i, (name, run) in enumerate(self.runs.items())
                if (rows := [row for row in run.history.rows if column in row])
            ]  # fmt: skip
            yield draw_line_chart(column, "epoch", lines, kind=kind, may_be_log="loss" in column)


SIZES = ("checkpoint", "model")


@check_arguments
def compare(*folders: str | os.PathLike[str]) -> Comparison:
    """Compare runs: their curves, best values, time, memory, sizes, and settings that differ.

    folders: the folders of the runs, two or more.

    Raises:
        InputError: there are fewer than two, or one is given twice.
        FileError: a folder has no run, or its run no epoch yet.
        CheckpointError: a file of a run is damaged.
    """
    paths = [Path(folder) for folder in folders]
    if len(paths) < 2:
        raise InputError(f"compare: {len(paths)} runs; expected two or more")
    places = [path.resolve() for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise InputError(f"compare: the run {os.fspath(path)!r} is given twice")
    names = [place.name for place in places]
    titles = [
        name if names.count(name) == 1 else os.fspath(path)
        for name, path in zip(names, paths, strict=True)
    ]
    return Comparison(dict(zip(titles, map(RunRecord, paths), strict=True)))


def _find_best(values: Sequence[float | None], mode: Mode) -> int | None:
    """Return the place of the best value, the first of equal ones."""
    best, place = None, None
    for i, value in enumerate(values):
        if value is not None and is_better(value, best, mode):
            best, place = value, i
    return place


def _read_json(path: Path) -> Mapping[str, Any]:
    """Read run.json.

    Raises:
        FileError: it cannot be read, or is something else.
    """
    name = os.fspath(path)
    try:
        content = json.loads(files.read(name, "description of a run"))
    except ValueError as error:
        raise FileError(f"{name!r} is not the description of a run: {error}") from error
    if not isinstance(content, dict):
        raise FileError(f"{name!r} is not the description of a run")
    return content


def _read_settings(path: Path) -> dict[str, str]:
    """Return the settings of run.toml; none if it is missing.

    Raises:
        FileError: it is not TOML.
    """
    if not path.is_file():
        return {}
    try:
        return dict(flatten(tomllib.loads(files.read(os.fspath(path), "configuration").decode())))
    except ValueError as error:
        raise FileError(f"{os.fspath(path)!r} is not a configuration: {error}") from error
