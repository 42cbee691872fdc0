"""Krum and Multi-Krum: the updates that lie closest to others, whatever some clients send.

Of n replies, f of which may be malicious, each has as its score the sum of its squared distances to
the n - f - 2 others that are closest to it; those of the lowest scores are averaged, all with the
same weight.  With f as large as 2 f + 2 < n nobody can pull the result far away.

Flower 1.41 has both, and computes distances as |x|**2 + |y|**2 - 2 x y of float32 parameters: of
models whose updates are a thousandth of the parameters nothing is left but rounding errors, by
which it then chooses.  Here they are those of the updates, in float64; and a round with too few
replies for f has no result.

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
    """What both have beside the options of Flower's."""

    _sent: Arrays

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of a round."""
        self._sent = from_record(arrays)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The average of the replies that are closest to the others; None if these are too few."""
        found = list(replies)
        if len(found) < 2 * self.num_malicious_nodes + 3:
            _log.warning(
                "round %d: %d replies; with %d malicious clients at least %d are needed",
                server_round, len(found), self.num_malicious_nodes,
                2 * self.num_malicious_nodes + 3,
            )  # fmt: skip
            return None, None
        updates = [update_of(arrays_of(reply.content), self._sent) for reply in found]
        best = closest(updates, self.num_malicious_nodes)[: self.num_nodes_to_select]
        chosen = [found[k] for k in sorted(best)]
        for reply in chosen:
            reply.content.metric_records[METRICS][EXAMPLES] = 1
        return FedAvg.aggregate_train(self, server_round, chosen)


def closest(updates: Sequence[np.ndarray[Any, Any]], malicious: int) -> list[int]:
    """Return which updates are closest to others, the closest first; of equal ones the first."""
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
