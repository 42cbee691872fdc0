"""Files on full disks, files that are links, and devices instead of files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.api import CheckpointState, Module
from engine.artifacts import AdamW
from engine.errors import (
    FileError,
)
from tests.support.mlp import Training
from tests.support.mlp_files import NAMES, make_artifact


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the n-th file that is written from now on find no space."""

    def arm(n: int) -> None:
        real, left = os.fsync, [n]

        def fsync(file: int) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(file)

        monkeypatch.setattr(os, "fsync", fsync)

    return arm


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_a_full_disk_keeps_the_old_artifacts(
    tmp_path: Path, full_disk: Callable[[int], None], n: int
) -> None:
    options = {"optimizer": AdamW(), "nominal_checkpoint": True, "artifact_directory": tmp_path}
    make_artifact(**options)
    old = contents(tmp_path)
    assert len(old) == 5
    full_disk(n)
    with pytest.raises(FileError, match="No space left"):
        make_artifact(**options | {"requires_grad": NAMES[:2]})
    assert contents(tmp_path) == old


def test_a_full_disk_keeps_the_old_file(tmp_path: Path, full_disk: Callable[[int], None]) -> None:
    training = Training()
    (tmp_path / "m.onnx").write_bytes(b"old")
    (tmp_path / "c").write_bytes(b"old")
    full_disk(1)
    with pytest.raises(FileError, match=r"m\.onnx': No space left"):
        training.module.export_model_for_inferencing(tmp_path / "m.onnx", ["output"])
    full_disk(1)
    with pytest.raises(FileError, match=r"c': No space left"):
        CheckpointState.save_checkpoint(training.state, tmp_path / "c", True)
    assert contents(tmp_path) == {"m.onnx": b"old", "c": b"old"}


def test_links_are_followed_and_devices_kept(tmp_path: Path) -> None:
    training = Training()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    training.module.export_model_for_inferencing(tmp_path / "link", ["output"])
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").stat().st_size > 10_000
    os.mkfifo(tmp_path / "pipe")
    for call in (
        lambda p: training.module.export_model_for_inferencing(p, ["output"]),
        lambda p: CheckpointState.save_checkpoint(training.state, p),
        CheckpointState.load_checkpoint,
        lambda p: Module(p, training.state),
    ):
        with pytest.raises(FileError, match="not a regular file"):
            call(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
