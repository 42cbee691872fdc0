"""Ranks: the steps of a trainer together with trainers of other processes.

A batch is the one that a single process would train on.  Each rank takes its share of the samples,
and the gradients of the shares are added, each weighted by what its samples count in the loss of
the whole batch, as parts.py does it for micro-batches.  Then all ranks do the same update.

Ranks agree upon everything that can fail on one of them alone, see `Agreement`.  The group is
explained in engine/distributed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import FLOATS
from engine.base.errors import DTypeError, GroupError, InputError, LabelError, NonFiniteError
from engine.base.package import VERSION
from engine.data.loader import Batches
from engine.data.shares import ONE, Share, find_bounds, list_shares
from engine.distributed.agreement import Agreement, mark_agreed
from engine.distributed.group import RankGroup, gather_values, name_ranks, share
from engine.plan import noise
from engine.training.membership import Membership
from engine.training.nonfinite import ELSEWHERE
from engine.training.state import CheckpointState

if TYPE_CHECKING:
    from engine.trainer.learner import TrainingModels
    from engine.trainer.steps import Steps

_APART = 0x9E3779B97F4A7C15  # between the seeds of two ranks: 2**64 / golden ratio, odd


@dataclass(slots=True)
class _RankShare:
    """The work of a rank on its share of a batch.

    total: how many samples the batch has; 0: there are no more batches.
    samples: the part of them that this rank has, 0 to 1.
    weight: what they weigh in the loss of the batch, which is a mean if `is_mean`, or a sum.
    is_parted: whether gradients are added over the ranks when all have been computed.
    factor: the loss of the share times this is its part of the loss of the batch.
    """

    total: int
    samples: float = 0.0
    weight: float = 0.0
    is_mean: bool = True
    is_parted: bool = False
    factor: float = 0.0
    arrays: Sequence[Array] = ()


class Ranks(Agreement):
    """The ranks of a trainer's group.

    seed: the seed of the random numbers in the model at rank 0.
    """

    def __init__(self, learner: TrainingModels, group: RankGroup, steps: Steps) -> None:
        super().__init__(group)
        self._learner, self._steps = learner, steps
        self._membership = Membership(group, statistics=not steps.splitter.own_statistics)
        self._factor = 0.0  # of what region grad holds; 0: it holds nothing yet
        self._is_added = False  # whether region grad holds sums over the ranks
        self._loss = 0.0  # of this rank's share of the last batch
        own = learner.session.seed
        self.seed = noise.get_seed() if own is None else own
        if group.rank:  # shares must not draw the same dropout masks
            moved = (self.seed + group.rank * _APART) % 2**64
            learner.session.seed = moved - 2**64 if moved >= 2**63 else moved

    # --- the state

    def spread(self) -> None:
        """Give all ranks the parameters, the optimizer's state and the draws of rank 0.

        Raises:
            GroupError, CheckpointError: they do not fit a rank.
        """
        state = self._learner.state
        told = state.to_bytes(include_optimizer_state=True) if self.is_first else b""
        size = share(self.group, len(told))
        content = np.frombuffer(told, np.uint8).copy() if told else np.empty(size, np.uint8)
        self.group.broadcast(content)
        error = None
        if not self.is_first:
            try:
                self._learner.restore(CheckpointState.from_bytes(content.data), "rank 0")
            except Exception as problem:
                error = problem
        self.agree(error)
        if self._learner.optimizer is not None:  # checkpoints have it in fewer bits
            rate = np.array([self._learner.learning_rate])
            self.group.broadcast(rate)
            self._learner.learning_rate = float(rate[0])

    def average_moved(self) -> None:
        """Replace what training moves without a gradient by the mean over the ranks.

        These are the running statistics of batch normalisations, which each rank takes over its own
        share.  Values that are equal on all ranks stay as they are, to the last bit.
        """
        state = self._learner.state
        names = [
            name
            for name, slot in sorted(state.slots.items())
            if not slot.trainable and slot.dtype in FLOATS
        ]
        if not names:
            return
        arrays = [state.parameters[name].data for name in names]
        mine = np.array([_compute_short_digest(array) for array in arrays], np.int64)
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
        state, digest = self._learner.state, hashlib.blake2b(digest_size=16)
        state.settle()
        for region in ("param", "state"):
            if region in state.regions:
                digest.update(state.regions[region].data)
        told = gather_values(self.group, digest.hexdigest())
        other = [rank for rank, theirs in enumerate(told) if theirs != told[0]]
        if other:
            raise mark_agreed(
                GroupError(
                    f"{name_ranks(other)} and rank 0 have trained to different parameters: a "
                    "callback "
                    "or a program has changed them on some ranks alone, or their processors round "
                    "differently; the checkpoints are as they were"
                )
            )

    # --- steps

    def share(self, arrays: Sequence[Array]) -> Share:
        """Return this rank's share of a batch that all ranks have."""
        shapes = [array.shape for array in arrays]
        splitter = self._steps.splitter
        total = splitter.count_samples(shapes)
        begin, end = find_bounds(total, self.group.rank, self.group.size)
        first, last = (begin, end) if end > begin else ONE
        rows = splitter.count_rows_of(shapes, total)
        return Share(
            total,
            end - begin,
            tuple(
                array[first * rows[name] : last * rows[name]] if name in rows else array
                for name, array in zip(self._learner.inputs, arrays, strict=True)
            ),
        )

    def list_shares(self, source: Batches, number: int, start: int) -> Iterator[Share | Exception]:
        """Yield this rank's shares of the batches of an epoch, from batch `start` on.

        An exception instead of a share is the error with which reading it has ended.

        Raises:
            GroupError: other ranks have more batches.
        """
        parts = list_shares(source, self.group.rank, self.group.size, number, start)
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
            self._meet(_RankShare(0), None)
        finally:
            parts.close()

    def learn(self, share: Share | Exception, *, check_finite: bool) -> float:
        """Do one step with this rank's share of a batch; return the loss of the whole batch.

        Gradients are added while the backward pass runs, unless the share of a rank is trained on
        in parts: then when all are done.

        share: an exception is the error with which reading it has ended.

        Raises:
            EngineError: as `Trainer.step`; GroupError where that was on another rank.
        """
        self._factor, part = 0.0, self._check_share(share, is_step=True)
        if part.is_parted:
            loss = self._run_after(part, self._steps.compute_gradients, is_step=True)
            is_held = check_finite and not self._learner.skips_nonfinite
            if is_held and not math.isfinite(loss):
                self._learner.refuse_gradients()
            else:
                self._learner.advance()
            return loss
        return self._run_beside(
            part, lambda arrays: self._steps.learn(arrays, check_finite=check_finite)
        )

    def accumulate(self, share: Share | Exception) -> float:
        """Add the gradients of a share; returns the loss of the batch.

        They are added over the ranks by `add_gradients`, once for all batches of an update; where
        statistics of batch normalisations are combined, batch by batch.

        Raises:
            EngineError: as `Trainer.accumulate`; GroupError where that was on another rank.
        """
        learner = self._learner
        if not learner.pending:
            self._factor = 0.0
        part = self._check_share(share, is_step=False)
        if not part.is_parted:
            return self._run_beside(part, learner.add_batch)

        def run(arrays: Sequence[Array]) -> float:
            return float(learner.session.run(learner.session.training, arrays)[0].item())

        return self._run_after(part, run, is_step=False)

    def _check_share(self, share: Share | Exception, *, is_step: bool) -> _RankShare:
        """Return the work of this rank on its share, once all ranks know their shares.

        is_step: whether an update with this batch alone follows.
        """
        part, error = _RankShare(0 if isinstance(share, Exception) else share.total), None
        try:
            if isinstance(share, Exception):
                raise share
            part.arrays = self._learner.check_arrays(split_part(share))
            self._weigh(part, share, is_step)
        except Exception as problem:
            error = problem
        self._meet(part, error)
        return part

    def _weigh(self, part: _RankShare, share: Share, is_step: bool) -> None:
        """Find out what a share weighs in its batch, and whether it is trained on in parts.

        Raises:
            EngineError: the loss is not a mean or sum of the samples; or there is no plan for it.
        """
        splitter, names = self._steps.splitter, self._learner.inputs
        shapes, own = [array.shape for array in part.arrays], max(share.own, 1)
        part.samples = share.own / share.total
        part.weight, combines, is_told = float(share.own), False, False
        if share.total > 1:
            rows = splitter.count_rows_of(shapes, own)
            whole = [
                (rows[name] * share.total, *shape[1:]) if name in rows else shape
                for name, shape in zip(names, shapes, strict=True)
            ]
            loss = splitter.find_loss(whole, combines=True)
            part.is_mean, is_told = loss.is_mean, loss.is_told
            if share.own:
                part.weight = loss.weigh(dict(zip(names, part.arrays, strict=True)), share.own)
            if not is_step and not splitter.own_statistics:
                try:
                    splitter.find_loss(whole)
                except InputError:
                    combines = True
        self._learner.session.training.ranks = self._membership
        part.is_parted = self._steps.count(shapes) > 1 if is_step else not combines
        if part.is_parted and part.is_mean and is_told:
            raise InputError(
                "a rank cannot train on its share in parts, nor can ranks accumulate the gradients "
                "of several batches: the model has user-defined gradients, such as the backward of "
                "an autograd.Function, which need the gradients of the whole batch; use a loss "
                "with reduction='sum', or leave out micro_batches and accumulation"
            )

    def _meet(self, part: _RankShare, error: Exception | None) -> None:
        """Tell the other ranks of this rank's part, and set what follows of all of theirs.

        Raises:
            Exception: the one of this rank.
            GroupError: another rank has one, or another batch.
        """
        rank, size = self.group.rank, self.group.size
        told = np.zeros(size + 4)
        told[rank] = part.weight
        told[size:] = error is not None, part.total, part.is_mean, part.is_parted
        self.group.sum(told)
        failed, totals, means, parted = told[size:]
        if failed:
            self.agree(error)
        if totals != part.total * size:
            sizes = gather_values(self.group, part.total)
            raise mark_agreed(
                GroupError(
                    f"ranks have other batches: at rank 0, 1, ... the next one has {sizes} samples"
                )
            )
        part.is_parted = bool(parted)
        whole = float(told[:size].sum())
        if not means:
            part.factor = float(part.samples > 0)
        elif whole:
            part.factor = part.weight / whole
        else:  # no sample counts: the loss is what the model makes of that
            part.factor = float(rank == 0)

    def _run_beside(self, part: _RankShare, run: Callable[[Sequence[Array]], float]) -> float:
        """Run a training step that adds gradients over the ranks itself; returns the joint loss."""
        self._is_added = True
        self._membership.share, self._membership.samples = part.factor, part.samples
        try:
            loss = run(part.arrays)
        except (LabelError, NonFiniteError) as error:  # the step reports it to all ranks
            raise mark_agreed(error) from None
        self._loss = loss
        return loss

    def _run_after(
        self, part: _RankShare, run: Callable[[Sequence[Array]], float], *, is_step: bool
    ) -> float:
        """Add the gradients of a share, as they are without the other ranks, to region grad.

        Region grad times `_factor` is what it stands for: a run adds gradients as they are.

        is_step: an update follows at once; a run may then be of several parts.

        Returns the loss of the batch.  If the share of a rank is refused, gradients and running
        statistics are on all ranks what they were before.
        """
        learner, error = self._learner, None
        model, state = learner.session.training, learner.state
        draws, self._loss, self._is_added = state.draws, 0.0, False
        sums = np.zeros(3)
        factor, kept = self._factor, None
        if part.factor:
            if factor:  # what the batches before have left, for when a share of this one is refused
                kept = state.regions["grad"].copy()
            if self._factor and self._factor != part.factor:
                for gradients in state.gradients():
                    gradients *= self._factor / part.factor
            model.ranks = None
            try:
                self._loss = run(part.arrays)
            except NonFiniteError:  # the module looks at it, too
                self._loss = math.nan
            except Exception as problem:
                error = problem
            finally:
                model.ranks = self._membership
            self._factor = part.factor
        drawn = state.draws - draws if self.is_first else 0
        sums[:] = part.factor * self._loss, error is not None, drawn
        state.draws = draws
        self.group.sum(sums)
        if sums[1]:
            if part.factor:
                if error is None:  # the batch is refused, since another rank's share is
                    learner.session.put_back_statistics(whole=is_step)
                if kept is None:
                    learner.module.lazy_reset_grad()
                else:
                    state.regions["grad"][...] = kept
                self._factor = factor
            self.agree(error)
        state.draws += int(sums[2])
        learner.pending += 1
        return float(sums[0])

    def add_gradients(self) -> None:
        """Make region grad hold the sum over the ranks of what it stands for on each of them."""
        if self._is_added:
            return
        self._learner.state.allocate_gradients()
        for gradients in self._learner.state.gradients():
            if not self._factor:
                gradients[...] = 0
            elif self._factor != 1:
                gradients *= self._factor
            self.group.sum(gradients)
        if not self._factor:
            self._learner.state.gradients_gone = False
        self._factor = 1.0

    def explain_nonfinite(
        self, tell: Callable[[float], NonFiniteError], *, is_skip: bool = False
    ) -> NonFiniteError:
        """Return the error of a batch with a loss or gradients not finite, the same on all ranks.

        tell: makes the error of this rank's share, of its loss; where ranks add gradients in the
            step, all of them call it at once.
        is_skip: whether the gradients are what is not finite.
        """
        is_bad = is_skip or not math.isfinite(self._loss)
        text = str(tell(self._loss)) if self._is_added or is_bad else ""
        told = gather_values(self.group, "" if ELSEWHERE in text else text)
        rank = next((rank for rank, text in enumerate(told) if text), 0)
        return mark_agreed(NonFiniteError(f"rank {rank}: {told[rank] or 'the loss is not finite'}"))

    # --- the end

    def stop(self, own: str | None) -> str | None:
        """Return why the run is to end, on all ranks: the reason of the first one that has any.

        own: the reason of this rank; None if it has none.
        """
        told = np.zeros(self.group.size, np.int64)
        told[self.group.rank] = own is not None
        self.group.sum(told)
        if not told.any():
            return None
        reason: str = next(each for each in gather_values(self.group, own) if each is not None)
        return reason


