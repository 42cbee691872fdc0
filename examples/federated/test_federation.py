"""A quick check of the project, with clients in one process: `pytest` runs it in seconds."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from edgegrad.errors import InputError
from edgegrad.federated.flower import simulate

import client_app
import data
import model
import server_app

APP = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text("utf-8"))
CONFIG = {k: v for k, v in APP["tool"]["flwr"]["app"]["config"].items() if not isinstance(v, dict)}
CLIENTS = 20


def test_clients_learn_what_one_with_all_their_data_does(tmp_path: Path) -> None:
    """Their accuracy is less by 1 % at most, and the exported model has it in onnxruntime."""
    config = {**CONFIG, "output": str(tmp_path), "fraction-evaluate": 0.0, "min-evaluate-nodes": 0}
    simulate(server_app.app, client_app.app, CLIENTS, config)

    shares = [data.of_client(number, CLIENTS, config)[0] for number in range(CLIENTS)]
    everything = tuple(np.concatenate(arrays) for arrays in zip(*shares, strict=True))
    alone = model.make_trainer(config)
    alone.fit(everything, epochs=20, batch_size=32, progress=False)
    samples, labels = data.of_server(config)
    goal = alone.evaluate((samples, labels), metrics="accuracy")["accuracy"] - 0.01

    session = pytest.importorskip("onnxruntime").InferenceSession(tmp_path / "1/inference.onnx")
    (scores,) = session.run(["scores"], {"sample": samples})
    assert np.mean(scores.argmax(1) == labels) >= goal


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
