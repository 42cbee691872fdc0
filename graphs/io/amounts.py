"""How much a message of ONNX asks for, by arithmetic: nothing is inlined or read for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from engine import limits
from engine.errors import ModelError
from engine.graphs.io.protos import AttributeProto, GraphProto, ModelProto, NodeProto

Key = tuple[str, str, str]  # of a function: domain, name and overload


class Amount(NamedTuple):
    """What nodes become when all functions that they call are inlined.

    nodes: how many nodes.  nbytes: their messages.  depth: levels of functions in each other.
    """

    nodes: int
    nbytes: int
    depth: int


def check(model: ModelProto, source: str) -> None:
    """Refuse a model of too many nodes, or with functions or subgraphs too deep in each other.

    A function that calls another one twice, which does so too, has twice the nodes at each level:
    1.4 KB become 2**19 nodes.

    source: what errors call the model.

    Raises:
        LimitError: of its nodes inlined, of their messages, or of the levels.
        ModelError: functions call each other in a circle.
    """
    limits.check("DEPTH", _depth(model.graph), source, "subgraphs are in each other to")
    if not model.functions:
        limits.check("NODES", len(model.graph.node), source, "the graph has")
        return
    nodes, nbytes, depth = _inlined(model, source)
    limits.check("DEPTH", depth, source, "functions call each other to")
    limits.check("NODES", nodes, source, "with its functions inlined the graph has")
    copied = nbytes - model.ByteSize()
    limits.check("CONSTANT_BYTES", copied, source, "inlined its functions are copied to")


def _depth(graph: GraphProto) -> int:
    """How many levels of subgraphs are inside each other."""
    level, depth = [graph], -1
    while level:
        depth += 1
        level = [
            a.g
            for g in level
            for n in g.node
            for a in n.attribute
            if a.type == AttributeProto.GRAPH
        ]
    return depth


def _walk(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """All nodes, those of subgraphs included."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        for a in node.attribute:
            if a.type == AttributeProto.GRAPH:
                waiting += a.g.node


def _key(node: NodeProto) -> Key:
    """The function that a node calls, if there is one of this name."""
    return "" if node.domain == "ai.onnx" else node.domain, node.op_type, node.overload


def _inlined(model: ModelProto, source: str) -> Amount:
    """What the nodes of a model become."""
    bodies = {
        ("" if f.domain == "ai.onnx" else f.domain, f.name, f.overload): f for f in model.functions
    }
    calls: dict[Key, list[Key]] = {}  # of each function, in its body
    known: dict[Key, Amount] = {}
    begun = dict[Key, None]()
    waiting = [k for n in _walk(model.graph.node) if (k := _key(n)) in bodies]
    while waiting:
        key = waiting[-1]
        if key not in calls:
            calls[key] = [k for n in _walk(bodies[key].node) if (k := _key(n)) in bodies]
        missing = [k for k in dict.fromkeys(calls[key]) if k not in known]
        if key in known or not missing:
            known[key] = known.get(key) or _amount(bodies[key].node, known)
            begun.pop(key, None)
            waiting.pop()
            continue
        begun[key] = None
        for k in missing:
            if k in begun:
                names = ", ".join(name for _, name, _ in begun)
                raise ModelError(f"{source}: functions call each other in a circle: {names}")
        waiting += missing
    return _amount(model.graph.node, known)


def _amount(nodes: Iterable[NodeProto], known: dict[Key, Amount]) -> Amount:
    """What nodes become, whose functions are known."""
    count = nbytes = depth = 0
    for node in _walk(nodes):
        inner = known.get(_key(node))
        count += 1 if inner is None else inner.nodes
        if inner is not None:
            nbytes += inner.nbytes
            depth = max(depth, 1 + inner.depth)
        elif not any(a.type == AttributeProto.GRAPH for a in node.attribute):
            nbytes += node.ByteSize()
    return Amount(count, nbytes, depth)
