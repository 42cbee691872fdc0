"""A kill or a power cut at any moment leaves the old, the new, or what is refused; never a mixture.

`python -m tests.support.crashes` tries more and prints what it found.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import crashes
from tests.support.simulated_disk import Disk


@pytest.mark.parametrize("name", crashes.CASES)
def test_every_state_that_a_power_cut_can_leave(name: str, tmp_path: Path) -> None:
    actual_states = crashes.try_states(name, tmp_path)
    assert actual_states.kinds["new"]
    assert actual_states.kinds["old"] or "first" in name or name == "run, the first"


@pytest.mark.parametrize(
    ("name", "every"),
    [("artifacts", 5), ("artifacts over foreign ones", 5), ("run", 3), ("adapter", 2)],
)
def test_processes_that_are_killed(name: str, every: int, tmp_path: Path) -> None:
    assert sum(crashes.kill_writers(name, tmp_path, every).values()) > 5


# --- the simulated disk loses what a disk may lose


def renamed(path: Path) -> None:
    """A rename of data that was not synced."""
    (path / "new").write_bytes(b"new" * 9)
    os.replace(path / "new", path / "file")


def synced(path: Path) -> None:
    """The same, synced, but not its name."""
    with open(path / "new", "wb") as file:
        file.write(b"new" * 9)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path / "new", path / "file")


def appended(path: Path) -> None:
    with open(path / "file", "ab", buffering=0) as file:
        file.write(b"new")


def overwritten(path: Path) -> None:
    (path / "file").write_bytes(b"new")


def swapped(path: Path) -> None:
    """Return two renames; either may come first."""
    for name in ("file", "other"):
        os.rename(path / f"{name}2", path / name)


OLD, NEW = b"old" * 9, b"new" * 9


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (renamed, {OLD, NEW, b"", bytes(27), NEW[:13], NEW[:13] + bytes(14)}),
        (synced, {OLD, NEW}),
        (appended, {OLD, OLD + b"new", bytes(30), (OLD + b"new")[:15], OLD[:15] + bytes(15)}),
        (overwritten, {OLD, b"", b"new", bytes(3), b"n", b"n\0\0"}),
    ],
)
def test_the_disk_loses_what_was_not_synced(
    write: Callable[[Path], None], expected: set[bytes], tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(OLD)
    with Disk(tmp_path) as disk:
        write(tmp_path)
    states = list(disk.list_states())
    assert {state.files["file"] for state in states} == expected
    assert OLD in {state.files["file"] for state in states if state.returned}


def test_the_disk_swaps_renames(tmp_path: Path) -> None:
    for name in ("file", "other"):
        (tmp_path / name).write_bytes(b"old")
        (tmp_path / f"{name}2").write_bytes(b"new")
    with Disk(tmp_path) as disk:
        swapped(tmp_path)
    actual = {(s.files["file"], s.files["other"]) for s in disk.list_states()}
    assert actual == {(a, b) for a in (b"old", b"new") for b in (b"old", b"new")}
