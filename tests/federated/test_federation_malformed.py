"""Malicious clients: whatever one of them replies, the others' work is the same as without it.

Every malformed reply of a list, with every strategy and kind of privacy: the rounds end, and the
result equals, to the last bit, a federation whose client has failed instead.
"""

from __future__ import annotations

import gc
import io
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from engine.federated import noise
from engine.federated.flower import mods
from engine.federated.flower.mods import protect
from engine.federated.flower.private import add_privacy
from engine.federated.flower.records import arrays_of, from_record, to_record
from engine.federated.flower.replies import Limits
from engine.federated.flower.rounds import Rounds
from engine.federated.flower.simulation import LocalGrid
from engine.federated.flower.strategies import make_strategy
from engine.federated.privacy import options
from engine.federated.schema import NumberField

CLIENTS, BAD, ROUNDS = 6, 2, 3
START = {"w": np.ones((2, 3), np.float32), "b": np.zeros(3, np.float32)}
Spoil = Callable[[RecordDict], None]


class Failing(Exception):
    """Error of the client in the federation with which all others are compared."""


def fail(_: RecordDict) -> None:
    raise Failing


# --- what a reply may be instead


def number(name: str, value: Any) -> Spoil:
    """A number of another value; the records of Flower check types when they are written alone."""

    def spoil(content: RecordDict) -> None:
        dict.__setitem__(content.metric_records["metrics"].__dict__["_data"], name, value)

    return spoil


def without(record: str, name: str) -> Spoil:
    def spoil(content: RecordDict) -> None:
        content[record].pop(name)

    return spoil


def no_record(name: str) -> Spoil:
    def spoil(content: RecordDict) -> None:
        content.pop(name)

    return spoil


def array(name: str, value: np.ndarray[Any, Any]) -> Spoil:
    def spoil(content: RecordDict) -> None:
        content.array_records["arrays"][name] = Array(value)

    return spoil


def data(change: Callable[[bytes], bytes], stype: str = "numpy.ndarray") -> Spoil:
    """Other bytes of "w"."""

    def spoil(content: RecordDict) -> None:
        old = content.array_records["arrays"]["w"]
        new = Array(dtype=old.dtype, shape=old.shape, stype=stype, data=change(old.data))
        content.array_records["arrays"]["w"] = new

    return spoil


def header(text: str, version: int = 1, body: bytes = bytes(24)) -> Spoil:
    size = len(text).to_bytes(2 if version == 1 else 4, "little")
    return data(lambda _: b"\x93NUMPY" + bytes([version, 0]) + size + text.encode() + body)


def saved(value: Any, **how: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, value, **how)
    return file.getvalue()


def note(name: str, value: Any) -> Spoil:
    def spoil(content: RecordDict) -> None:
        dict.__setitem__(content.config_records["config"].__dict__["_data"], name, value)

    return spoil


def more_records(content: RecordDict) -> None:
    content["others"] = to_record(START)


def more_numbers(content: RecordDict) -> None:
    for k in range(100):
        content.metric_records["metrics"][f"n{k}"] = 1.0


def swapped(content: RecordDict) -> None:
    arrays = arrays_of(content)
    content["arrays"] = to_record({"w": arrays["b"], "b": arrays["w"]})


