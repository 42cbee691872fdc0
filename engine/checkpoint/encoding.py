"""Encoding of checkpoints; `contents` describes the format.

Two layouts, both in the order of creation of onnxruntime-training 1.19.2, so that its files come
out byte for byte, except for the checksum.  The *artifact* layout keeps the order of the parameters
and has no optimizer groups; the *runtime* layout sorts every name and always has
`optimizer_groups`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import CheckpointError, DTypeError, InputError
from engine.checkpoint.contents import (
    CHECKSUM,
    CODES,
    IDENTIFIER,
    SUPPORTED,
    VERSION,
    Checkpoint,
    NominalTensor,
    OptimizerGroup,
    view_bytes,
)
from engine.checkpoint.flatbuffer import F32, MAX_BYTES, FlatbufferWriter, make_reference, quote

EXTERNAL_THRESHOLD = 1800 << 20  # least bytes of tensors for which parameters go external
EXTERNAL_MIN_BYTES = 64  # the artifact layout keeps smaller parameters inline


def encode(
    cp: Checkpoint,
    *,
    artifact: bool = False,
    external_threshold: int = EXTERNAL_THRESHOLD,
    checksum: bool = True,
) -> tuple[bytes, bytes | None]:
    """Return the checkpoint file and its companion data, None if all values are inline.

    Args:
        cp: What to store.
        artifact: Use the artifact layout instead of the runtime layout.
        external_threshold: Least bytes of all tensors together for which parameters go external: in
            the artifact layout parameters of at least 64 bytes, in the runtime layout all of them.
        checksum: Write the checksum; without it the bytes are onnxruntime-training's.

    Raises:
        CheckpointError: Names are duplicates, nominal and complete parameters are mixed, the
            artifact layout is asked for optimizer groups, or the file would exceed 2 GiB.
        DTypeError: A tensor or property has a type that checkpoints do not support.
        InputError: A number exceeds int64 or float32, or text has no UTF-8 form.
    """
    pieces, companion = encode_parts(
        cp, artifact=artifact, external_threshold=external_threshold, checksum=checksum
    )
    return b"".join(pieces), None if companion is None else b"".join(companion)


def encode_parts(
    cp: Checkpoint, *, artifact: bool, external_threshold: int, checksum: bool = True
) -> tuple[list[bytes | memoryview], Iterator[bytes | memoryview] | None]:
    """Do as `encode`, with both results in pieces, so that the values are never copied."""
    _check(cp, artifact)
    values = (*cp.trainable.values(), *cp.frozen.values())
    params = [0 if isinstance(v, NominalTensor) else v.nbytes for v in values]
    moments = [m.nbytes for g in cp.optimizer_groups for s in g.states.values() for m in s.values()]
    total = sum(params) + sum(moments)
    smallest = None  # least bytes of a parameter that goes external
    if values and total >= external_threshold and not cp.nominal:
        smallest = EXTERNAL_MIN_BYTES if artifact else 0
        total = sum(moments) + sum(n for n in params if n < smallest)
    if total > MAX_BYTES:
        raise CheckpointError(
            f"{total} bytes of tensors would stay inline, {sum(moments)} of them optimizer state; "
            f"supported: {MAX_BYTES}"
        )
    writer = _CheckpointWriter(FlatbufferWriter(MAX_BYTES), artifact, smallest, checksum)
    try:
        data = writer.write_checkpoint(cp)
    except OverflowError:
        raise CheckpointError(f"a checkpoint file holds at most {MAX_BYTES} bytes") from None
    return data, None if smallest is None else _list_pieces(writer.entries)


def _list_pieces(entries: list[tuple[int, Array]]) -> Iterator[bytes | memoryview]:
    end = 0
    for offset, array in entries:
        yield bytes(offset - end)
        yield view_bytes(array)
        end = offset + array.nbytes


@dataclass(slots=True)
class _CheckpointWriter:
    """Writer of the tables in the reference's order of creation; `entries` is the companion
    data.
    """

    out: FlatbufferWriter
    artifact: bool
    smallest: int | None  # least bytes of a parameter that goes external; None if none does
    checksum: bool
    entries: list[tuple[int, Array]] = field(default_factory=list)  # (offset, values)

    def write_checkpoint(self, cp: Checkpoint) -> list[bytes | memoryview]:
        module = groups = bag = 0
        if self.artifact or cp.trainable or cp.frozen:
            module = self.write_module_state(cp)
        if not self.artifact:
            members = sorted(cp.optimizer_groups, key=lambda group: group.name)
            tables = [self.write_optimizer_group(group) for group in members]
        if cp.properties:
            bag = self.write_property_bag(cp.properties)
        if not self.artifact:
            groups = self.out.write_references(tables)
        root = self.out.write_table(
            5,
            ("Int32", 0, VERSION, 0),
            make_reference(1, module),
            make_reference(2, groups),
            make_reference(3, bag),
            ("UInt32", CHECKSUM, self.compute_checksum if self.checksum else None, None),
        )
        return self.out.finish(root, IDENTIFIER)

    def compute_checksum(self) -> int:
        """Return the CRC-32 of the bytes written so far, followed by the companion data."""
        crc = self.out.compute_crc32()
        for piece in _list_pieces(self.entries):
            crc = zlib.crc32(piece, crc)
        return crc

    def write_module_state(self, cp: Checkpoint) -> int:
        lists = []
        for params in (cp.trainable, cp.frozen):
            names = list(params) if self.artifact else sorted(params)
            lists.append([self.write_tensor(n, params[n], self.smallest) for n in names])
        trainable, frozen = (self.out.write_references(tables) for tables in lists)
        return self.out.write_table(
            4,
            make_reference(0, trainable),
            make_reference(1, frozen),
            ("Bool", 2, cp.nominal, False),
            ("Bool", 3, self.smallest is not None, False),
        )

    def write_tensor(self, name: str, value: Array | NominalTensor, smallest: int | None) -> int:
        label = self.out.write_string(name)
        if isinstance(value, NominalTensor):
            shape: tuple[int, ...] = ()
            array: Array = np.empty(0, value.dtype)
        else:
            shape = value.shape
            array = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        dims = self.out.write_integers(shape)
        raw, offset = 0, -1
        if smallest is not None and array.nbytes >= smallest:
            wide = array.dtype.kind in "if" and array.itemsize == 8
            offset = self.append(array, 8 if wide else 4)
        else:
            raw = self.out.write_bytes(view_bytes(array))
        return self.out.write_table(
            7,
            make_reference(0, label),
            make_reference(2, dims),
            ("Int32", 3, CODES[array.dtype.newbyteorder("=")], 0),
            make_reference(4, raw),
            ("Int64", 6, offset, -1),
        )

    def append(self, array: Array, align: int) -> int:
        """Add an entry to the companion data and return its offset."""
        end = self.entries[-1][0] + self.entries[-1][1].nbytes if self.entries else 0
        offset = -(-end // align) * align
        self.entries.append((offset, array))
        return offset

    def write_optimizer_group(self, group: OptimizerGroup) -> int:
        rate = _check_float32(
            f"initial_learning_rate of {quote(group.name)}", group.initial_learning_rate
        )
        step = _check_int64(f"step of {quote(group.name)}", group.step)
        states = []
        for parameter, moments in sorted(group.states.items()):
            tensors = [self.write_tensor(name, moments[name], None) for name in sorted(moments)]
            label, momentums = self.out.write_string(parameter), self.out.write_references(tensors)
            before = ("Int64", 2, group.steps_before.get(parameter, 0), 0)
            fields = (before, make_reference(0, label), make_reference(1, momentums))
            states.append(self.out.write_table(3, *fields))
        name, members = self.out.write_string(group.name), self.out.write_references(states)
        return self.out.write_table(
            4,
            make_reference(0, name),
            ("Float32", 2, *rate),
            ("Int64", 1, step, 0),
            make_reference(3, members),
        )

    def write_property_bag(self, properties: Mapping[str, int | float | str]) -> int:
        ints, floats, strings = [], [], []
        for name in sorted(properties):
            value, what = properties[name], f"property {quote(name)}"
            label = make_reference(0, self.out.write_string(name))
            if isinstance(value, str):
                text = self.out.write_string(value)
                strings.append(self.out.write_table(2, label, make_reference(1, text)))
            elif isinstance(value, float | np.floating):
                floats.append(
                    self.out.write_table(2, label, ("Float32", 1, *_check_float32(what, value)))
                )
            elif isinstance(value, int | np.integer):
                ints.append(
                    self.out.write_table(2, label, ("Int64", 1, _check_int64(what, value), 0))
                )
            else:
                raise DTypeError(f"{what} is a {type(value).__name__}; supported: int, float, str")
        vectors = [self.out.write_references(tables) for tables in (ints, floats, strings)]
        return self.out.write_table(
            3, *(make_reference(slot, vector) for slot, vector in enumerate(vectors))
        )


def _check_int64(what: str, value: int | np.integer[Any]) -> int:
    if not -(2**63) <= value < 2**63:
        raise InputError(f"{what} is {value}, outside the range of int64")
    return int(value)


def _check_float32(what: str, value: float | np.floating[Any]) -> tuple[float, float | None]:
    """Return (value, default of its field); -0.0 equals the default 0.0 but must not be lost."""
    try:
        F32.pack(value)
    except OverflowError:
        raise InputError(f"{what} is {value}, outside the range of float32") from None
    return float(value), 0.0 if math.copysign(1.0, value) > 0 else None


def _check(cp: Checkpoint, artifact: bool) -> None:
    """Refuse contents that the format cannot hold, or that `decode` would refuse."""
    both = cp.trainable.keys() & cp.frozen.keys()
    if both:
        raise CheckpointError(f"parameter {quote(min(both))} is both trainable and frozen")
    names = [group.name for group in cp.optimizer_groups]
    if len(set(names)) < len(names):
        raise CheckpointError(f"optimizer groups {names} have a duplicate name")
    if artifact and cp.optimizer_groups:
        raise CheckpointError(f"the artifact layout has no optimizer groups; got {names}")
    for name, value in (*cp.trainable.items(), *cp.frozen.items()):
        if isinstance(value, NominalTensor) != cp.nominal:
            kind = "nominal" if cp.nominal else "complete"
            raise CheckpointError(
                f"parameter {quote(name)} is a {type(value).__name__} in a {kind} checkpoint"
            )
        _check_tensor(f"parameter {quote(name)}", value)
    for group in cp.optimizer_groups:
        for parameter, state in group.states.items():
            for name, moment in state.items():
                _check_tensor(f"{quote(name)} of parameter {quote(parameter)}", moment)


def _check_tensor(what: str, value: Array | NominalTensor) -> None:
    if value.dtype.newbyteorder("=") not in CODES:
        raise DTypeError(
            f"{what}: {value.dtype} is not supported in checkpoints; supported: {SUPPORTED}"
        )
