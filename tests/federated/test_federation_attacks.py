"""Attacks in due form: what a server makes of values that are allowed, and of hostile messages."""

from __future__ import annotations

import csv
import gc
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs flwr")

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.serverapp.strategy import FedAvg, Strategy

from bench import federation_attacks
from engine.errors import InputError, MessageError
from engine.federated.flower import simulate
from engine.federated.flower.masks import MASKS, draw_keystream
from engine.federated.flower.mods import protect
from engine.federated.flower.nodes import OrderedGrid
from engine.federated.flower.records import arrays_of, from_record, to_record
from engine.federated.flower.replies import Limits
from engine.federated.flower.robust import find_closest
from engine.federated.flower.rounds import Rounds
from engine.federated.flower.secure import SecureGrid
from engine.federated.flower.simulation import LocalGrid
from engine.federated.flower.strategies import make_strategy, read_state
from engine.federated.folder import ANSWER, Folder
from engine.federated.message import Message as FileMessage
from engine.federated.message import fingerprint
from tests.support import tiny_federation

START = {"w": np.zeros((2, 3), np.float32), "b": np.ones(3, np.float32)}
Update = Callable[[int, int], float]
Arrays = dict[str, np.ndarray]


def app_of(update: Update, loss: Callable[[int], float] = lambda _: 1.0) -> ClientApp:
    """Clients that add a number to all parameters: of the client, and of the round."""
    app = ClientApp()

    @app.train(mods=[protect])
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        told = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]  # it is one
        new = {
            n: a + np.float32(update(client, told)) for n, a in arrays_of(message.content).items()
        }
        numbers = MetricRecord({"num-examples": 8, "train_loss": loss(client)})
        return Message(RecordDict({"arrays": to_record(new), "metrics": numbers}), reply_to=message)

    return app


def federated(
    strategy: Strategy, app: ClientApp, clients: int = 5, rounds: int = 2, **limits: Any
) -> tuple[Arrays, Rounds, LocalGrid]:
    grid = LocalGrid(app, clients, {})
    made = Rounds(strategy, limits=Limits(**limits))
    result = made.start(grid, to_record(START), num_rounds=rounds, timeout=9)
    return from_record(result.arrays), made, grid


def node_of(grid: LocalGrid, client: int) -> int:
    (node,) = (n for n, c in grid.contexts.items() if c.node_config["partition-id"] == client)
    return node


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's QFedAvg collects garbage for every reply, half a second each."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


# --- aggregates that are not finite


