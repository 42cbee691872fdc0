"""Checkpoints: reference files byte for byte, round trips, hostile bytes, crashes while writing."""

from __future__ import annotations

import errno
import io
import os
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import textwrap
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checkpoint import encoding, storage
from engine.checkpoint.flatbuffer import Writer, reference
from engine.checkpoint.storage import Checkpoint, NominalTensor, OptimizerGroup, decode, encode
from engine.errors import CheckpointError, DTypeError, FileError, InputError
from tests.support.places import CHECKPOINTS, ROOT

ARTIFACTS = ["l1", "mlp", "lstm", "dtypes", "nominal", "empty"]
RUNTIME = ["dtypes_runtime", "empty_runtime", "properties", "adamw_runtime", "sgd_runtime"]
DTYPES = [np.dtype(t) for t in ("?", *"bBhHiIqQfd")]


def array(value: np.ndarray | NominalTensor) -> np.ndarray:
    """Return the value in a complete checkpoint."""
    assert isinstance(value, np.ndarray)
    return value


def plain(cp: Checkpoint) -> object:
    """Return the contents as values that compare with ==; floats and arrays bit by bit."""

    def tensor(value: np.ndarray | NominalTensor) -> object:
        if isinstance(value, NominalTensor):
            return value
        return value.dtype, value.shape, value.tobytes()

    def number(value: object) -> object:
        return struct.pack("<f", value) if isinstance(value, float) else value

    return (
        {n: tensor(v) for n, v in cp.trainable.items()},
        {n: tensor(v) for n, v in cp.frozen.items()},
        cp.nominal,
        {
            g.name: (
                g.step,
                number(g.initial_learning_rate),
                {p: {m: tensor(a) for m, a in s.items()} for p, s in g.states.items()},
            )
            for g in cp.optimizer_groups
        },
        {n: (type(v), number(v)) for n, v in cp.properties.items()},
    )


def sample(value: float = 1.0, size: int = 40) -> Checkpoint:
    """A checkpoint with something of everything; all its values depend on `value`."""
    weight = np.full((2, size), value, np.float32)
    return Checkpoint(
        trainable={"fc.weight": weight, "fc.bias": np.full(3, value, np.float64)},
        frozen={"mean": np.full(70, int(value), np.int64), "n": np.array(int(value), np.int8)},
        optimizer_groups=[
            OptimizerGroup("group0", int(value), value, {"fc.weight": {"momentum0": weight * 2}})
        ],
        properties={"epoch": int(value), "loss": value, "note": str(value)},
    )


# --- reference files


@pytest.mark.parametrize("name", ARTIFACTS)
def test_artifact_files_of_the_reference_come_out_byte_for_byte(name: str) -> None:
    data = (CHECKPOINTS / name).read_bytes()
    assert encode(decode(data), artifact=True) == (data, None)


@pytest.mark.parametrize("name", RUNTIME)
def test_runtime_files_of_the_reference_come_out_byte_for_byte(name: str) -> None:
    data = (CHECKPOINTS / name).read_bytes()
    assert encode(decode(data)) == (data, None)


def test_external_file_of_the_reference_comes_out_byte_for_byte() -> None:
    data = (CHECKPOINTS / "external_runtime").read_bytes()
    external = (CHECKPOINTS / "external_runtime.data").read_bytes()
    cp = decode(data, external)
    assert encode(cp, external_threshold=0) == (data, external)
    assert plain(storage.read(CHECKPOINTS / "external_runtime")) == plain(cp)
    np.testing.assert_array_equal(cp.frozen["u64"], np.arange(9, dtype=np.uint64))
    assert array(cp.frozen["s"]).shape == ()
    assert cp.frozen["s"] == 2
    assert array(cp.frozen["e"]).shape == (0,)


