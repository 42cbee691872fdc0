"""Rounds of a federation, by clients in this process: results, resuming, and what goes wrong."""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import (
    EngineError,
    InputError,
    MissingPackageError,
    NameNotFoundError,
    StateError,
)
from engine.federated import parameters
from tests.support import tiny

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ArrayRecord, Context, Message  # after the skip
from flwr.clientapp import ClientApp  # after the skip

from engine.federated import flower  # after the skip
from engine.federated.flower import simulation  # after the skip
from tests.support.federations import make, make_data, run_federation

ADAM = {"strategy": "FedAdam", "FedAdam.eta": 0.05, "FedAdam.tau": 0.01}


def test_a_round_may_have_some_of_the_clients(tmp_path: Path) -> None:
    _, rows = run_federation(tmp_path, clients=2, min_train_nodes=1, fraction_train=0.5)
    assert [row["round"] for row in rows] == ["1", "2", "3", "4"]
    assert float(rows[-1]["server_loss"]) < float(rows[0]["server_loss"])
    assert {row["results"] for row in rows} == {"1"}
    assert (tmp_path / "1/inference.onnx").exists()


def test_nodes_that_do_not_say_who_they_are_still_take_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = flower.client_app(make, make_data)

    def silent(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "query":
            raise ValueError("unknown message")
        return client(message, context)

    class App(ClientApp):
        __call__ = staticmethod(silent)

    _, rows = run_federation(tmp_path, client=App(), fraction_train=0.5, num_server_rounds=1)
    assert rows[0]["results"] == "2"
    assert "4 of 4 nodes do not say which client they are" in caplog.text


@pytest.mark.parametrize("more", [{}, {**ADAM, "model": "normed"}, {"fraction-train": 0.5}])
def test_the_same_seed_gives_the_same_result(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of nodes, the order of replies, and other uses of `random` do not matter."""
    first, rows = run_federation(tmp_path / "a", **more)
    pull, nodes = simulation.LocalGrid.pull_messages, simulation.LocalGrid.get_node_ids

    def drawing(grid: simulation.LocalGrid) -> Any:
        random.random()  # as Flower's threads do
        return nodes(grid)

    monkeypatch.setattr(simulation.LocalGrid, "get_node_ids", drawing)
    monkeypatch.setattr(
        simulation.LocalGrid, "pull_messages", lambda grid, ids: list(pull(grid, ids))[::-1]
    )
    random.seed(1)
    second, again = run_federation(tmp_path / "b", **more)
    assert tiny.read_values(first) == tiny.read_values(second)
    for row in (*rows, *again):
        del row["seconds"]
    assert rows == again
    other, _ = run_federation(tmp_path / "c", **{**more, "seed": 6})
    assert tiny.read_values(other) != tiny.read_values(first)


@pytest.mark.parametrize(
    "more",
    [
        {"strategy": "FedAvgM", "FedAvgM.server-momentum": 0.5},
        {**ADAM, "model": "normed"},
    ],
)
def test_a_server_that_is_killed_goes_on_from_its_last_round(
    more: dict[str, Any], tmp_path: Path
) -> None:
    """While clients evaluate round 3, which is aggregated: the result is the same to the bit."""
    whole, rows = run_federation(tmp_path / "whole", **more)
    client = flower.client_app(make, make_data)

    class Killed(BaseException):
        """As a signal: no handler of exceptions sees it."""

    def dying(message: Message, context: Context) -> Message:
        number = message.content.config_records["config"]["server-round"]
        if (message.metadata.message_type, number) == ("evaluate", 3):
            raise Killed
        return client(message, context)

    class App(ClientApp):
        __call__ = staticmethod(dying)

    with pytest.raises(Killed):
        run_federation(tmp_path / "killed", client=App(), **more)
    made = tmp_path / "killed/1"
    assert sorted(p.name for p in (made / "checkpoints").iterdir()) == [
        f"{n:08d}" for n in (1, 2, 3)
    ]
    resumed, actual = run_federation(tmp_path / "killed", resume="last", **more)
    assert tiny.read_values(resumed) == tiny.read_values(whole)
    assert [(r["round"], r["train_loss"]) for r in actual] == [
        (r["round"], r["train_loss"]) for r in rows
    ]
    again, actual = run_federation(tmp_path / "killed", resume="1/round-2", **more)
    assert tiny.read_values(again) == tiny.read_values(whole)
    assert [(r["round"], r["server_loss"]) for r in actual] == [
        (r["round"], r["server_loss"]) for r in rows
    ]
    with pytest.raises(StateError, match="strategy is 'FedYogi' here"):
        run_federation(tmp_path / "killed", resume="last", **{**more, "strategy": "FedYogi"})
    with pytest.raises(StateError, match="no such checkpoint; it has round-1, round-2"):
        run_federation(tmp_path / "killed", resume="round-9", **more)
    with pytest.raises(StateError, match="there is no run 7"):
        run_federation(tmp_path / "killed", resume="7/last", **more)
    with pytest.raises(InputError, match="expected 'last', 'round-7'"):
        run_federation(tmp_path / "killed", resume="round seven", **more)


def test_differences_come_to_the_same(tmp_path: Path) -> None:
    """Except for a rounding of each parameter, which Adam's steps of later rounds would enlarge."""
    one: dict[str, Any] = {"num-server-rounds": 1, "model": "normed"}
    whole, _ = run_federation(tmp_path / "a", **one)
    changed, _ = run_federation(tmp_path / "b", send="difference", **one)
    for name, parameter in whole.state.parameters:
        data = changed.state.parameters[name].data
        np.testing.assert_allclose(data, parameter.data, rtol=1e-6, atol=1e-6, err_msg=name)


def test_running_statistics_are_averaged_or_stay_where_they_are(tmp_path: Path) -> None:
    """An average is one of all clients, whatever optimizer the server has; FedBN sends none."""
    seen: list[dict[str, np.ndarray]] = []
    client = flower.client_app(make, make_data)

    def watching(message: Message, context: Context) -> Message:
        reply = client(message, context)
        if message.metadata.message_type == "train":
            seen.append(flower.from_record(reply.content.array_records["arrays"]))
        return reply

    class App(ClientApp):
        __call__ = staticmethod(watching)

    one: dict[str, Any] = {"num-server-rounds": 1, "model": "normed", **ADAM}
    trainer, _ = run_federation(tmp_path / "a", client=App(), **one)
    for name in ("norm.mean", "norm.var"):
        expected = np.mean(
            [arrays[name].astype(np.float64) for arrays in seen], 0
        )  # 5 samples each
        data = trainer.state.parameters[name].data
        np.testing.assert_array_equal(data, expected.astype(np.float32))
    seen.clear()
    trainer, _ = run_federation(
        tmp_path / "b", client=App(), statistics="local", local="norm.*", **one
    )
    assert {name for arrays in seen for name in arrays} == set(tiny.NAMES)
    start = make(one)
    for name in ("norm.mean", "norm.var", "norm.scale"):
        kept = start.state.parameters[name].data
        np.testing.assert_array_equal(trainer.state.parameters[name].data, kept)


def test_a_client_that_cannot_says_why_and_the_round_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No data, another architecture, a message without parameters, code that fails."""
    replies: list[Message] = []

    def poor(context: Context) -> tuple[Any, Any]:
        number = context.node_config["partition-id"]
        if number == 0:
            return (tiny.X[:0], tiny.LABELS[:0]), None
        if number == 1:
            raise KeyError("photos")
        return make_data(context)

    client = flower.client_app(make, poor)

    def odd(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 2 and message.metadata.message_type == "train":
            message.content["arrays"] = ArrayRecord()
        reply = client(message, context)
        replies.extend([reply] if reply.has_error() else [])
        return reply

    class App(ClientApp):
        __call__ = staticmethod(odd)

    _, rows = run_federation(tmp_path, client=App(), num_server_rounds=1)
    assert (rows[0]["results"], rows[0]["failures"]) == ("1", "3")
    told = [reply.error.reason or "" for reply in replies]
    assert any("client 0: InputError: there is no data to train on" in text for text in told)
    assert any("client 2: InputError: the arrays lack the parameter" in text for text in told)
    assert "KeyError: 'photos'" in caplog.text


@pytest.mark.parametrize(
    ("config", "kind", "message"),
    [
        ({"strategy": "FedAvgg"}, NameNotFoundError, "nearest: 'FedAvg'"),
        (
            {"strategy": "FedXgbBagging"},
            NameNotFoundError,
            "Flower has Bulyan, FedAdagrad, FedAdam",
        ),
        ({**ADAM, "FedAdam.etta": 1}, InputError, "no option 'etta'; nearest: 'eta'"),
        ({"send": "gradients"}, InputError, "expected one of 'parameters', 'difference'"),
        ({"local-epochs": 0}, EngineError, "epochs=0"),
        ({"num-server-rounds": -1}, InputError, "num-server-rounds=-1"),
        ({"statistics": "none"}, InputError, "expected one of 'average', 'local'"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    config: dict[str, Any], kind: type[EngineError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=message):
        run_federation(tmp_path / "runs", **config)
    assert not (tmp_path / "runs").exists()


def test_without_flower_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr.serverapp.strategy", None)
    monkeypatch.delitem(sys.modules, "engine.federated.flower")
    with pytest.raises(MissingPackageError, match=r"pip install 'edgegrad\[flower\]'"):
        importlib.import_module("engine.federated.flower")


@pytest.mark.parametrize(
    "name",
    ["Bulyan", "FedAdagrad", "FedMedian", "FedTrimmedAvg", "FedYogi", "Krum", "QFedAvg"],
)
def test_a_strategy_of_flower_is_had_by_its_name(name: str, tmp_path: Path) -> None:
    own = {"QFedAvg.client-learning-rate": 0.02}
    config: dict[str, Any] = {"strategy": name, "num-server-rounds": 2, **own}
    _, rows = run_federation(tmp_path, clients=5, **config)
    assert float(rows[1]["server_loss"]) < float(rows[0]["server_loss"])


def test_records_keep_names_order_and_bits() -> None:
    trainer = tiny.make_trainer(tiny.NORMED)
    names = parameters.trainable(trainer) + parameters.list_statistics(trainer)
    arrays = parameters.get(trainer, names)
    record = flower.from_record(flower.to_record(arrays))
    assert list(record) == names
    assert all(record[name].tobytes() == arrays[name].tobytes() for name in names)
    parameters.apply(trainer, record, names)
