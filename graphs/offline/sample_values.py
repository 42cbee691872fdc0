"""Values of samples: how a value of a graph holds the samples of a batch, see sample_flow.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from engine.base.aliases import Array


@dataclass(frozen=True, slots=True)
class SampleRows:
    """A value with an axis that holds the samples in order, `rows` places for each.

    source: the input of the model that it is, in another shape or type; None if it is computed.
    turns: how often the axis goes through all samples: for each place of a sequence once, after
        `x.transpose(0, 1).flatten(0, 1)`.
    numbers: for indices, the places on the last axis that hold the number of each sample in the
        batch, as in `x[arange(len(x)), i]`.
    """

    axis: int
    rows: int = 1
    source: str | None = None
    turns: int = 1
    numbers: frozenset[int] = frozenset()

    def to(self, axis: int) -> SampleRows:
        """Return the rows of computed values that hold the samples in the same way on an axis."""
        return SampleRows(axis, self.rows, None, self.turns)

    @property
    def step(self) -> tuple[int, int]:
        """The places for each sample and the turns: the layout of the axis, wherever it is."""
        return self.rows, self.turns


@dataclass(frozen=True, slots=True)
class LossValue:
    """A value over all samples.

    is_mean: the mean of the samples; otherwise their sum.
    labels: the input whose labels weigh the samples; None if all weigh the same.
    ignore: the label of those that weigh nothing.
    weights: the weights of the classes.
    is_told: whether a user's rule makes gradients of the gradients of the whole batch: the backward
        pass of a part must then begin with what the part weighs.
    """

    is_mean: bool
    labels: str | None = None
    ignore: int | None = None
    weights: tuple[float, ...] | None = None
    is_told: bool = False

    def write(self) -> bytes:
        """Return it as a record, which `read` reads."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def read(record: bytes) -> LossValue | None:
        """Return what a record says; None if the record is damaged."""
        try:
            given = json.loads(record)
            weights = given.pop("weights")
            return LossValue(**given, weights=None if weights is None else tuple(weights))
        except (ValueError, TypeError, LookupError, AttributeError):
            return None

    def weigh(self, inputs: Mapping[str, Array], samples: int) -> float:
        """Return what a part of a batch weighs; inputs: of the part.  samples: how many it has."""
        if not self.is_mean:
            return 1.0
        if self.labels is None:
            return float(samples)
        labels = np.asarray(inputs[self.labels]).reshape(-1)
        if self.ignore is not None:
            labels = labels[labels != self.ignore]
        if self.weights is None:
            return float(labels.size)
        known = np.array(self.weights, np.float64)
        inside = labels[
            (labels >= 0) & (labels < known.size)
        ]  # others are a fault, which a run reports
        return float(known[inside].sum())


class MixedError(Exception):
    """Samples are mixed; the message says where."""


Flow = SampleRows | LossValue | None  # None: constant
SUM = LossValue(is_mean=False)


def make_gradient_flow(flow: Flow) -> Flow:
    """Return how the gradient of a value holds the samples that the value holds in some way.

    The backward pass of each part begins with what the part weighs in the loss of the batch.
    """
    if isinstance(flow, SampleRows):
        return flow.to(flow.axis)
    return None if flow == SUM else SUM