@pytest.mark.parametrize("name", ["dtypes", "dtypes_runtime"])
def test_values_of_every_dtype(name: str) -> None:
    cp = storage.read(CHECKPOINTS / name)
    assert {a.dtype for a in cp.trainable.values()} == set(DTYPES)
    for key, value in cp.trainable.items():
        found = array(value)
        expected = np.arange(15).reshape(3, 5)
        if found.dtype == bool:
            expected = expected % 2
        np.testing.assert_array_equal(found, expected.astype(key.removeprefix("z.")))
        for flag in ("owndata", "writeable", "aligned", "c_contiguous"):
            assert getattr(found.flags, flag)
    assert array(cp.frozen["frozen.scalar"]).shape == ()
    assert cp.frozen["frozen.scalar"] == 1.5
    assert array(cp.frozen["frozen.empty"]).shape == (0, 3)
    assert array(cp.frozen["frozen.é"]).tolist() == list(range(7))
    assert (cp.nominal, cp.optimizer_groups, cp.properties) == (False, [], {})


def test_names_keep_their_order() -> None:
    assert list(storage.read(CHECKPOINTS / "mlp").trainable) == [
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
    ]


@pytest.mark.parametrize("name", ["nominal", "nominal_runtime"])
def test_nominal_files_hold_types_only(name: str) -> None:
    cp = storage.read(CHECKPOINTS / name)
    assert cp.nominal
    assert cp.trainable["z.float64"] == NominalTensor(np.dtype(np.float64))
    assert {t.dtype for t in cp.trainable.values()} == set(DTYPES)
    assert len(cp.frozen) == 3
    assert plain(decode(encode(cp)[0])) == plain(cp)


def test_properties_of_the_reference() -> None:
    properties = storage.read(CHECKPOINTS / "properties").properties
    assert properties == {
        "a_last": "x" * 10,
        "f.1": float(np.float32(0.1)),
        "f0": 0.0,
        "fmax": float(np.finfo(np.float32).max),
        "fneg": -1.0,
        "i0": 0,
        "i1": -1,
        "imax": 2**63 - 1,
        "imin": -(2**63),
        "s": "",
        "sé": "naïve",
    }
    assert {type(v) for n, v in properties.items() if n.startswith("i")} == {int}
    assert {type(v) for n, v in properties.items() if n.startswith("f")} == {float}


@pytest.mark.parametrize(
    ("name", "moments"),
    [("adamw_runtime", ["momentum0", "momentum1"]), ("sgd_runtime", ["momentum0"])],
)
def test_optimizer_state_of_the_reference(name: str, moments: list[str]) -> None:
    cp = storage.read(CHECKPOINTS / name)
    (group,) = cp.optimizer_groups
    assert (group.name, group.step) == ("group0", 3)
    assert group.initial_learning_rate == np.float32(0.001)
    assert list(group.states) == sorted(cp.trainable)
    for parameter, state in group.states.items():
        assert list(state) == moments
        for moment in state.values():
            assert moment.shape == array(cp.trainable[parameter]).shape
            assert moment.dtype == np.float32
    assert cp.properties == {"epoch": 3, "loss": 0.25, "note": "hello"}


# --- round trips

arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(
        dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    )
)
tensors = st.dictionaries(st.text(max_size=8), arrays, max_size=4)
int64s = st.integers(-(2**63), 2**63 - 1)
float32s = st.floats(width=32)


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    trainable, frozen = draw(tensors), draw(tensors)
    groups = draw(
        st.lists(
            st.builds(
                OptimizerGroup,
                st.text(max_size=8),
                int64s,
                float32s,
                st.dictionaries(st.text(max_size=8), tensors, max_size=3),
            ),
            max_size=2,
            unique_by=lambda group: group.name,
        )
    )
    values = st.one_of(int64s, float32s, st.text(max_size=20))
    properties = draw(st.dictionaries(st.text(max_size=8), values, max_size=5))
    frozen = {n: a for n, a in frozen.items() if n not in trainable}
    return Checkpoint(trainable, frozen, False, groups, properties)


@given(checkpoints(), st.integers(0, 2000))
@settings(max_examples=150, deadline=None)
def test_round_trip(cp: Checkpoint, threshold: int) -> None:
    data, external = encode(cp, external_threshold=threshold)
    back = decode(data, external)
    assert plain(back) == plain(cp)
    assert encode(back, external_threshold=threshold) == (data, external)


@given(tensors, st.integers(0, 500))
@settings(max_examples=100, deadline=None)
def test_round_trip_of_the_artifact_layout(trainable: dict[str, Any], threshold: int) -> None:
    cp = Checkpoint(trainable)
    back = decode(*encode(cp, artifact=True, external_threshold=threshold))
    assert plain(back) == plain(cp)
    assert list(back.trainable) == list(trainable)


