"""Part of this package that a device of a federation needs in addition to a build:
`NAME_federated`.

A package of copies: messages and folders, the learner of builds, and the ClientApp of Flower, with
all that these import, under names of its own:

    engine.federated.flower.client    mnist_federated.flower.client
    engine.federated.message          mnist_federated.message
    engine.errors                     mnist_federated.errors

None of it plans or compiles, so numpy is enough, plus flwr for the ClientApp.  The `__init__` of a
folder is only its docstring, because the originals import more than a device needs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import engine
from engine.base.errors import InternalError

ROOTS = ("engine.federated.folder", "engine.federated.learners", "engine.federated.trimmed",
         "engine.federated.flower.client")  # fmt: skip
_HERE = Path(engine.__file__).resolve().parent
_IMPORT = re.compile(r"^( *from )engine(?:\.federated)?(?=[. ])", re.MULTILINE)


def write_package(out: Path, name: str) -> None:
    """Write the package into the folder of a build.

    Raises:
        InternalError: two modules would have one name.
    """
    package = f"{name}_federated"
    files = dict[Path, str]()
    for module, path in sorted(list_modules().items()):
        parts = module.removeprefix("engine.").removeprefix("federated.").split(".")
        place = Path(package, *parts).with_suffix(".py")
        if place in files:
            raise InternalError(f"{module} and another module would both be {place}")
        files[place] = _IMPORT.sub(rf"\g<1>{package}", path.read_text("utf-8"))
    for place in list(files):
        for folder in place.parents:
            if folder.name:
                files[folder / "__init__.py"] = _write_init(folder, package)
    for place, text in files.items():
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        (out / place).write_text(text, "utf-8")


def list_modules() -> dict[str, Path]:
    """Return the files of the modules that are needed, by the names they have here.

    They are the roots and what is imported by them and by one another when they are imported;
    what only some functions import is not among them.
    """
    places, waiting = dict[str, Path](), list(ROOTS)
    while waiting:
        module = waiting.pop()
        path = _HERE.joinpath(*module.split(".")[1:]).with_suffix(".py")
        if module in places or not path.is_file():
            continue
        places[module] = path
        waiting += _list_imports(ast.parse(path.read_text("utf-8")))
    return places


def _list_imports(node: ast.AST) -> Iterator[str]:
    """Yield the modules that a file imports; `from a import b` counts as `a` and as `a.b`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom) and str(child.module).split(".")[0] == "engine":
            yield str(child.module)
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _list_imports(child)


def _write_init(folder: Path, package: str) -> str:
    """Return the `__init__` of a folder."""
    text = f"A device of a federation; copied from edgegrad {engine.__version__}."
    return f'"""{text}"""\n' if folder.name == package else '"""See the package around it."""\n'
