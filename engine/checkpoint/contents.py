"""Contents and decoding of checkpoints: FlatBuffers bytes, identifier "ODTC", version 2.

The tables and their fields in slot order; a field that holds its default is absent:

    Checkpoint               version:int32  module_state  optimizer_groups:[]  property_bag
                             checksum:uint32
    ModuleState              requires_grad_params:[Tensor]  frozen_params:[Tensor]
                             is_nominal_state:bool  has_external_data:bool
    OptimizerGroup           group_name  step:int64  initial_learning_rate:float32
                             optimizer_states:[ParameterOptimizerState]
    ParameterOptimizerState  param_name  momentums:[Tensor]  steps_before:int64 = 0
    PropertyBag              ints:[]  floats:[]  strings:[]; each entry is a table: name  value
    Tensor                   name  doc_string  dims:[int64]  data_type:int32  raw_data:[uint8]
                             string_data  external_data_offset:int64 = -1

A large checkpoint keeps parameter bytes in a companion file: an entry starts at the next multiple
of 4 bytes, of 8 for int64 and float64; its size follows from dims and data_type.  Optimizer state
is never external, and a nominal checkpoint has no bytes at all.

`checksum` and `steps_before` are not in onnxruntime-training's format, and its readers pass over
them.  `steps_before` is absent unless a parameter is trained later than others.  The checksum is
the CRC-32, as of zlib, of all bytes of the file after it, and then of the companion file; files
without it are read unchecked.  Since a file is written from its end, and the root table last, a
writer knows all these bytes in time.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import ELEMENT_TYPES, MAX_RANK
from engine.checkpoint.flatbuffer import (
    F32,
    I32,
    I64,
    U8,
    U32,
    Bytes,
    FlatbufferReader,
    FlatbufferTable,
    Source,
    open_source,
)

IDENTIFIER = b"ODTC"
VERSION = 2
CHECKSUM = 4  # slot of the root table

# The types that the reference loader accepts, by `data_type`.
TYPES = {t.onnx: t for t in ELEMENT_TYPES.values() if t.kind != "half"}
CODES = {np.dtype(t.numpy): code for code, t in TYPES.items()}
SUPPORTED = ", ".join(TYPES[code].onnx_name for code in sorted(TYPES))
_UNSUPPORTED = {0: "UNDEFINED", 8: "STRING", 10: "FLOAT16", 14: "COMPLEX64", 15: "COMPLEX128"}
_UNSUPPORTED |= {16: "BFLOAT16", 17: "FLOAT8E4M3FN", 18: "FLOAT8E4M3FNUZ"}
_UNSUPPORTED |= {19: "FLOAT8E5M2", 20: "FLOAT8E5M2FNUZ"}


@dataclass(frozen=True, slots=True)
class NominalTensor:
    """Parameter of a nominal checkpoint: it has an element type, but neither shape nor values."""

    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerGroup:
    """State of one parameter group: `states[parameter][momentum]`, as `["fc.bias"]["momentum0"]`.

    `step` is stored as int64, `initial_learning_rate` as float32.

    steps_before: how many of these steps were done before the first one of a parameter, where there
        were any.  A parameter with neither states nor an entry here has had no step.
    """

    name: str = "group0"
    step: int = 0
    initial_learning_rate: float = 0.001
    states: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)
    steps_before: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """Contents of a checkpoint.

    Every parameter is an array, or, if `nominal`, every one is a `NominalTensor`.  Properties are
    stored as int64, float32 or UTF-8 text.
    """

    trainable: Mapping[str, Array | NominalTensor] = field(default_factory=dict)
    frozen: Mapping[str, Array | NominalTensor] = field(default_factory=dict)
    nominal: bool = False
    optimizer_groups: list[OptimizerGroup] = field(default_factory=list)
    properties: Mapping[str, int | float | str] = field(default_factory=dict)


# --- reading


@dataclass(eq=False, slots=True)
class StoredTensor:
    """Tensor in a checkpoint whose values have not been read.

    data: the bytes or file with the values, from byte `begin` on. array: the destination of the
        values; None lets `decode` make an array.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    table: FlatbufferTable
    data: Source
    begin: int
    array: Array | None = None

    def read(self) -> Array:
        """Read the values; return the array that holds them."""
        values_ = np.empty(self.shape, self.dtype) if self.array is None else self.array
        little = self.dtype.newbyteorder("<")
        values = values_ if values_.dtype == little else np.empty(self.shape, little)
        self.data.read_into(view_bytes(values), self.begin)
        if little.kind == "b" and values.size and values.view(np.uint8).max() > 1:
            self.table.fail("BOOL data has bytes other than 0 and 1")
        if values is not values_:
            values_[...] = values
        return values_