@given(st.dictionaries(st.text(max_size=8), st.sampled_from(DTYPES), max_size=5), st.booleans())
@settings(max_examples=50, deadline=None)
def test_round_trip_of_nominal_checkpoints(dtypes: dict[str, Any], artifact: bool) -> None:
    cp = Checkpoint({n: NominalTensor(d) for n, d in dtypes.items()}, nominal=bool(dtypes))
    assert plain(decode(*encode(cp, artifact=artifact, external_threshold=0))) == plain(cp)


def test_memory_layout_of_the_input_does_not_matter() -> None:
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    wide = np.zeros((4, 12), np.float32)
    wide[:, ::2] = a
    variants = [np.asfortranarray(a), wide[:, ::2], a.astype(">f4"), a[::-1][::-1]]
    for threshold in (0, 10**6):
        expected = encode(Checkpoint({"a": a}), external_threshold=threshold)
        for variant in variants:
            found = encode(Checkpoint({"a": variant}), external_threshold=threshold)
            assert found == expected


def test_decoded_arrays_do_not_share_memory_with_the_bytes() -> None:
    data = bytearray(encode(sample())[0])
    cp = decode(memoryview(data))
    before = plain(cp)
    data[:] = bytes(len(data))
    assert plain(cp) == before
    array(cp.trainable["fc.weight"])[:] = 7


@pytest.mark.parametrize("value", [0, -1, 1, 2**63 - 1, -(2**63), True, np.int32(7), np.uint8(3)])
def test_integer_properties(value: Any) -> None:
    found = decode(*encode(Checkpoint(properties={"p": value}))).properties["p"]
    assert (type(found), found) == (int, int(value))


@pytest.mark.parametrize("value", [0.0, -0.0, 0.1, -1.5, 1e-45, 3.4e38, np.inf, -np.inf, np.nan])
def test_float_properties_are_float32_to_the_bit(value: Any) -> None:
    for given_value in (value, np.float64(value)):
        found = decode(*encode(Checkpoint(properties={"p": given_value}))).properties["p"]
        assert type(found) is float
        assert struct.pack("<f", found) == struct.pack("<f", value)


@pytest.mark.parametrize("value", ["", "naïve", "\0inside\0", "😀" * 100])
def test_text_properties(value: Any) -> None:
    assert decode(*encode(Checkpoint(properties={"p": value}))).properties["p"] == value


# --- external data


def test_threshold_counts_all_tensors_and_small_ones_stay_inline_in_artifacts() -> None:
    cp = Checkpoint({"a": np.arange(64, dtype=np.uint8), "b": np.arange(63, dtype=np.uint8)})
    assert encode(cp, artifact=True, external_threshold=128)[1] is None
    assert encode(cp, artifact=True, external_threshold=127)[1] == bytes(range(64))
    assert encode(cp, external_threshold=127)[1] == bytes(range(64)) + bytes(range(63))
    assert storage.EXTERNAL_THRESHOLD == 1800 * 2**20


def test_entries_are_padded_to_4_bytes_and_to_8_for_int64_and_double() -> None:
    cp = Checkpoint(
        {
            "a": np.full(5, 1, np.uint8),
            "b": np.full(1, 2, np.uint64),
            "c": np.full(1, 3, np.uint8),
            "d": np.full(1, 4, np.int64),
            "e": np.full(1, 5, np.float64),
        }
    )
    _, external = encode(cp, external_threshold=0)
    assert external == (
        b"\1" * 5 + bytes(3)
        + struct.pack("<Q", 2)
        + b"\3" + bytes(7)
        + struct.pack("<qd", 4, 5.0)
    )  # fmt: skip
    cp = Checkpoint({"a": np.full(12, 1, np.uint8), "b": np.full(1, 2, np.uint64)})
    assert encode(cp, external_threshold=0)[1] == b"\1" * 12 + struct.pack("<Q", 2)


def test_optimizer_state_is_never_external() -> None:
    data, external = encode(sample(), external_threshold=0)
    assert external is not None
    assert len(external) < sum(array(a).nbytes for a in sample().trainable.values()) + 600
    assert plain(decode(data, external)) == plain(sample())


