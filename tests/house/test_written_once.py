"""No alias of a type, and no function, is written in two modules of the product."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.source_files import list_files, name_file

FOLDERS = ("engine", "graphs", "kernels", "tools")
FREE = "tools/trimmed/runtime/"  # these modules are copied into builds, and import no other
LEAST = 60  # characters of a function from which on a copy counts


def list_modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield the modules of the product by their paths."""
    for path in list_files(*FOLDERS):
        name = name_file(path)
        if not name.startswith(FREE):
            yield name, ast.parse(Path(path).read_text("utf-8"))


def list_aliases(module: ast.Module) -> Iterator[str]:
    """Yield the aliases of types as they are written, such as `Array = npt.NDArray[Any]`."""
    for node in module.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        name = target.id if isinstance(target, ast.Name) else ""
        is_class_like = name[:1].isupper() and not name.isupper()
        if is_class_like and isinstance(value, ast.Subscript | ast.BinOp):
            yield f"{name} = {ast.unparse(value)}"


def list_functions(module: ast.Module) -> Iterator[str]:
    """Yield parameters, type and body of each function, without its docstring."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            head = [node.args, node.returns] if node.returns else [node.args]
            text = "\n".join(map(ast.unparse, [*head, *body]))
            if len(text) >= LEAST:
                yield text


def find_copies(list_texts: Callable[[ast.Module], Iterator[str]]) -> dict[str, list[str]]:
    """Return the texts that stand in several modules, and these modules."""
    places = defaultdict(list)
    for name, module in list_modules():
        for text in set(list_texts(module)):
            places[text].append(name)
    return {text: names for text, names in places.items() if len(names) > 1}


def test_an_alias_of_a_type_is_written_once() -> None:
    assert find_copies(list_aliases) == {}


def test_a_function_is_written_once() -> None:
    assert find_copies(list_functions) == {}
