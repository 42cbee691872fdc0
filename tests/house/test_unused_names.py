"""Names of modules that nothing reads: no other module, no test, and not the module itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path

from tests.support.places import ROOT
from tests.support.source_files import list_files, name_file

FOLDERS = ("engine", "graphs", "kernels", "tools", "bench")
# Names that are looked for in every module of a kind, and what looks for them.
CONVENTIONS = {
    "BENCHES": "bench/rows.py",
    "CASES": "tools/dev/cases/__init__.py",
    "KERNELS": "kernels/ops/registry.py",
    "OPS": "kernels/ops/registry.py",
    "main": "python -m, or the text of a program",
}
# Modules whose names are read in another way.
ELSEWHERE = {
    "engine/onnxblock/_graph_utils.py": "by users of onnxruntime-training, who know its names",
    "kernels/vector_ir/bf16.py": "as attributes of a module that a type chooses",
    "kernels/vector_ir/elementary.py": "by the names of functions in formulas",
    "kernels/vector_ir/trigonometric.py": "by the names of functions in formulas",
    "tools/trimmed/runtime/": "in builds, where these modules have other names",
}


def name_module(path: Path) -> str:
    """Return the name under which a file is imported."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] in ("engine", "bench", "tests") else ["engine", *parts])


@cache
def read_module(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def list_read(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield what a module reads of others, as (module, name)."""
    places: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                places[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield node.module, alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                places |= {alias.asname: alias.name} if alias.asname else {root: root}
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute):
            rest, inner = "", node.value
            while isinstance(inner, ast.Attribute):
                rest, inner = f".{inner.attr}{rest}", inner.value
            if isinstance(inner, ast.Name) and inner.id in places:
                yield places[inner.id] + rest, node.attr


def list_defined(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names that a module defines at its top, and their lines.

    A decorator may register what it decorates, so such names do not count.
    """
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if not node.decorator_list:
                yield node.name, node.lineno
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                elements = target.elts if isinstance(target, ast.Tuple) else [target]
                yield from ((e.id, node.lineno) for e in elements if isinstance(e, ast.Name))


def list_own(module: ast.Module) -> Set[str]:
    """Return the names that a module reads itself; words of texts may be annotations."""
    nodes = list(ast.walk(module))
    names = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    texts = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return names.union(*(re.findall(r"\w+", text) for text in texts if len(text) < 100))


def test_every_name_is_read() -> None:
    files = list_files(*FOLDERS)
    read = {pair for path in [*files, *list_files("tests", "examples", "docs")]
            for pair in list_read(read_module(path))}  # fmt: skip
    unread = []
    for path in files:
        if name_file(path).startswith(tuple(ELSEWHERE)):
            continue
        module, own = name_module(path), list_own(read_module(path))
        unread += [
            f"{name_file(path)}:{line} {name}"
            for name, line in list_defined(read_module(path))
            if not (name in own or (module, name) in read or name in CONVENTIONS)
            and not name.startswith("__")
        ]
    assert unread == []


def test_a_name_that_nothing_reads_is_found() -> None:
    module = ast.parse("A, B = 1, 2\nC = A\ndef f(x: 'B'): ...\n@register\ndef g(): ...\n")
    assert {name for name, _ in list_defined(module)} - list_own(module) == {"C", "f"}
    reader = ast.parse("import a.b\nfrom a import b as c, d\nc.e()\na.b.f()\n")
    assert {("a", "d"), ("a.b", "e"), ("a.b", "f")} <= {*list_read(reader)}
