"""Places of the bytes of initializers in a serialised ONNX model.

A device, on which onnx is not installed, exports a model by writing its parameters over those in
the file.  Type and shape are the same, so the bytes fit.  The numbers of the fields are:
ModelProto.graph 7, GraphProto.initializer 5, TensorProto.name 8 and TensorProto.raw_data 9.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.base.errors import ModelError


def find_initializers(model: bytes, names: set[str]) -> dict[str, int]:
    """Return the byte offset of the `raw_data` of each of these initializers, by name."""
    places = {}
    for graph in _list_fields(model, 0, len(model), 7):
        for tensor in _list_fields(model, *graph, 5):
            (name,) = _list_fields(model, *tensor, 8)
            text = model[slice(*name)].decode()
            if text in names:
                (raw,) = _list_fields(model, *tensor, 9)
                places[text] = raw[0]
    return places


def _list_fields(data: bytes, at: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Yield where the fields with number `wanted` begin and end, in the message from at to end.

    Raises:
        ModelError: a field is of a kind that ONNX does not use.
    """
    while at < end:
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == 0:
            _, at = _read_varint(data, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        elif kind == 2:
            size, at = _read_varint(data, at)
            if key >> 3 == wanted:
                yield at, at + size
            at += size
        else:
            raise ModelError(f"inference model: protobuf field of kind {kind}")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
