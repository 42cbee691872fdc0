"""Initial values of parameters, as PyTorch, torchvision and timm draw them.

A rule is a function of a random generator and a shape.  The first axis of a weight counts its
outputs; its fan-in is the number of values that each of them sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.base import limits

Values: TypeAlias = npt.NDArray[np.floating]
Initial: TypeAlias = Callable[[np.random.Generator, tuple[int, ...]], Values]


def draw_fan_in_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """Draw from N(0, 1 / fan-in)."""
    return rng.standard_normal(shape) / math.sqrt(max(math.prod(shape[1:]), 1))


def draw_fan_out_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """Draw from N(0, 2 / fan-out), for convolutions (He et al., arXiv 1502.01852)."""
    return rng.standard_normal(shape) * math.sqrt(2 / (shape[0] * math.prod(shape[2:])))


def make_uniform(fan_in: int) -> Initial:
    """Return a rule that draws from U(-b, b), b = 1 / sqrt(fan_in): PyTorch's default."""
    bound = fan_in**-0.5
    return lambda rng, shape: rng.uniform(-bound, bound, shape)


def make_normal(deviation: float) -> Initial:
    """Return a rule that draws from N(0, deviation²)."""
    return lambda rng, shape: rng.standard_normal(shape) * deviation


def make_zeros(_: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """Return zeros, as for biases."""
    return np.zeros(shape)


def draw(
    shapes: Mapping[str, tuple[int, ...]], rules: Mapping[str, Initial], seed: int
) -> dict[str, npt.NDArray[np.float32]]:
    """Return float32 parameters by name; those without a rule are drawn by `draw_fan_in_normal`.

    The same seed gives the same values.

    Raises:
        LimitError: together they have more bytes than a plan may have.
    """
    nbytes = 4 * sum(map(math.prod, shapes.values()))
    limits.check("PLAN_BYTES", nbytes, "initial values", "the parameters have")
    rng = np.random.default_rng(seed)
    return {
        name: rules.get(name, draw_fan_in_normal)(rng, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
