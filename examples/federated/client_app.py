"""The client: it trains on its own data, and evaluates on samples that it has set aside."""

from __future__ import annotations

from typing import Any

from flwr.app import Context

from edgegrad.federated.flower import client_app

import data
from model import make_trainer


def data_of(context: Context) -> tuple[Any, Any]:
    """Return the data of this client.  On a device, read the device's own data instead."""
    node = context.node_config
    number, clients = int(node["partition-id"]), int(node["num-partitions"])
    return data.of_client(number, clients, context.run_config)


app = client_app(make_trainer, data_of)
