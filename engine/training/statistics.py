"""Statistics: what training steps move without a gradient."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph

# Ops that move running statistics in a training step, and the indices of these inputs: `Op.roles`
# has them, too, but a device reads no declarations.
_MEAN, _VARIANCE, _RANGE = 3, 4, 0
_MOVING = {
    "BatchNormInternal": (_MEAN, _VARIANCE),
    "BatchNormalization": (_MEAN, _VARIANCE),
    "MoveStatistic": (_RANGE,),
}
VARIANCES = (_VARIANCE,)


def list_statistics(
    graph: Graph, known: Collection[str], places: Collection[int] | None = None
) -> list[str]:
    """Return the names of the running means, variances and ranges that a training step moves.

    graph: of the training model.
    known: the names of the parameters, in the order of the result.
    places: the indices of inputs of the nodes that move them; `VARIANCES` has only the variances.
        None: all.
    """
    names = {
        node.inputs[k]
        for node in graph.nodes
        for k in _MOVING.get(node.op, ())
        if (places is None or k in places) and (k == _RANGE or node.attrs.get("training_mode"))
    }
    return [name for name in known if name in names]
