"""Optimizers and their options: what `generate_artifacts(optimizer=...)` takes.

Options have torch's names and meaning.  The learning rate `lr` is the one that training begins
with: it is kept in the checkpoint.  `Optimizer.set_learning_rate` and schedules change it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from engine import arguments
from engine.kernels.ops.optimizer import adafactor, adagrad, adam, lamb, lion, method, rmsprop, sgd
from engine.kernels.ops.optimizer.method import Group as Group
from engine.signatures import ABOVE_0, AT_LEAST_0, checked

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
    from engine.kernels.ops.optimizer.method import Rule


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


@checked
class OptimizerSpec(ABC):
    """An optimizer, which makes the graph that updates all parameters."""

    @abstractmethod
    def build(self, opset: int, kinds: Mapping[str, str]) -> Graph:
        """The optimizer's graph; kinds: the element types of the trained parameters, by name."""


@dataclass(frozen=True)
class Method(method.Method, OptimizerSpec):
    """An optimizer that is one op.  Its options are `lr`, and those of the class in its family.

    lr: the learning rate that training begins with; None leaves it at 0.001.
    clip_grad: the norm over all gradients to which they are scaled down if it is larger.
    groups: parameters with a learning rate and a weight decay of their own.
    skip_nonfinite: update nothing where a gradient, or with clip_grad the norm over all of them, is
        NaN or infinite: parameters, moments and the count of steps stay as they are.
    """

    lr: float | None = None
    skip_nonfinite: bool = field(default=False, kw_only=True)

    def __init_subclass__(cls) -> None:
        """Give a row of this file the docstring of its family."""
        cls.__doc__ = cls.__mro__[1].__doc__

    def __post_init__(self) -> None:
        """Refuse options that have no meaning, alone or together."""
        self.attributes()
        self.learning_rate()

    def learning_rate(self) -> float | None:
        """The option `lr`, rounded to float32."""
        return None if self.lr is None else arguments.number("lr", self.lr)

    def parts(self, kinds: Mapping[str, str]) -> tuple[Rule, list[Part]]:
        """The op for parameters of these element types, and what each of its nodes updates."""
        from engine.graphs.offline import optimizers

        is_divided = optimizers.is_divided(self.groups, kinds)
        return self.rule(is_divided=is_divided), optimizers.split(self.groups, kinds)

    def build(self, opset: int, kinds: Mapping[str, str]) -> Graph:
        from engine.graphs.offline import optimizers

        rule, parts = self.parts(kinds)
        skips = arguments.flag("skip_nonfinite", self.skip_nonfinite)
        return optimizers.build(opset, kinds, rule, self.clip_grad, parts, skips)


_options = checked(lr=AT_LEAST_0, clip_grad=ABOVE_0)
# Each row takes its options, their order, defaults and words from the family of its optimizer.


@_options
@dataclass(frozen=True)
class AdamW(adam.AdamW, Method): ...


@_options
@dataclass(frozen=True)
class SGD(sgd.SGD, Method): ...


@_options
@dataclass(frozen=True)
class Adam(adam.Adam, Method): ...


@_options
@dataclass(frozen=True)
class RMSprop(rmsprop.RMSprop, Method): ...


@_options
@dataclass(frozen=True)
class Adagrad(adagrad.Adagrad, Method): ...


@_options
@dataclass(frozen=True)
class Lion(lion.Lion, Method): ...


@_options
@dataclass(frozen=True)
class LAMB(lamb.LAMB, Method): ...


@_options
@dataclass(frozen=True)
class Adafactor(adafactor.Adafactor, Method): ...


OPTIMIZERS: dict[OptimType, type[Method]] = {
    OptimType[c.__name__]: c for c in Method.__subclasses__()
}
