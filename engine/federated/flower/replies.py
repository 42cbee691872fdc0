"""Replies to a round: the usable ones, reasons to leave out others, and their bytes.

No single client may end a round or spoil the average.  A reply is left out if

  - it is an error: the client raised one, its process ended, or its node is not connected any more;
  - it has not arrived within the time of a round, its node was not asked, or has replied twice;
  - a field is not as `engine.federated.schema` declares it: names, types, shapes, sizes, ranges;
  - it belongs to another round, or has another encoding than agreed;
  - its update is so much larger than the others that they would not matter, see `Limits`.

Each is logged with the round, the node and the reason, and counted in the history.  The other
replies are aggregated; if there are none, the parameters stay unchanged.
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
from engine.federated.flower.mods import ROUND, SEND, describe_encoding, update_of
from engine.federated.flower.parsing import Parsed, note_of, parse_reply
from engine.federated.flower.records import arrays_of
from engine.federated.local_options import SEND as SENT
from engine.federated.parameters import Arrays
from engine.federated.schema import NUMBERS, AnswerSchema, ArrayField, NumberField
from engine.federated.updates import Encoding

_log = logging.getLogger("flwr")


@dataclass(frozen=True)
class Limits:
    """Limits for a reply to a training run.

    numbers: in addition to the numbers that any reply may have.
    variances: names of parameters that cannot be negative.
    ratio: a reply is left out if the norm of its update exceeds `ratio` times the median of its
        round, given at least three replies; 0: no limit.
    norm: an update with a larger L2 norm is scaled to it; 0: no limit.
    """

    numbers: Mapping[str, NumberField] = dataclasses.field(default_factory=lambda: NUMBERS)
    variances: frozenset[str] = frozenset()
    ratio: float = 0.0
    norm: float = 0.0


@dataclass(frozen=True)
class Reply:
    """Usable reply.

    message: the answer.  arrays: all parameters.  norm: the L2 norm of the update.
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
    """Replies to the messages of one round of training or evaluation.

    encoding: the encoding of updates, as on the clients.
    """

    def __init__(self, encoding: Encoding, limits: Limits) -> None:
        self.encoding, self.limits = encoding, limits
        self.left_out: dict[int, str] = {}  # of this round, with reasons
        self._number = 0
        self._purpose = ""
        self._nodes: list[int] = []
        self._sent: Arrays = {}
        self._bytes = 0

    @property
    def asked(self) -> int:
        """Number of clients that have been asked."""
        return len(self._nodes)

    def ask(self, number: int, purpose: str, messages: Sequence[Message]) -> None:
        """Note that messages of round `number`, all with the same parameters, are about to be sent.

        purpose: "train" or "evaluate".
        """
        self._number, self._purpose, self.left_out = number, purpose, {}
        self._nodes = [message.metadata.dst_node_id for message in messages]
        self._sent = arrays_of(messages[0].content) if messages else {}
        self._bytes = sum(map(count_bytes, messages))

    def select_usable(self, replies: Iterable[Message], *, told: bool = True) -> list[Reply]:
        """Return the replies that can be aggregated, all with the same numbers; log the reasons for
        others.

        told: whether to log the bytes of the round, too.
        """
        received = list(replies)
        if told:
            self._log_bytes(received)
        kept, times = list[Reply](), Counter(reply.metadata.src_node_id for reply in received)
        for reply in received:
            node = reply.metadata.src_node_id
            if node in self.left_out:
                continue
            try:
                if node not in self._nodes:
                    raise InputError("it has not been asked")
                if times[node] > 1:
                    raise InputError(f"it has replied {times[node]} times")
                kept.append(self._check(reply))
            except EngineError as error:
                self.leave_out(node, f"{type(error).__name__}: {error}")
            except MemoryError as error:
                self.leave_out(node, f"it cannot be read: {type(error).__name__}: {error}")
        for node in self._nodes:
            if node not in times:
                self.leave_out(node, "it has not replied in time")
        return self._make_comparable(self._drop_outlying(kept))

    def leave_out(self, node: int, reason: str) -> None:
        """Log and note for the history that a client has no part in this round, and why."""
        self.left_out[node] = reason
        _log.warning(
            "round %d: node %d is left out of %s: %s", self._number, node, self._purpose, reason
        )

    def _drop_outlying(self, replies: list[Reply]) -> list[Reply]:
        """Return the replies whose updates are within the ratio of `Limits`."""
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

    def _make_comparable(self, replies: list[Reply]) -> list[Reply]:
        """Return the replies with only the numbers common to all, as Flower's strategies
        require.
        """
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

    def _check(self, reply: Message) -> Reply:
        """Return a reply with all parameters.

        Raises:
            EngineError: the reply is unusable.
        """
        if self._purpose != "train":
            return Reply(reply, {}, parse_reply(reply, AnswerSchema({}, NUMBERS)).numbers)
        shapes = {name: array.shape for name, array in self._sent.items()}
        tensors = {name: ArrayField(a.shape, a.dtype) for name, a in self._sent.items()}
        if not self.encoding.lossless:
            tensors = {n: ArrayField(*each) for n, each in self.encoding.wire(shapes).items()}
        content = parse_reply(reply, AnswerSchema(tensors, self.limits.numbers))
        if (number := note_of(content.notes, ROUND, (int,))) != self._number:
            raise InputError(f"it belongs to round {number}")
        new = self._decode_parameters(content, shapes)
        after = {
            name: ArrayField(a.shape, a.dtype, *([0.0] if name in self.limits.variances else []))
            for name, a in self._sent.items()
        }
        AnswerSchema(after).check_tensors(new)
        update = update_of(new, self._sent)
        norm = float(np.linalg.norm(update))
        if 0 < self.limits.norm < norm:
            part = self.limits.norm / norm
            new = {
                name: (old + part * np.subtract(new[name], old, dtype=np.float64)).astype(old.dtype)
                for name, old in self._sent.items()
            }
        return Reply(reply, {name: new[name] for name in self._sent}, content.numbers, norm)

    def _decode_parameters(self, found: Parsed, shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
        """Return the parameters that the arrays of a reply encode.

        Raises:
            EngineError: it has another encoding, or a malformed one.
        """
        agreed = describe_encoding(self.encoding)
        told = {k: v for k, v in found.notes.items() if k.startswith("update-")}
        if told != agreed:
            text = repr(told or "none") if told else "none"
            raise InputError(f"its encoding is {text:.200}; expected {agreed or 'none'}")
        send = note_of(found.notes, SEND, (str,))
        if send not in (None, *SENT):
            raise InputError(f"its note {SEND!r} is {send!r:.80}; expected one of {SENT}")
        if not self.encoding.lossless:
            return parameters.add(self._sent, self.encoding.decode(found.arrays, shapes))
        if send == "difference":
            with np.errstate(over="ignore"):  # infinity is refused after this
                return parameters.add(self._sent, found.arrays)
        return found.arrays

    def _log_bytes(self, replies: Sequence[Message]) -> None:
        """Log the bytes down and up, in total and for each client."""
        if not self._nodes:
            return
        up = [count_bytes(reply) for reply in replies if not reply.has_error()]
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


def count_bytes(message: Message) -> int:
    """Return the bytes of all records of a message: names, arrays, texts, and 8 for each number.

    They are counted as in Flower's records, whose own count stops at an empty text or list.
    """
    if message.has_error():
        return 0
    records = message.content.values()
    return sum(
        len(name) + _measure_size(value) for record in records for name, value in record.items()
    )


def _measure_size(value: object) -> int:
    if isinstance(value, Array):
        return len(value.data)
    if isinstance(value, list):
        return sum(map(_measure_size, value))
    if isinstance(value, str | bytes):
        return len(value)
    return 1 if isinstance(value, bool) else 8
