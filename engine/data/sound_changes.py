"""Random changes of sounds: in time, before features are computed, and of the features.

SpecAugment masks bands and frames: Park et al., "SpecAugment: A Simple Data Augmentation Method for
Automatic Speech Recognition", Interspeech 2019, arXiv:1904.08779, without its time warping.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from engine.base.errors import ShapeError
from engine.base.signatures import AT_LEAST_0, AT_LEAST_1, SHARE, check_arguments
from engine.data.samples import PREPARED, Sample, Stage


@check_arguments(share=SHARE)
@dataclass(frozen=True, kw_only=True)
class TimeShift:
    """Moves a sound in time by up to `share` of its length; silence fills the gap.

    It changes the sound itself, float32 of one axis, before features are computed.
    """

    share: float = 0.1

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample with its first array moved along its last axis."""
        sound, *others = sample
        if not sound.ndim:
            raise ShapeError("TimeShift: a single number; expected a sound")
        length = sound.shape[-1]
        most = round(self.share * length)
        by = int(rng.integers(-most, most + 1))
        moved = np.zeros_like(sound)
        if by >= 0:
            moved[..., by:] = sound[..., : length - by]
        else:
            moved[..., :by] = sound[..., -by:]
        return moved, *others


@check_arguments(masks=AT_LEAST_1, bands=AT_LEAST_0, frames=AT_LEAST_0)
@dataclass(frozen=True, kw_only=True)
class SpecAugment:
    """Masks bands and frames of a sound's features: the mean replaces them.

    Args:
        bands: the most bands that one mask covers.
        frames: the most frames that one mask covers.
        masks: the number of masks of each kind.
    """

    stage: ClassVar[Stage] = PREPARED

    bands: int = 8
    frames: int = 20
    masks: int = 2

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return the sample with its first array masked: [..., bands, frames].

        Raises:
            ShapeError: that array has fewer than two axes.
        """
        features, *others = sample
        if features.ndim < 2:
            raise ShapeError(
                f"SpecAugment: an array of shape {list(features.shape)}; expected features, "
                "bands x frames"
            )
        masked = np.array(features)
        mean = features.mean(dtype=np.float64)
        for axis, most in ((-2, self.bands), (-1, self.frames)):
            size = masked.shape[axis]
            along = np.moveaxis(masked, axis, 0)
            for _ in range(self.masks):
                width = int(rng.integers(min(most, size) + 1))
                first = int(rng.integers(size - width + 1))
                along[first : first + width] = mean
        return masked, *others
