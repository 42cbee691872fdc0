"""What a server takes of the replies to a round: which are left out and why, and their bytes.

One client must not end a round, and what it sends must not spoil the average.  A reply is left out
where

  - it is an error: the client raised one, its process ended, or its node is not connected any more;
  - it has not come within the time of a round;
  - it is of another round, or has another encoding than agreed on;
  - it has other parameters than those that were sent, by name, shape or element type;
  - a parameter, or a number, is NaN or infinite, or it was trained on no sample;
  - the names of its numbers are not those that most replies have, since Flower's strategies stop
    where they differ.

Each is logged with the round, the node and the reason.  What the others have learned is aggregated;
if nothing is left, the parameters stay as they are.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from flwr.app import Array, Message, RecordDict

from engine.errors import DTypeError, EngineError, InputError, NonFiniteError, ShapeError
from engine.federated import parameters
from engine.federated.flower.mods import ROUND, SEND, encoding_notes
from engine.federated.flower.records import (
    ARRAYS,
    CONFIG,
    EXAMPLES,
    METRICS,
    arrays_of,
    config_of,
    to_record,
)
from engine.federated.parameters import Arrays
from engine.federated.updates import Encoding

_log = logging.getLogger("flwr")


class Replies:
    """The replies to the messages of one round of training or evaluation.

    encoding: of updates, as the clients have it.
    """

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self._number = 0
        self._purpose = ""
        self._nodes: list[int] = []
        self._sent: Arrays = {}
        self._bytes = 0

    @property
    def asked(self) -> int:
        """How many clients have been asked."""
        return len(self._nodes)

    def ask(self, number: int, purpose: str, messages: Sequence[Message]) -> None:
        """Messages of round `number`, all of the same parameters, are about to be sent.

        purpose: "train" or "evaluate".
        """
        self._number, self._purpose = number, purpose
        self._nodes = [message.metadata.dst_node_id for message in messages]
        self._sent = arrays_of(messages[0].content) if messages else {}
        self._bytes = sum(map(nbytes, messages))

    def usable(self, replies: Iterable[Message], *, told: bool = True) -> list[Message]:
        """The replies that can be aggregated, each with all parameters; logs why others cannot.

        told: whether the bytes of the round are logged, too.
        """
        found = list(replies)
        if told:
            self._log_bytes(found)
        kept, left_out = list[Message](), dict[int, str]()
        for reply in found:
            node = reply.metadata.src_node_id
            try:
                self._check(reply)
                kept.append(reply)
            except EngineError as error:
                left_out[node] = f"{type(error).__name__}: {error}"
            except (ValueError, TypeError, EOFError, MemoryError) as error:
                left_out[node] = f"it cannot be read: {type(error).__name__}: {error}"
        names = Counter(frozenset(_numbers(reply)) for reply in kept)
        usual = names.most_common(1)[0][0] if names else frozenset[str]()
        for reply in kept:
            if (own := frozenset(_numbers(reply))) != usual:
                left_out[reply.metadata.src_node_id] = (
                    f"its numbers are {sorted(own)}; those of most are {sorted(usual)}"
                )
        answered = {reply.metadata.src_node_id for reply in found}
        left_out |= {
            node: "it has not replied in time" for node in self._nodes if node not in answered
        }
        for node, reason in left_out.items():
            _log.warning(
                "round %d: node %d is left out of %s: %s", self._number, node, self._purpose, reason
            )
        return [reply for reply in kept if reply.metadata.src_node_id not in left_out]

    def _check(self, reply: Message) -> None:
        """Refuse a reply that cannot be used; one that can be gets all parameters.

        Raises:
            EngineError: and others, where bytes are no arrays.
        """
        if reply.has_error():
            raise InputError(reply.error.reason or f"error {reply.error.code} without a reason")
        content = reply.content
        if list(content.metric_records) != [METRICS]:
            raise InputError(
                f"it has records {list(content)}; expected one of numbers, {METRICS!r}"
            )
        for name, value in _numbers(reply).items():
            if not np.isfinite(value).all():
                raise NonFiniteError(f"{name} is {value}")
        samples = _numbers(reply).get(EXAMPLES, math.nan)
        if not isinstance(samples, int | float) or not samples > 0:
            raise InputError(f"{EXAMPLES} is {samples}; expected more than 0")
        if self._purpose != "train":
            return
        if list(content.array_records) != [ARRAYS]:
            raise InputError(f"it has records {list(content)}; expected one of arrays, {ARRAYS!r}")
        notes = config_of(content)
        if (number := notes.get(ROUND)) != self._number:
            raise InputError(f"it is of round {number}")
        new = self._parameters(arrays_of(content), notes)
        for name, sent in self._sent.items():
            _check_array(name, new[name], sent)
        rest = {name: record for name, record in content.items() if name != CONFIG}
        reply.content = RecordDict(rest | {ARRAYS: to_record({n: new[n] for n in self._sent})})

    def _parameters(self, arrays: Arrays, notes: dict[str, object]) -> Arrays:
        """The parameters that a reply means by its arrays."""
        agreed = encoding_notes(self.encoding)
        if (told := {k: v for k, v in notes.items() if k.startswith("update-")}) != agreed:
            raise InputError(f"its encoding is {told or 'none'}; agreed on is {agreed or 'none'}")
        if not self.encoding.lossless:
            shapes = {name: array.shape for name, array in self._sent.items()}
            return parameters.add(self._sent, self.encoding.decode(arrays, shapes))
        if missing := [name for name in self._sent if name not in arrays]:
            raise InputError(f"it lacks the parameter {missing[0]!r}: another architecture")
        if extra := [name for name in arrays if name not in self._sent]:
            raise InputError(f"it has the parameter {extra[0]!r}: another architecture")
        if notes.get(SEND) == "difference":
            return parameters.add(self._sent, arrays)
        return arrays

    def _log_bytes(self, replies: Sequence[Message]) -> None:
        """One line: bytes down and up, in all and for each client."""
        if not self._nodes:
            return
        up = [nbytes(reply) for reply in replies if not reply.has_error()]
        _log.info(
            "round %d: %s: %s bytes to %d clients (%s each), %s bytes from %d (%s each)",
            self._number,
            self._purpose,
            f"{self._bytes:,}",
            len(self._nodes),
            f"{self._bytes // len(self._nodes):,}",
            f"{sum(up):,}",
            len(up),
            f"{min(up, default=0):,}" + (f" to {max(up):,}" if len(set(up)) > 1 else ""),
        )


def nbytes(message: Message) -> int:
    """Bytes of all records of a message: of names, arrays, texts, and 8 of a number.

    They are counted as Flower's records count them, whose own count stops at an empty text or list.
    """
    if message.has_error():
        return 0
    records = message.content.values()
    return sum(len(name) + _size(value) for record in records for name, value in record.items())


def _size(value: object) -> int:
    if isinstance(value, Array):
        return len(value.data)
    if isinstance(value, list):
        return sum(map(_size, value))
    if isinstance(value, str | bytes):
        return len(value)
    return 1 if isinstance(value, bool) else 8


def _numbers(reply: Message) -> dict[str, int | float | list[int] | list[float]]:
    return dict(reply.content.metric_records[METRICS])


def _check_array(name: str, new: parameters.Array, sent: parameters.Array) -> None:
    """Refuse another shape or element type, NaN and infinity.

    Raises:
        ShapeError, DTypeError, NonFiniteError: what it is.
    """
    if new.shape != sent.shape:
        raise ShapeError(
            f"parameter {name!r}: shape {list(new.shape)}; sent was {list(sent.shape)}: another "
            "architecture"
        )
    if new.dtype != sent.dtype:
        raise DTypeError(f"parameter {name!r}: {new.dtype}; sent was {sent.dtype}")
    if new.dtype.kind == "f" and not np.isfinite(new).all():
        raise NonFiniteError(f"parameter {name!r} has values that are not finite")
