"""Case rows of transforms."""

from __future__ import annotations

import numpy as np

from engine.tools.dev.cases.case import Case, f32


def at(*values: int) -> np.ndarray:
    return np.array(values[0] if len(values) == 1 else values, np.int64)


def _transform_frames(x: np.ndarray, step: np.ndarray, window: np.ndarray) -> np.ndarray:
    """Return the one-sided spectra of the frames of a signal without a dimension of its parts."""
    cut = np.lib.stride_tricks.sliding_window_view(x, len(window), axis=1)[:, :: int(step)]
    y = np.fft.rfft(cut * window)
    return np.stack((y.real, y.imag), -1)


CASES = (
    Case("DFT", (f32(2, 5, 1),), grad=(0,), opset=17),
    Case("DFT", (f32(2, 6, 3, 2), at(8), at(1)), grad=(0,), opset=20),
    Case("DFT", (f32(2, 7, 2), at(4)), {"inverse": 1}, grad=(0,), opset=20),
    Case("DFT", (f32(2, 6, 1),), {"onesided": 1}, grad=(0,), opset=20),
    Case("DFT", (f32(2, 4, 2),), {"onesided": 1, "inverse": 1}, grad=(0,), opset=20),
    Case("DFT", (f32(2, 4, 2), at(7)), {"onesided": 1, "inverse": 1}, grad=(0,), opset=20),
    Case("STFT", (f32(2, 12, 1), at(3), f32(6)), grad=(0, 2)),
    Case("STFT", (f32(2, 12), at(3), f32(6)), grad=(0, 2), reference=_transform_frames),
    Case("STFT", (f32(1, 9, 2), at(2), None, at(5)), {"onesided": 0}, grad=(0,)),
    Case("MelWeightMatrix", (at(8), at(64), at(8192), np.float32(20), np.float32(4000))),
)
