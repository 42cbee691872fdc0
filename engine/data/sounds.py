"""Folders of sounds, a sub-folder a class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from engine.base.aliases import Array, Floats
from engine.base.errors import FileError, InputError
from engine.base.signatures import AT_LEAST_0, check_arguments
from engine.data.features import LOUDEST, LogMel, resample
from engine.data.files import CACHE, DecodedFiles
from engine.data.packages import require

RATE, CHANNELS = 768000, 64  # of a file, at most: a damaged header must not fill the memory
SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".aiff", ".aif")
LONGEST = 1 << 31  # samples of a sound: what no array of them has


@check_arguments(cache=AT_LEAST_0)
class Sounds(DecodedFiles):
    """Sounds of a folder and their classes: samples (features, label).

    A sound is mixed to one channel, resampled to `rate`, and cut at its end or padded with
    silence to `seconds`.  Its features are 1 x bands x frames, float32, like a picture with one
    channel.  The label is the index of the sub-folder in `classes`, int64.  Augmentations get
    the sound itself: samples of float32, from -1 to 1, one axis.

    Up to `cache` bytes of decoded sounds stay in memory; the others are decoded again in each
    epoch.

    Args:
        folder: a folder with a sub-folder for each class; files may be at any depth.
        rate: samples per second of the sound that the features are computed from.
        seconds: the length of every sound.
        features: the function that computes an array from a sound; by default
            `LogMel(rate=rate)`; None for the samples themselves, 1 x samples.
        classes, labelled, unreadable, cache: as for `Images`.

    Attributes:
        paths: the paths of the files.
        dropped: path and reason of each file that was left out.

    Raises:
        MissingPackageError: soundfile is not installed.
        FileError: there is no such folder; when a sample is read, a file is empty or not a sound.
        InputError: a class has no sounds, there are fewer than two classes, or an argument is
            wrong.
    """

    what, suffixes = "sounds", SUFFIXES

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        rate: int = 16000,
        seconds: float = 1.0,
        features: LogMel | Literal["log_mel"] | None = "log_mel",
        classes: Sequence[str] | None = None,
        labelled: bool = True,
        unreadable: Literal["raise", "drop"] = "raise",
        cache: int = CACHE,
    ) -> None:
        self._package = require("soundfile", "sound", "reading sounds")
        self.rate = rate
        length = seconds * rate
        if self.rate < 1 or not 0.5 < length < LONGEST:
            raise InputError(
                f"rate={rate}, seconds={seconds}; expected positive numbers, fewer than {LONGEST} "
                "samples"
            )
        self.length = round(length)
        self.features = LogMel(rate=self.rate) if features == "log_mel" else features
        if self.features is not None:
            if self.features.rate != self.rate:
                raise InputError(f"rate={self.rate}, but the features are for {self.features.rate}")
            if not self.features.frames(self.length):
                raise InputError(
                    f"seconds={seconds} are {self.length} samples, less than a window of "
                    f"{self.features.window}"
                )
        super().__init__(
            folder, classes=classes, labelled=labelled, unreadable=unreadable, cache=cache
        )

    def list_options(self) -> dict[str, Any] | None:
        if self.features is not None and type(self.features) is not LogMel:
            return None
        features = "none" if self.features is None else vars(self.features)
        return {
            "rate": self.rate,
            "seconds": self.length / self.rate,
            "features": dict(features) if isinstance(features, dict) else features,
            "unreadable": self.unreadable,
        }

    def decode(self, path: str) -> Floats:
        """Return the samples of a file, as augmentations get them."""
        samples, rate = self._read_file(path)
        if not len(samples):
            raise FileError(f"cannot read the sound {path!r}: it has no samples")
        mono = samples.mean(1, dtype=np.float64)
        if not np.isfinite(mono).all():
            place = int(np.flatnonzero(~np.isfinite(mono))[0])
            raise FileError(f"cannot read the sound {path!r}: sample {place} is not finite")
        loud = float(np.abs(mono).max())
        if loud > LOUDEST:
            raise FileError(
                f"cannot read the sound {path!r}: a sample has the value {loud:.3g}; expected -1 "
                f"to 1, and refused above {LOUDEST:g}"
            )
        sound = resample(mono.astype(np.float32), rate, self.rate)[: self.length]
        return np.pad(sound, (0, self.length - len(sound)))

    def _read_file(self, path: str) -> tuple[Any, int]:
        """Return the samples, a column a channel, as far as they are needed, and the rate."""
        try:
            with self._package.SoundFile(path) as file:
                rate, channels = int(file.samplerate), int(file.channels)
                if not 0 < rate <= RATE or not 0 < channels <= CHANNELS:
                    raise FileError(
                        f"cannot read the sound {path!r}: {rate} Hz and {channels} channels; "
                        f"at most {RATE} Hz and {CHANNELS} channels are allowed"
                    )
                needed = self.length * rate // self.rate + rate // 10 + 1  # what the filter sees
                return file.read(needed, dtype="float32", always_2d=True), rate
        except FileError:
            raise
        except (OSError, RuntimeError, ValueError, TypeError) as error:
            empty = os.path.isfile(path) and not os.path.getsize(path)
            told = "the file is empty" if empty else error
            raise FileError(f"cannot read the sound {path!r}: {told}") from error

    def prepare(self, decoded: Array) -> Array:
        """Prepare a sound for a model: 1 x bands x frames, or 1 x samples.

        Raises:
            ShapeError: it has more than one axis, or is shorter than a window.
        """
        if self.features is None:
            return np.asarray(decoded, np.float32)[np.newaxis]
        return self.features(np.asarray(decoded, np.float32))[np.newaxis]
