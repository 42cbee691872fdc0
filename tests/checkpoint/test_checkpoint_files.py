"""Files of checkpoints: paths, permissions, and places that cannot be read or written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.checkpoint import storage
from engine.errors import CheckpointError, FileError
from tests.support.checkpoints import KINDS, make_sample, put, run_python, simplify
from tests.support.places import CHECKPOINTS


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
    ours = ("engine.base", "engine.checkpoint", "engine.system")
    run_python(code, CHECKPOINTS / "adamw_runtime", *ours).check_returncode()


@pytest.mark.parametrize(("old", "new"), KINDS)
def test_write_then_read(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "ck"
    for value, kind in ((1.0, old), (2.0, new), (3.0, old)):
        put(value, path, kind)
        assert simplify(storage.read(path)) == simplify(make_sample(value))
    assert set(os.listdir(tmp_path)) <= {"ck", "ck.data"}


def test_paths_of_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(1.0, "relative", "external")
    assert simplify(storage.read(tmp_path / "relative")) == simplify(make_sample(1.0))
    os.symlink("relative", "link")
    put(2.0, str(tmp_path / "link"), "external")
    assert os.path.islink("link")
    assert simplify(storage.read("relative")) == simplify(make_sample(2.0))
    assert sorted(os.listdir()) == ["link", "relative", "relative.data"]


@pytest.mark.parametrize("kind", ["inline", "external"])
def test_a_private_checkpoint_stays_private(tmp_path: Path, kind: str) -> None:
    put(1.0, tmp_path / "ck", kind)
    for file in tmp_path.iterdir():
        file.chmod(0o600)
    put(2.0, tmp_path / "ck", kind)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_artifact_layout_of_a_file(tmp_path: Path) -> None:
    content = storage.read(CHECKPOINTS / "mlp")
    storage.write(content, tmp_path / "ck", artifact=True)
    assert (tmp_path / "ck").read_bytes() == storage.encode(content, artifact=True)[0]


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
