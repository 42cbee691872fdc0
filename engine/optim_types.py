"""Optimizers and their options: what `generate_artifacts(optimizer=...)` takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.graphs.ir import Graph
    from engine.graphs.optimizers import Rule


class OptimType(IntEnum):
    """The optimizers, with their default options; the classes of the same names take options."""

    AdamW = 1
    SGD = 2


class OptimizerSpec(ABC):
    """An optimizer: a graph over all parameters at once."""

    @abstractmethod
    def build(self, opset: int, dtype: str) -> Graph:
        """The optimizer's graph for parameters of this element type."""


class Method(OptimizerSpec):
    """An optimizer of one op."""

    clip_grad: float | None

    @abstractmethod
    def rule(self) -> Rule:
        """The op and its hyperparameters."""

    def build(self, opset: int, dtype: str) -> Graph:
        from engine.graphs import optimizers

        return optimizers.build(opset, dtype, self.rule(), self.clip_grad)


@dataclass(frozen=True)
class AdamW(Method):
    """Adam with decoupled weight decay.

    clip_grad: norm over all gradients to which they are scaled down.
    adam_mode: 1 as Hugging Face's (what onnxruntime-training makes), 0 as torch's.
    """

    bias_correction: bool = True
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.0
    clip_grad: float | None = None
    adam_mode: int = 1

    def rule(self) -> Rule:
        from engine.graphs import optimizers

        return optimizers.adamw(
            self.betas, self.eps, self.weight_decay, self.bias_correction, self.adam_mode
        )


@dataclass(frozen=True)
class SGD(Method):
    """Plain gradient descent.  clip_grad: as in `AdamW`."""

    clip_grad: float | None = None

    def rule(self) -> Rule:
        from engine.graphs import optimizers

        return optimizers.sgd()


OPTIMIZERS: dict[OptimType, type[OptimizerSpec]] = {
    OptimType.AdamW: AdamW,
    OptimType.SGD: SGD,
}
