"""What a server keeps of a federation: a folder a run, a checkpoint a round.

    <output>/<run>/checkpoints/<round>/   checkpoint: of the model, as `Trainer.save` writes it;
                                          strategy.safetensors: what the strategy remembers;
                                          position.json: the round, and what the run is tied to
    <output>/<run>/history.csv            a row a round
    <output>/<run>/checkpoint, inference.onnx    at the end

A checkpoint appears in one step when all of it is on the disk, as those of `Trainer.fit`: a server
that is killed at any moment goes on from the last round that was aggregated.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.base import foreign_text
from engine.base.errors import CheckpointError, FileError, InputError, StateError
from engine.checkpoint import safetensors
from engine.federated.parameters import Arrays
from engine.system import files
from engine.trainer.runs import CHECKPOINT, RunFolder

if TYPE_CHECKING:
    from engine.trainer.trainer import Trainer

STRATEGY, HISTORY, MODEL = "strategy.safetensors", "history.csv", "inference.onnx"
_KEY = "edgegrad"
_RESUME = re.compile(r"(?:(?P<run>\d+)/)?(?:last|round-(?P<round>\d+))")


class Output:
    """The folder of one run of a federation.

    Args:
        folder: of all runs.
        resume: "": a new run; "last" or "round-7": the last run goes on from there; "2/last" or
            "2/round-7": run 2 does.

    Attributes:
        run: its `RunFolder`.
        begin: the checkpoint from which it goes on; None: it is a new one.

    Raises:
        InputError: `resume` is none of these.
        StateError: there is no such run or checkpoint.
        FileError: the folder cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str], resume: str = "") -> None:
        place = Path(folder).absolute()
        runs = sorted(int(p.name) for p in place.glob("[0-9]*") if p.name.isdecimal())
        self.begin: Path | None = None
        if not resume:
            self.run = RunFolder(_new(place, runs[-1] + 1 if runs else 1))
            return
        asked = _RESUME.fullmatch(resume)
        if asked is None:
            raise InputError(
                f"resume={resume!r}: expected 'last', 'round-7', '2/last' or '2/round-7', for the "
                "last run or for run 2"
            )
        if not runs or (asked["run"] and int(asked["run"]) not in runs):
            which = f"run {asked['run']}" if asked["run"] else "run"
            raise StateError(f"resume={resume!r}: there is no {which} in {os.fspath(place)!r}")
        self.run = RunFolder(place / str(asked["run"] or runs[-1]))
        self.begin = self.run.last if asked["round"] is None else self._round(int(asked["round"]))
        if self.begin is None:
            raise StateError(
                f"resume={resume!r}: {os.fspath(self.run.path)!r} has no such checkpoint; it has "
                f"{', '.join(self._known()) or 'none'}"
            )

    @property
    def path(self) -> Path:
        """The folder of the run."""
        return self.run.path

    def _round(self, number: int) -> Path | None:
        """The newest checkpoint of a round: a run that was resumed may have done it again."""
        begin = f"{number:08d}"
        found = [p for p in self.run.checkpoints.glob(f"{begin}*") if (p / CHECKPOINT).is_file()]
        return max(found, key=lambda path: (len(path.name), path.name), default=None)

    def _known(self) -> list[str]:
        numbers = {int(p.name.partition("-")[0]) for p in self.run.checkpoints.glob("[0-9]*")}
        return [f"round-{number}" for number in sorted(numbers)]

    def save(
        self,
        number: int,
        trainer: Trainer,
        memory: tuple[Arrays, Mapping[str, Any]],
        position: Mapping[str, Any],
        keep: int | None,
    ) -> None:
        """Add the checkpoint of a round.

        memory: what the strategy remembers.  position: what else a resumed run must know.
        keep: how many checkpoints stay; None: all.

        Raises:
            FileError: it cannot be written; those before are as they were.
        """

        def write(folder: Path) -> None:
            trainer.save(folder / CHECKPOINT)
            arrays, numbers = memory
            text = {_KEY: json.dumps(numbers)}
            safetensors.write(os.fspath(folder / STRATEGY), arrays, text)

        self.run.save(number, {"round": number, **position}, write, is_best=False, keep=keep)

    def load(self) -> tuple[dict[str, Any], tuple[Arrays, dict[str, Any]]]:
        """The position of the checkpoint from which the run goes on, and the strategy's memory.

        Raises:
            FileError, CheckpointError: a file is missing or damaged.
        """
        assert self.begin is not None
        arrays, texts = safetensors.read(os.fspath(self.begin / STRATEGY))
        position = self.run.position(self.begin)
        try:
            numbers = json.loads(texts[_KEY])
            position["round"] = int(position["round"])
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"{os.fspath(self.begin)!r} is damaged: {error}") from error
        return position, (arrays, numbers)

    def write_history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the table of all rounds.

        Raises:
            FileError: it cannot be written.
        """
        columns = list(dict.fromkeys(name for row in rows for name in row))
        text = foreign_text.table(rows, columns)
        files.write(os.fspath(self.path / HISTORY), [text.encode()])

    def history(self, before: int) -> list[dict[str, Any]]:
        """The rows of the rounds up to a number, as texts; none if there is no table yet.

        Raises:
            FileError: the table cannot be read, or is none of rounds.
        """
        path = self.path / HISTORY
        if not path.exists():
            return []
        text = files.read(os.fspath(path), "history").decode()
        try:
            rows = foreign_text.read_table(text)
            return [dict[str, Any](row) for row in rows if int(row["round"]) <= before]
        except (csv.Error, KeyError, ValueError) as error:
            raise FileError(f"{os.fspath(path)!r} is no history of rounds: {error}") from error


def _new(place: Path, number: int) -> Path:
    """A new folder of this number, or of the next one that is free."""
    while True:
        made = place / str(number)
        try:
            place.mkdir(parents=True, exist_ok=True)
            made.mkdir()
            return made
        except FileExistsError:
            number += 1
        except OSError as error:
            raise FileError(f"cannot make {os.fspath(made)!r}: {files.reason(error)}") from error