def test_companion_data_that_is_missing_or_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ck"
    storage.write(sample(), path, external_threshold=0)
    data, external = path.read_bytes(), (tmp_path / "ck.data").read_bytes()
    with pytest.raises(CheckpointError, match="external data, which was not given"):
        decode(data)
    for length in range(len(external)):
        with pytest.raises(CheckpointError, match=f"too short .*it has {length} bytes"):
            decode(data, external[:length])
    (tmp_path / "ck.data").write_bytes(external[:-1])
    with pytest.raises(CheckpointError, match=r"ck: .*frozen_params\[1\] 'n': needs 1 bytes at"):
        storage.read(path)
    (tmp_path / "ck.data").unlink()
    with pytest.raises(FileError, match=r"cannot read checkpoint .*ck.data"):
        storage.read(path)


def test_entries_of_the_companion_data_may_not_overlap() -> None:
    a = np.zeros(64, np.uint8)
    data, external = encode(Checkpoint({"a": a, "b": a + 1}), external_threshold=0)
    assert external is not None
    start = data.index(struct.pack("<q", 64))
    broken = data[:start] + bytes(8) + data[start + 8 :]
    with pytest.raises(CheckpointError, match="overlapping"):
        decode(broken, external[:100])


# --- hostile bytes


def forge(
    version: int = 2,
    identifier: bytes = b"ODTC",
    module: bool = True,
    count: int = 1,
    **tensor: Any,
) -> bytes:
    """A checkpoint with `count` tensors "w<i>", float32 [2] unless `tensor` says otherwise."""
    out = Writer(1 << 20)
    raw = tensor.get("raw", bytes(8))
    shared = out.octets(raw) if raw is not None else 0
    tables = []
    for i in range(count):
        name = tensor.get("name", b"w%d" % i)
        label = out.text(name) if name is not None else 0
        dims = tensor.get("dims", (2,))
        shape = out.integers(dims) if dims is not None else 0
        tables.append(
            out.table(
                7,
                reference(0, label),
                reference(2, shape),
                ("Int32", 3, tensor.get("code", 1), 0),
                reference(4, shared),
                ("Int64", 6, tensor.get("offset", -1), -1),
            )
        )
    params, none = out.references(tables), out.references([])
    state = out.table(4, reference(0, params), reference(1, none)) if module else 0
    root = out.table(4, ("Int32", 0, version, 0), reference(1, state))
    return b"".join(out.finish(root, identifier))


def test_the_forger_makes_valid_files() -> None:
    assert array(decode(forge()).trainable["w0"]).tolist() == [0, 0]
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
    data = bytearray(encode(sample())[0])
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
    out = Writer(1 << 20)
    count = 3000
    states = []
    for i in range(count):
        label, moments = out.string(f"p{i}"), out.references([])
        states.append(out.table(2, reference(0, label), reference(1, moments)))
    members = out.references(states)
    groups = [
        out.table(4, reference(0, out.string(f"g{i}")), reference(3, members)) for i in range(count)
    ]
    root = out.table(4, ("Int32", 0, 2, 0), reference(2, out.references(groups)))
    with pytest.raises(CheckpointError, match="objects overlap"):
        decode(b"".join(out.finish(root, b"ODTC")))


# --- what encode refuses


