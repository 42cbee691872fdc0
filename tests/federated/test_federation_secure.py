"""Secure aggregation: the server gets the mean, and of each client masked numbers alone."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from engine.errors import InputError
from engine.federated.privacy import options

pytest.importorskip("flwr", reason="needs flwr")

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.serverapp.strategy import FedAvg, Result

from engine.federated.flower import simulate
from engine.federated.flower.mods import protect
from engine.federated.flower.records import arrays_of, from_record, to_record
from engine.federated.flower.rounds import Rounds
from engine.federated.flower.secure import SecureGrid
from engine.federated.flower.simulation import LocalGrid
from tests.support import tiny_federation

CLIENTS, LARGEST = 4, 0.5
START = {"w": np.zeros((30, 20), np.float32), "b": np.ones(7, np.float32)}


def update(client: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(client)
    return {n: (rng.uniform(-0.4, 0.4, a.shape)).astype(np.float32) for n, a in START.items()}


def app_of(failing: int | None = None, size: float = 1.0) -> ClientApp:
    app = ClientApp()

    @app.train(mods=[protect])
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        if client == failing:
            raise RuntimeError("no power")
        change = update(client)
        new = {n: a + size * change[n] for n, a in arrays_of(message.content).items()}
        numbers = MetricRecord({"num-examples": 10 * (client + 1), "train_loss": 1.0})
        return Message(RecordDict({"arrays": to_record(new), "metrics": numbers}), reply_to=message)

    return app


class Overheard(LocalGrid):
    """Keeps what clients have sent."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.heard: list[RecordDict] = []

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies, which are kept."""
        listed = list(super().pull_messages(message_ids))
        self.heard += [reply.content for reply in listed if not reply.has_error()]
        return listed

    def masked(self) -> Iterator[list[np.ndarray]]:
        """The masked numbers of each client."""
        for content in self.heard:
            for record in content.config_records.values():
                if Key.MASKED_PARAMETERS in record:
                    numbers = cast("list[bytes]", record[Key.MASKED_PARAMETERS])
                    yield [bytes_to_ndarray(each) for each in numbers]


def run(app: ClientApp) -> tuple[Overheard, Result]:
    grid = Overheard(app, CLIENTS, {"secure-range": LARGEST})
    rounds = Rounds(FedAvg(fraction_evaluate=0))
    return grid, rounds.start(SecureGrid(grid, LARGEST), to_record(START), num_rounds=1, timeout=9)


def mean(clients: Iterable[int], name: str) -> np.ndarray:
    return np.asarray(START[name] + np.mean([update(client)[name] for client in clients], axis=0))


def test_the_server_gets_the_mean_and_no_single_update() -> None:
    grid, result = run(app_of())
    got, step = from_record(result.arrays), 2 * LARGEST / 2**22
    for name in START:
        assert np.abs(got[name] - mean(range(CLIENTS), name)).max() < 2 * step
    sent = list(grid.masked())
    assert len(sent) == CLIENTS
    for numbers in sent:
        values = numbers[1].reshape(-1) / 2**32  # of the larger parameter: 600 numbers
        assert abs(values.mean() - 0.5) < 5 / np.sqrt(12 * values.size)  # uniform, as masks are
        for client in range(CLIENTS):
            true = update(client)["w"].reshape(-1)
            assert abs(np.corrcoef(values, true)[0, 1]) < 5 / np.sqrt(values.size)
    for content in grid.heard:  # no parameters, no number of samples, no loss
        assert not any(len(record) for record in content.array_records.values())
        assert all(v == 1 for r in content.metric_records.values() for v in r.values())


def test_a_client_that_fails_is_left_out_and_its_masks_are_taken_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        _, result = run(app_of(failing=1))
    assert np.abs(from_record(result.arrays)["w"] - mean([0, 2, 3], "w")).max() < 1e-6
    assert sum("left out of train: InputError" in r.getMessage() for r in caplog.records) == 1
    assert "no power" in caplog.text


def test_elements_beyond_the_range_are_refused_and_not_clipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        _, result = run(app_of(size=2.0))
    assert not result.arrays
    assert "secure aggregation sends elements up to secure-range = 0.5" in caplog.text
    assert "round 1 has no result: the parameters stay" in caplog.text


def test_an_app_trains_with_secure_aggregation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"num-server-rounds": 2, "secure-range": 4.0, "output": str(tmp_path)}
    config["fraction-evaluate"] = 0.0
    with caplog.at_level(logging.INFO, "flwr"):
        simulate(tiny_federation.server, tiny_federation.client, tiny_federation.CLIENTS, config)
    assert "left out" not in caplog.text
    assert "round 1: train: 2,712" not in caplog.text  # the parameters, which did not travel so
    (line,) = re.findall(r"round 2: train: ([\d,]+) bytes to 3 .* ([\d,]+) bytes from", caplog.text)
    row = (tmp_path / "1" / "history.csv").read_text().splitlines()[-1].split(",")
    assert int(line[1].replace(",", "")) > 8 * 3 * 83  # 83 parameters, and what the protocol needs
    assert line[1].replace(",", "") in row
    assert (tmp_path / "1" / "inference.onnx").exists()


@pytest.mark.parametrize(
    "config", [{"privacy": "server-fixed", "clients-per-round": 3}, {"update-values": "float16"}]
)
def test_what_needs_single_updates_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="the server sees no single update"):
        options({"secure-range": 1.0, **config})
