"""Folders of runs: checkpoints, which of them are the best and the last, and one run at a time.

    run.json                what was asked for, on which versions of what
    checkpoints/<step>/     checkpoint: as `Trainer.save` writes it; position.json: where the run is
    best, last              each one line, the name of a folder of `checkpoints`
    lock                    who trains here; locked as long as that process does
    artifacts/              the models of the trainer, its parameters before the run, and the
                            forward model that they were made of, if it is known
    history.csv, ...        what callbacks write

A checkpoint is written in a folder of another name, which gets its own when all is on the disk;
`last` and `best` are replaced in one step.  A crash at any moment therefore leaves `last` with the
name of a whole checkpoint, and the next run removes the remains of a killed process.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.base.errors import CheckpointError, FileError, StateError
from engine.base.representation import represent
from engine.base.signatures import check_arguments
from engine.system import files
from engine.training.artifact_set import CHECKPOINT, FORWARD, TRAINING
from engine.training.mode import Mode

if TYPE_CHECKING:
    import onnx

FORMAT = 1  # of position.json and run.json
ARTIFACTS = "artifacts"
POSITION, RUN, LOCK = "position.json", "run.json", "lock"
HISTORY, LOG, REPORT = "history.csv", "log.jsonl", "report.html"  # what reports write
CONFIG, INFERENCE = "run.toml", "inference.onnx"  # what `edgegrad train` writes
_UNFINISHED = ".tmp-"
_FAR = 1 << 30  # the byte that Windows locks, so that the text before it can be read


@check_arguments
class RunFolder:
    """The folder of a run; `locked` makes it, with all that leads to it, if it is missing."""

    __repr__ = represent

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other runs; the lock goes with the process that has it.

        Raises:
            StateError: another run has the folder; the message says which process.
            FileError: the folder cannot be made or locked.
        """
        files.make_folder(os.fspath(self.checkpoints))
        path = self.path / LOCK
        with _writing(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        _held.add(descriptor)
        try:
            if not _lock(descriptor, path):
                owner = os.read(descriptor, 200).decode(errors="replace").strip()
                raise StateError(
                    f"another run is training in {os.fspath(self.path)!r}"
                    f"{f' ({owner})' if owner else ''}: wait for it, or give another folder"
                )
            with _writing(path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()}\n".encode())
            for each in self.checkpoints.glob(f"{_UNFINISHED}*"):
                shutil.rmtree(each, ignore_errors=True)
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, 0)
                _unlock(descriptor)
        finally:
            _held.discard(descriptor)
            os.close(descriptor)

    # --- what is there

    @property
    def last(self) -> Path | None:
        """The folder of the last checkpoint; None if there is none.

        Raises:
            FileError: the file that names it cannot be read.
            CheckpointError: it names none.
        """
        return self._find_named("last")

    @property
    def best(self) -> Path | None:
        """The folder of the best checkpoint, as `last`."""
        return self._find_named("best")

    def _find_named(self, which: str) -> Path | None:
        path = self.path / which
        if not os.path.lexists(path):
            return None
        name = files.read(os.fspath(path), f"the name of the {which} checkpoint")
        checkpoint = self.checkpoints / name.decode(errors="replace").strip()
        if (
            checkpoint.parent != self.checkpoints
            or _parse_number(checkpoint) is None
            or not (checkpoint / CHECKPOINT).is_file()
        ):
            raise CheckpointError(
                f"{os.fspath(path)!r} names no checkpoint: there is no "
                f"{os.fspath(checkpoint / CHECKPOINT)!r}"
            )
        return checkpoint

    def position(self, checkpoint: Path) -> dict[str, Any]:
        """Read the position that `save` was given.

        Raises:
            FileError: the file cannot be read.
            CheckpointError: it is damaged, or of another version.
        """
        return self._read_content(checkpoint / POSITION, "position of a run")

    def request(self) -> dict[str, Any]:
        """Read the content of run.json.

        Raises:
            FileError: it cannot be read.
            CheckpointError: it is damaged, or of another version.
        """
        path = self.path / RUN
        return self._read_content(path, "request of a run")

    def _read_content(self, path: Path, what: str) -> dict[str, Any]:
        """Read a file of JSON in this format."""
        name = os.fspath(path)
        data = files.read(name, what)
        try:
            content = json.loads(data)
        except ValueError as error:
            raise CheckpointError(f"{name!r} is damaged: {error}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise CheckpointError(f"{name!r} is not a {what} in format {FORMAT}")
        return content

    def chosen(self) -> Path:
        """Return the folder of the best checkpoint, or of the last one where none is the best.

        A folder of a checkpoint is its own.

        Raises:
            FileError: there is none.
            CheckpointError: the file that names it names none.
        """
        if os.path.isfile(self.path / CHECKPOINT):
            return self.path
        place = self.best or self.last
        if place is None:
            raise FileError(
                f"{os.fspath(self.path)!r} has no checkpoint, so it is not the folder of a run"
            )
        return place

    # --- writing

    def describe(self, content: Mapping[str, Any]) -> None:
        """Write run.json.

        Raises:
            FileError: it cannot be written.
        """
        text = json.dumps({"format": FORMAT, **content}, indent=2) + "\n"
        files.write(os.fspath(self.path / RUN), [text.encode()])

    def keep_artifacts(
        self,
        folder: str,
        names: Mapping[str, str],
        forward: onnx.ModelProto | str | os.PathLike[str] | bytes | None,
    ) -> None:
        """Keep a set of artifacts in the folder of the run, as links where the system can.

        folder: the folder of the artifacts; if they are in the run's own, only the forward model is
            added.
        names: the names of the files in it, each with its new name; those that are missing are left
            out.
        forward: the model that they were made of; None if not known.

        Raises:
            FileError: they cannot be read or written.
        """
        place = os.fspath(self.path / ARTIFACTS)
        is_own = os.path.realpath(folder) == os.path.realpath(place)
        files.make_folder(place)
        with files.staging(place) as stage:
            kept = {**names, **_save_forward(forward, folder, os.path.join(stage, FORWARD))}
            for name, its in ({} if is_own else kept).items():
                source = os.path.join(folder, name)
                if os.path.isfile(source):
                    files.copy(os.path.realpath(source), os.path.join(stage, its))
            made = sorted(os.listdir(stage))
            if made:
                moves = [(os.path.join(stage, n), os.path.join(place, n)) for n in made]
                files.replace_together(moves, [] if is_own else [os.path.join(place, TRAINING)])

    def save(
        self,
        step: int,
        position: Mapping[str, Any],
        write: Callable[[Path], None],
        *,
        is_best: bool,
        keep: int | None,
        keep_best: int = 1,
        mode: Mode = "min",
    ) -> Path:
        """Add a checkpoint, which is then the last one, and remove those that are too many.

        step: how many steps the optimizer has made; the name of the checkpoint.
        position: the content of position.json.
        write: writes all other files into the folder it is given.
        is_best: whether it is then the best one, too.
        keep: how many of the newest checkpoints are kept, besides the best ones; None for all.
        keep_best, mode: how many of the best are kept, by `value` of their positions, and whether
            less or more is better.

        Raises:
            FileError: it cannot be written.  The other checkpoints are as they were.
        """
        stage = self.checkpoints / f"{_UNFINISHED}{secrets.token_hex(8)}"
        try:
            with _writing(stage):
                stage.mkdir()
            write(stage)
            text = json.dumps({"format": FORMAT, **position})
            files.write(os.fspath(stage / POSITION), [text.encode()])
            with _writing(self.checkpoints):
                place = self._rename(stage, step)
        except BaseException:
            shutil.rmtree(stage, ignore_errors=True)
            raise
        for which in ("last", "best") if is_best else ("last",):
            files.write(os.fspath(self.path / which), [f"{place.name}\n".encode()])
        if keep is not None:
            self._remove_old(keep, self.ranking(mode)[:keep_best] if keep_best > 1 else [])
        return place

    def _rename(self, stage: Path, step: int) -> Path:
        """Give a checkpoint its name: the step, and a number if there are several of one step."""
        place = self.checkpoints / f"{step:08d}"
        again = 0
        while place.exists():
            again += 1
            place = self.checkpoints / f"{step:08d}-{again}"
        stage.rename(place)
        files.sync_folder(os.fspath(self.checkpoints))
        return place

    def ranking(self, mode: Mode) -> list[Path]:
        """Return the checkpoints at the ends of epochs, the best one first.

        mode: whether less or more is better of `value` in their positions.

        Raises:
            FileError, CheckpointError: a position cannot be read.
        """
        valued = []
        for number, path in sorted(
            (n, p) for p in self.checkpoints.iterdir() if (n := _parse_number(p))
        ):
            value = self.position(path).get("value")
            if value is not None and value == value:
                valued.append((value if mode == "min" else -value, number, path))
        return [path for *_, path in sorted(valued)]

    def _remove_old(self, keep: int, best: Sequence[Path]) -> None:
        """Remove all checkpoints but the newest, the best and the last one."""
        known = sorted((n, p) for p in self.checkpoints.iterdir() if (n := _parse_number(p)))
        named = {self.best, self.last, *best}
        for _, path in known[: max(len(known) - keep, 0)]:
            if path not in named:
                shutil.rmtree(path, ignore_errors=True)


def _save_forward(
    model: onnx.ModelProto | str | os.PathLike[str] | bytes | None, folder: str, path: str
) -> dict[str, str]:
    """Write the forward model of artifacts to a path.

    folder: the folder of the artifacts.  If the model is in it, nothing is written, and its files
        are returned, each with the name to keep.
    """
    from engine.graphs.io import onnx_io

    if model is None:
        return {}
    own = os.path.join(folder, FORWARD)
    if isinstance(model, str | os.PathLike) and os.path.realpath(model) == os.path.realpath(own):
        return {n: n for n in (FORWARD, *filter(files.is_inside, onnx_io.list_external_files(own)))}
    onnx_io.save(onnx_io.load(model), path)
    return {}


_held: set[int] = set()  # descriptors of locks


def _let_go() -> None:
    """Close the locks in a forked child, which would keep them beyond the end of the run."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def _parse_number(path: Path) -> tuple[int, int] | None:
    """Return the step of a checkpoint, and the number of older ones of that step; or None."""
    match = re.fullmatch(r"(\d{8,})(?:-(\d+))?", path.name)
    return (int(match[1]), int(match[2] or 0)) if match else None


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn errors of the system into a `FileError` that names the path."""
    try:
        yield
    except OSError as error:
        raise FileError(
            f"cannot write {os.fspath(path)!r}: {files.describe_error(error)}"
        ) from error


def _lock(descriptor: int, path: Path) -> bool:
    """Lock a file for as long as it is open; whether no other process or thread has it locked."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, _FAR, os.SEEK_SET)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            except PermissionError:
                return False
            finally:
                os.lseek(descriptor, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise FileError(
            f"cannot lock {os.fspath(path)!r}: {files.describe_error(error)}"
        ) from error
    return True


def _unlock(descriptor: int) -> None:
    """Give a lock back now, even if a forked child has not closed its copy of the file yet."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)
