"""The cache folder: where it is, and entries in it.

A cache costs time when it fails, never a result.  Unreadable or damaged entries are made
again, and entries that cannot be written are not kept.  An entry appears under its name only when
it is complete, so that processes do not disturb one another.

The folder holds machine code and plans, which run in the process that reads them.  Nothing is read
from it, and nothing put into it, where another user could have put it (trust.py).  An entry is

    magic (8 bytes), bytes of the content (8, the low byte first), a digest (32), the content

The digest covers the entry's kind and key as well, so that an entry under another one's name is
not accepted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.base.errors import CacheWarning, warn_user
from engine.system import trust
from engine.system.config import PREFIX, switch

MAGIC = b"EGKEPT\0\2"  # part of keys, too: versions that share a folder do not disturb one another
_HEAD = struct.Struct("<8sQ32s")
_TEMPORARY = ".tmp"  # how names of files end that are being written
_ABANDONED = 3600.0  # seconds after which the writer of such a file is taken for dead

_told: dict[str | None, object] = {}  # cache folders, each with the reason it is not used
_swept: set[Path] = set()  # folders in which this process has looked for abandoned files


@dataclass(frozen=True, slots=True)
class Entry:
    """A place in the cache.

    path: the file.
    kind: what the content is: an object, a plan, ...  It has no null character, nor has the key.
    key: what tells it from all others of its kind.
    """

    path: Path
    kind: str
    key: str


def find_cache_dir() -> Path | None:
    """Return EDGEGRAD_CACHE_DIR, or a folder in the user's cache folder, if there is one."""
    chosen = switch("CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # others are to be ignored, as its specification says
        return Path(base) / "edgegrad"
    try:
        return Path.home() / ".cache" / "edgegrad"
    except RuntimeError:  # a user without a home
        return None


def is_trusted(folder: Path) -> bool:
    """Return whether no other user can replace a folder or its contents.

    If somebody can, a warning says so, once per cache folder.  For a folder that does not exist,
    the existing part of its path decides.
    """
    with contextlib.suppress(OSError), _told_once():
        with contextlib.suppress(FileNotFoundError):
            trust.walk(folder)
        return True
    return False


@contextlib.contextmanager
def _told_once() -> Iterator[None]:
    """Warn once if the cache folder is not trusted, and continue after the block."""
    try:
        yield
    except trust.Untrusted as found:
        base = find_cache_dir()
        name = None if base is None else os.fspath(base)
        if _told.setdefault(name, found) is found:  # not another thread's
            warn_user(
                f"the cache folder {name!r} is not used: {found}, so its files may not be yours; "
                f"delete them, or set {PREFIX}CACHE_DIR to a folder that only you can write to, "
                "inside folders that only you can replace",
                CacheWarning,
            )
        raise


def seal(kind: str, key: str, content: bytes) -> bytes:
    """Return the content of an entry with its magic, size and digest in front."""
    return _HEAD.pack(MAGIC, len(content), _compute_digest(kind, key, content)) + content


def _compute_digest(kind: str, key: str, content: bytes) -> bytes:
    digest = hashlib.sha256(f"{kind}\0{key}\0{len(content)}\0".encode())
    digest.update(content)
    return digest.digest()


def unseal(kind: str, key: str, raw: bytes) -> bytes | None:
    """Return the content that `seal` was given with this kind and key; None if it is anything
    else.
    """
    if len(raw) < _HEAD.size:
        return None
    magic, size, digest = _HEAD.unpack_from(raw)
    content = raw[_HEAD.size :]
    if magic != MAGIC or size != len(content) or digest != _compute_digest(kind, key, content):
        return None
    return content


def read(entry: Entry) -> bytes | None:
    """Return the content that `write` has put there; None if there is none to trust, or it is
    damaged.
    """
    try:
        with _told_once():
            trust.walk(entry.path.parent)
            return unseal(entry.kind, entry.key, trust.read(entry.path))
    except (OSError, MemoryError):
        return None


def write(entry: Entry, content: bytes) -> None:
    """Put a content there, in one step; a failure leaves no file.

    Folders that are made for it are closed to other users.
    """
    import tempfile  # importing it takes long, and only writing needs it

    folder = entry.path.parent
    with contextlib.suppress(OSError), _told_once():
        _make(folder)
        _sweep(folder)
        handle, temporary = tempfile.mkstemp(suffix=_TEMPORARY, dir=folder)
        try:
            with open(handle, "wb") as file:
                file.write(seal(entry.kind, entry.key, content))
            os.replace(temporary, entry.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def can_write(folder: Path) -> bool:
    """Return whether `write` can write to a folder, which is made if it does not exist."""
    with contextlib.suppress(OSError), _told_once():
        _make(folder)
        return os.access(folder, os.W_OK)
    return False


def _make(folder: Path) -> None:
    """Make a folder and those above it that are missing, closed to other users.

    Raises:
        Untrusted, OSError: as `trust.walk`, of what was there and of what is there now.
    """
    try:
        trust.walk(folder)
    except FileNotFoundError:
        if folder.parent == folder:
            raise
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        trust.walk(folder)


def mark_used(path: Path) -> None:
    """Let a file be the one that was used last, which `limit_size` removes last."""
    with contextlib.suppress(OSError):
        os.utime(path)


def limit_size(folder: Path, limit: int) -> None:
    """Remove files of a folder, the least recently used first, until `limit` bytes are left.

    Files that are being written stay, unless their writer has ended long ago.
    """
    if not is_trusted(folder):
        return
    entries = sorted(_list_files(folder))
    gone = _list_abandoned(entries)
    total = sum(size for _, size, path in entries if not path.endswith(_TEMPORARY))
    for _, size, path in entries:
        if total > limit and not path.endswith(_TEMPORARY):
            total -= size
            gone.append(path)
    _remove(gone)


def _sweep(folder: Path) -> None:
    """Remove what killed processes have left half written in a folder; looked for once a process.

    A process that is killed has no chance to do so itself.
    """
    if folder not in _swept:
        _swept.add(folder)
        _remove(_list_abandoned(_list_files(folder)))


def _list_abandoned(found: Iterable[tuple[float, int, str]]) -> list[str]:
    """Return the files among those found whose writers have ended long ago."""
    oldest = time.time() - _ABANDONED
    return [path for used, _, path in found if path.endswith(_TEMPORARY) and used < oldest]


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _list_files(folder: Path) -> Iterator[tuple[float, int, str]]:
    """List the files of a folder: the time of the last use, the bytes and the path of each."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                known = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(known.st_mode):
                    yield known.st_mtime, known.st_size, entry.path
