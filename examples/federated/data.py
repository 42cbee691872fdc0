"""The data: 1,797 handwritten digits of scikit-learn, which every client has a share of.

In a simulation the shares are made up here.  On a device, `of_client` reads what the device has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Data = tuple[np.ndarray, np.ndarray]


def digits() -> tuple[Data, Data]:
    """Pictures and labels to learn from, and others that only the server has; pixels in [0, 1]."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = (found.images[order] / 16).astype(np.float32)[:, None]
    labels = found.target[order].astype(np.int64)
    held_out = len(labels) // 5
    return (images[held_out:], labels[held_out:]), (images[:held_out], labels[:held_out])


def of_client(number: int, clients: int, seed: int = 0) -> tuple[Data, Data]:
    """What a client trains on, and what it evaluates on: a fifth of its share."""
    (images, labels), _ = digits()
    order = np.random.default_rng(seed).permutation(len(labels))
    mine = np.array_split(order, clients)[number]
    apart = len(mine) // 5
    train, validation = mine[apart:], mine[:apart]
    return (images[train], labels[train]), (images[validation], labels[validation])


def of_server(config: Mapping[str, Any]) -> Data:
    """What the server evaluates on after each round."""
    return digits()[1]
