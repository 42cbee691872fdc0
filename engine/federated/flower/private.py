"""Server's part of privacy: a strategy that averages clipped updates and adds noise.

Flower 1.41 has strategies for this.  They draw noise from NumPy's global generator, which a line of
the app may seed; add it to floating-point numbers; divide by the number of replies; release the
exact count of clipped updates in addition to the noisy one; adapt the norm before adding the noise
that depends on it; and an update of zeros ends the server.  `engine.federated.privacy` describes
the behaviour here, and `engine.federated.noise` the noise.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy

from engine.base.errors import InputError
from engine.federated import noise
from engine.federated.flower.mods import NORM, NOT_CLIPPED, apply_update, update_of
from engine.federated.flower.records import EXAMPLES, METRICS, arrays_of, from_record, to_record
from engine.federated.parameters import Arrays
from engine.federated.privacy import Privacy

_RATE = 0.2  # of the clipping norm in its logarithm; from Andrew et al.
_STEPS_WITHOUT_NOISE = 1 << 30
_log = logging.getLogger("flwr")


def add_privacy(strategy: Strategy, privacy: Privacy) -> Strategy:
    """Return a strategy with the server's part of privacy; the strategy itself if there is none.

    The replies that it gets must not be errors.

    Raises:
        InputError: the strategy does more than average, so noise on its result would not be noise
            on an average.
    """
    if not privacy.central:
        return strategy
    if getattr(type(strategy), "aggregate_train", None) is not FedAvg.aggregate_train:
        raise InputError(
            f"privacy={privacy.kind!r} with strategy {type(strategy).__name__}: noise is "
            "calibrated for the average of FedAvg and FedProx alone"
        )
    assert isinstance(strategy, FedAvg)
    return Private(strategy, privacy)


class Private(Strategy):
    """Strategy that averages, with privacy of a central kind.

    clipping_norm: the norm of the next round, which is part of checkpoints.
    """

    def __init__(self, strategy: FedAvg, privacy: Privacy) -> None:
        self.strategy, self.privacy = strategy, privacy
        self.clipping_norm = privacy.clipping_norm
        self._sent: Arrays = {}

    def summary(self) -> None:
        """Log the settings of the strategy."""
        self.strategy.summary()
        _log.info("\t└──> %s, clipping norm %g", self.privacy.kind, self.clipping_norm)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a round, with a clipping norm if the clients clip."""
        self._sent = from_record(arrays)
        if self.privacy.kind.startswith("client-"):
            config[NORM] = self.clipping_norm
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the parameters with the noisy mean of the updates, and the means of the numbers.

        Updates are clipped here as well if the clients clip, because noise does not hide larger
        updates.
        """
        usable = list(replies)
        if not usable:
            return None, None
        z = self.privacy.multiplier
        steps, bits = noise.choose_grid(z) if z else (_STEPS_WITHOUT_NOISE, 0)
        total = np.zeros(sum(array.size for array in self._sent.values()), np.int64)
        balance = 0  # number of updates within the norm minus the others
        for reply in usable:
            update = update_of(arrays_of(reply.content), self._sent)
            whole, clipped = noise.on_grid(update, self.clipping_norm, steps)
            total += whole
            numbers = reply.content.metric_records[METRICS]
            within = numbers.pop(NOT_CLIPPED, None)  # the exact count is not released
            balance += 1 if (not clipped if within is None else within == 1) else -1
            numbers[EXAMPLES] = 1
        if z:
            total += noise.draw_gaussian(total.size, bits)
        mean = total * (self.clipping_norm / steps / self.privacy.clients)
        if len(usable) > self.privacy.clients:
            _log.warning(
                "%d clients have replied and the sum of their updates is divided by %d: "
                "clients-per-round is to be how many a round asks",
                len(usable), self.privacy.clients,
            )  # fmt: skip
        if self.privacy.adaptive:
            self._adapt(balance)
        metrics = self.strategy.train_metrics_aggr_fn(
            [reply.content for reply in usable], self.strategy.weighted_by_key
        )
        return to_record(apply_update(self._sent, mean)), metrics

    def _adapt(self, balance: int) -> None:
        """Move the norm towards the quantile, by the share of updates within it.

        balance: the number of updates within it minus the number beyond it; one more client changes
            it by 1.
        """
        if sigma := 2 * self.privacy.count_sigma:
            steps, bits = noise.choose_grid(sigma)
            share = float(balance * steps + noise.draw_gaussian(1, bits)[0]) / steps
        else:
            share = float(balance)
        within = (share / self.privacy.clients + 1) / 2
        self.clipping_norm *= math.exp(-_RATE * (within - self.privacy.quantile))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of an evaluation, from the strategy."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the metrics of an evaluation, from the strategy."""
        return self.strategy.aggregate_evaluate(server_round, replies)
