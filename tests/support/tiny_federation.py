"""An app of Flower for tests: three clients, each with a third of the tiny samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import Context

from engine import Trainer
from engine.federated.flower import client_app, server_app
from tests.support import tiny

CLIENTS = 3


def make_trainer(_: Mapping[str, Any]) -> Trainer:
    """The trainer of the server and of each client."""
    return tiny.make_trainer()


def share(context: Context) -> tuple[Any, Any]:
    """Return a client's data for training and evaluation."""
    rows = slice(int(context.node_config["partition-id"]), None, CLIENTS)
    return (tiny.X[rows], tiny.LABELS[rows]), (tiny.X[:6], tiny.LABELS[:6])


server = server_app(make_trainer, lambda _: (tiny.X, tiny.LABELS))
client = client_app(make_trainer, share)
