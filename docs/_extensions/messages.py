"""The directive `messages`: what the errors of a class say, read from where they are raised."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("engine", "graphs", "kernels", "tools")
BLANK = "…"  # stands for what is known when the error is raised


@cache
def classes() -> tuple[str, ...]:
    """The classes of `engine.errors`."""
    tree = ast.parse((ROOT / "engine/base/errors.py").read_text("utf-8"))
    return tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef))


@cache
def messages() -> dict[str, list[str]]:
    """The texts of every class in alphabetical order, as far as they stand in the code."""
    found = defaultdict(set)
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if path.resolve() != path:  # seen through a link
                continue
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id in classes()
                    and node.args
                ):
                    found[node.func.id].add(text_of(node.args[0]))
    said = {
        name: {text for text in texts if re.search(r"\w", text)} for name, texts in found.items()
    }
    return {name: sorted(texts, key=str.casefold) for name, texts in said.items()}


def text_of(node: ast.expr) -> str:
    """A message as it is written, with `BLANK` for every value in it."""
    match node:
        case ast.Constant(value=str(text)):
            return " ".join(text.split())
        case ast.JoinedStr(values=values):
            parts = (v.value if isinstance(v, ast.Constant) else BLANK for v in values)
            return re.sub(f"{BLANK}+", BLANK, " ".join("".join(map(str, parts)).split()))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return re.sub(f"{BLANK}+", BLANK, text_of(left) + text_of(right))
    return BLANK


class Messages(Directive):
    """A list of messages that opens when it is asked for."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The list as nodes."""
        texts = messages().get(self.arguments[0], [])
        if not texts:
            raise self.error(f"no {self.arguments[0]} is raised")
        listed = nodes.bullet_list()
        for text in texts:
            listed += nodes.list_item("", nodes.paragraph("", "", nodes.literal("", text)))
        count = f"{len(texts)} messages" if len(texts) > 1 else "1 message"
        opening = nodes.raw("", f"<details><summary>{count}</summary>", format="html")
        return [opening, listed, nodes.raw("", "</details>", format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("messages", Messages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