W = (2, 3)
A, F = "{'descr': '<f4', ", "'fortran_order': False, 'shape': (2, 3), }\n"
C = A + "'fortran_order': False, 'shape': "
MALFORMED: dict[str, Spoil] = {
    "error": lambda _: (_ for _ in ()).throw(ZeroDivisionError("sensor")),
    "no arrays": no_record("arrays"),
    "no numbers": no_record("metrics"),
    "no notes": no_record("config"),
    "another record": more_records,
    "a hundred numbers": more_numbers,
    "no w": without("arrays", "w"),
    "no b": without("arrays", "b"),
    "no arrays in it": lambda c: c.__setitem__("arrays", ArrayRecord({})),
    "one more": array("c", np.zeros(1, np.float32)),
    "swapped": swapped,
    "no examples": without("metrics", "num-examples"),
    "examples 0": number("num-examples", 0),
    "examples negative": number("num-examples", -8),
    "examples a float": number("num-examples", 8.0),
    "examples 1.7e308": number("num-examples", 1.7e308),
    "examples 2**62": number("num-examples", 2**62),
    "examples 2**4000": number("num-examples", 2**4000),
    "examples a list": number("num-examples", [8]),
    "examples a text": number("num-examples", "8"),
    "examples true": number("num-examples", True),
    "examples nan": number("num-examples", float("nan")),
    "examples none": number("num-examples", None),
    "loss a list": number("train_loss", [1.0]),
    "loss a text": number("train_loss", "low"),
    "loss nan": number("train_loss", float("nan")),
    "loss inf": number("train_loss", float("-inf")),
    "loss 1e300": number("train_loss", 1e300),
    "loss 10**400": number("train_loss", 10**400),
    "a long name": number("x" * 100_000, 1.0),
    "w nan": array("w", np.full(W, np.nan, np.float32)),
    "w one nan": array("w", np.array([[0, 0, 0], [0, np.nan, 0]], np.float32)),
    "w inf": array("w", np.full(W, np.inf, np.float32)),
    "w -inf": array("w", np.full(W, -np.inf, np.float32)),
    "w 3e38": array("w", np.full(W, 3e38, np.float32)),
    "w 1e20": array("w", np.full(W, 1e20, np.float32)),
    "w float64": array("w", np.ones(W)),
    "w float16": array("w", np.ones(W, np.float16)),
    "w int32": array("w", np.ones(W, np.int32)),
    "w big-endian": array("w", np.ones(W, ">f4")),
    "w complex": array("w", np.ones(W, np.complex64)),
    "w texts": array("w", np.full(W, "1")),
    "w transposed": array("w", np.ones((3, 2), np.float32)),
    "w flat": array("w", np.ones(6, np.float32)),
    "w a number": array("w", np.ones((), np.float32)),
    "w larger": array("w", np.ones((200, 300), np.float32)),
    "w empty": array("w", np.ones((0, 3), np.float32)),
    "w in the order of Fortran": array("w", np.asfortranarray(np.ones(W, np.float32))),
    "b broadcasts": array("b", np.ones(1, np.float32)),
    "no bytes": data(lambda _: b""),
    "cut in the magic": data(lambda old: old[:4]),
    "cut in the length": data(lambda old: old[:9]),
    "cut in the header": data(lambda old: old[:60]),
    "cut in the elements": data(lambda old: old[:-1]),
    "a byte more": data(lambda old: old + b"\0"),
    "a megabyte more": data(lambda old: old + bytes(1 << 20)),
    "no file": data(lambda _: b"\0" * 152),
    "an archive": data(lambda _: b"PK\x03\x04" + bytes(148)),
    "another version": data(lambda old: old[:6] + b"\x09" + old[7:]),
    "a pickle": data(lambda _: b"\x80\x04cos\nsystem\n(S'true'\ntR."),
    "objects": data(lambda _: saved(np.array([None] * 6, object), allow_pickle=True)),
    "another kind": data(lambda old: old, "torch.Tensor"),
    "header: objects": header("{'descr': '|O', " + F),
    "header: huge": header(C + "(2, 4000000000), }\n"),
    "header: endless": header(C + "(" + "9" * 900 + ",), }\n"),
    "header: negative": header(C + "(-2, -3), }\n"),
    "header: nested": header("(" * 3000),
    "header: 16 MB": header(A + F + " " * (1 << 24), 2),
    "header: expression": header(C + "(2, 3) * 9**9, }\n"),
    "header: records": header("{'descr': [('a', '<f4')], " + F),
    "header: no type": header("{'fortran_order': False, 'shape': (2, 3), }\n"),
    "header: strange type": header("{'descr': '<z9', " + F),
    "header: another truth": header(A + "'fortran_order': 0, 'shape': (2, 3), }\n"),
    "header: longer than the file": data(lambda old: old[:8] + b"\xff\xff" + old[10:]),
    "another round": note("server-round", 1),
    "a round that is a list": note("server-round", [2]),
    "a round that is a text": note("server-round", "2"),
    "no round": without("config", "server-round"),
    "another encoding": note("update-values", "float16"),
    "half an encoding": note("update-fraction", 0.5),
    "an encoding that is a list": note("update-values", ["float16"]),
    "another way of sending": note("send", "gradient"),
    "a way of sending that is bytes": note("send", b"difference"),
}  # fmt: skip
DUPLICATES = ("twice", "late", "as another node")

