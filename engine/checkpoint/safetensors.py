"""Files of named tensors in the format of safetensors, as peft and transformers write them.

    uint64   bytes of the header, little-endian
    header   JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
             and, of texts, "__metadata__"; spaces may follow
    data     the tensors one behind another, little-endian, offsets counted from here

It is this short, and a device that has numpy alone must read the adapters that it gets, so that the
package `safetensors` is not needed; tests read and write the same files by it.

Source: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import CheckpointError, DTypeError
from engine.runtime import files

Array = npt.NDArray[Any]

MAX_HEADER = 100_000_000  # bytes; the limit of the package
_TYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16,
    "U32": np.uint32, "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16,
    "F32": np.float32, "F64": np.float64,
}  # fmt: skip
_BFLOAT16 = "BF16"  # numpy has no such type: read as float32, which holds all its values
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}
_METADATA = "__metadata__"
_COUNT = struct.Struct("<Q")


def write(path: str, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write a file.  If writing fails, the old file is still there.

    Raises:
        DTypeError: a tensor has an element type that the format has not.
        FileError: the file cannot be written.
    """
    # Wider elements come first, so that every tensor is aligned to its elements.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    pieces, end = list[bytes | memoryview](), 0
    for name in names:
        array = tensors[name]
        kind = _NAMES.get(array.dtype)
        if kind is None:
            raise DTypeError(f"{name!r} is {array.dtype}; safetensors has {', '.join(_TYPES)}")
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [begin, end]}
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        pieces.append(little.reshape(-1).view(np.uint8).data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    files.write(path, [_COUNT.pack(len(text)), text, *pieces])


def read(path: str) -> tuple[dict[str, Array], dict[str, str]]:
    """The tensors of a file, which own their values, and its texts.

    Raises:
        FileError: the file cannot be read.
        CheckpointError: it is no such file, damaged or truncated.
        DTypeError: a tensor has an element type that is not supported.
    """
    data = memoryview(files.read(path, "adapter"))
    if len(data) < _COUNT.size:
        raise CheckpointError(f"{path}: {len(data)} bytes; a safetensors file has at least 8")
    (size,) = _COUNT.unpack(data[: _COUNT.size])
    if size > min(MAX_HEADER, len(data) - _COUNT.size):
        raise CheckpointError(
            f"{path}: a header of {size} bytes in a file of {len(data)}: not a safetensors file, "
            "or truncated"
        )
    try:
        header = json.loads(bytes(data[_COUNT.size : _COUNT.size + size]))
        metadata = {str(k): str(v) for k, v in header.pop(_METADATA, {}).items()}
        rows = list(header.items())
    except (ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: its header is no JSON object: {error}") from None
    body, found, end = data[_COUNT.size + size :], dict[str, Array](), 0
    for name, row in sorted(rows, key=_begin):
        found[name], end = _tensor(path, name, row, body, end)
    if end != len(body):
        raise CheckpointError(f"{path}: {len(body)} bytes of tensors, of which {end} are named")
    return {name: found[name] for name, _ in rows}, metadata


def _begin(item: tuple[str, Any]) -> tuple[int, int]:
    """Where a tensor begins and ends, as far as its row tells; rows that do not are refused."""
    try:
        begin, end = item[1]["data_offsets"]
        return int(begin), int(end)
    except (TypeError, KeyError, ValueError):
        return (-1, -1)


def _tensor(path: str, name: str, row: Any, body: memoryview, end: int) -> tuple[Array, int]:
    """A tensor, which begins where the one before ends, and its own end."""
    where = f"{path}: {name!r}"
    begin, stop = _begin((name, row))
    shape = row.get("shape") if isinstance(row, dict) else None
    if (
        begin < 0
        or not isinstance(shape, list)
        or not all(isinstance(d, int) and d >= 0 for d in shape)
    ):
        raise CheckpointError(f"{where}: its entry is malformed: {row!r:.200}")
    dtype = row.get("dtype")
    if dtype != _BFLOAT16 and dtype not in _TYPES:
        raise DTypeError(f"{where} is {dtype}; supported: {', '.join(_TYPES)}, {_BFLOAT16}")
    kind = np.dtype(np.uint16 if dtype == _BFLOAT16 else _TYPES[dtype]).newbyteorder("<")
    nbytes = math.prod(shape) * kind.itemsize
    if begin != end or stop - begin != nbytes or stop > len(body):
        raise CheckpointError(
            f"{where}: bytes {begin} to {stop} of {len(body)} for {nbytes} bytes from {end} on"
        )
    array = np.frombuffer(body[begin:stop], kind).reshape(shape)
    if dtype == _BFLOAT16:
        return (array.astype(np.uint32) << 16).view(np.float32), stop
    return array.astype(kind.newbyteorder("=")), stop
