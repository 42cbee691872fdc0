"""Blocks are made from classes of settings, so that each list of parameters is written once.

The block for a class of settings has the name and the docstring of that class.  Its signature, as
`inspect.signature` and `help` show it, has the parameters of the class in the same order and with
the same defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from engine.onnxblock.blocks import Block

B = TypeVar("B", bound=Block)
Method = Callable[..., Any]


def list_parameters(
    settings: type, without: Collection[str] = (), **annotations: str
) -> list[inspect.Parameter]:
    """Return the parameters of a class of settings.

    without: names to leave out.  annotations: other annotations, by name.
    """
    return [
        p.replace(annotation=annotations.get(name, p.annotation))
        for name, p in inspect.signature(settings).parameters.items()
        if name not in without
    ]


def make_method(parameters: Sequence[inspect.Parameter], body: Callable[..., Any]) -> Method:
    """Return a method with these parameters that calls `body(self, **arguments)` by name."""
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    signature = inspect.Signature([me, *parameters])

    def call_body(*args: Any, **options: Any) -> Any:
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        own = dict(bound.arguments)
        return body(own.pop("self"), **own)

    call_body.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
    return call_body


def make_block(settings: type, base: type[B], **methods: Method) -> type[B]:
    """Return a subclass of `base` with these methods, named and described as the settings."""
    body: dict[str, Any] = {"__doc__": settings.__doc__, "__module__": base.__module__}
    for name, method in methods.items():
        method.__name__, method.__qualname__ = name, f"{settings.__name__}.{name}"
        method.__doc__ = getattr(base, name).__doc__
        body[name] = method
    return type(settings.__name__, (base,), body)
