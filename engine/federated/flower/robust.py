"""Krum and Multi-Krum: choice of the updates closest to others, whatever some clients send.

The score of each of n replies, up to f malicious ones among them, is the sum of its squared
distances to the n - f - 2 closest others; the replies with the lowest scores are averaged with
equal weights.  As long as 2 f + 2 < n, nobody can pull the result far away.

Flower 1.41 has both, and computes distances as |x|**2 + |y|**2 - 2 x y of float32 parameters: if
updates are a thousandth of the parameters, only rounding errors remain, and decide the choice.
Here distances are computed between updates, in float64, and a round with too few replies for f has
no result.

Source: Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017, arXiv:1703.02757.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Krum, MultiKrum

from engine.federated.flower.mods import update_of
from engine.federated.flower.records import EXAMPLES, METRICS, arrays_of, from_record
from engine.federated.parameters import Arrays

_log = logging.getLogger("flwr")


class _ByDistance(MultiKrum):
    """Common part of both, in addition to the options of Flower's."""

    _sent: Arrays

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a round."""
        self._sent = from_record(arrays)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the average of the replies that are closest to the others; None if there are too
        few.
        """
        usable = list(replies)
        if len(usable) < 2 * self.num_malicious_nodes + 3:
            _log.warning(
                "round %d: %d replies; with %d malicious clients at least %d are needed",
                server_round, len(usable), self.num_malicious_nodes,
                2 * self.num_malicious_nodes + 3,
            )  # fmt: skip
            return None, None
        updates = [update_of(arrays_of(reply.content), self._sent) for reply in usable]
        best = find_closest(updates, self.num_malicious_nodes)[: self.num_nodes_to_select]
        chosen = [usable[k] for k in sorted(best)]
        for reply in chosen:
            reply.content.metric_records[METRICS][EXAMPLES] = 1
        return FedAvg.aggregate_train(self, server_round, chosen)


def find_closest(updates: Sequence[np.ndarray[Any, Any]], malicious: int) -> list[int]:
    """Return the indices of the updates closest to others, the closest first; ties keep their
    order.
    """
    count = len(updates)
    distances = np.zeros((count, count))
    for i in range(count):
        for j in range(i):
            apart = updates[i] - updates[j]
            distances[i, j] = distances[j, i] = float(np.dot(apart, apart))
    others = np.sort(distances + np.diag(np.full(count, np.inf)), axis=1)
    scores = others[:, : count - malicious - 2].sum(axis=1)
    return [int(k) for k in np.argsort(scores, kind="stable")]


class SoundKrum(_ByDistance, Krum):
    """`strategy = "Krum"`: one reply."""


class SoundMultiKrum(_ByDistance):
    """`strategy = "MultiKrum"`: the average of `num-nodes-to-select` replies."""
