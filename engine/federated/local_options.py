"""Options of a device's part of a round, from the configuration of a federation.

    local-epochs, batch-size, learning-rate
                        of the training on a device; 0: what the trainer has
    optimizer-state     "reset" or "keep", from round to round
    local               patterns of parameters that never leave a device, with spaces between them
    proximal-mu         weight of the proximal term of FedProx; the strategy FedProx sends its own
    send                "parameters" or "difference": what a device gives back
    metrics             measured in evaluations, with spaces between them
    seed                of all that is random

A configuration is a mapping of numbers and texts, as `[tool.flwr.app.config]` of a Flower app, or
the `config` of a message.  This file needs numpy alone.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.base import arguments
from engine.base.errors import InputError
from engine.base.signatures import ABOVE_0, AT_LEAST_0, AT_LEAST_1, check_arguments

SEND = ("parameters", "difference")
_LIMIT = 1 << 62


@check_arguments(
    epochs=AT_LEAST_1, batch_size=AT_LEAST_1, learning_rate=ABOVE_0, proximal_mu=AT_LEAST_0
)
@dataclass(frozen=True, slots=True)
class LocalOptions:
    """Options of a device's training in one round.

    epochs: the number of passes over its samples.
    batch_size: the batch size for data without batches; None for 32, or the model's fixed size.
    learning_rate: the learning rate, or None for the trainer's.
    keep_optimizer: whether moments, the count of steps and of random draws continue from round to
        round; otherwise each round starts them afresh.
    local: patterns of the names of parameters that never leave the device.
    proximal_mu: the weight of the proximal term of FedProx, see `engine.proximal`; 0: none.
    metrics: the metrics of `evaluate` in addition to the loss, see `engine.trainer.metrics`.
    seed: the seed of the order of the samples and of random nodes in the model; `derive_seed` makes
        one for each client and round.

    Raises:
        InputError, DTypeError: a value is not allowed.
    """

    epochs: int = 1
    batch_size: int | None = None
    learning_rate: float | None = None
    keep_optimizer: bool = False
    local: tuple[str, ...] = ()
    proximal_mu: float = 0.0
    metrics: tuple[str, ...] = ()
    seed: int = 0


def local_options(config: Mapping[str, Any], *seeds: int) -> LocalOptions:
    """Return the options of a device's training.

    seeds: further numbers for the seed of the training: the round and the client.

    Raises:
        InputError, DTypeError: a value is not allowed.
    """
    size, rate = read_integer(config, "batch-size", 0), read_number(config, "learning-rate", 0)
    return LocalOptions(
        epochs=read_integer(config, "local-epochs", 1),
        batch_size=size or None,
        learning_rate=rate or None,
        keep_optimizer=one_of(config, "optimizer-state", ("reset", "keep")) == "keep",
        local=read_words(config, "local"),
        proximal_mu=read_number(config, "proximal-mu", 0),
        metrics=read_words(config, "metrics"),
        seed=derive_seed(read_integer(config, "seed", 0), *seeds),
    )


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name matches one of some patterns such as "classifier.*"."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def derive_seed(*numbers: int) -> int:
    """Return a seed that depends on all of these numbers, such as a seed, a round, and a client.

    They are hashed by `numpy.random.SeedSequence`, so that neighbouring numbers give unrelated
    seeds.
    """
    return int(np.random.SeedSequence([n % 2**64 for n in numbers]).generate_state(1)[0])


def read_integer(config: Mapping[str, Any], key: str, default: int) -> int:
    """Return an integer of a configuration, at least 0."""
    value = arguments.count(key, config.get(key, default))
    if not 0 <= value < _LIMIT:
        raise InputError(f"{key}={value}: expected a number of at least 0")
    return value


def read_number(config: Mapping[str, Any], key: str, default: float) -> float:
    """Return a number of a configuration, at least 0."""
    value = arguments.check_real(key, config.get(key, default))
    if value < 0:
        raise InputError(f"{key}={value}: expected a number of at least 0")
    return value


def read_text(config: Mapping[str, Any], key: str, default: str) -> str:
    """Return a text of a configuration."""
    return arguments.check_text(key, config.get(key, default))


def read_words(config: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return words of a configuration, which has no lists: a text with spaces between them."""
    return tuple(read_text(config, key, "").split())


def one_of(config: Mapping[str, Any], key: str, known: tuple[str, ...]) -> str:
    """Return one of some words; the first one is the default."""
    word = read_text(config, key, known[0])
    if word not in known:
        raise InputError(f"{key}={word!r}: expected one of {', '.join(map(repr, known))}")
    return word
