"""Scores of an attention: the product of Q and K, then scale, cap, bias and mask."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from engine.base.aliases import Array
from engine.graphs.ir.graph import Node
from engine.graphs.passes.attention_values import MatrixProduct, Values

HIDDEN = -1e30  # a lower score has probability 0 beside any score that products can reach
RoleNode = tuple[str, Node]  # the role of a node, as `Reader.climb` names it; the node


class Refused(Exception):
    """The reason why nodes stay as they are."""


@dataclass(slots=True)
class Scores:
    """Formula of the scores: cap tanh(scale Q K^T / cap) + biases, `fill` where the mask hides.

    nodes: those between the softmax and the product.
    ranks: for each bias and the mask, the number of dimensions of the scores that it is joined
        with.
    keep: the value of the mask where a key is seen.
    emptied: the condition under which a query has no keys, if the graph computes it.
    """

    product: MatrixProduct
    nodes: list[Node] = field(default_factory=list)
    scale: float = 1.0
    cap: float = 0.0
    tanh: str = ""
    biases: list[str] = field(default_factory=list)
    mask: str = ""
    ranks: dict[str, int] = field(default_factory=dict)
    keep: int = 1
    fill: float = -math.inf
    emptied: str = ""
    low: int | None = None
    high: int | None = None


class Reader:
    """Reader of the nodes between a product and its softmax."""

    def __init__(self, values: Values) -> None:
        self.values = values

    def climb(self, name: str, depth: int = 12) -> list[RoleNode] | None:
        """Return the nodes from a value back to the product that makes it, with their roles."""
        node = self.values.makers.get(name)
        if node is None or depth == 0:
            return None
        if MatrixProduct.of(node):
            return [("product", node)]
        if node.domain:
            return None
        ways: list[tuple[str, str]] = []
        shape = self.values.find_shape(name)
        if node.op == "Where":
            for at, keep in ((1, "where 1"), (2, "where 0")):
                if self.values.find_scalar(node.inputs[3 - at]) is not None:
                    ways.append((keep, node.inputs[at]))
        elif scaled := self.values.find_factor(node):
            ways.append(("scale", scaled[0]))
        elif node.op == "Add":
            ways += [(f"bias {1 - i}", node.inputs[i]) for i in (0, 1)]
        elif node.op == "Tanh":
            ways.append(("tanh", node.inputs[0]))
        elif self.values.keeps(node):
            return self._with(("same", node), node.inputs[0], depth)
        for role, value in ways:
            if self.values.find_shape(value) == shape:
                rest = self._with((role, node), value, depth)
                if rest is not None:
                    return rest
        return None

    def _with(self, first: RoleNode, name: str, depth: int) -> list[RoleNode] | None:
        rest = self.climb(name, depth - 1)
        return None if rest is None else [first, *rest]

    def interpret(self, steps: list[RoleNode]) -> Scores:
        """Return the scores that the nodes between product and softmax compute, starting at the
        product.
        """
        product = MatrixProduct.of(steps[-1][1])
        assert product is not None
        scores = Scores(product, [node for _, node in steps[:-1]], scale=product.alpha)
        for role, node in reversed(steps[:-1]):
            kind, _, at = role.partition(" ")
            behind = bool(scores.biases or scores.mask)
            match kind:
                case "scale":
                    _, factor = self.values.find_factor(node) or ("", 1.0)
                    if behind or scores.cap:
                        raise Refused("scores are scaled after a mask or a cap")
                    if scores.tanh:
                        scores.cap = factor
                        scores.scale *= factor
                    else:
                        scores.scale *= factor
                case "tanh":
                    if behind or scores.tanh:
                        raise Refused("a tanh follows a mask or another tanh")
                    scores.tanh = node.outputs[0]
                case "bias":
                    if scores.mask:
                        raise Refused("a bias follows a mask")
                    bias = node.inputs[int(at)]
                    scores.biases.append(bias)
                    scores.ranks[bias] = len(self.values.find_shape(node.outputs[0]))
                case "where":
                    self._note_where(scores, node, int(at))
        if scores.tanh and scores.cap <= 0:
            raise Refused("the result of a tanh is not scaled back")
        return scores

    def _note_where(self, scores: Scores, node: Node, keep: int) -> None:
        """Note a mask, or zeros for the queries whose scores are all -inf."""
        fill = self.values.find_scalar(node.inputs[1 if not keep else 2])
        x = node.inputs[2 if not keep else 1]
        assert fill is not None
        equal = self.values.makers.get(node.inputs[0])
        top = equal and self.values.makers.get(equal.inputs[0])
        if equal and top and equal.op == "Equal" and top.op == "ReduceMax":
            limit = self.values.find_scalar(equal.inputs[1])
            if top.inputs[0] == x and not keep and fill == 0 and limit == -math.inf:
                scores.emptied = node.inputs[0]
                scores.nodes += [equal, top]
                return
        if scores.mask or scores.emptied:
            raise Refused("two masks")
        scores.mask, scores.keep, scores.fill = node.inputs[0], keep, fill
        scores.ranks[scores.mask] = len(self.values.find_shape(node.outputs[0]))


def find_band(seen: Array, queries: int, keys: int) -> tuple[int | None, int | None] | None:
    """Return the first and the last key that query 0 sees if each query sees one further, or None.

    The result is also None if a query sees no key.  A border is None if it lies beyond all keys.
    """
    if seen.ndim < 2:
        return None
    flat = seen.reshape(-1, *seen.shape[-2:])
    if not (flat == flat[0]).all():
        return None
    matrix = flat[0]
    if matrix.shape != (queries, keys):  # it is repeated, along queries or keys
        return (None, None) if matrix.all() else None
    if not matrix.any(axis=1).all():
        return None
    first, last = matrix.argmax(axis=1), keys - 1 - matrix[:, ::-1].argmax(axis=1)
    steps = np.arange(queries)
    inside, before = first > 0, last < keys - 1
    low = int((first - steps)[inside][0]) if inside.any() else None
    high = int((last - steps)[before][0]) if before.any() else None
    begin = np.zeros_like(steps) if low is None else np.maximum(low + steps, 0)
    end = np.full_like(steps, keys - 1) if high is None else np.minimum(high + steps, keys - 1)
    is_whole = np.array_equal(np.count_nonzero(matrix, axis=1), last - first + 1)
    is_band = is_whole and np.array_equal(first, begin) and np.array_equal(last, end)
    return (low, high) if is_band else None
