"""Federations of tiny models by clients in this process.  Needs Flower."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp

from engine import Trainer
from engine.federated import flower
from tests.support import tiny

CONFIG = {
    "num-server-rounds": 4, "local-epochs": 2, "batch-size": 4, "learning-rate": 0.02,
    "metrics": "accuracy", "fraction-evaluate": 1.0, "seed": 5,
}  # fmt: skip


def make(config: Mapping[str, Any]) -> Trainer:
    text = {"plain": tiny.PLAIN, "normed": tiny.NORMED}[config.get("model", "plain")]
    return tiny.make_trainer(text)


def make_data(context: Context) -> tuple[Any, Any]:
    number, clients = context.node_config["partition-id"], context.node_config["num-partitions"]
    mine = slice(int(number), None, int(clients))
    data = tiny.X[mine], tiny.LABELS[mine]
    return data, data


def make_server(config: Mapping[str, Any]) -> Any:
    return tiny.X, tiny.LABELS


def run_federation(
    folder: Path, client: ClientApp | None = None, clients: int = 4, **config: Any
) -> tuple[Trainer, list[dict[str, str]]]:
    """Run a federation; the model that it ends with, and the rows of its history."""
    options = {**CONFIG, **{k.replace("_", "-"): v for k, v in config.items()}}
    options["output"] = str(folder)
    app = flower.client_app(make, make_data) if client is None else client
    flower.simulate(flower.server_app(make, make_server), app, clients, options)
    run = max(folder.glob("[0-9]*"), key=lambda path: int(path.name))
    trainer = make(options)
    trainer.load(run / "checkpoint")
    return trainer, list(csv.DictReader((run / "history.csv").read_text().splitlines()))
