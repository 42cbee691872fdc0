"""Sites: what the rules of an op are told about one of its nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from engine.errors import UnsupportedOpError, defects, nearest
from engine.graphs.ir.graph import Graph, Node
from engine.kernels.registry import ops
from engine.kernels.vocabulary.op import MS, OURS, Array, Op, Site, TensorType


def declaration(graph: Graph, node: Node) -> Op:
    """The op declaration of a node.

    Raises:
        UnsupportedOpError: there is none, or the opset of the model is older than it supports.
    """
    op = ops().get((node.domain, node.op))
    opset = graph.opsets.get(node.domain, 1)
    where = f"{node.domain + '::' if node.domain else ''}{node.op} {node.name!r} (opset {opset})"
    if op is None:
        known = sorted(name for domain, name in ops() if domain == node.domain)
        raise UnsupportedOpError(
            f"{where} in {graph.name!r} is not supported{nearest(node.op, known)}; supported: the "
            f"{len(known)} operators of this domain that docs/operators.md lists"
        )
    if opset < op.since:
        raise UnsupportedOpError(f"{where}: supported from opset {op.since}")
    return op


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
        ins=tuple(types.get(i) if i else None for i in node.inputs),
        attrs={**op.attrs, **node.attrs},
        values=tuple(constants.get(i) if i else None for i in node.inputs),
        n_outs=len(node.outputs),
        expr=op.expr,
    )


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
