"""Constants of ops that are not declared here, computed by onnx's reference implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.graphs.io.onnx_io import make_node
from engine.graphs.ir.graph import Node
from engine.kernels.ops.registry import list_ops

# These have bodies, which read other values, or can make large results from small inputs.
NEVER_FOLDED = {
    "If", "Loop", "Scan", "SequenceMap", "ConstantOfShape", "Expand", "Range", "Tile", "Resize",
    "Upsample", "Pad", "OneHot", "EyeLike",
}  # fmt: skip


def evaluate(node: Node, opsets: Mapping[str, int], values: Sequence[Array | None]) -> list[Any]:
    """Return the outputs of one ONNX node by onnx's reference; none if it cannot compute them.

    values: the values of the inputs; None for an absent input.  This is slow, so only for small
        values.
    """
    op = list_ops().get((node.domain, node.op))
    if node.domain or node.op in NEVER_FOLDED or (op is not None and op.is_random):
        return []
    from onnx.reference import ReferenceEvaluator

    feeds = {n: v for n, v in zip(node.inputs, values, strict=True) if n and v is not None}
    proto = make_node(node, opsets)
    try:
        run = ReferenceEvaluator(proto, opsets=dict(opsets))
        with np.errstate(all="ignore"):
            return list(run.run(None, feeds))
    except Exception:  # onnx may raise anything: the node stays, and is refused by name later
        return []
