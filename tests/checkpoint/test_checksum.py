"""The checksum of checkpoints: any changed byte after it is an error; files without it are read."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from engine.checkpoint import storage
from engine.checkpoint.storage import Checkpoint, OptimizerGroup, decode, encode
from engine.errors import CheckpointError
from tests.support.checkpoints import get_array, make_sample, simplify

SMALL = Checkpoint(
    {"w": np.arange(6, dtype=np.float32)},
    optimizer_groups=[OptimizerGroup(step=3, states={"w": {"momentum0": np.ones(6, np.float32)}})],
    properties={"rate": 0.5},
)


def find_checksum(data: bytes) -> int:
    """Return the place after the checksum: the only one whose bytes have the CRC-32 before it."""
    places = [
        at
        for at in range(4, min(len(data), 128), 4)
        if zlib.crc32(data[at:]) == int.from_bytes(data[at - 4 : at], "little")
    ]
    assert len(places) == 1
    return places[0]


@pytest.mark.parametrize("artifact", [True, False])
def test_every_changed_bit_after_the_checksum_is_an_error(artifact: bool) -> None:
    content = SMALL if not artifact else Checkpoint(SMALL.trainable, properties=SMALL.properties)
    data = encode(content, artifact=artifact)[0]
    for at in range(find_checksum(data) - 4, len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            with pytest.raises(CheckpointError, match=r"^here: "):
                decode(bytes(changed), source="here")


def test_a_changed_value_names_the_file_and_the_checksum(tmp_path: Path) -> None:
    path = tmp_path / "ck"
    storage.write(SMALL, path)
    data = bytearray(path.read_bytes())
    data[data.index(np.float32(5).tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"ck: checkpoint: damaged: its checksum is \w{8},"):
        storage.read(path)


def test_a_changed_byte_of_companion_data_is_an_error() -> None:
    data, external = encode(make_sample(), external_threshold=0)
    assert external is not None
    assert simplify(decode(data, external)) == simplify(make_sample())
    changed = bytearray(external)
    changed[len(changed) // 2] ^= 64
    with pytest.raises(CheckpointError, match="its checksum is"):
        decode(data, bytes(changed))


def test_a_file_without_a_checksum_is_read() -> None:
    data = encode(SMALL, checksum=False)[0]
    assert len(data) < len(encode(SMALL)[0])
    assert simplify(decode(data)) == simplify(SMALL)


def test_a_file_of_several_pieces_is_checked_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "ck"
    storage.write(Checkpoint({"w": np.zeros(1 << 19, np.float32)}), path)
    assert not get_array(storage.read(path).trainable["w"]).any()
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size - 64)
        file.write(b"\1")
    with pytest.raises(CheckpointError, match="its checksum is"):
        storage.read(path)
