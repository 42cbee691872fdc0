"""Files `.onnx_adapter`: values with which onnxruntime replaces inputs of a model.

FlatBuffers bytes, identifier "TORT"; the tables and their fields in slot order:

    Adapter    format_version:int32 = 1  adapter_version:int32  model_version:int32
               parameters:[Parameter]
    Parameter  name  dims:[int64]  data_type:int32, ONNX's  raw_data:[uint8], aligned to 8 bytes

Source: onnxruntime, `onnxruntime/lora/adapter_format/adapter_schema.fbs`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import ELEMENT_TYPES, MAX_RANK
from engine.base.errors import CheckpointError, DTypeError
from engine.checkpoint.flatbuffer import (
    I32,
    I64,
    MAX_BYTES,
    FlatbufferReader,
    FlatbufferTable,
    FlatbufferWriter,
    make_reference,
    quote,
)
from engine.system import files

IDENTIFIER = b"TORT"
VERSION = 1  # of the format; onnxruntime has no other
_TYPES = {t.onnx: np.dtype(t.numpy) for t in ELEMENT_TYPES.values()}
_CODES = {kind: code for code, kind in _TYPES.items()}


def write(
    path: str, tensors: Mapping[str, Array], adapter_version: int = 1, model_version: int = 1
) -> None:
    """Write a file.  If writing fails, the old file is still there.

    adapter_version, model_version: numbers of the user, which onnxruntime shows but does not use.

    Raises:
        DTypeError: a tensor has an element type that is not supported.
        CheckpointError: the file would be larger than 2 GiB.
        FileError: the file cannot be written.
    """
    out = FlatbufferWriter(MAX_BYTES)
    try:
        rows = [_write_parameter(out, name, array) for name, array in tensors.items()]
        root = out.write_table(
            4,
            ("Int32", 0, VERSION, 0),
            ("Int32", 1, adapter_version, 0),
            ("Int32", 2, model_version, 0),
            make_reference(3, out.write_references(rows)),
        )
        pieces = out.finish(root, IDENTIFIER)
    except OverflowError:
        raise CheckpointError(f"an .onnx_adapter file holds at most {MAX_BYTES} bytes") from None
    files.write(path, pieces)


def _write_parameter(out: FlatbufferWriter, name: str, array: Array) -> int:
    code = _CODES.get(array.dtype.newbyteorder("="))
    if code is None:
        raise DTypeError(f"{name!r} is {array.dtype}; an .onnx_adapter holds numbers of ONNX's")
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    raw = out.write_bytes(little.reshape(-1).view(np.uint8).data, align=8)
    dims, label = out.write_integers(array.shape), out.write_string(name)
    return out.write_table(
        4,
        make_reference(0, label),
        make_reference(1, dims),
        ("Int32", 2, code, 0),
        make_reference(3, raw),
    )


def read(path: str) -> dict[str, Array]:
    """Return the tensors of a file, which own their values.

    Raises:
        FileError: the file cannot be read.
        CheckpointError: the file is of another kind or version, damaged or truncated.
        DTypeError: a tensor has an element type that is not supported.
    """
    reader = FlatbufferReader(files.read(path, "adapter"), path)
    root = reader.read_root(IDENTIFIER, ".onnx_adapter")
    version = root.read_number(0, I32, 0)
    if version != VERSION:
        root.fail(f"format version {version}; supported: {VERSION}")
    tensors: dict[str, Array] = {}
    for row in root.read_children(3, "parameters"):
        name = row.read_string(0, "name")
        if name in tensors:
            row.fail(f"two parameters are named {quote(name)}")
        tensors[name] = _read_tensor(reader, row.name_table(name))
    return tensors


def _read_tensor(reader: FlatbufferReader, row: FlatbufferTable) -> Array:
    dims = row.find_vector(1, I64.size, "dims")
    start, rank = (0, 0) if dims is None else dims
    if rank > MAX_RANK:
        row.fail(f"{rank} axes; supported: {MAX_RANK}")
    shape = [reader.read_number(I64, start + I64.size * i, row.where) for i in range(rank)]
    if any(d < 0 for d in shape):
        row.fail(f"shape {shape}; expected sizes of 0 or more")
    code = row.read_number(2, I32, 0)
    if code not in _TYPES:
        raise DTypeError(f"{reader.source}: {row.where}: element type {code} is not supported")
    kind = _TYPES[code].newbyteorder("<")
    data = row.find_vector(3, 1, "raw_data")
    begin, nbytes = (0, 0) if data is None else data
    if nbytes != math.prod(shape) * kind.itemsize:
        row.fail(
            f"{nbytes} bytes of values; {kind}{shape} takes {math.prod(shape) * kind.itemsize}"
        )
    values = np.frombuffer(bytes(reader.data.read_at(begin, nbytes)), kind)
    return values.reshape(shape).astype(kind.newbyteorder("="))
