"""Optimizers and their options: what `generate_artifacts(optimizer=...)` takes.

Options have torch's names and meaning.  The learning rate is set while training, by
`Optimizer.set_learning_rate` or a scheduler.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from engine import arguments
from engine.kernels.ops.optimizer import adafactor, adagrad, adam, lamb, lion, method, rmsprop, sgd
from engine.kernels.ops.optimizer.method import Group as Group

__all__ = [
    "LAMB",
    "SGD",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Group",
    "Lion",
    "OptimType",
    "OptimizerSpec",
    "RMSprop",
]

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph
    from engine.graphs.offline.optimizers import Part


class OptimType(IntEnum):
    """The optimizers, with their default options; the classes of the same names take options."""

    AdamW = 1
    SGD = 2
    Adam = 3
    RMSprop = 4
    Adagrad = 5
    Lion = 6
    LAMB = 7
    Adafactor = 8


class OptimizerSpec(ABC):
    """An optimizer, which makes the graph that updates all parameters."""

    @abstractmethod
    def build(self, opset: int, dtype: str, parameters: Sequence[str]) -> Graph:
        """The optimizer's graph for trainable parameters of these names and this element type."""


class Method(method.Method, OptimizerSpec):
    """An optimizer that is one op.  Its options are those of the class in its kernel family.

    clip_grad: the norm over all gradients to which they are scaled down if it is larger.
    groups: parameters with a learning rate and a weight decay of their own.
    """

    def __init_subclass__(cls) -> None:
        """Give a row of this file the docstring of its family."""
        cls.__doc__ = cls.__mro__[1].__doc__

    def parts(self, parameters: Sequence[str]) -> list[Part]:
        """The groups of parameters, each with the names of its parameters."""
        from engine.graphs.offline import optimizers

        for group in self.groups:
            arguments.expect("groups", group, Group)
        return optimizers.split(self.groups, parameters)

    def build(self, opset: int, dtype: str, parameters: Sequence[str]) -> Graph:
        from engine.graphs.offline import optimizers

        parts = self.parts(parameters)
        return optimizers.build(opset, dtype, self.rule(), self.clip_grad, parts)


# Each row takes its options, their order, defaults and words from the family of its optimizer.


class AdamW(adam.AdamW, Method): ...


class SGD(sgd.SGD, Method): ...


class Adam(adam.Adam, Method): ...


class RMSprop(rmsprop.RMSprop, Method): ...


class Adagrad(adagrad.Adagrad, Method): ...


class Lion(lion.Lion, Method): ...


class LAMB(lamb.LAMB, Method): ...


class Adafactor(adafactor.Adafactor, Method): ...


OPTIMIZERS: dict[OptimType, type[Method]] = {
    OptimType[c.__name__]: c for c in Method.__subclasses__()
}
