"""The cache folder: where it is, whether it can be trusted, and files in it.

A cache costs time when it fails, never a result.  What cannot be read or is damaged is made anew,
and what cannot be written is not kept.  A file begins with the digest of what follows, and appears
under its name when it is whole, so that processes do not disturb one another.

The folder holds machine code and plans, which run in the process that reads them.  A folder that
another user can write to is therefore not read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from engine.errors import CacheWarning
from engine.runtime.config import PREFIX, switch

_SEAL = hashlib.sha256().digest_size
_TEMPORARY = ".tmp"  # how names of files end that are being written
_ABANDONED = 3600.0  # seconds after which the writer of such a file is taken for dead

_told: set[str] = set()  # folders of which a warning has been given


def cache_dir() -> Path | None:
    """The cache folder: EDGEGRAD_CACHE_DIR, else one in the user's cache folder, if there is."""
    chosen = switch("CACHE_DIR")
    if chosen:
        return Path(chosen)
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return None
    return Path(base) / "edgegrad"


def trusted(*folders: Path) -> bool:
    """Whether no other user can write to these folders; a warning, once a folder, says who can.

    Folders that do not exist are trusted.  Owner and mode are checked where the system has them.
    """
    return all(_own(folder) for folder in folders)


def _own(folder: Path) -> bool:
    if os.name != "posix":
        return True
    try:
        found = os.stat(folder)
    except OSError:
        return True
    writers = stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    if found.st_uid in (os.geteuid(), 0) and not writers:
        return True
    name = os.fspath(folder)
    if name not in _told:
        _told.add(name)
        what = "can be written by others" if writers else f"belongs to user {found.st_uid}"
        warnings.warn(
            f"the cache folder {name!r} {what}, so nothing is read from it: delete it, or let "
            f"{PREFIX}CACHE_DIR name a folder that you alone can write to",
            CacheWarning,
            stacklevel=2,
        )
    return False


def seal(content: bytes) -> bytes:
    """The content behind its digest."""
    return hashlib.sha256(content).digest() + content


def unseal(raw: bytes) -> bytes | None:
    """The content of what `seal` made; None if it is damaged."""
    content = raw[_SEAL:]
    return content if hashlib.sha256(content).digest() == raw[:_SEAL] else None


def read(path: Path) -> bytes | None:
    """The content that `write` has put there; None if there is none, or it is damaged."""
    try:
        return unseal(path.read_bytes())
    except OSError:
        return None


def write(path: Path, content: bytes) -> None:
    """Put a content there, in one step; a failure leaves nothing behind.

    Folders that are made for it are closed to other users.
    """
    import tempfile  # importing it takes long, and only writing needs it

    with contextlib.suppress(OSError):
        _make(path.parent)
        handle, temporary = tempfile.mkstemp(suffix=_TEMPORARY, dir=path.parent)
        try:
            with open(handle, "wb") as file:
                file.write(seal(content))
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


def writable(folder: Path) -> bool:
    """Whether `write` can keep something in a folder, which is made if it does not exist."""
    with contextlib.suppress(OSError):
        _make(folder)
        return trusted(folder) and os.access(folder, os.W_OK)
    return False


def _make(folder: Path) -> None:
    """Make a folder and those above it that are missing, closed to other users."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def mark_used(path: Path) -> None:
    """Let a file be the one that was used last, which `bound` removes last."""
    with contextlib.suppress(OSError):
        os.utime(path)


def bound(folder: Path, limit: int) -> None:
    """Remove files of a folder, the least recently used first, until `limit` bytes are left.

    Files that are being written stay, unless their writer has ended long ago.
    """
    found = sorted(_files(folder))
    temporary = [file for file in found if file[2].endswith(_TEMPORARY)]
    gone = [path for used, _, path in temporary if used < time.time() - _ABANDONED]
    total = sum(size for _, size, path in found if not path.endswith(_TEMPORARY))
    for _, size, path in found:
        if total > limit and not path.endswith(_TEMPORARY):
            total -= size
            gone.append(path)
    for path in gone:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _files(folder: Path) -> Iterator[tuple[float, int, str]]:
    """When each file of a folder was used last, its bytes, its path."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                known = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(known.st_mode):
                    yield known.st_mtime, known.st_size, entry.path
