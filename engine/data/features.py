"""Features of sounds: resampling, and log-mel spectrograms.

Resampling from rate r to rate s by the ratio s/r = up/down in lowest terms, with a windowed sinc:

    y[n] = sum_k x[floor(t) + k] h(t - floor(t) - k),    t = n down/up
    h(u) = c sinc(c u) kaiser(u / K),    c = 0.9 min(1, up/down),  |u| < K = 32/c

    J. O. Smith, Digital Audio Resampling Home Page, https://ccrma.stanford.edu/~jos/resample/

Log-mel features of frame t and band m, without padding at the ends:

    w[n] = 0.5 - 0.5 cos(2 pi n / window)
    X[t, k] = sum_n w[n] x[t hop + n] exp(-2 pi i k n / n_fft)
    M[t, m] = sum_k |X[t, k]|^2 F[m, k]
    L[m, t] = ln(M[t, m] + 1e-6)

    F[m] is the triangle over the frequencies f[m], f[m+1], f[m+2] with the height 1, where f are
    n_mels + 2 frequencies from f_min to f_max, evenly spaced on the scale 2595 log10(1 + f/700)
    (D. O'Shaughnessy, Speech Communication, 1987).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from engine.base.aliases import Floats
from engine.base.errors import InputError, ShapeError
from engine.base.signatures import Range, check_arguments

LOBES = 32  # of the sinc on each side
ROLLOFF = 0.9  # of the lower of the two Nyquist frequencies; beyond it the window's slope lies
KAISER = 9.0  # the window's beta; side lobes below -90 dB
TAPS = 1 << 23  # of the filters of all phases; 44099 to 16000 Hz takes 3.1 million
OFFSET = 1e-6  # added before the logarithm, so that silence is finite
LOUDEST = 1 << 32  # of samples: enough for integers kept as floats, and squares are finite
FLAT = 1e-3  # the least deviation that features are divided by; silence has 0


def resample(samples: Floats, rate: int, target: int) -> Floats:
    """Resample a sound of one channel.

    samples: one axis.  The result has ceil(samples * target / rate) values; beyond its ends the
    sound is taken to be silent.

    Raises:
        InputError: a rate is not positive, or their ratio takes filters of too many taps.
    """
    if min(rate, target) < 1:
        raise InputError(f"resampling from {rate} to {target} Hz; expected positive rates")
    common = math.gcd(rate, target)
    up, down = target // common, rate // common
    if up == down:
        return samples
    bank = _make_bank(up, down)
    reach = bank.shape[1] // 2
    windows = sliding_window_view(np.pad(samples, (reach - 1, reach)), 2 * reach)
    out = np.empty(-(-len(samples) * up // down), np.float32)
    for phase in range(min(up, len(out))):
        rows = windows[phase * down // up :: down][: len(range(phase, len(out), up))]
        out[phase::up] = np.einsum("nk,k->n", rows, bank[phase * down % up])  # as below, no BLAS
    return out


@lru_cache(maxsize=8)
def _make_bank(up: int, down: int) -> Floats:
    """Return the filter of each of `up` phases, with taps for samples 1 - reach to reach."""
    cutoff = ROLLOFF * min(1.0, up / down)
    reach = math.ceil(LOBES / cutoff)
    if 2 * reach * up > TAPS:
        raise InputError(
            f"resampling by {up}/{down} takes {2 * reach * up} taps; at most {TAPS} are allowed: "
            "convert the files to a common rate, such as 16000, 44100 or 48000 Hz"
        )
    taps = np.arange(1 - reach, reach + 1)
    distance = np.arange(up)[:, np.newaxis] / up - taps
    inside = np.maximum(0.0, 1 - (distance * cutoff / LOBES) ** 2)
    bank = np.sinc(cutoff * distance) * np.i0(KAISER * np.sqrt(inside)) * (inside > 0)
    normalised: Floats = (bank / bank.sum(1, keepdims=True)).astype(np.float32)
    return normalised


_SIZES = Range(high=1 << 24)  # samples, samples a second, bands: beyond any of sounds


@check_arguments(rate=_SIZES, window=_SIZES, hop=_SIZES, n_fft=_SIZES, n_mels=_SIZES)
@dataclass(frozen=True, kw_only=True)
class LogMel:
    """Log-mel features of a sound, as in the formula above.

    Args:
        rate: samples per second.
        window: samples of a frame; 400 are 25 ms at 16 kHz.
        hop: samples from one frame to the next.
        n_fft: length of the Fourier transform, by default the least power of two that is at
            least `window`.
        n_mels: bands.
        f_min, f_max: lowest and highest frequency in Hz; by default up to half the rate.
        normalize: whether the mean of a sound's features is subtracted from them, and they are
            divided by their standard deviation.

    Raises:
        InputError: the numbers do not fit together, or a band lies between two frequencies of the
            transform and would always be empty.
    """

    rate: int = 16000
    window: int = 400
    hop: int = 160
    n_fft: int | None = None
    n_mels: int = 40
    f_min: float = 20.0
    f_max: float | None = None
    normalize: bool = True

    def __post_init__(self) -> None:
        for name in ("rate", "window", "hop", "n_mels"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"LogMel: {name}={getattr(self, name)}; expected a positive number"
                )
        if self.length < self.window:
            raise InputError(f"LogMel: n_fft={self.length} is less than window={self.window}")
        if not 0 <= self.f_min < self.highest <= self.rate / 2:
            raise InputError(
                f"LogMel: f_min={self.f_min}, f_max={self.highest}; expected rising frequencies "
                f"up to half the rate, {self.rate / 2}"
            )
        empty = np.flatnonzero(self.filters.max(1) <= 0)
        if empty.size:
            raise InputError(
                f"LogMel: band {empty[0]} of n_mels={self.n_mels} lies between two frequencies of "
                f"n_fft={self.length}; take fewer bands or a longer transform"
            )

    @property
    def length(self) -> int:
        """Return the length of the Fourier transform."""
        return 1 << (self.window - 1).bit_length() if self.n_fft is None else self.n_fft

    @property
    def highest(self) -> float:
        """Return the highest frequency, in Hz."""
        return self.rate / 2 if self.f_max is None else self.f_max

    def frames(self, samples: int) -> int:
        """Return the number of frames of a sound with this many samples."""
        return max(0, 1 + (samples - self.window) // self.hop)

    @cached_property
    def filters(self) -> Floats:
        """Return the triangle of each band: n_mels x frequencies of the transform."""
        mels = np.linspace(
            _convert_to_mel(self.f_min), _convert_to_mel(self.highest), self.n_mels + 2
        )
        edges = 700 * (10 ** (mels / 2595) - 1)
        low, peak, high = edges[:-2, np.newaxis], edges[1:-1, np.newaxis], edges[2:, np.newaxis]
        bins = np.arange(self.length // 2 + 1) * self.rate / self.length
        rising, falling = (bins - low) / (peak - low), (high - bins) / (high - peak)
        triangles: Floats = np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
        return triangles

    def __call__(self, samples: Floats) -> Floats:
        """Compute the features of a sound of one channel: n_mels x frames.

        Raises:
            ShapeError: it is shorter than a window.
            InputError: a sample is not finite, or beyond `LOUDEST`.
        """
        if samples.ndim != 1 or len(samples) < self.window:
            raise ShapeError(
                f"LogMel: a sound of shape {list(samples.shape)}; expected one axis of at "
                f"least {self.window} samples, a window"
            )
        loud = float(np.abs(samples).max())
        if not loud <= LOUDEST:
            raise InputError(
                f"LogMel: a sample has the value {loud:.3g}; expected -1 to 1, and refused above "
                f"{LOUDEST:g}"
            )
        frames = sliding_window_view(samples, self.window)[:: self.hop]
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.window) / self.window)
        spectrum: Any = np.fft.rfft(frames * hann.astype(np.float32), self.length)
        power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
        # Not by BLAS: for so small a product it wakes threads, which then wait for the cores that
        # train; that took 16 ms of processor time for 0.2 ms of work.
        mels = np.einsum("mk,tk->mt", self.filters, power)
        out: Floats = np.log(mels + np.float32(OFFSET))
        if self.normalize:
            out -= np.float32(out.mean(dtype=np.float64))
            out /= max(float(out.std()), FLAT)
        return out


def _convert_to_mel(frequency: float) -> float:
    return 2595 * math.log10(1 + frequency / 700)
