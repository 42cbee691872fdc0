"""Train ONNX models on the device: `import edgegrad` is `import engine` by the package's own name.

The folder of the package is `engine`, and its modules import each other as `engine.x`.  This module
puts `engine` in its own place, and a finder that does so for every `edgegrad.x`: each module exists
once, so classes, registries and pickles are the same under both names.

Another `engine`, as an `engine.py` beside a script, would be found first and break every import
inside.  So the finder also answers for `engine`, with the folder that was installed with this file,
wherever `sys.path` leads.  A module in `sys.modules` stays there, because its importer may use it:
a foreign `engine` that comes first is an ImportError.
"""

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from types import CodeType, ModuleType

    from engine import *
    from engine import __version__ as __version__
else:
    Loader = object  # importing the base would cost more than all the rest here

_NAME, _FOLDER = "edgegrad", "engine"


class _SecondName(Loader):
    """Loader of a module under its second name, which runs nothing.

    first: the spec of the module under its name in `engine`; the module keeps it.
    """

    def __init__(self, first: ModuleSpec) -> None:
        self._first = first

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None: an empty module takes the name until `exec_module` replaces it."""

    def exec_module(self, module: "ModuleType") -> None:
        """Put the module of `engine` in the place of an empty one, as imports allow."""
        sys.modules[module.__name__] = import_module(self._first.name)

    def get_code(self, name: str) -> "CodeType | None":
        """Return the code of the module for `python -m`."""
        loader: Any = self._first.loader
        code: CodeType | None = loader.get_code(self._first.name)
        return code


class _Finder:
    """Finder of `engine` by its place, and of every `edgegrad.x` by `engine.x`.

    place: the folder that holds the folder `engine`.
    """

    def __init__(self, place: str) -> None:
        self._place = place

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> ModuleSpec | None:
        """Return the spec of a module, or None if its name is another's."""
        if name == _FOLDER:
            return PathFinder.find_spec(name, [self._place])
        if not name.startswith(f"{_NAME}."):
            return None
        from importlib.util import find_spec

        first = find_spec(_FOLDER + name.removeprefix(_NAME))
        if first is None:
            return None
        package = first.submodule_search_locations is not None
        return ModuleSpec(name, _SecondName(first), origin=first.origin, is_package=package)


def _place() -> str:
    """Return the folder that holds `engine`: beside this package, or above it in a checkout.

    Raises:
        ImportError: it is in neither.
    """
    beside = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for place in (beside, os.path.dirname(os.path.dirname(beside))):
        spec = PathFinder.find_spec(_FOLDER, [place])
        if spec is not None and spec.origin is not None:
            return place
    raise ImportError(
        f"{beside}: the folder {_FOLDER!r} of {_NAME} is missing here; install {_NAME} again"
    )


def _find_file(spec: ModuleSpec | None) -> str:
    """Return the file that a spec leads to, or the folder of a package without `__init__.py`."""
    if spec is None:
        return ""
    return os.path.realpath(spec.origin or [*(spec.submodule_search_locations or ()), "."][0])


def _install() -> None:
    """Make `edgegrad` the package `engine` that it was installed with.

    Raises:
        ImportError: another `engine` has been imported, or there is none.
    """
    place = _place()
    ours = _find_file(PathFinder.find_spec(_FOLDER, [place]))
    loaded = sys.modules.get(_FOLDER)
    if loaded is not None:
        file = _find_file(loaded.__spec__) or repr(loaded)
        if file != ours:
            raise ImportError(
                f"{file} was imported as {_FOLDER!r}, the name of the package that {_NAME} is "
                f"built on, {ours}: rename the file, or import {_NAME} before it, and "
                f"`import {_FOLDER}` gives {_NAME}'s"
            )
    else:
        specs = (finder.find_spec(_FOLDER, None) for finder in sys.meta_path)
        other = _find_file(next(filter(None, specs), None))
        if other not in ("", ours):
            import warnings

            warnings.warn(
                f"{other} has the name of the package that {_NAME} is built on; "
                f"`import {_FOLDER}` gives {_NAME}'s; rename the file",
                RuntimeWarning,
                stacklevel=3,
            )
    sys.meta_path.insert(0, _Finder(place))
    sys.modules[__name__] = import_module(_FOLDER)


if __name__ != _NAME:
    raise ImportError(f"import {_NAME}, not {__name__}: its modules go by that name")
_install()
