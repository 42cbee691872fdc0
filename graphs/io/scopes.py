"""Scopes of names: the rules of ONNX for functions and for the bodies of control flow.

    function    Its nodes read its inputs and what nodes before them make; nothing of who calls it.
    body        The nodes of a branch or of a loop read that, and what the graph around it has.
    both        A name is made once, and is read after it is made.  A node of a body makes no name
                that the graph around it has; its inputs and initializers may be called as one is.

    https://github.com/onnx/onnx/blob/main/docs/IR.md, "Names Within a Graph" and "Functions"

The graph of the model itself is checked when it is sorted (`engine.graphs.ir.graph`).
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from engine.base.errors import ModelError
from engine.graphs.io.protos import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto


def check(model: ModelProto, source: str) -> None:
    """Refuse functions and bodies that read or make names against the rules.

    source: the name of the model in errors.

    Raises:
        ModelError: a rule is broken; the message names the function or control-flow node, the node
            and the name.
    """
    for function in model.functions:
        _check_function(function, source)
    graph = model.graph
    if any(_list_bodies(node) for node in graph.node):
        known = {v.name for v in graph.input} | {t.name for t in graph.initializer}
        for node in graph.node:
            for body in _list_bodies(node):
                _check_body(body, known, f"{source}: {_title(node)}")
            known.update(node.output)


def _check_function(function: FunctionProto, source: str) -> None:
    where = f"{source}: function {function.name!r}"
    for what, names in (("inputs", function.input), ("outputs", function.output)):
        twice = _find_first_twice(names)
        if twice is not None:
            raise ModelError(f"{where} has two {what} named {twice!r}")
    made = set(function.input)
    for node in function.node:
        for name in node.input:
            if name and name not in made:
                raise ModelError(
                    f"{where}: {_title(node)} reads {name!r}, which is neither an input of the "
                    "function nor made by a node before it; a function does not see the values of "
                    "its caller"
                )
        for body in _list_bodies(node):
            _check_body(body, made, f"{where}, {_title(node)}", is_closed=True)
        _make(node, made, where)
    lost = next((name for name in function.output if name not in made), None)
    if lost is not None:
        raise ModelError(f"{where}: no node computes the output {lost!r}")


def _check_body(body: GraphProto, around: Set[str], where: str, is_closed: bool = False) -> None:
    """Check the body of a control-flow node.

    around: the names that the graphs around it have made before the node.
    is_closed: whether these are the only names that it may read; otherwise a graph around it makes
        others later, because the graph of a model need not be sorted.
    """
    own = {v.name for v in body.input} | {t.name for t in body.initializer}
    later = {name for node in body.node for name in node.output if name} - own
    made = set(own)
    for node in body.node:
        for name in node.input:
            known = name in made or name in around
            if name in later or (is_closed and name and not known):
                raise ModelError(
                    f"{where}: in the body {body.name!r} {_title(node)} reads {name!r} before it "
                    "is computed"
                )
        for inner in _list_bodies(node):
            _check_body(inner, made | around, f"{where}, {_title(node)}", is_closed)
        taken = next((name for name in node.output if name in around and name not in own), None)
        if taken:
            raise ModelError(
                f"{where}: in the body {body.name!r} {_title(node)} makes {taken!r}, a name of the "
                "graph around it"
            )
        _make(node, made, f"{where}: body {body.name!r}")
        later.difference_update(node.output)
    if is_closed:
        lost = next((v.name for v in body.output if v.name not in made | around), None)
        if lost is not None:
            raise ModelError(f"{where}: no node computes the output {lost!r} of {body.name!r}")


def _make(node: NodeProto, made: set[str], where: str) -> None:
    """Add the outputs of a node to the names that are made."""
    for name in node.output:
        if name and name in made:
            raise ModelError(f"{where}: {_title(node)} makes {name!r} a second time")
        made.add(name)


def _list_bodies(node: NodeProto) -> list[GraphProto]:
    return [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]


def _title(node: NodeProto) -> str:
    return f"{node.op_type} {node.name!r}"


def _find_first_twice(names: Iterable[str]) -> str | None:
    seen = set[str]()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
