"""Messages of a federation for devices without Flower: each is a file of safetensors.

    uint64   bytes of the header, little-endian
    header   JSON: {"__metadata__": {...}, "fc.weight": {"dtype": "F32", "shape": [3, 20],
             "data_offsets": [0, 240]}, ...}; spaces may follow
    data     the parameters one after another, little-endian, offsets counted from here

`__metadata__` holds only texts:

    edgegrad.message   "1", the version of this format
    kind               "train" or "evaluate", what a device is asked for; "trained", "evaluated" or
                       "failed", what it answers
    model              fingerprint of the parameters, 16 hexadecimal digits; see `fingerprint`
    round              a whole number from 0 on
    config.NAME        an option of the local work: a JSON number, boolean or text
    metric.NAME        a result: a JSON number; answers but "failed" have metric.num-examples
    reason             of "failed": why

"train", "evaluate" and "trained" hold the parameters, "evaluated" and "failed" no tensor.  Messages
may travel in any way: as files, in HTTP requests, by MQTT.

A reader checks every number against the bytes that are present.  This file needs numpy and Python
3.9, since trimmed builds have a copy of it.

Source: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.base.errors import CheckpointError, DTypeError, EngineError, InputError, MessageError
from engine.checkpoint import safetensors
from engine.federated import schema
from engine.federated.schema import EXAMPLES, MAX_EXAMPLES
from engine.system import files

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Number = int | float
    Option = int | float | bool | str

VERSION = "1"
MAX_HEADER = 1 << 22  # bytes; names of parameters have some ten bytes
REQUESTS = {"train": "trained", "evaluate": "evaluated"}  # and the kinds of their answers
KINDS = (*REQUESTS, *REQUESTS.values(), "failed")
_WITH_ARRAYS = ("train", "evaluate", "trained")
_FORMAT, _CONFIG, _METRIC = "edgegrad.message", "config.", "metric."
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_ROUND = re.compile(r"0|[1-9][0-9]{0,17}")


@dataclass(frozen=True, eq=False)
class Message:
    """Message, checked when it is made.

    Attributes:
        kind: One of `KINDS`.
        model: The fingerprint of the parameters.
        round: The round of the federation, from 0 on.
        arrays: Parameters by name.
        config: Options of the local work: numbers, booleans and texts.
        metrics: Results: numbers.
        reason: The reason for "failed".

    Raises:
        MessageError: A field has a value that it cannot have.
    """

    kind: str
    model: str
    round: int
    arrays: Mapping[str, Array] = field(default_factory=dict)
    config: Mapping[str, Option] = field(default_factory=dict)
    metrics: Mapping[str, Number] = field(default_factory=dict)
    reason: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise MessageError(f"kind {self.kind!r:.50}; expected one of {', '.join(KINDS)}")
        if not _FINGERPRINT.fullmatch(self.model):
            raise MessageError(f"model {self.model!r:.50}; expected 16 hexadecimal digits")
        if type(self.round) is not int or not 0 <= self.round < 10**18:
            raise MessageError(f"round {self.round!r:.50}; expected a whole number of at least 0")
        if bool(self.arrays) != (self.kind in _WITH_ARRAYS):
            wanted = "its parameters" if self.kind in _WITH_ARRAYS else "no tensors"
            raise MessageError(f"{self.kind!r} with {len(self.arrays)} tensors; expected {wanted}")
        for name, value in self.config.items():
            _check_value(f"option {name!r:.50}", value, (int, float, bool, str))
        for name, value in self.metrics.items():
            _check_value(f"metric {name!r:.50}", value, (int, float))
        count = self.metrics.get(EXAMPLES)
        if self.kind in REQUESTS.values() and (type(count) is not int or count < 0):
            raise MessageError(
                f"{self.kind!r} with metric {EXAMPLES!r} {count!r}; expected a whole number of "
                "at least 0"
            )
        if bool(self.reason) != (self.kind == "failed"):
            raise MessageError(
                f"{self.kind!r} with reason {self.reason!r:.50}; a reason is for 'failed' alone, "
                "which needs one"
            )

    @property
    def nbytes(self) -> int:
        """Number of bytes of its arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    # --- bytes and files

    def to_bytes(self) -> bytes:
        """Return the message as bytes.

        Raises:
            DTypeError: a tensor has an element type that the format does not have.
        """
        return b"".join(self._list_pieces())

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a file under a temporary name and rename it, so that nobody sees a part of it.

        Raises:
            DTypeError: see `to_bytes`.
            FileError: the file cannot be written.
        """
        files.write(os.fspath(path), self._list_pieces())

    def _list_pieces(self) -> list[bytes | memoryview]:
        texts = {
            _FORMAT: VERSION, "kind": self.kind, "model": self.model, "round": str(self.round)
        }  # fmt: skip
        texts.update((_CONFIG + name, _format_value(value)) for name, value in self.config.items())
        texts.update((_METRIC + name, _format_value(value)) for name, value in self.metrics.items())
        if self.reason:
            texts["reason"] = self.reason
        try:
            return safetensors.encode(self.arrays, texts)
        except InputError as error:
            raise MessageError(str(error)) from None

    @classmethod
    def from_bytes(cls, content: bytes | bytearray | memoryview, where: str = "message") -> Message:
        """Read a message; its arrays own their values.

        where: its name in errors.

        Raises:
            MessageError: it is damaged, truncated, of another version, or a field has a value that
                it cannot have.
        """
        try:
            arrays, texts = safetensors.decode(content, where, MAX_HEADER)
        except (CheckpointError, DTypeError) as error:
            raise MessageError(str(error)) from None
        if texts.get(_FORMAT) != VERSION:
            version = texts.get(_FORMAT)
            raise MessageError(
                f"{where}: not a message of a federation: {_FORMAT!r} is missing in its metadata"
                if version is None
                else f"{where}: version {version!r:.50} of the format; supported: {VERSION!r}"
            )
        for name in ("kind", "model", "round"):
            if name not in texts:
                raise MessageError(f"{where}: {name!r} is missing in its metadata")
        if not _ROUND.fullmatch(texts["round"]):
            raise MessageError(f"{where}: round {texts['round']!r:.50}; expected a whole number")
        config, metrics = dict[str, Any](), dict[str, Any]()
        for name, text in texts.items():
            for start, into in ((_CONFIG, config), (_METRIC, metrics)):
                if name.startswith(start):
                    into[name[len(start) :]] = _read_value(where, name, text)
            if name not in (_FORMAT, "kind", "model", "round", "reason") and not name.startswith(
                (_CONFIG, _METRIC)
            ):
                raise MessageError(f"{where}: unknown {name!r:.50} in its metadata")
        try:
            return cls(
                texts["kind"], texts["model"], int(texts["round"]), arrays, config, metrics,
                texts.get("reason", ""),
            )  # fmt: skip
        except MessageError as error:
            raise MessageError(f"{where}: {error}") from None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Message:
        """Read a file.

        Raises:
            FileError: it is missing or cannot be read.
            MessageError: see `from_bytes`.
        """
        place = os.fspath(path)
        return cls.from_bytes(files.read(place, "message"), place)

    # --- answers

    def trained(self, arrays: Mapping[str, Array], metrics: Mapping[str, Number]) -> Message:
        """Return the answer to a "train"; metrics have "num-examples"."""
        return Message("trained", self.model, self.round, arrays, metrics=metrics)

    def evaluated(self, metrics: Mapping[str, Number]) -> Message:
        """Return the answer to an "evaluate"; metrics have "num-examples"."""
        return Message("evaluated", self.model, self.round, metrics=metrics)

    def failed(self, reason: object) -> Message:
        """Return the answer of a device that could not do its task."""
        return Message("failed", self.model, self.round, reason=str(reason) or "no reason given")

    def check_answer(self, request: Message) -> None:
        """Check that this answers a request: its round, kind, model, parameters and numbers.

        Values must fit `engine.federated.schema`; the request's option max-examples limits the
        number of samples.

        Raises:
            MessageError: it does not.  "failed" counts as an answer.
        """
        if self.kind not in (REQUESTS.get(request.kind), "failed"):
            raise MessageError(f"a {self.kind!r} is not an answer to a {request.kind!r}")
        if self.round != request.round:
            raise MessageError(f"an answer of round {self.round}; this is round {request.round}")
        if self.model != request.model:
            raise MessageError(
                f"an answer for model {self.model}; the request is for {request.model}"
            )
        if self.kind == "failed":
            return
        most = request.config.get("max-examples", MAX_EXAMPLES)
        limit = most if type(most) is int else MAX_EXAMPLES
        numbers = {EXAMPLES: schema.NumberField(True, 0, limit, True)}
        sent = request.arrays if self.kind == "trained" else {}
        try:
            declared = schema.AnswerSchema.like(sent, numbers)
            declared.check_numbers(self.metrics)
            declared.check_tensors(self.arrays)
        except EngineError as error:
            raise MessageError(str(error)) from None


def fingerprint(arrays: Mapping[str, Array]) -> str:
    """Return a hash of the names, element types and shapes of parameters, to tell models apart.

    It is FNV-1a of 64 bits over, for each parameter in the order of its name's UTF-8, the name, a
    zero byte, the element type as safetensors calls it, a comma before each dimension, and a
    newline: "fc.bias\\0F32,3\\n".  Values, and parameters that do not travel, are not included.  It
        detects mistakes, but does not protect against attacks.

    Raises:
        DTypeError: a parameter has an element type that the format does not have.
        InputError: a name has a null character or a newline.

    Source: http://www.isthe.com/chongo/tech/comp/fnv/.
    """
    digest = 0xCBF29CE484222325
    for byte in b"".join(_list_lines(arrays)):
        digest = (digest ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{digest:016x}"


def _list_lines(arrays: Mapping[str, Array]) -> Iterable[bytes]:
    for name in sorted(arrays):
        if "\0" in name or "\n" in name:
            raise InputError(f"parameter {name!r}: a null character or a newline in its name")
        kind = safetensors.name_type(arrays[name].dtype)
        yield f"{name}\0{kind}{''.join(f',{d}' for d in arrays[name].shape)}\n".encode()


# --- values of config and metrics


def _check_value(what: str, value: Any, kinds: tuple[type, ...]) -> None:
    if type(value) not in kinds:
        raise MessageError(
            f"{what} is {value!r:.50}; expected {' or '.join(kind.__name__ for kind in kinds)}"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise MessageError(f"{what} is {value}; expected a finite number")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise MessageError(f"{what} does not fit in 64 bits")


def _format_value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _read_value(where: str, name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise MessageError(
            f"{where}: {name!r:.50} is {text!r:.50}; expected a JSON number, boolean or text"
        ) from None
