"""Opsets: the models that can be read directly, and the ones that onnx must convert first."""

from __future__ import annotations

from engine.graphs.io.protos import GraphProto, ModelProto
from engine.kernels.ops.registry import list_ops

OLDEST, FIRST, LAST = 7, 13, 28  # convertible from OLDEST; read directly from FIRST to LAST


def passes(domain: str, op: str) -> bool:
    """Return whether an op is one of ours that only controls gradients."""
    op_of = list_ops().get((domain, op))
    return op_of is not None and op_of.is_identity


def without_stand_ins(model: ModelProto) -> ModelProto:
    """Return the model without the functions that define ops of ours for other runtimes.

    The result is a copy if there are such functions.
    """
    if not any(passes(f.domain, f.name) for f in model.functions):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.functions[:]
    copy.functions.extend(f for f in model.functions if not passes(f.domain, f.name))
    return copy


def is_read_as_is(model: ModelProto) -> bool:
    """Return whether a model has a supported opset, no functions of its own, and only declared
    ops.
    """
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    is_known = bool(versions) and FIRST <= versions[0] <= LAST
    return is_known and not model.functions and _is_declared(model.graph)


def _is_declared(graph: GraphProto) -> bool:
    """Return whether all ops of a graph, and of its control-flow bodies, are declared here."""
    return all(
        ("" if n.domain == "ai.onnx" else n.domain, n.op_type) in list_ops()
        and all(_is_declared(a.g) for a in n.attribute if a.HasField("g"))
        for n in graph.node
    )
