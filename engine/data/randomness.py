"""Random numbers of the loaders: each draw is a function of the seed and of where it is made.

No generator lives from one batch to the next.  An epoch that is begun again in its middle, in this
process or in another one, therefore makes the same batches.  NumPy promises equal streams for equal
versions of itself.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.base import arguments
from engine.base.errors import InputError

SHUFFLE, AUGMENT, SPLIT, PARTITION, MIX, BALANCE = range(1, 7)  # what random numbers are drawn for


def check_seed(value: object) -> int:
    """Return a seed: a whole number that is not negative.

    Raises:
        DTypeError, InputError: it is none.
    """
    seed = arguments.count("seed", value)
    if seed < 0:
        raise InputError(f"seed={seed}; expected a whole number of at least 0")
    return seed


def generator(seed: int, *place: int) -> np.random.Generator:
    """Return the generator of one place, for example `(AUGMENT, epoch, index)`."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=place))


def permute(count: int, seed: int, epoch: int) -> npt.NDArray[np.intp]:
    """Return the order in which an epoch visits `count` samples."""
    return generator(seed, SHUFFLE, epoch).permutation(count)
