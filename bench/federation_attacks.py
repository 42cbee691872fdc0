"""Effects of malicious clients on a federation: the rows of `python -m bench federation.attacks`.

Ten clients have a tenth of the digits each; none, one or two of them are malicious from the first
round on.  A malicious client trains as others do and then sends something else, or trains on labels
that are wrong; all that it sends has the form that it should have.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

CLIENTS = 10
SHARES = (0, 1, 2)  # of ten
STRATEGIES: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "FedAvg, max-update-norm 2": {"max-update-norm": 2.0},
    "FedAdam": {"strategy": "FedAdam", "FedAdam.eta": 0.1, "FedAdam.tau": 0.01},
    "FedMedian": {"strategy": "FedMedian"},
    "FedTrimmedAvg, beta 0.2": {"strategy": "FedTrimmedAvg", "FedTrimmedAvg.beta": 0.2},
    "Krum, 2 malicious": {"strategy": "Krum", "Krum.num-malicious-nodes": 2},
    "MultiKrum, 2 malicious, 6 averaged": {
        "strategy": "MultiKrum", "MultiKrum.num-malicious-nodes": 2,
        "MultiKrum.num-nodes-to-select": 6,
    },
}  # fmt: skip
LABELS = "wrong labels"


def _draw_noise(new: np.ndarray, _: np.ndarray) -> np.ndarray:
    draw = np.random.default_rng(new.size).standard_normal(new.shape)
    return draw.astype(new.dtype)


ATTACKS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "update x -10": lambda new, sent: sent - 10 * (new - sent),
    "3e38": lambda new, _: np.full_like(new, 3e38),
    "noise of 1": _draw_noise,
    LABELS: lambda new, _: new,
    "zeros": lambda new, _: np.zeros_like(new),
}


@dataclass(frozen=True)
class Attacked:
    """Federation with malicious clients.

    strategy: a key of `STRATEGIES`.  attack: a key of `ATTACKS`.
    """

    strategy: str
    attack: str
    malicious: int


def list_rows() -> list[Attacked]:
    """Return all federations; without malicious clients each strategy once."""
    return [
        Attacked(strategy, attack, malicious)
        for strategy in STRATEGIES
        for attack in ATTACKS
        for malicious in SHARES
        if malicious or attack == next(iter(ATTACKS))
    ]


def make_client(row: Attacked) -> Any:
    """Return the ClientApp of the template, in which the first clients are malicious."""
    from flwr.clientapp import ClientApp

    from engine.federated.flower import client_app, from_record, to_record

    data, model = map(importlib.import_module, ("data", "model"))

    def is_malicious(context: Any) -> bool:
        return int(context.node_config["partition-id"]) < row.malicious

    def load_data(context: Any) -> Any:
        settings = context.node_config
        number, count = int(settings["partition-id"]), int(settings["num-partitions"])
        train, validation = data.of_client(number, count, context.run_config)
        if is_malicious(context) and row.attack == LABELS:
            train = train[0], (9 - train[1]).astype(train[1].dtype)
        return train, validation

    honest = client_app(model.make_trainer, load_data)

    class App(ClientApp):
        def __call__(self, message: Any, context: Any) -> Any:
            sent = from_record(message.content.array_records["arrays"])
            reply = honest(message, context)
            if is_malicious(context) and not reply.has_error():
                new = from_record(reply.content.array_records["arrays"])
                change = ATTACKS[row.attack]
                reply.content["arrays"] = to_record({n: change(new[n], sent[n]) for n in new})
            return reply

    return App()


def make_cells(strategy: str, accuracies: Mapping[Attacked, float]) -> list[str]:
    """Return the accuracies of a strategy: without malicious clients, and by attack.

    An attack has the accuracy with one malicious client, and that with two.
    """

    def share(attack: str, malicious: int) -> str:
        value = accuracies.get(Attacked(strategy, attack, malicious))
        return "-" if value is None else f"{value:.0%}"

    none = share(next(iter(ATTACKS)), 0)
    return [none, *(" / ".join(share(a, k) for k in SHARES[1:]) for a in ATTACKS)]
