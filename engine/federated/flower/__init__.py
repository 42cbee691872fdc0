"""Federated learning with Flower: a ClientApp and a ServerApp around trainers.

    app = client_app(make_trainer, data_of_client)         # in client_app.py
    app = server_app(make_trainer, data_of_server)         # in server_app.py

Flower provides the transport, the strategies, privacy and simulation; this package provides
training, the content of messages, and the files of every round.  See docs/federated.md.

Raises:
    MissingPackageError: flwr is not installed.
"""

from engine.data.packages import require

require("flwr.serverapp.strategy", "flower", "federated learning with Flower")

from engine.federated.flower.client import client_app  # noqa: E402  # after the check for flwr
from engine.federated.flower.records import from_record, to_record  # noqa: E402  # likewise
from engine.federated.flower.server import server_app  # noqa: E402  # likewise
from engine.federated.flower.simulation import simulate  # noqa: E402  # likewise

__all__ = ["client_app", "from_record", "server_app", "simulate", "to_record"]
