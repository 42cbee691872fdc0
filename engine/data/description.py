"""The description of training data, by which other data are prepared and numbered alike.

The folder of a run keeps it in data.json, and preparation.json of a table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from engine.base.errors import InputError
from engine.data.files import DecodedFiles
from engine.data.kinds import Name
from engine.data.preparation import Preparation
from engine.system import files

FILE, PREPARATION = "data.json", "preparation.json"


@dataclass(frozen=True, kw_only=True)
class DataDescription:
    """The kind, options, classes and preparation of the data of a training run.

    kind: the kind of files; None for other data, and for files that a user's own class reads.
    options: the options of the dataset that reads them.
    classes: the names of the labels; empty if unknown.
    preparation: the preparation of a table; None for other data.
    reader: the dataset of a user's own class that reads files.
    """

    kind: Name | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    classes: Sequence[str] = ()
    preparation: Preparation | None = None
    reader: DecodedFiles | None = None

    def write(self, folder: Path) -> None:
        """Write it into the folder of a run.

        Raises:
            FileError: it cannot be written.
        """
        content = {"kind": self.kind, "options": dict(self.options), "classes": list(self.classes)}
        try:
            text = json.dumps(content, ensure_ascii=False, indent=1)
        except TypeError:  # an object among the options, such as a tokenizer
            text = json.dumps({**content, "kind": None, "options": {}}, ensure_ascii=False)
        files.write(os.fspath(folder / FILE), [text.encode()])
        if self.preparation is not None:
            self.preparation.save(folder / PREPARATION)

    @property
    def learned(self) -> dict[str, Any]:
        """Return options that the dataset has learned from the training samples."""
        return {} if self.preparation is None else {"preparation": self.preparation}

    @classmethod
    def read(cls, folder: Path) -> DataDescription | None:
        """Read what a run has written; None if it has written nothing.

        Raises:
            FileError, InputError: it cannot be read, or is damaged.
        """
        path = folder / FILE
        if not os.path.isfile(path):
            return None
        try:
            content = json.loads(files.read(os.fspath(path), "data of the run"))
            kind, options, classes = (content[name] for name in ("kind", "options", "classes"))
            if kind not in (None, *get_args(Name)) or not isinstance(options, dict):
                raise ValueError(f"unknown kind {kind!r}")
            names = [str(name) for name in classes]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{os.fspath(path)!r} is damaged: {error}") from error
        table = folder / PREPARATION
        preparation = Preparation.load(table) if table.is_file() else None
        return cls(kind=kind, options=options, classes=names, preparation=preparation)
