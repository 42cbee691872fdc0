"""Blocks made from classes of settings, so that each list of parameters is written once.

The block of a class has its name and docstring; `inspect.signature` and `help` show the parameters
of the class, in its order and with its defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from engine.onnxblock.blocks import Block

B = TypeVar("B", bound=Block)
Method = Callable[..., Any]


def parameters_of(
    settings: type, without: Collection[str] = (), **annotations: str
) -> list[inspect.Parameter]:
    """The parameters of a class but those named, some with another annotation."""
    return [
        p.replace(annotation=annotations.get(name, p.annotation))
        for name, p in inspect.signature(settings).parameters.items()
        if name not in without
    ]


def taking(parameters: Sequence[inspect.Parameter], body: Callable[..., Any]) -> Method:
    """A method of these parameters, which are given to `body(self, **arguments)` all by name."""
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    signature = inspect.Signature([me, *parameters])

    def method(*args: Any, **options: Any) -> Any:
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        own = dict(bound.arguments)
        return body(own.pop("self"), **own)

    method.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
    return method


def block_of(settings: type, base: type[B], **methods: Method) -> type[B]:
    """The class of blocks of a class of settings, with these methods."""
    body: dict[str, Any] = {"__doc__": settings.__doc__, "__module__": base.__module__}
    for name, method in methods.items():
        method.__name__, method.__qualname__ = name, f"{settings.__name__}.{name}"
        method.__doc__ = getattr(base, name).__doc__
        body[name] = method
    return type(settings.__name__, (base,), body)
