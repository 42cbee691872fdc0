"""The cache folder as somebody attacks it who can write to parts of its path.

Files of another user are made by root, who runs CI; to anybody else, what he has made himself is
shown as another's.  Nothing that is found so is used, one warning says so, and all goes on.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import socket
import struct
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.errors import CacheWarning
from engine.kernels.binaries import load, serve, workers
from engine.kernels.loops import executor
from engine.kernels.machine.target import detect_host
from engine.plan.plan import KernelSpec
from engine.runtime.team import LAUNCH
from engine.system import cache, files, trust
from engine.training import plan_cache
from tests.support.thread_calls import run_in_threads

pytestmark = pytest.mark.skipif(os.name != "posix", reason="files have no owners and modes")

STRANGER = 4321
SUM = KernelSpec("total_loss", ("f32",))
CONTENT = b"what the cache holds"


class Cache:
    """A cache folder with one entry, a folder above it, and an entry beside it to copy from."""

    def __init__(self, above: Path) -> None:
        self.above, self.folder = above, above / "cache"
        self.entry = cache.Entry(self.folder / "ab" / "cd.o", "o", "abcd")
        cache.write(self.entry, CONTENT)
        assert self.read() == CONTENT

    @property
    def path(self) -> Path:
        return self.entry.path

    def read(self) -> bytes | None:
        return cache.read(self.entry)

    def refused(self, why: str) -> None:
        """Nothing is read or written; the first time a warning says why, and no second time."""
        before = self.path.lstat()
        with pytest.warns(CacheWarning, match=why):
            assert self.read() is None
        assert self.read() is None  # a second warning would be an error
        cache.write(self.entry, b"other")
        assert self.path.lstat() == before


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cache]:
    monkeypatch.undo()  # plans are kept again
    cache._told.clear()
    above = tmp_path / "above"
    above.mkdir()
    monkeypatch.setenv("EDGEGRAD_CACHE_DIR", str(above / "cache"))
    yield Cache(above)
    above.chmod(0o700)


@contextlib.contextmanager
def of_a_stranger(path: Path) -> Iterator[None]:
    """Let a file or folder belong to somebody else."""
    if os.geteuid() == 0:
        os.chown(path, STRANGER, -1, follow_symlinks=False)
        yield
        os.chown(path, 0, -1, follow_symlinks=False)
        return
    lstat, fstat, known = os.lstat, os.fstat, path.lstat()

    def changed(found: os.stat_result) -> os.stat_result:
        if not os.path.samestat(found, known):
            return found
        return os.stat_result((*found[:4], STRANGER, *found[5:]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "lstat", lambda *a, **k: changed(lstat(*a, **k)))
        patch.setattr(os, "fstat", lambda *a, **k: changed(fstat(*a, **k)))
        yield


# --- folders


@pytest.mark.parametrize("place", ["cache/ab", "cache", "."])
@pytest.mark.parametrize("mode", [0o777, 0o702])
def test_a_folder_that_others_can_write_is_not_used(shared: Cache, place: str, mode: int) -> None:
    (shared.above / place).chmod(mode)
    shared.refused("can be written by others")
    (shared.above / place).chmod(0o755)
    assert shared.read() == CONTENT


def test_a_sticky_folder_is_safe_above_and_not_in_the_end(shared: Cache) -> None:
    shared.above.chmod(0o1777)
    assert shared.read() == CONTENT
    shared.path.parent.chmod(0o1777)
    shared.refused("can be written by others")


@pytest.mark.parametrize("place", ["cache/ab", "cache", "."])
def test_a_folder_of_another_user_is_not_used(shared: Cache, place: str) -> None:
    """Nor by root; whoever owns a sticky folder can rename what is in it."""
    (shared.above / place).chmod(0o1755)
    with of_a_stranger(shared.above / place):
        shared.refused(f"belongs to user {STRANGER}")


def test_nothing_is_made_in_what_others_own(shared: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by `sudo` with the home of a user, who would not get rid of it."""
    new = cache.Entry(shared.above / "x" / "y" / "z.o", "o", "z")
    with of_a_stranger(shared.above):
        with pytest.warns(CacheWarning, match="belongs to user"):
            cache.write(new, CONTENT)
        assert not cache.can_write(new.path.parent)
        assert plan_cache.find_folder() is None
    assert not (shared.above / "x").exists()


def test_folders_are_made_closed_to_others(shared: Cache) -> None:
    before = os.umask(0)
    try:
        new = cache.Entry(shared.above / "a" / "b" / "file", "o", "key")
        cache.write(new, CONTENT)
    finally:
        os.umask(before)
    assert cache.read(new) == CONTENT
    for path in (new.path, *new.path.parents[:2]):
        assert not path.stat().st_mode & 0o077


