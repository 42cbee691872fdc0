"""Clients that fail in a round: the round ends, the log says why, and the others' work is kept."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs flwr")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, Result, Strategy

from engine.federated.flower.mods import protect
from engine.federated.flower.private import add_privacy
from engine.federated.flower.records import arrays_of, from_record, to_record
from engine.federated.flower.rounds import Rounds
from engine.federated.flower.simulation import LocalGrid
from engine.federated.privacy import Privacy
from engine.federated.updates import Encoding

CLIENTS, BAD, ROUNDS = 4, 2, 3
START = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32)}
Reply = Callable[[RecordDict], None]


def app_of(spoil: Reply, when: str, encoding: Encoding) -> ClientApp:
    """Clients that add 1 to all parameters; in round 2 one of them spoils its reply."""
    app = ClientApp()

    def bad(message: Message, context: Context) -> bool:
        number = message.content.config_records["config"]["server-round"]
        return number == 2 and context.node_config["partition-id"] == BAD

    def spoiler(message: Message, context: Context, call_next: Any) -> Message:
        """Change the reply outside of the engine's mod, just before it is sent."""
        reply: Message = call_next(message, context)
        if when == "sent" and bad(message, context):
            spoil(reply.content)
        return reply

    @app.train(mods=[spoiler, protect])
    def train(message: Message, context: Context) -> Message:
        new = {name: array + 1 for name, array in arrays_of(message.content).items()}
        numbers = MetricRecord({"num-examples": 8, "train_loss": 1.0})
        content = RecordDict({"arrays": to_record(new), "metrics": numbers})
        if when == "trained" and bad(message, context):
            spoil(content)
        return Message(content, reply_to=message)

    return app


class Deaf(LocalGrid):
    """One client does not reply in round 2."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, and lose a reply."""
        ids = list(super().push_messages(messages))
        for each in ids:
            reply = self._replies[each]
            context = self.contexts[reply.metadata.src_node_id]
            told = reply.content.config_records["config"].get("server-round")
            if told == 2 and context.node_config["partition-id"] == BAD:
                del self._replies[each]
        return ids


def run(grid: LocalGrid, strategy: Strategy, encoding: Encoding) -> tuple[Result, Rounds]:
    rounds = Rounds(strategy, encoding=encoding)
    result = rounds.start(grid, to_record(START), num_rounds=ROUNDS, timeout=7)
    return result, rounds


def raising(_: RecordDict) -> None:
    raise ZeroDivisionError("the sensor is unplugged")


def numbers(**changes: Any) -> Reply:
    return lambda content: content.metric_records["metrics"].update(changes)


def arrays(**changes: np.ndarray) -> Reply:
    return lambda content: content.array_records["arrays"].update(to_record(changes))


def of_another_round(content: RecordDict) -> None:
    content.config_records["config"]["server-round"] = 1


def without_bias(content: RecordDict) -> None:
    content["arrays"] = to_record({"w": arrays_of(content)["w"]})


def broken(content: RecordDict) -> None:
    whole = content.array_records["arrays"]["w"]
    cut = Array(dtype=whole.dtype, shape=whole.shape, stype=whole.stype, data=whole.data[:90])
    content.array_records["arrays"]["w"] = cut


def empty(content: RecordDict) -> None:
    content["arrays"] = ArrayRecord({})


def infinite(shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, np.inf, np.float32)


SPOILED: dict[str, tuple[str, Reply, str]] = {
    "raises": ("trained", raising, "the sensor is unplugged"),
    "old model": ("sent", of_another_round, "it belongs to round 1"),
    "other shape": ("trained", arrays(b=infinite((4,))), r"'b': shape \[4\]; expected \[3\]"),
    "other type": ("trained", arrays(b=np.zeros(3)), "'b': float64; expected float32"),
    "less": ("trained", without_bias, "lacks the parameter 'b': another architecture"),
    "more": ("trained", arrays(c=infinite((1,))), "has the parameter 'c': another architecture"),
    "nothing": ("sent", empty, "lacks the parameter 'w'"),
    "infinite": ("trained", arrays(b=infinite((3,))), "'b' has values that are not finite"),
    "nan loss": ("trained", numbers(train_loss=float("nan")), "train_loss is nan"),
    "no samples": ("trained", numbers(**{"num-examples": 0}), "num-examples is 0"),
    "weight": ("trained", numbers(**{"num-examples": [8]}), r"num-examples is \[8\]"),
    "cut": ("sent", broken, "cannot be read"),
    "empty note": (
        "sent",
        lambda content: content.config_records["config"].update({"update-values": ""}),
        "its encoding is {'update-values': ''}; expected none",
    ),
    "encoding": (
        "sent",
        lambda content: content.config_records["config"].update({"update-values": "float16"}),
        "its encoding is {'update-values': 'float16'}; expected none",
    ),
}


