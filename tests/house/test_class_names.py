"""No two classes share a name, except those that a user meets by one name in several places.

These are classes that `edgegrad` offers, classes with names of onnxruntime (`SAME_API`), and a
class that inherits from the one that it is named after.
"""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.support.offered import list_offered
from tests.support.source_files import list_files, name_file

ROOMS = ("engine", "kernels", "graphs", "tools")
SAME_API = ("engine/onnxblock/", "engine/training/state.py", "tools/trimmed/runtime/device.py")


def name_module(path: str) -> str:
    """Return the name by which a file of these rooms is imported."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name if path.startswith("engine/") else f"engine.{name}"


def list_namesakes(texts: dict[str, str], public: set[tuple[str, str]]) -> list[str]:
    """List the names that classes share, each with the files of these classes."""
    places = defaultdict[str, list[tuple[str, bool]]](list)
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).split(".")[-1] for base in node.bases}
                is_known = path.startswith(SAME_API) or (name_module(path), node.name) in public
                if node.name not in bases:
                    places[node.name].append((path, is_known))
    return [
        f"{name}: {', '.join(path for path, _ in each)}"
        for name, each in sorted(places.items())
        if len(each) > 1 and not all(is_known for _, is_known in each)
    ]


def read_rooms() -> dict[str, str]:
    return {name_file(path): path.read_text("utf-8") for path in list_files(*ROOMS)}


def test_no_two_classes_share_a_name() -> None:
    public = {(module, name.split(".")[0]) for module, name in list_offered()}
    assert not list_namesakes(read_rooms(), public)


def test_a_namesake_is_found() -> None:
    texts = {
        "engine/a.py": "class Part: ...\nclass Lion: ...",
        "graphs/b.py": "def make():\n    class Part: ...",
        "kernels/c.py": "import a\nclass Lion(a.Lion): ...",
    }
    assert list_namesakes(texts, set()) == ["Part: engine/a.py, graphs/b.py"]
    assert list_namesakes(texts, {("engine.a", "Part")}) == ["Part: engine/a.py, graphs/b.py"]
    assert not list_namesakes(texts, {("engine.a", "Part"), ("engine.graphs.b", "Part")})
