"""ClientApp: handlers for the messages of a round on a device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.common.constant import ErrorCode

from engine.base.errors import EngineError, InputError
from engine.federated import parameters
from engine.federated.flower.mods import protect
from engine.federated.flower.records import (
    ARRAYS,
    CONFIG,
    EXAMPLES,
    METRICS,
    PARTITION,
    arrays_of,
    load_kept,
    read_config,
    store_kept,
    tell_partition,
    to_record,
)
from engine.federated.learner import LocalLearner
from engine.federated.learners import learner_of
from engine.federated.local_options import SEND, LocalOptions, local_options, one_of

MakeTrainer = Callable[[Mapping[str, Any]], Any]
DataOf = Callable[[Context], tuple[Any, Any]]
Answer = Callable[[Message, Context], RecordDict]

_log = logging.getLogger("flwr")


def client_app(make: MakeTrainer, data: DataOf, *, mods: list[Mod] | None = None) -> ClientApp:
    """Return a ClientApp that trains and evaluates with a trainer.

    Args:
        make: makes the trainer from the configuration of the run, a `Trainer` of the engine or of a
            trimmed build; called once in a process, which may serve many clients in turn.
        data: returns the data of a client as (training data, validation data), each as
            `engine.data.batches` takes it, or None.  Its argument is the context, whose
            `node_config` has "partition-id" and "num-partitions" in simulations, and on a device
            the values of `flower-supernode --node-config`.
        mods: mods of Flower around training, inside of `engine.federated.flower.mods`.

    If the parameters or the data of a client are faulty, its reply is an error whose reason names
    the client; the server logs it, and the round goes on without it.
    """
    app, learners = ClientApp(), _Learners(make)

    @app.train(mods=[protect, *(mods or [])])
    @answering
    def train(message: Message, context: Context) -> RecordDict:
        return _train(learners.get(context), data(context)[0], message, context)

    @app.evaluate()
    @answering
    def evaluate(message: Message, context: Context) -> RecordDict:
        return _evaluate(learners.get(context), data(context)[1], message, context)

    @app.query()
    @answering
    def query(message: Message, context: Context) -> RecordDict:
        return tell_partition(context)

    return app


class _Learners:
    """Learner of a process, made at its first use, and again for another run."""

    def __init__(self, make: MakeTrainer) -> None:
        self._make = make
        self._config: dict[str, Any] | None = None
        self._learner: LocalLearner | None = None

    def get(self, context: Context) -> LocalLearner:
        config = dict(context.run_config)
        if self._learner is None or config != self._config:
            self._learner, self._config = learner_of(self._make(config)), config
        return self._learner


def _train(learner: LocalLearner, data: Any, message: Message, context: Context) -> RecordDict:
    """Train on the data of a client; return its results."""
    arrays, config = arrays_of(message.content), configuration(message, context)
    options = _read_options(config, context)
    if data is None:
        raise InputError("there is no training data")
    learner.begin(arrays, options, load_kept(context.state))
    learned = learner.train(data, options)
    new = learned.arrays
    if one_of(config, "send", SEND) == "difference":
        new = parameters.subtract(new, arrays)
    store_kept(learner.kept(options), context.state)
    return RecordDict(
        {
            ARRAYS: to_record(new),
            METRICS: MetricRecord({EXAMPLES: learned.examples, "train_loss": learned.loss}),
            CONFIG: ConfigRecord({"send": one_of(config, "send", SEND)}),
        }
    )


def _evaluate(learner: LocalLearner, data: Any, message: Message, context: Context) -> RecordDict:
    """Evaluate the parameters of a round on the validation data of a client."""
    arrays, options = (
        arrays_of(message.content),
        _read_options(configuration(message, context), context),
    )
    if data is None:
        raise InputError("there is no validation data")
    learner.begin(arrays, options, load_kept(context.state))
    samples, metrics = learner.evaluate(data, options)
    numbers = {f"eval_{name}": value for name, value in metrics.items()}
    return RecordDict({METRICS: MetricRecord({EXAMPLES: samples, **numbers})})


def configuration(message: Message, context: Context) -> dict[str, Any]:
    """Return the configuration of the run, with the server's values for this round."""
    return {**context.run_config, **read_config(message.content)}


def _read_options(config: Mapping[str, Any], context: Context) -> LocalOptions:
    round_number = int(config.get("server-round", 0))
    return local_options(config, round_number, int(identify(context)))


def identify(context: Context) -> int:
    """Return the number of a client: its partition, or its node if it has none."""
    return int(context.node_config.get(PARTITION, context.node_id))


def answering(answer: Answer) -> Callable[[Message, Context], Message]:
    """Return a handler of messages that replies with errors instead of raising them."""

    def handle(message: Message, context: Context) -> Message:
        try:
            return Message(answer(message, context), reply_to=message)
        except EngineError as error:
            reason = f"client {identify(context)}: {type(error).__name__}: {error}"
            _log.warning("%s", reason)
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            return Message(Error(code=code, reason=reason), reply_to=message)

    return handle
