"""Options of a federation: the keys of `[tool.flwr.app.config]` in an app's pyproject.toml.

num-server-rounds   rounds of training
strategy            name of a strategy of `flwr.serverapp.strategy`; a table of that name has
                    its own options, as `[tool.flwr.app.config.FedAdam]` has `eta = 0.01`
fraction-train, fraction-evaluate, min-train-nodes, min-evaluate-nodes, min-available-nodes
                    of every strategy
max-examples        the most samples of one client in a round; a reply with more is left out
max-norm-ratio      a reply is left out whose update has more than so many times the median norm
                    of a round's updates; 0: none is
max-update-norm     an update of a larger L2 norm is scaled to it; 0: none is
round-timeout       seconds that a server waits for replies
local-epochs, batch-size, learning-rate
                    of the training on a device; 0: what the trainer has
optimizer-state     "reset" or "keep", from round to round
statistics          "average" or "local": running statistics of batch normalisations
local               patterns of parameters that never leave a device, with spaces between them
proximal-mu         weight of the proximal term of FedProx; the strategy FedProx sends its own
send                "parameters" or "difference": what a device gives back
privacy, clipping-norm, epsilon, delta, noise-multiplier, clipped-quantile, clients-per-round,
secure-range
                    clipping and noise, see `engine.federated.privacy`
update-values, update-fraction
                    how updates are encoded, see `engine.federated.updates`
metrics             measured in evaluations, with spaces between them
seed                of all that is random
output, resume, keep-rounds
                    of what the server writes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.base.errors import InputError
from engine.federated.local_options import (
    SEND,
    local_options,
    one_of,
    read_integer,
    read_number,
    read_text,
    read_words,
)
from engine.federated.schema import LARGEST, MAX_EXAMPLES

STRATEGY = (
    "fraction-train", "fraction-evaluate", "min-train-nodes", "min-evaluate-nodes",
    "min-available-nodes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of a server; see the keys of this module."""

    rounds: int
    timeout: float
    max_examples: int
    norm_ratio: float
    update_norm: float
    strategy: str
    averages_statistics: bool
    local: tuple[str, ...]
    metrics: tuple[str, ...]
    batch_size: int | None
    seed: int
    output: str
    resume: str
    keep: int | None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ServerOptions:
        """Return the options of a configuration.

        Raises:
            InputError, DTypeError: a value is not allowed.
        """
        one_of(config, "send", SEND)  # refused here, before every device refuses it
        local_options(config)
        examples = read_integer(config, "max-examples", MAX_EXAMPLES)
        if not 1 <= examples <= LARGEST:
            raise InputError(f"max-examples={examples}; supported: 1 to {LARGEST:g}")
        return cls(
            rounds=read_integer(config, "num-server-rounds", 3),
            timeout=read_number(config, "round-timeout", 3600),
            max_examples=examples,
            norm_ratio=read_number(config, "max-norm-ratio", 100),
            update_norm=read_number(config, "max-update-norm", 0),
            strategy=read_text(config, "strategy", "FedAvg"),
            averages_statistics=one_of(config, "statistics", ("average", "local")) == "average",
            local=read_words(config, "local"),
            metrics=read_words(config, "metrics"),
            batch_size=read_integer(config, "batch-size", 0) or None,
            seed=read_integer(config, "seed", 0),
            output=read_text(config, "output", ""),
            resume=read_text(config, "resume", ""),
            keep=read_integer(config, "keep-rounds", 0) or None,
        )
