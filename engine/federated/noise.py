"""Noise that nobody can draw again: a discrete Gaussian, drawn from the system's generator.

    steps, bits = grid_of(z)                    # the clipping norm C is `steps` steps of a grid
    whole, clipped = on_grid(update, C, steps)  # integers whose L2 norm is at most `steps`
    noisy = (whole + gaussian(whole.size, bits)) * (C / steps)

Gaussian noise in floating point leaks: the possible values of a sum depend on the number that the
noise was added to, and rounding moves clipped updates further apart than the norm allows.  Here no
guarantee depends on rounding.  An update becomes integers first, rounded towards zero, so that no
element grows; their norm is compared in integers.  Noise is drawn on integers, with the standard
deviation 2**bits, and added to them; this sum is released, and everything that follows, in floating
point or not, is computed from it alone.

`draw_gaussian` draws integers x with a probability proportional to exp(-x**2 / 2**(2 bits + 1)), by
rejection from a discrete Laplace distribution.  Every decision compares uniform bits with an
integer: no exponential function is computed and no probability is rounded.  Bits come from
    `os.urandom`, a cryptographic generator without a seed, which is independent of Python's and
    NumPy's generators.

The resolution: elements are multiples of sigma / 2**bits, where bits is 24 unless the noise is
smaller than 1/64 of the norm.  The rounding error of an element is less than 6e-8 of its noise.

Sources: Canonne, Kamath and Steinke, The Discrete Gaussian for Differential Privacy, NeurIPS 2020,
algorithms 1 to 3; Mironov, On Significance of the Least Significant Bits for Differential Privacy,
CCS 2012; Casacuberta et al., Widespread Underestimation of Sensitivity in Differentially Private
Libraries, CCS 2022.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.base.errors import NonFiniteError

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

MOST_BITS = 24  # of sigma: squares of ten times as much, times two, fit 63 bits
_NORM_BITS = 30  # of the clipping norm: its square, the largest sum of squares, fits 63 bits
LEAST = 2.0 ** (1 - _NORM_BITS)  # of a noise multiplier: sigma is at least one step
_BLOCK = 1 << 15  # proposals at a time, so that their random words stay in the cache
_TURNS = 128  # of a geometric distribution; more have the probability exp(-129)
_WORD = 64


def choose_grid(multiplier: float) -> tuple[int, int]:
    """Return the number of grid steps in the clipping norm, and the bits of the noise.

    multiplier: z > 0, the standard deviation of the noise by the norm; the ratio 2**bits / steps is
        at least z.
    """
    bits = min(MOST_BITS, _NORM_BITS + math.floor(math.log2(multiplier)))
    return max(1, math.floor(2**bits / multiplier)), bits


def on_grid(values: npt.NDArray[Any], norm: float, steps: int) -> tuple[Integers, bool]:
    """Return values as integers, clipped to an L2 norm of `steps`, and whether clipping was needed.

    values: [n].  norm: the L2 norm that is `steps`, at most 2**30, on the grid.

    Raises:
        NonFiniteError: see `measure_length`.
    """
    wide, length = values.astype(np.float64), measure_length(values)
    whole = np.trunc(wide * (steps / max(norm, length))).astype(np.int64)
    while (square := int(np.dot(whole, whole))) > steps**2:  # by roundings of the float64 length
        shrink = min(steps / math.sqrt(square), 1 - 2.0**-40)
        whole = np.trunc(whole * shrink).astype(np.int64)
    return whole, length > norm


def measure_length(values: npt.NDArray[Any]) -> float:
    """Return the L2 norm of values, in float64.

    Raises:
        NonFiniteError: it is NaN or infinite.
    """
    length = float(np.linalg.norm(values.astype(np.float64)))
    if not math.isfinite(length):
        raise NonFiniteError(f"the norm of an update that is to be clipped is {length}")
    return length


def add_noise(values: npt.NDArray[Any], norm: float, multiplier: float) -> npt.NDArray[np.float64]:
    """Return values, clipped to an L2 norm, with noise of `multiplier` times the norm.

    values: [n].

    Raises:
        NonFiniteError: see `on_grid`.
    """
    steps, bits = choose_grid(multiplier)
    whole, _ = on_grid(values, norm, steps)
    result: npt.NDArray[np.float64] = np.multiply(
        whole + draw_gaussian(whole.size, bits), norm / steps
    )
    return result


def draw_gaussian(count: int, bits: int) -> Integers:
    """Draw independent samples of the discrete Gaussian distribution with sigma = 2**bits.

    bits: 0 to 24.
    """
    blocks, missing = list[Integers](), count
    while missing > 0:
        blocks.append(_draw_laplace(min(_BLOCK, 64 + 9 * missing // 4), bits)[:missing])
        missing -= blocks[-1].size
    return np.concatenate(blocks) if blocks else np.zeros(0, np.int64)


def _draw_laplace(count: int, bits: int) -> Integers:
    """Propose samples of a discrete Laplace distribution of scale 2**bits, and keep some.

    A proposal y is kept with the probability exp(-(|y| - 2**bits)**2 / 2**(2 bits + 1)).
    """
    low = _draw_bits(count, bits)
    low = low[_draw_events(low, bits)]
    size = low + (_draw_geometric(low.size) << np.uint64(bits))
    negative = _draw_bits(size.size, 1) == 1
    kept = ~(negative & (size == 0))  # otherwise zero would be twice as frequent
    magnitude, negative = size[kept].astype(np.int64), negative[kept]
    square = ((magnitude - (1 << bits)) ** 2).astype(np.uint64)
    scale = 2 * bits + 1
    whole = square >> np.uint64(scale)
    kept = _draw_events(square & np.uint64((1 << scale) - 1), scale)
    far = np.flatnonzero(whole)
    kept[far] &= _draw_geometric(far.size) >= whole[far]
    signed: Integers = np.where(negative, -magnitude, magnitude)
    return signed[kept]


def _draw_geometric(count: int) -> Words:
    """Draw how many times in a row an event of probability exp(-1) happens."""
    counts, live = np.zeros(count, np.uint64), np.arange(count)
    for _ in range(_TURNS):
        live = live[_draw_events(np.full(live.size, 2, np.uint64), 1)]
        if not live.size:
            break
        counts[live] += np.uint64(1)
    return counts


def _draw_events(numerators: Words, bits: int) -> npt.NDArray[np.bool_]:
    """Draw events of the probabilities exp(-numerators / 2**bits), numerators up to 2**bits.

    The first k at which an event of the probability numerator / (k 2**bits) fails is odd with this
    probability.
    """
    events, live, k = np.ones(numerators.size, np.bool_), np.arange(numerators.size), 1
    while live.size:
        hit = _draw_bits(live.size, bits) < numerators[live]
        live, failed = live[hit], live[~hit]
        events[failed] = k % 2 == 1
        k += 1
        hit = _draw_below(live.size, k) == 0  # for the next round, whose event is both
        events[live[~hit]] = k % 2 == 1
        live = live[hit]
    return events


def _draw_bits(count: int, bits: int) -> Words:
    """Draw uniform integers of `bits` bits, 0 to 63."""
    return (_draw_words(count) >> np.uint64(_WORD - 1 - bits)) >> np.uint64(1)


def _draw_below(count: int, limit: int) -> Words:
    """Draw uniform integers below a limit; words beyond its last multiple are drawn again."""
    last = np.uint64((1 << _WORD) - 1 - (1 << _WORD) % limit)
    words = _draw_words(count)
    while (beyond := words > last).any():
        words[beyond] = _draw_words(int(beyond.sum()))
    return words % np.uint64(limit)


def _draw_words(count: int) -> Words:
    """Draw words of 64 bits from the system's generator."""
    return np.frombuffer(bytearray(os.urandom(8 * count)), np.uint64)
