"""Processing of the reply of a training run on a device before it is sent.

`protect` wraps the training of a `ClientApp`.  Depending on the configuration of the run, it

  1. clips the update if that is the client's part, and adds noise to it for local privacy;
  2. encodes the update (`engine.federated.updates`) and keeps in the context of the client the
  elements that a sparse message leaves out;
  3. notes the round and the encoding of the reply in record "config";

or, with secure aggregation, lets Flower mask what 1. has left (`masks`).

Without privacy and encoding the reply has the arrays that the training gave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from engine.base import arguments
from engine.base.errors import InputError
from engine.federated import noise, parameters
from engine.federated.flower.masks import mask_reply
from engine.federated.flower.records import (
    ARRAYS,
    CONFIG,
    EXAMPLES,
    METRICS,
    arrays_of,
    from_record,
    read_config,
    to_record,
)
from engine.federated.parameters import Arrays
from engine.federated.privacy import Privacy, options
from engine.federated.updates import Encoding, split_vector

ROUND = "server-round"
SEND = "send"
NORM = "clipping-norm"  # of the configuration of a round: the norm to which a client clips
NOT_CLIPPED = "not-clipped"  # of the numbers of a reply: 1 if the update was within the norm
_RESIDUAL = "edgegrad.residual"


def protect(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Train by `call_next`, then clip, add noise and encode; this is a mod of Flower.

    Raises:
        EngineError: options contradict each other, or the update cannot be sent in this way.
    """
    if not message.metadata.message_type.startswith(MessageType.TRAIN):
        return call_next(message, context)
    privacy, encoding = options(context.run_config)
    if privacy.secure_range:

        def train(message: Message, context: Context) -> Message:
            sent = arrays_of(message.content)
            return _clip_reply(message, context, privacy, sent, call_next)

        return mask_reply(message, context, train, privacy.secure_range)
    notes = {ROUND: read_config(message.content).get(ROUND, 0)}
    if privacy.kind == "none" and encoding.lossless:
        reply = call_next(message, context)
        return reply if reply.has_error() else _add_notes(reply, notes)
    sent = arrays_of(message.content)
    reply = _clip_reply(message, context, privacy, sent, call_next)
    if reply.has_error():
        return reply
    if not encoding.lossless:
        update = parameters.subtract(arrays_of(reply.content), sent)
        reply.content[ARRAYS] = to_record(_encode(update, encoding, context.state))
    return _add_notes(reply, notes | describe_encoding(encoding))


def _clip_reply(
    message: Message,
    context: Context,
    privacy: Privacy,
    sent: Arrays,
    call_next: ClientAppCallable,
) -> Message:
    """Return the reply of the training with all parameters, clipped and with noise for privacy."""
    reply = _reply_whole(sent, call_next)(message, context)
    if reply.has_error() or privacy.kind == "none" or privacy.kind.startswith("server-"):
        return reply
    norm = privacy.clipping_norm
    if privacy.kind != "local":  # from the server, because an adaptive one changes
        norm = arguments.check_real(NORM, read_config(message.content).get(NORM, norm))
        if not 0 < norm < np.inf:
            raise InputError(f"the server's {NORM} is {norm}; expected a number above 0")
    update = update_of(arrays_of(reply.content), sent)
    if privacy.kind == "local":
        update = noise.add_noise(update, norm, privacy.multiplier)
        numbers = MetricRecord({EXAMPLES: 1})  # other records would be sent without noise
    else:
        length = noise.measure_length(update)
        update = update * (norm / max(norm, length))
        numbers = MetricRecord(dict(reply.content.metric_records[METRICS]))
        if privacy.adaptive:
            numbers[NOT_CLIPPED] = int(length <= norm)
    reply.content[METRICS] = numbers
    reply.content[ARRAYS] = to_record(apply_update(sent, update))
    return reply


def apply_update(sent: Arrays, update: np.ndarray[Any, Any]) -> Arrays:
    """Return parameters plus an update whose elements are concatenated."""
    shapes = {name: array.shape for name, array in sent.items()}
    return parameters.add(sent, split_vector(update, shapes))


def update_of(new: Arrays, sent: Arrays) -> np.ndarray[Any, Any]:
    """Return the elements of an update, concatenated, in float64."""
    parts = [
        np.subtract(new[name], array, dtype=np.float64).reshape(-1) for name, array in sent.items()
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def describe_encoding(encoding: Encoding) -> dict[str, str | float]:
    """Return a reply's notes on its encoding; none if it has the parameters unchanged."""
    if encoding.lossless:
        return {}
    return {"update-values": encoding.values, "update-fraction": float(encoding.fraction)}


def _reply_whole(
    sent: Arrays, call_next: ClientAppCallable
) -> Callable[[Message, Context], Message]:
    """Return the training with a reply of all parameters instead of their differences."""

    def answer(message: Message, context: Context) -> Message:
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        new = arrays_of(reply.content)
        if read_config(reply.content).get(SEND) == "difference":
            new = parameters.add(sent, new)
        records = {name: r for name, r in reply.content.items() if name != CONFIG}
        reply.content = RecordDict(records | {ARRAYS: to_record({n: new[n] for n in sent})})
        return reply

    return answer


def _encode(update: Arrays, encoding: Encoding, state: RecordDict) -> Mapping[str, Any]:
    """Return the arrays to send; `state` has the residual of the last message, and gets the new
    one.
    """
    if not encoding.sparse:
        return encoding.encode(update)
    kept = state.array_records.get(_RESIDUAL)
    old = None if kept is None else from_record(kept)[_RESIDUAL]
    message, residual = encoding.compensated(update, old)
    state[_RESIDUAL] = to_record({_RESIDUAL: residual})
    return message


def _add_notes(reply: Message, notes: Mapping[str, Any]) -> Message:
    """Return a reply with notes in its record "config"."""
    reply.content[CONFIG] = ConfigRecord({**read_config(reply.content), **notes})
    return reply
