"""Plan cache: plans, interfaces of models and states of optimizers, kept on disk.

A *record* is bytes under a key.  The key is a digest of all that decides the content: the sources
of this package, the file of the model, and for a plan the shapes, the target, the threads, the
kernel set and where parameters lie.  A record that is found is therefore right, or damaged.

Records are looked for beside the artifacts, in the file that `edgegrad prepare` has written there,
then in the cache folder (engine/system/cache.py).  New ones go to the cache folder.

    prepared.plans   magic, size of the index, its digest, the index, then the records
    index            JSON: version and sources of the package, the digests of the models, for what
                     plans were made, and where each record begins and ends

A record of the cache folder is a file of its own, `plans/<key>`.  Everywhere a digest of its key
and content precedes it, so that a renamed file is not taken for a record.  Artifacts travel, and
with them the file beside them: its fields are checked like any stranger's file, and the reader of a
record checks its content (SECURITY.md, "Prepared plans").
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

from engine.base.errors import CacheWarning, warn_user
from engine.base.package import FOLDER, VERSION
from engine.runtime import mapping
from engine.system import cache, files, trust
from engine.system.config import switch

PREPARED = "prepared.plans"
CACHE_BYTES = 128 << 20  # of all records in the cache folder

MAGIC = b"EGPREP\0\2"
_HEAD = struct.Struct("<8sQ")
_RECORD, _INDEX = "plan", "index"  # kinds of what is sealed
_ROOMS = ("base", "plan", "runtime", "training", "kernels", "graphs")  # whose sources decide plans
_SOURCES = (".py", ".txt")  # modules, and the tables that they read

Setting = tuple[str, str, int]  # what a plan runs on: name of the kernel set, target, threads


@functools.cache
def digest_sources() -> str:
    """Return the digest of the version and of all sources that decide what a record holds."""
    paths: list[str] = []
    for room in _ROOMS:
        for folder, _, names in os.walk(os.path.realpath(FOLDER / room)):
            paths += [os.path.join(folder, name) for name in names if name.endswith(_SOURCES)]
    digest = hashlib.sha256(VERSION.encode())
    for content in sorted(map(_digest_file, paths)):
        digest.update(content)
    return digest.hexdigest()


def _digest_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).digest()


def make_key(kind: str, *parts: object) -> str:
    """Return the key of a record of a kind; parts: values whose `repr` says all that they are."""
    return hashlib.sha256(repr((digest_sources(), kind, *parts)).encode()).hexdigest()


def digest_model(data: mapping.Content) -> str:
    """Return the digest of the file of a model."""
    return hashlib.sha256(data).hexdigest()


def find_folder() -> Path | None:
    """Return the folder of records in the cache folder; None if there is none to trust."""
    base = cache.find_cache_dir()
    return base / "plans" if base is not None and cache.is_trusted(base / "plans") else None


# --- beside artifacts


@dataclass(frozen=True, slots=True)
class PreparedModels:
    """The models and settings that `edgegrad prepare` has made plans for.

    sources: as `digest_sources()` of the package that made them.
    models: the digests of the files of models, with what each model is.
    settings: what the plans run on.
    """

    version: str
    sources: str
    models: Mapping[str, str]
    settings: Sequence[Setting]


def write_prepared(path: str, made: PreparedModels, records: Mapping[str, bytes]) -> int:
    """Write the file of prepared records, in one step; returns its size in bytes.

    Raises:
        FileError: it cannot be written; what was there is unchanged.
    """
    places, sealed, begin = {}, [], 0
    for name, content in records.items():
        sealed.append(cache.seal(_RECORD, name, content))
        places[name] = (begin, begin + len(sealed[-1]))
        begin += len(sealed[-1])
    index = {
        "version": made.version,
        "sources": made.sources,
        "models": dict(made.models),
        "settings": list(made.settings),
        "records": places,
    }
    text = cache.seal(_INDEX, "", json.dumps(index).encode())
    files.write(path, [_HEAD.pack(MAGIC, len(text)), text, *sealed])
    return _HEAD.size + len(text) + begin


class Prepared:
    """The file `edgegrad prepare` has written beside artifacts, as far as it is of use here.

    made: what is in it; None if it is damaged.
    wrong: what is wrong with it then.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.made: PreparedModels | None = None
        self.wrong = "is damaged"
        self._places: dict[str, tuple[int, int]] = {}
        try:
            with trust.open_file(path) as file:
                size = os.fstat(file.fileno()).st_size
                self._read(file, size)
        except (OSError, struct.error, ValueError, LookupError, TypeError, AttributeError):
            return
        except (MemoryError, RecursionError):
            return

    def _read(self, file: IO[bytes], size: int) -> None:
        """Take the index of a file of `size` bytes; whatever is wrong with it raises."""
        magic, length = _HEAD.unpack(file.read(_HEAD.size))
        if magic != MAGIC and magic[:-1] == MAGIC[:-1]:
            self.wrong = "was made by another version of edgegrad"
        base = _HEAD.size + length
        if magic != MAGIC or base > size:
            return
        index = json.loads(cache.unseal(_INDEX, "", file.read(length)) or b"")
        texts = [index["version"], index["sources"], *index["models"].items()]
        settings = [(name, target, threads) for name, target, threads in index["settings"]]
        records = index["records"].items()
        places = {name: (base + begin, base + end) for name, (begin, end) in records}
        if not (
            {type(text) for text in chain(texts[:2], *texts[2:])} <= {str}
            and all(tuple(map(type, each)) == (str, str, int) for each in settings)
            and all(type(n) is int for place in places.values() for n in place)
            and all(base <= begin <= end <= size for begin, end in places.values())
        ):
            return
        self._places = places
        self.made = PreparedModels(index["version"], index["sources"], index["models"], settings)

    def list_names(self) -> list[str]:
        """Return the keys of all records."""
        return list(self._places)

    def get(self, name: str) -> bytes | None:
        """Return the record of a key; None if there is none, or it is damaged."""
        if name not in self._places:
            return None
        begin, end = self._places[name]
        try:
            with trust.open_file(self.path) as file:
                file.seek(begin)
                return cache.unseal(_RECORD, name, file.read(end - begin))
        except (OSError, MemoryError):
            return None