class _External:
    """Companion data.  Entries do not overlap, so together they are no larger than it."""

    def __init__(self, data: Bytes | io.RawIOBase, source: str) -> None:
        self.data = open_source(data, f"{source}.data")
        self.budget = self.data.size


def _read_root(data: Bytes | io.RawIOBase, source: str) -> FlatbufferTable:
    root = FlatbufferReader(data, source).read_root(IDENTIFIER, "checkpoint")
    version = root.read_number(0, I32, 0)
    if version != VERSION:
        root.fail(f"version {version}; supported: {VERSION}")
    return root


def has_external_data(data: Bytes | io.RawIOBase, source: str = "checkpoint bytes") -> bool:
    """Tell whether parameter values are in a companion file.

    Raises:
        CheckpointError: `data` is not a checkpoint of version 2.
    """
    module = _read_root(data, source).read_child(1, "module_state")
    return module is not None and _is_external(module)


def is_nominal(data: Bytes | io.RawIOBase, source: str = "checkpoint bytes") -> bool:
    """Tell whether parameters have only names and types, without values.

    Raises:
        CheckpointError: `data` is not a checkpoint of version 2.
    """
    module = _read_root(data, source).read_child(1, "module_state")
    return module is not None and bool(module.read_number(2, U8, 0))


def _is_external(module: FlatbufferTable) -> bool:
    return bool(module.read_number(3, U8, 0)) and not module.read_number(2, U8, 0)


def decode(
    data: Bytes | io.RawIOBase,
    external: Bytes | io.RawIOBase | None = None,
    source: str = "checkpoint bytes",
    allocate: Callable[[Checkpoint], None] | None = None,
) -> Checkpoint:
    """Return the contents of a checkpoint; all arrays are owned, writable, C-contiguous copies.

    Args:
        data: The bytes of the checkpoint file, or an unbuffered binary file, from which every
            tensor is read directly to its place.
        external: The companion data in the same form; ignored if the checkpoint has none.
        source: The name of the bytes in messages, usually a path.
        allocate: Called with the contents, with a `Stored` for each array, after everything except
            the values has been checked; may give them arrays as destinations.

    Raises:
        CheckpointError: The bytes are truncated, corrupt, inconsistent, of another version or kind,
            hold an element type that checkpoints do not support, or need other `external` data.
    """
    root = _read_root(data, source)
    trainable: dict[str, Any] = {}
    frozen: dict[str, Any] = {}
    nominal = False
    module, companion = root.read_child(1, "module_state"), None
    if module is not None:
        nominal = bool(module.read_number(2, U8, 0))
        if _is_external(module):
            if external is None:
                module.fail("values are in external data, which was not given")
            companion = _External(external, source)
        for slot, key, into in (
            (0, "requires_grad_params", trainable),
            (1, "frozen_params", frozen),
        ):
            for table in module.read_children(slot, key):
                name, table = _read_name(table, trainable, frozen)
                into[name] = _read_nominal(table) if nominal else _read_stored(table, companion)
    known = Checkpoint(
        trainable, frozen, nominal, _read_optimizer_groups(root), _read_properties(root)
    )
    _check_sum(root, companion)
    if allocate is not None:
        allocate(known)
    groups = [
        replace(g, states={n: _read(states) for n, states in g.states.items()})
        for g in known.optimizer_groups
    ]
    return replace(known, trainable=_read(trainable), frozen=_read(frozen), optimizer_groups=groups)


def _check_sum(root: FlatbufferTable, companion: _External | None) -> None:
    """Check the bytes after the checksum against it, if there is one.

    Raises:
        CheckpointError: they have another one: a byte was changed after the file was written.
    """
    place = root.find_field(CHECKSUM, U32.size)
    if place is None:
        return
    stored = root.reader.read_number(U32, place, root.where)
    crc = root.reader.data.compute_crc32(place + U32.size)
    if companion is not None:
        crc = companion.data.compute_crc32(0, crc)
    if crc != stored:
        root.fail(f"damaged: its checksum is {stored:08x}, its content has {crc:08x}")


