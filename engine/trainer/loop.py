"""The loop of `Trainer.fit`: epochs of batches, validations, checkpoints, and how they end."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from engine.base.errors import (
    EngineError,
    InputError,
    NonFiniteError,
)
from engine.data.samples import Batch, count_samples
from engine.data.shares import Share
from engine.distributed.agreement import is_agreed
from engine.system.preparation import read_clock
from engine.trainer import nonfinite
from engine.trainer.averages import Averages, set_values
from engine.trainer.evaluation import EvaluationBatch, EvaluationInterrupted
from engine.trainer.fit import HOOKS, Callback, Fit
from engine.trainer.history import RESERVED, History, is_better
from engine.trainer.interrupts import Interrupts
from engine.trainer.measuring import TrainingMetrics
from engine.trainer.ranks import split_part
from engine.trainer.reports.process import measure_peak
from engine.trainer.request import Request
from engine.trainer.run_checkpoints import RunCheckpoints, Standing
from engine.trainer.schedules import Constant

if TYPE_CHECKING:
    from engine.trainer.batch_trainer import BatchTrainer
    from engine.trainer.learner import TrainingModels
    from engine.trainer.ranks import Ranks

INTERRUPTED, OUT_OF_TIME = "interrupted", "the time limit is reached"


class Loop:
    """A run of `fit`."""

    def __init__(self, trainer: BatchTrainer, asked: Request) -> None:
        self.trainer, self.asked, self.ranks = trainer, asked, trainer.ranks
        is_first = self.ranks is None or self.ranks.is_first
        self.schedule, self.unfreezing = asked.schedule, asked.unfreezing
        self.deadline = math.inf if asked.hours is None else monotonic() + 3600 * asked.hours
        self.interrupts = Interrupts()
        self.interrupts.has_begun = self.ranks is not None  # which stop together, after a step
        self.averages: Averages | None = None
        if asked.ema is not None or asked.swa is not None:
            self.averages = Averages(trainer.learner, asked)
        self.best_values: dict[str, Any] = {}  # of the best epoch, where no folder has them
        train, validation = asked.train, asked.validation
        self.fit = Fit(
            trainer=trainer,
            epochs=asked.epochs,
            batches=asked.batches,
            batch_size=train.batch_size,
            classes=(validation and validation.classes) or train.classes or trainer.classes,
            folder=asked.folder,
            callbacks=asked.callbacks if is_first else (),
            monitor=asked.monitor,
            validates=validation is not None,
            validation=validation,
            keeps_best=asked.folder is not None or asked.restore == "best",
            step=trainer.steps,
            constants={} if asked.unfreezing is None else asked.unfreezing.constants,
        )
        self.measuring: TrainingMetrics | None = None
        if asked.train_metrics:
            group = None if self.ranks is None else self.ranks.group
            self.measuring = TrainingMetrics(
                trainer.learner, trainer.training_steps, asked.metrics, group
            )
        self.base = trainer.learning_rate
        self.waiting = 0  # batches since the last step
        self.rate: float | None = None  # that the schedule gave last
        self.hooks: dict[str, list[Callable[..., None]]] = {
            name: [
                getattr(each, name)
                for each in self.fit.callbacks
                if name in vars(each) or getattr(type(each), name) is not getattr(Callback, name)
            ]
            for name in HOOKS
        }
        self.standing = Standing(first_step=trainer.steps)
        self.checkpoints = RunCheckpoints(
            trainer, asked, self.fit, self.standing, self.averages, self.measuring, self.call
        )

    def call(self, hook: str, *more: Any) -> None:
        """Call a hook of all callbacks that have it."""
        for function in self.hooks[hook]:
            function(self.fit, *more)

    # --- the run

    def run(self) -> History:
        """Train; see `Trainer.fit`."""
        try:
            return self._run()
        except BaseException as error:
            if self.ranks is not None:
                self.ranks.end(error)
            raise

    def _run(self) -> History:
        fit = self.fit
        with contextlib.ExitStack() as stack:
            self.checkpoints.lead(lambda: self.checkpoints.lock(stack))
            self.checkpoints.begin()
            self.trainer.drop_gradients()
            try:
                with self.interrupts:
                    self.call("on_fit_begin")
                    self._run_epochs()
                    if self.averages is not None:
                        self.averages.apply()
                    if fit.stop_reason is not None:
                        self.call("on_stop")
                    if self.asked.restore == "best":
                        self._restore_best()
            except BaseException as error:
                fit.error = error
                raise
            finally:
                fit.history.stop_reason = fit.stop_reason
                if self.measuring is not None:
                    self.measuring.detach()
                if self.unfreezing is not None:
                    self.unfreezing.leave()
                self.trainer.learning_rate = self.base
                self.trainer.drop_gradients()
                self.call("on_fit_end")
        return fit.history

    def _restore_best(self) -> None:
        """Give the trainer the parameters of the best epoch, if there is any."""
        if self.asked.folder is None:
            set_values(self.trainer.learner, self.best_values)
        else:
            self.checkpoints.restore_best()

    def _use_evaluated(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which the trainer has the parameters that are evaluated."""
        return contextlib.nullcontext() if self.averages is None else self.averages.swapped()

    # --- an epoch

    def _run_epochs(self) -> None:
        fit = self.fit
        for epoch in range(fit.epoch, fit.epochs):
            if fit.stop_reason is not None:
                break
            if epoch > fit.epoch:
                fit.epoch, fit.batch, fit.samples = epoch, 0, 0
                fit.skipped = fit.lossless = 0
                self.standing.start_epoch()
            if self.unfreezing is not None:
                self.unfreezing.enter(epoch)
                self.rate = None  # of another optimizer
            if self.measuring is not None:
                self.measuring.attach()
                if not fit.batch:
                    self.measuring.start()
            fit.logs = {}
            if self.trainer.skips_nonfinite:
                fit.logs["skipped"] = fit.skipped
            if self.trainer.loss_scale is not None:
                fit.logs["loss_scale"] = self.trainer.loss_scale
            if fit.batch:
                fit.logs["loss"] = self._compute_mean_loss()
            self._set_rate()
            fit.logs["lr"] = self.trainer.learning_rate
            self.call("on_epoch_begin")
            begin = monotonic() - self.standing.epoch_seconds
            with self._keeping(self.checkpoints.make_position):
                self._train_epoch()
            is_whole = fit.stop_reason is None or fit.batch == fit.batches
            if not fit.batch:
                raise InputError(f"epoch {epoch} of the training data has no batches")
            if is_whole:
                fit.batches = fit.batch
            self._end_epoch(begin, is_whole)

    @contextlib.contextmanager
    def _keeping(self, position: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
        """Write a checkpoint when an exception leaves the block, and let it go on.

        None is written after a loss that is not finite, nor between the batches of a step.
        """
        try:
            yield
        except NonFiniteError:
            raise
        except Exception as error:
            if self.ranks is not None and not is_agreed(error):
                raise  # the other ranks are somewhere else
            if not self.waiting and not self.standing.is_saved:
                with contextlib.suppress(EngineError):
                    self.checkpoints.save(position())
            raise

    def _train_epoch(self) -> None:
        """Train on the batches of the epoch, until they end or something asks to stop."""
        fit, trainer, standing = self.fit, self.trainer, self.standing
        accumulate, every = self.asked.accumulate, self.asked.checkpoint_every or 0
        is_changing = type(self.schedule) is not Constant or self.schedule.warmup > 0
        on_batch_end, on_step_end = self.hooks["on_batch_end"], self.hooks["on_step_end"]
        averages = self.averages
        parts = trainer.learner if trainer.learner.part_names and self.ranks is None else None
        logs, interrupts, deadline, clock = fit.logs, self.interrupts, self.deadline, monotonic
        begin = read_clock() - standing.training_seconds
        source: Iterator[Any] = self.asked.train.epoch(fit.epoch, fit.batch)
        learn: Callable[[Any], tuple[float, int]] = self._learn
        if self.ranks is not None:
            source = self.ranks.list_shares(self.asked.train, fit.epoch, fit.batch)
            learn = partial(self._learn_share, self.ranks)
        self.waiting = 0
        try:
            for batch in source:
                is_step = self.waiting + 1 == accumulate
                if is_step and is_changing:
                    self._set_rate()
                loss, count = learn(batch)
                interrupts.has_begun = True
                self.waiting += 1
                if is_step:
                    if accumulate > 1:
                        trainer.learner.advance()
                    self.waiting = 0
                    is_step = self._is_done(batch)
                    fit.step += is_step
                    if is_step and averages is not None:
                        averages.add_step()
                fit.batch += 1
                fit.samples += count
                fit.samples_total += count
                if math.isfinite(loss):
                    standing.loss_sum += loss * count
                    if parts is not None:
                        self._add_parts(parts, count)
                else:  # of a step that is skipped
                    fit.lossless += count
                logs["loss"] = self._compute_mean_loss()
                standing.is_saved = False
                for hook in on_batch_end:
                    hook(fit)
                if is_step:
                    for hook in on_step_end:
                        hook(fit)
                    if every and not fit.step % every:
                        standing.training_seconds = read_clock() - begin
                        self.checkpoints.save(self.checkpoints.make_position())
                if interrupts.requested:
                    fit.stop(INTERRUPTED)
                elif clock() > deadline:
                    fit.stop(OUT_OF_TIME)
                if self.ranks is not None:
                    fit.stop_reason = self.ranks.stop(fit.stop_reason)
                if fit.stop_reason is not None and not self.waiting:
                    break
            if self.waiting:
                self._set_rate()
                trainer.learner.advance()
                self.waiting = 0
                if self._is_done(None):
                    fit.step += 1
                    if averages is not None:
                        averages.add_step()
                    for hook in on_step_end:
                        hook(fit)
        finally:
            standing.training_seconds = read_clock() - begin
            close = getattr(source, "close", None)
            if close is not None:
                close()

    def _is_done(self, batch: Any) -> bool:
        """Return whether an update was done; count and report it if it was skipped.

        batch: the last one that it was made of, or this rank's share; None if it is gone.

        Raises:
            NonFiniteError: more updates in a row were skipped than may be.
        """
        fit, steps = self.fit, self.trainer.training_steps
        optimizer = self.trainer.learner.require_optimizer()
        if optimizer.loss_scale is not None:
            fit.logs["loss_scale"] = optimizer.loss_scale
        if not optimizer.skipped_in_a_row:
            return True
        fit.skipped += 1
        fit.logs["skipped"] = fit.skipped
        self.call("on_skip")
        if not optimizer.is_over_limit:
            return False
        if batch is None:
            optimizer.check_skipped()
        place = f"{self._place()}: {optimizer.describe_skipped()}"
        if self.ranks is not None:
            raise self.ranks.explain_nonfinite(
                lambda own: nonfinite.make_error(steps, split_part(batch), own, place),
                is_skip=True,
            )
        words_of = batch if isinstance(batch, tuple) else (batch,)
        raise nonfinite.make_error(steps, words_of, None, place)

    def _add_parts(self, learner: TrainingModels, count: int) -> None:
        """Count the parts of the loss of a batch of this many samples."""
        sums = self.standing.part_sums
        samples = self.fit.samples - self.fit.lossless
        for name, value in zip(learner.part_names, learner.parts, strict=True):
            sums[name] = sums.get(name, 0.0) + value * count
            self.fit.logs[name] = sums[name] / samples

    def _compute_mean_loss(self) -> float:
        """Return the mean of the finite losses of the samples of this epoch; NaN if none was."""
        count = self.fit.samples - self.fit.lossless
        return self.standing.loss_sum / count if count else math.nan

    def _learn(self, batch: Batch) -> tuple[float, int]:
        """Train on a batch; returns its loss and how many samples it has.

        Raises:
            NonFiniteError: the loss is not finite; no parameter has changed.
            EngineError: as `Trainer.step`.
        """
        trainer, arrays = self.trainer, batch if isinstance(batch, tuple) else (batch,)
        try:
            if self.asked.accumulate == 1:
                loss = trainer.training_steps.learn(
                    trainer.learner.check_arrays(arrays), check_finite=True
                )
            else:
                loss = trainer.accumulate(*arrays)
        except NonFiniteError:  # the module looks at it, too; this says where it begins
            loss = math.nan
        if not math.isfinite(loss) and not trainer.skips_nonfinite:
            if self.asked.accumulate > 1:
                trainer.refuse_gradients()
            raise nonfinite.make_error(trainer.training_steps, arrays, loss, self._place())
        return loss, len(arrays[0]) if arrays is batch else count_samples(batch)

    def _learn_share(self, ranks: Ranks, part: Share | Exception) -> tuple[float, int]:
        """Learn as `_learn` does, with the batch divided over ranks; the numbers are of all."""
        if self.measuring is not None:
            self.measuring.is_counting = isinstance(part, Share) and part.own > 0
        if self.asked.accumulate == 1:
            loss = ranks.learn(part, check_finite=True)
        else:
            loss = ranks.accumulate(part)
        assert isinstance(part, Share)  # otherwise it has raised
        if not math.isfinite(loss) and not self.trainer.skips_nonfinite:
            if self.asked.accumulate > 1:
                self.trainer.refuse_gradients()
            steps, place = self.trainer.training_steps, self._place()
            raise ranks.explain_nonfinite(
                lambda own: nonfinite.make_error(steps, split_part(part), own, place)
            )
        return loss, part.total

    def _place(self) -> str:
        """Name the batch that is being done, for messages."""
        fit = self.fit
        return f"epoch {fit.epoch}, batch {fit.batch} (after {fit.step} steps)"

    def _set_rate(self) -> None:
        """Set the learning rate of the next step, if it differs from the rate of the last step."""
        fit, total = self.fit, None
        if fit.batches is not None:
            total = fit.epochs * -(-fit.batches // self.asked.accumulate)
        rate = self.schedule.rate(fit.step - self.standing.first_step, total, self.base)
        if rate != self.rate:
            self.rate = rate
            self.trainer.learning_rate = rate
            fit.logs["lr"] = self.trainer.learning_rate

    def _end_epoch(self, begin: float, is_whole: bool) -> None:
        """Validate, add a row to the history, and write a checkpoint.

        begin: the time at which the epoch began.
        is_whole: whether all batches of the epoch are done.  Otherwise the checkpoint is where the
            run has stopped, and knows nothing of the validation, which the run would not have made
            had it not been stopped.
        """
        fit = self.fit
        self.standing.epoch_seconds = monotonic() - begin
        if self.ranks is not None:
            self.ranks.average_moved()
        nonfinite.check_parameters(self.trainer.learner)
        if self.measuring is not None:
            fit.logs |= self.measuring.compute_results(fit.classes)
        before = self.checkpoints.make_position() if self.checkpoints.is_written else {}
        if self.averages is not None and is_whole:
            self.averages.add_epoch(fit.epoch)
        is_interrupted = fit.stop_reason == INTERRUPTED
        if not is_interrupted:
            with self._keeping(lambda: before), self._use_evaluated():
                is_interrupted = not self._validate()
        if is_interrupted:
            fit.stop(INTERRUPTED)
            self.checkpoints.save(before, must=True)
            return
        self.standing.epoch_seconds = monotonic() - begin
        row = self._make_row()
        fit.history.rows.append(row)
        if not is_whole:
            self.checkpoints.save(before, is_best=self.standing.best is None, must=True)
            return
        value = row[fit.monitor]
        self.schedule.observe(value, self.asked.mode)
        is_best = is_better(value, self.standing.best, self.asked.mode)
        if is_best:
            self.standing.best, fit.best_epoch = value, fit.epoch
        with self._keeping(lambda: before), self._use_evaluated():
            if is_best and self.asked.restore == "best" and self.asked.folder is None:
                mine = {name: p.data.copy() for name, p in self.trainer.state.parameters}
                self.best_values = {**fit.constants, **mine}
            self.checkpoints.lead(lambda: self.call("on_epoch_end"))
        if self.ranks is not None:
            fit.stop_reason = self.ranks.stop(fit.stop_reason)
        is_last = fit.epoch + 1 == fit.epochs or fit.stop_reason is not None
        before_it = [each[fit.monitor] for each in fit.history.rows[:-1] if fit.monitor in each]
        better = sum(is_better(each, value, self.asked.mode) for each in before_it)
        is_kept = is_best or better < self.asked.keep_best
        if self.asked.checkpoint_every is None or is_kept or is_last:
            if self.measuring is not None:
                self.measuring.start()
            position = {**self.checkpoints.make_position(is_next=True), "value": value}
            self.checkpoints.save(position, is_best=is_best, must=is_last)

    def _validate(self) -> bool:
        """Evaluate on the validation data, if there are any; False if that was interrupted."""
        if self.asked.validation is None:
            return True
        fit, hooks = self.fit, self.hooks["on_evaluate_batch_end"]

        def note_batch(batch: EvaluationBatch) -> None:
            fit.evaluation = batch
            for hook in hooks:
                hook(fit)
            if self.interrupts.requested:
                raise EvaluationInterrupted

        self.call("on_evaluate_begin")
        try:
            results = self.trainer.evaluate(
                self.asked.validation, metrics=self.asked.metrics, each=note_batch
            )
        except EvaluationInterrupted:  # a run that is resumed goes on from before the validation
            return False
        finally:
            fit.evaluation = None
        fit.logs |= {f"val_{name}": value for name, value in results.items()}
        self.call("on_evaluate_end")
        return True

    def _make_row(self) -> dict[str, float]:
        fit = self.fit
        taken = [name for name in fit.logs if name in RESERVED]
        if taken:
            raise InputError(
                f"fit.logs[{taken[0]!r}]: the history has a column of this name; use another one"
            )
        row: dict[str, float] = {"epoch": fit.epoch, "loss": fit.logs["loss"]}
        row |= {name: value for name, value in fit.logs.items() if name != "lr"}
        row["lr"] = fit.logs["lr"]
        row["seconds"] = self.standing.epoch_seconds
        if self.standing.training_seconds > 0:
            row["samples_per_second"] = fit.samples / self.standing.training_seconds
        if memory := measure_peak():
            row["memory"] = memory
        return row
