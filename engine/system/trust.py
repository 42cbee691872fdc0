"""Trust in files: owners and modes of a file and of every folder on its path.

Anyone who can write to a folder can replace a file or folder in it by another.  A path is therefore
walked from the root on, every symbolic link separately, and a file is checked by its open
descriptor, which can no longer be replaced.

A folder is safe if this process's user or root owns it and nobody else may write to it.  Above the
last one a folder may have the sticky bit instead, as /tmp: there nobody renames what others own.
The owner of the root folder counts as root: in a container it owns everything.

Writing by a group is others' writing, unless the group is the owner's own (it has the name of the
owner and no other members), as many systems give one to each user.  Linux shows an access control
list in the bits of the group; with such a list no group is the owner's own.

Windows has neither owners nor modes here: there the user's folders are trusted as they are.

Source: POSIX.1-2017, XBD 4.3 (directory protection), 4.13 (pathname resolution); acl(5), Linux.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import IO

_LINKS = 40  # symbolic links on one path, as Linux allows
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ACL = "system.posix_acl_access"
# A pipe does not wait for its writer; Windows takes files for texts unless told.
_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class Untrusted(OSError):
    """Somebody else can change a file; the text says where, and who."""


def walk(folder: str | os.PathLike[str]) -> None:
    """Make sure that nobody else can exchange a folder or anything in it.

    Raises:
        Untrusted: somebody can.
        OSError: there is no such folder, or it cannot be reached; whatever is there of its path
            is safe, so that who makes the rest is alone in it.
    """
    if os.name != "posix":
        os.stat(folder)
        return
    status = os.lstat("/")
    trusted = {os.geteuid(), 0}
    owners = trusted | {status.st_uid}
    place = "/"
    _check(place, status, owners, sticky=True)
    path = os.fspath(folder)
    for place, status in _walk(path if os.path.isabs(path) else os.path.join(os.getcwd(), path)):
        if stat.S_ISLNK(status.st_mode):
            _check_owner(place, status, owners)
        else:
            _check(place, status, owners, sticky=True)
    _check(place, status, trusted, sticky=False)


def _walk(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every folder and symbolic link that the system passes on an absolute path, from the
    root on.

    Raises:
        OSError: something is missing or no folder, or links lead in a circle.
    """
    place, links = "/", 0
    rest = path.split("/")[::-1]
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            place = os.path.dirname(place)
            yield place, os.lstat(place)
            continue
        inner = os.path.join(place, name)
        status = os.lstat(inner)
        yield inner, status
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _LINKS:
                raise OSError(f"too many symbolic links: {path!r}")
            target = os.readlink(inner)
            rest += target.split("/")[::-1]
            place = "/" if target.startswith("/") else place
        elif stat.S_ISDIR(status.st_mode):
            place = inner
        else:
            raise NotADirectoryError(f"not a folder: {inner!r}")


def _check(place: str, found: os.stat_result, owners: set[int], *, sticky: bool) -> None:
    """Raise Untrusted if others can change the contents of a folder."""
    _check_owner(place, found, owners)
    writers = found.st_mode & _OTHERS
    if writers == stat.S_IWGRP and _has_own_group(place, found):
        writers = 0
    if writers and not (sticky and found.st_mode & stat.S_ISVTX):
        raise Untrusted(f"{place!r} can be written by others")


def _check_owner(place: str, found: os.stat_result, owners: set[int]) -> None:
    if found.st_uid not in owners:
        raise Untrusted(f"{place!r} belongs to user {found.st_uid}")


def _has_own_group(place: str, found: os.stat_result) -> bool:
    """Return whether a folder's group is its owner's own, with rights by the mode alone."""
    import grp  # few need them: most folders are closed to groups
    import pwd

    if not hasattr(os, "listxattr"):
        return False  # the mode may hide an access control list
    try:
        name = pwd.getpwuid(found.st_uid).pw_name
        group = grp.getgrgid(found.st_gid)
        listed = _ACL in os.listxattr(place, follow_symlinks=False)
    except (KeyError, OSError):
        return False
    return group.gr_name == name and {*group.gr_mem} <= {name} and not listed


def open_file(path: str, flags: int = 0) -> IO[bytes]:
    """Return a regular file, opened to be read; nothing else is waited for.

    flags: the flags of the system's call, in addition to those that this function sets.

    Raises:
        Untrusted: it is not a regular file.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | _AT_ONCE | flags)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise Untrusted(f"{path!r} is not a regular file")


def read(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file in a folder that `walk` has found safe.

    Raises:
        Untrusted: it is not a regular file, has a second name, or others own it or can write to it.
        OSError: it cannot be read.
    """
    name = os.fspath(path)
    try:
        file = open_file(name, getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        if os.path.islink(name):
            raise Untrusted(f"{name!r} is a symbolic link") from None
        raise
    with file:
        status = os.fstat(file.fileno())
        if os.name == "posix":
            _check_owner(name, status, {os.geteuid(), 0})
            if status.st_mode & _OTHERS:
                raise Untrusted(f"{name!r} can be written by others")
            if status.st_nlink > 1:  # it may be another file of the user, linked to from here
                raise Untrusted(f"{name!r} has a second name, by a hard link")
        return file.read()