def _read(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors with the values of those that are stored."""
    return {n: t.read() if isinstance(t, StoredTensor) else t for n, t in tensors.items()}


def _read_name(
    table: FlatbufferTable, *taken: Mapping[str, Any], label: str = "name"
) -> tuple[str, FlatbufferTable]:
    """Return the name in slot 0 and the table as named in messages; refuse a repeated name."""
    name = table.read_string(0, label)
    table = table.name_table(name)
    if any(name in names for names in taken):
        table.fail("is a duplicate name")
    return name, table


def _read_dtype(table: FlatbufferTable) -> np.dtype[Any]:
    code = table.read_number(3, I32, 0)
    if code not in TYPES:
        name = _UNSUPPORTED.get(code, "unknown")
        table.fail(
            f"data_type {code} ({name}) is not supported in checkpoints; supported: {SUPPORTED}"
        )
    stored: np.dtype[Any] = np.dtype(TYPES[code].numpy)
    return stored.newbyteorder("<")


def _read_nominal(table: FlatbufferTable) -> NominalTensor:
    # Files saved at run time hold one meaningless element here; dims and bytes are ignored.
    return NominalTensor(_read_dtype(table).newbyteorder("="))


def _read_dims(table: FlatbufferTable, itemsize: int) -> tuple[int, ...]:
    vector = table.find_vector(2, 8, "dims")
    if vector is None:
        table.fail("dims is missing")
    start, rank = vector
    if rank > MAX_RANK:
        table.fail(f"{rank} dims; supported: up to {MAX_RANK}")
    dims = struct.unpack(f"<{rank}q", table.reader.data.read_at(start, 8 * rank))
    if any(d < 0 for d in dims):
        table.fail(f"dims {list(dims)} has a negative entry")
    # Zeros count as 1: numpy refuses [0, 2**62, 2**62] too.
    if math.prod(max(d, 1) for d in dims) * itemsize >= 2**63:
        table.fail(f"dims {list(dims)} exceeds the address space")
    return dims


def _read_stored(table: FlatbufferTable, companion: _External | None) -> StoredTensor:
    """Return the facts about a Tensor table whose bytes are all present."""
    dtype = _read_dtype(table)
    dims = _read_dims(table, dtype.itemsize)
    nbytes = math.prod(dims) * dtype.itemsize
    raw = table.find_vector(4, 1, "raw_data")
    offset = table.read_number(6, I64, -1)
    native = dtype.newbyteorder("=")
    if raw is not None and offset == -1:
        start, length = raw
        if length != nbytes:
            table.fail(f"dims {list(dims)} of {dtype} need {nbytes} bytes, raw_data has {length}")
        return StoredTensor(native, dims, table, table.reader.data, start)
    if raw is not None or offset < 0:
        table.fail(
            f"needs either raw_data or external data; raw_data is "
            f"{'missing' if raw is None else 'present'}, external_data_offset is {offset}"
        )
    if companion is None:
        table.fail(f"external_data_offset is {offset}, but the checkpoint has no external data")
    companion.budget -= nbytes
    if offset + nbytes > companion.data.size or companion.budget < 0:
        table.fail(
            f"needs {nbytes} bytes at {offset} of the external data, which is too short or has "
            f"overlapping entries: it has {companion.data.size} bytes"
        )
    return StoredTensor(native, dims, table, companion.data, offset)


def view_bytes(array: Array) -> memoryview:
    """Return the bytes of a C-contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def _read_optimizer_groups(root: FlatbufferTable) -> list[OptimizerGroup]:
    groups: dict[str, OptimizerGroup] = {}
    for table in root.read_children(2, "optimizer_groups", required=False):
        name, table = _read_name(table, groups, label="group_name")
        states: dict[str, Mapping[str, Any]] = {}
        step, before = table.read_number(1, I64, 0), dict[str, int]()
        for entry in table.read_children(3, "optimizer_states"):
            parameter, entry = _read_name(entry, states, label="param_name")
            momentums: dict[str, Any] = {}
            for tensor in entry.read_children(1, "momentums"):
                momentum, tensor = _read_name(tensor, momentums)
                momentums[momentum] = _read_stored(tensor, None)
            states[parameter] = momentums
            earlier = entry.read_number(2, I64, 0)
            if not 0 <= earlier <= max(step, 0):
                entry.fail(f"steps_before {earlier}; expected 0 to the {step} steps of its group")
            if earlier:
                before[parameter] = earlier
        rate = float(table.read_number(2, F32, 0))
        groups[name] = OptimizerGroup(name, step, rate, states, before)
    return list(groups.values())


def _read_properties(root: FlatbufferTable) -> dict[str, int | float | str]:
    properties: dict[str, int | float | str] = {}
    bag = root.read_child(3, "property_bag")
    if bag is None:
        return properties
    for slot, kind in enumerate(("ints", "floats", "strings")):
        for table in bag.read_children(slot, kind, required=False):
            name, table = _read_name(table, properties)
            if kind == "ints":
                properties[name] = table.read_number(1, I64, 0)
            elif kind == "floats":
                properties[name] = float(table.read_number(1, F32, 0))
            else:
                properties[name] = table.read_string(1, "value")
    return dict(sorted(properties.items()))
