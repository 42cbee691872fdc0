"""Changes of functions of torch and of Python that a traced module cannot call as they are.

    Before   self.router = self.router.to(torch.float32)
    After    nothing: each parameter is float32

Each context lasts while a module is traced, and changes nothing of its results.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from engine.base.errors import UnsupportedOpError

# Methods of a module that give its parameters another type.
_CONVERSIONS = ("to", "float", "double", "half", "bfloat16", "type", "cpu")


@contextlib.contextmanager
def without_guesses(torch: Any) -> Iterator[None]:
    """Let decoders of torch.nn take masks as they are given.

    Without `is_causal`, they compare a mask with a causal one, to choose a kernel, and a traced
    mask has no values to compare.  The mask itself is applied in any case.
    """
    owner, name = torch.nn.modules.transformer, "_detect_is_causal_mask"
    before = getattr(owner, name)
    setattr(owner, name, lambda mask, is_causal=None, size=None: is_causal is True)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def without_validation(torch: Any) -> Iterator[None]:
    """Let distributions take their parameters as they are, for a traced one has no values."""
    owner = torch.distributions.Distribution
    before = owner._validate_args
    owner.set_default_validate_args(False)
    try:
        yield
    finally:
        owner.set_default_validate_args(before)


@contextlib.contextmanager
def without_moves(torch: Any) -> Iterator[None]:
    """Let a module convert its parts to the type that they have, while it runs forward.

    torch would put a new tensor in the place of each parameter, which a trace does not allow.
    """
    owner = torch.nn.Module

    def make(name: str, convert: Callable[..., Any]) -> Callable[..., Any]:
        def convert_or_stay(module: Any, *args: Any, **kwargs: Any) -> Any:
            for key, value in [*module.named_parameters(), *module.named_buffers()]:
                if not value.is_floating_point():
                    continue
                like = getattr(torch.empty(0, dtype=value.dtype), name)(*args, **kwargs)
                if like.dtype != value.dtype:
                    raise UnsupportedOpError(
                        f"{type(module).__name__} converts its {key!r} from {value.dtype} to "
                        f"{like.dtype} while it runs forward; convert the values instead, or the "
                        "module before"
                    )
            return module

        return functools.wraps(convert)(convert_or_stay)

    before = {name: getattr(owner, name) for name in _CONVERSIONS}
    for name, convert in before.items():
        setattr(owner, name, make(name, convert))
    try:
        yield
    finally:
        for name, convert in before.items():
            setattr(owner, name, convert)


@contextlib.contextmanager
def with_open_lengths(torch: Any) -> Iterator[None]:
    """Let `len` of a tensor be its size along axis 0, which may be any.

    A Python function that returns a length has to return a number, by which a trace would take the
    batch of the example for every batch.
    """
    measure = builtins.len

    def measure_any(value: Any) -> Any:
        return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else measure(value)

    builtins.len = measure_any
    try:
        yield
    finally:
        builtins.len = measure