@pytest.mark.parametrize("name", ["FedAdam", "FedYogi", "FedAdagrad", "QFedAvg"])
def test_an_aggregate_that_is_not_finite_is_made_again_without_its_cause(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With parameters as large as float32 allows; what the strategy remembers stays as it was."""
    monkeypatch.setattr("engine.federated.schema.LARGEST", 3.4e38)
    config = {"fraction-evaluate": 0.0, "QFedAvg.client-learning-rate": 0.1}

    def spoiled(client: int, told: int) -> float:
        return 3.3e38 if client == 3 and told == 2 else 0.25 + client / 8

    def absent(client: int, told: int) -> float:
        if client == 3 and told == 2:
            raise RuntimeError("no power")
        return spoiled(client, told)

    made = {}
    for update in (spoiled, absent):
        strategy = make_strategy(name, config)
        arrays, _, grid = federated(strategy, app_of(update), 5, 3)
        made[update] = {n: a.tobytes() for n, a in arrays.items()}
        memory = read_state(strategy)[0]
        made[update] |= {n: a.tobytes() for n, a in memory.items()}
        assert all(np.isfinite(a).all() for a in memory.values())
        if update is spoiled:
            bad = node_of(grid, 3)
            (told,) = (r.getMessage() for r in caplog.records if "left out" in r.getMessage())
            assert told.startswith(f"round 2: node {bad} is left out of train: ")
    assert made[spoiled] == made[absent]


def test_the_culprit_need_not_have_the_largest_update(caplog: pytest.LogCaptureFixture) -> None:
    """A strategy that fails because of a number."""

    class Picky(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            listed = list(replies)
            if any(r.content.metric_records["metrics"]["train_loss"] == 0.0 for r in listed):
                raise ZeroDivisionError("float division by zero")
            return super().aggregate_train(server_round, listed)

    app = app_of(lambda client, _: 1.0 + client, loss=lambda client: float(client != 1))
    arrays, rounds, grid = federated(Picky(fraction_evaluate=0.0), app, 4, 1)
    assert rounds.round.left_out == (node_of(grid, 1),)
    assert np.allclose(arrays["w"], np.mean([1, 3, 4]))
    assert "with it, the strategy fails: ZeroDivisionError: float division by zero" in caplog.text


def test_a_round_of_which_nothing_comes_keeps_the_parameters() -> None:
    class Broken(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            raise ValueError("no")

    result = federated(Broken(fraction_evaluate=0.0), app_of(lambda *_: 1.0), 3, 2)
    assert not result[0]
    assert result[1].round.results == 0


# --- updates that are too large


def test_an_update_much_larger_than_the_others_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = app_of(lambda client, told: 50.0 if client == 2 else 0.1)
    arrays, _, grid = federated(FedAvg(fraction_evaluate=0.0), app, 5, 2, ratio=100.0)
    assert np.allclose(arrays["w"], 2 * 0.1)
    assert (
        f"node {node_of(grid, 2)} is left out of train: its update has the norm 150" in caplog.text
    )
    arrays, _, _ = federated(FedAvg(fraction_evaluate=0.0), app, 5, 1, ratio=1000.0)
    assert np.allclose(arrays["w"], (50 + 4 * 0.1) / 5)
    arrays, _, _ = federated(FedAvg(fraction_evaluate=0.0), app, 5, 1)
    assert np.allclose(arrays["w"], (50 + 4 * 0.1) / 5)


def test_updates_are_scaled_to_a_norm() -> None:
    app = app_of(lambda client, told: 50.0 if client == 2 else 0.1)
    arrays, _, _ = federated(FedAvg(fraction_evaluate=0.0), app, 5, 1, norm=0.6)
    assert np.allclose(arrays["w"], (0.6 / 3 + 4 * 0.1) / 5)  # nine equal elements: norm / 3


def test_a_variance_cannot_be_negative(caplog: pytest.LogCaptureFixture) -> None:
    app = app_of(lambda client, _: -1.5 if client == 1 else 0.5)
    grid = LocalGrid(app, 3, {})
    rounds = Rounds(
        FedAvg(fraction_evaluate=0.0), statistics=["b"], limits=Limits(variances=frozenset("b"))
    )
    result = rounds.start(grid, to_record(START), num_rounds=1, timeout=9)
    assert np.allclose(from_record(result.arrays)["b"], 1.5)
    assert "parameter 'b' has -0.5; expected from 0 to" in caplog.text


def test_robust_strategies_take_the_median_of_statistics() -> None:
    grid = LocalGrid(app_of(lambda client, _: 40.0 if client == 1 else 0.5), 5, {})
    rounds = Rounds(make_strategy("FedMedian", {"fraction-evaluate": 0.0}), statistics=["b"])
    result = rounds.start(grid, to_record(START), num_rounds=1, timeout=9)
    assert np.array_equal(from_record(result.arrays)["b"], np.full(3, 1.5, np.float32))


# --- Krum


def test_krum_chooses_by_the_distances_of_updates() -> None:
    """Parameters are a million times as large, so that float32 would lose the distances."""
    rng = np.random.default_rng(0)
    middle = rng.standard_normal(50)
    updates = [middle + 1e-3 * (k + 1) * rng.standard_normal(50) for k in range(6)]
    updates += [middle + 5, middle - 5]
    assert find_closest(updates, 2)[0] in range(3)
    assert set(find_closest(updates, 2)[-2:]) == {6, 7}
    strategy = make_strategy("Krum", {"fraction-evaluate": 0.0, "Krum.num-malicious-nodes": 1})
    made = {"w": np.full(50, 1e3, np.float32)}
    grid = LocalGrid(ClientApp(), 5, {})
    asked = list(strategy.configure_train(1, to_record(made), ConfigRecord({}), grid))
    replies = []
    for number, message in enumerate(asked):
        change = (-1 if number == 3 else 1) * np.float32(1 + number / 100)
        numbers = MetricRecord({"num-examples": 10**6 if number == 3 else 1})
        content = RecordDict({"arrays": to_record({"w": made["w"] + change}), "metrics": numbers})
        replies.append(Message(content, reply_to=message))
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    assert from_record(arrays)["w"] == pytest.approx(made["w"] + np.float32(1.01))
    assert strategy.aggregate_train(1, replies[:4]) == (None, None)  # 2 + 3 are needed


# --- what goes together


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"secure-range": 1.0, "strategy": "Krum"}, "secure aggregation with strategy Krum"),
        ({"secure-range": 1.0, "strategy": "FedMedian"}, "sees no single update"),
        ({"secure-range": 1.0, "strategy": "QFedAvg"}, "sees no single update"),
        ({"secure-range": 1.0, "max-update-norm": 1.0}, "secure aggregation with max-update-norm"),
        (
            {"privacy": "server-fixed", "clients-per-round": 3, "max-update-norm": 1.0},
            "clipping-norm is what bounds updates",
        ),
        (
            {"privacy": "server-fixed", "clients-per-round": 3, "strategy": "FedMedian"},
            "calibrated for the average",
        ),
        ({"max-examples": 0}, "max-examples=0; supported: 1 to"),
        ({"max-norm-ratio": -1.0}, "max-norm-ratio=-1"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(
    config: dict[str, Any], text: str, tmp_path: Path
) -> None:
    config |= {"output": str(tmp_path / "runs"), "QFedAvg.client-learning-rate": 0.1}
    with pytest.raises(InputError, match=text):
        simulate(tiny_federation.server, tiny_federation.client, 3, config)
    assert not (tmp_path / "runs").exists()


def test_an_app_says_in_its_history_who_was_left_out(tmp_path: Path) -> None:
    seen = set()

    class App(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            reply = tiny_federation.client(message, context)
            if (
                context.node_config["partition-id"] == 1
                and message.metadata.message_type == "train"
            ):
                seen.add(context.node_id)
                reply.content.metric_records["metrics"]["num-examples"] = 1001
            return reply

    config = {"num-server-rounds": 1, "max-examples": 1000, "output": str(tmp_path)}
    simulate(tiny_federation.server, App(), 3, config)
    (row,) = csv.DictReader((tmp_path / "1/history.csv").read_text().splitlines())
    assert (row["results"], row["failures"]) == ("2", "1")
    assert row["left_out"] == str(*seen)


def test_numbers_that_not_all_have_are_not_averaged(caplog: pytest.LogCaptureFixture) -> None:
    """A missing or additional name is not a reason to leave a client out, or others would
    decide.
    """
    app = ClientApp()

    @app.train(mods=[protect])
    def train(message: Message, context: Context) -> Message:
        numbers = MetricRecord({"num-examples": 1, "train_loss": 1.0})
        if context.node_config["partition-id"] == 0:
            numbers["accuracy"] = 0.5
        new = {n: a + 1 for n, a in arrays_of(message.content).items()}
        return Message(RecordDict({"arrays": to_record(new), "metrics": numbers}), reply_to=message)

    arrays, rounds, _ = federated(FedAvg(fraction_evaluate=0.0), app, 2, 1)
    assert np.array_equal(arrays["w"], START["w"] + 1)
    assert rounds.round.metrics == {"train_loss": 1.0}
    assert "round 1: train: not all replies have accuracy" in caplog.text


@pytest.mark.parametrize("value", [[1, 2], -3, "one", 1.5, 1 << 63, b"7"])
def test_nodes_that_say_who_they_are_in_another_way_come_last(value: Any) -> None:
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        number = context.node_config["partition-id"]
        told = value if number == 0 else number
        notes = ConfigRecord({"partition-id": told})
        return Message(RecordDict({"config": notes}), reply_to=message)

    grid = LocalGrid(app, 3, {})
    listed = list(OrderedGrid(grid, 9).get_node_ids())
    assert [grid.contexts[n].node_config["partition-id"] for n in listed] == [1, 2, 0]


# --- secure aggregation


def test_masks_are_a_keystream_of_the_whole_seed() -> None:
    """Flower's depend on 32 bits of it: seeds whose words have the same exclusive or are one."""
    shapes = [(1,), (100, 30), (), (0,)]
    seed, alike = bytes(range(32)), bytes([*range(4, 8), *range(4), *range(8, 32)])
    one, other = (pseudo_rand_gen(each, MASKS, [(3,)])[0] for each in (seed, alike))
    assert np.array_equal(one, other)
    first, again, third = (draw_keystream(each, MASKS, shapes) for each in (seed, seed, alike))
    assert [array.shape for array in first] == shapes
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[1], third[1])
    values = first[1] / MASKS
    assert first[1].min() >= 0
    assert abs(values.mean() - 0.5) < 5 / np.sqrt(12 * values.size)


