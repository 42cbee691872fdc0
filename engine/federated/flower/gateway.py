"""ClientApp for devices without Flower: it forwards messages as files, and returns the answers.

    app = gateway_app(lambda context: ["devices/7", "devices/8"], seconds=600)

To the server it is one client: its parameters are the mean over its devices, weighted by their
samples, so FedAvg computes the same with gateways as with the devices themselves.  With one folder
for each `partition-id` it is several clients.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from engine.base.errors import EngineError, InputError, StateError
from engine.federated import message as messages
from engine.federated.flower.client import answering, configuration
from engine.federated.flower.mods import protect
from engine.federated.flower.records import (
    ARRAYS,
    CONFIG,
    EXAMPLES,
    METRICS,
    arrays_of,
    tell_partition,
    to_record,
)
from engine.federated.folder import Folder
from engine.federated.local_options import SEND, one_of
from engine.federated.message import fingerprint
from engine.federated.parameters import Arrays

Folders = Callable[[Context], Sequence[str | os.PathLike[str]]]
Answers = Mapping[str, messages.Message]

_log = logging.getLogger("flwr")


def gateway_app(
    folders: Folders, *, seconds: float = 600.0, pause: float = 0.05, mods: list[Mod] | None = None
) -> ClientApp:
    """Return a ClientApp that asks the devices of some folders.

    Args:
        folders: returns the folders of a client's devices, given its context.
        seconds: how long to wait for answers.  Devices that have not answered by then, or have
            failed, are logged with the reason, and the round goes on without them.
        pause: seconds between looks into the folders.
        mods: mods of Flower around training.  Privacy and encodings of the run apply to the mean.
    """
    app = ClientApp()

    @app.train(mods=[protect, *(mods or [])])
    @answering
    def train(message: Message, context: Context) -> RecordDict:
        config, request = _request("train", message, context)
        answers = _exchange(request, folders(context), seconds, pause)
        return RecordDict(
            {
                ARRAYS: to_record(_average_arrays(answers)),
                METRICS: _average_metrics(answers),
                CONFIG: ConfigRecord({"send": one_of(config, "send", SEND)}),
            }
        )

    @app.evaluate()
    @answering
    def evaluate(message: Message, context: Context) -> RecordDict:
        _, request = _request("evaluate", message, context)
        answers = _exchange(request, folders(context), seconds, pause)
        return RecordDict({METRICS: _average_metrics(answers)})

    @app.query()
    @answering
    def query(message: Message, context: Context) -> RecordDict:
        return tell_partition(context)

    return app


def _request(
    kind: str, message: Message, context: Context
) -> tuple[dict[str, Any], messages.Message]:
    """Return the configuration of a round, and the request to the devices."""
    arrays, config = arrays_of(message.content), configuration(message, context)
    number = int(config.get("server-round", 0))
    return config, messages.Message(kind, fingerprint(arrays), number, arrays, config)


def _exchange(
    request: messages.Message,
    folders: Sequence[str | os.PathLike[str]],
    seconds: float,
    pause: float,
) -> Answers:
    """Ask the devices, and wait for the answers, by folder in the order of the folders.

    Raises:
        InputError: there are no folders.
        StateError: no device has succeeded; the message has the reasons.
        FileError: a folder cannot be written.
    """
    places = {os.fspath(place): Folder(os.fspath(place)) for place in folders}
    if not places:
        raise InputError("this gateway has no folders of devices")
    for folder in places.values():
        folder.ask(request)
    answers, reasons = dict[str, messages.Message](), dict[str, str]()
    end = time.monotonic() + seconds
    while len(answers) + len(reasons) < len(places):
        for name, folder in places.items():
            if name in answers or name in reasons:
                continue
            try:
                answer = folder.answer_to(request)
            except EngineError as error:
                reasons[name] = str(error)
                continue
            if answer is not None and answer.kind == "failed":
                reasons[name] = answer.reason
            elif answer is not None:
                answers[name] = answer
        if time.monotonic() >= end:
            break
        time.sleep(pause)
    for name, folder in places.items():
        if name not in answers:
            reason = reasons.get(name, f"no answer within {seconds:g} seconds")
            _log.warning("device %s, round %d: %s", name, request.round, reason)
            reasons[name] = reason
        folder.clear(request)
    if not answers:
        told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise StateError(f"none of {len(places)} devices has answered: {told}")
    return {name: answers[name] for name in places if name in answers}


def _list_weights(answers: Answers) -> list[int]:
    """Return the numbers of samples; if no device has any, all weights are equal."""
    counts = [int(answer.metrics[EXAMPLES]) for answer in answers.values()]
    return counts if any(counts) else [1] * len(counts)


def _average_arrays(answers: Answers) -> Arrays:
    """Return the mean of the parameters, weighted by samples, as float64 sums in the order of
    folders.
    """
    weights, every = _list_weights(answers), list(answers.values())
    means = {}
    for name, first in every[0].arrays.items():
        total = np.zeros(first.shape, np.float64)
        for weight, answer in zip(weights, every, strict=True):
            total += np.multiply(answer.arrays[name], weight, dtype=np.float64)
        means[name] = (total / sum(weights)).astype(first.dtype)
    return means


def _average_metrics(answers: Answers) -> MetricRecord:
    """Return the number of samples, and the means of the numbers that every device has."""
    weights, every = _list_weights(answers), [answer.metrics for answer in answers.values()]
    means = MetricRecord({EXAMPLES: sum(int(metrics[EXAMPLES]) for metrics in every)})
    for name in every[0]:
        if name != EXAMPLES and all(name in metrics for metrics in every):
            pairs = zip(weights, every, strict=True)
            means[name] = sum(weight * metrics[name] for weight, metrics in pairs) / sum(weights)
    return means