def join(learner: TrainingModels, group: RankGroup, steps: Steps) -> Ranks:
    """Join a learner to a group: return its ranks, with the parameters of rank 0 on all of them.

    Raises:
        GroupError: they have other artifacts, or are for another kind of processor.
    """
    if not (hasattr(group, "rank") and hasattr(group, "gather")):
        kind = type(group).__name__
        raise DTypeError(f"group: expected a group of ranks, see engine.distributed; got {kind}")
    ranks = Ranks(learner, group, steps)
    model, optimizer = learner.digests
    ranks.check_alike(
        {
            "the version of edgegrad": VERSION,
            "the training model": model,
            "the optimizer model": optimizer,
            "the inputs": learner.inputs,
            "the kernels": learner.session.memory.kernels.name,
            "the number of threads": learner.module.threads,
            "skip_nonfinite": learner.skips_nonfinite,
            "the precision": learner.options.precision,
            "the loss scale": learner.session.memory.scaling,
        }
    )
    if learner.state.loaded:
        ranks.spread()
    learner.sum_gradients = ranks.add_gradients
    return ranks


def split_part(part: Share) -> Sequence[Any]:
    """Return the batch of a share as the words of `Trainer.step`."""
    return [part.batch] if isinstance(part.batch, dict) else part.batch


def _compute_short_digest(array: Array) -> int:
    digest = hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
