"""Values of 16 bits in the middle of a module of float32, which the model keeps in float32.

    Before   with torch.autocast("cpu", torch.bfloat16): y = self.a(x)
    After    y = self.a(x)

    Before   y = x.half() * 2
    After    y = x * 2

A model is trained in float32 or float64, also where its weights were 16-bit floats in a file.
While a module is traced, and while its results are compared with the model's, it computes in these
types.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from engine.base.errors import ModelWarning, warn_user


@contextlib.contextmanager
def without_halves(torch: Any) -> Iterator[set[str]]:
    """Let modules compute wide values where they ask for 16-bit floats.

    Yields the names of the types that they have asked for.
    """
    asked = set[str]()
    halves = (torch.float16, torch.bfloat16)

    class Widened(torch.overrides.TorchFunctionMode):  # type: ignore[misc]  # torch is Any here
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given = dict(kwargs or {})
            x: Any = args[0] if args else given.get("input")
            is_real = isinstance(x, torch.Tensor) and x.is_floating_point()
            if is_real and x.dtype in halves:  # a buffer of 16 bits
                return function(*args, **given)
            wide = x.dtype if is_real else torch.float32
            name = getattr(function, "__name__", "")
            if name in ("half", "bfloat16"):
                asked.add("float16" if name == "half" else name)
                return x.to(wide)

            def widen(value: Any) -> Any:
                if isinstance(value, torch.dtype) and value in halves:
                    asked.add(str(value).removeprefix("torch."))
                    return wide
                return value

            return function(
                *(widen(value) for value in args), **{k: widen(v) for k, v in given.items()}
            )

    owner = torch.amp.autocast_mode.autocast
    before = owner.__enter__, owner.__exit__

    def enter(region: Any) -> Any:
        if region._enabled:
            asked.add(str(region.fast_dtype).removeprefix("torch."))
        return region

    owner.__enter__, owner.__exit__ = enter, lambda *_: False
    try:
        with Widened():
            yield asked
    finally:
        owner.__enter__, owner.__exit__ = before


def warn_of_halves(asked: set[str]) -> None:
    """Warn that a model computes in float32 what its module computes in 16 bits."""
    if asked:
        warn_user(
            f"the module computes some values in {' and '.join(sorted(asked))}; the model computes "
            "them as wide as its parameters are",
            ModelWarning,
        )
