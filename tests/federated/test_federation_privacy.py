"""Clipping, noise and encodings of a federation: measured in the messages that are sent."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.errors import EngineError, InputError
from engine.federated.privacy import KINDS, Privacy, epsilon_of, find_rho, options
from tests.support import tiny

pytest.importorskip("flwr", reason="needs flwr")

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, Strategy

from engine.federated.flower import client_app, server_app, simulate
from engine.federated.flower.mods import protect
from engine.federated.flower.private import add_privacy
from engine.federated.flower.records import arrays_of, from_record, to_record
from engine.federated.flower.replies import count_bytes
from engine.federated.flower.simulation import LocalGrid
from tests.support import tiny_federation

SIZE = 50_000
CLIPPED = {"privacy": "client-fixed", "clients-per-round": 5}
Config = dict[str, Any]


def direction(seed: int, norm: float, size: int = SIZE) -> np.ndarray:
    """float32[size] of this L2 norm."""
    vector = np.random.default_rng(seed).standard_normal(size)
    return (vector * (norm / np.linalg.norm(vector))).astype(np.float32)


def app_of(update: Callable[[Message, Context], np.ndarray]) -> ClientApp:
    """Clients that add something to the parameter "w"; they have 10, 20, ... samples."""
    app = ClientApp()

    @app.train(mods=[protect])
    def train(message: Message, context: Context) -> Message:
        new = arrays_of(message.content)["w"] + update(message, context)
        samples = 10 * (1 + int(context.node_config["partition-id"]))
        numbers = MetricRecord({"num-examples": samples, "train_loss": 0.5})
        return Message(
            RecordDict({"arrays": to_record({"w": new}), "metrics": numbers}), reply_to=message
        )

    return app


def grid_of(clients: int, config: Config, update: Callable[..., np.ndarray]) -> LocalGrid:
    return LocalGrid(app_of(update), clients, config)


def reply_of(grid: LocalGrid, sent: np.ndarray, **config: Any) -> Message:
    """The reply of the first client."""
    content = RecordDict(
        {"arrays": to_record({"w": sent}), "config": ConfigRecord({"server-round": 1, **config})}
    )
    message = Message(content, next(iter(grid.get_node_ids())), "train")
    (reply,) = grid.send_and_receive([message])
    return reply


# --- figures


# By dp-accounting 0.6.0 of Google, delta 1e-5: (z, rounds) -> the Renyi accountant's epsilon, whose
# orders are a grid; and the exact ones of continuous noise, for one client more or less and for
# other data on one.
ACCOUNTED = {
    (1.0, 1): (4.728507, 4.377178, 9.997256),
    (1.0, 20): (30.126631, 28.373473, 77.330091),
    (4.0, 20): (5.377728, 4.983306, 11.480023),
    (16.0, 20): (1.143151, 1.047054, 2.258145),
    (0.5, 1): (10.725510, 9.997256, 24.381611),
}


@pytest.mark.parametrize(("z", "rounds"), ACCOUNTED)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "-" in kind])
def test_epsilon_is_that_of_published_accountants(kind: str, z: float, rounds: int) -> None:
    renyi, more_or_less, replaced = ACCOUNTED[z, rounds]
    privacy = Privacy(kind, noise_multiplier=z, clients=1000)
    spent = privacy.spent(rounds)
    assert spent == privacy.spent(rounds, replacing=False)
    assert renyi * 0.999 < spent <= renyi  # all orders, not only those on a grid
    assert more_or_less < spent < 1.1 * more_or_less
    assert replaced < privacy.spent(rounds, replacing=True) < 1.1 * replaced


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 40.0])
def test_local_noise_is_the_least_for_its_epsilon(epsilon: float) -> None:
    local = Privacy("local", clipping_norm=2, epsilon=epsilon)
    assert local.spent(1) == pytest.approx(epsilon) == local.spent(1, replacing=True)
    assert epsilon_of(find_rho(epsilon, 1e-6), 1e-6) == pytest.approx(epsilon)
    rho = (2 * 2) ** 2 / (2 * local.sigma**2)
    assert rho == pytest.approx(find_rho(epsilon, 1e-5))
    assert local.spent(1) < local.spent(4) < 4 * local.spent(1)


def test_what_has_no_noise_or_too_little_promises_nothing() -> None:
    assert Privacy().spent(1) == np.inf
    assert Privacy("server-fixed", noise_multiplier=0, clients=9).spent(1) == np.inf
    little = Privacy("server-fixed", noise_multiplier=0.01, clients=9)
    assert little.spent(1) == np.inf
    assert "no promise" in little.promise(1)
    with pytest.raises(InputError, match="not that it takes part"):
        Privacy("local").spent(1, replacing=False)


def test_a_promise_says_what_it_is_against() -> None:
    told = Privacy("server-fixed", noise_multiplier=4, clients=50).promise(20)
    assert "epsilon 5.38 for one client more or less and epsilon 12.3 for other data on one" in told


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"privacy": "locale"}, "nearest: 'local'"),
        ({"privacy": "local", "epsilon": 0}, "epsilon=0: expected above 0 to below 500"),
        ({"privacy": "local", "delta": 1}, "delta=1: expected above 0 to below 1"),
        ({"clipping-norm": -1.0}, "clipping_norm=-1.0"),
        ({"noise-multiplier": -0.5}, "noise_multiplier=-0.5: expected 0 or more"),
        ({"noise-multiplier": 1e-9}, "supported: 0, or at least 1.9e-09"),
        ({"privacy": "server-adaptive"}, "number of clients that a round asks"),
        ({"privacy": "client-fixed"}, "set clients-per-round"),
        ({"privacy": "local", "update-fraction": 0.1}, "the largest noise"),
        ({**CLIPPED, "update-values": "float16"}, "privacy='server-fixed' clips"),
        ({**CLIPPED, "update-fraction": 0.1}, "privacy='server-fixed' clips"),
        ({"update-values": "int8"}, "supported: float32"),
        ({"update-values": 16}, "values: expected text, got 16"),
        ({"update-fraction": "half"}, "fraction: expected a number"),
    ],
)
def test_options_that_make_no_sense_are_refused(config: Config, text: str) -> None:
    with pytest.raises(EngineError, match=text):
        options(config)


# --- what a client sends


def test_local_noise_is_in_the_message_and_has_its_sigma() -> None:
    config = {"privacy": "local", "clipping-norm": 0.5, "epsilon": 0.8, "delta": 1e-5}
    update, sent = direction(0, 30), direction(1, 1)
    reply = reply_of(grid_of(1, config, lambda *_: update), sent)
    noise = arrays_of(reply.content)["w"] - sent - update * (0.5 / 30)
    sigma = options(config)[0].sigma
    assert abs(noise.mean()) < 5 * sigma / np.sqrt(SIZE)  # five standard errors
    assert abs(noise.std() / sigma - 1) < 5 / np.sqrt(2 * SIZE)
    assert abs(np.mean(np.abs(noise) < sigma) - 0.6827) < 5 * np.sqrt(0.6827 * 0.3173 / SIZE)
    assert dict(reply.content.metric_records["metrics"]) == {"num-examples": 1}  # nothing else
    again = reply_of(grid_of(1, config, lambda *_: update), sent)
    assert not np.array_equal(arrays_of(again.content)["w"], arrays_of(reply.content)["w"])


@pytest.mark.parametrize("kind", ["client-fixed", "client-adaptive"])
@pytest.mark.parametrize("norm", [0.3, 30.0])
def test_clients_clip_to_the_norm_that_the_server_sends(kind: str, norm: float) -> None:
    grid = grid_of(1, {"privacy": kind, "clients-per-round": 90}, lambda *_: direction(0, norm))
    sent = np.zeros(SIZE, np.float32)
    reply = reply_of(grid, sent, **{"clipping-norm": 0.75})
    got = float(np.linalg.norm(arrays_of(reply.content)["w"]))
    assert got == pytest.approx(min(norm, 0.75), rel=1e-5)
    if kind == "client-adaptive":
        assert reply.content["metrics"]["not-clipped"] == int(norm <= 0.75)


@pytest.mark.parametrize("send", ["parameters", "difference"])
@pytest.mark.parametrize(
    ("config", "bytes_sent"),
    [
        ({}, 4 * SIZE),
        ({"update-values": "float16"}, 2 * SIZE),
        ({"update-values": "bfloat16", "privacy": "local"}, 2 * SIZE),
        ({"update-fraction": 0.01}, 8 * SIZE // 100),
        ({"update-fraction": 0.01, "update-values": "float16"}, 6 * SIZE // 100),
    ],
)
def test_encoded_updates_take_the_bytes_they_should(
    send: str, config: Config, bytes_sent: int
) -> None:
    update, sent = direction(0, 3), direction(1, 1)
    grid = grid_of(1, config, lambda *_: update)
    if send == "difference":
        grid = LocalGrid(_differences(update), 1, config)
    reply = reply_of(grid, sent)
    assert bytes_sent <= count_bytes(reply) <= bytes_sent + 600  # headers, names, notes
    assert reply.content["config"]["server-round"] == 1
    arrays = arrays_of(reply.content)
    if "update-values" not in config and "update-fraction" not in config:
        assert np.allclose(arrays["w"], (update if send == "difference" else sent + update))
    if "update-fraction" in config:
        kept = grid.contexts[reply.metadata.src_node_id].state.array_records
        (residual,) = from_record(kept["edgegrad.residual"]).values()
        residual[arrays["indices"]] += arrays["values"]
        assert np.allclose(residual, update, atol=1e-6)  # what is not sent is kept


def _differences(update: np.ndarray) -> ClientApp:
    app = ClientApp()

    @app.train(mods=[protect])
    def train(message: Message, context: Context) -> Message:
        content = RecordDict(
            {
                "arrays": to_record({"w": update}),
                "metrics": MetricRecord({"num-examples": 1}),
                "config": ConfigRecord({"send": "difference"}),
            }
        )
        return Message(content, reply_to=message)

    return app


@pytest.mark.parametrize(("shape", "update"), [((), 1.0), ((4,), 0.0), ((2, 0), 0.0)])
@pytest.mark.parametrize("kind", ["local", "client-fixed"])
def test_numbers_without_a_dimension_and_zeros_are_clipped_as_others(
    kind: str, shape: tuple[int, ...], update: float
) -> None:
    change = np.full(shape, update, np.float32)
    config = {"privacy": kind, "clipping-norm": 0.25, "clients-per-round": 1}
    got = arrays_of(reply_of(grid_of(1, config, lambda *_: change), change * 0).content)["w"]
    assert got.shape == shape
    if kind == "client-fixed":
        assert got == pytest.approx(change * 0.25)
    else:
        assert got.all()  # noise, not zeros


def test_no_seed_repeats_noise() -> None:
    """A data loader that seeds the global generators, as many do, and a server that does so."""
    update, sent = direction(0, 3, 500), np.zeros(500, np.float32)

    def seeding(*_: Any) -> np.ndarray:
        np.random.seed(1)
        random.seed(1)
        return update

    config = {"privacy": "local", "epsilon": 8.0}
    one, other = (
        arrays_of(reply_of(grid_of(1, config, seeding), sent).content)["w"] for _ in range(2)
    )
    sigma = options(config)[0].sigma
    assert abs((one - other).std() / (sigma * np.sqrt(2)) - 1) < 5 / np.sqrt(2 * 500)
    for kind in ("server-fixed", "client-fixed", "server-adaptive", "client-adaptive"):
        central = {"privacy": kind, "clients-per-round": 20, "noise-multiplier": 1.0}
        grid = grid_of(2, central, seeding)
        made = [add_privacy(FedAvg(), options(central)[0]) for _ in range(2)]
        one, other = (aggregated(strategy, grid, sent) for strategy in made)
        assert np.mean(one != other) > 0.99
        if "adaptive" in kind:
            assert len({getattr(strategy, "clipping_norm") for strategy in made}) == 2  # noqa: B009  # of two classes


# --- what a server makes of it


def aggregated(
    strategy: Strategy, grid: LocalGrid, sent: np.ndarray, failing: int = 0
) -> np.ndarray:
    """The parameter after a round, to which the last `failing` clients do not reply."""
    config = ConfigRecord({})
    messages = list(strategy.configure_train(1, to_record({"w": sent}), config, grid))
    messages.sort(key=lambda m: grid.contexts[m.metadata.dst_node_id].node_config["partition-id"])
    replies = list(grid.send_and_receive(messages[: len(messages) - failing]))
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    return from_record(arrays)["w"]


@pytest.mark.parametrize("kind", ["client-fixed", "server-fixed"])
def test_the_sum_is_divided_by_the_clients_that_are_asked(kind: str) -> None:
    """Four of five clients reply, whose weights are equal whatever the numbers of their samples."""
    config = {
        "privacy": kind, "clipping-norm": 0.5, "noise-multiplier": 1.5, "clients-per-round": 5,
    }  # fmt: skip
    updates = [direction(k, 0.1 if k else 7) for k in range(5)]
    grid = grid_of(5, config, lambda _, c: updates[int(c.node_config["partition-id"])])
    strategy = add_privacy(FedAvg(), options(config)[0])
    got = aggregated(strategy, grid, np.zeros(SIZE, np.float32), failing=1)
    clipped = [updates[0] * (0.5 / 7), *updates[1:4]]
    noise, sigma = got - np.sum(clipped, axis=0) / 5, 1.5 * 0.5 / 5
    assert abs(noise.mean()) < 5 * sigma / np.sqrt(SIZE)
    assert abs(noise.std() / sigma - 1) < 5 / np.sqrt(2 * SIZE)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "-" in kind])
def test_zeros_and_updates_that_are_not_clipped_do_no_harm(kind: str) -> None:
    """A client without anything to learn, and one that does not clip though it should."""
    config = {"privacy": kind, "noise-multiplier": 0.0, "clients-per-round": 2}
    updates = [np.zeros(50), direction(1, 1e6, 50)]

    def app(message: Message, context: Context) -> Message:
        update = updates[int(context.node_config["partition-id"])]
        numbers = MetricRecord({"num-examples": 1, "not-clipped": 1})
        arrays = to_record({"w": update.astype(np.float32)})
        content = RecordDict({"arrays": arrays, "metrics": numbers})
        return Message(content, reply_to=message)

    class App(ClientApp):
        __call__ = staticmethod(app)

    strategy = add_privacy(FedAvg(), options(config)[0])
    got = aggregated(strategy, LocalGrid(App(), 2, config), np.zeros(50, np.float32))
    assert got == pytest.approx(updates[1] / 2e6, rel=1e-5)  # the norm 1 of two clients


@pytest.mark.parametrize(("kind", "first"), [("client-adaptive", 2.0), ("server-adaptive", 20.0)])
def test_the_adaptive_norm_follows_the_quantile(kind: str, first: float) -> None:
    """Updates have norms of 1, 2, ..., 10: a quarter is above 7.5."""
    config = {
        "privacy": kind, "clipping-norm": first, "clipped-quantile": 0.25,
        "noise-multiplier": 0.0, "clients-per-round": 10,
    }  # fmt: skip
    updates = [direction(k, k + 1, 50) for k in range(10)]
    grid = grid_of(10, config, lambda _, c: updates[int(c.node_config["partition-id"])])
    strategy = add_privacy(FedAvg(), options(config)[0])
    for _ in range(40):
        aggregated(strategy, grid, np.zeros(50, np.float32))
    assert 6.5 < getattr(strategy, "clipping_norm") < 8.5  # noqa: B009  # of two classes


def test_adaptive_noise_is_that_of_the_norm_that_was_clipped_to() -> None:
    config = {"privacy": "server-adaptive", "clipping-norm": 1.0, "clients-per-round": 20}
    grid = grid_of(2, config, lambda *_: np.full(SIZE, 1e-9, np.float32))  # far below the norm
    strategy = add_privacy(FedAvg(), options(config)[0])
    got = aggregated(strategy, grid, np.zeros(SIZE, np.float32))
    effective = (1.0**-2 - (2 * 1.0) ** -2) ** -0.5  # Andrew et al., theorem 1, sigma_b = 20 / 20
    assert got.std() == pytest.approx(effective / 20, rel=5 / np.sqrt(2 * SIZE))


def test_strategies_that_do_more_than_average_are_refused() -> None:
    with pytest.raises(InputError, match="FedAdam: noise is calibrated"):
        add_privacy(FedAdam(), Privacy("server-fixed", clients=2))
    with pytest.raises(InputError, match="on the count of clipped updates alone has 2; supported"):
        Privacy("server-adaptive", noise_multiplier=5, clients=20)
    assert isinstance(add_privacy(FedAdam(), Privacy("local")), FedAdam)


# --- a whole app


@pytest.mark.parametrize(
    "config",
    [
        {"privacy": "local", "epsilon": 8.0, "update-values": "float16"},
        {"privacy": "client-adaptive", "clients-per-round": 3, "noise-multiplier": 0.01},
        {
            "privacy": "server-fixed", "noise-multiplier": 0.01, "update-fraction": 0.3,
            "clients-per-round": 3,
        },
        {"update-values": "bfloat16", "send": "difference"},
    ],
    ids=str,
)  # fmt: skip
def test_apps_train_with_every_option(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        simulate(
            tiny_federation.server,
            tiny_federation.client,
            tiny_federation.CLIENTS,
            {"num-server-rounds": 2, "output": str(tmp_path), **config},
        )
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "left out" not in text
    assert (tmp_path / "1" / "inference.onnx").exists()
    assert ("2 rounds together have" in text) == ("privacy" in config)


def test_running_statistics_are_not_averaged_with_noise(tmp_path: Path) -> None:
    def normed(_: Mapping[str, Any]) -> Trainer:
        return tiny.make_trainer(tiny.NORMED)

    config = {"privacy": "server-fixed", "clients-per-round": 2, "output": str(tmp_path)}
    with pytest.raises(InputError, match=r"'norm.mean' cannot be averaged with noise"):
        simulate(server_app(normed), client_app(normed, tiny_federation.share), 2, config)