@functools.cache
def _open_prepared(path: str, stamp: tuple[int, int]) -> Prepared:
    """Return the prepared file at a path, read once as long as it does not change."""
    return Prepared(path)


def _describe_setting(setting: Setting) -> str:
    name, target, threads = setting
    return f"kernel set {name}, {target}, {threads} thread{'s' if threads > 1 else ''}"


_told: set[str] = set()  # complaints that have been told


class Records:
    """The records that a model can use, and where its new ones go.

    beside: the file of prepared records in the folder of the model; None if there is none.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.beside: Prepared | None = None
        self.folder = folder
        if folder is not None:
            path = os.path.join(folder, PREPARED)
            try:
                status = os.stat(path)
            except OSError:
                return
            self.beside = _open_prepared(path, (status.st_mtime_ns, status.st_size))

    def read_prepared(self, name: str) -> bytes | None:
        """Return the record of a key beside the artifacts, whoever wrote it; None if none is."""
        if self.beside is None or switch("DEBUG") == "2":  # which prints what planning does
            return None
        return self.beside.get(name)

    def refuse(self, why: str) -> None:
        """Warn, once, that a record beside the artifacts is not used."""
        told = "" if self.beside is None else f"{self.beside.path}: {why}; the plan is made again"
        if told and told not in _told:
            _told.add(told)
            warn_user(told, CacheWarning)

    def read_cached(self, name: str) -> bytes | None:
        """Return the record of a key in the cache folder; None if there is none."""
        kept = find_folder()
        if kept is None or switch("DEBUG") == "2":
            return None
        content = cache.read(cache.Entry(kept / name, _RECORD, name))
        if content is not None:
            cache.mark_used(kept / name)
        return content

    def get(self, name: str) -> bytes | None:
        """Return the record of a key; None if there is none."""
        content = self.read_prepared(name)
        return self.read_cached(name) if content is None else content

    def put(self, name: str, content: bytes) -> None:
        """Keep a record in the cache folder; what is long not used goes while that is too large."""
        kept = find_folder()
        if kept is not None and len(content) <= CACHE_BYTES // 2:
            cache.write(cache.Entry(kept / name, _RECORD, name), content)
            cache.limit_size(kept, CACHE_BYTES)

    def list_kernel_sets(self, model: str, threads: int) -> set[str]:
        """Return the names of the kernel sets for which plans of a model are prepared.

        model: the digest of its file.
        """
        made = None if self.beside is None else self.beside.made
        if made is None or made.sources != digest_sources() or model not in made.models:
            return set()
        return {name for name, _, number in made.settings if number == threads}

    def explain_unusable(self, model: str, setting: Setting | None) -> str:
        """Return why a model cannot use the prepared records; "" if it can, or there are none.

        model: the digest of its file.  setting: what its plans run on, if that is asked for, too.
        """
        if self.beside is None:
            return ""
        made, why = self.beside.made, ""
        if made is None:
            why = self.beside.wrong
        elif made.sources != digest_sources():
            why = f"was made by another version of edgegrad ({made.version})"
        elif model not in made.models:
            why = f"was made for other models ({', '.join(sorted(set(made.models.values())))})"
        elif setting is not None and setting not in made.settings:
            known = "; ".join(_describe_setting(each) for each in made.settings)
            why = f"was made for {known}, and this is {_describe_setting(setting)}"
        return f"{self.beside.path} {why}; " if why else ""

    def tell(self, model: str, setting: Setting | None) -> None:
        """Warn, once, of what is wrong with the prepared records; see `explain_unusable`."""
        complaint = self.explain_unusable(model, setting)
        if complaint and complaint not in _told:
            _told.add(complaint)
            warn_user(
                f"{complaint}plans are made again; to renew it, run `{make_command(self.folder)}`",
                CacheWarning,
            )


def make_command(folder: str | None, threads: int | None = None) -> str:
    """Return the command that makes prepared records for the artifacts in a folder."""
    number = "" if threads is None else f" --threads {threads}"
    return f"edgegrad prepare {folder or 'ARTIFACTS'} --batch N{number}"
