"""Records of TensorBoard's event files, without a package for them.

A file is a sequence of TFRecords, each a message `Event` of protocol buffers:

    TFRecord     length (8 bytes), its checksum (4), the message, its checksum (4)
    checksum     CRC-32C, rotated by 15 bits, plus a constant
    Event        1 wall_time (double), 2 step (varint), 3 file_version (text), 5 summary (message),
                 7 session_log (message)
    summary      1 value (message, repeated): 1 tag (text), 2 simple_value (float)
    session_log  1 status (varint); 1 is the start of a run, which makes later steps void

Sources: tensorflow/core, lib/io/record_writer.h, util/event.proto and framework/summary.proto.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping

VERSION = "brain.Event:2"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # kinds of fields
_START = 1


def wrap_record(message: bytes) -> bytes:
    """Return a message as a TFRecord."""
    length = struct.pack("<Q", len(message))
    sums = [struct.pack("<I", _mask(compute_crc32c(part))) for part in (length, message)]
    return length + sums[0] + message + sums[1]


def make_head(time: float) -> bytes:
    """Return the message with which a file begins."""
    return _encode_time(time) + _encode_text(3, VERSION)


def start(time: float, step: int) -> bytes:
    """Return the message of a run that goes on before a step; events from there on are void."""
    return (
        _encode_time(time) + _encode_number(2, step) + _encode_message(7, _encode_number(1, _START))
    )


def make_scalars(time: float, step: int, values: Mapping[str, float]) -> bytes:
    """Return the message of values by tag."""
    summary = b"".join(
        _encode_message(
            1,
            _encode_text(1, tag)
            + _encode_key(2, _FIXED32)
            + struct.pack("<f", _round_to_single(value)),
        )
        for tag, value in values.items()
    )
    return _encode_time(time) + _encode_number(2, step) + _encode_message(5, summary)


def compute_crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of some bytes."""
    table, crc = _make_table(), 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@functools.cache
def _make_table() -> tuple[int, ...]:
    """Return the checksum of each byte, for the reversed polynomial."""
    rows = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        rows.append(crc)
    return tuple(rows)


def _mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _round_to_single(value: float) -> float:
    """Return a value that float32 can hold: numbers beyond its range are infinite."""
    try:
        struct.pack("<f", value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return value


def _encode_varint(number: int) -> bytes:
    """Return a whole number, 7 bits a byte, the lowest first."""
    octets = bytearray()
    while number > 0x7F:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*octets, number])


def _encode_key(field: int, kind: int) -> bytes:
    return _encode_varint(field << 3 | kind)


def _encode_number(field: int, value: int) -> bytes:
    return _encode_key(field, _VARINT) + _encode_varint(value)


def _encode_message(field: int, content: bytes) -> bytes:
    return _encode_key(field, _BYTES) + _encode_varint(len(content)) + content


def _encode_text(field: int, text: str) -> bytes:
    return _encode_message(field, text.encode())


def _encode_time(time: float) -> bytes:
    return _encode_key(1, _FIXED64) + struct.pack("<d", time)
