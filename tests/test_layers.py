"""Who may import whom: the data flows one way, and the runtime pays for numpy alone.

errors, plan  <-  kernels  <-  graphs  <-  engine.api, artifacts  <-  tools, bench, tests
        plan  <-  runtime
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"numba", "llvmlite", "onnx", "onnxruntime", "sklearn"}
DOORS = (  # they may call the planner, lazily
    "engine.api", "engine.artifacts", "engine.backend", "engine.loss_types", "engine.onnxblock",
    "engine.optim_types", "engine.session",
)  # fmt: skip
ANYHOW = ("top", "function", "typing")


class Import(NamedTuple):
    """One imported module, and how: at import time, in a function, or for checkers only."""

    name: str
    line: int
    kind: str

    def within(self, *packages: str) -> bool:
        return any(self.name == p or self.name.startswith(p + ".") for p in packages)


def imports(path: Path) -> list[Import]:
    """Every import of a file; `from a import b` counts as `a` and as `a.b`."""
    return list(_walk(ast.parse(path.read_text("utf-8")), "top"))


def _walk(node: ast.AST, kind: str) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, node.lineno, kind) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno}: a relative import"
        yield Import(node.module or "", node.lineno, kind)
        yield from (Import(f"{node.module}.{a.name}", node.lineno, kind) for a in node.names)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        kind = "function" if kind == "top" else kind
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        for statement in node.body:
            yield from _walk(statement, "typing")
        for statement in node.orelse:
            yield from _walk(statement, kind)
        return
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, kind)


def files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).glob("*.py"))


def breaches(path: Path, *packages: str, kinds: tuple[str, ...] = ("top", "function")) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{i.line} imports {i.name}"
        for i in imports(path)
        if i.within(*packages) and i.kind in kinds
    ]


def test_errors_and_plan_are_leaves() -> None:
    below = {"errors.py": (), "plan.py": ("engine.errors",)}
    for path in files("engine"):
        for i in imports(path) if path.name in below else ():
            inner = i.within("engine") and i.name != "engine"
            assert not inner or i.within(*below[path.name]), f"{path.name}:{i.line}: {i.name}"


def test_kernels_know_neither_onnx_nor_the_planner() -> None:
    above = ("onnx", "engine.graphs", "engine.tools", "engine.runtime", *DOORS)
    assert not [b for path in files("kernels") for b in breaches(path, *above, kinds=ANYHOW)]


def test_graphs_never_run_anything() -> None:
    above = ("engine.tools", "engine.runtime", *DOORS)
    assert not [b for path in files("graphs") for b in breaches(path, *above, kinds=ANYHOW)]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("path", files("engine", "engine/onnxblock"), ids=module_of)
def test_the_runtime_is_light(path: Path) -> None:
    planner = ("engine.graphs", "engine.kernels", "engine.tools")
    if path.name == "custom.py":  # the face of the kernels' vocabulary, which is light
        planner = ("engine.graphs", "engine.tools")
    assert not breaches(path, *HEAVY), "never in engine/"
    assert not breaches(path, *planner, kinds=("top",)), "inside a function, if at all"
    if not module_of(path).startswith(DOORS):
        assert not breaches(path, *planner, kinds=("function",)), f"only in {DOORS}"


def test_onnx_is_behind_four_files_of_graphs() -> None:
    users = [path.name for path in files("graphs") if breaches(path, "onnx", kinds=ANYHOW)]
    assert users == ["compose.py", "convert.py", "messages.py", "onnx_io.py"]


def test_the_compiler_is_behind_kernels_and_tools() -> None:
    for path in files("engine", "engine/onnxblock", "graphs"):
        assert not breaches(path, "numba", "llvmlite")
    for path in files("kernels"):
        if not path.name.startswith("_"):
            assert not breaches(path, "numba", kinds=ANYHOW), "only kernels/_*.py talk to numba"


def test_one_file_at_most_calls_the_jit() -> None:
    call = re.compile(r"\bnumba\.n?jit\b|from numba import .*\bn?jit\b")
    sources = files("engine", "engine/onnxblock", "graphs", "kernels", "tools", "bench")
    users = [p.relative_to(ROOT).as_posix() for p in sources if call.search(p.read_text("utf-8"))]
    assert len(users) <= 1, users
    assert all(user.startswith("kernels/_") for user in users), users


def test_importing_the_whole_runtime_loads_nothing_heavy() -> None:
    paths = files("engine", "engine/onnxblock")
    modules = ["engine", *(module_of(p) for p in paths if p.stem != "__init__")]
    code = f"import sys, {', '.join(modules)}; print(*sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
