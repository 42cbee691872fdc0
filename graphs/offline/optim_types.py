"""Optimizers and their options, for `generate_artifacts(optimizer=...)` and trainers.

Options have torch's names and meanings.  The learning rate `lr` is the initial one, which the
checkpoint keeps; `Optimizer.set_learning_rate` and schedules change it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import EnumMeta, IntEnum
from typing import TYPE_CHECKING, TypeVar, dataclass_transform

from engine.base import arguments
from engine.base.element_types import TRAINED_INTEGERS
from engine.base.errors import InputError
from engine.base.fields import describe_fields
from engine.base.representation import represent
from engine.base.signatures import ABOVE_0, AT_LEAST_0, check_arguments
from engine.kernels.ops.optimizer import adafactor, adagrad, adam, lamb, lion, method, rmsprop, sgd
from engine.kernels.ops.optimizer.method import Group as Group

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph
    from engine.graphs.offline.optimizers import NodeParameters
    from engine.kernels.ops.optimizer.method import OptimizerRule


M = TypeVar("M", bound="Method")


@check_arguments
class OptimizerSpec(ABC):
    """The base class of optimizers, which build the graph that updates all parameters."""

    __repr__ = represent

    @abstractmethod
    def build(self, opset: int, kinds: Mapping[str, str]) -> Graph:
        """Build the optimizer's graph; kinds: the element types of trained parameters, by name."""


@dataclass(frozen=True)
class Method(method.Method, OptimizerSpec):
    """An optimizer that is one op.  Its options are the family's, and these.

    lr: the initial learning rate; None for 0.001.
    skip_nonfinite: whether to skip updates with NaN or infinite gradients, or with clip_grad such a
        norm: parameters, moments and the number of steps then stay unchanged.
    """

    lr: float | None = None
    skip_nonfinite: bool = field(default=False, kw_only=True)

    def __init_subclass__(cls) -> None:
        """Give a row of this file the docstring of its family."""
        cls.__doc__ = cls.__mro__[1].__doc__

    def __post_init__(self) -> None:
        """Refuse options that have no meaning, alone or together."""
        attributes = self.attributes()
        self.learning_rate()
        for at, group in enumerate(self.groups):
            if group.weight_decay is not None and "weight_decay" not in attributes:
                raise InputError(
                    f"groups[{at}]: weight_decay={group.weight_decay} is not supported: "
                    f"{type(self).__name__} has no weight decay"
                )

    def learning_rate(self) -> float | None:
        """Return the option `lr`, rounded to float32."""
        return None if self.lr is None else arguments.check_number("lr", self.lr)

    def parts(self, kinds: Mapping[str, str]) -> tuple[OptimizerRule, list[NodeParameters]]:
        """Return the op for parameters of these element types, and what each node updates."""
        from engine.graphs.offline import optimizers

        is_divided = optimizers.is_divided(self.groups, kinds)
        self._refuse_integers([name for name in kinds if kinds[name] in TRAINED_INTEGERS])
        return self.rule(is_divided=is_divided), optimizers.split(self.groups, kinds)

    def _refuse_integers(self, names: Sequence[str]) -> None:
        """Refuse options that parameters of integers do not have.

        Raises:
            InputError: there are such parameters.
        """
        if names and (type(self) is not SGD or self.momentum):
            raise InputError(
                f"{self}: it keeps floats for each value that it trains; {names[0]!r} is integers, "
                "which SGD without momentum trains in place"
            )
        if names and self.clip_grad is not None:
            raise InputError(
                f"clip_grad={self.clip_grad}: gradients of integers such as {names[0]!r} are in "
                "units of their scales and have no norm together with others"
            )

    def build(self, opset: int, kinds: Mapping[str, str]) -> Graph:
        from engine.graphs.offline import optimizers

        rule, parts = self.parts(kinds)
        skips = arguments.check_flag("skip_nonfinite", self.skip_nonfinite)
        return optimizers.build(opset, kinds, rule, self.clip_grad, parts, skips)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def _optimizer(kind: type[M]) -> type[M]:
    """Make the public class of an optimizer, which checks and describes its family's options."""
    checked = check_arguments(lr=AT_LEAST_0, clip_grad=ABOVE_0, **kind.ranges)
    return describe_fields(checked(dataclass(frozen=True)(kind)))


# A row for each optimizer.  Its family declares the options, their defaults and their meanings.
# `OptimType` numbers the rows from 1: a new one comes last.


@_optimizer
class AdamW(adam.AdamW, Method): ...


@_optimizer
class SGD(sgd.SGD, Method): ...


@_optimizer
class Adam(adam.Adam, Method): ...


@_optimizer
class RMSprop(rmsprop.RMSprop, Method): ...


@_optimizer
class Adagrad(adagrad.Adagrad, Method): ...


@_optimizer
class Lion(lion.Lion, Method): ...


@_optimizer
class LAMB(lamb.LAMB, Method): ...


@_optimizer
class Adafactor(adafactor.Adafactor, Method): ...


_ROWS = {kind.__name__: kind for kind in Method.__subclasses__()}

if TYPE_CHECKING:

    class _NamedMeta(EnumMeta):
        def __getattr__(cls, name: str) -> OptimType: ...

    class OptimType(IntEnum, metaclass=_NamedMeta):
        """The names of the optimizers."""

else:
    OptimType = IntEnum("OptimType", list(_ROWS), module=__name__)
    OptimType.__doc__ = """The optimizers, with their default options.

    The classes of the same names take options.
    """
    __all__ = ["Group", "OptimType", "OptimizerSpec", *_ROWS]

OPTIMIZERS: dict[OptimType, type[Method]] = {OptimType[name]: _ROWS[name] for name in _ROWS}
