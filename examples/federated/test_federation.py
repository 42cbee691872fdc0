"""A quick check of the project, with few clients in one process: `pytest` runs it in seconds."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from engine.federated.flower import simulate

import client_app
import data
import server_app

CONFIG = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text())
CONFIG = CONFIG["tool"]["flwr"]["app"]["config"]


def test_clients_learn_together_and_the_export_computes_what_they_have_learned(
    tmp_path: Path,
) -> None:
    config = {key: value for key, value in CONFIG.items() if not isinstance(value, dict)}
    config |= {"num-server-rounds": 3, "output": str(tmp_path)}
    simulate(server_app.app, client_app.app, clients=3, config=config)
    rows = [line.split(",") for line in (tmp_path / "1/history.csv").read_text().splitlines()]
    losses = [float(row[rows[0].index("server_loss")]) for row in rows[1:]]
    assert losses[2] < losses[0]

    images, labels = data.of_server(config)
    session = pytest.importorskip("onnxruntime").InferenceSession(tmp_path / "1/inference.onnx")
    (scores,) = session.run(["scores"], {"image": images})
    accuracy = rows[3][rows[0].index("server_accuracy")]
    assert np.mean(scores.argmax(1) == labels) == pytest.approx(float(accuracy), abs=0.01)
