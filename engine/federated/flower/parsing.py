"""Parsing of Flower's replies by the schema of the round, before anything else touches them.

Flower's arrays are files of numpy, whose headers numpy reads as Python.  Here a header is compared
with the header of the expected array: nothing is evaluated, and no memory is allocated for a
claimed shape.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, Message

from engine.base.errors import DTypeError, InputError, ShapeError
from engine.federated.flower.records import ARRAYS, CONFIG, METRICS
from engine.federated.parameters import Arrays
from engine.federated.schema import AnswerSchema, ArrayField

_MAGIC = b"\x93NUMPY"
_LENGTHS = {1: "<H", 2: "<I", 3: "<I"}  # of the header, by version
_LONGEST = 4096  # bytes of a header; numpy's have 118, and more from 25 dimensions on
_HEADER = re.compile(
    r"\{'descr': '([<>|=]?[a-z]\d{1,2})', 'fortran_order': (True|False), "
    r"'shape': \(((?:\d{1,19}, ?)*(?:\d{1,19})?)\), \} *\n"
)


@dataclass(frozen=True)
class Parsed:
    """Reply that fits the schema.

    node: the node of the client.  arrays: arrays by name, none for an evaluation.  notes: texts and
        numbers that describe the arrays, not checked yet.
    """

    node: int
    arrays: Arrays
    numbers: dict[str, int | float]
    notes: dict[str, Any]


def parse_reply(reply: Message, schema: AnswerSchema) -> Parsed:
    """Return the content of a reply; the schema of an evaluation has no tensors.

    Raises:
        EngineError: the reply is an error, or a field is not as declared.
    """
    if reply.has_error():
        raise InputError(str(reply.error.reason or f"error {reply.error.code} without a reason"))
    content = reply.content
    kinds = (
        (METRICS, content.metric_records), (ARRAYS, content.array_records),
        (CONFIG, content.config_records),
    )  # fmt: skip
    for name, records in kinds:
        names = [str(each)[:50] for each in records]
        is_optional = name == CONFIG or (name == ARRAYS and not schema.tensors)
        if names != [name] and not (is_optional and not names):
            raise InputError(f"it has records {names}; expected one of {name!r}")
    numbers = schema.check_numbers(dict(content.metric_records[METRICS]))
    arrays = Arrays()
    if schema.tensors:
        record = content.array_records[ARRAYS]
        schema.check_names(record)
        arrays = {
            name: unpack_array(name, record[name], each) for name, each in schema.tensors.items()
        }
        schema.check_tensors(arrays)
    notes = content.config_records.get(CONFIG)
    return Parsed(reply.metadata.src_node_id, arrays, numbers, dict(notes or {}))


def unpack_array(name: str, array: Array, known: ArrayField) -> np.ndarray[Any, Any]:
    """Return an array of Flower, which must be a file of numpy in C order.

    Raises:
        InputError, ShapeError, DTypeError: it is not as declared.
    """
    what = f"parameter {name!r}"
    if array.stype != "numpy.ndarray":
        raise InputError(f"{what} is a {array.stype!r:.50}; expected 'numpy.ndarray'")
    return read_array(what, array.data, known)


def read_array(what: str, data: bytes, known: ArrayField) -> np.ndarray[Any, Any]:
    """Return the array of a file of numpy.

    what: its name in errors.

    Raises:
        InputError, ShapeError, DTypeError: it is not as declared.
    """
    if type(data) is not bytes or len(data) > known.nbytes + _LONGEST:
        size = f"{len(data)} bytes" if type(data) is bytes else "no bytes"
        raise InputError(f"{what} has {size}; expected {known.nbytes} and a header")
    version = data[6] if data[:6] == _MAGIC and len(data) > 12 else 0
    if version not in _LENGTHS:
        raise InputError(f"{what} cannot be read: it is not a file of numpy")
    start = 8 + struct.calcsize(_LENGTHS[version])
    (length,) = struct.unpack(_LENGTHS[version], data[8:start])
    header = _HEADER.fullmatch(data[start : start + min(length, _LONGEST)].decode("latin-1"))
    if header is None or length > _LONGEST:
        raise InputError(f"{what} cannot be read: its header is not one that numpy writes")
    kind, order, shape = header.groups()
    if kind not in (known.dtype.str, known.dtype.str.replace("<", "=")):
        raise DTypeError(f"{what}: {_name_type(kind)}; expected {known.dtype}")
    dims = tuple(int(each) for each in shape.split(",") if each.strip())
    if dims != known.shape:
        raise ShapeError(
            f"{what}: shape {list(dims)!s:.200}; expected {list(known.shape)}: another architecture"
        )
    if order == "True":
        raise InputError(f"{what} is in Fortran order; expected C order")
    body = data[start + length :]
    if len(body) != known.nbytes:
        raise InputError(
            f"{what} cannot be read: {len(body)} bytes of elements; expected {known.nbytes}"
        )
    return np.frombuffer(bytearray(body), known.dtype).reshape(known.shape)


def _name_type(kind: str) -> str:
    """Return the name of an element type, as people write it."""
    try:
        return str(np.dtype(kind))
    except TypeError:
        return kind


def note_of(notes: Mapping[str, Any], name: str, kinds: tuple[type, ...]) -> Any:
    """Return a note of a reply, or None.

    Raises:
        InputError: it has another type.
    """
    value = notes.get(name)
    if value is not None and type(value) not in kinds:
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise InputError(f"its note {name!r} is {value!r:.80}; expected {wanted}")
    return value