OPTIONS: dict[str, dict[str, Any]] = {
    "QFedAvg": {"QFedAvg.client-learning-rate": 0.1},
    "Krum": {"Krum.num-malicious-nodes": 1},
    "MultiKrum": {"MultiKrum.num-malicious-nodes": 1, "MultiKrum.num-nodes-to-select": 2},
}
STRATEGIES = (
    "FedAvg", "FedAvgM", "FedAdam", "FedAdagrad", "FedYogi", "FedProx", "FedMedian",
    "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan", "QFedAvg",
)  # fmt: skip
PRIVATE = ("local", "client-fixed", "server-fixed", "client-adaptive", "server-adaptive")
ENCODED: dict[str, dict[str, Any]] = {
    "float16": {"update-values": "float16"},
    "sparse": {"update-values": "bfloat16", "update-fraction": 0.3},
    "difference": {"send": "difference"},
}
MODES: dict[str, dict[str, Any]] = {
    **{name: {"strategy": name, **OPTIONS.get(name, {})} for name in STRATEGIES},
    **{
        kind: {"privacy": kind, "clients-per-round": CLIENTS, "noise-multiplier": 0.5}
        for kind in PRIVATE
    },
    **ENCODED,
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's QFedAvg collects garbage for every reply, half a second each."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


class Hostile(LocalGrid):
    """Clients; one replies arbitrarily in round 2."""

    def __init__(self, spoil: Spoil, duplicate: str, config: dict[str, Any]) -> None:
        super().__init__(app_of(spoil), CLIENTS, config)
        self.duplicate = duplicate

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies, with one of the bad client more or less in round 2."""
        listed = list(super().pull_messages(message_ids))
        for reply in list(listed) if self.duplicate else []:
            node = reply.metadata.src_node_id
            notes: Any = {}
            if not reply.has_error():
                notes = reply.content.config_records.get("config", {})
            if (
                self.contexts[node].node_config["partition-id"] != BAD
                or notes.get("server-round") != 2
            ):
                continue
            if self.duplicate == "twice":
                listed.append(reply)
            elif self.duplicate == "late":
                listed.remove(reply)
            else:
                reply.metadata.__dict__["_src_node_id"] = 77
        return listed


def app_of(spoil: Spoil) -> ClientApp:
    """Clients that learn a little, each something else; in round 2 one of them spoils its reply."""
    app = ClientApp()

    def spoiler(message: Message, context: Context, call_next: Any) -> Message:
        """Change the reply outside of the engine's mod, just before it is sent."""
        told = message.content.config_records["config"]["server-round"]
        reply: Message = call_next(message, context)
        if told == 2 and context.node_config["partition-id"] == BAD:
            spoil(reply.content)
        return reply

    @app.train(mods=[spoiler, protect])
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        rng = np.random.default_rng(client)
        sent = arrays_of(message.content)
        change = {n: 0.1 * rng.standard_normal(a.shape).astype("f4") for n, a in sent.items()}
        is_difference = context.run_config.get("send") == "difference"
        new = change if is_difference else {n: sent[n] + change[n] for n in sent}
        content = RecordDict(
            {
                "arrays": to_record(new),
                "metrics": MetricRecord({"num-examples": 8 + client, "train_loss": 1.0 + client}),
                "config": ConfigRecord({"send": "difference" if is_difference else "parameters"}),
            }
        )
        return Message(content, reply_to=message)

    return app


def federated(
    mode: dict[str, Any], spoil: Spoil, monkeypatch: pytest.MonkeyPatch, duplicate: str = ""
) -> tuple[dict[str, bytes], Rounds]:
    """Do all rounds; the bits of the parameters that result.  Noise is the same in every run."""
    draws = itertools.count()

    def drawn(count: int, bits: int) -> noise.Integers:
        rng = np.random.default_rng([next(draws), count])
        actual_values: noise.Integers = np.rint(rng.standard_normal(count) * 2**bits).astype(
            np.int64
        )
        return actual_values

    by_client = (
        (lambda values, norm, _: values * (norm / max(norm, noise.measure_length(values))))
        if mode.get("privacy") == "local"
        else noise.add_noise
    )  # of the clients, which are in the order of random ids
    privacy, encoding = options(mode)
    numbers = {"num-examples": NumberField(True, 1, 1 if privacy.kind == "local" else 10**6, True)}
    if privacy.kind == "client-adaptive":
        numbers[mods.NOT_CLIPPED] = NumberField(True, 0, 1, True)
    grid = Hostile(spoil, duplicate, mode)
    strategy = make_strategy(mode.get("strategy", "FedAvg"), {"fraction-evaluate": 0.0, **mode})
    limits = Limits(numbers, ratio=0.0 if privacy.central else 100.0)
    rounds = Rounds(add_privacy(strategy, privacy), encoding=encoding, limits=limits)
    with monkeypatch.context() as patch:
        patch.setattr(noise, "draw_gaussian", drawn)
        patch.setattr(noise, "add_noise", by_client)
        result = rounds.start(grid, to_record(START), num_rounds=ROUNDS, timeout=9)
    return {n: a.tobytes() for n, a in from_record(result.arrays).items()}, rounds


def combinations() -> list[Any]:
    """All malformed replies with FedAvg, and each with one other mode; the rest at length."""
    actual = []
    modes = [name for name in MODES if name != "FedAvg"]
    for k, (name, mode) in enumerate(itertools.product([*MALFORMED, *DUPLICATES], MODES)):
        place = k // len(MODES)
        is_sampled = mode == "FedAvg" or modes[place % len(modes)] == mode
        marks = () if is_sampled else (pytest.mark.whole,)
        actual.append(pytest.param(name, mode, marks=marks, id=f"{name}-{mode}"))
    return actual


EXPECTED: dict[str, dict[str, bytes]] = {}


@pytest.mark.parametrize(("name", "mode"), combinations())
def test_a_malformed_reply_is_as_if_the_client_had_failed(
    name: str, mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if mode not in EXPECTED:
        EXPECTED[mode], _ = federated(MODES[mode], fail, monkeypatch)
    caplog.clear()
    spoil = MALFORMED.get(name, lambda _: None)
    actual, rounds = federated(MODES[mode], spoil, monkeypatch, name if name in DUPLICATES else "")
    told = [r.getMessage() for r in caplog.records if "left out of train" in r.getMessage()]
    assert actual == EXPECTED[mode]
    assert rounds.round.results == CLIENTS  # of round 3, which has all of them
    assert len(told) == (2 if name == "as another node" else 1), told
    assert all(line.startswith("round 2: node ") for line in told)
    assert any(a != START[n].tobytes() for n, a in actual.items())
