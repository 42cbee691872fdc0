"""Metric: a number that says how good a model is, gathered batch by batch, and its declaration.

A metric takes one output of the model and one of its inputs, the targets: by default the first
output and the last input.  It returns the same after several batches as after all of their samples
in one batch; the sizes of batches, a smaller last one among them, do not matter.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import InputError, NameNotFoundError, NonFiniteError, suggest_nearest
from engine.training.mode import Mode

Tensors = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Declaration:
    """The facts about a metric of this package; docs/metrics.md and `history.direction` read them.

    name: the name that users give, which is also the column of the history, after "val_".
    mode: whether a lower ("min") or a higher ("max") value is better.
    is_share: whether the value is between 0 and 1, and so shown in percent.
    output, targets: the shapes and kinds that the metric takes, in words.
    empty: the value where the metric is undefined, in words.
    variants: the endings of the name, with the options that each one sets.
    other_names: names in other packages, separated by spaces, which messages translate.
    """

    name: str
    mode: Mode
    is_share: bool
    output: str
    targets: str
    empty: str
    variants: Mapping[str, Mapping[str, Any]]
    other_names: str = ""


class Metric(ABC):
    """Base class of metrics.

    name: its column in the history, after "val_"; by default the declared name.
    mode: whether a lower ("min") or a higher ("max") value is better; by default its name decides.
    output, target: the names of the output and of the input to compare; by default the first output
        and the last input.
    takes: the ones of these two that the metric reads.
    declared: the declaration, if this is a metric of this package.
    """

    mode: Mode | None = "max"
    takes: Sequence[Literal["output", "target"]] = ("output", "target")
    declared: ClassVar[Declaration | None] = None

    def __init_subclass__(cls) -> None:
        declared = vars(cls).get("declared")
        if declared is not None:
            cls.mode = declared.mode

    def __init__(
        self, name: str | None = None, output: str | None = None, target: str | None = None
    ) -> None:
        if name is None:
            if self.declared is None:
                raise InputError(f"{type(self).__name__} needs name=, its column in the history")
            name = self.declared.name
        self.name = arguments.check_text("name", name)
        self.output = None if output is None else arguments.check_text("output", output)
        self.target = None if target is None else arguments.check_text("target", target)
        self.reset()

    @abstractmethod
    def reset(self) -> None:
        """Forget all batches."""

    @abstractmethod
    def update(self, outputs: Tensors, inputs: Tensors, loss: float, weight: int) -> None:
        """Add a batch.

        outputs, inputs: NumPy arrays by name, in the order of the model.
        loss: the mean loss of the batch.
        weight: the number of samples in the batch.

        Raises:
            NameNotFoundError: the model has no output or input of the given name.
            ShapeError, DTypeError: output and targets do not fit one another.
            NonFiniteError: an output contains NaN, and the metric depends on the order of scores.
        """

    @abstractmethod
    def result(self) -> float:
        """Return the value for all batches since the last `reset`; NaN if nothing has counted."""

    def results(self, classes: Sequence[str] | None = None) -> dict[str, float]:
        """Return the values for the history, by column: `result` under the metric's name.

        classes: the names of the classes 0, 1, ..., for metrics with a column for each class.
        """
        return {self.name: self.result()}

    def columns(self, classes: Sequence[str] | None = None) -> list[str]:
        """Return the columns of `results` that are known beforehand."""
        return [self.name]

    def partial(self) -> list[Any] | None:
        """Return the counts since the last `reset`, as numbers and strings, for `merge`.

        None, the default, means that the metric cannot be counted in parts; then each rank of a
        group evaluates all of the data.
        """
        return None

    def merge(self, partials: Sequence[list[Any]]) -> None:
        """Replace the counts by the sum of the `partial` results of several ranks."""
        raise NotImplementedError(f"{type(self).__name__} has partial() but no merge()")

    def pair(self, outputs: Tensors, inputs: Tensors) -> tuple[Array, Array]:
        """Return the output and the targets that this metric takes."""
        return (
            self.tensor("output", outputs, self.output, 0),
            self.tensor("input", inputs, self.target, -1),
        )

    def tensor(self, kind: str, tensors: Tensors, name: str | None, index: int) -> Array:
        """Return the tensor of a name; for None the one at an index.

        kind: the kind of the tensors, in errors.

        Raises:
            InputError: there are none.
            NameNotFoundError: none has this name.
        """
        if name is None:
            if not tensors:
                raise InputError(f"metric {self.name!r}: the model has no {kind}s")
            return tensors[list(tensors)[index]]
        if name not in tensors:
            raise NameNotFoundError(
                f"metric {self.name!r}: no {kind} {name!r}; there are {list(tensors)}"
                f"{suggest_nearest(name, tensors)}"
            )
        return tensors[name]

    def refuse_nan(self, scores: Array) -> None:
        """Refuse scores that have no order.

        Raises:
            NonFiniteError: one of them is NaN.
        """
        if scores.dtype.kind == "f" and scores.size and np.isnan(scores.max()):
            place = [int(index) for index in np.argwhere(np.isnan(scores))[0]]
            count = int(np.isnan(scores).sum())
            of = "the first output" if self.output is None else f"output {self.output!r}"
            raise NonFiniteError(
                f"metric {self.name!r}: {of} holds {count} NaN in this batch, the first at {place}"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class MeanMetric(Metric):
    """Base class of metrics that are a total divided by a count: means, shares and rates."""

    def reset(self) -> None:
        self._total, self._count = 0.0, 0

    def add(self, total: float, count: int) -> None:
        """Add to the total and to the count."""
        self._total += total
        self._count += count

    def partial(self) -> list[Any]:
        return [self._total, self._count]

    def merge(self, partials: Sequence[list[Any]]) -> None:
        self.reset()
        for total, count in partials:
            self.add(total, int(count))

    def result(self) -> float:
        return self._total / self._count if self._count else math.nan


class AveragedMetric(Metric):
    """Base class of metrics with a value for each class, and an average of these values.

    average: the kind of average; None for a column for each class.
    column: the beginning of the columns of the classes.
    """

    average: str | None
    column: str

    def settle(self, average: str | None, name: str | None, column: str = "") -> str:
        """Set the average and the columns; return the name of the metric.

        name: the given name; by default `column`, followed by the average's ending.
        column: the name without an average; if it is empty, the declared name.
        """
        assert self.declared is not None
        self.average, self.column = average, name or column or self.declared.name
        if name is not None or average == "macro":
            return self.column
        variants = self.declared.variants.items()
        ending = next(end for end, has in variants if has.get("average", "") == average)
        return self.column + ending

    @abstractmethod
    def each(self, classes: int) -> Array:
        """Return the values of the classes 0, 1, ..., NaN where one has none.

        classes: how many are known by name; there may be more.
        """

    def results(self, classes: Sequence[str] | None = None) -> dict[str, float]:
        if self.average is not None:
            return super().results(classes)
        names = [] if classes is None else list(classes)
        values = self.each(len(names))
        names += [str(k) for k in range(len(names), len(values))]
        return {f"{self.column}_{n}": float(v) for n, v in zip(names, values, strict=False)}

    def columns(self, classes: Sequence[str] | None = None) -> list[str]:
        if self.average is not None:
            return super().columns(classes)
        return [f"{self.column}_{name}" for name in classes or ()]


Given = str | Metric | Callable[[Array, Array], float]
