"""Size of an ONNX model after inlining, by arithmetic alone: nothing is inlined or read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from engine.base import limits
from engine.base.errors import ModelError
from engine.graphs.io.protos import AttributeProto, GraphProto, ModelProto, NodeProto

Key = tuple[str, str, str]  # of a function: domain, name and overload


class Amount(NamedTuple):
    """Result of inlining all functions that nodes call.

    nodes: the number of nodes.  nbytes: the bytes of their messages.  depth: the levels of nested
        functions.
    """

    nodes: int
    nbytes: int
    depth: int


def check(model: ModelProto, source: str) -> None:
    """Refuse a model of too many nodes, or with functions or subgraphs too deep in each other.

    If each function calls the next one twice, the nodes double at each level: 1.4 KB become 2**19
    nodes.

    source: the name of the model in errors.

    Raises:
        LimitError: for the inlined nodes, their messages, or the levels.
        ModelError: functions call each other in a circle.
    """
    limits.check("DEPTH", _measure_depth(model.graph), source, "subgraphs are nested to")
    if not model.functions:
        limits.check("NODES", len(model.graph.node), source, "the graph has")
        return
    nodes, nbytes, depth = _measure_inlined(model, source)
    limits.check("DEPTH", depth, source, "functions are nested to")
    limits.check("NODES", nodes, source, "with its functions inlined the graph has")
    copied = nbytes - model.ByteSize()
    limits.check("CONSTANT_BYTES", copied, source, "with its functions inlined the model grows by")


def _measure_depth(graph: GraphProto) -> int:
    """Return how many levels of subgraphs are nested."""
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
    """Yield all nodes, including the nodes of subgraphs."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        for a in node.attribute:
            if a.type == AttributeProto.GRAPH:
                waiting += a.g.node


def _make_key(node: NodeProto) -> Key:
    """Return the key of the function that a node may call."""
    return "" if node.domain == "ai.onnx" else node.domain, node.op_type, node.overload


def _measure_inlined(model: ModelProto, source: str) -> Amount:
    """Return the result of inlining the nodes of a model."""
    bodies = {
        ("" if f.domain == "ai.onnx" else f.domain, f.name, f.overload): f for f in model.functions
    }
    calls: dict[Key, list[Key]] = {}  # for each function, in its body
    known: dict[Key, Amount] = {}
    begun = dict[Key, None]()
    waiting = [k for n in _walk(model.graph.node) if (k := _make_key(n)) in bodies]
    while waiting:
        key = waiting[-1]
        if key not in calls:
            calls[key] = [k for n in _walk(bodies[key].node) if (k := _make_key(n)) in bodies]
        missing = [k for k in dict.fromkeys(calls[key]) if k not in known]
        if key in known or not missing:
            known[key] = known.get(key) or _measure(bodies[key].node, known)
            begun.pop(key, None)
            waiting.pop()
            continue
        begun[key] = None
        for k in missing:
            if k in begun:
                names = ", ".join(name for _, name, _ in begun)
                raise ModelError(f"{source}: functions call each other in a circle: {names}")
        waiting += missing
    return _measure(model.graph.node, known)


def _measure(nodes: Iterable[NodeProto], known: dict[Key, Amount]) -> Amount:
    """Return the result of inlining nodes, given the amounts of functions."""
    count = nbytes = depth = 0
    for node in _walk(nodes):
        inner = known.get(_make_key(node))
        count += 1 if inner is None else inner.nodes
        if inner is not None:
            nbytes += inner.nbytes
            depth = max(depth, 1 + inner.depth)
        elif not any(a.type == AttributeProto.GRAPH for a in node.attribute):
            nbytes += node.ByteSize()
    return Amount(count, nbytes, depth)
