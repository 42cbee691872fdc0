"""The data, divided among the clients: `dataset` and `partition` in pyproject.toml choose how.

digits      scikit-learn's 1,797 pictures; their writers are not known
keywords    six spoken words and some others, from twenty people

iid         every client has the same mixture of classes
dirichlet   every client has a different mixture; the smaller `alpha`, the more they differ
user        every client has all samples of one or more people

In a simulation, every client takes its share of the same data.  On a device, let `of_client` read
the device's own data.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from words import Words

from edgegrad.errors import InputError
from edgegrad.federated.partition import by_user, dirichlet, iid

Data = tuple[np.ndarray, np.ndarray]

SPEAKERS, STRANGERS = range(20), range(20, 28)  # whom the clients know, and whom the server


class Digits:
    """Pictures, with pixels in [0, 1].

    labels: of the samples, int64.  users: None, they are not known.
    """

    users = None

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self._images, self.labels = images, labels

    def take(self, chosen: np.ndarray) -> Data:
        """The pictures, float32, and labels of some samples."""
        return self._images[chosen], self.labels[chosen]


@lru_cache
def of_all(dataset: str) -> tuple[Digits | Words, Digits | Words]:
    """Return the samples that the clients share, and the samples that only the server has."""
    if dataset == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))
        images = (digits.images[order] / 16).astype(np.float32)[:, None]
        labels = digits.target[order].astype(np.int64)
        apart = len(labels) // 5
        return Digits(images[apart:], labels[apart:]), Digits(images[:apart], labels[:apart])
    if dataset == "keywords":
        return Words(SPEAKERS, takes=6), Words(STRANGERS, takes=3)
    raise InputError(f"dataset={dataset!r}; expected digits or keywords")


def shares(config: Mapping[str, Any], clients: int) -> list[np.ndarray]:
    """The samples of each client, as indices."""
    samples, _ = of_all(str(config.get("dataset", "digits")))
    partition, seed = str(config.get("partition", "iid")), int(config.get("seed", 0))
    if partition == "iid":
        return iid(len(samples.labels), clients, seed)
    if partition == "dirichlet":
        return dirichlet(samples.labels, clients, float(config.get("alpha", 1.0)), seed)
    if partition != "user":
        raise InputError(f"partition={partition!r}; expected iid, dirichlet or user")
    if samples.users is None:
        raise InputError("partition='user': nobody knows who wrote the digits; try keywords")
    return by_user(samples.users, clients, seed)


def of_client(number: int, clients: int, config: Mapping[str, Any]) -> tuple[Data, Data]:
    """Return a client's samples for training, and a fifth of its share for evaluation."""
    samples, _ = of_all(str(config.get("dataset", "digits")))
    mine = np.random.default_rng(number).permutation(shares(config, clients)[number])
    apart = len(mine) // 5
    return samples.take(mine[apart:]), samples.take(mine[:apart])


def of_server(config: Mapping[str, Any]) -> Data:
    """Return the samples on which the server evaluates after each round."""
    _, samples = of_all(str(config.get("dataset", "digits")))
    return samples.take(np.arange(len(samples.labels)))
