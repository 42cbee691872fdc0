"""The seed of all random numbers: dropout, RandomNormal and their like.

A number depends on nothing but the seed, the node, the step and the place in the tensor.  Runs
therefore repeat with any number of threads.  Every module counts its own steps.
"""

from __future__ import annotations

from engine.base import arguments
from engine.base.errors import InputError

_seed = 0


def set_seed(seed: int) -> None:
    """Set the seed of all random numbers from here on.  A process begins with the seed 0.

    Raises:
        DTypeError: the seed is not a whole number.
        InputError: it does not fit into 64 bits.
    """
    global _seed
    _seed = check_seed(seed)


def check_seed(seed: int) -> int:
    """Return a seed as a number of 64 bits; raises as `set_seed`."""
    value = arguments.count("seed", seed)
    if not -(2**63) <= value < 2**63:
        raise InputError(f"seed {value}: expected an integer of 64 bits")
    return value


def get_seed() -> int:
    """Return the seed in use."""
    return _seed
