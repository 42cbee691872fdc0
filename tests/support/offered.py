"""The names that `edgegrad` offers."""

from __future__ import annotations

import importlib
import inspect
import warnings
from functools import cache

from tests.support.places import ALIAS


@cache
def list_offered() -> set[tuple[str, str]]:
    """Return the functions and methods that `edgegrad` offers, each with its module."""
    known, stubs = set[tuple[str, str]](), ALIAS / "edgegrad"
    for stub in stubs.rglob("*.pyi"):
        parts = stub.relative_to(stubs).with_suffix("").parts
        name = ".".join(("engine", *parts)).removesuffix(".__init__")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # libraries that it imports may warn
            module = importlib.import_module(name)
        names = getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")])
        for value in (getattr(module, each) for each in names):
            if inspect.isfunction(value):
                known.add((value.__module__, value.__qualname__))
            elif isinstance(value, type):
                known |= {
                    (kind.__module__, f"{kind.__qualname__}.{method}")
                    for kind in value.__mro__
                    for method in vars(kind)
                    if not method.startswith("_")
                }
    return known
