"""Ranks: what a trainer does together with those of other processes, see engine/distributed.

A batch is the one that a single process would train on.  Each rank takes its share of the samples,
and the gradients of the shares are added, each weighted by what its samples count in the loss of
the whole batch, as parts.py does it for micro-batches.  Then all ranks do the same update.

Whatever can fail on one rank alone is agreed upon, see `Agreement`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.api import CheckpointState
from engine.data.loader import Batches
from engine.data.shares import Share, bounds, shares
from engine.distributed.agreement import Agreement, agreed
from engine.distributed.group import Array, Group, everyone, named
from engine.element_types import NUMPY
from engine.errors import GroupError, NonFiniteError
from engine.runtime import noise
from engine.trainer.restore import take

if TYPE_CHECKING:
    from engine.trainer.steps import Steps
    from engine.trainer.trainer import Trainer

_APART = 0x9E3779B97F4A7C15  # between the seeds of two ranks: 2**64 / golden ratio, odd


class Ranks(Agreement):
    """The ranks of a trainer's group.

    seed: of the random numbers in the model at rank 0.
    """

    def __init__(self, trainer: Trainer, group: Group, steps: Steps) -> None:
        super().__init__(group)
        self._trainer, self._steps = trainer, steps
        self._factor = 0.0  # of what region grad holds; 0: it holds nothing yet
        self._loss = 0.0  # of this rank's share of the last batch
        own = trainer.module._seed
        self.seed = noise.seed() if own is None else own
        if group.rank:  # what dropout draws for one share should be no copy of that for another
            moved = (self.seed + group.rank * _APART) % 2**64
            trainer.module._seed = moved - 2**64 if moved >= 2**63 else moved

    # --- the state

    def spread(self) -> None:
        """Give all ranks the parameters, the optimizer's state and the draws of rank 0.

        Raises:
            GroupError, CheckpointError: they do not fit a rank.
        """
        state = self._trainer.state
        told = state.to_bytes(include_optimizer_state=True) if self.is_first else b""
        size = np.array([len(told)], np.int64)
        self.group.broadcast(size)
        content = np.frombuffer(told, np.uint8).copy() if told else np.empty(size[0], np.uint8)
        self.group.broadcast(content)
        error = None
        if not self.is_first:
            try:
                take(self._trainer, CheckpointState.from_bytes(content.data), "rank 0")
            except Exception as problem:
                error = problem
        self.agree(error)
        if self._trainer.optimizer is not None:  # checkpoints have it in fewer bits
            rate = np.array([self._trainer.learning_rate])
            self.group.broadcast(rate)
            self._trainer.learning_rate = float(rate[0])

    def level(self) -> None:
        """Replace what training moves without a gradient by the mean over the ranks.

        These are the running statistics of batch normalisations, which each rank takes over its own
        share.  What is the same on all ranks stays as it is, to the last bit.
        """
        state = self._trainer.state
        names = [
            name
            for name, slot in sorted(state.slots.items())
            if not slot.trainable and slot.dtype in ("f32", "f64")
        ]
        if not names:
            return
        arrays = [state.parameters[name].data for name in names]
        mine = np.array([_short_digest(array) for array in arrays], np.int64)
        first = mine.copy()
        self.group.broadcast(first)
        differs = (mine != first).astype(np.int64)
        self.group.sum(differs)
        for array in (a for a, count in zip(arrays, differs, strict=True) if count):
            mean = array.astype(np.float64)
            self.group.sum(mean)
            array[...] = mean / self.group.size

    def check_same(self) -> None:
        """Check that all ranks hold the same parameters and the same state of the optimizer.

        Raises:
            GroupError: a rank holds others; the message names it.
        """
        state, digest = self._trainer.state, hashlib.blake2b(digest_size=16)
        state.settle()
        for region in ("param", "state"):
            if region in state.regions:
                digest.update(state.regions[region].data)
        told = everyone(self.group, digest.hexdigest())
        other = [rank for rank, found in enumerate(told) if found != told[0]]
        if other:
            raise agreed(
                GroupError(
                    f"{named(other)} and rank 0 have trained to different parameters: a callback "
                    "or a program has changed them on some ranks alone, or their processors round "
                    "differently; the checkpoints are as they were"
                )
            )

    # --- steps

    def share(self, arrays: Sequence[Array]) -> Share:
        """This rank's share of a batch that all ranks have."""
        shapes = [array.shape for array in arrays]
        total = self._steps.splitter.samples(shapes)
        begin, end = bounds(total, self.group.rank, self.group.size)
        if begin == end:
            return Share(total, 0, None)
        rows = self._steps.splitter.rows_of(shapes, total)
        return Share(
            total,
            end - begin,
            tuple(
                array[begin * rows[name] : end * rows[name]] if name in rows else array
                for name, array in zip(self._trainer.inputs, arrays, strict=True)
            ),
        )

    def learn(self, part: Share | Exception, *, check_finite: bool) -> float:
        """Do one step with a batch of which this rank has a share; returns the loss of the batch.

        Raises:
            EngineError: as `Trainer.step`; GroupError where that was on another rank.
        """
        self._factor = 0.0
        loss = self.accumulate(part, is_alone=True)
        if check_finite and not math.isfinite(loss):
            self._trainer.drop_gradients()
        else:
            self._trainer.update()
        return loss

    def shares(self, source: Batches, number: int, start: int) -> Iterator[Share | Exception]:
        """This rank's shares of the batches of an epoch, from batch `start` on.

        An exception in place of a share is that with which reading it has ended.

        Raises:
            GroupError: other ranks have more batches.
        """
        parts = shares(source, self.group.rank, self.group.size, number, start)
        try:
            while True:
                try:
                    part = next(parts, None)
                except Exception as problem:
                    yield problem
                    return
                if part is None:
                    break
                yield part
            self._shared(np.zeros((2, self.group.size + 1)), 0, None)
        finally:
            parts.close()

    def accumulate(self, part: Share | Exception, *, is_alone: bool = False) -> float:
        """Add the gradients of a share; returns the loss of the batch.

        part: an exception is that with which reading it has ended.
        is_alone: whether nothing has been added since the last update, nor will be before the next.

        Raises:
            EngineError: as `Trainer.accumulate`; GroupError where that was on another rank.
        """
        trainer, error, loss, arrays = self._trainer, None, 0.0, list[Array]()
        if not trainer._pending:
            self._factor = 0.0
        draws, told = trainer.state.draws, np.zeros((2, self.group.size + 1))
        try:
            if isinstance(part, Exception):
                raise part
            if part.batch is not None:
                arrays = trainer._checked(words(part))
                told[:, self.group.rank] = self._weight(part, arrays)
        except Exception as problem:
            error = problem
        factor = self._shared(told, 0 if isinstance(part, Exception) else part.total, error)
        sums = np.zeros(3)
        if factor:
            try:
                loss = self._add(arrays, factor, is_alone)
                sums[0] = factor * loss
            except Exception as problem:
                error, sums[1] = problem, 1
        sums[2] = trainer.state.draws - draws if self.is_first else 0
        trainer.state.draws = draws
        self.group.sum(sums)
        if sums[1]:
            self.agree(error)
        trainer.state.draws = draws + int(sums[2])
        trainer._pending += 1
        self._loss = loss
        return float(sums[0])

    def _weight(self, part: Share, arrays: Sequence[Array]) -> tuple[float, float]:
        """What a share weighs in its batch, and whether the loss is a mean over the samples."""
        if part.total == 1:
            return 1.0, 1.0
        splitter, names = self._steps.splitter, self._trainer.inputs
        shapes = [array.shape for array in arrays]
        rows = splitter.rows_of(shapes, part.own)
        loss = splitter.loss(
            [
                (rows[n] * part.total, *shape[1:]) if n in rows else shape
                for n, shape in zip(names, shapes, strict=True)
            ]
        )
        return loss.weight(dict(zip(names, arrays, strict=True)), part.own), float(loss.is_mean)

    def _shared(self, told: Array, total: int, error: Exception | None) -> float:
        """What the gradient of this share is multiplied with in that of the batch.

        told: in the column of this rank what its share weighs, and whether the loss is a mean.
        total: how many samples this rank takes the batch to have; 0: it has no more batches.
        error: that of this rank.
        """
        rank, size = self.group.rank, self.group.size
        own = told[0, rank]
        told[:, -1] = error is not None, total
        self.group.sum(told)
        if told[0, -1]:
            self.agree(error)
        if told[1, -1] != total * size:
            sizes = everyone(self.group, total)
            raise agreed(
                GroupError(
                    f"ranks have other batches: at rank 0, 1, ... the next one has {sizes} samples"
                )
            )
        weights, is_mean = told[0, :size], told[1, :size].any()
        if not is_mean:
            return float(own != 0)
        whole = float(weights.sum())
        if not whole:  # no sample counts: the loss is what the model makes of that
            return float(rank == 0)
        return float(own) / whole

    def _add(self, arrays: Sequence[Array], factor: float, is_alone: bool) -> float:
        """Add the gradients of a share, times a factor, to region grad; returns the share's loss.

        Region grad times `_factor` is what it stands for: a run adds gradients as they are.
        """
        trainer = self._trainer
        if self._factor and self._factor != factor:
            self._region()[...] *= self._factor / factor
        try:
            if is_alone:
                loss = self._steps.gradients(arrays)
            else:
                loss = float(trainer.module._run(trainer.module._train, arrays)[0].item())
        except NonFiniteError:  # the module looks at it, too
            loss = math.nan
        self._factor = factor
        return loss

    def add_gradients(self) -> None:
        """Make region grad hold the sum over the ranks of what it stands for on each of them."""
        state = self._trainer.state
        state.allocate_gradients()
        region = self._region()
        if not self._factor:
            region[...] = 0
        elif self._factor != 1:
            region[...] *= self._factor
        self.group.sum(region)
        self._factor = 1.0

    def _region(self) -> Array:
        state = self._trainer.state
        return state.regions["grad"].view(NUMPY[state.trainable_dtype()])

    def nonfinite(self, tell: Callable[[float], NonFiniteError]) -> NonFiniteError:
        """The error of a batch whose loss is not finite, the same on all ranks.

        tell: makes the error of this rank's share, of its loss.
        """
        is_bad = not math.isfinite(self._loss)
        told = everyone(self.group, str(tell(self._loss)) if is_bad else "")
        found = [(rank, text) for rank, text in enumerate(told) if text]
        rank, text = found[0] if found else (0, "the sum over the ranks is not finite")
        return agreed(NonFiniteError(f"rank {rank}: {text}"))

    # --- the end

    def stop(self, own: str | None) -> str | None:
        """Why the run is to end, on all ranks: the reason of the first one that has any.

        own: the reason of this rank; None: it has none.
        """
        told = np.zeros(self.group.size, np.int64)
        told[self.group.rank] = own is not None
        self.group.sum(told)
        if not told.any():
            return None
        reason: str = next(each for each in everyone(self.group, own) if each is not None)
        return reason


def words(part: Share) -> Sequence[Any]:
    """The batch of a share as the words of `Trainer.step`."""
    return [part.batch] if isinstance(part.batch, dict) else list(part.batch or ())


def _short_digest(array: Array) -> int:
    found = hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=8).digest()
    return int.from_bytes(found, "little", signed=True)
