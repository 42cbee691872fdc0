"""Tensors of checkpoints in a second file: which, where, and damaged ones."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from engine.checkpoint import storage
from engine.checkpoint.storage import Checkpoint, decode, encode
from engine.errors import CheckpointError, FileError
from tests.support.checkpoints import get_array, make_sample, simplify


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
    data, external = encode(make_sample(), external_threshold=0)
    assert external is not None
    assert len(external) < sum(get_array(a).nbytes for a in make_sample().trainable.values()) + 600
    assert simplify(decode(data, external)) == simplify(make_sample())


def test_companion_data_that_is_missing_or_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ck"
    storage.write(make_sample(), path, external_threshold=0)
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
