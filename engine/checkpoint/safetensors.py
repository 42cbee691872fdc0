"""Files of named tensors in the format of safetensors, as peft and transformers write them.

    uint64   bytes of the header, little-endian
    header   JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
             and, with texts, "__metadata__"; spaces may follow
    data     the tensors one after another, little-endian, offsets counted from here

The format is simple, and a device that has only numpy must read its adapters, so the package
`safetensors` is not used; tests compare with it.

Source: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base.element_types import ELEMENT_TYPES
from engine.base.errors import CheckpointError, DTypeError, InputError
from engine.system import files

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

MAX_HEADER = 100_000_000  # bytes; the limit of the package
MAX_RANK = 32  # of numpy 1; numpy 2 has 64
# Its names of our element types, by ours.
TYPE_NAMES = {name: "BOOL" if name == "b1" else name.upper() for name in ELEMENT_TYPES}
_TYPES = {TYPE_NAMES[t.name]: t.numpy for t in ELEMENT_TYPES.values() if not t.is_stored_only}
_BFLOAT16 = TYPE_NAMES["bf16"]  # numpy lacks this type: read as float32, which holds all its values
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}
_METADATA = "__metadata__"
_COUNT = struct.Struct("<Q")


def name_type(dtype: Any) -> str:
    """Return the format's name of a numpy element type.

    Raises:
        DTypeError: the format has no such type.
    """
    name = _NAMES.get(np.dtype(dtype))
    if name is None:
        raise DTypeError(f"{dtype}; safetensors has {', '.join(_TYPES)}")
    return name


def encode(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """Return the content of a file, in pieces.

    Raises:
        DTypeError: a tensor has an element type that the format does not have. InputError: a tensor
            has the name that the format reserves for the texts, or a name or text has no UTF-8
            form.
    """
    # Wider elements come first, so that every tensor is aligned to its elements.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    pieces, end = list[Any](), 0
    for name in names:
        if name == _METADATA:
            raise InputError(
                f"a tensor cannot be called {name!r}: the format reserves this name for its "
                "metadata"
            )
        array = tensors[name]
        try:
            kind = name_type(array.dtype)
        except DTypeError as error:
            raise DTypeError(f"{name!r} is {error}") from None
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [begin, end]}
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        pieces.append(little.reshape(-1).view(np.uint8).data)
    try:
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"a name or text cannot be written as UTF-8: {error}") from None
    text += b" " * (-len(text) % 8)
    return [_COUNT.pack(len(text)), text, *pieces]


def write(path: str, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write a file.  If writing fails, the old file is still there.

    Raises:
        DTypeError, InputError: see `encode`.
        FileError: the file cannot be written.
    """
    files.write(path, encode(tensors, metadata))


def read(path: str) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the tensors of a file, which own their values, and its texts.

    Raises:
        FileError: the file cannot be read.
        CheckpointError, DTypeError: see `decode`.
    """
    return decode(files.read(path, "adapter"), path)


def decode(
    content: bytes | bytearray | memoryview, where: str, max_header: int = MAX_HEADER
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the tensors in the content of a file, which own their values, and its texts.

    Memory is allocated only for bytes that are present: numbers of the header are checked first.

    where: its name in errors.  max_header: the most bytes of the header.

    Raises:
        CheckpointError: the file is of another kind, damaged or truncated; tensors overlap or leave
            a gap; a name is repeated.
        DTypeError: a tensor has an element type that is not supported.
    """
    data = memoryview(content)
    if len(data) < _COUNT.size:
        raise CheckpointError(f"{where}: {len(data)} bytes; a safetensors file has at least 8")
    (size,) = _COUNT.unpack(data[: _COUNT.size])
    if size > min(max_header, len(data) - _COUNT.size):
        raise CheckpointError(
            f"{where}: a header of {size} bytes in a file of {len(data)}: not a safetensors file, "
            "or truncated"
            if size > len(data) - _COUNT.size
            else f"{where}: a header of {size} bytes; at most {max_header} are read"
        )
    header = _read_header(bytes(data[_COUNT.size : _COUNT.size + size]), where)
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(
            f"{where}: {_METADATA} is not a JSON object of strings: {metadata!r:.200}"
        )
    body, tensors, end = data[_COUNT.size + size :], dict[str, Any](), 0
    for name, row in sorted(header.items(), key=_begin):
        tensors[name], end = _read_tensor(where, name, row, body, end)
    if end != len(body):
        raise CheckpointError(f"{where}: {len(body)} bytes of tensors, but the header names {end}")
    return {name: tensors[name] for name in header}, metadata


def _read_header(text: bytes, where: str) -> dict[str, Any]:
    """Return the header, an object without repeated names."""

    def check_pairs(rows: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(rows)
        if len(result) != len(rows):
            names = [name for name, _ in rows]
            twice = next(name for name in result if names.count(name) > 1)
            raise CheckpointError(f"{where}: its header has {twice!r} twice")
        return result

    try:
        header = json.loads(text.decode(), object_pairs_hook=check_pairs)
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{where}: its header is not a JSON object: {error}") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{where}: its header is not a JSON object: {header!r:.200}")
    return header


def _begin(item: tuple[str, Any]) -> tuple[int, int]:
    """Return the start and end of a tensor in its row; refuse a row without them."""
    row = item[1]
    offsets = row.get("data_offsets") if isinstance(row, dict) else None
    if isinstance(offsets, list) and [type(at) for at in offsets] == [int, int]:
        return (offsets[0], offsets[1])
    return (-1, -1)


def _read_tensor(where: str, name: str, row: Any, body: memoryview, end: int) -> tuple[Array, int]:
    """Return a tensor, which starts at the end of the one before, and its own end."""
    where = f"{where}: {name!r}"
    begin, stop = _begin((name, row))
    shape = row.get("shape") if isinstance(row, dict) else None
    if (
        begin < 0
        or not isinstance(shape, list)
        or len(shape) > MAX_RANK
        or not all(type(d) is int and 0 <= d < 1 << 63 for d in shape)
    ):
        raise CheckpointError(f"{where}: its entry is malformed: {row!r:.200}")
    dtype = row.get("dtype")
    if not isinstance(dtype, str) or (dtype != _BFLOAT16 and dtype not in _TYPES):
        raise DTypeError(f"{where} is {dtype!r:.200}; supported: {', '.join(_TYPES)}, {_BFLOAT16}")
    kind = np.dtype(np.uint16 if dtype == _BFLOAT16 else _TYPES[dtype]).newbyteorder("<")
    nbytes = math.prod(shape) * kind.itemsize
    if begin != end or stop - begin != nbytes or stop > len(body):
        raise CheckpointError(
            f"{where}: bytes {begin} to {stop} of {len(body)} for {nbytes} bytes from {end} on"
        )
    try:
        array = np.frombuffer(body[begin:stop], kind).reshape(shape)
    except (ValueError, OverflowError) as error:  # no elements, but another dimension is too large
        raise CheckpointError(f"{where}: shape {shape}: {error}") from None
    if dtype == _BFLOAT16:
        return (array.astype(np.uint32) << 16).view(np.float32), stop
    return array.astype(kind.newbyteorder("=")), stop
