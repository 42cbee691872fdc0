"""A quick check of the project, with few clients in one process: `pytest` runs it in seconds."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from engine.errors import InputError
from engine.federated.flower import simulate

import client_app
import data
import model
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

    samples, labels = data.of_server(config)
    session = pytest.importorskip("onnxruntime").InferenceSession(tmp_path / "1/inference.onnx")
    (scores,) = session.run(["scores"], {"sample": samples})
    accuracy = rows[3][rows[0].index("server_accuracy")]
    assert np.mean(scores.argmax(1) == labels) == pytest.approx(float(accuracy), abs=0.01)


@pytest.mark.parametrize(
    ("dataset", "partition"),
    [("digits", "iid"), ("digits", "dirichlet"), ("keywords", "user")],
)
def test_clients_have_their_own_data(dataset: str, partition: str) -> None:
    config = {**CONFIG, "dataset": dataset, "partition": partition}
    shares = data.shares(config, 20)
    samples, _ = data.of_all(dataset)
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(len(samples.labels)))
    train, validation = data.of_client(7, 20, config)
    assert len(train[0]) == len(train[1]) == len(shares[7]) - len(validation[1])
    trainer = model.make_trainer(config)
    assert np.isfinite(trainer.step(train[0][:8], train[1][:8]))
    if partition == "user":
        assert samples.users is not None
        assert len(set(samples.users[shares[7]])) == 1


def test_options_that_do_not_fit_are_refused() -> None:
    for wrong in ({"partition": "user"}, {"partition": "alike"}, {"dataset": "photos"}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            data.shares({**CONFIG, **wrong}, 3)
