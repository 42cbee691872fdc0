"""Files of a server: a folder for each run, with a checkpoint for each round.

    <output>/<run>/checkpoints/<round>/   checkpoint: of the model, as `Trainer.save` writes it;
                                          strategy.safetensors: what the strategy remembers;
                                          position.json: the round, and what the run is tied to
    <output>/<run>/history.csv            a row a round
    <output>/<run>/checkpoint, inference.onnx    at the end

A checkpoint appears in one step when all of it is on the disk, as for `Trainer.fit`: a server that
is killed at any moment can continue from the last aggregated round.
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
from engine.trainer.runs import HISTORY, RunFolder
from engine.training.artifact_set import CHECKPOINT

if TYPE_CHECKING:
    from engine.trainer.trainer import Trainer

STRATEGY = "strategy.safetensors"
_KEY = "edgegrad"
_RESUME = re.compile(r"(?:(?P<run>\d+)/)?(?:last|round-(?P<round>\d+))")


class Output:
    """Folder of one run of a federation.

    Args:
        folder: the folder of all runs.
        resume: "": start a new run; "last" or "round-7": continue the last run from there; "2/last"
            or "2/round-7": continue run 2.

    Attributes:
        run: its `RunFolder`.
        begin: the checkpoint from which it continues; None for a new run.

    Raises:
        InputError: `resume` has another form.
        StateError: there is no such run or checkpoint.
        FileError: the folder cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str], resume: str = "") -> None:
        place = Path(folder).absolute()
        runs = sorted(int(p.name) for p in place.glob("[0-9]*") if p.name.isdecimal())
        self.begin: Path | None = None
        if not resume:
            self.run = RunFolder(_make_folder(place, runs[-1] + 1 if runs else 1))
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
                f"{', '.join(self._list_known()) or 'none'}"
            )

    @property
    def path(self) -> Path:
        """The folder of the run."""
        return self.run.path

    def _round(self, number: int) -> Path | None:
        """Return the newest checkpoint of a round: a resumed run may have repeated the round."""
        begin = f"{number:08d}"
        folders = [p for p in self.run.checkpoints.glob(f"{begin}*") if (p / CHECKPOINT).is_file()]
        return max(folders, key=lambda path: (len(path.name), path.name), default=None)

    def _list_known(self) -> list[str]:
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

        memory: the state of the strategy.  position: further facts for a resumed run. keep: how
            many checkpoints to keep; None for all.

        Raises:
            FileError: it cannot be written; earlier checkpoints are not changed.
        """

        def write(folder: Path) -> None:
            trainer.save(folder / CHECKPOINT)
            arrays, numbers = memory
            text = {_KEY: json.dumps(numbers)}
            safetensors.write(os.fspath(folder / STRATEGY), arrays, text)

        self.run.save(number, {"round": number, **position}, write, is_best=False, keep=keep)

    def load(self) -> tuple[dict[str, Any], tuple[Arrays, dict[str, Any]]]:
        """Return the position of the checkpoint from which the run continues, and the strategy's
        state.

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
        text = foreign_text.format_csv(rows, columns)
        files.write(os.fspath(self.path / HISTORY), [text.encode()])

    def read_history(self, before: int) -> list[dict[str, Any]]:
        """Return the rows of the rounds up to a number, as texts; none if there is no table yet.

        Raises:
            FileError: the table cannot be read, or is not a table of rounds.
        """
        path = self.path / HISTORY
        if not path.exists():
            return []
        text = files.read(os.fspath(path), "history").decode()
        try:
            rows = foreign_text.read_table(text)
            return [dict[str, Any](row) for row in rows if int(row["round"]) <= before]
        except (csv.Error, KeyError, ValueError) as error:
            raise FileError(f"{os.fspath(path)!r} is not a history of rounds: {error}") from error


def _make_folder(place: Path, number: int) -> Path:
    """Make a folder with this number, or the next free one; return it."""
    while True:
        made = place / str(number)
        try:
            place.mkdir(parents=True, exist_ok=True)
            made.mkdir()
            return made
        except FileExistsError:
            number += 1
        except OSError as error:
            raise FileError(
                f"cannot make {os.fspath(made)!r}: {files.describe_error(error)}"
            ) from error