@pytest.mark.parametrize(
    ("cp", "kind", "message"),
    [
        (
            Checkpoint({"w": np.zeros(2, np.float16)}),
            DTypeError,
            r"parameter 'w': float16 is not supported in checkpoints; supported: FLOAT, ",
        ),
        (Checkpoint({"w": np.zeros(2, "U3")}), DTypeError, "parameter 'w': <U3 is not supported"),
        (
            Checkpoint(
                optimizer_groups=[OptimizerGroup(states={"w": {"m": np.zeros(1, np.complex64)}})]
            ),
            DTypeError,
            "'m' of parameter 'w': complex64 is not supported",
        ),
        (
            Checkpoint({"w": np.zeros(1)}, {"w": np.zeros(1)}),
            CheckpointError,
            "'w' is both trainable and frozen",
        ),
        (
            Checkpoint({"w": NominalTensor(np.dtype("f4"))}),
            CheckpointError,
            "'w' is a NominalTensor in a complete checkpoint",
        ),
        (
            Checkpoint({"w": np.zeros(1)}, nominal=True),
            CheckpointError,
            "'w' is a ndarray in a nominal checkpoint",
        ),
        (
            Checkpoint(optimizer_groups=[OptimizerGroup(), OptimizerGroup()]),
            CheckpointError,
            "duplicate name",
        ),
        (Checkpoint(properties={"p": 2**63}), InputError, "'p' is 9223372036854775808, outside"),
        (Checkpoint(properties={"p": -(2**63) - 1}), InputError, "outside the range of int64"),
        (Checkpoint(properties={"p": 1e39}), InputError, r"'p' is 1e\+39, outside .* float32"),
        (
            Checkpoint(properties={"p": cast(Any, [1])}),
            DTypeError,
            "'p' is a list; supported: int, float, str",
        ),
        (Checkpoint(properties={"p": cast(Any, None)}), DTypeError, "'p' is a NoneType"),
        (Checkpoint(properties={"p": "\ud800"}), InputError, "cannot be stored as UTF-8"),
        (Checkpoint({"\ud800": np.zeros(1)}), InputError, "cannot be stored as UTF-8"),
        (
            Checkpoint(optimizer_groups=[OptimizerGroup(step=2**63)]),
            InputError,
            "step of 'group0' is 9223372036854775808",
        ),
        (
            Checkpoint(optimizer_groups=[OptimizerGroup(initial_learning_rate=1e300)]),
            InputError,
            r"initial_learning_rate of 'group0' is 1e\+300",
        ),
    ],
)
def test_contents_without_a_place_in_the_format(
    cp: Checkpoint, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=message):
        encode(cp)
    with pytest.raises(kind, match=message):
        storage.write(cp, tmp_path / "ck")
    assert os.listdir(tmp_path) == []


def test_the_artifact_layout_holds_parameters_and_properties_only() -> None:
    with pytest.raises(CheckpointError, match=r"no optimizer groups; found \['group0'\]"):
        encode(sample(), artifact=True)
    cp = replace(sample(), optimizer_groups=[])
    assert plain(decode(*encode(cp, artifact=True))) == plain(cp)


def test_the_highest_rank() -> None:
    found = decode(*encode(Checkpoint({"w": np.zeros((1,) * 64)}))).trainable["w"]
    assert array(found).ndim == 64


def test_too_much_for_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(encoding, "MAX_BYTES", 400)
    with pytest.raises(CheckpointError, match=r"1225 bytes .* stay inline, 320 of them optimizer"):
        encode(sample())
    with pytest.raises(CheckpointError, match="a checkpoint file holds at most 400 bytes"):
        encode(sample(), external_threshold=0)
    monkeypatch.undo()
    monkeypatch.setattr(storage, "MAX_BYTES", 10)
    storage.write(sample(), tmp_path / "ck")
    with pytest.raises(CheckpointError, match="bytes; a checkpoint has up to 10"):
        storage.read(tmp_path / "ck")


def test_importing_needs_numpy_and_the_standard_library_only() -> None:
    code = """
        import sys
        from engine.checkpoint import storage
        storage.encode(storage.read(sys.argv[1]))
        allowed = sys.stdlib_module_names | {"engine", "numpy"}
        extra = {m.partition(".")[0] for m in sys.modules} - allowed
        own = {m for m in sys.modules if m.startswith("engine.")}
        bad = {m for m in extra if not m.startswith("_")} | {
            m for m in own if not m.startswith(tuple(sys.argv[2:]))
        }
        assert not bad, bad
    """
    ours = (
        "engine.base.arguments",
        "engine.checkpoint",
        "engine.base.element_types",
        "engine.errors",
        "engine.base.limits",
        "engine.checkpoint.flatbuffer",
        "engine.runtime",  # files.py, which needs numpy alone
    )
    run_python(code, CHECKPOINTS / "adamw_runtime", *ours).check_returncode()


# --- files


def run_python(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            textwrap.dedent(PATHS) + textwrap.dedent(code),
            *map(str, args),
        ],
        text=True,
        check=False,
    )


