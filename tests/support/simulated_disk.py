"""Disk that loses unsynced data: all states in which a kill or a power cut leaves files.

    with Disk(folder) as disk:        # what this process writes into the folder is recorded
        save()
    for state in disk.states():       # and then lost in every way
        state.write(other_folder)

It keeps the guarantees of POSIX, and nothing more (Pillai et al., "All File Systems Are Not Created
Equal", OSDI 2014): the data of a file is on the disk once the file was synced, and a name once its
folder was.  Until then each may be there or not, in any order:

    data      as written, as last synced, as zeros of the full length, half of it, half and zeros
    names     any of the made, renamed and removed entries of folders, up to `SUBSETS` of them

A rename is one step: its two names change together.  A kill is the case in which all is there.  A
file that another process has written into a recorded folder counts as never synced.
"""

from __future__ import annotations

import builtins
import hashlib
import io
import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

SUBSETS = 64  # of the entries that are not synced, for each moment
DATA = ("written", "synced", "zeros", "half", "half and zeros")


@dataclass(eq=False)
class File:
    """A file: its content now."""

    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""  # of one that is there when recording begins

    def list_remaining(self, how: str, content: bytes, synced: bytes) -> bytes:
        """Return the remaining data; how: a word of `DATA`."""
        if how == "written" or content == synced:
            return content
        if how == "synced":
            return synced
        if how == "zeros":
            return bytes(len(content))
        half = content[: len(content) // 2]
        return half if how == "half" else half + bytes(len(content) - len(half))


@dataclass(eq=False)
class Folder:
    """A folder; its entries are in the log alone."""


Node = File | Folder
Entry = tuple[Folder, str]  # a name in a folder


@dataclass(frozen=True)
class Change:
    """A change of names in one step: entries that are gone, and what the new one is."""

    gone: tuple[Entry, ...] = ()
    entry: Entry | None = None
    node: Node | None = None

    def list_folders(self) -> set[int]:
        """The folders in which names change; a rename into a folder is synced with that."""
        return {id(self.entry[0])} if self.entry else {id(folder) for folder, _ in self.gone}


@dataclass(frozen=True)
class State:
    """Files that a crash has left.

    files: contents by path from the folder.  folders: paths.
    moment: how many operations were done.  returned: whether what was recorded had ended.
    how: what was lost, in words.
    """

    files: dict[str, bytes]
    folders: tuple[str, ...]
    moment: int
    returned: bool
    how: str

    def write(self, place: Path) -> None:
        """Put the files there; the folder is emptied before."""
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for each in self.folders:
            (place / each).mkdir(parents=True, exist_ok=True)
        for path, content in self.files.items():
            (place / path).write_bytes(content)


class Disk:
    """Records what this process does to the files beneath a folder, which exists.

    log: the operations: a `Change`, or a file or folder that was synced, with copies of contents.
    played: how many states `list_states` has looked at, those that are alike included.
    """

    def __init__(self, folder: Path) -> None:
        self.place = os.path.realpath(folder)
        self.root = Folder()
        self.start: dict[Entry, Node] = {}
        self._names: dict[Entry, Node] = {}
        self.log: list[tuple[str, Any]] = []
        self.played = 0
        self._open: dict[int, Node] = {}  # by descriptor
        self._undo: list[tuple[object, str, Any]] = []
        self._read(self.root, self.place)
        self.start = dict(self._names)

    def _read(self, folder: Folder, place: str) -> None:
        for entry in os.scandir(place):
            if entry.is_dir():
                inner = Folder()
                self._names[folder, entry.name] = inner
                self._read(inner, entry.path)
            else:
                content = Path(entry.path).read_bytes()
                self._names[folder, entry.name] = File(bytearray(content), content)

    # --- where paths lead

    def _find_entry(self, path: Any) -> Entry | None:
        """The entry that a path is; None if it is not beneath the folder."""
        if not isinstance(path, str | os.PathLike):
            return None
        whole = os.path.abspath(os.fsdecode(path))
        head, name = os.path.split(whole)
        head = os.path.realpath(head)
        if head != self.place and not head.startswith(self.place + os.sep):
            return None
        folder: Node = self.root
        for part in Path(os.path.relpath(head, self.place)).parts:
            assert isinstance(folder, Folder)
            folder = self._names[folder, part]
        assert isinstance(folder, Folder)
        return folder, name

    def _note(self, change: Change) -> None:
        for entry in change.gone:
            self._names.pop(entry, None)
        if change.entry is not None and change.node is not None:
            self._names[change.entry] = change.node
        self.log.append(("names", change))

    def _note_write(self, node: File) -> None:
        self.log.append(("data", (node, bytes(node.content))))

    # --- recording

    def __enter__(self) -> Disk:
        for owner, name, patch in (
            (os, "open", self._wrap_os_open), (os, "close", self._close),
            (os, "write", self._write),
            (os, "ftruncate", self._wrap_ftruncate), (os, "fsync", self._fsync),
            (os, "replace", self._rename), (os, "rename", self._rename),
            (os, "unlink", self._wrap_unlink), (os, "remove", self._wrap_unlink),
            (os, "mkdir", self._wrap_mkdir),
            (os, "rmdir", self._wrap_unlink), (shutil, "rmtree", self._wrap_rmtree),
        ):  # fmt: skip
            self._patch(owner, name, patch(getattr(owner, name)))
        opening = self._wrap_file_open(builtins.open)
        self._patch(builtins, "open", opening)
        self._patch(io, "open", opening)
        return self

    def _patch(self, owner: object, name: str, value: Any) -> None:
        self._undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for owner, name, value in reversed(self._undo):
            setattr(owner, name, value)
        self._undo.clear()
        if kind is None:
            self._check()

    def _check(self) -> None:
        """The record must be complete: played whole, it gives what is in the folder."""
        *_, last = (s for s in self._play_states() if s.how == "written, all")
        actual_data = {
            os.path.relpath(path, self.place): path.read_bytes()
            for path in Path(self.place).rglob("*")
            if path.is_file()
        }
        assert last.files == actual_data, "something was written that was not recorded"

    def _note_created(self, entry: Entry, *, empty: bool) -> File:
        node = self._names.get(entry)
        if not isinstance(node, File):
            node = File()
            self._note(Change(entry=entry, node=node))
        elif empty and node.content:
            del node.content[:]
            self._note_write(node)
        return node

    def _wrap_os_open(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            actual = real(path, flags, *args, **kwargs)
            entry = None if kwargs.get("dir_fd") is not None else self._find_entry(path)
            if os.path.realpath(os.fsdecode(path)) == self.place:
                self._open[actual] = self.root
            elif entry is not None and flags & os.O_CREAT:
                self._open[actual] = self._note_created(entry, empty=bool(flags & os.O_TRUNC))
            elif entry is not None and entry in self._names:
                self._open[actual] = self._names[entry]
            return actual

        return call

    def _close(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def call(descriptor: int) -> None:
            self._open.pop(descriptor, None)
            real(descriptor)

        return call

    def _write(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(descriptor: int, data: Any) -> int:
            node = self._open.get(descriptor)
            at = os.lseek(descriptor, 0, os.SEEK_CUR) if isinstance(node, File) else 0
            size = real(descriptor, data)
            if isinstance(node, File):
                self._put(node, at, bytes(data)[:size])
            return size

        return call

    def _put(self, node: File, at: int, data: bytes) -> None:
        node.content += bytes(max(at - len(node.content), 0))
        node.content[at : at + len(data)] = data
        self._note_write(node)

    def _wrap_ftruncate(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(descriptor: int, size: int) -> None:
            real(descriptor, size)
            node = self._open.get(descriptor)
            if isinstance(node, File):
                del node.content[size:]
                self._note_write(node)

        return call

    def _fsync(self, real: Callable[[Any], None]) -> Callable[[Any], None]:
        def call(file: Any) -> None:
            number = file if isinstance(file, int) else file.fileno()
            node = self._open.get(number)
            if node is not None:  # nothing is gained by syncing the disk of a test
                self.log.append(("sync", node))
            else:
                real(number)

        return call

    def _rename(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(source: Any, target: Any) -> None:
            one, other = self._find_entry(source), self._find_entry(target)
            real(source, target)
            if other is None:
                assert one is None, "a file was moved out of the recorded folder"
                return
            node = self._names.get(one) if one is not None else None
            if node is None:  # from elsewhere, or written by another program
                place = os.fsdecode(target)
                assert os.path.isfile(place)
                node = File()
                self._note(Change(entry=other, node=node))
                self._put(node, 0, Path(place).read_bytes())
                return
            self._note(Change(gone=() if one is None else (one,), entry=other, node=node))

        return call

    def _wrap_unlink(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(path: Any, *args: Any, **kwargs: Any) -> None:
            real(path, *args, **kwargs)
            entry = self._find_entry(path)
            if entry is not None:
                self._note(Change(gone=(entry,)))

        return call

    def _wrap_mkdir(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(path: Any, *args: Any, **kwargs: Any) -> None:
            real(path, *args, **kwargs)
            entry = self._find_entry(path)
            if entry is not None:
                self._note(Change(entry=entry, node=Folder()))

        return call

    def _wrap_rmtree(self, real: Callable[..., None]) -> Callable[..., None]:
        """By paths, entry by entry; Python removes by descriptors of folders."""

        def call(path: Any, ignore_errors: bool = False, **kwargs: Any) -> None:
            if self._find_entry(path) is None:
                real(path, ignore_errors, **kwargs)
                return
            try:
                for folder, inner, names in os.walk(path, topdown=False):
                    for name in names:
                        os.unlink(os.path.join(folder, name))
                    for name in inner:
                        os.rmdir(os.path.join(folder, name))
                os.rmdir(path)
            except OSError:
                if not ignore_errors:
                    raise

        return call

    def _wrap_file_open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            actual = real(file, mode, *args, **kwargs)
            if not set(mode) & set("wxa+"):
                return actual
            node: Node | None
            if isinstance(file, int):
                node = self._open.get(file)
            else:
                entry = self._find_entry(file)
                if entry is None:
                    return actual
                node = self._note_created(entry, empty="w" in mode)
            if not isinstance(node, File):
                return actual
            self._open[actual.fileno()] = node
            return _Written(actual, node, self)

        return call

    # --- what a crash leaves

    def _play_states(self) -> Iterator[State]:
        """All states, many of them more than once."""
        names, synced = dict(self.start), dict[int, bytes]()
        contents = dict[int, bytes]()
        for node in self.start.values():
            if isinstance(node, File):
                contents[id(node)] = synced[id(node)] = node.synced
        durable, pending = dict(names), list[Change]()
        for moment, (kind, what) in enumerate([("", None), *self.log, ("end", None)]):
            if kind == "names":
                pending.append(what)
            elif kind == "data":
                contents[id(what[0])] = what[1]
            elif kind == "sync" and isinstance(what, File):
                synced[id(what)] = contents.get(id(what), b"")
            elif kind == "sync":
                done = [c for c in pending if id(what) in c.list_folders()]
                pending = [c for c in pending if id(what) not in c.list_folders()]
                _apply(durable, done)
            is_end = kind == "end"
            for text, chosen in _list_subsets(pending, moment):
                table = dict(durable)
                _apply(table, chosen)
                for how in DATA:
                    files, folders = self._make_tree(table, how, contents, synced)
                    yield State(files, folders, moment, is_end, f"{how}, {text}")

    def _make_tree(
        self,
        names: dict[Entry, Node],
        how: str,
        contents: dict[int, bytes],
        synced: dict[int, bytes],
    ) -> tuple[dict[str, bytes], tuple[str, ...]]:
        files, folders = dict[str, bytes](), list[str]()

        def walk(folder: Folder, path: str) -> None:
            for (owner, name), node in names.items():
                if owner is not folder:
                    continue
                place = os.path.join(path, name)
                if isinstance(node, Folder):
                    folders.append(place)
                    walk(node, place)
                else:
                    known = contents.get(id(node), b""), synced.get(id(node), b"")
                    files[place] = node.list_remaining(how, *known)

        walk(self.root, "")
        return files, tuple(folders)

    def list_states(self) -> Iterator[State]:
        """Every state in which a crash can leave the folder, once.

        Temporary files that nobody reads do not make a state another one.
        """
        seen = set[bytes]()
        for state in self._play_states():
            self.played += 1
            digest = hashlib.sha256(repr(state.returned).encode())
            for path, content in sorted(state.files.items()):
                if not any(p.endswith(".tmp") or p.startswith(".tmp") for p in Path(path).parts):
                    digest.update(repr((path, hashlib.sha256(content).digest())).encode())
            if digest.digest() not in seen:
                seen.add(digest.digest())
                yield state


def _apply(names: dict[Entry, Node], changes: list[Change]) -> None:
    for change in changes:
        for entry in change.gone:
            names.pop(entry, None)
        if change.entry is not None and change.node is not None:
            names[change.entry] = change.node


def _list_subsets(pending: list[Change], seed: int) -> Iterator[tuple[str, list[Change]]]:
    """All of the changes, none, and other choices of them, with words for each."""
    yield "all", pending
    if not pending:
        return
    count = len(pending)
    if 2**count <= SUBSETS:
        every = itertools.product((False, True), repeat=count)
        chosen = [flags for flags in every if not all(flags)]
    else:
        draw = random.Random(seed)
        firsts = [tuple(i < n for i in range(count)) for n in range(count)]
        others = [tuple(i != n for i in range(count)) for n in range(count)]
        alone = [tuple(i == n for i in range(count)) for n in range(count)]
        some = [tuple(draw.random() < 0.5 for _ in range(count)) for _ in range(SUBSETS)]
        chosen = [*firsts, *others, *alone, *some][:SUBSETS]
    for flags in chosen:
        kept = [change for change, flag in zip(pending, flags, strict=True) if flag]
        yield f"{len(kept)} of {count} names", kept


class _Written:
    """A file that is open for writing; what reaches the system is recorded."""

    def __init__(self, file: Any, node: File, disk: Disk) -> None:
        self._file, self._node, self._disk = file, node, disk
        self._number = file.fileno()
        self._waiting: list[tuple[int, bytes]] = []

    def write(self, data: Any) -> int:
        raw = data.encode("utf-8") if isinstance(data, str) else bytes(data)
        is_append = "a" in getattr(self._file, "mode", "")
        end = max((at + len(d) for at, d in self._waiting), default=len(self._node.content))
        at = max(end, len(self._node.content)) if is_append else self._file.tell()
        size: int = self._file.write(data)
        self._waiting.append((at, raw if isinstance(data, str) else raw[:size]))
        if not hasattr(self._file, "raw") and not hasattr(self._file, "buffer"):
            self.flush()  # it has no buffer
        return size

    def flush(self) -> None:
        self._file.flush()
        for at, data in self._waiting:
            self._disk._put(self._node, at, data)
        self._waiting.clear()

    def truncate(self, size: int | None = None) -> int:
        self.flush()
        actual: int = self._file.truncate(size)
        del self._node.content[actual:]
        self._disk._note_write(self._node)
        return actual

    def close(self) -> None:
        if not self._file.closed:
            self.flush()
            self._disk._open.pop(self._number, None)
        self._file.close()

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
