"""Losses as blocks: options, and what they compute, as the classes of `engine.loss_types` say.

The first inputs are values of the model; the last is the name of the target or labels, which
becomes an input of the model unless it is there already.
"""

from __future__ import annotations

from typing import Any

from engine import loss_types
from engine.errors import InputError
from engine.loss_types import Array, Loss
from engine.onnxblock.blocks import Block


class _LossBlock(Block):
    """Appends a loss."""

    def __init__(self, loss: Loss, reductions: tuple[str, ...] = ("mean", "sum", "none")) -> None:
        super().__init__()
        self._loss = loss
        found: Any = getattr(loss, "reduction", "mean")
        if found not in reductions:
            raise InputError(f"reduction={found!r}; expected one of {', '.join(reductions)}")

    def _add(self, *names: str) -> str:
        from engine.graphs.offline import compose

        reads = names[: self._loss.takes]
        return compose.extend(self.base, lambda graph: self._loss.build(graph, *names), reads)


class MSELoss(_LossBlock):
    """The square of output - target."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(loss_types.MSELoss(reduction))

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        return self._add(loss_input_name, target_name)


class L1Loss(_LossBlock):
    """The absolute value of output - target."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(loss_types.L1Loss(reduction))

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        return self._add(loss_input_name, target_name)


class HuberLoss(_LossBlock):
    """Half the square of small differences, delta times the absolute value of large ones."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(loss_types.HuberLoss(reduction, delta))

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        return self._add(loss_input_name, target_name)


class SmoothL1Loss(_LossBlock):
    """`HuberLoss` of delta `beta`, divided by it."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(loss_types.SmoothL1Loss(reduction, beta))

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        return self._add(loss_input_name, target_name)


class CrossEntropyLoss(_LossBlock):
    """Softmax cross entropy of scores, whose axis 1 is classes, with int64 labels."""

    def __init__(
        self,
        weight: Array | None = None,
        reduction: str = "mean",
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            loss_types.CrossEntropyLoss(weight, reduction, ignore_index, label_smoothing)
        )

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
        return self._add(scores_input_name, labels_name)


class NLLLoss(_LossBlock):
    """Minus the log-probability of the label; axis 1 is classes."""

    def __init__(
        self, weight: Array | None = None, reduction: str = "mean", ignore_index: int | None = None
    ) -> None:
        super().__init__(loss_types.NLLLoss(weight, reduction, ignore_index))

    def build(self, logs_input_name: str, labels_name: str = "labels") -> str:
        return self._add(logs_input_name, labels_name)


class BCEWithLogitsLoss(_LossBlock):
    """Cross entropy of sigmoid(output) with targets in [0, 1]."""

    def __init__(
        self, weight: Array | None = None, reduction: str = "mean", pos_weight: Array | None = None
    ) -> None:
        super().__init__(loss_types.BCEWithLogitsLoss(weight, reduction, pos_weight))

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        return self._add(loss_input_name, target_name)


class KLDivLoss(_LossBlock):
    """target (log target - output), the output being log-probabilities."""

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        loss = loss_types.KLDivLoss(reduction, log_target)
        super().__init__(loss, ("mean", "batchmean", "sum", "none"))

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        return self._add(loss_input_name, target_name)


class CosineEmbeddingLoss(_LossBlock):
    """1 - cos of two outputs where the target is 1, max(0, cos - margin) where it is -1."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(loss_types.CosineEmbeddingLoss(margin, reduction))

    def build(self, input_name1: str, input_name2: str, target_name: str = "target") -> str:
        return self._add(input_name1, input_name2, target_name)