PATHS = f"import sys; sys.path[:0] = {[str(ROOT), *(p for p in sys.path if p)]!r}\n"
KINDS = [(old, new) for old in ("inline", "external") for new in ("inline", "external")]
THRESHOLD = {"inline": 1 << 30, "external": 0}


def put(value: float, path: str | Path, kind: str) -> None:
    storage.write(sample(value), path, external_threshold=THRESHOLD[kind])


@pytest.mark.parametrize(("old", "new"), KINDS)
def test_write_then_read(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "ck"
    for value, kind in ((1.0, old), (2.0, new), (3.0, old)):
        put(value, path, kind)
        assert plain(storage.read(path)) == plain(sample(value))
    assert set(os.listdir(tmp_path)) <= {"ck", "ck.data"}


def test_paths_of_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(1.0, "relative", "external")
    assert plain(storage.read(tmp_path / "relative")) == plain(sample(1.0))
    os.symlink("relative", "link")
    put(2.0, str(tmp_path / "link"), "external")
    assert os.path.islink("link")
    assert plain(storage.read("relative")) == plain(sample(2.0))
    assert sorted(os.listdir()) == ["link", "relative", "relative.data"]


@pytest.mark.parametrize("kind", ["inline", "external"])
def test_a_private_checkpoint_stays_private(tmp_path: Path, kind: str) -> None:
    put(1.0, tmp_path / "ck", kind)
    for file in tmp_path.iterdir():
        file.chmod(0o600)
    put(2.0, tmp_path / "ck", kind)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_artifact_layout_of_a_file(tmp_path: Path) -> None:
    storage.write(storage.read(CHECKPOINTS / "mlp"), tmp_path / "ck", artifact=True)
    assert (tmp_path / "ck").read_bytes() == (CHECKPOINTS / "mlp").read_bytes()


def test_reading_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"cannot read checkpoint '.*ck': No such file"):
        storage.read(tmp_path / "ck")
    with pytest.raises(FileError, match="is not a regular file"):
        storage.read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="pipe' is not a regular file"):
        storage.read(tmp_path / "pipe")
    (tmp_path / "bad").write_bytes(b"not checkpoint bytes")
    with pytest.raises(CheckpointError, match=r"bad: header: identifier is b'chec'"):
        storage.read(tmp_path / "bad")


def test_writing_where_it_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("keep me")
    with pytest.raises(FileError, match=r"cannot write checkpoint '.*/file/ck'"):
        put(1.0, tmp_path / "file" / "ck", "inline")
    with pytest.raises(FileError, match=r"cannot write .*missing/ck.*No such file"):
        put(1.0, tmp_path / "missing" / "ck", "external")
    with pytest.raises(FileError, match="is not a regular file"):
        put(1.0, tmp_path, "inline")
    with pytest.raises(FileError, match="/dev/null' is not a regular file"):
        put(1.0, Path("/dev/null"), "inline")
    assert (tmp_path / "file").read_text() == "keep me"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "limit", [0, 100, 950]
)  # the external data fits 950 bytes, no main file does
@pytest.mark.parametrize(("old", "new"), KINDS)
def test_a_full_disk_leaves_the_old_checkpoint(
    tmp_path: Path, old: str, new: str, limit: int
) -> None:
    path = tmp_path / "ck"
    put(1.0, path, old)
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        with pytest.raises(FileError, match=r"cannot write checkpoint .*ck': File too large"):
            put(2.0, path, new)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before


@pytest.mark.parametrize("call", ["replace", "fsync", "open"])
@pytest.mark.parametrize(("old", "new"), KINDS)
def test_any_failing_call_leaves_one_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, call: str
) -> None:
    original = getattr(os, call)
    outcomes, messages = [], []
    for nth in range(1, 20):
        path = tmp_path / str(nth) / "ck"
        path.parent.mkdir()
        put(1.0, path, old)
        calls = 0

        def failing(*args: Any, nth: int = nth) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(*args)

        monkeypatch.setattr(os, call, failing)
        try:
            put(2.0, path, new)
        except FileError as error:
            messages.append(str(error))
            outcomes.append(storage.read(path).properties["epoch"])
        else:
            break
        finally:
            monkeypatch.undo()
        found = storage.read(path)
        assert plain(found) in (plain(sample(1.0)), plain(sample(2.0)))
        assert not [f for f in os.listdir(path.parent) if f.endswith(".tmp")]
        put(3.0, path, new)
        assert plain(storage.read(path)) == plain(sample(3.0))
        assert set(os.listdir(path.parent)) <= {"ck", "ck.data"}
    else:
        pytest.fail("writing never got through")
    assert outcomes == sorted(outcomes)  # the new one, once it counts, stays
    assert outcomes[0] == (2 if call == "open" and new == "inline" else 1)
    assert all(
        re.fullmatch(r"cannot write checkpoint '.*/ck': No space left on device", message)
        for message in messages
    )


