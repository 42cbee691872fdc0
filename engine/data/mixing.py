"""Mixup and CutMix: random changes of a whole batch, whose labels become shares of classes.

    mixup    x = s x_i + (1 - s) x_j,  t = s t_i + (1 - s) t_j,  s ~ Beta(alpha, alpha)
    cutmix   a rectangle of x_i is taken from x_j; s is the share of the area that stays

    Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018, arXiv:1710.09412
    Yun et al., "CutMix", ICCV 2019, arXiv:1905.04899

j is a permutation of the batch; t are rows of shares of classes, float32.  Cross entropy is linear
in t, so that the loss of such a row is the weighted sum of the losses of its two labels.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from engine.base.aliases import Array
from engine.base.errors import DTypeError, InputError, ShapeError
from engine.base.fields import describe_fields
from engine.base.signatures import AT_LEAST_1, Range, check_arguments
from engine.data.samples import BATCH, Stage

RANGES = {"alpha": Range(0, 1e6, above=True), "classes": AT_LEAST_1}


@check_arguments
@dataclass(frozen=True, kw_only=True)
class Mixing(ABC):
    """A random change of a batch that mixes pairs of samples and their labels.

    alpha: the parameter of the distribution Beta(alpha, alpha) of the shares: small values leave
        most samples nearly unchanged, and 1 makes all shares equally likely.
    classes: the number of classes; None: as in the data.
    """

    stage: ClassVar[Stage] = BATCH

    alpha: float = 0.2
    classes: int | None = None

    @abstractmethod
    def mix(self, x: Array, other: Array, share: float, rng: np.random.Generator) -> float:
        """Mix the arrays `other` into `x`, in place; return the share of `x` that is left."""

    def __call__(
        self, arrays: tuple[Array, ...], rng: np.random.Generator, classes: int | None = None
    ) -> tuple[Array, ...]:
        """Return a batch with its first array mixed, and the labels, its last, as shares.

        Raises:
            InputError: the number of classes is unknown.
            DTypeError, ShapeError: the last array does not hold labels, or the first one floats.
        """
        name = type(self).__name__
        count = self.classes or classes
        if count is None:
            raise InputError(
                f"{name} needs the number of classes, which the data do not determine; give it, as "
                f"in {name}(classes=10)"
            )
        if len(arrays) < 2:
            raise InputError(f"{name}: a batch without labels; expected (features, labels)")
        x, labels = arrays[0], arrays[-1]
        if x.dtype.kind != "f":
            raise DTypeError(f"{name}: features of type {x.dtype}; expected floats")
        shares = compute_shares(labels, count, name)
        order = rng.permutation(len(x))
        mixed = np.array(x)
        kept = self.mix(mixed, x[order], float(rng.beta(self.alpha, self.alpha)), rng)
        blended = np.float32(kept) * shares + np.float32(1 - kept) * shares[order]
        return mixed, *arrays[1:-1], blended


@describe_fields
@check_arguments(**RANGES)
@dataclass(frozen=True, kw_only=True)
class Mixup(Mixing):
    """Blends pairs of samples of a batch, and their labels."""

    def mix(self, x: Array, other: Array, share: float, rng: np.random.Generator) -> float:
        x *= x.dtype.type(share)
        x += x.dtype.type(1 - share) * other
        return share


@describe_fields
@check_arguments(**RANGES)
@dataclass(frozen=True, kw_only=True)
class CutMix(Mixing):
    """Replaces a rectangle of each picture of a batch by a rectangle of another picture.

    Pictures have four axes, [batch, channels, height, width] or [batch, height, width, channels].
    """

    alpha: float = 1.0

    def mix(self, x: Array, other: Array, share: float, rng: np.random.Generator) -> float:
        if x.ndim != 4:
            raise ShapeError(
                f"CutMix: a batch of shape {list(x.shape)}; expected pictures, "
                "[batch, channels, height, width] or [batch, height, width, channels]"
            )
        first = 1 if x.shape[3] in (1, 3) and x.shape[1] not in (1, 3) else 2
        height, width = x.shape[first : first + 2]
        side = math.sqrt(1 - share)
        rows, columns = round(side * height), round(side * width)
        middle = int(rng.integers(height)), int(rng.integers(width))
        top, left = max(0, middle[0] - rows // 2), max(0, middle[1] - columns // 2)
        bottom, right = min(height, top + rows), min(width, left + columns)
        place = (slice(None),) * first + (slice(top, bottom), slice(left, right))
        x[place] = other[place]
        replaced: float = (bottom - top) * (right - left) / (height * width)
        return 1 - replaced


def compute_shares(labels: Array, classes: int, what: str) -> npt.NDArray[np.float32]:
    """Return labels as shares of classes, float32 [batch, classes]; shares as they are.

    Raises:
        DTypeError, ShapeError: they are neither.
        InputError: a label is not a class.
    """
    if labels.dtype.kind == "f" and labels.ndim == 2 and labels.shape[1] == classes:
        return labels.astype(np.float32)
    if labels.dtype.kind not in "iu":
        raise DTypeError(
            f"{what}: labels of type {labels.dtype}; expected whole numbers, one for each "
            "sample: only classes can be mixed"
        )
    if labels.ndim != 1:
        raise ShapeError(
            f"{what}: labels of shape {list(labels.shape)}; expected one class for each sample"
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise InputError(
            f"{what}: labels from {labels.min()} to {labels.max()}; expected 0 to {classes - 1}"
        )
    return np.eye(classes, dtype=np.float32)[labels]
