"""What happens on a device to the reply of its training before it is sent.

`protect` stands around the training of a `ClientApp`.  As the configuration of the run says, it

  1. lets Flower's mod clip the update and, for local privacy, add noise to it;
  2. encodes the update (`engine.federated.updates`) and keeps in the context of the client what a
     sparse message leaves out;
  3. notes in record "config" of which round the reply is, and how it is encoded;

or, with secure aggregation, lets Flower mask what 1. has left (`masks`).

Without privacy and encoding the reply has the arrays that the training gave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.clientapp.typing import ClientAppCallable, Mod

from engine.errors import InputError, ShapeError
from engine.federated import parameters
from engine.federated.flower.masks import masked
from engine.federated.flower.records import (
    ARRAYS,
    CONFIG,
    EXAMPLES,
    METRICS,
    arrays_of,
    config_of,
    from_record,
    to_record,
)
from engine.federated.parameters import Arrays
from engine.federated.privacy import Privacy, options
from engine.federated.updates import Encoding

ROUND = "server-round"
SEND = "send"
_RESIDUAL = "edgegrad.residual"


def protect(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod of Flower: train by `call_next`, then clip, add noise and encode.

    Raises:
        EngineError: options that do not go together, or an update that cannot be sent so.
    """
    if not message.metadata.message_type.startswith(MessageType.TRAIN):
        return call_next(message, context)
    privacy, encoding = options(context.run_config)
    if privacy.secure_range:

        def train(message: Message, context: Context) -> Message:
            sent = arrays_of(message.content)
            return _clipped(message, context, privacy, sent, call_next)

        return masked(message, context, train, privacy.secure_range)
    notes = {ROUND: config_of(message.content).get(ROUND, 0)}
    if privacy.kind == "none" and encoding.lossless:
        reply = call_next(message, context)
        return reply if reply.has_error() else _noted(reply, notes)
    sent = arrays_of(message.content)
    reply = _clipped(message, context, privacy, sent, call_next)
    if reply.has_error():
        return reply
    if not encoding.lossless:
        update = parameters.difference(arrays_of(reply.content), sent)
        reply.content[ARRAYS] = to_record(_encoded(update, encoding, context.state))
    return _noted(reply, notes | encoding_notes(encoding))


def _clipped(
    message: Message,
    context: Context,
    privacy: Privacy,
    sent: Arrays,
    call_next: ClientAppCallable,
) -> Message:
    """The reply of the training with all parameters, clipped and with noise as privacy says."""
    mod = _mod(privacy)
    if mod is None:
        return _whole(sent, call_next)(message, context)
    for name, array in sent.items():
        check_clippable(name, array)
    reply = mod(message, context, _whole(sent, call_next, moved=True))
    if not reply.has_error() and privacy.kind == "local":  # numbers are sent without noise
        reply.content[METRICS] = MetricRecord({EXAMPLES: 1})
    return reply


def encoding_notes(encoding: Encoding) -> dict[str, str | float]:
    """What a reply says of its encoding; nothing if it has the parameters as they are."""
    if encoding.lossless:
        return {}
    return {"update-values": encoding.values, "update-fraction": float(encoding.fraction)}


def check_clippable(name: str, array: np.ndarray[Any, Any]) -> None:
    """Refuse what Flower's clipping and noise would leave as it is.

    Raises:
        ShapeError: a parameter has no dimension: Flower changes arrays in place, and of these makes
            numbers that it cannot change.
    """
    if array.ndim == 0:
        raise ShapeError(
            f"parameter {name!r} has no dimension: Flower neither clips such nor adds noise to "
            "them; give it the shape [1], or keep it on the devices with `local`"
        )


def _mod(privacy: Privacy) -> Mod | None:
    """Flower's mod for the part of the clients."""
    if privacy.kind == "local":
        return LocalDpMod(
            privacy.clipping_norm, privacy.sensitivity, privacy.epsilon, privacy.delta
        )
    return {"client-fixed": fixedclipping_mod, "client-adaptive": adaptiveclipping_mod}.get(
        privacy.kind
    )


def _whole(
    sent: Arrays, call_next: ClientAppCallable, *, moved: bool = False
) -> Callable[[Message, Context], Message]:
    """The training, whose reply has all parameters and not their differences.

    moved: refuse an update that is zero.
    """

    def answer(message: Message, context: Context) -> Message:
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        new = arrays_of(reply.content)
        if config_of(reply.content).get(SEND) == "difference":
            new = parameters.add(sent, new)
        if moved and not any(a.any() for a in parameters.difference(new, sent).values()):
            raise InputError("training changed no parameter, and Flower cannot clip such an update")
        records = {name: r for name, r in reply.content.items() if name != CONFIG}
        reply.content = RecordDict(records | {ARRAYS: to_record({n: new[n] for n in sent})})
        return reply

    return answer


def _encoded(update: Arrays, encoding: Encoding, state: RecordDict) -> Mapping[str, Any]:
    """The arrays to send; `state` has the residual of the last message, and gets the new one."""
    if not encoding.sparse:
        return encoding.encode(update)
    kept = state.array_records.get(_RESIDUAL)
    old = None if kept is None else from_record(kept)[_RESIDUAL]
    message, residual = encoding.compensated(update, old)
    state[_RESIDUAL] = to_record({_RESIDUAL: residual})
    return message


def _noted(reply: Message, notes: Mapping[str, Any]) -> Message:
    """A reply with notes in its record "config"."""
    reply.content[CONFIG] = ConfigRecord({**config_of(reply.content), **notes})
    return reply