def test_links_are_walked_one_by_one(shared: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link is as safe as whoever can exchange it."""
    aside = shared.above / "aside"
    aside.mkdir()
    link = aside / "link"
    link.symlink_to("../cache")
    through = cache.Entry(link / ".." / "cache" / "ab" / "cd.o", "o", "abcd")
    assert cache.read(through) == CONTENT
    aside.chmod(0o777)
    with pytest.warns(CacheWarning, match="'[^']*/aside' can be written by others"):
        assert cache.read(through) is None
    aside.chmod(0o1777)
    assert cache.read(through) == CONTENT
    cache._told.clear()
    with of_a_stranger(link), pytest.warns(CacheWarning, match="/link' belongs to user"):
        assert cache.read(through) is None
    link.unlink()
    link.symlink_to(link)
    assert cache.read(through) is None
    link.unlink()
    link.symlink_to(shared.path)
    assert cache.read(through) is None


def test_a_group_of_ones_own_is_no_other(shared: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many systems give each user a group of his name, and rights on folders to it."""
    name, members = "me", list[str]()
    user = pwd.struct_passwd(("me", "", os.geteuid(), 0, "", "", ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: user)
    monkeypatch.setattr(grp, "getgrgid", lambda _: grp.struct_group((name, "", 0, members)))
    shared.above.chmod(0o775)
    shared.folder.chmod(0o770)
    assert shared.read() == CONTENT
    members[:] = ["me"]
    assert shared.read() == CONTENT
    shared.folder.chmod(0o777)
    shared.refused("can be written by others")
    shared.folder.chmod(0o770)
    members[:] = ["me", "you"]
    cache._told.clear()
    shared.refused("above' can be written by others")
    name, members = "users", []
    cache._told.clear()
    shared.refused("above' can be written by others")

    def unknown(_: int) -> grp.struct_group:
        raise KeyError

    monkeypatch.setattr(grp, "getgrgid", unknown)
    cache._told.clear()
    shared.refused("above' can be written by others")


def test_a_list_of_rights_is_seen_in_the_mode(
    shared: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more user may write to a folder whose group is its owner's own."""
    rows = [(1, 7, -1), (2, 7, STRANGER), (4, 5, -1), (16, 7, -1), (32, 0, -1)]
    listed = struct.pack("<I", 2) + b"".join(struct.pack("<2Hi", *row) for row in rows)
    try:
        os.setxattr(shared.folder, "system.posix_acl_access", listed)
    except (AttributeError, OSError):  # a file system that has none
        shared.folder.chmod(0o770)
        monkeypatch.setattr(os, "listxattr", lambda *_, **__: [trust._ACL], raising=False)
    assert shared.folder.stat().st_mode & 0o777 == 0o770
    me = pwd.struct_passwd(("me", "", os.geteuid(), 0, "", "", ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: me)
    monkeypatch.setattr(grp, "getgrgid", lambda _: grp.struct_group(("me", "", 0, [])))
    shared.refused("cache' can be written by others")


# --- files


def linked(path: Path, aside: Path) -> None:
    path.rename(aside)
    path.symlink_to(aside)


def pipe(path: Path, _: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def talking(path: Path, _: Path) -> None:
    path.unlink()
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def folder(path: Path, _: Path) -> None:
    path.unlink()
    path.mkdir()


FILES: dict[str, Callable[[Path, Path], object]] = {
    "is a symbolic link": linked,
    "has a second name, by a hard link": lambda path, aside: os.link(path, aside),
    "can be written by others": lambda path, _: path.chmod(0o666),
    "is not a regular file": pipe,
}


@pytest.mark.parametrize("why", FILES)
def test_what_is_not_a_file_of_ones_own_is_not_read(why: str, shared: Cache) -> None:
    FILES[why](shared.path, shared.above / "aside")
    with pytest.warns(CacheWarning, match=f"cd.o' {why}"):
        assert shared.read() is None
    cache.write(shared.entry, b"new")  # takes its place, in a folder that can be trusted
    assert shared.read() == b"new"


def test_a_file_of_another_user_is_not_read(shared: Cache) -> None:
    with of_a_stranger(shared.path), pytest.warns(CacheWarning, match="cd.o' belongs to user"):
        assert shared.read() is None


def test_what_cannot_be_opened_is_not_there(shared: Cache) -> None:
    talking(shared.path, shared.above)
    assert shared.read() is None


def test_a_file_that_is_exchanged_is_not_read(
    shared: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at its folder and its opening, or between its opening and its reading."""
    planted = shared.above / "planted"
    planted.write_bytes(cache.seal("o", "abcd", b"planted"))
    planted.chmod(0o666)
    open_file, exchanged = os.open, list[str]()

    def late(path: str, flags: int, *rest: int) -> int:
        if path != str(shared.path):
            return open_file(path, flags, *rest)
        if exchanged == ["before"]:
            os.replace(planted, path)
        opened = open_file(path, flags, *rest)
        if exchanged == ["after"]:
            os.replace(planted, path)
        return opened

    monkeypatch.setattr(os, "open", late)
    whole = shared.path.read_bytes()
    exchanged[:] = ["after"]
    assert shared.read() == CONTENT
    shared.path.rename(planted)
    planted.chmod(0o666)
    shared.path.write_bytes(whole)
    shared.path.chmod(0o600)
    exchanged[:] = ["before"]
    with pytest.warns(CacheWarning, match="can be written by others"):
        assert shared.read() is None


# --- contents


def test_a_whole_entry_in_another_place_is_none(shared: Cache) -> None:
    """Kind, key and size are under the digest, as is the content."""
    others = (
        cache.Entry(shared.path, "o", "abce"),
        cache.Entry(shared.path, "bc", "abcd"),
        cache.Entry(shared.path, "oa", "bcd"),
    )
    for other in others:
        assert cache.read(other) is None
    raw = shared.path.read_bytes()
    for damaged in (raw + b"\0", raw[:-1], raw[:47], b"", raw[:8] + b"\xff" * 8 + raw[16:]):
        shared.path.write_bytes(damaged)
        shared.path.chmod(0o600)
        assert shared.read() is None


def test_code_under_the_name_of_other_code_is_made_anew(shared: Cache) -> None:
    """Bitcode that was called an object crashed the process."""
    good = load.get_object(SUM, detect_host())
    beside, entry = (
        load._find_entry(SUM, detect_host(), kind) for kind in (load.BITCODE, load.OBJECT)
    )
    assert entry is not None
    assert beside is not None
    whole, bitcode = entry.path, beside.path
    garbage = [bitcode.read_bytes(), whole.read_bytes()[:-1]]
    for content in (bitcode.read_bytes()[48:], b"\x7fELF" * 64, good[:64], b""):
        garbage.append(cache.seal(entry.kind, entry.key, content))
    for content in garbage:
        whole.write_bytes(content)
        assert load.get_object(SUM, detect_host()) == good
        assert load.get_linker(detect_host()).add(SUM.symbol, load.get_object(SUM, detect_host()))
    cache.write(entry, good)
    before = whole.stat().st_mtime_ns
    assert load.get_object(SUM, detect_host()) == good
    assert whole.stat().st_mtime_ns == before


# --- remaining files, and messages


def test_what_killed_writers_left_is_removed(shared: Cache) -> None:
    old, young, other = (shared.path.parent / n for n in ("old.tmp", "young.tmp", "mine.o"))
    for path in (old, young, other):
        path.write_bytes(bytes(1000))
    long_ago = time.time() - 2 * cache._ABANDONED
    for path in (old, other):
        os.utime(path, (long_ago, long_ago))
    cache._swept.clear()
    cache.write(shared.entry, CONTENT)
    assert sorted(shared.path.parent.iterdir()) == sorted([shared.path, young, other])


def test_one_warning_whoever_finds_it(shared: Cache) -> None:
    """Threads of a process say it once, and the processes that compile for it do not read there."""
    shared.folder.chmod(0o777)
    gate = threading.Barrier(8)

    def look() -> None:
        gate.wait()
        assert shared.read() is None

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run_in_threads([look] * 8)
    assert [w.category for w in told] == [CacheWarning]
    cache._told.clear()
    job = workers.CompileJob(
        executor.__name__, LAUNCH, detect_host(), small=False, machine_code=True
    )
    assert serve.compile_job(job)[1]  # with a warning, which would be an error
    assert not cache._told


def test_folders_that_killed_processes_left_are_removed(tmp_path: Path) -> None:
    """Those that are ours by their names, and old; what a link of that name leads to stays."""
    with files.staging(str(tmp_path)) as made:
        name = os.path.basename(made)
    old, young, other = tmp_path / name, tmp_path / (name[:-8] + "y.tmp"), tmp_path / ".mine.tmp"
    outside = tmp_path / "outside"
    for folder in (old, young, other, outside):
        folder.mkdir()
        (folder / "file").write_bytes(b"content")
    link = tmp_path / (name[:-8] + "l.tmp")
    link.symlink_to(outside)
    long_ago = time.time() - 2 * files._ABANDONED
    for path in (old, other, link, outside):
        os.utime(path, (long_ago, long_ago), follow_symlinks=False)
    with files.staging(str(tmp_path)) as made:
        assert sorted(map(str, tmp_path.iterdir())) == sorted(
            map(str, (young, other, outside, link, made))
        )
    assert (outside / "file").exists()
