"""Datasets of files, which are decoded to arrays and then prepared for a model."""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Literal, Self

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import EngineError, InputError
from engine.base.signatures import check_arguments
from engine.data.dataset import Dataset, Indices
from engine.data.folders import list_all, list_classes
from engine.data.samples import Augment, Sample, read_only
from engine.system.config import count_cores

CACHE = 512 << 20  # bytes of decoded files that a dataset keeps
READERS = 4  # threads at most: decoding scales with cores, but training needs them too


@check_arguments
class DecodedFiles(Dataset):
    """Files of a folder whose sub-folders are classes: samples (array, label) or (array,).

    Decoded arrays stay in memory until they take `cache` bytes; the others are decoded again in
    each epoch.  Augmentations get decoded arrays, before they are prepared.

    Attributes:
        paths: the paths of the files.
        dropped: path and reason of each file that `unreadable="drop"` has left out.
    """

    what: str
    suffixes: Sequence[str]

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        classes: Sequence[str] | None,
        labelled: bool,
        unreadable: Literal["raise", "drop"],
        cache: int,
    ) -> None:
        self.readers = min(READERS, count_cores())
        self.cache, self.unreadable = cache, unreadable
        self.take_folder(folder, classes, labelled)

    def take_folder(
        self, folder: str | os.PathLike[str], classes: Sequence[str] | None, labelled: bool
    ) -> None:
        """List the files of a folder."""
        path = os.path.abspath(arguments.check_path("folder", folder))
        self._folder = path if os.path.isdir(path) else os.path.dirname(path)
        self._targets: Array | None = None
        if labelled:
            listing = list_classes(folder, self.suffixes, self.what, classes)
            self.paths, self._targets = listing.paths, listing.labels
            self.classes = listing.classes
        else:
            self.paths = list_all(folder, self.suffixes, self.what)
        self._used = 0
        self._kept: dict[str, Array] = {}
        self._lock = threading.Lock()
        self.dropped: list[tuple[str, str]] = []
        if self.unreadable == "drop":
            self.drop_unreadable()

    def like(self, folder: str | os.PathLike[str], *, labelled: bool = True) -> Self:
        """Return another folder's files with the options and the classes of these.

        Raises:
            FileError, InputError, NameNotFoundError: as the class.
        """
        other = copy(self)
        other.take_folder(folder, self.classes, labelled)
        return other

    def list_options(self) -> dict[str, Any] | None:
        """Return the arguments that decide what a file becomes, as JSON types.

        None if they cannot be written, like a user's own function.
        """
        return None

    @abstractmethod
    def decode(self, path: str) -> Array:
        """Decode a file to the array that augmentations get."""

    @abstractmethod
    def prepare(self, decoded: Array) -> Array:
        """Prepare a decoded array for a model."""

    def decoded(self, index: int) -> Array:
        """Return the decoded array of a sample's file, which must not be written to.

        Raises:
            FileError, InputError: the file cannot be decoded.
        """
        path = self.paths[index]
        return self.keep_decoded(path, lambda: self.decode(path))

    def keep_decoded(self, path: str, decode: Callable[[], Array]) -> Array:
        """Return what a file is decoded to, which must not be written to, and keep it in memory."""
        kept = self._kept.get(path)
        if kept is not None:
            return kept
        array = read_only(decode())
        with self._lock:
            if self._used + array.nbytes <= self.cache and path not in self._kept:
                self._kept[path] = array
                self._used += array.nbytes
        return array

    def read(self, path: str | os.PathLike[str]) -> Array:
        """Return any file in the form of a sample.

        Raises:
            FileError, InputError: the file cannot be decoded.
        """
        return self.prepare(self.decode(arguments.check_path("path", path)))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Sample:
        return self.prepare(self.decoded(index)), *self.get_label(index)

    def sample_name(self, index: int) -> str:
        return os.path.relpath(os.path.abspath(self.paths[index]), self._folder)

    def get_label(self, index: int) -> Sample:
        return () if self._targets is None else (np.asarray(self._targets[index]),)

    def augmented(self, index: int, augment: Augment, rng: np.random.Generator) -> Sample:
        changed, *others = augment((self.decoded(index), *self.get_label(index)), rng)
        return self.prepare(changed), *others

    def take(self, indices: Indices) -> tuple[Array, ...]:
        batch = np.stack([self.prepare(self.decoded(int(i))) for i in indices])
        return (batch,) if self._targets is None else (batch, self._targets[indices])

    def labels(self) -> Array:
        if self._targets is None:
            raise InputError(f"{self.what} were opened without labels, by labelled=False")
        return self._targets

    def drop_unreadable(self) -> None:
        """Decode every file, and leave out those that cannot be."""
        good: list[int] = []
        for index, path in enumerate(self.paths):
            try:
                self.check_sample(index)
            except EngineError as error:
                self.dropped.append((path, str(error)))
            else:
                good.append(index)
        if not good:
            raise InputError(f"no file can be read; the first: {self.dropped[0][1]}")
        if self._targets is not None:
            lost = set(self._targets.tolist()) - set(self._targets[good].tolist())
            if lost and self.classes is not None:
                raise InputError(f"no file of the class {self.classes[min(lost)]!r} can be read")
            self._targets = self._targets[good]
        self.choose_samples(good)

    def check_sample(self, index: int) -> None:
        """Decode the files of a sample, which keeps them.

        Raises:
            EngineError: one of them cannot be decoded.
        """
        self.decoded(index)

    def choose_samples(self, indices: Sequence[int]) -> None:
        """Leave all other samples out."""
        self.paths = [self.paths[i] for i in indices]
