"""Clients whose data are odd: of one class, of one sample, smaller than a batch, or none at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Context  # after the skip
from flwr.clientapp import ClientApp  # after the skip

from engine.federated import flower, parameters  # after the skip
from engine.federated.local import Learner  # after the skip
from engine.federated.local_options import LocalOptions  # after the skip
from tests.support import tiny  # after the skip
from tests.support.federations import run_federation  # after the skip

ONE_CLASS, ONE_SAMPLE, FEW, PLENTY, NOTHING, NONE = range(6)  # numbers of clients
HELD = {  # the samples of a client
    ONE_CLASS: np.flatnonzero(tiny.LABELS == 1), ONE_SAMPLE: np.arange(1), FEW: np.arange(3),
    PLENTY: np.arange(20), NOTHING: np.arange(0),
}  # fmt: skip


def app_of(first: int = 0, proximal: bool = False) -> ClientApp:
    """Clients with odd data.  first: which of them the first one is."""

    def data_of(context: Context) -> tuple[Any, Any]:
        number = first + int(context.node_config["partition-id"])
        if number == NONE:
            return None, None
        held = HELD[number]
        return tuple((tiny.X[part], tiny.LABELS[part]) for part in (held, held[1:]))  # type: ignore[return-value]  # two of them

    return flower.client_app(lambda _: tiny.make_trainer(tiny.NORMED, proximal=proximal), data_of)


def test_a_round_ends_without_the_clients_that_have_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """To the last bit as if they were not there; the log says why they are not."""
    import logging

    options: dict[str, Any] = {"model": "normed", "num-server-rounds": 2, "batch-size": 8}
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    try:
        trainer, rows = run_federation(tmp_path / "all", app_of(), clients=6, **options)
    finally:
        logger.removeHandler(caplog.handler)
    assert [(row["results"], row["failures"]) for row in rows] == [("4", "2")] * 2
    for told in (
        "client 4: InputError: there is no data to train on: 0 samples",
        "client 5: InputError: there is no training data",
        "client 1: InputError: there is no data to evaluate on: 0 samples",
        "client 5: InputError: there is no validation data",
    ):
        assert told in caplog.text
    others, again = run_federation(tmp_path / "some", app_of(), clients=4, **options)
    assert tiny.read_values(trainer) == tiny.read_values(others)
    assert [row["server_loss"] for row in rows] == [row["server_loss"] for row in again]
    assert all(np.isfinite(p.data).all() for _, p in trainer.state.parameters)


def test_a_round_of_clients_without_data_changes_nothing(tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": "normed", "num-server-rounds": 1}
    trainer, rows = run_federation(tmp_path, app_of(NOTHING), clients=2, **options)
    assert [(row["results"], row["failures"]) for row in rows] == [("0", "2")]
    assert tiny.read_values(trainer) == tiny.read_values(tiny.make_trainer(tiny.NORMED))


@pytest.mark.parametrize("client", [ONE_CLASS, ONE_SAMPLE, FEW])
def test_a_client_trains_on_what_it_has(client: int) -> None:
    """With batch statistics of one sample, too: their variance is 0, and nothing is NaN."""
    trainer, options = tiny.make_trainer(tiny.NORMED), LocalOptions(epochs=3, batch_size=8)
    learner, held = Learner(trainer), HELD[client]
    sent = parameters.get(
        trainer, [*parameters.trainable(trainer), *parameters.list_statistics(trainer)]
    )
    learner.begin(sent, options)
    learned = learner.train((tiny.X[held], tiny.LABELS[held]), options)
    assert learned.examples == len(held)
    assert all(np.isfinite(array).all() for array in learned.arrays.values())
    assert (learned.arrays["norm.var"] > 0).all()
    assert not np.array_equal(learned.arrays["head.bias"], sent["head.bias"])


def test_the_strategy_fedprox_sends_its_mu(tmp_path: Path) -> None:
    """It comes to what clients do with that mu; with another one they end elsewhere."""
    options: dict[str, Any] = {"model": "normed", "num-server-rounds": 1, "strategy": "FedProx"}
    ends = []
    for mu in (0.5, 5.0):
        trainer, rows = run_federation(
            tmp_path / str(mu), app_of(proximal=True), clients=4,
            **options, **{"FedProx.proximal-mu": mu},
        )  # fmt: skip
        assert [row["failures"] for row in rows] == ["0"]
        ends.append(tiny.read_values(trainer))
    assert ends[0] != ends[1]
    plain, rows = run_federation(
        tmp_path / "plain", app_of(), clients=4, **options, **{"FedProx.proximal-mu": 0.5}
    )
    assert [row["failures"] for row in rows] == ["4"]  # their artifacts have no such term
    assert tiny.read_values(plain) == tiny.read_values(tiny.make_trainer(tiny.NORMED))
