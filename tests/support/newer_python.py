"""Python that 3.9 can parse but cannot run."""

from __future__ import annotations

import ast


class NewerThan39(ast.NodeVisitor):
    """Collects what Python 3.9 cannot run although it can parse it."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def visit_annotation(self, node: ast.AST | None) -> None:
        """Annotations are text, by the future import."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        arguments = node.args
        for child in (
            *node.decorator_list,
            *arguments.defaults,
            *arguments.kw_defaults,
            *node.body,
        ):
            if child is not None:
                self.visit(child)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        names = {"None", "str", "int", "float", "bytes", "bool", "PathLike", "Any"}
        used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        if isinstance(node.op, ast.BitOr) and used & names:
            self.found.append(f"line {node.lineno}: a union of types")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == "zip" and node.keywords:
            self.found.append(f"line {node.lineno}: zip with keywords")
        self.generic_visit(node)
