"""What the case files of optimizers are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.optim_types import Method

EPS, DECAY = 2.0**-20, 0.03125  # these and all numbers of cases: exact in float32, as attributes
BETAS = (0.875, 0.96875)

Array = np.ndarray[Any, np.dtype[Any]]
State = dict[str, Any]
Options = Mapping[str, Any]
# (t from 1, parameter, gradient, state, rate, options) to the parameter after the step; float64
Update = Callable[[int, Any, Any, State, float, Options], Any]


@dataclass(frozen=True)
class Case:
    """Options of an optimizer, the reference of a step, and how many states a model keeps."""

    method: Method
    update: Update
    states: int
