"""What a server takes of the replies to a round: which are left out and why, and their bytes.

One client must not end a round, and what it sends must not spoil the average.  A reply is left out
where

  - it is an error: the client raised one, its process ended, or its node is not connected any more;
  - it has not come within the time of a round, its node was not asked, or has replied twice;
  - a field is not as `engine.federated.schema` declares it: names, types, shapes, sizes, ranges;
  - it is of another round, or has another encoding than agreed on;
  - its update is so much larger than the others that these would not matter, see `Limits`.

Each is logged with the round, the node and the reason, and counted in the history.  What the others
have learned is aggregated; if nothing is left, the parameters stay as they are.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from flwr.app import Array, Message

from engine.base.errors import EngineError, InputError
from engine.federated import parameters
from engine.federated.flower.mods import ROUND, SEND, encoding_notes, update_of
from engine.federated.flower.parsing import Parsed, note_of, parsed
from engine.federated.flower.records import arrays_of
from engine.federated.options import SEND as SENT
from engine.federated.parameters import Arrays
from engine.federated.schema import NUMBERS, Number, Schema, Tensor
from engine.federated.updates import Encoding

_log = logging.getLogger("flwr")


@dataclass(frozen=True)
class Limits:
    """What a server accepts of a reply to a training.

    numbers: beside those that any reply may have.
    variances: names of parameters that cannot be negative.
    ratio: a reply is left out whose update has more than so many times the median norm of all
        updates of its round, if there are at least three; 0: none is.
    norm: an update of a larger L2 norm is scaled to it; 0: none is.
    """

    numbers: Mapping[str, Number] = dataclasses.field(default_factory=lambda: NUMBERS)
    variances: frozenset[str] = frozenset()
    ratio: float = 0.0
    norm: float = 0.0


@dataclass(frozen=True)
class Reply:
    """A usable reply.

    message: which has answered.  arrays: all parameters.  norm: of the update, L2.
    """

    message: Message
    arrays: Arrays
    numbers: dict[str, int | float]
    norm: float = 0.0

    @property
    def node(self) -> int:
        """The node of the client."""
        return self.message.metadata.src_node_id


class Replies:
    """The replies to the messages of one round of training or evaluation.

    encoding: of updates, as the clients have it.
    """

    def __init__(self, encoding: Encoding, limits: Limits) -> None:
        self.encoding, self.limits = encoding, limits
        self.left_out: dict[int, str] = {}  # of this round, and why
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
        self._number, self._purpose, self.left_out = number, purpose, {}
        self._nodes = [message.metadata.dst_node_id for message in messages]
        self._sent = arrays_of(messages[0].content) if messages else {}
        self._bytes = sum(map(nbytes, messages))

    def usable(self, replies: Iterable[Message], *, told: bool = True) -> list[Reply]:
        """The replies that can be aggregated, all with the same numbers; logs why others cannot.

        told: whether the bytes of the round are logged, too.
        """
        found = list(replies)
        if told:
            self._log_bytes(found)
        kept, times = list[Reply](), Counter(reply.metadata.src_node_id for reply in found)
        for reply in found:
            node = reply.metadata.src_node_id
            if node in self.left_out:
                continue
            try:
                if node not in self._nodes:
                    raise InputError("it has not been asked")
                if times[node] > 1:
                    raise InputError(f"it has replied {times[node]} times")
                kept.append(self._checked(reply))
            except EngineError as error:
                self.leave_out(node, f"{type(error).__name__}: {error}")
            except MemoryError as error:
                self.leave_out(node, f"it cannot be read: {type(error).__name__}: {error}")
        for node in self._nodes:
            if node not in times:
                self.leave_out(node, "it has not replied in time")
        return self._comparable(self._not_outlying(kept))

    def leave_out(self, node: int, reason: str) -> None:
        """Log, and remember for the history, that a client has no part in this round, and why."""
        self.left_out[node] = reason
        _log.warning(
            "round %d: node %d is left out of %s: %s", self._number, node, self._purpose, reason
        )

    def _not_outlying(self, replies: list[Reply]) -> list[Reply]:
        """The replies whose updates are not as much larger than the others' as `Limits` says."""
        usual = median(reply.norm for reply in replies) if replies else 0.0
        most = self.limits.ratio * usual
        if self._purpose != "train" or len(replies) < 3 or most == 0:
            return replies
        for reply in replies:
            if reply.norm > most:
                self.leave_out(
                    reply.node,
                    f"its update has the norm {reply.norm:.3g}; the median of {len(replies)} is "
                    f"{usual:.3g}, and max-norm-ratio {self.limits.ratio:g}",
                )
        return [reply for reply in replies if reply.node not in self.left_out]

    def _comparable(self, replies: list[Reply]) -> list[Reply]:
        """The replies with the numbers that all of them have: Flower's strategies need that."""
        if not replies:
            return []
        common = set.intersection(*(set(reply.numbers) for reply in replies))
        if lost := sorted({name for reply in replies for name in reply.numbers} - common):
            _log.warning(
                "round %d: %s: not all replies have %s", self._number, self._purpose,
                ", ".join(lost),
            )  # fmt: skip
        return [
            dataclasses.replace(r, numbers={n: x for n, x in r.numbers.items() if n in common})
            for r in replies
        ]

    def _checked(self, reply: Message) -> Reply:
        """A reply with all parameters.

        Raises:
            EngineError: it cannot be used.
        """
        if self._purpose != "train":
            return Reply(reply, {}, parsed(reply, Schema({}, NUMBERS)).numbers)
        shapes = {name: array.shape for name, array in self._sent.items()}
        tensors = {name: Tensor(a.shape, a.dtype) for name, a in self._sent.items()}
        if not self.encoding.lossless:
            tensors = {n: Tensor(*each) for n, each in self.encoding.wire(shapes).items()}
        found = parsed(reply, Schema(tensors, self.limits.numbers))
        if (number := note_of(found.notes, ROUND, (int,))) != self._number:
            raise InputError(f"it is of round {number}")
        new = self._parameters(found, shapes)
        after = {
            name: Tensor(a.shape, a.dtype, *([0.0] if name in self.limits.variances else []))
            for name, a in self._sent.items()
        }
        Schema(after).check_tensors(new)
        update = update_of(new, self._sent)
        norm = float(np.linalg.norm(update))
        if 0 < self.limits.norm < norm:
            part = self.limits.norm / norm
            new = {
                name: (old + part * np.subtract(new[name], old, dtype=np.float64)).astype(old.dtype)
                for name, old in self._sent.items()
            }
        return Reply(reply, {name: new[name] for name in self._sent}, found.numbers, norm)

    def _parameters(self, found: Parsed, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
        """The parameters that a reply means by its arrays.

        Raises:
            EngineError: it has another encoding, or a malformed one.
        """
        agreed = encoding_notes(self.encoding)
        told = {k: v for k, v in found.notes.items() if k.startswith("update-")}
        if told != agreed:
            text = repr(told or "none") if told else "none"
            raise InputError(f"its encoding is {text:.200}; agreed on is {agreed or 'none'}")
        send = note_of(found.notes, SEND, (str,))
        if send not in (None, *SENT):
            raise InputError(f"its note {SEND!r} is {send!r:.80}; expected one of {SENT}")
        if not self.encoding.lossless:
            return parameters.add(self._sent, self.encoding.decode(found.arrays, shapes))
        if send == "difference":
            with np.errstate(over="ignore"):  # infinity is refused behind this
                return parameters.add(self._sent, found.arrays)
        return found.arrays

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
