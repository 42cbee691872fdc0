"""Layers: the folders of the product in one order, in which each imports only those before it.

The order holds for every import: at import time, inside of functions and for type checkers.  No
import closes a circle of modules.  The runtime pays for NumPy alone.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.places import ALIAS, ROOT
from tests.support.source_files import list_files, name_file

HEAVY = {"numba", "llvmlite", "onnx", "onnxruntime", "sklearn"}
LAYERS = (
    *("base", "system", "distributed", "plan", "runtime", "checkpoint"),
    *("kernels.machine", "kernels.vocabulary", "kernels.vector_ir", "kernels.loops", "kernels.ops"),
    *("kernels.compiler", "kernels.binaries", "kernels.analysis"),
    *("graphs.ir", "graphs.io", "graphs.passes", "graphs.planner", "graphs.offline"),
    *("drawing", "profiling", "loss_types", "training", "onnxblock", "artifacts", "checking"),
    *("lora", "data", "quantization", "models", "trainer", "engine", "federated"),
    *("tools.trimmed", "tools.benchmark", "tools.actions", "tools.commands", "tools", "tools.dev"),
    "alias",
)
DOORS = {"engine.__main__": "tools"}  # modules that belong to the room they lead to
GUARDS = ("engine.kernels", "engine.graphs")  # whose __init__ refuses a second copy
PLANNING = {  # rooms that are read when something is planned
    *("kernels.vector_ir", "kernels.loops", "kernels.ops", "kernels.compiler", "kernels.analysis"),
    *("graphs.ir", "graphs.passes", "graphs.planner"),
}
ONNX_USERS = {
    "graphs/io/convert.py", "graphs/io/messages.py", "graphs/io/onnx_io.py",
    "graphs/io/reference.py", "graphs/io/schemas.py", "graphs/offline/compose.py",
}  # fmt: skip
NUMBA_USERS = (
    "kernels/compiler/",
    "kernels/binaries/",
    "kernels/vector_ir/",
    "kernels/machine/features.py",
    "kernels/machine/target.py",
)


class Import(NamedTuple):
    """One imported module, and how: at import time, in a function, or for checkers only."""

    name: str
    line: int
    kind: str

    def within(self, *packages: str) -> bool:
        return any(self.name == p or self.name.startswith(p + ".") for p in packages)


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """Every import of a file; `from a import b` counts as `a` and as `a.b`."""
    return tuple(_walk(ast.parse(path.read_text("utf-8")), "top"))


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


@cache
def modules() -> dict[str, Path]:
    """Every module of the product by its dotted name."""
    actual = {}
    for path in list_files("engine", "kernels", "graphs", "tools"):
        if path.is_relative_to(ALIAS):
            actual["edgegrad"] = path
            continue
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts if parts[0] == "engine" else ("engine", *parts)
        actual[".".join(parts).removesuffix(".__init__")] = path
    return actual


def room_of(module: str) -> str:
    """Return the folder of LAYERS that a module lies in; folders in it belong to it.

    The files of `engine/` and `tools/` themselves, their faces, are rooms of their own.
    """
    if module in DOORS:
        return DOORS[module]
    path = modules()[module]
    parts = path.parent.relative_to(ROOT).parts
    parts = parts[1:] if parts[0] == "engine" and len(parts) > 1 else parts
    for length in range(len(parts), 0, -1):
        room = ".".join(parts[:length])
        if room in LAYERS and (length == len(parts) or room not in {"engine", "tools"}):
            return room
    pytest.fail(f"{module}: the folder {'/'.join(parts)} is not in LAYERS")


def inner(path: Path, *kinds: str) -> Iterator[tuple[str, int]]:
    """Modules of the product that a file imports; `a.b` of `from a import b` if it is one."""
    actual_imports = [i for i in imports(path) if i.kind in kinds and i.name in modules()]
    named = {(i.line, i.name) for i in actual_imports}
    for i in actual_imports:  # `from package import module` does not read the package itself
        inside = any(line == i.line and n.startswith(i.name + ".") for line, n in named)
        if not inside:
            yield i.name, i.line


def breaches(path: Path, *packages: str, kinds: tuple[str, ...] = ("top", "function")) -> list[str]:
    return [
        f"{name_file(path)}:{i.line} imports {i.name}"
        for i in imports(path)
        if i.within(*packages) and i.kind in kinds
    ]


def test_a_folder_imports_only_those_before_it() -> None:
    wrong = [
        f"{module}:{line} ({room_of(module)}) imports {name} ({room_of(name)})"
        for module, path in modules().items()
        if module not in GUARDS
        for name, line in inner(path, "top", "function", "typing")
        if name not in GUARDS and LAYERS.index(room_of(name)) > LAYERS.index(room_of(module))
    ]
    assert not wrong


def test_every_folder_is_a_layer_or_lies_in_one() -> None:
    assert {room_of(module) for module in modules() if module not in GUARDS} == set(LAYERS)
    for module in GUARDS:
        assert not [*inner(modules()[module], "top", "function", "typing")]


def find_circle(kinds: tuple[str, ...]) -> str:
    """Return a circle of modules that such imports close, or ""."""
    graph = {
        module: {name for name, _ in inner(path, *kinds)} - {module}
        for module, path in modules().items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " -> ".join(error.args[1])
    return ""


def test_no_import_closes_a_circle() -> None:
    assert not find_circle(("top", "function"))


def test_no_import_for_type_checkers_closes_a_circle() -> None:
    assert not find_circle(("top", "function", "typing"))


def test_neither_the_product_nor_its_data_need_tests() -> None:
    """`tools/dev` makes data of the product; `bench` measures it: both must run without `tests`."""
    wrong = [
        f"{name_file(path)}:{i.line} imports {i.name}"
        for path in list_files("engine", "kernels", "graphs", "tools", "bench")
        for i in imports(path)
        if i.within("tests") or (i.within("bench") and not name_file(path).startswith("bench/"))
    ]
    assert not wrong


def test_rooms_keep_their_private_names() -> None:
    """`_names` are for the file they stand in, and for tests of it.

    onnxruntime-training named `_graph_utils`; blocks that its users wrote import it.
    """
    wrong = [
        f"{name_file(path)}:{i.line} imports {i.name}"
        for path in list_files("engine", "kernels", "graphs", "tools", "bench")
        for i in imports(path)
        if i.within("engine")
        and not i.within("engine.onnxblock._graph_utils")
        and any(p[0] == "_" != p[1] for p in i.name.split("."))
    ]
    assert not wrong


def private_attributes(tree: ast.AST) -> set[str]:
    """Return the private names that the classes of a file give to methods and attributes."""
    names = set()
    for owner in ast.walk(tree):
        if isinstance(owner, ast.ClassDef):
            for node in ast.walk(owner):
                if isinstance(node, ast.FunctionDef):
                    names.add(node.name)
                elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    names.add(node.attr)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    names.add(node.target.id)
    return {name for name in names if re.match("_[^_]", name)}


def test_private_attributes_are_read_in_their_own_file() -> None:
    """Those of other packages have no other name; no file of the product gives them."""
    trees = {
        path: ast.parse(path.read_text("utf-8"))
        for path in list_files("engine", "kernels", "graphs", "tools")
    }
    given = {path: private_attributes(tree) for path, tree in trees.items()}
    ours = set().union(*given.values())
    others = {path: ours - own for path, own in given.items()}
    wrong = [
        f"{name_file(path)}:{node.lineno} reads {ast.unparse(node)}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in others[path]
    ]
    assert not wrong


@pytest.mark.parametrize("path", list_files("engine"), ids=name_file)
def test_the_runtime_is_light(path: Path) -> None:
    assert not breaches(path, *HEAVY), "never in engine/"


def test_training_loads_no_planner() -> None:
    """A training run with prepared plans pays for the runtime alone."""
    code = "import sys, engine.api, engine.trainer.trainer; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = {
        room_of(module)
        for module in done.stdout.split()
        if module in modules() and module not in GUARDS
    }
    assert not loaded & PLANNING


@pytest.mark.parametrize("path", list_files("tools/trimmed/runtime"), ids=name_file)
def test_what_a_build_ships_needs_numpy_alone(path: Path) -> None:
    """Copied beside a library, they run on devices where nothing of edgegrad is installed."""
    roots = {i.name.split(".")[0] for i in imports(path)}
    assert roots <= {"numpy", *sys.stdlib_module_names}
    assert modules()[f"engine.{name_file(path).removesuffix('.py').replace('/', '.')}"] == path


def test_onnx_is_behind_few_files_of_graphs() -> None:
    users = {
        name_file(p) for p in list_files("graphs") if breaches(p, "onnx", kinds=("top", "function"))
    }
    assert users == ONNX_USERS


def test_the_compiler_is_behind_its_rooms() -> None:
    for path in list_files("engine", "graphs", "kernels"):
        if not name_file(path).startswith(NUMBA_USERS):
            assert not breaches(path, "numba", "llvmlite", kinds=("top", "function", "typing"))


def test_only_the_commands_know_the_library_of_commands() -> None:
    """Functions that commands call work, and are tested, without click; so does a device with only
    numpy.
    """
    for path in list_files("engine", "graphs", "kernels", "tools"):
        if not name_file(path).startswith(("tools/commands/", "tools/cli.py")):
            assert not breaches(path, "click", kinds=("top", "function", "typing"))


def test_one_file_at_most_calls_the_compiler() -> None:
    call = re.compile(r"\bcompile_extra\b|\bnumba\.n?jit\b|from numba import .*\bn?jit\b")
    sources = list_files("engine", "graphs", "kernels", "tools", "bench")
    users = [name_file(p) for p in sources if call.search(p.read_text("utf-8"))]
    assert users == ["kernels/compiler/frontend.py"]


def test_importing_the_whole_runtime_loads_nothing_heavy() -> None:
    names = [m for m in modules() if m not in {"edgegrad", *DOORS}]
    names = [m for m in names if modules()[m].is_relative_to(ROOT / "engine")]
    code = f"import sys, {', '.join(names)}; print(*sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_one_file_knows_where_the_files_of_tests_are() -> None:
    climb = re.compile(r"\bPath\(__file__\)[\w.()]*\.parent")
    climbers = [name_file(p) for p in list_files("tests") if climb.search(p.read_text("utf-8"))]
    assert climbers == ["tests/support/places.py"]


def test_nobody_imports_a_test_module() -> None:
    """Code that several tests use stands in tests/support; so do programs that tests start."""
    wanted = re.compile(r"\b(from|import) +tests(\.\w+)*(\.| +import +)test_\w+")
    wrong = [
        f"{name_file(path)}: {match[0]}"
        for path in list_files("tests", "bench", "tools", "docs")
        for match in wanted.finditer(path.read_text("utf-8"))
    ]
    assert not wrong


@pytest.mark.parametrize("folder", ["support", "fuzz", "guard", "random_graphs"])
def test_only_test_modules_hold_tests(folder: str) -> None:
    for path in list_files(f"tests/{folder}"):
        functions = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if _is_test(n)]
        assert not functions, name_file(path)
        assert not path.name.startswith("test_")


def _is_test(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