@pytest.mark.parametrize(("when", "spoil", "reason"), SPOILED.values(), ids=SPOILED)
def test_a_client_that_fails_is_left_out_of_the_round(
    when: str, spoil: Reply, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid = LocalGrid(app_of(spoil, when, Encoding()), CLIENTS, {})
    with caplog.at_level(logging.INFO, "flwr"):
        result, rounds = run(grid, FedAvg(fraction_evaluate=0), Encoding())
    check(grid, result, rounds, reason, caplog)


def check(
    grid: LocalGrid,
    result: Result,
    rounds: Rounds,
    reason: str,
    caplog: pytest.LogCaptureFixture,
    learned: float = ROUNDS,
) -> None:
    """All rounds have their work, and round 2 its warning."""
    got = from_record(result.arrays)
    for name, array in START.items():
        assert np.allclose(got[name], array + learned, rtol=1e-3), name
    (bad,) = (n for n, c in grid.contexts.items() if c.node_config["partition-id"] == BAD)
    warnings = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"round 2: node {bad} is left out of train: ")
    assert re.search(reason, warnings[0])
    assert rounds.round.results == CLIENTS


@pytest.mark.parametrize(
    "strategy",
    [
        FedAvg(fraction_evaluate=0),
        add_privacy(
            FedAvg(fraction_evaluate=0),
            Privacy("server-fixed", 100.0, noise_multiplier=0, clients=CLIENTS),
        ),
    ],
    ids=["FedAvg", "private"],
)
def test_a_client_that_is_late_or_killed_is_left_out(
    strategy: Strategy, caplog: pytest.LogCaptureFixture
) -> None:
    """To a server both are the same: no reply within the time of the round."""
    grid = Deaf(app_of(raising, "never", Encoding()), CLIENTS, {})
    with caplog.at_level(logging.INFO, "flwr"):
        result, rounds = run(grid, strategy, Encoding())
    lost = 0 if isinstance(strategy, FedAvg) else 1 / CLIENTS  # a sum is divided by all
    check(grid, result, rounds, "it has not replied in time", caplog, ROUNDS - lost)


@pytest.mark.parametrize("encoding", [Encoding("float16"), Encoding("bfloat16", 0.3)], ids=str)
def test_malformed_encoded_updates_are_left_out(
    encoding: Encoding, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"update-values": encoding.values, "update-fraction": encoding.fraction}
    spoil = arrays(**{"values" if encoding.sparse else "b": np.zeros(3)})
    grid = LocalGrid(app_of(spoil, "sent", encoding), CLIENTS, config)
    with caplog.at_level(logging.INFO, "flwr"):
        result, _ = run(grid, FedAvg(fraction_evaluate=0), encoding)
    if not encoding.sparse:
        assert np.allclose(from_record(result.arrays)["b"], ROUNDS, rtol=1e-3)
    assert any(": float64; expected" in r.getMessage() for r in caplog.records)


def test_a_round_without_any_reply_keeps_the_parameters(caplog: pytest.LogCaptureFixture) -> None:
    app = ClientApp()

    @app.train(mods=[protect])
    def train(message: Message, context: Context) -> Message:
        if message.content.config_records["config"]["server-round"] != 1:
            raise RuntimeError("no power")
        new = {name: array + 1 for name, array in arrays_of(message.content).items()}
        numbers = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": to_record(new), "metrics": numbers})
        return Message(content, reply_to=message)

    with caplog.at_level(logging.INFO, "flwr"):
        result, _ = run(LocalGrid(app, 2, {}), FedAdam(fraction_evaluate=0), Encoding())
    first = from_record(result.arrays)["b"]
    assert np.isfinite(first).all()
    assert (first != START["b"]).all()
    assert sum("no power" in r.getMessage() for r in caplog.records) >= 4
    assert any("round 3" in r.getMessage() and "stay" in r.getMessage() for r in caplog.records)


def test_the_log_has_the_bytes_of_every_round(caplog: pytest.LogCaptureFixture) -> None:
    encoding = Encoding("float16")
    grid = LocalGrid(app_of(raising, "never", encoding), CLIENTS, {"update-values": "float16"})
    with caplog.at_level(logging.INFO, "flwr"):
        run(grid, FedAvg(fraction_evaluate=0), encoding)
    lines = [r.getMessage() for r in caplog.records if "bytes to 4 clients" in r.getMessage()]
    assert [line.split(":")[0] for line in lines] == ["round 1", "round 2", "round 3"]
