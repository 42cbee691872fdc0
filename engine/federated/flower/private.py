"""Flower's strategies of differential privacy around another strategy, as a server needs them.

Four things are not as Flower 1.41 has them.  Each is a few lines here, and has a test that fails if
Flower changes it:

  - Noise on an average of n updates has the standard deviation z C / n.  Flower takes for n the
    number of clients that a round asks, and gives up a round in which one of them fails; here n is
    the number of updates in the average, so that the others are still promised the same.
  - An average by the numbers of samples is more sensitive to clients with many of them than C / n.
    Here all updates have equal weight.
  - The adaptive norm follows a quantile: Andrew et al. lower it where more updates than wanted stay
    as they are.  Flower lowers it where more than wanted are clipped, which drives it away from the
    quantile; here the count is of those that stay.
  - Flower adapts the norm first and then adds noise by the new one, to updates that were clipped to
    the old one.  Here noise is by the norm that they were clipped to.
"""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)

from engine.errors import InputError
from engine.federated.flower.records import EXAMPLES, METRICS
from engine.federated.privacy import Privacy

Aggregate = tuple[ArrayRecord | None, MetricRecord | None]


def private(strategy: Strategy, privacy: Privacy) -> Strategy:
    """A strategy with the server's part of privacy around it; itself where the server has none.

    The replies that it gets must not be errors.

    Raises:
        InputError: Flower refuses a value; or the strategy does more than average, so that noise
            on what it returns is not noise on an average.
    """
    if not privacy.central:
        return strategy
    if getattr(type(strategy), "aggregate_train", None) is not FedAvg.aggregate_train:
        raise InputError(
            f"privacy={privacy.kind!r} with strategy {type(strategy).__name__}: noise is "
            "calibrated for the average of FedAvg and FedProx alone"
        )
    noise, norm, clients = privacy.noise_multiplier, privacy.clipping_norm, privacy.clients
    fixed = {"client-fixed": _ClientFixed, "server-fixed": _ServerFixed}
    adaptive = {"client-adaptive": _ClientAdaptive, "server-adaptive": _ServerAdaptive}
    try:
        if privacy.kind in fixed:
            return fixed[privacy.kind](strategy, noise, norm, 1)
        return adaptive[privacy.kind](strategy, noise, clients, norm, privacy.quantile)
    except ValueError as error:
        raise InputError(f"privacy={privacy.kind!r}: {error}") from error


class _Calibrated(Strategy):
    """Equal weights, and noise by the number of updates; stands before a strategy of Flower."""

    num_sampled_clients: int
    clipping_norm: float
    clipped_to: float = 0.0

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        found = list(replies)
        if not found:
            return None, None
        for reply in found:
            reply.content.metric_records[METRICS][EXAMPLES] = 1
        self.num_sampled_clients, self.clipped_to = len(found), self.clipping_norm
        return super().aggregate_train(server_round, found)  # type: ignore[safe-super]  # Flower's


class _Adaptive(_Calibrated):
    """Also the norm that follows the quantile, and noise by the norm of this round."""

    def _geometric_update(self, clipped_fraction: float) -> None:
        super()._geometric_update(1 - clipped_fraction)  # type: ignore[misc]  # Flower's

    def _add_noise_to_aggregated_arrays(self, aggregated: ArrayRecord) -> ArrayRecord:
        adapted, self.clipping_norm = self.clipping_norm, self.clipped_to
        noisy: ArrayRecord = super()._add_noise_to_aggregated_arrays(aggregated)  # type: ignore[misc]  # Flower's
        self.clipping_norm = adapted
        return noisy


class _ClientFixed(_Calibrated, DifferentialPrivacyClientSideFixedClipping):
    pass


class _ServerFixed(_Calibrated, DifferentialPrivacyServerSideFixedClipping):
    pass


class _ClientAdaptive(_Adaptive, DifferentialPrivacyClientSideAdaptiveClipping):
    pass


class _ServerAdaptive(_Adaptive, DifferentialPrivacyServerSideAdaptiveClipping):
    pass
