"""Checks of a module whether its values are finite, which decide what it does next.

    Before   if not torch.isfinite(x).all():
                 x = x.clamp(-1e38, 1e38)
    After    nothing: the values of a module that is traced are taken to be finite

Detectors like DETR have such checks in training mode, and a traced value cannot
answer them.  `engine.trainer.pytorch.functions` asks this file for each call of a function.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

_CLASSES = {"isfinite": True, **dict.fromkeys(("isnan", "isinf", "isposinf", "isneginf"), False)}
# Results of functions of known values, such as a mask that is the same everywhere.
_ONE: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("all", "any", "max", "amax", "min", "amin"), lambda value: value),
    **dict.fromkeys(("logical_not", "bitwise_not", "__invert__"), operator.not_),
    # The sum of ones depends on how many there are.
    **dict.fromkeys(("sum", "count_nonzero"), lambda value: None if value else 0),
}
_TWO: dict[str, Callable[[Any, Any], Any]] = {
    **{
        f"{low}{name}{high}": getattr(operator, name)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for low, high in (("", ""), ("__", "__"))
    },
    **dict.fromkeys(("logical_or", "bitwise_or", "__or__", "__ror__"), operator.or_),
    **dict.fromkeys(("logical_and", "bitwise_and", "__and__", "__rand__"), operator.and_),
}
_ENDS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("__bool__", "is_nonzero"), bool),
    "item": lambda value: value,
    "__int__": int,
}


class FiniteChecks:
    """The values that follow from the assumption, by the tensors that a trace makes of them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}  # a tensor, so that its id stays its own

    def find_value(self, name: str, args: Sequence[Any]) -> Any:
        """Return the value of a function at every place of its result; None if it is not known."""
        if name in _CLASSES:
            return _CLASSES[name]
        if not args or id(args[0]) not in self._known:
            return None
        first = self._known[id(args[0])][1]
        if name in _ONE:
            return _ONE[name](first)
        if name not in _TWO or len(args) != 2:
            return None
        second = args[1] if isinstance(args[1], bool | int | float) else self._look_up(args[1])
        return None if second is None else _TWO[name](first, second)

    def is_answered(self, name: str, args: Sequence[Any]) -> bool:
        """Return whether a call turns a known tensor into a number, as `if` does."""
        return name in _ENDS and bool(args) and id(args[0]) in self._known

    def answer(self, name: str, args: Sequence[Any]) -> Any:
        """Return the number that a call makes of a known tensor."""
        return _ENDS[name](self._known[id(args[0])][1])

    def keep(self, made: Any, value: Any) -> None:
        """Note the value of a tensor."""
        self._known[id(made)] = (made, value)

    def _look_up(self, tensor: Any) -> Any:
        return self._known[id(tensor)][1] if id(tensor) in self._known else None
