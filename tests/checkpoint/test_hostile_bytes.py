"""Damaged and forged checkpoints are refused, in bounded time and memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest

from engine.checkpoint.flatbuffer import FlatbufferWriter, make_reference
from engine.checkpoint.storage import Checkpoint, OptimizerGroup, decode, encode
from engine.errors import CheckpointError
from tests.support.checkpoints import get_array, make_sample
from tests.support.places import CHECKPOINTS


def forge(
    version: int = 2,
    identifier: bytes = b"ODTC",
    module: bool = True,
    count: int = 1,
    **tensor: Any,
) -> bytes:
    """A checkpoint with `count` tensors "w<i>", float32 [2] unless `tensor` says otherwise."""
    out = FlatbufferWriter(1 << 20)
    raw = tensor.get("raw", bytes(8))
    shared = out.write_bytes(raw) if raw is not None else 0
    tables = []
    for i in range(count):
        name = tensor.get("name", b"w%d" % i)
        label = out.write_text(name) if name is not None else 0
        dims = tensor.get("dims", (2,))
        shape = out.write_integers(dims) if dims is not None else 0
        tables.append(
            out.write_table(
                7,
                make_reference(0, label),
                make_reference(2, shape),
                ("Int32", 3, tensor.get("code", 1), 0),
                make_reference(4, shared),
                ("Int64", 6, tensor.get("offset", -1), -1),
            )
        )
    params, none = out.write_references(tables), out.write_references([])
    state = out.write_table(4, make_reference(0, params), make_reference(1, none)) if module else 0
    root = out.write_table(4, ("Int32", 0, version, 0), make_reference(1, state))
    return b"".join(out.finish(root, identifier))


def test_the_forger_makes_valid_files() -> None:
    assert get_array(decode(forge()).trainable["w0"]).tolist() == [0, 0]
    assert decode(forge(module=False)).trainable == {}


PLACE = r"^here: checkpoint\.module_state\.|^here: module_state\.requires_grad_params\[0\] 'w0': "


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 1}, r"^here: checkpoint: version 1; supported: 2$"),
        ({"version": 3}, r"version 3; supported: 2"),
        ({"identifier": b"ORTM"}, r"header: identifier is b'ORTM'; a checkpoint has b'ODTC'"),
        (
            {"code": 10},
            r"'w0': data_type 10 \(FLOAT16\) is not supported in checkpoints; supp.*DOUB",
        ),
        ({"code": 16}, r"data_type 16 \(BFLOAT16\) is not supported in checkpoints"),
        ({"code": 8}, r"data_type 8 \(STRING\)"),
        ({"code": 0}, r"data_type 0 \(UNDEFINED\)"),
        ({"code": 99}, r"data_type 99 \(unknown\)"),
        ({"code": -1}, r"data_type -1 \(unknown\)"),
        ({"dims": (3,)}, r"dims \[3\] of float32 need 12 bytes, raw_data has 8"),
        ({"dims": ()}, r"dims \[\] of float32 need 4 bytes, raw_data has 8"),
        ({"dims": (-1,)}, r"dims \[-1\] has a negative entry"),
        ({"dims": (-1, -2)}, r"dims \[-1, -2\] has a negative entry"),
        ({"dims": (2**62, 2**62)}, r"exceeds the address space"),
        ({"dims": (2**32, 2**32)}, r"exceeds the address space"),
        ({"dims": (0, 2**62, 2**62), "raw": b""}, r"exceeds the address space"),
        ({"dims": (2**40,)}, r"need 4398046511104 bytes, raw_data has 8"),
        ({"dims": (1,) * 65}, r"65 dims; supported: up to 64"),
        ({"dims": None}, r"'w0': dims is missing"),
        ({"raw": None}, r"raw_data is missing, external_data_offset is -1"),
        ({"raw": None, "offset": 0}, r"offset is 0, but the checkpoint has no external data"),
        ({"offset": 0}, r"raw_data is present, external_data_offset is 0"),
        ({"offset": -7}, r"external_data_offset is -7"),
        ({"code": 9, "dims": (8,), "raw": b"\0\1\2\0\0\0\0\0"}, r"BOOL data has bytes other than"),
        ({"name": None}, r"requires_grad_params\[0\]: name is missing"),
        ({"name": b"\xff\xfe"}, r"name is not UTF-8: b'\\xff\\xfe'"),
        ({"name": b"w", "count": 2}, r"requires_grad_params\[1\] 'w': is a duplicate name"),
        ({"count": 1000, "dims": (250,), "raw": bytes(1000)}, r"objects overlap"),
    ],
)
def test_messages_name_place_finding_and_support(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        decode(forge(**changes), source="here")
    assert str(caught.value).startswith("here: ")


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"ODTC", bytes(7), bytes(8), b"\xff" * 64, b"{}" * 50]
)
def test_bytes_that_are_no_checkpoint(data: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"^checkpoint bytes: header: "):
        decode(data)


def test_a_duplicate_across_the_two_lists_is_refused() -> None:
    data = encode(Checkpoint({"aa": np.zeros(1)}, {"ab": np.zeros(1)}))[0]
    with pytest.raises(CheckpointError, match=r"frozen_params\[0\] 'aa': is a duplicate name"):
        decode(data.replace(b"ab\0", b"aa\0"))


@pytest.mark.parametrize(
    ("cp", "old", "new", "place"),
    [
        (
            Checkpoint(properties={"pa": 1, "pb": 1.0}),
            b"pb\0",
            b"pa\0",
            r"property_bag\.floats\[0\] 'pa'",
        ),
        (
            Checkpoint(optimizer_groups=[OptimizerGroup("ga"), OptimizerGroup("gb")]),
            b"gb\0",
            b"ga\0",
            r"optimizer_groups\[1\] 'ga'",
        ),
        (
            Checkpoint(optimizer_groups=[OptimizerGroup(states={"pa": {}, "pb": {}})]),
            b"pb\0",
            b"pa\0",
            r"'group0'\.optimizer_states\[1\] 'pa'",
        ),
        (
            Checkpoint(
                optimizer_groups=[
                    OptimizerGroup(states={"p": {"m0": np.zeros(1), "m1": np.zeros(1)}})
                ]
            ),
            b"m1\0",
            b"m0\0",
            r"'group0'\.optimizer_states\[0\] 'p'\.momentums\[1\] 'm0'",
        ),
    ],
)
def test_other_duplicate_names(cp: Checkpoint, old: bytes, new: bytes, place: str) -> None:
    with pytest.raises(CheckpointError, match=place + ": is a duplicate name"):
        decode(encode(cp)[0].replace(old, new))


def test_an_offset_that_leads_back_or_out_is_refused() -> None:
    data = bytearray(encode(make_sample())[0])
    for offset in (0, len(data), 2**31, 2**32 - 1):
        data[0:4] = struct.pack("<I", offset)
        with pytest.raises(CheckpointError, match=f"offset {offset} at 0 leads outside"):
            decode(data)


def tolerates(data: bytes, external: bytes | None = None) -> bool:
    """Decode, and tell whether that worked; errors other than CheckpointError come through."""
    try:
        decode(data, external)
    except CheckpointError:
        return False
    return True


@pytest.mark.parametrize("name", ["adamw_runtime", "dtypes", "nominal", "properties", "empty"])
def test_every_truncation(name: str) -> None:
    data = (CHECKPOINTS / name).read_bytes()
    accepted = [n for n in range(len(data)) if tolerates(data[:n])]
    # Only the padding at the end of the file may be cut unnoticed.
    assert all(not any(data[n:]) and len(data) - n < 8 for n in accepted)


@pytest.mark.parametrize("name", ["adamw_runtime", "dtypes_runtime", "properties", "nominal"])
def test_random_damage(name: str) -> None:
    """4 x 1500 damaged files: no error but CheckpointError, and no memory beyond the file's own."""
    rng = random.Random(name)
    original = (CHECKPOINTS / name).read_bytes()
    words = (0, 1, 4, 8, len(original), 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1)
    tracemalloc.start()
    for _ in range(1500):
        data = bytearray(original)
        for _ in range(rng.choice((1, 1, 2, 8, 30))):
            at = rng.randrange(len(data))
            kind = rng.randrange(5)
            if kind == 0:
                data[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                data[at] = rng.randrange(256)
            elif kind == 2:
                at &= ~3
                data[at : at + 4] = struct.pack("<I", rng.choice(words))
            elif kind == 3:
                at &= ~3
                data[at : at + 4] = struct.pack("<i", rng.randrange(-len(data), len(data)))
            else:
                other = rng.randrange(len(data))
                data[at : at + 16] = data[other : other + 16]
        tolerates(bytes(data))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_random_damage_of_files_with_external_data() -> None:
    rng = random.Random(5)
    original = (CHECKPOINTS / "external_runtime").read_bytes()
    external = (CHECKPOINTS / "external_runtime.data").read_bytes()
    for _ in range(1500):
        data = bytearray(original)
        for _ in range(rng.choice((1, 2, 5))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        tolerates(bytes(data), external)


def test_work_on_shared_tables_is_bounded() -> None:
    """Groups that all point to one list of states would take count**2 steps."""
    out = FlatbufferWriter(1 << 20)
    count = 3000
    states = []
    for i in range(count):
        label, moments = out.write_string(f"p{i}"), out.write_references([])
        states.append(out.write_table(2, make_reference(0, label), make_reference(1, moments)))
    members = out.write_references(states)
    groups = [
        out.write_table(4, make_reference(0, out.write_string(f"g{i}")), make_reference(3, members))
        for i in range(count)
    ]
    root = out.write_table(4, ("Int32", 0, 2, 0), make_reference(2, out.write_references(groups)))
    with pytest.raises(CheckpointError, match="objects overlap"):
        decode(b"".join(out.finish(root, b"ODTC")))
