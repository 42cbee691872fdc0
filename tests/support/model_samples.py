"""Small data that models by name can learn."""

from __future__ import annotations

import numpy as np

from engine.models.catalog import Architecture
from engine.models.named_model import NamedModel, make

# Samples and words that keep tests short, where the architecture's own would not.
_BY_RANK: dict[int, tuple[int, ...]] = {1: (12,), 3: (3, 32, 32)}
_OTHERS: dict[str, tuple[int, ...]] = {
    "cnn": (1, 12, 12), "mobilenet_v2": (3, 64, 64), "gru_tagger": (6,), "ds_cnn": (1, 16, 20),
    "unet_small": (3, 16, 16),
}  # fmt: skip
CLASSES, WORDS = 3, 40
PAD = 256


def get_shape(kind: Architecture) -> tuple[int, ...]:
    """Return the shape of a small sample."""
    return _OTHERS.get(kind.name) or _BY_RANK[len(kind.shape)]


def make_small(kind: Architecture, **given: object) -> NamedModel:
    """Return a model for such samples, without dropout if it is to be compared."""
    options: dict[str, object] = {"input_shape": get_shape(kind)}
    if kind.answers != "input":
        options["classes"] = CLASSES
    if kind.takes("words"):
        options["words"] = 257
    return make(kind, **(options | given))  # type: ignore[arg-type]  # any argument


def make_batch(kind: Architecture, size: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return samples from which their targets can be predicted."""
    rng = np.random.default_rng(seed)
    shape = get_shape(kind)
    labels = rng.integers(0, CLASSES, size)
    if kind.takes("words"):
        if kind.answers == "position":
            x = rng.integers(0, WORDS, (size, *shape))
            return x, x % CLASSES
        x = rng.integers(0, WORDS, (size, *shape)) * CLASSES + labels[:, None]
        x[::2, -2:] = PAD
        return x, labels
    x = rng.standard_normal((size, *shape)).astype(np.float32)
    if kind.answers == "input":
        few = rng.standard_normal((3, *shape)).astype(np.float32)
        return (x[:, :3] @ few,)
    if kind.answers == "pixel":
        return x, x[:, :CLASSES].argmax(1)
    return x + labels.reshape(-1, *[1] * len(shape)).astype(np.float32), labels