Fields = dict[str, Any]


def put(name: str, made: Callable[[Any], Any]) -> Callable[[Fields], None]:
    """Return a message with another value of a field, in its stage."""

    def spoil(fields: Fields) -> None:
        if name in fields:
            fields[name] = made(fields[name])

    return spoil


STAGES: dict[str, Callable[[Fields], None]] = {
    "nothing": lambda fields: fields.clear(),
    "a key of zeros": put(Key.PUBLIC_KEY_1, lambda _: b"\0"),
    "a key that is a text": put(Key.PUBLIC_KEY_2, lambda _: "x"),
    "no ciphertexts": put(Key.CIPHERTEXT_LIST, lambda _: []),
    "destinations of nobody": put(Key.DESTINATION_LIST, lambda _: [7]),
    "no masked arrays": put(Key.MASKED_PARAMETERS, lambda _: []),
    "masked pickles": put(Key.MASKED_PARAMETERS, lambda _: [b"\x80\x04."] * 3),
    "shares of others": put(Key.NODE_ID_LIST, lambda _: [1, 2, 3, 4, 5]),
    "shares that are numbers": put(Key.SHARE_LIST, lambda _: [1] * 5),
    "long shares": put(Key.SHARE_LIST, lambda _: [bytes(9000)] * 5),
    "shares of zeros": put(Key.SHARE_LIST, lambda old: [bytes(len(each)) for each in old]),
}


