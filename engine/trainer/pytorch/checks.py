"""Checks of a module, which decide by values what it does next: a traced value has none.

    Before   if not torch.isfinite(x).all():
                 x = x.clamp(-1e38, 1e38)
             if labels.max() >= self.classes:
                 raise ValueError("...")
             assert (tokens >= 0).all()
    After    nothing: values are taken to be finite, and checks that raise an error to pass

Detectors like DETR have checks of the first kind in training mode.
`engine.trainer.pytorch.functions` asks this file for each call of a function.
"""

from __future__ import annotations

import ast
import functools
import linecache
import operator
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

_CLASSES = {
    "isfinite": True, **dict.fromkeys(("isnan", "isinf", "isposinf", "isneginf"), False),
    "_is_all_true": True,  # of torch._check_tensor_all, which raises an error otherwise
}  # fmt: skip
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

    def answer_guard(self, torch: Any, name: str, args: Sequence[Any]) -> bool | None:
        """Return the truth of a tensor by which a check passes; None if no check asks for it."""
        if name not in ("__bool__", "is_nonzero", "item") or not args:
            return None
        if not isinstance(args[0], torch.Tensor) or args[0].dtype != torch.bool:
            return None
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and _is_of_exporter(frame.f_globals.get("__name__", "")):
            frame = frame.f_back
        return None if frame is None else _pass_guard(frame.f_code.co_filename, frame.f_lineno)

    def keep(self, made: Any, value: Any) -> None:
        """Note the value of a tensor."""
        self._known[id(made)] = (made, value)

    def _look_up(self, tensor: Any) -> Any:
        return self._known[id(tensor)][1] if id(tensor) in self._known else None


def _is_of_exporter(name: str) -> bool:
    """Return whether a module is engine's or what torch traces with, not what a user calls."""
    first, _, rest = name.partition(".")
    return first in ("engine", "edgegrad") or (
        first == "torch" and not rest.startswith(("nn.", "distributions."))
    )


@functools.lru_cache(1024)
def _pass_guard(path: str, line: int) -> bool | None:
    """Return what the tensor in a condition has to be, so that no error is raised.

    None if the line is in no condition of an `assert` or of an `if` that does nothing but raise.
    """
    guards = [
        node
        for node in ast.walk(_parse(path))
        if isinstance(node, ast.Assert)
        or (isinstance(node, ast.If) and all(isinstance(part, ast.Raise) for part in node.body))
    ]
    for guard in guards:
        if guard.test.lineno <= line <= (guard.test.end_lineno or line):
            sign = _find_sign(guard.test)
            return sign if isinstance(guard, ast.Assert) or sign is None else not sign
    return None


@functools.lru_cache(64)
def _parse(path: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:  # the lines of a notebook, for example
        return ast.Module([], [])


def _find_sign(test: ast.expr) -> bool | None:
    """Return whether a condition holds if its parts do, or if they do not; None if neither."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        sign = _find_sign(test.operand)
        return None if sign is None else not sign
    if isinstance(test, ast.BoolOp):
        signs = {_find_sign(value) for value in test.values}
        return signs.pop() if len(signs) == 1 else None
    return True
