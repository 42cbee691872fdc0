"""Parts of the case files of optimizers."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.graphs.offline.optim_types import Method

EPS, DECAY = 2.0**-20, 0.03125  # these and all numbers of cases: exact in float32, as attributes
BETAS = (0.875, 0.96875)

State = dict[str, Any]
Options = Mapping[str, Any]
# (t from 1, parameter, gradient, state, rate, options) to the parameter after the step; float64
Update = Callable[[int, Any, Any, State, float, Options], Any]


@dataclass(frozen=True)
class OptimizerCase:
    """Options of an optimizer, the reference of a step, and how many states a model keeps."""

    method: Method
    update: Update
    states: int


def list_cases() -> Iterator[OptimizerCase]:
    """Return the cases of all files of this folder, in the order of their names."""
    package = importlib.import_module(__name__.rpartition(".")[0])
    for name in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
        yield from getattr(importlib.import_module(f"{package.__name__}.{name}"), "CASES", ())
