"""Which models are read as they are, and which the onnx package has to convert first."""

from __future__ import annotations

from engine.graphs.io.protos import GraphProto, ModelProto
from engine.kernels.registry import ops

OLDEST, FIRST, LAST = 7, 13, 28  # convertible from OLDEST; used as they are from FIRST to LAST


def passes(domain: str, op: str) -> bool:
    """Whether an op is one of ours that only says where gradients go."""
    found = ops().get((domain, op))
    return found is not None and found.is_identity


def without_stand_ins(model: ModelProto) -> ModelProto:
    """The model without the functions that say of ops of ours what they are to other runtimes.

    It is a copy if there are such functions.
    """
    if not any(passes(f.domain, f.name) for f in model.functions):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.functions[:]
    copy.functions.extend(f for f in model.functions if not passes(f.domain, f.name))
    return copy


def is_read_as_is(model: ModelProto) -> bool:
    """Whether a model has a supported opset, no functions of its own, and declared ops alone."""
    found = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    is_known = bool(found) and FIRST <= found[0] <= LAST
    return is_known and not model.functions and _is_declared(model.graph)


def _is_declared(graph: GraphProto) -> bool:
    """Whether all ops of a graph, and of the bodies of its control flow, are declared here."""
    return all(
        ("" if n.domain == "ai.onnx" else n.domain, n.op_type) in ops()
        and all(_is_declared(a.g) for a in n.attribute if a.HasField("g"))
        for n in graph.node
    )
