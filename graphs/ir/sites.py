"""A graph's node as the op declarations see it."""

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
        UnsupportedOpError: there is none, or the model's opset is older than it.
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
    """The site of a node: attributes with ONNX's defaults, types and constant values of inputs."""
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
    """The context in which a rule of an op runs on a node: what it stops with is a defect.

    stage: which rule it is, as "the shape rule".

    Raises:
        InternalError: the rule stopped with anything but an `EngineError`.  The defect is that of
            the package, or of whoever registered the op.
    """
    owner = ""
    if op.domain not in ("", MS, OURS):
        owner = f"the operator {op.domain}::{op.name}, registered from {op.infer.__module__!r}"
    return defects(stage, site.where(), detail=node, owner=owner)
