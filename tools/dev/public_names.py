"""Maker of `engine/base/public_names.py`: the names that are imported at their first use.

The imports for type checkers in `engine/__init__.py` and `engine/trainer/__init__.py` say which
names these are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

_HEAD = '''"""The public names that are imported at first use, each with the module that has it.

`python -m engine.tools.dev.tables` writes it from what `engine` and its rooms offer.
"""

HOMES = {
'''


def write_source() -> str:
    """Return the text of the file."""
    rows = (f'    "{name}": "{home}",\n' for name, home in sorted(_list_offered("engine")))
    return f"{_HEAD}{''.join(rows)}}}\n"


def _list_offered(package: str) -> Iterator[tuple[str, str]]:
    """Yield the names that a package shows type checkers, each with the module that has it."""
    file = import_module(package).__file__ or ""
    for node in ast.walk(ast.parse(Path(file).read_text("utf-8"))):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for each in node.body:
                assert isinstance(each, ast.ImportFrom)
                assert each.module is not None
                for name in each.names:
                    yield from (
                        [(name.name, each.module)] if name.name != "*" else _list_all(each.module)
                    )


def _list_all(module: str) -> Iterator[tuple[str, str]]:
    """Yield the names that `from module import *` brings, each with the module that has it."""
    room = import_module(module)
    if "__getattr__" in vars(room):
        yield from _list_offered(module)
    else:
        yield from ((name, module) for name in room.__all__)
