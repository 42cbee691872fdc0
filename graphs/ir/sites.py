"""Sites: what the rules of an op are told about one of its nodes, and what they have answered."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Generic, TypeVar

from engine.errors import UnsupportedOpError, defects, nearest
from engine.graphs.ir.graph import Graph, Node, Subgraph
from engine.kernels.registry import ops
from engine.kernels.sizes import is_size, shape_key
from engine.kernels.vocabulary.op import MS, OURS, Array, Op, Site, TensorType
from engine.kernels.vocabulary.terms import Formulas

# Channels in blocks, and weights in an order that follows from the CPU, not from the file.
NCHWC = "com.microsoft.nchwc"


def declaration(graph: Graph, node: Node) -> Op:
    """The op declaration of a node.

    Raises:
        UnsupportedOpError: there is none, or the opset of the model is older than it supports.
    """
    op = ops().get((node.domain, node.op))
    opset = graph.opsets.get(node.domain, 1)
    if op is not None and opset >= op.since:
        return op
    where = f"{node.domain + '::' if node.domain else ''}{node.op} {node.name!r} (opset {opset})"
    if node.domain == NCHWC:
        raise UnsupportedOpError(
            f"{where} in {graph.name!r}: onnxruntime saved this model in a layout for the CPU that "
            f"it ran on; supported: the model before that, or as onnxruntime saves it with "
            f"graph_optimization_level ORT_ENABLE_EXTENDED"
        )
    if op is None:
        known = sorted(name for domain, name in ops() if domain == node.domain)
        raise UnsupportedOpError(
            f"{where} in {graph.name!r} is not supported{nearest(node.op, known)}; supported: the "
            f"{len(known)} operators of this domain that docs/operators.md lists"
        )
    raise UnsupportedOpError(f"{where}: supported from opset {op.since}")


def site_of(
    graph: Graph,
    node: Node,
    types: Mapping[str, TensorType],
    constants: Mapping[str, Array],
) -> Site:
    """The site of a node.

    types, constants: those of the graph that are known; the site gets those of the node's inputs.

    Raises:
        UnsupportedOpError: as `declaration`.
    """
    op = declaration(graph, node)
    return Site(
        op=node.op,
        domain=node.domain,
        name=node.name,
        opset=graph.opsets.get(node.domain, 1),
        ins=tuple([types.get(i) if i else None for i in node.inputs]),
        attrs={**op.attrs, **node.attrs},
        values=tuple([constants.get(i) if i else None for i in node.inputs]),
        n_outs=len(node.outputs),
        expr=op.expr,
    )


Answer = TypeVar("Answer")
Told = tuple[object, ...]  # what a rule is told of a node, as a key
_PLAIN = (int, float, str, list, tuple)  # types of attributes whose text says all that they are
_NOTHING = id(None)


class Answers(Generic[Answer]):
    """What a rule has answered, by what it was told: of nodes that are alike, one is asked about.

    A rule is told the op and the attributes of a node, the number of its outputs, and the types and
    constant values of its inputs.  Its answer follows from these alone.  What has the name of the
    node in it, as a new symbol in a shape has, must not be kept.

    Types, values, and attributes that are more than numbers and texts are told apart by identity:
    models have many nodes, and few types.  Whoever records types lets `one_of` make equal ones one
    object; else the rule is asked again.
    """

    def __init__(self) -> None:
        self._kept: dict[Told, tuple[Answer, Site]] = {}
        self._types: dict[object, TensorType] = {}

    def one_of(self, t: TensorType) -> TensorType:
        """The first type that was given which equals this one."""
        return self._types.setdefault((t.dtype, shape_key(t.shape), t.last), t)

    def get(self, told: Told | None) -> Answer | None:
        """The answer to what a rule would be told; None if there is none yet."""
        found = self._kept.get(told) if told is not None else None
        return found[0] if found is not None else None

    def keep(self, told: Told | None, site: Site, answer: Answer) -> None:
        """Note what the rule has answered about the site of a node, of which it was told `told`.

        The site holds all of it, so that no other object gets the identity of a part.
        """
        if told is not None:
            self._kept[told] = (answer, site)


def plain(value: object) -> object:
    """An attribute as a part of a key: its text, or its identity if that does not say it all."""
    if isinstance(value, Formulas):
        return value
    if is_size(value):
        return shape_key((value,))
    if isinstance(value, list | tuple) and any(map(is_size, value)):
        return type(value), shape_key(value)
    return repr(value) if isinstance(value, _PLAIN) else id(value)


def told_of(
    graph: Graph,
    node: Node,
    types: Mapping[str, TensorType],
    constants: Mapping[str, Array],
) -> Told | None:
    """What a rule is told of a node, as a key of `Answers`, without its name.

    None if answers about the node cannot be kept: an input has no type, or there is a subgraph.

    types, constants: those of the graph that are known.
    """
    inputs = node.inputs
    told: list[object] = [*map(id, map(types.get, inputs))]
    if _NOTHING in told and any(i and i not in types for i in inputs):
        return None
    told += map(id, map(constants.get, inputs))
    for name, value in node.attrs.items():
        if isinstance(value, Subgraph):
            return None
        told += (name, plain(value))
    return (node.op, node.domain, graph.opsets.get(node.domain, 1), len(node.outputs), *told)


def rule_of(op: Op, stage: str, site: Site, node: Node) -> contextlib.AbstractContextManager[None]:
    """The context in which a rule of an op runs: an unexpected exception becomes an InternalError.

    stage: which rule it is, as "the shape rule".

    Raises:
        InternalError: the rule stopped with anything but an `EngineError`.  This is a defect of the
            package, or of the code that registered the op.
    """
    owner = ""
    if op.domain not in ("", MS, OURS):
        owner = f"the operator {op.domain}::{op.name}, registered from {op.infer.__module__!r}"
    return defects(stage, site.where, detail=node, owner=owner)