@pytest.mark.parametrize("name", STAGES)
def test_one_client_does_not_end_secure_aggregation(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    honest = app_of(lambda client, _: 0.1 * client)

    class App(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            reply = honest(message, context)
            if context.node_config["partition-id"] == 4 and not reply.has_error():
                fields = dict(reply.content.config_records[RECORD_KEY_CONFIGS])
                STAGES[name](fields)
                reply.content[RECORD_KEY_CONFIGS] = ConfigRecord(fields)
            return reply

    grid = SecureGrid(LocalGrid(App(), 5, {"secure-range": 0.5}), 0.5)
    with caplog.at_level(logging.WARNING, "flwr"):
        result = Rounds(FedAvg(fraction_evaluate=0.0)).start(
            grid, to_record(START), num_rounds=1, timeout=9
        )
    if name == "shares of zeros":  # in due form, and lies: nobody can tell whose they are
        assert not result.arrays or np.abs(from_record(result.arrays)["w"]).max() <= 0.5
        return
    got, mean = from_record(result.arrays)["w"], np.mean([0.1 * k for k in range(4)])
    behind = name in ("shares of others", "shares that are numbers", "long shares")
    assert got == pytest.approx(0.2 if behind else mean, abs=1e-5)  # its update was there already


# --- messages that are files

ANSWERS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut": lambda whole: whole[:-3],
    "a byte more": lambda whole: whole + b"\0",
    "100 MB": lambda whole: whole + bytes(100_000_000),
    "a header of 2**63": lambda whole: b"\xff" * 8 + whole[8:],
    "no JSON": lambda whole: whole[:8] + b"[" * (len(whole) - 8),
    "examples 10**7": lambda whole: whole.replace(b'"8"', b'"9' + b"0" * 7 + b'"') + b"",
    "examples a list": lambda whole: whole.replace(b'examples":"8"', b'examples":"[8]"'),
    "loss infinite": lambda whole: whole.replace(b'loss":"1.0"', b'loss":"Infinity"'),
    "another round": lambda whole: whole.replace(b'round":"4"', b'round":"3"'),
    "another shape": lambda whole: whole.replace(b'"shape":[2,3]', b'"shape":[3,2]'),
    "another type": lambda whole: whole.replace(b'"F32"', b'"I32"'),
    "a huge shape": lambda whole: whole.replace(
        b'"shape":[2,3]', b'"shape":[2,9223372036854775807]'
    ),
    "3e38": lambda whole: whole[:-4] + np.float32(3e38).tobytes(),
    "nan": lambda whole: whole[:-4] + np.float32("nan").tobytes(),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_forged_answers_are_refused(name: str, tmp_path: Path) -> None:
    """Of a device without Flower; the same declaration as for messages of Flower."""
    request = FileMessage("train", fingerprint(START), 4, START, {"max-examples": 1000})
    folder = Folder(tmp_path)
    folder.ask(request)
    good = request.trained(START, {"num-examples": 8, "train_loss": 1.0})
    folder.put(good, request)
    assert folder.answer_to(request) is not None
    (path,) = tmp_path.glob(f"*{ANSWER}")
    whole = path.read_bytes()
    text = ANSWERS[name](whole)
    assert text != whole
    head = int.from_bytes(whole[:8], "little")
    if len(text) != len(whole) and name.startswith(("examples", "loss", "a huge")):
        grown = head + len(text) - len(whole)
        text = grown.to_bytes(8, "little") + text[8:]
    path.write_bytes(text)
    with pytest.raises(MessageError):
        folder.answer_to(request)


# --- the bench


def test_every_attack_of_the_bench_has_a_cell() -> None:
    accuracies = {row: 0.5 for row in federation_attacks.list_rows()}
    for strategy in federation_attacks.STRATEGIES:
        cells = federation_attacks.make_cells(strategy, accuracies)
        assert cells == ["50%", *["50% / 50%"] * len(federation_attacks.ATTACKS)]
