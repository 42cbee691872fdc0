"""Optimizers and their options: what `generate_artifacts(optimizer=...)` takes.

Options have torch's names and meaning.  The learning rate is set while training, by
`Optimizer.set_learning_rate` or a scheduler.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from engine import arguments

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph
    from engine.graphs.offline.optimizers import Part, Rule


class OptimType(IntEnum):
    """The optimizers, with their default options; the classes of the same names take options."""

    AdamW = 1
    SGD = 2
    Adam = 3
    RMSprop = 4
    Adagrad = 5
    Lion = 6
    LAMB = 7


@dataclass(frozen=True)
class Group:
    """Parameters that are updated in another way than the rest.

    match: names of parameters, or patterns of them as `*.bias`; the first group that matches a
        parameter has it.
    lr_scale: factor of the learning rate.
    weight_decay: in place of the optimizer's own; None keeps that.
    """

    match: Sequence[str]
    lr_scale: float = 1.0
    weight_decay: float | None = None


class OptimizerSpec(ABC):
    """An optimizer: a graph over all parameters at once."""

    @abstractmethod
    def build(self, opset: int, dtype: str, parameters: Sequence[str]) -> Graph:
        """The optimizer's graph for trainable parameters of these names and this element type."""


class Method(OptimizerSpec):
    """An optimizer of one op, with options that all have.

    clip_grad: norm over all gradients to which they are scaled down.
    groups: parameters with a learning rate and a weight decay of their own.
    """

    clip_grad: float | None
    groups: Sequence[Group]

    @abstractmethod
    def rule(self) -> Rule:
        """The op and its hyperparameters."""

    def parts(self, parameters: Sequence[str]) -> list[Part]:
        """The groups with the parameters that each has."""
        from engine.graphs.offline import optimizers

        for group in self.groups:
            arguments.expect("groups", group, Group)
        return optimizers.split(self.groups, parameters)

    def build(self, opset: int, dtype: str, parameters: Sequence[str]) -> Graph:
        from engine.graphs.offline import optimizers

        parts = self.parts(parameters)
        return optimizers.build(opset, dtype, self.rule(), self.clip_grad, parts)


@dataclass(frozen=True)
class AdamW(Method):
    """Adam with decoupled weight decay.

    adam_mode: 1 as Hugging Face's (what onnxruntime-training makes), 0 as torch's.
    """

    bias_correction: bool = True
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.0
    clip_grad: float | None = None
    adam_mode: int = 1
    groups: Sequence[Group] = ()

    def rule(self) -> Rule:
        from engine.graphs.offline import optimizers

        return optimizers.adamw(
            self.betas, self.eps, self.weight_decay, self.bias_correction, self.adam_mode,
            grouped=bool(self.groups),
        )  # fmt: skip


@dataclass(frozen=True)
class SGD(Method):
    """Gradient descent, with momentum if it is not 0."""

    clip_grad: float | None = None
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    groups: Sequence[Group] = ()

    def rule(self) -> Rule:
        from engine.graphs.offline import optimizers

        return optimizers.sgd(
            self.momentum, self.dampening, self.nesterov, self.weight_decay,
            grouped=bool(self.groups),
        )  # fmt: skip


@dataclass(frozen=True)
class Adam(Method):
    """Adam; its weight decay is added to the gradients."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_grad: float | None = None
    groups: Sequence[Group] = ()

    def rule(self) -> Rule:
        from engine.graphs.offline import optimizers

        return optimizers.adam("AdamOptimizer", self.betas, self.eps, self.weight_decay)


@dataclass(frozen=True)
class RMSprop(Method):
    """Gradients over the root of their mean square, or of their variance when `centered`."""

    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False
    clip_grad: float | None = None
    groups: Sequence[Group] = ()

    def rule(self) -> Rule:
        from engine.graphs.offline import optimizers

        return optimizers.rmsprop(
            self.alpha, self.eps, self.weight_decay, self.momentum, self.centered
        )


@dataclass(frozen=True)
class Adagrad(Method):
    """Gradients over the root of the sum of their squares."""

    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    clip_grad: float | None = None
    groups: Sequence[Group] = ()

    def rule(self) -> Rule:
        from engine.graphs.offline import optimizers

        return optimizers.adagrad(
            self.lr_decay, self.weight_decay, self.initial_accumulator_value, self.eps
        )


@dataclass(frozen=True)
class Lion(Method):
    """The sign of a moving average of gradients (Chen et al., arXiv 2302.06675)."""

    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    clip_grad: float | None = None
    groups: Sequence[Group] = ()

    def rule(self) -> Rule:
        from engine.graphs.offline import optimizers

        return optimizers.lion(self.betas, self.weight_decay)


@dataclass(frozen=True)
class LAMB(Method):
    """Adam scaled by layers (You et al., arXiv 1904.00962), bias corrected."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.0
    clip_grad: float | None = None
    groups: Sequence[Group] = ()

    def rule(self) -> Rule:
        from engine.graphs.offline import optimizers

        return optimizers.adam("LambOptimizer", self.betas, self.eps, self.weight_decay)


OPTIMIZERS: dict[OptimType, type[OptimizerSpec]] = {
    OptimType.AdamW: AdamW,
    OptimType.SGD: SGD,
    OptimType.Adam: Adam,
    OptimType.RMSprop: RMSprop,
    OptimType.Adagrad: Adagrad,
    OptimType.Lion: Lion,
    OptimType.LAMB: LAMB,
}
