"""The checkpoints of a run of `fit`: where it stands, written to its folder and read from it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from engine.base.errors import (
    CheckpointError,
    CheckpointWarning,
    DTypeError,
    EngineError,
    FileError,
    StateError,
    warn_user,
)
from engine.trainer import identity, nonfinite, runs
from engine.trainer.averages import Averages, read_parameters, set_values
from engine.trainer.fit import Callback, Fit
from engine.trainer.history import History
from engine.trainer.measuring import TrainingMetrics
from engine.trainer.request import Request
from engine.trainer.runs import RunFolder
from engine.training import artifact_set
from engine.training.loss_scale import explain_kept

if TYPE_CHECKING:
    from engine.trainer.batch_trainer import BatchTrainer

T = TypeVar("T")


@dataclass(slots=True)
class Standing:
    """Where a run stands, next to what its `Fit` says.

    first_step: the steps of earlier runs do not count for the schedule.
    loss_sum: the sum of the losses of this epoch's samples.
    part_sums: the same sum for each of several outputs.
    epoch_seconds: the seconds of this epoch before the run was resumed in the middle of it.
    training_seconds: as that, of the training alone, without planning and compiling.
    best: the monitored column at the best checkpoint.
    is_saved: whether the last checkpoint is of what is trained by now.
    """

    first_step: int
    loss_sum: float = 0.0
    part_sums: dict[str, float] = field(default_factory=dict)
    epoch_seconds: float = 0.0
    training_seconds: float = 0.0
    best: float | None = None
    is_saved: bool = False

    def start_epoch(self) -> None:
        """Forget the sums of the last epoch."""
        self.loss_sum = self.epoch_seconds = self.training_seconds = 0.0
        self.part_sums = {}


class RunCheckpoints:
    """The checkpoints of a run, which rank 0 alone writes and reads.

    call: calls a hook of all callbacks.
    """

    def __init__(
        self,
        trainer: BatchTrainer,
        asked: Request,
        fit: Fit,
        standing: Standing,
        averages: Averages | None,
        measuring: TrainingMetrics | None,
        call: Callable[..., None],
    ) -> None:
        self.trainer, self.asked, self.ranks = trainer, asked, trainer.ranks
        self.fit, self.standing, self.call = fit, standing, call
        self.averages, self.measuring = averages, measuring
        self.schedule, self.unfreezing = asked.schedule, asked.unfreezing
        is_first = self.ranks is None or self.ranks.is_first
        self.run_folder = RunFolder(asked.folder) if asked.folder and is_first else None
        train = asked.train
        self.identity = identity.identify(
            trainer.learner,
            samples=train.samples,
            batches=asked.batches,
            batch_size=train.batch_size,
            parts=trainer.training_steps.parts,
            accumulate=asked.accumulate,
            unfreeze=None if asked.unfreezing is None else asked.unfreezing.plan,
            freeze_statistics=asked.freeze_statistics,
            ema=asked.ema,
            swa=asked.swa,
            class_weight=asked.weights,
            train_metrics=[m.name for m in asked.metrics] if asked.train_metrics else None,
            **{"shuffle": asked.shuffle, "seed": asked.seed, **train.identity},
        )

    @property
    def is_written(self) -> bool:
        """Return whether this process writes the checkpoints."""
        return self.run_folder is not None

    def lead(self, function: Callable[[], T]) -> T:
        """Call a function on rank 0 alone, and return or raise on all ranks what it did there."""
        return function() if self.ranks is None else self.ranks.lead(function)

    def lock(self, stack: contextlib.ExitStack) -> None:
        """Keep other runs out of the folder as long as the stack is open."""
        if self.run_folder is not None:
            stack.enter_context(self.run_folder.locked())

    def begin(self) -> None:
        """Write down what is asked for, or go on where the run in the folder stands."""
        if self.ranks is not None:
            seed = {"model_seed": self.ranks.seed}  # of rank 0; each of the others has its own
            self.identity |= seed
            told = {identity.WORDS.get(key, key): value for key, value in self.identity.items()}
            self.ranks.check_alike({**told, "the number of epochs": self.fit.epochs})
        if self.asked.folder is None:
            return
        checkpoint = self.lead(self._find_checkpoint)
        if checkpoint is None:
            return
        last, position = Path(checkpoint[0]), checkpoint[1]
        try:
            self._restore(position, last)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, EngineError):
                raise
            raise CheckpointError(
                f"{os.fspath(last)!r}: the position of the run is damaged: {error!r}"
            ) from error
        self.lead(lambda: self._describe(resumed=last.name))

    def _find_checkpoint(self) -> tuple[str, Mapping[str, Any]] | None:
        """Return the last checkpoint of the folder and its position; None if a new run begins."""
        folder = self.run_folder
        assert folder is not None
        last = folder.last
        if last is None:
            self._keep_artifacts()
            self._describe()
            return None
        if not self.asked.resume:
            raise StateError(
                f"{os.fspath(folder.path)!r} has a run already: resume=True continues it; or "
                "give another folder"
            )
        position = folder.position(last)
        identity.check(self.identity, position.get("identity"), folder.path)
        if not (folder.path / runs.ARTIFACTS / artifact_set.TRAINING).is_file():
            self._keep_artifacts()
        return os.fspath(last), position

    def _keep_artifacts(self) -> None:
        """Keep the artifacts in the folder of the run, and the model that they were made of."""
        assert self.run_folder is not None
        learner = self.trainer.learner
        self.run_folder.keep_artifacts(learner.folder, learner.list_files(), self.trainer.forward)

    def _describe(self, **more: str) -> None:
        """Write down what is asked for."""
        assert self.run_folder is not None
        if self.trainer.data_description is not None:
            self.trainer.data_description.write(self.run_folder.path)
        classes = self.fit.classes
        recipe = self.trainer.recipe
        made_of = {
            "recipe": None if recipe is None else recipe.to_table(),
            "classes": None if classes is None else list(classes),
            "outputs": list(self.trainer.learner.outputs)
            if self.trainer.learner.session.evaluation
            else None,
            "ignore_index": self.trainer.ignore_index,
            "threshold": self.trainer.threshold,
        }
        self.run_folder.describe({**self.asked.describe(), **self.identity, **made_of, **more})

    def _restore(self, position: Mapping[str, Any], checkpoint: Path) -> None:
        """Take over where a run stands from its checkpoint and the position in it."""
        fit, standing = self.fit, self.standing
        if self.unfreezing is not None:
            self.unfreezing.leave()
        self.trainer.load(checkpoint / artifact_set.CHECKPOINT)
        if self.unfreezing is not None:
            self.unfreezing.enter(position["entered"])
        fit.epoch, fit.batch, fit.step = position["epoch"], position["batch"], position["step"]
        fit.samples, fit.samples_total = position["samples"], position["samples_total"]
        fit.seconds_before, fit.history = position["seconds"], History(position["history"])
        fit.resumed_from = checkpoint
        fit.resumed_note = explain_kept(
            self.trainer.module.session.memory.scaling, self.trainer.state.loss_scale
        )
        standing.loss_sum = position["loss_sum"]
        standing.first_step = position["first_step"]
        standing.part_sums = dict(position.get("part_sums", {}))
        fit.skipped, fit.lossless = position.get("skipped", (0, 0))
        standing.epoch_seconds, standing.training_seconds = position["epoch_seconds"]
        if self.measuring is not None:
            self.measuring.restore(position.get("measured", ()))
        if self.averages is not None:
            self.averages.restore(position["averages"], checkpoint)
        if position["monitor"] == fit.monitor and position["best"] is not None:
            standing.best = position["best"]
            rows = (row for row in fit.history.rows if row.get(fit.monitor) == standing.best)
            fit.best_epoch = next((int(row["epoch"]) for row in rows), None)
        kind, state = position["schedule"]
        if kind == type(self.schedule).__name__:
            self.schedule.restore(state)
        saved = list(position["callbacks"])
        for callback in fit.callbacks:
            entry = next((each for each in saved if each[0] == type(callback).__name__), None)
            if entry is not None:
                saved.remove(entry)
                callback.restore(entry[1])

    def make_position(self, is_next: bool = False) -> dict[str, Any]:
        """Return the position of the run, as JSON types.

        is_next: whether that is the beginning of the next epoch, and not this one.
        """
        fit = self.fit
        here = {
            "epoch": fit.epoch,
            "batch": fit.batch,
            "samples": fit.samples,
            "loss_sum": self.standing.loss_sum,
            "part_sums": dict(self.standing.part_sums),
            "skipped": [fit.skipped, fit.lossless],
            "epoch_seconds": [self.standing.epoch_seconds, self.standing.training_seconds],
        }
        if is_next:
            here = {
                "epoch": fit.epoch + 1,
                "batch": 0,
                "samples": 0,
                "loss_sum": 0.0,
                "part_sums": {},
                "skipped": [0, 0],
                "epoch_seconds": [0.0, 0.0],
            }
        return {
            **here,
            "entered": fit.epoch,
            "step": fit.step,
            "first_step": self.standing.first_step,
            "samples_total": fit.samples_total,
            "seconds": fit.seconds,
            "history": [dict(row) for row in fit.history.rows],
            "monitor": fit.monitor,
            "best": self.standing.best,
            "schedule": [type(self.schedule).__name__, self.schedule.state()],
            "callbacks": [each for c in fit.callbacks if (each := _read_state(c))[1]],
            "identity": self.identity,
            "averages": None if self.averages is None else self.averages.make_state(),
        }

    def restore_best(self) -> None:
        """Give the trainer the parameters of the best checkpoint, if there is any."""
        if self.unfreezing is not None:
            self.unfreezing.leave()
        self.lead(self._read_best)
        if self.ranks is not None:
            self.ranks.spread()

    def _read_best(self) -> None:
        """Read the parameters of the best checkpoint."""
        assert self.run_folder is not None
        best = self.run_folder.best
        if best is not None:
            set_values(self.trainer.learner, read_parameters(best))

    def save(
        self, position: Mapping[str, Any], *, is_best: bool = False, must: bool = False
    ) -> None:
        """Write a checkpoint, if the run has a folder.

        must: raise a FileError if it cannot be written; otherwise a warning says so, and the run
            goes on to the next one.
        """
        if self.asked.folder is None:
            return
        if self.ranks is not None:
            self.ranks.average_moved()
            self.ranks.check_same()
        nonfinite.check_parameters(self.trainer.learner)
        if self.measuring is not None:
            position = {**position, "measured": self.measuring.list_state()}
        self.standing.is_saved = self.lead(lambda: self._write(position, is_best, must))

    def _write(self, position: Mapping[str, Any], is_best: bool, must: bool) -> bool:
        """Write a checkpoint; returns whether it is there.

        Raises:
            FileError: it could not be written, and `must`.
        """
        folder, fit = self.run_folder, self.fit
        assert folder is not None

        def write(place: Path) -> None:
            source = self.trainer.learner if self.unfreezing is None else self.unfreezing
            source.write_checkpoint(place / artifact_set.CHECKPOINT)
            if self.averages is not None:
                self.averages.write(place)
            self.call("on_checkpoint", place)

        try:
            folder.save(
                fit.step, position, write, is_best=is_best, keep=self.asked.keep,
                keep_best=self.asked.keep_best, mode=self.asked.mode,
            )  # fmt: skip
        except FileError as error:
            text = (
                f"the checkpoint of step {fit.step} could not be written: {error}; those that are "
                "there are whole"
            )
            if must:
                raise FileError(text) from error
            warn_user(f"{text}, and the training goes on", CheckpointWarning)
            return False
        return True


def _read_state(callback: Callback) -> tuple[str, dict[str, Any]]:
    """Return the name of a callback's class and its state.

    Raises:
        DTypeError: the state holds what JSON does not.
    """
    name, state = type(callback).__name__, callback.state()
    try:
        json.dumps(state)
    except (TypeError, ValueError) as error:
        raise DTypeError(f"{name}.state() must return what JSON can hold: {error}") from error
    return name, state