CRASH = """
    import builtins, os
    from engine.checkpoint import storage
    path, nth, threshold = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    cp = storage.read(path + ".next")
    count = 0
    def dying(function):
        def call(*args, **kwargs):
            global count
            count += 1
            if count == nth:
                os._exit(9)
            return function(*args, **kwargs)
        return call
    for name in ("replace", "fsync", "unlink", "open"):
        setattr(os, name, dying(getattr(os, name)))
    builtins.open = dying(open)
    storage.write(cp, path, external_threshold=threshold)
"""


@pytest.mark.parametrize(("old", "new"), KINDS)
def test_a_crash_before_any_system_call_leaves_the_old_or_the_new(
    tmp_path: Path, old: str, new: str
) -> None:
    seen = []
    for nth in range(1, 40):
        path = tmp_path / str(nth) / "ck"
        path.parent.mkdir()
        put(1.0, path, old)
        put(2.0, path.parent / "ck.next", "inline")
        code = run_python(CRASH, path, nth, THRESHOLD[new]).returncode
        found = storage.read(path)
        assert plain(found) in (plain(sample(1.0)), plain(sample(2.0)))
        seen.append(found.properties["epoch"])
        # Whatever was left, the next write cleans up, and the one after a crash counts.
        put(3.0, path, new if nth % 2 else old)
        assert plain(storage.read(path)) == plain(sample(3.0))
        left = [f for f in os.listdir(path.parent) if not f.endswith(".tmp")]
        assert set(left) <= {"ck", "ck.data", "ck.next"}
        if code == 0:
            break
        assert code == 9
    else:
        pytest.fail("writing never got through")
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (1, 2)


WRITER = """
    import numpy as np
    from engine.checkpoint import storage
    from engine.checkpoint.storage import Checkpoint
    path, threshold = sys.argv[1], int(sys.argv[2])
    pair = [Checkpoint({str(i): np.full(50_000, v, np.float32) for i in range(4)}) for v in (1, 2)]
    while True:
        for cp in pair:
            storage.write(cp, path, external_threshold=threshold)
            print("written", flush=True)
"""


@pytest.mark.parametrize("kind", ["inline", "external"])
def test_kill_9_while_writing_leaves_the_old_or_the_new(tmp_path: Path, kind: str) -> None:
    rng = random.Random(kind)
    path = tmp_path / "ck"
    command = [sys.executable, "-S", "-c", PATHS + textwrap.dedent(WRITER), path]
    for _ in range(15):
        with subprocess.Popen(
            [*map(str, command), str(THRESHOLD[kind])], stdout=subprocess.PIPE, text=True
        ) as process:
            for _ in range(rng.randrange(1, 4)):
                assert process.stdout is not None
                assert process.stdout.readline() == "written\n"
            # The delay only spreads the kills over the phases of a write.
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=rng.uniform(0, 0.02))
            process.send_signal(signal.SIGKILL)
        values = {
            float(v) for a in storage.read(path).trainable.values() for v in np.unique(array(a))
        }
        assert values in ({1.0}, {2.0})


def test_a_reader_notices_a_replacement_between_its_two_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ck"
    put(1.0, path, "external")
    original = storage._open

    def racing(name: str) -> io.FileIO:
        file = original(name)
        if name == str(path):
            monkeypatch.setattr(storage, "_open", original)
            put(2.0, path, "external")
        return file

    monkeypatch.setattr(storage, "_open", racing)
    with pytest.raises(FileError, match="it was being replaced; try again"):
        storage.read(path)
    assert plain(storage.read(path)) == plain(sample(2.0))
