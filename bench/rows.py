"""Declaration of a bench: its subjects, its columns, its options.

A module of this folder that measures something ends in `BENCHES`.  The name of a bench is the name
of its module, or begins with it: `scaling.boards` is in bench/scaling.py.
"""

from __future__ import annotations

import importlib
import pkgutil
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import bench
from engine.base.errors import InputError, suggest_nearest

Cells = Sequence[object]
WRONG = "WRONG"  # how a cell begins that makes the exit status 1


@dataclass(frozen=True, slots=True)
class Option:
    """Option `--name` of a bench.

    default: decides the type; of a tuple the option takes several values, of False none.
    kind: the type of a value where the default is None or an empty tuple.
    """

    name: str
    default: Any
    what: str
    kind: type = str

    @property
    def words(self) -> dict[str, Any]:
        """The arguments of `ArgumentParser.add_argument` that say so."""
        if self.default is False:
            return {"action": "store_true", "help": self.what}
        one = self.default[0] if isinstance(self.default, tuple) and self.default else self.default
        kind = self.kind if one is None or one == () else type(one)
        many = {"nargs": "+"} if isinstance(self.default, tuple) else {}
        return {"type": kind, "default": self.default, "help": self.what, **many}


THREADS = Option("threads", (1, 2), "numbers of threads")


@dataclass(frozen=True, slots=True)
class Bench:
    """Table with one or several rows for each subject.

    subjects: by name, what `measure` is called with; a function makes them when they are asked for.
        None: the words of the command are the subjects, such as folders.
    columns: titles, each with the format of its cells after a colon.
    measure: yields the cells of the rows of one subject, as they become known; None is an empty
        cell.  A text that begins with `WRONG` makes the exit status 1.
    usual: the subjects that are measured where none is named; by default all.
    small: words of the command that measures least, for tests; None where there is none.
    page: puts the rows of subjects into a document, `document` of the repository unless another one
        is named.
    """

    name: str
    what: str
    subjects: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None
    columns: tuple[str, ...] | Callable[[Namespace], tuple[str, ...]]
    measure: Callable[[Any, Namespace], Iterable[Cells]]
    usual: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    small: str | None = None
    page: Callable[[Mapping[str, list[Cells]], Path], None] | None = None
    document: str = ""

    def list_subjects(self) -> Mapping[str, Any]:
        """Return every subject by name."""
        return (self.subjects() if callable(self.subjects) else self.subjects) or {}

    def list_titles(self, options: Namespace) -> tuple[str, ...]:
        """Return the titles of the columns, with their formats."""
        return self.columns(options) if callable(self.columns) else self.columns


def list_modules() -> list[str]:
    """Return the names of the modules of this folder that have benches."""
    folder = Path(bench.__path__[0])
    names = [m.name for m in pkgutil.iter_modules([str(folder)])]
    files = {n: folder / n / "command.py" if (folder / n).is_dir() else folder / f"{n}.py"
             for n in names}  # fmt: skip
    return [n for n, f in files.items() if f.exists() and "\nBENCHES = " in f.read_text("utf-8")]


def _import_module(name: str) -> ModuleType:
    is_folder = (Path(bench.__path__[0]) / name).is_dir()
    return importlib.import_module(f"bench.{name}{'.command' if is_folder else ''}")


def find_benches(*modules: str) -> dict[str, Bench]:
    """Return the benches of some modules, by default of all, by name."""
    every = (each for name in modules or list_modules() for each in _import_module(name).BENCHES)
    return {each.name: each for each in every}


def find(name: str) -> Bench:
    """Return the bench of a name.

    Raises:
        InputError: there is none.
    """
    module, known = name.partition(".")[0], list_modules()
    if module not in known:
        raise InputError(f"no bench {name!r}{suggest_nearest(name, known)}")
    if name not in (named := find_benches(module)):
        raise InputError(f"no bench {name!r}{suggest_nearest(name, named)}")
    return named[name]
