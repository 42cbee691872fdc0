"""Metrics of training data, measured on the outputs of the training steps, without another pass.

The training model gets the model's outputs as further outputs for as long as that is asked for, so
that steps have other plans then: the outputs live to the end of a step.  The forward pass of the
step computes them: before its update, with dropout, and with the statistics of the batch.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import InputError, NameNotFoundError
from engine.distributed.group import gather_values
from engine.trainer.inputs import count_samples
from engine.trainer.metrics.named import list_results

if TYPE_CHECKING:
    from engine.distributed.group import RankGroup
    from engine.trainer.learner import TrainingModels
    from engine.trainer.metric import Metric
    from engine.trainer.steps import Steps


class TrainingMetrics:
    """Metrics of the batches that a learner trains on.

    is_counting: whether the steps from now on count; a rank without samples trains on one of
        another rank.

    Raises:
        InputError: a metric cannot be counted in parts.
    """

    def __init__(
        self,
        learner: TrainingModels,
        steps: Steps,
        metrics: Sequence[Metric],
        group: RankGroup | None,
    ) -> None:
        self._learner, self._steps, self._group = learner, steps, group
        self._metrics = [copy.deepcopy(metric) for metric in metrics]
        self.is_counting = True
        self.start()
        for metric in self._metrics:
            if metric.partial() is None:
                raise InputError(
                    f"train_metrics: metric {metric.name!r} cannot be counted in parts: "
                    f"{type(metric).__name__} has no partial() and merge()"
                )

    def start(self) -> None:
        """Forget all batches."""
        for metric in self._metrics:
            metric.reset()

    def attach(self) -> None:
        """Take the outputs of the steps from now on.

        Raises:
            InputError: the training model does not compute the model's outputs.
        """
        session = self._learner.session
        if session.watch is not None:
            return
        model = session.training
        outputs = [*model.interface.outputs, *self._learner.outputs]
        try:
            session.training = model.select(outputs, f"{model.what} with its outputs")
        except NameNotFoundError as error:
            raise InputError(
                f"train_metrics: the training model does not compute {self._learner.outputs}"
            ) from error
        session.watch = self._count
        self._plain = model
        self._steps.forget()

    def detach(self) -> None:
        """Let the steps be as they were."""
        session = self._learner.session
        if session.watch is not None:
            session.training, session.watch = self._plain, None
            self._steps.forget()

    def _count(self, arrays: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Count a batch, or a part of one; a batch whose loss is not finite does not count."""
        loss = float(outputs[0].item())
        if not self.is_counting or not np.isfinite(loss):
            return
        inputs = self._learner.make_measured(arrays)
        losses = 1 + len(self._learner.part_names)
        named = dict(zip(self._learner.outputs, outputs[losses:], strict=True))
        for metric in self._metrics:
            metric.update(named, inputs, loss, count_samples(inputs))

    def compute_results(self, classes: Sequence[str] | None) -> dict[str, float]:
        """Return the results by column, of all ranks together."""
        whole = copy.deepcopy(self._metrics)
        for metric, partials in zip(whole, self.list_state(), strict=True):
            metric.merge(partials)
        return list_results(whole, classes)

    def list_state(self) -> list[list[Any]]:
        """Return what each metric has counted, rank by rank, as JSON types."""
        mine = [metric.partial() for metric in self._metrics]
        told = [mine] if self._group is None else gather_values(self._group, mine)
        return [list(each) for each in zip(*told, strict=True)]

    def restore(self, state: Sequence[list[Any]]) -> None:
        """Continue with the counts of all ranks, which rank 0 takes over."""
        self.start()
        if self._group is None or self._group.rank == 0:
            for metric, partials in zip(self._metrics, state, strict=True):
                metric.merge(partials)
