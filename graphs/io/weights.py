"""Large model files: weights stay in the file, which is mapped, and everything else becomes a
message.

The protobuf library holds a file as bytes and as a message, and copies each weight that is read.
Here the file is scanned instead: everything except large weights is copied into a short message,
and a weight is replaced by the place of its bytes, in the form of ONNX's external data, under the
key `INSIDE`.  The numbers of the fields come from onnx.proto:

    ModelProto       graph 7
    GraphProto       node 1, initializer 5
    NodeProto        attribute 5
    AttributeProto   t 5
    TensorProto      data_type 2, segment 3, float_data 4, name 8, raw_data 9, double_data 10,
                     data_location 14

For writing, `list_pieces` yields the bytes of a model with its weights, without copying them.

    https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from engine.base.aliases import Array
from engine.graphs.io.messages import count_stored, find_code, make_content
from engine.graphs.io.protos import ModelProto, TensorProto
from engine.runtime.mapping import Content

INSIDE = "edgegrad.inside"  # key of a weight's place in its own file: offset and size in bytes
LEAST = 4096  # least bytes of a weight that stays in the file

_Walk: TypeAlias = Callable[[Content, int, int], list[bytes] | None]

_GRAPH, _NODE, _INITIALIZER, _ATTRIBUTE, _T = 7, 1, 5, 5, 5
_TYPE, _SEGMENT, _FLOATS, _RAW, _DOUBLES, _LOCATION = 2, 3, 4, 9, 10, 14
_PACKED = {_FLOATS: TensorProto.FLOAT, _DOUBLES: TensorProto.DOUBLE}
_LENGTHS = {1: 8, 5: 4}  # bytes of a field by its wire type


class _Field(NamedTuple):
    """Field of a message: number, wire type, start, start of the content, and end."""

    number: int
    kind: int
    begin: int
    content: int
    end: int


def make_short_message(data: Content, *, nodes: bool) -> bytes:
    """Return the message of a model file, mapped or not, without its large weights.

    nodes: whether tensors in attributes of nodes, such as Constant, also stay in the file.

    Raises:
        ValueError: the file is not a protobuf message.
    """
    walks: dict[int, _Walk] = {_INITIALIZER: _cut_tensor}
    if nodes:
        walks[_NODE] = partial(_cut_inside, {_ATTRIBUTE: partial(_cut_inside, {_T: _cut_tensor})})
    parts = _cut_inside({_GRAPH: partial(_cut_inside, walks)}, data, 0, len(data))
    return data[:] if parts is None else b"".join(parts)


def _list_fields(data: Content, at: int, end: int) -> Iterator[_Field]:
    """Yield the fields of the message from `at` to `end`.

    Raises:
        ValueError: they do not end with the message, or are of a kind that ONNX does not use.
    """
    while at < end:
        begin = at
        key, at = _read_varint(data, at, end)
        kind, content = key & 7, at
        if kind == 0:
            _, at = _read_varint(data, at, end)
        elif kind == 2:
            size, content = _read_varint(data, at, end)
            at = content + size
        elif kind in _LENGTHS:
            at += _LENGTHS[kind]
        else:
            raise ValueError(f"a field of kind {kind}")
        if at > end:
            raise ValueError(f"a field that ends at {at} of {end}")
        yield _Field(key >> 3, kind, begin, content, at)


def _cut_inside(walks: Mapping[int, _Walk], data: Content, at: int, end: int) -> list[bytes] | None:
    """Return the message from `at` to `end` in pieces; `walks` convert some of its fields.

    The result is None if nothing changes.
    """
    out: list[bytes] = []
    kept = at  # everything before this is in `out`
    for field in _list_fields(data, at, end):
        walk = walks.get(field.number) if field.kind == 2 else None
        if walk is None or field.end - field.content < LEAST:
            continue
        inner = walk(data, field.content, field.end)
        if inner is None:
            continue
        key = bytes([field.number << 3 | 2])  # of one byte: the numbers are below 16
        out += [data[kept : field.begin], key, encode_varint(sum(map(len, inner))), *inner]
        kept = field.end
    return [*out, data[kept:end]] if out else None


def _cut_tensor(data: Content, at: int, end: int) -> list[bytes] | None:
    """Return the message of a weight without its bytes if they are one large field, or None."""
    fields = list(_list_fields(data, at, end))
    known = {field.number: field for field in fields}
    held = [f for f in fields if f.number in (_RAW, _FLOATS, _DOUBLES)]
    numbers = held[0] if len(held) == 1 and held[0].kind == 2 else None
    if numbers is None or numbers.end - numbers.content < LEAST or _SEGMENT in known:
        return None
    if _LOCATION in known or (numbers.number != _RAW and not _is_packed(data, known, numbers)):
        return None
    place = TensorProto(data_location=TensorProto.EXTERNAL)
    size = numbers.end - numbers.content
    place.external_data.add(key=INSIDE, value=f"{numbers.content} {size}")
    return [data[at : numbers.begin], data[numbers.end : end], place.SerializeToString()]


def _is_packed(data: Content, known: Mapping[int, _Field], numbers: _Field) -> bool:
    """Return whether the numbers of a weight are the bytes of its type, one after another."""
    if _TYPE not in known:
        return False
    kind, _ = _read_varint(data, known[_TYPE].content, known[_TYPE].end)
    return kind == _PACKED[numbers.number]


def _read_varint(data: Content, at: int, end: int) -> tuple[int, int]:
    """Return a number and its end."""
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("a number without an end")


def place_inside(t: TensorProto) -> tuple[int, int] | None:
    """Return the offset and size of a weight's bytes in its own file; None if they are elsewhere.

    Raises:
        ValueError: the place is malformed.
    """
    for entry in t.external_data:
        if entry.key == INSIDE:
            at, nbytes = entry.value.split(" ")
            return int(at), int(nbytes)
    return None


def list_pieces(
    model: ModelProto, weights: Iterable[tuple[str, Array]]
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a model with these initializers, as protobuf itself would write them.

    model: a model without initializers.  weights: names and values; a value that is not contiguous
        is copied when it is reached.
    """
    first, last = _split_message(model, _GRAPH)
    last.ClearField("graph")
    begin, end = _split_message(model.graph, _INITIALIZER)
    before, after = begin.SerializeToString(), end.SerializeToString()
    known = list(weights)
    heads = [_make_head(name, array) for name, array in known]
    sizes = [len(head) + count_stored(a) for head, (_, a) in zip(heads, known, strict=True)]
    fields = [bytes([_INITIALIZER << 3 | 2]) + encode_varint(size) for size in sizes]
    total = len(before) + len(after) + sum(sizes) + sum(map(len, fields))
    yield first.SerializeToString() + bytes([_GRAPH << 3 | 2]) + encode_varint(total) + before
    for field, head, (_, array) in zip(fields, heads, known, strict=True):
        yield field + head
        if array.nbytes:
            yield make_content(array)
    yield after + last.SerializeToString()


def _make_head(name: str, array: Array) -> bytes:
    """Return the message of an initializer up to its bytes."""
    t = TensorProto(name=name, data_type=find_code(array), dims=array.shape)
    head: bytes = t.SerializeToString()
    return head + bytes([_RAW << 3 | 2]) + encode_varint(count_stored(array))


def _split_message(message: Any, number: int) -> tuple[Any, Any]:
    """Return the fields of a message up to a number, and the fields after it."""
    first, last = type(message)(), type(message)()
    first.CopyFrom(message)
    last.CopyFrom(message)
    for field, _ in message.ListFields():
        (last if field.number <= number else first).ClearField(field.name)
    if isinstance(message, ModelProto):
        first.ClearField("graph")
    return first, last


def encode_varint(value: int) -> bytes:
    """Return a number as Protocol Buffers write it: seven bits a byte, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
